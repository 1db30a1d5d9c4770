"""Blocks that take turns, simulated: which tiles are scored, which are skipped, and how long it takes.

Blocks see a threshold once the block that found it is done, so what is skipped depends on how many run at once. Times
are made of assumed `Rates`; what is skipped hardly depends on them.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .tiles import Pairs

Integers = npt.NDArray[np.signedinteger[Any]]

MULTIPROCESSORS = 132
SHARED_BYTES = 227 << 10
"""Of a multiprocessor (H100, H200), for all of its blocks."""
BLOCK_BYTES = 9 << 10
"""Of a block beside its sums."""
MOST_BLOCKS = 3
"""Of 512 threads in a multiprocessor: the registers of score_narrow hold three."""
CHUNKS, MOST_LOOKS = 8, 32
"""Looks of a block if all take the same number, and turns of a look at most (`take_turns` in score.cu)."""
BOUND_CLASSES = 256
"""Into which `order` sorts the entries of a query."""


@dataclass(frozen=True)
class Rates:
    """What a block's time is made of, in microseconds. Assumed; `bench.gpu.run` measures what replaces them."""

    load: float = 0.25  # one dependent load from the second-level cache
    block: float = 2.2  # descriptors, barriers and emission of a scored tile, beside what follows
    round: float = 0.6  # the loads and additions of one run of every warp
    cleared: float = 1 / 244  # a KiB of sums: 128 bytes a clock
    posting: float = 8 / 41.7e3 + 1 / 9.1e3  # 8 bytes at 5.5 TB/s, an addition at 1.2e12 a second, over 132
    scan: float = 1.8  # a pass over 2**14 sums, three blocks at once: 8 instructions a sum, 128 lanes a clock
    listed: float = 0.3  # a pass over the listed documents
    selecting: int = 4  # passes of a tile with k documents at the threshold; 1 of others


def places(bits: int) -> int:
    """Blocks in the card at once, with tiles of 2**bits sums of 4 bytes."""
    return MULTIPROCESSORS * min(MOST_BLOCKS, SHARED_BYTES // ((4 << bits) + BLOCK_BYTES))


@dataclass(frozen=True)
class Scheme:
    """How a launch goes through the pairs."""

    name: str
    best_first: bool = True  # rank-major: the best tile of every query, then the second; else tile by tile
    first: bool = False  # thresholds begin with the k-th best contribution of a list
    looks: int = 0  # turns that a warp looks at together; 0: as score.cu does
    look_loads: int = 2  # dependent loads of a look
    raises: bool = True


@dataclass(frozen=True, eq=False)
class Outcome:
    """What was scored of the queries that took part, [queries, tiles] or summed."""

    thresholds: Integers  # at the turn of each scored pair; -1: left out or skipped
    entries: int  # pairs that are not left out before the first tile is scored
    scored: int
    postings: int
    microseconds: float
    busy: float  # share of the blocks' time
    last: Integers  # [queries] the thresholds at the end


def durations(pairs: Pairs, rates: Rates, turns: int) -> npt.NDArray[np.float64]:
    """[queries, tiles] microseconds of a scored tile, where blocks take so many turns.

    It is a chain of steps, or the multiprocessor's rates if they bind: its blocks share them.
    """
    clear = rates.cleared * (4 << pairs.bits >> 10)
    chain = rates.block + rates.round * pairs.rounds + clear
    own = min(places(pairs.bits), turns) / MULTIPROCESSORS
    return np.maximum(chain, max(1.0, own) * (clear + rates.posting * pairs.postings))


def turns(pairs: Pairs, queries: Integers, first: Integers, best_first: bool) -> tuple[Integers, Integers]:
    """(query, tile) of the entries in the order in which blocks take them. `queries` are numbers in `pairs`."""
    listed = (pairs.postings[queries] > 0) & (pairs.bounds[queries] >= first[:, None])
    query, tile = np.nonzero(listed)
    if not best_first:
        order = np.argsort(tile, kind="stable")
        return query[order], tile[order]
    bounds = pairs.bounds[queries][query, tile].astype(np.int64)
    best = np.zeros(len(queries), dtype=np.int64)
    np.maximum.at(best, query, bounds)
    classes = BOUND_CLASSES - 1 - (bounds * (BOUND_CLASSES - 1)) // np.maximum(1, best[query])
    order = np.lexsort((tile, classes, query))
    query, tile = query[order], tile[order]
    begins = np.searchsorted(query, np.arange(len(queries)))
    rank = np.arange(len(query)) - begins[query]
    order = np.lexsort((query, rank))
    return query[order], tile[order]


def simulate(
    pairs: Pairs,
    kth: Integers,
    queries: Integers,
    firsts: Integers,
    scheme: Scheme,
    rates: Rates | None = None,
    workers: int | None = None,
) -> Outcome:
    """Blocks take the turns of these queries of `pairs`. `kth` is the tiles' k-th best sum, as `kth_sums` has it."""
    rates = rates or Rates()
    first = firsts[queries] if scheme.first else np.ones(len(queries), dtype=np.int64)
    query, tile = (part.tolist() for part in turns(pairs, queries, first, scheme.best_first))
    bounds, found = pairs.bounds[queries], kth[queries]
    took = durations(replace(pairs, rounds=pairs.rounds[queries], postings=pairs.postings[queries]), rates, len(query))
    thresholds = first.tolist()
    scored = np.full(bounds.shape, -1, dtype=np.int64)
    look = scheme.look_loads * rates.load
    most = workers or places(pairs.bits)
    looks = scheme.looks or max(1, min(MOST_LOOKS, len(query) // (most * CHUNKS)))
    blocks = min(most, max(1, -(-len(query) // looks)))
    # (time, block, query and k-th sum of the tile it has just scored)
    free: list[tuple[float, int, int, int]] = [(0.0, block, -1, 0) for block in range(blocks)]
    held: list[list[int]] = [[] for _ in range(blocks)]
    following, end, busy = 0, 0.0, 0.0
    while free:
        now, block, own, reached = heapq.heappop(free)
        if own >= 0 and scheme.raises and reached > thresholds[own]:
            thresholds[own] = reached
        end = max(end, now)
        mine = held[block]
        while True:
            if not mine:
                if following >= len(query):
                    break
                last = min(following + looks, len(query))
                mine.extend(
                    turn for turn in range(last - 1, following - 1, -1)
                    if bounds[query[turn], tile[turn]] >= thresholds[query[turn]]
                )  # fmt: skip
                following = last
                now += look
                continue
            turn = mine.pop()
            asks, at = query[turn], tile[turn]
            if bounds[asks, at] < thresholds[asks]:
                continue
            scored[asks, at] = thresholds[asks]
            time = float(took[asks, at])
            busy += time
            heapq.heappush(free, (now + time, block, asks, int(found[asks, at])))
            break
    kept = scored >= 0
    return Outcome(
        scored,
        len(query),
        int(kept.sum()),
        int(pairs.postings[queries][kept].sum()),
        end,
        busy / (end * blocks) if end else 0.0,
        np.array(thresholds),
    )
