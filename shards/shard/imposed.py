"""Snapshots that score with the statistics of records beyond their own.

A shard holds a part of a namespace, and its scores must be those of the whole. All arithmetic of BM25 starts from
integers: documents, total lengths, document frequencies. So a snapshot with these numbers put in place of its own gives
the bits that one engine with all records gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from ...engine.index.bm25 import Statistics
from ...engine.index.masks import CompiledFilter
from ...engine.index.snapshot import Snapshot
from ...engine.index.union import Union
from ...engine.locks import once
from ..protocol.statistics import Counts


@dataclass(frozen=True, eq=False)
class ImposedSnapshot(Snapshot):
    """A part of one namespace."""

    imposed: Statistics = field(default_factory=lambda: Statistics(0, ()))
    base: Snapshot | None = None
    """The snapshot whose documents these are."""
    given: tuple[Counts, Mapping[str, int]] | None = None
    """The counts that it was made with, and the numbers of their terms."""

    @once
    def size(self) -> int:
        """The documents that count: those of all parts. Every k is cut to it, and the idf reads it."""
        return self.imposed.documents

    @once
    def statistics(self) -> Statistics:
        return self.imposed

    # Learned weights and entities have no statistics of the corpus.
    @once
    def learned(self) -> Snapshot:
        assert self.base is not None
        return self.base.learned

    @once
    def entities(self) -> Snapshot:
        assert self.base is not None
        return self.base.entities

    def filtered(self, accepted: CompiledFilter) -> tuple[Snapshot, npt.NDArray[np.int64]]:
        """As `Snapshot.filtered`: the imposed statistics are those of the filtered records of all parts."""
        assert self.base is not None
        assert self.given is not None
        snapshot, numbers = self.base.filtered(accepted)
        return impose(snapshot, *self.given), numbers

    def at(self, clock: float) -> Snapshot:
        """The snapshot itself: it was made of the records of one moment."""
        return self

    def impose(self, counts: Counts, numbers: Mapping[str, int]) -> bool:
        """Add the document frequencies of further terms; `numbers` are those of the terms in the vocabulary.

        Nothing is added, and the answer is false, where a device has read the idf of all terms: what it made of them
        is of this snapshot, and further terms are another one's.
        """
        assert self.counts is not None
        found = {
            number: count
            for term, count in counts.frequencies.items()
            if (number := numbers.get(term)) is not None and number < len(self.counts)
        }
        if "term_idf" in vars(self) and any(self.counts[number] != count for number, count in found.items()):
            return False
        for number, count in found.items():
            self.counts[number] = count
        return True


@dataclass(frozen=True, eq=False)
class ImposedUnion(ImposedSnapshot, Union):
    """The part of several namespaces that one shard holds."""


def impose(
    base: Snapshot, counts: Counts, numbers: Mapping[str, int], known: Snapshot | None = None
) -> ImposedSnapshot:
    """The documents of `base`, scored by `counts`; `numbers` are those of the terms in the vocabulary.

    The document frequency of a term that `counts` does not hold is that of `known`, an earlier snapshot of the same
    documents, or 0: `impose` adds those of later batches.
    """
    values = {part.name: getattr(base, part.name) for part in fields(base) if part.init}
    # Terms that only a later write knows are in no list of this snapshot.
    width = max((int(segment.terms[-1]) + 1 for segment in base.segments if len(segment.terms)), default=0)
    frequencies: npt.NDArray[np.int32] = np.zeros(width, dtype=np.int32)
    if known is not None and known.counts is not None:
        frequencies[:] = known.counts
    values |= {
        "counts": frequencies,
        "imposed": Statistics(counts.documents, counts.lengths),
        "base": base,
        "given": (counts, numbers),
    }
    made = ImposedUnion(**values) if isinstance(base, Union) else ImposedSnapshot(**values)
    made.impose(counts, numbers)
    return made
