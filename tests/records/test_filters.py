"""Filter expressions: against plain Python over random records, as JSON, in one canonical form, and every error."""

import enum
import json
import math
import pickle
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders
from support.plain_operators import PLAIN

import fanrank as fr
from fanrank.engine.index.columns import ABSENT, Columns, Schema
from fanrank.engine.index.masks import EVERYTHING, NOTHING, CompiledFilter, compile_filter
from fanrank.engine.records.filters import MAX_DEPTH, And, ColumnComparison, Filter, Not, Or, col, parse_filter
from fanrank.engine.text.vocabulary import Vocabulary

SCHEMA = Schema.of({"project": "category", "priority": "number"})
STRINGS = ["a", "b", "ü"]
NUMBERS = [0.0, 0.25, 0.5, 1.0]
CATEGORIES = ("role", "session", "user", "project")
NUMERIC = ("time", "importance", "priority")


def plain(found: Filter, row: Mapping[str, Any]) -> bool:
    """Whether a record passes, read from the definition."""
    if isinstance(found, And):
        return all(plain(part, row) for part in found.filters)
    if isinstance(found, Or):
        return any(plain(part, row) for part in found.filters)
    if isinstance(found, Not):
        return not plain(found.filter, row)
    assert isinstance(found, ColumnComparison)
    return bool(PLAIN[found.operator](row.get(found.column), found.value))


def vocabularies() -> dict[str, Vocabulary]:
    return {name: Vocabulary() for name in SCHEMA.categories}


def record(number: int, row: Mapping[str, Any]) -> fr.Record:
    extra = {name: row[name] for name in ("project", "priority") if name in row}
    return fr.Record(f"r{number}", "word", extra=extra, **{n: v for n, v in row.items() if n not in extra})


strings = st.sampled_from([*STRINGS, "held by no record", None])
numbers = st.sampled_from([*NUMBERS, -0.0, 0.3, 1, None])
rows = st.lists(
    st.fixed_dictionaries(
        {},
        optional={name: st.sampled_from([*STRINGS, None]) for name in CATEGORIES}
        | {name: st.sampled_from([*NUMBERS, None]) for name in NUMERIC},
    ),
    max_size=12,
)
comparisons = st.one_of(
    st.builds(ColumnComparison, st.sampled_from(CATEGORIES), st.sampled_from(["==", "!="]), strings),
    st.builds(ColumnComparison, st.sampled_from(CATEGORIES), st.sampled_from(["in", "not in"]), st.lists(strings)),
    st.builds(ColumnComparison, st.sampled_from(NUMERIC), st.sampled_from(["==", "!="]), numbers),
    st.builds(ColumnComparison, st.sampled_from(NUMERIC), st.sampled_from(["in", "not in"]), st.lists(numbers)),
    st.builds(
        ColumnComparison,
        st.sampled_from(NUMERIC),
        st.sampled_from(["<", "<=", ">", ">="]),
        st.sampled_from([*NUMBERS, 0.3]),
    ),
)
expressions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds(And, st.lists(inner, max_size=3)), st.builds(Or, st.lists(inner, max_size=3)), st.builds(Not, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(rows, expressions)
def test_every_expression_is_plain_python(found: list[dict[str, Any]], expression: Filter) -> None:
    values = vocabularies()
    columns = Columns.of([record(number, row) for number, row in enumerate(found)], SCHEMA, values)
    expected = [plain(expression, row) for row in found]
    compiled = compile_filter(expression, SCHEMA, values)
    mask = compiled.mask(columns)
    assert (mask.tolist(), mask.dtype) == (expected, np.bool_)
    negated = compile_filter(~expression, SCHEMA, values)
    assert negated.mask(columns).tolist() == [not passes for passes in expected]
    # A caller may write to what it gets.
    mask[:] = ~mask
    assert compiled.mask(columns).tolist() == expected


@settings(max_examples=50)
@given(expressions)
def test_the_json_form_and_the_printed_one_say_the_same(expression: Filter) -> None:
    written = json.dumps(expression.to_dict(), allow_nan=False)
    again = parse_filter(json.loads(written))
    assert again == expression
    assert hash(again) == hash(expression)
    assert pickle.loads(pickle.dumps(expression)) == expression
    names = {"col": col, "And": And, "Or": Or}
    printed = eval(repr(expression), names)
    values = vocabularies()
    for string in STRINGS:
        for column in values.values():
            column.add(string)
    assert compile_filter(printed, SCHEMA, values) == compile_filter(expression, SCHEMA, values)


def test_operators_build_expressions() -> None:
    assert (col("role") == "tool") == ColumnComparison("role", "==", "tool")
    assert (col("role") != None) == ColumnComparison("role", "!=", None)  # noqa: E711
    assert ("tool" == col("role")) == ColumnComparison("role", "==", "tool")  # noqa: SIM300
    assert [col("time") < 1, col("time") <= 1, col("time") > 1, col("time") >= 1] == [
        ColumnComparison("time", name, 1) for name in ("<", "<=", ">", ">=")
    ]
    assert (np.float64(0.5) < col("time")) == ColumnComparison("time", ">", 0.5)
    assert (0.5 >= col("time")) == ColumnComparison("time", "<=", 0.5)  # noqa: SIM300
    assert col("role").isin(name for name in ["a", None]) == ColumnComparison("role", "in", ("a", None))
    assert col("role").not_in({"a"}) == ColumnComparison("role", "not in", ("a",))
    assert col("time").between(1, 2) == And((col("time") >= 1, col("time") <= 2))
    one, two, three = (col("role") == name for name in "abc")
    assert (one & two) & three == one & (two & three) == And((one, two, three))
    assert (one | two) | three == one | (two | three) == Or((one, two, three))
    assert one & two != one | two
    assert ~one == Not(one)
    assert len({one, col("role") == "a", two, ~one, ~~one}) == 4
    assert repr((one & ~two) | col("time").isin([1, None])) == (
        "((col('role') == 'a') & ~(col('role') == 'b')) | col('time').isin([1, None])"
    )
    chain = one
    for number in range(1000):
        chain = chain & (col("time") != number)
    assert chain.depth == 2


class Role(str, enum.Enum):
    TOOL = "tool"


def test_values_become_pythons_own() -> None:
    made = ColumnComparison("time", "in", np.array([1, 2], dtype=np.int32))  # type: ignore[arg-type]
    assert [type(value) for value in made.value or ()] == [int, int]  # type: ignore[union-attr]
    assert type((col("time") == np.float32(0.5)).value) is float
    assert type((col("role") == np.str_("a")).value) is str
    assert repr(col("role") == Role.TOOL) == "col('role') == 'tool'"
    values = vocabularies()
    columns = Columns.of([fr.Record("0", "", role=Role.TOOL), fr.Record("1", "", role="tool")], SCHEMA, values)
    assert values["role"].strings == ["tool"]
    for wanted in (Role.TOOL, "tool"):
        assert compile_filter(col("role") == wanted, SCHEMA, values).mask(columns).tolist() == [True, True]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (None, None),
        ({}, None),
        ({"session": "s"}, col("session") == "s"),
        ({"session": None}, col("session") == None),  # noqa: E711
        ({"session": ["s", None]}, col("session").isin(["s", None])),
        ({"session": []}, col("session").isin([])),
        ({"importance": {">=": 0.5, "<": 0.9}}, (col("importance") >= 0.5) & (col("importance") < 0.9)),
        ({"role": {"!=": "tool"}}, col("role") != "tool"),
        ({"role": {"in": ["a"]}}, col("role").isin(["a"])),
        ({"role": {"not in": ["a"]}}, col("role").not_in(["a"])),
        ({"role": "a", "time": {">": 1}}, (col("role") == "a") & (col("time") > 1)),
        ({"and": [{"role": "a"}, {"time": 1}]}, And((col("role") == "a", col("time") == 1))),
        ({"or": [{"role": "a", "time": 1}]}, Or((And((col("role") == "a", col("time") == 1)),))),
        ({"not": {"role": "a"}, "time": 1}, ~(col("role") == "a") & (col("time") == 1)),
        ({"and": []}, And(())),
        ({"or": [], "not": {}}, And((Or(()), Not(And(()))))),
        ({"or": [col("role") == "a"]}, Or((col("role") == "a",))),
        (MappingProxyType({"role": "a"}), col("role") == "a"),
        (col("role") == "a", col("role") == "a"),
    ],
)
def test_parse(form: Any, expected: Filter | None) -> None:
    assert parse_filter(form) == expected
    query = fr.Query("x", filter=form)
    assert query.filter == expected
    assert hash(query) == hash(fr.Query("x", filter=form))


def test_what_can_be_read_once_is_kept() -> None:
    once = parse_filter({"role": (name for name in ["a", "b"]), "or": ({"time": n} for n in [1, 2])})
    assert once == And((col("role").isin(["a", "b"]), Or((col("time") == 1, col("time") == 2))))
    assert once.to_dict() == once.to_dict()


def compiled(wanted: Any) -> CompiledFilter:
    values = vocabularies()
    for name in ("s", "t"):
        values["session"].add(name)
    values["role"].add("user")
    return compile_filter(parse_filter(wanted), SCHEMA, values)


s, t, user, old = col("session") == "s", col("session") == "t", col("role") == "user", col("time") < 5


@pytest.mark.parametrize(
    "same",
    [
        [
            None,
            {},
            And(()),
            ~Or(()),
            col("role").not_in([]),
            col("role") != "nobody",
            s | And(()),
            col("time").not_in([]),
        ],
        [Or(()), ~And(()), col("role").isin([]), col("role") == "nobody", s & Or(()), {"time": []}],
        [{"session": "t"}, {"session": ["t"]}, ["t", "t", "nobody"], ~(col("session") != "t"), ~~t, And((t,)), t | t],
        [{"session": ["t", "s", "t"]}, col("session").isin(("s", "t")), ~col("session").not_in(["t", "s"])],
        [{"session": None}, {"session": [None]}, ~(col("session") != None)],  # noqa: E711
        [s & user & old, old & (user & s), And((And((old,)), s, And((user, s)))), ~(~s | ~user | ~old)],
        [s | user | old, old | (user | s), ~(~s & ~user & ~old), Or((s, Or((user, Or((old, s))))))],
        [~old, Not(And((old,))), ~~~old],
        [{"time": 0}, {"time": -0.0}, {"time": [0, 0.0]}],
        [{"time": {"<": 0}}, {"time": {"<": -0.0}}],
    ],
)
def test_one_form(same: list[Any]) -> None:
    forms = [compiled({"session": wanted} if isinstance(wanted, list) else wanted) for wanted in same]
    assert {*forms} == {forms[0]}
    assert len({repr(form) for form in forms}) == 1
    if EVERYTHING in forms or NOTHING in forms:
        assert all(form is forms[0] for form in forms)


def test_other_meanings_have_other_forms() -> None:
    different = [None, Or(()), s, t, s | t, s & user, s | user, ~s, old, ~old, col("time") >= 5, col("time") == 5]
    different += [{"session": None}, {"session": ["s", None]}, {"role": None}, {"time": None}, {"time": [5, None]}]
    assert len({compiled(wanted) for wanted in different}) == len(different)


def test_large_columns_are_looked_up_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"masks._CHUNK": 7})
    values = vocabularies()
    for number in range(10):
        values["session"].add(str(number))
    codes = np.random.default_rng(3).integers(ABSENT, 10, 100).astype(np.int32)
    columns = Columns(len(codes), {"session": codes}, {})
    for wanted in (["3", "5"], ["0", None], ["9", "0"], [None], ["2"]):
        expected = [(None if code == ABSENT else str(code)) in wanted for code in codes.tolist()]
        form = compile_filter(col("session").isin(wanted), SCHEMA, values)
        assert form.mask(columns).tolist() == expected
        form = compile_filter(col("session").not_in(wanted), SCHEMA, values)
        assert form.mask(columns).tolist() == [not passes for passes in expected]


class Unhashable:
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("role", "must map columns to values"),
        ([{"role": "a"}], "must map columns to values"),
        (5, "must map columns to values"),
        (col("role"), "must map columns to values"),
        ({"": "a"}, "must be a non-empty string"),
        ({3: "a"}, "must be a non-empty string"),
        ({"role": {}}, "no comparison; give one of =="),
        ({"role": {"~": "a"}}, "unknown operator '~'; there are: =="),
        ({"role": {5: "a"}}, "unknown operator 5"),
        ({"role": {"==": ["a"]}}, "'==' takes one value, not list; for several"),
        ({"time": {"<": [1]}}, "'<' takes one value"),
        ({"role": {"in": "abc"}}, "'in' takes a list of values, not 'abc'"),
        ({"role": {"not in": None}}, "'not in' takes a list of values"),
        ({"role": {"in": {"a": 1}}}, "'in' takes a list of values"),
        ({"role": {"==": {"a": 1}}}, "must be a string, a number, true, false or None"),
        ({"role": b"a"}, "must be a string, a number, true, false or None"),
        ({"role": Unhashable()}, "must be a string, a number, true, false or None"),
        ({"role": [["a"]]}, "must be a string, a number, true, false or None"),
        ({"time": True}, "must be a string, a number, true, false or None"),
        ({"time": [np.True_]}, "must be a string, a number, true, false or None"),
        ({"time": math.nan}, "must be finite"),
        ({"time": {"<": math.inf}}, "must be finite"),
        ({"time": 10**400}, "beyond float64"),
        ({"time": {"<": None}}, "'<' compares numbers or strings, not None"),
        ({"time": {">=": "5"}}, "'>=' compares numbers or strings, not '5'"),
        ({"and": {"role": "a"}}, "'and' takes a list of filters, not dict"),
        ({"or": "role"}, "'or' takes a list of filters, not str"),
        ({"and": None}, "'and' takes a list of filters"),
        ({"and": [None]}, "must map columns to values"),
        ({"not": [{"role": "a"}]}, "must map columns to values"),
        ({"not": None}, "must map columns to values"),
    ],
)
def test_malformed(form: Any, message: str) -> None:
    with pytest.raises(fr.errors.QueryError, match="filter") as caught:
        parse_filter(form)
    assert message in str(caught.value)
    with pytest.raises(fr.errors.QueryError):
        fr.Query("x", filter=form)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: bool(s), "combine filters with & | ~"),
        (lambda: s and t, "combine filters with & | ~"),
        (lambda: not (s | t), "combine filters with & | ~"),
        (lambda: 1 < col("time") < 5, "between"),
        (lambda: col("time") and s, "alone is no filter"),
        (lambda: (col("role") == "a") & col("role"), "brackets around each comparison"),
        (lambda: col("role") == "a" & col("time") == 5, "brackets around each comparison"),
        (lambda: ~col("role") == "a", "brackets around each comparison"),
        (lambda: col("role") == col("session"), "must be a string, a number, true, false or None"),
        (lambda: col(""), "non-empty string"),
        (lambda: col(5), "non-empty string"),  # type: ignore[arg-type]
        (lambda: col("and"), "it joins filters"),
        (lambda: col("role") == ["a"], "takes one value"),
        (lambda: col("time") < "a", "compares numbers"),  # type: ignore[operator]
        (lambda: col("time").between(1, None), "compares numbers or strings, not None"),  # type: ignore[arg-type]
        (lambda: col("role").isin("abc"), "takes a list of values"),
        (lambda: And(s), "And takes a list of filters"),  # type: ignore[arg-type]
        (lambda: Or(5), "Or takes a list of filters"),  # type: ignore[arg-type]
        (lambda: Or(("role",)), "must be a comparison"),  # type: ignore[arg-type]
        (lambda: Not({"role": "a"}), "must be a comparison"),  # type: ignore[arg-type]
    ],
)
def test_misused_expressions(build: Callable[[], object], message: str) -> None:
    with pytest.raises(fr.errors.QueryError) as caught:
        build()
    assert message in str(caught.value)


def test_columns_have_no_hash_and_other_operands_are_pythons_error() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(col("role"))
    with pytest.raises(TypeError, match="unsupported operand"):
        s & True  # type: ignore[operator]
    with pytest.raises(TypeError, match="unsupported operand"):
        s | {"role": "a"}  # type: ignore[operator]


def test_depth() -> None:
    deep: Any = {"role": "a"}
    for _ in range(MAX_DEPTH - 1):
        deep = {"not": deep}
    assert parse_filter(deep).to_dict() == deep  # type: ignore[union-attr]
    assert parse_filter(parse_filter(deep).to_dict()) == parse_filter(deep)  # type: ignore[union-attr]
    itself: dict[str, Any] = {}
    itself["and"] = [itself]
    for form in ({"not": deep}, {"or": [deep]}, itself):
        with pytest.raises(fr.errors.QueryError, match="nested more than 50 deep"):
            parse_filter(form)
    with pytest.raises(fr.errors.QueryError, match="nested more than 50 deep"):
        ~parse_filter(deep)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            col("mood") == "glad",
            "no column 'mood' to filter on; there are: role, session, user, agent, tool, type, project",
        ),
        (Or((And(()), ~(col("mood") < 5))), "no column 'mood'"),
        (Or(()) & (col("text") == "x"), "no column 'text'"),
        (col("role") < 5, "'<' 5 compares no strings, and 'role' holds strings; use one of =="),
        (col("project") >= 5, "'>=' 5 compares no strings, and 'project' holds strings"),
        (col("role") == 5, "a value must be a string or None, not 5"),
        (col("role").isin(["a", 0.5]), "a value must be a string or None, not 0.5"),
        (col("time") == "noon", "a value must be a number or None, not 'noon'"),
        (col("priority").not_in([None, "1"]), "a value must be a number or None, not '1'"),
    ],
)
def test_what_only_the_engine_can_judge(wanted: Filter, message: str) -> None:
    assert fr.Query("x", filter=wanted).filter == wanted
    with pytest.raises(fr.errors.QueryError) as caught:
        compiled(wanted)
    assert message in str(caught.value)
