"""A time expression in a query, as a closed interval: "what did I decide last Tuesday", "since we last talked".

Intervals follow SPEC B030 (absolute), B031 (relative), B032 (fuzzy) and B033 (session); X20 says which words only hint
at a time. Where the documents are silent:

- A date without a year is its latest occurrence that has begun: "in March", context in March, is this March.
- Dates in numbers count where they can be read one way only: 15.03.2025 and 03/15/2025, not 03/04/2025. Weeks with a
  number are those of ISO 8601: 2025-W12, "calendar week 12 of 2025".
- A part of a day or month is that day or month: "this morning" is today, "the end of January" January. A night lies in
  two days, and is none. A part of a span that rolls ("early last week", "the 15th of last month") is none.
- A weekday counts: "Tuesday, March 12" is the latest March 12 on a Tuesday; against a year that is named it is none.
- "last weekend" is the latest that was over when this week began, "Tuesday last week" is of the week before this one.
- "N weeks ago" is what rounds to N: half a unit on either side, a month being 30 days and a year 365, as in B031 and
  B032; "N days ago" is that calendar day.
- "since X" and "after X" run to now. "before X", "until X" and "by X" have no beginning: no interval, as X alone would
  be the wrong one. "between X and Y", "from X to Y" and "X to Y" run from the beginning of X to the end of Y.
- An end of a list or range that is not read as a whole ("in 2023 and 2024", "12th to 14th of March"), an offset from a
  time ("the week after March 3"), what is not it, and what is of another year ("in March next year") name none.
- A phrase that no document gives a length to ("a while ago", "next week", "half an hour ago", "over a year ago", "the
  last week of March") is no time expression, nor are words inside one.

Calendar days, weeks (from Monday), months, quarters and years are those of the given time zone, so a day of a clock
change has 23 or 25 hours.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass

from ...errors import ParameterError
from .context import part_of_more
from .grammar import RULES, SPECULATIVE, WORD, Kind, Rule
from .intervals import DAY, EMPTY, Interval, TimeContext

RECENT_DAYS = 30.0
"""What "recently" and "lately" reach back (B032)."""
MAX_RECENT_DAYS = 36525.0


@dataclass(frozen=True)
class When:
    """A time expression and the closed interval [start, end] that it names, in seconds since 1970-01-01 UTC.

    `expression` is the matched part of the text. `speculative` marks "recent" and "latest", which hint at a time
    without naming one: half the weight in fusion.
    """

    start: float
    end: float
    expression: str
    kind: Kind
    speculative: bool = False


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
    it "since we last talked" is None, never everything. `recent_days` is what "recently" reaches back. Raises
    `ParameterError` for a `now` outside the calendar or a `recent_days` outside (0, 36525].
    """
    if not 0.0 < recent_days <= MAX_RECENT_DAYS:
        raise ParameterError(f"recent_days must lie in (0, {MAX_RECENT_DAYS:g}], not {recent_days!r}")
    try:
        today = dt.datetime.fromtimestamp(now, timezone).date()
    except (OverflowError, ValueError, OSError, TypeError):
        raise ParameterError(f"now must be seconds since 1970-01-01 UTC inside the calendar, not {now!r}") from None
    context = TimeContext(text, now, today, timezone, last_session_end, recent_days * DAY)
    # Patterns match ASCII lower case only, character for character: 'İ'.lower() is two characters, and stays as it is.
    folded = text.lower()
    if len(folded) != len(text):
        folded = "".join(lower if len(lower := letter.lower()) == 1 else letter for letter in text)
    words = frozenset(WORD.findall(folded))
    return _first(RULES, folded, words, context) or _first(SPECULATIVE, folded, words, context)


def _first(rules: tuple[Rule, ...], folded: str, words: frozenset[str], context: TimeContext) -> When | None:
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
                interval = rule.resolve(match, context)
            except (ValueError, OverflowError):  # no such day, or none inside the calendar
                continue
            if interval is None:
                continue
            place, found = here, None
            if rules is RULES and part_of_more(folded, match, rule.kind):
                break
            start, end = _led(match.groupdict().get("lead"), interval, context.now)
            if start <= end:
                expression = context.text[match.start() : match.end()]
                found = When(start, end, expression, rule.kind, rules is SPECULATIVE)
            break
    return found


def _led(lead: str | None, interval: Interval, now: float) -> Interval:
    """The interval as the word before it has it."""
    start, end = interval
    if start > end:
        return EMPTY
    if lead == "since" or (lead and lead.startswith(("on", "in"))):
        return start, now
    if lead == "after":
        return math.nextafter(end, math.inf), now
    return EMPTY if lead else interval
