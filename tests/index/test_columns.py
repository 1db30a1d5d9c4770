"""Strings as one block, ids found by hash and by number, and columns of any JSON value, however the values came."""

import itertools
import math
import random
import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders
from support.plain_operators import PLAIN

import fanrank as fr
from fanrank.engine.index import columns, record_ids
from fanrank.engine.index.columns import Columns, Ids, Schema, Strings, stable_hash, value_in
from fanrank.engine.index.masks import compile_filter
from fanrank.engine.index.record_ids import RecordIds
from fanrank.engine.records.filters import OPERATORS, ColumnComparison, Filter, parse_filter
from fanrank.engine.records.record import CATEGORIES, NUMBERS
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


VALUES: list[Any] = [
    *("", "a", "A", "ab", "5", "1", "true", "null", '"a"', "[1]", "\ud800", "ü"),
    *("2024-01-01", "2024-01-01T02:00+02:00"),
    *(0, 0.0, -0.0, 1, 1.0, True, False, 5, 2.5, 1e22, 10**22, 2**53, 2**53 + 1, 0.1, -7),
    *([], ["a"], ["A", 1], [True], [[1]], {}, {"a": 1}, {"a": {"b": [1, 2]}}, {"a": 1.0, "z": None}, None),
]
STRINGS = ["", "a", "A", "ab", "5", "ü", "nobody"]
PLAIN_NUMBERS = [0, -0.0, 1, 2.5, 5, 2**53 + 1, 1e22, True, -7]


def some(draw: random.Random) -> tuple[str, Any]:
    operator = draw.choice([*PLAIN])
    if operator in ("like", "ilike"):
        return operator, "".join(draw.choices(["%", "_", "a", "A", "b", "\\", "ü"], k=draw.randint(0, 4)))
    if operator in ("equals", "matches"):
        return operator, draw.choice([value for value in VALUES if value is not None])
    if operator in ("in", "not in"):
        return operator, draw.sample([*STRINGS, *PLAIN_NUMBERS, None], draw.randint(0, 3))
    if operator in ("any", "all"):
        return operator, draw.sample([*STRINGS, *PLAIN_NUMBERS], draw.randint(0, 3))
    if operator in ("==", "!="):
        return operator, draw.choice([*STRINGS, *PLAIN_NUMBERS, None])
    return operator, draw.choice([*STRINGS, *PLAIN_NUMBERS])


def test_every_operator_is_plain_python() -> None:
    assert set(PLAIN) == {name for name in OPERATORS if " " not in name or name == "not in"}
    schema, draw = Schema.of({"v": "json"}), random.Random(1)
    values = {name: Vocabulary() for name in schema.categories}
    records = [fr.Record(f"r{n}", "", payload={"v": value}) for n, value in enumerate(VALUES)]
    columns = Columns.of(records, schema, values)
    for _ in range(700):
        operator, wanted = some(draw)
        found = ColumnComparison("v", operator, wanted)
        expected = [bool(PLAIN[operator](value, wanted)) for value in VALUES]
        assert compile_filter(found, schema, values).mask(columns).tolist() == expected, found
        assert compile_filter(~found, schema, values).mask(columns).tolist() == [not one for one in expected], found
        again = parse_filter(found.to_dict())
        assert again is not None
        assert compile_filter(again, schema, values) == compile_filter(found, schema, values)
        if "ColumnComparison" not in repr(found):
            assert eval(repr(found), {"col": fr.col}) == found


def test_category_columns_take_the_operators_of_strings() -> None:
    schema = Schema.of({"v": "category"})
    values = {name: Vocabulary() for name in schema.categories}
    strings = [value for value in VALUES if isinstance(value, str) and value != "\ud800"]
    records = [fr.Record(f"r{n}", "", extra={"v": value}) for n, value in enumerate([*strings, None])]
    columns = Columns.of(records, schema, values)
    draw = random.Random(2)
    for _ in range(250):
        operator, wanted = some(draw)
        if not all(one is None or isinstance(one, str) for one in (wanted if isinstance(wanted, list) else [wanted])):
            continue
        if operator in ("equals", "matches") and not isinstance(wanted, str):
            continue
        found = ColumnComparison("v", operator, wanted)
        expected = [bool(PLAIN[operator](value, wanted)) for value in [*strings, None]]
        assert compile_filter(found, schema, values).mask(columns).tolist() == expected, found


@pytest.mark.parametrize(
    ("column", "found", "message"),
    [
        ("category", fr.col("v") < 5, "'<' 5 compares no strings, and 'v' holds strings"),
        ("category", fr.col("v").contains(5), "'contains' 5 compares no strings"),
        ("category", fr.col("v").contains_any(["a", 5]), "'any' ['a', 5] compares no strings"),
        ("category", fr.col("v").equals(["a"]), "'equals' ['a'] compares no strings"),
        ("category", fr.col("v") == True, "must be a string or None, not True"),  # noqa: E712
        ("number", fr.col("v") < "5", "'<' '5' compares no numbers, and 'v' holds numbers"),
        ("number", fr.col("v").contains("5"), "'contains' '5' compares no numbers"),
        ("number", fr.col("v").like("5%"), "'like' '5%' compares no numbers"),
        ("number", fr.col("v") == True, "must be a number or None, not True"),  # noqa: E712
        ("number", fr.col("v") > True, "'>' True compares no numbers"),
    ],
)
def test_what_does_not_suit_a_column(column: str, found: Filter, message: str) -> None:
    with pytest.raises(fr.errors.QueryError) as caught:
        fr.Engine(columns={"v": column}).count(found)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"v": {"like": 5}}, "'like' takes a string, not 5"),
        ({"v": {"contains": ["a"]}}, "'contains' takes one value, not list"),
        ({"v": {"contains": None}}, "'contains' compares numbers or strings, not None"),
        ({"v": {"any": "abc"}}, "'any' takes a list of values"),
        ({"v": {"all": [None]}}, "'all' compares values, and None is none"),
        ({"v": {"equals": float("nan")}}, "'equals' takes a JSON value"),
        ({"v": {"equals": {1, 2}}}, "'equals' takes a JSON value"),
        ({"v": {"exists": 1}}, "'exists' takes true or false, not 1"),
        ({"v": {"float <": "5"}}, "'float <' takes a number"),
        ({"v": {"date <": "soon"}}, "'date <' takes an ISO 8601 date"),
        ({"v": {"~": 1}}, "unknown operator '~'; there are: ==, !=, in, not in, <"),
    ],
)
def test_malformed(form: Any, message: str) -> None:
    with pytest.raises(fr.errors.QueryError) as caught:
        parse_filter(form)
    assert message in str(caught.value)


def test_where_a_value_is_read_from() -> None:
    record = fr.Record(
        "r",
        "",
        extra={"a": 1, "none": None, "deep": {"x": 2}},
        payload={"a": 9, "none": 9, "b": 3, "type": "note", "deep": {"x": 8, "y": 4}, "dot.ted": 5, "m": {"k.l": 6}},
    )
    expected = {
        **{"a": 1, "payload.a": 9, "b": 3, "payload.b": 3, "payload.type": "note"},
        **{"deep.x": 2, "deep.y": 4, "payload.deep.x": 8, "dot.ted": 5, "m.k.l": 6},
        **{"none": None, "payload.none": 9, "m.k": None, "b.c": None, "gone": None, "payload.gone": None},
    }
    assert {name: value_in(record, name) for name in expected} == expected
    assert value_in(fr.Record("r", ""), "payload.a") is None


def test_declared_columns_of_every_kind_read_the_payload() -> None:
    columns = {"project": "category", "payload.price": "number", "n": "number"}
    engine = fr.Engine(columns=columns)
    engine.add([fr.Record("a", "tea", payload={"project": "x", "price": 5, "n": 2}), fr.Record("b", "tea")])
    assert list(engine.ids({"project": "x", "payload.price": {">": 4}, "n": 2})) == ["a"]
    with pytest.raises(fr.errors.RecordError, match=r"id 'c': column 'payload.price' must be a number"):
        engine.add([fr.Record("c", "tea", payload={"price": "5"})])
    engine.patch("a", {"project": None})
    assert engine.count({"project": "x"}) == 0  # the payload keeps its own
    record = engine.get("a")
    assert record.payload["project"] == "x"
    engine.patch("a", {"project": "y"})
    assert engine.distinct("project") == {"y": 1, None: 1}
    with pytest.raises(fr.errors.ParameterError, match=r"no field 'payload\.price' to change"):
        engine.patch("a", {"payload.price": 3})


class Odd:
    pass


DEEP: list[Any] = reduce(lambda inner, _: [inner], range(100_000), [])


@pytest.mark.parametrize("value", [DEEP, Odd(), float("nan"), {1: Odd()}, {"a": {1, 2}}])
def test_what_is_no_json(value: Any) -> None:
    engine = fr.Engine(columns={"v": "json"})
    with pytest.raises(fr.errors.RecordError, match="id 'a': column 'v' must be a JSON value"):
        engine.add([fr.Record("a", "tea", payload={"v": value})])
    assert len(engine) == 0


def test_a_failed_write_leaves_no_decoded_value() -> None:
    """Its texts get their numbers back, and other texts take them."""
    engine = fr.Engine(columns={"v": "json"})
    engine.add([fr.Record("a", "tea", payload={"v": "one"})])
    memory = engine.index.memory
    memory.values["v"].add('"taken back"')
    assert engine.count(fr.col("v").like("%")) == 1  # decodes both
    memory.values["v"].truncate(1)
    engine.add([fr.Record("b", "tea", payload={"v": "two"})])
    assert list(engine.ids(fr.col("v").like("t_o"))) == ["b"]
    assert list(engine.ids(fr.col("v").contains("taken"))) == []


def test_equal_values_are_one_in_distinct() -> None:
    values: list[Any] = [1, 1.0, True, "1", [1], [1.0], {"a": [True]}, {"a": [1]}, None, None]
    engine = fr.Engine(columns={"v": "json"})
    engine.add([fr.Record(f"r{n}", "tea", payload={"v": value}) for n, value in enumerate(values)])
    assert engine.distinct("v") == {1: 3, "[1.0]": 2, '{"a":[1]}': 2, None: 2, "1": 1}
    hits = engine.search([fr.Query("tea", collapse="v", k=20)])[0]
    assert [name for name, _ in hits] == ["r0", "r3", "r4", "r6", "r8", "r9"]
    listed = [record.extra.get("v") for record in engine.records(texts=False)]
    assert [(type(one), one) for one in listed] == [(type(one), one) for one in values]


def test_values_that_come_after_a_filter_are_seen() -> None:
    engine = fr.Engine(columns={"v": "json"})
    for number in range(1, 4):
        engine.add([fr.Record(f"r{number}", "tea", payload={"v": f"value {number}"})])
        assert engine.count(fr.col("v").like("value _")) == number
