"""The statistics of split namespaces: integer sums over their parts, by epoch.

Each shard acknowledges a write with what it changed: documents, lengths by field, and document frequencies by term. The
coordinator adds that up and sends, with a batch of queries, the numbers that the batch needs. So a shard scores as one
engine with all records would, in one round trip. Terms travel as strings, as each shard numbers its own; a term that a
shard does not know has no posting there, and counts in the others all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...engine.index.snapshot import Snapshot
from ...engine.locks import make_short_lock

# Epochs that a table can go back. A batch that began longer ago is asked again.
KEPT = 64


@dataclass(frozen=True)
class Counts:
    """Documents, total lengths by field, and document frequencies of some terms; or a change of these."""

    documents: int
    lengths: tuple[int, ...]
    frequencies: Mapping[str, int]
    """By term; 0 for a term that is not in it."""
    expiring: bool = False
    """Whether a record has a time of expiry, so that the numbers depend on the moment."""

    @classmethod
    def of(cls, snapshot: Snapshot, terms: Sequence[str], numbers: Mapping[str, int]) -> Counts:
        """The counts of a snapshot, for these terms; `numbers` are those of the terms in its vocabulary."""
        statistics = snapshot.statistics
        known = [term for term in terms if term in numbers]
        ids = np.array([numbers[term] for term in known], dtype=np.int32)
        order = np.argsort(ids, kind="stable")
        frequencies = np.empty(len(ids), dtype=np.int64)
        frequencies[order] = snapshot.document_frequencies(ids[order])
        return cls(
            statistics.documents,
            statistics.total_lengths,
            {term: count for term, count in zip(known, frequencies.tolist(), strict=True) if count},
            snapshot.expiring,
        )

    @classmethod
    def sum(cls, parts: Iterable[Counts], fields: int) -> Counts:
        """The counts of all parts together."""
        total = cls(0, (0,) * fields, {})
        frequencies: dict[str, int] = {}
        for part in parts:
            total = total.moved(part)
            for term, count in part.frequencies.items():
                frequencies[term] = frequencies.get(term, 0) + count
        return replace(total, frequencies=frequencies)

    def moved(self, change: Counts, sign: int = 1) -> Counts:
        """These documents and lengths with a change or (-1) without it, and no frequencies."""
        lengths = tuple(one + sign * other for one, other in zip(self.lengths, change.lengths, strict=True))
        expiring = self.expiring or (sign > 0 and change.expiring)
        return Counts(self.documents + sign * change.documents, lengths, {}, expiring)


def whole_counts(snapshot: Snapshot, strings: Sequence[str]) -> Counts:
    """The counts of a snapshot, for all its terms; `strings` are the terms by number."""
    statistics = snapshot.statistics
    frequencies = _by_term(snapshot.all_document_frequencies(), strings)
    return Counts(statistics.documents, statistics.total_lengths, frequencies, snapshot.expiring)


def changed_counts(before: Snapshot, after: Snapshot, strings: Sequence[str]) -> Counts:
    """What a write changed, between two snapshots of one numbering of terms.

    It goes through the vocabulary once, as the write itself does where it copies the counts of a large namespace.
    """
    old, new = before.all_document_frequencies(), after.all_document_frequencies()
    change = np.zeros(max(len(old), len(new)), dtype=np.int64)
    change[: len(new)] += new
    change[: len(old)] -= old
    lengths = zip(after.statistics.total_lengths, before.statistics.total_lengths, strict=True)
    moved = tuple(one - other for one, other in lengths)
    return Counts(after.size - before.size, moved, _by_term(change, strings), after.expiring)


def _by_term(frequencies: npt.NDArray[np.integer[Any]], strings: Sequence[str]) -> dict[str, int]:
    present = np.flatnonzero(frequencies)
    return dict(zip(map(strings.__getitem__, present.tolist()), frequencies[present].tolist(), strict=True))


@dataclass(eq=False)
class Table:
    """The counts of one split namespace at the last epochs."""

    counts: Counts
    epoch: int
    """The epoch since which `counts` hold."""
    _frequencies: dict[str, int] = field(init=False)
    _changes: deque[tuple[int, Counts]] = field(default_factory=deque)
    """(epoch, change) of the last writes, oldest first."""
    _first: int = field(init=False)
    """The first epoch that the table can go back to."""

    def __post_init__(self) -> None:
        self._frequencies = dict(self.counts.frequencies)
        self.counts = replace(self.counts, frequencies={})
        self._first = self.epoch
        self._lock = make_short_lock()

    def add(self, epoch: int, change: Counts) -> None:
        """Count a write of this epoch."""
        with self._lock:
            self.counts = self.counts.moved(change)
            for term, count in change.frequencies.items():
                total = self._frequencies.get(term, 0) + count
                if total:
                    self._frequencies[term] = total
                else:
                    self._frequencies.pop(term, None)
            self._changes.append((epoch, change))
            if len(self._changes) > KEPT:
                self._first = self._changes.popleft()[0]
            self.epoch = epoch

    def at(self, epoch: int, terms: Iterable[str]) -> tuple[int, Counts] | None:
        """(the epoch since which they hold, the counts for these terms) at an epoch; None where it is too old."""
        with self._lock:
            if epoch < self._first:
                return None
            counts, since = self.counts, self.epoch
            frequencies = {term: self._frequencies.get(term, 0) for term in terms}
            for number, change in reversed(self._changes):
                if number <= epoch:
                    since = number
                    break
                counts = counts.moved(change, -1)
                for term in frequencies:
                    frequencies[term] -= change.frequencies.get(term, 0)
            else:
                since = self._first
            return since, replace(counts, frequencies=frequencies)
