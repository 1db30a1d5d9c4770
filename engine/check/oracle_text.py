"""The oracle's analyzers: what each analyzer's terms are, in plain loops over characters.

Like the oracle it imports nothing of the engine: the stop words, Porter's algorithm and the word boundaries of
Unicode's UAX #29 are stated a second time, so that a mistake in an analyzer would have to be made twice. The tokens of
`agent` are stated in `oracle_agent.py`. Sources: SPEC A025 to A028, B015, X18, C007, R10.

`PLAIN` holds the analyzers that it knows. A new analyzer gets an entry of its own there: a function from a text to its
terms, in order, with repeats, that shares no code with the engine's.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import pairwise

from .oracle_agent import agent_tokens, without_accents

Terms = Callable[[str], "list[str]"]


def _words(words: str) -> frozenset[str]:
    return frozenset(words.split())


LONGEST = 255

LUCENE = _words(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
NLTK = _words(
    "i me my myself we our ours ourselves you you're you've you'll you'd your yours yourself yourselves he him his "
    "himself she she's her hers herself it it's its itself they them their theirs themselves what which who whom this "
    "that that'll these those am is are was were be been being have has had having do does did doing a an the and but "
    "if or because as until while of at by for with about against between into through during before after above below "
    "to from up down in out on off over under again further then once here there when where why how all any both each "
    "few more most other some such no nor not only own same so than too very s t can will just don don't should "
    "should've now d ll m o re ve y ain aren aren't couldn couldn't didn didn't doesn doesn't hadn hadn't hasn hasn't "
    "haven haven't isn isn't ma mightn mightn't mustn mustn't needn needn't shan shan't shouldn shouldn't wasn wasn't "
    "weren weren't won won't wouldn wouldn't"
)
OPSEM = _words(
    "the and for with from this that what where when how why who are you was have has do does did is it be been an as "
    "we me my i your yours our of to on in at by or if but not a so all any no yes"
)


def fold(text: str) -> str:
    """Each character in lower case by itself; the final sigma is a sigma."""
    return "".join("i" if letter == "İ" else "σ" if letter in "Σς" else letter.lower() for letter in text)


# Runs of letters and digits.


@cache
def _kind(letter: str) -> str:
    """L, N or M for letters, digits and marks; anything else for what separates."""
    category = unicodedata.category(letter)
    if category != "Cn":
        return category[0]
    # Python's tables are older than Unicode's newest letters.
    return next((kind for kind in "LNM" if _has(letter, kind)), "C")


def word_runs(text: str) -> Iterator[str]:
    """Runs of letters, digits and marks that begin with a letter or a digit, in lower case."""
    run = ""
    for letter in fold(text):
        kind = _kind(letter)
        if kind in "LN" or (kind == "M" and run):
            run += letter
        elif run:
            yield run
            run = ""
    if run:
        yield run


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


def _word_terms(stop: frozenset[str], mode: str, compounds: bool, numbers: bool, text: str) -> list[str]:
    tokens = [*word_runs(text), *(joined(text) if compounds else ())]
    return [term for token in tokens if (numbers or not _numeric(token)) and (term := _word_term(token, stop, mode))]


def _word_term(token: str, stop: frozenset[str], mode: str) -> str:
    word = unicodedata.normalize("NFC", token[:LONGEST])
    return "" if word in stop else stem(word, mode)


def _numeric(token: str) -> bool:
    return any(letter.isnumeric() for letter in token) and not any(letter.isalpha() for letter in token)


# Porter's algorithm, as the paper of 1980 states it: with the conditions of NLTK ("nltk"), of Porter's own program
# ("martin"), its first step alone ("first"), or not at all ("none").

_SPECIAL = {
    "sky": "sky", "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie", "news": "news", "howe": "howe",
    "inning": "inning", "innings": "inning", "outing": "outing", "outings": "outing", "canning": "canning",
    "cannings": "canning", "proceed": "proceed", "exceed": "exceed", "succeed": "succeed",
}  # fmt: skip
_SECOND = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble",
    "logi": "log",
}  # fmt: skip
_THIRD = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
# Each goes where what stands before it has a measure above 1.
_FOURTH = _words("al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize")


def _consonants(word: str) -> list[bool]:
    """Whether each letter is a consonant: all but a, e, i, o, u, and a y behind a consonant."""
    flags: list[bool] = []
    for letter in word:
        flags.append(letter not in "aeiou" and not (letter == "y" and bool(flags) and flags[-1]))
    return flags


def _measure(word: str) -> int:
    flags = _consonants(word)
    return sum(not one and other for one, other in pairwise(flags))


def _holds_vowel(word: str) -> bool:
    return not all(_consonants(word))


def _ends_cvc(word: str, mode: str) -> bool:
    flags = _consonants(word)
    if mode == "nltk" and flags == [False, True]:
        return True
    return flags[-3:] == [True, False, True] and word[-1] not in "wxy"


@cache
def stem(word: str, mode: str) -> str:
    """The stem of a word in lower case."""
    if mode == "none":
        return word
    nltk = mode == "nltk"
    if nltk and word in _SPECIAL:
        return _SPECIAL[word]
    if len(word) <= 2:
        return word
    # Step 1a.
    if nltk and len(word) == 4 and word.endswith("ies"):
        word = word[:-1]
    elif word.endswith("sses") or word.endswith("ies"):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    word = _first_b(word, mode)
    # Step 1c.
    if word.endswith("y"):
        before = word[:-1]
        turns = len(before) > 1 and _consonants(before)[-1] if nltk else _holds_vowel(before)
        word = before + "i" if turns else word
    if mode == "first":
        return word
    second = dict(_SECOND, fulli="ful") if nltk else _SECOND
    if nltk and word.endswith("alli") and _measure(word[:-4]) > 0:
        word = word[:-4] + "al"
    word = _replace(word, second, nltk)
    word = _replace(word, _THIRD, nltk)
    suffix = _longest(word, _FOURTH)
    if suffix is not None:
        before = word[: -len(suffix)]
        if _measure(before) > 1 and (suffix != "ion" or before[-1] in "st"):
            word = before
    # Step 5.
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_cvc(word[:-1], mode)):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


def _first_b(word: str, mode: str) -> str:
    if mode == "nltk" and word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix) and _holds_vowel(word[: -len(suffix)]):
            left = word[: -len(suffix)]
            if left[-2:] in ("at", "bl", "iz"):
                return left + "e"
            if len(left) > 1 and left[-1] == left[-2] and _consonants(left)[-1]:
                return left if left[-1] in "lsz" else left[:-1]
            return left + "e" if _measure(left) == 1 and _ends_cvc(left, mode) else left
    return word


def _longest(word: str, suffixes: Iterable[str]) -> str | None:
    found = [suffix for suffix in suffixes if word.endswith(suffix)]
    return max(found, key=len) if found else None


def _replace(word: str, rules: dict[str, str], nltk: bool) -> str:
    suffix = _longest(word, rules)
    if suffix is None:
        return word
    before = word[: -len(suffix)]
    # NLTK counts the l of -logi to what stands before it.
    measure = _measure(before + "l" if nltk and suffix == "logi" else before)
    return before + rules[suffix] if measure > 0 else word


# Words by UAX #29, of the kinds that Lucene's standard tokenizer keeps.

_BREAKS = _words(
    "ALetter Hebrew_Letter Numeric Katakana ExtendNumLet MidLetter MidNum MidNumLet Single_Quote Double_Quote Extend "
    "Format ZWJ Regional_Indicator"
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
            if base not in LUCENE and (term := stem(base, "martin")):
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


def _agent_terms(numbers: bool, text: str) -> list[str]:
    terms = []
    for token in agent_tokens(text):
        if token not in NLTK and (numbers or not _numeric(token)):
            # A name that is kept whole shows it by what joins it.
            whole = any(joint in token for joint in "_./@+:")
            terms.append(_word_term(without_accents(token), frozenset(), "none" if whole else "nltk"))
    return [term for term in terms if term]


def _variants() -> Iterator[tuple[str, Terms]]:
    words = {"minimal": (frozenset[str](), "none"), "stopword": (LUCENE, "none"), "full": (LUCENE, "first")}
    for numbers in (True, False):
        ending = "" if numbers else "-numbers"
        for name, (stop, mode) in {**words, "nltk": (NLTK, "nltk")}.items():
            yield name + ending, partial(_word_terms, stop, mode, False, numbers)
            yield f"{name}+compounds{ending}", partial(_word_terms, stop, mode, True, numbers)
        yield "lucene" + ending, partial(_lucene_terms, numbers)
        yield "opsem" + ending, partial(_opsem_terms, numbers)
        yield "agent" + ending, partial(_agent_terms, numbers)


PLAIN: dict[str, Terms] = dict(_variants())
"""By the name of an analyzer, with its switches: the function from a text to its terms."""
