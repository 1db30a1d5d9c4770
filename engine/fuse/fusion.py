"""What every fusion method offers."""

from __future__ import annotations

from typing import ClassVar, Protocol

from .candidates import Candidates, Fused


class Fusion(Protocol):
    """A frozen dataclass whose fields are plain JSON values; calling it scores a batch's candidates.

    Elementwise float64 in a fixed order, so that a query's scores depend on nothing but its own candidates.
    """

    name: ClassVar[str]

    def __call__(self, candidates: Candidates) -> Fused: ...
