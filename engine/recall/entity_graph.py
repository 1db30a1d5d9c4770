"""The entity graph: walks over it find the records near the entities that a query is about (SPEC B020 to B026, X19).

Entities are nodes. Every relation that a live record states is an edge, and walks follow it in both directions. An
edge has a type and a time of validity. A walk of h edges from a root of weight w to an entity is worth ::

    HOP_SCORES[h] * (w * factor(edge 1) * ... * factor(edge h))
    factor = confidence * type prior * (EXPIRED if the edge ended before `now`)

multiplied in that order, in float64. A record here is also called a memory. Its score is the worth of the best walk of
at most `hops` edges to an entity that it mentions (B024). Its hops are the edges of that walk; among equally good walks
the shortest counts. A memory that no walk worth more than 0 reaches has no score, so a query without a root has an
empty answer (B026).

The walks of all queries advance together, one level at a time. A level is a matrix product of the (query, entity)
values with the edges, in which maxima take the place of sums. Maxima of rounded products do not depend on the order,
so the bits do not either. If a walk reaches an entity with no more worth than a shorter walk did, it is dropped: every
continuation of it also continues the shorter walk, at no less worth. So few walks go back the way they came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Integers, offsets_of, ranges
from ..errors import ParameterError
from ..index.snapshot import Snapshot
from ..locks import once
from ..records.entities import Category, Said
from .statements import CATEGORIES, EntityNames, Statements

HOP_SCORES = (1.0, 0.6, 0.35, 0.15)
"""Score of a memory by the number of edges between the query's entity and an entity of the memory (B021)."""
HOPS, MANY_HOPS = 2, 3
"""Edges that a walk may have; the second number is for a query that asks for a chain of relations, see
`resolution.asks_many_hops` (B021)."""
EXPIRED = 0.3
"""Freshness of an edge that has ended. Each such edge of a walk multiplies its worth by this (B022, X19)."""
TYPE_PRIOR: Mapping[Category, float] = MappingProxyType({"structural": 1.0, "semantic": 0.9, "lifecycle": 1.0})
"""How reliable the edges of a category are (B022). Of lifecycle edges only the freshness counts (X19)."""

CHUNK = 1 << 20
"""Products, or entries of a table of maxima, that are worked on at a time.

500 queries that each reach 40,000 of 100,000 records take 1.3 s and 80 MB. With 2**18 they take the same time; with
2**22 they take 1.7 s and 340 MB.
"""
DENSE_SHARE = 8
"""Instead of sorting keys, a table of all possible keys is filled if it has at most this many entries for each key."""

PostingReader = Callable[[npt.NDArray[np.int32]], tuple[Integers, Integers]]
"""Terms [n] -> (offsets [n + 1], document numbers): the live documents that hold each term."""


class Reached(NamedTuple):
    """The memories that walks reach: one entry for each (row of the batch, document), ascending; arrays [entries]."""

    rows: Integers
    documents: Integers
    scores: Floats  # above 0, at most the weight of a root
    hops: npt.NDArray[np.int8]  # 0: mentions a root itself


# Sources: B022.
def edge_factor(confidence: Floats, type_prior: Floats, freshness: Floats | float = 1.0) -> Floats:
    """The factor by which an edge multiplies a walk's worth. All arrays have one shape."""
    return confidence * type_prior * freshness


class EntityGraph:
    """The entities and relations of the live records of one epoch. It is immutable, so threads may share it.

    Entities are numbered from 0. The numbers are valid for this graph alone.
    """

    def __init__(
        self, statements: Statements, live: Integers, postings: PostingReader, type_prior: Mapping[Category, float]
    ) -> None:
        self.statements = statements
        self._live = live
        self._postings = postings
        priors = np.array([type_prior[category] for category in CATEGORIES])
        if not ((priors >= 0.0) & (priors <= 1.0)).all():
            raise ParameterError(f"a type prior must lie in [0, 1], unlike one of {dict(type_prior)}")
        terms, entities = statements.mentions(len(live))
        mentioned = live[terms] > 0
        terms, entities = terms[mentioned], entities[mentioned]
        relations = statements.relations(len(live))
        bases = edge_factor(relations.confidences, priors[relations.categories])
        # An edge of factor 0 is left out, because a walk over it would be worth nothing.
        edges = np.flatnonzero((live[relations.terms] > 0) & (bases > 0.0))
        ends = relations.sources[edges], relations.targets[edges]
        self._active = _distinct(np.concatenate([entities, *ends]), len(statements.ids))
        self._terms = np.full(len(self._active), -1)
        self._terms[np.searchsorted(self._active, entities)] = terms

        sources = np.searchsorted(self._active, np.concatenate(ends))
        targets = np.roll(sources, len(edges))
        order = np.lexsort((targets, sources))
        edges = np.tile(edges, 2)[order]
        self._offsets = offsets_of(np.bincount(sources, minlength=len(self._active)))
        self._targets = targets[order]
        self._bases = bases[edges]
        self._valid_from, self._valid_to = relations.valid_from[edges], relations.valid_to[edges]
        self._timed = bool(np.isfinite(self._valid_from).any() or np.isfinite(self._valid_to).any())

    @classmethod
    def of(
        cls,
        stated: Sequence[Said] | Statements,
        live: npt.ArrayLike,
        postings: PostingReader,
        type_prior: Mapping[Category, float] = TYPE_PRIOR,
    ) -> EntityGraph:
        """Build the graph of the statements `stated`, one for each term.

        `live` [terms] counts the live documents that hold each term. When walks have reached entities, `postings` is
        called with the terms that mention them, ascending. Raises `ParameterError` for a type prior outside [0, 1].
        """
        statements = stated if isinstance(stated, Statements) else Statements(stated)
        return cls(statements, np.asarray(live, dtype=np.int64)[: len(statements)], postings, type_prior)

    def __len__(self) -> int:
        """The number of entities that a live record mentions."""
        return len(self._active)

    @property
    def edges(self) -> int:
        """The number of relations that a live record states and whose factor is above 0."""
        return len(self._targets) // 2

    def number_of(self, entity: str) -> int | None:
        """The number of the entity with this id, or None if no live record mentions it."""
        number = self.statements.numbers.get(entity)
        if number is None:
            return None
        position = int(np.searchsorted(self._active, number))
        return position if position < len(self._active) and self._active[position] == number else None

    def id_of(self, number: int) -> str:
        """The id of the entity with this number."""
        return self.statements.ids[int(self._active[number])]

    def called(self, words: tuple[str, ...]) -> dict[int, int]:
        """``{entity number: live records}`` for the entities that live records call by these words."""
        counts = {}
        for term, entity in self.statements.called.get(words, ()):
            count = int(self._live[term]) if term < len(self._live) else 0
            position = int(np.searchsorted(self._active, entity))
            if count and position < len(self._active) and self._active[position] == entity:
                counts[position] = count
        return counts

    def neighbours(self, number: int) -> Integers:
        """The other entities that an edge joins to this one, whatever its time of validity; ascending, each once."""
        others = np.unique(self._targets[self._offsets[number] : self._offsets[number + 1]])
        return np.asarray(others[others != number])

    def words_of(self, numbers: Integers) -> Integers:
        """The distinct words of the names that live records give these entities, numbered as in `Statements.words`."""
        offsets, order, names = self._names
        chosen = order[ranges(offsets[numbers], offsets[numbers + 1] - offsets[numbers])]
        lengths = names.offsets[chosen + 1] - names.offsets[chosen]
        return np.unique(names.words[ranges(names.offsets[chosen], lengths)])

    @once
    def _names(self) -> tuple[Integers, Integers, EntityNames]:
        """(offsets [entities + 1], positions in the names, entity by entity; the names)."""
        names = self.statements.names(len(self._live))
        chosen = np.flatnonzero((self._live[names.terms] > 0) & np.isin(names.entities, self._active))
        entities = np.searchsorted(self._active, names.entities[chosen])
        offsets = offsets_of(np.bincount(entities, minlength=len(self._active)))
        return offsets, chosen[np.argsort(entities, kind="stable")], names

    def expand(self, roots: Sequence[Mapping[str, float]], now: npt.ArrayLike, hops: npt.ArrayLike = HOPS) -> Reached:
        """Everything that `parts` yields, as one `Reached`."""
        parts = list(self.parts(roots, now, hops))
        if not parts:
            nothing = np.zeros(0, dtype=np.int64)
            return Reached(nothing, nothing, np.zeros(0), np.zeros(0, dtype=np.int8))
        return Reached(*map(np.concatenate, zip(*parts, strict=True)))

    def parts(
        self, roots: Sequence[Mapping[str, float]], now: npt.ArrayLike, hops: npt.ArrayLike = HOPS
    ) -> Iterator[Reached]:
        """Yield the memories that each query of a batch reaches. Each part holds whole rows; rows ascend.

        - `roots`: for each query, entity ids with weights in [0, 1]. An id that no live record mentions is ignored.
        - `now` [B]: each query's time in seconds. An edge whose `valid_to` lies before it has expired. An edge whose
          `valid_from` lies after it does not exist yet. Where `now` is NaN, edges neither expire nor are missing.
        - `hops`: the number of edges that a walk may have, at most 3; one number for all queries, or [B].

        The size of a part does not grow with the batch: it holds about `CHUNK` (row, document) pairs, or one row.
        Raises `ParameterError`.
        """
        batch = len(roots)
        times = np.broadcast_to(np.asarray(now, dtype=np.float64), batch)
        limits = np.broadcast_to(np.asarray(hops, dtype=np.int64), batch)
        if batch and not 0 <= limits.min() <= limits.max() < len(HOP_SCORES):
            raise ParameterError(f"hops must lie in [0, {len(HOP_SCORES) - 1}], not {hops!r}")
        entries = [
            (row, number, weight)
            for row, query_roots in enumerate(roots)
            for entity, weight in query_roots.items()
            if (number := self.number_of(entity)) is not None
        ]
        if not entries:
            return
        columns = zip(*entries, strict=True)
        rows, entities = (np.array(next(columns), dtype=np.int64) for _ in range(2))
        weights = np.array(next(columns), dtype=np.float64)
        if not ((weights >= 0.0) & (weights <= 1.0)).all():
            raise ParameterError("a root's weight must lie in [0, 1]")
        distinct = _distinct(rows, batch)
        places = np.searchsorted(distinct, rows)
        step = max(1, CHUNK // len(self))
        for start in range(0, len(distinct), step):
            span = slice(*np.searchsorted(places, [start, start + step]).tolist())
            numbers = distinct[start : start + step]
            for part in self._memories(
                *self._reach(places[span] - start, entities[span], weights[span], times[numbers], limits[numbers])
            ):
                yield part._replace(rows=numbers[part.rows])

    def _reach(
        self, rows: Integers, entities: Integers, weights: Floats, now: Floats, limits: Integers
    ) -> tuple[Integers, Floats, npt.NDArray[np.int8]]:
        """The entities that walks from the roots reach: (keys ``row * entities + entity`` ascending, scores, hops).

        Rows are numbered from 0. `now` [rows] and `limits` [rows] are their times and their largest numbers of edges.
        """
        width, size = len(self), len(now) * len(self)
        worth, scores = np.zeros(size), np.zeros(size)
        hops = np.zeros(size, dtype=np.int8)
        keys = rows * width + entities
        np.maximum.at(worth, keys, weights)
        keys = _distinct(keys[weights > 0.0], size)
        scores[keys] = HOP_SCORES[0] * worth[keys]
        reached = [keys]
        for level in range(1, int(limits.max()) + 1):
            keys = keys[limits[keys // width] >= level]
            keys = self._step(keys, worth, now)
            level_scores = HOP_SCORES[level] * worth[keys]
            better = level_scores > scores[keys]
            scores[keys[better]] = level_scores[better]
            hops[keys[better]] = level
            reached.append(keys)
        keys = _distinct(np.concatenate(reached), size)
        keys = keys[scores[keys] > 0.0]
        return keys, scores[keys], hops[keys]

    def _step(self, keys: Integers, worth: Floats, now: Floats) -> Integers:
        """Walk one edge from these keys: raise `worth` [rows * entities] in place and return the raised keys."""
        width = len(self)
        rows, entities = np.divmod(keys, width)
        starts = self._offsets[entities]
        lengths = self._offsets[entities + 1] - starts
        values = worth[keys]
        raised = [np.zeros(0, dtype=np.int64)]
        for part in _pieces(lengths):
            counts = lengths[part]
            places = ranges(starts[part], counts)
            factors = self._bases[places]
            if self._timed:
                times = np.repeat(now[rows[part]], counts)
                factors[self._valid_to[places] < times] *= EXPIRED
                factors[self._valid_from[places] > times] = 0.0
            products = np.repeat(values[part], counts) * factors
            targets = np.repeat(rows[part] * width, counts) + self._targets[places]
            better = products > worth[targets]
            targets = targets[better]
            np.maximum.at(worth, targets, products[better])
            raised.append(_distinct(targets, len(worth)))
        return _distinct(np.concatenate(raised), len(worth))

    def _memories(self, keys: Integers, scores: Floats, hops: npt.NDArray[np.int8]) -> Iterator[Reached]:
        """Yield the memories that mention the entities of these keys (see `_reach`). Rows ascend, each in one part."""
        rows, entities = np.divmod(keys, len(self))
        terms = self._terms[entities]
        mentioned = terms >= 0
        rows, terms, scores, hops = rows[mentioned], terms[mentioned], scores[mentioned], hops[mentioned]
        if not len(terms):
            return
        distinct = _distinct(terms, len(self._live))
        places = np.searchsorted(distinct, terms)
        offsets, documents = self._postings(distinct.astype(np.int32))
        width = int(documents.max(initial=-1)) + 1
        starts = offsets[places]
        lengths = offsets[places + 1] - starts
        for group in _pieces(np.bincount(rows, weights=lengths).astype(np.int64)):
            span = slice(*np.searchsorted(rows, [group.start, group.stop]).tolist())
            # Sorted so that the best stands last, and among equals the one of fewest hops. So `_last` keeps it.
            order = span.start + np.lexsort((-hops[span], scores[span]))
            firsts = (rows[order] - group.start) * width
            pairs, best = _last(
                _postings_of(order, firsts, starts, lengths, documents),
                size=(group.stop - group.start) * width,
                count=int(lengths[span].sum()),
            )
            if len(pairs):
                yield Reached(pairs // width + group.start, pairs % width, scores[best], hops[best])


def entity_graph_of(
    snapshot: Snapshot,
    stated: Statements | Sequence[Said],
    strings: Sequence[str] = (),
    type_prior: Mapping[Category, float] = TYPE_PRIOR,
) -> EntityGraph:
    """The graph of the live documents of a snapshot whose terms belong to an entity vocabulary.

    `stated` holds the statements of the terms by vocabulary id. It may instead be the `Statements` read so far; then
    the missing ones are read from the vocabulary's `strings`. Raises `ParameterError` for a type prior outside [0, 1].
    """
    live = snapshot.all_document_frequencies()
    if isinstance(stated, Statements):
        stated.read(strings, len(live))
    return EntityGraph.of(stated, live, lambda terms: live_postings(snapshot, terms), type_prior)


def live_postings(snapshot: Snapshot, terms: npt.NDArray[np.int32]) -> tuple[Integers, Integers]:
    """(offsets [terms + 1], numbers of the live documents that hold each term, ascending for each term), int64."""
    rows, numbers = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for number, (first, segment) in enumerate(zip(snapshot.firsts, snapshot.segments, strict=True)):
        positions = segment.locate(terms)
        term_rows = np.flatnonzero(positions >= 0)
        starts = segment.offsets[positions[term_rows]]
        lengths = segment.offsets[positions[term_rows] + 1] - starts
        documents = segment.documents[ranges(starts, lengths)].astype(np.int64)
        term_rows = np.repeat(term_rows, lengths)
        alive = snapshot.alive(number)
        if alive is not None:
            term_rows, documents = term_rows[alive[documents]], documents[alive[documents]]
        rows.append(term_rows)
        numbers.append(documents + first)
    places = np.concatenate(rows)
    return offsets_of(np.bincount(places, minlength=len(terms))), np.concatenate(numbers)[
        np.argsort(places, kind="stable")
    ]


def _postings_of(
    order: Integers, firsts: Integers, starts: Integers, lengths: Integers, documents: Integers
) -> Iterator[tuple[Integers, Integers]]:
    """Yield (``firsts`` + document, list number) of the lists' postings in this order, about `CHUNK` at a time."""
    for part in _pieces(lengths[order]):
        lists = order[part]
        counts = lengths[lists]
        yield np.repeat(firsts[part], counts) + documents[ranges(starts[lists], counts)], np.repeat(lists, counts)


def _pieces(lengths: Integers) -> Iterator[slice]:
    """Split groups of these lengths, in order, into slices of fewer than 2 `CHUNK` members, or of a single group."""
    cuts = np.flatnonzero(np.diff(np.cumsum(lengths) // CHUNK)) + 1
    bounds = [0, *cuts.tolist(), len(lengths)]
    yield from (slice(start, stop) for start, stop in pairwise(bounds) if start < stop)


def _distinct(keys: Integers, size: int) -> Integers:
    """The distinct keys, ascending. Keys lie in [0, size)."""
    if DENSE_SHARE * len(keys) < size:
        # np.unique hashes from numpy 2.3 on and takes 890 ms for a million keys; this takes 60 ms.
        keys = np.sort(keys)
        return keys[np.flatnonzero(np.diff(keys, prepend=-1))]
    present = np.zeros(size, dtype=np.bool_)
    present[keys] = True
    return np.flatnonzero(present)


def _last(pieces: Iterator[tuple[Integers, Integers]], size: int, count: int) -> tuple[Integers, Integers]:
    """(distinct keys ascending, the last value of each key). The pieces hold `count` keys in all, in [0, size)."""
    if DENSE_SHARE * count >= size:
        table = np.full(size, -1, dtype=np.int32)
        for keys, values in pieces:
            table[keys] = values  # numpy assigns in order: the last of equal keys stays
        present = np.flatnonzero(table >= 0)
        return present, table[present].astype(np.int64)
    keys, values = map(np.concatenate, zip(*pieces, strict=True))
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    last = np.flatnonzero(np.diff(keys, append=-1))
    return keys[last], values[order[last]]
