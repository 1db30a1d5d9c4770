"""Feedback in several rounds (SPEC E010, X29)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..arrays import Floats
from ..errors import ParameterError
from .centroid import SoftCentroid
from .fields import check_whole, feedback, flag
from .pool import Feedback, Pool, next_pool

_ONE = SoftCentroid()


# Sources: E024, P40, P103.
@dataclass(frozen=True)
class Iterated(Feedback):
    """Applies `of` in `rounds` rounds. Each round uses the hits of the query that the round before moved.

    With `fresh` these are the hits of a new search. Otherwise they are the first `rescored` hits of the first search,
    ordered anew by cosine alone; where a fused score orders the pool, choose `fresh`. One round is `of` itself, which
    is the default of the Test-Time Compute paper. On symmetric tasks the paper's gains peak at 2 to 5 rounds.
    """

    name: ClassVar[str] = "iterated"
    of: Feedback = _ONE
    rounds: int = 2
    fresh: bool = False
    rescored: int = 100

    def __post_init__(self) -> None:
        feedback(self.name, "of", self.of)
        check_whole(self.name, "rounds", self.rounds)
        flag(self.name, "fresh", self.fresh)
        check_whole(self.name, "rescored", self.rescored, least=self.of.depth)
        if self.rounds > 1 and self.of.needs_sentences and not self.fresh:
            raise ParameterError(
                f"feedback {self.name!r}: {self.of.name!r} reads sentences of the first hits, which rescored hits do "
                "not bring; use fresh=True"
            )

    @property
    def depth(self) -> int:
        return self.of.depth if self.fresh or self.rounds == 1 else self.rescored

    @property
    def cost(self) -> float:
        return 1.0 + self.rounds * (self.of.cost - 1.0)

    @property
    def needs_sentences(self) -> bool:
        return self.of.needs_sentences

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        moved = self.of(queries, pool)
        for _ in range(self.rounds - 1):
            queries, pool = next_pool(self.name, pool, queries, moved, self.fresh, self.rescored)
            moved = self.of(queries, pool)
        return moved
