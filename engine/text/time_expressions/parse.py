"""Reads the time expression of a query as a closed interval: "what did I decide last Tuesday", "since we last talked".

Intervals follow SPEC B030 (absolute), B031 (relative), B032 (fuzzy) and B033 (session). X20 says which words only hint
at a time. These rules decide what the documents leave open:

- A date without a year is its latest occurrence that has begun: in March, "in March" means this March.
- Dates in numbers are read only where one reading is possible: 15.03.2025 and 03/15/2025, but not 03/04/2025. Weeks
  with a number are those of ISO 8601: 2025-W12, "calendar week 12 of 2025".
- A part of a day or month is that day or month: "this morning" is today, "the end of January" is January. A part of a
  rolling span ("early last week", "the 15th of last month") names no interval.
- A night runs from 18:00 to 6:00, or to now while it lasts. "Last night" began yesterday.
- "Last quarter" is the quarter of the calendar before this one. "Last summer" is the latest summer that is over;
  seasons are three whole months, on the northern half of the earth: spring from March 1, winter from December 1.
- A weekday must fit the date: "Tuesday, March 12" is the latest March 12 that is a Tuesday. If a year is named and the
  weekday does not fit it, there is no interval.
- "last weekend" is the latest weekend that was over when this week began. "Tuesday last week" is in the week before
  this one.
- "Over the weekend" is the latest weekend that has begun. A day's name alone is read where a question of the
  past ends with it: "what did we decide Monday?". Neither is read where the text speaks of plans ("will", "due").
- "Around June 1" reaches three days to either side. A month or year that is "around" names no interval.
- "N weeks ago" and "N weeks back" are the span of ages that round to N weeks: half a unit on either side. A month has
  30 days and a year 365, as in B031 and B032. "N days ago" is that calendar day.
- "since X" and "after X" run to now. "before X" and "until X" begin with the calendar (`BEGINNING`): before X ends
  where X begins, until X ends where X ends. They are read where X can only lie behind: not "before Monday" or "until
  March", which may be one to come, and not "until last week", a span that runs up to now. "by X" sets a term and names
  no interval. "between X and Y", "from X to Y" and "X to Y" run from the beginning of X to the end of Y.
- "since I joined", "before the launch" and "the last time we met" name an event of the memory, which `find_event` dates
  (`engine/text/time_expressions/occasions.py`). Where it does not, the words name no time. "The last time we met" is
  the calendar day of the latest such event, or of the end of the last session if that is later.
- These name no interval: one end of a list or range that is not read as a whole ("in 2023 and 2024", "12th to 14th of
  March"), an offset from a time ("the week after March 3"), a time that is denied ("not in March"), and a time in
  another year ("in March next year").
- A phrase without a length in the documents ("a while ago", "next week", "half an hour ago", "over a year ago", "the
  last week of March") is not a time expression, and the words inside it are not read as one.

Calendar days, weeks (from Monday), months, quarters and years are those of the given time zone. So a day on which the
clock changes has 23 or 25 hours.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from dataclasses import dataclass

from ...errors import ParameterError
from ...moments import A_MOMENT, Moment, to_seconds, zone_named
from .context import part_of_more
from .grammar import RULES, SPECULATIVE, WORD, Kind, Rule, may_lie_ahead, rules_for
from .intervals import DAY, EMPTY, Interval, TimeContext
from .occasions import FindEvent

RECENT_DAYS = 30.0
"""How many days "recently" and "lately" reach back (B032)."""
MAX_RECENT_DAYS = 36525.0
BEGINNING = dt.datetime(1, 1, 1, tzinfo=dt.timezone.utc).timestamp()
"""Where a time without a beginning starts ("before last week"): the first moment of the calendar."""


@dataclass(frozen=True)
class When:
    """A time expression and the closed interval [start, end] that it names, in seconds since 1970-01-01 UTC.

    `expression` is the matched part of the text. `speculative` marks "recent" and "latest". They hint at a time without
    naming one, so they get half the weight in fusion.
    """

    start: float
    end: float
    expression: str
    kind: Kind
    speculative: bool = False


def parse_when(
    text: str,
    now: Moment,
    *,
    last_session_end: Moment | None = None,
    recent_days: float = RECENT_DAYS,
    timezone: dt.tzinfo | str = dt.timezone.utc,
    find_event: FindEvent | None = None,
) -> When | None:
    """The interval that the first time expression of `text` names. None if there is no such interval.

    Of several expressions, the one that begins first counts; of those, the longest. Expressions are not combined.
    `now` is the time of the query, and `last_session_end` the end of the session before it: a `datetime`, ISO 8601
    text, or seconds since 1970-01-01 UTC. `timezone` is a `tzinfo` or an IANA name. What names no time zone is in it.
    Without `last_session_end`, "since we last talked" gives None, never everything. `recent_days` is how many days
    "recently" reaches back. `find_event` dates an occasion that the text names ("since I joined"), or returns None;
    without it, such words name no time. Raises `ParameterError` for a `now` outside the calendar, a `recent_days`
    outside (0, 36525], or an unknown time zone.
    """
    if not 0.0 < recent_days <= MAX_RECENT_DAYS:
        raise ParameterError(f"recent_days must lie in (0, {MAX_RECENT_DAYS:g}], not {recent_days!r}")
    zone = _zone(timezone)
    try:
        time = to_seconds(now, zone)
        today = dt.datetime.fromtimestamp(time, zone).date()
    except (OverflowError, ValueError, OSError):
        raise ParameterError(f"now {A_MOMENT}, inside the calendar, not {now!r}") from None
    # A number that is not finite stays as it is: an interval that begins there is empty.
    if last_session_end is not None and not isinstance(last_session_end, (int, float)):
        try:
            last_session_end = to_seconds(last_session_end, zone)
        except ValueError as error:
            raise ParameterError(f"last_session_end {error}, not {last_session_end!r}") from None
    context = TimeContext(text, time, today, zone, last_session_end, recent_days * DAY, find_event)
    # Patterns match lower-case ASCII, and positions must stay those of `text`. 'İ'.lower() is two characters, so İ
    # stays as it is.
    folded = text.lower()
    if len(folded) != len(text):
        folded = "".join(lower if len(lower := letter.lower()) == 1 else letter for letter in text)
    words = frozenset(WORD.findall(folded))
    return _find_first(RULES, folded, words, context) or _find_first(SPECULATIVE, folded, words, context)


def _zone(timezone: dt.tzinfo | str) -> dt.tzinfo:
    if isinstance(timezone, dt.tzinfo):
        return timezone
    try:
        return zone_named(timezone)
    except ValueError as error:
        raise ParameterError(f"unknown time zone {timezone!r}: {error}") from None


def _find_first(rules: tuple[Rule, ...], folded: str, words: frozenset[str], context: TimeContext) -> When | None:
    """The first expression that a rule matches, then the longest. None also if it names no interval."""
    first: tuple[int, int] | None = None  # (start, -end) of the first expression so far
    when: When | None = None
    for rule in rules_for(rules, words):
        for match in rule.pattern.finditer(folded):
            extent = (match.start(), -match.end())
            if first is not None and extent >= first:
                break
            try:
                interval = rule.resolve(match, context)
            except (ValueError, OverflowError):  # no such day, or none inside the calendar
                continue
            if interval is None:
                continue
            first, when = extent, None
            if rules is RULES and part_of_more(folded, match, rule.kind):
                break
            start, end = _apply_lead(rule, match, interval, context.now)
            if start <= end:
                expression = context.text[match.start() : match.end()]
                when = When(start, end, expression, rule.kind, rules is SPECULATIVE)
            break
    return when


def _apply_lead(rule: Rule, match: re.Match[str], interval: Interval, now: float) -> Interval:
    """The interval, changed by the word before it, such as "since" or "before". `EMPTY` where that leaves none."""
    (start, end), lead = interval, match.groupdict().get("lead")
    if start > end or not lead:
        return interval
    if lead == "since" or (lead != "after" and lead.endswith("after")):
        return start, now
    if lead == "after":
        return math.nextafter(end, math.inf), now
    if lead == "by" or may_lie_ahead(rule, match):
        return EMPTY
    if lead == "before":
        return BEGINNING, math.nextafter(start, -math.inf)
    # "until last week" has no known end: the span runs up to now.
    return EMPTY if end == now else (BEGINNING, end)
