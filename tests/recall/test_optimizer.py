"""Which channels and types a query needs: every rule, and never nothing at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    Route,
    Stats,
    content_words,
)
from fanrank.engine.text.time_expressions.parse import When, parse_when

NOW = 1742394600.0  # 2025-03-19 14:30 UTC
FULL = Stats(1000, True, {"Event": 10, "Preference": 10, "Fact": 980}, 50)
YESTERDAY = When(NOW - 86400.0, NOW, "yesterday", "relative")
RECENT = When(NOW - 30 * 86400.0, NOW, "recent", "fuzzy", True)


def parsed(text: str, known: int = 1, mentions: tuple[str, ...] = ()) -> Parsed:
    when = parse_when(text, NOW)
    return Parsed(text, content_words(text, when), known, when, mentions)


def test_a_plain_question_skips_what_it_has_nothing_for() -> None:
    route = Optimizer()(parsed("what did we say about climate?"), FULL)
    assert route == Route((), {"graph": NO_MENTION, "temporal": NO_TIME})


@pytest.mark.parametrize("text", ["yesterday", "what happened yesterday?", "What did I do last Tuesday?", "in March"])
def test_only_a_time(text: str) -> None:
    # B060: "yesterday" gets nothing useful from BM25.
    route = Optimizer()(parsed(text), FULL)
    assert route.skipped == {"bm25": ONLY_TIME, "dense": ONLY_TIME, "graph": NO_MENTION}


@pytest.mark.parametrize(
    "text", ["the budget last week", "what is my ID since Monday", "what did Ana decide yesterday", "7 things today"]
)
def test_a_time_and_a_word_keep_everything(text: str) -> None:
    assert Optimizer()(parsed(text, mentions=("Ana",)), FULL).skipped == {}


def test_a_mention_is_more_than_a_time() -> None:
    # A query may give its entities apart from its text.
    assert Optimizer()(parsed("what happened yesterday", mentions=("ana",)), FULL).skipped == {}


def test_only_a_time_and_no_events() -> None:
    route = Optimizer()(parsed("what happened yesterday"), Stats(10, True, {"Fact": 10}, 0))
    assert route == Route((), {"graph": NO_MENTION, "temporal": NO_EVENTS})


def test_words_that_hint_at_a_time_keep_temporal_and_the_rest() -> None:
    # X20: run, at half the weight; "what is the latest?" names no time.
    assert Optimizer()(parsed("what is the latest?"), FULL).skipped == {"graph": NO_MENTION}


def test_no_vectors_no_known_term_no_entities() -> None:
    stats = Stats(10, False, {"Event": 1}, 0)
    route = Optimizer()(parsed("what did Ana say yesterday about xyzzy", known=0, mentions=("Ana",)), stats)
    assert route.skipped == {"bm25": NO_KNOWN_TERM, "dense": NO_VECTORS, "graph": NO_ENTITIES}


def test_the_first_reason_stands() -> None:
    route = Optimizer()(parsed("yesterday", known=0), Stats(10, False, {"Event": 1}, 0))
    assert route.skipped == {"bm25": NO_KNOWN_TERM, "dense": NO_VECTORS, "graph": NO_MENTION}


def test_never_nothing() -> None:
    route = Optimizer()(Parsed("xyzzy", ("xyzzy",)), Stats(0))
    assert route.skipped == {"dense": NO_VECTORS, "graph": NO_MENTION, "temporal": NO_TIME}
    assert Optimizer()(Parsed("x", ("x",)), Stats(1), ("graph", "temporal")).skipped == {"temporal": NO_TIME}
    # Words and vectors alone: a pure time leaves them to be searched.
    assert Optimizer()(parsed("yesterday"), FULL, ("bm25", "dense")).skipped == {}
    assert Optimizer()(parsed("yesterday"), FULL, ("bm25",)).skipped == {}


def test_a_channel_of_another_name_stays() -> None:
    route = Optimizer()(Parsed("x", ("x",)), Stats(1), ("conversation", "bm25", "dense"))
    assert route.skipped == {"bm25": NO_KNOWN_TERM, "dense": NO_VECTORS}


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


def test_halves_are_turned_off() -> None:
    route = Optimizer(skips=False)(parsed("what happened yesterday"), FULL)
    assert route == Route(("Event",), {})
    route = Optimizer(hints=False)(parsed("what happened yesterday"), FULL)
    assert route.hints == ()
    assert route.skipped


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


def test_content_words_take_the_expression_once() -> None:
    assert content_words("March 3 tea, March 5 coffee", parse_when("March 3 tea, March 5 coffee", NOW)) == (
        "tea",
        "march",
        "5",
        "coffee",
    )


@given(
    st.builds(
        Parsed,
        st.sampled_from(["", "what did I like", "who is Ana", "yesterday"]),
        st.sampled_from([(), ("tea",)]),
        st.integers(0, 2),
        st.sampled_from([None, YESTERDAY, RECENT]),
        st.sampled_from([(), ("Ana",)]),
    ),
    st.builds(
        Stats,
        st.integers(0, 3),
        st.booleans(),
        st.dictionaries(st.sampled_from(["Event", "Preference", "Entity", "Fact"]), st.integers(0, 2)),
        st.integers(0, 2),
    ),
    st.builds(Optimizer, st.booleans(), st.booleans(), st.integers(0, 9), st.sampled_from(["grammar", "words"])),
    st.lists(st.sampled_from([*CHANNELS, "conversation"]), min_size=1, unique=True),
)
def test_all_inputs(parsed: Parsed, stats: Stats, optimizer: Optimizer, channels: list[str]) -> None:
    route = optimizer(parsed, stats, channels)
    assert set(route.skipped) < set(channels)
    assert all(stats.types[kind] for kind in route.hints)
    if not optimizer.skips:
        assert route.skipped == {}
        return
    # Written out once more, as which channels can have something to say.
    timed = parsed.when is not None and bool(stats.types.get("Event"))
    alone = timed and "temporal" in channels and parsed.when == YESTERDAY and not (parsed.words or parsed.mentions)
    useful = {
        "bm25": parsed.known > 0 and not alone,
        "dense": stats.vectors and not alone,
        "graph": bool(parsed.mentions) and stats.entities > 0,
        "temporal": timed,
        "conversation": True,
    }
    left = [name for name in channels if name not in route.skipped]
    expected = [name for name in channels if useful[name]]
    assert left == expected or (not expected and len(left) == 1)


def test_round_trip() -> None:
    optimizer = Optimizer(hints=False, widen_below=7)
    assert Optimizer.of(json.loads(json.dumps(optimizer.to_dict()))) == optimizer
    assert Optimizer.of(optimizer) is optimizer
    assert Optimizer.of({}) == Optimizer(True, True, 5, "grammar", False)


@pytest.mark.parametrize(
    "value",
    [
        {"hints": 1},
        {"filters": 0},
        {"triggers": "bare"},
        {"triggers": None},
        {"skips": None},
        {"widen_below": -1},
        {"widen_below": 5.0},
        {"widen_below": True},
        {"x": 1},
        5,
    ],
)
def test_values_out_of_range(value: object) -> None:
    with pytest.raises(ParameterError, match="optimizer"):
        Optimizer.of(value)
