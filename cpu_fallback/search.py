"""The search verb in numpy: score and select a batch; on n threads where Python runs them side by side.

Queries are scored in chunks whose score rows fit the cache together. Their candidates are ranked in larger groups, so
that fewer calls of numpy are made. Every group writes rows of its own, so the answer does not depend on the number of
threads.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..engine.arrays import Integers
from ..engine.plan.plan import Plan
from ..engine.timing import Phases
from .newest import search_newest
from .prune import score_tiles
from .score import SegmentWork, Workspace, score_chunk
from .select import NO_KEY, best_keys, best_narrow, best_wide, select_candidates, unpack

# Bytes of a chunk's score rows. More than the second-level cache holds (1 MiB where it was tuned), because every numpy
# call costs about a microsecond: at 0.5, 2 and 4 MiB a query of SciFact took .037, .030 and .025 ms.
CHUNK_BYTES = 1 << 22
# Queries ranked together, and candidates kept before they are.
GROUP = 256
MAX_PENDING = 1 << 18
# Candidates of a row, as a multiple of k, that are ranked at once.
MANY = 8
MAX_THREADS = 64
# Under the interpreter's lock a second thread made numpy slower in 7 of 8 cells of the bench (by up to 34 %): the work
# that numpy does without the lock takes less time than handing the lock over.
THREADS_PAY = not getattr(sys, "_is_gil_enabled", lambda: True)()

_local = threading.local()

T = TypeVar("T")
ScoredRows = tuple[Integers, Integers, Integers]
"""(row, document, score) of each, row-major."""
Output = tuple[Integers, Integers, npt.NDArray[np.int32]]


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

    Rows are best first; places past a row's count hold 0 and -1. `execution` is ``exhaustive`` (score every posting),
    ``pruned`` (skip tiles that cannot reach the k best, except where contributions are signed) or ``auto``; all give
    the same answer, as does any number of `threads`, of which a Python with the interpreter's lock uses one
    (`THREADS_PAY`). ``auto`` is exhaustive here: in numpy, looking through the tiles took 4 to 17 times as long as
    scoring all postings on every corpus tried (docs/decisions.md).
    """
    scores = np.zeros((batch, k), dtype=np.int64)
    documents = np.full((batch, k), -1, dtype=np.int64)
    counts = np.zeros(batch, dtype=np.int32)
    out = (scores, documents, counts)
    counted, phases = phases is not None, phases or Phases()
    with phases("derive"):
        for plan in plans:
            plan.derive(~plan.newest_first)
    threads = threads if THREADS_PAY else 1
    tasks = [task for plan in plans for task in groups(plan, threads)] if k else []
    # Only for plans that read all segments. A search back in time makes its own, segment by segment.
    work = {
        key: [SegmentWork(plan, part) for part in plan.segments] for key, plan in {id(p): p for p, _ in tasks}.items()
    }

    def run(task: tuple[Plan, Integers]) -> None:
        plan, group = task
        _search_group(plan, work[id(plan)], group, out, execution)

    with phases("score and select"):
        run_in_threads(run, tasks, threads)
        for plan in plans if k else ():
            search_newest(plan, out, execution, phases)
    for plan in plans if counted else ():
        plan.count_postings(phases, ~plan.newest_first)
    return out


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


def _workspace() -> Workspace:
    if not hasattr(_local, "workspace"):
        _local.workspace = Workspace()
    workspace: Workspace = _local.workspace
    return workspace


def groups(plan: Plan, threads: int) -> list[tuple[Plan, Integers]]:
    """The plan's queries over all time that can have hits, narrow and wide apart, in groups."""
    chosen = []
    for wide in (False, True):
        members = plan.answerable
        members = members[(plan.wide[members] == wide) & ~plan.newest_first[members]]
        size = min(GROUP, -(-len(members) // threads)) or 1
        chosen += [(plan, members[start : start + size]) for start in range(0, len(members), size)]
    return chosen


def _search_group(plan: Plan, segments: Sequence[SegmentWork], group: Integers, out: Output, execution: str) -> None:
    k = int(plan.k[group].max())
    wide = bool(plan.wide[group[0]])
    dtype: np.dtype[np.signedinteger[Any]] = np.dtype(np.int64 if wide else np.int32)
    thresholds = np.full(len(group), np.iinfo(dtype).min + 1 if plan.signed else 1, dtype=np.int64)
    best = np.full((len(group), k), NO_KEY, dtype=np.int64)
    wide_candidates: list[ScoredRows] = []
    prunes = execution == "pruned" and not plan.signed
    for work in segments:
        size = work.part.segment.size
        rows = 1 if prunes else max(1, CHUNK_BYTES // (dtype.itemsize * size))
        pending: list[ScoredRows] = []
        first = 0
        for start in range(0, len(group), rows):
            chunk = group[start : start + rows]
            if prunes:
                column, score = score_tiles(plan, work.part, int(chunk[0]), k, int(thresholds[start]))
                row = np.zeros(len(column), dtype=np.int64)
            else:
                matrix = score_chunk(plan, work, chunk, dtype, _workspace())
                row, column, score = select_candidates(matrix, min(k, size), thresholds[start : start + rows])
            if not wide and len(row) > MANY * k and np.bincount(row).max() > MANY * k:
                # Ties: rank this chunk by itself, so that one row does not widen the whole group's table.
                row, column, score = _candidates_of(best_narrow(row, column, score, len(chunk), k))
            pending.append((row + start, column + work.part.first, score))
            end = start + len(chunk)
            if wide or (end < len(group) and sum(len(rows_of_chunk) for rows_of_chunk, _, _ in pending) < MAX_PENDING):
                continue
            row, document, score = _join(pending)
            new = best_narrow(row - first, document, score, end - first, k)
            _keep_best(best[first:end], thresholds[first:end], new)
            pending, first = [], end
        wide_candidates += pending
    if wide:
        _store_wide(wide_candidates, plan.rows[group], plan.k[group], out)
    else:
        _store(best, plan.rows[group], plan.k[group], out)


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


def _keep_best(best: Integers, thresholds: Integers, new: Integers) -> None:
    """Merge a segment's keys into the best so far, and raise the thresholds for the segments to come."""
    untouched = (best[:, 0] == NO_KEY).all()
    best[:] = new if untouched else best_keys(np.hstack([best, new]), new.shape[1])
    # Later segments hold younger documents: they must beat the k-th score, not equal it.
    full = best[:, -1] != NO_KEY
    thresholds[full] = np.maximum(thresholds[full], unpack(best[full, -1])[0] + 1)


def _store(keys: Integers, rows: Integers, wanted: Integers, out: Output) -> None:
    scores, documents, counts = out
    width = keys.shape[1]
    present = (keys != NO_KEY) & (np.arange(width) < wanted[:, None])
    score, document = unpack(keys)
    scores[rows, :width] = np.where(present, score, 0)
    documents[rows, :width] = np.where(present, document, -1)
    counts[rows] = present.sum(axis=1)


def _store_wide(wide_candidates: Sequence[ScoredRows], rows: Integers, wanted: Integers, out: Output) -> None:
    scores, documents, counts = out
    row, document, score = _join(wide_candidates)
    for position, (target, k) in enumerate(zip(rows.tolist(), wanted.tolist(), strict=True)):
        of_row = row == position
        ids, values = best_wide(document[of_row], score[of_row], k)
        scores[target, : len(ids)], documents[target, : len(ids)], counts[target] = values, ids, len(ids)
