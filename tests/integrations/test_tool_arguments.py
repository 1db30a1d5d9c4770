"""Schemas of the tool functions, what is said to other arguments, and answers that keep to their budget."""

import asyncio
import contextlib
import datetime as dt
import json
import random
from typing import Any

import pytest
from support.tool_cases import GOOD, NOW, asked, changed, filled, remembered, tools_of

import fanrank as fr
from fanrank.engine.errors import ParameterError, StorageError
from fanrank.integrations.tool_answers import (
    BYTES_PER_TOKEN,
    LEAST_TEXT,
    Answer,
    cut,
    least_tokens,
    write,
    write_answers,
)
from fanrank.integrations.tool_arguments import ToolInputError, read_arguments
from fanrank.integrations.tools import NAMES


def objects_of(schema: Any) -> list[dict[str, Any]]:
    """All object schemas below a schema."""
    found = [schema] if isinstance(schema, dict) and schema.get("type") == "object" else []
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    return found + [each for value in inner for each in objects_of(value)]


@pytest.mark.parametrize("labels", [(), ("type",), {"type": "the kind", "project": "the project's name"}])
def test_schemas_are_those_of_strict_mode(labels: Any) -> None:
    import jsonschema

    tools = tools_of(fr.Engine(columns={"project": "category"}), labels=labels)
    for name in NAMES:
        schema = tools.schema(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["type"] == "object"
        for each in objects_of(schema):
            assert each["additionalProperties"] is False
            assert each["required"] == [*each["properties"]]
        for keyword in ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "pattern", "$ref"):
            assert f'"{keyword}"' not in json.dumps(schema)


def test_the_three_forms_hold_the_same_schemas() -> None:
    tools = tools_of()
    responses, chat, anthropic = (tools.definitions(form) for form in ("responses", "chat", "anthropic"))  # type: ignore[arg-type]
    for name, one, two, three in zip(NAMES, responses, chat, anthropic, strict=True):
        assert one["name"] == two["function"]["name"] == three["name"] == name
        assert one["parameters"] == two["function"]["parameters"] == three["input_schema"] == tools.schema(name)
        assert one["strict"] is two["function"]["strict"] is True
        assert one["type"] == two["type"] == "function"
    with pytest.raises(ParameterError, match="unknown form 'xml'"):
        tools.definitions("xml")  # type: ignore[arg-type]


def with_nulls(value: Any, schema: dict[str, Any]) -> Any:
    """`value` with null for each property that may be null and is left out."""
    for each in schema.get("anyOf", []):
        if each["type"] == "array" and isinstance(value, list):
            schema = each
    if isinstance(value, list) and "items" in schema:
        return [with_nulls(item, schema["items"]) for item in value]
    if isinstance(value, dict) and "properties" in schema:
        absent = {
            name: None
            for name, each in schema["properties"].items()
            if name not in value and isinstance(each.get("type"), list) and "null" in each["type"]
        }
        return {
            **{name: with_nulls(item, schema["properties"].get(name, {})) for name, item in value.items()},
            **absent,
        }
    return value


@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_is_what_the_schema_takes(name: str) -> None:
    import jsonschema

    schema = tools_of().schema(name)
    valid = jsonschema.Draft202012Validator(schema).is_valid
    draw = random.Random(name)
    counts = {True: 0, False: 0}
    for _ in range(600):
        value = GOOD[name]
        for _ in range(draw.randint(0, 3)):
            value = changed(value, draw)
        read = None
        with contextlib.suppress(ToolInputError):
            read = read_arguments(json.dumps(value), schema)
        taken = valid(with_nulls(value, schema))
        assert (read is not None) == taken, value
        assert read is None or valid(read)
        counts[taken] += 1
    assert min(counts.values()) > 40


BAD = [
    ("recall", '{"queries": ["tea"], "namespace": "bo"}', "there is no 'namespace'; there are: queries, k, since"),
    ("recall", '{"queries": []}', "queries must hold 1 to 20 strings, not 0"),
    ("recall", json.dumps({"queries": ["tea"] * 21}), "queries must hold 1 to 20 strings, not 21"),
    ("recall", '{"queries": ["tea", " "]}', r"queries\[1\] is empty"),
    ("recall", json.dumps({"queries": ["t" * 501]}), r"queries\[0\] has 501 characters, at most 500"),
    ("recall", '{"queries": "tea"}', "queries must be of type array, not string"),
    ("recall", '{"queries": ["tea"], "k": 0}', "k must lie between 1 and 20, not 0"),
    ("recall", '{"queries": ["tea"], "k": 21}', "k must lie between 1 and 20, not 21"),
    ("recall", '{"queries": ["tea"], "k": true}', "k must be of type integer or null, not boolean"),
    ("recall", '{"queries": ["tea"], "k": 1e400}', "k must be of type integer"),
    ("recall", '{"queries": ["tea"], "since": "the dawn"}', "since: 'the dawn' is no time; give a date"),
    ("recall", '{"queries": ["tea"], "since": "2026-02-02", "until": "2026-02-01"}', "'since' lies after 'until'"),
    ("recall", '{"queries": ["tea"], "filters": [{"key": "user", "op": "eq", "value": "bo"}]}', "must be one of type"),
    ("recall", '{"queries": ["tea"], "filters": [{"key": "type", "op": "in", "value": "x"}]}', "takes a list"),
    ("recall", '{"queries": ["tea"], "filters": [{"key": "type", "op": "eq", "value": ["x"]}]}', "takes one value"),
    ("recall", '{"queries": ["\\ud800"]}', "half of a surrogate pair"),
    ("recall", "{", "the arguments are no JSON"),
    ("recall", "[" * 100_000, "nested too deeply"),
    ("recall", "NaN", "NaN is no JSON number"),
    ("recall", "1" * 5000, "the arguments"),
    ("recall", b"\xff\xfe\xfa", "the arguments are no JSON"),
    ("recall", " " * (1 << 21), "the arguments hold 2,097,152 characters"),
    ("remember", '{"records": []}', "records must hold 1 to 50 memories, not 0"),
    ("remember", '{"records": ""}', r"records\[0\].text is empty"),
    ("remember", '{"records": [{"id": null}]}', r"records\[0\].text is missing"),
    ("remember", '{"records": [{"text": "x", "id": "zz"}]}', "no memory has the id 'zz'"),
    ("remember", '{"records": [{"text": "x", "id": "m1"}, {"text": "y", "id": "m1"}]}', "two records replace"),
    ("remember", '{"records": [{"text": "x", "time": "soon"}]}', r"records\[0\].time: 'soon' is no time"),
    ("remember", '{"records": [{"text": "x", "type": 3}]}', r"records\[0\].type must be of type string or null"),
    ("remember", '{"records": [{"text": "x", "user": "bo"}]}', r"there is no 'user' in records\[0\]"),
    ("remember", json.dumps({"records": "x" * 4001}), r"records\[0\].text has 4,001 characters"),
    ("forget", '{"ids": []}', "ids must hold 1 to 50 strings, not 0"),
    ("forget", '{"ids": [3]}', r"ids\[0\] must be of type string, not number"),
    ("drop", "{}", "there is no such tool; there are: remember, recall, forget"),
]


@pytest.mark.parametrize(("name", "arguments", "told"), BAD)
def test_bad_input_is_answered_with_what_to_send_and_changes_nothing(name: str, arguments: Any, told: str) -> None:
    engine, tools = filled(5)
    before = [vars(record) for record in tools.memory.records()]
    answer = asked(tools, name, arguments)
    assert [*answer] == ["error"]
    assert answer["error"].startswith(f"{name}: ")
    with pytest.raises(ValueError, match=told):
        raise ValueError(answer["error"])
    assert asyncio.run(tools.acall(name, arguments)) == tools.call(name, arguments)
    assert [vars(record) for record in tools.memory.records()] == before
    assert engine.namespaces == ("ana",)


def test_any_arguments_are_answered() -> None:
    _, tools = filled(20)
    draw = random.Random(11)
    errors = 0
    for _ in range(300):
        name = draw.choice(NAMES)
        value = GOOD[name]
        for _ in range(draw.randint(0, 4)):
            value = changed(value, draw)
        errors += "error" in asked(tools, name, value)
    assert 50 < errors < 275


def test_what_the_model_cannot_mend_is_raised(tmp_path: Any) -> None:
    engine = fr.Engine.open(tmp_path / "memory")
    tools = tools_of(engine)
    remembered(tools, "Ana prefers tea")
    engine.close()
    with pytest.raises(StorageError):
        tools.call("remember", '{"records": "more"}')


def answers_of(draw: random.Random, queries: int) -> list[Answer]:
    memories = [
        fr.Record(
            f"id-{number}" if draw.random() < 0.8 else f'"{number}\n' + "長" * draw.randint(1, 60),
            "".join(
                draw.choice(["word ", "ä", '"', "\n", "語", "🙂", "\x01"]) * draw.randint(1, 30)
                for _ in range(draw.randint(0, 60))
            ),
            time=draw.choice([None, NOW, 1e15, NOW - 52200]),
            type=draw.choice([None, "fact"]),
        )
        for number in range(40)
    ]
    return [
        Answer(
            draw.choice(["tea", "語" * 400, '"' * 500, "a\ud800"]),
            draw.sample(memories, draw.randint(0, 12)),
            "why" * 60,
        )
        for _ in range(queries)
    ]


@pytest.mark.parametrize("seed", range(24))
def test_an_answer_keeps_to_its_budget_and_says_what_it_leaves_out(seed: int) -> None:
    draw = random.Random(seed)
    queries = draw.randint(1, 20)
    answers = answers_of(draw, queries)
    tokens = draw.choice([least_tokens(queries), least_tokens(queries) + 300, 2000, 4000, 50_000])
    tokens = max(tokens, least_tokens(queries))
    text = write_answers(answers, ["type"], tokens, dt.timezone.utc)
    assert len(text.encode()) <= BYTES_PER_TOKEN * tokens
    value = json.loads(text)
    assert len(value["answers"]) == queries
    whole = {record.id: record.text for answer in answers for record in answer.memories}
    shown = {each["id"]: each["text"] for each in value["memories"]}
    assert len(shown) == len(value["memories"])
    short = [id for id, text in shown.items() if text != whole[id]]
    assert all("more characters]" in shown[id] for id in short)
    left_out = len(whole) - len(shown)
    assert (f"{left_out} more memories were found" in value.get("note", "")) == (left_out > 0)
    assert (f"{len(short)} of the texts" in value.get("note", "")) == (len(short) > 0)
    for answer, row in zip(answers, value["answers"], strict=True):
        assert row["ids"] == [record.id for record in answer.memories if record.id in shown]


def test_long_texts_share_the_room_and_short_ones_stay_whole() -> None:
    records = [fr.Record("long", "word " * 2000), fr.Record("other", "term " * 2000), fr.Record("short", "tea " * 20)]
    value = json.loads(write_answers([Answer("q", records)], [], 1000, dt.timezone.utc))
    long, other, short = (each["text"] for each in value["memories"])
    assert short == records[2].text
    assert abs(len(long) - len(other)) < 40
    kept = long.partition(" … [")[0]
    assert records[0].text.startswith(kept)
    assert long == f"{kept} … [{10_000 - len(kept):,} more characters]"
    assert 0.85 * 4000 < len(json.dumps(value, ensure_ascii=False).encode()) <= 4000


def test_the_last_ranks_are_left_out_first() -> None:
    rows = [[fr.Record(f"{row}.{rank}", "word " * 100) for rank in range(20)] for row in range(3)]
    value = json.loads(write_answers([Answer("q", row) for row in rows], [], 800, dt.timezone.utc))
    ranks = [[int(id.partition(".")[2]) for id in row["ids"]] for row in value["answers"]]
    assert all(row == [*range(len(row))] for row in ranks)
    assert max(map(len, ranks)) - min(map(len, ranks)) <= 1
    assert min(map(len, ranks)) >= 1
    # What is shown is long enough to be of use: a half of a word and the unused part of the mark may be missing.
    assert min(len(each["text"]) for each in value["memories"]) >= LEAST_TEXT - 60


@pytest.mark.parametrize("text", ["", "a", "語" * 500, "word " * 500, '"\\' * 500, "\x00" * 500, "🙂" * 500])
def test_a_cut_text_takes_its_size_in_json(text: str) -> None:
    for size in (LEAST_TEXT, 333, 1000):
        assert len(write(cut(text, size)).encode()) <= size


def test_a_memory_that_many_queries_find_is_told_once() -> None:
    tools = tools_of()
    [id] = remembered(tools, "Ana prefers tea")
    answer = asked(tools, "recall", {"queries": ["Ana", "tea", "prefers"]})
    assert [row["ids"] for row in answer["answers"]] == [[id]] * 3
    assert len(answer["memories"]) == 1
