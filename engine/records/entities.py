"""Statements of records about entities, as terms of a separate index: mentions, names, relations (SPEC B020, B022).

A record mentions entities, gives them names, and states relations between them. A statement lives as long as its
record. Each statement is a term, and its posting list holds the records that make it. Segments, merges, deletes and
files therefore treat entities as they treat words::

    Record("m1", "Sarah reports to Ana", entities={"Sarah": "sarah-chen", "Ana": "ana"},
           relations=[Relation("sarah-chen", "ana", "reports-to")])

    entity    sarah-chen                          m1 mentions it
    entity    ana                                 m1
    name      sarah -> sarah-chen                 m1 calls it by that name
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

from ..errors import refuse_unknown
from ..moments import NO_TIME, MomentField, to_seconds
from .checks import shorten

Category = Literal["structural", "semantic", "lifecycle"]

STRUCTURAL = frozenset({"reports-to", "works-on", "part-of", "member-of", "manages"})
"""Kinds of relation that are structural: hierarchy and formal membership (B020, B022). Other kinds are semantic."""

_WORD = re.compile(r"\w+")
# A term begins with the letter of its kind. `words_of` and `_check_name` keep the separator out of names and ids.
_ENTITY, _NAME, _RELATION, _SEPARATOR = "e", "n", "r", "\x1f"


@dataclass(frozen=True)
class Relation:
    """An edge between two entities, in both directions.

    `kind` is ``reports-to``, ``works-on``, ``mentioned-with``, ``part-of`` or a word that the caller chooses.
    `confidence` lies in [0, 1]. `valid_from` and `valid_to` are given as `Record.time` is, and stored as seconds.
    `category` sets how much the edge is relied on. If None, it is ``lifecycle`` for an edge with an end, else
    ``structural`` for the kinds in `STRUCTURAL`, else ``semantic``. Raises `ValueError`; the record adds its id.
    """

    source: str
    target: str
    kind: str
    confidence: float = 1.0
    valid_from: MomentField = NO_TIME
    valid_to: MomentField = NO_TIME
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
            try:
                object.__setattr__(self, name, to_seconds(value))
            except ValueError as error:
                raise ValueError(f"has a relation whose {name!r} {error}, not {shorten(value)}") from None
        if self.valid_from is not None and self.valid_to is not None and self.valid_from > self.valid_to:
            raise ValueError("has a relation that ends before it begins")
        if self.category is not None and self.category not in get_args(Category):
            raise ValueError(
                f"has a relation of an unknown category {self.category!r}: {', '.join(get_args(Category))}"
            )

    @property
    def reliance(self) -> Category:
        """The category, derived from the other fields where `category` is None."""
        if self.category is not None:
            return self.category
        if self.valid_to is not None:
            return "lifecycle"
        return "structural" if self.kind in STRUCTURAL else "semantic"

    @classmethod
    def of(cls, value: object) -> Relation:
        """The value itself if it is a relation, else the relation with the fields of a mapping. Raises `ValueError`."""
        if isinstance(value, Relation):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"must hold relations, not {type(value).__name__}")
        refuse_unknown(value, _FIELDS, "has a relation that has no", ValueError)
        try:
            return cls(**value)
        except TypeError as error:
            raise ValueError(f"has a relation that is not one: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON values, without those that are None. `of` reads them back."""
        return {name: value for name in _FIELDS if (value := getattr(self, name)) is not None}


_FIELDS = tuple(field.name for field in fields(Relation))
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True)


Said = (
    tuple[Literal["entity"], str] | tuple[Literal["name"], tuple[str, ...], str] | tuple[Literal["relation"], Relation]
)
"""The statement of a term: ("entity", id), ("name", words of the name, id of the entity) or ("relation", relation)."""


def words_of(text: str) -> tuple[str, ...]:
    """The words of a name or a query, in the form in which names are compared: case folded, without punctuation."""
    return tuple(_WORD.findall(text.casefold()))


def checked_entities(value: object) -> dict[str, str]:
    """Names to entity ids, from such a mapping or from a sequence of ids. Raises `ValueError`."""
    if isinstance(value, Mapping):
        ids = dict(value)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        ids = {}
        for name in value:
            _check_name("an entity", name)
            ids[name] = name
    else:
        raise ValueError(f"must map names to entity ids, or list ids, not {type(value).__name__}")
    for name, entity in ids.items():
        _check_name("an entity's name", name)
        _check_name("an entity", entity)
    return ids


def checked_relations(value: object) -> tuple[Relation, ...]:
    """Relations, from a sequence of relations or of mappings of their fields. Raises `ValueError`."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise ValueError(f"must be a sequence of relations, not {type(value).__name__}")
    return tuple(Relation.of(relation) for relation in value)


def terms_of(
    entities: Mapping[str, str] | Sequence[str] | None, relations: Sequence[Relation | Mapping[str, Any]] | None
) -> list[str]:
    """The terms of a record with these entities and relations, each once. `parse_term` reads them.

    Both ends of a relation count as mentioned. Every id also counts as a name of its entity.
    """
    ids = entities if isinstance(entities, Mapping) else {entity: entity for entity in entities or ()}
    edges = [Relation.of(relation) for relation in relations or ()]
    names = [(name, entity) for name, entity in ids.items()]
    names += [(entity, entity) for entity in (*ids.values(), *(end for e in edges for end in (e.source, e.target)))]
    terms: dict[str, None] = {}
    for name, entity in names:
        terms[_ENTITY + entity] = None
        if words := words_of(name):
            terms[f"{_NAME}{' '.join(words)}{_SEPARATOR}{entity}"] = None
    for relation in edges:
        terms[_RELATION + _JSON.encode(relation.to_dict())] = None
    return list(terms)


def parse_term(term: str) -> Said:
    """The statement of a term that `terms_of` made."""
    kind, content = term[0], term[1:]
    if kind == _ENTITY:
        return "entity", content
    if kind == _NAME:
        name, _, entity = content.partition(_SEPARATOR)
        return "name", tuple(name.split(" ")), entity
    return "relation", Relation(**json.loads(content))


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
