"""The rerank hook and what must be shown before it is switched on (SPEC D015, D019, A130)."""

import math
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanrank.engine.errors import ParameterError
from fanrank.engine.evaluate import paired_bootstrap
from fanrank.engine.rerank.reranker import CheckedReranker, rerank, validate


def score(query: str, text: str) -> float:
    return float(zlib.crc32(f"{query}|{text}".encode()) % 4)


def scores(pairs: Any) -> list[float]:
    return [score(query, text) for query, text in pairs]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 15), unique=True, max_size=12)), max_size=6),
    st.integers(1, 14),
)
def test_rerank_is_the_plain_sort(batch: list[tuple[str, list[int]]], depth: int) -> None:
    texts = [query for query, _ in batch]
    documents = {number: f"text {number % 7}" for number in range(16)}
    asked = []

    def counted(pairs: Any) -> list[float]:
        asked.append(list(pairs))
        return scores(pairs)

    found = rerank(texts, [ranking for _, ranking in batch], documents, counted, depth)
    wanted_pairs = []
    for (query, ranking), answer in zip(batch, found, strict=True):
        head = ranking[:depth]
        wanted_pairs += [(query, documents[number]) for number in head]
        # Python's sort is stable, and so is a sort by place.
        head = sorted(head, key=lambda number: (-score(query, documents[number]), ranking.index(number)))
        assert answer.ranking == head + ranking[depth:]
        assert answer.scores.tolist() == [score(query, documents[number]) for number in head]
    # One call, each different pair once; none where there is nothing to ask.
    assert asked == ([list(dict.fromkeys(wanted_pairs))] if wanted_pairs else [])


def test_texts_may_depend_on_the_query() -> None:
    turns = {"s1": ["tea at ten", "error 4711"], "s2": ["lunch", "tea with milk"]}

    def best_turn(position: int, session: str) -> str:
        return turns[session][position]

    seen = []

    class Longest:
        def scores(self, pairs: Any) -> np.ndarray:
            seen.extend(pairs)
            return np.array([len(text) for _, text in pairs], dtype=np.float32)

    found = rerank(["tea", "error"], [["s2", "s1"], ["s1", "s2"]], best_turn, Longest())
    assert [answer.ranking for answer in found] == [["s1", "s2"], ["s2", "s1"]]
    assert seen == [("tea", "lunch"), ("tea", "tea at ten"), ("error", "error 4711"), ("error", "tea with milk")]


def test_an_object_with_scores_is_a_reranker_even_if_it_can_be_called() -> None:
    class Both:
        def scores(self, pairs: Any) -> list[float]:
            return scores(pairs)

        def __call__(self, pairs: Any) -> list[float]:
            raise AssertionError("not this")

    assert rerank(["a"], [[0]], ["text"], Both())[0].ranking == [0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1.0], "2 pairs were asked for, and scores of shape"),
        ([[1.0], [2.0]], "2 pairs were asked for, and scores of shape"),
        (["a", "b"], "must be numbers"),
        ([0.0, math.nan], r"'tea', 'second'.* is not finite"),
    ],
)
def test_answers_that_are_none(answer: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        rerank(["tea"], [[0, 1]], {0: "first", 1: "second"}, lambda pairs: answer)


def test_calls_that_do_not_fit() -> None:
    with pytest.raises(ParameterError, match="1 queries, but 2 lists"):
        rerank(["a"], [[0], [1]], {0: "", 1: ""}, scores)
    with pytest.raises(ParameterError, match="no text of document 7"):
        rerank(["a"], [[7]], {}, scores)
    with pytest.raises(ParameterError, match="no text of document 7"):
        rerank(["a"], [[7]], lambda position, number: None, scores)  # type: ignore[arg-type,return-value]
    for depth in (0, True, 1.5):
        with pytest.raises(ParameterError, match="depth"):
            rerank(["a"], [[0]], {0: ""}, scores, depth)  # type: ignore[arg-type]


def gains(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    without = (random.random(n) < 0.5).astype(float)
    return np.maximum(without, random.random(n) < 0.2), without


def test_a_verdict_is_the_interval_of_the_bootstrap() -> None:
    better, without = gains(200)
    verdict = validate(scores, better, without, metric="Hit@1", resamples=2_000)
    assert verdict.comparison == paired_bootstrap(better, without, resamples=2_000)
    assert verdict.comparison.low > 0.0
    assert verdict.helps
    assert str(verdict).startswith("scores helps: Hit@1 +0.")
    worse = validate(scores, without, better)
    assert worse.comparison.high < 0.0
    assert not worse.helps
    # A gain that chance explains: an interval that reaches 0 is no pass.
    one = without.copy()
    one[int(np.argmin(without))] = 1.0
    unsure = validate(scores, one, without)
    assert unsure.comparison.difference > 0.0 == unsure.comparison.low
    assert not unsure.helps
    assert "is not shown to help" in str(unsure)


def test_few_questions_show_nothing() -> None:
    # All better: the two-sided sign test of 5 has p .0625, that of 6 .03125.
    assert not validate(scores, np.ones(5), np.zeros(5)).helps
    assert validate(scores, np.ones(6), np.zeros(6)).helps
    assert validate(scores, np.ones(5), np.zeros(5), level=0.9).helps
    with pytest.raises(ParameterError):
        validate(scores, [], [])


def test_switching_on_takes_a_verdict() -> None:
    better, without = gains(200)
    good = validate(scores, better, without)
    on = CheckedReranker(scores, good)
    assert (on.name, on.verdict) == ("scores", good)
    assert on.scores([("a", "b")]).tolist() == scores([("a", "b")])
    assert rerank(["a"], [[0, 1]], {0: "x", 1: "y"}, on)[0].ranking in ([0, 1], [1, 0])
    with pytest.raises(ParameterError, match="not been validated"):
        CheckedReranker(scores)
    with pytest.raises(ParameterError, match="is not shown to help"):
        CheckedReranker(scores, validate(scores, without, better))
    with pytest.raises(ParameterError, match="the verdict is about scores, not about score"):
        CheckedReranker(score, good)  # type: ignore[arg-type]
    assert CheckedReranker(scores, unchecked=True).verdict is None
    assert CheckedReranker(scores, validate(scores, without, better), unchecked=True).name == "scores"
