"""Skip tables of posting lists: they find a document in a list without a search.

The documents are divided into *blocks* of ``2**bits`` documents, with `bits` chosen for each list so that a block has
`BLOCK_POSTINGS` to twice as many of its postings on average. Entry ``starts[t] + b`` of list t is the index, from the
start of the list, of the first posting of block b or of a later block.

The documents are also divided into *groups* of ``2**group_bits`` documents: about `GROUPS` to half as many groups for
each posting, or single documents. One bit for each group, from byte ``group_starts[t]`` on, says whether any of its
documents is in the list. Most look-ups find nothing, and end at that bit.

Both together take two to three bytes a posting. A list is entered when a query first needs it.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

# On SGD at k 10 a query took .110 ms with blocks of 4 postings and 8 groups a posting, .098 ms with 4 and 16, and
# .087 ms with 8 and 16.
BLOCK_POSTINGS = 8
GROUPS = 16
# A shorter list has no skip table: it is searched.
LEAST_POSTINGS = 64


class SkipTables:
    """The skip tables of one segment's lists, by position in its terms. A list's memory is first touched when the list
    is entered.
    """

    def __init__(self, offsets: npt.NDArray[np.int64], size: int) -> None:
        lengths = np.diff(offsets)
        self.wanted_bits = _bits(BLOCK_POSTINGS * size, lengths)
        """[terms] the `bits` of each list's blocks; -1 for a list that is too short."""
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
        """[terms] as `wanted_bits` for a list that is entered, else -1."""
        self.lock = threading.Lock()
        """Held while lists are entered, because the bits of several groups share a byte."""


def _bits(documents: int, divisors: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """The least b for which ``2**b * divisor >= documents``, for each divisor."""
    return np.ceil(np.log2(np.maximum(documents / np.maximum(divisors, 1), 1.0))).astype(np.int8)
