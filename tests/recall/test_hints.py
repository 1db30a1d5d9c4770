"""Which types of record a question asks for."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        ("What should I configure?", (), ("Preference",)),
        ("which tea do I PREFER", (), ("Preference",)),
        ("what's my setting for the Kestrel project timeout?", ("Kestrel",), ("Preference",)),
        ("is dark mode my default?", (), ("Preference",)),
        ("is dark mode my  default?", (), ("Preference",)),
        ("is it the default?", (), ()),
        ("my own default", (), ()),
        ("When did we meet", (), ("Event",)),
        ("when we did meet", (), ()),
        ("at what time does it start", (), ("Event",)),
        ("what happened", (), ("Event",)),
        ("an error occurred", (), ("Event",)),
        ("which day was it", (), ("Event",)),
        ("what did I do last Tuesday?", (), ("Event",)),
        ("what did Ina do", (), ()),
        ("who is Ana", (), ("Entity",)),
        ("Who's on call?", (), ("Entity",)),
        ("who’s on call?", (), ("Entity",)),
        ("who isn't here", (), ()),
        ("what is Kestrel?", ("Kestrel",), ("Entity",)),
        ("what is kestrel?", ("Kestrel",), ("Entity",)),
        ("what's the Berlin office?", ("Berlin office",), ("Entity",)),
        ("what's The Hague?", ("The Hague",), ("Entity",)),
        ("what is Kestrel?", (), ()),
        ("what is Kestrel?", ("Sarah",), ()),
        ("what is Kestrel's timeout?", ("Kestrel",), ()),
        ("what is new at Kestrel?", ("Kestrel",), ()),
        ("what is the", ("Kestrel",), ()),
        ("tell me about Sarah Chen", ("Sarah Chen",), ("Entity",)),
        ("tell me about Sarah", ("Sarah Chen",), ()),
        ("tell me about climate", (), ()),
        ("tell me about Sarah", ("", "!", "Sarah"), ("Entity",)),
        ("what is likely", (), ()),
        ("unlike the wanted settings preferred", (), ()),
        ("reconfigure", (), ()),
        ("what did I want", (), ("Preference", "Event")),
        ("who is it that happened to like tea", (), ("Preference", "Event", "Entity")),
        ("what's my badge ID 47821?", (), ()),
        ("", (), ()),
    ],
)
def test_hints(text: str, names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert hints_by_words(text, names) == expected


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


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        # "like" compares.
        ("what's that like?", (), ()),
        ("it looks like rain", (), ()),
        ("what does it look like", (), ()),
        ("do you feel like pizza", (), ()),
        ("what's that thing I mentioned that's like an API but for people?", (), ()),
        ("did I say something like that", (), ()),
        ("what is it like to be Ana", ("Ana",), ()),
        ("what do people like me do", (), ()),
        ("does he have a car like mine", (), ()),
        # "like" and "want" are what someone does.
        ("does Sarah Chen like tea?", (), ("Preference",)),
        ("does my sister really like tea", (), ("Preference",)),
        ("what would Caroline like", (), ("Preference",)),
        ("what do we still want", (), ("Preference",)),
        ("which tea do I PREFER", (), ("Preference",)),
        ("I’d like to know when it ends", (), ()),
        ("I want to know the price", (), ()),
        ("I want you to check the budget", (), ()),
        # Settings are someone's, or of something.
        ("what's my setting for the Kestrel project timeout?", ("Kestrel",), ("Preference",)),
        ("the settings of the router", (), ("Preference",)),
        ("is dark mode my  default?", (), ("Preference",)),
        ("what is Gina's favorite dance?", (), ("Preference",)),
        ("setting the table", (), ()),
        ("how do I configure it", (), ("Preference",)),
        ("a badly configured router", (), ()),
        # Events: deeds and times, not speech.
        ("what did I say about climate?", (), ()),
        ("what did I tell Ana about JIRA-9921?", ("Ana",), ()),
        ("did I ever revoke the access token", (), ()),
        ("what did I do last Tuesday?", (), ("Event",)),
        ("did we ever visit Porto", (), ("Event",)),
        ("When did we meet", (), ("Event",)),
        ("at what time does it start", (), ("Event",)),
        ("which day was it", (), ("Event",)),
        ("how was it decided", (), ()),
        ("what was it about carbon prices?", (), ()),
        ("what happened to Ana", ("Ana",), ("Event",)),
        ("do you happen to know", (), ()),
        ("it occurred to me", (), ()),
        ("an error occurred", (), ("Event",)),
        # Entities: someone or something that is named or owned.
        ("who is Ana", ("Ana",), ("Entity",)),
        ("who is my dentist?", (), ("Entity",)),
        ("Who’s on call?", (), ()),
        ("who is it", (), ()),
        ("what's the Berlin office?", ("Berlin office",), ("Entity",)),
        ("what is Kestrel's timeout?", ("Kestrel",), ()),
        ("when did we meet, and what do I want", (), ("Preference", "Event")),
        ("", (), ()),
    ],
)
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
