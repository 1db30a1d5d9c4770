"""Labelled questions, and measurements of a strategy or policy on them: the value of each answer, and its time."""

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
    from ..memory import Memory

Judge = Callable[[Query, "list[str]"], float]
"""``judge(query, ids of the answer, best first)`` returns the value of the answer; higher is better (SPEC A118)."""

K = 10
"""Hits for each question, if neither the metric nor the caller sets a number."""
REPEATS = 3
"""The number of timed runs. The shortest one counts, because other work on the machine only adds time."""


@dataclass(frozen=True)
class Labelled:
    """A question and the ids that answer it, with grades (1 or more is relevant).

    `type` is the kind of question, for classifiers that learn types. `Query.type` is separate: the query is searched as
    it is, so it is set only if a user's query would set it too. `own` is the id of a record that is the question
    itself; it does not count as found.
    """

    query: Query
    relevant: Mapping[str, int]
    type: str | None = None
    own: str | None = None


def labelled_questions(dataset: Dataset) -> list[Labelled]:
    """A dataset's questions. Types are the categories, or the names of `TYPE_OF` if AgentIR names them differently."""
    labelled = []
    for query in dataset.queries:
        name = str(query.id)
        category = dataset.categories.get(name)
        type = None if category is None else TYPE_OF.get(category, category)
        labelled.append(Labelled(query, dataset.relevant[name], type, dataset.own.get(name)))
    return labelled


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """What one strategy or policy gave on n questions.

    `values` [n] are the values of the answers. `milliseconds` is the wall-clock time of a question, with encoding.
    `types` [n] are the types that the policy used: the question's own, or the predicted one.
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
        """The share of questions that were not escalated; None if the policy does not escalate."""
        return skip_share(self.decisions or ())


class Questions:
    """Labelled questions as one batch for `engine`, to be answered by different strategies and policies.

    `judge` replaces `metric`; it is called once for each different pair of question and list of ids. `k` is the number
    of hits of a question, by default as many as the metric reads. Raises `ParameterError` and `MissingExtraError` (a
    metric needs the extra ``eval``).
    """

    def __init__(
        self,
        engine: Memory,
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
        # A question's own k, or the limit of its scope, could cut its list below what the metric reads.
        self.batch = [
            replace(question.query, k=None, scope=_remove_limit(question.query.scope)) for question in labelled
        ]
        self.metric = metric
        self.judge = judge
        self.k = (K if judge is not None else cutoff(metric) or K) if k is None else k
        self._judged: dict[tuple[int, tuple[str, ...]], float] = {}

    def __len__(self) -> int:
        return len(self.labelled)

    def select(self, places: Sequence[int]) -> Questions:
        """The questions at these positions alone."""
        return Questions(
            self.engine,
            [self.labelled[position] for position in places],
            self.metric,
            judge=self.judge,
            k=self.k,
        )

    def answer(self, how: Answerer) -> PolicyRun:
        """Answer all questions in one batch, once.

        Raises what the search raises, and `ParameterError` if a judge does not return a finite number.
        """
        return self.compare({"": how})[""]

    def compare(
        self,
        ways: Mapping[str, Answerer],
        *,
        repeats: int = 1,
        size: int | None = None,
        progress: Callable[[], object] = lambda: None,
    ) -> dict[str, PolicyRun]:
        """Measure each of these ways to answer, timed against the others.

        The questions are answered in batches of `size` (None: all in one). For each batch the ways take turns,
        `repeats` times, and a way's time is that of its shortest run. So other work on the machine, and its warming up,
        affect all ways alike.

        If there is more than one way or run, an untimed warm-up comes first: BM25 answers all questions, and each way
        answers one question of every namespace. This compiles code, loads models and computes lazy values. `progress`
        is called after each timed run. Raises as `answer`.
        """
        size = size or len(self)
        seconds = dict.fromkeys(ways, 0.0)
        answers: dict[str, list[Hits]] = {name: [] for name in ways}
        with encode_afresh(self.engine):
            if len(ways) > 1 or repeats > 1:
                self.engine.search(self.batch, self.depth)
                first = list({query.namespace: query for query in self.batch}.values())
                for how in ways.values():
                    self.engine.search(first, self.depth, strategy=how)
            for start in range(0, len(self), size):
                chunk = self.batch[start : start + size]
                least = dict.fromkeys(ways, math.inf)
                for turn in range(repeats):
                    for name, how in ways.items():
                        started = time.perf_counter()
                        hits = self.engine.search(chunk, self.depth, strategy=how)
                        least[name] = min(least[name], time.perf_counter() - started)
                        if turn == 0:
                            answers[name].append(hits)
                        progress()
                for name, spent in least.items():
                    seconds[name] += spent
        return {name: self._run(answers[name], 1e3 * seconds[name] / len(self)) for name in ways}

    @property
    def depth(self) -> int:
        """Hits of a search: k, and one more if a question's own record may be among them."""
        return self.k + any(question.own is not None for question in self.labelled)

    def _run(self, answers: Sequence[Hits], milliseconds: float) -> PolicyRun:
        lists = [
            row[:count] for hits in answers for row, count in zip(hits.ids.tolist(), hits.counts.tolist(), strict=True)
        ]
        ids = [
            [name for name in ranking if name != question.own][: self.k]
            for ranking, question in zip(lists, self.labelled, strict=True)
        ]
        decisions = [decision for hits in answers for decision in hits.decisions or ()]
        types = [query.type for query in self.batch]
        if decisions:
            types = [
                query_type if decision.type is None else decision.type
                for query_type, decision in zip(types, decisions, strict=True)
            ]
        return PolicyRun(self._values(ids), milliseconds, tuple(types), tuple(decisions) or None)

    def _values(self, ids: list[list[str]]) -> Floats:
        if self.judge is None:
            ranked = {str(position): ranking for position, ranking in enumerate(ids)}
            judged = {str(position): question.relevant for position, question in enumerate(self.labelled)}
            return per_query(ranked, judged, [self.metric])[self.metric]
        values = np.empty(len(ids))
        for position, ranking in enumerate(ids):
            key = position, tuple(ranking)
            if key not in self._judged:
                value = self.judge(self.labelled[position].query, ranking)
                if (
                    isinstance(value, bool)
                    or not isinstance(value, (int, float, np.number))
                    or not math.isfinite(value)
                ):
                    raise ParameterError(f"the judge must answer with a finite number, not {value!r}")
                self._judged[key] = float(value)
            values[position] = self._judged[key]
        return values


@dataclass(frozen=True)
class _Afresh:
    """A cached encoder that encodes queries anew each time. Vectors of records still go through the cache."""

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


def _remove_limit(scope: SearchScope | None) -> SearchScope | None:
    return None if scope is None else replace(scope, limit=None)


@contextmanager
def encode_afresh(engine: Memory) -> Iterator[None]:
    """Within this context the engine encodes all queries, even those in its encoder's cache.

    A look-up takes almost no time, but the query of a user has not been encoded before. Searches of other threads are
    affected too: they stay correct and become slower. Measure in one thread at a time.
    """
    models = engine.searcher.models
    encoder = models.encoder
    if not isinstance(encoder, CachedEncoder) or isinstance(encoder, RecordCache):
        yield
        return
    models.encoder = _Afresh(encoder)
    try:
        yield
    finally:
        models.encoder = encoder
