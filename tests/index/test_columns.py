"""Strings as one block, ids found by hash and by document number, metadata columns."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders

import fanrank as fr
from fanrank.engine.index import columns, record_ids
from fanrank.engine.index.columns import NUMBERS, Columns, Ids, Schema, Strings, stable_hash
from fanrank.engine.index.record_ids import RecordIds
from fanrank.engine.records.record import CATEGORIES
from fanrank.engine.settings import compiled_loops
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


COMPILED = [
    pytest.param(False, id="plain"),
    pytest.param(
        True, id="compiled", marks=pytest.mark.skipif(compiled_loops() is None, reason="the extension is not in use")
    ),
]

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)


def make_ids(segments: list[list[str]] | list[Strings], compiled: bool) -> RecordIds:
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(record_ids, "compiled_loops", lambda: None)
        return RecordIds([one if isinstance(one, Strings) else Strings.of(one) for one in segments])


@pytest.mark.parametrize("compiled", COMPILED)
@given(
    st.lists(st.lists(names, min_size=1, max_size=6), max_size=4),
    st.lists(st.integers(0, 1000), max_size=12),
    st.integers(1, 3),
    st.sampled_from([0, 3, 64]),
)
def test_ids_are_those_of_the_documents(
    compiled: bool, segments: list[list[str]], drawn: list[int], width: int, listed: int
) -> None:
    known = [name for segment in segments for name in segment]
    numbers = [number % (len(known) + 1) - 1 for number in drawn][: len(drawn) // width * width]
    documents = np.array(numbers, dtype=np.int64).reshape(-1, width)
    with borders.shrunken(LISTED=listed):
        found = make_ids(segments, compiled)(documents)
    assert (found.shape, found.dtype) == (documents.shape, object)
    assert found.ravel().tolist() == [None if number < 0 else known[number] for number in numbers]
    assert {*map(type, found.ravel().tolist())} <= {str, type(None)}


@pytest.mark.parametrize("compiled", COMPILED)
@pytest.mark.parametrize("listed", [0, 64])
def test_padding_alone_and_documents_that_lie_apart(compiled: bool, listed: int) -> None:
    segments: list[list[list[str]]] = [[], [["a"]], [["a"], ["bé"]]]
    with borders.shrunken(LISTED=listed):
        for own, shape in itertools.product(segments, [(0,), (0, 3), (3, 0), (2, 2)]):
            found = make_ids(own, compiled)(np.full(shape, -1, dtype=np.int64))
            assert found.tolist() == np.full(shape, None).tolist()
        ids, documents = make_ids([["a", "b"], ["c"]], compiled), np.array([[0, 1, 2], [2, -1, 1]])
        assert ids(documents[:, ::-1]).tolist() == [["c", "b", "a"], ["b", None, "c"]]
        assert ids(documents.T).tolist() == [["a", "c"], ["b", None], ["c", "b"]]
        assert ids.slice(3, 5)(np.array([1])).tolist() == ["b"]


@pytest.mark.skipif(compiled_loops() is None, reason="the extension is not in use")
def test_the_extension_reads_nothing_beyond_its_arrays() -> None:
    native: Any = compiled_loops()
    block, offsets = np.frombuffer(b"abc", dtype=np.uint8), np.array([0, 1, 3])
    ids, places = native.record_ids(((block, offsets),)), np.full(2, "old", dtype=object)

    def numbers(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    for documents in (numbers(0, 2), numbers(0, -2), numbers(0), numbers(0, 1, 1)):
        with pytest.raises(ValueError, match=r"no document|different sizes"):
            ids.fill(documents, places)
    for wrong in (places.tolist(), np.zeros(2), np.zeros(2, dtype=np.int64)):
        with pytest.raises((ValueError, TypeError, BufferError)):
            ids.fill(numbers(0, 1), wrong)
    for damaged in ([0, 4, 3], [0, 2, 1], [-1, 1, 3], [0, 1, 4]):
        with pytest.raises(ValueError, match="outside their block"):
            native.record_ids(((block, np.array(damaged)),)).fill(numbers(0, 1), places)
    with pytest.raises(UnicodeDecodeError):
        native.record_ids(((np.frombuffer(b"\xff", dtype=np.uint8), numbers(0, 1)),)).fill(numbers(0, 0), places)
    with pytest.raises(ValueError, match="at least one offset"):
        native.record_ids(((block, numbers()),))
    for malformed in (None, [], ((block,),), ((block, offsets.astype(np.int32)),)):
        with pytest.raises(ValueError, match=r"columns:|wrong type of numbers"):
            native.record_ids(malformed)
    ids.fill(numbers(1, -1), places)
    assert places.tolist() == ["bc", None]


@pytest.mark.skipif(compiled_loops() is None, reason="the extension is not in use")
def test_the_extension_keeps_no_reference_to_what_it_replaced() -> None:
    native: Any = compiled_loops()
    ids, old = native.record_ids(((np.frombuffer(b"abc", dtype=np.uint8), np.array([0, 3])),)), object()
    before = sys.getrefcount(old)
    places = np.full(3, old, dtype=object)
    ids.fill(np.array([0, -1, 0]), places)
    assert sys.getrefcount(old) == before
    assert [sys.getrefcount(places[0]) <= 3, places.tolist()] == [True, ["abc", None, "abc"]]
