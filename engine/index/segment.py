"""A segment: documents that arrived one after another, and their postings as one CSR.

Segments are the units in which an index grows, is written to files and is kept on a device. A segment never changes
once it is built.

Three tiny documents and what they become (one field)::

    0: "cat cat dog"   terms             [0 1 2]        cat, dog, fish (ids of the engine's vocabulary, ascending)
    1: "dog fish"      offsets           [0 1 3 4]      the postings of terms[i] are [offsets[i], offsets[i + 1])
    2: ""              documents         [0  0 1  1]    within the segment, ascending for each term
                       impact_classes    [2  1 0  0]    which (frequency, length) pair a posting is
                       class_frequencies [[1 1 2]]      raw counts (A011) of each impact class
                       class_lengths     [[2 3 3]]      and lengths
                       lengths           [[3 2 0]]      kept tokens a document

What a posting contributes depends on its term's idf and on its impact class alone, and there are few impact classes
(392 in 330,000 dialogue turns). So new statistics need one new number for each impact class, not for each posting.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..arrays import Integers, offsets_of, ranges
from ..locks import once
from ..records.record import Record
from ..text.vocabulary import Vocabulary
from ..vectors.vectors import Vectors
from .columns import Columns, Ids
from .masks import CompiledFilter
from .postings import Postings, Unsigned, blocks, classes_of, distinct_numbers, join_postings

if TYPE_CHECKING:
    from .text_hashes import TextHashes

NESTED = "learned", "entities"
"""Names of the nested segments: further postings of the same documents, in the attribute of `Segment` of this name."""

NewNumbers = npt.NDArray[np.int32]
"""The new number of each old one in a vocabulary; -1 where it has none."""

# What a segment computes once and keeps where its terms and column values get other numbers.
LASTING = {"total_lengths", "expiries", "span", "in_order", "latest_in", "latest_before", "_windows", "dense_row"}
LASTING |= {"posting_counts", "_text_hashes"}

# Where it keeps what was computed beside its own arrays.
_CACHED = {"latest_in", "latest_before", "dense_row", "posting_counts", "_masks", "_windows", "time_orders", "derived"}
_CACHED |= {"_text_hashes"}
# One latest time is kept for so many documents, for searches that go from the newest document to the oldest.
TIME_BLOCK = 1 << 10
# Filter masks that a segment keeps: the same sessions and users are filtered for in batch after batch.
MASKS = 16
# A list with at least one in DENSE_SHARE of a segment's documents, and at least DENSE_POSTINGS, may also be kept as a
# dense row: one contribution for each document, which is added at vector speed. The longest lists come first, up to
# DENSE_BYTES in all.
DENSE_SHARE = 8
DENSE_POSTINGS = 256
DENSE_BYTES = 1 << 26


@dataclass(frozen=True, eq=False)
class Segment:
    """The postings and columns of `size` documents, in order of arrival."""

    terms: npt.NDArray[np.int32]  # [terms]
    offsets: Integers  # [terms + 1]
    documents: npt.NDArray[np.int32]  # [postings]
    impact_classes: Unsigned  # [postings] in the narrowest type
    class_frequencies: npt.NDArray[np.int32]  # [fields, impact_classes]
    class_lengths: npt.NDArray[np.int32]  # [fields, impact_classes]
    lengths: npt.NDArray[np.int32]  # [fields, size]
    ids: Ids
    columns: Columns
    vectors: Vectors | None = None
    """Unit vectors of the documents; None if no document has one."""
    learned: Segment | None = None
    """Learned term weights of the same documents, as a nested segment. It has the same `ids` and `columns` objects, and
    all its lengths are 0. None if it has no posting."""
    entities: Segment | None = None
    """What the same documents say of entities (`engine/records/entities.py`), as a nested segment like `learned`. The
    frequency of each posting is 1. None if it has no posting."""
    records: tuple[Record, ...] | None = None
    """The records of the documents, in an engine in memory that keeps them; else None."""

    def __post_init__(self) -> None:
        # All are made read-only, as memory-mapped arrays are, so that a loop is compiled once for both.
        arrays: list[npt.NDArray[Any] | None] = [self.offsets, self.documents, self.impact_classes, self.columns.times]
        if self.vectors is not None:
            arrays += [self.vectors.matrix, self.vectors.offsets]
        for array in arrays:
            if array is not None:
                array.flags.writeable = False

    @once
    def size(self) -> int:
        return int(self.lengths.shape[1])

    @property
    def postings(self) -> int:
        return len(self.documents)

    def held(self, name: str) -> Segment | None:
        """The nested segment of this name, one of `NESTED`; None if it has no posting."""
        inner: Segment | None = getattr(self, name)
        return inner

    def nested(self, name: str) -> Segment:
        """As `held`, but in place of None a segment of the same documents without postings."""
        return self.held(name) or self._without_postings

    def nested_postings(self, name: str) -> int:
        """How many postings the nested segment of this name has."""
        inner = self.held(name)
        return 0 if inner is None else inner.postings

    @once
    def _without_postings(self) -> Segment:
        return Segment(**vars(Postings.none(self.size)), ids=self.ids, columns=self.columns)

    @property
    def index_bytes(self) -> int:
        """Bytes of what BM25 needs: terms, offsets, documents, impact classes and lengths."""
        lists = (self.terms, self.offsets, self.documents, self.impact_classes)
        return sum(a.nbytes for a in (*lists, self.lengths, self.class_frequencies, self.class_lengths))

    def frequencies(self, where: slice | Integers = slice(None)) -> npt.NDArray[np.int32]:
        """Raw counts of the postings selected by `where`, [fields, postings]."""
        return self.class_frequencies[:, self.impact_classes[where]]

    @once
    def total_lengths(self) -> tuple[int, ...]:
        """Tokens of all documents, one number for each field."""
        return tuple(int(lengths.sum(dtype=np.int64)) for lengths in self.lengths)

    @once
    def posting_counts(self) -> npt.NDArray[np.int32]:
        """[size] how many postings each document has."""
        return np.bincount(self.documents, minlength=self.size).astype(np.int32)

    @property
    def times(self) -> npt.NDArray[np.float64] | None:
        """[size] seconds, NaN where a record has no time; None if no record has one."""
        return self.columns.times

    @once
    def expiries(self) -> npt.NDArray[np.float64]:
        """The distinct times of expiry of the documents, ascending."""
        expires = self.columns.numbers.get("expires")
        return np.zeros(0) if expires is None else np.unique(expires[~np.isnan(expires)])

    @once
    def span(self) -> tuple[float, float] | None:
        """The earliest and the latest time, or None if no record has one."""
        if self.times is None or not len(self.times):
            return None
        return float(np.nanmin(self.times)), float(np.nanmax(self.times))

    @once
    def in_order(self) -> bool:
        """Whether every record has a time and none is before its predecessor's."""
        return self.times is not None and not np.isnan(self.times).any() and bool((np.diff(self.times) >= 0).all())

    @once
    def latest_in(self) -> npt.NDArray[np.float64]:
        """[blocks] the latest time in each block of `TIME_BLOCK` documents; inf where one of them has no time."""
        blocks = -(-self.size // TIME_BLOCK)
        if self.times is None:
            return np.full(blocks, np.inf)
        padded = np.full(blocks * TIME_BLOCK, -np.inf)
        padded[: self.size] = np.where(np.isnan(self.times), np.inf, self.times)
        return np.asarray(padded.reshape(blocks, TIME_BLOCK).max(axis=1))

    @once
    def latest_before(self) -> npt.NDArray[np.float64]:
        """[blocks] the latest time of all documents up to the end of each block, as in `latest_in`."""
        return np.maximum.accumulate(self.latest_in)

    @property
    def latest(self) -> float:
        """The latest time of the documents; inf if one has no time, -inf if there are no documents."""
        return float(self.latest_before[-1]) if self.size else -math.inf

    def windows(self, window: float) -> Integers:
        """The numbers of the time windows (``floor(time / window)``) that hold a document, ascending."""
        known = self._windows.get(window)
        if known is None:
            known = self._windows[window] = self.windows_among(slice(None), window)
        return known

    def windows_among(self, documents: slice | npt.NDArray[np.bool_], window: float) -> Integers:
        """As `windows`, for these documents alone. Nothing is kept."""
        times = np.zeros(0) if self.times is None else self.times[documents]
        return distinct_numbers(np.floor(times[~np.isnan(times)] / window).astype(np.int64))

    @once
    def _windows(self) -> dict[float, Integers]:
        return {}

    @property
    def text_hashes(self) -> TextHashes | None:
        """The hashes of the documents' texts, where a search has read them."""
        return vars(self).get("_text_hashes")

    def keep_text_hashes(self, hashes: TextHashes) -> None:
        vars(self)["_text_hashes"] = hashes

    def prepare(self) -> None:
        """Compute now what the first searches would otherwise compute."""
        _ = (self.total_lengths, self.span, self.in_order, self.latest_before, self.dense_rows)
        for name in NESTED:
            if (inner := self.held(name)) is not None:
                inner.prepare()

    def mask(self, accepted: CompiledFilter) -> npt.NDArray[np.bool_]:
        """Which documents pass, bool [size]. Up to `MASKS` masks are kept."""
        if not accepted.kept:
            return accepted.mask(self.columns)
        mask = self._masks.get(accepted)
        if mask is None:
            mask = accepted.mask(self.columns)
            if len(self._masks) >= MASKS:
                self._masks.clear()
            self._masks[accepted] = mask
        return mask

    @once
    def _masks(self) -> dict[CompiledFilter, npt.NDArray[np.bool_]]:
        return {}

    @once
    def sizes(self) -> tuple[int, ...]:
        """Bytes of what BM25 needs, of nested segments, ids and columns; postings of each of `NESTED`.

        There may be a segment for each tenant.
        """
        nested = [self.held(name) for name in NESTED]
        evidence = sum(inner.index_bytes for inner in nested if inner is not None)
        postings = (0 if inner is None else inner.postings for inner in nested)
        return self.index_bytes, evidence, self.ids.bytes, self.columns.bytes, *postings

    def cached(self) -> list[object]:
        """What was computed for this segment beside its own arrays, so far."""
        held = vars(self)
        if _CACHED.isdisjoint(held):
            return []
        found = [held.get(name) for name in ("latest_in", "latest_before", "dense_row", "posting_counts")]
        for name in ("_masks", "_windows"):
            found += held.get(name, {}).values()
        for order in list(held.get("time_orders", {}).values()):
            found += vars(order).values()
        for each in [*held.get("derived", {}).values(), self.text_hashes]:
            found += getattr(each, "arrays", ())
        return found

    @once
    def time_orders(self) -> dict[Hashable, Any]:
        """What `engine/index/time_order.py` keeps, by type and filter."""
        return {}

    @once
    def derived(self) -> dict[Any, Any]:
        """What other files work out for this segment once, by their names for it."""
        return {}

    @once
    def dense_row(self) -> npt.NDArray[np.int32]:
        """[terms] number of each list's dense row, or -1 for a list that has none."""
        lengths = np.diff(self.offsets)
        dense = np.flatnonzero(lengths >= max(self.size // DENSE_SHARE, DENSE_POSTINGS))
        room = DENSE_BYTES // max(self.size * 4, 1)
        if len(dense) > room:
            dense = np.sort(dense[np.argsort(-lengths[dense], kind="stable")[:room]])
        rows = np.full(len(self.terms), -1, dtype=np.int32)
        rows[dense] = np.arange(len(dense), dtype=np.int32)
        return rows

    @once
    def dense_rows(self) -> int:
        """How many dense rows there are."""
        return int(self.dense_row.max(initial=-1)) + 1

    def renumbered(self, terms: Mapping[str, NewNumbers], columns: Mapping[str, NewNumbers]) -> Segment:
        """The same documents and postings in another numbering of terms and category values; `self` where none changes.

        `terms` has the new number of each old term, by the name of the nested segment ("" for this one); `columns` has
        that of each old code, by column (`Columns.renumbered`). What is left out keeps its numbers. All arrays are
        shared, except where the new numbers do not ascend: then the lists are put into their order.
        """
        own = self.columns.renumbered(columns)
        changed = {
            name: inner._renumber_terms(terms[name], own) if name in terms else replace(inner, columns=own)
            for name in NESTED
            if (inner := self.held(name)) is not None and (name in terms or own is not self.columns)
        }
        outer = self._renumber_terms(terms[""], own) if "" in terms else self
        if outer is self and own is not self.columns:
            outer = self._keep_derived(replace(self, columns=own))
        if all(inner is self.held(name) for name, inner in changed.items()):
            return outer
        following: dict[str, Any] = changed
        return outer._keep_derived(replace(outer, **following))

    def _renumber_terms(self, numbers: NewNumbers, columns: Columns) -> Segment:
        terms = numbers[self.terms]
        if columns is self.columns and np.array_equal(terms, self.terms):
            return self
        if (terms[1:] > terms[:-1]).all():
            return self._keep_derived(replace(self, terms=terms, columns=columns))
        order = np.argsort(terms)
        lengths = np.diff(self.offsets)[order]
        where = ranges(self.offsets[:-1][order], lengths)
        return replace(
            self,
            terms=terms[order],
            offsets=offsets_of(lengths),
            documents=self.documents[where],
            impact_classes=self.impact_classes[where],
            columns=columns,
        )

    def _keep_derived(self, following: Segment) -> Segment:
        """`following`, which has the same documents and lists in the same order, with what was computed for these."""
        vars(following).update({name: value for name, value in vars(self).items() if name in LASTING})
        return following

    def locate(self, terms: npt.NDArray[np.int32]) -> Integers:
        """The position of each term in `self.terms`, or -1 where no document of the segment has it."""
        if not len(self.terms):
            return np.full(len(terms), -1, dtype=np.int64)
        positions = np.minimum(np.searchsorted(self.terms, terms), len(self.terms) - 1)
        return np.where(self.terms[positions] == terms, positions, -1).astype(np.int64)


def nested_segment(
    names: Sequence[str],
    documents: Integers,
    frequencies: Integers,
    vocabulary: Vocabulary,
    ids: Ids,
    columns: Columns,
) -> Segment:
    """The nested segment of these postings, of the documents with these `ids` and `columns`; all lengths are 0.

    Posting i says that document `documents[i]` has the term `names[i]`, `frequencies[i]` times. No document may have a
    term twice. New terms enter the vocabulary, numbered alphabetically among themselves, whatever the order of the
    documents.
    """
    for name in sorted(set(names).difference(vocabulary.ids)):
        vocabulary.add(str(name))
    numbers = np.fromiter(map(vocabulary.ids.__getitem__, names), np.int64, len(names))
    return numbered_segment(numbers, documents, frequencies, ids, columns)


def numbered_segment(
    numbers: Integers, documents: Integers, frequencies: Integers, ids: Ids, columns: Columns
) -> Segment:
    """As `nested_segment`, for terms that are `numbers` of the vocabulary."""
    order = np.argsort(numbers << 32 | documents)
    numbers = numbers[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    offsets = offsets_of(np.diff(starts, append=len(numbers)))
    return _build_segment(numbers[starts], offsets, documents[order], frequencies[order], ids, columns)


def _build_segment(
    terms: npt.NDArray[np.signedinteger[Any]],
    offsets: Integers,
    documents: npt.NDArray[np.signedinteger[Any]],
    frequencies: npt.NDArray[np.signedinteger[Any]],
    ids: Ids,
    columns: Columns,
) -> Segment:
    impact_classes, representatives = classes_of([frequencies])
    distinct = frequencies[representatives][None, :].astype(np.int32)
    return Segment(
        terms=terms.astype(np.int32),
        offsets=offsets,
        documents=documents.astype(np.int32),
        impact_classes=impact_classes,
        class_frequencies=distinct,
        class_lengths=np.zeros_like(distinct),
        lengths=np.zeros((1, columns.size), dtype=np.int32),
        ids=ids,
        columns=columns,
    )


def merge_segments(
    segments: Sequence[Segment], deleted: Sequence[npt.NDArray[np.bool_] | None] | None = None
) -> Segment:
    """One segment with the documents of neighbouring segments in their order, without the deleted ones.

    `deleted` says for each segment which documents are deleted, bool [size], or None if none is. The time is linear in
    the postings, without a sort. Other threads may run between the blocks that are copied.
    """
    parts = [
        segment if gone is None else select_documents(segment, ~gone)
        for segment, gone in zip(segments, deleted or [None] * len(segments), strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    ids, columns = Ids.concatenate([part.ids for part in parts]), Columns.concatenate([part.columns for part in parts])
    merged = Segment(**vars(join_postings(parts)), ids=ids, columns=columns)
    inner: dict[str, Any] = {
        name: Segment(**vars(join_postings([part.nested(name) for part in parts])), ids=ids, columns=columns)
        for name in sorted({name for part in parts for name in NESTED if vars(part)[name] is not None})
    }
    if inner:
        merged = replace(merged, **inner)
    vectors = join_vectors([part.vectors for part in parts], [part.size for part in parts])
    records = join_records([part.records for part in parts])
    if vectors is not None or records is not None:
        merged = replace(merged, vectors=vectors, records=records)
    hashes = [part.text_hashes for part in parts if part.text_hashes is not None]
    if len(hashes) == len(parts):
        merged.keep_text_hashes(hashes[0].join(hashes))
    return merged


def join_records(parts: Sequence[Sequence[Record] | None]) -> tuple[Record, ...] | None:
    """The records of neighbouring documents; None if a part keeps none."""
    kept = [part for part in parts if part is not None]
    return tuple(chain.from_iterable(kept)) if len(kept) == len(parts) else None


def join_vectors(parts: Sequence[Vectors | None], sizes: Sequence[int]) -> Vectors | None:
    """The vectors of neighbouring documents, `sizes[i]` documents in part i; None if no part has vectors."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    dimension = present[0].dimension
    return Vectors.concatenate(
        [
            Vectors.of([None] * size, dimension) if part is None else part
            for part, size in zip(parts, sizes, strict=True)
        ]
    )


def select_documents(segment: Segment, kept: npt.NDArray[np.bool_], *, text_only: bool = False) -> Segment:
    """The segment of the documents where `kept` [size] is true. With `text_only` it has no vectors, learned weights,
    entities and records.
    """
    positions = np.flatnonzero(kept)
    ids, columns = segment.ids.take(positions), segment.columns.take(positions)
    chosen = _select_postings(segment, kept, ids, columns)
    if text_only:
        return chosen
    inner: dict[str, Any] = {
        name: selected
        for name in NESTED
        if (whole := segment.held(name)) is not None
        and (selected := _select_postings(whole, kept, ids, columns)).postings
    }
    if inner:
        chosen = replace(chosen, **inner)
    if segment.vectors is not None:
        vectors = segment.vectors.take(positions)
        chosen = replace(chosen, vectors=vectors if len(vectors.matrix) else None)
    if segment.records is not None:
        chosen = replace(chosen, records=tuple(compress(segment.records, kept.tolist())))
    if segment.text_hashes is not None:
        chosen.keep_text_hashes(segment.text_hashes.take(kept))
    return chosen


def _select_postings(segment: Segment, kept: npt.NDArray[np.bool_], ids: Ids, columns: Columns) -> Segment:
    """The postings of the documents where `kept` is true, numbered anew, with the given `ids` and `columns`."""
    renumbered = np.cumsum(kept, dtype=np.int32) - np.int32(1)
    documents, impact_classes = [], []
    counts = np.zeros(len(segment.terms), dtype=np.int64)
    for lists in blocks(segment.offsets):
        source = slice(int(segment.offsets[lists.start]), int(segment.offsets[lists.stop]))
        block_documents = segment.documents[source]
        alive = kept[block_documents]
        documents.append(renumbered[block_documents[alive]])
        impact_classes.append(segment.impact_classes[source][alive])
        counts[lists] = np.diff(offsets_of(alive)[segment.offsets[lists.start : lists.stop + 1] - source.start])
    remaining = np.flatnonzero(counts)
    return Segment(
        terms=segment.terms[remaining],
        offsets=offsets_of(counts[remaining]),
        documents=np.concatenate([np.zeros(0, dtype=np.int32), *documents]),
        impact_classes=np.concatenate([np.zeros(0, dtype=segment.impact_classes.dtype), *impact_classes]),
        class_frequencies=segment.class_frequencies,
        class_lengths=segment.class_lengths,
        lengths=segment.lengths[:, kept],
        ids=ids,
        columns=columns,
    )
