"""The Pareto front of strategies and policies by accuracy and milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ParameterError
from ..metrics.bootstrap import TIE


@dataclass(frozen=True)
class Point:
    """One strategy or policy, and its accuracy and time on a set of questions.

    - `accuracy`: the mean of the metric
    - `milliseconds`: the wall-clock time of a question
    - `skip`: the share of questions that BM25 answered alone; None if nothing escalates
    - `cross_validated`: the mean that the same procedure gives on questions that it was not fitted to; None if nothing
      was fitted
    - `learned`: whether a classifier, or a table by type, was fitted to these same questions
    """

    name: str
    accuracy: float
    milliseconds: float
    skip: float | None = None
    cross_validated: float | None = None
    learned: bool = False

    @property
    def sure(self) -> float:
        """The accuracy to rely on: `accuracy`, but no more than `cross_validated` if it learned these questions."""
        if self.cross_validated is None or not self.learned:
            return self.accuracy
        return min(self.accuracy, self.cross_validated)


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats (is as accurate and as cheap, and better in one of the two).

    Cheapest first. Points that are equal in both stay together, in their order.
    """
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.milliseconds, -point.accuracy)):
        last = front[-1] if front else None
        if (
            last is None
            or point.accuracy > last.accuracy + TIE
            or (point.milliseconds == last.milliseconds and point.accuracy >= last.accuracy - TIE)
        ):
            front.append(point)
    return front


def beats(one: Point, other: Point) -> bool:
    """Whether `one` is at least as accurate and as cheap as `other`, and better in one of the two."""
    better = one.accuracy > other.accuracy + TIE or one.milliseconds < other.milliseconds
    return better and one.accuracy >= other.accuracy - TIE and one.milliseconds <= other.milliseconds


def cheapest(points: Sequence[Point], least: float, slack: float = 0.0) -> Point:
    """The point of fewest milliseconds among those whose `sure` is `least` or more.

    Points within `slack` milliseconds of it count as equally cheap. Of these the most accurate (by `sure`) is taken,
    and of equal ones the first. Raises `ParameterError` if no point qualifies.
    """
    enough = [point for point in points if point.sure >= least - TIE]
    if not enough:
        raise ParameterError(f"none of {len(points)} points has an accuracy of {least:.4f} or more")
    bound = min(point.milliseconds for point in enough) + slack
    cheap = [point for point in enough if point.milliseconds <= bound]
    best = max(point.sure for point in cheap)
    return next(point for point in cheap if point.sure >= best - TIE)
