"""JSON values: how columns of kind ``json`` hold them, and how filters compare them.

Values compare as in Python: 1, 1.0 and True are equal, lists and objects are equal where their parts are. Strings have
an order among strings, numbers (True is 1) among numbers. All other pairs have none, and match no ordering.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..moments import read_moment

ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MEMBERSHIPS = ("contains", "icontains")
"""A substring of a string, a member of a list or a key of an object; the second ignores upper and lower case."""
SEVERAL = ("any", "all")
"""``contains`` of one, or of each, of several values."""
PATTERNS = ("like", "ilike")
"""As in SQL: ``%`` is any text, ``_`` any character, a backslash takes the next character as it is."""
WHOLE = ("equals", "matches")
"""The whole value, which may be a list or an object. ``matches``: objects may have further keys, at any depth."""
FLOATS = tuple(f"float {name}" for name in ORDERINGS)
"""Orderings of what Python's ``float`` makes of a value: text such as ``"5"`` counts as a number."""
DATES = ("date ==", *(f"date {name}" for name in ORDERINGS))
"""Comparisons of ISO 8601 text as points in time. Where one of two names no time zone, it is in that of the other."""

_ESCAPE = "\\"
_NUMBERS = (int, float)


def _to_plain(value: object) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


_JSON = json.JSONEncoder(allow_nan=False, sort_keys=True, separators=(",", ":"), default=_to_plain)


def json_text(value: object) -> str:
    """The canonical JSON of a value, in ASCII: keys are sorted. Raises `ValueError` for what JSON cannot hold."""
    try:
        return _JSON.encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ValueError(str(error) or type(error).__name__) from None


def json_values(texts: Sequence[str]) -> list[Any]:
    """The values of these JSON texts. One call for all takes an eighth (objects) to a fortieth (numbers) of
    the time of one call for each."""
    values: list[Any] = json.loads(f"[{','.join(texts)}]")
    return values


def texts_equal_to(value: str | float) -> set[str]:
    """The canonical JSON of every value that equals this string or number."""
    if isinstance(value, str):
        return {json_text(value)}
    texts = {json_text(int(value))} if value == math.floor(value) else set()
    if float(value) == value:
        texts.add(json_text(float(value)))
    if value in (0, 1):
        texts |= {"true"} if value else {"false", "0.0", "-0.0"}
    return texts


def hashable(value: Any) -> Any:
    """A key for this value in dictionaries: two keys are equal where the values are."""
    if isinstance(value, list):
        return ("list", *map(hashable, value))
    if isinstance(value, dict):
        return ("object", frozenset((key, hashable(inner)) for key, inner in value.items()))
    return value


@dataclass(frozen=True)
class Whole:
    """A JSON value as the operand of ``equals`` or ``matches``: immutable and hashable, as filters are."""

    text: str

    @property
    def value(self) -> Any:
        return json.loads(self.text)


def make_test(operator: str, wanted: Any) -> Callable[[Any], bool]:
    """The comparison of a JSON value other than None with `wanted`; any operator but those of equality."""
    if operator in ORDERINGS:
        return _ordering(ORDERINGS[operator], wanted)
    if operator == "contains":
        return lambda value: _contains(value, wanted)
    if operator == "icontains":
        return _icontains(wanted)
    if operator == "any":
        return lambda value: any(_contains(value, one) for one in wanted)
    if operator == "all":
        return lambda value: all(_contains(value, one) for one in wanted)
    if operator in PATTERNS:
        return _like(wanted, operator == "ilike")
    if operator == "equals":
        whole = wanted.value
        return lambda value: bool(value == whole)
    if operator == "matches":
        pattern = wanted.value
        return lambda value: _matches(value, pattern)
    kind, _, comparison = operator.partition(" ")
    if kind == "float":
        return _float(ORDERINGS[comparison], wanted)
    return _date({**ORDERINGS, "==": _equal}[comparison], wanted)


def _equal(one: object, other: object) -> bool:
    return one == other


def _ordering(compare: Callable[[Any, Any], bool], wanted: str | float) -> Callable[[Any], bool]:
    kinds: Any = str if isinstance(wanted, str) else _NUMBERS
    return lambda value: isinstance(value, kinds) and compare(value, wanted)


def _contains(value: Any, wanted: Any) -> bool:
    if isinstance(value, list):
        return wanted in value
    return isinstance(value, (str, dict)) and isinstance(wanted, str) and wanted in value


def _icontains(wanted: Any) -> Callable[[Any], bool]:
    if not isinstance(wanted, str):
        return lambda value: isinstance(value, list) and wanted in value
    lowered = wanted.lower()

    def test(value: Any) -> bool:
        if isinstance(value, str):
            return lowered in value.lower()
        inner: Iterable[Any] = value if isinstance(value, (list, dict)) else ()
        return any(isinstance(one, str) and one.lower() == lowered for one in inner)

    return test


def _matches(value: Any, pattern: Any) -> bool:
    if isinstance(pattern, dict):
        return isinstance(value, dict) and all(_matches(value.get(key), inner) for key, inner in pattern.items())
    if isinstance(pattern, list):
        if not isinstance(value, list) or len(value) != len(pattern):
            return False
        return all(_matches(one, inner) for one, inner in zip(value, pattern, strict=True))
    return bool(value == pattern)


# A character of a pattern, or None for any character.
_Piece = list[str | None]


def _like(pattern: str, ignores_case: bool) -> Callable[[Any], bool]:
    """A pattern's pieces between ``%`` are found from left to right. So the time is at most text times pattern, where
    a regular expression may need a power of it.
    """
    if ignores_case:
        pattern = pattern.lower()
    pieces: list[_Piece] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == "%":
            pieces.append([])
        else:
            literal = next(characters, _ESCAPE) if character == _ESCAPE else character
            pieces[-1].append(None if character == "_" else literal)

    def test(value: Any) -> bool:
        if not isinstance(value, str):
            return False
        text = value.lower() if ignores_case else value
        first, *between = pieces
        if not between:
            return len(text) == len(first) and _is_at(text, 0, first)
        *between, last = between
        end = len(text) - len(last)
        place = len(first)
        if end < place or not _is_at(text, 0, first) or not _is_at(text, end, last):
            return False
        for piece in between:
            found = _find(text, piece, place, end)
            if found is None:
                return False
            place = found + len(piece)
        return True

    return test


def _is_at(text: str, place: int, piece: _Piece) -> bool:
    return all(wanted is None or text[place + n] == wanted for n, wanted in enumerate(piece))


def _find(text: str, piece: _Piece, start: int, end: int) -> int | None:
    """The first place of the piece in ``text[start:end]``."""
    if None not in piece:
        place = text.find("".join(part for part in piece if part is not None), start, end)
        return None if place < 0 else place
    places = range(start, end - len(piece) + 1)
    return next((place for place in places if _is_at(text, place, piece)), None)


def _float(compare: Callable[[Any, Any], bool], wanted: float) -> Callable[[Any], bool]:
    def test(value: Any) -> bool:
        try:
            return compare(float(value), wanted)
        except (TypeError, ValueError, OverflowError):
            return False

    return test


def _date(compare: Callable[[Any, Any], bool], wanted: str) -> Callable[[Any], bool]:
    own = read_moment(wanted)

    def test(value: Any) -> bool:
        if not isinstance(value, str):
            return False
        try:
            moment = read_moment(value)
        except ValueError:
            return False
        return compare(*_in_one_zone(moment, own))

    return test


def _in_one_zone(one: dt.datetime, other: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    if one.tzinfo is None:
        return one.replace(tzinfo=other.tzinfo), other
    return one, other.replace(tzinfo=one.tzinfo) if other.tzinfo is None else other
