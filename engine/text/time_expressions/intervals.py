"""Turns matched words into intervals of time, relative to the time of the query."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from .occasions import PASTS, FindEvent, Occasion, occasion_of

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


SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
"""The first month of each season."""


NEAR_DAYS = 3
"""How many days "around June 1" reaches to either side."""


TALKS = ("talked", "spoke", "chatted", "met")
"""What is done in a session."""


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
    find_event: FindEvent | None = None

    def midnight(self, day: dt.date, hour: int = 0) -> float:
        """The first moment of a day, or of an hour of it. If the clock skips it, it is the end of the gap (fold 0)."""
        return dt.datetime(day.year, day.month, day.day, hour, tzinfo=self.timezone).timestamp()

    def days(self, first: dt.date, after: dt.date) -> Interval:
        """From the first moment of `first` to the last float64 before the day `after`."""
        return self.midnight(first), math.nextafter(self.midnight(after), -math.inf)

    def day(self, day: dt.date, count: int = 1) -> Interval:
        """A day, or `count` days from `day` on."""
        return self.days(day, day + dt.timedelta(days=count))

    def date(self, time: float) -> dt.date:
        """The day in which a moment lies."""
        return dt.datetime.fromtimestamp(time, self.timezone).date()

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
    is_date = match["on"] or match["weekday"] or match["suffix"] or match["of"]
    # A capital may be that of a sentence: "May 15 people join?"
    named = context.capital(match, "month") and not compile_pattern(_THINGS).match(context.text, match.end())
    if match["month"] in VERBS and not (is_date or named):
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


def latest_weekend(match: re.Match[str], context: TimeContext) -> Interval | None:
    """The latest weekend that has begun, up to now while it lasts. None where the text speaks of what is to come."""
    if _speaks_of_plans(context.text):
        return None
    if context.today.weekday() < 5:
        return last_weekend(match, context)
    return context.midnight(context.monday + dt.timedelta(days=5)), context.now


def weekday_alone(match: re.Match[str], context: TimeContext) -> Interval | None:
    """The latest day of this name, for a question of the past that ends with it: "what did we decide Monday?"."""
    before = context.text[: match.start()].lower()
    if not before.strip():
        return latest_weekday(match, context)
    past = any(word in PASTS or (word.endswith("ed") and len(word) > 4) for word in re.findall("[a-z]+", before))
    if not past or compile_pattern(_NOT_ALONE).search(before) or _speaks_of_plans(context.text):
        return None
    return latest_weekday(match, context)


def _speaks_of_plans(text: str) -> bool:
    return bool(compile_pattern(_PLANS).search(text.lower()))


def night_at(days: int) -> Resolve:
    """The night that began on the evening of a day, from 18:00 to 6:00, up to now while it lasts."""

    def resolve(match: re.Match[str], context: TimeContext) -> Interval:
        evening = context.today + dt.timedelta(days=days)
        morning = math.nextafter(context.midnight(evening + dt.timedelta(days=1), 6), -math.inf)
        return context.midnight(evening, 18), min(morning, context.now)

    return resolve


def last_quarter(match: re.Match[str], context: TimeContext) -> Interval:
    """The quarter of the calendar before this one."""
    first = (context.today.month - 1) // 3 * 3 - 2
    return context.months(context.today.year - (first < 1), first if first > 0 else first + 12, 3)


def last_season(match: re.Match[str], context: TimeContext) -> Interval | None:
    """The latest season of this name that is over; three whole months, as on the northern half of the earth."""
    month = SEASONS[match["season"]]
    for year in range(context.today.year, 0, -1):
        season = context.months(year, month, 3)
        if season[1] < context.now:
            return season
    return None


def near_date(resolve: Resolve) -> Resolve:
    """Three days to either side of a date: a week around it."""

    def around(match: re.Match[str], context: TimeContext) -> Interval | None:
        named = resolve(match, context)
        if named is None or named == EMPTY:
            return named
        return context.day(context.date(named[0]) - dt.timedelta(days=NEAR_DAYS), 2 * NEAR_DAYS + 1)

    return around


def occasion(match: re.Match[str], context: TimeContext) -> Interval | None:
    """The moment of an event of the memory. None if the memory does not say when, or is not there to be asked."""
    who = context.text[slice(*match.span("who"))] if match.groupdict().get("who") else ""
    if who.lower() not in ("", "i", "we", "you") and not who[0].isupper():
        return None
    time = _time_of(occasion_of(who.lower(), match["words"], last=False), context)
    return None if time is None or not time <= context.now else (time, time)


def _time_of(named: Occasion | None, context: TimeContext) -> float | None:
    return None if named is None or context.find_event is None else context.find_event(named)


def last_occasion(match: re.Match[str], context: TimeContext) -> Interval | None:
    """The day on which something last took place; from "since" on, the moment.

    Where the query speaks of a talk, that may also be the end of the last session: the later of the two counts.
    """
    who = context.text[slice(*match.span("who" if match["who"] else "whose"))]
    if who.lower() not in ("i", "we", "you") and not who[0].isupper():
        return None
    named = occasion_of(who.lower(), match["words"], last=True)
    times = [_time_of(named, context)]
    if named is not None and len(named.words) == 1 and named.words[0] in TALKS:
        times.append(context.last_session_end)
    past = [time for time in times if time is not None and -math.inf < time <= context.now]
    if not past:
        return None
    return (max(past), max(past)) if match["lead"] else context.day(context.date(max(past)))


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


def _moves_back(match: re.Match[str], context: TimeContext) -> bool:
    """Whether "back" is a direction: "move the call two days back"."""
    return match[0].endswith("back") and bool(compile_pattern(_MOVES).search(context.text.lower(), 0, match.start()))


def units_ago(match: re.Match[str], context: TimeContext) -> Interval | None:
    if _moves_back(match, context):
        return None
    count, unit = _count(match), match["unit"]
    if not count:
        return None
    if unit == "day":
        return context.day(context.today - dt.timedelta(days=count))
    return context.now - (count + 0.5) * UNITS[unit], context.now - (count - 0.5) * UNITS[unit]


def few_ago(match: re.Match[str], context: TimeContext) -> Interval | None:
    if _moves_back(match, context):
        return None
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


# Words of a text about what is to come.
_PLANS = (
    r"\b(?:will|shall|going\s+to|gonna|plan(?:s|ned|ning)?|upcoming|coming|due|tomorrow|next|should|tonight|schedule\w*"
    r"|can|could|might|would|wants?|am\s+i|are\s+(?:we|you|they))\b|['’](?:ll|re)\b"
)
# Words before a day's name that make it part of something else: "every Monday", "is it Monday", "Black Friday".
_NOT_ALONE = (
    r"(?:\b(?:the|an?|of|by|till?|until|from|to|or|and|since|before|after|between|any|some|every|each|next|this|that"
    r"|coming|following|on|in|for|about|like|than|with|is|it|be|are|it['’]s|today|not|no|named"
    r"|good|black|cyber|ash|palm|easter|super|holy|shrove|maundy|fat|ruby|blue|happy)\s+|[,&/-]\s*)\Z"
)
_MOVES = (
    r"\b(?:set|put|push\w*|mov(?:e|es|ed|ing)|go|goes|going|went|roll\w*|dat(?:e|es|ed|ing)|turn\w*|shift\w*)\b"
    r"[^.?!;]*\Z"
)


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
