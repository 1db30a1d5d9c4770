"""The search verb in numpy: score and select a batch; on n threads where Python runs them side by side.

Queries are scored in chunks whose score rows fit the cache together. Their candidates are ranked in larger groups, so
that fewer calls of numpy are made. Every group writes rows of its own, so the answer does not depend on the number of
threads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from ..engine.arrays import Flags, Integers
from ..engine.plan.plan import Plan
from ..engine.plan.verbs import Output, empty_output
from ..engine.timing import Phases
from .newest import search_newest
from .score import CHUNK_BYTES, score_chunk, workspace
from .segment_work import SegmentWork
from .select import NO_KEY, best_keys, best_narrow, best_wide, select_candidates, store_wide, unpack

# Queries ranked together, and candidates kept before they are.
GROUP = 256
MAX_PENDING = 1 << 18
# Candidates of a row, as a multiple of k, that are ranked at once.
MANY = 8
MAX_THREADS = 64
# Under the interpreter's lock a second thread made numpy slower in 7 of 8 cells of the bench (by up to 34 %): the work
# that numpy does without the lock takes less time than handing the lock over.
THREADS_PAY = not getattr(sys, "_is_gil_enabled", lambda: True)()

T = TypeVar("T")
ScoredRows = tuple[Integers, Integers, Integers]
"""(row, document, score) of each, row-major."""


def search_numpy(
    plans: Sequence[Plan],
    batch: int,
    k: int,
    *,
    threads: int = 1,
    execution: str = "auto",
    phases: Phases | None = None,
) -> Output:
    """The k best of each query: (scores in quanta [batch, k], documents [batch, k], counts [batch]).

    Rows are best first; places past a row's count hold 0 and -1. Any `execution` and any number of `threads` gives the
    same answer; a Python with the interpreter's lock uses one thread (`THREADS_PAY`). Every posting of a query without
    a half-life is scored: in numpy, looking for what can be left out took longer on every corpus tried
    (docs/decisions.md).
    """
    out = empty_output(batch, k)
    counted, phases = phases is not None, phases or Phases()
    threads = threads if THREADS_PAY else 1
    postings: list[int] = []
    tasks: list[Callable[[], int]] = []
    with phases("derive"):
        for plan in plans if k else ():
            decays = plan.rates[plan.answerable] > 0
            tasks += _undecayed_tasks(plan, plan.answerable[~decays], threads, out)
            if decays.any():
                tasks += _decayed_tasks(plan, plan.answerable[decays], threads, out, execution)
    with phases("score and select"):
        run_in_threads(lambda task: postings.append(task()), tasks, threads)
    if counted:
        phases.count("postings", sum(postings))
    return out


def _undecayed_tasks(plan: Plan, queries: Integers, threads: int, out: Output) -> list[Callable[[], int]]:
    """Functions that each answer some of these queries, and return how many postings they read."""
    if not len(queries):
        return []
    segments = [SegmentWork(plan, part, queries, part.low[queries], part.high[queries]) for part in plan.segments]
    groups = split_rows(plan.large[queries], threads)
    return [partial(_search_group, plan, segments, queries, group, out) for group in groups]


def _decayed_tasks(plan: Plan, queries: Integers, threads: int, out: Output, execution: str) -> list[Callable[[], int]]:
    """As `_undecayed_tasks`. These queries plan their segments one by one, as many as they need."""
    groups = split_rows(plan.large[queries], threads)
    return [partial(search_newest, plan, queries[group], out, execution == "exhaustive") for group in groups]


def run_in_threads(run: Callable[[T], None], tasks: Sequence[T], threads: int) -> None:
    """Run every task, on up to `threads` threads."""

    threads = max(1, min(threads, len(tasks), MAX_THREADS))

    def share(start: int) -> None:
        for task in tasks[start::threads]:
            run(task)

    if threads == 1:
        share(0)
    else:
        list(_pool(threads).map(share, range(threads)))


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="fanrank")


# A forked child has none of its parent's threads; a pool that it inherited would wait for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def split_rows(wide: Flags, threads: int) -> list[Integers]:
    """The positions in `wide` in groups, those where it is false and those where it is true apart."""
    chosen = []
    for members in (np.flatnonzero(~wide), np.flatnonzero(wide)):
        size = min(GROUP, -(-len(members) // threads)) or 1
        chosen += [members[start : start + size] for start in range(0, len(members), size)]
    return chosen


def _search_group(plan: Plan, segments: Sequence[SegmentWork], queries: Integers, group: Integers, out: Output) -> int:
    """Answer the rows `group` of `segments`. Returns how many postings were read."""
    members = queries[group]
    k = int(plan.k[members].max())
    wide = bool(plan.large[members[0]])
    dtype: np.dtype[np.signedinteger[Any]] = np.dtype(np.int64 if wide else np.int32)
    thresholds = np.full(len(group), np.iinfo(dtype).min + 1 if plan.signed else 1, dtype=np.int64)
    best = np.full((len(group), k), NO_KEY, dtype=np.int64)
    wide_candidates: list[ScoredRows] = []
    for work in segments:
        order = _widest_first(work, group)
        widths = work.width[group[order]]
        pending: list[ScoredRows] = []
        first = start = 0
        while start < len(order):
            rows = max(1, CHUNK_BYTES // (dtype.itemsize * int(widths[start])))
            places = order[start : start + rows]
            places.sort()
            chunk = group[places]
            matrix = score_chunk(plan, work, chunk, dtype, workspace())
            row, column, score = select_candidates(matrix, min(k, matrix.shape[1]), thresholds[places])
            if not work.whole:
                column += work.base[chunk][row]
            if not wide and len(row) > MANY * k and np.bincount(row).max() > MANY * k:
                # Ties: rank this chunk by itself, so that one row does not widen the whole group's table.
                row, column, score = _candidates_of(best_narrow(row, column, score, len(chunk), k))
            pending.append((row + start, column + work.part.first, score))
            start += len(chunk)
            if wide or (start < len(order) and sum(len(rows) for rows, _, _ in pending) < MAX_PENDING):
                continue
            row, document, score = _join(pending)
            new = best_narrow(row - first, document, score, start - first, k)
            _keep_best(best, thresholds, new, order[first:start])
            pending, first = [], start
        wide_candidates += [(order[row], document, score) for row, document, score in pending]
    if wide:
        row, document, score = _join(wide_candidates) if wide_candidates else (group[:0],) * 3
        store_wide(*best_wide(row, document, score, len(group), k), plan.rows[members], plan.k[members], out)
    else:
        _store(best, plan.rows[members], plan.k[members], out)
    return sum(int(work.postings[group].sum()) for work in segments)


def _widest_first(work: SegmentWork, group: Integers) -> Integers:
    """The positions in `group` of rows that may find something in this segment; rows of about one width together."""
    if work.whole:
        return np.arange(len(group))
    widths = work.width[group]
    order = np.argsort(-widths, kind="stable")
    return order[: np.count_nonzero(widths)]


def _candidates_of(keys: Integers) -> ScoredRows:
    """Keys [rows, k] as candidates."""
    row, place = np.nonzero(keys != NO_KEY)
    score, document = unpack(keys[row, place])
    return row, document, score


def _join(parts: Sequence[ScoredRows]) -> ScoredRows:
    if len(parts) == 1:
        return parts[0]
    row, document, score = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return row, document, score


def _keep_best(best: Integers, thresholds: Integers, new: Integers, rows: Integers) -> None:
    """Merge a segment's keys into the best of these rows, and raise their thresholds for the segments to come."""
    known = best[rows]
    untouched = (known[:, 0] == NO_KEY).all()
    merged = new if untouched else best_keys(np.hstack([known, new]), new.shape[1])
    best[rows] = merged
    # Later segments hold younger documents: they must beat the k-th score, not equal it.
    full = merged[:, -1] != NO_KEY
    raised = rows[full]
    thresholds[raised] = np.maximum(thresholds[raised], unpack(merged[full, -1])[0] + 1)


def _store(keys: Integers, rows: Integers, wanted: Integers, out: Output) -> None:
    scores, documents, counts = out
    width = keys.shape[1]
    present = (keys != NO_KEY) & (np.arange(width) < wanted[:, None])
    score, document = unpack(keys)
    scores[rows, :width] = np.where(present, score, 0)
    documents[rows, :width] = np.where(present, document, -1)
    counts[rows] = present.sum(axis=1)
