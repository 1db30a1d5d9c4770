"""Turns matched words into intervals of time, relative to the time of the query."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

UNITS = {
    "min": MINUTE,
    "minute": MINUTE,
    "hr": HOUR,
    "hour": HOUR,
    "day": DAY,
    "week": 7 * DAY,
    "month": 30 * DAY,
    "year": 365 * DAY,
}


# The ages of "a few <unit> ago", oldest and newest. Months follow B032, other units run from one to one of the next.
FEW = {
    "min": (HOUR, MINUTE),
    "minute": (HOUR, MINUTE),
    "hr": (DAY, HOUR),
    "hour": (DAY, HOUR),
    "day": (7 * DAY, DAY),
    "week": (30 * DAY, 7 * DAY),
    "month": (90 * DAY, 30 * DAY),
    "year": (5 * 365 * DAY, 365 * DAY),
}


ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]


TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


NUMBERS = {word: number for number, word in enumerate([*ONES, *TEENS], 1)}
NUMBERS |= {word: number for number, word in zip(range(20, 100, 10), TENS, strict=True)}


MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october"]
MONTHS += ["november", "december"]


WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


MONTH_NUMBERS = {name[:3]: number for number, name in enumerate(MONTHS, 1)}


WEEKDAY_NUMBERS = {name[:3]: number for number, name in enumerate(WEEKDAYS)}


ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4}


# Months that are also verbs. A number beside them makes a date only with another sign of a date.
VERBS = ("may", "march")


Interval = tuple[float, float]


# The interval of an expression that names none. The expression still counts as the first one.
EMPTY = (math.inf, -math.inf)


@dataclass(frozen=True)
class TimeContext:
    """The circumstances in which an expression is read. Times are seconds since 1970-01-01 UTC."""

    text: str
    now: float
    today: dt.date
    timezone: dt.tzinfo
    last_session_end: float | None
    recent: float  # seconds that "recently" reaches back

    def midnight(self, day: dt.date) -> float:
        """The first moment of a day. If the clock skips midnight, it is the end of the gap (fold 0)."""
        return dt.datetime(day.year, day.month, day.day, tzinfo=self.timezone).timestamp()

    def days(self, first: dt.date, after: dt.date) -> Interval:
        """From the first moment of `first` to the last float64 before the day `after`."""
        return self.midnight(first), math.nextafter(self.midnight(after), -math.inf)

    def day(self, day: dt.date, count: int = 1) -> Interval:
        """A day, or `count` days from `day` on."""
        return self.days(day, day + dt.timedelta(days=count))

    def months(self, year: int, month: int, count: int) -> Interval:
        """`count` months from this month on."""
        after = month - 1 + count
        return self.days(dt.date(year, month, 1), dt.date(year + after // 12, after % 12 + 1, 1))

    @property
    def monday(self) -> dt.date:
        """The first day of this week."""
        return self.today - dt.timedelta(days=self.today.weekday())

    def year(self, match: re.Match[str]) -> int | None:
        """The year that the match names: a number, "last year" or "this year". None if it names none."""
        year = match.groupdict().get("year")
        if not year:
            return None
        return int(year) if year.isdigit() else self.today.year - year.startswith("last")

    def latest_year(self, match: re.Match[str], month: int) -> int:
        """The year that the match names, else the latest year in which the month has begun."""
        year = self.year(match)
        return self.today.year - (month > self.today.month) if year is None else year

    def capital(self, match: re.Match[str], group: str) -> bool:
        """Whether the group begins with a capital letter."""
        return self.text[match.start(group)].isupper()


def _around(match: re.Match[str], context: TimeContext, date: dt.date) -> Interval:
    """The day of a date, or the week or weekend "of" it."""
    whole = match["whole"]
    if not whole:
        return context.day(date)
    monday = date - dt.timedelta(days=date.weekday())
    if whole.startswith("weekend"):
        return context.day(monday + dt.timedelta(days=5), 2) if date.weekday() >= 5 else EMPTY
    # A Sunday is in doubt: weeks that begin on Sunday put it into another week.
    return EMPTY if date.weekday() == 6 else context.day(monday, 7)


def _fits(match: re.Match[str], date: dt.date) -> bool:
    """Whether the date falls on the weekday that the match names. True if it names none."""
    weekday = match["weekday"]
    return not weekday or date.weekday() == WEEKDAY_NUMBERS[weekday[:3]]


def full_date(match: re.Match[str], context: TimeContext) -> Interval:
    date = dt.date(int(match["year"]), int(match["number"]), int(match["day"]))
    return _around(match, context, date) if _fits(match, date) else EMPTY


def numbered_date(match: re.Match[str], context: TimeContext) -> Interval | None:
    """15.03.2025 and 03/15/2025 have one reading. 03/04/2025 has two, so it is not read."""
    year, first, second = int(match["year"]), int(match["first"]), int(match["second"])
    if first <= 12 and second <= 12 and first != second:
        return None
    day, month = (first, second) if second <= 12 else (second, first)
    date = dt.date(year, month, day)
    return context.day(date) if _fits(match, date) else EMPTY


def month_and_day(match: re.Match[str], context: TimeContext) -> Interval | None:
    month, day = MONTH_NUMBERS[match["month"][:3]], int(match["day"])
    year = context.year(match)
    if year is not None:
        date = dt.date(year, month, day)
        return _around(match, context, date) if _fits(match, date) else EMPTY
    is_date = match["on"] or match["weekday"] or match["suffix"] or match["of"] or context.capital(match, "month")
    if match["month"] in VERBS and not is_date:
        return None
    # 29 February recurs after at most 8 years, and on the same weekday after at most 40: 2100 is not a leap year.
    for year in range(context.today.year, context.today.year - 41, -1):
        try:
            date = dt.date(year, month, day)
        except ValueError:
            continue
        if date <= context.today and _fits(match, date):
            return _around(match, context, date)
    return None


def named_month(match: re.Match[str], context: TimeContext) -> Interval:
    month = MONTH_NUMBERS[match["month"][:3]]
    return context.months(context.latest_year(match, month), month, 1)


def numbered_month(match: re.Match[str], context: TimeContext) -> Interval | None:
    """2025-03 is a month; 2003-04 may be two years."""
    year, month = int(match["year"]), int(match["number"])
    return context.months(year, month, 1) if month <= year % 100 else None


def last_month_named(match: re.Match[str], context: TimeContext) -> Interval | None:
    if match["month"] in VERBS and not context.capital(match, "month"):
        return None
    month = MONTH_NUMBERS[match["month"][:3]]
    return context.months(context.today.year - (month >= context.today.month), month, 1)


def quarter_of_year(match: re.Match[str], context: TimeContext) -> Interval:
    quarter = ORDINALS.get(match["quarter"]) or int(match["quarter"])
    month = 3 * quarter - 2
    return context.months(context.latest_year(match, month), month, 3)


def half_year(match: re.Match[str], context: TimeContext) -> Interval:
    half = ORDINALS.get(match["half"]) or int(match["half"])
    return context.months(context.latest_year(match, 1), 6 * half - 5, 6)


def calendar_year(match: re.Match[str], context: TimeContext) -> Interval | None:
    # In the text as written, not in lower case: in "in 2019 James moved" the number does not count James.
    if compile_pattern(_THINGS).match(context.text, match.end()):
        return None
    return context.months(int(match["year"]), 1, 12)


def decade(match: re.Match[str], context: TimeContext) -> Interval:
    return context.months(int(match["year"]), 1, 120)


def iso_week(match: re.Match[str], context: TimeContext) -> Interval:
    year, week = context.year(match), int(match["week"])
    assert year is not None
    day = match.groupdict().get("day")
    first = dt.date.fromisocalendar(year, week, int(day or 1))
    return context.day(first, 1 if day else 7)


def latest_weekday(match: re.Match[str], context: TimeContext) -> Interval:
    back = (context.today.weekday() - WEEKDAY_NUMBERS[match["weekday"][:3]]) % 7
    return context.day(context.today - dt.timedelta(days=back))


def last_weekday(match: re.Match[str], context: TimeContext) -> Interval:
    back = (context.today.weekday() - WEEKDAY_NUMBERS[match["weekday"][:3]]) % 7
    return context.day(context.today - dt.timedelta(days=back or 7))


def weekday_of_week(match: re.Match[str], context: TimeContext) -> Interval:
    days = WEEKDAY_NUMBERS[match["weekday"][:3]] - 7 * (match["week"] == "last")
    return context.day(context.monday + dt.timedelta(days=days))


def last_weekend(match: re.Match[str], context: TimeContext) -> Interval:
    return context.day(context.monday - dt.timedelta(days=2), 2)


def this_weekend(match: re.Match[str], context: TimeContext) -> Interval:
    """From Saturday to now. Before Saturday, "this weekend" may be the next one or the last one, so it names none."""
    return (
        EMPTY if context.today.weekday() < 5 else (context.midnight(context.monday + dt.timedelta(days=5)), context.now)
    )


def day_at(days: int) -> Resolve:
    return lambda match, context: context.day(context.today + dt.timedelta(days=days))


def this_period(match: re.Match[str], context: TimeContext) -> Interval:
    today = context.today
    first = {
        "week": context.monday,
        "month": today.replace(day=1),
        "quarter": today.replace(month=(today.month - 1) // 3 * 3 + 1, day=1),
        "year": today.replace(month=1, day=1),
    }[match["unit"]]
    return context.midnight(first), context.now


def _count(match: re.Match[str]) -> int:
    """The number of units. It is 1 where no number is given: "last week", "a week ago"."""
    count = match["count"] or "1"
    return int(count) if count.isdigit() else sum(NUMBERS[word] for word in re.split(r"[\s-]+", count))


def last_units(match: re.Match[str], context: TimeContext) -> Interval | None:
    count = _count(match)
    return (context.now - count * UNITS[match["unit"]], context.now) if count else None


def units_ago(match: re.Match[str], context: TimeContext) -> Interval | None:
    count, unit = _count(match), match["unit"]
    if not count:
        return None
    if unit == "day":
        return context.day(context.today - dt.timedelta(days=count))
    return context.now - (count + 0.5) * UNITS[unit], context.now - (count - 0.5) * UNITS[unit]


def few_ago(match: re.Match[str], context: TimeContext) -> Interval:
    oldest, newest = FEW[match["unit"]]
    return context.now - oldest, context.now - newest


def recently(match: re.Match[str], context: TimeContext) -> Interval:
    return context.now - context.recent, context.now


def last_few(match: re.Match[str], context: TimeContext) -> Interval:
    return context.now - FEW[match["unit"]][0], context.now


def since_last_session(match: re.Match[str], context: TimeContext) -> Interval:
    return EMPTY if context.last_session_end is None else (context.last_session_end, context.now)


def no_interval(match: re.Match[str], context: TimeContext) -> Interval:
    return EMPTY


Resolve = Callable[[re.Match[str], TimeContext], "Interval | None"]


@cache
def compile_pattern(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


# What a number such as that in "in 2000 files" counts: a measure, or a word that looks like a plural.
ONE_UNIT = r"(?:min|minute|hr|hour|day|week|month|year)s?"
_THINGS = (
    r"-[A-Za-z]|\s*[$€£]|\s+(?:(?:out\s+)?of|x|by)\s+[0-9]"
    r"|\s+(?:(?:[a-z]+ly|different|easy|simple|short|square|cubic|US|us)\s+)?(?:[kKMG]i?[bB]|[kcm]?[mg]|[kM]?Hz|ms|s|px"
    r"|[A-Z]{3}\b(?<=USD|EUR|GBP|CHF|JPY)|usd|eur|gbp|people|men|women|children|feet|percent|word|degree|dollar|euro"
    r"|BCE?|bce?|kcal|rpm|yen|yuan|line|page|token|character"
    rf"|{ONE_UNIT}|(?:second|sec)s?|(?!(?:is|was|has|this|does|its|us|as|his|always|perhaps|across|versus|plus"
    rf"|thus|whereas"
    r"|sometimes|besides|towards|afterwards)\b)[a-z]+[a-rt-z]s)(?![\w'’])"
)
