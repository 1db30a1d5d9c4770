"""The tool functions of a memory: recall, remember, forget, and tenants."""

import asyncio
import copy
import datetime as dt
import operator
import random
from collections.abc import Sequence
from typing import Any

import pytest
from support.tool_cases import GOOD, NOW, asked, filled, remembered, some_texts, tools_of

import fanrank as fr
from fanrank.engine.errors import MissingExtraError, ParameterError, QueryError
from fanrank.integrations import tools as module
from fanrank.integrations.tool_answers import BYTES_PER_TOKEN, FRAME_BYTES, least_tokens
from fanrank.integrations.tools import NAMES, ToolLimits, memory_tools


def test_recall_is_one_search_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, tools = filled()
    queries = ["tea", "billing error", "Berlin budget", "zebra"]
    calls: list[int] = []
    search = fr.Engine.search

    def counted(self: fr.Engine, batch: Sequence[Any], *arguments: Any, **keywords: Any) -> fr.Hits:
        calls.append(len(batch))
        return search(self, batch, *arguments, **keywords)

    monkeypatch.setattr(fr.Engine, "search", counted)
    answer = asked(tools, "recall", {"queries": queries, "k": 4})
    assert calls == [4]
    expected = engine.namespace("ana").search(queries, 4, texts=True)
    assert [row["ids"] for row in answer["answers"]] == [[hit.id for hit in row] for row in expected]
    assert [row["query"] for row in answer["answers"]] == queries
    assert answer["answers"][3]["note"] == "no record holds a word of the query"
    texts = {hit.id: hit.text for row in expected for hit in row}
    assert {each["id"]: each["text"] for each in answer["memories"]} == texts
    assert len(answer["memories"]) == len(texts)


def test_awaited_calls_of_many_tenants_share_launches_and_answer_as_alone() -> None:
    engine = fr.Engine()
    users = [tools_of(engine, namespace=f"users/{number}") for number in range(40)]
    for number, tools in enumerate(users):
        remembered(tools, *some_texts(5, seed=number))

    async def all_at_once() -> list[str]:
        return list(await asyncio.gather(*(tools.acall("recall", {"queries": ["tea", "Ana Bo"]}) for tools in users)))

    before = engine.coalescer.stats()["launches"]
    found = asyncio.run(all_at_once())
    assert 0 < engine.coalescer.stats()["launches"] - before < len(users) / 4
    assert found == [tools.call("recall", {"queries": ["tea", "Ana Bo"]}) for tools in users]


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        ({"since": "2026-03-10"}, {"mar10", "mar10late", "mar17", "mar18"}),
        ({"until": "2026-03-10"}, {"feb", "mar10", "mar10late"}),
        ({"since": "2026-03-10T12:00:00Z"}, {"mar10late", "mar17", "mar18"}),
        ({"since": "2026-03-10T13:00:00+01:00", "until": "2026-03-10T12:00:00Z"}, set()),
        ({"since": "yesterday"}, {"mar17", "mar18"}),
        ({"since": "last month", "until": "2026-03-09"}, {"feb"}),
        ({"since": None, "until": None}, {"feb", "mar10", "mar10late", "mar17", "mar18"}),
    ],
)
def test_times_are_dates_or_words(limit: dict[str, Any], kept: set[str]) -> None:
    engine = fr.Engine.from_records(
        fr.Record(id, "tea", time=time)
        for id, time in [
            ("feb", "2026-02-20T09:00:00Z"),
            ("mar10", "2026-03-10T00:00:00Z"),
            ("mar10late", "2026-03-10T23:59:59Z"),
            ("mar17", "2026-03-17T20:00:00Z"),
            ("mar18", "2026-03-18T10:00:00Z"),
        ]
    )
    answer = asked(tools_of(engine), "recall", {"queries": ["tea"], **limit})
    assert {*answer["answers"][0]["ids"]} == kept


def test_times_are_shown_in_the_users_zone() -> None:
    tools = tools_of(timezone="Europe/Berlin")
    asked(tools, "remember", {"records": [{"text": "tea", "time": "2026-03-10"}, {"text": "tea cup", "time": None}]})
    times = {each["text"]: each["time"] for each in asked(tools, "recall", {"queries": ["tea"]})["memories"]}
    assert times == {"tea": "2026-03-10", "tea cup": "2026-03-18T15:30:00+01:00"}


def test_filters_match_as_a_plain_loop_does() -> None:
    engine = fr.Engine(columns={"priority": "number", "project": "category"})
    tools, draw = tools_of(engine, labels=("type", "priority", "project")), random.Random(1)
    rows = [
        {"type": draw.choice(["fact", "task", None]), "priority": draw.randint(0, 4), "project": draw.choice("ab")}
        for _ in range(18)
    ]
    engine.add(
        fr.Record(str(n), "tea", type=row["type"], extra={"priority": row["priority"], "project": row["project"]})
        for n, row in enumerate(rows)
    )
    cases = {
        **{name: getattr(operator, name) for name in ("eq", "ne", "gt", "lt")},
        **{"gte": operator.ge, "lte": operator.le},
        **{"in": lambda one, other: one in other, "nin": lambda one, other: one not in other},
    }
    for op, passes in cases.items():
        several = op in ("in", "nin")
        conditions: list[tuple[str, Any]] = [("priority", [1, 3] if several else 2)]
        if op in ("eq", "ne", "in", "nin"):
            conditions += [("type", ["task"] if several else "task"), ("project", ["a", "x"] if several else "a")]
        for key, value in conditions:
            given = {"queries": ["tea"], "k": 20, "filters": [{"key": key, "op": op, "value": value}]}
            found = {*asked(tools, "recall", given)["answers"][0]["ids"]}
            assert found == {str(n) for n, row in enumerate(rows) if passes(row[key], value)}, (op, key)


def test_labels_of_an_engine_with_automatic_columns_need_no_declaration(tmp_path: Any) -> None:
    for _ in range(2):  # the second time over the directory of the first
        with fr.Engine.open(tmp_path / "memory", columns="auto") as engine:
            tools = tools_of(engine, namespace="ana", labels={"project": "its name", "urgent": ""})
            rows = [{"text": "tea in Berlin", "project": "atlas"}, {"text": "tea in Lisbon", "urgent": "yes"}]
            asked(tools, "remember", {"records": rows})
            condition = {"key": "project", "op": "eq", "value": "atlas"}
            answer = asked(tools, "recall", {"queries": ["tea"], "filters": [condition]})
            assert {each["text"] for each in answer["memories"]} == {"tea in Berlin"}
            assert {each["project"] for each in answer["memories"]} == {"atlas"}
            condition = {"key": "urgent", "op": "ne", "value": True}
            assert len(asked(tools, "recall", {"queries": ["tea"], "filters": [condition]})["answers"][0]["ids"]) >= 2


def test_what_is_remembered_can_be_recalled_replaced_and_forgotten(tmp_path: Any) -> None:
    with fr.Engine.open(tmp_path / "memory") as engine:
        tools = tools_of(engine, namespace="ana", stamp={"session": "s7", "agent": "planner"})
        first, second = remembered(tools, "Ana prefers tea", "The billing job failed", type="fact")
        assert first != second
        answer = asked(
            tools,
            "remember",
            {"records": [{"text": "Ana prefers coffee now", "id": first}, {"text": "Bo sails", "time": "yesterday"}]},
        )
        [third] = answer["remembered"]
        assert answer["replaced"] == [first]
        kept = tools.memory.get(first)
        assert (kept.text, kept.type, kept.session, kept.agent) == ("Ana prefers coffee now", "fact", "s7", "planner")
        assert asked(tools, "forget", {"ids": [second, "nothing", second]}) == {
            "forgotten": [second],
            "unknown": ["nothing"],
            "note": "no memory has the unknown ids; repeat ids exactly as recall gives them",
        }
    with fr.Engine.open(tmp_path / "memory") as engine:
        tools = tools_of(engine, namespace="ana")
        assert {record.id for record in tools.memory.records()} == {first, third}
        assert asked(tools, "recall", {"queries": ["billing"]})["memories"] == []
        assert asked(tools, "recall", {"queries": ["coffee"]})["answers"][0]["ids"] == [first]


def test_a_replaced_memory_keeps_what_the_model_did_not_name() -> None:
    engine = fr.Engine(columns={"project": "category"})
    tools = tools_of(engine, labels=("type", "project"))
    engine.add(
        [
            fr.Record(
                "host-1",
                "old text",
                user="ana",
                importance=0.5,
                extra={"project": "atlas", "kept": 1},
                payload={"a": [1]},
                entities=["e1"],
                expires=NOW + 1e9,
            )
        ]
    )
    asked(tools, "remember", {"records": [{"text": "new text", "id": "host-1", "type": "fact", "time": "2026-01-05"}]})
    record = engine.get("host-1")
    assert (record.text, record.user, record.type, record.importance) == ("new text", "ana", "fact", 0.5)
    assert (dict(record.extra), record.payload, record.expires) == (
        {"project": "atlas", "kept": 1},
        {"a": [1]},
        NOW + 1e9,
    )
    assert not record.entities
    assert record.time == dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc).timestamp()


def test_one_bad_record_keeps_the_whole_batch_out() -> None:
    engine, tools = filled(3)
    rows: list[dict[str, Any]] = [{"text": "fine"}, {"text": "also fine", "id": "m1"}, {"text": " "}]
    assert (
        "records[2].text is empty; say what to remember; nothing was changed"
        in asked(tools, "remember", {"records": rows})["error"]
    )
    assert engine.namespace("ana").count() == 3
    record = engine.namespace("ana").get("m1")
    assert record.text != "also fine"


@pytest.mark.parametrize("mixed", [False, True])
def test_an_id_that_is_taken_is_drawn_again(monkeypatch: pytest.MonkeyPatch, mixed: bool) -> None:
    _, tools = filled(5)
    drawn = iter(["m1", "m2", "fresh1", "fresh1", "fresh1", "fresh2"])
    monkeypatch.setattr(module, "_new_id", lambda: next(drawn))
    before = {record.id: record.text for record in tools.memory.records()}
    rows: list[dict[str, Any]] = [{"text": "one"}, {"text": "two"}]
    answer = asked(tools, "remember", {"records": [*rows, {"text": "three", "id": "m3"}] if mixed else rows})
    assert answer["remembered"] == ["fresh1", "fresh2"]
    after = {record.id: record.text for record in tools.memory.records()}
    expected = {**before, "fresh1": "one", "fresh2": "two", **({"m3": "three"} if mixed else {})}
    assert after == expected


def test_no_argument_leaves_the_namespace() -> None:
    engine = fr.Engine()
    bo = engine.namespace("users/bo")
    bo.add([fr.Record("secret", "the password is tea", type="fact", user="bo")])
    engine.add([fr.Record("open", "tea of nobody")])
    tools = tools_of(engine, namespace="users/ana")
    [own] = remembered(tools, "Ana prefers tea")
    hostile = [
        "users/bo",
        "../bo",
        "users/bo/secret",
        "",
        "*",
        "users",
        "users/ana/../bo",
        "users/bo\x00secret",
        "secret",
    ]
    draw = random.Random(2)
    for _ in range(200):
        place, name = draw.choice(hostile), draw.choice(NAMES)
        value = copy.deepcopy(GOOD[name])
        value["filters" if name == "recall" else "ids" if name == "forget" else "records"] = draw.choice(
            [
                [{"key": key, "op": "eq", "value": place} for key in ("namespace",)],
                [{"text": "x", "namespace": place}],
                [{"text": "x", "id": place}],
                [place],
                place,
                {"namespace": place},
                [{"key": "type", "op": "ne", "value": place}],
            ]
        )
        if draw.random() < 0.5:
            value[draw.choice(["namespace", "namespaces", "under", "user", "strategy"])] = draw.choice([place, [place]])
        if name == "recall" and draw.random() < 0.5:
            value["filters"] = None
        text = tools.call(name, value)
        assert "password" not in text
        assert "of nobody" not in text
    assert bo.get("secret") is not None
    assert engine.get("open") is not None
    assert {*engine.namespaces} == {"", "users/ana", "users/bo"}
    assert (bo.count(), engine.count()) == (1, 1)
    assert tools.memory.get(own) is not None
    assert asked(tools, "recall", {"queries": ["password tea"]})["answers"][0]["ids"][:1] != ["secret"]


def test_one_set_of_tools_serves_many_users() -> None:
    engine = fr.Engine()
    tools = tools_of(engine)
    ana, bo = tools.within("users/ana"), tools.within("users/bo")
    [id] = remembered(ana, "Ana prefers tea")
    assert asked(bo, "recall", {"queries": ["tea"]})["memories"] == []
    assert asked(bo, "forget", {"ids": [id]})["forgotten"] == []
    assert asked(ana, "recall", {"queries": ["tea"]})["answers"][0]["ids"] == [id]
    with pytest.raises(ParameterError, match="stay in it"):
        tools_of(engine.namespace("users/ana")).within("users/bo")


def test_a_model_that_may_only_read_writes_nothing() -> None:
    engine, tools = filled(3, tools=("recall",))
    assert [each["name"] for each in tools.definitions()] == ["recall"]
    assert "there is no such tool" in asked(tools, "forget", {"ids": ["m1"]})["error"]
    assert "there is no such tool" in asked(tools, "remember", {"records": "x"})["error"]
    assert engine.namespace("ana").count() == 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tools": ["recall", "drop"]}, "unknown tool 'drop'"),
        ({"labels": ["text"]}, "'text' is a field of every record"),
        ({"labels": ["namespace"]}, "'namespace' is a field of every record"),
        ({"stamp": {"project": "x"}}, "the stamp 'project' must be one of role"),
        ({"stamp": {"type": "x"}}, "no label that the model sets"),
        ({"k": 0}, "k must be an integer from 1 to 20"),
        ({"k": 21}, "k must be an integer from 1 to 20"),
        ({"timezone": "Moon/Sea"}, "unknown time zone 'Moon/Sea'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ParameterError, match=told):
        tools_of(fr.Engine(), **options)


def test_wrong_limits_are_named() -> None:
    with pytest.raises(ParameterError, match="the limit 'k' must be an integer of 1 or more, not 0"):
        ToolLimits(k=0)
    with pytest.raises(ParameterError, match="the limit 'tokens' must be"):
        ToolLimits(tokens=10)
    assert ToolLimits(queries=1, tokens=least_tokens(1)).tokens * BYTES_PER_TOKEN > FRAME_BYTES
    with pytest.raises(ParameterError, match="were given a namespace already"):
        memory_tools(fr.Engine().namespace("ana"), namespace="bo")
    with pytest.raises(QueryError, match="project"):
        memory_tools(fr.Engine(), labels=["project"])


def test_a_path_is_opened_and_kept(tmp_path: Any) -> None:
    tools = tools_of(tmp_path / "memory", namespace="ana")
    [id] = remembered(tools, "Ana prefers tea")
    tools.engine.close()
    with fr.Engine.open(tmp_path / "memory") as engine:
        assert engine.namespace("ana").get(id) is not None


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "agents", None)
    tools = tools_of()
    assert tools.definitions()
    with pytest.raises(MissingExtraError, match=r"fanrank\[openai-agents\]"):
        tools.as_openai_agents()
