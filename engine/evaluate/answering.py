"""Answers made from what a retrieval found, and judged against the gold answers.

An *answerer* reads a question and the first records that a strategy found, best first, and returns an answer. A *judge*
reads the question, the gold answer and that answer, and says ``yes``, ``partial`` or ``no``. Both are callables. Two
accuracies follow: strict counts ``yes``, lenient counts ``yes`` and ``partial``.

Sources: A118, A119, A125.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from ..errors import AnswerError, ParameterError
from ..metrics.answers import ANSWER_DEPTHS, answer_metrics
from ..metrics.ranking import means
from ..records.query import Query
from ..records.record import Record
from .dataset import Dataset
from .protocol import Evaluation

ANSWER_DEPTH = 5
"""Records that an answerer reads."""

NO_ANSWER = "The records do not tell."
"""The gold answer of a question that nothing can answer, where the dataset has none."""

YES, PARTIAL, NO, UNREADABLE = JUDGEMENTS = ("yes", "partial", "no", "unreadable")
"""What a judge may say. ``unreadable`` is the word of a judge that could not make out its own model's reply; it counts
as wrong, and results tell how many there are."""


class QuestionAnswerer(Protocol):
    """Answers a question from records, the best first. It may be called from several threads at once."""

    def __call__(self, question: Query, records: Sequence[Record], /) -> str: ...


class AnswerJudge(Protocol):
    """Compares an answer with the gold one and returns one of `JUDGEMENTS`. It may be called from several threads."""

    def __call__(self, question: Query, gold: str, answer: str, /) -> str: ...


@dataclass(frozen=True)
class JudgedAnswer:
    """A question, what was found for it, and how its answer was judged."""

    id: str
    category: str
    question: str
    gold: str
    answer: str
    judgement: str
    records: tuple[str, ...]
    """The ids of the records that the answerer read, best first."""


@dataclass(frozen=True)
class JudgedAnswers:
    """Judged answers, in the order of the dataset's questions."""

    answers: tuple[JudgedAnswer, ...]
    depth: int

    def accuracy(self) -> dict[str, float]:
        """``{"n", "strict", "lenient", "unreadable"}``: strict and lenient are shares, the others counts."""
        return _accuracy([answer.judgement for answer in self.answers])

    def per_category(self) -> dict[str, dict[str, float]]:
        """`accuracy` of each category, in alphabetical order."""
        judgements: dict[str, list[str]] = {}
        for answer in self.answers:
            judgements.setdefault(answer.category, []).append(answer.judgement)
        return {category: _accuracy(of) for category, of in sorted(judgements.items())}

    def to_dict(self, *, answers: bool = True) -> dict[str, Any]:
        """Plain JSON values; without `answers` the accuracies alone."""
        return {
            "depth": self.depth,
            **self.accuracy(),
            "per_category": self.per_category(),
            **(
                {"answers": [{**asdict(each), "records": list(each.records)} for each in self.answers]}
                if answers
                else {}
            ),
        }


def _accuracy(judgements: Sequence[str]) -> dict[str, float]:
    n = len(judgements)
    strict = judgements.count(YES)
    return {
        "n": n,
        "strict": strict / max(n, 1),
        "lenient": (strict + judgements.count(PARTIAL)) / max(n, 1),
        "unreadable": judgements.count(UNREADABLE),
    }


def draw_per_category(dataset: Dataset, count: int, *, seed: int = 0) -> list[str]:
    """Ids of `count` questions with an answer of each category, or all of a smaller one, in the dataset's order.

    The draw depends on the seed and on the questions alone. Raises `ParameterError` for a count below 1.
    """
    if count < 1:
        raise ParameterError(f"a sample needs 1 or more questions of each category, not {count}")
    rows: dict[str, list[int]] = {}
    asked = list(_gold_answers(dataset))
    for row, name in enumerate(asked):
        rows.setdefault(dataset.categories.get(name, ""), []).append(row)
    generator = np.random.default_rng(seed)
    drawn: list[int] = []
    for _, of in sorted(rows.items()):
        drawn += generator.permutation(of)[:count].tolist()
    return [asked[row] for row in sorted(drawn)]


def judge_answers(
    evaluation: Evaluation,
    answerer: QuestionAnswerer,
    judge: AnswerJudge,
    *,
    depth: int = ANSWER_DEPTH,
    per_category: int | None = None,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> JudgedAnswers:
    """Let `answerer` answer the evaluation's questions from the first `depth` records, and `judge` judge the answers.

    Questions without a gold answer are left out, but for abstention questions. `per_category` draws so many questions
    of each category, by `seed`. `workers` questions are asked at the same time; the result does not depend on it.
    `progress` is called with the questions done and their number.

    Raises `ParameterError` where there is no question to ask, and for a depth or a number of workers below 1. Raises
    `AnswerError` for an answerer that returns no text and for a judge that says something else. What the callables
    raise goes through, and no further question is asked.
    """
    if depth < 1 or workers < 1:
        raise ParameterError(f"depth and workers must be 1 or more, not {depth} and {workers}")
    dataset = evaluation.dataset
    gold = _gold_answers(dataset)
    asked = list(gold) if per_category is None else draw_per_category(dataset, per_category, seed=seed)
    if not asked:
        raise ParameterError(f"{dataset.name} has no gold answers, so nothing can be judged")
    queries = {str(query.id): query for query in dataset.queries}
    records = records_found(evaluation, asked, depth)
    lock = threading.Lock()
    done = 0

    def ask(name: str) -> JudgedAnswer:
        nonlocal done
        query = queries[name]
        answer = answerer(query, records[name])
        if not isinstance(answer, str):
            raise AnswerError(f"question {name!r}: an answerer must return a string, not {type(answer).__name__}")
        judgement = judge(query, gold[name], answer)
        if judgement not in JUDGEMENTS:
            raise AnswerError(f"question {name!r}: a judge must say one of {', '.join(JUDGEMENTS)}, not {judgement!r}")
        with lock:
            done += 1
            if progress is not None:
                progress(done, len(asked))
        read = tuple(record.id for record in records[name])
        return JudgedAnswer(name, dataset.categories.get(name, ""), query.text, gold[name], answer, judgement, read)

    failures: list[Exception] = []

    def ask_unless_failed(name: str) -> JudgedAnswer | None:
        try:
            return None if failures else ask(name)
        except Exception as error:
            failures.append(error)
            return None

    with ThreadPoolExecutor(workers) as pool:
        judged = list(pool.map(ask_unless_failed, asked))
    if failures:
        raise failures[0]
    return JudgedAnswers(tuple(each for each in judged if each is not None), depth)


def records_found(evaluation: Evaluation, questions: Sequence[str], depth: int) -> dict[str, list[Record]]:
    """``{question id: the first records that were found}``, at most `depth` of each, best first."""
    spaces = {str(query.id): query.namespace for query in evaluation.dataset.queries}
    wanted = {(spaces[name], found) for name in questions for found in evaluation.ranked[name][:depth]}
    held = {
        (record.namespace, record.id): record
        for record in evaluation.dataset.records
        if (record.namespace, record.id) in wanted
    }
    return {name: [held[spaces[name], found] for found in evaluation.ranked[name][:depth]] for name in questions}


def answers_in_context(evaluation: Evaluation, depths: Sequence[int] = ANSWER_DEPTHS) -> dict[str, Any]:
    """Whether the gold answers stand in what was found: ``{"n", "metrics", "per_category"}``, as plain JSON values.

    The metrics are those of `answer_metrics` at the depths that the lists reach: their means over the questions with a
    gold answer, in all and by category. Raises `ParameterError` if the dataset has no gold answers.
    """
    dataset = evaluation.dataset
    names = [str(query.id) for query in dataset.queries if str(query.id) in dataset.answers]
    if not names:
        raise ParameterError(f"{dataset.name} has no gold answers")
    found = records_found(evaluation, names, max(depths))
    texts = {name: [record.text for record in records] for name, records in found.items()}
    values = answer_metrics(texts, {name: dataset.answers[name] for name in names}, depths)
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(dataset.categories.get(name, ""), []).append(row)
    return {
        "n": len(names),
        "metrics": means(values),
        "per_category": {
            category: {"n": len(of), **means({metric: column[of] for metric, column in values.items()})}
            for category, of in sorted(rows.items())
        },
    }


def _gold_answers(dataset: Dataset) -> Mapping[str, str]:
    """The gold answers in the order of the questions; abstention questions without one have `NO_ANSWER`."""
    names = [str(query.id) for query in dataset.queries]
    return {
        name: dataset.answers.get(name, NO_ANSWER)
        for name in names
        if name in dataset.answers or name in dataset.unanswerable
    }
