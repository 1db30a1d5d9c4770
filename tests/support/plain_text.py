"""Terms of the analyzers that no compiled loops know, in plain loops over characters; stems are NLTK's.

Sources: SPEC A027, A028, B015, X18, C007, R10.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import product
from unicodedata import normalize

from nltk.stem.porter import PorterStemmer

from fanrank.engine.text.analyzers import get_analyzer
from fanrank.engine.text.stopwords import LUCENE_ENGLISH, OPSEM

LONGEST, DIGITS = 255, "0123456789"
_MARTIN = PorterStemmer("MARTIN_EXTENSIONS")


def fold(text: str) -> str:
    """Each character in lower case by itself; the final sigma is a sigma."""
    return "".join("i" if letter == "İ" else "σ" if letter in "Σς" else letter.lower() for letter in text)


def joined(text: str) -> Iterator[str]:
    """Words that hyphens, dots or short parentheses join, without what joins them."""
    letters = fold(text) + "   "

    def end_of(start: int) -> int:
        return next(at for at in range(start, len(letters)) if not letters[at].isalnum())

    at = 0
    while at < len(letters) - 3:
        end = end_of(at)
        parts = [letters[at:end]]
        while end > at:
            joint, after = letters[end], end_of(end + 1)
            of_a_number = letters[end - 1] in DIGITS and letters[end + 1] in DIGITS
            parenthesis = joint == "(" and after - end in (2, 3) and letters[after] == ")"
            if not parenthesis and (
                after == end + 1 or joint not in "-\u2010\u2011." or (joint == "." and of_a_number)
            ):
                break
            parts.append(letters[end + 1 : after])
            end = after + parenthesis
        if len(parts) > 1:
            yield "".join(parts)
        at = max(end, at + 1)


def _numeric(token: str) -> bool:
    return any(letter.isnumeric() for letter in token) and not any(letter.isalpha() for letter in token)


# Words by UAX #29, of the kinds that Lucene's standard tokenizer keeps.

_KINDS = {
    **{"ALetter": "A", "Hebrew_Letter": "H", "Numeric": "N", "Katakana": "K", "ExtendNumLet": "E", "MidLetter": "l"},
    **{"MidNum": "n", "MidNumLet": "b", "Single_Quote": "q", "Double_Quote": "d", "Regional_Indicator": "r"},
    **dict.fromkeys(("Extend", "Format", "ZWJ"), "x"),
}
_WHOLE = {
    "".join(kinds)
    for rule in ("AH AH", "H q", "AH N", "N AHN", "K K", "AHNKE E", "E AHNK", "AH lbq AH", "H d H", "N nbq N")
    for kinds in product(*rule.split())
}
"""Two or three kinds between which is no border: WB5, WB7a, WB9, WB8 and WB10, WB13, WB13a, WB13b; WB6 and WB7, WB7b
and WB7c, WB11 and WB12."""


@cache
def _has(letter: str, *properties: str) -> bool:
    """Whether it has one of them."""
    import regex  # type: ignore[import-untyped, unused-ignore]  # the tables of Unicode's properties, and nothing else of it

    return any(regex.fullmatch(rf"\p{{{name}}}", letter) for name in properties)


@cache
def _kind(letter: str) -> str:
    return "N" if "０" <= letter <= "９" else next((_KINDS[name] for name in _KINDS if _has(letter, f"WB={name}")), " ")


def segments(text: str) -> list[str]:
    """The words of a text: letters and digits with what joins them, ideographs and hiragana one by one, runs of the
    scripts that are written without spaces, flags and emoji."""
    # WB4: what extends a character belongs to it.
    clusters: list[str] = []
    for letter in text:
        if clusters and _kind(letter) == "x" and clusters[-1] not in ("\r", "\n"):
            clusters[-1] += letter
        else:
            clusters.append(letter)
    kinds = "".join(_kind(cluster[0]) for cluster in clusters)
    found, at = [], 0
    while at < len(clusters):
        end = at + 1
        first = clusters[at][0]
        if kinds[at] in "AHNKE":
            while end < len(clusters) and not _WHOLE.isdisjoint(
                (kinds[end - 1 : end + 1], kinds[end - 1 : end + 2], kinds[at : end + 1][-3:])
            ):
                end += 1
        elif _has(first, "Script=Han", "Script=Hiragana"):
            pass
        elif _has(first, "LB=Complex_Context"):
            while end < len(clusters) and kinds[end] == " " and _has(clusters[end][0], "LB=Complex_Context"):
                end += 1
        elif kinds[at : at + 2] == "rr":
            end += 1
        elif _has(first, "Emoji_Presentation") or (
            _has(first, "Extended_Pictographic") and clusters[at][1:2] == "\ufe0f"
        ):
            while end < len(clusters) and clusters[end - 1].endswith("\u200d"):  # WB3c
                if not _has(clusters[end][0], "Extended_Pictographic"):
                    break
                end += 1
        else:
            # Behind what is no word, some of what extends is one: vowel signs of such scripts, colours of skin.
            alone = ("LB=Complex_Context", "Script=Han", "Script=Hiragana", "Emoji_Presentation")
            signs = [n for n, letter in enumerate(clusters[at]) if n and _has(letter, *alone)]
            if signs:
                clusters[at : at + 1] = [clusters[at][: signs[0]], clusters[at][signs[0] :]]
                kinds = kinds[:end] + _kind(clusters[end][0]) + kinds[end:]
            at = end
            continue
        found.append("".join(clusters[at:end]))
        at = end
    return found


def _lucene_terms(numbers: bool, text: str) -> list[str]:
    terms = []
    for word in segments(fold(text)):
        # A longer word is cut, and its pieces are words by the same rules.
        pieces = [word[begin : begin + LONGEST] for begin in range(0, len(word), LONGEST)]
        for token in [word] if len(pieces) == 1 else [token for piece in pieces for token in segments(piece)]:
            only_joins = _kind(token[0]) == "E" and not any(letter.isalnum() for letter in token)
            if only_joins or (not numbers and _numeric(token)):
                continue
            base = token[:-2] if token[-2:] in ("'s", "’s", "＇s") else token
            if base not in LUCENE_ENGLISH and (term := str(_MARTIN.stem(base))):
                terms.append(term)
    return terms


def _opsem_terms(numbers: bool, text: str) -> list[str]:
    first = "abcdefghijklmnopqrstuvwxyz" + DIGITS
    lower, at, terms = text.lower(), 0, []
    while at < len(lower):
        end = at + (lower[at] in first)
        while at < end < min(at + 31, len(lower)) and lower[end] in first + "-_'":
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
