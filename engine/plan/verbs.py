"""The protocol of a search that every backend implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..timing import Phases
from .plan import Plan

Output = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]


class Search(Protocol):
    """The search function, with the same signature in every backend. `cpu_fallback/search.py` states its promises."""

    def __call__(
        self,
        plans: Sequence[Plan],
        batch: int,
        k: int,
        *,
        threads: int = 1,
        execution: str = "auto",
        phases: Phases | None = None,
    ) -> Output: ...
