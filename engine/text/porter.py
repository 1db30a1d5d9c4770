"""Porter's algorithm with NLTK's extensions, and its first step by itself, in loops that numba compiles.

The stems are the same as those of NLTK's `PorterStemmer` and of `_strip_suffix` in `engine/text/analyzers.py`.
A word is an array of numbers below 256. An ASCII character is its own number. Any other character is a consonant that
equals only itself.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.uint64]

BYTE = np.uint64(8)


def _pack(letters: str) -> int:
    return int.from_bytes(letters.encode(), "big")


def _rules(text: str) -> Numbers:
    """[rules, 5] from ``suffix:replacement`` pairs: suffix, its mask, its length, replacement, its length."""
    pairs = [rule.split(":") for rule in text.split()]
    rows = [(_pack(s), (1 << 8 * len(s)) - 1, len(s), _pack(r), len(r)) for s, r in pairs]
    return np.array(rows, dtype=np.uint64)


def _set(letters: str) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(256), [ord(letter) for letter in letters])


def _words(text: str) -> Numbers:
    """[words, 3] from ``word:stem`` pairs: word, stem, length of the stem."""
    split = [pair.split(":") for pair in text.split()]
    return np.array([(_pack(word), _pack(stem), len(stem)) for word, stem in split], dtype=np.uint64)


IRREGULAR = _words(
    "sky:sky skies:sky dying:die lying:lie tying:tie news:news innings:inning inning:inning outings:outing "
    "outing:outing cannings:canning canning:canning howe:howe proceed:proceed exceed:exceed succeed:succeed"
)
STEP_2 = _rules(
    "ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous ization:ize "
    "ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al iviti:ive biliti:ble fulli:ful logi:log"
)
STEP_3 = _rules("icate:ic ative: alize:al iciti:ic ical:ic ful: ness:")
STEP_4 = _rules("al: ance: ence: er: ic: able: ible: ant: ement: ment: ent: ion: ou: ism: ate: iti: ous: ive: ize:")
LOGI = np.uint64(_pack("logi"))
ION = np.uint64(_pack("ion"))
VOWEL, NOT_CVC, KEPT_DOUBLE = _set("aeiou"), _set("wxy"), _set("lsz")
A, B, D, E, G, L, N, S, T, Y, Z = (np.uint8(ord(letter)) for letter in "abdeglnstyz")
LETTER_I = np.uint8(ord("i"))


@numba.njit(nogil=True, cache=True)
def stem(word, size):
    """Replaces ``word[:size]`` by its stem and returns the length of the stem. A stem is no longer than its word."""
    # The tail is padded with zeros, so a word that begins with one looks shorter than it is.
    if 0 < size <= 8 and word[0] != 0:
        tail = _tail(word, size)
        for row in range(len(IRREGULAR)):
            if IRREGULAR[row, 0] == tail:
                return _write(word, 0, IRREGULAR[row, 1], np.int64(IRREGULAR[row, 2]))
    if size <= 2:
        return size
    size = _strip_plural(word, size, True)
    size = _strip_past(word, size)
    if size > 2 and word[size - 1] == Y and _consonant(word, size - 2):
        word[size - 1] = LETTER_I
    if size > 4 and _ends(word, size, A, L, L, LETTER_I) and _measure(word, size - 4) > 0:
        size -= 2
    size = _replace(word, size, STEP_2, 0)
    size = _replace(word, size, STEP_3, 0)
    size = _replace(word, size, STEP_4, 1)
    if word[size - 1] == E:
        measure = _measure(word, size - 1)
        if measure > 1 or (measure == 1 and not _ends_cvc(word, size - 1, True)):
            size -= 1
    if size > 1 and word[size - 1] == L and word[size - 2] == L and _measure(word, size - 1) > 1:
        size -= 1
    return size


@numba.njit(nogil=True, cache=True)
def strip_suffix(word, size):
    """As `stem`, but only step 1 of the algorithm as published: plurals, -ed and -ing, final y."""
    if size <= 2:
        return size
    size = _strip_plural(word, size, False)
    if size > 2 and word[size - 3] == E and word[size - 2] == E and word[size - 1] == D:
        if _measure(word, size - 3) > 0:
            size -= 1
    else:
        size = _strip_participle(word, size, False)
    if word[size - 1] == Y and _has_vowel(word, size - 1):
        word[size - 1] = LETTER_I
    return size


@numba.njit(nogil=True, cache=True)
def _strip_plural(word, size, extended):
    if word[size - 1] != S:
        return size
    if size > 2 and word[size - 3] == LETTER_I and word[size - 2] == E:
        return size - 1 if extended and size == 4 else size - 2
    if size > 3 and _ends(word, size, S, S, E, S):
        return size - 2
    return size if size > 1 and word[size - 2] == S else size - 1


@numba.njit(nogil=True, cache=True)
def _strip_past(word, size):
    if size > 2 and word[size - 1] == D and word[size - 2] == E:
        if word[size - 3] == LETTER_I:
            return size - 1 if size == 4 else size - 2
        if word[size - 3] == E:
            return size - 1 if _measure(word, size - 3) > 0 else size
    return _strip_participle(word, size, True)


@numba.njit(nogil=True, cache=True)
def _strip_participle(word, size, extended):
    """Strips -ed or -ing if a vowel comes before it, and repairs the end of the remaining word."""
    left = 0
    if size > 2 and word[size - 2] == E and word[size - 1] == D:
        left = size - 2
    elif size > 3 and word[size - 3] == LETTER_I and word[size - 2] == N and word[size - 1] == G:
        left = size - 3
    if not _has_vowel(word, left):
        return size
    last = word[left - 1]
    before = word[left - 2] if left > 1 else np.uint8(0)
    if (before == A and last == T) or (before == B and last == L) or (before == LETTER_I and last == Z):
        word[left] = E
        return left + 1
    if last == before and _consonant(word, left - 1):
        if not KEPT_DOUBLE[last]:
            return left - 1
        if extended:
            return left
    if _measure(word, left) == 1 and _ends_cvc(word, left, extended):
        word[left] = E
        return left + 1
    return left


@numba.njit(nogil=True, cache=True)
def _replace(word, size, rules, measure):
    """Applies the first rule whose suffix the word has, if what precedes it has a larger measure than `measure`."""
    tail = _tail(word, size)
    for row in range(len(rules)):
        if tail & rules[row, 1] != rules[row, 0]:
            continue
        start = size - np.int64(rules[row, 2])
        # The l of -logi belongs to the stem here.
        if _measure(word, start + 1 if rules[row, 0] == LOGI else start) <= measure:
            return size
        if rules[row, 0] == ION and word[start - 1] != S and word[start - 1] != T:
            return size
        return _write(word, start, rules[row, 3], np.int64(rules[row, 4]))
    return size


@numba.njit(nogil=True, cache=True)
def _write(word, start, letters, count):
    for position in range(count):
        word[start + position] = np.uint8((letters >> (BYTE * np.uint64(count - 1 - position))) & np.uint64(255))
    return start + count


@numba.njit(nogil=True, cache=True)
def _tail(word, size):
    """The last eight letters as one number, the last letter in the lowest byte."""
    tail = np.uint64(0)
    for position in range(max(size - 8, 0), size):
        tail = (tail << BYTE) | np.uint64(word[position])
    return tail


@numba.njit(nogil=True, cache=True)
def _ends(word, size, first, second, third, fourth):
    return word[size - 4] == first and word[size - 3] == second and word[size - 2] == third and word[size - 1] == fourth


@numba.njit(nogil=True, cache=True)
def _consonant(word, position):
    flips = 0
    while position > 0 and word[position] == Y:
        position -= 1
        flips += 1
    return VOWEL[word[position]] == (flips % 2 == 1)


@numba.njit(nogil=True, cache=True)
def _measure(word, size):
    """Porter's measure: how often a consonant follows a vowel."""
    count = 0
    consonant = True
    for position in range(size):
        before = consonant
        consonant = not (VOWEL[word[position]] or (word[position] == Y and position > 0 and before))
        count += consonant and not before
    return count


@numba.njit(nogil=True, cache=True)
def _has_vowel(word, size):
    position = 0
    while position < size and not VOWEL[word[position]] and (position == 0 or word[position] != Y):
        position += 1
    return position < size


@numba.njit(nogil=True, cache=True)
def _ends_cvc(word, size, extended):
    if extended and size == 2:
        return not _consonant(word, 0) and _consonant(word, 1)
    return (
        size >= 3
        and _consonant(word, size - 3)
        and not _consonant(word, size - 2)
        and _consonant(word, size - 1)
        and not NOT_CVC[word[size - 1]]
    )


def stem_word(word: str) -> str:
    """As NLTK's ``PorterStemmer().stem``, for any string."""
    word = word.lower()
    if word.isascii():
        letters = np.frombuffer(bytearray(word, "ascii"), np.uint8)
        return letters[: stem(letters, len(letters))].tobytes().decode()
    # Only neighbours are compared, and letters beyond ASCII keep their positions, so two numbers are enough for them.
    numbers = bytearray()
    other, before = 128, ""
    for letter in word:
        if letter > "\x7f" and letter != before:
            other ^= 1
        numbers.append(other if letter > "\x7f" else ord(letter))
        before = letter
    letters = np.frombuffer(numbers, np.uint8)
    size = stem(letters, len(letters))
    return "".join(
        letter if number > 127 else chr(number) for letter, number in zip(word, numbers[:size], strict=False)
    )
