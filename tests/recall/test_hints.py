"""Which types of record a question asks for, which of its words are names, and which channels it needs."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanrank.engine.errors import ParameterError
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
from fanrank.engine.records.entities import words_of
from fanrank.engine.text.time_expressions.parse import parse_when


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
