"""`Union`: several namespaces as one snapshot, for queries that search them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..errors import QueryError
from .bm25 import BM25
from .segment import Segment
from .snapshot import Place, Snapshot
from .tombstones import Tombstones


@dataclass(frozen=True, eq=False)
class Union(Snapshot):
    """The records of several namespaces, one namespace after another, with the statistics of them all.

    Its documents are numbered through the namespaces in the order of `names`. Two records may have one id.
    """

    names: tuple[str, ...] = ()
    firsts_of: tuple[int, ...] = ()
    """The number of each namespace's first document [names]."""

    @classmethod
    def of(cls, members: Mapping[str, Snapshot], bm25: BM25) -> Union:
        """The union of these namespaces, in the order of the mapping."""
        segments: list[Segment] = []
        deleted: dict[int, Tombstones] = {}
        firsts = []
        documents = 0
        for snapshot in members.values():
            deleted |= {len(segments) + number: tombstones for number, tombstones in snapshot.tombstones.items()}
            segments += snapshot.segments
            firsts.append(documents)
            documents += snapshot.numbers
        made = cls((), bm25, names=tuple(members), firsts_of=tuple(firsts)).extended(segments, deleted)
        assert isinstance(made, Union)
        return made

    def namespaces_of(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """The namespace of each of these document numbers, same shape; None for -1."""
        # An empty namespace begins where the next one does, so the last of those that begin there is the right one.
        places = np.searchsorted(np.array(self.firsts_of), documents, side="right")
        return np.array([None, *self.names], dtype=object)[places]

    def find_all(self, ids: Sequence[str], hashes: npt.NDArray[np.uint64] | None = None) -> dict[str, Place]:
        """As `Snapshot.find_all`. Raises `QueryError` for an id that more than one of the namespaces holds."""
        places: dict[str, Place] = {}
        for name, (start, stop) in zip(self.names, self._ranges(), strict=True):
            member = Snapshot(self.segments[start:stop], self.bm25, self._tombstones(start, stop))
            for record_id, place in member.find_all(ids, hashes).items():
                if record_id in places:
                    raise QueryError(
                        f"several of the namespaces that the query searches hold the id {record_id!r}, {name!r} among "
                        "them; ask for it with a query of one namespace"
                    )
                places[record_id] = Place(start + place.segment, place.position)
        return places

    def _emptied(self, kept: npt.NDArray[np.int64]) -> Snapshot:
        # It knows where its namespaces begin: a session of one must not go on in the next.
        firsts = np.searchsorted(kept, np.array(self.firsts_of, dtype=np.int64))
        return Union((), self.bm25, names=self.names, firsts_of=tuple(firsts.tolist()))

    def _ranges(self) -> list[tuple[int, int]]:
        """The numbers [start, stop) of each namespace's segments."""
        bounds = [*np.searchsorted(np.array(self.firsts), np.array(self.firsts_of)).tolist(), len(self.segments)]
        return list(pairwise(bounds))

    def _tombstones(self, start: int, stop: int) -> dict[int, Tombstones]:
        return {number - start: held for number, held in self.tombstones.items() if start <= number < stop}


def namespaces_of(snapshot: Snapshot, namespace: str, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
    """The namespace of each document that a query of `namespace` found in `snapshot`, same shape; None for -1."""
    if isinstance(snapshot, Union):
        return snapshot.namespaces_of(documents)
    names = np.full(documents.shape, None, dtype=object)
    names[documents >= 0] = namespace
    return names
