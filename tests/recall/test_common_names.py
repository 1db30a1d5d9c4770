"""Which words of a query are names, where they might be common words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanrank.engine.recall.common_names import COMMON, is_named
from fanrank.engine.records.entities import words_of


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("what will happen next", "will", False),
        ("Will it rain", "will", False),
        ("we met. Will it rain", "will", False),
        ("how much will it cost", "will", False),
        ("and will she come", "will", False),
        ("WHAT WILL HAPPEN", "will", False),
        ("what does Will know", "will", True),
        ("does will know", "will", True),
        ("who is Will", "will", True),
        ("Will's team", "will", True),
        ("Will likes tea", "will", True),
        ("Will", "will", True),
        ("may I ask", "may", False),
        ("May I ask", "may", False),
        ("what happened in May", "may", False),
        ("what happened on May 5", "may", False),
        ("what did May say", "may", True),
        ("tell me about may", "may", True),
        ("the bill is due", "bill", False),
        ("by the grace of god", "grace", False),
        ("what is Grace doing", "grace", True),
        ("mark it", "mark", False),
        ("did mark call", "mark", True),
        ("what is it", "it", False),
        ("the IT is down", "it", True),
        ("kestrel timeout", "kestrel", True),
    ],
)
def test_names(text: str, name: str, expected: bool) -> None:
    words = words_of(text)
    assert is_named(text, words, words.index(name)) is expected


@given(st.text(), st.integers(0, 9))
def test_any_text_is_read(text: str, position: int) -> None:
    words = words_of(text)
    if position < len(words):
        found = is_named(text, words, position)
        assert found or words[position] in COMMON


def test_a_text_is_read_once_for_all_of_its_names() -> None:
    class Text(str):
        reads = 0

        def isupper(self) -> bool:
            Text.reads += 1
            return super().isupper()

    # A pattern that looked for the end of the sentence read the marks anew for each name, and from each mark.
    text = Text("Will knows" + "!" * 20_000 + " Will" * 100)
    words = words_of(text)
    assert [is_named(text, words, place) for place in range(2, 102)] == [False] + [True] * 99
    assert Text.reads == 1
