"""Documents in groups, such as those of one exchange, or those that agree in a column or in their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Integers, ranges
from .columns import ABSENT
from .masks import CompiledFilter
from .snapshot import Snapshot
from .text_hashes import TextHashes


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of a snapshot's documents."""

    of: Integers  # [documents] the number of each one's group, `ABSENT` for one that stands alone
    members: Integers  # documents, one group after another, in the order of arrival
    offsets: Integers  # [groups + 1] where each begins in `members`

    @classmethod
    def by(cls, values: npt.NDArray[Any], chosen: Flags) -> Groups:
        """The `chosen` [documents] in groups of equal `values` [documents]."""
        documents = np.flatnonzero(chosen)
        members = documents[np.argsort(values[documents], kind="stable")]
        begins = _begins(values[members])
        of = np.full(len(values), ABSENT, dtype=np.int64)
        of[members] = np.cumsum(begins) - 1
        return cls(of, members, np.append(np.flatnonzero(begins), len(members)))

    def named(self, snapshot: Snapshot, documents: Integers, *, others: bool = False) -> npt.NDArray[np.object_]:
        """The ids of each document's group in the order of arrival, same shape; None for -1.

        With `others` the document itself is left out.
        """
        names = np.full(documents.shape, None, dtype=object)
        there = documents >= 0
        own = documents[there]
        number = self.of[own]
        counts = np.where(number == ABSENT, 1, self.offsets[number + 1] - self.offsets[number])
        if others:
            # Most records have no twin.
            names[there] = _NOBODY
            several = counts > 1
            if not several.any():
                return names
            there[there] = several
            own, number, counts = own[several], number[several], counts[several]
        members = np.repeat(own, counts)
        inside = np.repeat(number != ABSENT, counts)
        members[inside] = self.members[ranges(self.offsets[number], counts)[inside]]
        if others:
            members, counts = members[members != np.repeat(own, counts)], counts - 1
        stops = np.cumsum(counts)
        ids = snapshot.ids_of(members).tolist()
        found = (tuple(ids[stop - count : stop]) for stop, count in zip(stops.tolist(), counts.tolist(), strict=True))
        names[there] = np.fromiter(found, dtype=object, count=len(own))
        return names


_NOBODY = np.empty((), dtype=object)
_NOBODY[()] = ()


def _begins(values: npt.NDArray[Any]) -> Flags:
    """Which of these sorted values are the first of their kind."""
    begins = np.ones(len(values), dtype=np.bool_)
    begins[1:] = values[1:] != values[:-1]
    return begins


@dataclass(frozen=True, eq=False, repr=False)
class Chosen(CompiledFilter):
    """Passes some documents of one snapshot, whatever their columns hold."""

    masks: dict[int, Flags]
    """By the identity of a segment's columns: which of its documents pass."""
    kept = False

    def mask(self, columns: object) -> Flags:
        return self.masks[id(columns)]


def first_of_each(snapshot: Snapshot, hashes: Sequence[TextHashes], eligible: Sequence[Flags]) -> Chosen:
    """The first of the `eligible` documents with each text, and those whose text is not known; both by segment.

    A segment sorts its hashes once, so a write costs looking up its own documents among those before them.
    """
    masks: dict[int, Flags] = {}
    earlier: list[npt.NDArray[np.uint64]] = []
    for segment, held, flags in zip(snapshot.segments, hashes, eligible, strict=True):
        documents = held.order[flags[held.order]]
        begins = _begins(held.values[documents])
        documents = documents[begins]
        own = held.values[documents]
        new = np.ones(len(own), dtype=np.bool_)
        for known in earlier:
            if len(known):
                new &= known.take(np.searchsorted(known, own), mode="clip") != own
        mask = flags & ~held.known
        mask[documents[new]] = True
        masks[id(segment.columns)] = mask
        earlier.append(own)
    return Chosen(masks)
