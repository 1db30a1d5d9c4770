"""What records say of entities, as terms of a CSR of its own: mentions, names and relations (SPEC B020, B022).

A record names the entities that it mentions and states relations between them; both live and die with it. Each
statement is a term, and its posting list is the records that make it, so that segments, merges, deletes and files treat
entities as they treat words::

    Record("m1", "Sarah reports to Ana", entities={"Sarah": "sarah-chen", "Ana": "ana"},
           relations=[Relation("sarah-chen", "ana", "reports-to")])

    entity    sarah-chen                          m1 mentions it
    entity    ana                                 m1
    name      sarah -> sarah-chen                 m1 calls it that
    name      ana -> ana                          m1
    relation  sarah-chen, ana, reports-to, ...    m1 states it
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

Category = Literal["structural", "semantic", "lifecycle"]

STRUCTURAL = frozenset({"reports-to", "works-on", "part-of", "member-of", "manages"})
"""Kinds of relation that are structural: hierarchy and formal membership (B020, B022). Others are semantic."""

_WORD = re.compile(r"\w+")
# What a term is begins it; no id or name holds the separator after `words_of` or `checked`.
_ENTITY, _NAME, _RELATION, _SEPARATOR = "e", "n", "r", "\x1f"


@dataclass(frozen=True)
class Relation:
    """An edge between two entities, in both directions.

    `kind` is ``reports-to``, ``works-on``, ``mentioned-with``, ``part-of`` or a word of the caller's; `confidence` lies
    in [0, 1]; `valid_from` and `valid_to` are seconds since 1970-01-01 UTC. `category` sets how far the edge is relied
    on; None: ``lifecycle`` where it ends, else ``structural`` for the kinds in `STRUCTURAL`, else ``semantic``.
    Raises `ValueError`, for the record to name.
    """

    source: str
    target: str
    kind: str
    confidence: float = 1.0
    valid_from: float | None = None
    valid_to: float | None = None
    category: Category | None = None

    def __post_init__(self) -> None:
        for name in ("source", "target", "kind"):
            _check_name(f"a relation's {name!r}", getattr(self, name))
        number = self.confidence
        if not _is_number(number) or not 0.0 <= number <= 1.0:
            raise ValueError(f"has a relation whose 'confidence' must lie in [0, 1], not {number!r}")
        object.__setattr__(self, "confidence", float(number))
        for name in ("valid_from", "valid_to"):
            value = getattr(self, name)
            if value is None:
                continue
            if not _is_number(value) or not math.isfinite(value):
                raise ValueError(f"has a relation whose {name!r} must be finite seconds since 1970, not {value!r}")
            object.__setattr__(self, name, float(value))
        if self.valid_from is not None and self.valid_to is not None and self.valid_from > self.valid_to:
            raise ValueError("has a relation that ends before it begins")
        if self.category is not None and self.category not in get_args(Category):
            raise ValueError(
                f"has a relation of an unknown category {self.category!r}: {', '.join(get_args(Category))}"
            )

    @property
    def reliance(self) -> Category:
        """Its category, worked out where it is not given."""
        if self.category is not None:
            return self.category
        if self.valid_to is not None:
            return "lifecycle"
        return "structural" if self.kind in STRUCTURAL else "semantic"

    @classmethod
    def of(cls, value: object) -> Relation:
        """The relation, or the one that a mapping of its fields stands for. Raises `ValueError`."""
        if isinstance(value, Relation):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"must hold relations, not {type(value).__name__}")
        try:
            return cls(**value)
        except TypeError as error:
            raise ValueError(f"has a relation that is not one: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Its fields as JSON values, those that are None left out; `of` takes them."""
        return {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}


_FIELDS = tuple(own.name for own in fields(Relation))
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True)


Said = (
    tuple[Literal["entity"], str] | tuple[Literal["name"], tuple[str, ...], str] | tuple[Literal["relation"], Relation]
)
"""What a term says: an entity, (words of a name, the entity's id), or a relation."""


def words_of(text: str) -> tuple[str, ...]:
    """The words of a name or a query, as names are compared: case folded, punctuation left out."""
    return tuple(_WORD.findall(text.casefold()))


def checked_entities(value: object) -> dict[str, str]:
    """Names to ids of what a record mentions, from such a mapping or a sequence of ids. Raises `ValueError`."""
    if isinstance(value, Mapping):
        given = dict(value)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        given = {}
        for name in value:
            _check_name("an entity", name)
            given[name] = name
    else:
        raise ValueError(f"must map names to entity ids, or list ids, not {type(value).__name__}")
    for name, entity in given.items():
        _check_name("an entity's name", name)
        _check_name("an entity", entity)
    return given


def checked_relations(value: object) -> tuple[Relation, ...]:
    """Relations from a sequence of them or of mappings. Raises `ValueError`."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise ValueError(f"must be a sequence of relations, not {type(value).__name__}")
    return tuple(Relation.of(relation) for relation in value)


def terms_of(
    entities: Mapping[str, str] | Sequence[str] | None, relations: Sequence[Relation | Mapping[str, Any]] | None
) -> list[str]:
    """What a record with these says of entities as terms, each once; a relation's ends count as mentioned. `parse_term`
    reads them.
    """
    given = entities if isinstance(entities, Mapping) else {entity: entity for entity in entities or ()}
    edges = [Relation.of(relation) for relation in relations or ()]
    called = [(name, entity) for name, entity in given.items()]
    called += [(entity, entity) for entity in (*given.values(), *(end for e in edges for end in (e.source, e.target)))]
    terms: dict[str, None] = {}
    for name, entity in called:
        terms[_ENTITY + entity] = None
        if words := words_of(name):
            terms[f"{_NAME}{' '.join(words)}{_SEPARATOR}{entity}"] = None
    for relation in edges:
        terms[_RELATION + _JSON.encode(relation.to_dict())] = None
    return list(terms)


def parse_term(term: str) -> Said:
    """What a term of `terms_of` says."""
    kind, rest = term[0], term[1:]
    if kind == _ENTITY:
        return "entity", rest
    if kind == _NAME:
        name, _, entity = rest.partition(_SEPARATOR)
        return "name", tuple(name.split(" ")), entity
    return "relation", Relation(**json.loads(rest))


def _check_name(what: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"has {what} that must be a non-empty string, not {value!r}")
    if _SEPARATOR in value or (not value.isascii() and value.encode("utf-8", "replace").decode() != value):
        raise ValueError(f"has {what} with a unit separator or a lone surrogate: {value!r}")


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer beyond float64
        return False
