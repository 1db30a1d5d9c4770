"""Text to terms: the analyzers (SPEC A025 to A028, B015, X18, C007, R10, R40).

An analyzer is two functions and a name. `tokenize` cuts a text into raw lower-case tokens at C speed; `normalize`
maps one raw token to its term, or to None where it is dropped, and looks at nothing but the token. So a term can be
remembered per raw token, and analysing a text is one dictionary look-up a token.

    name       tokens                                                   stop words     stem
    minimal    runs of letters and digits                               none           none
    stopword   the same                                                 Lucene's 33    none
    full       the same                                                 Lucene's 33    Porter, step 1 only
    nltk       the same                                                 NLTK's 179     Porter, NLTK's extensions
    lucene     UAX #29 words, ideographs and kana one by one, emoji     Lucene's 33    Porter, after possessive 's
    opsem      [a-z0-9][a-z0-9-_']{1,30} of at least 3 characters       50 (R10)       none

Digits are kept everywhere: E-47821 gives ``e`` and ``47821`` (the first four, `lucene`) or ``e-47821`` (`opsem`). Two
switches change that, and are part of the name that an index stores: ``nltk-numbers`` (`drop_numeric`) drops tokens
that hold digits and no letter; ``nltk+compounds`` (`compounds`, for the first four) adds, after the parts of a compound
that hyphens, dots or short parentheses hold together, the whole of it with those taken out: E-47821 also gives
``e47821``, 401(k) ``401k``, BRK.B ``brkb``.

The first four keep every script: a word is a run of letters, marks and digits of any, composed (NFC), lower case, with
İ folded to i and ς to σ, so that the case of the text does not matter. They do not segment Chinese, Japanese or Thai:
`lucene` does. Where they cut, order is kept, except that compounds come last. No text makes an analyzer fail; no term
is longer than 255 characters, and none holds a lone surrogate.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ParameterError
from .stopwords import LUCENE_ENGLISH, NLTK_ENGLISH, OPSEM

Tokenizer = Callable[[str], "list[str]"]
Normalizer = Callable[[str], "str | None"]

ANALYZERS = ("minimal", "stopword", "full", "nltk", "lucene", "opsem")
"""Names that `get_analyzer` takes."""

DEFAULT_ANALYZER = "nltk"

MAX_LENGTH = 255
"""Characters of a token that count: `lucene` cuts a longer one into pieces, the others forget the rest."""

CACHE_LIMIT = 1 << 18
"""Raw tokens an analyzer remembers (some 40 MB); at the next new one it forgets them all and starts afresh."""

_BLOCK = 1 << 13  # ids gathered in a list, which is faster to extend than an array, while it fits the cache

DROPPED = -1
"""The id of a raw token that has no term, in `Analyzer.encode`."""


class Analyzer:
    """Turns text into terms; see the module's docstring. Get one from `get_analyzer`.

    Safe to share between threads. Pickles as its name, so one made by hand unpickles only if that name is known.
    """

    __slots__ = ("_terms", "name", "normalize", "tokenize")

    name: str
    tokenize: Tokenizer
    normalize: Normalizer

    def __init__(self, name: str, tokenize: Tokenizer, normalize: Normalizer) -> None:
        self.name = name
        self.tokenize = tokenize
        self.normalize = normalize
        self._terms = _TermCache(normalize)

    def __call__(self, text: str) -> list[str]:
        """The terms of a text in order, as often as they occur: `tokenize`, `normalize`, without the Nones."""
        return list(filter(None, map(self._terms.__getitem__, self.tokenize(text))))

    def encode(
        self, texts: Iterable[str], ids: Mapping[str, int]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Term ids of many texts: ``(ids [n], offsets [texts + 1])``, text i owning ``ids[offsets[i]:offsets[i + 1]]``.

        `ids` maps a raw token to the id of its term, or to `DROPPED`; a dict whose ``__missing__`` calls `normalize`
        does it in one look-up a token. Takes 4 bytes a token besides the texts; `texts` may be a stream.
        """
        tokenize, look_up = self.tokenize, ids.__getitem__
        encoded = array("i")
        ends = [0]
        flat: list[int] = []
        for text in texts:
            flat += map(look_up, tokenize(text))
            ends.append(len(encoded) + len(flat))
            if len(flat) >= _BLOCK:
                encoded.fromlist(flat)
                flat.clear()
        encoded.fromlist(flat)
        codes = np.frombuffer(encoded, np.int32) if encoded else np.empty(0, np.int32)
        kept = codes != DROPPED
        position = np.zeros(len(codes) + 1, np.int64)
        np.cumsum(kept, out=position[1:])
        return codes[kept], position[ends]

    def forget(self) -> None:
        """Remember no token; the next calls take longer."""
        self._terms.clear()

    def __reduce__(self) -> tuple[Callable[[str], Analyzer], tuple[str]]:
        return get_analyzer, (self.name,)

    def __repr__(self) -> str:
        return f"Analyzer({self.name!r})"


class _TermCache(dict[str, str]):
    """Raw token -> term, the empty string standing for None so that `filter` drops it without a Python call."""

    __slots__ = ("normalize",)

    def __init__(self, normalize: Normalizer) -> None:
        self.normalize = normalize

    def __missing__(self, token: str) -> str:
        term = self.normalize(token) or ""
        if len(token) <= MAX_LENGTH:  # a 10 MB token is not worth its memory
            if len(self) >= CACHE_LIMIT:
                self.clear()
            self[token] = term
        return term


def get_analyzer(analyzer: str | Analyzer, *, drop_numeric: bool = False, compounds: bool = False) -> Analyzer:
    """The analyzer of this name, always the same object; an `Analyzer` is returned as it is.

    The switches may also stand in the name, as ``+compounds`` and ``-numbers``. Raises `ParameterError`.
    """
    if isinstance(analyzer, Analyzer):
        if not (drop_numeric or compounds):
            return analyzer
        analyzer = analyzer.name
    parts = re.fullmatch(r"([a-z]+)((?:\+compounds|-numbers)*)", analyzer) if isinstance(analyzer, str) else None
    if parts is None or parts[1] not in ANALYZERS:
        raise ParameterError(
            f"no analyzer {analyzer!r}; there are: {', '.join(ANALYZERS)}, each with an optional '-numbers' to drop "
            f"numbers, the first four with an optional '+compounds' to add joined compounds"
        )
    compounds = compounds or "+compounds" in parts[2]
    if compounds and parts[1] in ("lucene", "opsem"):
        raise ParameterError(f"analyzer {parts[1]!r} has its own rule for compounds and takes no '+compounds'")
    return _build(parts[1], compounds, drop_numeric or "-numbers" in parts[2])


class WordRecipe(NamedTuple):
    """An analyzer that takes runs of letters and digits one by one: what happens to each."""

    base: str
    """The name without switches, which says how words are stemmed."""
    stop_words: frozenset[str]
    drop_numeric: bool


def word_recipe(analyzer: Analyzer) -> WordRecipe | None:
    """The recipe of an analyzer of this module, or None: made by hand, with compounds, or cutting by other rules."""
    base, *switches = re.split(r"(?=[+-])", analyzer.name)
    drop_numeric = "-numbers" in switches
    if base not in _STOP_WORDS or _build(base, False, drop_numeric) is not analyzer:
        return None
    return WordRecipe(base, _STOP_WORDS[base], drop_numeric)


@cache
def _build(base: str, compounds: bool, drop_numeric: bool) -> Analyzer:
    tokenize, normalize = _RECIPES[base]
    name = base
    if compounds:
        name += "+compounds"
        tokenize, normalize = _words_and_compounds, _joined(normalize)
    if drop_numeric:
        name += "-numbers"
        normalize = _without_numbers(normalize)
    return Analyzer(name, tokenize, normalize)


# Letters and digits of ASCII in lower case, spaces for the rest; bytes of other characters stay for `_other_words`.
_SPACED = bytes(ord(chr(byte).lower()) if chr(byte).isalnum() else 32 for byte in range(128)) + bytes(range(128, 256))


def _words(text: str) -> list[str]:
    # bytes.translate and str.split are three times as fast as a regular expression: 50 against 150 ns a token.
    tokens = text.encode("utf-8", "replace").translate(_SPACED).decode().split()
    if text.isascii():
        return tokens
    words: list[str] = []
    for token in tokens:
        if token.isascii():
            words.append(token)
        else:
            words += _other_words()(_fold(token))
    return words


@cache
def _other_words() -> Tokenizer:
    import regex  # type: ignore[import-untyped, unused-ignore]  # here, as ASCII texts never need its 20 ms

    find: Tokenizer = regex.compile(r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*+").findall
    return find


def _fold(text: str) -> str:
    """Lower case, one character to one, whatever its neighbours: str.lower makes two of İ and looks around Σ."""
    return text.replace("İ", "i").lower().replace("ς", "σ")


_HYPHENS = "-\u2010\u2011"
_COMPOUNDS = re.compile(
    rf"(?<![^\W_])[^\W_]+(?:(?:[{_HYPHENS}]|(?<![0-9])\.|\.(?![0-9]))[^\W_]+|\([^\W_]{{1,2}}\))+"
).findall
_JOINTS = dict.fromkeys(map(ord, _HYPHENS + ".()"))


def _words_and_compounds(text: str) -> list[str]:
    return _words(text) + _COMPOUNDS(_fold(text))


def _joined(normalize: Normalizer) -> Normalizer:
    return lambda token: normalize(token.translate(_JOINTS))


def _without_numbers(normalize: Normalizer) -> Normalizer:
    def normalize_word(token: str) -> str | None:
        numeric = any(map(str.isnumeric, token)) and not any(map(str.isalpha, token))
        return None if numeric else normalize(token)

    return normalize_word


def _word(token: str) -> str:
    token = token[:MAX_LENGTH]
    return token if token.isascii() else unicodedata.normalize("NFC", token)


def _minimal_term(token: str) -> str | None:
    return _word(token) or None


def _stopword_term(token: str) -> str | None:
    word = _word(token)
    return None if word in LUCENE_ENGLISH else word or None


def _full_term(token: str) -> str | None:
    word = _word(token)
    return None if word in LUCENE_ENGLISH else _strip_suffix(word) or None


def _nltk_term(token: str) -> str | None:
    word = _word(token)
    return None if word in NLTK_ENGLISH else _nltk_stem()(word) or None


_COMPILED_STEMMER = f"{__package__}.porter"


def _nltk_stem() -> Callable[[str], str]:
    """NLTK's stemmer: the same in compiled loops, ten times as fast, once something has loaded them."""
    # Another thread may be importing them: `stem_word` is the last thing that they define.
    compiled: Callable[[str], str] | None = getattr(sys.modules.get(_COMPILED_STEMMER), "stem_word", None)
    return compiled or _porter("NLTK_EXTENSIONS")


@cache
def _porter(mode: str) -> Callable[[str], str]:
    stem: Callable[[str], str] = _porter_stemmer()(mode).stem
    return stem


def _porter_stemmer() -> Any:
    """NLTK's class `PorterStemmer`, read out of its file: importing it imports all of NLTK, and scipy, for 1.5 s."""
    if "nltk" not in sys.modules:
        try:
            spec = importlib.util.find_spec("nltk")
            folder = Path(((spec and spec.submodule_search_locations) or [""])[0])
            tree = ast.parse((folder / "stem" / "porter.py").read_bytes())
            tree.body = [node for node in tree.body if getattr(node, "name", None) == "PorterStemmer"]
            names: dict[str, Any] = {"StemmerI": object}
            exec(compile(tree, str(folder / "stem" / "porter.py"), "exec"), names)
            stemmer = names["PorterStemmer"]
            stemmer().stem("running")
            return stemmer
        except Exception:  # another layout than 3.9's and 3.10's
            pass
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer


def _strip_suffix(word: str) -> str:
    """Step 1 of Porter's algorithm (1980): plurals, -ed and -ing, final y; words of one or two letters stay."""
    if len(word) <= 2:
        return word
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if word.endswith("eed"):
        if "vc" in _shape(word[:-3]):
            word = word[:-1]
    else:
        stem = word[:-2] if word.endswith("ed") else word[:-3] if word.endswith("ing") else ""
        shape = _shape(stem)
        if "v" in shape:
            word = stem
            if word.endswith(("at", "bl", "iz")):
                word += "e"
            elif word[-2:-1] == word[-1] and shape[-1] == "c" and word[-1] not in "lsz":
                word = word[:-1]
            elif shape.count("vc") == 1 and shape.endswith("cvc") and word[-1] not in "wxy":
                word += "e"
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    return word


def _shape(word: str) -> str:
    """Porter's consonants and vowels, a letter each: ``_shape("toy") == "cvc"``, ``_shape("syzygy") == "cvcvcv"``."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape[-1:] == "c")
        shape += "v" if vowel else "c"
    return shape


# The word boundary rules of UAX #29 for ASCII, as a pattern: WB6 and WB7 (mid letters), WB11 and WB12 (mid numbers).
_ASCII_SEGMENTS = re.compile(r"[a-z0-9_]+(?:(?:(?<=[a-z])[:.'](?=[a-z])|(?<=[0-9])[,;.'](?=[0-9]))[a-z0-9_]+)*").findall


@cache
def _segments() -> Tokenizer:
    """The same rules for all of Unicode, each letter with what extends it (WB4), and what Lucene adds to them.

    Every repetition is possessive, so the time is linear in the text.
    """
    import regex  # type: ignore[import-untyped, unused-ignore]

    def one(*properties: str, also: str = "") -> str:
        return "[" + "".join(rf"\p{{{name}}}" for name in properties) + also + "]" + extended

    extenders = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*"
    extended = extenders + "+"
    hebrew, katakana, connector = one("WB=Hebrew_Letter"), one("WB=Katakana"), one("WB=ExtendNumLet")
    letter, mid_letter = one("WB=ALetter", "WB=Hebrew_Letter"), one("WB=MidLetter", "WB=MidNumLet", also="'")
    digit, mid_number = one("WB=Numeric", also="０-９"), one("WB=MidNum", "WB=MidNumLet", also="'")
    inner = (
        rf"{hebrew}\"{extended}(?={hebrew})",
        rf"{letter}(?:{mid_letter}(?={letter}))?+",
        rf"{digit}(?:{mid_number}(?={digit}))?+",
    )
    core = rf"(?:(?:{'|'.join(inner)})++|(?:{katakana})++)"
    links = rf"(?:{connector})++{core}?+"
    final_quote = rf"(?:(?<=\p{{WB=Hebrew_Letter}}{extenders})'{extended})?+"
    flag, picture = one("WB=Regional_Indicator"), one("Extended_Pictographic")
    segments = (
        rf"(?:{links}|{core})(?:{links})*+{final_quote}",
        one("Script=Han", "Script=Hiragana"),
        rf"(?:{one('LB=Complex_Context')})++",
        flag + flag,
        rf"(?:\p{{Emoji_Presentation}}|\p{{Extended_Pictographic}}(?=\ufe0f)){extended}(?:(?<=\u200d){picture})*+",
    )
    find: Tokenizer = regex.compile("|".join(segments)).findall
    return find


def _lucene_tokens(text: str) -> list[str]:
    tokens = _find_segments(_fold(text))
    if len(text) <= MAX_LENGTH or max(map(len, tokens), default=0) <= MAX_LENGTH:
        return tokens
    cut: list[str] = []
    for token in tokens:
        for begin in range(0, len(token), MAX_LENGTH):
            cut += _find_segments(token[begin : begin + MAX_LENGTH])
    return cut


def _find_segments(text: str) -> list[str]:
    if text.isascii():
        return _ASCII_SEGMENTS(text)
    # No word spans a space, so only the stretches that need all of Unicode pay for it: ten times the time.
    tokens: list[str] = []
    for is_ascii, pieces in groupby(text.split(" "), str.isascii):
        tokens += (_ASCII_SEGMENTS if is_ascii else _segments())(" ".join(pieces))
    return tokens


_CONNECTORS = "_\u202f\u203f\u2040\u2054\ufe33\ufe34\ufe4d\ufe4e\ufe4f\uff3f"


def _lucene_term(token: str) -> str | None:
    if token[0] in _CONNECTORS and not any(map(str.isalnum, token)):
        return None
    if token.endswith(("'s", "’s", "＇s")):
        token = token[:-2]
    # Lucene's PorterStemFilter departs from the paper as Porter's own code does: -bli, -logi, two letters stay.
    return None if token in LUCENE_ENGLISH else _porter("MARTIN_EXTENSIONS")(token) or None


_OPSEM_TOKENS = re.compile(r"[a-z0-9][a-z0-9\-_']{1,30}").findall


def _opsem_tokens(text: str) -> list[str]:
    return _OPSEM_TOKENS(text.lower())


def _opsem_term(token: str) -> str | None:
    return None if len(token) < 3 or token in OPSEM else token


_RECIPES: dict[str, tuple[Tokenizer, Normalizer]] = {
    "minimal": (_words, _minimal_term),
    "stopword": (_words, _stopword_term),
    "full": (_words, _full_term),
    "nltk": (_words, _nltk_term),
    "lucene": (_lucene_tokens, _lucene_term),
    "opsem": (_opsem_tokens, _opsem_term),
}
_STOP_WORDS: dict[str, frozenset[str]] = {
    "minimal": frozenset(),
    "stopword": LUCENE_ENGLISH,
    "full": LUCENE_ENGLISH,
    "nltk": NLTK_ENGLISH,
}
