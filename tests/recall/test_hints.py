"""Which types of record a question asks for, and which of its words are names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanrank.engine.recall.common_names import COMMON, is_named
from fanrank.engine.recall.hints import (
    ENTITY_TRIGGERS,
    EVENT_TRIGGERS,
    MENTION_TRIGGERS,
    PREFERENCE_TRIGGERS,
    hints_by_grammar,
    hints_by_words,
    without_event_triggers,
)
from fanrank.engine.records.entities import words_of


def test_the_triggers_are_those_of_the_source() -> None:
    # B041, and the short forms of "who is" and "what is".
    assert PREFERENCE_TRIGGERS == ("prefer", "like", "want", "setting", "configure", "my default")
    assert EVENT_TRIGGERS == ("when did", "at what time", "happened", "occurred", "was it", "did I")
    assert ENTITY_TRIGGERS == ("who is", "who's")
    assert MENTION_TRIGGERS == ("what is", "what's", "tell me about")


# The types that are hinted at, the names that are known, and texts.
BY_WORDS = """
none: is it the default? | my own default | when we did meet | what did Ina do | who isn't here | what is Kestrel? |
   tell me about climate | what is likely | unlike the wanted settings preferred | reconfigure |
   what's my badge ID 47821?
none of Kestrel: what is Kestrel's timeout? | what is new at Kestrel? | what is the
none of Sarah: what is Kestrel?
none of Sarah Chen: tell me about Sarah
Entity: who is Ana | Who's on call? | who’s on call?
Entity of Berlin office: what's the Berlin office?
Entity of Kestrel: what is Kestrel? | what is kestrel?
Entity of Sarah Chen: tell me about Sarah Chen
Entity of The Hague: what's The Hague?
Event: When did we meet | at what time does it start | what happened | an error occurred | which day was it |
   what did I do last Tuesday?
Preference: What should I configure? | which tea do I PREFER | is dark mode my default? | is dark mode my  default?
Preference of Kestrel: what's my setting for the Kestrel project timeout?
Preference Event: what did I want
Preference Event Entity: who is it that happened to like tea
"""
BY_GRAMMAR = """
none: what's that like? | it looks like rain | what does it look like | do you feel like pizza |
   what's that thing I mentioned that's like an API but for people? | did I say something like that |
   what do people like me do | does he have a car like mine | I’d like to know when it ends |
   I want to know the price | I want you to check the budget | setting the table | a badly configured router |
   what did I say about climate? | did I ever revoke the access token | how was it decided |
   what was it about carbon prices? | do you happen to know | it occurred to me | Who’s on call? | who is it
none of Ana: what is it like to be Ana | what did I tell Ana about JIRA-9921?
none of Kestrel: what is Kestrel's timeout?
Entity: who is my dentist?
Entity of Ana: who is Ana
Entity of Berlin office: what's the Berlin office?
Event: what did I do last Tuesday? | did we ever visit Porto | When did we meet | at what time does it start |
   which day was it | an error occurred
Event of Ana: what happened to Ana
Preference: does Sarah Chen like tea? | does my sister really like tea | what would Caroline like |
   what do we still want | which tea do I PREFER | the settings of the router | is dark mode my  default? |
   what is Gina's favorite dance? | how do I configure it
Preference of Kestrel: what's my setting for the Kestrel project timeout?
Preference Event: when did we meet, and what do I want
"""


def cases(table: str) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    found: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [("", (), ())]
    for row in table.replace("|\n", "|").strip().splitlines():
        head, texts = row.split(":", 1)
        kinds, _, names = head.partition(" of ")
        known, expected = tuple(filter(None, names.split(", "))), tuple(kinds.replace("none", "").split())
        found += [(text.strip(), known, expected) for text in texts.split("|")]
    return found


@pytest.mark.parametrize(("text", "names", "expected"), cases(BY_WORDS))
def test_hints(text: str, names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert hints_by_words(text, names) == expected
    assert hints_by_words(text, ("", "!", *names)) == expected


WORDS = """
prefer like likely want setting settings configure my default when did at what time happened occurred was it I who is
tell me about Sarah Chen Kestrel the 's , ? didn't
"""


@given(st.lists(st.sampled_from(WORDS.split()), max_size=10).map(" ".join))
def test_any_order_of_words(text: str) -> None:
    # Against patterns over the text, in place of runs of words.
    flat = " ".join(re.findall(r"\w+", text.lower()))
    triggers = {
        "Preference": "prefer|like|want|setting|configure|my default",
        "Event": "when did|at what time|happened|occurred|was it|did i",
        "Entity": r"who is|who s|(?:what is|what s|tell me about) (?:(?:my|the) )?(?:sarah chen|kestrel)(?! s\b)",
    }
    expected = [kind for kind, pattern in triggers.items() if re.search(rf"\b(?:{pattern})\b", flat)]
    assert list(hints_by_words(text, ("Sarah Chen", "Kestrel"))) == expected


@pytest.mark.parametrize(("text", "names", "expected"), cases(BY_GRAMMAR))
def test_hints_by_grammar(text: str, names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert hints_by_grammar(text, names) == expected
    assert hints_by_grammar(text.replace("’", "'").upper(), names) == expected


@given(st.lists(st.sampled_from(WORDS.split()), max_size=10).map(" ".join))
def test_grammar_reads_any_order_of_words(text: str) -> None:
    found = hints_by_grammar(text, ("Sarah Chen", "Kestrel"))
    assert list(found) == [kind for kind in ("Preference", "Event", "Entity") if kind in found]


def test_a_long_text_is_read_in_linear_time() -> None:
    # 400,000 characters of what the patterns begin with; a pattern that backtracks over it would take hours.
    assert hints_by_grammar("did my who is when do really still " * 12_000) == ()


def test_words_of_event_triggers() -> None:
    assert without_event_triggers(words_of("at what time did I say what happened")) == ["say", "what"]
    assert without_event_triggers(("what", "time", "was", "the", "talk")) == ["what", "time", "was", "the", "talk"]
    assert without_event_triggers([]) == []


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
