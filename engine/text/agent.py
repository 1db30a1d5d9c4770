r"""Cuts what agents write into tokens: prose, code, logs and paths (the analyzer `agent`).

ANSI escapes are removed first, and what is beyond ASCII is folded (`folding.py`), but keeps its accents: a token loses
them when it becomes a term. A *chunk* is then a run of letters, digits and underscores, with single joints between
such runs: ``- . / \ @ + ::``, a doubled slash, or a slash before a dot or @, as in ``src/.env``. A chunk gives its
whole and its parts, from large to small:

    parts of        are cut at                      example                its tokens
    a path          slashes, @, ::                  src/api/user_test.py   src/api/user_test.py src api user_test.py ...
    a dotted name   dots                            user_test.py           user_test.py user_test user test py
    a name          hyphens, +, underscores         E-47821                e47821 e 47821
    camel case      a capital after a small letter  getHTTPHeader          gethttpheader get http header

    letters and digits   where the digits begin    E47821             e47821 e 47821

Each piece that has smaller parts is a token itself, in lower case and before its parts. Its hyphens are left out, so
that e-mail meets email; its slashes all lean one way; and v1.2 is 1.2. Where a version follows or begins a name, the
hyphens cut first: numpy-1.26.4 gives 1.26.4. A word that is nothing of this is one token.

Han, kana, Hangul, Thai, Lao, Khmer and Burmese, which are not cut by spaces or carry particles, give every two
neighbours. One that stands alone is a token itself. A picture (emoji) is a token.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import pairwise

from . import folding

LONGEST_CHUNK = 255
"""Characters. A longer chunk is no name but data: its words are tokens, and nothing is kept whole."""
LONGEST_NAME = 64
"""Characters of a name that is cut by its case. A longer one is a key or a hash."""
SHORTEST_KEY = 8
"""Characters of a word that is a key or a hash if it mixes letters and digits."""

JOINTS = "_./\\@+:"
"""A token with one of these is a whole. It is neither stemmed nor a stop word."""

# Control sequences (colours, cursor), operating system commands (titles, links), and other escapes.
_ESCAPES = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|[ -/]*[0-Z\\\\^-~])")
_JOINT = r"(?:::|//|\\\\|/[.@]|[-./\\@+])"
_ASCII_CHUNKS = re.compile(rf"\w+(?:{_JOINT}\w+)*", re.ASCII).findall
_NUMBERED = re.compile(r"([A-Za-z]+)([0-9]+)").fullmatch
_MIXED = re.compile(r"[a-z]*[0-9].*[a-z]|[a-z]+[0-9]", re.IGNORECASE).match
# Before a text is folded, all beyond ASCII counts as letters, but for the dashes and quotation marks U+2012 to U+2027.
_RAW = r"[A-Za-z0-9_\x80-\u2011\u2028-\U0010ffff]+"
_RAW_CHUNKS = re.compile(rf"{_RAW}(?:{_JOINT}{_RAW})*").findall
_PLAIN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+").fullmatch
_PATH = re.compile(r"[/\\]{1,2}[.@]?|@|::")
_HYPHENS = re.compile(r"[-+]")
_NAMES = re.compile(r"[-+_]+")
_JOINTS = re.compile(r"[-./\\@+:_]+")
_SLASHES = re.compile(r"[/\\]+")
_VERSION = re.compile(r"(?:^|[-+])[vV]?[0-9]+\.[0-9]")
_VERSION_HEAD = re.compile(r"[vV](?=[0-9]+\.)")
_ASCII_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z](?!s(?![a-z]))[a-z])")


def agent_tokens(text: str) -> list[str]:
    """The tokens of a text in order; see the head of this file."""
    if text.isascii():
        return _cut(_ASCII_CHUNKS(_remove_escapes(text)))
    tokens: list[str] = []
    for chunk in _RAW_CHUNKS(_remove_escapes(text.encode("utf-8", "replace").decode())):
        if chunk.isascii():
            tokens += _cut([chunk])
        else:
            tokens += _remembered(chunk) if len(chunk) <= LONGEST_NAME else _cut_folded(chunk)
    return tokens


def _cut_folded(text: str) -> list[str]:
    return _cut(_unicode().chunks(folding.fold(text)))


# To fold and cut a chunk takes 10 us. So many take some 20 MB.
_remembered = lru_cache(1 << 15)(_cut_folded)


def _cut(chunks: list[str]) -> list[str]:
    tokens: list[str] = []
    for chunk in chunks:
        if _PLAIN(chunk):
            tokens.append(chunk.lower())
        elif len(chunk) <= LONGEST_CHUNK:
            _add_path(chunk, tokens)
        else:
            for word in _JOINTS.split(chunk):
                _add_words(word, tokens)
    return tokens


def _remove_escapes(text: str) -> str:
    # Colours and the erasure of a line's end stand inside words, as grep writes them. Other escapes move the cursor.
    return _ESCAPES.sub(lambda found: "" if found[0][-1] in "mK" else " ", text) if "\x1b" in text else text


def _add_path(path: str, tokens: list[str]) -> None:
    pieces = _PATH.split(path)
    if len(pieces) > 1:
        _add_whole(path, tokens)
    for piece in pieces:
        versions = _HYPHENS.split(piece) if _VERSION.search(piece) else [piece]
        if len(versions) > 1:
            _add_whole(piece, tokens)
        for dotted in versions:
            names = dotted.split(".")
            if len(names) > 1:
                _add_whole(dotted, tokens)
            for name in names:
                _add_name(name, tokens)


def _add_name(name: str, tokens: list[str]) -> None:
    words = _NAMES.split(name)
    if len(words) > 1:
        _add_whole(name, tokens)
    for word in words:
        _add_words(word, tokens)


def _add_words(word: str, tokens: list[str]) -> None:
    if not word.isascii():
        _unicode().add_words(word, tokens)
        return
    parts = _ASCII_CASE.split(word) if len(word) <= LONGEST_NAME else [word]
    if len(parts) == 1 and (numbered := _NUMBERED(word)):
        parts = [numbered[1], numbered[2]]
    if len(parts) > 1 or (len(word) >= SHORTEST_KEY and _MIXED(word)):
        tokens.append(word.lower())
    tokens += [part.lower() for part in parts if part]


def _add_whole(piece: str, tokens: list[str]) -> None:
    whole = _SLASHES.sub("/", _VERSION_HEAD.sub("", piece, count=1) if _VERSION_HEAD.match(piece) else piece)
    whole = folding.lower(whole.replace("-", ""))
    if any(map(str.isalnum, whole)):
        tokens.append(whole)


class _Unicode:
    """The patterns for texts beyond ASCII. They are made when the first such text comes."""

    def __init__(self) -> None:
        import regex  # type: ignore[import-untyped, unused-ignore]

        word = r"[\p{L}\p{N}\p{M}_]++"
        flag, picture = r"[\U0001f1e6-\U0001f1ff]", r"\p{Extended_Pictographic}"
        find: Callable[[str], list[str]] = regex.compile(
            rf"{word}(?:{_JOINT}{word})*+|{flag}{flag}|{picture}(?:\u200d{picture})*+"
        ).findall
        self.chunks = find
        # Digits of Thai and the scripts behind it make numbers, and their marks begin no sign.
        unspaced = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\u30fc]|(?=\p{L})[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
        sign = rf"(?:{unspaced})\p{{M}}*+"
        self._signs = regex.compile(sign)
        self._runs = regex.compile(rf"(?P<signs>(?:{sign})++)|(?:(?!{sign})[\p{{L}}\p{{N}}]\p{{M}}*+)++")
        self._case = regex.compile(
            r"(?<=\p{Ll}\p{M}*)(?=\p{Lu})|(?<=\p{N})(?=\p{Lu}\p{Ll})|(?<=\p{Lu})(?=\p{Lu}(?!s(?!\p{Ll}))\p{Ll})"
        )
        self._numbered = regex.compile(r"((?:\p{L}\p{M}*+)+)([0-9]+)").fullmatch
        self._picture = regex.compile(picture)

    def add_words(self, word: str, tokens: list[str]) -> None:
        """Adds the runs of a word, which has no joint. Scripts that are not cut by spaces give pairs."""
        if self._picture.match(word) or (len(word) == 2 and "\U0001f1e6" <= word[0] <= "\U0001f1ff"):
            tokens.append(word)
            return
        for run in self._runs.finditer(word):
            if run["signs"]:
                signs = self._signs.findall(run[0])
                tokens += [one + other for one, other in pairwise(signs)] or signs
            elif run[0].isascii():
                _add_words(run[0], tokens)
            else:
                parts = self._case.split(run[0]) if len(run[0]) <= LONGEST_NAME else [run[0]]
                if len(parts) == 1 and (numbered := self._numbered(run[0])):
                    parts = [numbered[1], numbered[2]]
                if len(parts) > 1:
                    tokens.append(folding.lower(run[0]))
                tokens += [folding.lower(part) for part in parts if part]


_unicode = cache(_Unicode)
