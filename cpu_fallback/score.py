"""Sum the quanta of each query's postings into a row of scores, vectorised over a chunk of queries.

A short list is scattered (`np.add.at`, which adds integers at 1.2 ns a posting). A long one is added as a dense row of
contributions, at vector speed: 0.1 ns a document while the rows fit the second-level cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.plan import Plan, SegmentPlan

Scores = npt.NDArray[np.signedinteger[Any]]
Integers = npt.NDArray[np.int64]


# Postings scattered in one go: their indices and contributions stay in the second-level cache.
SCATTER_BLOCK = 1 << 16
# A list this long is scattered by itself, which saves copying its contributions.
LONG_LIST = 1 << 11


class Workspace:
    """Buffers of one thread, grown on demand and reused, so that a fan-out pays no page faults."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, np.dtype[Any]], npt.NDArray[Any]] = {}

    def take(self, name: str, size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A buffer of `size` elements; its content is whatever the last user left."""
        key = (name, np.dtype(dtype))
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[key] = np.empty(size, dtype=dtype)
        return buffer[:size]


class Pairs:
    """(query, list) pairs as plain lists, a query's own standing together: chunks of one query must cost little."""

    def __init__(self, queries: int, owners: Integers, numbers: Integers, multiplicities: Integers) -> None:
        self.numbers: list[int] = numbers.tolist()
        self.multiplicities: list[int] = multiplicities.tolist()
        self.offsets: list[int] = np.searchsorted(owners, np.arange(queries + 1)).tolist()

    def of(self, queries: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(position in `queries`, list, multiplicity) of each pair of these queries."""
        for row, query in enumerate(queries):
            for pair in range(self.offsets[query], self.offsets[query + 1]):
                yield row, self.numbers[pair], self.multiplicities[pair]


class SegmentWork:
    """How a plan's queries read one segment: decided once for the batch, from bounds and list lengths."""

    def __init__(self, plan: Plan, part: SegmentPlan) -> None:
        self.part = part
        self._filters = plan.filters
        bounds = list(zip(part.starts.tolist(), part.ends.tolist(), strict=True))
        self.documents = [part.segment.documents[start:end] for start, end in bounds]
        self.quanta = [part.contributions.quanta[start:end] for start, end in bounds]
        queries = len(plan.rows)
        owners = np.repeat(np.arange(queries), np.diff(plan.offsets))
        slots, multiplicities = plan.slots, plan.multiplicities
        lengths = (part.ends - part.starts)[slots]
        present = part.positions >= 0
        rows = np.full(len(present), -1, dtype=np.int64)
        rows[present] = part.contributions.dense_row[part.positions[present]]
        dense = rows[slots]
        if plan.signed:
            # A contribution of 0 is a match there, which a dense row cannot tell from an absent document.
            dense[:] = -1
        added = dense >= 0
        scattered = (lengths > 0) & ~added
        self.scattered = Pairs(queries, owners[scattered], slots[scattered], multiplicities[scattered])
        self.added = Pairs(queries, owners[added], dense[added], multiplicities[added])

    def passing(self, query: int) -> npt.NDArray[np.bool_] | None:
        """The query's filter over the segment's documents, or None."""
        number = int(self._filters[query])
        return None if number < 0 else self.part.passing[number]


def score_chunk(plan: Plan, work: SegmentWork, chunk: Integers, dtype: npt.DTypeLike, workspace: Workspace) -> Scores:
    """The score rows of a chunk over one segment [rows, documents].

    A document that does not match or pass scores 0, or the dtype's minimum if the plan is signed.
    """
    size = work.part.segment.size
    matrix = workspace.take("scores", len(chunk) * size, dtype).reshape(len(chunk), size)
    matrix.fill(0)
    matched = None
    if plan.signed:
        matched = workspace.take("matched", len(chunk) * size, np.bool_).reshape(len(chunk), size)
        matched.fill(False)
    queries = chunk.tolist()
    scatter(matrix, matched, work, work.scattered.of(queries), workspace)
    dense = work.part.contributions.dense
    for row, number, multiplicity in work.added.of(queries):
        own = dense[number]
        matrix[row] += own if multiplicity == 1 else np.multiply(own, multiplicity, dtype=matrix.dtype)
    absent = 0 if matched is None else np.iinfo(dtype).min
    if matched is not None:
        matrix[~matched] = absent
    for row, query in enumerate(queries if work.part.passing else ()):
        accepted = work.passing(query)
        if accepted is not None:
            matrix[row][~accepted] = absent
    return matrix


def scatter(
    scores: Scores,
    matched: npt.NDArray[np.bool_] | None,
    work: SegmentWork,
    pairs: Iterable[tuple[int, int, int]],
    workspace: Workspace,
) -> None:
    """Add the posting lists of `pairs` (row, list, multiplicity) to `scores` [rows, width]; flag matches."""
    block: list[tuple[int, int, int]] = []
    total = 0
    for pair in pairs:
        row, number, multiplicity = pair
        documents = work.documents[number]
        if len(documents) >= LONG_LIST and multiplicity == 1:
            where = workspace.take("where", len(documents), np.intp)
            np.copyto(where, documents)
            np.add.at(scores[row], where, work.quanta[number])
            if matched is not None:
                matched[row][where] = True
            continue
        block.append(pair)
        total += len(documents)
        if total >= SCATTER_BLOCK:
            _scatter_block(scores, matched, work, block, total, workspace)
            block, total = [], 0
    if block:
        _scatter_block(scores, matched, work, block, total, workspace)


def _scatter_block(
    scores: Scores,
    matched: npt.NDArray[np.bool_] | None,
    work: SegmentWork,
    pairs: Sequence[tuple[int, int, int]],
    total: int,
    workspace: Workspace,
) -> None:
    where = workspace.take("where", total, np.intp)
    added = workspace.take("added", total, scores.dtype)
    lists = [work.documents[number] for _, number, _ in pairs]
    np.concatenate(lists, out=where)
    np.concatenate([work.quanta[number] for _, number, _ in pairs], out=added, casting="same_kind")
    width = scores.shape[1]
    if pairs[-1][0]:
        where += np.repeat([row * width for row, _, _ in pairs], list(map(len, lists)))
    if any(multiplicity != 1 for _, _, multiplicity in pairs):
        added *= np.repeat([multiplicity for _, _, multiplicity in pairs], list(map(len, lists))).astype(scores.dtype)
    np.add.at(scores.reshape(-1), where, added)
    if matched is not None:
        matched.reshape(-1)[where] = True
