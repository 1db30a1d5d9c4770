"""Sum the quanta of each query's postings into a row of scores, vectorised over a chunk of queries.

A short list is scattered (`np.add.at`, which adds integers at 1.2 ns a posting). A long one is added as a dense row of
contributions, at vector speed: 0.1 ns a document while the rows fit the second-level cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.arrays import Integers, ranges
from ..engine.plan.plan import Plan, SegmentPlan

Scores = npt.NDArray[np.signedinteger[Any]]

# Postings scattered in one go: their indices and contributions stay in the second-level cache.
SCATTER_BLOCK = 1 << 16


class Workspace:
    """Buffers of one thread, grown on demand and reused, so that a fan-out pays no page faults."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, np.dtype[Any]], npt.NDArray[Any]] = {}

    def take(self, name: str, size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A buffer of `size` elements; it holds what its last user left."""
        key = (name, np.dtype(dtype))
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[key] = np.empty(size, dtype=dtype)
        return buffer[:size]


class Pairs:
    """(query, list) pairs, those of a query next to each other."""

    def __init__(self, queries: int, owners: Integers, numbers: Integers, multiplicities: Integers) -> None:
        self._owners, self._numbers, self._multiplicities = owners, numbers, multiplicities
        self._offsets: list[int] = np.searchsorted(owners, np.arange(queries + 1)).tolist()

    def of(self, queries: Integers) -> tuple[Integers, Integers, Integers]:
        """(position in `queries`, list, multiplicity) of each pair of these queries (ascending)."""
        first, last = int(queries[0]), int(queries[-1])
        if last - first + 1 == len(queries):
            pairs = slice(self._offsets[first], self._offsets[last + 1])
            return self._owners[pairs] - first, self._numbers[pairs], self._multiplicities[pairs]
        offsets = np.array(self._offsets)
        starts, lengths = offsets[queries], offsets[queries + 1] - offsets[queries]
        scattered = ranges(starts, lengths)
        return np.repeat(np.arange(len(queries)), lengths), self._numbers[scattered], self._multiplicities[scattered]


class SegmentWork:
    """How a plan's queries read one segment: decided once for the batch."""

    def __init__(self, plan: Plan, part: SegmentPlan) -> None:
        self.part = part
        bounds = list(zip(part.starts.tolist(), part.ends.tolist(), strict=True))
        self.lengths = part.ends - part.starts
        self.documents = [part.segment.documents[start:end] for start, end in bounds]
        self.quanta = [part.contributions.quanta[start:end] for start, end in bounds]
        queries = len(plan.rows)
        owners = np.repeat(np.arange(queries), np.diff(plan.offsets))
        slots, multiplicities = plan.slots, plan.multiplicities
        lengths = self.lengths[slots]
        dense = part.dense_rows[slots]
        if plan.signed:
            # A contribution of 0 is a match there, which a dense row cannot tell from an absent document.
            dense[:] = -1
        added = dense >= 0
        scattered = (lengths > 0) & ~added
        self.scattered = Pairs(queries, owners[scattered], slots[scattered], multiplicities[scattered])
        self.added = Pairs(queries, owners[added], dense[added], multiplicities[added])


def score_chunk(plan: Plan, work: SegmentWork, chunk: Integers, dtype: npt.DTypeLike, workspace: Workspace) -> Scores:
    """The score rows of a chunk over one segment [rows, documents].

    A document that does not match or pass scores 0, or the dtype's minimum if the plan is signed.
    """
    size = work.part.segment.size
    matrix = workspace.take("scores", len(chunk) * size, dtype).reshape(len(chunk), size)
    matched = None
    if plan.signed:
        matched = workspace.take("matched", len(chunk) * size, np.bool_).reshape(len(chunk), size)
        matched.fill(False)
    add_dense(matrix, work, *work.added.of(chunk))
    scatter(matrix, matched, work, *work.scattered.of(chunk), workspace)
    absent = 0 if matched is None else np.iinfo(dtype).min
    if matched is not None:
        matrix[~matched] = absent
    for row, query in enumerate(chunk.tolist() if work.part.passing else ()):
        accepted = work.part.mask(query)
        if accepted is not None:
            matrix[row][~accepted] = absent
    return matrix


def add_dense(scores: Scores, work: SegmentWork, rows: Integers, numbers: Integers, multiplicities: Integers) -> None:
    """Set `scores` [rows, width] to the sums of the dense rows of (row, dense row, multiplicity) pairs."""
    dense = work.part.contributions.dense
    empty = np.ones(len(scores), dtype=np.bool_)
    empty[rows] = False
    for row in np.flatnonzero(empty).tolist():
        scores[row].fill(0)
    previous = -1
    for row, number, multiplicity in zip(rows.tolist(), numbers.tolist(), multiplicities.tolist(), strict=True):
        target = scores[row]
        values = dense[number] if multiplicity == 1 else np.multiply(dense[number], multiplicity, dtype=scores.dtype)
        if row == previous:
            target += values
        else:
            # The first is copied, so the row need not be cleared: a tenth of the time at 300,000 documents.
            target[:] = values
        previous = row


def scatter(
    scores: Scores,
    matched: npt.NDArray[np.bool_] | None,
    work: SegmentWork,
    rows: Integers,
    numbers: Integers,
    multiplicities: Integers,
    workspace: Workspace,
) -> None:
    """Add the posting lists of (row, list, multiplicity) pairs to `scores` [rows, width]; flag matches in `matched`."""
    lengths = work.lengths[numbers]
    ends = np.cumsum(lengths)
    start = scattered = 0
    while start < len(numbers):
        if int(ends[-1]) - scattered <= SCATTER_BLOCK:
            end = len(numbers)
        else:
            end = max(start + 1, int(np.searchsorted(ends, scattered + SCATTER_BLOCK, side="right")))
        block = slice(start, end)
        total = int(ends[end - 1]) - scattered
        _scatter_block(
            scores, matched, work, rows[block], numbers[block], multiplicities[block], lengths[block], total, workspace
        )
        start, scattered = end, scattered + total


def _scatter_block(
    scores: Scores,
    matched: npt.NDArray[np.bool_] | None,
    work: SegmentWork,
    rows: Integers,
    numbers: Integers,
    multiplicities: Integers,
    lengths: Integers,
    total: int,
    workspace: Workspace,
) -> None:
    """As `scatter`, of lists with `total` postings together."""
    places = workspace.take("places", total, np.intp)
    quanta = workspace.take("quanta", total, scores.dtype)
    lists = numbers.tolist()
    np.concatenate([work.documents[number] for number in lists], out=places)
    np.concatenate([work.quanta[number] for number in lists], out=quanta, casting="same_kind")
    if len(scores) > 1:
        places += np.repeat(rows * scores.shape[1], lengths)
    if multiplicities.max() > 1:
        quanta *= np.repeat(multiplicities, lengths).astype(scores.dtype)
    np.add.at(scores.reshape(-1), places, quanta)
    if matched is not None:
        matched.reshape(-1)[places] = True
