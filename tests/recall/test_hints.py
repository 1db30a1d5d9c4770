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
    type_hints,
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
    assert type_hints(text, names) == expected


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
    assert list(type_hints(text, ("Sarah Chen", "Kestrel"))) == expected


def test_words_of_event_triggers() -> None:
    assert without_event_triggers(words_of("at what time did I say what happened")) == ["say", "what"]
    assert without_event_triggers(("what", "time", "was", "the", "talk")) == ["what", "time", "was", "the", "talk"]
    assert without_event_triggers([]) == []
