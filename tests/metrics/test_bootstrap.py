"""Bootstraps, SPEC X12 (paired, two-sided) and D009 (clusters, one-sided); answers in context, beside plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanrank.engine.errors import ParameterError
from fanrank.engine.metrics.answers import answer_metrics, answer_substring, token_recall
from fanrank.engine.metrics.bootstrap import cluster_bootstrap, format_p, holm, paired_bootstrap


def naive_paired(first: np.ndarray, second: np.ndarray, resamples: int, seed: int) -> tuple[float, np.ndarray]:
    random = np.random.default_rng(seed)
    means = []
    for _ in range(resamples):
        drawn = random.integers(0, len(first), len(first))
        means.append(sum(first[i] - second[i] for i in drawn) / len(first))
    below = sum(mean <= 1e-12 for mean in means) / resamples
    above = sum(mean >= -1e-12 for mean in means) / resamples
    return min(1.0, 2 * min(below, above)), np.array(means)


def test_paired_is_the_plain_loop() -> None:
    random = np.random.default_rng(7)
    first, second = random.random(23), random.random(23) - 0.05
    found = paired_bootstrap(first, second, resamples=500, seed=3)
    p, means = naive_paired(first, second, 500, 3)
    assert found.p == p
    assert found.difference == pytest.approx(float((first - second).mean()), abs=1e-15)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=1e-12)
    assert (found.resamples, found.units) == (500, 23)


def test_ties_are_not_counted_twice() -> None:
    # Most resamples of one 1 among 50 zeros are either 0 or above; the doubled smaller tail stays within 1 (X12).
    zeros = np.zeros(50)
    assert paired_bootstrap(zeros, zeros).p == 1.0
    one = zeros.copy()
    one[0] = 1.0
    found = paired_bootstrap(one, zeros)
    assert found.p == pytest.approx(2 * (1 - 1 / 50) ** 50, abs=0.03)
    assert paired_bootstrap([1.0, 0.0], [0.0, 1.0]).p == 1.0


def test_fractions_that_cancel_are_ties() -> None:
    third = np.array([1 / 3, 0.1, 0.2] * 5)
    found = paired_bootstrap(third, third[::-1], resamples=1)
    assert abs(found.difference) < 1e-12
    assert paired_bootstrap([0.3], [0.1 + 0.2]).p == 1.0


def test_seeds_and_direction() -> None:
    random = np.random.default_rng(1)
    first, second = random.random(400) + 0.02, random.random(400)
    found = paired_bootstrap(first, second)
    assert found == paired_bootstrap(first, second)
    other = paired_bootstrap(first, second, seed=1)
    assert (other.low, other.p) != (found.low, found.p)
    assert other.p == pytest.approx(found.p, abs=0.02)
    turned = paired_bootstrap(second, first)
    assert (turned.difference, turned.p) == (-found.difference, found.p)
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low), abs=1e-12)
    assert found.low < found.difference < found.high
    assert found.resamples == 10_000


def test_clusters_are_resampled_whole() -> None:
    differences = np.array([1.0, 1.0, 1.0, -1.0])
    found = cluster_bootstrap(differences, np.zeros(4), ["a", "a", "a", "b"], resamples=4000)
    # Of two clusters drawn: aa 1/4 (mean 1), ab 1/2 (mean .5, by questions), bb 1/4 (mean -1).
    assert found.difference == 0.5
    assert found.p == pytest.approx(0.25, abs=0.03)
    assert (found.low, found.high) == (-1.0, 1.0)
    assert (found.units, found.resamples) == (2, 4000)


def test_clusters_of_one_are_questions() -> None:
    random = np.random.default_rng(2)
    first, second = random.random(40), random.random(40)
    clustered = cluster_bootstrap(first, second, list(range(40)), resamples=1000, seed=9)
    paired = paired_bootstrap(first, second, resamples=1000, seed=9)
    assert (clustered.low, clustered.high) == pytest.approx((paired.low, paired.high), abs=1e-12)
    tied = cluster_bootstrap(first, first, list(range(40)))
    assert (tied.p, tied.resamples) == (1.0, 4000)


def test_a_p_is_corrected_for_the_number_of_comparisons_and_never_zero() -> None:
    # 3 x .01; 2 x .02, and .04 again where the largest would fall below it.
    assert holm([0.02, 0.03, 0.01]) == pytest.approx([0.04, 0.04, 0.03])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    certain = paired_bootstrap([1.0] * 9, [0.0] * 9).p
    assert (certain, format_p(certain), format_p(1e-9)) == (0.0001, "0.0001", "<0.0001")


@pytest.mark.parametrize(
    ("first", "second", "more"),
    [
        ([], [], {}),
        ([1.0], [1.0, 2.0], {}),
        ([[1.0]], [[1.0]], {}),
        ([float("nan")], [1.0], {}),
        ([1.0], [1.0], {"resamples": 0}),
        ([1.0], [1.0], {"level": 1.0}),
    ],
)
def test_bad_parameters(first: list[float], second: list[float], more: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        paired_bootstrap(first, second, **more)
    with pytest.raises(ParameterError):
        cluster_bootstrap(first, second, ["a"] * len(first), **more)
    with pytest.raises(ParameterError, match="2 questions, but 1 cluster names"):
        cluster_bootstrap([1.0, 2.0], [1.0, 2.0], ["a"])


def plain_words(text: str) -> set[str]:
    """Runs of letters, digits and underscores, 4 long and longer, found letter by letter."""
    words, word = set(), ""
    for letter in text.casefold() + " ":
        if letter.isalnum() or letter == "_":
            word += letter
            continue
        if len(word) >= 4:
            words.add(word)
        word = ""
    return words


WORDS = st.lists(st.sampled_from(["Rex", "puppy", "Puppies", "$50", "14", "days", "a_b1", "Berlin,", "é", "été4"]))
TEXT = WORDS.map(" ".join)


@given(answer=TEXT, texts=st.lists(TEXT, max_size=4))
def test_metrics_are_those_of_plain_loops(answer: str, texts: list[str]) -> None:
    joined, said = "\n".join(texts).casefold(), answer.strip().casefold()
    starts = range(len(joined) - len(said) + 1)
    assert answer_substring(answer, texts) == (said != "" and any(joined[at : at + len(said)] == said for at in starts))
    wanted, found = plain_words(answer), plain_words("\n".join(texts))
    assert token_recall(answer, texts) == (len(wanted & found) / len(wanted) if wanted else 0.0)
    if answer_substring(answer, texts) and plain_words(answer) <= found and wanted:
        assert token_recall(answer, texts) == 1.0


def test_the_rules_by_hand() -> None:
    assert answer_substring(" 14 Days ", ["It took 14 days."]) == 1.0
    assert answer_substring("14 days", ["It took 14", "days."]) == 0.0
    assert answer_substring("took\n14", ["It took", "14 days"]) == 1.0
    assert answer_substring("  ", ["anything"]) == 0.0
    # A word of the answer is one of the texts' words, not a piece of one.
    assert token_recall("tail wind", ["the detail of a wind"]) == 0.5
    assert token_recall("wind WIND rain", ["wind"]) == 0.5
    # Without a word of 4 letters there is nothing to find, and it counts 0, as in the published rows.
    assert token_recall("$50", ["$50"]) == 0.0


def test_depths_cut_the_lists() -> None:
    texts = {"q1": ["rainy Berlin", "sunny Rome"], "q2": []}
    found = answer_metrics(texts, {"q1": "sunny rome", "q2": "Oslo", "q3": "Rome"}, (1, 2))
    assert {name: column.tolist() for name, column in found.items()} == {
        "answer_substring@1": [0.0, 0.0, 0.0],
        "answer_substring@2": [1.0, 0.0, 0.0],
        "token_recall@1": [0.0, 0.0, 0.0],
        "token_recall@2": [1.0, 0.0, 0.0],
    }
    assert all(column.dtype == np.float64 for column in found.values())
    with pytest.raises(ParameterError, match="depth of answer metrics must be 1 or more, not 0"):
        answer_metrics(texts, {}, (5, 0))
