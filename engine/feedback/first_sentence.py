"""First-sentence feedback: the first sentence of the best hit moves the query (E005, P19, P97).

It costs one more encoder pass, unless the sentence's vector is in the cache (engine/feedback/anchors.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..arrays import Floats
from .fields import check_above, check_whole
from .pool import Feedback, Pool, interpolate, lengths, normalize_moved, sentences_of


@dataclass(frozen=True)
class FirstSentence(Feedback):
    """``norm((1 - alpha) q + alpha s)``, where s is the first sentence of the first hit."""

    name: ClassVar[str] = "first-sentence"
    alpha: float = 0.5

    def __post_init__(self) -> None:
        check_above(self.name, "alpha", self.alpha, 0.0, 1.0)

    @property
    def depth(self) -> int:
        return 1

    @property
    def cost(self) -> float:
        return 2.0

    @property
    def needs_sentences(self) -> bool:
        return True

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        anchors = sentences_of(self.name, pool, 1)
        if not anchors.shape[1]:
            return queries
        return interpolate(queries, anchors[:, 0], self.alpha, lengths(anchors[:, 0]) > 0.0)


# Sources: P19, P97, P103.
@dataclass(frozen=True)
class SentenceAmp(Feedback):
    """``norm(q + cos(q, s) s)``, where s is the nearest of the first sentences of the first K hits.

    Among equally near sentences, s is that of the earlier hit. For two rounds, each with a fresh search, use
    `Iterated`.
    """

    name: ClassVar[str] = "sentence-amp"
    k: int = 1

    def __post_init__(self) -> None:
        check_whole(self.name, "k", self.k)

    @property
    def depth(self) -> int:
        return self.k

    @property
    def cost(self) -> float:
        return 1.0 + self.k

    @property
    def needs_sentences(self) -> bool:
        return True

    def __call__(self, queries: Floats, pool: Pool) -> Floats:
        anchors = np.ascontiguousarray(sentences_of(self.name, pool, self.k))
        if not anchors.shape[1]:
            return queries
        cosines = np.where(anchors.any(axis=2), (queries[:, None, :] * anchors).sum(axis=2), -np.inf)
        best = cosines.argmax(axis=1)[:, None]
        weights = np.take_along_axis(cosines, best, axis=1)
        some = np.isfinite(weights[:, 0]) & (weights[:, 0] != 0.0)
        anchor = np.take_along_axis(anchors, best[:, :, None], axis=1)[:, 0]
        return normalize_moved(queries, queries + np.where(some[:, None], weights, 0.0) * anchor, some)
