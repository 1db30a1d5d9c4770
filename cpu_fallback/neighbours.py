"""The search verb for queries whose records borrow from their neighbours, in numpy; on one thread.

All own sums of a query stand in one row. k documents have at least the k-th best own sum s. What they borrow only adds
to it, so no hit has less than 64 s steps. A document's sum is at most the whole weight times the largest own sum of its
neighbourhood. So each hit is near a document with an own sum of at least ``64 s / whole weight``, and only the
neighbourhoods of these *seeds* are summed. Signed contributions and decay allow no such bound: there every document
with an own sum is a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.arrays import Flags, Integers
from ..engine.index.neighbours import Links, links_of
from ..engine.plan.borrowing import borrowed_sums, lending_parts, whole_weight
from ..engine.plan.passing import flags_of
from ..engine.plan.plan import Plan
from ..engine.plan.requests import QuerySettings
from ..engine.plan.verbs import Output, empty_output
from ..engine.records.neighbours import STEPS
from ..engine.timing import Phases
from .score import CHUNK_BYTES, score_chunk, workspace
from .segment_work import SegmentWork


def search_neighbours(
    plans: Sequence[Plan],
    batch: int,
    k: int,
    *,
    threads: int = 1,
    execution: str = "auto",
    phases: Phases | None = None,
) -> Output:
    """The k best of each query, all of which borrow: as `search_numpy`, with sums in steps of 2**-6 quanta."""
    out = empty_output(batch, k)
    phases = phases or Phases()
    with phases("score and select"):
        postings = sum([_search(plan, out) for plan in plans]) if k else 0
    phases.count("postings", postings)
    return out


def _search(plan: Plan, out: Output) -> int:
    """Answer the plan's queries. Returns how many postings were read."""
    queries, documents = plan.answerable, plan.snapshot.numbers
    if not len(queries):
        return 0
    links = links_of(plan.snapshot)
    passing = [flags_of(plan.snapshot, setting) for setting in plan.requests.settings]
    zeros = np.zeros(len(queries), dtype=np.int64)
    works = [SegmentWork(plan, part, queries, zeros, zeros + part.segment.size) for part in lending_parts(plan)]
    dtype: np.dtype[np.signedinteger[Any]] = np.dtype(np.int64 if plan.large.any() else np.int32)
    rows = max(1, CHUNK_BYTES // (dtype.itemsize * documents))
    for start in range(0, len(queries), rows):
        chunk = np.arange(start, min(start + rows, len(queries)))
        own = np.zeros((len(chunk), documents), dtype=dtype)
        matched = np.zeros(own.shape, dtype=np.bool_) if plan.signed else None
        for work in works:
            part = slice(work.part.first, work.part.first + work.part.segment.size)
            scores = score_chunk(plan, work, chunk, dtype, workspace())
            if matched is not None:
                matched[:, part] = scores > np.iinfo(dtype).min
                scores[~matched[:, part]] = 0
            own[:, part] = scores
        for row, query in enumerate(queries[chunk].tolist()):
            number = int(plan.requests.setting[query])
            hits = _best(
                plan,
                query,
                plan.requests.settings[number],
                links,
                passing[number],
                own[row],
                None if matched is None else matched[row],
            )
            _store(plan, query, *hits, out)
    return sum(int(work.postings.sum()) for work in works)


def _best(
    plan: Plan,
    query: int,
    setting: QuerySettings,
    links: Links,
    passing: Flags | None,
    own: npt.NDArray[np.signedinteger[Any]],
    matched: Flags | None,
) -> tuple[Integers, Integers]:
    """(keys, documents) of the query's k best, best first. `own` [documents] are its sums of quanta."""
    k, window = int(plan.k[query]), len(setting.lent)
    if matched is not None:
        seeds = np.flatnonzero(matched)
    else:
        seeds = np.flatnonzero(own)
        reached = own[seeds] if passing is None else own[seeds[passing[seeds]]]
        if len(reached) >= k and not setting.rate:
            kth = int(np.partition(reached, len(reached) - k)[len(reached) - k])
            seeds = seeds[own[seeds] >= -(-STEPS * kth // whole_weight(setting.lent))]
    near = links.around(seeds, window)
    documents = np.unique(np.concatenate([seeds, near[near >= 0]]))
    if passing is not None:
        documents = documents[passing[documents]]
    near = links.around(documents, window)
    lenders = np.where(near >= 0, own[near], 0).astype(np.int64)
    sums = borrowed_sums(own[documents].astype(np.int64), lenders, setting.lent)
    times = _times_of(plan, documents) if setting.rate else np.zeros(0)
    keys = plan.keys(query, sums, times)
    order = np.lexsort((documents, ~keys))[:k]
    return keys[order], documents[order]


def _times_of(plan: Plan, documents: Integers) -> npt.NDArray[np.float64]:
    """The documents' times; inf without one, as of a record that is not aged."""
    times = plan.snapshot.numbers_of("time", documents)
    return np.where(np.isnan(times), np.inf, times)


def _store(plan: Plan, query: int, keys: Integers, documents: Integers, out: Output) -> None:
    row, count = int(plan.rows[query]), len(keys)
    out[0][row, :count], out[1][row, :count], out[2][row] = keys, documents, count
