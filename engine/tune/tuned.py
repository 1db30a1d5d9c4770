"""The result of tuning: the policy, the points it was chosen from, and its accuracy on other questions."""

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
    """The systems and the chosen policy, measured on questions that had no part in the choice.

    `differences` are the policy's mean minus each system's mean, with a paired bootstrap over the questions.
    """

    n: int
    chosen: Point
    systems: tuple[Point, ...]
    differences: dict[str, Comparison]


@dataclass(frozen=True)
class Tuned:
    """The result of `tune`. `policy` is what to search with. `about` is stored in its file, for `check` of drift.py."""

    policy: Answerer
    chosen: Point
    points: tuple[Point, ...]
    systems: tuple[Point, ...]
    escalation: str
    """The best system other than BM25. The sweep and the thresholds by type escalate to it."""
    steps: tuple[Step, ...]
    types: dict[str, dict[str, Any]]
    """For each type: its number of questions, best system, threshold, skipped share and median confidence."""
    folds: dict[str, tuple[Fold, ...]]
    classified: float | None
    """The share of questions not used in its training whose type the classifier predicted right."""
    parity: dict[str, Comparison]
    """The chosen policy's mean minus each system's mean, on the labelled questions."""
    confirmation: Confirmation | None
    about: dict[str, Any]

    @property
    def front(self) -> list[Point]:
        """The points that no other point beats, cheapest first."""
        return pareto(self.points)

    @property
    def beaten_by(self) -> list[Point]:
        """The points of the front that beat the chosen one; none if it is on the front itself.

        The chosen point is preferred to such a point for one of three reasons: the point is a threshold that was not
        fitted; its accuracy on the questions that it learned is higher than on unseen ones; or it is cheaper by less
        than `SLACK` (tuner.py).
        """
        front = self.front
        return [] if self.chosen in front else [point for point in front if beats(point, self.chosen)]

    # Sources: A085, X11.
    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values.

        The milliseconds of `sweep` and `cross_validation` are computed: BM25's time, plus the escalation's time for the
        share that is escalated. All other times are measured.
        """
        cost = {point.name: point.milliseconds for point in self.systems}

        def cost_at(skip: float) -> float:
            return amortised(skip, cost[BM25], cost[BM25] + cost[self.escalation])

        about = {name: value for name, value in self.about.items() if name not in ("reference", "systems", "chosen")}
        return {
            **about,
            "systems": {point.name: point_to_dict(point) for point in self.systems},
            "escalation": self.escalation,
            "types": self.types,
            "sweep": [{**asdict(step), "milliseconds": cost_at(step.skip)} for step in self.steps],
            "cross_validation": {
                name: {
                    "folds": [{**asdict(fold), "milliseconds": cost_at(fold.skip)} for fold in folds],
                    "accuracy": float(np.mean([fold.accuracy for fold in folds])),
                    "deviation": float(np.std([fold.accuracy for fold in folds])),
                    "skip": float(np.mean([fold.skip for fold in folds])),
                    "milliseconds": float(np.mean([cost_at(fold.skip) for fold in folds])),
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
            "parity": {name: asdict(comparison) for name, comparison in self.parity.items()},
            "confirmation": None
            if self.confirmation is None
            else {
                "n": self.confirmation.n,
                "chosen": point_to_dict(self.confirmation.chosen),
                "systems": {point.name: point_to_dict(point) for point in self.confirmation.systems},
                "differences": {name: asdict(comparison) for name, comparison in self.confirmation.differences.items()},
            },
        }


def point_to_dict(point: Point) -> dict[str, Any]:
    """Plain JSON values of a point, without its name."""
    return {
        "accuracy": point.accuracy,
        "milliseconds": point.milliseconds,
        "skip": point.skip,
        "cross_validated": point.cross_validated,
    }
