"""`MemoryState`: what a search reads of a memory, all of one moment."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from ..index.bm25 import BM25
from ..index.columns import Schema
from ..index.kept import records_of
from ..index.snapshot import Snapshot
from ..index.union import Union
from ..locks import once
from ..records.copies import own_copy
from ..records.record import Record
from ..text.analyzers import Analyzer
from ..text.vocabulary import TermIndexer, Vocabulary

# Unions of namespaces that are kept.
UNIONS = 32

_BEHIND_SLASH = chr(ord("/") + 1)

new_numbering = count().__next__
"""The number of a new numbering."""


@dataclass(frozen=True, eq=False)
class MemoryState:
    """The published state, which searches and checkpoints read. A search takes it once and reads nothing else.

    Snapshots and vocabularies belong together: `Storage` may number terms and column values anew.
    """

    bm25: BM25
    analyzer: Analyzer
    schema: Schema
    window: float
    indexer: TermIndexer
    values: Mapping[str, Vocabulary]
    """The values of each category column."""
    weight_terms: Vocabulary
    """The terms of learned weights."""
    entity_terms: Vocabulary
    """The terms of the records' entities and relations (`engine/records/entities.py`)."""
    snapshots: Mapping[str, Snapshot]
    """The snapshot of each namespace. Every write replaces the mapping; none changes it in place."""
    sequence: int = 0
    """The last change of the store that the snapshots hold."""
    version: int = 0
    """The number of publications so far."""
    numbering: int = field(default_factory=new_numbering)
    """Which numbering of terms and column values this is. No two of a process have the same."""

    names: tuple[str, ...] = ()
    """The namespaces, sorted."""

    unions: dict[tuple[str, ...], tuple[tuple[Snapshot, ...], Union]] = field(default_factory=dict)
    """The unions that searches asked for last, each with the snapshots that it was made of. The next state takes over
    those whose snapshots it holds.
    """
    expiries: Mapping[str, float] = field(default_factory=dict)
    """When the first live record of a namespace expires, for each namespace in which any does."""
    next_expiry: float = math.inf
    """The smallest of `expiries`."""

    @classmethod
    def empty(cls, bm25: BM25, analyzer: Analyzer, schema: Schema, window: float) -> MemoryState:
        """The state of a memory that holds nothing."""
        values = {name: Vocabulary() for name in schema.categories}
        indexer = TermIndexer(analyzer, Vocabulary())
        return cls(bm25, analyzer, schema, window, indexer, values, Vocabulary(), Vocabulary(), {})

    def snapshot(self, namespace: str) -> Snapshot:
        """The snapshot of a namespace, expired records included; one without records if the namespace holds none."""
        return self.snapshots.get(namespace) or self._nothing

    def records_of(self, namespace: str, ids: Sequence[str], *, vectors: bool = True) -> list[Record | None]:
        """The records with these ids, in their order, expired ones too; None for an id that is not there.

        For an engine in memory that keeps its records. The caller may change what is returned.
        """
        found = records_of(self.snapshot(namespace), ids)
        records = [found.get(record_id) for record_id in ids]
        return [None if record is None else own_copy(record, vectors=vectors) for record in records]

    @once
    def _nothing(self) -> Snapshot:
        return Snapshot((), self.bm25)

    def following(
        self, snapshots: Mapping[str, Snapshot], sequence: int | None = None, written: Iterable[str] | None = None
    ) -> MemoryState:
        """The state after a publication of these snapshots.

        `written` are the namespaces whose snapshots are others than before, gone ones included; None: it may be any.
        """
        # The unions go into a new mapping: a search that still runs on this state must not put one with records that
        # are gone into the mapping of later states.
        unions = {
            names: kept
            for names, kept in list(self.unions.items())
            if all(snapshots.get(name) is member for name, member in zip(names, kept[0], strict=True))
        }
        expiries, next_expiry = self._expiries_of(
            snapshots, {*self.snapshots, *snapshots} if written is None else written
        )
        # Most writes add no namespace. Sorting names of which all but a few are in order costs little.
        fresh = [name for name in (snapshots if written is None else written) if name not in self.snapshots]
        names = self.names
        if fresh or len(snapshots) != len(names):
            names = tuple(
                sorted([*(name for name in names if name in snapshots), *(n for n in fresh if n in snapshots)])
            )
        return replace(
            self,
            snapshots=snapshots,
            names=names,
            sequence=self.sequence if sequence is None else sequence,
            version=self.version + 1,
            unions=unions,
            expiries=expiries,
            next_expiry=next_expiry,
        )

    def _expiries_of(
        self, snapshots: Mapping[str, Snapshot], written: Iterable[str]
    ) -> tuple[Mapping[str, float], float]:
        """`expiries` and `next_expiry` of these snapshots. It looks at the written namespaces alone."""
        changed: dict[str, float] = {}
        first = self.next_expiry
        for name in written:
            moment = _next_expiry(snapshots[name]) if name in snapshots else math.inf
            before = self.expiries.get(name, math.inf)
            if moment != before:
                changed[name] = moment
                if before == first:
                    first = -math.inf  # not known any more
        if not changed:
            return self.expiries, self.next_expiry
        expiries = {**self.expiries, **changed}
        for name, moment in changed.items():
            if moment == math.inf:
                del expiries[name]
        return expiries, min(expiries.values() if first == -math.inf else (first, *changed.values()), default=math.inf)

    def holding(self, snapshots: Mapping[str, Snapshot]) -> MemoryState:
        """The state with these snapshots alone. Searches ask for one each, and `replace` takes ten times as long."""
        made = object.__new__(MemoryState)
        object.__setattr__(made, "__dict__", {**vars(self), "snapshots": snapshots, "unions": {}})
        return made

    @once
    def vocabularies(self) -> MemoryState:
        """The state without its records: what an answer keeps, so that it does not keep those of other tenants."""
        return replace(self, snapshots={}, names=(), unions={}, expiries={}, next_expiry=math.inf)

    @once
    def expiring(self) -> bool:
        """Whether any live record has a time of expiry."""
        return bool(self.expiries)

    def expired(self, clock: float) -> list[str]:
        """The namespaces that hold records which have expired by `clock`."""
        if clock < self.next_expiry:
            return []
        return [name for name, moment in self.expiries.items() if moment <= clock and name in self.snapshots]

    def present(self, clock: float) -> Mapping[str, Snapshot]:
        """The snapshot of each namespace, without the records that have expired by `clock`."""
        names = self.expired(clock)
        return (
            {**self.snapshots, **{name: self.snapshots[name].at(clock) for name in names}} if names else self.snapshots
        )

    def names_under(self, path: str) -> tuple[str, ...]:
        """As the function of this name, over all namespaces."""
        path = path.rstrip("/")
        below = bisect_left(self.names, path + "/"), bisect_left(self.names, path + _BEHIND_SLASH)
        return (path,) * (path in self.snapshots) + self.names[slice(*below)]

    def searched(self, namespace: str, namespaces: Sequence[str] | None, under: str | None) -> Sequence[str]:
        """The namespaces that a query with these fields searches."""
        return searched_names(namespace, namespaces, None, tuple) if under is None else self.names_under(under)

    def union(self, names: Sequence[str]) -> Snapshot:
        """The records of these namespaces as one snapshot, in the order of the names."""
        held = {name: self.snapshots[name] for name in names if name in self.snapshots}
        if not held:
            return self._nothing
        key, members = tuple(held), tuple(held.values())
        known = self.unions.get(key)
        if known is not None and known[0] == members:
            return known[1]
        made = Union.of(held, self.bm25)
        if len(self.unions) >= UNIONS:
            self.unions.clear()
        self.unions[key] = members, made
        return made


def _next_expiry(snapshot: Snapshot) -> float:
    """When the first live document expires; inf if none does."""
    moments = [math.inf]
    for number, segment in enumerate(snapshot.segments):
        if len(segment.expiries):
            tombstones = snapshot.tombstones.get(number)
            moments.append(segment.expiries[0] if tombstones is None else tombstones.next_expiry(segment))
    return float(min(moments))


def searched_names(
    namespace: str, namespaces: Sequence[str] | None, under: str | None, known: Callable[[], Iterable[str]]
) -> Sequence[str]:
    """The namespaces that a query with these fields searches; `known` gives all that there are."""
    if under is not None:
        return names_under(known(), under)
    return (namespace,) if namespaces is None else namespaces


def names_under(names: Iterable[str], path: str) -> tuple[str, ...]:
    """Those of these namespaces that are at a path or below it, sorted: ``a/b`` and all ``a/b/...`` for ``a/b``."""
    path = path.rstrip("/")
    below = path + "/"
    return tuple(sorted(name for name in names if name == path or name.startswith(below)))
