"""The analyzers, which turn text into terms (SPEC A025 to A028, B015, X18, C007, R10, R40).

An analyzer is two functions and a name. `tokenize` cuts a text into raw lower-case tokens at C speed. `normalize` maps
a raw token to its term, or to None if the token is dropped. The term depends on the token alone, so the analyzer
remembers the term of each raw token. Analysing a text then takes one dictionary look-up for each token.

    name       tokens                                                   stop words     stem
    minimal    runs of letters and digits                               none           none
    stopword   the same                                                 Lucene's 33    none
    full       the same                                                 Lucene's 33    Porter, step 1 only
    nltk       the same                                                 NLTK's 179     Porter, NLTK's extensions
    lucene     UAX #29 words, ideographs and kana one by one, emoji     Lucene's 33    Porter, after possessive 's
    opsem      [a-z0-9][a-z0-9-_']{1,30} of at least 3 characters       50 (R10)       none
    agent      words; names whole and in parts; pairs of ideographs     NLTK's 179     as nltk, wholes not
    snowball:  of a language: the same                                  `SNOWBALL`     Snowball's, wholes not

Every analyzer keeps digits: E-47821 gives ``e`` and ``47821`` (the first four and `lucene`), ``e-47821`` (`opsem`), or
both (`agent`, see `agent.py`).
`agent` and `snowball:` remove accents, but only when they have looked for stop words: "thé" is none.
Two switches change the tokens. They are part of the name that an index stores:

- ``nltk-numbers`` (`drop_numeric`) drops tokens that hold digits and no letter.
- ``nltk+compounds`` (`compounds`, for the first four only) adds compounds: words that hyphens, dots or short
  parentheses join. The parts of a compound stay tokens, and the whole without the joining characters is added: E-47821
  also gives ``e47821``, 401(k) ``401k``, BRK.B ``brkb``.

The first four keep every script: a word is a run of letters, marks and digits of any script. Words are composed (NFC)
and in lower case. İ becomes i and ς becomes σ, so the case of the text does not matter. The first four do not segment
Chinese, Japanese or Thai; `agent` does, and `lucene` all but Thai. Tokens are in the order of the text, except that
compounds come last. No text makes an analyzer fail. No term is longer than 255 characters, and no term holds a lone
surrogate.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ParameterError, choices
from ..settings import compiled_loops
from . import porter
from .agent import JOINTS, agent_tokens
from .folding import without_accents
from .stopwords import LUCENE_ENGLISH, NLTK_ENGLISH, OPSEM

Tokenizer = Callable[[str], "list[str]"]
Normalizer = Callable[[str], "str | None"]

ANALYZERS = ("minimal", "stopword", "full", "nltk", "lucene", "opsem", "agent")
"""Names that `get_analyzer` takes, besides ``snowball:LANGUAGE``."""

_LANGUAGES = """
    arabic armenian basque catalan czech danish dutch english esperanto estonian finnish french german greek hindi
    hungarian indonesian irish italian lithuanian nepali norwegian persian polish portuguese romanian russian serbian
    sesotho spanish swedish tamil turkish yiddish
"""
SNOWBALL = tuple(f"snowball:{language}" for language in _LANGUAGES.split())
"""Names of analyzers with the stemmers of PyStemmer. English has NLTK's stop words, the others have none."""

DEFAULT_ANALYZER = "agent"
"""The analyzer of a new engine. A directory and a saved index keep the one that they were made with."""

MAX_LENGTH = 255
"""Characters of a token that count. `lucene` cuts a longer token into pieces, the other analyzers truncate it."""

CACHE_LIMIT = 1 << 18
"""Raw tokens that an analyzer remembers (some 40 MB). At the next new token it forgets all of them."""

_NAME = re.compile(r"((?:snowball:)?[a-z]+)((?:\+compounds|-numbers)*)").fullmatch
_AGENT_EDITION = "2"
"""Of the rules of `agent`. Index files of another edition are built again from their records."""
_REGISTERED: dict[str, Analyzer] = {}

_BLOCK = 1 << 13  # ids collected in a list, which is faster to extend than an array while it fits into the cache

DROPPED = -1
"""The id of a raw token that has no term, in `Analyzer.encode`."""


class Analyzer:
    """Turns text into terms. `get_analyzer` returns one. `engine/text/analyzers.py` describes them.

    Safe to share between threads. An analyzer is pickled as its name. One that `get_analyzer` does not know by name
    cannot be unpickled; `register_analyzer` makes it known.

    Raises `ParameterError` for a name that is no string and for functions that cannot be called, and when texts are
    analysed for a token or a term that is no string.
    """

    __slots__ = ("_terms", "edition", "name", "normalize", "tokenize")

    name: str
    edition: str
    """Which rules the terms were made by, where an analyzer of this name had others; else empty."""
    tokenize: Tokenizer
    normalize: Normalizer

    def __init__(self, name: str, tokenize: Tokenizer, normalize: Normalizer) -> None:
        if not isinstance(name, str) or not callable(tokenize) or not callable(normalize):
            raise ParameterError(f"an analyzer is a name and two functions, not {name!r}, {tokenize!r}, {normalize!r}")
        self.name, self.edition = name, ""
        self.tokenize = tokenize
        self.normalize = normalize
        self._terms = _TermCache(self)

    def term(self, token: str) -> str | None:
        """What `normalize` makes of a token that nothing remembers."""
        if not isinstance(token, str):
            raise ParameterError(f"analyzer {self.name!r}: tokenize must give strings, not {token!r}")
        term = self.normalize(token)
        if term is not None and not isinstance(term, str):
            raise ParameterError(
                f"analyzer {self.name!r}: the term of {token!r} must be a string or None, not {term!r}"
            )
        return term

    def __call__(self, text: str) -> list[str]:
        """The terms of a text in order, with repeats: those of `tokenize` and `normalize`, without None.

        Raises `ParameterError` for what is not text.
        """
        if not isinstance(text, str):
            raise ParameterError(f"an analyzer reads text, not {text!r}")
        return list(filter(None, map(self._terms.__getitem__, self.tokenize(text))))

    def encode(
        self, texts: Iterable[str], ids: Mapping[str, int]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Term ids of many texts: ``(ids [n], offsets [texts + 1])``. Text i has ``ids[offsets[i]:offsets[i + 1]]``.

        `ids` maps a raw token to the id of its term, or to `DROPPED`. A dict whose ``__missing__`` calls `normalize`
        needs one look-up for each token. `texts` may be a stream. Memory: 4 bytes for each token, besides the texts.
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
        has_term = codes != DROPPED
        position = np.zeros(len(codes) + 1, np.int64)
        np.cumsum(has_term, out=position[1:])
        return codes[has_term], position[ends]

    @property
    def stored(self) -> str:
        """How index files name the analyzer: name and edition."""
        return f"{self.name} {self.edition}".rstrip()

    def check_stored(self, stored: str) -> None:
        """Raise `ParameterError` where index files name another analyzer, or another edition of this one."""
        if stored != self.stored:
            raise ParameterError(
                f"the index holds terms of the analyzer {stored!r}, and {self.stored!r} makes others: build it again "
                f"from its records"
            )

    def forget(self) -> None:
        """Forgets all remembered tokens. The next calls take longer."""
        self._terms.clear()

    def __reduce__(self) -> tuple[Callable[[str], Analyzer], tuple[str]]:
        return get_analyzer, (self.name,)

    def __repr__(self) -> str:
        return f"Analyzer({self.name!r})"


class _TermCache(dict[str, str]):
    """Raw token -> term. The empty string stands for None, so that `filter` drops it without a Python call."""

    __slots__ = ("_analyzer",)

    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer

    def __missing__(self, token: str) -> str:
        term = self._analyzer.term(token) or ""
        if len(token) <= MAX_LENGTH:  # a 10 MB token is not worth its memory
            if len(self) >= CACHE_LIMIT:
                self.clear()
            self[token] = term
        return term


def get_analyzer(analyzer: str | Analyzer, *, drop_numeric: bool = False, compounds: bool = False) -> Analyzer:
    """The analyzer of this name, always the same object. An `Analyzer` is returned as it is.

    The name may also hold the switches, as ``+compounds`` and ``-numbers``, or be one that `register_analyzer` took.
    Raises `ParameterError`, and `MissingExtraError` for a name of `SNOWBALL` where PyStemmer is not installed.
    """
    if isinstance(analyzer, Analyzer):
        if not (drop_numeric or compounds):
            return analyzer
        analyzer = analyzer.name
    parts = _NAME(analyzer) if isinstance(analyzer, str) else None
    if parts is None or parts[1] not in (*ANALYZERS, *SNOWBALL):
        if isinstance(analyzer, str) and analyzer in _REGISTERED and not (drop_numeric or compounds):
            return _REGISTERED[analyzer]
        kind, _, stemmed = str(analyzer).partition(":")
        if kind == "snowball":
            languages = [name.partition(":")[2] for name in SNOWBALL]
            raise ParameterError(
                f"no analyzer {analyzer!r}: snowball:LANGUAGE stems a language by its English "
                f"name{choices(re.split('[+-]', stemmed)[0], languages)}"
            )
        language = f"snowball:{analyzer}"
        names = (*ANALYZERS, *_REGISTERED)
        raise ParameterError(
            f"no analyzer {analyzer!r}{choices(language if language in SNOWBALL else analyzer, names, SNOWBALL)}. "
            f"snowball:LANGUAGE stems one of {len(SNOWBALL)} languages. All but your own take '-numbers' after the "
            f"name, to drop numbers, and the first four '+compounds', to add joined compounds. "
            f"Pass one of your own to fanrank.text.register_analyzer before you name it or open its records"
        )
    compounds = compounds or "+compounds" in parts[2]
    if compounds and parts[1] not in ANALYZERS[:4]:
        raise ParameterError(f"analyzer {parts[1]!r} has its own rule for compounds and takes no '+compounds'")
    return _build(parts[1], compounds, drop_numeric or "-numbers" in parts[2])


def make_analyzer(
    name: str,
    *,
    base: str = DEFAULT_ANALYZER,
    stop_words: Iterable[str] = (),
    stem: Callable[[str], str] | None = None,
) -> Analyzer:
    """An analyzer with the tokens of `base`, and the stop words and stemmer of another language.

    `stem` takes a token, as `base` makes it, and gives its stem; None keeps the token. A stop word is given as it is
    written, and counts where `base` makes one token of it. Wholes of `agent`, such as ``src/app.py``, are neither
    stemmed nor stop words, and all terms lose their accents there. The tokens are looked up one by one, in Python.
    Raises `ParameterError` for a `base` that is no name of `ANALYZERS`, for stop words that are no list of strings, and
    for a `stem` that is no function.
    """
    if base not in ANALYZERS:
        raise ParameterError(f"no analyzer {base!r} to build on{choices(base, ANALYZERS)}")
    words = list(stop_words) if isinstance(stop_words, Iterable) else None
    if words is None or isinstance(stop_words, str) or not all(isinstance(word, str) for word in words):
        raise ParameterError(f"stop_words must be a list of words, not {stop_words!r}")
    if stem is not None and not callable(stem):
        raise ParameterError(f"stem must be a function from a token to its stem, not {stem!r}")
    tokenize = _RECIPES[base][0]
    stops = {tokens[0] for tokens in map(tokenize, words) if len(tokens) == 1}

    def normalize(token: str) -> str | None:
        word = _word(token)
        if not (base == "agent" and _is_whole(word)):
            if word in stops:
                return None
            stemmed = word if stem is None else stem(word)
            if not isinstance(stemmed, str):
                raise ParameterError(f"analyzer {name!r}: the stem of {word!r} must be a string, not {stemmed!r}")
            word = stemmed
        return _word(without_accents(word) if base == "agent" else word) or None

    made = Analyzer(name, tokenize, normalize)
    made.edition = _AGENT_EDITION if base == "agent" else ""
    return made


def register_analyzer(analyzer: Analyzer) -> Analyzer:
    """Lets an analyzer of your own be found by its name, for this process. Returns it.

    Directories and saved indexes keep the name alone, so register the same analyzer before they are opened again, and
    give it another name whenever it changes. Raises `ParameterError` for a name that is taken.
    """
    if not isinstance(analyzer, Analyzer):
        raise ParameterError(f"register_analyzer takes an Analyzer, as make_analyzer returns, not {analyzer!r}")
    name = analyzer.name
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name):
        raise ParameterError(f"an analyzer's name is a letter, then letters, digits, '_', '.' and '-', not {name!r}")
    parts = _NAME(name)
    if (parts and parts[1] in ANALYZERS) or _REGISTERED.setdefault(name, analyzer) is not analyzer:
        raise ParameterError(f"the name {name!r} is that of another analyzer; give yours another name")
    return analyzer


class WordRecipe(NamedTuple):
    """The rules of an analyzer that the compiled loops know: what it does with each token."""

    base: str
    """The name without switches. It says how words are stemmed."""
    stop_words: frozenset[str]
    drop_numeric: bool


def word_recipe(analyzer: Analyzer) -> WordRecipe | None:
    """The recipe of an analyzer of this module. None if the compiled loops lack its tokens, or if a caller made it."""
    base, *switches = re.split(r"(?=[+-])", analyzer.name)
    drop_numeric = "-numbers" in switches
    if base not in _STOP_WORDS or _build(base, False, drop_numeric) is not analyzer:
        return None
    return WordRecipe(base, _STOP_WORDS[base], drop_numeric)


@cache
def _build(base: str, compounds: bool, drop_numeric: bool) -> Analyzer:
    tokenize, normalize = _RECIPES.get(base, _RECIPES["agent"])
    edition = _AGENT_EDITION if base == "agent" else ""
    if base in SNOWBALL:
        from .snowball import snowball_stemmer

        stem, version = snowball_stemmer(base.partition(":")[2])
        made = make_analyzer(base, stop_words=NLTK_ENGLISH if base == "snowball:english" else (), stem=stem)
        normalize, edition = made.normalize, f"{made.edition} {version}"
    name = base
    if compounds:
        name += "+compounds"
        tokenize, normalize = _words_and_compounds, _remove_joints(normalize)
    if drop_numeric:
        name += "-numbers"
        normalize = _drop_numbers(normalize)
    analyzer = Analyzer(name, tokenize, normalize)
    analyzer.edition = edition
    return analyzer


# ASCII letters and digits in lower case, spaces for other ASCII. Bytes beyond ASCII stay for `_other_words`.
_SPACED = bytes(ord(chr(byte).lower()) if chr(byte).isalnum() else 32 for byte in range(128)) + bytes(range(128, 256))


def _words(text: str) -> list[str]:
    # bytes.translate and str.split take 50 ns for each token, a regular expression 150.
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
    import regex  # type: ignore[import-untyped, unused-ignore]  # imported here: it takes 20 ms, and ASCII texts do not need it

    find: Tokenizer = regex.compile(r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*+").findall
    return find


def _fold(text: str) -> str:
    """Lower case, one character for one, independent of neighbours. str.lower makes two of İ, and looks around Σ."""
    return text.replace("İ", "i").lower().replace("ς", "σ")


_HYPHENS = "-\u2010\u2011"
_COMPOUNDS = re.compile(
    rf"(?<![^\W_])[^\W_]+(?:(?:[{_HYPHENS}]|(?<![0-9])\.|\.(?![0-9]))[^\W_]+|\([^\W_]{{1,2}}\))+"
).findall
_JOINTS = dict.fromkeys(map(ord, _HYPHENS + ".()"))


def _words_and_compounds(text: str) -> list[str]:
    return _words(text) + _COMPOUNDS(_fold(text))


def _remove_joints(normalize: Normalizer) -> Normalizer:
    return lambda token: normalize(token.translate(_JOINTS))


def _drop_numbers(normalize: Normalizer) -> Normalizer:
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
    return None if word in LUCENE_ENGLISH else _stem(word, "step_one") or None


def _nltk_term(token: str) -> str | None:
    word = _word(token)
    return None if word in NLTK_ENGLISH else _stem(word, "nltk") or None


def _agent_term(token: str) -> str | None:
    if token in NLTK_ENGLISH:
        return None
    word = _word(without_accents(token))
    return word if _is_whole(word) else _stem(word, "nltk") or None


def _is_whole(token: str) -> bool:
    return not token.isalnum() and any(joint in token for joint in JOINTS)


def _stem(word: str, kind: str) -> str:
    """The stem of a word in lower case: by the extension, or in plain Python."""
    loops = compiled_loops()
    if loops is not None:
        stem: str = loops.stem(word, kind)
        return stem
    return porter.strip_suffix(word) if kind == "step_one" else porter.stem_word(word, nltk=kind == "nltk")


def _lucene_tokens(text: str) -> list[str]:
    from .segments import find_segments  # other analyzers do without

    tokens = find_segments(_fold(text))
    if len(text) <= MAX_LENGTH or max(map(len, tokens), default=0) <= MAX_LENGTH:
        return tokens
    cut: list[str] = []
    for token in tokens:
        for begin in range(0, len(token), MAX_LENGTH):
            cut += find_segments(token[begin : begin + MAX_LENGTH])
    return cut


_CONNECTORS = "_\u202f\u203f\u2040\u2054\ufe33\ufe34\ufe4d\ufe4e\ufe4f\uff3f"


def _lucene_term(token: str) -> str | None:
    if token[0] in _CONNECTORS and not any(map(str.isalnum, token)):
        return None
    if token.endswith(("'s", "’s", "＇s")):
        token = token[:-2]
    # Lucene's PorterStemFilter departs from the paper as Porter's code does: -bli, -logi, two-letter words stay.
    return None if token in LUCENE_ENGLISH else _stem(token, "martin") or None


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
    "agent": (agent_tokens, _agent_term),
}
_STOP_WORDS: dict[str, frozenset[str]] = {
    "minimal": frozenset(),
    "stopword": LUCENE_ENGLISH,
    "full": LUCENE_ENGLISH,
    "nltk": NLTK_ENGLISH,
    "agent": NLTK_ENGLISH,
}
