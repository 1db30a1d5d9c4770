"""Rerankers: a second model reorders the best of each list. They are off by default, as they often do harm.

A cross-encoder over the fused top 10 lost 6.9 points of Hit@1 on LoCoMo (SPEC D015), and gained nothing of substance
over BM25's top 50 (A130). So a reranker is measured on labelled questions before it is switched on (D019): first
`validate`, then `CheckedReranker`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..encoders.models import open_model, positive, repair_texts
from ..errors import EncoderError, ParameterError
from ..metrics.bootstrap import Comparison, paired_bootstrap

DEPTH = 10


Pairs = Sequence[tuple[str, str]]


Scorer = Callable[[Pairs], npt.ArrayLike]


Key = TypeVar("Key", bound=Hashable)


class Reranker(Protocol):
    """Scores how well a text answers a query."""

    def scores(self, pairs: Pairs) -> npt.ArrayLike:
        """One number for each (query, text); larger is better."""
        ...


@dataclass(frozen=True, eq=False)
class Reranked(Generic[Key]):
    """One list after its reordering. `scores` [min(depth, length)] are those of its first entries, descending."""

    ranking: list[Key]
    scores: npt.NDArray[np.float64]


def rerank(
    texts: Sequence[str],
    lists: Sequence[Sequence[Key]],
    documents: Mapping[Key, str] | Callable[[int, Key], str],
    reranker: Reranker | Scorer,
    depth: int = DEPTH,
) -> list[Reranked[Key]]:
    """Sort the first `depth` of each ranked list by the reranker's scores. The others follow in their old order.

    `texts` [B] are the queries, and `lists` [B] the documents found for each, best first. `documents` maps each
    document to its text. It may also be a function of the query's position and the document, for texts that depend on
    the query (such as its best turn). Equal scores keep their order. The reranker is called once, with the different
    (query, text) pairs of the batch.

    Raises `ParameterError` if there is not one list for each text, for a document without a text, and for scores that
    are not one finite number for each pair.
    """
    positive("depth", depth)
    if len(texts) != len(lists):
        raise ParameterError(f"{len(texts)} queries, but {len(lists)} lists to rerank")
    read = documents if callable(documents) else None
    numbers: dict[tuple[str, str], int] = {}
    pairs_of_lists = []
    for position, (text, ranking) in enumerate(zip(texts, lists, strict=True)):
        pairs = []
        for key in ranking[:depth]:
            try:
                document = read(position, key) if read is not None else documents[key]  # type: ignore[index]
            except (KeyError, IndexError):
                document = None
            if not isinstance(document, str):
                raise ParameterError(f"there is no text of document {key!r} to rerank it by")
            pairs.append(numbers.setdefault((text, document), len(numbers)))
        pairs_of_lists.append(pairs)
    scores = _scores(reranker, list(numbers)) if numbers else np.zeros(0)
    answers = []
    for ranking, pairs in zip(lists, pairs_of_lists, strict=True):
        list_scores = scores[pairs] if pairs else np.zeros(0)
        order = np.argsort(-list_scores, kind="stable")
        answers.append(Reranked([*(ranking[i] for i in order.tolist()), *ranking[depth:]], list_scores[order]))
    return answers


def _scores(reranker: Reranker | Scorer, pairs: list[tuple[str, str]]) -> npt.NDArray[np.float64]:
    answer = reranker.scores(pairs) if hasattr(reranker, "scores") else reranker(pairs)
    try:
        scores = np.asarray(answer, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"{name_of(reranker)}: the scores must be numbers") from None
    if scores.shape != (len(pairs),):
        raise ParameterError(
            f"{name_of(reranker)}: {len(pairs)} pairs were asked for, and scores of shape {scores.shape} came back"
        )
    if not np.isfinite(scores).all():
        text = pairs[int(np.argmax(~np.isfinite(scores)))]
        raise ParameterError(f"{name_of(reranker)}: the score of {text!r} is not finite")
    return scores


class CrossEncoderReranker:
    """A cross-encoder of sentence-transformers that gives one number for each pair; safe to use from many threads.

    Scores are the raw logits. A sigmoid, the default of many models, is exactly 1 in float32 for logits of 17 and more,
    and such ties would keep the old order. The defaults are those of the Lexical-Dense Fusion paper. `model` and
    `device` are as in `SentenceEncoder`. Raises `EncoderError`, `ParameterError`, `MissingExtraError`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Any,
        *,
        name: str | None = None,
        max_length: int = 256,
        batch_size: int = 32,
        device: str | None = None,
    ) -> None:
        self.name: str
        model, self.name = open_model("CrossEncoder", model, name, device, max_length, batch_size)
        outputs = int(model.config.num_labels)
        if outputs != 1:
            raise EncoderError(f"{self.name!r} gives {outputs} numbers a pair; a reranker gives one")
        self.batch_size = batch_size
        self._model = model
        self._lock = threading.Lock()

    def scores(self, pairs: Pairs) -> npt.NDArray[np.float64]:
        """The logit of each pair, float64 [pairs]."""
        if not len(pairs):
            return np.zeros(0)
        from torch.nn import Identity

        queries, texts = (repair_texts(side) for side in zip(*pairs, strict=True))
        with self._lock:
            logits = self._model.predict(
                list(zip(queries, texts, strict=True)),
                batch_size=self.batch_size,
                show_progress_bar=False,
                activation_fn=Identity(),
            )
        return np.asarray(logits, dtype=np.float64)

    def __repr__(self) -> str:
        return f"CrossEncoderReranker({self.name!r})"


@dataclass(frozen=True)
class Verdict:
    """The result of measuring a reranker on labelled questions.

    The reranker helps if the whole confidence interval of its gain lies above 0.
    """

    reranker: str
    metric: str
    level: float
    comparison: Comparison
    """The difference of the metric: with the reranker minus without it."""

    @property
    def helps(self) -> bool:
        # With too few questions there is no evidence even if all of them improve: for 5, two-sided, p = 2 * .5**5 =
        # .0625.
        enough = 2.0 * 0.5**self.comparison.units <= 1.0 - self.level + 1e-12
        return enough and self.comparison.low > 0.0

    def __str__(self) -> str:
        gain = self.comparison
        return (
            f"{self.reranker} {'helps' if self.helps else 'is not shown to help'}: {self.metric} "
            f"{gain.difference:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}] over {gain.units} questions"
        )


# Sources: D019, A121.
def validate(
    reranker: Reranker | Scorer,
    with_it: npt.ArrayLike,
    without: npt.ArrayLike,
    *,
    metric: str = "Hit@1",
    resamples: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> Verdict:
    """Whether a reranker helps on labelled questions, by a paired bootstrap.

    `with_it` and `without` are the values [n] of `metric` for each question, with and without the reranker.
    `resamples`, `seed`, `level` and the errors are those of `paired_bootstrap`.
    """
    comparison = paired_bootstrap(with_it, without, resamples=resamples, seed=seed, level=level)
    return Verdict(name_of(reranker), metric, level, comparison)


class CheckedReranker:
    """A reranker that may be switched on: a verdict says that it helps, or the caller chose `unchecked`.

    Unless `unchecked` is true, raises `ParameterError` if there is no verdict, if the verdict does not say that the
    reranker helps, or if it is about another reranker.
    """

    def __init__(self, reranker: Reranker | Scorer, verdict: Verdict | None = None, *, unchecked: bool = False) -> None:
        if not callable(reranker) and not callable(getattr(reranker, "scores", None)):
            raise ParameterError(
                f"reranker: {type(reranker).__name__} has no method 'scores'; a reranker has it, or is a function of "
                "(query, text) pairs"
            )
        self.name = name_of(reranker)
        self.reranker = reranker
        self.verdict = verdict
        if unchecked:
            return
        advice = "; measure it with validate(), or pass unchecked=True"
        if verdict is None:
            raise ParameterError(f"{self.name} has not been validated, and rerankers often do harm{advice}")
        if verdict.reranker != self.name:
            raise ParameterError(f"the verdict is about {verdict.reranker}, not about {self.name}{advice}")
        if not verdict.helps:
            raise ParameterError(f"{verdict}{advice}")

    def scores(self, pairs: Pairs) -> npt.NDArray[np.float64]:
        """One number for each (query, text); larger is better. Raises as `rerank` does."""
        return _scores(self.reranker, list(pairs))


def name_of(reranker: Reranker | Scorer) -> str:
    """The name of a reranker: its attribute ``name``, a function's name, or the name of its class."""
    name = getattr(reranker, "name", None) or getattr(reranker, "__qualname__", None)
    return name if isinstance(name, str) else type(reranker).__name__


def check_reranker(reranker: object) -> None:
    """Raise `ParameterError` unless `reranker` is None or a `CheckedReranker`."""
    if reranker is not None and not isinstance(reranker, CheckedReranker):
        raise ParameterError(
            f"a reranker must be a CheckedReranker, not {type(reranker).__name__}: rerankers often do harm, so wrap it "
            "with the verdict of fanrank.evaluation.validate, or with unchecked=True"
        )
