"""Answers in context against plain loops over letters, and the rules by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanrank.engine.errors import ParameterError
from fanrank.engine.metrics.answers import answer_metrics, answer_substring, token_recall


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
