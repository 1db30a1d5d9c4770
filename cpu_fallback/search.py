"""The search verb in numpy: score and select a batch, chunk by chunk, on 1 to n threads.

A chunk is as many queries as keep their score rows in a core's second-level cache together. Every chunk writes rows of
its own, so the answer does not depend on the number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.plan import Plan, SegmentPlan
from .prune import score_pruned, worth_pruning
from .score import Workspace, accumulate
from .select import NO_KEY, best_keys, best_narrow, best_wide, candidates, unpack

# Score rows of a chunk: half of the 1 MiB second-level cache of the machine it was tuned on.
CHUNK_BYTES = 1 << 19
MAX_CHUNK = 128

_local = threading.local()

Integers = npt.NDArray[np.int64]


def search(
    plans: Sequence[Plan], batch: int, k: int, *, threads: int = 1, strategy: str = "auto"
) -> tuple[Integers, Integers, npt.NDArray[np.int32]]:
    """The k best of each query: (scores in quanta [batch, k], documents [batch, k], counts [batch]).

    Rows are best first; places past a row's count hold 0 and -1. `strategy` is ``exhaustive`` (score every posting),
    ``pruned`` (skip tiles that cannot reach the k best) or ``auto``; all give the same answer.
    """
    scores = np.zeros((batch, k), dtype=np.int64)
    documents = np.full((batch, k), -1, dtype=np.int64)
    counts = np.zeros(batch, dtype=np.int32)
    out = (scores, documents, counts)
    tasks = [task for plan in plans for task in _chunks(plan, threads)] if k else []
    prepared = {id(plan): [_Lists(part) for part in plan.segments] for plan in plans}

    def run(share: Sequence[tuple[Plan, Integers]]) -> None:
        for plan, chunk in share:
            _search_chunk(plan, prepared[id(plan)], chunk, out, strategy)

    if threads == 1 or len(tasks) < 2:
        run(tasks)
    else:
        list(_pool(threads).map(run, [tasks[start::threads] for start in range(threads)]))
    return out


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="fanrank")


def _workspace() -> Workspace:
    if not hasattr(_local, "workspace"):
        _local.workspace = Workspace()
    workspace: Workspace = _local.workspace
    return workspace


def _chunks(plan: Plan, threads: int) -> list[tuple[Plan, Integers]]:
    """The plan's queries, narrow and wide apart, in chunks."""
    widest = max((part.segment.size for part in plan.segments), default=1)
    tasks = []
    for wide in (False, True):
        members = np.flatnonzero((plan.wide == wide) & (np.diff(plan.offsets) > 0) & (plan.k > 0))
        if not len(members):
            continue
        size = CHUNK_BYTES // ((8 if wide else 4) * widest)
        size = max(1, min(size, MAX_CHUNK, -(-len(members) // threads)))
        tasks += [(plan, members[start : start + size]) for start in range(0, len(members), size)]
    return tasks


class _Lists:
    """The posting lists of a plan's distinct terms in one segment, as views made once for the batch."""

    def __init__(self, part: SegmentPlan) -> None:
        bounds = list(zip(part.starts.tolist(), part.ends.tolist(), strict=True))
        self.part = part
        self.documents = [part.segment.documents[start:end] for start, end in bounds]
        self.quanta = [part.contributions.quanta[start:end] for start, end in bounds]


def _search_chunk(
    plan: Plan,
    lists: Sequence[_Lists],
    chunk: Integers,
    out: tuple[Integers, Integers, npt.NDArray[np.int32]],
    strategy: str,
) -> None:
    k = int(plan.k[chunk].max())
    wide = bool(plan.wide[chunk[0]])
    offsets = plan.offsets
    terms = [plan.slots[offsets[query] : offsets[query + 1]].tolist() for query in chunk]
    multiplicities = [plan.multiplicities[offsets[query] : offsets[query + 1]].tolist() for query in chunk]
    dtype = np.int64 if wide else np.int32
    floor = np.iinfo(dtype).min + 1 if plan.signed else 1
    floors = np.full(len(chunk), floor, dtype=np.int64)
    found: list[tuple[Integers, Integers, Integers]] = []
    best: Integers | None = None
    for segment_lists in lists:
        part = segment_lists.part
        if strategy != "exhaustive" and len(chunk) == 1 and not plan.signed:
            pruned = strategy == "pruned" or worth_pruning(part, terms[0])
        else:
            pruned = False
        if pruned:
            mask = None if plan.filters[chunk[0]] < 0 else part.passing[plan.filters[chunk[0]]]
            column, score = score_pruned(part, terms[0], multiplicities[0], k, int(floors[0]), mask)
            row = np.zeros(len(column), dtype=np.int64)
        else:
            matrix = _score(plan, segment_lists, chunk, terms, multiplicities, dtype)
            row, column, score = candidates(matrix, min(k, part.segment.size), floors)
        document = column + part.segment.first
        if wide:
            found.append((row, document, score))
            continue
        keys = best_narrow(row, document, score, len(chunk), k)
        best = keys if best is None else best_keys(np.concatenate([best, keys], axis=1), k)
        # Later segments hold younger documents: they must beat the k-th score, not equal it.
        full = best[:, -1] != NO_KEY
        floors = np.where(full, np.maximum(floors, unpack(best[:, -1])[0] + 1), floors)
    rows = plan.rows[chunk]
    if wide:
        _store_wide(found, rows, plan.k[chunk], out)
    elif best is not None:
        _store(best, rows, plan.k[chunk], out)


def _score(
    plan: Plan,
    lists: _Lists,
    chunk: Integers,
    terms: Sequence[Sequence[int]],
    multiplicities: Sequence[Sequence[int]],
    dtype: npt.DTypeLike,
) -> npt.NDArray[np.signedinteger[Any]]:
    """The score rows of a chunk over one segment; a document that does not match or pass scores below every floor."""
    size = lists.part.segment.size
    workspace = _workspace()
    matrix = workspace.take("scores", len(chunk) * size, dtype).reshape(len(chunk), size)
    matrix.fill(0)
    matched = None
    if plan.signed:
        matched = workspace.take("matched", len(chunk) * size, np.bool_).reshape(len(chunk), size)
        matched.fill(False)
    accumulate(matrix, matched, lists.documents, lists.quanta, terms, multiplicities, workspace)
    absent = 0 if matched is None else np.iinfo(dtype).min
    if matched is not None:
        matrix[~matched] = absent
    for row, accepted in enumerate(plan.filters[chunk].tolist()):
        if accepted >= 0:
            matrix[row][~lists.part.passing[accepted]] = absent
    return matrix


def _store(
    keys: Integers, rows: Integers, wanted: Integers, out: tuple[Integers, Integers, npt.NDArray[np.int32]]
) -> None:
    scores, documents, counts = out
    width = keys.shape[1]
    present = (keys != NO_KEY) & (np.arange(width) < wanted[:, None])
    score, document = unpack(keys)
    scores[rows, :width] = np.where(present, score, 0)
    documents[rows, :width] = np.where(present, document, -1)
    counts[rows] = present.sum(axis=1)


def _store_wide(
    found: Sequence[tuple[Integers, Integers, Integers]],
    rows: Integers,
    wanted: Integers,
    out: tuple[Integers, Integers, npt.NDArray[np.int32]],
) -> None:
    scores, documents, counts = out
    row, document, score = (np.concatenate(parts) for parts in zip(*found, strict=True))
    for position, (target, k) in enumerate(zip(rows.tolist(), wanted.tolist(), strict=True)):
        own = row == position
        ids, values = best_wide(document[own], score[own], k)
        scores[target, : len(ids)], documents[target, : len(ids)], counts[target] = values, ids, len(ids)
