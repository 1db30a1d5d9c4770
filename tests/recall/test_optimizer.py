"""Which channels and types a query needs: every rule, and never nothing at all."""

from __future__ import annotations

import json

import pytest

from fanrank.engine.errors import ParameterError
from fanrank.engine.recall.optimizer import (
    CHANNELS,
    NO_ENTITIES,
    NO_EVENTS,
    NO_KNOWN_TERM,
    NO_MENTION,
    NO_TIME,
    NO_VECTORS,
    ONLY_TIME,
    Optimizer,
    Parsed,
    Stats,
    content_words,
)
from fanrank.engine.text.time_expressions.parse import parse_when

NOW = 1742394600.0  # 2025-03-19 14:30 UTC
FULL = Stats(1000, True, {"Event": 10, "Preference": 10, "Fact": 980}, 50)


def parsed(text: str, known: int = 1, mentions: tuple[str, ...] = ()) -> Parsed:
    when = parse_when(text, NOW)
    return Parsed(text, content_words(text, when), known, when, mentions)


TIME_ALONE = {"bm25": ONLY_TIME, "dense": ONLY_TIME, "graph": NO_MENTION}
POOR = Stats(10, False, {"Event": 1}, 0)


@pytest.mark.parametrize(
    ("question", "stats", "channels", "skipped"),
    [
        (parsed("what did we say about climate?"), FULL, CHANNELS, {"graph": NO_MENTION, "temporal": NO_TIME}),
        # B060: "yesterday" gets nothing useful from BM25; a word or a mention beside it does.
        *((parsed(text), FULL, CHANNELS, TIME_ALONE) for text in ("yesterday", "what happened yesterday?", "in March")),
        (parsed("the budget last week", mentions=("Ana",)), FULL, CHANNELS, {}),
        (parsed("what is my ID since Monday", mentions=("Ana",)), FULL, CHANNELS, {}),
        (parsed("what happened yesterday", mentions=("ana",)), FULL, CHANNELS, {}),
        # X20: words that hint at a time keep temporal and the rest.
        (parsed("what is the latest?"), FULL, CHANNELS, {"graph": NO_MENTION}),
        (
            parsed("what happened yesterday"),
            Stats(10, True, {"Fact": 10}, 0),
            CHANNELS,
            {"graph": NO_MENTION, "temporal": NO_EVENTS},
        ),
        # The first reason stands.
        (
            parsed("yesterday", known=0),
            POOR,
            CHANNELS,
            {"bm25": NO_KNOWN_TERM, "dense": NO_VECTORS, "graph": NO_MENTION},
        ),
        (
            parsed("what did Ana say yesterday about xyzzy", known=0, mentions=("Ana",)),
            POOR,
            CHANNELS,
            {"bm25": NO_KNOWN_TERM, "dense": NO_VECTORS, "graph": NO_ENTITIES},
        ),
        # Never nothing: of words and vectors alone, or of what is left.
        (
            Parsed("xyzzy", ("xyzzy",)),
            Stats(0),
            CHANNELS,
            {"dense": NO_VECTORS, "graph": NO_MENTION, "temporal": NO_TIME},
        ),
        (Parsed("x", ("x",)), Stats(1), ("graph", "temporal"), {"temporal": NO_TIME}),
        (parsed("yesterday"), FULL, ("bm25", "dense"), {}),
        # A channel of another name stays.
        (
            Parsed("x", ("x",)),
            Stats(1),
            ("conversation", "bm25", "dense"),
            {"bm25": NO_KNOWN_TERM, "dense": NO_VECTORS},
        ),
    ],
)
def test_what_has_nothing_to_say_is_skipped_for_a_reason(
    question: Parsed, stats: Stats, channels: tuple[str, ...], skipped: dict[str, str]
) -> None:
    assert Optimizer()(question, stats, channels).skipped == skipped


def test_hints_of_types_that_the_namespace_holds() -> None:
    text = "what did I like"
    words = Optimizer(triggers="words")
    assert words(parsed(text), FULL).hints == ("Preference", "Event")
    assert words(parsed(text), Stats(5, types={"Event": 1, "Preference": 0})).hints == ("Event",)
    assert words(parsed(text), Stats(5)).hints == ()
    assert Optimizer()(parsed(text), FULL).hints == ("Preference",)
    assert Optimizer()(parsed(text), Stats(5)).hints == ()
    assert Optimizer()(parsed("what is Kestrel", mentions=("Kestrel",)), Stats(5, types={"Entity": 2})).hints == (
        "Entity",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("what happened last week?", ()),
        ("at what time was it, today?", ()),
        ("what I said yesterday", ()),
        ("what's been on my mind lately?", ("mind",)),
        ("the budget, the BUDGET last week", ("budget",)),
        ("my ID 47821", ("id", "47821")),
        ("what time is tea", ("time", "tea")),
        ("the recent report", ("report",)),
        ("pre-yesterday yesterday", ("pre",)),
    ],
)
def test_content_words(text: str, words: tuple[str, ...]) -> None:
    assert content_words(text, parse_when(text, NOW)) == words


def test_round_trip() -> None:
    optimizer = Optimizer(hints=False, widen_below=7)
    assert Optimizer.of(json.loads(json.dumps(optimizer.to_dict()))) == optimizer
    assert Optimizer.of(optimizer) is optimizer
    assert Optimizer.of({}) == Optimizer(True, True, 5, "grammar", False)


VALUES = {
    "hints": [1],
    "filters": [0],
    "triggers": ["bare", None],
    "skips": [None],
    "widen_below": [-1, 5.0, True],
    "x": [1],
}


@pytest.mark.parametrize("name", VALUES)
def test_values_out_of_range(name: str) -> None:
    for value in (*({name: bad} for bad in VALUES[name]), 5):
        with pytest.raises(ParameterError, match="optimizer"):
            Optimizer.of(value)  # type: ignore[arg-type]
