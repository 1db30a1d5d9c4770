"""The search verb in loops that numba compiles: the same answer as `search.py`, without the interpreter's lock.

A query is scored tile by tile in one reused row of scores: over all time by `maxscore.py`, from the newest document to
the oldest here.
"""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from ..engine.index.decay import FACTOR_BITS, MAX_HALF_LIVES, PART_BITS, TABLE
from ..engine.index.segment import TIME_BLOCK
from ..engine.plan.plan import Plan, SegmentPlan
from ..engine.timing import Phases
from . import search as vectorised
from .maxscore import add_list, bisect, bounds, enter, fill, keep_largest, score_segment, survey
from .newest import segment_bounds
from .search import Output, groups, in_threads

Integers = npt.NDArray[np.int64]

# Documents of a tile: 128 KiB of scores, a part of the second-level cache.
TILE = 1 << 15
# Documents of a tile where the newest come first; the search may end after any.
NEWEST_TILE = 1 << 12
# Postings per hundred documents of a tile from which on it is looked through document by document.
SCAN_PERCENT = 25
# A segment with fewer documents is read in full: what a survey of its lists costs would not come back.
PRUNED_DOCUMENTS = 1 << 12
# Candidates kept before the k best of them are picked out, as a multiple of k (above 1), and at least.
ROOM = 4
MIN_ROOM = 128
# Uses of a long list in one epoch after which it is kept as a dense row: filling it costs as much as two to four uses,
# and new memory. One fan-out does not reach it, so that where every search meets a new epoch none is filled.
DENSE_USES = 24

# Beside a thread that writes, the interpreter's lock comes back one or two milliseconds after it was let go. So a
# segment is read without letting go of it where that takes less than 200 us, or where no search has run for as
# long as this one has kept the lock: searches now and then keep it, searches without pause share it.
HELD_SECONDS, MAX_HELD_SECONDS = 2e-4, 1e-2
POSTING_SECONDS, SCORE_SECONDS = 1.2e-9, 0.2e-9

COUNTED = "postings", "row entries", "lookups", "bytes"
"""What a search counts: postings read, entries of dense rows read, documents looked up in lists, and the bytes of the
first two.
"""

FACTORS = TABLE.astype(np.float64)
NO_SKIPS: tuple[npt.NDArray[Any], ...] = tuple(
    np.zeros(0, dtype) for dtype in (np.int8, np.int64, np.int32, np.int8, np.int64, np.uint8)
)
NO_TIMES = np.zeros(0)
NO_TIMES.flags.writeable = False
POWERS = np.ldexp(1.0, -(np.arange(MAX_HALF_LIVES + 1) + FACTOR_BITS))


def search(
    plans: Sequence[Plan],
    batch: int,
    k: int,
    *,
    threads: int = 1,
    execution: str = "auto",
    phases: Phases | None = None,
) -> Output:
    """As `fanrank.cpu_fallback.search.search`, which also serves what is rare here: signed plans, queries that may
    leave int32. ``auto`` is ``pruned`` here: of segments of `PRUNED_DOCUMENTS` and more they read what the
    k best may depend on.

    Contributions are computed from the kinds of postings as they are read, so that a write costs the searches after
    it nothing.
    """
    phases = phases or Phases()
    rare = [plan for plan in plans if _rare(plan)]
    out = vectorised.search(rare, batch, k, threads=threads, execution=execution, phases=phases)
    own = [plan for plan in plans if k and not _rare(plan)]
    rest = Rest()
    reads: dict[int, Reader] = {id(plan): _reader(plan, threads, rest, execution) for plan in own}
    tasks: list[tuple[Callable[..., Integers], Plan, Integers]] = []
    for plan in own:
        tasks += [(_search_group, plan, group) for _, group in groups(plan, threads)]
        size = -(-len(plan.newest) // threads) or 1
        starts = range(0, len(plan.newest), size)
        tasks += [(_search_newest, plan, plan.newest[start : start + size]) for start in starts]
    counted: list[Integers] = []

    def run(task: tuple[Callable[..., Integers], Plan, Integers]) -> None:
        answer, plan, group = task
        counted.append(answer(plan, group, reads[id(plan)], execution, out))

    with phases("score and select"):
        in_threads(run, tasks, threads)
    for name, number in zip(COUNTED, sum(counted, np.zeros(len(COUNTED), dtype=np.int64)).tolist(), strict=True):
        phases.count(name, number)
    Rest.since = time.perf_counter()
    return out


def _reader(plan: Plan, threads: int, rest: Rest, execution: str) -> Reader:
    """How the plan's queries read each of its candidates (None: not at all), made when first asked for."""
    made: dict[int, _Reads | None] = {}
    lock = threading.Lock()

    def read(number: int) -> _Reads | None:
        with lock:
            if number not in made:
                part = plan.part(number)
                made[number] = None if part is None else _Reads(plan, part, threads, rest, execution)
            return made[number]

    return read


def _rare(plan: Plan) -> bool:
    return plan.signed or bool(plan.large.any()) or plan.snapshot.long


class Rest:
    """Seconds for which a search may keep the interpreter's lock: as many as have passed since the last one."""

    since = 0.0

    def __init__(self) -> None:
        self._left = min(time.perf_counter() - Rest.since, MAX_HELD_SECONDS)

    def spend(self, seconds: float) -> bool:
        """Whether so many are left, which are then spent."""
        enough = seconds <= self._left
        self._left -= seconds if enough else 0.0
        return enough


class _Reads:
    """How a plan's queries read one segment."""

    def __init__(self, plan: Plan, part: SegmentPlan, threads: int, rest: Rest, execution: str) -> None:
        self.part = part
        segment = part.segment
        self.lists = (
            part.starts,
            part.ends,
            segment.documents,
            segment.kinds,
            part.contributions.saturated,
            plan.idf,
        )
        self.posting_bytes = segment.documents.itemsize + segment.kinds.itemsize
        self.masks = np.stack(part.passing) if part.passing else np.zeros((0, segment.size), dtype=np.bool_)
        self.rows, self.dense = _dense(plan, part)
        over_all_time = not plan.newest_first.all()
        self.prunes = over_all_time and execution != "exhaustive" and segment.size >= PRUNED_DOCUMENTS
        if self.prunes:
            self.ceilings, self.reached = _bounds(plan, part, self.masks)
            self.skips = _skips(part)
        else:
            self.ceilings, self.reached = np.zeros_like(part.starts), np.zeros_like(plan.rows)
            self.skips = NO_SKIPS
        # Whether reading the segment is worth letting other threads run meanwhile.
        postings = float((part.ends - part.starts)[plan.slots].sum())
        seconds = POSTING_SECONDS * postings + SCORE_SECONDS * len(plan.rows) * segment.size
        self.long = threads > 1 or not (seconds <= HELD_SECONDS or rest.spend(seconds))


Reader = Callable[[int], "_Reads | None"]


def _dense(plan: Plan, part: SegmentPlan) -> tuple[Integers, npt.NDArray[np.int32]]:
    """[distinct terms] the row of each list that is read as one, or -1; and the rows [rows, documents]."""
    rows = part.dense_rows
    long = np.flatnonzero(rows >= 0)
    contributions = part.contributions
    if not len(long):
        return rows, np.zeros((0, part.segment.size), dtype=np.int32)
    uses = np.bincount(plan.slots[np.repeat(~plan.newest_first, np.diff(plan.offsets))], minlength=len(rows))[long]
    with contributions.lock:
        before = contributions.uses[rows[long]]
        after = before + uses
        for term in long[(before < DENSE_USES) & (after >= DENSE_USES)].tolist():
            start, end = int(part.starts[term]), int(part.ends[term])
            fill(
                contributions.filled[rows[term]],
                part.segment.documents[start:end],
                part.segment.kinds[start:end],
                contributions.saturated,
                plan.idf[term],
            )
        # Last: a row that could not be filled is tried again.
        contributions.uses[rows[long]] = after
        rows[long[after < DENSE_USES]] = -1
        return rows, contributions.filled


def _skips(part: SegmentPlan) -> tuple[npt.NDArray[Any], ...]:
    """Of each distinct term's list, where the segment skips in it (entered now if it was not): (bits, starts,
    entries, group bits, group starts, presence).
    """
    segment, own, positions = part.segment, part.segment.skips, part.positions
    with own.lock:
        missing = positions[positions >= 0]
        missing = missing[own.bits[missing] < own.wanted_bits[missing]]
        if len(missing):
            enter(
                missing, segment.offsets, segment.documents, segment.size,
                own.wanted_bits, own.starts, own.entries, own.group_bits, own.group_starts, own.presence,
            )  # fmt: skip
            own.bits[missing] = own.wanted_bits[missing]
        bits = own.bits[positions]
    # Positions of -1 give what nobody reads.
    starts, group_bits, group_starts = (values[positions] for values in (own.starts, own.group_bits, own.group_starts))
    return bits, starts, own.entries, group_bits, group_starts, own.presence


def _bounds(plan: Plan, part: SegmentPlan, masks: npt.NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """What each list can add to a score at most [distinct terms], and what the hits of each query reach [queries]."""
    segment = part.segment
    peaks, least, largest = part.contributions.peaks
    survey(
        part.positions, segment.offsets, segment.kinds, peaks.reference, peaks.best_kinds, peaks.ranks, peaks.values
    )  # fmt: skip
    # As many documents as do not pass may be among the best of a list.
    blocked = np.append(segment.size - np.count_nonzero(masks, axis=1), 0)
    ranks = np.searchsorted(peaks.ranks, plan.k + blocked[part.filters])
    ceilings, reached = bounds(
        part.positions, plan.idf, peaks.values, least, largest, plan.offsets, plan.slots, plan.multiplicities, ranks
    )  # fmt: skip
    return ceilings, reached


def _search_group(plan: Plan, group: Integers, reader: Reader, execution: str, out: Output) -> Integers:
    k = plan.k[group]
    keys = np.empty((len(group), max(ROOM * int(k.max()), MIN_ROOM)), dtype=np.int64)
    found = np.zeros(len(group), dtype=np.int64)
    floors = np.ones(len(group), dtype=np.int64)
    counted = np.zeros(len(COUNTED), dtype=np.int64)
    for number in plan.candidates:
        read = reader(number)
        if read is None:
            continue
        own = np.zeros_like(counted)
        score: Callable[..., None] = score_segment if read.long else _score_segment_held
        score(
            group, plan.offsets, plan.slots, plan.multiplicities, read.part.filters, k, *read.lists,
            read.ceilings, read.reached, *read.skips, read.rows, read.dense, read.masks, read.part.first, TILE,
            SCAN_PERCENT, read.prunes, keys, found, floors, own,
        )  # fmt: skip
        own[3] = own[0] * read.posting_bytes + own[1] * read.dense.itemsize
        counted += own
    scores, documents, counts = out
    _store(keys, found, k, plan.rows[group], scores, documents, counts)
    return counted


def _search_newest(plan: Plan, group: Integers, reader: Reader, execution: str, out: Output) -> Integers:
    k = plan.k[group]
    room = max(ROOM * int(k.max()), MIN_ROOM)
    keys = np.empty((len(group), room), dtype=np.int64)
    places = np.empty((len(group), room), dtype=np.int64)
    found = np.zeros(len(group), dtype=np.int64)
    floors = np.ones(len(group), dtype=np.int64)
    postings = bytes_read = 0
    for number in reversed(plan.candidates):
        full = found >= k
        if execution != "exhaustive" and full.all() and (plan.bounds_before(number, group) < floors).all():
            break
        read = reader(number)
        if read is None:
            continue
        segment = read.part.segment
        timed = segment.times is not None
        score = _score_newest if read.long else _score_newest_held
        own = score(
            group, plan.offsets, plan.slots, plan.multiplicities, read.part.filters, k, *read.lists,
            read.masks, segment.times if timed else NO_TIMES, timed, segment.latest_before, TIME_BLOCK,
            segment_bounds(plan, read.part), read.part.low, read.part.high, plan.now, plan.rates, FACTORS, POWERS,
            read.part.first, NEWEST_TILE, execution == "exhaustive", keys, places, found, floors,
        )  # fmt: skip
        postings += own
        bytes_read += own * read.posting_bytes
    scores, documents, counts = out
    _store_newest(keys, places, found, k, plan.rows[group], scores, documents, counts)
    return np.array([postings, 0, 0, bytes_read], dtype=np.int64)


@numba.njit(cache=True)
def _store(keys, found, k, rows, scores, documents, counts):
    for row in range(len(rows)):
        count = found[row]
        if count > k[row]:
            keep_largest(keys[row], count, k[row])
            count = k[row]
        own = np.sort(keys[row, :count])
        for place in range(count):
            key = own[count - 1 - place]
            scores[rows[row], place] = key >> 32
            documents[rows[row], place] = np.int64(0xFFFFFFFF) - (key & np.int64(0xFFFFFFFF))
        counts[rows[row]] = count


@numba.njit(nogil=True, cache=True)
def _score_newest(
    group, offsets, slots, multiplicities, filters, k, starts, ends, documents, kinds, saturated, idf,
    masks, times, timed, latest_before, time_block, bounds, lows, highs, nows, rates, factors, powers,
    first, tile, exhaustive, keys, places, found, floors,
):  # fmt: skip
    """Score one segment for a group of queries from its newest document to its oldest; returns the postings read.

    A query's search of the segment ends at a tile where nothing older can reach its k-th best.
    """
    scores = np.zeros(tile, dtype=np.int32)
    stops = np.empty(len(slots), dtype=np.int64)
    postings = 0
    for row in range(len(group)):
        query, wanted, count, floor = group[row], k[row], found[row], floors[row]
        mask, now, rate = filters[query], nows[query], rates[query]
        own_low, high = lows[query], highs[query]
        for slot in range(offsets[query], offsets[query + 1]):
            term = slots[slot]
            stops[slot] = ends[term]
            if high < masks.shape[1]:
                stops[slot] = _seek_back(documents, starts[term], ends[term], high)
        while high > own_low:
            low = max(own_low, (high - 1) // tile * tile)
            latest = latest_before[(high - 1) // time_block]
            if count >= wanted and not exhaustive and _key(bounds[query], latest, now, rate, factors, powers) < floor:
                break
            for slot in range(offsets[query], offsets[query + 1]):
                term = slots[slot]
                if stops[slot] > starts[term] and documents[stops[slot] - 1] >= low:
                    start = _seek_back(documents, starts[term], stops[slot], low)
                    weight = np.int32(multiplicities[slot])
                    add_list(scores, documents, kinds, saturated, start, stops[slot], low, idf[term], weight)
                    postings += stops[slot] - start
                    stops[slot] = start
            for d in range(high - low):
                if scores[d] == 0:
                    continue
                if mask < 0 or masks[mask, low + d]:
                    time = times[low + d] if timed else np.inf
                    key = _key(np.int64(scores[d]), time, now, rate, factors, powers)
                    if key >= floor:
                        keys[row, count], places[row, count] = key, first + low + d
                        count += 1
                        if count == keys.shape[1]:
                            floor = max(floor, _keep_best(keys[row], places[row], count, wanted))
                            count = wanted
                scores[d] = 0
            if count >= wanted:
                floor = max(floor, _keep_best(keys[row], places[row], count, wanted))
                count = wanted
            high = low
        floors[row], found[row] = floor, count
    return postings


@numba.njit(nogil=True, cache=True)
def _key(total, time, now, rate, factors, powers):
    """A sum of contributions, or the bits of what `decay.decayed` makes of it."""
    if rate == 0.0:
        return total
    age = (now - time) * rate
    ticks = np.int64(0)
    # False for a record without a time: the comparison with NaN, or an age of minus infinity.
    if age > 0.0:
        ticks = np.int64(min(age, np.float64((len(powers) - 1) << PART_BITS)))
    value = (np.float64(total) * factors[ticks & ((1 << PART_BITS) - 1)]) * powers[ticks >> PART_BITS]
    return np.float64(value).view(np.int64)


@numba.njit(nogil=True, cache=True)
def _seek_back(documents, start, end, wanted):
    """The first place in [start, end) whose document is at least `wanted`, or end. Gallops from the end."""
    step = 1
    high = end
    while high - step >= start and documents[high - step] >= wanted:
        high -= step
        step *= 2
    return bisect(documents, max(high - step, start), high, wanted)


@numba.njit(nogil=True, cache=True)
def _better(key, place, other_key, other_place):
    """Whether the first of two ranks before the second: the larger key, then the smaller document."""
    return key > other_key or (key == other_key and place < other_place)


@numba.njit(nogil=True, cache=True)
def _keep_best(keys, places, count, k):
    """Move the k best to the front; returns the smallest key of them. 0 < k <= count."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) >> 1
        key, place = keys[middle], places[middle]
        i, j = low, high
        while i <= j:
            while _better(keys[i], places[i], key, place):
                i += 1
            while _better(key, place, keys[j], places[j]):
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                places[i], places[j] = places[j], places[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    smallest = keys[0]
    for place in range(1, k):
        smallest = min(smallest, keys[place])
    return smallest


@numba.njit(cache=True)
def _store_newest(keys, places, found, k, rows, scores, documents, counts):
    for row in range(len(rows)):
        count = found[row]
        if count > k[row]:
            _keep_best(keys[row], places[row], count, k[row])
            count = k[row]
        # Twice in a stable way: by document, then by key.
        order = np.argsort(places[row, :count], kind="mergesort")
        order = order[np.argsort(-keys[row, order], kind="mergesort")]
        for place in range(count):
            scores[rows[row], place], documents[rows[row], place] = keys[row, order[place]], places[row, order[place]]
        counts[rows[row]] = count


def _held(loop):
    """The same loop, compiled to keep the interpreter's lock."""
    function = loop.py_func
    copy = types.FunctionType(function.__code__, function.__globals__, f"{function.__name__}_held")
    copy.__qualname__ = copy.__name__  # or both would share their place in numba's cache
    copy.__module__ = function.__module__
    return numba.njit(cache=True)(copy)


_score_segment_held = _held(score_segment)
_score_newest_held = _held(_score_newest)
