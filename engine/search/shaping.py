"""What a query keeps of its ranking.

::

    ranking ── min_score ── unit ── collapse ── offset ── k ── reranker ── row of the answer

The ranking of BM25, and of any other single channel, holds every record that matches. That of a fusion holds its
candidates: the best of each channel, as many as the strategy's depth says, or k. So pages with one k are parts of one
ranking. A reranker orders the hits of a page among themselves.

How deep a ranking must be read is not known before its texts or columns are. So `Pages` asks for ever deeper lists, and
only for the rows whose page is not full yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Integers
from ..errors import QueryError
from ..index.columns import ABSENT
from ..index.masks import unknown_column
from ..index.neighbours import exchanges_of
from ..records.query import RECORD, TEXT, Query
from ..records.record import RecordsOf
from ..storage.state import MemoryState
from .batch import Batch, PreparedQuery

Ranked = tuple[Floats, Integers]
"""The hits of one query, best first: scores and documents."""

# The fewest hits that a query reads at first whose hits stand for others, and how much deeper each following list is. A
# list costs about the same at any of these depths, so few steps are better than short lists.
FIRST = 64
GROWTH = 4
# Places for hits in one launch of deep lists: 32 MiB for each array.
DEEP_PLACES = 1 << 22


_shape = attrgetter("offset", "min_score", "collapse", "unit")
_UNSHAPED = {_shape(Query())}


def is_shaped(query: Query) -> bool:
    """Whether the query keeps anything but the first k hits of its ranking."""
    return bool(query.offset) or query.min_score is not None or _is_joined(query)


def _is_joined(query: Query) -> bool:
    """Whether a hit may stand for others that come after it."""
    return query.collapse is not None or query.unit != RECORD


def unshaped(prepared: PreparedQuery) -> PreparedQuery:
    """The same query for the first k hits of its ranking."""
    if not is_shaped(prepared.query):
        return prepared
    return prepared._replace(query=with_fields(prepared.query, offset=0, min_score=None, collapse=None, unit=RECORD))


def with_fields(query: Query, **fields: object) -> Query:
    """The query with other values in these fields, which were checked before."""
    # `dataclasses.replace` would check all of the query again.
    changed: Query = object.__new__(type(query))
    object.__setattr__(changed, "__dict__", {**query.__dict__, **fields})
    return changed


class Pages:
    """The rows of a batch whose queries keep a part of their ranking, filled from lists that get deeper."""

    def __init__(self, batch: Batch, records: RecordsOf | None) -> None:
        """`records` fetches the texts for ``collapse="text"``. Raises `QueryError` for what cannot be compared."""
        self.batch = batch
        self.wanted: dict[int, int] = {}
        """By row whose page is not full: how many hits its list must hold, or all that there are."""
        self._records = records
        self._pages: dict[int, Ranked] = {}
        for row in batch.rows:
            asked = batch.asked[row]
            query = asked.query
            if not is_shaped(query):
                continue
            if query.collapse is not None:
                check_collapse(batch.memory, query.collapse, row, records)
            last = query.offset + asked.k
            if asked.k:
                depth = max(2 * last, FIRST) if _is_joined(query) else last
                self.wanted[row] = min(depth, self._size(row))
            else:
                self._pages[row] = np.zeros(0), np.zeros(0, dtype=np.int64)

    @classmethod
    def of(cls, batch: Batch, records: RecordsOf | None) -> Pages | None:
        """The pages of a batch; None where every query takes the first k hits."""
        return None if {*map(_shape, batch.queries)} <= _UNSHAPED else cls(batch, records)

    def take(self, lists: Mapping[int, Ranked], *, complete: bool = False) -> None:
        """Fill the pages of these rows from lists that are as deep as `wanted` says.

        `complete` says that the lists are whole rankings, however short. A row whose page is not full stays in
        `wanted`, with a greater depth.
        """
        kept: dict[int, Ranked] = {}
        whole: dict[int, bool] = {}
        for row, (scores, documents) in lists.items():
            wanted, least = self.wanted[row], self.batch.asked[row].query.min_score
            count = len(scores) if least is None else int(np.searchsorted(-scores, -least, side="right"))
            whole[row] = complete or count < len(scores) or len(scores) < wanted or wanted >= self._size(row)
            scores, documents = scores[:count], documents[:count]
            asked = self.batch.asked[row]
            if asked.query.unit != RECORD:
                first = _first_of_each(exchanges_of(asked.snapshot, self.batch.user).of[documents])
                scores, documents = scores[first], documents[first]
            kept[row] = scores, documents
        numbers = self._number_values(kept)
        for row, (scores, documents) in kept.items():
            asked = self.batch.asked[row]
            if row in numbers:
                first = _first_of_each(numbers[row])
                scores, documents = scores[first], documents[first]
            start, stop = asked.query.offset, asked.query.offset + asked.k
            if len(scores) < stop and not whole[row]:
                self.wanted[row] = min(self.wanted[row] * GROWTH, self._size(row))
                continue
            del self.wanted[row]
            self._pages[row] = scores[start:stop], documents[start:stop]

    def portions(self) -> Iterator[list[int]]:
        """The rows of `wanted`, in portions of about one depth whose lists fit into `DEEP_PLACES` places."""
        rows = sorted(self.wanted, key=self.wanted.__getitem__, reverse=True)
        while rows:
            count = max(DEEP_PLACES // max(self.wanted[rows[0]], 1), 1)
            yield rows[:count]
            rows = rows[count:]

    def fill(
        self, scores: Floats, documents: Integers, counts: npt.NDArray[np.int32]
    ) -> tuple[Floats, Integers, npt.NDArray[np.int32]]:
        """The answer [B, width] with the pages in their rows; the other rows are those of the arguments."""
        width = self.batch.width
        shape = len(counts), width
        filled, numbers = np.full(shape, -np.inf), np.full(shape, -1, dtype=np.int64)
        common = min(width, scores.shape[1])
        filled[:, :common], numbers[:, :common] = scores[:, :common], documents[:, :common]
        counts = counts.copy()
        for row, (page_scores, page_documents) in self._pages.items():
            count = counts[row] = len(page_scores)
            filled[row], numbers[row] = -np.inf, -1
            filled[row, :count], numbers[row, :count] = page_scores, page_documents
        return filled, numbers, counts

    def _size(self, row: int) -> int:
        """How many records the row searches: no list is longer."""
        return self.batch.asked[row].snapshot.size

    def _number_values(self, lists: Mapping[int, Ranked]) -> dict[int, Integers]:
        """For each row with `collapse`, a number for the value of each document, `ABSENT` where it has none."""
        from .twins import numbers_at, read_hashes  # a plain search loads neither

        numbers = {}
        for row, (_, documents) in lists.items():
            asked = self.batch.asked[row]
            column = asked.query.collapse
            if column == TEXT:
                read_hashes(asked.snapshot, asked.query.namespace, self._records)
            if column is not None:
                numbers[row] = numbers_at(self.batch.memory, asked.snapshot, column, documents)
        return numbers


def check_collapse(memory: MemoryState, name: str, row: int, records: RecordsOf | None) -> None:
    """Raise `QueryError` for what the query of a row cannot be collapsed by; `records` is as for `Pages`."""
    if name != TEXT and memory.schema.undeclared([name]):
        raise unknown_column(f"query {row}: no column {name!r} to collapse by", name, memory.schema, TEXT)
    if name == TEXT and records is None:
        raise QueryError(
            f"query {row}: collapse='text' compares the records' texts, which this engine does not keep; use "
            "Engine.open, or a column"
        )


def _first_of_each(numbers: Integers) -> Integers:
    """The positions of the first document of each number, and of all documents without a value, ascending."""
    first = np.unique(numbers, return_index=True)[1]
    return np.union1d(first, np.flatnonzero(numbers == ABSENT))
