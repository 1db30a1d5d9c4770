"""A cascade over any backend, one query at a time, through callbacks (SPEC A078, A082; Algorithm 4, X04).

For memories that live elsewhere: `Engine.search(batch, strategy=Cascade(...))` decides the same way, a batch at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np

from ..errors import ParameterError
from ..hybrid.strategy import DEPTH
from ..records.query import check_k
from .cascade import Cascade

K = 60.0
"""Of reciprocal ranks (A060)."""

AnyQuery = TypeVar("AnyQuery")
Hit = tuple[Hashable, float]
"""A record, by whatever names it in the backend, and its score."""


@dataclass(frozen=True)
class Retrieved:
    """The answer to one query: its hits, best first, whether dense evidence was asked for, the wall-clock milliseconds
    of it all, callbacks included, and BM25's confidence, None where fewer than two records matched."""

    results: list[Hit]
    escalated: bool
    latency_ms: float
    confidence: float | None


@dataclass(frozen=True)
class CascadeRouter:
    """Algorithm 4 by `Cascade.decide`. Of the cascade everything counts that decides; what answers an escalated query
    are the callbacks, in place of `Cascade.escalate` and `Cascade.classifier`.

    `depth` is how many hits a callback is asked for, more where k or the confidence needs more: what is fused must be
    longer than what is wanted of it. Raises `ParameterError`.
    """

    cascade: Cascade = field(default_factory=Cascade)
    depth: int = DEPTH

    def __post_init__(self) -> None:
        object.__setattr__(self, "cascade", Cascade.of(self.cascade))
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 2:
            raise ParameterError(f"a cascade router's depth must be 2 or more, not {self.depth!r}")
        if self.cascade.classifier is not None:
            raise ParameterError(
                "a cascade router does not read queries, so it cannot use the cascade's classifier; leave that out, "
                "and give `retrieve` qtype_fn=lambda query: classifier.predict([query])[0]"
            )

    def retrieve(
        self,
        query: AnyQuery,
        k: int,
        bm25_fn: Callable[[AnyQuery, int], Sequence[Hit]],
        dense_fn: Callable[[AnyQuery, int], Sequence[Hit]],
        fuse_fn: Callable[[AnyQuery, Sequence[Hit], Sequence[Hit]], Sequence[Hit]] | None = None,
        qtype_fn: Callable[[AnyQuery], str | None] | None = None,
    ) -> Retrieved:
        """The k best, or fewer, for one query, of whatever kind the callbacks take.

        `bm25_fn` and `dense_fn` take the query and a number of hits, best first, each record once; more are cut off.
        What scores 0 or less did not match BM25, so a list filled up with zeros is as sure as it was before.
        `fuse_fn` makes one list of the two, best first, which is taken as given; where it is None `reciprocal_ranks`,
        which is ``agent_rrf`` for records of unknown age. `qtype_fn` tells a query's type for `Cascade.taus` and
        `Cascade.lexical_types`.
        `dense_fn` and `fuse_fn` are not called for a query that BM25 is sure of.

        Raises `QueryError` for a bad k, `ParameterError` for lists that do not keep to this; what callbacks
        raise is passed on.
        """
        started = time.perf_counter()
        k = check_k(k)
        wanted = max(k, self.depth, self.cascade.looks_at)
        lexical = _checked("bm25_fn", bm25_fn(query, wanted), wanted)
        scores = np.array([[score for _, score in lexical] + [-math.inf] * 2], dtype=np.float64)
        matched = np.array([(scores > 0.0).sum()], dtype=np.int64)
        type = None if qtype_fn is None else qtype_fn(query)
        confidence, _, skipped = self.cascade.decide(scores, matched, [type])
        escalated = not skipped[0]
        if escalated:
            dense = _checked("dense_fn", dense_fn(query, wanted), wanted)
            fused = reciprocal_ranks(lexical, dense) if fuse_fn is None else list(fuse_fn(query, lexical, dense))
        else:
            fused = lexical
        known = None if math.isnan(confidence[0]) else float(confidence[0])
        return Retrieved(fused[:k], escalated, (time.perf_counter() - started) * 1e3, known)


# Sources: A060.
def reciprocal_ranks(*lists: Sequence[Hit], k: float = K) -> list[Hit]:
    """``sum over the lists of 1 / (k + rank)``, ranks from 1; of equals, the one met first, list by list."""
    fused: dict[Hashable, float] = {}
    for hits in lists:
        for rank, (record, _) in enumerate(hits, 1):
            fused[record] = fused.get(record, 0.0) + 1.0 / (k + rank)
    return sorted(fused.items(), key=lambda hit: -hit[1])


def _checked(name: str, hits: Sequence[Hit], wanted: int) -> list[Hit]:
    own = list(hits)[:wanted]
    scores = [score for _, score in own]
    if not all(math.isfinite(score) for score in scores):
        raise ParameterError(f"{name} gave a score that is not finite")
    for place, (better, worse) in enumerate(pairwise(scores), 2):
        if worse > better:
            raise ParameterError(f"{name} must give the best first; hit {place} scores {worse!r} after {better!r}")
    if len({record for record, _ in own}) < len(own):
        raise ParameterError(f"{name} gave a record twice")
    return own
