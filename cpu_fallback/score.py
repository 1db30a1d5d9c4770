"""Sum the quanta of each query's postings into a row of scores, vectorised over a chunk of queries.

A short list is scattered (`np.add.at`, which adds integers at 1.2 ns a posting). A long one is added as a dense row of
contributions, at vector speed: 0.1 ns a document while the rows fit the second-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class _Share:
    """Some of each query's (number, multiplicity) pairs, as rows of a CSR."""

    def __init__(self, queries: int, owners: Integers, numbers: Integers, multiplicities: Integers) -> None:
        self.offsets = np.searchsorted(owners, np.arange(queries + 1)).tolist()
        self.numbers: list[int] = numbers.tolist()
        self.multiplicities: list[int] = multiplicities.tolist()

    def row(self, query: int) -> tuple[list[int], list[int]]:
        own = slice(self.offsets[query], self.offsets[query + 1])
        return self.numbers[own], self.multiplicities[own]


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
        self.scattered = _Share(queries, owners[scattered], slots[scattered], multiplicities[scattered])
        self.added = _Share(queries, owners[added], dense[added], multiplicities[added])

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
    scatter(matrix, matched, work.documents, work.quanta, [work.scattered.row(query) for query in queries], workspace)
    for row, query in enumerate(queries):
        add_dense(matrix[row], work.part.contributions.dense, *work.added.row(query))
    absent = 0 if matched is None else np.iinfo(dtype).min
    if matched is not None:
        matrix[~matched] = absent
    for row, query in enumerate(queries):
        accepted = work.passing(query)
        if accepted is not None:
            matrix[row][~accepted] = absent
    return matrix


def scatter(
    scores: Scores,
    matched: npt.NDArray[np.bool_] | None,
    documents: Sequence[npt.NDArray[np.int32]],
    quanta: Sequence[npt.NDArray[np.signedinteger[Any]]],
    shares: Sequence[tuple[Sequence[int], Sequence[int]]],
    workspace: Workspace,
) -> None:
    """Add to `scores` [rows, width] the contributions of each row's terms; flag matches in `matched`.

    `documents[t]` and `quanta[t]` are the posting list of distinct term t; ``shares[r]`` holds row r's terms and how
    often it has each.
    """
    triples = []
    for row, (terms, multiplicities) in enumerate(shares):
        for term, multiplicity in zip(terms, multiplicities, strict=True):
            if len(documents[term]) >= LONG_LIST and multiplicity == 1 and quanta[term].dtype == scores.dtype:
                _scatter_list(scores[row], documents[term], quanta[term], workspace)
                if matched is not None:
                    matched[row][documents[term]] = True
            else:
                triples.append((row, term, multiplicity))
    start = total = 0
    for end, (_, term, _) in enumerate(triples, 1):
        total += len(documents[term])
        if total >= SCATTER_BLOCK or end == len(triples):
            _scatter_block(scores, matched, documents, quanta, triples[start:end], total, workspace)
            start, total = end, 0


def _scatter_list(
    scores: Scores, documents: npt.NDArray[np.int32], quanta: npt.NDArray[np.signedinteger[Any]], workspace: Workspace
) -> None:
    where = workspace.take("where", len(documents), np.intp)
    np.copyto(where, documents)
    np.add.at(scores, where, quanta)


def _scatter_block(
    scores: Scores,
    matched: npt.NDArray[np.bool_] | None,
    documents: Sequence[npt.NDArray[np.int32]],
    quanta: Sequence[npt.NDArray[np.signedinteger[Any]]],
    triples: Sequence[tuple[int, int, int]],
    total: int,
    workspace: Workspace,
) -> None:
    width = scores.shape[1]
    lists = [documents[term] for _, term, _ in triples]
    where = workspace.take("where", total, np.intp)
    added = workspace.take("added", total, scores.dtype)
    np.concatenate(lists, out=where)
    np.concatenate([quanta[term] for _, term, _ in triples], out=added)
    if triples[-1][0]:
        where += np.repeat([row * width for row, _, _ in triples], [len(own) for own in lists])
    if any(multiplicity != 1 for _, _, multiplicity in triples):
        added *= np.repeat([multiplicity for _, _, multiplicity in triples], [len(own) for own in lists])
    np.add.at(scores.reshape(-1), where, added)
    if matched is not None:
        matched.reshape(-1)[where] = True


def add_dense(scores: Scores, dense: Scores, numbers: Sequence[int], multiplicities: Sequence[int]) -> None:
    """Add the rows of `dense` with these numbers, each times its multiplicity, to one row of scores."""
    for number, multiplicity in zip(numbers, multiplicities, strict=True):
        row = dense[number]
        scores += row if multiplicity == 1 else np.multiply(row, multiplicity, dtype=scores.dtype)
