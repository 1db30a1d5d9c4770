"""The search verb in loops that numba compiles: the same answer as `search.py`, without the interpreter's lock.

A query is scored tile by tile in one reused row of scores: over all time by `maxscore.py`, from the newest document to
the oldest by `newest_compiled.py`.
"""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable, Sequence

import numba
import numpy as np
import numpy.typing as npt

from ..engine.arrays import Integers
from ..engine.index.decay import FACTOR_BITS, MAX_HALF_LIVES, TABLE
from ..engine.index.segment import TIME_BLOCK
from ..engine.plan.plan import Plan, SegmentPlan
from ..engine.timing import Phases
from . import search as vectorised
from .loop_arguments import (
    BestHits,
    Bounds,
    Decay,
    DenseRows,
    Filters,
    NewestHits,
    NewestOptions,
    PostingLists,
    QueryGroup,
    ScanOptions,
    SkipTable,
    TimeRanges,
)
from .maxscore import bounds, enter, fill, score_segment, survey
from .newest import segment_bounds
from .newest_compiled import score_newest
from .quickselect import keep_best
from .search import Output, groups, run_in_threads

# Documents of a tile: 128 KiB of scores, a part of the second-level cache.
TILE = 1 << 15
# Documents of a tile where the newest come first; the search may end after any tile.
NEWEST_TILE = 1 << 12
# Postings per hundred documents of a tile from which on its scores are looked through document by document.
SCAN_PERCENT = 25
# A segment with fewer documents is read in full: surveying its lists would cost more than it saves.
PRUNED_DOCUMENTS = 1 << 12
# Keys kept before the k best of them are picked out, as a multiple of k (above 1), and at least.
ROOM = 4
MIN_ROOM = 128
# Uses of a long list in one epoch after which it is kept as a dense row. Filling a row costs as much as two to four
# uses, and new memory. One fan-out has fewer uses, so no row is filled where every search meets a new epoch.
DENSE_USES = 24

# Beside a writing thread, Python gets the interpreter's lock back one or two milliseconds after it releases it. So a
# loop keeps the lock if it takes less than `HELD_SECONDS`, or if no search ran for as long as the loop will take.
# Occasional searches keep the lock; searches without pause share it.
HELD_SECONDS, MAX_HELD_SECONDS = 2e-4, 1e-2
POSTING_SECONDS, SCORE_SECONDS = 1.2e-9, 0.2e-9

COUNTED = "postings", "row entries", "lookups", "bytes"
"""The counts of a search: postings read, entries of dense rows read, documents looked up in lists, and the bytes of
postings and entries.
"""

FACTORS = TABLE.astype(np.float64)
NO_SKIP_TABLES = SkipTable(
    np.zeros(0, np.int8),
    np.zeros(0, np.int64),
    np.zeros(0, np.int32),
    np.zeros(0, np.int8),
    np.zeros(0, np.int64),
    np.zeros(0, np.uint8),
)
NO_TIMES = np.zeros(0)
NO_TIMES.flags.writeable = False
POWERS = np.ldexp(1.0, -(np.arange(MAX_HALF_LIVES + 1) + FACTOR_BITS))


def search_compiled(
    plans: Sequence[Plan],
    batch: int,
    k: int,
    *,
    threads: int = 1,
    execution: str = "auto",
    phases: Phases | None = None,
) -> Output:
    """As `fanrank.cpu_fallback.search.search`, which also serves the rare plans: signed ones, and ones whose scores may
    leave int32. ``auto`` is ``pruned`` here: a segment of `PRUNED_DOCUMENTS` or more is read by MaxScore.

    Contributions are computed from the impact classes of postings as they are read, so that a write costs the searches
    after it nothing.
    """
    phases = phases or Phases()
    rare = [plan for plan in plans if _is_rare(plan)]
    out = vectorised.search_numpy(rare, batch, k, threads=threads, execution=execution, phases=phases)
    common = [plan for plan in plans if k and not _is_rare(plan)]
    budget = LockBudget()
    readers: dict[int, Reader] = {id(plan): _reader(plan, threads, budget, execution) for plan in common}
    tasks: list[tuple[Callable[..., Integers], Plan, Integers]] = []
    for plan in common:
        tasks += [(_search_group, plan, group) for _, group in groups(plan, threads)]
        size = -(-len(plan.newest) // threads) or 1
        starts = range(0, len(plan.newest), size)
        tasks += [(_search_newest, plan, plan.newest[start : start + size]) for start in starts]
    counted: list[Integers] = []

    def run(task: tuple[Callable[..., Integers], Plan, Integers]) -> None:
        search_queries, plan, group = task
        counted.append(search_queries(plan, group, readers[id(plan)], execution, out))

    with phases("score and select"):
        run_in_threads(run, tasks, threads)
    for name, number in zip(COUNTED, sum(counted, np.zeros(len(COUNTED), dtype=np.int64)).tolist(), strict=True):
        phases.count(name, number)
    LockBudget.last_search = time.perf_counter()
    return out


def _reader(plan: Plan, threads: int, budget: LockBudget, execution: str) -> Reader:
    """A function of a candidate's number: how the plan's queries read that segment; None: not at all.

    Each result is computed at its first use.
    """
    readings: dict[int, _SegmentReading | None] = {}
    lock = threading.Lock()

    def read(number: int) -> _SegmentReading | None:
        with lock:
            if number not in readings:
                part = plan.plan_segment(number)
                readings[number] = None if part is None else _SegmentReading(plan, part, threads, budget, execution)
            return readings[number]

    return read


def _is_rare(plan: Plan) -> bool:
    return plan.signed or bool(plan.large.any()) or plan.snapshot.long


class LockBudget:
    """Seconds for which a search may keep the interpreter's lock: the time since the last search."""

    last_search = 0.0

    def __init__(self) -> None:
        self._left = min(time.perf_counter() - LockBudget.last_search, MAX_HELD_SECONDS)

    def spend(self, seconds: float) -> bool:
        """Spend this many seconds if they are left. Returns whether they were."""
        enough = seconds <= self._left
        self._left -= seconds if enough else 0.0
        return enough


class _SegmentReading:
    """How a plan's queries read one segment."""

    def __init__(self, plan: Plan, part: SegmentPlan, threads: int, budget: LockBudget, execution: str) -> None:
        self.part = part
        segment = part.segment
        self.lists = PostingLists(
            part.starts,
            part.ends,
            segment.documents,
            segment.impact_classes,
            part.contributions.saturated,
            plan.idf,
        )
        self.posting_bytes = segment.documents.itemsize + segment.impact_classes.itemsize
        masks = np.stack(part.passing) if part.passing else np.zeros((0, segment.size), dtype=np.bool_)
        self.filters = Filters(part.filters, masks)
        self.dense_rows = _dense_rows(plan, part)
        over_all_time = not plan.newest_first.all()
        self.prunes = over_all_time and execution != "exhaustive" and segment.size >= PRUNED_DOCUMENTS
        if self.prunes:
            self.bounds = _bounds(plan, part, masks)
            self.skip_table = _skip_table(part)
        else:
            self.bounds = Bounds(np.zeros_like(part.starts), np.zeros_like(plan.rows))
            self.skip_table = NO_SKIP_TABLES
        postings = float((part.ends - part.starts)[plan.slots].sum())
        seconds = POSTING_SECONDS * postings + SCORE_SECONDS * len(plan.rows) * segment.size
        self.frees_lock = threads > 1 or not (seconds <= HELD_SECONDS or budget.spend(seconds))
        """Whether reading the segment takes so long that other threads must run meanwhile."""


Reader = Callable[[int], "_SegmentReading | None"]


def _dense_rows(plan: Plan, part: SegmentPlan) -> DenseRows:
    """The lists that are read as dense rows. Lists that now reach `DENSE_USES` are filled."""
    rows = part.dense_rows
    long = np.flatnonzero(rows >= 0)
    contributions = part.contributions
    if not len(long):
        return DenseRows(rows, np.zeros((0, part.segment.size), dtype=np.int32))
    uses = np.bincount(plan.slots[np.repeat(~plan.newest_first, np.diff(plan.offsets))], minlength=len(rows))[long]
    with contributions.lock:
        before = contributions.uses[rows[long]]
        after = before + uses
        for term in long[(before < DENSE_USES) & (after >= DENSE_USES)].tolist():
            start, end = int(part.starts[term]), int(part.ends[term])
            fill(
                contributions.filled[rows[term]],
                part.segment.documents[start:end],
                part.segment.impact_classes[start:end],
                contributions.saturated,
                plan.idf[term],
            )
        # This comes last, so that a row that could not be filled is tried again.
        contributions.uses[rows[long]] = after
        rows[long[after < DENSE_USES]] = -1
        return DenseRows(rows, contributions.filled)


def _skip_table(part: SegmentPlan) -> SkipTable:
    """The skip table of each distinct term's list; lists that have no entries yet are entered now."""
    segment, skip_tables, positions = part.segment, part.segment.skip_tables, part.positions
    with skip_tables.lock:
        missing = positions[positions >= 0]
        missing = missing[skip_tables.bits[missing] < skip_tables.wanted_bits[missing]]
        if len(missing):
            wanted = SkipTable(
                skip_tables.wanted_bits,
                skip_tables.starts,
                skip_tables.entries,
                skip_tables.group_bits,
                skip_tables.group_starts,
                skip_tables.presence,
            )
            enter(missing, segment.offsets, segment.documents, segment.size, wanted)
            skip_tables.bits[missing] = skip_tables.wanted_bits[missing]
        bits = skip_tables.bits[positions]
    # A position of -1 takes the values of the last list; nobody reads them, as the segment lacks the term.
    return SkipTable(
        bits,
        skip_tables.starts[positions],
        skip_tables.entries,
        skip_tables.group_bits[positions],
        skip_tables.group_starts[positions],
        skip_tables.presence,
    )


def _bounds(plan: Plan, part: SegmentPlan, masks: npt.NDArray[np.bool_]) -> Bounds:
    """The upper bound of each list, and the score that the k best documents of each query reach."""
    segment = part.segment
    upper_bounds, least, largest = part.contributions.upper_bounds
    survey(
        part.positions, segment.offsets, segment.impact_classes,
        upper_bounds.reference, upper_bounds.best_classes, upper_bounds.ranks, upper_bounds.values
    )  # fmt: skip
    # All documents that do not pass may be among the best of a list.
    blocked = np.append(segment.size - np.count_nonzero(masks, axis=1), 0)
    ranks = np.searchsorted(upper_bounds.ranks, plan.k + blocked[part.filters])
    values = upper_bounds.values
    maxima, reached = bounds(
        plan.offsets, plan.slots, plan.multiplicities, plan.idf, part.positions, values, least, largest, ranks
    )  # fmt: skip
    return Bounds(maxima, reached)


def _search_group(plan: Plan, group: Integers, reader: Reader, execution: str, out: Output) -> Integers:
    """Answer these queries over all time; returns the numbers of `COUNTED`."""
    queries = QueryGroup(group, plan.k[group], plan.offsets, plan.slots, plan.multiplicities)
    best = BestHits(
        keys=np.empty((len(group), _room(queries.k)), dtype=np.int64),
        counts=np.zeros(len(group), dtype=np.int64),
        thresholds=np.ones(len(group), dtype=np.int64),
    )
    counted = np.zeros(len(COUNTED), dtype=np.int64)
    for number in plan.segment_numbers:
        reading = reader(number)
        if reading is None:
            continue
        score: Callable[..., None] = score_segment if reading.frees_lock else _score_segment_held
        options = ScanOptions(reading.part.first, TILE, SCAN_PERCENT, reading.prunes)
        read = np.zeros_like(counted)
        score(
            tuple(queries), tuple(reading.lists), tuple(reading.bounds), tuple(reading.skip_table),
            tuple(reading.dense_rows), tuple(reading.filters), tuple(options), tuple(best), read,
        )  # fmt: skip
        read[3] = read[0] * reading.posting_bytes + read[1] * reading.dense_rows.values.itemsize
        counted += read
    _store(tuple(best), queries.k, plan.rows[group], *out)
    return counted


def _search_newest(plan: Plan, group: Integers, reader: Reader, execution: str, out: Output) -> Integers:
    """Answer these queries from the newest document to the oldest; returns the numbers of `COUNTED`."""
    queries = QueryGroup(group, plan.k[group], plan.offsets, plan.slots, plan.multiplicities)
    room = _room(queries.k)
    best = NewestHits(
        keys=np.empty((len(group), room), dtype=np.int64),
        documents=np.empty((len(group), room), dtype=np.int64),
        counts=np.zeros(len(group), dtype=np.int64),
        thresholds=np.ones(len(group), dtype=np.int64),
    )
    decay = Decay(plan.now, plan.rates, FACTORS, POWERS)
    exhaustive = execution == "exhaustive"
    postings = bytes_read = 0
    for number in reversed(plan.segment_numbers):
        full = best.counts >= queries.k
        if not exhaustive and full.all() and (plan.bounds_before(number, group) < best.thresholds).all():
            break
        reading = reader(number)
        if reading is None:
            continue
        part = reading.part
        times = part.segment.times
        ranges = TimeRanges(
            NO_TIMES if times is None else times, times is not None, part.segment.latest_before, TIME_BLOCK,
            part.low, part.high,
        )  # fmt: skip
        score = score_newest if reading.frees_lock else _score_newest_held
        read = score(
            tuple(queries), tuple(reading.lists), tuple(reading.filters), tuple(ranges), segment_bounds(plan, part),
            tuple(decay), tuple(NewestOptions(part.first, NEWEST_TILE, exhaustive)), tuple(best),
        )  # fmt: skip
        postings += read
        bytes_read += read * reading.posting_bytes
    _store_newest(tuple(best), queries.k, plan.rows[group], *out)
    return np.array([postings, 0, 0, bytes_read], dtype=np.int64)


def _room(k: Integers) -> int:
    """Keys kept for each query before the k best of them are picked out."""
    return max(ROOM * int(k.max()), MIN_ROOM)


@numba.njit(cache=True)
def _store(
    best,  # `BestHits`
    k,  # [rows] int64: hits wanted
    targets,  # [rows] int64: row of the batch's answer
    scores,  # [batch, k of the batch] int64
    documents,  # [batch, k of the batch] int64
    counts,  # [batch] int32
):
    """Write each row's k best to the batch's answer, best first."""
    best = BestHits(*best)
    for row in range(len(targets)):
        count = best.counts[row]
        if count > k[row]:
            keep_best(best.keys[row], None, count, k[row])
            count = k[row]
        ascending = np.sort(best.keys[row, :count])
        for place in range(count):
            key = ascending[count - 1 - place]
            scores[targets[row], place] = key >> 32
            documents[targets[row], place] = np.int64(0xFFFFFFFF) - (key & np.int64(0xFFFFFFFF))
        counts[targets[row]] = count


@numba.njit(cache=True)
def _store_newest(
    best,  # `NewestHits`
    k,  # [rows] int64: hits wanted
    targets,  # [rows] int64: row of the batch's answer
    scores,  # [batch, k of the batch] int64
    documents,  # [batch, k of the batch] int64
    counts,  # [batch] int32
):
    """Write each row's k best to the batch's answer, best first."""
    best = NewestHits(*best)
    for row in range(len(targets)):
        count = best.counts[row]
        if count > k[row]:
            keep_best(best.keys[row], best.documents[row], count, k[row])
            count = k[row]
        # Two stable sorts: by document, then by key.
        order = np.argsort(best.documents[row, :count], kind="mergesort")
        order = order[np.argsort(-best.keys[row, order], kind="mergesort")]
        for place in range(count):
            scores[targets[row], place] = best.keys[row, order[place]]
            documents[targets[row], place] = best.documents[row, order[place]]
        counts[targets[row]] = count


def _held(loop):
    """The same loop, compiled to keep the interpreter's lock."""
    function = loop.py_func
    copy = types.FunctionType(function.__code__, function.__globals__, f"{function.__name__}_held")
    # Both names differ from the loop's. Equal names would share one entry of numba's cache.
    copy.__qualname__ = copy.__name__
    copy.__module__ = function.__module__
    return numba.njit(cache=True)(copy)


_score_segment_held = _held(score_segment)
_score_newest_held = _held(score_newest)
