"""What the model of an agent may send to the tools of `tools.py`: their JSON schemas, and arguments checked by them.

The schemas keep to what the strict modes of all large providers take. Every object closes with
``additionalProperties: false`` and requires all of its properties, a value that may be left out is ``null``, and no
keyword limits a length or a range. Limits stand in the descriptions and are checked where the arguments are used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

COMPARISONS = {"eq": "==", "ne": "!=", "in": "in", "nin": "not in", "gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
"""Comparisons that `recall` takes, those of OpenAI's filters of vector stores, with ours for each."""

LARGEST = 1 << 20
"""Characters of JSON beyond which arguments are refused unread."""


class ToolInputError(ValueError):
    """What a model sent cannot be used; the message tells the model what to send instead."""


def recall_schema(labels: Mapping[str, str], *, queries: int, query: int, k: int, most: int) -> Schema:
    """The schema of `recall`. `labels` are the names that filters may use, each with its description."""
    properties: Schema = {
        "queries": {
            "type": "array",
            "items": {"type": "string"},
            "description": f"What to look for: 1 to {queries} short searches of at most {query} characters, one for "
            "each thing to be found out. All are answered at once.",
        },
        "k": {
            "type": ["integer", "null"],
            "description": f"Memories for each search, 1 to {most}; null for {k}.",
        },
        "since": {
            "type": ["string", "null"],
            "description": "Only memories from this time on: a date such as 2026-03-01, or words such as 'last week'; "
            "null for no limit.",
        },
        "until": {
            "type": ["string", "null"],
            "description": "Only memories up to and including this time, given as 'since' is; null for no limit.",
        },
    }
    if labels:
        scalar: list[Schema] = [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]
        condition = _object(
            {
                "key": {"type": "string", "enum": [*labels], "description": _described(labels)},
                "op": {"type": "string", "enum": [*COMPARISONS], "description": "'in' and 'nin' take a list."},
                "value": {"anyOf": [*scalar, {"type": "array", "items": {"anyOf": scalar}}]},
            }
        )
        properties["filters"] = {
            "type": ["array", "null"],
            "items": condition,
            "description": "Conditions that every memory must meet; null for none.",
        }
    return _object(properties)


def remember_schema(labels: Mapping[str, str], *, records: int, text: int) -> Schema:
    """The schema of `remember`. `labels` are the names that a memory may carry, each with its description."""
    properties: Schema = {
        "text": {
            "type": "string",
            "description": f"One fact, preference or event, at most {text} characters, in words that make sense alone.",
        },
        "id": {
            "type": ["string", "null"],
            "description": "The id of the memory that this one replaces, as recall gave it; null for a new memory.",
        },
        "time": {
            "type": ["string", "null"],
            "description": "When it happened: a date such as 2026-03-01, or words such as 'yesterday'; null for now.",
        },
        **{
            name: {"type": ["string", "null"], "description": described or "null if it does not apply."}
            for name, described in labels.items()
        },
    }
    return _object(
        {
            "records": {
                "anyOf": [{"type": "array", "items": _object(properties)}, {"type": "string"}],
                "description": f"1 to {records} memories, all kept or none; or the text of a single new one.",
            }
        }
    )


def forget_schema(*, ids: int) -> Schema:
    """The schema of `forget`."""
    return _object(
        {
            "ids": {
                "type": "array",
                "items": {"type": "string"},
                "description": f"Ids of 1 to {ids} memories to delete for good, exactly as recall gave them.",
            }
        }
    )


def _object(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def _described(labels: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {text}" if text else name for name, text in labels.items())


def read_arguments(arguments: str | bytes | Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The arguments of a call, each present: what may be null and was left out is None.

    `arguments` is JSON, as a model sends it, or what was parsed of it. Raises `ToolInputError`.
    """
    if isinstance(arguments, (str, bytes)):
        if len(arguments) > LARGEST:
            raise ToolInputError(f"the arguments hold {len(arguments):,} characters, at most {LARGEST:,} are read")
        try:
            value = json.loads(arguments, parse_constant=_refuse_constant)
        except RecursionError:
            raise ToolInputError("the arguments are nested too deeply; send the object that the schema says") from None
        except ValueError as error:  # no JSON, no Unicode, an integer of thousands of digits
            raise ToolInputError(f"the arguments are no JSON ({error}); send one JSON object") from None
    else:
        value = arguments
    checked: dict[str, Any] = _check(value, schema, "")
    return checked


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _check(value: Any, schema: Schema, path: str) -> Any:
    """`value`, completed, if the schema takes it. Only the keywords that the schemas above use are known."""
    where = path or "the arguments"
    if "anyOf" in schema:
        fitting = [each for each in schema["anyOf"] if _fits(value, each["type"])]
        if not fitting:
            kinds = " or ".join(dict.fromkeys(each["type"] for each in schema["anyOf"]))
            raise ToolInputError(f"{where} must be of type {kinds}, not {_kind(value)}")
        return _check(value, fitting[0], path)
    if not _fits(value, schema["type"]):
        kinds = schema["type"] if isinstance(schema["type"], str) else " or ".join(schema["type"])
        raise ToolInputError(f"{where} must be of type {kinds}, not {_kind(value)}")
    if isinstance(value, Mapping):
        return _check_object(value, schema, path)
    if isinstance(value, (list, tuple)):
        return [_check(item, schema["items"], f"{path}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ToolInputError(
                f"{where} holds half of a surrogate pair, which is no character; leave it out"
            ) from None
    if "enum" in schema and value not in schema["enum"]:
        raise ToolInputError(f"{where} must be one of {', '.join(schema['enum'])}, not {value[:80]!r}")
    return value


def _check_object(value: Mapping[Any, Any], schema: Schema, path: str) -> dict[str, Any]:
    properties = schema["properties"]
    unknown = next((name for name in value if name not in properties), None)
    if unknown is not None:
        where = f" in {path}" if path else ""
        raise ToolInputError(f"there is no {str(unknown)[:80]!r}{where}; there are: {', '.join(properties)}")
    inside = f"{path}." if path else ""
    checked = {}
    for name, expected in properties.items():
        if name not in value and "null" not in expected.get("type", ()):
            raise ToolInputError(f"{inside}{name} is missing")
        checked[name] = _check(value.get(name), expected, inside + name)
    return checked


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (Mapping,),
    "array": (list, tuple),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
}


def _fits(value: Any, kinds: str | list[str]) -> bool:
    return any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _is(value: Any, kind: str) -> bool:
    if kind == "integer":
        return not isinstance(value, bool) and (
            isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        )
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _kind(value: Any) -> str:
    return next((kind for kind in _TYPES if _is(value, kind)), type(value).__name__)
