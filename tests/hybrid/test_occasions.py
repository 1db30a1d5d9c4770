"""Times that only the memory knows: "since I joined", "before the launch", "the last time we met"."""

import math

import pytest
from support import borders

import fanrank as fr
from fanrank.engine.text.time_expressions.occasions import occasion_of

DAY = 86_400.0
NOW = 20_000 * DAY + 50_000.0


def event(name: str, text: str, days: float, **fields: object) -> fr.Record:
    return fr.Record(name, text, type="Event", time=NOW - days * DAY, **fields)  # type: ignore[arg-type]


def ask(engine: fr.Engine, text: str, **fields: object) -> tuple[float, float] | None:
    """The interval that a query names in a memory."""
    hits = engine.search([fr.Query(text, now=NOW, **fields)], strategy="recall")  # type: ignore[arg-type]
    when = hits.decisions[0].when
    return None if when is None else (when.start, when.end)


SAID = [
    # who, words, last; a text that says so; a text that does not
    ("i", "joined", "I joined Acme", "Ana joined Acme"),
    ("i", "joined", "Joined Acme as an engineer.", "Ben and Ana joined Acme"),
    ("i", "joined", "It was raining. The user joined Acme", "I have not joined Acme"),
    ("i", "joined", "I've just joined the team", "I planned it before I joined"),
    ("i", "joined", "We joined a gym", "I will be glad once Ana joined"),
    ("i", "joined the design team", "I joined the design team today", "I joined the data team"),
    ("we", "met", "We met at the harbour", "We meet on Mondays"),
    ("we", "met", "Ana and I met for lunch", "I met Ana for lunch"),
    ("we", "met", "we finally met", "They met; we were not there"),
    ("you", "told me", "You told me of the outage", "I told me of the outage"),
    ("ana", "moved to Berlin", "Ana moved to Berlin", "Ana moved to Paris. Ben lives in Berlin"),
    ("ana", "moved", "My sister Ana has moved out", "Ben and his cat moved in with Ana"),
    ("i", "was promoted", "I was promoted to lead", "I was glad that Ana had been seen"),
    ("i", "joined", "I joined the call", "I was joined by Ana"),
    ("", "launch", "The launch took place", "Preparations for the launch"),
    ("", "launch", "We launched the site", "The launch was postponed"),
    ("", "release", "Release of version 2", "Planned the release"),
    ("", "wedding in Rome", "Our wedding was in Rome", "Ana's wedding"),
]


@pytest.mark.parametrize(("who", "words", "said", "other"), SAID)
def test_a_text_says_it_or_does_not(who: str, words: str, said: str, other: str) -> None:
    occasion = occasion_of(who, words, last=False)
    assert occasion.said_in(said)
    assert not occasion.said_in(other)


def test_words_that_name_another_time_or_nothing_are_no_occasion() -> None:
    for who, words in (
        ("i", "joined in March"),
        ("i", "join"),
        ("i", "was"),
        ("", "the"),
        ("", "last week"),
        ("i", "red"),
    ):
        assert occasion_of(who, words, last=False) is None


def memory() -> fr.Engine:
    engine = fr.Engine()
    engine.add(
        [
            event("joined", "I joined the platform team", 300),
            event("launch", "We launched the new site", 40),
            event("lunch", "We met for lunch at the harbour", 9.25),
            event("tea", "We met for tea", 3.25),
            event("soon", "We met on the moon", -5),
            event("other", "Ana joined the choir", 20),
            fr.Record("fact", "I joined a gym", type="Fact", time=NOW - 5 * DAY),
            event("old", "Deployed the billing job", 310),
            event("new", "Deployed the search job", 2),
        ]
    )
    return engine


def test_a_query_is_resolved_against_events_that_say_so() -> None:
    engine = memory()
    joined, launch = NOW - 300 * DAY, NOW - 40 * DAY
    assert ask(engine, "what happened since I joined?") == (joined, NOW)
    assert ask(engine, "what happened since I joined the platform team?") == (joined, NOW)
    assert ask(engine, "what changed after we launched the site?") == (math.nextafter(launch, math.inf), NOW)
    assert ask(engine, "what changed since the launch?") == (launch, NOW)
    before = ask(engine, "what did we deploy before the launch?")
    assert before[1] == math.nextafter(launch, -math.inf)
    tea = NOW - 3.25 * DAY
    assert ask(engine, "what did she say the last time we met?") == fr_day(tea)
    assert ask(engine, "what did she say when we last met?") == fr_day(tea)
    assert ask(engine, "what happened since Ana joined the choir?") == (NOW - 20 * DAY, NOW)
    hits = engine.search([fr.Query("what happened since I joined?", now=NOW)], k=20, strategy="temporal")
    assert [name for name, _ in hits[0]] == ["new", "tea", "lunch", "other", "launch", "joined"]


def fr_day(time: float) -> tuple[float, float]:
    """The calendar day of a moment in UTC."""
    first = math.floor(time / DAY) * DAY
    return first, math.nextafter(first + DAY, -math.inf)


def test_what_is_not_sure_names_no_time() -> None:
    engine = memory()
    for text in (
        "what happened since we met?",  # twice
        "what happened since I left?",  # never
        "what happened since Ben joined?",
        "what happened since the wedding?",
        "what happened since you joined?",
        "what happened the last time we danced?",
        "since we",
    ):
        assert ask(engine, text) is None, text
    silent = fr.Engine(keep_texts=False)
    silent.add([event("joined", "I joined", 300)])
    assert ask(silent, "what happened since I joined?") is None
    assert fr.parse_when("what happened since I joined?", NOW) is None
    # Where no event says so, another time in the text still counts.
    assert ask(engine, "what happened yesterday, since the wedding?") == (NOW - DAY, NOW)


def test_only_events_that_the_query_may_find_count() -> None:
    engine = fr.Engine()
    engine.add(
        [
            event("a", "I joined Acme", 9, user="ana", namespace="x"),
            event("b", "I joined Bolt", 5, user="bo", namespace="x"),
            event("c", "I joined Corp", 3, user="ana", namespace="y"),
        ]
    )
    text = "what happened since I joined?"
    assert ask(engine, text, namespace="x") is None
    assert ask(engine, text, namespace="x", filter={"user": "ana"}) == (NOW - 9 * DAY, NOW)
    assert ask(engine, text, namespace="y") == (NOW - 3 * DAY, NOW)
    assert ask(engine, text, namespaces=["x", "y"]) is None
    assert ask(engine, text, namespaces=["x", "y"], filter={"user": "bo"}) == (NOW - 5 * DAY, NOW)
    assert ask(engine, text, namespace="nobody") is None


def test_the_last_talk_is_the_later_of_the_session_and_the_event() -> None:
    engine = memory()
    text = "what did we decide the last time we met?"
    assert ask(engine, text, last_session_end=NOW - DAY) == fr_day(NOW - DAY)
    assert ask(engine, text, last_session_end=NOW - 30 * DAY) == fr_day(NOW - 3.25 * DAY)
    assert ask(engine, "and the last time we spoke?", last_session_end=NOW - DAY) == fr_day(NOW - DAY)
    assert ask(engine, "and the last time we danced?", last_session_end=NOW - DAY) is None
    # "since we last met" speaks of sessions alone (B033).
    assert ask(engine, "what happened since we last met?", last_session_end=NOW - DAY) == (NOW - DAY, NOW)
    assert ask(engine, "what happened since we last met?") is None


def test_the_days_of_an_occasion_are_those_of_the_zone() -> None:
    engine = fr.Engine()
    late = 20_000 * DAY - 3600.0  # 23:00 in London, the next day in Berlin
    engine.add([fr.Record("m", "We met", type="Event", time=late)])
    for zone, first in (("UTC", 19_999 * DAY), ("Europe/Berlin", 20_000 * DAY - 2 * 3600.0)):
        found = ask(engine, "the last time we met?", timezone=zone)
        assert found[0] == first


def test_more_texts_than_may_be_read_name_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"TEXTS": 2, "MOST_TEXTS": 6})
    engine = fr.Engine()
    engine.add([event(f"e{i}", "They met", i + 1) for i in range(6)])
    engine.add([event("we", "We met", 7)])
    assert ask(engine, "the last time we met?") is None
    engine.delete(["e0"])
    assert ask(engine, "the last time we met?") == fr_day(NOW - 7 * DAY)
