"""A caller's batch as `Query` objects, with the fields that a search sets for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter, is_
from typing import Any

from ..errors import QueryError, RecordError
from ..records.filters import parse_filter
from ..records.query import SCORED, SPACES, Query

ONE = str, Query, Mapping
"""What is one query, and no batch."""
AnyQuery = str | Query | Sequence[str] | Mapping[str, Any]
AnyBatch = AnyQuery | Sequence[AnyQuery]
"""A batch, or one query that is a text, a `Query` or a mapping."""


def as_queries(queries: AnyBatch, verb: str, defaults: Mapping[str, Any] = {}) -> tuple[Query, ...]:
    """The queries of a batch. Those that are mappings get `defaults`. Raises `QueryError`."""
    if isinstance(queries, ONE):
        queries = [queries]
    if not isinstance(queries, Iterable):
        raise QueryError(f"{verb} takes queries: pass a text, a Query or a list of them, not {type(queries).__name__}")
    return tuple([as_query(query, position, defaults) for position, query in enumerate(queries)])


def as_query(query: AnyQuery, position: int, defaults: Mapping[str, Any] = {}) -> Query:
    if isinstance(query, Query):
        return query
    if isinstance(query, str):
        return _of_words("text", query)
    if isinstance(query, Sequence) and not isinstance(query, (bytes, bytearray)):
        terms = tuple(query)
        return _of_words("terms", terms) if {*map(type, terms)} <= {str} else Query(terms=terms)
    if isinstance(query, Mapping):
        from ..records.query_json import fill, parse_query  # texts need none of it

        try:
            return parse_query(fill(query, defaults))
        except RecordError as error:
            raise QueryError(f"query {position}: {error}") from None
    raise QueryError(
        f"query {position} must be a string, a Query, a mapping with its fields or a sequence of terms, not "
        f"{type(query).__name__}"
    )


def queries_in(namespace: str, texts: Sequence[str]) -> list[Query]:
    """Queries of these texts, in a namespace."""
    silent, made = {**_SILENT, "namespace": namespace}, [object.__new__(Query) for _ in texts]
    for query, text in zip(made, texts, strict=True):
        object.__setattr__(query, "__dict__", {**silent, "text": text})
    return made


def _of_words(field: str, words: str | tuple[str, ...]) -> Query:
    """A query of words alone. It takes a tenth of the constructor's time, which also checks fields left at defaults."""
    query = object.__new__(Query)
    object.__setattr__(query, "__dict__", {**_SILENT, field: words})
    return query


_SILENT = vars(Query())
_beside_text = attrgetter(*(name for name in _SILENT if name != "text"))
_TEXT_ALONE = _beside_text(Query())


class SharedTexts(Sequence[Query]):
    """Queries that differ in their texts alone. They are made when they are read: a plain search reads none."""

    __slots__ = ("query", "texts")

    def __init__(self, texts: tuple[str, ...], query: Query) -> None:
        self.texts = texts
        self.query = query
        """A query with all that they share."""

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, position: Any) -> Any:
        return tuple(self)[position]

    def __iter__(self) -> Iterator[Query]:
        shared, made = vars(self.query), [object.__new__(Query) for _ in self.texts]
        for query, text in zip(made, self.texts, strict=True):
            object.__setattr__(query, "__dict__", {**shared, "text": text})
        return iter(made)


def share_defaults(queries: AnyBatch, defaults: Mapping[str, Any]) -> Sequence[Query]:
    """As `set_defaults`. Queries of a batch of texts are made when they are read."""
    given: Any = (queries,) if type(queries) is str else queries
    if type(given) not in (list, tuple) or {*map(type, given)} != {str}:
        return set_defaults(queries, defaults)
    query = object.__new__(Query)
    object.__setattr__(query, "__dict__", _checked(defaults))
    return SharedTexts(tuple(given), query)


def set_defaults(queries: AnyBatch, defaults: Mapping[str, Any], verb: str = "search") -> tuple[Query, ...]:
    """The queries of a batch, with these values in the fields that they leave at their own defaults.

    A query that names where it searches keeps that, and one for the newest records is not scored. Raises `QueryError`.
    """
    if not defaults:
        return as_queries(queries, verb)
    # One filter object, so that it is compiled once for all queries.
    values = {**defaults, "filter": parse_filter(defaults["filter"])} if "filter" in defaults else defaults
    if isinstance(queries, ONE):
        queries = [queries]
    elif not isinstance(queries, Iterable):
        return as_queries(queries, verb)  # which raises
    text_alone: dict[str, Any] | None = None
    made = []
    for position, asked in enumerate(queries):
        query = None if type(asked) is str else as_query(asked, position, values)
        if query is not None and isinstance(asked, Mapping):
            changed = query
        elif query is None or all(map(is_, _beside_text(query), _TEXT_ALONE)):
            # Checked once for all texts.
            text_alone = _checked(values) if text_alone is None else text_alone
            changed = object.__new__(Query)
            object.__setattr__(changed, "__dict__", {**text_alone, "text": asked if query is None else query.text})
        else:
            own = {name for name, value in vars(query).items() if not _is_silent(value, _SILENT[name])}
            own |= {*SPACES} if not own.isdisjoint(SPACES) else set()
            own |= {*SCORED} if query.newest else set()
            changed = replace(query, **{name: value for name, value in values.items() if name not in own})
        made.append(changed)
    return tuple(made)


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a query with these values, checked. Those of a few words are kept: a check takes 25 us."""
    if all(type(value) is str for value in values.values()):
        return _checked_words(tuple(values.items()))
    return vars(Query(**values))


@lru_cache(maxsize=64)
def _checked_words(values: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    return vars(Query(**dict(values)))  # type: ignore[arg-type]


def own_queries(
    queries: AnyBatch, name: str, defaults: Mapping[str, Any], whole: str, verb: str = "search"
) -> tuple[Query, ...]:
    """As `set_defaults`, for the namespace `name`, in which all are. Raises `QueryError` for those that search others,
    which are asked of the `whole`.
    """
    if name and not defaults.get("namespace") and all(defaults.get(space) is None for space in SPACES[1:]):
        defaults = {**defaults, "namespace": name}
    made = set_defaults(queries, defaults, verb)
    for position, query in enumerate(made):
        if query.namespace not in ("", name) or query.namespaces is not None or query.under is not None:
            raise QueryError(
                f"query {position} names another namespace than the one it is asked of; several namespaces are asked "
                f"of {whole}"
            )
    # A mapping may name the namespace "".
    return tuple([query if query.namespace == name else replace(query, namespace=name) for query in made])


def _is_silent(value: object, silent: object) -> bool:
    # A vector is an array, which has no one truth.
    return value is silent or (silent is not None and value == silent)
