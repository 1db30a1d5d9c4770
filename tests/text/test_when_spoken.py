"""Time expressions of speech, written out by hand: nights, seasons, weekends, bounds, and dates that are about so."""

from __future__ import annotations

import datetime as dt
import math
from zoneinfo import ZoneInfo

import pytest

from fanrank.engine.text.time_expressions.parse import BEGINNING, When, parse_when

# Text | now | zone | start | end, as in test_when_table.py; "begin" is the first moment of the calendar.
NAMED = """
# Nights, from 18:00 to 6:00; 2025-03-30 and 2025-10-26 are changes of the clock in Berlin
last night | 2025-03-19 14:30 | UTC | 2025-03-18 18:00 | < 2025-03-19 06:00
last night | 2025-03-19 06:00 | UTC | 2025-03-18 18:00 | < 2025-03-19 06:00
last night | 2025-03-19 05:59 | UTC | 2025-03-18 18:00 | now
last night | 2025-03-19 00:00 | UTC | 2025-03-18 18:00 | now
last night | 2025-03-19 23:59 | UTC | 2025-03-18 18:00 | < 2025-03-19 06:00
last night | 2025-01-01 09:00 | UTC | 2024-12-31 18:00 | < 2025-01-01 06:00
last night | 2024-03-01 09:00 | UTC | 2024-02-29 18:00 | < 2024-03-01 06:00
last night | 2025-03-30 12:00 | Europe/Berlin | 2025-03-29T17:00:00Z | < 2025-03-30T04:00:00Z
last night | 2025-10-26 12:00 | Europe/Berlin | 2025-10-25T16:00:00Z | < 2025-10-26T05:00:00Z
last night | 2025-03-19 12:00 | America/New_York | 2025-03-18T22:00:00Z | < 2025-03-19T10:00:00Z
last night | 2025-03-19 12:00 | Asia/Tokyo | 2025-03-18T09:00:00Z | < 2025-03-18T21:00:00Z
yesterday night | 2025-03-19 14:30 | UTC | 2025-03-18 18:00 | < 2025-03-19 06:00
since last night | 2025-03-19 14:30 | UTC | 2025-03-18 18:00 | now
the night before last | 2025-03-19 14:30 | UTC | 2025-03-17 18:00 | < 2025-03-18 06:00
the night before last | 2025-03-01 14:30 | UTC | 2025-02-27 18:00 | < 2025-02-28 06:00
# Quarters
last quarter | 2025-03-19 14:30 | UTC | 2024-10-01 | < 2025-01-01
last quarter | 2025-03-31 23:59 | UTC | 2024-10-01 | < 2025-01-01
last quarter | 2025-04-01 00:00 | UTC | 2025-01-01 | < 2025-04-01
last quarter | 2025-12-31 12:00 | UTC | 2025-07-01 | < 2025-10-01
in the last quarter | 2025-08-02 12:00 | UTC | 2025-04-01 | < 2025-07-01
the previous quarter | 2025-08-02 12:00 | UTC | 2025-04-01 | < 2025-07-01
since last quarter | 2025-08-02 12:00 | UTC | 2025-04-01 | now
before last quarter | 2025-08-02 12:00 | UTC | begin | < 2025-04-01
last quarter | 2025-07-15 12:00 | Europe/Berlin | 2025-03-31T22:00:00Z | < 2025-06-30T22:00:00Z
# Seasons: the latest that is over
last summer | 2025-03-19 14:30 | UTC | 2024-06-01 | < 2024-09-01
last summer | 2025-08-31 23:59 | UTC | 2024-06-01 | < 2024-09-01
last summer | 2025-09-01 00:00 | UTC | 2025-06-01 | < 2025-09-01
last winter | 2025-03-19 14:30 | UTC | 2024-12-01 | < 2025-03-01
last winter | 2025-02-28 23:59 | UTC | 2023-12-01 | < 2024-03-01
last winter | 2024-12-05 12:00 | UTC | 2023-12-01 | < 2024-03-01
last fall | 2025-03-19 14:30 | UTC | 2024-09-01 | < 2024-12-01
last autumn | 2024-11-30 23:59 | UTC | 2023-09-01 | < 2023-12-01
last spring | 2025-06-01 00:00 | UTC | 2025-03-01 | < 2025-06-01
this past spring | 2025-05-31 12:00 | UTC | 2024-03-01 | < 2024-06-01
since last summer | 2025-03-19 14:30 | UTC | 2024-06-01 | now
last summer | 2025-03-19 14:30 | Europe/Berlin | 2024-05-31T22:00:00Z | < 2024-08-31T22:00:00Z
# Weekends; 2025-03-19 is a Wednesday
over the weekend | 2025-03-19 14:30 | UTC | 2025-03-15 | < 2025-03-17
over the weekend | 2025-03-17 00:00 | UTC | 2025-03-15 | < 2025-03-17
over the weekend | 2025-03-14 23:59 | UTC | 2025-03-08 | < 2025-03-10
over the weekend | 2025-03-15 00:00 | UTC | 2025-03-15 | now
over the weekend | 2025-03-16 23:59 | UTC | 2025-03-15 | now
during the weekend | 2025-03-03 09:00 | UTC | 2025-03-01 | < 2025-03-03
over the weekend | 2025-03-31 09:00 | Europe/Berlin | 2025-03-28T23:00:00Z | < 2025-03-30T22:00:00Z
# Days of the week at the end of a question
Monday? | 2025-03-19 14:30 | UTC | 2025-03-17 | < 2025-03-18
wednesday? | 2025-03-19 14:30 | UTC | 2025-03-19 | < 2025-03-20
Thursday morning? | 2025-03-19 14:30 | UTC | 2025-03-13 | < 2025-03-14
Sunday? | 2025-04-01 12:00 | Europe/Berlin | 2025-03-29T23:00:00Z | < 2025-03-30T22:00:00Z
# Bounds without a beginning
before last week | 2025-03-19 14:30 | UTC | begin | < 2025-03-12 14:30
before last month | 2025-03-31 12:00 | UTC | begin | < 2025-03-01 12:00
before this week | 2025-03-19 14:30 | UTC | begin | < 2025-03-17
before this month | 2024-02-29 12:00 | UTC | begin | < 2024-02-01
before last Tuesday | 2025-03-19 14:30 | UTC | begin | < 2025-03-18
before last weekend | 2025-03-19 14:30 | UTC | begin | < 2025-03-15
before yesterday | 2025-03-19 14:30 | UTC | begin | < 2025-03-18
before today | 2025-03-30 12:00 | Europe/Berlin | begin | < 2025-03-29T23:00:00Z
before 2024 | 2025-03-19 14:30 | UTC | begin | < 2024-01-01
before March 2024 | 2025-03-19 14:30 | UTC | begin | < 2024-03-01
before 2024-02-29 | 2025-03-19 14:30 | UTC | begin | < 2024-02-29
before the last two weeks | 2025-03-19 14:30 | UTC | begin | < 2025-03-05 14:30
until yesterday | 2025-03-19 14:30 | UTC | begin | < 2025-03-19
till yesterday | 2024-03-01 14:30 | UTC | begin | < 2024-03-01
until last Friday | 2025-03-19 14:30 | UTC | begin | < 2025-03-15
until the 3rd of May 2024 | 2025-03-19 14:30 | UTC | begin | < 2024-05-04
until 3 days ago | 2025-03-19 14:30 | UTC | begin | < 2025-03-17
until last summer | 2025-03-19 14:30 | UTC | begin | < 2024-09-01
on or before 2024-03-03 | 2025-03-19 14:30 | UTC | begin | < 2024-03-04
# About a date: three days to either side
around June 1 | 2025-03-19 14:30 | UTC | 2024-05-29 | < 2024-06-05
around March 1st | 2024-03-19 14:30 | UTC | 2024-02-27 | < 2024-03-05
around the 15th of March | 2025-03-19 14:30 | UTC | 2025-03-12 | < 2025-03-19
around May 3 | 2025-03-19 14:30 | UTC | 2024-04-30 | < 2024-05-07
close to 2025-01-01 | 2025-03-19 14:30 | UTC | 2024-12-29 | < 2025-01-05
near December 31, 2023 | 2025-03-19 14:30 | UTC | 2023-12-28 | < 2024-01-04
circa 2 March 2025 | 2025-03-19 14:30 | UTC | 2025-02-27 | < 2025-03-06
around March 30 | 2025-04-19 14:30 | Europe/Berlin | 2025-03-26T23:00:00Z | < 2025-04-02T22:00:00Z
# Back
two months back | 2025-03-19 14:30 | UTC | 2025-01-03 14:30 | 2025-02-02 14:30
a year back | 2025-03-19 14:30 | UTC | 2023-09-19 02:30 | 2024-09-18 02:30
3 days back | 2025-03-01 09:00 | UTC | 2025-02-26 | < 2025-02-27
a few weeks back | 2025-03-19 14:30 | UTC | 2025-02-17 14:30 | 2025-03-12 14:30
since two days back | 2025-03-19 14:30 | UTC | 2025-03-17 | now
"""

UNNAMED = """
our last night in Rome
the last night of the trip
on the last night
the night before last Tuesday
the night before yesterday
nightly
last nights
the last quarter of 2024
the last quarter of the game
last quarter hour
last quarter-final
the last summer we had
their last fall
the last winter of the war
over the weekend of the launch
over the weekend before last
over the weekend before March 10
what will we do over the weekend?
what is planned over the weekend?
is it Monday?
was that on a Monday or Tuesday?
every Monday?
what about Black Friday?
will it rain Monday?
is it due Friday?
who called Monday
the Monday?
see you Friday?
meeting Friday?
can we meet Friday?
what time is the call Friday?
are we out over the weekend?
last summer and last winter
last quarter and this quarter
last night and this morning
between last summer and last winter
Tuesday or Monday?
before Monday
before Friday
until Friday
until March
before March
before March 15
before Q3
until last week
until last month
until this week
by last week
by yesterday
by 2024-03-01
not before last week
not until yesterday
before or after 2024-03-03
right before last week
just before 2024-03-03
long before last year
two days before last Tuesday
a week before 2024-03-03
the week before last week
March 3 until yesterday
last week until yesterday
from last week until yesterday
around March
around March 2024
around March 3 to March 5
around noon
not around March 15
outside March 15
push the launch two weeks back
move it two days back
go two weeks back
two weeks back to back
a year and two months back
half a year back
two or three weeks back
may I ask
May I ask what happened?
what may I do
you may ask
may 3 people come
May 3 people join?
May 15 meetings with Ana
March 10 miles
on may I ask
before may I ask
until may we meet
will May call
last may I saw
March 3 steps forward
"""


def seconds(text: str, zone: dt.tzinfo) -> float:
    if text == "begin":
        return BEGINNING
    if text.endswith("Z"):
        text, zone = text[:-1], dt.timezone.utc
    return dt.datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


ROWS = [
    tuple(part.strip() for part in line.split("|")) for line in NAMED.strip().splitlines() if not line.startswith("#")
]
PHRASES = UNNAMED.strip().splitlines()
UTC = dt.timezone.utc
NOW = seconds("2025-03-19 14:30", UTC)


def test_the_tables_are_as_long_as_promised() -> None:
    assert len(set(ROWS)) == len(ROWS) >= 60
    assert len(set(PHRASES)) == len(PHRASES) >= 60


@pytest.mark.parametrize(("text", "now", "zone", "start", "end"), ROWS)
def test_named(text: str, now: str, zone: str, start: str, end: str) -> None:
    here = ZoneInfo(zone)
    moment = seconds(now, here)
    last = moment
    if end.startswith("<"):
        last = math.nextafter(seconds(end[1:].strip(), here), -math.inf)
    elif end != "now":
        last = seconds(end, here)
    for said in (text, f"what did Ana say about tea {text}?"):
        found = parse_when(said, moment, timezone=here)
        assert found is not None, said
        assert (found.start, found.end) == (seconds(start, here), last), said


@pytest.mark.parametrize("text", PHRASES)
def test_unnamed(text: str) -> None:
    assert parse_when(text, NOW) is None


def test_a_bound_leaves_no_gap_to_what_it_bounds() -> None:
    for point in ("2024-03-03", "last Tuesday", "last summer", "last quarter", "last night"):
        before, at, until, after = (parse_when(f"{lead}{point}", NOW) for lead in ("before ", "", "until ", "after "))
        assert before is not None
        assert at is not None
        assert until is not None
        assert after is not None
        assert math.nextafter(before.end, math.inf) == at.start
        assert until.end == at.end
        assert math.nextafter(until.end, math.inf) == after.start
        assert before.start == until.start == BEGINNING


def test_a_span_that_began_before_the_calendar_is_none() -> None:
    assert parse_when("last summer", seconds("0001-03-01", UTC)) is None
    assert parse_when("before yesterday", seconds("0001-01-01 12:00", UTC)) is None


def test_may_is_a_month_where_the_text_says_so() -> None:
    for text, expression in (
        ("may we meet in May?", "in May"),
        ("May I ask what we did on May 3?", "on May 3"),
        ("I may go since May", "since May"),
        ("may 3rd", "may 3rd"),
        ("May 15 is when we met", "May 15"),
    ):
        found = parse_when(text, NOW)
        assert isinstance(found, When)
        assert found.expression == expression
