"""Segments built from a large batch: it is analysed chunk by chunk, and the postings of each chunk are joined once.

Beside the index, memory holds the records of one chunk and the chunks of the open segment, at 4 bytes a posting
(`Part`). The chunks become the segment without both being in memory at once (A126). Several threads read the texts of
one chunk at the same time. A thread that analysed one chunk beside another that read the next one gained nothing, as
both wait for the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DuplicateIdError
from ..records.copies import kept_records
from ..records.record import Record
from ..text.vocabulary import TermIndexer, Vocabulary
from ..vectors.vectors import Vectors
from .build import entities_of, learned_of, texts_of, vectors_of
from .columns import Columns, Ids, Schema, Strings, hashes_of
from .merge import closes
from .postings import Part, Postings, join_postings, sort_tokens
from .segment import NESTED, Segment, join_records, join_vectors
from .snapshot import Snapshot

Hashes = npt.NDArray[np.uint64]


@dataclass(eq=False)
class Chunk:
    """What is kept of a chunk of records until it is joined into a segment."""

    strings: Strings
    hashes: Hashes
    columns: Columns
    vectors: Vectors | None
    nested: dict[str, Segment]
    records: Sequence[Record] | None = None
    part: Part | None = None

    @property
    def size(self) -> int:
        return self.columns.size

    @property
    def span(self) -> tuple[float, float] | None:
        """The earliest and the latest time; None if no record has one."""
        times = self.columns.times
        return None if times is None else (float(np.nanmin(times)), float(np.nanmax(times)))


@dataclass(eq=False)
class Bulk:
    """Builds segments from one namespace's share of a batch: `add` chunk after chunk, then `finish`."""

    namespace: str
    before: Snapshot
    fields: Sequence[str]
    indexer: TermIndexer
    schema: Schema
    values: Mapping[str, Vocabulary]
    weight_terms: Vocabulary
    entity_terms: Vocabulary
    limit: int
    """The largest number of documents in a segment. A chunk is not split, so a larger chunk is one segment."""
    window: float
    threads: int
    keep: bool = False
    """Whether the segments hold the records too."""
    _segments: list[Segment] = field(default_factory=list)
    _open: list[Chunk] = field(default_factory=list)
    _size: int = 0
    """The number of documents in `_open`."""
    _span: tuple[float, float] | None = None
    """The earliest and the latest time in `_open`."""
    _seen: list[Hashes] = field(default_factory=list)
    """The hashes of all ids so far, in ascending arrays, each longer than the next."""

    def add(self, records: Sequence[Record], orders: Sequence[int] | None = None) -> None:
        """Add the next chunk of records; new terms enter the vocabularies. `orders` are as in `Columns.of`.

        Raises `DuplicateIdError`, `RecordError`.
        """
        ids = [record.id for record in records]
        hashes = hashes_of(ids)
        self._check_new(ids, hashes)
        columns = Columns.of(records, self.schema, self.values, orders)
        nested: dict[str, Segment] = {}
        if any(record.weights or record.entities or record.relations for record in records):
            id_column = Ids.of(ids, hashes)
            segments = (
                learned_of(records, self.weight_terms, id_column, columns),
                entities_of(records, self.entity_terms, id_column, columns),
            )
            nested = {name: inner for name, inner in zip(NESTED, segments, strict=True) if inner is not None}
        kept = kept_records(records) if self.keep else None
        chunk = Chunk(Strings.of(ids), hashes, columns, vectors_of(records), nested, kept)
        self._take(chunk, [texts_of(records, name) for name in self.fields])

    def finish(self) -> list[Segment]:
        """All segments, in order of arrival."""
        self._seen.clear()
        self._close()
        return self._segments

    def _check_new(self, ids: list[str], hashes: Hashes) -> None:
        check_ids(self.namespace, ids, self.before.find_all(ids, hashes))
        ascending = np.sort(hashes)
        shared = np.zeros(len(hashes), dtype=np.bool_)
        for seen in self._seen:
            shared |= _find_in(seen, hashes)
        if shared.any():
            # Two different ids can have the same hash, so the ids themselves decide.
            taken = next((ids[index] for index in np.flatnonzero(shared).tolist() if self._holds(ids[index])), None)
            if taken is not None:
                raise _twice(self.namespace, taken)
        while self._seen and len(self._seen[-1]) <= len(ascending):
            ascending = np.concatenate([self._seen.pop(), ascending])
            ascending.sort()
        self._seen.append(ascending)

    def _holds(self, record_id: str) -> bool:
        """Whether an earlier record of the batch has this id."""
        value = hashes_of([record_id])[0]
        return any(segment.ids.find(record_id, int(value)) is not None for segment in self._segments) or any(
            chunk.strings[position] == record_id
            for chunk in self._open
            for position in np.flatnonzero(chunk.hashes == value).tolist()
        )

    def _take(self, chunk: Chunk, texts: list[list[str]]) -> None:
        if self._size and (
            self._size + chunk.size > self.limit or closes(self._span, chunk.span, self.window, self._size)
        ):
            self._close()
        tokens = [self.indexer.encode_documents(field_texts, threads=self.threads) for field_texts in texts]
        chunk.part = Part.of(sort_tokens(tokens, chunk.size))
        self._open.append(chunk)
        self._size += chunk.size
        spans = [span for span in (self._span, chunk.span) if span is not None]
        if spans:
            self._span = min(first for first, _ in spans), max(last for _, last in spans)

    def _close(self) -> None:
        """Join the open chunks into a segment."""
        chunks, self._open, self._size, self._span = self._open, [], 0, None
        if not chunks:
            return
        postings = join_postings([chunk.part for chunk in chunks if chunk.part is not None])
        for chunk in chunks:
            chunk.part = None
        strings, hashes = [chunk.strings for chunk in chunks], [chunk.hashes for chunk in chunks]
        for chunk in chunks:
            del chunk.strings, chunk.hashes
        ids = Ids.join(strings, hashes)
        columns = Columns.concatenate([chunk.columns for chunk in chunks])
        nested: dict[str, Any] = {
            name: Segment(
                **vars(join_postings([chunk.nested.get(name) or Postings.none(chunk.size) for chunk in chunks])),
                ids=ids,
                columns=columns,
            )
            for name in NESTED
            if any(name in chunk.nested for chunk in chunks)
        }
        vectors = join_vectors([chunk.vectors for chunk in chunks], [chunk.size for chunk in chunks])
        records = join_records([chunk.records for chunk in chunks])
        self._segments.append(
            Segment(**vars(postings), ids=ids, columns=columns, vectors=vectors, records=records, **nested)
        )


def _find_in(ascending: Hashes, values: Hashes) -> npt.NDArray[np.bool_]:
    """[values] whether each value is in the ascending array, which must not be empty."""
    indexes = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return ascending[indexes] == values  # type: ignore[no-any-return]


def check_new(namespace: str, records: Sequence[Record], before: Snapshot) -> Hashes:
    """The hashes of the records' ids. Raises `DuplicateIdError` for an id that occurs twice or is live in `before`."""
    ids = [record.id for record in records]
    hashes = hashes_of(ids)
    check_ids(namespace, ids, before.find_all(ids, hashes))
    return hashes


def check_ids(namespace: str, ids: Sequence[str], found: Collection[str]) -> None:
    """As `check_new`; `found` are those of the ids that are live."""
    if found:
        # The first of the batch: the first of the segments would be another one after a merge.
        taken = next(record_id for record_id in ids if record_id in found)
        message = "the id is already taken; give another, or replace the record with update"
        raise DuplicateIdError(message, where=_place(namespace), record_id=taken)
    if len(set(ids)) < len(ids):
        seen: set[str] = set()
        raise _twice(namespace, next(name for name in ids if name in seen or seen.add(name)))  # type: ignore[func-returns-value]


def _twice(namespace: str, record_id: str) -> DuplicateIdError:
    message = "the batch has this id twice; ids must be unique"
    return DuplicateIdError(message, where=_place(namespace), record_id=record_id)


def _place(namespace: str) -> str | None:
    return f"namespace {namespace!r}" if namespace else None
