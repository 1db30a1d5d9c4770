"""Columns of any JSON value: every operator against plain Python, however the values came and went."""

from __future__ import annotations

import random
from functools import reduce
from typing import Any

import pytest
from support.plain_operators import PLAIN

import fanrank as fr
from fanrank.engine.index.columns import Columns, Schema, value_in
from fanrank.engine.index.masks import compile_filter
from fanrank.engine.records.filters import OPERATORS, ColumnComparison, Filter, parse_filter
from fanrank.engine.text.vocabulary import Vocabulary

VALUES: list[Any] = [
    *("", "a", "A", "ab", "5", "1", "true", "null", '"a"', "[1]", "\ud800", "ü"),
    *("2024-01-01", "2024-01-01T02:00+02:00"),
    *(0, 0.0, -0.0, 1, 1.0, True, False, 5, 2.5, 1e22, 10**22, 2**53, 2**53 + 1, 0.1, -7),
    *([], ["a"], ["A", 1], [True], [[1]], {}, {"a": 1}, {"a": {"b": [1, 2]}}, {"a": 1.0, "z": None}, None),
]
STRINGS = ["", "a", "A", "ab", "5", "ü", "nobody"]
NUMBERS = [0, -0.0, 1, 2.5, 5, 2**53 + 1, 1e22, True, -7]


def some(draw: random.Random) -> tuple[str, Any]:
    operator = draw.choice([*PLAIN])
    if operator in ("like", "ilike"):
        return operator, "".join(draw.choices(["%", "_", "a", "A", "b", "\\", "ü"], k=draw.randint(0, 4)))
    if operator in ("equals", "matches"):
        return operator, draw.choice([value for value in VALUES if value is not None])
    if operator in ("in", "not in"):
        return operator, draw.sample([*STRINGS, *NUMBERS, None], draw.randint(0, 3))
    if operator in ("any", "all"):
        return operator, draw.sample([*STRINGS, *NUMBERS], draw.randint(0, 3))
    if operator in ("==", "!="):
        return operator, draw.choice([*STRINGS, *NUMBERS, None])
    return operator, draw.choice([*STRINGS, *NUMBERS])


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
