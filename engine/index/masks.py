"""Filters compiled to the category codes of an engine, which turn columns into masks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ..errors import QueryError, UnknownColumnError
from ..records.filters import And, ColumnComparison, Filter, Junction, Not
from ..records.values import FLOATS, ORDERINGS, Whole, hashable, json_values, make_test, texts_equal_to

if TYPE_CHECKING:
    from ..text.vocabulary import Vocabulary
    from .columns import Columns, Schema


class CompiledFilter:
    """A filter with category values replaced by their codes in the engine's vocabularies. It is hashable, and in one
    canonical form.
    """

    kept = True
    """Whether segments keep its masks."""

    def mask(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """Which documents pass, bool [columns.size]: a new array."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Among(CompiledFilter):
    """Whether the value is among `values`, which are category codes or numbers; the opposite where not `inside`."""

    column: str
    values: tuple[float, ...]  # ascending, distinct
    absent: bool  # whether a document without a value counts as among them
    inside: bool

    def mask(self, columns: Columns) -> npt.NDArray[np.bool_]:
        if self.column in columns.categories:
            return self._mask_categories(columns.categories[self.column])
        if self.column in columns.numbers:
            return self._mask_numbers(columns.numbers[self.column])
        return np.full(columns.size, self.absent == self.inside, dtype=np.bool_)

    def _mask_categories(self, codes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        # For 5,000,000 codes one comparison takes 1 ms, each further one 1 to 2 ms, a table 5 ms, np.isin 5 to 50 ms.
        if not self.values:
            return _as_mask(codes < 0 if self.inside else codes >= 0)
        if len(self.values) == 1 and not self.absent:
            return _as_mask(codes == self.values[0] if self.inside else codes != self.values[0])
        # Entry 0 is for no value (`ABSENT`, -1), entry c + 1 for code c. By "clip" the last entry is for all codes
        # beyond. Without the shift by 1, ABSENT would be a negative index: also right, but three times as slow where
        # codes and ABSENT alternate.
        table = np.full(int(self.values[-1]) + 3, not self.inside)
        table[np.array(self.values, dtype=np.int64) + 1] = self.inside
        table[0] = self.absent == self.inside
        mask = np.empty(len(codes), dtype=np.bool_)
        for start in range(0, len(codes), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            np.take(table, codes[chunk] + np.int32(1), out=mask[chunk], mode="clip")
        return mask

    def _mask_numbers(self, numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        single = len(self.values) == 1
        mask = _as_mask(numbers == self.values[0]) if single else np.isin(numbers, np.array(self.values))
        if self.absent:
            mask |= np.isnan(numbers)
        return mask if self.inside else np.logical_not(mask, out=mask)


def _as_mask(mask: Any) -> npt.NDArray[np.bool_]:
    """The result of an array comparison, typed for the type checker."""
    return np.asarray(mask)


_CHUNK = 1 << 18
"""Codes looked up at a time. `np.take` widens them to 8 bytes; this many stay in the cache, which halves the time."""


@dataclass(frozen=True)
class _Ordering(CompiledFilter):
    """Whether the number compares with `value` by `operator`, which NaN never does; the opposite where not `inside`."""

    column: str
    operator: str
    value: float
    inside: bool

    def mask(self, columns: Columns) -> npt.NDArray[np.bool_]:
        if self.column not in columns.numbers:
            return np.full(columns.size, not self.inside, dtype=np.bool_)
        mask = _as_mask(ORDERINGS[self.operator](columns.numbers[self.column], self.value))
        return mask if self.inside else np.logical_not(mask, out=mask)


@dataclass(frozen=True)
class _All(CompiledFilter):
    parts: tuple[CompiledFilter, ...] = field(default=())

    def mask(self, columns: Columns) -> npt.NDArray[np.bool_]:
        if not self.parts:
            return np.ones(columns.size, dtype=np.bool_)
        mask = self.parts[0].mask(columns)
        for part in self.parts[1:]:
            mask &= part.mask(columns)
        return mask


@dataclass(frozen=True)
class _Any(CompiledFilter):
    parts: tuple[CompiledFilter, ...] = field(default=())

    def mask(self, columns: Columns) -> npt.NDArray[np.bool_]:
        if not self.parts:
            return np.zeros(columns.size, dtype=np.bool_)
        mask = self.parts[0].mask(columns)
        for part in self.parts[1:]:
            mask |= part.mask(columns)
        return mask


EVERYTHING: CompiledFilter = _All()


NOTHING: CompiledFilter = _Any()


def compile_filter(filter: Filter | None, schema: Schema, values: Mapping[str, Vocabulary]) -> CompiledFilter:
    """The filter in codes. Its form is canonical, so that a batch shares the masks of equal filters.

    It is the object `EVERYTHING` for None and for a filter that no document can fail. A category value that no record
    has matches nothing. Raises `UnknownColumnError`, and `QueryError` for a comparison that does not suit the column's
    kind.
    """
    return EVERYTHING if filter is None else _compile(filter, True, schema, values)


def unknown_column(problem: str, name: str, schema: Schema, *given: str) -> UnknownColumnError:
    """The error for a name of a query that is none of the columns, nor `given`. `Storage.declare` may make it one."""
    first = f"columns={{{name!r}: 'json'}}, `--column {name}:json`"
    later = f"add_column({name!r}, 'json'), `fanrank columns MEMORY --add {name}:json`"
    advice = f"Declare it where the index is made ({first}), or later, where the records are kept ({later})"
    return UnknownColumnError(problem, (name,), (*given, *schema.names), advice)


def _compile(filter: Filter, inside: bool, schema: Schema, values: Mapping[str, Vocabulary]) -> CompiledFilter:
    """`filter`, or its negation where not `inside`. Negations move into the comparisons (De Morgan)."""
    if isinstance(filter, Not):
        return _compile(filter.filter, not inside, schema, values)
    if isinstance(filter, Junction):
        parts = [_compile(part, inside, schema, values) for part in filter.filters]
        return _join_parts(isinstance(filter, And) == inside, parts)
    assert isinstance(filter, ColumnComparison)
    return _compile_comparison(filter, inside, schema, values)


def _compile_comparison(
    filter: ColumnComparison, inside: bool, schema: Schema, values: Mapping[str, Vocabulary]
) -> CompiledFilter:
    name, of_numbers = filter.column, filter.column in schema.numbers
    if not of_numbers and name not in schema.categories:
        raise unknown_column(f"no column {name!r} to filter on", name, schema)
    if filter.operator not in ("==", "!=", "in", "not in"):
        return _compile_test(filter, inside, schema, values)
    if filter.operator in ("!=", "not in"):
        inside = not inside
    options: Sequence[Any] = filter.value if isinstance(filter.value, tuple) else (filter.value,)
    of_json = name in schema.json
    members: set[float] = set()
    for option in options:
        if option is None:
            continue
        if of_json:
            members |= {code for text in texts_equal_to(option) if (code := values[name].ids.get(text)) is not None}
            continue
        if isinstance(option, bool) or isinstance(option, str) is of_numbers:
            kind = "number" if of_numbers else "string"
            raise QueryError(f"filter on {name!r}: a value must be a {kind} or None, not {option!r}")
        if isinstance(option, str):
            code = values[name].ids.get(option)
            if code is not None:
                members.add(code)
        else:
            members.add(float(option) + 0.0)  # turns -0.0 into 0.0, so that equal filters print and sort alike
    absent = None in options
    if not members and not absent:
        return NOTHING if inside else EVERYTHING
    return _Among(name, tuple(sorted(members)), absent, inside)


def _compile_test(
    filter: ColumnComparison, inside: bool, schema: Schema, values: Mapping[str, Vocabulary]
) -> CompiledFilter:
    """As `_compile_comparison`, for any operator but those of equality."""
    name, operator = filter.column, filter.operator
    if name in schema.numbers:
        operator = operator.removeprefix("float ")
        if operator not in ORDERINGS or isinstance(filter.value, (str, bool)):
            raise QueryError(
                f"filter on {name!r}: {filter.operator!r} {_shown(filter.value)} compares no numbers, and {name!r} "
                "holds numbers; use one of ==, !=, in, not in, <, <=, >, >= with a number"
            )
        return _Ordering(name, operator, float(filter.value) + 0.0, inside)  # type: ignore[arg-type]
    of_json = name in schema.json
    if not of_json and (operator in FLOATS or not _takes_strings(filter.value)):
        raise QueryError(
            f"filter on {name!r}: {operator!r} {_shown(filter.value)} compares no strings, and {name!r} holds "
            "strings; use one of ==, !=, in, not in, or compare with a string"
        )
    # Decided once for each value, then looked up by code.
    test = make_test(operator, filter.value)
    candidates = _decoded(values[name]) if of_json else values[name].strings
    codes = tuple(code for code, value in enumerate(candidates) if test(value))
    if not codes:
        return NOTHING if inside else EVERYTHING
    return _Among(name, codes, False, inside)


def _shown(value: object) -> str:
    return repr(value.value if isinstance(value, Whole) else list(value) if isinstance(value, tuple) else value)


def _takes_strings(value: object) -> bool:
    if isinstance(value, Whole):
        value = value.value
    return all(isinstance(one, str) for one in value) if isinstance(value, tuple) else isinstance(value, str)


_known_values: WeakKeyDictionary[Vocabulary, tuple[list[str], list[Any]]] = WeakKeyDictionary()


def _decoded(vocabulary: Vocabulary) -> list[Any]:
    """The JSON values of a column's vocabulary, by code. Those that were decoded before are kept with their texts."""
    # A copy: a write may add strings meanwhile.
    strings = vocabulary.strings[:]
    texts, decoded = _known_values.get(vocabulary, ([], []))
    # A write that failed takes its strings back, and others may get their codes. Comparing 50,000 texts that are the
    # same objects takes 0.1 ms, decoding them 3 (numbers, strings) to 30 (objects).
    if strings[: len(texts)] != texts:
        texts, decoded = [], []
    if len(strings) > len(texts):
        decoded = decoded + json_values(strings[len(texts) :])
        _known_values[vocabulary] = strings, decoded
    return decoded


_known_firsts: WeakKeyDictionary[Vocabulary, tuple[list[Any], npt.NDArray[np.int64]]] = WeakKeyDictionary()


def first_codes(vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """By code of a column of JSON values, the first code of an equal value: 1, 1.0 and True are equal."""
    values = _decoded(vocabulary)
    known = _known_firsts.get(vocabulary)
    if known is None or known[0] is not values:
        first: dict[Any, int] = {}
        codes = [first.setdefault(hashable(value), code) for code, value in enumerate(values)]
        known = _known_firsts[vocabulary] = values, np.array(codes, dtype=np.int64)
    return known[1]


def both(first: CompiledFilter, second: CompiledFilter) -> CompiledFilter:
    """Passes what both pass."""
    return _join_parts(True, (first, second))


def _join_parts(every: bool, parts: Iterable[CompiledFilter]) -> CompiledFilter:
    """The conjunction of `parts` (`every`) or their disjunction: without nesting, each part once, in one order."""
    kind, neutral, absorbing = (_All, EVERYTHING, NOTHING) if every else (_Any, NOTHING, EVERYTHING)
    # The neutral filter has no parts, so it disappears here.
    flat = {inner for part in parts for inner in (part.parts if isinstance(part, kind) else (part,))}
    if absorbing in flat:
        return absorbing
    distinct = sorted(flat, key=repr)
    if len(distinct) == 1:
        return distinct[0]
    return kind(tuple(distinct)) if distinct else neutral
