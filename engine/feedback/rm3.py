"""RM3: the words of the first hits join the query (SPEC A132).

The first hits d with scores s_d and words w make a model of what is relevant,

    R(w) = sum_d  s_d * count of w in d / length of d

of which the `terms` likeliest words are kept and scaled to add up to 1. The new query is
``alpha * Q + (1 - alpha) * R``, where Q(w) is the share of w in those words of the query that a record holds. Its
weights are rounded to steps of 1/256, so that the sums of BM25 stay integers: every backend gives the same bits, and
queries stay in int32 up to an idf of some 14.

The AgentIR paper tried it with alpha .5 and ten hits, lost .012 of Hit@5 on LongMemEval and left it off. It gives no
number of terms; ten is that of the usual implementations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ParameterError

STEPS = 256
"""Steps of a weight of 1."""


@dataclass(frozen=True)
class RM3:
    """Term feedback for `fanrank.strategies.Lexical`.

    `documents` is how many hits are read, `terms` how many of their words join the query, and `alpha` what remains of
    the query's own words, in [0, 1]. Raises `ParameterError` for a value out of range.
    """

    documents: int = 10
    terms: int = 10
    alpha: float = 0.5

    def __post_init__(self) -> None:
        for name in ("documents", "terms"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1000:
                raise ParameterError(f"rm3: {name} must be an integer in [1, 1000], not {value!r}")
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, (int, float)) or not 0.0 <= self.alpha <= 1.0:
            raise ParameterError(f"rm3: alpha must be a number in [0, 1], not {self.alpha!r}")

    def __str__(self) -> str:
        return f"rm3 of {self.documents} hits, {self.terms} terms, alpha {self.alpha:g}"

    def __call__(
        self, query: Sequence[int], hits: Sequence[tuple[float, Sequence[int]]], names: Sequence[str]
    ) -> dict[int, int]:
        """The new query: steps of each term's weight, those of 0 left out.

        `query` holds the term numbers of the query, `hits` the score and the term numbers of each hit, best first, and
        `names` the term of each number. Of equally likely words the alphabetically first are kept, so the numbering
        does not matter. Without hits that hold words the query keeps its own words alone.
        """
        own = _shares(query)
        found: dict[int, float] = {}
        for score, terms in hits:
            if score > 0.0:
                for term, share in _shares(terms).items():
                    found[term] = found.get(term, 0.0) + score * share
        kept = sorted(found, key=lambda term: (-found[term], names[term]))[: self.terms]
        mass = 0.0
        for term in kept:
            mass += found[term]
        if not mass:
            return {term: steps for term, share in own.items() if (steps := round(STEPS * share))}
        weights = {term: self.alpha * share for term, share in own.items()}
        for term in kept:
            weights[term] = weights.get(term, 0.0) + (1.0 - self.alpha) * (found[term] / mass)
        return {term: steps for term, weight in weights.items() if (steps := round(STEPS * weight))}


def _shares(terms: Sequence[int]) -> Mapping[int, float]:
    return {term: count / len(terms) for term, count in Counter(terms).items()}
