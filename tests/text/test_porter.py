"""Compiled stemmers beside those of NLTK and of `text.py`: SPEC A025, A026."""

from __future__ import annotations

import itertools
import random
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fanrank.engine.text import analyzers as text

porter = pytest.importorskip("fanrank.engine.text.porter", reason="needs numba")

NLTK = text._porter("NLTK_EXTENSIONS")

BEGINNINGS = "relat condition hope die fli sky y innings tt fizz abil geo ph l sens fe agre hiss enjo"
ENDS = """
    s es ed ing ly ational tional enci anci izer bli alli entli eli ousli ization ation ator alism iveness fulness
    ousness aliti iviti biliti fulli logi icate ative alize iciti ical ful ness al ance ence er ic able ible ant ement
    ment ent ion ou ism ate iti ous ive ize y ies ied sses eed ll e
"""


def strip_suffix(word: str) -> str:
    letters = np.frombuffer(bytearray(word, "ascii"), np.uint8)
    return letters[: porter.strip_suffix(letters, len(letters))].tobytes().decode()


def hold_equal(words: list[str]) -> None:
    assert [porter.stem_word(word) for word in words] == [NLTK(word) for word in words]
    plain = [word for word in words if word.isascii()]
    assert [strip_suffix(word) for word in plain] == [text._strip_suffix(word) for word in plain]


def test_every_rule_after_every_beginning() -> None:
    ends = ["", *ENDS.split()]
    hold_equal([a + b + c for a in BEGINNINGS.split() for b in ends for c in ends])


def test_irregular_words_and_their_neighbours() -> None:
    pool = "sky skies dying lying tying news innings inning outings outing cannings canning howe proceed exceed succeed"
    words = [before + word + after for word in pool.split() for before in ("", "a") for after in ("", "s")]
    assert {NLTK(word) for word in words} >= {"sky", "die", "lie", "tie", "news", "inning", "howe", "succeed"}
    hold_equal(words)


def test_all_short_words_of_a_small_alphabet() -> None:
    hold_equal(["".join(letters) for size in range(5) for letters in itertools.product("aeysdinglt1", repeat=size)])


def test_random_words() -> None:
    generator = random.Random(7)
    hold_equal(["".join(generator.choices("abdegilnstyz1y", k=generator.randint(1, 14))) for _ in range(20_000)])


@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789", max_size=30) | st.text(max_size=12))
@example("y" * 255)
@example("ββed")
@example("xβγed")
@example("βγed")
@example("éed")
@example("Straßing")
@example("\x00sky")
@example("\x00\x00howe")
@example("\x00exceed")
def test_any_word(word: str) -> None:
    hold_equal([word, word + "ing", word + "ies"])


def test_the_compiled_stemmer_serves_once_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert text._nltk_stem() is porter.stem_word
    monkeypatch.setitem(sys.modules, porter.__name__, ModuleType("half imported"))
    assert text._nltk_stem() is NLTK
    monkeypatch.delitem(sys.modules, porter.__name__)
    assert text._nltk_stem() is NLTK
