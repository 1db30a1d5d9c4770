"""What tuning found: the policy, what it was chosen from, and what it is worth on other questions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..hybrid.strategy import BM25
from ..metrics.bootstrap import Comparison
from ..route.cost import amortised
from ..route.policy import Answerer
from .front import Point, beats, pareto
from .thresholds import Fold, Step


# Sources: A121.
@dataclass(frozen=True)
class Confirmation:
    """The systems and the chosen policy on questions that had no part in the choice.

    `differences` are the policy's mean less each system's, with a paired bootstrap over the questions.
    """

    n: int
    chosen: Point
    systems: tuple[Point, ...]
    differences: dict[str, Comparison]


@dataclass(frozen=True)
class Tuned:
    """What `tune` found. `policy` is what to search with; `about` goes into its file, for `check` (drift.py)."""

    policy: Answerer
    chosen: Point
    points: tuple[Point, ...]
    systems: tuple[Point, ...]
    escalation: str
    """The best system beside BM25, which the sweep and the thresholds by type escalate to."""
    steps: tuple[Step, ...]
    types: dict[str, dict[str, Any]]
    """Of each type its questions, best system, threshold, skipped share and median confidence."""
    folds: dict[str, tuple[Fold, ...]]
    classified: float | None
    """The share of types that the classifier told right of questions it had not seen."""
    parity: dict[str, Comparison]
    """The chosen policy's mean less each system's, on the labelled questions."""
    confirmation: Confirmation | None
    about: dict[str, Any]

    @property
    def front(self) -> list[Point]:
        """The points worth having, from the cheapest on."""
        return pareto(self.points)

    @property
    def beaten_by(self) -> list[Point]:
        """The points of the front that are as accurate and as cheap as the chosen one; none where it is on the front.

        It was chosen all the same where these are thresholds that were not fitted, or learned what they cannot keep,
        or cost less by next to nothing.
        """
        front = self.front
        return [] if self.chosen in front else [point for point in front if beats(point, self.chosen)]

    # Sources: A085, X11.
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values. Milliseconds of `sweep` and `cross_validation` are made up of the measured parts:
        BM25's, and those of the escalation for the share that is escalated; all others are measured."""
        cost = {point.name: point.milliseconds for point in self.systems}

        def spent(skip: float) -> float:
            return amortised(skip, cost[BM25], cost[BM25] + cost[self.escalation])

        about = {name: value for name, value in self.about.items() if name not in ("reference", "systems", "chosen")}
        return {
            **about,
            "systems": {point.name: point_to_dict(point) for point in self.systems},
            "escalation": self.escalation,
            "types": self.types,
            "sweep": [{**asdict(step), "milliseconds": spent(step.skip)} for step in self.steps],
            "cross_validation": {
                name: {
                    "folds": [{**asdict(fold), "milliseconds": spent(fold.skip)} for fold in folds],
                    "accuracy": float(np.mean([fold.accuracy for fold in folds])),
                    "deviation": float(np.std([fold.accuracy for fold in folds])),
                    "skip": float(np.mean([fold.skip for fold in folds])),
                    "milliseconds": float(np.mean([spent(fold.skip) for fold in folds])),
                }
                for name, folds in self.folds.items()
            },
            "classifier": None if self.classified is None else {"accuracy": self.classified},
            "points": [{"name": point.name, **point_to_dict(point)} for point in self.points],
            "front": [point.name for point in self.front],
            "chosen": {
                "name": self.chosen.name,
                **point_to_dict(self.chosen),
                "policy": str(self.policy),
                "on_front": not self.beaten_by,
                "beaten_by": [point.name for point in self.beaten_by],
            },
            "parity": {name: asdict(found) for name, found in self.parity.items()},
            "confirmation": None
            if self.confirmation is None
            else {
                "n": self.confirmation.n,
                "chosen": point_to_dict(self.confirmation.chosen),
                "systems": {point.name: point_to_dict(point) for point in self.confirmation.systems},
                "differences": {name: asdict(found) for name, found in self.confirmation.differences.items()},
            },
        }


def point_to_dict(point: Point) -> dict[str, Any]:
    """Plain JSON values of a point, but for its name."""
    return {
        "accuracy": point.accuracy,
        "milliseconds": point.milliseconds,
        "skip": point.skip,
        "cross_validated": point.cross_validated,
    }
