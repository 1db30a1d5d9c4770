"""Feedback that depends on the query: on its length and its hits' gap, or on its first words (SPEC E007, E009, X28)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..arrays import Floats
from ..errors import ParameterError
from .amp import boost, gaps
from .centroid import SoftCentroid
from .fields import check_whole, check_within, feedback, flag
from .first_sentence import SentenceAmp
from .iterated import Iterated
from .pool import Feedback, Pool

FACTOID: Mapping[str, tuple[str, ...]] = {
    "when": ("was", "is", "were", "are", "did", "does", "do", "will", "has", "have", "had"),
    "who": (
        *("was", "is", "were", "are", "did", "founded", "invented", "discovered", "wrote", "won", "played", "plays"),
        *("directed", "created", "made", "built", "said", "killed", "sang", "sings", "painted", "designed", "owns"),
    ),
    "where": ("was", "is", "were", "are", "did", "does", "do"),
    "which": ("country", "year", "city", "state", "team", "person", "company", "month", "day", "president"),
    "what": ("year", "city", "name", "country", "date", "day", "month", "time", "state", "number", "age"),
    "how": ("many", "much", "long", "old", "far", "tall", "big", "high", "deep", "fast", "heavy", "large", "often"),
}
"""First word -> second words of a factoid question (E009). The Test-Time Compute paper names the first two to four of
each and abbreviates the others; the others are choices of this project."""

_FACTOID = re.compile(
    r"\W*(?:" + "|".join(rf"{first}\s+(?:{'|'.join(second)})" for first, second in FACTOID.items()) + r")\b",
    re.IGNORECASE,
)


def is_factoid(text: str) -> bool:
    """Whether a query starts like a factoid question, that is, one whose answer is a single fact."""
    return _FACTOID.match(text) is not None


_CENTROID = SoftCentroid(alpha=0.524)


# Sources: E009, E033.
@dataclass(frozen=True)
class FactoidRoute(Feedback):
    """Applies `of` except to factoid questions. Those stay as they are: the centroid of their hits harms them."""

    name: ClassVar[str] = "factoid-route"
    of: Feedback = _CENTROID

    def __post_init__(self) -> None:
        feedback(self.name, "of", self.of)

    @property
    def depth(self) -> int:
        return self.of.depth

    @property
    def cost(self) -> float:
        return self.of.cost

    @property
    def needs_sentences(self) -> bool:
        return self.of.needs_sentences

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        plain = np.array([is_factoid(text) for text in pool.texts], dtype=bool)
        return queries if plain.all() else np.where(plain[:, None], queries, self.of(queries, pool))


# Sources: E007, P19, E008, X28.
@dataclass(frozen=True)
class AdaptiveSoftCentroid(Feedback):
    """`SoftCentroid`, with further steps for long queries and for queries with a clear first hit.

    ================================================== =================================================================
    query                                              its vector
    ================================================== =================================================================
    longer than `long_chars`                           two rounds, as `Iterated`; then ``norm(q + cos(q, s) s)``, where
                                                       s is the first sentence of the first search's first hit
    longer than `medium_chars`, tail gap above `gap`   one round; then ``norm(q + w d_1)``, where w is that gap
    any other                                          one round
    ================================================== =================================================================

    Lengths are in characters. The Test-Time Compute paper calls the medium length and the gap "model-specific" and
    gives no number for either. The length 100 is a choice of this project. `gap` should be the `median_gap` of a sample
    of the queries; it is 0.063 over Cranfield with all-MiniLM-L6-v2 and K 3, hence the default. The cost 1.5 is the
    paper's mean over its queries; a long query costs 2.
    """

    name: ClassVar[str] = "adaptive-softcentroid"
    k: int = 3
    alpha: float = 0.5
    tau: float = 0.05
    long_chars: int = 350
    medium_chars: int = 100
    gap: float = 0.06
    fresh: bool = False
    rescored: int = 100

    def __post_init__(self) -> None:
        check_whole(self.name, "k", self.k, least=2)
        check_whole(self.name, "medium_chars", self.medium_chars, least=0)
        check_whole(self.name, "long_chars", self.long_chars, least=self.medium_chars)
        check_within(self.name, "gap", self.gap, 0.0, 2.0)
        flag(self.name, "fresh", self.fresh)
        try:
            self._twice()
        except ParameterError as error:
            raise ParameterError(f"feedback {self.name!r}: {error}") from None

    @property
    def depth(self) -> int:
        return self._twice().depth

    @property
    def cost(self) -> float:
        return 1.5

    @property
    def needs_sentences(self) -> bool:
        return True

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        sizes = np.array([len(text) for text in pool.texts], dtype=np.int64)
        long = sizes > self.long_chars
        sure = ~long & (sizes > self.medium_chars) & (gaps(pool, self.k) > self.gap)
        moved = self._once()(queries, pool)
        if sure.any():
            moved = np.where(sure[:, None], boost(moved, pool, self.k), moved)
        if long.any():
            moved = np.where(long[:, None], SentenceAmp()(self._twice()(queries, pool), pool), moved)
        return moved

    def _once(self) -> SoftCentroid:
        return SoftCentroid(self.k, self.alpha, self.tau)

    def _twice(self) -> Iterated:
        return Iterated(self._once(), 2, self.fresh, self.rescored)


# Sources: E008, X28.
def median_gap(pool: Pool, k: int = 3) -> float:
    """The median of the tail gaps of a calibration set's queries. Queries without hits are left out.

    Raises `ParameterError` if no query has hits.
    """
    known_gaps = gaps(pool, k)[pool.counts > 0]
    if not len(known_gaps):
        raise ParameterError("a median gap needs at least one query with hits")
    return float(np.median(known_gaps))
