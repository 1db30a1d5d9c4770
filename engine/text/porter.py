"""Porter's algorithm (1980) in plain Python, for machines without the extension.

`native/text_porter.cpp` gives the same stems, faster.

`stem_word` runs the whole algorithm, either with NLTK's extensions or with those of Martin Porter's own programs;
`strip_suffix` runs its first step alone, as published.

The algorithm asks only for the *shape* of a word: a string with ``c`` for each consonant and ``v`` for each vowel.
A ``y`` is a vowel after a consonant. All characters but a, e, i, o, u and such a ``y`` are consonants. The shape of a
word's beginning is the beginning of its shape. Porter's measure counts the places where a consonant follows a vowel.
"""

from __future__ import annotations

# The first rule whose suffix fits decides, so a longer suffix stands before a shorter one that it ends with.
Rules = tuple[tuple[str, str], ...]


def _rules(text: str) -> Rules:
    pairs = (rule.partition(":") for rule in text.split())
    return tuple((suffix, replacement) for suffix, _, replacement in pairs)


IRREGULAR = dict(
    _rules(
        "sky:sky skies:sky dying:die lying:lie tying:tie news:news innings:inning inning:inning outings:outing "
        "outing:outing cannings:canning canning:canning howe:howe proceed:proceed exceed:exceed succeed:succeed"
    )
)
"""Words that NLTK's extensions leave out of all rules, and their stems."""

_STEP_2 = _rules(
    "ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous ization:ize "
    "ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive biliti:ble logi:log"
)
_STEP_2_NLTK = (*_STEP_2, ("fulli", "ful"))
_STEP_3 = _rules("icate:ic ative: alize:al iciti:ic ical:ic ful: ness:")
_STEP_4 = _rules("al: ance: ence: er: ic: able: ible: ant: ement: ment: ent: ion: ou: ism: ate: iti: ous: ive: ize:")


def stem_word(word: str, *, nltk: bool = True) -> str:
    """The stem of any string: that of NLTK's ``PorterStemmer().stem``, or without `nltk` of Porter's own programs."""
    short = len(word) <= 2
    word = word.lower()
    if nltk and word in IRREGULAR:
        return IRREGULAR[word]
    if short:
        return word
    word = _strip_plural(word, nltk)
    word = _strip_past(word, nltk)
    if word.endswith("y"):
        before = shape(word[:-1])
        if len(before) > 1 and before.endswith("c") if nltk else "v" in before:
            word = word[:-1] + "i"
    if nltk and word.endswith("alli") and _measure(word[:-4]) > 0:
        word = word[:-2]
    word = _replace(word, _STEP_2_NLTK if nltk else _STEP_2, 0, nltk)
    word = _replace(word, _STEP_3, 0, nltk)
    word = _replace(word, _STEP_4, 1, nltk)
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_short(word[:-1], nltk)):
            word = word[:-1]
    if word.endswith("ll") and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word


def strip_suffix(word: str) -> str:
    """Step 1 of the algorithm: plurals, -ed and -ing, final y; words of one or two letters stay."""
    if len(word) <= 2:
        return word
    word = _strip_past(_strip_plural(word, False), False)
    if word.endswith("y") and "v" in shape(word[:-1]):
        word = word[:-1] + "i"
    return word


def shape(word: str) -> str:
    """Consonants and vowels, one letter each: ``shape("toy") == "cvc"``, ``shape("syzygy") == "cvcvcv"``."""
    letters = []
    last = "v"
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and last == "c")
        last = "v" if vowel else "c"
        letters.append(last)
    return "".join(letters)


def _measure(word: str) -> int:
    return shape(word).count("vc")


def _ends_short(word: str, nltk: bool) -> bool:
    """Whether the word ends in consonant, vowel, consonant, as -hop does, but not in w, x or y.

    For NLTK a whole word of a vowel and a consonant does too.
    """
    letters = shape(word)
    return (letters.endswith("cvc") and word[-1] not in "wxy") or (nltk and letters == "vc")


def _strip_plural(word: str, nltk: bool) -> str:
    if nltk and len(word) == 4 and word.endswith("ies"):
        return word[:-1]
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _strip_past(word: str, nltk: bool) -> str:
    """Strips the d of -eed, and -ed and -ing where a vowel comes before. Then the end of what remains is repaired."""
    if nltk and word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    left = word[:-2] if word.endswith("ed") else word[:-3] if word.endswith("ing") else ""
    letters = shape(left)
    if "v" not in letters:
        return word
    if left.endswith(("at", "bl", "iz")):
        return left + "e"
    if left[-2:-1] == left[-1] and letters[-1] == "c" and left[-1] not in "lsz":
        return left[:-1]
    return left + "e" if letters.count("vc") == 1 and _ends_short(left, nltk) else left


def _replace(word: str, rules: Rules, least: int, nltk: bool) -> str:
    """Applies the first rule whose suffix the word has, if what precedes the suffix has a measure above `least`."""
    for suffix, replacement in rules:
        if word.endswith(suffix):
            before = word[: len(word) - len(suffix)]
            # NLTK counts the l of -logi to what precedes it.
            fits = _measure(before + "l" if nltk and suffix == "logi" else before) > least
            if fits and (suffix != "ion" or before[-1] in "st"):
                return before + replacement
            return word
    return word
