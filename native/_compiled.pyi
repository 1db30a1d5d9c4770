"""Types of the extension module, by binding file."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# search_binding.cpp

Setting = tuple[object, float, float, float, float]
"""(masks or None, since, until, now, rate)."""
Work = tuple[int, int, int, int, int, int, int]
"""(postings, row entries, lookups, bytes; nanoseconds of analysis, of planning, of scoring)."""

class Segment:
    def survey(self, saturated: npt.NDArray[np.float64], position: int, /) -> tuple[float, float, float, float]: ...
    def find(self, position: int, document: int, /) -> int: ...

class Masks: ...

class Snapshot:
    def search_texts(
        self,
        analysis: Any,
        texts: Sequence[str],
        k: int,
        setting: Setting,
        options: tuple[int, ...],
        threads: int,
        unit: float,
        scores: npt.NDArray[np.float64],
        documents: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int32],
        source: npt.NDArray[np.int64],
        /,
    ) -> Work | None: ...
    def search_terms(
        self,
        terms: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        weights: npt.NDArray[np.int64] | None,
        rows: npt.NDArray[np.int64],
        k: npt.NDArray[np.int64],
        setting: npt.NDArray[np.int64],
        settings: tuple[Setting, ...],
        options: tuple[int, ...],
        threads: int,
        quanta: npt.NDArray[np.int64],
        documents: npt.NDArray[np.int64],
        counts: npt.NDArray[np.int32],
        /,
    ) -> Work | None: ...
    def bytes(self) -> int: ...

def segment(*arrays: Any) -> Segment: ...
def masks(arrays: tuple[npt.NDArray[np.bool_], ...], /) -> Masks: ...
def snapshot(*values: Any) -> Snapshot: ...
