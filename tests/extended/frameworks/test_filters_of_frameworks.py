"""Filters of frameworks: what passes is what passes by their own code."""

import datetime as dt
import inspect
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.dialect_cases import KEYS, SCALARS, VALUES, passing, payloads, read


def test_langgraph_compares_as_its_in_memory_store() -> None:
    memory = pytest.importorskip("langgraph.store.memory")
    compare_values = memory._compare_values
    draw = random.Random(1)
    numbers: list[Any] = ["5", "-1", 0, 1, 2.5, True]
    operators: dict[str, list[Any]] = {
        **dict.fromkeys(("$eq", "$ne"), VALUES),
        **dict.fromkeys(("$gt", "$gte", "$lt", "$lte"), numbers),
    }

    def condition(depth: int) -> Any:
        kind = draw.random()
        if kind < 0.5 or not depth:
            names = draw.sample([*operators], draw.choice([1, 1, 2]))
            return {name: draw.choice(operators[name]) for name in names}
        if kind < 0.8:
            return draw.choice(VALUES)
        if kind < 0.9:
            return [draw.choice(VALUES) for _ in range(draw.randint(0, 2))]
        return {key: condition(depth - 1) for key in draw.sample(["a", "b"], draw.randint(0, 2))}

    for _ in range(400):
        spec = {key: condition(2) for key in draw.sample(KEYS, draw.randint(0, 2))}
        rows = payloads(draw, 12)

        def matches(row: dict[str, Any], spec: dict[str, Any] = spec) -> bool:
            try:
                # Each key apart: an error at one of them is a key that does not match, whatever came before.
                found = [compare_values(row.get(key), wanted) for key, wanted in spec.items()]
            except (TypeError, ValueError, OverflowError):
                return False
            return all(found)

        assert passing(read(spec, "langgraph"), rows) == [matches(row) for row in rows], spec


def test_llama_index_compares_as_its_simple_store() -> None:
    types = pytest.importorskip("llama_index.core.vector_stores.types")
    utils = pytest.importorskip("llama_index.core.vector_stores.utils")
    draw = random.Random(2)
    strings = [value for value in SCALARS if isinstance(value, str)]
    numbers = [0, 1, 2.5, -3, 5]
    operands: dict[str, Callable[[], Any]] = {
        **dict.fromkeys(("==", "!="), lambda: draw.choice([*strings, *numbers, None, ["x"], [1, 2]])),
        **dict.fromkeys((">", "<", ">=", "<="), lambda: draw.choice([*strings, *numbers])),
        **dict.fromkeys(("in", "nin"), lambda: draw.sample(draw.choice([strings, [0, 1, -3]]), 3)),
        **dict.fromkeys(("any", "all"), lambda: draw.sample(strings, draw.randint(0, 3))),
        **dict.fromkeys(("text_match", "text_match_insensitive"), lambda: draw.choice(strings)),
        "contains": lambda: draw.choice([*strings, *numbers]),
        "is_empty": lambda: None,
    }

    def matches(filters: Any, row: Mapping[str, Any]) -> bool:
        """Each filter by the library's own code, joined by its rules: an error of one is a filter that fails."""
        found = []
        for one in filters.filters:
            if isinstance(one, types.MetadataFilters):
                found.append(matches(one, row))
                continue
            alone = types.MetadataFilters(filters=[one])
            try:
                found.append(bool(utils.build_metadata_filter_fn(lambda _: row, alone)("id")))
            except TypeError:
                found.append(False)
        if filters.condition == types.FilterCondition.AND:
            return all(found)
        return any(found) if filters.condition == types.FilterCondition.OR else not any(found)

    def some(depth: int) -> Any:
        inner = []
        for _ in range(draw.randint(1, 3)):
            if depth and draw.random() < 0.3:
                inner.append(some(depth - 1))
                continue
            operator = draw.choice([*operands])
            value = operands[operator]()
            inner.append(types.MetadataFilter(key=draw.choice(KEYS), value=value, operator=operator))
        return types.MetadataFilters(filters=inner, condition=draw.choice(["and", "or", "not"]))

    for _ in range(400):
        spec, rows = some(2), payloads(draw, 12)
        expected = [matches(spec, row) for row in rows]
        assert passing(read(spec, "llama_index"), rows) == expected, spec
        # As a dictionary, with the words of the enumerations.
        assert read(spec.model_dump(mode="json"), "llama_index") == read(spec, "llama_index")
    assert read(types.MetadataFilters(filters=[]), "llama_index") is None


def test_haystack_compares_as_document_matches_filter() -> None:
    utils = pytest.importorskip("haystack.utils.filters")
    document_type = pytest.importorskip("haystack").Document
    error_type = pytest.importorskip("haystack.errors").FilterError
    if "strict_datetime_comparison" not in inspect.signature(utils.document_matches_filter).parameters:
        pytest.skip("this Haystack finds no date equal to its text")
    draw = random.Random(3)
    zone = dt.timezone(dt.timedelta(hours=2))
    moments = [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, tzinfo=zone)]
    dates = [value for value in SCALARS if isinstance(value, str) and value.startswith("20")]
    fields = ["meta.a", "meta.b", "type", "meta.m.a", "meta.m.a.b"]

    def comparison() -> dict[str, Any]:
        operator = draw.choice(["==", "!=", ">", ">=", "<", "<=", "in", "not in"])
        value: Any = draw.choice([*dates, 0, 1, 2.5, None, *moments])
        if operator in ("==", "!="):
            value = draw.choice([*VALUES, *moments])
        if operator in ("in", "not in"):
            value = [draw.choice([*VALUES, *moments]) for _ in range(draw.randint(0, 3))]
        return {"field": draw.choice(fields), "operator": operator, "value": value}

    def some(depth: int) -> dict[str, Any]:
        if not depth or draw.random() < 0.4:
            return comparison()
        conditions = [some(depth - 1) for _ in range(draw.randint(0, 3))]
        return {"operator": draw.choice(["AND", "OR", "NOT"]), "conditions": conditions}

    def matches(spec: dict[str, Any], document: Any) -> bool:
        if "field" in spec:
            loose = spec["operator"] in (">", ">=", "<", "<=") and spec["field"] in ("meta.a", "meta.b", "type")
            value = document.meta.get(spec["field"].removeprefix("meta."))
            if loose and isinstance(value, str) and not value.startswith("20"):
                # Haystack reads "5" as the fifth day of this month, and fails for most texts. Ours are ISO 8601 alone.
                return False
            try:
                return bool(utils.document_matches_filter(spec, document))
            except (error_type, TypeError):
                return False
        found = [matches(one, document) for one in spec["conditions"]]
        return {"AND": all(found), "OR": any(found), "NOT": not all(found)}[spec["operator"]]

    for _ in range(400):
        spec, rows = some(2), payloads(draw, 12)
        expected = [matches(spec, document_type(content="", meta=row)) for row in rows]
        assert passing(read(spec, "haystack"), rows) == expected, spec
