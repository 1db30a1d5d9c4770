"""Memories with tools, and arguments that a model may send to them, for the tests of tool functions."""

import copy
import datetime as dt
import json
import random
from typing import Any

import fanrank as fr
from fanrank.integrations.tools import MemoryTools, memory_tools

NOW = dt.datetime(2026, 3, 18, 14, 30, tzinfo=dt.timezone.utc).timestamp()  # a Wednesday
WORDS = ("tea", "coffee", "billing", "job", "error", "key", "deploy", "login", "cache", "Ana", "Bo", "Berlin", "Friday")


def tools_of(engine: Any = None, **options: Any) -> MemoryTools:
    return memory_tools(engine, **{"clock": lambda: NOW, **options})


def asked(tools: MemoryTools, name: str, arguments: Any) -> dict[str, Any]:
    """The answer of a call, which must be a JSON object whatever is sent."""
    text = tools.call(name, arguments if isinstance(arguments, (str, bytes)) else json.dumps(arguments))
    value = json.loads(text)
    assert isinstance(value, dict)
    return value


def remembered(tools: MemoryTools, *texts: str, **fields: Any) -> list[str]:
    ids: list[str] = asked(tools, "remember", {"records": [{"text": text, **fields} for text in texts]})["remembered"]
    return ids


def some_texts(count: int, seed: int = 5) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) for _ in range(count)]


def filled(count: int = 60, **options: Any) -> tuple[fr.Engine, MemoryTools]:
    engine = fr.Engine()
    draw = random.Random(3)
    engine.namespace("ana").add(
        fr.Record(
            f"m{number}", text, time=NOW - 86400.0 * draw.randint(0, 90), type=draw.choice(["fact", "task", None])
        )
        for number, text in enumerate(some_texts(count))
    )
    return engine, tools_of(engine, namespace="ana", **options)


GOOD: dict[str, dict[str, Any]] = {
    "recall": {
        "queries": ["tea", "billing error"],
        "k": 3,
        "since": "2026-01-01",
        "until": None,
        "filters": [{"key": "type", "op": "in", "value": ["fact", "task"]}],
    },
    "remember": {"records": [{"text": "Ana prefers tea", "id": None, "time": None, "type": "fact"}]},
    "forget": {"ids": ["m1"]},
}
ODD: list[Any] = [
    None,
    True,
    0,
    3,
    3.0,
    3.5,
    "x",
    "",
    [],
    ["x"],
    [1],
    {},
    {"text": "x"},
    [[]],
    [{"key": "type"}],
    [None],
]


def changed(value: Any, draw: random.Random) -> Any:
    """`value` with one place changed: replaced, removed, or with something beside it."""
    if isinstance(value, dict) and value and draw.random() < 0.8:
        found, name = dict(value), draw.choice([*value])
        way = draw.random()
        if way < 0.15:
            del found[name]
        elif way < 0.25:
            found["namespace"] = "bo"
        else:
            found[name] = changed(value[name], draw)
        return found
    if isinstance(value, list) and value and draw.random() < 0.7:
        at = draw.randrange(len(value))
        return [*value[:at], changed(value[at], draw), *value[at + 1 :]]
    return copy.deepcopy(draw.choice(ODD))
