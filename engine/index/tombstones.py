"""Tombstones: which documents of a segment are deleted, and what the statistics subtract for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..locks import once
from .document_terms import Counted, count_terms
from .segment import NESTED, Segment


@dataclass(frozen=True, eq=False)
class Tombstones:
    """The deleted documents of one segment, and what the statistics subtract for them."""

    deleted: npt.NDArray[np.bool_]  # [documents of the segment]
    terms: npt.NDArray[np.int64]  # [terms] positions in the segment's terms, ascending
    frequencies: npt.NDArray[np.int64]  # [terms] how many deleted documents have each term
    lengths: tuple[int, ...]  # tokens of the deleted documents, one number for each field

    @classmethod
    def none(cls, segment: Segment) -> Tombstones:
        nothing = np.zeros(0, dtype=np.int64)
        return cls(np.zeros(segment.size, dtype=np.bool_), nothing, nothing, (0,) * len(segment.lengths))

    @classmethod
    def of(cls, segment: Segment, deleted: npt.NDArray[np.bool_]) -> Tombstones:
        """Those of the documents where `deleted` [size] is true. Reads all postings of the segment."""
        documents = np.flatnonzero(deleted)
        return cls.none(segment).extended(segment, documents, {"": count_terms(segment, deleted)})

    def extended(self, segment: Segment, documents: Integers, counted: Mapping[str, Counted]) -> Tombstones:
        """These, and those of further documents of the segment. `counted` is what `count_documents` says of them."""
        deleted = self.deleted.copy()
        deleted[documents] = True
        lengths = segment.lengths[:, documents].sum(axis=1, dtype=np.int64).tolist()
        new = counted[""]
        places = np.searchsorted(self.terms, new.terms)
        known = self.terms.take(places, mode="clip") == new.terms if len(self.terms) else np.zeros(len(places), bool)
        frequencies = self.frequencies.copy()
        frequencies[places[known]] += new.frequencies[known]
        following = Tombstones(
            deleted,
            np.insert(self.terms, places[~known], new.terms[~known]),
            np.insert(frequencies, places[~known], new.frequencies[~known]),
            tuple(before + length for before, length in zip(self.lengths, lengths, strict=True)),
        )
        for name in counted.keys() & NESTED:
            inner = segment.nested(name)
            before = self._nested.get(inner) if self.count else Tombstones.none(inner)
            if before is not None:
                following._nested[inner] = before.extended(inner, documents, {"": counted[name]})
        return following

    @once
    def alive(self) -> npt.NDArray[np.bool_]:
        return ~self.deleted

    @once
    def count(self) -> int:
        return int(np.count_nonzero(self.deleted))

    @property
    def bytes(self) -> int:
        """Bytes of the flags, terms and counts."""
        return self.deleted.nbytes + self.terms.nbytes + self.frequencies.nbytes

    @property
    def cache_bytes(self) -> int:
        """Bytes of what searches worked out."""
        alive = vars(self).get("alive")
        windows = sum(numbers.nbytes for numbers in list(self.windows.values()))
        nested = sum(inner.bytes + inner.cache_bytes for inner in list(self._nested.values()))
        derived = sum(int(array.nbytes) for made in list(self.derived.values()) for array in made.arrays)
        return windows + nested + derived + (0 if alive is None else int(alive.nbytes))

    @once
    def derived(self) -> dict[Any, Any]:
        """What other files work out for these tombstones once, by their names for it and the segment. Each has its
        `arrays`.
        """
        return {}

    @once
    def windows(self) -> dict[float, npt.NDArray[np.int64]]:
        """What `Snapshot.windows` returned for the segment, kept by the length of a window."""
        return {}

    def nested(self, inner: Segment) -> Tombstones:
        """The tombstones of the same documents in `inner`, a nested segment of this segment."""
        known = self._nested.get(inner)
        if known is None:
            known = self._nested[inner] = Tombstones.of(inner, self.deleted)
        return known

    def next_expiry(self, segment: Segment) -> float:
        """When the first document of the segment that is not deleted expires; inf if none does."""
        known = self._next_expiry.get(segment)
        if known is None:
            expires = segment.columns.numbers["expires"][~self.deleted]
            known = self._next_expiry[segment] = float(expires[~np.isnan(expires)].min(initial=math.inf))
        return known

    @once
    def _next_expiry(self) -> dict[Segment, float]:
        return {}

    @once
    def _nested(self) -> dict[Segment, Tombstones]:
        return {}


NOTHING_DELETED: Mapping[int, Tombstones] = MappingProxyType({})
