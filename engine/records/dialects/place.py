"""`Place`: where in another library's filter a reader stands, for its errors and its limit of depth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import QueryError
from ..filters import MAX_DEPTH, PAYLOAD, And, ColumnComparison, Filter, Or

NEVER: Filter = Or(())
ALWAYS: Filter = And(())


class Place:
    """A part of a filter, reached by keys and numbers from the whole. `payload` is as in `parse_filter`."""

    def __init__(self, dialect: str, path: str = "filter", depth: int = 1, *, payload: bool = False) -> None:
        self._dialect = dialect
        self._path = path
        self._depth = depth
        self._payload = payload

    def inner(self, step: object) -> Place:
        """The part below this key or number. Raises `QueryError` where the filter is nested too deeply."""
        if self._depth >= 2 * MAX_DEPTH:
            raise self.error(f"it is nested more than {MAX_DEPTH} deep")
        shown = repr(step)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return Place(self._dialect, f"{self._path}[{shown}]", self._depth + 1, payload=self._payload)

    def error(self, what: str) -> QueryError:
        path = self._path if len(self._path) <= 200 else f"{self._path[:60]}...{self._path[-137:]}"
        return QueryError(f"{self._dialect}: {path}: {what}")

    def compare(self, key: object, operator: str, value: Any) -> Filter:
        """A comparison with the column that `key` names. Raises `QueryError`."""
        if not isinstance(key, str) or not key:
            raise self.error(f"a key must be a non-empty string, not {key!r}")
        try:
            return ColumnComparison(PAYLOAD + key if self._payload else key, operator, value)
        except QueryError as error:
            raise self.error(str(error)) from None

    def equality(self, key: object, value: Any) -> Filter:
        """The value is this one, which may be a list or an object; None is a missing value."""
        whole = isinstance(value, (list, tuple, Mapping))
        return self.compare(key, "equals" if whole else "==", value)

    def among(self, key: object, values: Sequence[Any]) -> Filter:
        """The value is one of these, each as in `equality`."""
        single = [value for value in values if not isinstance(value, (list, tuple, Mapping))]
        wholes = [value for value in values if isinstance(value, (list, tuple, Mapping))]
        among = self.compare(key, "in", single)
        return self.either([among, *(self.equality(key, value) for value in wholes)]) if wholes else among

    def both(self, filters: Iterable[Filter]) -> Filter:
        """The conjunction. Raises `QueryError` where the filter is nested too deeply, as `either` and `negate` do."""
        parts = tuple(filters)
        return parts[0] if len(parts) == 1 else self._made(lambda: And(parts))

    def either(self, filters: Iterable[Filter]) -> Filter:
        parts = tuple(filters)
        return parts[0] if len(parts) == 1 else self._made(lambda: Or(parts))

    def negate(self, filter: Filter) -> Filter:
        return self._made(lambda: ~filter)

    def _made(self, make: Any) -> Filter:
        try:
            made: Filter = make()
        except QueryError as error:
            raise self.error(str(error)) from None
        return made

    def a_list(self, value: object) -> Sequence[Any]:
        """The value, if it is a list. Raises `QueryError`."""
        if not isinstance(value, (list, tuple)):
            raise self.error(f"must be a list, not {type(value).__name__}")
        return value

    def a_mapping(self, value: object) -> Mapping[Any, Any]:
        """The value, if it is an object of the library's JSON. Raises `QueryError`."""
        if not isinstance(value, Mapping):
            raise self.error(f"must be a mapping, not {type(value).__name__}")
        return value


def part_of(spec: object, name: str, default: object = None) -> Any:
    """A field of a mapping, or of an object of the library with such an attribute."""
    return spec.get(name, default) if isinstance(spec, Mapping) else getattr(spec, name, default)


def word_of(value: object) -> object:
    """The word that an enumeration stands for."""
    return getattr(value, "value", value)
