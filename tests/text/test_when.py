"""Time expressions: what interval each names, and what names none; the cases are in two tables beside this file."""

import datetime as dt
import math
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders

from fanrank.engine.errors import ParameterError
from fanrank.engine.text.time_expressions import parse as when
from fanrank.engine.text.time_expressions.intervals import DAY, HOUR
from fanrank.engine.text.time_expressions.parse import BEGINNING, When, parse_when

UTC = dt.timezone.utc
HERE = Path(__file__).parent


def seconds(text: str, zone: dt.tzinfo = UTC) -> float:
    """A moment of the zone, or of UTC with a Z; "begin" is the first of the calendar."""
    if text == "begin":
        return BEGINNING
    if text.endswith("Z"):
        text, zone = text[:-1], UTC
    return dt.datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


USUAL = ("2025-03-19 14:30", "UTC")  # a Wednesday
NOW = seconds(USUAL[0])


def sections(file: str) -> dict[str, list[str]]:
    """Lines by the heading that they stand under."""
    found: dict[str, list[str]] = {}
    for line in (HERE / file).read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            found[line[2:]] = lines = []
        else:
            lines.append(line)
    return found


NAMED, UNNAMED = sections("when_named.txt"), sections("when_unnamed.txt")


@pytest.mark.parametrize("section", NAMED)
def test_what_is_named(section: str) -> None:
    """Columns: text; query's time and zone, where they are not the usual ones; start; end; kind, where it is told.

    Brackets enclose the expression. An end after "<" is the last moment before it; "now" is the query's time. A text
    without brackets means the same within a longer one.
    """
    for line in NAMED[section]:
        text, *cells = line.split(" | ")
        kind = cells.pop() if cells[-1] in ("absolute", "relative", "fuzzy") else None
        now, zone, start, end = [*USUAL, *cells][-4:]
        here = ZoneInfo(zone)
        moment = seconds(now, here)
        first, last = seconds(start, here), moment
        if end != "now":
            last = seconds(end.removeprefix("< "), here)
            last = math.nextafter(last, -math.inf) if end.startswith("<") else last
        bare = text.replace("[", "").replace("]", "")
        for said in (text,) if bare != text else (text, f"what did Ana say about tea {text}?"):
            found = parse_when(said.replace("[", "").replace("]", ""), moment, timezone=here)
            assert found is not None, said
            assert (found.start, found.end) == (first, last), said
            assert kind in (None, found.kind), said
            assert bare == text or f"[{found.expression}]" in text, said
            assert not found.speculative or "recent" in said, said


@pytest.mark.parametrize("section", UNNAMED)
def test_what_is_not_named(section: str) -> None:
    """Each phrase holds words of time, and names none, or none that can be told."""
    phrases = " | ".join(UNNAMED[section]).split(" | ")
    named = [text for text in phrases if parse_when(text, NOW, last_session_end=NOW - 1.0) is not None]
    assert named == []
    assert parse_when("", NOW) is None


@pytest.mark.parametrize(
    "text",
    [
        "[yesterday] or last week",
        "[on March 15, 2024]",  # longer than "on March 15"
        "[last Friday] and recently",
        "[recently], not last Friday",
        "[in 2024] on March 15",
        "İİİ [last Tuesday] İ",  # 'İ'.lower() is two characters
        "may we meet [in May]?",
        "May I ask what we did [on May 3]?",
        "I may go [since May]",
        "[May 15] is when we met",
        "the recent report of [March 2024]",
    ],
)
def test_the_earliest_expression_then_the_longest_is_meant(text: str) -> None:
    found = parse_when(text.replace("[", "").replace("]", ""), NOW)
    assert f"[{found.expression}]" in text
    assert not found.speculative


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


def test_recent_days_are_the_callers_and_some_words_only_hint() -> None:
    for word in ("recently", "lately", "recent", "latest"):
        hint = word in ("recent", "latest")
        for days in (30.0, 7.0):
            found = parse_when(f"the {word} report", NOW, recent_days=days)
            assert found == When(NOW - days * DAY, NOW, word, "fuzzy", speculative=hint)
    for days in (0.0, -1.0, math.nan, math.inf, 1e6):
        with pytest.raises(ParameterError, match="recent_days"):
            parse_when("recently", NOW, recent_days=days)


@pytest.mark.parametrize(
    ("day", "now", "zone", "hours"),
    [
        ("today", "2025-03-30 12:00", "Europe/Berlin", 23),
        ("1 day ago", "2025-10-27 00:30", "Europe/Berlin", 25),
        # The clock goes from 23:59 to 1:00, and from 24:00 back to 23:00.
        ("on November 4", "2018-11-05 12:00", "America/Sao_Paulo", 23),
        ("on February 17", "2018-03-01 12:00", "America/Sao_Paulo", 25),
    ],
)
def test_a_day_on_which_clocks_change_has_other_hours(day: str, now: str, zone: str, hours: int) -> None:
    found = parse_when(day, seconds(now, ZoneInfo(zone)), timezone=ZoneInfo(zone))
    assert math.nextafter(found.end, math.inf) - found.start == hours * HOUR


def test_a_day_that_a_zone_skipped_is_none() -> None:
    assert parse_when("December 30, 2011", NOW, timezone=ZoneInfo("Pacific/Apia")) is None


def test_a_bound_leaves_no_gap_to_what_it_bounds() -> None:
    for point in ("2024-03-03", "last Tuesday", "last summer", "last quarter", "last night"):
        before, at, until, after = (parse_when(f"{lead}{point}", NOW) for lead in ("before ", "", "until ", "after "))
        assert math.nextafter(before.end, math.inf) == at.start
        assert until.end == at.end
        assert math.nextafter(until.end, math.inf) == after.start
        assert before.start == until.start == BEGINNING


def test_the_ends_of_the_calendar() -> None:
    first, last = seconds("0001-01-01 00:00"), seconds("9999-12-31 12:00")
    for now in (first, last):
        for line in [line for lines in NAMED.values() for line in lines]:
            found = parse_when(line.split(" | ")[0].replace("[", "").replace("]", ""), now)
            assert found is None or found.start <= found.end
    for text in ("9999 days ago", "last summer", "before yesterday"):
        assert parse_when(text, first + HOUR) is None
    for now in (math.nan, math.inf, -math.inf, 1e18, -1e18):
        with pytest.raises(ParameterError, match="now"):
            parse_when("today", now)


PIECES = """
last past this on in since after before by the a an few couple of ago and day days hour week weeks month months year
years may March sun Sunday tue Tuesday Jan February Q3 q1 2024 1999 15 29 31st 0 2025-02-29 2024-02-29 9999 one twelve
today yesterday recently latest we talked session T10:00 , - 's İ ſ ٣ between from and to half quarter first weekend
morning tomorrow 2025-W12 2020-W53-7 15.03.2025 31/31/2024 2025-03 1990s h2 calendar iso now night this
"""
texts = st.text(max_size=30) | st.lists(st.sampled_from(PIECES.split()), max_size=9).map(" ".join)
zones = st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia", "America/Sao_Paulo"]).map(ZoneInfo)


@settings(deadline=None, max_examples=80)
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

    def findall(self, text: str) -> Any:
        return self.words
