"""The segments of one namespace with live statistics: immutable snapshots, each made from the last by a write.

Nothing derived is the truth: statistics are exact integers over the live documents, and contributions belong to the
snapshot (the epoch) whose statistics made them, so no answer can be stale (A011 cannot happen) and any history of
writes equals an index built at once from what remains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from .bm25 import BM25, FloatArray, Statistics
from .columns import hashes_of
from .contributions import Contributions
from .learned import IMPACTS
from .masks import CompiledFilter
from .segment import Segment, merge_segments, select_documents
from .tombstones import NOTHING_DELETED, Tombstones

# A segment of this many documents is closed: large enough that per-segment overhead vanishes, small enough that
# merging one stays under a second.
MAX_SEGMENT_DOCUMENTS = 1 << 20
# From this many documents on, a segment also closes when the next record lies in another time window. Fewer would make
# a search of all windows pay for too many segments.
WINDOW_DOCUMENTS = 1 << 16
# A namespace of this many documents keeps its document frequencies in one array over the vocabulary.
COUNTED_DOCUMENTS = 1 << 12
# A segment is written anew once this share of its documents is deleted.
DELETED_SHARE = 0.25
# Filtered corpora kept a snapshot.
FILTERED = 8

WEEK = 7 * 86_400.0


@dataclass(frozen=True)
class Place:
    """Where a live document is."""

    segment: int
    position: int


@dataclass(frozen=True, eq=False)
class Snapshot:
    """An immutable state of a namespace: segments in order of arrival, the deleted among their documents, one epoch of
    statistics.

    Documents are numbered through all segments in order, the deleted included, until a merge leaves those out.
    """

    segments: tuple[Segment, ...]
    bm25: BM25
    tombstones: Mapping[int, Tombstones] = field(default_factory=lambda: NOTHING_DELETED)  # by number of the segment
    counts: npt.NDArray[np.int32] | None = None
    """Document frequency of each term by vocabulary id, live documents alone; kept by large namespaces."""

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """The number of each segment's first document."""
        return tuple(accumulate((segment.size for segment in self.segments), initial=0))[:-1]

    @cached_property
    def numbers(self) -> int:
        """Documents, the deleted included: one more than the largest number."""
        return sum(segment.size for segment in self.segments)

    @cached_property
    def size(self) -> int:
        """Live documents."""
        return self.numbers - sum(own.count for own in self.tombstones.values())

    @cached_property
    def spans(self) -> tuple[FloatArray, FloatArray]:
        """(earliest, latest) time of each segment [segments]; inf and -inf where no record has one."""
        spans = [segment.span or (math.inf, -math.inf) for segment in self.segments]
        earliest, latest = np.array(spans, dtype=np.float64).reshape(-1, 2).T
        return earliest, latest

    @cached_property
    def latest_upto(self) -> FloatArray:
        """[segments] the latest time in each segment and the older ones; inf where a record has none."""
        return np.maximum.accumulate(np.array([segment.latest for segment in self.segments], dtype=np.float64))

    def newest_windows(self, count: int, window: float, last: float) -> float:
        """The start, in seconds, of the `count` newest windows up to number `last` that hold a record; or inf."""
        _, latest = self.spans
        newest = np.floor(latest / window)
        key = (count, window, min(last, float(newest.max(initial=-math.inf))))
        if key not in self._newest:
            self._newest[key] = self._start_of(count, window, last, newest)
        return self._newest[key]

    @cached_property
    def _newest(self) -> dict[tuple[int, float, float], float]:
        return {}

    def _start_of(self, count: int, window: float, last: float, newest: FloatArray) -> float:
        held: set[int] = set()
        for number in np.argsort(-newest, kind="stable").tolist():
            if len(held) >= count and newest[number] < min(sorted(held)[-count:]):
                break
            windows = self.windows(number, window)
            stop = int(np.searchsorted(windows, last, "right"))
            held.update(windows[max(stop - count, 0) : stop].tolist())
        return window_start(min(sorted(held)[-count:]), window) if held else math.inf

    @cached_property
    def statistics(self) -> Statistics:
        totals = [sum(column) for column in zip(*(s.total_lengths for s in self.segments), strict=True)]
        for own in self.tombstones.values():
            totals = [total - deleted for total, deleted in zip(totals, own.lengths, strict=True)]
        frequencies = None
        if self.bm25.method == "okapi":
            frequencies = self.all_document_frequencies()
            frequencies = frequencies[frequencies > 0]
        return Statistics(self.size, tuple(totals) or (0,) * len(self.bm25.fields), frequencies)

    def all_document_frequencies(self) -> npt.NDArray[np.int64]:
        """By vocabulary id [largest id + 1]; 0 for terms that no live document has."""
        if self.counts is not None:
            return self.counts.astype(np.int64)
        df = np.zeros(max((int(s.terms[-1]) + 1 for s in self.segments if len(s.terms)), default=0), dtype=np.int64)
        for number, segment in enumerate(self.segments):
            df[segment.terms] += np.diff(segment.offsets)
            if number in self.tombstones:
                own = self.tombstones[number]
                df[segment.terms[own.terms]] -= own.frequencies
        return df

    @cached_property
    def term_idf(self) -> FloatArray:
        """The idf of every term of the namespace by vocabulary id, float64 [largest id + 1]; 0 where it has none."""
        df = self.all_document_frequencies()
        held = df > 0
        idf = np.zeros(len(df))
        idf[held] = self.bm25.idf(df[held], self.statistics)
        return idf

    @cached_property
    def long(self) -> bool:
        """Whether contributions are kept in int64, as a single one could leave int32."""
        return self.bm25.needs_int64(self.statistics)

    @cached_property
    def highest_bound(self) -> float:
        """Quanta that no contribution exceeds in absolute value."""
        return float(self.bm25.bounds(self.term_idf).max(initial=0.0))

    @cached_property
    def learned(self) -> Snapshot:
        """The learned term weights as a namespace of their own: the same documents, numbers and deleted."""
        return self._nested("learned")

    @cached_property
    def entities(self) -> Snapshot:
        """What is said of entities, likewise: the frequency of a term (`engine/records/entities.py`) is how many live
        documents say it.
        """
        return self._nested("entities")

    def _nested(self, name: str) -> Snapshot:
        inner = [segment.nested(name) for segment in self.segments]
        deleted = {number: own.nested(inner[number]) for number, own in self.tombstones.items()}
        return Snapshot((), IMPACTS).extended(inner, deleted)

    @cached_property
    def has_vectors(self) -> bool:
        """Whether any document, the deleted included, has a vector."""
        return any(segment.vectors is not None for segment in self.segments)

    @cached_property
    def contributions(self) -> tuple[Contributions, ...]:
        return tuple(Contributions(segment, self.bm25, self.statistics) for segment in self.segments)

    def document_frequencies(self, terms: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """How many live documents hold each of these terms (vocabulary ids), int64, same shape."""
        if self.counts is not None:
            found = np.zeros(terms.shape, dtype=np.int64)
            known = terms < len(self.counts)
            found[known] = self.counts[terms[known]]
            return found
        total = np.zeros(len(terms), dtype=np.int64)
        for number, segment in enumerate(self.segments):
            positions = segment.locate(terms)
            present = positions >= 0
            found = positions[present]
            total[present] += segment.offsets[found + 1] - segment.offsets[found]
            own = self.tombstones.get(number)
            if own is not None and len(own.terms):
                place = np.minimum(np.searchsorted(own.terms, positions), len(own.terms) - 1)
                total -= np.where(own.terms[place] == positions, own.frequencies[place], 0)
        return total

    def alive(self, segment: int) -> npt.NDArray[np.bool_] | None:
        """Which documents of a segment are live, bool [documents]; None: all of them."""
        own = self.tombstones.get(segment)
        return None if own is None else own.alive

    def windows(self, segment: int, window: float) -> npt.NDArray[np.int64]:
        """The numbers of the time windows that hold a live document of a segment, ascending."""
        own = self.tombstones.get(segment)
        if own is None:
            return self.segments[segment].windows(window)
        known = own.windows.get(window)
        if known is None:
            known = own.windows[window] = self.segments[segment].windows_among(own.alive, window)
        return known

    def find(self, record_id: str) -> Place | None:
        """Where the live document with this id is, or None."""
        return self.find_all([record_id]).get(record_id)

    def find_all(self, ids: Sequence[str], hashes: npt.NDArray[np.uint64] | None = None) -> dict[str, Place]:
        """Where those of these ids are that a live document has; `hashes` [ids] are theirs, if known."""
        found: dict[str, Place] = {}
        if not self.segments or not ids:
            return found
        if hashes is None:
            hashes = hashes_of(ids)
        for number, segment in enumerate(self.segments):
            own = self.tombstones.get(number)
            for index, position in segment.ids.find_all(ids, hashes):
                if own is None or not own.deleted[position]:
                    found[ids[index]] = Place(number, position)
        return found

    def ids_of(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """The record ids (str) of these document numbers, same shape [n]."""
        ids = np.empty(len(documents), dtype=object)
        for first, segment in zip(self.firsts, self.segments, strict=True):
            own = (documents >= first) & (documents < first + segment.size)
            if own.any():
                ids[own] = segment.ids.strings.take(documents[own] - first)
        return ids

    def numbers_of(self, column: str, documents: npt.NDArray[np.int64]) -> FloatArray:
        """The values of a column of numbers at these document numbers, NaN where there is none, same shape [n]."""
        values = np.full(len(documents), np.nan)
        for first, segment in zip(self.firsts, self.segments, strict=True):
            held = segment.columns.numbers.get(column)
            own = (documents >= first) & (documents < first + segment.size)
            if held is not None and own.any():
                values[own] = held[documents[own] - first]
        return values

    def filtered(self, accepted: CompiledFilter) -> tuple[Snapshot, npt.NDArray[np.int64]]:
        """The live documents that pass as a namespace of their own, and the number here of each of them [documents].

        Without vectors, learned weights and entities, whose scores do not depend on statistics. The last few are kept.
        """
        known = self._filtered.get(accepted)
        if known is None:
            parts, numbers = [], [np.zeros(0, dtype=np.int64)]
            for number, segment in enumerate(self.segments):
                mask, alive = segment.mask(accepted), self.alive(number)
                mask = mask if alive is None else mask & alive
                if mask.any():
                    parts.append(select_documents(segment, mask, text_only=True))
                    numbers.append(self.firsts[number] + np.flatnonzero(mask))
            known = Snapshot((), self.bm25).extended(parts), np.concatenate(numbers)
            if len(self._filtered) >= FILTERED:
                self._filtered.clear()
            self._filtered[accepted] = known
        return known

    @cached_property
    def _filtered(self) -> dict[CompiledFilter, tuple[Snapshot, npt.NDArray[np.int64]]]:
        return {}

    def extended(self, new: Sequence[Segment], deleted: Mapping[int, Tombstones] = NOTHING_DELETED) -> Snapshot:
        """The snapshot with these segments after its own; `deleted` holds tombstones of theirs by number among them."""
        counts = self.counts
        tombstones = {**self.tombstones, **{len(self.segments) + number: own for number, own in deleted.items()}}
        snapshot = replace(self, segments=(*self.segments, *new), tombstones=MappingProxyType(tombstones), counts=None)
        if counts is None:
            counts = snapshot.all_document_frequencies().astype(np.int32) if snapshot.counted else None
        else:
            width = max((int(s.terms[-1]) + 1 for s in new if len(s.terms)), default=0)
            counts = np.concatenate([counts, np.zeros(max(width - len(counts), 0), dtype=np.int32)])
            for segment in new:
                counts[segment.terms] += np.diff(segment.offsets).astype(np.int32)
            for number, own in deleted.items():
                counts[new[number].terms[own.terms]] -= own.frequencies.astype(np.int32)
        return replace(snapshot, counts=counts)

    @property
    def counted(self) -> bool:
        """Whether the namespace is large enough to keep `counts`."""
        return self.numbers >= COUNTED_DOCUMENTS

    def without(self, places: Sequence[Place]) -> Snapshot:
        """The snapshot without these live documents."""
        if not places:
            return self
        tombstones = dict(self.tombstones)
        counts = None if self.counts is None else self.counts.copy()
        for number in sorted({place.segment for place in places}):
            segment = self.segments[number]
            deleted = np.zeros(segment.size, dtype=np.bool_)
            deleted[[place.position for place in places if place.segment == number]] = True
            new = Tombstones.of(segment, deleted)
            if counts is not None:
                counts[segment.terms[new.terms]] -= new.frequencies.astype(np.int32)
            tombstones[number] = tombstones[number].join(new) if number in tombstones else new
        return replace(self, tombstones=MappingProxyType(tombstones), counts=counts)

    def replaced(self, merge: Merge, merged: Segment | None) -> Snapshot | None:
        """The snapshot with `merged` in the place of what was merged, or None if that is no longer there.

        Documents that died since the merge began die in `merged` too. None for `merged`: no document was left.
        """
        first = next((n for n, segment in enumerate(self.segments) if segment is merge.segments[0]), None)
        if first is None or self.segments[first : first + len(merge.segments)] != merge.segments:
            return None
        last = first + len(merge.segments)
        late = []
        for number, gone in zip(range(first, last), merge.deleted, strict=True):
            size = self.segments[number].size
            before = np.zeros(size, dtype=np.bool_) if gone is None else gone
            now = self.tombstones[number].deleted if number in self.tombstones else np.zeros(size, dtype=np.bool_)
            late.append(now[~before])
        shift = (0 if merged is None else 1) - len(merge.segments)
        tombstones = {
            number + (shift if number >= last else 0): own
            for number, own in self.tombstones.items()
            if not first <= number < last
        }
        died = np.concatenate(late)
        if merged is not None and died.any():
            tombstones[first] = Tombstones.of(merged, died)
        middle = () if merged is None else (merged,)
        segments = (*self.segments[:first], *middle, *self.segments[last:])
        return replace(self, segments=segments, tombstones=MappingProxyType(tombstones))

    def merges(self, limit: int, window: float = WEEK) -> Iterator[Merge]:
        """What should be merged, none with more than `limit` documents.

        Neighbours so that sizes at least halve: there are O(log N) small segments, and a document is copied O(log N)
        times in its life. Segments with many deleted documents on their own.
        """
        groups: list[list[int]] = []
        sizes: list[int] = []
        for number, segment in enumerate(self.segments):
            groups.append([number])
            sizes.append(segment.size)
            while (
                len(sizes) > 1
                and sizes[-2] < 2 * sizes[-1]
                and sizes[-2] + sizes[-1] <= limit
                and not closes(
                    self.segments[groups[-1][0] - 1].span, self.segments[groups[-1][0]].span, window, sizes[-2]
                )
            ):
                groups[-2:] = [groups[-2] + groups[-1]]
                sizes[-2:] = [sizes[-2] + sizes[-1]]
        for group in groups:
            own = self.tombstones.get(group[0]) if len(group) == 1 else None
            worn = (
                own is not None and own.count >= max(DELETED_SHARE * len(own.deleted), 1) and len(own.deleted) <= limit
            )
            if len(group) > 1 or worn:
                yield self.merge_of(group)

    def merge_of(self, group: Sequence[int]) -> Merge:
        """The merge of these neighbouring segments."""
        return Merge(
            tuple(self.segments[number] for number in group),
            tuple(self.tombstones[number].deleted if number in self.tombstones else None for number in group),
        )

    def compacted(self, limit: int | None = None, window: float = WEEK) -> Snapshot:
        """The snapshot after all its merges up to `limit` (by default `MAX_SEGMENT_DOCUMENTS`), done here and now."""
        snapshot = self
        limit = MAX_SEGMENT_DOCUMENTS if limit is None else limit
        while merges := list(snapshot.merges(limit, window)):
            for merge in merges:
                following = snapshot.replaced(merge, merge.run())
                assert following is not None
                snapshot = following
        return snapshot


@dataclass(frozen=True, eq=False)
class Merge:
    """Neighbouring segments to become one, and their deleted documents when that was decided."""

    segments: tuple[Segment, ...]
    deleted: tuple[npt.NDArray[np.bool_] | None, ...]

    def run(self) -> Segment | None:
        """The merged segment, or None if no document is left."""
        merged = merge_segments(self.segments, self.deleted)
        return merged if merged.size else None


def window_start(number: float, window: float) -> float:
    """The earliest time whose window this is: ``number * window``, but for what that and ``time / window`` round."""
    time = number * window
    for _ in range(4):
        earlier = math.nextafter(time, -math.inf)
        if math.floor(time / window) < number:
            time = math.nextafter(time, math.inf)
        elif math.floor(earlier / window) >= number:
            time = earlier
    return time


def closes(older: tuple[float, float] | None, newer: tuple[float, float] | None, window: float, size: int) -> bool:
    """Whether the border between two neighbours stays, whose earliest and latest times are given: the older part holds
    `size` documents and its window is over.
    """
    if size < WINDOW_DOCUMENTS or older is None or newer is None:
        return False
    return math.floor(older[1] / window) != math.floor(newer[0] / window)
