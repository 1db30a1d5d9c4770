"""The client: every answer is the engine's own, every error too, and what is sent again."""

import asyncio
import datetime as dt
import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.responses import Response
from support.serving import running, served

import fanrank as fr
from fanrank.engine.records.query_json import parse_query, query_to_json
from fanrank.engine.route.by_namespace import answerer_of
from fanrank.server import records
from fanrank.server.access import Principal
from fanrank.server.limits import Limits

WORDS = ("tea", "coffee", "Ana", "Bo", "error", "4711", "plant", "ünï", "\ud800")
SPACES = ("", "users/ana", "users/bo", "a b/?#%")


def make_engine() -> fr.Engine:
    engine = fr.Engine(columns={"project": "category", "priority": "number"}, encoder=fr.OwnVectors(3))
    rows = [
        fr.Record(
            f"{number}/ü?",
            " ".join(WORDS[(number * step) % 8] for step in range(1, 2 + number % 5)),
            namespace=SPACES[number % 4],
            session=f"s{number % 3}",
            role=("user", None)[number % 2],
            time=1e9 + number / 3,
            importance=number / 59,
            extra={"project": f"p{number % 2}", "priority": number / 7, "session ": [1, {"a": None}]},
            embedding=[1.0, number / 10, 0.1],
            entities={"Ana": "e1"} if number % 2 else None,
            payload={"n": number / 3, "deep": [{"x": "\u2028"}]} if number % 3 else None,
        )
        for number in range(60)
    ]
    engine.add(rows)
    return engine


@pytest.fixture(scope="module")
def engine() -> fr.Engine:
    return make_engine()


@pytest.fixture(scope="module")
def url(engine: fr.Engine) -> Iterator[str]:
    with served(engine) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[fr.Client]:
    with fr.Client(url) as made:
        yield made


def everything(hits: fr.Hits) -> dict[str, Any]:
    """All that an answer says, in values that are compared bit by bit."""
    decisions = hits.decisions
    return {
        "scores": (hits.scores.shape, hits.scores.dtype, hits.scores.tobytes()),
        "documents": (hits.documents.dtype, hits.documents.tolist()),
        "counts": (hits.counts.dtype, hits.counts.tolist()),
        "ids": hits.ids.tolist(),
        "namespaces": hits.namespaces.tolist(),
        "namespace": hits.namespace,
        "queries": hits.queries,
        "backend": hits.backend,
        "notes": hits.notes,
        "distinct": hits.distinct,
        "rows": hits.to_dicts(),
        "reranked": None if hits.reranked is None else hits.reranked.tobytes(),
        "decisions": decisions and [{**one.to_dict(), "milliseconds": 0} for one in decisions],
        "repr": repr(hits),
    }


texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
queries = st.builds(
    fr.Query,
    text=texts,
    k=st.none() | st.integers(0, 12),
    filter=st.none()
    | st.just(fr.col("role") == "user")
    | st.just((fr.col("priority") < 3.1) | ~fr.col("role").isin([None])),
    terms=st.none() | st.lists(st.sampled_from(["tea", "bo", "x"]), max_size=3),
    id=st.none() | st.text(max_size=2),
    now=st.just(1e9 + 100.1),
    half_life=st.none() | st.floats(0.1, 1e6),
    since=st.none() | st.just(1e9 + 2 / 3),
    windows=st.none() | st.integers(1, 3) | st.just("auto"),
    scope=st.none()
    | st.builds(fr.SearchScope.session, st.sampled_from(["s0", "s9"]), st.none() | st.integers(0, 5))
    | st.just(fr.SearchScope.everything(4)),
    statistics=st.sampled_from(["namespace", "filtered"]),
    vector=st.none() | st.lists(st.floats(0.01, 9), min_size=3, max_size=3),
    entities=st.none() | st.just(("e1",)),
    hints=st.none() | st.just(()),
    weights=st.none() | st.dictionaries(st.sampled_from(["tea", "bo"]), st.floats(0, 9), max_size=2),
    timezone=st.none() | st.just("Europe/Berlin"),
    strategy=st.none() | st.sampled_from(["bm25", "temporal", fr.published.PUBLISHED["graph"]]),
    offset=st.integers(0, 3),
    min_score=st.none() | st.floats(0, 1),
    collapse=st.none() | st.sampled_from(["text", "session"]),
    unit=st.sampled_from(["record", "exchange"]),
    neighbours=st.none() | st.just(fr.Neighbours(2, (0.25, 0.5))),
) | st.builds(fr.Query, newest=st.just(True), k=st.integers(0, 5))  # fmt: skip


@st.composite
def placed(draw: st.DrawFn) -> fr.Query:
    query = draw(queries)
    where = draw(st.sampled_from([{"namespace": "users/ana"}, {"under": "users"}, {"namespaces": SPACES[:3]}, {}]))
    return fr.Query(**{**{name: getattr(query, name) for name in query.__dataclass_fields__}, **where})


@given(placed())
@settings(max_examples=60, deadline=None)
def test_a_query_is_the_same_after_it_was_sent(query: fr.Query) -> None:
    again = parse_query(query_to_json(query))
    if query.strategy is not None:
        again = replace(again, strategy=answerer_of(again.strategy))
        query = replace(query, strategy=answerer_of(query.strategy))
    assert again == query
    assert (again.vector is None) == (query.vector is None)
    assert query.vector is None or again.vector.tobytes() == query.vector.tobytes()


batches = st.lists(texts | placed() | st.just(["tea", "bo"]), max_size=6)
options = st.fixed_dictionaries(
    {},
    optional={
        "strategy": st.sampled_from(["bm25", "temporal", "cascade", {"users/ana": "temporal", "": "bm25"}]),
        "texts": st.booleans(),
        "payload": st.booleans(),
        "offset": st.integers(0, 2),
        "min_score": st.sampled_from([0.5, np.float32(0.1), -1]),
        "collapse": st.just("text"),
        "unit": st.just("exchange"),
        "filter": st.just({"role": ["user", None]}),
        "under": st.just("users"),
    },
)


def outcome(search: Callable[[], fr.Hits]) -> Any:
    try:
        return everything(search())
    except fr.FanrankError as error:
        return type(error), str(error)


@given(batch=batches, k=st.integers(0, 7), options=options)
@example(batch=["tea"], k=3, options={"min_score": 0})
@settings(max_examples=40, deadline=None)
def test_an_answer_is_the_engines_own_bit_by_bit(
    engine: fr.Engine, client: fr.Client, batch: Any, k: int, options: Any
) -> None:
    expected = outcome(lambda: engine.coalescer.search(batch, k, **options))
    assert outcome(lambda: client.search(batch, k, **options)) == expected


def test_a_hit_explains_itself_as_in_the_engine(engine: fr.Engine, client: fr.Client) -> None:
    batch = [fr.Query("tea Bo", namespace="users/ana"), fr.Query("coffee 4711", now=1e9 + 50, half_life=9)]
    for strategy in ("bm25", "temporal", fr.strategies.STRATEGIES["rrf"]):
        asked = [fr.Query(one.text, namespace=one.namespace, vector=[1, 2, 3]) for one in batch]
        mine, theirs = client.search(asked, strategy=strategy), engine.search(asked, strategy=strategy)
        for row in (0, 1, -1):
            for hit in theirs[row]:
                assert mine.explain(row, hit.id) == theirs.explain(row, hit.id)
    assert client.explain(batch[1], "4/ü?") == engine.explain(batch[1], "4/ü?")
    with pytest.raises(fr.errors.QueryError, match="no query 2"):
        mine.explain(2, "x")


def test_a_batch_in_parts_is_the_same_answer(engine: fr.Engine) -> None:
    batch = ["tea", fr.Query("Bo", k=1), "tea", "Ana", "coffee"]
    with served(engine, limits=Limits(queries=2)) as url, fr.Client(url) as client:
        with pytest.raises(fr.errors.ServerError, match="may have 2 queries") as caught:
            client.search(batch)
        assert (caught.value.code, caught.value.status, caught.value.field) == ("TooManyQueries", 422, "queries")
        mine, theirs = everything(client.search(batch, 4, batch=2)), everything(engine.search(batch, 4))
        # Equal queries of different parts were answered twice.
        mine.pop("distinct")
        theirs.pop("distinct")
        assert mine == theirs


def test_what_the_histories_of_a_client_leave_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times to live, batches in parts, one record, reads of all namespaces. The machine of memories has the rest."""
    monkeypatch.setattr(records, "MOST_NAMESPACES", 3)
    engine, other = make_engine(), make_engine()
    with served(engine) as url, fr.Client(url) as client:
        rows = [
            {"id": "n1", "text": "\nline\u2028", "namespace": "users/ana", "passages": ["a"], "embedding": [[0, 1, 0]]}
        ]
        assert (client.add(rows, ttl=dt.timedelta(days=9)), other.add(rows, ttl="9d")) == (1, 1)
        mine, theirs = (memory.get("n1", namespace="users/ana") for memory in (client, other))
        assert fr.Record(**{**vars(mine), "expires": theirs.expires}) == theirs
        ana = client.namespace("users/ana")
        assert ana.upsert([fr.Record(f"u{n}", "x", embedding=[1, 0, 0]) for n in range(5)], batch=2) == 5
        assert ana.get("nobody") is None
        assert ana.stats()["documents"] == ana.count() == engine.count(namespace="users/ana") == 21
        assert list(client.records(limit=0)) == []
        # A server refuses to give so many at once.
        assert len(client.page(limit=1_001).records) == engine.count()
        # In two pages.
        assert client.namespaces == tuple(sorted(engine.namespaces))
        # An engine reads all namespaces here. A client must not give another number without a word.
        for read in (client.count, client.records):
            with pytest.raises(fr.errors.QueryError, match="one namespace at a time"):
                read(namespace=None)


@pytest.mark.parametrize(
    "act",
    [
        lambda memory: memory.add([{"id": "0/ü?", "text": "again", "embedding": [1, 0, 0]}]),
        lambda memory: memory.add([{"id": "a", "text": 5}]),
        lambda memory: memory.add([{"id": "a", "text": "a", "fields": {"nope": "x"}}]),
        lambda memory: memory.update([{"id": "nobody", "text": "a", "embedding": [1, 0, 0]}]),
        lambda memory: memory.delete(["nobody"]),
        lambda memory: memory.search(["tea"], strategy="nope"),
        lambda memory: memory.search([fr.Query("tea", filter={"nope": 1})]),
        lambda memory: memory.search(["tea"], -1),
        lambda memory: memory.search(5),
        lambda memory: memory.search([fr.Query("tea", vector=[1, 2])], strategy="dense"),
        lambda memory: memory.explain("tea", "nobody"),
        lambda memory: list(memory.records(order="nope")),
        lambda memory: list(memory.records(after="nope")),
        lambda memory: memory.get(5),
        lambda memory: memory.records(limit=-1),
        lambda memory: memory.records(limit=True),
        lambda memory: memory.search(["tea"], min_score="x"),
        lambda memory: memory.patch("a", 5),
        lambda memory: memory.patch(5, role="y"),
        lambda memory: memory.drop(5),
        lambda memory: memory.namespace("users/ana").search([fr.Query("tea", under="users")]),
    ],
)
def test_an_error_is_the_engines_own(engine: fr.Engine, client: fr.Client, act: Callable[[Any], Any]) -> None:
    found = []
    for memory in (engine, client):
        with pytest.raises(fr.FanrankError) as caught:
            act(memory)
        known = [getattr(caught.value, name, None) for name in ("where", "record_id", "columns")]
        found.append((type(caught.value), str(caught.value).replace("of the engine", "of the client"), known))
    assert found[0] == found[1]


def test_a_key_that_does_not_reach_a_namespace(engine: fr.Engine) -> None:
    keys: list[str | None] = []

    def admit(request: Any) -> Principal:
        keys.append(request.headers.get("authorization"))
        return Principal("ana", ("users/ana",), write=False)

    with served(engine, admit=admit) as url, fr.Client(url, "secret-key") as client:
        assert client.search([fr.Query("coffee", namespace="users/ana")]).counts[0]
        with pytest.raises(fr.errors.KeyRefusedError) as caught:
            client.search(["tea"])
        assert caught.value.code == "NamespaceForbidden"
        assert "secret-key" not in repr(client) + repr(vars(client)["_pool"])
    assert set(keys) == {"Bearer secret-key"}


class Scripted:
    """An application that gives these answers in turn, and notes what was asked."""

    def __init__(self, *answers: tuple[int, dict[str, str]]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[bytes, bytes]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.asked.append((scope["path"], dict(scope["headers"])))
        status, headers = self.answers.pop(0)
        text = '{"title": "OverloadedError", "detail": "busy"}' if status != 200 else '{"written": 1, "count": 3}'
        await Response(text, status, headers=headers)(scope, receive, send)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    noted: list[float] = []
    monkeypatch.setattr("fanrank.client.synchronous.time.sleep", noted.append)
    return noted


BUSY = (503, {"Retry-After": "2"})
DONE: tuple[int, dict[str, str]] = (200, {})


def test_what_changes_nothing_twice_is_sent_again(pauses: list[float]) -> None:
    for busy in (BUSY, (429, {"Retry-After": "2"})):
        app = Scripted(busy, (busy[0], {}), DONE, busy, DONE)
        with running(app) as url, fr.Client(url) as client:
            assert client.count() == 3
            assert client.upsert([{"id": "a", "text": "a"}]) == 1
        assert len(app.asked) == 5
        assert all(b"fanrank-deadline" in headers for _, headers in app.asked)
    assert [pauses[n] for n in (0, 2, 3, 5)] == [2.0] * 4
    assert 0.1 <= pauses[1] <= 0.2


def test_a_write_that_might_be_done_twice_is_sent_once(pauses: list[float]) -> None:
    verbs: list[Callable[[fr.Client], Any]] = [
        lambda client: client.add([{"id": "a", "text": "a"}]),
        lambda client: client.update([{"id": "a", "text": "a"}]),
        lambda client: client.delete(["a"]),
    ]
    for verb in verbs:
        app = Scripted(BUSY, DONE)
        with running(app) as url, fr.Client(url) as client, pytest.raises(fr.errors.OverloadedError, match="busy"):
            verb(client)
        assert len(app.asked) == 1
    assert not pauses


def test_patience_has_an_end(pauses: list[float]) -> None:
    app = Scripted(*[BUSY] * 9)
    with running(app) as url:
        with fr.Client(url) as client, pytest.raises(fr.errors.OverloadedError):
            client.count()
        with fr.Client(url, timeout=1.5) as client, pytest.raises(fr.errors.OverloadedError):
            client.count()  # the pause is longer than the time that is left
    assert (len(app.asked), pauses) == (5, [2.0] * 3)
    with fr.Client(url, retries=1) as client, pytest.raises(fr.errors.UnreachableError, match="does not answer"):
        client.count()
    assert len(pauses) == 4


def test_a_deadline_travels_and_is_kept(engine: fr.Engine) -> None:
    late = pytest.raises(fr.errors.DeadlineError)
    with served(engine) as url, fr.Client(url, timeout=1e-9) as client, late:
        client.search(["tea"])


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://x", {}),
        ("localhost:80", {}),
        ("http://user:word@x", {}),
        ("http://x/?a=b", {}),
        ("http://x", {"key": "a\nb"}),
        ("http://x", {"timeout": 0}),
        ("http://x", {"retries": -1}),
    ],
)
def test_what_a_client_refuses(url: str, options: dict[str, Any]) -> None:
    for kind in (fr.Client, fr.AsyncClient):
        with pytest.raises(fr.errors.ParameterError) as caught:
            kind(url, **options)
        assert "word" not in str(caught.value)


def test_the_awaited_verbs(url: str, engine: fr.Engine) -> None:
    async def run(check: Callable[[fr.AsyncClient], Awaitable[None]]) -> None:
        async with fr.AsyncClient(url) as client:
            await check(client)

    async def reads(client: fr.AsyncClient) -> None:
        bo = client.namespace("users/bo")
        assert [one.id async for one in bo.records(limit=4)] == [
            one.id for one in engine.records(namespace="users/bo", limit=4)
        ]
        assert await bo.get("nobody") is None
        assert await bo.count() == engine.count(namespace="users/bo")
        assert await client.explain("tea", "4/ü?") == engine.explain("tea", "4/ü?")
        found = await asyncio.gather(*(client.search(["tea", word]) for word in WORDS[:8]))
        for word, hits in zip(WORDS, found, strict=False):
            assert everything(hits) == everything(engine.search(["tea", word]))
        with pytest.raises(fr.errors.QueryError, match="await client"):
            found[0].explain(0, "4/ü?")
        assert (await client.stats())["documents"] == len(engine)

    asyncio.run(run(reads))


def test_the_awaited_verbs_have_the_signatures_of_those_that_block() -> None:
    for name in ("search", "delete", "audit"):
        assert str(inspect.signature(getattr(fr.AsyncClient, name))) == str(inspect.signature(getattr(fr.Client, name)))
    assert inspect.signature(fr.Client.search).return_annotation == "Hits"
