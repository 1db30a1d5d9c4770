"""Each limit of a server: a request beyond it is refused by name, and one at it is answered."""

import json
import time
from collections.abc import Iterator
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient
from support import borders

import fanrank as fr
from fanrank.engine.errors import ParameterError
from fanrank.engine.feedback.registry import FEEDBACKS, PRESETS, feedback_of, feedback_to_dict
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.route.policy import POLICIES, answerer_to_dict
from fanrank.server import cancelling
from fanrank.server.access import Principal
from fanrank.server.app import make_app
from fanrank.server.limits import HELP, Limits
from fanrank.server.problems import Problem
from fanrank.server.strategies import read_strategy

SMALL = Limits(
    body_bytes=20_000, queries=3, k=20, hits=40, explained=6, explained_terms=8, text=50, terms=4, filter_depth=3,
    comparisons=5, depth=200, searches=6, namespaces=3, records=4, ids=5, id_length=30, payload_bytes=400,
)  # fmt: skip
ELSEWHERE = {
    *("bodies_bytes", "bodies_bytes_per_key", "head_bytes", "connections", "head_seconds", "body_seconds"),
    *("answer_seconds", "in_flight", "in_flight_per_key", "seconds", "stop_seconds", "answer_bytes"),
}
"""Limits that are tested by themselves, below or against real connections in test_hostile.py."""
NDJSON = {"accept": "application/x-ndjson"}


@pytest.fixture(scope="module")
def engine() -> fr.Engine:
    engine = fr.Engine(columns={"project": "category"})
    engine.add([{"id": f"r{place}", "text": f"tea {place}", "project": "x"} for place in range(30)])
    return engine


@pytest.fixture(scope="module")
def client(engine: fr.Engine) -> Iterator[TestClient]:
    with TestClient(make_app(engine, limits=SMALL), raise_server_exceptions=False) as made:
        yield made


def nested(depth: int) -> dict[str, Any]:
    """A filter of this depth, which all records pass or none."""
    filter: dict[str, Any] = {"project": "y"}
    for _ in range(depth - 1):
        filter = {"not": filter}
    return filter


def wide(comparisons: int) -> dict[str, Any]:
    return {"or": [{"project": str(place)} for place in range(comparisons)]}


def strategy(**changed: Any) -> dict[str, Any]:
    return {"name": "mine", "channels": [{"kind": "lexical"}], **changed}


def explained(*queries: str) -> dict[str, Any]:
    return {"queries": [*queries], "k": 3, "explain": True}


def filtered(filter: dict[str, Any]) -> list[tuple[str, str, dict[str, Any], str]]:
    """Each endpoint that takes a filter, with this one, and the field at which it stands."""
    told = json.dumps(filter)
    return [
        ("POST", "/v1/search", {"json": {"query": {"text": "tea", "filter": filter}}}, "query.filter"),
        ("POST", "/v1/explain", {"json": {"query": {"text": "tea", "filter": filter}, "id": "r1"}}, "query.filter"),
        ("GET", "/v1/records", {"params": {"filter": told}}, "filter"),
        ("GET", "/v1/count", {"params": {"filter": told}}, "filter"),
        ("PATCH", "/v1/records", {"json": {"filter": filter, "changes": {"importance": 0.5}}}, "filter"),
        ("DELETE", "/v1/records", {"json": {"filter": filter}}, "filter"),
    ]


def in_store(filter: dict[str, Any], kind: str = "and", other: str = "or") -> dict[str, Any]:
    """The filter of `nested` and `wide` in the form of vector stores."""
    inner = filter.get("or")
    if inner is not None:
        return {"type": "or", "filters": [in_store(one) for one in inner]}
    if "not" in filter:
        return {"type": kind, "filters": [in_store(filter["not"], other, kind), in_store({"project": "z"})]}
    ((key, value),) = filter.items()
    return {"type": "eq", "key": key, "value": value}


def test_every_limit_is_documented_and_tested() -> None:
    names = {field.name for field in fields(Limits)}
    assert set(HELP) == names
    changed = {name for name in names if getattr(SMALL, name) != getattr(Limits(), name)}
    assert changed | ELSEWHERE == names


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "5", None])
def test_a_limit_is_a_number_above_zero(value: Any) -> None:
    with pytest.raises(ParameterError, match="k must be a number above 0"):
        Limits(k=value)


def test_the_smaller_limits_of_two_hold() -> None:
    least = Limits(k=5, text=9).least(Limits(k=7, text=3, queries=2))
    assert (least.k, least.text, least.queries) == (5, 3, 2)


@pytest.mark.parametrize(
    ("at", "beyond", "title"),
    [
        (nested(SMALL.filter_depth), nested(SMALL.filter_depth + 1), "FilterTooDeep"),
        (wide(SMALL.comparisons), wide(SMALL.comparisons + 1), "FilterTooLarge"),
    ],
)
def test_filters_are_bounded_wherever_one_is_taken(
    client: TestClient, at: dict[str, Any], beyond: dict[str, Any], title: str
) -> None:
    for (method, address, request, field), (_, _, fine, _) in zip(filtered(beyond), filtered(at), strict=True):
        answer = client.request(method, address, **request)
        assert (answer.status_code, answer.json()["title"], answer.json()["field"]) == (422, title, field), address
        assert client.request(method, address, **fine).status_code == 200, address
    store = "/v1/vector_stores/x/search"
    answer = client.post(store, json={"query": "tea", "filters": in_store(beyond)})
    assert (answer.status_code, answer.json()["title"], answer.json()["field"]) == (422, title, "filters")
    assert client.post(store, json={"query": "tea", "filters": in_store(at)}).status_code == 200


SEARCHES: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"queries": ["tea"] * 3}, {"queries": ["tea"] * 4}, "TooManyQueries", "queries"),
    ({"query": "tea", "k": 20}, {"query": "tea", "k": 21}, "TooManyHits", "k"),
    ({"query": "tea", "k": 5, "offset": 15}, {"query": "tea", "k": 5, "offset": 16}, "TooManyHits", "k"),
    ({"query": {"text": "tea", "k": 20}}, {"query": {"text": "tea", "k": 21}}, "TooManyHits", "query.k"),
    ({"queries": ["tea"] * 2, "k": 20}, {"queries": ["tea"] * 3, "k": 20}, "TooManyHits", "queries[2]"),
    (explained("tea", "tea"), {**explained("tea", "tea"), "k": 4}, "TooManyHits", "explain"),
    (explained("tea 1", "tea 2"), explained("tea 1 2", "tea 2"), "TooManyTerms", "explain"),
    ({"query": "a" * 50}, {"query": "a" * 51}, "TextTooLong", "query.text"),
    ({"query": {"terms": ["tea"] * 4}}, {"query": {"terms": ["tea"] * 5}}, "TooManyTerms", "query.terms"),
    (
        {"query": {"text": "tea", "namespaces": ["", "b", "c"]}},
        {"query": {"text": "tea", "namespaces": ["", "b", "c", "d"]}},
        "TooManyNamespaces",
        "query.namespaces",
    ),
    (
        {"query": "tea", "strategy": strategy(depth=200)},
        {"query": "tea", "strategy": strategy(depth=201)},
        "StrategyTooLarge",
        "strategy.depth",
    ),
    (
        {"query": {"text": "tea", "strategy": strategy(depth=200)}},
        {"query": {"text": "tea", "strategy": strategy(depth=None)}},
        "StrategyTooLarge",
        "query.strategy.depth",
    ),
    (
        {"query": "tea", "strategy": {"": "bm25", "b": strategy(), "c": "decay"}},
        {"query": "tea", "strategy": {"": "bm25", "b": "bm25", "c": "bm25", "d": "bm25"}},
        "StrategyTooLarge",
        "strategy",
    ),
]


def test_the_hits_of_a_vector_store_have_the_same_limits(client: TestClient) -> None:
    for query, count, status in (("tea", 20, 200), ("tea", 21, 422), (["tea"] * 2, 20, 200), (["tea"] * 3, 20, 422)):
        asked = {"query": query, "max_num_results": count}
        assert client.post("/v1/vector_stores/x/search", json=asked).status_code == status


LARGE = {"a": "é" * 196}
"""A payload beyond the limit. One letter less fits."""
WRITES: list[tuple[str, str, dict[str, Any], dict[str, Any], str, str]] = [
    *(
        ("POST", "/v1/records", {"records": at, "mode": "upsert"}, {"records": beyond, "mode": "upsert"}, title, field)
        for at, beyond, title, field in (
            ([{"id": "i" * 30, "text": ""}], [{"id": "i" * 31, "text": ""}], "IdTooLong", "records[0].id"),
            (
                [{"id": "n", "text": "", "namespace": "n" * 30}],
                [{"id": "n", "text": ""}, {"id": "n", "text": "", "namespace": "n" * 31}],
                "IdTooLong",
                "records[1].namespace",
            ),
            (
                [{"id": "p", "text": "", "payload": {"a": "é" * 195}}],
                [{"id": "p", "text": "", "payload": LARGE}],
                "PayloadTooLong",
                "records[0].payload",
            ),
            (
                [{"id": f"m{n}", "text": ""} for n in range(4)],
                [{"id": str(n), "text": ""} for n in range(5)],
                "TooManyRecords",
                "records",
            ),
        )
    ),
    ("PUT", "/v1/records/i", {"text": ""}, {"text": "", "payload": LARGE}, "PayloadTooLong", "payload"),
    (
        "PATCH",
        "/v1/records",
        {"ids": ["r1"], "changes": {"payload": {"a": ""}}},
        {"ids": ["r1"], "changes": {"payload": LARGE}},
        "PayloadTooLong",
        "changes.payload",
    ),
    *(
        (method, address, {"ids": ["x"] * 5, **more}, {"ids": ["x"] * 6, **more}, "TooManyIds", "ids")
        for method, address, more in (
            ("DELETE", "/v1/records", {"missing_ok": True}),
            ("PATCH", "/v1/records", {"missing_ok": True, "changes": {"importance": 0.5}}),
            ("POST", "/v1/records/fetch", {}),
        )
    ),
]


@pytest.mark.parametrize(
    ("method", "address", "at", "beyond", "title", "field"),
    [*(("POST", "/v1/search", *row) for row in SEARCHES), *WRITES],
)
def test_a_request_beyond_a_limit_is_refused_by_name(
    client: TestClient, method: str, address: str, at: dict[str, Any], beyond: dict[str, Any], title: str, field: str
) -> None:
    answer = client.request(method, address, json=beyond)
    assert (answer.status_code, answer.json()["title"], answer.json()["field"]) == (422, title, field)
    assert client.request(method, address, json=at).status_code in (200, 201)


def test_an_id_in_an_address_has_the_same_limit(client: TestClient) -> None:
    answer = client.put(f"/v1/records/{'i' * 31}", json={"text": ""})
    assert (answer.status_code, answer.json()["field"]) == (422, "id")


def test_a_body_beyond_its_limit_is_refused(client: TestClient) -> None:
    typed = {"content-type": "application/json"}
    body = json.dumps({"query": "tea"}).encode()
    assert client.post("/v1/search", content=body + b" " * (20_000 - len(body)), headers=typed).status_code == 200
    answer = client.post("/v1/search", content=body + b" " * (20_001 - len(body)), headers=typed)
    assert (answer.status_code, answer.json()["title"]) == (413, "BodyTooLarge")


def test_the_records_of_an_answer_are_bounded() -> None:
    engine = fr.Engine.from_records([{"id": str(place), "text": f"tea {'x' * 1_000}"} for place in range(10)])
    engine.add([{"id": "p", "text": "coffee", "payload": {"a": "x" * 3_000}}])
    engine.namespace("x").add([{"id": f"{place:0700}", "text": f"tea {'x' * 1_000}"} for place in range(10)])
    with TestClient(make_app(engine, limits=Limits(answer_bytes=5_000))) as client:
        for address, body, status in (
            ("/v1/records/fetch", {"ids": ["1", "2", "3", "none"]}, 200),
            ("/v1/records/fetch", {"ids": ["1"] * 5}, 422),
            ("/v1/search", {"query": "tea", "k": 4, "texts": True}, 200),
            ("/v1/search", {"query": "tea", "k": 5, "texts": True}, 422),
            ("/v1/search", {"query": "tea", "k": 5}, 200),
            ("/v1/search", {"queries": ["tea", "tea"], "k": 3, "texts": True, "form": "columns"}, 422),
            ("/v1/search", {"query": "tea", "collapse": "text", "namespace": "x"}, 422),
            ("/v1/search", {"query": "coffee", "payload": True}, 200),
            ("/v1/search", {"queries": ["coffee"] * 2, "payload": True}, 422),
            ("/v1/vector_stores/x/search", {"query": "tea", "max_num_results": 4}, 200),
            ("/v1/vector_stores/x/search", {"query": "tea", "max_num_results": 5}, 422),
        ):
            answer = client.post(address, json=body)
            assert answer.status_code == status, (address, body, answer.text)
            assert status == 200 or answer.json()["title"] == "AnswerTooLarge"
        pages, after = [], None
        while not pages or after is not None:
            page = client.get("/v1/records", params={"after": after} if after else {}).json()
            pages.append([record["id"] for record in page["records"]])
            after = page["after"]
        assert [name for page in pages for name in page] == [*map(str, range(10)), "p"]
        assert max(map(len, pages)) == 5


@pytest.mark.parametrize(("field", "value"), [("form", "columns"), ("timing", True)])
def test_a_stream_has_no_columns_and_no_times(client: TestClient, field: str, value: Any) -> None:
    answer = client.post("/v1/search", json={"query": "tea", field: value}, headers=NDJSON)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert client.post("/v1/search", json={"query": "tea", field: value}).status_code == 200


def test_requests_under_way_are_counted_for_each_key(engine: fr.Engine) -> None:
    app = make_app(
        engine,
        admit=lambda request: Principal(request.headers["x-key"]),
        limits=Limits(in_flight=3, in_flight_per_key=2),
    )
    state = app.state.fanrank
    with TestClient(app) as client:

        def ask(key: str) -> tuple[int, str | None, str | None]:
            answer = client.post("/v1/search", json={"query": "tea"}, headers={"x-key": key})
            return answer.status_code, answer.json().get("title"), answer.headers.get("retry-after")

        state.in_flight_of["a"], state.in_flight = 2, 2
        assert ask("a") == (429, "TooManyRequests", "1")
        assert ask("b") == (200, None, None)
        assert dict(state.in_flight_of) == {"a": 2}
        state.in_flight_of["b"], state.in_flight = 1, 3
        assert ask("b") == (503, "OverloadedError", "1")
        state.stopping = True
        assert ask("b") == (503, "StoppingError", "1")
        # What was refused is not counted, and what was answered no longer is.
        assert (state.in_flight, dict(state.in_flight_of)) == (3, {"a": 2, "b": 1})


def test_a_passed_deadline_is_a_problem(client: TestClient) -> None:
    for address, body in (
        ("/v1/search", {"query": "tea"}),
        ("/v1/explain", {"query": "tea", "id": "r1"}),
        ("/v1/vector_stores/x/search", {"query": "tea"}),
    ):
        answer = client.post(address, json=body, headers={"fanrank-deadline": "1e-9"})
        assert (answer.status_code, answer.json()["title"]) == (504, "DeadlineError"), address


def test_an_audit_that_nobody_waits_for_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, ASKED_TOGETHER=4, ASKED_AT_ONCE=2)
    engine = fr.Engine()
    engine.add([{"id": f"r{place}", "text": f"tea {place}"} for place in range(30)])
    search, asked, late = engine.search, list[int](), False

    def searching(queries: Any, *given: Any, **keywords: Any) -> fr.Hits:
        asked.append(len(queries))
        return search(queries, *given, **keywords)

    def monotonic() -> float:
        """The deadline passes during the first search."""
        return time.monotonic() + 3_600.0 * (late and bool(asked))

    monkeypatch.setattr(engine, "search", searching)
    monkeypatch.setattr(cancelling, "time", SimpleNamespace(monotonic=monotonic))
    with TestClient(make_app(engine)) as client:
        assert client.post("/v1/audit", json={}).json()["audit"]["passed"]
        assert asked == [2] * 15
        asked.clear()
        late = True
        assert client.post("/v1/audit", json={}).json()["title"] == "DeadlineError"
        assert asked == [2], "the next one is not made"


def test_a_deadline_is_seconds_up_to_the_servers_own(client: TestClient, engine: fr.Engine) -> None:
    for said, status in (("0", 422), ("x", 422), ("inf", 422), ("5", 200)):
        headers = {"fanrank-deadline": said}
        assert client.post("/v1/search", json={"query": "tea"}, headers=headers).status_code == status
    with TestClient(make_app(engine, limits=Limits(seconds=1e-9))) as hasty:
        assert [
            hasty.post("/v1/search", json={"query": "tea"}, headers=head).status_code for head in ({}, headers)
        ] == [504] * 2


@pytest.mark.parametrize("name", [*NAMED, *POLICIES])
def test_every_named_strategy_passes_as_an_object(name: str) -> None:
    named = {**NAMED, **POLICIES}[name]
    assert read_strategy(answerer_to_dict(named), "strategy", Limits()) == named


FREE = ("base", "rows", "long_chars", "medium_chars", "overlap", "widen_below")
"""Whole numbers by which no search does more work."""


def whole_numbers() -> list[tuple[str, dict[str, Any]]]:
    """Each named strategy, policy and feedback with one of its whole numbers made huge."""
    huge, found = 10**6, []
    objects = {name: answerer_to_dict(named) for name, named in {**NAMED, **POLICIES}.items()}
    for name in (*FEEDBACKS, *PRESETS):
        dense = answerer_to_dict(NAMED["dense"])
        objects[f"feedback {name}"] = {**dense, "feedback": feedback_to_dict(feedback_of(name))}
    for name, given in objects.items():
        for path in paths_of_numbers(given):
            if path[-1] in FREE:
                continue
            changed = json.loads(json.dumps(given))
            inside: Any = changed
            for step in path[:-1]:
                inside = inside[step]
            inside[path[-1]] = huge
            found.append((f"{name}: {'.'.join(map(str, path))}", changed))
    return found


def paths_of_numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield path
    for step in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from paths_of_numbers(value[step], (*path, step))


HUGE = whole_numbers()


@pytest.mark.parametrize("given", [given for _, given in HUGE], ids=[name for name, _ in HUGE])
def test_a_huge_whole_number_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(Problem) as raised:
        read_strategy(given, "strategy", Limits())
    assert raised.value.status == 422


@pytest.mark.parametrize(
    "changed",
    [
        {"feedback": {"name": "iterated", "rounds": 40, "of": "softcentroid"}},
        {"feedback": {"name": "iterated", "rounds": 9, "of": {"name": "iterated", "rounds": 9}}},
        {"feedback": {"name": "gated", "of": {"name": "iterated", "rounds": 40, "fresh": True}}},
        {"channels": [{"kind": "lexical", "name": str(place)} for place in range(65)], "fusion": "rrf"},
    ],
)
def test_feedback_and_channels_are_counted_together(changed: dict[str, Any]) -> None:
    given = {**answerer_to_dict(NAMED["fused"]), **changed}
    with pytest.raises(Problem) as raised:
        read_strategy(given, "strategy", Limits())
    assert raised.value.code == "StrategyTooLarge"


def test_the_strategies_of_a_policy_are_counted_together() -> None:
    def router(count: int) -> dict[str, Any]:
        table = {str(place): {**answerer_to_dict(NAMED["bm25"]), "name": str(place)} for place in range(count)}
        for one in table.values():
            del one["kind"]
        return {"kind": "router", "table": table, "default": "bm25", "soft": True}

    read_strategy(router(63), "strategy", Limits())
    for given in (router(64), {"kind": "cascade", "escalate": router(63)}):
        with pytest.raises(Problem) as raised:
            read_strategy(given, "strategy", Limits())
        assert raised.value.code == "StrategyTooLarge"


@pytest.mark.parametrize(
    "given",
    [
        strategy(encoder="sentence-transformers/all-MiniLM-L6-v2"),
        strategy(reranker="cross-encoder/ms-marco-MiniLM-L-6-v2"),
        strategy(path="/etc/passwd"),
        strategy(channels=[{"kind": "dense", "model": "/etc/passwd"}]),
        strategy(channels=[{"kind": "/etc/passwd"}]),
        strategy(feedback="/etc/passwd"),
        {"kind": "policy", "path": "/etc/passwd"},
        {"kind": "cascade", "classifier": "/etc/passwd"},
        {"kind": "router", "table": {"x": "/etc/passwd"}, "default": "bm25"},
        {"tenant": "/etc/passwd"},
        "/etc/passwd",
        "sentence-transformers/x",
    ],
)
def test_a_strategy_names_no_model_and_no_file(client: TestClient, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr("builtins.open", lambda *arguments, **keywords: opened.append(arguments))
    monkeypatch.setattr("pathlib.Path.open", lambda *arguments, **keywords: opened.append(arguments))
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda *arguments, **keywords: opened.append(arguments))
    for body, field in (
        ({"query": "tea", "strategy": given}, "strategy"),
        ({"query": {"text": "tea", "strategy": given}}, "query.strategy"),
    ):
        answer = client.post("/v1/search", json=body)
        assert answer.status_code == 422, answer.text
        assert answer.json().get("field") == (None if isinstance(given, str) else field)
    assert opened == []


def test_a_graph_of_the_callers_own_is_not_built() -> None:
    given = answerer_to_dict(NAMED["dense-hnsw"])
    given["channels"][0]["approximate"] = {"neighbours": 8}
    with pytest.raises(Problem) as raised:
        read_strategy(given, "strategy", Limits())
    assert raised.value.field == "strategy.approximate"
