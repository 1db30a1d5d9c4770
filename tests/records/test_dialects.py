"""Filters of other libraries against their rules in plain loops. Their own code judges in tests/extended/frameworks."""

import enum
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.dialect_cases import KEYS, SCALARS, VALUES, passing, payloads, read
from support.plain_operators import PLAIN

import fanrank as fr
from fanrank.engine.records.dialects.parse import parse_filter
from fanrank.engine.records.filters import MAX_DEPTH, columns_in

OPERATORS = {"eq": "==", "ne": "!=", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "nin": "not in"}


def plain(value: Any, operator: str, wanted: Any) -> bool:
    """mem0's and OpenAI's operators in plain Python."""
    return bool(PLAIN[OPERATORS.get(operator, operator)](value, wanted))


UNDATED = [value for value in SCALARS if not (isinstance(value, str) and value.startswith("20"))]


def operation(draw: random.Random, names: list[str]) -> tuple[str, Any]:
    name = draw.choice(names)
    if name in ("in", "nin"):
        return name, draw.sample(VALUES, draw.randint(0, 3))
    if name in ("contains", "icontains"):
        return name, draw.choice(["", "x", "X", "a", "5"])
    if name in ("eq", "ne"):
        return name, draw.choice(VALUES)
    return name, draw.choice([value for value in UNDATED if value is not None])


def test_mem0_in_both_spellings() -> None:
    draw = random.Random(4)
    names = ["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "contains", "icontains"]

    def some(depth: int) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        for key in draw.sample(KEYS, draw.randint(1, 2)):
            kind = draw.random()
            spec[key] = dict(operation(draw, names) for _ in range(draw.randint(1, 2)))
            if kind < 0.3:
                spec[key] = draw.choice(["*", "x", 1, None, True, ["x", 5]])
        if depth and draw.random() < 0.6:
            word = draw.choice(["AND", "OR", "NOT", "$or", "$not", "$and"])
            spec[word] = [some(depth - 1) for _ in range(draw.randint(1, 2))]
        return spec

    def matches(spec: dict[str, Any], row: dict[str, Any]) -> bool:
        found = []
        for key, wanted in spec.items():
            word = key.strip("$").upper() if key[0] == "$" or key in ("AND", "OR", "NOT") else ""
            value = row.get(key)
            if word:
                inner = [matches(one, row) for one in wanted]
                found.append({"AND": all(inner), "OR": any(inner), "NOT": not any(inner)}[word])
            elif isinstance(wanted, dict):
                found.append(all(plain(value, name, operand) for name, operand in wanted.items()))
            elif wanted == "*":
                found.append(value is not None)
            else:
                found.append(value in wanted if isinstance(wanted, list) else value == wanted)
        return all(found)

    for _ in range(200):
        spec, rows = some(2), payloads(draw, 12)
        assert passing(read(spec, "mem0"), rows) == [matches(spec, row) for row in rows], spec
    late = read({"a": {"gt": "2024-01-01T00:30:00+00:00", "lte": "2024-01-01T01:00:00Z"}}, "mem0")
    assert passing(late, [{"a": "2024-01-01T02:45:00+02:00"}, {"a": "2024-01-01T02:15:00+02:00"}]) == [True, False]


def test_openai() -> None:
    draw = random.Random(5)
    names = ["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]

    def some(depth: int) -> dict[str, Any]:
        if depth and draw.random() < 0.5:
            return {"type": draw.choice(["and", "or"]), "filters": [some(depth - 1) for _ in range(draw.randint(0, 3))]}
        kind, value = operation(draw, names)
        return {"type": kind, "key": draw.choice(KEYS), "value": value}

    def matches(spec: dict[str, Any], row: dict[str, Any]) -> bool:
        if "filters" in spec:
            return (all if spec["type"] == "and" else any)(matches(one, row) for one in spec["filters"])
        return plain(row.get(spec["key"]), spec["type"], spec["value"])

    def as_object(spec: dict[str, Any]) -> SimpleNamespace:
        inner = {"filters": [as_object(one) for one in spec["filters"]]} if "filters" in spec else {}
        return SimpleNamespace(**{**spec, **inner})

    for _ in range(150):
        spec, rows = some(2), payloads(draw, 12)
        assert passing(read(spec, "openai"), rows) == [matches(spec, row) for row in rows], spec
        assert read(as_object(spec), "openai") == read(spec, "openai")


def test_like_takes_no_power_of_the_text() -> None:
    # A regular expression needs some 2,000 to the power of 20 steps for this.
    found = fr.col("t").like("%a_" * 20 + "%b")
    assert passing(found, [{"t": "a" * 2_000}, {"t": "a" * 2_000 + "b"}]) == [False, True]


def nested(wrap: Callable[[Any], Any], leaf: Any, depth: int) -> Any:
    for _ in range(depth):
        leaf = wrap(leaf)
    return leaf


DEEP: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "langgraph": (lambda inner: {"a": inner}, {"a": {"$gt": 1}}),
    "mem0": (lambda inner: {"NOT": [inner]}, {"a": 1}),
    "llama_index": (lambda inner: {"filters": [inner], "condition": "not"}, {"key": "a", "value": 1}),
    "haystack": (
        lambda inner: {"operator": "NOT", "conditions": [inner]},
        {"field": "meta.a", "operator": "==", "value": 1},
    ),
    "openai": (lambda inner: {"type": "or", "filters": [inner, inner]}, {"type": "eq", "key": "a", "value": 1}),
}


@pytest.mark.parametrize("dialect", DEEP)
@pytest.mark.parametrize("depth", [2 * MAX_DEPTH, 3_000])
def test_depth_is_bounded(dialect: str, depth: int) -> None:
    wrap, leaf = DEEP[dialect]
    if dialect == "openai":
        depth = min(depth, MAX_DEPTH)
        shared = nested(lambda inner: {"type": "or", "filters": [inner]}, leaf, 3_000)
        with pytest.raises(fr.errors.QueryError, match="nested"):
            read(shared, dialect)
        wrap = lambda inner: {"type": "or", "filters": [inner, leaf]}  # noqa: E731
    with pytest.raises(fr.errors.QueryError, match="nested"):
        read(nested(wrap, leaf, depth), dialect)
    assert passing(read(nested(wrap, leaf, 4), dialect), [{"a": 1}]) in ([True], [False])


class Text(str, enum.Enum):
    WORD = "x"


MALFORMED: list[tuple[str, Any, str]] = [
    ("langgraph", [], "must be a mapping, not list"),
    ("langgraph", {"a": {"$in": [1]}}, "filter['a']['$in']: unknown operator '$in'; there are: $eq, $ne, $gt"),
    ("langgraph", {"a": {"$gt": 1, "b": 2}}, "unknown operator 'b'"),
    ("langgraph", {"a": {"$gt": "five"}}, "$gt compares numbers, not 'five'"),
    ("langgraph", {"a": {"$lt": None}}, "$lt compares numbers, not None"),
    ("langgraph", {"a": [{"$gt": 1}]}, "operators inside a list"),
    ("langgraph", {"a": {"b.c": {"$gt": 1}}}, "without a dot"),
    ("langgraph", {5: 1}, "a key must be a non-empty string"),
    ("langgraph", {"a": object()}, "must be a string, a number"),
    ("langgraph", {"a": [object()]}, "takes a JSON value"),
    ("langgraph", {"a": {"$eq": float("nan")}}, "must be finite"),
    ("mem0", "a", "must be a mapping, not str"),
    ("mem0", {"a": {}}, "no operator"),
    ("mem0", {"a": {"regex": "x"}}, "filter['a']['regex']: unknown operator 'regex'"),
    ("mem0", {"a": {"in": "abc"}}, "must be a list, not str"),
    ("mem0", {"a": {"gt": None}}, "compares numbers or strings, not None"),
    ("mem0", {"OR": {"a": 1}}, "filter['OR']: must be a list, not dict"),
    ("mem0", {"OR": []}, "needs at least one filter"),
    ("mem0", {"NOT": [5]}, "filter['NOT'][0]: must be a mapping, not int"),
    ("mem0", {"OR": [{}]}, "an empty filter"),
    ("llama_index", 5, "must be MetadataFilters"),
    ("llama_index", {"filters": {}}, "must be a list, not dict"),
    ("llama_index", {"filters": [{"key": "a", "value": 1, "operator": "~"}]}, "unknown operator '~'"),
    ("llama_index", {"filters": [{"key": "a", "value": 1}], "condition": "xor"}, "unknown condition 'xor'"),
    ("llama_index", {"key": "a", "value": "x", "operator": "in"}, "must be a list, not str"),
    ("llama_index", {"key": "a", "value": 1, "operator": "text_match"}, "takes a string, not 1"),
    ("llama_index", {"key": "a", "value": [1], "operator": ">"}, "takes one value, not list"),
    ("llama_index", {"key": "", "value": 1}, "a key must be a non-empty string"),
    ("haystack", [1], "must be a mapping, not list"),
    ("haystack", {"conditions": []}, "'operator' is missing"),
    ("haystack", {"operator": "AND"}, "'conditions' is missing"),
    ("haystack", {"operator": "XOR", "conditions": []}, "unknown operator 'XOR' of conditions"),
    ("haystack", {"field": "meta.a", "value": 1}, "'operator' is missing"),
    ("haystack", {"field": "meta.a", "operator": "=="}, "'value' is missing"),
    ("haystack", {"field": "meta.a", "operator": "like", "value": 1}, "unknown operator 'like'"),
    ("haystack", {"field": "meta.a", "operator": ">", "value": "five"}, "compares numbers and ISO 8601 dates"),
    ("haystack", {"field": "meta.a", "operator": ">", "value": [1]}, "takes one value"),
    ("haystack", {"field": "meta.a", "operator": "in", "value": "x"}, "must be a list, not str"),
    ("haystack", {"field": "content", "operator": "==", "value": "x"}, "filters are on the metadata"),
    ("haystack", {"field": "other.a", "operator": "==", "value": "x"}, "'field' must be meta.KEY"),
    ("openai", {"type": "like", "key": "a", "value": 1}, "unknown type 'like'"),
    ("openai", {"type": ["eq"], "key": "a", "value": 1}, "unknown type ['eq']"),
    ("openai", {"type": "eq", "key": "a"}, "'value' is missing"),
    ("openai", {"type": "eq", "value": 1}, "a key must be a non-empty string, not None"),
    ("openai", {"type": "and", "filters": None}, "must be a list, not NoneType"),
    ("openai", "a", "unknown type None"),
]


@pytest.mark.parametrize(("dialect", "spec", "message"), MALFORMED)
def test_malformed(dialect: str, spec: Any, message: str) -> None:
    with pytest.raises(fr.errors.QueryError) as caught:
        read(spec, dialect)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{dialect}: ")


def test_keys_name_columns_or_keys_of_the_payload() -> None:
    spec = {"type": "note", "n": {"$gt": 1}}
    named, of_payload = parse_filter(spec, "langgraph"), read(spec, "langgraph")
    assert named is not None
    assert of_payload is not None
    assert set(columns_in(named)) == {"type", "n"}
    assert set(columns_in(of_payload)) == {"payload.type", "payload.n"}
    assert parse_filter({"type": "note"}) == (fr.col("type") == "note")
    for dialect in DEEP:
        assert parse_filter(None, dialect) is None
        assert parse_filter(fr.col("a") == 1, dialect) == (fr.col("a") == 1)
        assert parse_filter({}, dialect) is None
    with pytest.raises(fr.errors.ParameterError, match="unknown dialect 'mongo'; there are: langgraph, mem0"):
        parse_filter({}, "mongo")
    with pytest.raises(fr.errors.ParameterError, match="payload=True is for a dialect"):
        parse_filter({}, payload=True)
    assert passing(read({"a": Text.WORD}, "mem0"), [{"a": "x"}, {"a": "y"}]) == [True, False]
