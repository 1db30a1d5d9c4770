"""The Pareto front of strategies and policies by accuracy and milliseconds, and a plot of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import MissingExtraError, ParameterError, StorageError
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


def check_plot(path: str | os.PathLike[str]) -> None:
    """Raise `MissingExtraError` if `plot` cannot draw, and `ParameterError` for a file ending that it cannot write."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingExtraError("matplotlib", "tune") from None
    if _kind(path) not in ("svg", "png", "pdf"):
        raise ParameterError(f"{os.fspath(path)}: a plot is written as .svg, .png or .pdf")


def _kind(path: str | os.PathLike[str]) -> str:
    return os.path.splitext(os.fspath(path))[1].lstrip(".").lower()


def plot(path: str | os.PathLike[str], points: Sequence[Point], chosen: Point, metric: str, title: str = "") -> None:
    """Plot the points, their front and the chosen one. The ending of `path` decides between SVG, PNG and PDF.

    Raises `MissingExtraError`, `ParameterError` for another ending, and `StorageError`.
    """
    check_plot(path)
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(7.0, 4.5), layout="constrained")
    axes = figure.subplots()
    front = pareto(points)
    axes.plot(
        [point.milliseconds for point in front],
        [point.accuracy for point in front],
        drawstyle="steps-post",
        color="0.7",
        label="front",
        zorder=1,
    )
    axes.scatter([p.milliseconds for p in points], [p.accuracy for p in points], s=18, color="tab:blue", zorder=2)
    axes.scatter([chosen.milliseconds], [chosen.accuracy], s=90, color="tab:red", marker="*", label="chosen", zorder=3)
    # The names of all points would overlap.
    for point in {point.name: point for point in [*front, chosen]}.values():
        axes.annotate(
            point.name,
            (point.milliseconds, point.accuracy),
            textcoords="offset points",
            xytext=(3, 6),
            rotation=25,
            fontsize=7,
        )
    axes.margins(y=0.2)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds a question, measured")
    axes.set_ylabel(metric)
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=8)
    try:
        figure.savefig(path, format=_kind(path), dpi=150)
    except OSError as error:
        raise StorageError(f"{os.fspath(path)}: cannot be written: {error.strerror or error}") from error
