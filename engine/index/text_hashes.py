"""Hashes of the texts of a segment's documents, by which records with the same text are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Integers, ranges
from ..locks import once


@dataclass(frozen=True, eq=False)
class TextHashes:
    """64-bit hashes of texts. Of a document that was deleted before they were read, there is none."""

    values: npt.NDArray[np.uint64]  # [documents]
    known: Flags  # [documents]

    @once
    def order(self) -> Integers:
        """The documents with a hash, by hash, then by arrival."""
        documents = np.flatnonzero(self.known)
        return documents[np.argsort(self.values[documents], kind="stable")]

    @once
    def sorted(self) -> npt.NDArray[np.uint64]:
        """The hashes of `order`."""
        return self.values[self.order]

    def find(self, wanted: npt.NDArray[np.uint64]) -> tuple[Integers, Integers]:
        """(places, documents): which documents have the hash at which place of `wanted`, by place, then by arrival."""
        low = np.searchsorted(self.sorted, wanted)
        counts = np.searchsorted(self.sorted, wanted, "right") - low
        return np.repeat(np.arange(len(wanted)), counts), self.order[ranges(low, counts)]

    @property
    def arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        return self.values, self.known, *(vars(self)[name] for name in ("order", "sorted") if name in vars(self))

    @classmethod
    def none(cls, size: int) -> TextHashes:
        return cls(np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.bool_))

    def take(self, kept: Flags) -> TextHashes:
        """Those of the documents where `kept` is true."""
        return TextHashes(self.values[kept], self.known[kept])

    @classmethod
    def join(cls, parts: Sequence[TextHashes]) -> TextHashes:
        """Those of neighbouring documents."""
        return cls(np.concatenate([part.values for part in parts]), np.concatenate([part.known for part in parts]))
