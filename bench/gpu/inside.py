"""What happens inside scored tiles, counted: documents that reach the threshold, and the postings that MaxScore reads.

MaxScore in a tile: the lists whose maxima together stay below the threshold are not essential, since no document can
reach it by them alone. The documents of the essential lists are then the only candidates, and those that can still
reach it are looked up in the other lists. (To read the other lists only where there is such a document would leave
nothing out: the document with the largest contribution of the smallest essential list is always one.)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from .schedule import Rates, places
from .tiles import Lists, Pairs

Integers = npt.NDArray[np.signedinteger[Any]]

LISTED = 2048
"""Documents that a block lists as they reach the threshold (`MAX_REACHED` in score_tile.cuh)."""
THREADS = 512


@dataclass
class Inside:
    """Sums over the scored tiles of the sampled queries."""

    queries: int = 0
    tiles: int = 0
    postings: int = 0
    reached: int = 0  # documents at or above the threshold of the turn
    candidates: int = 0  # emitted: at most k a tile
    selecting: int = 0  # tiles where k documents reached it, so that the k best are selected
    scanned: int = 0  # tiles where more did than are listed, so that the whole tile is scanned
    essential: int = 0  # postings of essential lists
    partial: int = 0  # documents of essential lists
    hopeful: int = 0  # of these, those that reach the threshold with the rest's maxima
    lookups: int = 0  # of them in the other lists
    steps: int = 0  # look-ups times log2 of the list's part in the tile
    chosen_us: float = 0.0  # time of blocks, by `Rates`: selection of the k best; then all, with it
    plain_us: float = 0.0
    looked_us: float = 0.0

    def per_query(self) -> dict[str, float]:
        """Every field over the number of queries."""
        return {
            item.name: round(getattr(self, item.name) / self.queries, 2)
            for item in fields(self)
            if item.name != "queries"
        }


@dataclass(frozen=True, eq=False)
class _Part:
    """One query's lists, cut at tile borders: [slots, tiles]."""

    counts: Integers
    maxima: Integers


def look_inside(
    lists: Lists,
    pairs: Pairs,
    cut: tuple[Integers, Integers],
    thresholds: Integers,
    queries: Integers,
    k: int,
    rates: Rates | None = None,
) -> Inside:
    """Count what these queries do in their scored tiles. `thresholds` is `Outcome.thresholds`, a row a query."""
    rates = rates or Rates()
    found = Inside()
    counts, maxima = cut
    tile_numbers = np.cumsum(lists.exists(pairs.bits)) - 1
    dense, part_sums = (np.zeros(lists.size, dtype=np.int32) for _ in range(2))
    for row, query in enumerate(queries.tolist()):
        own = lists.own(query)
        threshold = thresholds[row].astype(np.int64)
        scored = threshold >= 0
        if not scored.any():
            found.queries += 1
            continue
        part = _Part(counts[own], maxima[own])
        essential, rest = essential_lists(part.maxima, threshold)
        essential &= scored
        touched = lists.sums(query, dense)
        of_essential = []
        for slot, number in enumerate(own.tolist()):
            where = slice(lists.starts[number], lists.starts[number + 1])
            at = lists.places[where]
            kept = essential[slot][tile_numbers[at >> pairs.bits]]
            part_sums[at[kept]] += lists.quanta[where][kept]
            of_essential.append(at[kept])
        tiles = scored.size
        documents = np.unique(touched)
        at_tile = tile_numbers[documents >> pairs.bits]
        reached = np.bincount(at_tile[scored[at_tile] & (dense[documents] >= threshold[at_tile])], minlength=tiles)
        partial = np.unique(np.concatenate(of_essential))
        at_tile = tile_numbers[partial >> pairs.bits]
        hopeful = np.bincount(at_tile[part_sums[partial] + rest[at_tile] >= threshold[at_tile]], minlength=tiles)
        dense[touched] = 0
        part_sums[partial] = 0
        others = (part.counts > 0) & ~essential & scored
        steps = np.ceil(np.log2(part.counts + 1)).astype(np.int64) * others
        read = part.counts.sum(axis=0) * scored
        first = (part.counts * essential).sum(axis=0)
        chosen = selection(reached, k, pairs.bits, rates)
        found.queries += 1
        found.tiles += int(scored.sum())
        found.postings += int(read.sum())
        found.reached += int(reached.sum())
        found.candidates += int(np.minimum(reached, k).sum())
        found.selecting += int((reached >= k).sum())
        found.scanned += int((reached > LISTED).sum())
        found.essential += int(first.sum())
        found.partial += len(partial)
        found.hopeful += int(hopeful.sum())
        found.lookups += int((hopeful * others.sum(axis=0)).sum())
        found.steps += int((hopeful * steps.sum(axis=0)).sum())
        all_runs = _rounds(part.counts * scored)
        first_runs = _rounds(part.counts * essential)
        # A look-up is a chain of loads; the threads of a block do 512 at once.
        chain = -(-hopeful // THREADS) * steps.sum(axis=0) * rates.load
        found.chosen_us += float(chosen[scored].sum())
        found.plain_us += float(_time(pairs.bits, all_runs, read, chosen, rates)[scored].sum())
        found.looked_us += float(_time(pairs.bits, first_runs, first, chain + chosen, rates)[scored].sum())
    return found


def essential_lists(maxima: Integers, threshold: Integers) -> tuple[npt.NDArray[np.bool_], Integers]:
    """([slots, tiles] whether a list is essential, [tiles] the sum of the maxima of the others)."""
    order = np.argsort(maxima, axis=0, kind="stable")
    ascending = np.take_along_axis(maxima, order, axis=0).astype(np.int64)
    sums = np.cumsum(ascending, axis=0)
    inessential = sums < threshold
    rest = (ascending * inessential).sum(axis=0)
    essential = np.empty_like(inessential)
    np.put_along_axis(essential, order, ~inessential, axis=0)
    return essential & (maxima > 0), rest


def selection(reached: Integers, k: int, bits: int, rates: Rates) -> npt.NDArray[np.float64]:
    """[tiles] microseconds of finding and emitting the k best of the listed documents.

    Where more reached the threshold than are listed, the k-th best of the list bounds that of the tile: one pass over
    the tile lists those that reach it, and the k best are selected again.
    """
    listed = rates.listed * np.where(reached >= k, rates.selecting, 1) * (reached > 0)
    scanned = rates.scan * (1 << bits) / (1 << 14) + rates.listed * rates.selecting
    return np.asarray(listed + (reached > LISTED) * scanned, dtype=np.float64)


def _rounds(counts: Integers) -> Integers:
    """[tiles] the steps in which 16 warps take runs of 128 postings."""
    return -(-(-(-counts // 128)).sum(axis=0) // 16)


def _time(
    bits: int, rounds: Integers, postings: Integers, more: npt.NDArray[np.float64], rates: Rates
) -> npt.NDArray[np.float64]:
    clear = rates.cleared * (4 << bits >> 10)
    blocks = places(bits) // 132
    return np.maximum(rates.block + rates.round * rounds + clear + more, blocks * (clear + rates.posting * postings))
