"""Time expressions: what interval each names, and what is none."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders

from fanrank.engine.errors import ParameterError
from fanrank.engine.text.time_expressions import parse as when
from fanrank.engine.text.time_expressions.intervals import DAY, HOUR, MINUTE
from fanrank.engine.text.time_expressions.parse import When, parse_when

UTC = dt.timezone.utc
BERLIN = ZoneInfo("Europe/Berlin")  # 2025: clocks go forward on 30 March, back on 26 October
NEW_YORK = ZoneInfo("America/New_York")


def seconds(text: str, timezone: dt.tzinfo = UTC) -> float:
    return dt.datetime.fromisoformat(text).replace(tzinfo=timezone).timestamp()


NOW = seconds("2025-03-19 14:30:00")  # a Wednesday


def until(after: str, timezone: dt.tzinfo = UTC) -> float:
    return math.nextafter(seconds(after, timezone), -math.inf)


CALENDAR = [
    # text, expression, first day, the day after the last
    ("what did I do last Tuesday?", "last Tuesday", "2025-03-18", "2025-03-19"),
    ("last Wednesday", "last Wednesday", "2025-03-12", "2025-03-13"),  # strictly before today
    ("last thursday's call", "last thursday", "2025-03-13", "2025-03-14"),
    ("LAST  SUNDAY", "LAST  SUNDAY", "2025-03-16", "2025-03-17"),
    ("this past Friday", "this past Friday", "2025-03-14", "2025-03-15"),
    ("the call on Tuesday", "on Tuesday", "2025-03-18", "2025-03-19"),
    ("the call on Wednesday", "on Wednesday", "2025-03-19", "2025-03-20"),
    ("the call on thurs about tea", "on thurs", "2025-03-13", "2025-03-14"),
    ("lunch on March 15th with Ana", "on March 15th", "2025-03-15", "2025-03-16"),
    ("on march 15", "on march 15", "2025-03-15", "2025-03-16"),
    ("March 19", "March 19", "2025-03-19", "2025-03-20"),
    ("March 20", "March 20", "2024-03-20", "2024-03-21"),  # the latest that has begun
    ("March 15, 2025", "March 15, 2025", "2025-03-15", "2025-03-16"),
    ("March 15,2023 and so on", "March 15,2023", "2023-03-15", "2023-03-16"),
    ("on Saturday, March 15", "on Saturday, March 15", "2025-03-15", "2025-03-16"),
    ("15 March", "15 March", "2025-03-15", "2025-03-16"),
    ("the 15th of march", "the 15th of march", "2025-03-15", "2025-03-16"),
    ("3 Jan. 2024", "3 Jan. 2024", "2024-01-03", "2024-01-04"),
    ("on Sept 9", "on Sept 9", "2024-09-09", "2024-09-10"),
    ("December 31", "December 31", "2024-12-31", "2025-01-01"),
    ("February 29", "February 29", "2024-02-29", "2024-03-01"),
    ("February 29, 2023 or on Monday", "on Monday", "2025-03-17", "2025-03-18"),
    ("May 15th", "May 15th", "2024-05-15", "2024-05-16"),
    ("may 15th", "may 15th", "2024-05-15", "2024-05-16"),
    ("what happened 2025-03-15?", "2025-03-15", "2025-03-15", "2025-03-16"),
    ("on 2025-03-15T10:30:00Z", "on 2025-03-15T10:30:00Z", "2025-03-15", "2025-03-16"),
    ("2024-02-29", "2024-02-29", "2024-02-29", "2024-03-01"),
    ("2030-01-01", "2030-01-01", "2030-01-01", "2030-01-02"),  # named years may lie ahead
    ("2025-02-30, in January", "in January", "2025-01-01", "2025-02-01"),
    ("in March", "in March", "2025-03-01", "2025-04-01"),
    ("in april", "in april", "2024-04-01", "2024-05-01"),
    ("in may", "in may", "2024-05-01", "2024-06-01"),
    ("in December", "in December", "2024-12-01", "2025-01-01"),
    ("in late January", "in late January", "2025-01-01", "2025-02-01"),
    ("in March 2024", "in March 2024", "2024-03-01", "2024-04-01"),
    ("the February 2024 report", "February 2024", "2024-02-01", "2024-03-01"),
    ("February of 1900", "February of 1900", "1900-02-01", "1900-03-01"),
    ("last March", "last March", "2024-03-01", "2024-04-01"),
    ("last February", "last February", "2025-02-01", "2025-03-01"),
    ("in Q1", "in Q1", "2025-01-01", "2025-04-01"),
    ("in q3", "in q3", "2024-07-01", "2024-10-01"),
    ("Q3 2024", "Q3 2024", "2024-07-01", "2024-10-01"),
    ("in Q4 of 2023", "in Q4 of 2023", "2023-10-01", "2024-01-01"),
    ("in 2024", "in 2024", "2024-01-01", "2025-01-01"),
    ("during the year 2025", "during the year 2025", "2025-01-01", "2026-01-01"),
    ("today", "today", "2025-03-19", "2025-03-20"),
    ("the day before yesterday", "the day before yesterday", "2025-03-17", "2025-03-18"),
]


@pytest.mark.parametrize(("text", "expression", "first", "after"), CALENDAR)
def test_absolute(text: str, expression: str, first: str, after: str) -> None:
    assert parse_when(text, NOW) == When(seconds(first), until(after), expression, "absolute")


@pytest.mark.parametrize(
    ("text", "first", "after"),
    [
        ("3 days ago", "2025-03-16", "2025-03-17"),
        ("one day ago", "2025-03-18", "2025-03-19"),
        ("a day ago", "2025-03-18", "2025-03-19"),
        ("twelve days ago", "2025-03-07", "2025-03-08"),
        ("400 days ago", "2024-02-13", "2024-02-14"),
    ],
)
def test_days_ago_are_calendar_days(text: str, first: str, after: str) -> None:
    assert parse_when(f"{text} we met", NOW) == When(seconds(first), until(after), text, "relative")


BACK = [
    # text, expression, oldest and newest age in seconds, kind
    ("what happened last week?", "last week", 7 * DAY, 0.0, "relative"),
    ("over the past week", "past week", 7 * DAY, 0.0, "relative"),
    ("yesterday's standup", "yesterday", DAY, 0.0, "relative"),
    ("last month", "last month", 30 * DAY, 0.0, "relative"),
    ("last year", "last year", 365 * DAY, 0.0, "relative"),
    ("in the last hour", "last hour", HOUR, 0.0, "relative"),
    ("errors in the last day", "in the last day", DAY, 0.0, "relative"),
    ("the past 90 minutes", "past 90 minutes", 90 * MINUTE, 0.0, "relative"),
    ("last 24 hours", "last 24 hours", DAY, 0.0, "relative"),
    ("last two weeks", "last two weeks", 14 * DAY, 0.0, "relative"),
    ("past twelve months", "past twelve months", 360 * DAY, 0.0, "relative"),
    ("the last 2 years", "last 2 years", 730 * DAY, 0.0, "relative"),
    ("2 hours ago", "2 hours ago", 2.5 * HOUR, 1.5 * HOUR, "relative"),
    ("an hour ago", "an hour ago", 1.5 * HOUR, 0.5 * HOUR, "relative"),
    ("ten minutes ago", "ten minutes ago", 630.0, 570.0, "relative"),
    ("a week ago", "a week ago", 10.5 * DAY, 3.5 * DAY, "relative"),
    ("3 months ago", "3 months ago", 105 * DAY, 75 * DAY, "relative"),
    ("two years ago", "two years ago", 912.5 * DAY, 547.5 * DAY, "relative"),
    ("what changed recently", "recently", 30 * DAY, 0.0, "fuzzy"),
    ("what's been on my mind lately?", "lately", 30 * DAY, 0.0, "fuzzy"),
    ("a few months ago", "a few months ago", 90 * DAY, 30 * DAY, "fuzzy"),
    ("a couple of months ago", "a couple of months ago", 90 * DAY, 30 * DAY, "fuzzy"),
    ("a few weeks ago", "a few weeks ago", 30 * DAY, 7 * DAY, "fuzzy"),
    ("a few days ago", "a few days ago", 7 * DAY, DAY, "fuzzy"),
    ("in the last few days", "last few days", 7 * DAY, 0.0, "fuzzy"),
]


@pytest.mark.parametrize(("text", "expression", "oldest", "newest", "kind"), BACK)
def test_back_from_now(text: str, expression: str, oldest: float, newest: float, kind: Any) -> None:
    assert parse_when(text, NOW) == When(NOW - oldest, NOW - newest, expression, kind)


@pytest.mark.parametrize(
    ("text", "now", "first"),
    [
        ("this week", "2025-03-19 14:30", "2025-03-17"),
        ("this week", "2025-03-17 00:00", "2025-03-17"),
        ("this week", "2025-03-02 23:59", "2025-02-24"),
        ("this week", "2025-01-01 08:00", "2024-12-30"),
        ("this month", "2025-03-19 14:30", "2025-03-01"),
        ("this month", "2024-02-29 23:59", "2024-02-01"),
        ("this month", "2025-01-01 00:00", "2025-01-01"),
        ("this year", "2025-03-19 14:30", "2025-01-01"),
        ("this year", "2024-12-31 23:59", "2024-01-01"),
    ],
)
def test_this(text: str, now: str, first: str) -> None:
    assert parse_when(text, seconds(now)) == When(seconds(first), seconds(now), text, "relative")


@pytest.mark.parametrize(
    ("text", "now", "first", "after"),
    [
        ("last Monday", "2025-01-01 10:00", "2024-12-30", "2024-12-31"),
        ("on Friday", "2024-03-01 10:00", "2024-03-01", "2024-03-02"),
        ("last Friday", "2024-03-01 10:00", "2024-02-23", "2024-02-24"),
        ("last Thursday", "2024-03-01 10:00", "2024-02-29", "2024-03-01"),
        ("1 day ago", "2024-03-01 00:00", "2024-02-29", "2024-03-01"),
        ("1 day ago", "2025-03-01 00:00", "2025-02-28", "2025-03-01"),
        ("February 29", "2103-03-01 10:00", "2096-02-29", "2096-03-01"),  # 2100 has none
        ("February 29", "2024-02-28 23:59", "2020-02-29", "2020-03-01"),
        ("in Q4", "2024-12-31 23:59", "2024-10-01", "2025-01-01"),
        ("in Q1", "2025-01-01 00:00", "2025-01-01", "2025-04-01"),
        ("last January", "2025-01-31 10:00", "2024-01-01", "2024-02-01"),
        ("today", "2024-12-31 23:59", "2024-12-31", "2025-01-01"),
        ("March 1", "1969-03-02 10:00", "1969-03-01", "1969-03-02"),
    ],
)
def test_borders_of_the_calendar(text: str, now: str, first: str, after: str) -> None:
    found = parse_when(text, seconds(now))
    assert found is not None
    assert (found.start, found.end) == (seconds(first), until(after))


@pytest.mark.parametrize(
    ("text", "now", "timezone", "first", "after", "hours"),
    [
        ("today", "2025-03-30 12:00", BERLIN, "2025-03-30", "2025-03-31", 23),
        ("1 day ago", "2025-10-27 00:30", BERLIN, "2025-10-26", "2025-10-27", 25),
        ("last Sunday", "2025-04-01 12:00", BERLIN, "2025-03-30", "2025-03-31", 23),
        ("in March", "2025-04-02 12:00", BERLIN, "2025-03-01", "2025-04-01", 31 * 24 - 1),
        ("March 9", "2025-03-20 12:00", NEW_YORK, "2025-03-09", "2025-03-10", 23),
        # The clock goes from 23:59 to 1:00, and from 24:00 back to 23:00.
        ("on November 4", "2018-11-05 12:00", ZoneInfo("America/Sao_Paulo"), "2018-11-04", "2018-11-05", 23),
        ("on February 17", "2018-03-01 12:00", ZoneInfo("America/Sao_Paulo"), "2018-02-17", "2018-02-18", 25),
        ("today", "2025-03-19 23:59", dt.timezone(dt.timedelta(hours=14)), "2025-03-19", "2025-03-20", 24),
        ("today", "2025-03-19 00:00", dt.timezone(dt.timedelta(hours=-12)), "2025-03-19", "2025-03-20", 24),
    ],
)
def test_days_are_those_of_the_zone(
    text: str, now: str, timezone: dt.tzinfo, first: str, after: str, hours: int
) -> None:
    found = parse_when(text, seconds(now, timezone), timezone=timezone)
    assert found is not None
    assert (found.start, found.end) == (seconds(first, timezone), until(after, timezone))
    assert math.nextafter(found.end, math.inf) - found.start == hours * HOUR


def test_the_same_moment_is_another_day_elsewhere() -> None:
    moment = seconds("2025-01-01 03:00")
    here, there = (parse_when("in 2025" if zone is UTC else "today", moment, timezone=zone) for zone in (UTC, NEW_YORK))
    assert here is not None
    assert there is not None
    assert there.start == seconds("2024-12-31", NEW_YORK)
    assert here.start == seconds("2025-01-01")


def test_a_day_that_a_zone_skipped_is_none() -> None:
    assert parse_when("December 30, 2011", NOW, timezone=ZoneInfo("Pacific/Apia")) is None


def test_an_interval_is_closed_before_the_next_begins() -> None:
    day, after = parse_when("2025-03-15", NOW), parse_when("2025-03-16", NOW)
    assert day is not None
    assert after is not None
    assert day.end < after.start == math.nextafter(day.end, math.inf)


@pytest.mark.parametrize(
    "phrase",
    [
        "since we last talked",
        "since we last spoke",
        "since you and I last chatted",
        "since we spoke last",
        "since I last talked",
        "since our last conversation",
        "since our last session",
        "since last time",
    ],
)
def test_since_the_last_session(phrase: str) -> None:
    text = f"what changed {phrase}?"
    assert parse_when(text, NOW, last_session_end=NOW - 5e4) == When(NOW - 5e4, NOW, phrase, "session")
    # B033: never everything, and not what stands further right either.
    assert parse_when(text, NOW) is None
    assert parse_when(f"{text} or yesterday", NOW) is None
    assert parse_when(text, NOW, last_session_end=NOW + 1.0) is None
    assert parse_when(text, NOW, last_session_end=math.nan) is None


@pytest.mark.parametrize("word", ["recent", "latest"])
def test_words_that_only_hint(word: str) -> None:
    assert parse_when(f"the {word} report", NOW) == When(NOW - 30 * DAY, NOW, word, "fuzzy", speculative=True)
    solid = parse_when(f"the {word} report of March 2024", NOW)
    assert solid is not None
    assert (solid.expression, solid.speculative) == ("March 2024", False)


def test_recent_days() -> None:
    for text in ("recently", "lately", "recent", "latest"):
        found = parse_when(text, NOW, recent_days=7.0)
        assert found is not None
        assert (found.start, found.end) == (NOW - 7 * DAY, NOW)


@pytest.mark.parametrize(
    ("text", "start", "end", "expression"),
    [
        ("since last Tuesday", seconds("2025-03-18"), NOW, "since last Tuesday"),
        ("since March 15", seconds("2025-03-15"), NOW, "since March 15"),
        ("since 2023", seconds("2023-01-01"), NOW, "since 2023"),
        ("since the last two weeks", NOW - 14 * DAY, NOW, "since the last two weeks"),
        ("since 3 days ago", seconds("2025-03-16"), NOW, "since 3 days ago"),
        ("after March 15", seconds("2025-03-16"), NOW, "after March 15"),
    ],
)
def test_since_and_after_run_to_now(text: str, start: float, end: float, expression: str) -> None:
    found = parse_when(text, NOW)
    assert found is not None
    assert (found.start, found.end, found.expression) == (start, end, expression)


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("yesterday or last week", "yesterday"),
        ("on March 15, 2024", "on March 15, 2024"),  # longer than "on March 15"
        ("in March 2024", "in March 2024"),
        ("last Friday and recently", "last Friday"),
        ("recently, not last Friday", "recently"),
        ("in 2024 on March 15", "in 2024"),
    ],
)
def test_the_earliest_then_the_longest(text: str, expression: str) -> None:
    found = parse_when(text, NOW)
    assert found is not None
    assert found.expression == expression


@pytest.mark.parametrize(
    "text",
    [
        "",
        "what does Ana drink",
        "you may go",
        "you may 15 times",
        "all 15 may be wrong",
        "the last may be wrong",
        "march forward",
        "march 10 miles",
        "their last march",
        "in a second",
        "5 seconds ago",
        "the sun on sun cream",
        "where we last sat",
        "on Tuesdays",
        "Tuesday",
        "March",
        "last fix for error 4711",
        "last minute changes",
        "my last day at work",
        "in Jan's opinion",
        "error 2024",
        "in 2024.5 or 20245 or in 1850",
        "q3 results",
        "in q5",
        "March 15-20",
        "on March 15.5",
        "February 30",
        "0 days ago",
        "last 0 weeks",
        "2025-13-01",
        "id-2025-03-15",
        "2025-03-15-7",
        "nowadays",
        "yesterdays",
        "at the latest",
        "evict the least recently used",
        "most recently used",
        "before March 15",
        "until the 3rd of May",
        "by yesterday",
        "since 2030",
        "a while ago",
        "next week",
        "laſt Tueſday",
        "ın March",
    ],
)
def test_no_time(text: str) -> None:
    assert parse_when(text, NOW, last_session_end=NOW - 1.0) is None


def test_letters_that_change_length_keep_the_expression() -> None:
    # 'İ'.lower() is two characters.
    found = parse_when("İİİ last Tuesday İ", NOW)
    assert found is not None
    assert found.expression == "last Tuesday"


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf, 1e18, -1e18])
def test_a_now_outside_the_calendar(now: float) -> None:
    with pytest.raises(ParameterError, match="now"):
        parse_when("today", now)


@pytest.mark.parametrize("days", [0.0, -1.0, math.nan, math.inf, 1e6])
def test_recent_days_out_of_range(days: float) -> None:
    with pytest.raises(ParameterError, match="recent_days"):
        parse_when("recently", NOW, recent_days=days)


def test_the_ends_of_the_calendar() -> None:
    first, last = seconds("0001-01-01 00:00"), seconds("9999-12-31 12:00")
    for now in (first, last):
        for text, *_ in CALENDAR + BACK:
            found = parse_when(text, now)
            assert found is None or found.start <= found.end
    assert parse_when("9999 days ago", first) is None


PIECES = """
last past this on in since after before by the a an few couple of ago and day days hour week weeks month months year
years may March sun Sunday tue Tuesday Jan February Q3 q1 2024 1999 15 29 31st 0 2025-02-29 2024-02-29 9999 one twelve
today yesterday recently latest we talked session T10:00 , - 's İ ſ ٣ between from and to half quarter first weekend
morning tomorrow 2025-W12 2020-W53-7 15.03.2025 31/31/2024 2025-03 1990s h2 calendar iso now night this
"""
texts = st.text(max_size=30) | st.lists(st.sampled_from(PIECES.split()), max_size=9).map(" ".join)
zones = st.sampled_from([UTC, BERLIN, ZoneInfo("Pacific/Apia"), ZoneInfo("America/Sao_Paulo")])


@settings(deadline=None, max_examples=400)
@given(texts, st.floats(-6e10, 2.5e11), st.none() | st.floats(), zones)
def test_any_text(text: str, now: float, last_session_end: float | None, timezone: dt.tzinfo) -> None:
    found = parse_when(text, now, last_session_end=last_session_end, timezone=timezone)
    if found is not None:
        assert found.start <= found.end
        assert found.expression
        assert found.expression in text
    # Words decide only whether a rule is tried.
    with pytest.MonkeyPatch.context() as patch:
        every = frozenset(word for rule in (*when.RULES, *when.SPECULATIVE) for word in rule.words)
        borders.shrink(patch, {"grammar.WORD": Everything(every)})
        assert parse_when(text, now, last_session_end=last_session_end, timezone=timezone) == found


class Everything:
    """Finds every word in any text."""

    def __init__(self, words: frozenset[str]) -> None:
        self.words = words

    def findall(self, text: str) -> frozenset[str]:
        return self.words


@pytest.mark.parametrize(
    "text",
    [
        "what did we decide last week on the 2025 budget",
        "what did we say last week on Q3 planning",
        "who was there last week at the christmas party",
        "the trip last week to the summer house",
    ],
)
def test_a_time_that_describes_a_thing_undoes_no_other(text: str) -> None:
    assert parse_when(text, NOW) == When(NOW - 7 * DAY, NOW, "last week", "relative")
