"""Strings as one block, ids found by hash, metadata columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine.index import columns
from fanrank.engine.index.columns import NUMBERS, Columns, Ids, Schema, Strings, stable_hash
from fanrank.engine.records.record import CATEGORIES
from fanrank.engine.text.vocabulary import Vocabulary

strings = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=6)


@settings(max_examples=40)
@given(st.lists(strings, min_size=1, max_size=4))
def test_strings(parts: list[list[str]]) -> None:
    column = Strings.concatenate([Strings.of(part) for part in parts])
    expected = [string for part in parts for string in part]
    assert column.tolist() == expected
    assert [column[position] for position in range(len(column))] == expected
    assert column.block.tobytes() == "".join(expected).encode()


def test_hashes_are_the_same_in_every_process() -> None:
    # Saved indexes hold these numbers.
    assert (stable_hash(""), stable_hash("r1")) == (0xB4B2797457A0A6E4, 0x30BD695B0C8ADD83)


ids = st.lists(st.sampled_from([f"r{n}" for n in range(30)]), unique=True, max_size=20)


@settings(max_examples=40)
@given(ids, st.integers(0, 20), st.sampled_from([1, 3, 2**64]))
def test_ids_are_found_even_where_hashes_collide(names: list[str], cut: int, buckets: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "stable_hash", lambda string: stable_hash(string) % buckets)
        patch.setattr(
            columns,
            "hashes_of",
            lambda names: np.array([stable_hash(name) % buckets for name in names], dtype=np.uint64),
        )
        column = Ids.concatenate([Ids.of(names[:cut]), Ids.of(names[cut:])])
        assert (np.diff(column.hashes.astype(object)) >= 0).all()
        for position in range(30):
            name = f"r{position}"
            assert column.find(name) == (names.index(name) if name in names else None)
        asked = [f"r{n}" for n in range(0, 30, 7)]
        hashes = np.array([stable_hash(name) % buckets for name in asked], dtype=np.uint64)
        found = {asked[index]: position for index, position in column.find_all(asked, hashes)}
        assert found == {name: names.index(name) for name in asked if name in names}


SCHEMA = Schema.of({"project": "category", "priority": "number"})
BUILT_IN = (*CATEGORIES, *NUMBERS)


def vocabularies() -> dict[str, Vocabulary]:
    return {name: Vocabulary() for name in SCHEMA.categories}


def test_schema() -> None:
    assert Schema.of(None) == Schema.of({}) == Schema(CATEGORIES, NUMBERS)
    assert Schema.of(None).categories == ("role", "session", "user", "agent", "tool", "type")
    assert Schema.of(None).numbers == ("time", "importance", "expires")
    assert Schema((*CATEGORIES, "project"), (*NUMBERS, "priority")) == SCHEMA
    declared = {"b": "number", "project": "category", "a": "number", "größe": "category"}
    assert Schema.of(declared).declared() == declared
    assert Schema.of(Schema.of(declared).declared()) == Schema.of(declared)
    assert Schema.of(None).declared() == {}


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"project": "text"}, "column 'project': unknown kind 'text'; there are: category, number"),
        ({"project": None}, "unknown kind None"),
        ({"project": ["number"]}, "unknown kind"),
        *[({name: "number"}, f"column {name!r} is taken") for name in fr.Record.__dataclass_fields__],
        *[({name: "category"}, f"column {name!r} is taken") for name in ("and", "or", "not")],
        *[({name: "number"}, "letters, digits and underscores") for name in ("", "a b", "a-b", "1a", "a=b", 5, None)],
        (["project"], "must map names to kinds, or be 'auto', not list"),
        ("project", "must map names to kinds, or be 'auto', not str"),
    ],
)
def test_what_is_no_schema(declared: Any, message: str) -> None:
    with pytest.raises(fr.errors.ParameterError) as caught:
        Schema.of(declared)
    assert message in str(caught.value)


Row = dict[str, Any]


def record(row: Row) -> fr.Record:
    extra = {name: value for name, value in row.items() if name not in BUILT_IN}
    return fr.Record("r", "word", extra=extra, **{name: row[name] for name in row if name in BUILT_IN})


def build(rows: Sequence[Row], values: Mapping[str, Vocabulary]) -> Columns:
    return Columns.of([record(row) for row in rows], SCHEMA, values)


def test_numbers_of_every_kind() -> None:
    numbers = [1, 2.5, np.int8(3), np.float32(0.5), None]
    columns = build([{"priority": number} for number in numbers], vocabularies())
    assert columns.numbers["priority"].tolist()[:4] == [1.0, 2.5, 3.0, 0.5]
    assert math.isnan(columns.numbers["priority"][4])
    # What the schema does not name is not read.
    assert not Columns.of([fr.Record("r", "", extra={"priority": 1})], Schema.of(None), {}).numbers


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("project", 5, "column 'project' must be a string or None, not int"),
        ("project", ["a"], "column 'project' must be a string or None, not list"),
        ("project", b"a", "column 'project' must be a string or None, not bytes"),
        ("project", "a\ud800", "column 'project' holds a lone surrogate"),
        ("priority", "5", "column 'priority' must be a number or None, not str"),
        ("priority", True, "column 'priority' must be a number or None, not bool"),
        ("priority", np.True_, "column 'priority' must be a number or None"),
        ("priority", [1], "column 'priority' must be a number or None, not list"),
        ("priority", math.nan, "column 'priority' must be a finite float64"),
        ("priority", -math.inf, "column 'priority' must be a finite float64"),
        ("priority", 10**400, "column 'priority' must be a finite float64"),
    ],
)
def test_a_value_of_the_wrong_type(name: str, value: object, message: str) -> None:
    values = vocabularies()
    build([{"role": "user", "project": "a"}], values)
    before = {column: len(known) for column, known in values.items()}
    records = [fr.Record("good", "", role="tool", extra={name: None}), fr.Record("bad", "", extra={name: value})]
    with pytest.raises(fr.errors.RecordError) as caught:
        Columns.of(records, SCHEMA, values)
    assert message in str(caught.value)
    assert caught.value.record_id == "bad"
    # What the caller undoes is all there is to undo.
    for column, known in values.items():
        known.truncate(before[column])
    assert {column: known.strings for column, known in values.items() if known.strings} == {
        "role": ["user"],
        "project": ["a"],
    }
