"""Turns many texts into term ids at once, on several threads.

The loops of `engine/text/compiled.py` walk blocks of texts. The result is that of `Analyzer.encode` with a dict. This
module serves the analyzers whose tokens are runs of letters and digits only (`analyzers.word_recipe`). Chunks that are
not all ASCII come back here and go through the analyzer itself.
`engine/text/compiled.py` defines *block*, *chunk*, *table*, *store* and *walk*.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise, repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from . import compiled as loops
from .analyzers import DROPPED, Analyzer, word_recipe

Codes = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.uint64]

LONG_TEXT = 200
"""Mean characters of the texts of a block from which on encoding each text by itself costs next to nothing."""

NONE = -1
"""The term, in `Terms`, of a chunk that has no term."""

BLOCK = 1 << 18
"""Characters of a block: as many as a second-level cache holds. A longer text makes a larger block. Threads take
blocks in turns."""


class TokenTable:
    """Maps spellings to the ids of their terms, or to `DROPPED`. One writer at a time. Readers need no lock."""

    def __init__(self, analyzer: Analyzer) -> None:
        recipe = word_recipe(analyzer)
        if recipe is None:
            raise ValueError(f"{analyzer!r} cuts by rules of its own")
        self.analyzer = analyzer
        self.kind = loops.STEMS[recipe.base]
        self.numeric = not recipe.drop_numeric
        # Random, so that nobody can construct a text whose tokens all hash to one slot.
        self.multiplier = np.uint64(int.from_bytes(os.urandom(8), "little") | 1 | 1 << 63)
        self.size, self._used = 0, 1
        self.arrays: tuple[Numbers, Numbers] = (np.zeros((1 << 12, 2), np.uint64), np.zeros(1 << 13, np.uint64))
        walk = Walk(self)
        # A stop word such as "don't" is never one token, and its pieces, such as "don", need not be stop words.
        words = sorted(word for word in recipe.stop_words if analyzer.tokenize(word) == [word])
        walk.block(words, np.array([len(word) for word in words], np.int64))
        self.add(walk, np.full(walk.known, DROPPED, np.int32))

    def add(self, walk: Walk, codes: Codes) -> None:
        """Remembers the ids (or `DROPPED`) of a walk's new chunks. Chunks with a code below `DROPPED` are left out."""
        table, store = self.arrays
        slots, room = len(table), len(store)
        while 8 * (self.size + len(codes)) > loops.FILL * slots:
            slots *= 2
        while self._used + walk.used > room:
            room *= 2
        if slots > len(table):
            table = loops.grow_table(table, slots, self.multiplier)
        if room > len(store):
            store = loops.grow_store(store, room)
        added, self._used = loops.enter(table, store, self._used, self.multiplier, walk.new_store, codes)
        self.size += added
        self.arrays = (table, store)


class Walk:
    """The walk of one thread through blocks, and its new chunks: those that the table lacks, numbered as they come."""

    def __init__(self, table: TokenTable) -> None:
        self.table = table
        self._arrays = table.arrays
        self._new_table = np.zeros((1 << 12, 2), np.uint64)
        self.new_store = np.zeros(1 << 13, np.uint64)
        self._state = np.array([0, 1], np.int64)
        # Reused for every block: fresh memory costs as much time as the walk over it.
        self._lowered, self._codes = np.empty(0, np.uint8), np.empty(0, np.int32)

    @property
    def known(self) -> int:
        """How many new chunks there are so far."""
        return int(self._state[0])

    @property
    def used(self) -> int:
        """How many numbers of the new store are in use."""
        return int(self._state[1])

    def block(self, texts: Sequence[str], lengths: Integers) -> tuple[Codes, Integers]:
        """The codes of these texts' tokens, as `compiled.walk` writes them, and how many each text has.

        `lengths` are the lengths of the texts in characters.
        """
        # Joining is fast for short texts. But a single letter beyond ASCII makes it copy the block letter by letter.
        joined = "\n".join(chain(texts, ("",))) if lengths.sum() < LONG_TEXT * len(texts) else ""
        if joined.isascii() and joined:
            block = joined.encode()
        else:
            pieces = [text.encode("utf-8", "replace") for text in texts]
            block = b"\n".join(chain(pieces, (b"",)))
            lengths = np.fromiter(map(len, pieces), np.int64, len(texts))
        ends = np.cumsum(lengths + 1) - 1
        if len(block) + loops.PADDING > len(self._lowered):
            self._lowered = np.empty(len(block) + loops.PADDING, np.uint8)
            self._codes = np.empty(len(block) // 2 + 1, np.int32)
        lowered, codes = self._lowered, self._codes
        loops.lower(np.frombuffer(block, np.uint8), lowered)
        counts = np.empty(len(texts), np.int64)
        self._new_table, self.new_store, size = loops.walk(
            lowered,
            ends,
            *self._arrays,
            self.table.multiplier,
            self._new_table,
            self.new_store,
            self._state,
            codes,
            counts,
        )
        return codes[:size].copy(), counts

    def terms(self) -> Terms:
        """The terms of the new chunks."""
        known, multiplier = self.known, self.table.multiplier
        slots = 1 << 12
        while 8 * known > loops.FILL * slots:
            slots *= 2
        table, store = np.zeros((slots, 2), np.uint64), np.empty(self.used + 2, np.uint64)
        places, term_of, wide = (np.empty(known, np.int64) for _ in range(3))
        heads = np.empty(known, np.uint64)
        size, used = loops.stems(
            self.new_store, self.table.kind, self.table.numeric, multiplier, table, store, places, heads, term_of, wide
        )
        # Nearly alphabetical order saves most of the sorting of strings later: a tenth of the time of a cold call.
        order = np.argsort(heads[:size])
        out = np.empty(8 * used + size, np.uint8)
        length = loops.spell(store, places[order], out)
        terms = out[:length].tobytes().decode().split("\n")
        terms.pop()
        rank = np.empty(size + 1, np.int64)
        rank[order] = np.arange(size)
        rank[-1] = NONE
        picks = rank[term_of]
        chunks = np.flatnonzero(wide)
        if not len(chunks):
            return Terms(terms, np.arange(known + 1), picks)
        sizes = np.ones(known, np.int64)
        wide_terms: list[int] = []
        for chunk in chunks.tolist():
            start = wide[chunk]
            length = int(self.new_store[start])
            numbers = self.new_store[start + 1 : start + 1 + (length + 7) // 8]
            words = self.table.analyzer(numbers.astype("<u8").tobytes()[:length].decode())
            sizes[chunk] = len(words)
            wide_terms += range(len(terms), len(terms) + len(words))
            terms += words
        starts = np.concatenate([[0], np.cumsum(sizes)])
        is_wide = np.repeat(wide > 0, sizes)
        all_picks = np.empty(len(is_wide), np.int64)
        all_picks[is_wide] = wide_terms
        all_picks[~is_wide] = picks[wide == 0]
        return Terms(terms, starts, all_picks)


class Terms(NamedTuple):
    """Terms of a walk's new chunks. Chunk i has the terms ``picks[starts[i]:starts[i + 1]]``; `NONE` is no term."""

    terms: list[str]
    starts: Integers
    picks: Integers


class Encoding:
    """Texts after the walk. Their terms are known, but new terms have no id yet."""

    def __init__(self, table: TokenTable, texts: Sequence[str], threads: int = 1) -> None:
        self.table = table
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        spans = list(_spans(lengths, threads))
        threads = max(1, min(threads, len(spans)))
        self._walks = [Walk(table) for _ in range(threads)]
        self._blocks: dict[int, tuple[int, Codes, Integers]] = {}
        """First text of the block -> (number of the walk, codes, counts)."""
        waiting = iter(spans)  # shared by the threads: next() is one step of the interpreter

        def run(number: int) -> None:
            for first, last in waiting:
                self._blocks[first] = (number, *self._walks[number].block(texts[first:last], lengths[first:last]))

        if threads == 1:
            run(0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(run, range(threads)))
        self._terms = [walk.terms() for walk in self._walks]

    def new(self, ids: Mapping[str, int]) -> list[str]:
        """The terms that have no id, in alphabetical order."""
        absent = [term for new in self._terms for term in new.terms if term not in ids]
        absent.sort()
        return list(dict.fromkeys(absent))

    def settle(self, ids: Mapping[str, int], *, remember: bool) -> tuple[Codes, Codes, Integers]:
        """Term ids [tokens], the text of each token [tokens], and the tokens of each text [texts].

        Tokens without an id are left out. `remember` puts the ids into the table. It is for a writer, whose terms all
        have ids.
        """
        new_terms: list[Codes] = []
        for walk, (terms, starts, picks) in zip(self._walks, self._terms, strict=True):
            # `NONE` points to the extra number at the end.
            numbers = np.fromiter(chain(map(ids.get, terms, repeat(DROPPED)), (DROPPED,)), np.int32, len(terms) + 1)
            new_terms.append(numbers[picks])
            if remember and walk.known:
                sizes = np.diff(starts)
                codes = np.where(sizes == 0, np.int32(DROPPED), np.int32(loops.NEW))
                codes[sizes == 1] = new_terms[-1][starts[:-1][sizes == 1]]
                self.table.add(walk, codes)
        order = sorted(self._blocks)
        total = 0
        for first in order:
            number, codes, _ = self._blocks[first]
            total += loops.size_of(codes, self._terms[number].starts)
        tokens, texts = np.empty(total, np.int32), np.empty(total, np.int32)
        counts: list[Integers] = [np.zeros(0, np.int64)]
        size = 0
        for first in order:
            number, codes, block_counts = self._blocks[first]
            starts = self._terms[number].starts
            size = loops.settle(codes, block_counts, starts, new_terms[number], first, tokens, texts, size)
            counts.append(block_counts)
        return tokens[:size], texts[:size], np.concatenate(counts)


def _spans(lengths: Integers, threads: int) -> Iterator[tuple[int, int]]:
    """The blocks as ranges of texts. `lengths` are the lengths of the texts."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    # Several blocks for each thread, so that no thread waits long for the last block.
    size = min(BLOCK, total // (4 * threads) + 1) if threads > 1 else BLOCK
    cuts = np.unique(np.searchsorted(ends, np.arange(size, total, size)) + 1)
    return pairwise([0, *cuts[cuts < len(lengths)].tolist(), len(lengths)])
