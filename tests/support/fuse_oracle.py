"""What each fusion says, a second time: one query, one document at a time, in Python's own floats.

The exponential alone is the product's, as Python's may round the other way; tests/fuse compares it with decimals.
"""

import math
from collections.abc import Callable

import numpy as np
from support.fuse_cases import DAY, Evidence, FusionQuery

from fanrank.engine.fuse.age import exponential

NAMES = ["bm25", "dense", "other"]
Shares = list[dict[str, float]]  # of each candidate: part -> share, in order


def ranks(asked: FusionQuery, name: str) -> dict[int, int]:
    """document -> rank from 1, of those listed."""
    listed = [document for document in asked.documents if document.evidence[name].listed]
    listed.sort(key=lambda document: (-document.evidence[name].score, document.number))
    return {document.number: place for place, document in enumerate(listed, 1)}


def rrf(
    asked: FusionQuery,
    k: float = 60.0,
    base: int = 1,
    weights: dict[str, float] | None = None,
    worth: Callable[[str, float], float] = lambda name, score: 1.0,
) -> Shares:
    """A060; `worth` is what a score is worth, for B050."""
    found: Shares = [{} for _ in asked.documents]
    for name in NAMES:
        places = ranks(asked, name)
        weight = (weights or {}).get(name, 1.0)
        for shares, document in zip(found, asked.documents, strict=True):
            shares[name] = 0.0
            if document.number in places:
                value = weight * worth(name, document.evidence[name].score)
                shares[name] = value / (k + (places[document.number] - 1 + base))
    return found


def score_rrf(
    asked: FusionQuery, weights: dict[str, float] | None = None, scales: dict[str, str] | None = None
) -> Shares:
    chosen = {"bm25": "max", "dense": "clamp", "other": "max"} | (scales or {})

    def worth(name: str, score: float) -> float:
        score = max(score, 0.0)
        if chosen[name] == "one":
            return 1.0
        if chosen[name] == "clamp":
            return math.sqrt(min(score, 1.0))
        if chosen[name] == "ratio":
            return math.sqrt(score / (score + 1.0))
        evidence = [document.evidence[name] for document in asked.documents]
        largest = max(own.score for own in evidence if own.scored)
        return math.sqrt(score / largest) if largest > 0.0 else 0.0

    return rrf(asked, weights=weights, worth=worth)


def standardized(own: list[Evidence], searched: list[bool]) -> list[float]:
    """z-scores over what a channel scored among those searched; the lowest of them for what it did not score."""
    counted = [evidence.score for evidence, among in zip(own, searched, strict=True) if evidence.scored and among]
    total = squares = 0.0
    for score in counted:
        total += score
    mean = total / max(len(counted), 1)
    for score in counted:
        squares += (score - mean) * (score - mean)
    spread = math.sqrt(squares / max(len(counted), 1))
    z = [0.0 if spread < 1e-9 else (evidence.score - mean) / spread for evidence in own]
    lowest = min((v for v, e, among in zip(z, own, searched, strict=True) if e.scored and among), default=0.0)
    return [value if evidence.scored else lowest for value, evidence in zip(z, own, strict=True)]


def stretched(asked: FusionQuery, name: str) -> list[float]:
    scores = [document.evidence[name].score for document in asked.documents if document.evidence[name].scored]
    if not scores or max(scores) == min(scores):
        return [0.0] * len(asked.documents)
    return [
        (own.score - min(scores)) / (max(scores) - min(scores)) if own.scored else 0.0
        for own in (document.evidence[name] for document in asked.documents)
    ]


def zscore(asked: FusionQuery, alpha: float) -> Shares:
    everyone = [True] * len(asked.documents)
    both = (standardized([d.evidence[name] for d in asked.documents], everyone) for name in ("bm25", "dense"))
    return [{"bm25": alpha * first, "dense": (1.0 - alpha) * second} for first, second in zip(*both, strict=True)]


def boosted(
    asked: FusionQuery, alpha: float, below: float, boosts: dict[str, float], first: str = "bm25", second: str = "dense"
) -> Shares:
    """The third channel divided by its largest score, less the share of the others' candidates that it scored."""
    searched = [d.evidence[first].listed or d.evidence[second].listed for d in asked.documents]
    found: Shares = [{} for _ in asked.documents]
    for name, weight in ((first, alpha), (second, 1.0 - alpha)):
        z = standardized([d.evidence[name] for d in asked.documents], searched)
        for shares, value in zip(found, z, strict=True):
            shares[name] = weight * (below * value if value < 0.0 else value)
    for name in NAMES:
        if name in (first, second):
            continue
        own = [d.evidence[name] for d in asked.documents]
        share = sum(e.scored and among for e, among in zip(own, searched, strict=True)) / max(sum(searched), 1)
        largest = max((max(e.score, 0.0) for e in own if e.scored), default=0.0)
        for shares, evidence in zip(found, own, strict=True):
            worth = max(evidence.score, 0.0) / (largest if largest > 0.0 else 1.0) if evidence.scored else 0.0
            shares[name] = boosts.get(name, 0.5) * (1.0 - share) * worth
    return found


def linear(asked: FusionQuery, weights: dict[str, float], relative: list[str]) -> Shares:
    """The lowest score for what a channel did not score; relative channels divided by their largest."""
    found: Shares = [{} for _ in asked.documents]
    for name, weight in weights.items():
        own = [document.evidence[name] for document in asked.documents]
        scores = [evidence.score for evidence in own if evidence.scored]
        lowest, largest = min(scores, default=0.0), max(scores, default=0.0)
        for shares, evidence in zip(found, own, strict=True):
            score = evidence.score if evidence.scored else lowest
            shares[name] = weight * (score / largest if name in relative and largest > 0.0 else score)
    return found


def minmax(asked: FusionQuery, weight: float, normalize_dense: bool) -> Shares:
    dense = (
        stretched(asked, "dense")
        if normalize_dense
        else [
            document.evidence["dense"].score if document.evidence["dense"].scored else 0.0
            for document in asked.documents
        ]
    )
    both = zip(stretched(asked, "bm25"), dense, strict=True)
    return [{"bm25": weight * first, "dense": (1.0 - weight) * second} for first, second in both]


def faded(age: float) -> float:
    return float(exponential(np.array([-age]))[0])


def agent_rrf(asked: FusionQuery, alpha: float, beta: float, taus: dict[str, float], types: list[str] | None) -> Shares:
    found = rrf(asked)
    on = alpha > 0.0 and (asked.type is None or types is None or asked.type in types)
    tau = 30.0 if asked.type is None else taus.get(asked.type, 30.0)
    for shares, document in zip(found, asked.documents, strict=True):
        shares["recency"] = 0.0
        if on and not math.isnan(document.time):
            shares["recency"] = alpha * faded(max(asked.now - document.time, 0.0) / DAY / tau)
        shares["importance"] = 0.0 if math.isnan(document.importance) else beta * document.importance
    return found


def decay(asked: FusionQuery, name: str, rate: float, whole_hours: bool) -> Shares:
    found: Shares = []
    for document in asked.documents:
        own = document.evidence[name]
        hours = 0.0 if math.isnan(document.time) else max(asked.now - document.time, 0.0) / 3600.0
        hours = math.floor(hours) if whole_hours else hours
        found.append({name: own.score * faded(rate * hours) if own.listed else 0.0})
    return found
