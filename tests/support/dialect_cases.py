"""Payloads of every kind of value, and which of them pass a filter of another library, by the masks of the columns."""

import random
from typing import Any

import fanrank as fr
from fanrank.engine.index.columns import Columns, Schema
from fanrank.engine.index.masks import compile_filter
from fanrank.engine.records.dialects.parse import parse_filter
from fanrank.engine.records.filters import Filter, columns_in
from fanrank.engine.text.vocabulary import Vocabulary

KEYS = ("a", "b", "type", "time", "m")
SCALARS: list[Any] = [
    *("", "x", "X", "xy", "5", "zebra", "50%", "a_b", "é"),
    *("2024-01-01", "2024-01-01T00:00:00", "2024-01-01T00:00:00+02:00", "2024-01-01T00:00:00Z"),
    *(0, 1, 1.0, 2.5, -3, 5, 10**18, True, False, None),
]
VALUES: list[Any] = [*SCALARS, [], ["x"], ["x", 1], [True, "xy"], {}, {"a": 1}, {"a": 1, "b": "x"}, {"a": {"b": None}}]


def payloads(draw: random.Random, count: int) -> list[dict[str, Any]]:
    return [{key: draw.choice(VALUES) for key in KEYS if draw.random() < 0.8} for _ in range(count)]


def passing(found: Filter | None, rows: list[dict[str, Any]]) -> list[bool]:
    """Which records pass, by the mask of the columns that the filter names."""
    if found is None:
        return [True] * len(rows)
    schema = Schema.of("auto").reaching(columns_in(found))
    values = {name: Vocabulary() for name in schema.categories}
    # Built-in columns say something else: a key of the payload must not be taken for them.
    records = [fr.Record(f"r{n}", "", payload=row, type="built in", time=0.0) for n, row in enumerate(rows)]
    columns = Columns.of(records, schema, values)
    return compile_filter(found, schema, values).mask(columns).tolist()


def read(spec: Any, dialect: str) -> Filter | None:
    return parse_filter(spec, dialect, payload=True)
