"""The statements of an entity vocabulary's terms, parsed once and kept as columns (SPEC B020).

A vocabulary only grows, and a term never changes what it states. So the statements belong to no namespace and no epoch.
They are parsed once, and the `EntityGraph` of a namespace and epoch selects from them by array operations alone. Over
100,000 terms the first graph takes 0.8 s and each further one 35 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Integers
from ..locks import make_short_lock
from ..records.entities import Category, Said, parse_term

# Terms that are parsed while the lock is held: some milliseconds.
READ_TERMS = 1 << 10

CATEGORIES: tuple[Category, ...] = ("structural", "semantic", "lifecycle")
"""The category of each code in `Relations.categories`."""


class Relations(NamedTuple):
    """Relations, terms ascending; arrays [relations]. Sources and targets are entity numbers of the `Statements`."""

    terms: Integers
    sources: Integers
    targets: Integers
    confidences: Floats
    categories: Integers
    valid_from: Floats  # -inf where it has always been
    valid_to: Floats  # inf where it does not end


class EntityNames(NamedTuple):
    """Names of entities, terms ascending. Words are numbered as in `Statements.words`."""

    terms: Integers  # [names]
    entities: Integers  # [names]
    offsets: Integers  # [names + 1] into `words`
    words: Integers  # [words of all names]


class Statements:
    """The terms read so far, numbered as in their vocabulary. One thread may read on while others look things up."""

    def __init__(self, terms: Sequence[Said] = ()) -> None:
        self.ids: list[str] = []
        """Ids of entities by number, in the order of their first statement."""
        self.numbers: dict[str, int] = {}
        self.words: dict[str, int] = {}
        self.called: dict[tuple[str, ...], list[tuple[int, int]]] = {}
        """(term, entity) of every name, by its words."""
        self.longest: dict[str, int] = {}
        """First word -> the number of words of the longest name that begins with it."""
        self._count = 0
        self._mentions = _Table(2, np.int64)  # term, entity
        self._names = _Table(2, np.int64)  # term, entity
        self._words = _Table(2, np.int64)  # term of the name, word
        self._relations = _Table(7, np.float64)  # term and the columns of `Relations`
        self._lock = make_short_lock()
        for statement in terms:
            self._take(statement)

    def __len__(self) -> int:
        """The number of terms read."""
        return self._count

    def read(self, strings: Sequence[str], upto: int) -> Statements:
        """Read the new ones among the first `upto` strings of the vocabulary. Returns `self`.

        Only terms that a snapshot holds may be read: a failed write removes its terms again, and later terms get their
        numbers.
        """
        upto = min(upto, len(strings))
        while self._count < upto:
            with self._lock:
                for term in strings[self._count : min(self._count + READ_TERMS, upto)]:
                    self._take(parse_term(term))
        return self

    def mentions(self, upto: int) -> tuple[Integers, Integers]:
        """(terms, entities) of the terms below `upto` that mention an entity, terms ascending."""
        with self._lock:
            terms, entities = self._mentions.below(upto).T
        return terms, entities

    def names(self, upto: int) -> EntityNames:
        """The names among the terms below `upto`."""
        with self._lock:
            terms, entities = self._names.below(upto).T
            holders, words = self._words.below(upto).T
        return EntityNames(terms, entities, np.append(np.searchsorted(holders, terms), len(words)), words)

    def relations(self, upto: int) -> Relations:
        """The relations among the terms below `upto`."""
        with self._lock:
            columns = self._relations.below(upto).T
        terms, sources, targets, categories = columns[[0, 1, 2, 4]].astype(np.int64)
        return Relations(terms, sources, targets, columns[3], categories, columns[5], columns[6])

    def _number(self, entity: str) -> int:
        number = self.numbers.get(entity)
        if number is None:
            number = len(self.ids)
            self.ids.append(entity)
            self.numbers[entity] = number
        return number

    def _take(self, statement: Said) -> None:
        term = self._count
        if statement[0] == "entity":
            self._mentions.append((term, self._number(statement[1])))
        elif statement[0] == "name":
            _, words, entity = statement
            number = self._number(entity)
            self._names.append((term, number))
            for word in words:
                self._words.append((term, self.words.setdefault(word, len(self.words))))
            self.called.setdefault(words, []).append((term, number))
            self.longest[words[0]] = max(self.longest.get(words[0], 0), len(words))
        else:
            relation = statement[1]
            self._relations.append(
                (
                    term,
                    self._number(relation.source),
                    self._number(relation.target),
                    relation.confidence,
                    CATEGORIES.index(relation.reliance),
                    -np.inf if relation.valid_from is None else relation.valid_from,
                    np.inf if relation.valid_to is None else relation.valid_to,
                )
            )
        self._count += 1


class _Table:
    """Rows of numbers, ascending by their first number."""

    def __init__(self, width: int, dtype: npt.DTypeLike) -> None:
        self._rows: npt.NDArray[Any] = np.zeros((0, width), dtype=dtype)
        self._new: list[tuple[float, ...]] = []

    def append(self, row: tuple[float, ...]) -> None:
        self._new.append(row)

    def below(self, first: int) -> npt.NDArray[Any]:
        """The rows whose first number is below this."""
        if self._new:
            self._rows = np.concatenate([self._rows, np.array(self._new, dtype=self._rows.dtype)])
            self._new = []
        return self._rows[: int(np.searchsorted(self._rows[:, 0], first))]
