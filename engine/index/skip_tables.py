"""Where each posting list stands at every few documents, so that one document is found in it without a search.

A list's *blocks* are of ``2**bits`` documents, as many as hold `BLOCK_POSTINGS` to twice as many of its postings on
average. Entry ``starts[t] + b`` is the place of the first posting of block b or a later one, from the list's own start.
Its *groups* are of ``2**group_bits`` documents, about `GROUPS` to half as many a posting (or of single documents), and
one bit a group, from byte ``group_starts[t]`` on, says whether any of its documents is in the list. Most look-ups find
nothing, and end at that bit. Two to three bytes a posting together, of the lists that were asked for: a list is entered
when a query first needs it.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

# On SGD at k 10, blocks of 4 and 8 postings with 8 and 16 groups a posting took .110, .098 (4, 16) and .087 ms (8, 16)
# a query.
BLOCK_POSTINGS = 8
GROUPS = 16
# A shorter list is searched: it has few places.
LEAST_POSTINGS = 64


class SkipTables:
    """Of one segment's lists, by position in its terms. Memory that no list was entered into is not touched."""

    def __init__(self, offsets: npt.NDArray[np.int64], size: int) -> None:
        lengths = np.diff(offsets)
        self.wanted_bits = _bits(BLOCK_POSTINGS * size, lengths)
        """[terms] of each list's blocks; -1: too short."""
        self.group_bits = _bits(size, GROUPS * lengths)
        long = lengths >= LEAST_POSTINGS
        self.wanted_bits[~long] = -1
        entries = np.where(long, np.right_shift(size, np.maximum(self.wanted_bits, 0), dtype=np.int64) + 2, 0)
        self.starts = np.cumsum(entries) - entries
        self.entries = np.empty(int(entries.sum()), dtype=np.int32)
        groups = np.where(long, np.right_shift(size, self.group_bits + np.int8(3), dtype=np.int64) + 1, 0)
        self.group_starts = np.cumsum(groups) - groups
        self.presence = np.zeros(int(groups.sum()), dtype=np.uint8)
        self.bits = np.full(len(lengths), -1, dtype=np.int8)
        """[terms] as `wanted_bits` once a list is entered, else -1."""
        self.lock = threading.Lock()
        """Held while lists are entered: bits of several groups share a byte."""


def _bits(documents: int, of: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """The least b for which ``2**b * of >= documents``, of each."""
    return np.ceil(np.log2(np.maximum(documents / np.maximum(of, 1), 1.0))).astype(np.int8)
