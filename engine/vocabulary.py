"""Strings to small integers: index terms, and the values of metadata columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .text import DROPPED, MAX_LENGTH, Analyzer


class Vocabulary:
    """An append-only numbering of distinct strings, from 0. One writer at a time; readers need no lock."""

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self.strings: list[str] = list(strings)
        self.ids: dict[str, int] = {string: number for number, string in enumerate(self.strings)}

    def __len__(self) -> int:
        return len(self.strings)

    def add(self, string: str) -> int:
        """The number of `string`, a new one if it has none."""
        number = self.ids.setdefault(string, len(self.strings))
        if number == len(self.strings):
            self.strings.append(string)
        return number

    def truncate(self, size: int) -> None:
        """Forget all strings numbered `size` or more."""
        for string in self.strings[size:]:
            del self.ids[string]
        del self.strings[size:]

    def sort_from(self, start: int) -> npt.NDArray[np.int32]:
        """Renumber the strings from `start` on alphabetically (A013); the new number of each old one, from `start`."""
        old = self.strings[start:]
        order = sorted(range(len(old)), key=old.__getitem__)
        renumbered = np.empty(len(old), dtype=np.int32)
        renumbered[order] = np.arange(start, start + len(old), dtype=np.int32)
        self.strings[start:] = [old[position] for position in order]
        for number in range(start, len(self.strings)):
            self.ids[self.strings[number]] = number
        return renumbered


class _TokenIds(dict[str, int]):
    """Raw token -> term id, so that analysing a token is one dictionary look-up; a miss normalises and numbers it."""

    def __init__(self, analyzer: Analyzer, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._analyzer = analyzer
        self._vocabulary = vocabulary
        self.new: list[str] = []
        """Tokens cached since the list was last cleared."""

    def __missing__(self, token: str) -> int:
        term = self._analyzer.normalize(token)
        number = DROPPED if term is None else self._vocabulary.add(term)
        if len(token) <= MAX_LENGTH:
            self[token] = number
            self.new.append(token)
        return number


class Encoder:
    """Texts to term ids, for one analyzer and one vocabulary."""

    # 120 bytes an entry: at most about 250 MB of raw spellings.
    MAX_CACHED_TOKENS = 1 << 21
    MAX_CACHED_QUERY_TOKENS = 1 << 14

    def __init__(self, analyzer: Analyzer, vocabulary: Vocabulary) -> None:
        self.analyzer = analyzer
        self.vocabulary = vocabulary
        self._token_ids = _TokenIds(analyzer, vocabulary)
        # Words that queries hold and documents do not; stemming one takes 30 us.
        self._normalized = lru_cache(maxsize=self.MAX_CACHED_QUERY_TOKENS)(analyzer.normalize)

    def encode_documents(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """All kept tokens as ``(term ids [tokens], document of each [tokens])``; new terms enter the vocabulary.

        Terms that are new in this call are numbered alphabetically among themselves, whatever the order of the texts.
        """
        if len(self._token_ids) > self.MAX_CACHED_TOKENS:
            self._token_ids.clear()
        before = len(self.vocabulary)
        self._token_ids.new.clear()
        try:
            terms, offsets = self.analyzer.encode(texts, self._token_ids)
            if len(self.vocabulary) > before:
                renumbered = self.vocabulary.sort_from(before)
                new = terms >= before
                terms[new] = renumbered[terms[new] - before]
                for token in self._token_ids.new:
                    number = self._token_ids[token]
                    if number >= before:
                        self._token_ids[token] = int(renumbered[number - before])
        except BaseException:
            self.forget(before)
            raise
        return terms, np.repeat(np.arange(len(texts), dtype=np.int32), np.diff(offsets))

    def forget(self, size: int) -> None:
        """Undo additions: keep only the vocabulary's first `size` terms."""
        self.vocabulary.truncate(size)
        self._token_ids.clear()

    def encode_query(self, text: str) -> list[int]:
        """The ids of a text's terms in order, repeats kept; terms that no document holds are left out."""
        known = self._token_ids.get
        ids = self.vocabulary.ids
        terms: list[int] = []
        for token in self.analyzer.tokenize(text):
            number = known(token)
            if number is None:
                term = self._normalized(token)
                number = DROPPED if term is None else ids.get(term, DROPPED)
            if number != DROPPED:
                terms.append(number)
        return terms

    def encode_terms(self, terms: Iterable[str]) -> list[int]:
        """The ids of pre-analysed terms in order; terms that no document holds are left out."""
        return [number for number in map(self.vocabulary.ids.get, terms) if number is not None]
