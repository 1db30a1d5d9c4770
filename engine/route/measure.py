"""Labelled questions, and what a strategy or a policy makes of them: the worth of each answer, and the time it took."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..dense.cache import CachedEncoder
from ..errors import ParameterError
from ..evaluate.encoders import RecordCache
from ..evaluate.metrics import cutoff, per_query, trec_eval
from ..records import Query
from ..strategy import Strategy
from .decision import Decision
from .policy import Policy

if TYPE_CHECKING:
    from ..engine import Engine

Floats = npt.NDArray[np.float64]
Judge = Callable[[Query, "list[str]"], float]
"""``judge(query, ids of the answer, best first)``: what the answer is worth, the higher the better (SPEC A118)."""

K = 10
"""Hits a question where neither the metric nor the caller says."""
REPEATS = 3
"""A time is the least of so many runs: whatever else the machine does only adds to it."""


@dataclass(frozen=True)
class Labelled:
    """A question and the ids that answer it, with grades (1 or more is relevant).

    `type` is what kind of question it is, for what learns types; the question itself is asked as it stands, so its own
    `Query.type` is only what a user's query would say too. `own` is the record that is the question itself and does
    not count as found.
    """

    query: Query
    relevant: Mapping[str, int]
    type: str | None = None
    own: str | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """`values` [n] of the answers, `milliseconds` a question (wall-clock, encoding included), and what was decided."""

    values: Floats
    milliseconds: float
    decisions: tuple[Decision, ...] | None

    @property
    def accuracy(self) -> float:
        return math.fsum(self.values.tolist()) / len(self.values)

    @property
    def skip(self) -> float | None:
        """The share of questions that were not escalated; None where nothing was decided of that kind."""
        flags = [one.escalated for one in self.decisions or () if one.escalated is not None]
        return 1.0 - sum(flags) / len(flags) if flags else None


class Questions:
    """Labelled questions as one batch for `engine`, to be answered in different ways.

    `judge` takes the place of `metric`; it is called once for each question and list of ids. k is how many hits are
    asked for: by default as many as the metric reads. Raises `ParameterError`, `MissingExtraError` (a metric needs the
    extra ``eval``).
    """

    def __init__(
        self,
        engine: Engine,
        labelled: Sequence[Labelled],
        metric: str = "hit@5",
        *,
        judge: Judge | None = None,
        k: int | None = None,
    ) -> None:
        if not labelled:
            raise ParameterError("there are no questions")
        if judge is None:
            trec_eval()
        self.engine = engine
        self.labelled = tuple(labelled)
        # A question's own k would cut its list below what the metric reads.
        self.batch = [replace(one.query, k=None) for one in labelled]
        self.metric = metric
        self.judge = judge
        self.k = (K if judge is not None else cutoff(metric) or K) if k is None else k
        self._judged: dict[tuple[int, tuple[str, ...]], float] = {}

    def __len__(self) -> int:
        return len(self.labelled)

    @property
    def types(self) -> list[str | None]:
        return [one.type for one in self.labelled]

    def part(self, places: Sequence[int]) -> Questions:
        """Only the questions at these places."""
        return Questions(
            self.engine,
            [self.labelled[place] for place in places],
            self.metric,
            judge=self.judge,
            k=self.k,
        )

    def answer(self, how: Strategy | Policy, *, repeats: int = 1) -> Run:
        """All of them in one batch; raises what the search raises, `ParameterError` for a judge's value.

        With more than one of `repeats`, one more goes before them that is not timed: it compiles, loads, and fills.
        """
        depth = self.k + any(one.own is not None for one in self.labelled)
        took = []
        with encoding_afresh(self.engine):
            for _ in range(repeats + (repeats > 1)):
                started = time.perf_counter()
                hits = self.engine.search(self.batch, depth, strategy=how)
                took.append(time.perf_counter() - started)
        ids = [
            [name for name in row[:count] if name != one.own][: self.k]
            for row, count, one in zip(hits.ids.tolist(), hits.counts.tolist(), self.labelled, strict=True)
        ]
        least = min(took[1:] or took) * 1e3 / len(self)
        return Run(self._values(ids), least, hits.decisions)

    def _values(self, ids: list[list[str]]) -> Floats:
        if self.judge is None:
            ranked = {str(place): own for place, own in enumerate(ids)}
            judged = {str(place): one.relevant for place, one in enumerate(self.labelled)}
            return per_query(ranked, judged, [self.metric])[self.metric]
        values = np.empty(len(ids))
        for place, own in enumerate(ids):
            key = place, tuple(own)
            if key not in self._judged:
                value = self.judge(self.labelled[place].query, own)
                if (
                    isinstance(value, bool)
                    or not isinstance(value, (int, float, np.number))
                    or not math.isfinite(value)
                ):
                    raise ParameterError(f"the judge must answer with a finite number, not {value!r}")
                self._judged[key] = float(value)
            values[place] = self._judged[key]
        return values


@contextmanager
def encoding_afresh(engine: Engine) -> Iterator[None]:
    """Meanwhile the engine encodes its queries, even those that a cache knows: a look-up takes no time, and no user's
    question has been encoded before."""
    kept = engine.encoder
    if not isinstance(kept, CachedEncoder) or isinstance(kept, RecordCache):
        yield
        return
    with RecordCache(kept.encoder, kept.path) as fresh:
        engine.encoder = fresh
        try:
            yield
        finally:
            engine.encoder = kept
