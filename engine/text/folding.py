"""Folds texts beyond ASCII, so that forms of a character that look alike or mean the same meet in one.

In order: dashes and quotation marks, and signs such as (TM), become spaces; the compatibility forms of Unicode are
replaced (NFKD: full width, ligatures, circled digits); variation selectors and invisible format characters go; what is
left is composed (NFC). Case stays, because the parts of an identifier are found by it; `lower` folds it.

Accents stay too, until a token is known to be no stop word: "thé" is not "the". `without_accents` removes them. A few
Latin letters have no decomposition and are replaced from a table. Marks that are part of a script's letters stay: Indic
vowels, kana voicing, Hangul.

The data is that of the running Python's `unicodedata`. Unicode never changes the normal form of a character once it
is assigned, so two versions differ only in characters that the older one does not know.

Of a long run of marks the first `MOST_MARKS` count: Unicode orders marks in a time that grows with the square of their
number, 5 s for 80 kB of them. No word of any language has more than a few on a letter.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cache

MOST_MARKS = 30
"""Marks of a run that count, as in Unicode's stream-safe text format."""

# Dashes and quotation marks U+2012 to U+2027 but not the hyphens U+2010 and U+2011; zero-width space; (C), (R), (SM),
# TM. The compatibility forms of the last two are letters, and would grow onto the word before.
_SPACES = dict.fromkeys((*range(0x2012, 0x2028), 0x200B, 0xA9, 0xAE, 0x2120, 0x2122), " ")
_INSTEAD = {**_SPACES, **dict.fromkeys(map(ord, "\u2010\u2011\u2212"), "-")}
_LETTERS = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ħ": "h", "ı": "i"})

# General accents, which mark letters of any script, but the iota of Greek, whose small form is a letter.
_ACCENTS = re.compile("[\u0300-\u0344\u0346-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")
# That iota, and characters that show nothing.
_DROPPED = re.compile(
    "[\u0345\u034f\ufe00-\ufe0f\u00ad\u061c\u200c\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff"
    "\U0001f3fb-\U0001f3ff\U000e0000-\U000e0fff]+"
)
# The joiner U+200D stays between pictures, where it makes one of several: between what is left of them, because a
# selector of variants may stand before it.
_LONE_JOINERS = re.compile(
    "(?<![\u2190-\u2bff\U0001f000-\U0001faff])\u200d+|\u200d+(?![\u2190-\u2bff\U0001f000-\U0001faff])"
)


def fold(text: str) -> str:
    """The text without what does not tell words apart, in the case and with the accents that it has."""
    text = unicodedata.normalize("NFKD", _few_marks(text.translate(_INSTEAD)))
    # Where invisible characters go, two runs of marks may meet.
    return unicodedata.normalize("NFC", _few_marks(_LONE_JOINERS.sub("", _DROPPED.sub("", text.translate(_INSTEAD)))))


def _few_marks(text: str) -> str:
    return text if len(text) <= MOST_MARKS else _cut_marks()(r"\1", text)


@cache
def _cut_marks() -> Callable[[str, str], str]:
    import regex  # type: ignore[import-untyped, unused-ignore]

    # The two half-width signs are letters that become marks.
    mark = r"[\p{M}\uff9e\uff9f]"
    cut: Callable[[str, str], str] = regex.compile(rf"({mark}{{{MOST_MARKS}}}){mark}++").sub
    return cut


def lower(text: str) -> str:
    """A folded text in lower case. Every form of a letter has one: ς becomes σ, and ß becomes ss."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFC", text.casefold())


def without_accents(token: str) -> str:
    """A folded token in lower case without its accents, and with plain Latin letters."""
    if token.isascii():
        return token
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", token).translate(_LETTERS)))
