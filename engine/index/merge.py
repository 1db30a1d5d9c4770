"""`Merge`: neighbouring segments that become one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .segment import Segment, merge_segments


@dataclass(frozen=True, eq=False)
class Merge:
    """Neighbouring segments that are to become one, and their deleted documents at the time of that decision."""

    segments: tuple[Segment, ...]
    deleted: tuple[npt.NDArray[np.bool_] | None, ...]

    def run(self) -> Segment | None:
        """The merged segment, or None if no document is left."""
        merged = merge_segments(self.segments, self.deleted)
        return merged if merged.size else None
