"""A time expression in a query, as a closed interval: "what did I decide last Tuesday", "since we last talked".

Intervals follow SPEC B030 (absolute), B031 (relative), B032 (fuzzy) and B033 (session); X20 says which words only hint
at a time. Where the sources are silent:

- A date without a year is its latest occurrence that has begun: "in March", asked in March, is this March.
- "N weeks ago" is what rounds to N: half a unit on either side, a month being 30 days and a year 365, as in B031 and
  B032; "N days ago" is that calendar day.
- "since X" and "after X" run to now. "before X", "until X" and "by X" have no beginning: no interval, as X alone would
  be the wrong one.
- A phrase that no source gives a length to ("a while ago", "next week") is no time expression.

Calendar days, weeks (from Monday), months, quarters and years are those of the given time zone, so a day of a clock
change has 23 or 25 hours.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .errors import ParameterError

RECENT_DAYS = 30.0
"""What "recently" and "lately" reach back (B032)."""
MAX_RECENT_DAYS = 36525.0

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
# What "a few <unit> ago" spans, oldest and newest age: months as B032, the others from one unit to one of the next.
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
NUMBER_WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
NUMBERS = {word: number for number, word in enumerate(NUMBER_WORDS, 1)}
MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october"]
MONTHS += ["november", "december"]
WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
MONTH_NUMBERS = {name[:3]: number for number, name in enumerate(MONTHS, 1)}
WEEKDAY_NUMBERS = {name[:3]: number for number, name in enumerate(WEEKDAYS)}
# Months that are also verbs: a number beside them makes a date only where something else says so.
VERBS = ("may", "march")

Kind = Literal["absolute", "relative", "fuzzy", "session"]
Interval = tuple[float, float]
# What an expression without an interval has: it still counts as the first one.
EMPTY = (math.inf, -math.inf)


@dataclass(frozen=True)
class When:
    """A time expression and the closed interval [start, end] that it names, in seconds since 1970-01-01 UTC.

    `expression` is the matched part of the text. `speculative` marks "recent" and "latest", which hint at a time
    without naming one: half the weight in fusion (X20).
    """

    start: float
    end: float
    expression: str
    kind: Kind
    speculative: bool = False


@dataclass(frozen=True)
class _Asked:
    """What an expression is read against."""

    text: str
    now: float
    today: dt.date
    timezone: dt.tzinfo
    last_session_end: float | None
    recent: float  # seconds

    def midnight(self, day: dt.date) -> float:
        """The first moment of a day. In a gap of the clock, fold 0 counts by the offset before it: the gap's end."""
        return dt.datetime(day.year, day.month, day.day, tzinfo=self.timezone).timestamp()

    def days(self, first: dt.date, after: dt.date) -> Interval:
        """From the first moment of `first` to the last float64 before the day `after`."""
        return self.midnight(first), math.nextafter(self.midnight(after), -math.inf)

    def day(self, day: dt.date) -> Interval:
        return self.days(day, day + dt.timedelta(days=1))

    def months(self, year: int, month: int, count: int) -> Interval:
        after = month - 1 + count
        return self.days(dt.date(year, month, 1), dt.date(year + after // 12, after % 12 + 1, 1))

    def capital(self, match: re.Match[str], group: str) -> bool:
        return self.text[match.start(group)].isupper()


def _full_date(match: re.Match[str], asked: _Asked) -> Interval:
    return asked.day(dt.date(int(match["year"]), int(match["number"]), int(match["day"])))


def _date(match: re.Match[str], asked: _Asked) -> Interval | None:
    month, day = MONTH_NUMBERS[match["month"][:3]], int(match["day"])
    if match["year"]:
        return asked.day(dt.date(int(match["year"]), month, day))
    sure = match["on"] or match["weekday"] or match["suffix"] or match["of"] or asked.capital(match, "month")
    if match["month"] in VERBS and not sure:
        return None
    # 29 February comes back after 8 years at most.
    for year in range(asked.today.year, asked.today.year - 9, -1):
        try:
            date = dt.date(year, month, day)
        except ValueError:
            continue
        if date <= asked.today:
            return asked.day(date)
    return None


def _month(match: re.Match[str], asked: _Asked) -> Interval:
    month = MONTH_NUMBERS[match["month"][:3]]
    year = int(match["year"]) if match["year"] else asked.today.year - (month > asked.today.month)
    return asked.months(year, month, 1)


def _last_month_named(match: re.Match[str], asked: _Asked) -> Interval | None:
    if match["month"] in VERBS and not asked.capital(match, "month"):
        return None
    month = MONTH_NUMBERS[match["month"][:3]]
    return asked.months(asked.today.year - (month >= asked.today.month), month, 1)


def _quarter(match: re.Match[str], asked: _Asked) -> Interval:
    month = 3 * int(match["quarter"]) - 2
    year = int(match["year"]) if match["year"] else asked.today.year - (month > asked.today.month)
    return asked.months(year, month, 3)


def _year(match: re.Match[str], asked: _Asked) -> Interval:
    return asked.months(int(match["year"]), 1, 12)


def _weekday(match: re.Match[str], asked: _Asked) -> Interval:
    back = (asked.today.weekday() - WEEKDAY_NUMBERS[match["weekday"][:3]]) % 7
    return asked.day(asked.today - dt.timedelta(days=back))


def _last_weekday(match: re.Match[str], asked: _Asked) -> Interval:
    back = (asked.today.weekday() - WEEKDAY_NUMBERS[match["weekday"][:3]]) % 7
    return asked.day(asked.today - dt.timedelta(days=back or 7))


def _this(match: re.Match[str], asked: _Asked) -> Interval:
    today = asked.today
    first = {
        "week": today - dt.timedelta(days=today.weekday()),
        "month": today.replace(day=1),
        "year": today.replace(month=1, day=1),
    }[match["unit"]]
    return asked.midnight(first), asked.now


def _count(match: re.Match[str]) -> int:
    """1 where no number stands: "last week", "a week ago"."""
    return NUMBERS.get(match["count"]) or int(match["count"] or 1)


def _last_units(match: re.Match[str], asked: _Asked) -> Interval | None:
    count = _count(match)
    return (asked.now - count * UNITS[match["unit"]], asked.now) if count else None


def _units_ago(match: re.Match[str], asked: _Asked) -> Interval | None:
    count, unit = _count(match), match["unit"]
    if not count:
        return None
    if unit == "day":
        return asked.day(asked.today - dt.timedelta(days=count))
    return asked.now - (count + 0.5) * UNITS[unit], asked.now - (count - 0.5) * UNITS[unit]


def _few_ago(match: re.Match[str], asked: _Asked) -> Interval:
    oldest, newest = FEW[match["unit"]]
    return asked.now - oldest, asked.now - newest


def _recent(match: re.Match[str], asked: _Asked) -> Interval:
    return asked.now - asked.recent, asked.now


def _last_few(match: re.Match[str], asked: _Asked) -> Interval:
    return asked.now - FEW[match["unit"]][0], asked.now


def _session(match: re.Match[str], asked: _Asked) -> Interval:
    return EMPTY if asked.last_session_end is None else (asked.last_session_end, asked.now)


_LEAD = r"(?P<lead>since|after|before|until|till|by)"
_MAYBE = rf"(?:{_LEAD}\s+(?:the\s+)?)?"
_ON = rf"(?P<on>on|{_LEAD})\s+"
_IN = rf"(?:in|during|throughout|{_LEAD})\s+"
_YEAR = r"(?P<year>(?:19|20)[0-9]{2})"
_MONTH = rf"(?P<month>{'|'.join(MONTHS)}|(?:jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)(?!['’]s)\.?)"
# "sat" and "sun" are words ("where we last sat", "on sun cream"), so they are not read as days.
_WEEKDAY = rf"(?P<weekday>{'|'.join(WEEKDAYS)}|mon|tues?|wed|thu(?:rs?)?|fri)"
_PART = r"(?:(?:early|mid|late)[\s-]+)?"
_DAY = r"(?P<day>[0-9]{1,2})(?P<suffix>st|nd|rd|th)?"
_LAST = r"(?:last|past|this\s+past)\s+"
_COUNT = rf"(?P<count>[0-9]{{1,4}}|{'|'.join(NUMBER_WORDS)})\s+"
_UNIT = r"(?P<unit>min|minute|hr|hour|day|week|month|year)"
_FEW = r"(?:few|couple(?:\s+of)?)\s+"
_SPOKE = r"(?:talked|spoke|chatted|met)"

Resolve = Callable[[re.Match[str], _Asked], "Interval | None"]


class _Rule(NamedTuple):
    kind: Kind
    words: frozenset[str]
    """No match without one of these: most queries name no time, and are through in a few microseconds."""
    pattern: re.Pattern[str]
    resolve: Resolve


def _rule(kind: Kind, words: Iterable[str], pattern: str, resolve: Resolve) -> _Rule:
    # Neither inside a longer word or number, nor the first half of a range ("March 15-20") or of a decimal.
    whole = re.compile(rf"(?<![\w-])(?:{pattern})(?![\w%])(?![.,:–-][0-9])")
    return _Rule(kind, frozenset(words), whole, resolve)


_WORD = re.compile("[a-z]+|[0-9]+")
_YEAR_WORDS = [str(year) for year in range(1900, 2100)]
_MONTH_WORDS = [*MONTHS, *MONTH_NUMBERS, "sept"]
_WEEKDAY_WORDS = [*WEEKDAYS, *WEEKDAY_NUMBERS, "tues", "thur", "thurs"]
_UNIT_WORDS = [*UNITS, *(f"{unit}s" for unit in UNITS)]

_RULES = (
    # A time of day may follow: "2025-03-15T10:30".
    _rule(
        "absolute",
        _YEAR_WORDS,
        rf"(?:{_ON})?{_YEAR}-(?P<number>[0-9]{{2}})-(?P<day>[0-9]{{2}})(?:t[0-9]{{2}}:[0-9]{{2}}\S*)?(?!-)",
        _full_date,
    ),
    _rule(
        "absolute",
        _MONTH_WORDS,
        rf"(?:{_ON})?(?:{_WEEKDAY},?\s+)?(?P<of>the\s+)?{_MONTH}\s+(?:the\s+)?{_DAY}(?:(?:,\s*|\s+){_YEAR})?",
        _date,
    ),
    _rule(
        "absolute",
        _MONTH_WORDS,
        rf"(?:{_ON})?(?:{_WEEKDAY},?\s+)?(?:the\s+)?{_DAY}\s+(?P<of>of\s+)?{_MONTH}(?:(?:,\s*|\s+){_YEAR})?",
        _date,
    ),
    _rule("absolute", _MONTH_WORDS, rf"(?:{_IN})?{_PART}{_MONTH},?\s+(?:of\s+)?{_YEAR}", _month),
    _rule("absolute", _MONTH_WORDS, rf"{_IN}{_PART}{_MONTH}(?P<year>)", _month),
    _rule("absolute", _MONTH_WORDS, rf"{_MAYBE}{_LAST}{_MONTH}", _last_month_named),
    _rule("absolute", "q", rf"{_IN}q(?P<quarter>[1-4])(?P<year>)", _quarter),
    _rule("absolute", "q", rf"(?:{_IN})?q(?P<quarter>[1-4]),?\s+(?:of\s+)?{_YEAR}", _quarter),
    _rule("absolute", _YEAR_WORDS, rf"{_IN}(?:the\s+year\s+)?{_YEAR}", _year),
    _rule("absolute", _WEEKDAY_WORDS, rf"{_ON}{_WEEKDAY}", _weekday),
    _rule("absolute", _WEEKDAY_WORDS, rf"{_MAYBE}{_LAST}{_WEEKDAY}", _last_weekday),
    _rule("absolute", ["today"], rf"{_MAYBE}today", lambda match, asked: asked.day(asked.today)),
    _rule(
        "absolute",
        ["yesterday"],
        rf"{_MAYBE}(?:the\s+)?day\s+before\s+yesterday",
        lambda match, asked: asked.day(asked.today - dt.timedelta(days=2)),
    ),
    _rule("relative", ["yesterday"], rf"{_MAYBE}yesterday", lambda match, asked: (asked.now - DAY, asked.now)),
    _rule("relative", _UNIT_WORDS, rf"{_MAYBE}this\s+(?P<unit>week|month|year)", _this),
    # "the last minute" and "my last day" are seldom spans of time; a number, "past" or "in the" makes them so.
    _rule("relative", _UNIT_WORDS, rf"{_MAYBE}(?P<count>)(?:last|past)\s+(?P<unit>hour|week|month|year)", _last_units),
    _rule(
        "relative",
        _UNIT_WORDS,
        r"(?P<count>)(?:past|(?:in|over|during|within)\s+the\s+last)\s+(?P<unit>day)",
        _last_units,
    ),
    _rule("relative", _UNIT_WORDS, rf"{_MAYBE}(?:last|past)\s+{_COUNT}{_UNIT}s?", _last_units),
    _rule("relative", _UNIT_WORDS, rf"{_MAYBE}(?:{_COUNT}|an?\s+){_UNIT}s?\s+ago", _units_ago),
    _rule("fuzzy", _UNIT_WORDS, rf"{_MAYBE}(?:a\s+)?{_FEW}{_UNIT}s?\s+ago", _few_ago),
    _rule("fuzzy", _UNIT_WORDS, rf"{_MAYBE}(?:last|past)\s+{_FEW}{_UNIT}s?", _last_few),
    _rule("fuzzy", ["recently", "lately"], "(?<!most )(?<!least )recently|lately", _recent),
    _rule(
        "session",
        ["since"],
        rf"since\s+(?:(?:we|i|you)(?:\s+and\s+(?:i|you))?\s+(?:last\s+{_SPOKE}|{_SPOKE}\s+last)"
        r"|(?:(?:our|my|the)\s+)?last\s+(?:time|conversation|session|chat|talk))",
        _session,
    ),
)
# Only where nothing else names a time: "the latest report of March 2024" is about March 2024 (X20).
_SPECULATIVE = (_rule("fuzzy", ["recent", "latest"], "recent|(?<!at the )latest", _recent),)


def parse_when(
    text: str,
    now: float,
    *,
    last_session_end: float | None = None,
    recent_days: float = RECENT_DAYS,
    timezone: dt.tzinfo = dt.timezone.utc,
) -> When | None:
    """The interval that the first time expression of `text` names, or None where there is none.

    Of two expressions the one that begins earlier counts, then the longer; they are not combined. `now` is the
    query's own time and `last_session_end` the end of the session before it, in seconds since 1970-01-01 UTC: without
    it "since we last talked" is None, never everything (B033). `recent_days` is what "recently" reaches back. Raises
    `ParameterError` for a `now` outside the calendar or a `recent_days` outside (0, 36525].
    """
    if not 0.0 < recent_days <= MAX_RECENT_DAYS:
        raise ParameterError(f"recent_days must lie in (0, {MAX_RECENT_DAYS:g}], not {recent_days!r}")
    try:
        today = dt.datetime.fromtimestamp(now, timezone).date()
    except (OverflowError, ValueError, OSError, TypeError):
        raise ParameterError(f"now must be seconds since 1970-01-01 UTC inside the calendar, not {now!r}") from None
    asked = _Asked(text, now, today, timezone, last_session_end, recent_days * DAY)
    # Patterns match ASCII lower case only, character for character: 'İ'.lower() is two characters, and stays as it is.
    folded = text.lower()
    if len(folded) != len(text):
        folded = "".join(lower if len(lower := letter.lower()) == 1 else letter for letter in text)
    words = frozenset(_WORD.findall(folded))
    return _first(_RULES, folded, words, asked) or _first(_SPECULATIVE, folded, words, asked)


def _first(rules: tuple[_Rule, ...], folded: str, words: frozenset[str], asked: _Asked) -> When | None:
    place: tuple[int, int] | None = None
    found: When | None = None
    for rule in rules:
        if rule.words.isdisjoint(words):
            continue
        for match in rule.pattern.finditer(folded):
            here = (match.start(), -match.end())
            if place is not None and here >= place:
                break
            try:
                interval = rule.resolve(match, asked)
            except (ValueError, OverflowError):  # no such day, or none inside the calendar
                continue
            if interval is None:
                continue
            place, found = here, None
            start, end = _led(match.groupdict().get("lead"), interval, asked.now)
            if start <= end:
                expression = asked.text[match.start() : match.end()]
                found = When(start, end, expression, rule.kind, rules is _SPECULATIVE)
            break
    return found


def _led(lead: str | None, interval: Interval, now: float) -> Interval:
    """The interval as the word before it has it."""
    start, end = interval
    if lead == "since":
        return start, now
    if lead == "after":
        return math.nextafter(end, math.inf), now
    return EMPTY if lead else interval
