"""Answers queries for the newest records: those that pass a filter, scope and time range, newest first, unranked.

Segments are read from the one with the latest time on, and reading ends where no other segment can hold a newer
record. A segment whose records stand in order of time is read from its end.
"""

from __future__ import annotations

import math

import numpy as np

from ..arrays import Floats, Integers
from ..errors import QueryError
from ..index.masks import EVERYTHING, CompiledFilter
from ..index.segment import Segment
from ..index.snapshot import Snapshot
from ..plan.passing import mask_of
from ..plan.plan import document_range
from ..records.explanation import Explanation
from ..records.hits import Hits
from ..records.record import RecordsOf
from ..timing import Phases
from .batch import Batch
from .explain import position_of
from .lexical import expand_duplicates
from .notes import Notes
from .shaping import Pages, Ranked

BACKEND = "newest"
"""Names what answered, in `Hits.backend`."""

UNTIMED = 0.0
"""The score of a record without a time."""

# Documents of an ordered segment that are looked at in one step, at least.
STEP = 1 << 10


def answer_newest(batch: Batch, records: RecordsOf | None, *, timing: bool = False) -> Hits:
    """The newest records for each query of a batch. `records` is as for `Pages`."""
    phases = Phases(timing)
    with phases("newest"):
        width = batch.width
        scores, documents = np.full((len(batch), width), -np.inf), np.full((len(batch), width), -1, dtype=np.int64)
        counts = np.zeros(len(batch), dtype=np.int32)
        known: dict[object, Ranked] = {}
        pages = Pages.of(batch, records)
        for row in batch.rows:
            if pages is not None and row in pages.wanted:
                continue
            found, numbers = _find(batch, row, batch.asked[row].k, known)
            count = counts[row] = len(found)
            scores[row, :count], documents[row, :count] = found, numbers
        if pages is not None:
            while pages.wanted:
                pages.take({row: _find(batch, row, depth, known) for row, depth in pages.wanted.items()})
            scores, documents, counts = pages.fill(scores, documents, counts)

    def explain(position: int, record_id: str) -> Explanation:
        position_of(batch, position)
        raise QueryError(
            "a query for the newest records is not ranked: the scores of its hits are their times, 0.0 without one"
        )

    return Hits(
        *expand_duplicates(batch, scores, documents, counts),
        batch.queries,
        BACKEND,
        batch.resolver(),
        explain,
        phases.milliseconds if timing else None,
        source=batch.source,
        annotator=Notes(batch.memory.indexer, batch.asked),
    )


def _find(batch: Batch, row: int, count: int, known: dict[object, Ranked]) -> Ranked:
    """The `count` newest documents that a row accepts. `known` keeps what equal rows of the batch found."""
    asked = batch.asked[row]
    snapshot, settings = asked.snapshot, asked.settings
    key = snapshot, asked.accepted, settings.since, settings.until, count
    if key not in known:
        documents, times = newest_documents(snapshot, asked.accepted, settings.since, settings.until, count)
        known[key] = np.where(np.isnan(times), UNTIMED, times), documents
    return known[key]


def newest_documents(
    snapshot: Snapshot, accepted: CompiledFilter, since: float, until: float, count: int
) -> tuple[Integers, Floats]:
    """(documents, times) of the `count` newest live documents that pass the filter with ``since <= time <= until``.

    The newest come first, of equal times the one with the highest number, which was written last; documents without a
    time (NaN) come last, the highest number first. They are left out where the range has an end.
    """
    documents, times = np.zeros(0, dtype=np.int64), np.zeros(0)
    _, latest = snapshot.spans
    if count < 1:
        return documents, times
    for number in np.argsort(-latest, kind="stable").tolist():
        # An equal time may still be of a record that was written later.
        if latest[number] == -math.inf or (len(times) == count and times[-1] > latest[number]):
            break
        positions, moments = _newest_in(snapshot, number, accepted, since, until, count)
        documents = np.concatenate([documents, snapshot.firsts[number] + positions])
        times = np.concatenate([times, moments])
        order = np.lexsort((-documents, -times))[:count]
        documents, times = documents[order], times[order]
    if len(documents) == count or since > -math.inf or until < math.inf:
        return documents, times
    for number in reversed(range(len(snapshot.segments))):
        positions = _untimed_in(snapshot, number, accepted)[: count - len(documents)]
        documents = np.concatenate([documents, snapshot.firsts[number] + positions])
        if len(documents) == count:
            break
    return documents, np.concatenate([times, np.full(len(documents) - len(times), np.nan)])


def _newest_in(
    snapshot: Snapshot, number: int, accepted: CompiledFilter, since: float, until: float, count: int
) -> tuple[Integers, Floats]:
    """(positions, times) of the `count` newest documents of a segment, at least, in any order."""
    segment = snapshot.segments[number]
    assert segment.times is not None
    if segment.in_order:
        positions = _last_in(snapshot, number, accepted, *document_range(segment, since, until)[:2], count)
        return positions, segment.times[positions]
    positions = np.flatnonzero(mask_of(snapshot, number, accepted, since, until) & ~np.isnan(segment.times))
    times = segment.times[positions]
    if len(times) > count:
        # Of equal times at the end, all stay: the caller keeps the last written.
        least = np.partition(times, len(times) - count)[len(times) - count]
        positions, times = positions[times >= least], times[times >= least]
    return positions, times


def _last_in(snapshot: Snapshot, number: int, accepted: CompiledFilter, low: int, high: int, count: int) -> Integers:
    """The last `count` positions in [low, high) of a segment that are live and pass, descending."""
    segment, alive = snapshot.segments[number], snapshot.alive(number)
    mask = None if accepted is EVERYTHING else segment.mask(accepted)
    parts: list[Integers] = []
    step = max(count, STEP)
    while high > low and count > 0:
        start = max(high - step, low)
        passing = np.ones(high - start, dtype=np.bool_)
        for flags in (alive, mask):
            if flags is not None:
                passing &= flags[start:high]
        found = (start + np.flatnonzero(passing))[::-1][:count]
        parts.append(found)
        count -= len(found)
        high, step = start, 2 * step
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _untimed_in(snapshot: Snapshot, number: int, accepted: CompiledFilter) -> Integers:
    """The positions of the documents of a segment that pass and have no time, descending."""
    segment: Segment = snapshot.segments[number]
    if segment.in_order:
        return np.zeros(0, dtype=np.int64)
    passing = mask_of(snapshot, number, accepted, -math.inf, math.inf)
    if segment.times is not None:
        passing &= np.isnan(segment.times)
    return np.flatnonzero(passing)[::-1]
