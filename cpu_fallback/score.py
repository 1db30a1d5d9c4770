"""Sum the quanta of each query's postings into a row of scores, vectorised over a chunk of queries.

A short list is scattered (`np.add.at`, which adds integers at 1.2 ns a posting). A long one is added as a dense row of
contributions, at vector speed: 0.1 ns a document while the rows fit the second-level cache.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.arrays import Integers
from ..engine.plan.plan import Plan
from .segment_work import SegmentWork

Scores = npt.NDArray[np.signedinteger[Any]]

# Bytes of a chunk's score rows. More than the second-level cache holds (1 MiB where it was tuned), because every numpy
# call costs about a microsecond: at 0.5, 2 and 4 MiB a query of SciFact took .037, .030 and .025 ms.
CHUNK_BYTES = 1 << 22
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


_local = threading.local()


def workspace() -> Workspace:
    """The calling thread's buffers."""
    if not hasattr(_local, "workspace"):
        _local.workspace = Workspace()
    own: Workspace = _local.workspace
    return own


def score_chunk(plan: Plan, work: SegmentWork, chunk: Integers, dtype: npt.DTypeLike, buffers: Workspace) -> Scores:
    """The score rows of a chunk of `work`'s rows over one segment [rows, width of the widest].

    Column c of a row is document ``base + c``. One that does not match or pass, or lies outside the row's range, scores
    0, or the dtype's minimum if the plan is signed.
    """
    width = int(work.width[chunk].max())
    matrix = buffers.take("scores", len(chunk) * width, dtype).reshape(len(chunk), width)
    matched = None
    if plan.signed:
        matched = buffers.take("matched", len(chunk) * width, np.bool_).reshape(len(chunk), width)
        matched.fill(False)
    add_dense(matrix, work, chunk)
    scatter(matrix, matched, work, chunk, buffers)
    absent = 0 if matched is None else np.iinfo(dtype).min
    if matched is not None:
        matrix[~matched] = absent
    for row, number in enumerate(chunk.tolist() if work.part.passing else ()):
        accepted = work.part.mask(int(work.queries[number]))
        if accepted is not None:
            base, high = int(work.base[number]), int(work.high[number])
            scores, accepted = matrix[row, : high - base], accepted[base:high]
            if plan.signed:
                scores[~accepted] = absent
            else:
                # 12 us for 50,000 documents. An assignment by mask takes up to 380, where it accepts every other one.
                np.multiply(scores, accepted, out=scores)
    return matrix


def add_dense(scores: Scores, work: SegmentWork, chunk: Integers) -> None:
    """Set `scores` [rows, width] to the sums of the dense rows of the chunk's rows."""
    rows, numbers, multiplicities = work.added.of(chunk)
    empty = np.ones(len(scores), dtype=np.bool_)
    empty[rows] = False
    for row in np.flatnonzero(empty).tolist():
        scores[row].fill(0)
    if not len(rows):
        return
    dense, targets = work.part.contributions.dense, list(scores)
    cut = not work.whole
    documents: list[slice] = []
    if cut:
        documents = [slice(*ends) for ends in zip(work.base[chunk].tolist(), work.high[chunk].tolist(), strict=True)]
        for row, width in enumerate(work.width[chunk].tolist()):
            scores[row, width:] = 0
            targets[row] = scores[row, :width]
    previous = -1
    for row, number, multiplicity in zip(rows.tolist(), numbers.tolist(), multiplicities.tolist(), strict=True):
        target, values = targets[row], dense[number, documents[row]] if cut else dense[number]
        if multiplicity > 1:
            values = np.multiply(values, multiplicity, dtype=scores.dtype)
        if row == previous:
            target += values
        else:
            # The first is copied, so the row need not be cleared: a tenth of the time at 300,000 documents.
            target[:] = values
        previous = row


def scatter(
    scores: Scores, matched: npt.NDArray[np.bool_] | None, work: SegmentWork, chunk: Integers, buffers: Workspace
) -> None:
    """Add the posting lists of the chunk's rows to `scores` [rows, width]; flag matches in `matched`."""
    rows, numbers, multiplicities = work.scattered.of(chunk)
    # Where document 0 stands, or would stand, in the scores of each row.
    origins = np.arange(len(chunk)) * scores.shape[1] - work.base[chunk]
    shifted = bool(origins.any())
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
        places = buffers.take("places", total, np.intp)
        quanta = buffers.take("quanta", total, scores.dtype)
        lists = numbers[block].tolist()
        np.concatenate([work.documents[number] for number in lists], out=places)
        np.concatenate([work.quanta[number] for number in lists], out=quanta, casting="same_kind")
        if shifted:
            places += np.repeat(origins[rows[block]], lengths[block])
        if multiplicities[block].max() > 1:
            quanta *= np.repeat(multiplicities[block], lengths[block]).astype(scores.dtype)
        np.add.at(scores.reshape(-1), places, quanta)
        if matched is not None:
            matched.reshape(-1)[places] = True
        start, scattered = end, scattered + total
