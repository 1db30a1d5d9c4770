"""The search verb in loops that numba compiles: the same answer as `search.py`, without the interpreter's lock.

A query is scored tile by tile in one reused row of scores; blocks of the row whose largest score is too small to enter
the k best are passed over.
"""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable, Sequence

import numba
import numpy as np
import numpy.typing as npt

from ..engine.bm25 import SCALE
from ..engine.decay import FACTOR_BITS, MAX_HALF_LIVES, PART_BITS, TABLE
from ..engine.plan import Plan, SegmentPlan
from ..engine.segment import TIME_BLOCK
from ..engine.timing import Phases
from . import search as vectorised
from .newest import segment_bounds
from .search import Output, groups, in_threads

Integers = npt.NDArray[np.int64]

# Documents of a tile: 128 KiB of scores, a part of the second-level cache.
TILE = 1 << 15
# Documents of a tile where the newest come first; the search may end after any.
NEWEST_TILE = 1 << 12
# Scores whose largest is found at once; a block that cannot enter the k best is passed over. Blocks of 16, 32, 64 and
# 128 took .21, .14, .14 and .09 ms a query on SGD at k 10.
BLOCK = 128
# Groups of scores whose maxima give the first floor, as a multiple of k, and at least.
GROUPS_PER_K = 4
MIN_GROUPS = 256
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

FACTORS = TABLE.astype(np.float64)
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
    leave int32, and the execution ``pruned``.

    Contributions are computed from the kinds of postings as they are read, so that a write costs the searches after
    it nothing.
    """
    phases = phases or Phases()
    rare = [plan for plan in plans if execution == "pruned" or _rare(plan)]
    out = vectorised.search(rare, batch, k, threads=threads, execution=execution, phases=phases)
    own = [plan for plan in plans if k and execution != "pruned" and not _rare(plan)]
    rest = Rest()
    reads: dict[int, Reader] = {id(plan): _reader(plan, threads, rest) for plan in own}
    tasks: list[tuple[Callable[..., int], Plan, Integers]] = []
    for plan in own:
        tasks += [(_search_group, plan, group) for _, group in groups(plan, threads)]
        size = -(-len(plan.newest) // threads) or 1
        starts = range(0, len(plan.newest), size)
        tasks += [(_search_newest, plan, plan.newest[start : start + size]) for start in starts]
    read: list[int] = []

    def run(task: tuple[Callable[..., int], Plan, Integers]) -> None:
        answer, plan, group = task
        read.append(answer(plan, group, reads[id(plan)], execution, out))

    with phases("score and select"):
        in_threads(run, tasks, threads)
    phases.count("postings", sum(read))
    Rest.since = time.perf_counter()
    return out


def _reader(plan: Plan, threads: int, rest: Rest) -> Reader:
    """How the plan's queries read each of its candidates (None: not at all), made when first asked for."""
    made: dict[int, _Reads | None] = {}
    lock = threading.Lock()

    def read(number: int) -> _Reads | None:
        with lock:
            if number not in made:
                part = plan.part(number)
                made[number] = None if part is None else _Reads(plan, part, threads, rest)
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

    def __init__(self, plan: Plan, part: SegmentPlan, threads: int, rest: Rest) -> None:
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
        self.masks = np.stack(part.passing) if part.passing else np.zeros((0, segment.size), dtype=np.bool_)
        self.rows, self.dense = _dense(plan, part)
        # Postings of each query's lists.
        self.postings = plan.summed((part.ends - part.starts)[plan.slots])
        # Whether reading the segment is worth letting other threads run meanwhile.
        seconds = POSTING_SECONDS * float(self.postings.sum()) + SCORE_SECONDS * len(plan.rows) * segment.size
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
        contributions.uses[rows[long]] = after
        for term in long[(before < DENSE_USES) & (after >= DENSE_USES)].tolist():
            start, end = int(part.starts[term]), int(part.ends[term])
            _fill(
                contributions.filled[rows[term]],
                part.segment.documents[start:end],
                part.segment.kinds[start:end],
                contributions.saturated,
                plan.idf[term],
            )
        rows[long[after < DENSE_USES]] = -1
        return rows, contributions.filled


def _search_group(plan: Plan, group: Integers, reader: Reader, execution: str, out: Output) -> int:
    k = plan.k[group]
    keys = np.empty((len(group), max(ROOM * int(k.max()), MIN_ROOM)), dtype=np.int64)
    found = np.zeros(len(group), dtype=np.int64)
    floors = np.ones(len(group), dtype=np.int64)
    reads = [read for number in plan.candidates if (read := reader(number)) is not None]
    for read in reads:
        score = _score_segment if read.long else _score_segment_held
        score(
            group, plan.offsets, plan.slots, plan.multiplicities, read.part.filters, k, *read.lists,
            read.rows, read.dense, read.masks, read.part.first, TILE, keys, found, floors,
        )  # fmt: skip
    scores, documents, counts = out
    _store(keys, found, k, plan.rows[group], scores, documents, counts)
    return int(sum(int(read.postings[group].sum()) for read in reads))


def _search_newest(plan: Plan, group: Integers, reader: Reader, execution: str, out: Output) -> int:
    k = plan.k[group]
    room = max(ROOM * int(k.max()), MIN_ROOM)
    keys = np.empty((len(group), room), dtype=np.int64)
    places = np.empty((len(group), room), dtype=np.int64)
    found = np.zeros(len(group), dtype=np.int64)
    floors = np.ones(len(group), dtype=np.int64)
    postings = 0
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
        postings += score(
            group, plan.offsets, plan.slots, plan.multiplicities, read.part.filters, k, *read.lists,
            read.masks, segment.times if timed else NO_TIMES, timed, segment.latest_before, TIME_BLOCK,
            segment_bounds(plan, read.part), read.part.low, read.part.high, plan.now, plan.rates, FACTORS, POWERS,
            read.part.first, NEWEST_TILE, execution == "exhaustive", keys, places, found, floors,
        )  # fmt: skip
    scores, documents, counts = out
    _store_newest(keys, places, found, k, plan.rows[group], scores, documents, counts)
    return int(postings)


@numba.njit(nogil=True, cache=True)
def _score_segment(
    group, offsets, slots, multiplicities, filters, k, starts, ends, documents, kinds, saturated, idf,
    dense_rows, dense, masks, first, tile, keys, found, floors,
):  # fmt: skip
    """Score one segment for a group of queries; `keys`, `found`, `floors` carry each one's best between segments."""
    size = masks.shape[1]
    scores = np.zeros(tile, dtype=np.int32)
    maxima = np.empty(tile, dtype=np.int32)
    cursors = np.empty(len(slots), dtype=np.int64)
    for row in range(len(group)):
        query, wanted, count, floor = group[row], k[row], found[row], floors[row]
        mask = filters[query]
        for slot in range(offsets[query], offsets[query + 1]):
            cursors[slot] = starts[slots[slot]]
        for low in range(0, size, tile):
            high = min(low + tile, size)
            touched = False
            for slot in range(offsets[query], offsets[query + 1]):
                term, weight = slots[slot], np.int32(multiplicities[slot])
                if dense_rows[term] >= 0:
                    _add_row(scores, dense[dense_rows[term], low:high], weight)
                    touched = True
                elif cursors[slot] < ends[term]:
                    start, stop = cursors[slot], ends[term]
                    if documents[stop - 1] >= high:
                        stop = _seek(documents, start, stop, high)
                    _add_list(scores, documents, kinds, saturated, start, stop, low, idf[term], weight)
                    touched = touched or stop > start
                    cursors[slot] = stop
            if not touched:
                continue
            if count < wanted and mask < 0:
                floor = max(floor, np.int64(_first_floor(scores[: high - low], maxima, wanted)))
            for start in range(0, high - low, BLOCK):
                stop = min(start + BLOCK, high - low)
                if _largest(scores[start:stop]) < floor:
                    continue
                for d in range(start, stop):
                    if scores[d] < floor or (mask >= 0 and not masks[mask, low + d]):
                        continue
                    keys[row, count] = (np.int64(scores[d]) << 32) + (np.int64(0xFFFFFFFF) - (first + low + d))
                    count += 1
                    if count == keys.shape[1]:
                        # Younger documents must beat the k-th score, not equal it.
                        floor = max(floor, (_keep_largest(keys[row], count, wanted) >> 32) + 1)
                        count = wanted
            scores[: high - low] = 0
            if count >= wanted:
                floor = max(floor, (_keep_largest(keys[row], count, wanted) >> 32) + 1)
                count = wanted
        floors[row], found[row] = floor, count


@numba.njit(nogil=True, cache=True)
def _add_row(scores, values, weight):
    for d in range(len(values)):
        scores[d] += values[d] * weight


@numba.njit(nogil=True, cache=True)
def _contribution(idf, saturated):
    """As `BM25.quanta`, for methods that are not signed."""
    return max(np.int32(np.rint(idf * saturated * SCALE)), np.int32(1))


@numba.njit(nogil=True, cache=True)
def _add_list(scores, documents, kinds, saturated, start, stop, low, idf, weight):
    """Add the postings at [start, stop) to the scores of their documents, which stand from `low` on."""
    # Unsigned places spare the test for negative indices.
    for p in range(np.uint64(start), np.uint64(stop)):
        scores[np.uint64(documents[p] - low)] += _contribution(idf, saturated[np.uint64(kinds[p])]) * weight


@numba.njit(cache=True)
def _fill(row, documents, kinds, saturated, idf):
    row[:] = 0
    for p in range(len(documents)):
        row[documents[p]] = _contribution(idf, saturated[kinds[p]])


@numba.njit(nogil=True, cache=True)
def _first_floor(scores, maxima, k):
    """A score that at least k documents reach: the k-th largest maximum of strided groups; 0 if there are too few."""
    groups = min(max(GROUPS_PER_K * k, MIN_GROUPS), len(scores))
    if groups < k:
        return np.int32(0)
    maxima[:groups] = scores[:groups]
    for start in range(groups, len(scores), groups):
        _raise(maxima, scores[start : start + groups])
    return _keep_largest(maxima, groups, k)


@numba.njit(nogil=True, cache=True)
def _raise(maxima, scores):
    for i in range(len(scores)):
        maxima[i] = max(maxima[i], scores[i])


@numba.njit(nogil=True, cache=True)
def _largest(scores):
    largest = np.int32(0)
    for d in range(len(scores)):
        largest = max(largest, scores[d])
    return largest


@numba.njit(nogil=True, cache=True)
def _seek(documents, start, end, wanted):
    """The first place in [start, end) whose document is at least `wanted`, or end. Gallops, as places lie near."""
    step = 1
    low = start
    while low + step < end and documents[low + step] < wanted:
        low += step
        step *= 2
    return _bisect(documents, low, min(low + step, end), wanted)


@numba.njit(nogil=True, cache=True)
def _bisect(documents, low, high, wanted):
    """The first place in [low, high) whose document is at least `wanted`, or high."""
    while low < high:
        middle = (low + high) >> 1
        if documents[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(nogil=True, cache=True)
def _keep_largest(keys, count, k):
    """Move the k largest of ``keys[:count]`` to the front; returns the smallest of them. 0 < k <= count."""
    low, high = 0, count - 1
    while low < high:
        middle = keys[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while keys[i] > middle:
                i += 1
            while keys[j] < middle:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return keys[k - 1]


@numba.njit(cache=True)
def _store(keys, found, k, rows, scores, documents, counts):
    for row in range(len(rows)):
        count = found[row]
        if count > k[row]:
            _keep_largest(keys[row], count, k[row])
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
                    _add_list(scores, documents, kinds, saturated, start, stops[slot], low, idf[term], weight)
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
    return _bisect(documents, max(high - step, start), high, wanted)


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


_score_segment_held = _held(_score_segment)
_score_newest_held = _held(_score_newest)
