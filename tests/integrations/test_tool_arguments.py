"""The schemas of the tool functions, and what the dispatcher says to arguments that they do not take."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any

import pytest
from support.tool_cases import GOOD, asked, changed, filled, remembered, tools_of

import fanrank as fr
from fanrank.engine.errors import ParameterError, StorageError
from fanrank.integrations.tool_arguments import ToolInputError, read_arguments
from fanrank.integrations.tools import NAMES

# --- Schemas


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


# --- The dispatcher


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
