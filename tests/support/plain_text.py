"""Terms of the analyzers that no compiled loops know, in plain loops over characters; stems are NLTK's.

Sources: SPEC A027, A028, B015, X18, C007, R10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from unicodedata import normalize

from nltk.stem.porter import PorterStemmer

from fanrank.engine.text.analyzers import get_analyzer
from fanrank.engine.text.stopwords import LUCENE_ENGLISH, OPSEM

LONGEST = 255
_MARTIN = PorterStemmer("MARTIN_EXTENSIONS")


def fold(text: str) -> str:
    """Each character in lower case by itself; the final sigma is a sigma."""
    return "".join("i" if letter == "İ" else "σ" if letter in "Σς" else letter.lower() for letter in text)


def joined(text: str) -> Iterator[str]:
    """Words that hyphens, dots or short parentheses join, without what joins them."""
    letters = [*fold(text), *"   "]
    at = 0
    while at < len(letters) - 3:
        if not letters[at].isalnum():
            at += 1
            continue
        word, parts = "", 1
        while letters[at].isalnum():
            word, at = word + letters[at], at + 1
        while True:
            between_digits = letters[at - 1] in "0123456789" and letters[at + 1] in "0123456789"
            if letters[at + 1].isalnum() and (
                letters[at] in "-\u2010\u2011" or (letters[at] == "." and not between_digits)
            ):
                at += 1
                while letters[at].isalnum():
                    word, at = word + letters[at], at + 1
            elif letters[at] == "(" and letters[at + 1].isalnum() and letters[at + 2] == ")":
                word, at = word + letters[at + 1], at + 3
            elif (
                letters[at] == "("
                and letters[at + 1].isalnum()
                and letters[at + 2].isalnum()
                and letters[at + 3] == ")"
            ):
                word, at = word + letters[at + 1] + letters[at + 2], at + 4
            else:
                break
            parts += 1
        if parts > 1:
            yield word


def _numeric(token: str) -> bool:
    return any(letter.isnumeric() for letter in token) and not any(letter.isalpha() for letter in token)


# Words by UAX #29, of the kinds that Lucene's standard tokenizer keeps.

_BREAKS = (
    *("ALetter", "Hebrew_Letter", "Numeric", "Katakana", "ExtendNumLet", "MidLetter", "MidNum", "MidNumLet"),
    *("Single_Quote", "Double_Quote", "Extend", "Format", "ZWJ", "Regional_Indicator"),
)
_LETTERS = ("ALetter", "Hebrew_Letter")
_INNER = (*_LETTERS, "Numeric", "Katakana", "ExtendNumLet")


@cache
def _has(letter: str, property: str) -> bool:
    import regex  # type: ignore[import-untyped, unused-ignore]  # the tables of Unicode's properties, and nothing else of it

    return regex.fullmatch(rf"\p{{{property}}}", letter) is not None


@cache
def _break(letter: str) -> str:
    if letter.isascii():
        if letter.isalnum():
            return "Numeric" if letter in "0123456789" else "ALetter"
        ascii_marks = {"_": "ExtendNumLet", "'": "Single_Quote", '"': "Double_Quote", ".": "MidNumLet"}
        return ascii_marks.get(letter, "MidLetter" if letter == ":" else "MidNum" if letter in ",;" else "")
    if "０" <= letter <= "９":
        return "Numeric"
    return next((name for name in _BREAKS if _has(letter, f"WB={name}")), "")


def segments(text: str) -> list[str]:
    """The words of a text: letters and digits with what joins them, ideographs and hiragana one by one, runs of the
    scripts that are written without spaces, flags and emoji."""
    # WB4: what extends a character belongs to it.
    clusters: list[str] = []
    for letter in text:
        if clusters and _break(letter) in ("Extend", "Format", "ZWJ") and clusters[-1] not in ("\r", "\n"):
            clusters[-1] += letter
        else:
            clusters.append(letter)
    kinds = [_break(cluster[0]) for cluster in clusters] + ["", ""]
    found, at = [], 0
    while at < len(clusters):
        end = at + 1
        first = clusters[at][0]
        if kinds[at] in _INNER:
            while end < len(clusters) and _joins(kinds, end):
                end += 1
        elif _has_any(first, "Script=Han", "Script=Hiragana"):
            pass
        elif _has_any(first, "LB=Complex_Context"):
            while end < len(clusters) and not kinds[end] and _has_any(clusters[end][0], "LB=Complex_Context"):
                end += 1
        elif kinds[at] == kinds[at + 1] == "Regional_Indicator":
            end += 1
        elif _has_any(first, "Emoji_Presentation") or (
            _has_any(first, "Extended_Pictographic") and clusters[at][1:2] == "\ufe0f"
        ):
            while end < len(clusters) and clusters[end - 1].endswith("\u200d"):  # WB3c
                if not _has_any(clusters[end][0], "Extended_Pictographic"):
                    break
                end += 1
        else:
            # Behind what is no word, some of what extends is one: vowel signs of such scripts, colours of skin.
            alone = ("LB=Complex_Context", "Script=Han", "Script=Hiragana", "Emoji_Presentation")
            signs = [n for n, letter in enumerate(clusters[at]) if n and _has_any(letter, *alone)]
            if signs:
                clusters[at : at + 1] = [clusters[at][: signs[0]], clusters[at][signs[0] :]]
                kinds.insert(end, _break(clusters[end][0]))
            at = end
            continue
        found.append("".join(clusters[at:end]))
        at = end
    return found


def _has_any(letter: str, *properties: str) -> bool:
    return not letter.isascii() and any(_has(letter, property) for property in properties)


def _joins(kinds: list[str], at: int) -> bool:
    """Whether UAX #29 leaves a word whole before cluster `at`, which is not the first; WB5 to WB13b."""
    before, here, after = kinds[at - 1], kinds[at], kinds[at + 1]
    further = kinds[at - 2] if at > 1 else ""
    mid_letter, mid_number = ("MidLetter", "MidNumLet", "Single_Quote"), ("MidNum", "MidNumLet", "Single_Quote")
    return (
        (before in _LETTERS and here in _LETTERS)  # WB5
        or (before in _LETTERS and here in mid_letter and after in _LETTERS)  # WB6
        or (before in mid_letter and here in _LETTERS and further in _LETTERS)  # WB7
        or (before == "Hebrew_Letter" and here == "Single_Quote")  # WB7a
        or (before == "Hebrew_Letter" and here == "Double_Quote" and after == "Hebrew_Letter")  # WB7b
        or (before == "Double_Quote" and here == "Hebrew_Letter" and further == "Hebrew_Letter")  # WB7c
        or (before == "Numeric" and here in ("Numeric", *_LETTERS))  # WB8, WB10
        or (before in _LETTERS and here == "Numeric")  # WB9
        or (before in mid_number and here == "Numeric" and further == "Numeric")  # WB11
        or (before == "Numeric" and here in mid_number and after == "Numeric")  # WB12
        or (before == here == "Katakana")  # WB13
        or (before in _INNER and here == "ExtendNumLet")  # WB13a
        or (before == "ExtendNumLet" and here in (*_LETTERS, "Numeric", "Katakana"))  # WB13b
    )


def _lucene_terms(numbers: bool, text: str) -> list[str]:
    terms = []
    for word in segments(fold(text)):
        # A longer word is cut, and its pieces are words by the same rules.
        pieces = [word[begin : begin + LONGEST] for begin in range(0, len(word), LONGEST)]
        for token in [word] if len(pieces) == 1 else [token for piece in pieces for token in segments(piece)]:
            only_joins = _break(token[0]) == "ExtendNumLet" and not any(letter.isalnum() for letter in token)
            if only_joins or (not numbers and _numeric(token)):
                continue
            base = token[:-2] if token[-2:] in ("'s", "’s", "＇s") else token
            if base not in LUCENE_ENGLISH and (term := str(_MARTIN.stem(base))):
                terms.append(term)
    return terms


def _opsem_terms(numbers: bool, text: str) -> list[str]:
    first, rest = "abcdefghijklmnopqrstuvwxyz0123456789", "abcdefghijklmnopqrstuvwxyz0123456789-_'"
    lower, at, terms = text.lower(), 0, []
    while at < len(lower):
        end = at
        if lower[at] in first:
            end += 1
            while end < min(at + 31, len(lower)) and lower[end] in rest:
                end += 1
        token = lower[at:end]
        if len(token) > 2 and token not in OPSEM and (numbers or not _numeric(token)):
            terms.append(token)
        at = end if len(token) > 1 else at + 1
    return terms


def _compound_terms(numbers: bool, text: str) -> list[str]:
    words = get_analyzer("minimal" if numbers else "minimal-numbers")(text)
    return words + [normalize("NFC", token[:LONGEST]) for token in joined(text) if numbers or not _numeric(token)]


PLAIN: dict[str, Callable[[str], list[str]]] = {
    name + ending: partial(terms, not ending)
    for name, terms in (("minimal+compounds", _compound_terms), ("lucene", _lucene_terms), ("opsem", _opsem_terms))
    for ending in ("", "-numbers")
}
"""By the name of an analyzer: the function from a text to its terms."""
