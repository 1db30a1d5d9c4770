"""Checks the words around a time expression, which may make it part of a list, range, offset or span, or deny it.

"Two weeks after March 3" is not March 3, and "the first week of last month" is not last month. Such a match is not
read as a time expression: its interval would be wrong.
"""

from __future__ import annotations

import re

from .grammar import A_FEW, COUNTED, LEAD, OF_DAY, Kind
from .intervals import MONTHS, ONE_UNIT, ORDINALS, WEEKDAYS, compile_pattern

_ORDINAL = rf"(?:[0-9]{{1,2}}(?:st|nd|rd|th)|{'|'.join(ORDINALS)}|fifth|last|final|next|penultimate)"
_PREPOSITION = r"(?:in|on|at|from|during|throughout|around|over|for|of)"
_NAMED_DAY = rf"(?:{'|'.join(WEEKDAYS)}|mon|tues?|wed|thu(?:rs?)?|fri|sat|sun)"
_NAMED_MONTH = rf"(?:{'|'.join(MONTHS)}|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)"
_SEASON = r"(?:spring|summer|autumn|(?:the|in)\s+fall|winter|christmas|easter|thanksgiving)"
# A point of the calendar without a word that marks it as a time.
_BARE = (
    rf"(?:(?:(?:last|past|this|next)\s+)?(?:{_NAMED_DAY}|{_NAMED_MONTH})|(?:19|20)[0-9]{{2}}|q[1-4]|h[12]"
    rf"|[0-9]{{1,2}}(?:st|nd|rd|th))\b"
)
_PERIOD = (
    rf"(?:{ONE_UNIT}|weekends?|weekdays?|fortnights?|quarters?|decades?|nights?|half|spring|summer|autumn|winter"
    rf"|{OF_DAY}s?|{_NAMED_DAY}s?)"
)
_SOME = rf"(?:{COUNTED}|an?|(?:a\s+)?{A_FEW}|several|many|some)"
_POINT_TOLD = (
    rf"(?:(?:today|yesterday|tomorrow|tonight)\b|(?:last|past|this|next)\s+(?:{COUNTED}\s+)?{_PERIOD}\b"
    rf"|(?:start|beginning|middle|end)\s+of\b|{_SOME}\s+{_PERIOD}\b)"
)
_JOIN = r"(?:\s*(?:[,&/+–—-]|\.\.+)\s*|,?\s+(?:and|or|nor|then|plus|vs\.?|versus|than|to|until|till|through|thru)\s+)"
# A number is a day or a year only if no noun follows that it counts.
_STOP = r"(?=\s*(?:[?.!;,)]|$|(?:and|or|to|of|last|this)\b))"
# Before the expression and the preposition that it begins with.
_BOUND_BEFORE = (
    r"(?:(?:\b(?:not|never|neither|except(?:ing)?|except\s+for|excluding|without|besides|unlike|outside\s+of"
    r"|(?:other|rather|earlier|later|older|newer|sooner)\s+than|apart\s+from|instead\s+of)|n['’]t)"
    r"|\b(?:anything|everything|nothing|all|every\s+\w+)\s+but"
    # "up to" has another meaning in "what have you been up to lately".
    r"|(?<!\bbeen )(?<!\bget )(?<!\bgot )(?<!\byou )(?<!\bwe )(?<!\bthey )\bup\s+to"
    r"|\b(?:between|since|after|before|until|till|by|as\s+(?:of|at|from)|prior\s+to|ahead\s+of|following|preceding"
    r"|starting|beginning|every|each|yearly|annually)"
    rf"|\b(?:next|following|previous|preceding|coming|same|that)\s+{_PERIOD},?"
    rf"|\b{ONE_UNIT}\s+(?:ago|back|earlier|later|before),?)"
    rf"\s+(?:(?:or|and|just|even|\w+ly)\s+)?(?:{_PREPOSITION}\s+)?(?:the\s+)?\Z"
)
# Before the time and its prepositions: an offset from it ("two weeks after"), or a part of it ("the first week of").
_PART_BEFORE = (
    rf"\b(?:(?:{_PERIOD}|eve|soon|shortly|right|just|immediately|directly|long|well)"
    r"\s+(?:after|before|prior\s+to|past|following|preceding|into|to|until|till)"
    rf"|{_SOME}\s+{_PERIOD}\s+from"
    r"|(?:start|beginning|end|middle|midst|close|parts?|rest|remainder|eve|turn|third|outset|tail)\s+of"
    r"|(?:half|part|mid)\s?way\s+(?:through|into)"
    rf"|{_ORDINAL}\s+(?:of|to)|(?:{ONE_UNIT}(?<!\bday)|weekends?|quarters?|half|nights?|{_NAMED_DAY}s?)\s+of"
    rf"|{_ORDINAL}\s+(?:\w+\s+){{0,2}}{_PERIOD}\s+(?:of|in|during))\s+(?:the\s+)?\Z"
)
# Before a rolling span. The part that is named may lie outside it: "early last week", "on the 15th of last month".
_PART_BEFORE_SPAN = (
    rf"\b(?:early|late|later|mid|end\s+of\s+(?:the\s+)?day|{OF_DAY}\s+of|days?\s+of|q[1-4]|h[12]|{_SEASON}"
    rf"|[0-9]{{1,2}}(?:st|nd|rd|th)"
    rf"|{_NAMED_MONTH}\s+[0-9]{{1,2}})(?:\s+|-)(?:(?:of|in)\s+)?(?:the\s+)?\Z"
)
_LIST_BEFORE = (
    rf"\b(?:(?:{_BARE}|{_ORDINAL}|{COUNTED}|few|couple|half|hundred|thousand|dozen){_JOIN}|(?:hundred|thousand)\s+)"
    r"(?:the\s+)?\Z"
)
# Before "until yesterday": the beginning of a range that is not read as a whole.
_RANGE_BEFORE = rf"(?:\b(?:{_BARE}|{_PERIOD}|today|yesterday)|[0-9])\s+\Z"
_LISTED = rf"(?:{_BARE}|[0-9]|{COUNTED}\b|an?\s+{ONE_UNIT})"
_MORE_AFTER = "|".join(
    (
        # The continuation of a list or of a range.
        rf"{_JOIN}(?:{_PREPOSITION}\s+)?(?:the\s+)?(?:(?:(?:early|mid|late)[\s-]+)?{_BARE}|[0-9]{{1,2}}{_STOP})",
        rf",?\s+(?:and|or|to|until|till|through|thru)\s+(?:{_PREPOSITION}\s+)?(?:the\s+)?[0-9]",
        rf"(?:\s*[&–—-]\s*|,?\s+(?:and|to|until|till|through|thru|than)\s+)(?:the\s+)?{_POINT_TOLD}",
        r",?\s+(?:to|until|till|through|thru)\s+(?:now|then|date|the\s+present)\b",
        rf",?\s+(?:(?:and|or|but)\s+)?(?:after|before|following|preceding|until|till|up\s+to)\s+(?:the\s+)?"
        rf"(?:{_BARE}|{_POINT_TOLD}|last\b|next\b)",
        # Words that make the time longer or shorter than the expression.
        rf",?\s+or\s+(?:{COUNTED}|{ONE_UNIT}|more|less|fewer|later|earlier|before|after|(?<!ago or )so)\b",
        r",?\s+(?:plus|minus|give\s+or\s+take)\b|\s*(?:±|\+/-)",
        r",?\s+and\s+(?:a\s+half|a\s+bit|more|later|before|after|beyond|onwards?|counting)\b",
        r",?\s+(?:but\s+not|but\s+one|except|excluding|apart\s+from|other\s+than|onwards?|forward|on(?!\s+\w))\b",
        # Words that name another year or day than the latest.
        rf",?\s+(?:of\s+)?(?:the\s+)?(?:['’][0-9]{{2}}|[0-9]{{1,2}}(?:st|nd|rd|th))\b|,?\s+[0-9]{{1,2}}{_STOP}"
        rf"|\s+[0-9]+[./-][0-9]",
        rf",?\s+\(?{_NAMED_DAY}\b|\s+(?:week|fortnight)\b",
        rf",?\s+(?:of\s+)?(?:the\s+)?(?:next|following|previous|preceding|same|coming|last|past|this|that|every"
        rf"|each|any)"
        rf"\s+{_PERIOD}\b",
        rf",?\s+(?:{_SOME}\s+)?{ONE_UNIT}\s+(?:ago|back|before|after|earlier|later|from|prior)\b",
    )
)
_PART_AFTER_SPAN = (
    rf",?\s+(?:(?:in|on|at|around|during|by|near)\s+(?:the\s+)?(?:(?:early|mid|late)[\s-]+)?"
    rf"(?:(?:{_NAMED_DAY}|{_NAMED_MONTH})\b(?!['’]s)|(?:{_BARE}|{_SEASON}){_STOP}|{_ORDINAL}\s+{_PERIOD}"
    rf"|(?:start|beginning|end|middle)(?!\s+of\b))|(?!(?:may|march)(?!\s+[0-9])){_BARE})"
    rf"|\s+(?:(?:at\s+)?midnight|today|yesterday)\b|['’]s\s+(?:{_BARE}|{_SEASON}|start|beginning|end"
    rf"|(?:{_ORDINAL}\s+)?(?:{_PERIOD}))\b"
)
# Characters that are read on either side. The longest words before are "the last couple of weekends before the".
_REACH = 64


def part_of_more(text: str, match: re.Match[str], kind: Kind) -> bool:
    """Whether the words around a match make it part of an expression that is not read, so that its time is unknown.

    Such an expression is a list or range with the match at one end, an offset from it, a part of it, a denial of it, or
    words that contradict it. `text` is the text of the match. At most `_REACH` characters are read on either side.
    """
    start, end = match.span()
    opening = compile_pattern(rf"(?:(?:{LEAD}|on|in|during|throughout)\s+)?(?:the\s+)?").match(text, start)
    inner = min(opening.end(), end) if opening else start
    first, last = max(0, start - _REACH), end + _REACH
    if compile_pattern(_BOUND_BEFORE).search(text, first, start) or compile_pattern(_PART_BEFORE).search(
        text, first, inner
    ):
        return True
    if compile_pattern(_LIST_BEFORE).search(text, first, inner) and compile_pattern(_LISTED).match(text, inner):
        return True
    if compile_pattern(_MORE_AFTER).match(text, end, last):
        return True
    if match.groupdict().get("lead") in ("until", "till") and compile_pattern(_RANGE_BEFORE).search(text, first, start):
        return True
    if kind not in ("relative", "fuzzy"):
        return False
    part = compile_pattern(_PART_BEFORE_SPAN).search(text, first, inner)
    return bool(part or compile_pattern(_PART_AFTER_SPAN).match(text, end, last))
