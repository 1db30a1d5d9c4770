"""What a streaming filter of blocks would read of scored tiles, counted: 8-bit maxima of 64 or 128 documents first.

A block's bound is the sum of its lists' maxima, each rounded up to a 255th of its list's largest contribution in the
tile. Blocks whose bound is below the turn's threshold hold no hit, so their postings are not read. A list with fewer
postings in a tile than its maxima have bytes is read whole instead, and needs no maxima. The others give a byte of
maximum a block, and in a tile with a live block a byte of count, by which a warp finds the postings. Postings are
counted in sectors of 32 bytes, 8 words and 8 contributions, as a GPU reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from .tiles import Lists, Pairs

Integers = npt.NDArray[np.signedinteger[Any]]

STEPS = 255
SECTOR, SECTOR_BYTES = 8, 64
"""Postings of a sector, and the bytes of its words and contributions."""


@dataclass
class Filtered:
    """Sums over the scored tiles of the sampled queries."""

    queries: int = 0
    tiles: int = 0
    postings: int = 0  # of all lists, as every scored tile is read today
    bytes: int = 0  # in sectors
    blocks: int = 0  # that hold a posting
    live: int = 0  # of them, those that are scored
    left_postings: int = 0  # read with the filter
    left_bytes: int = 0  # in sectors, with the filter's own
    filter_bytes: int = 0  # maxima and counts

    def per_query(self) -> dict[str, float]:
        """Every field over the number of queries, and the share of today's bytes that is left."""
        means = {
            item.name: round(getattr(self, item.name) / self.queries, 1)
            for item in fields(self)
            if item.name != "queries"
        }
        return {**means, "share of bytes": round(self.left_bytes / max(1, self.bytes), 3)}


def sectors(postings: Integers) -> int:
    """Sectors of these ascending postings of a list."""
    return int((np.diff(postings // SECTOR, prepend=-1) != 0).sum())


def filter_blocks(lists: Lists, pairs: Pairs, thresholds: Integers, queries: Integers, block_bits: int) -> Filtered:
    """Count what these queries would read. `thresholds` [queries, tiles] are of scored tiles, -1 of all others."""
    found = Filtered(queries=len(queries))
    tile_numbers = np.cumsum(lists.exists(pairs.bits)) - 1
    blocks_of_tile = 1 << (pairs.bits - block_bits)
    bounds = np.zeros(lists.size >> block_bits, dtype=np.int64)
    for row, query in enumerate(queries.tolist()):
        threshold = thresholds[row].astype(np.int64)
        scored = threshold >= 0
        found.tiles += int(scored.sum())
        bounds[:] = 0
        held: list[tuple[int, Integers, Integers]] = []
        for number in lists.own(query).tolist():
            first, end = int(lists.starts[number]), int(lists.starts[number + 1])
            blocks = lists.places[first:end] >> block_bits
            at_tile = tile_numbers[blocks // blocks_of_tile]
            kept = np.flatnonzero(scored[at_tile])
            if not len(kept):
                continue
            blocks, at_tile, quanta = blocks[kept], at_tile[kept], lists.quanta[first:end][kept]
            held.append((first, kept, blocks))
            borders = np.flatnonzero(np.diff(blocks, prepend=-1))
            tile_borders = np.flatnonzero(np.diff(at_tile, prepend=-1))
            largest = np.maximum.reduceat(quanta, tile_borders).astype(np.int64)
            of_block = np.repeat(largest, np.diff(np.append(np.searchsorted(borders, tile_borders), len(borders))))
            steps = -(-np.maximum.reduceat(quanta, borders).astype(np.int64) * STEPS // of_block)
            bounds[blocks[borders]] += -(-steps * of_block // STEPS)
        used = np.flatnonzero(bounds)
        live = np.zeros(len(bounds), dtype=np.bool_)
        live[used] = bounds[used] >= threshold[tile_numbers[used // blocks_of_tile]]
        live_tiles = np.zeros(scored.size, dtype=np.bool_)
        live_tiles[tile_numbers[np.flatnonzero(live) // blocks_of_tile]] = True
        found.blocks += len(used)
        found.live += int(live.sum())
        for first, kept, blocks in held:
            at_tile = tile_numbers[blocks // blocks_of_tile]
            counts = np.bincount(at_tile, minlength=scored.size)
            whole = counts * SECTOR_BYTES // SECTOR <= blocks_of_tile
            read = whole[at_tile] | live[blocks]
            found.postings += len(kept)
            found.bytes += SECTOR_BYTES * sectors(first + kept)
            found.left_postings += int(read.sum())
            own = (counts > 0) & ~whole
            filtering = blocks_of_tile * int(own.sum() + (own & live_tiles).sum())
            found.filter_bytes += filtering
            found.left_bytes += SECTOR_BYTES * sectors(first + kept[read]) + filtering
    return found
