"""Cuts texts into words as Unicode's UAX #29 does, for the analyzer `lucene`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import groupby

# The word boundary rules of UAX #29 as a pattern for ASCII: WB6 and WB7 (mid letters), WB11 and WB12 (mid numbers).
_ASCII_SEGMENTS = re.compile(r"[a-z0-9_]+(?:(?:(?<=[a-z])[:.'](?=[a-z])|(?<=[0-9])[,;.'](?=[0-9]))[a-z0-9_]+)*").findall


@cache
def _segments() -> Callable[[str], list[str]]:
    """The rules of UAX #29 for all of Unicode, with the additions of Lucene. A letter includes what extends it (WB4).

    Every repetition is possessive, so the time is linear in the length of the text.
    """
    import regex  # type: ignore[import-untyped, unused-ignore]

    def one_of(*properties: str, also: str = "") -> str:
        return "[" + "".join(rf"\p{{{name}}}" for name in properties) + also + "]" + extended

    extenders = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*"
    extended = extenders + "+"
    hebrew, katakana, connector = one_of("WB=Hebrew_Letter"), one_of("WB=Katakana"), one_of("WB=ExtendNumLet")
    letter, mid_letter = one_of("WB=ALetter", "WB=Hebrew_Letter"), one_of("WB=MidLetter", "WB=MidNumLet", also="'")
    digit, mid_number = one_of("WB=Numeric", also="０-９"), one_of("WB=MidNum", "WB=MidNumLet", also="'")
    inner = (
        rf"{hebrew}\"{extended}(?={hebrew})",
        rf"{letter}(?:{mid_letter}(?={letter}))?+",
        rf"{digit}(?:{mid_number}(?={digit}))?+",
    )
    core = rf"(?:(?:{'|'.join(inner)})++|(?:{katakana})++)"
    links = rf"(?:{connector})++{core}?+"
    final_quote = rf"(?:(?<=\p{{WB=Hebrew_Letter}}{extenders})'{extended})?+"
    flag, picture = one_of("WB=Regional_Indicator"), one_of("Extended_Pictographic")
    segments = (
        rf"(?:{links}|{core})(?:{links})*+{final_quote}",
        one_of("Script=Han", "Script=Hiragana"),
        rf"(?:{one_of('LB=Complex_Context')})++",
        flag + flag,
        rf"(?:\p{{Emoji_Presentation}}|\p{{Extended_Pictographic}}(?=\ufe0f)){extended}(?:(?<=\u200d){picture})*+",
    )
    find: Callable[[str], list[str]] = regex.compile("|".join(segments)).findall
    return find


def find_segments(text: str) -> list[str]:
    """The words of a text in lower case, in order."""
    if text.isascii():
        return _ASCII_SEGMENTS(text)
    # No word spans a space. So only stretches that are not ASCII need the Unicode rules, which take ten times as long.
    tokens: list[str] = []
    for is_ascii, pieces in groupby(text.split(" "), str.isascii):
        tokens += (_ASCII_SEGMENTS if is_ascii else _segments())(" ".join(pieces))
    return tokens
