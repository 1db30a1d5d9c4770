"""Numbers strings with small integers: index terms, and the values of metadata columns.

A vocabulary only grows. Entries that no segment holds any more leave when `engine/storage/renumber.py` puts a new
vocabulary in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from sys import getsizeof

import numpy as np
import numpy.typing as npt

from .analyzers import DROPPED, MAX_LENGTH, Analyzer
from .dispatch import choose_token_path, make_native

# The interpreter holds one object for each smaller number.
SHARED_NUMBERS = 257


class Vocabulary:
    """Numbers distinct strings from 0 on; strings are only added. One writer at a time. Readers need no lock."""

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self.strings: list[str] = list(strings)
        self.ids: dict[str, int] = {string: number for number, string in enumerate(self.strings)}
        self._measured = 0, 0  # strings, and their bytes

    def __len__(self) -> int:
        return len(self.strings)

    def add(self, string: str) -> int:
        """The number of `string`. A string without a number gets the next one."""
        number = self.ids.setdefault(string, len(self.strings))
        if number == len(self.strings):
            self.strings.append(string)
        return number

    def extend(self, strings: Sequence[str]) -> None:
        """Numbers these new strings in order."""
        start = len(self.strings)
        self.strings += strings
        self.ids.update(zip(strings, range(start, len(self.strings)), strict=True))

    def truncate(self, size: int) -> None:
        """Forgets all strings whose number is `size` or more."""
        # Selected by number: an addition that failed half-way leaves a string without a number, or the reverse.
        for string in [string for string, number in self.ids.items() if number >= size]:
            del self.ids[string]
        del self.strings[size:]
        if size < self._measured[0]:
            self._measured = 0, 0

    @property
    def bytes(self) -> int:
        """Bytes of the strings, their numbers, and the list and dictionary of them.

        Strings that were measured before are not measured again.
        """
        count, size = self._measured
        new = self.strings[count:]
        count, size = count + len(new), size + sum(map(getsizeof, new))
        self._measured = count, size
        return (
            size
            + max(count - SHARED_NUMBERS, 0) * getsizeof(SHARED_NUMBERS)
            + getsizeof(self.strings)
            + getsizeof(self.ids)
        )

    # Sources: A013.
    def sort_from(self, start: int) -> npt.NDArray[np.int32]:
        """Renumbers the strings from `start` on alphabetically. Returns the new number of each, in the old order."""
        old = self.strings[start:]
        order = sorted(range(len(old)), key=old.__getitem__)
        renumbered = np.empty(len(old), dtype=np.int32)
        renumbered[order] = np.arange(start, start + len(old), dtype=np.int32)
        self.strings[start:] = [old[position] for position in order]
        for number in range(start, len(self.strings)):
            self.ids[self.strings[number]] = number
        return renumbered


class _TokenIds(dict[str, int]):
    """Raw token -> term id: analysing a token is one dictionary look-up. A miss normalises the token and numbers it."""

    def __init__(self, analyzer: Analyzer, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._analyzer = analyzer
        self._vocabulary = vocabulary
        self.new: list[str] = []
        """Tokens cached since the list was last cleared."""

    def __missing__(self, token: str) -> int:
        term = self._analyzer.term(token)
        number = self._vocabulary.add(term) if term else DROPPED
        if len(token) <= MAX_LENGTH:
            self[token] = number
            self.new.append(token)
        return number


class TermIndexer:
    """Turns texts into term ids, for one analyzer and one vocabulary. One writer at a time. Queries need no lock.

    Compiled loops do it where `dispatch.py` says so, and otherwise the analyzer token by token. Both give the same ids.
    """

    # The limit of each path, checked between calls. For spellings as long as usual words, an entry takes 120 bytes on
    # the plain path and up to 50 on the compiled one. If every spelling had `MAX_LENGTH` characters, it would be ten
    # times as much.
    MAX_CACHED_TOKENS = 1 << 21

    def __init__(self, analyzer: Analyzer, vocabulary: Vocabulary) -> None:
        self.analyzer = analyzer
        self.vocabulary = vocabulary
        self.token_path = choose_token_path(analyzer)
        """How texts become term ids, and why."""
        self.native = make_native(analyzer, spellings=self.MAX_CACHED_TOKENS)
        """The compiled loops, or None where the analyzer goes token by token. While no write is under way they know
        all terms of the vocabulary."""
        if self.native is not None:
            self.native.add_terms(vocabulary.strings)
        self._token_ids = _TokenIds(analyzer, vocabulary)

    def encode_documents(
        self, texts: Sequence[str], threads: int = 1
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """All tokens that have a term, as ``(term ids [tokens], document of each [tokens])``. Adds new terms.

        Terms that are new in this call are numbered alphabetically among themselves. The numbers do not depend on the
        order of the texts or on the number of `threads`. A call that fails leaves nothing behind.
        """
        before = len(self.vocabulary)
        try:
            if self.native is None:
                return self._encode_tokens(texts, before)
            terms, documents, new = self.native.encode_documents(texts, threads)
            self.vocabulary.extend(new)
            return np.frombuffer(terms, np.int32), np.frombuffer(documents, np.int32)
        except BaseException:
            self.forget(before)
            raise

    def _encode_tokens(self, texts: Sequence[str], before: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        if len(self._token_ids) > self.MAX_CACHED_TOKENS:
            self._token_ids.clear()
        self._token_ids.new.clear()
        terms, offsets = self.analyzer.encode(texts, self._token_ids)
        if len(self.vocabulary) > before:
            renumbered = self.vocabulary.sort_from(before)
            new = terms >= before
            terms[new] = renumbered[terms[new] - before]
            for token in self._token_ids.new:
                number = self._token_ids[token]
                if number >= before:
                    self._token_ids[token] = int(renumbered[number - before])
        return terms, np.repeat(np.arange(len(texts), dtype=np.int32), np.diff(offsets))

    @property
    def cache_bytes(self) -> int:
        """Bytes of the tokens that were analysed before, where the analyzer goes token by token."""
        tokens = list(self._token_ids)
        return getsizeof(self._token_ids) + sum(map(getsizeof, tokens))

    def add_terms(self, terms: Sequence[str]) -> None:
        """Numbers these new terms in order."""
        self.vocabulary.extend(terms)
        if self.native is not None:
            self.native.add_terms(terms)

    def forget(self, size: int) -> None:
        """Undoes additions: keeps only the first `size` terms of the vocabulary."""
        self.vocabulary.truncate(size)
        self._token_ids.clear()
        if self.native is not None:
            self.native.truncate(size)

    def encode_query(self, text: str) -> list[int]:
        """The ids of a text's terms in order, with repeats. Terms that no document holds are left out."""
        if self.native is not None:
            ids: list[int] = self.encode_queries([text])[0].tolist()
            return ids
        return self.encode_terms(self.analyzer(text))

    def encode_queries(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """The ids of many queries, ``(ids [tokens], offsets [texts + 1])``. Each text gives those of `encode_query`."""
        if self.native is not None:
            terms, ends = self.native.encode_queries(texts)
            return np.frombuffer(terms, np.int32), np.frombuffer(ends, np.int64)
        rows = [self.encode_query(text) for text in texts]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets

    def encode_terms(self, terms: Iterable[str]) -> list[int]:
        """The ids of analysed terms in order. Terms that no document holds are left out."""
        return [number for number in map(self.vocabulary.ids.get, terms) if number is not None]
