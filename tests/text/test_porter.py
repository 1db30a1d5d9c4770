"""Both of our stemmers, compiled and in plain Python, beside those of NLTK: SPEC A025, A026."""

import itertools
from collections.abc import Callable, Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nltk.stem.porter import PorterStemmer

from fanrank import native
from fanrank.engine.text import analyzers, porter

THEIRS: dict[str, Callable[[str], str]] = {
    "nltk": PorterStemmer("NLTK_EXTENSIONS").stem,
    "martin": PorterStemmer("MARTIN_EXTENSIONS").stem,
}
PAPER = PorterStemmer("ORIGINAL_ALGORITHM")
BEGINNINGS = "relat condition hope die fli sky y innings tt fizz abil geo ph l sens fe agre hiss enjo"
ENDS = """
    s es ed ing ly ational tional enci anci izer bli alli entli eli ousli ization ation ator alism iveness fulness
    ousness aliti iviti biliti fulli logi icate ative alize iciti ical ful ness al ance ence er ic able ible ant ement
    ment ent ion ou ism ate iti ous ive ize y ies ied sses eed ll e
"""


def hold_equal(words: Iterable[str]) -> None:
    words = list(words)
    for kind, stem in THEIRS.items():
        wanted = [stem(word) for word in words]
        assert [porter.stem_word(word, nltk=kind == "nltk") for word in words] == wanted
        if native.compiled is not None:
            # Its words are in lower case, which may be longer than the words themselves.
            pairs = [(word, right) for word, right in zip(words, wanted, strict=True) if len(word.lower()) == len(word)]
            assert [native.compiled.stem(word.lower(), kind) for word, _ in pairs] == [right for _, right in pairs]
    lowered = [word.lower() for word in words]
    steps = [first_step(word) for word in lowered]
    assert [porter.strip_suffix(word) for word in lowered] == steps
    if native.compiled is not None:
        assert [native.compiled.stem(word, "step_one") for word in lowered] == steps
        assert [native.compiled.stem(word, "none") for word in lowered] == lowered


def first_step(word: str) -> str:
    """Step 1 as Porter's paper states it, in the methods of NLTK's own class for the paper's algorithm."""
    return word if len(word) <= 2 else PAPER._step1c(PAPER._step1b(PAPER._step1a(word)))


def test_every_rule_after_every_beginning() -> None:
    ends = ["", *ENDS.split()]
    hold_equal(a + b + c for a in BEGINNINGS.split() for b in ends for c in ends[::3])


def test_irregular_words_and_their_neighbours() -> None:
    pool = "sky skies dying lying tying news innings inning outings outing cannings canning howe proceed exceed succeed"
    words = [before + word + after for word in pool.split() for before in ("", "a") for after in ("", "s")]
    assert {THEIRS["nltk"](word) for word in words} >= {"sky", "die", "lie", "tie", "news", "inning", "howe", "succeed"}
    hold_equal(words)


def test_all_short_words_of_a_small_alphabet() -> None:
    hold_equal("".join(letters) for size in range(4) for letters in itertools.product("aeysdinglt1", repeat=size))


@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789", max_size=30) | st.text(max_size=12))
@example("y" * 255)
@example("ββed")
@example("xβγed")
@example("βγed")
@example("éed")
@example("Straßing")
@example("aİ")
@example("\x00sky")
@example("\x00\x00howe")
@example("\x00exceed")
def test_any_word(word: str) -> None:
    hold_equal([word, word + "ing", word + "ies"])


def test_which_stemmer_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Loops:
        @staticmethod
        def stem(word: str, kind: str) -> str:
            asked.append((word, kind))
            return "compiled"

    monkeypatch.setattr(native, "compiled", Loops)
    monkeypatch.delenv("FANRANK_BACKEND", raising=False)
    normalizers = [analyzers.get_analyzer(name).normalize for name in ("full", "nltk", "lucene")]
    assert [normalize("running") for normalize in normalizers] == ["compiled"] * 3
    assert asked == [("running", "step_one"), ("running", "nltk"), ("running", "martin")]
    monkeypatch.setenv("FANRANK_BACKEND", "numpy")
    assert [normalize("ponies") for normalize in normalizers] == ["poni"] * 3
    monkeypatch.setattr(native, "compiled", None)
    monkeypatch.delenv("FANRANK_BACKEND")
    assert [normalize("ties") for normalize in normalizers] == ["ti", "tie", "ti"]
    assert len(asked) == 3


def test_the_compiled_stemmer_refuses_what_it_does_not_know() -> None:
    if native.compiled is None:
        pytest.skip(native.reason)
    with pytest.raises(ValueError, match="no way to stem is called snowball"):
        native.compiled.stem("running", "snowball")
    for wrong in ((b"running", "nltk"), ("running", 3)):
        with pytest.raises(TypeError):
            native.compiled.stem(*wrong)
    with pytest.raises(TypeError, match="stem takes 2 arguments, not 1"):
        native.compiled.stem("running")
