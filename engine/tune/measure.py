"""Labelled questions, and what a strategy or a policy makes of them: the worth of each answer, and the time it took."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Floats
from ..encoders.cache import CachedEncoder
from ..encoders.encoder import Rows, check_rows
from ..errors import ParameterError
from ..evaluate.dataset import Dataset
from ..evaluate.encoders import RecordCache
from ..evaluate.protocol import TYPE_OF
from ..metrics.ranking import cutoff, per_query, trec_eval
from ..records.decision import Decision, skip_share
from ..records.hits import Hits
from ..records.query import Query, SearchScope
from ..route.policy import Answerer

if TYPE_CHECKING:
    from ..engine import Engine

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


def labelled_questions(dataset: Dataset) -> list[Labelled]:
    """A dataset's questions, with their categories as types (`TYPE_OF` for those that AgentIR names otherwise)."""
    found = []
    for query in dataset.queries:
        name = str(query.id)
        category = dataset.categories.get(name)
        type = None if category is None else TYPE_OF.get(category, category)
        found.append(Labelled(query, dataset.relevant[name], type, dataset.own.get(name)))
    return found


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """`values` [n] of the answers, `milliseconds` a question (wall-clock, encoding included), and what was decided.

    `types` [n] are those that were gone by: the question's own, or the predicted one.
    """

    values: Floats
    milliseconds: float
    types: tuple[str | None, ...]
    decisions: tuple[Decision, ...] | None

    @property
    def accuracy(self) -> float:
        return math.fsum(self.values.tolist()) / len(self.values)

    @property
    def skip(self) -> float | None:
        """The share of questions that were not escalated; None where nothing was decided of that kind."""
        return skip_share(self.decisions or ())


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
        # A question's own k, or its scope's limit, would cut its list below what the metric reads.
        self.batch = [replace(one.query, k=None, scope=_unlimited(one.query.scope)) for one in labelled]
        self.metric = metric
        self.judge = judge
        self.k = (K if judge is not None else cutoff(metric) or K) if k is None else k
        self._judged: dict[tuple[int, tuple[str, ...]], float] = {}

    def __len__(self) -> int:
        return len(self.labelled)

    def select(self, places: Sequence[int]) -> Questions:
        """Only the questions at these places."""
        return Questions(
            self.engine,
            [self.labelled[place] for place in places],
            self.metric,
            judge=self.judge,
            k=self.k,
        )

    def answer(self, how: Answerer) -> PolicyRun:
        """All of them in one batch, once; raises what the search raises, `ParameterError` for a judge's value."""
        return self.compare({"": how})[""]

    def compare(
        self,
        ways: Mapping[str, Answerer],
        *,
        repeats: int = 1,
        size: int | None = None,
        progress: Callable[[], object] = lambda: None,
    ) -> dict[str, PolicyRun]:
        """Each of these ways to answer, timed against the others: they take turns at every batch of `size` questions
        (None: all), `repeats` times, and a batch's time is the least of its runs.

        So what the machine does meanwhile, and what it does as it warms up, is shared by all of them. Where there is
        something to compare, BM25 answers everything before, and each way one question of every namespace, untimed:
        that compiles, loads, and derives what is lazy. `progress` is called after each timed run. Raises as `answer`.
        """
        size = size or len(self)
        seconds = dict.fromkeys(ways, 0.0)
        found: dict[str, list[Hits]] = {name: [] for name in ways}
        with encode_afresh(self.engine):
            if len(ways) > 1 or repeats > 1:
                self.engine.search(self.batch, self.depth)
                first = list({query.namespace: query for query in self.batch}.values())
                for how in ways.values():
                    self.engine.search(first, self.depth, strategy=how)
            for start in range(0, len(self), size):
                part = self.batch[start : start + size]
                least = dict.fromkeys(ways, math.inf)
                for turn in range(repeats):
                    for name, how in ways.items():
                        started = time.perf_counter()
                        hits = self.engine.search(part, self.depth, strategy=how)
                        least[name] = min(least[name], time.perf_counter() - started)
                        if turn == 0:
                            found[name].append(hits)
                        progress()
                for name, spent in least.items():
                    seconds[name] += spent
        return {name: self._run(found[name], 1e3 * seconds[name] / len(self)) for name in ways}

    @property
    def depth(self) -> int:
        """How many hits are asked for: one more than k where the question's own record may be among them."""
        return self.k + any(one.own is not None for one in self.labelled)

    def _run(self, parts: Sequence[Hits], milliseconds: float) -> PolicyRun:
        lists = [
            row[:count] for hits in parts for row, count in zip(hits.ids.tolist(), hits.counts.tolist(), strict=True)
        ]
        ids = [
            [name for name in own if name != one.own][: self.k] for own, one in zip(lists, self.labelled, strict=True)
        ]
        decided = [one for hits in parts for one in hits.decisions or ()]
        types = [query.type for query in self.batch]
        if decided:
            types = [own if one.type is None else one.type for own, one in zip(types, decided, strict=True)]
        return PolicyRun(self._values(ids), milliseconds, tuple(types), tuple(decided) or None)

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


@dataclass(frozen=True)
class _Afresh:
    """The encoder of a cache whose queries are encoded each time; what it makes of records goes through the cache."""

    cache: CachedEncoder

    @property
    def name(self) -> str:
        return self.cache.name

    @property
    def version(self) -> str:
        return self.cache.version

    @property
    def encodes(self) -> bool:
        return self.cache.encodes

    @property
    def dimension(self) -> int:
        return self.cache.dimension

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Rows:
        return self.cache.documents(texts, progress=progress)

    def queries(self, texts: Sequence[str]) -> Rows:
        return check_rows(self.cache.encoder.queries(texts), texts, self.cache.encoder)


def _unlimited(scope: SearchScope | None) -> SearchScope | None:
    return None if scope is None else replace(scope, limit=None)


@contextmanager
def encode_afresh(engine: Engine) -> Iterator[None]:
    """Meanwhile the engine encodes its queries, even those that a cache knows: a look-up takes no time, and no user's
    question has been encoded before.

    This goes for searches of other threads too: they are right, and slower. Measure in one thread at a time.
    """
    models = engine.searcher.models
    kept = models.encoder
    if not isinstance(kept, CachedEncoder) or isinstance(kept, RecordCache):
        yield
        return
    models.encoder = _Afresh(kept)
    try:
        yield
    finally:
        models.encoder = kept
