"""The forms of time expressions in a query, and the interval that each names (SPEC B030 to B033).

A rule is a pattern over the text in lower case, and a function that resolves a match to an interval. The function
returns `None` if the match is not a time expression. It returns `EMPTY` if the match names a time that cannot be
known; then the words inside the match are not read by themselves: "half an hour ago" is not "an hour ago". For every
rule, `engine/text/time_expressions/context.py` checks the words around a match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from ...locks import once
from .intervals import (
    DAY,
    EMPTY,
    MONTH_NUMBERS,
    MONTHS,
    ONE_UNIT,
    ONES,
    ORDINALS,
    SEASONS,
    TALKS,
    TEENS,
    TENS,
    UNITS,
    VERBS,
    WEEKDAY_NUMBERS,
    WEEKDAYS,
    Interval,
    Resolve,
    TimeContext,
    calendar_year,
    day_at,
    decade,
    few_ago,
    full_date,
    half_year,
    iso_week,
    last_few,
    last_month_named,
    last_occasion,
    last_quarter,
    last_season,
    last_units,
    last_weekday,
    last_weekend,
    latest_weekday,
    latest_weekend,
    month_and_day,
    named_month,
    near_date,
    night_at,
    no_interval,
    numbered_date,
    numbered_month,
    occasion,
    quarter_of_year,
    recently,
    since_last_session,
    this_period,
    this_weekend,
    units_ago,
    weekday_alone,
    weekday_of_week,
)

Kind = Literal["absolute", "relative", "fuzzy", "session", "event"]


def _span(match: re.Match[str], context: TimeContext) -> Interval | None:
    """From the beginning of one date to the end of another. The second date may give the year of both."""
    first = next(name for name in ("between", "from", "plain") if match[name])
    if match["plain"] in VERBS and not context.capital(match, "plain"):
        return None
    start, end = (context.text[slice(*match.span(name))] for name in (first, "second"))
    year = _ENDING_YEAR.search(end)
    if year and not _ENDING_YEAR.search(start):
        start += year[0]
    begins, ends = _point(start, context), _point(end, context)
    return EMPTY if begins is None or ends is None else (begins[0], ends[1])


def _point(text: str, context: TimeContext) -> Interval | None:
    """The interval of a date in a span. There a date needs no "on" or "in" before it, so both are tried."""
    for led_text in (f"on {text}", f"in {text}"):
        for rule in _POINT_RULES:
            match = rule.pattern.fullmatch(led_text.lower())
            if match:
                return rule.resolve(match, replace(context, text=led_text))
    return None


LEAD = r"(?P<lead>(?:on|in)\s+(?:or|and)\s+after|(?:on|in)\s+or\s+before|since|after|before|until|till|by)"
_MAYBE = rf"(?:{LEAD}\s+(?:the\s+)?)?"
_ON = rf"(?P<on>on|{LEAD})\s+"
_IN = rf"(?:in|during|throughout|{LEAD})\s+"
_YEAR = r"(?P<year>(?:19|20)[0-9]{2})"
# "in March last year" is not the latest March.
_ANY_YEAR = r"(?P<year>(?:19|20)[0-9]{2}|(?:last|this)\s+year)"
_MONTH = rf"(?P<month>{'|'.join(MONTHS)}|(?:jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)(?!['’]s)\.?)"
# "sat" and "sun" are words ("where we last sat", "on sun cream"), so they are not read as days.
_WEEKDAY = rf"(?P<weekday>{'|'.join(WEEKDAYS)}|mon|tues?|wed|thu(?:rs?)?|fri)"
_PART = r"(?:(?:early|mid|late)[\s-]+)?(?:(?:the\s+)?month\s+of\s+)?"
_DAY = r"(?P<day>[0-9]{1,2})(?P<suffix>st|nd|rd|th)?"
_WHOLE = r"(?:(?:the\s+)?(?P<whole>week(?:end)?\s+of\s+))?"
_LAST = r"(?:last|past|this\s+past)\s+"
# Not before another end: "the last week of March", "the last Friday in May", "the last one before May 3".
_NOT_OF = rf"(?!\s+(?:of\b|(?:in|before)\s+(?:{'|'.join(MONTHS)})\b))"
COUNTED = rf"(?:[0-9]{{1,4}}|(?:{'|'.join(TENS)})(?:[\s-]+(?:{'|'.join(ONES)}))?|{'|'.join([*TEENS, *ONES])})"
_COUNT = rf"(?P<count>{COUNTED})\s+"
_UNIT = r"(?P<unit>min|minute|hr|hour|day|week|month|year)"
A_FEW = r"(?:few|couple(?:\s+of)?)"
_SPOKE = rf"(?:{'|'.join(TALKS)})"
_AGO = r"(?:ago|back(?!\s+(?:to|in|into|from|then|at|on|when|pay|pain|up|order|and\s+forth)))"
# "my last night in Rome" and "the last fall" are not those before today.
_NOT_OWNED = "".join(rf"(?<!\b{word} )" for word in ("the", "my", "our", "your", "his", "her", "their", "its", "a"))
_NEAR = r"(?P<on>around|near|close\s+to|circa)\s+(?:the\s+)?(?P<whole>)(?P<weekday>)"
# An occasion ends where its sentence or clause does, and has at most five words behind the first.
_WORDS = r"(?P<words>[a-z]+(?:['’]s)?(?:\s+[a-z0-9'’-]+){0,5}?)(?=\s*(?:[?.!;,]|$))"
_SPOKE_LAST = rf"(?:last\s+{_SPOKE}|{_SPOKE}\s+last)"
_TO = r"(?:to|until|till|through|thru)"
OF_DAY = r"(?:morning|afternoon|evening)"
_CLOCK = r"(?:noon|midday|lunch(?:time)?|[0-9]{1,2}(?::[0-9]{2})?(?:\s*[ap]m)?|[0-9]{1,2}\s+o['’]clock)"
_QUARTER = r"q(?P<quarter>[1-4])(?!,?\s+(?:of\s+)?(?:fy|fiscal))"


@dataclass(frozen=True, eq=False)
class Rule:
    """One form of a time expression: its pattern, and the function that gives its interval."""

    kind: Kind
    words: frozenset[str]
    """A text without any of these words has no match. Most queries name no time, and take a few microseconds."""
    expression: str
    resolve: Resolve

    @once
    def pattern(self) -> re.Pattern[str]:
        """The compiled pattern. It is compiled at the first use: all patterns together take 50 ms."""
        return re.compile(self.expression)


def _rule(kind: Kind, words: Iterable[str], pattern: str, resolve: Resolve) -> Rule:
    # A match is neither inside a longer word or number ("1.5 hours ago"), nor the first half of a decimal or of a range
    # ("March 15-20", "in 2024/25", and for dates also "March 15 to 20").
    whole = rf"(?<![\w-])(?<![0-9][.,:/])(?:{pattern})(?![\w%])(?![.,:/–-][0-9])"
    if kind == "absolute":
        whole += rf"(?!\s+(?:{_TO}|[–-])\s+[0-9])"
    return Rule(kind, frozenset(words), whole, resolve)


WORD = re.compile("[a-z]+|[0-9]+")
_YEAR_WORDS = [str(year) for year in range(1900, 2100)]
_MONTH_WORDS = [*MONTHS, *MONTH_NUMBERS, "sept"]
_WEEKDAY_WORDS = [*WEEKDAYS, *WEEKDAY_NUMBERS, "tues", "thur", "thurs"]
_UNIT_WORDS = [*UNITS, *(f"{unit}s" for unit in UNITS)]

_ENDING_YEAR = re.compile(r",?\s+(?:19|20)[0-9]{2}\Z")
_ISO_DATE = rf"{_YEAR}(?P<mark>[-/.])(?P<number>[0-9]{{2}})(?P=mark)(?P<day>[0-9]{{2}})"
_YEAR_AFTER = rf"(?:(?:,\s*|\s+)(?:of\s+)?{_ANY_YEAR})"
_MONTH_DAY = rf"(?P<of>the\s+)?{_MONTH}\s+(?:the\s+)?{_DAY}{_YEAR_AFTER}?"
_DAY_MONTH = rf"(?:the\s+)?{_DAY}\s+(?P<of>of\s+)?{_MONTH}{_YEAR_AFTER}?"
_BEFORE_DATE = rf"(?:{_ON})?{_WHOLE}(?:{_WEEKDAY},?\s+)?"
# The ends of a span: not weekdays ("open from Monday to Friday"), not bare years ("between 1990 and 2000 ms").
_POINT_RULES = (
    _rule("absolute", (), rf"{_BEFORE_DATE}{_ISO_DATE}", full_date),
    _rule("absolute", (), rf"{_BEFORE_DATE}{_MONTH_DAY}", month_and_day),
    _rule("absolute", (), rf"{_BEFORE_DATE}{_DAY_MONTH}", month_and_day),
    _rule("absolute", (), rf"{_IN}{_PART}{_MONTH}{_YEAR_AFTER}?", named_month),
    _rule("absolute", (), rf"{_IN}{_QUARTER}{_YEAR_AFTER}?", quarter_of_year),
    _rule("absolute", (), r"on\s+today", day_at(0)),
    _rule("absolute", (), r"on\s+now", lambda match, context: (context.now, context.now)),
)


def _remove_names(pattern: str) -> str:
    return re.sub(r"\(\?P<\w+>", "(?:", pattern.replace("(?P=mark)", "[-/.]"))


_WORDED = _remove_names("|".join((_MONTH_DAY, _DAY_MONTH, rf"{_MONTH}{_YEAR_AFTER}?", rf"{_QUARTER}{_YEAR_AFTER}?")))
_POINT = rf"{_remove_names(_ISO_DATE)}|{_WORDED}"

_POINT_WORDS = [*_MONTH_WORDS, *_YEAR_WORDS, "q"]

RULES = (
    # A span of two dates. If the second is not a known date, the first alone is not an answer.
    _rule(
        "absolute",
        _POINT_WORDS,
        rf"(?:between\s+(?P<between>{_POINT})\s+and|from\s+(?P<from>{_POINT})\s+{_TO}"
        rf"|(?:(?:on|in|during)\s+)?(?P<plain>{_POINT})(?:\s+{_TO}|\s*[–-]))\s*(?P<second>\b(?:{_POINT}|today|now))",
        _span,
    ),
    _rule(
        "absolute",
        _POINT_WORDS,
        rf"between\s+(?:{_POINT})\s+and|from\s+(?:{_POINT})\s+{_TO}",
        no_interval,
    ),
    # A time of day may follow: "2025-03-15T10:30".
    _rule(
        "absolute",
        _YEAR_WORDS,
        rf"{_BEFORE_DATE}{_ISO_DATE}(?:t[0-9]{{2}}:[0-9]{{2}}\S{{0,20}})?(?!-)",
        full_date,
    ),
    _rule(
        "absolute",
        _YEAR_WORDS,
        rf"{_BEFORE_DATE}(?P<first>[0-9]{{1,2}})(?P<mark>[-/.])(?P<second>[0-9]{{1,2}})(?P=mark){_YEAR}(?!-)",
        numbered_date,
    ),
    _rule("absolute", _YEAR_WORDS, rf"{_IN}{_YEAR}-(?P<number>[0-9]{{2}})(?!-)", numbered_month),
    _rule(
        "absolute",
        _YEAR_WORDS,
        rf"(?:{_IN}|{_ON})?{_YEAR}-?w(?P<week>[0-9]{{2}})(?:-?(?P<day>[1-7]))?".replace("(?P<lead>", "(?:", 1),
        iso_week,
    ),
    _rule(
        "absolute",
        ["iso", "calendar"],
        rf"(?:{_IN})?(?:iso|calendar)\s+week\s+(?P<week>[0-9]{{1,2}}){_YEAR_AFTER}",
        iso_week,
    ),
    _rule("absolute", _MONTH_WORDS, rf"{_BEFORE_DATE}{_MONTH_DAY}", month_and_day),
    _rule("absolute", _MONTH_WORDS, rf"{_BEFORE_DATE}{_DAY_MONTH}", month_and_day),
    _rule("absolute", _MONTH_WORDS, rf"(?:{_IN})?{_PART}{_MONTH},?\s+(?:of\s+)?{_ANY_YEAR}", named_month),
    _rule(
        "absolute",
        ["start", "beginning", "middle", "end"],
        rf"(?:(?:in|at)\s+)?(?:the\s+)?(?:start|beginning|middle|end)\s+of\s+{_MONTH}{_YEAR_AFTER}?",
        named_month,
    ),
    _rule("absolute", _MONTH_WORDS, rf"(?P<year>(?:last|this)\s+year)\s+in\s+{_PART}{_MONTH}", named_month),
    _rule("absolute", _MONTH_WORDS, rf"{_IN}{_PART}{_MONTH}", named_month),
    _rule("absolute", _MONTH_WORDS, rf"{_MAYBE}{_LAST}{_MONTH}", last_month_named),
    _rule("absolute", "q", rf"{_IN}{_QUARTER}", quarter_of_year),
    _rule("absolute", "q", rf"(?:{_IN})?{_QUARTER}{_YEAR_AFTER}", quarter_of_year),
    _rule("absolute", "q", rf"(?:{_IN})?{_YEAR}[\s-]?{_QUARTER}", quarter_of_year),
    _rule(
        "absolute",
        ["quarter"],
        rf"(?:{_IN})?(?:the\s+)?(?P<quarter>{'|'.join(ORDINALS)})\s+quarter\s+of\s+{_ANY_YEAR}",
        quarter_of_year,
    ),
    _rule("absolute", ["half"], rf"(?:{_IN})?(?:the\s+)?(?P<half>first|second)\s+half\s+of\s+{_ANY_YEAR}", half_year),
    _rule("absolute", "h", rf"(?:{_IN})?h(?P<half>[12])\s+(?:of\s+)?{_YEAR}", half_year),
    _rule("absolute", _YEAR_WORDS, rf"{_IN}(?:the\s+year\s+)?{_YEAR}", calendar_year),
    # "the 2000s" may be a century.
    _rule("absolute", _YEAR_WORDS, rf"{_IN}the\s+(?P<year>(?:19|20)[1-9]0)s", decade),
    _rule("absolute", _WEEKDAY_WORDS, rf"{_ON}{_WEEKDAY}(?!\s+before\s+last)", latest_weekday),
    _rule("absolute", _WEEKDAY_WORDS, rf"{_MAYBE}{_LAST}{_WEEKDAY}{_NOT_OF}", last_weekday),
    _rule(
        "absolute",
        _WEEKDAY_WORDS,
        rf"(?:{_ON})?(?:the\s+)?{_WEEKDAY}\s+(?:of\s+)?(?P<week>last|this)\s+week",
        weekday_of_week,
    ),
    _rule("absolute", _WEEKDAY_WORDS, rf"(?P<week>last|this)\s+week,?\s+(?:on\s+)?{_WEEKDAY}", weekday_of_week),
    _rule("absolute", ["weekend"], rf"{_MAYBE}{_LAST}weekend{_NOT_OF}", last_weekend),
    _rule("absolute", ["weekend"], rf"{_MAYBE}this\s+weekend", this_weekend),
    _rule("absolute", ["weekend"], r"(?:over|during)\s+the\s+weekend(?!\s+(?:of|before|after)\b)", latest_weekend),
    _rule("absolute", WEEKDAYS, rf"(?P<weekday>{'|'.join(WEEKDAYS)})(?:\s+{OF_DAY})?(?=\s*\?+\s*$)", weekday_alone),
    _rule("absolute", ["night"], rf"{_MAYBE}{_NOT_OWNED}last\s+night{_NOT_OF}", night_at(-1)),
    _rule("absolute", ["night"], rf"{_MAYBE}yesterday\s+night", night_at(-1)),
    _rule("absolute", ["night"], rf"{_MAYBE}(?:the\s+)?night\s+before\s+last(?=\s*(?:[?.!;,]|$))", night_at(-2)),
    _rule(
        "absolute",
        ["quarter"],
        rf"{_MAYBE}(?:last|previous)\s+quarter(?!-|\s+(?:hour|mile|century|final|past|to)){_NOT_OF}",
        last_quarter,
    ),
    _rule(
        "absolute",
        SEASONS,
        rf"{_MAYBE}{_NOT_OWNED}{_LAST}(?P<season>{'|'.join(SEASONS)}){_NOT_OF}",
        last_season,
    ),
    _rule("absolute", _YEAR_WORDS, rf"{_NEAR}{_ISO_DATE}(?!-)", near_date(full_date)),
    _rule("absolute", _MONTH_WORDS, rf"{_NEAR}{_MONTH_DAY}", near_date(month_and_day)),
    _rule("absolute", _MONTH_WORDS, rf"{_NEAR}{_DAY_MONTH}", near_date(month_and_day)),
    _rule("absolute", ["today"], rf"{_MAYBE}today", day_at(0)),
    _rule("absolute", ["this"], rf"{_MAYBE}this\s+{OF_DAY}", day_at(0)),
    # A time of the day is that of the calendar: at noon, the 24 hours before begin after yesterday's morning.
    _rule("absolute", ["yesterday"], rf"{_MAYBE}yesterday,?\s+(?:in\s+the\s+)?{OF_DAY}", day_at(-1)),
    _rule(
        "absolute",
        ["yesterday"],
        rf"{_CLOCK}\s+yesterday|yesterday,?\s+(?:(?:at|around|before|after)\s+{_CLOCK}|noon)",
        day_at(-1),
    ),
    _rule("absolute", ["yesterday"], rf"{_MAYBE}(?:the\s+)?day\s+before\s+yesterday", day_at(-2)),
    # The bound of a span is the day of the calendar, not the same hour of it.
    _rule("absolute", ["yesterday"], r"(?P<lead>before|until|till)\s+yesterday(?!\s+night)", day_at(-1)),
    _rule("absolute", ["tomorrow"], rf"{_MAYBE}tomorrow", day_at(1)),
    _rule("absolute", ["tomorrow"], r"(?:the\s+)?day\s+after\s+tomorrow", day_at(2)),
    _rule(
        "relative",
        ["yesterday"],
        rf"{_MAYBE}yesterday(?!\s+night)",
        lambda match, context: (context.now - DAY, context.now),
    ),
    _rule("relative", [*_UNIT_WORDS, "quarter"], rf"{_MAYBE}this\s+(?P<unit>week|month|quarter|year)", this_period),
    # "the last minute" and "my last day" are seldom spans of time; a number, "past" or "in the" makes them so.
    _rule(
        "relative",
        _UNIT_WORDS,
        rf"{_MAYBE}(?P<count>)(?:last|past)\s+(?P<unit>hour|week|month|year){_NOT_OF}",
        last_units,
    ),
    _rule(
        "relative",
        _UNIT_WORDS,
        rf"(?P<count>)(?:past|(?:in|over|during|within)\s+the\s+last)\s+(?P<unit>day){_NOT_OF}",
        last_units,
    ),
    _rule("relative", _UNIT_WORDS, rf"{_MAYBE}(?:last|past)\s+{_COUNT}{_UNIT}s?{_NOT_OF}", last_units),
    _rule("relative", _UNIT_WORDS, rf"{_MAYBE}(?:{_COUNT}|an?\s+){_UNIT}s?\s+{_AGO}", units_ago),
    # More than one number, or a bound. The documents give no length for these.
    _rule(
        "relative",
        ["ago", "back"],
        rf"(?:(?:{COUNTED}|an?)\s+{ONE_UNIT}(?:,|\s+and|,\s+and)?\s+(?:{COUNTED}|an?)"
        rf"|{COUNTED}\s+(?:or|to|and)\s+{COUNTED}|[0-9]{{1,4}}\s+[0-9]{{1,4}}|half\s+an?"
        rf"|(?:more|less|longer|fewer)\s+than\s+(?:{COUNTED}|an?)|(?:over|under|within|at\s+least"
        rf"|at\s+most)\s+(?:{COUNTED}|an?)"
        rf")\s+{ONE_UNIT}\s+(?:ago|back)",
        no_interval,
    ),
    _rule(
        "relative",
        ["today", "tomorrow", "yesterday", *_WEEKDAY_WORDS],
        rf"(?:{COUNTED}|an?)\s+(?:week|fortnight|month|year)s?\s+(?:on\s+)?(?:today|tomorrow|yesterday"
        rf"|{_remove_names(_WEEKDAY)})",
        no_interval,
    ),
    # A year before a date. No form above has this order.
    _rule("absolute", [*_MONTH_WORDS, "q"], rf"{_remove_names(_YEAR)},?\s+(?:(?:in|on)\s+)?(?:{_WORDED})", no_interval),
    _rule("absolute", ["every", "each"], rf"(?:every|each)\s+year,?\s+(?:(?:in|on)\s+)?(?:{_WORDED})", no_interval),
    # Not before an age: "around 3 years ago" is read as the ages that round to 3 years.
    _rule(
        "absolute",
        ["outside", "around", "near", "close", "circa"],
        rf"(?:outside|around|near|close\s+to|circa)\s+(?:the\s+)?(?:{_POINT})",
        no_interval,
    ),
    _rule("relative", ["earlier"], rf"earlier\s+last\s+{ONE_UNIT}", no_interval),
    _rule("relative", ["last"], r"(?:this|the\s+same|same)\s+(?:time|day|week|month)\s+last\s+\w+", no_interval),
    _rule("fuzzy", _UNIT_WORDS, rf"{_MAYBE}(?:a\s+)?{A_FEW}\s+{_UNIT}s?\s+{_AGO}", few_ago),
    _rule("fuzzy", _UNIT_WORDS, rf"{_MAYBE}(?:last|past)\s+{A_FEW}\s+{_UNIT}s?{_NOT_OF}", last_few),
    _rule(
        "fuzzy",
        ["recently", "lately"],
        rf"(?:(?<!most )(?<!least )recently|lately)(?!\s+(?:in|on)\s+(?:{_POINT}|{_remove_names(_YEAR)})(?!\w))",
        recently,
    ),
    _rule(
        "session",
        ["since"],
        rf"since\s+(?:(?:we|i|you)(?:\s+and\s+(?:i|you))?\s+(?:last\s+{_SPOKE}|{_SPOKE}\s+last)"
        r"|(?:(?:our|my|the)\s+)?last\s+(?:time|conversation|session|chat|talk))",
        since_last_session,
    ),
    _rule(
        "event",
        ["since", "after", "before", "until", "till"],
        rf"(?P<lead>since|after|before|until|till)\s+(?!\w+(?:\s+and\s+\w+)?\s+{_SPOKE_LAST})(?P<who>[a-z]+)\s+{_WORDS}",
        occasion,
    ),
    _rule(
        "event",
        ["since", "after", "before", "until", "till"],
        rf"(?P<lead>since|after|before|until|till)\s+(?:the|my|our|your)\s+{_WORDS}",
        occasion,
    ),
    _rule(
        "event",
        ["last"],
        rf"(?:(?P<lead>since)\s+)?(?:(?:the\s+)?last\s+time\s+(?:that\s+)?(?P<who>[a-z]+)|when\s+(?P<whose>[a-z]+)\s+last)"
        rf"\s+{_WORDS}",
        last_occasion,
    ),
)


def rules_for(rules: tuple[Rule, ...], words: frozenset[str]) -> list[Rule]:
    """The rules that a text with these words may match, in their order."""
    numbers = _rules_by_word(rules)
    return [rules[number] for number in sorted({number for word in words for number in numbers.get(word, ())})]


@cache
def _rules_by_word(rules: tuple[Rule, ...]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for number, rule in enumerate(rules):
        for word in rule.words:
            numbers.setdefault(word, []).append(number)
    return numbers


def may_lie_ahead(rule: Rule, match: re.Match[str]) -> bool:
    """Whether a time is named that recurs, so that "before" it may mean one that is to come: "before Monday"."""
    return rule.resolve in _RECURRING and not match.groupdict().get("year")


_RECURRING = (latest_weekday, month_and_day, named_month, quarter_of_year)
# Used only if nothing else names a time: "the latest report of March 2024" is about March 2024 (X20).
SPECULATIVE = (_rule("fuzzy", ["recent", "latest"], "(?<!not )recent|(?<!at the )latest", recently),)
