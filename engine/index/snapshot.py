"""The segments of one namespace with live statistics: immutable snapshots, each made from the last one by a write.

Statistics are exact integers over the live documents. Contributions are derived from them and belong to the snapshot
(the epoch) whose statistics they were computed with. So no answer can be stale (A011 cannot happen), and any history of
writes gives the same answers as an index built at once from the documents that remain.

Long because statistics, filtered statistics and merges are sums over the same segments and tombstones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..locks import once
from .arrivals import Arrivals
from .bm25 import BM25, FloatArray, Statistics
from .columns import ABSENT, Columns, hashes_of
from .contributions import Contributions
from .document_terms import OwnWords, count_documents
from .learned import IMPACTS
from .masks import CompiledFilter
from .merge import Merge, Tally, closes, count_nothing
from .record_ids import RecordIds
from .segment import Segment, select_documents
from .tombstones import NOTHING_DELETED, Tombstones
from .windows import window_start

# A segment of this many documents is closed. It is large enough that overhead for each segment does not matter, and
# small enough that merging one takes less than a second.
MAX_SEGMENT_DOCUMENTS = 1 << 20
# A namespace of this many documents keeps its document frequencies in one array over the vocabulary.
COUNTED_DOCUMENTS = 1 << 12
# Sums over segments of at most so many documents are taken over all of them at once.
FEW = 1 << 10
# A segment is rewritten without its deleted documents once they are this share of it.
DELETED_SHARE = 0.25
# Filtered snapshots that a snapshot keeps.
FILTERED = 8
# Snapshots of other clocks that a snapshot keeps. Most queries ask at the present moment.
CLOCKS = 4

WEEK = 7 * 86_400.0

N = TypeVar("N", bound=np.generic)


@dataclass(frozen=True)
class Place:
    """Where a live document is."""

    segment: int
    position: int


@dataclass(frozen=True, eq=False)
class Snapshot:
    """An immutable state of a namespace: its segments in order of arrival, their deleted documents, and one epoch of
    statistics.

    Documents are numbered through all segments in order. Deleted documents keep their numbers until a merge removes
    them.
    """

    segments: tuple[Segment, ...]
    bm25: BM25
    tombstones: Mapping[int, Tombstones] = field(default_factory=lambda: NOTHING_DELETED)  # by segment number
    counts: npt.NDArray[np.int32] | None = None
    """Document frequency of each term among the live documents, by vocabulary id; None in small namespaces."""
    arrivals: Arrivals | None = None
    """The numbers of the documents' last writes, in an engine in memory. A store keeps its own."""
    carried: dict[Any, Any] = field(default_factory=dict)
    """What searches work out from what they worked out for another snapshot of the namespace, by their names for it."""

    @once
    def firsts(self) -> tuple[int, ...]:
        """The number of each segment's first document."""
        return tuple(accumulate((segment.size for segment in self.segments), initial=0))[:-1]

    @once
    def numbers(self) -> int:
        """The number of documents, deleted ones included: one more than the largest document number."""
        return sum([segment.size for segment in self.segments])

    @once
    def size(self) -> int:
        """The number of live documents."""
        return self.numbers - sum(tombstones.count for tombstones in self.tombstones.values())

    @once
    def spans(self) -> tuple[FloatArray, FloatArray]:
        """(earliest, latest) time of each segment [segments]; inf and -inf where no record has a time."""
        spans = [segment.span or (math.inf, -math.inf) for segment in self.segments]
        earliest, latest = np.array(spans, dtype=np.float64).reshape(-1, 2).T
        return earliest, latest

    @once
    def latest_upto(self) -> FloatArray:
        """[segments] the latest time in each segment and all older ones; inf where a record among them has no time."""
        return np.maximum.accumulate(np.array([segment.latest for segment in self.segments], dtype=np.float64))

    def newest_windows(self, count: int, window: float, last: float) -> float:
        """The start, in seconds, of the `count` newest time windows up to number `last` that hold a live record; inf if
        none does.
        """
        _, latest = self.spans
        newest = np.floor(latest / window)
        key = (count, window, min(last, float(newest.max(initial=-math.inf))))
        if key not in self._newest:
            self._newest[key] = self._find_start(count, window, last, newest)
        return self._newest[key]

    @once
    def _newest(self) -> dict[tuple[int, float, float], float]:
        return {}

    def _find_start(self, count: int, window: float, last: float, newest: FloatArray) -> float:
        occupied: set[int] = set()
        for number in np.argsort(-newest, kind="stable").tolist():
            if len(occupied) >= count and newest[number] < min(sorted(occupied)[-count:]):
                break
            windows = self.windows(number, window)
            stop = int(np.searchsorted(windows, last, "right"))
            occupied.update(windows[max(stop - count, 0) : stop].tolist())
        return window_start(min(sorted(occupied)[-count:]), window) if occupied else math.inf

    @once
    def statistics(self) -> Statistics:
        known = [segment for segment in self.segments if segment.size > FEW]
        # There may be a segment for each tenant, so those of small ones are added up at once.
        small = [segment.lengths for segment in self.segments if segment.size <= FEW]
        added = [np.concatenate(small, axis=1).sum(axis=1, dtype=np.int64).tolist()] if small else []
        totals = [sum(column) for column in zip(*added, *(s.total_lengths for s in known), strict=True)]
        for tombstones in self.tombstones.values():
            totals = [total - deleted for total, deleted in zip(totals, tombstones.lengths, strict=True)]
        frequencies = None
        if self.bm25.method == "okapi":
            frequencies = self.all_document_frequencies()
            frequencies = frequencies[frequencies > 0]
        return Statistics(self.size, tuple(totals) or (0,) * len(self.bm25.fields), frequencies)

    def all_document_frequencies(self) -> npt.NDArray[np.int64]:
        """Document frequency of each term by vocabulary id, int64 [largest id + 1]; 0 if no live document has it."""
        if self.counts is not None:
            return self.counts.astype(np.int64)
        df = np.zeros(max((int(s.terms[-1]) + 1 for s in self.segments if len(s.terms)), default=0), dtype=np.int64)
        small = [segment for segment in self.segments if segment.size <= FEW]
        if small:
            # From the end of one segment to the begin of the next is no list.
            lengths = np.diff(np.concatenate([segment.offsets for segment in small]))
            lists = np.ones(len(lengths), dtype=np.bool_)
            lists[np.cumsum([len(segment.offsets) for segment in small[:-1]], dtype=np.int64) - 1] = False
            np.add.at(df, np.concatenate([segment.terms for segment in small]), lengths[lists])
        for segment in self.segments:
            if segment.size > FEW:
                df[segment.terms] += np.diff(segment.offsets)
        for number, tombstones in self.tombstones.items():
            df[self.segments[number].terms[tombstones.terms]] -= tombstones.frequencies
        return df

    @once
    def term_idf(self) -> FloatArray:
        """The idf of every term by vocabulary id, float64 [largest id + 1]; 0 if no live document has the term."""
        df = self.all_document_frequencies()
        used = df > 0
        idf = np.zeros(len(df))
        idf[used] = self.bm25.idf(df[used], self.statistics)
        return idf

    @once
    def long(self) -> bool:
        """Whether contributions are kept in int64, because a single one could exceed int32."""
        return self.bm25.needs_int64(self.statistics)

    @once
    def highest_bound(self) -> float:
        """An upper bound, in quanta, of the absolute value of every contribution."""
        return float(self.bm25.bounds(self.term_idf).max(initial=0.0))

    @once
    def learned(self) -> Snapshot:
        """The learned term weights as a snapshot of their own, with the same documents, numbers and deletions."""
        return self._nest("learned")

    @once
    def entities(self) -> Snapshot:
        """The entities as a snapshot of their own, like `learned`. The document frequency of a term
        (`engine/records/entities.py`) is the number of live documents that say it.
        """
        return self._nest("entities")

    def _nest(self, name: str) -> Snapshot:
        inner = [segment.nested(name) for segment in self.segments]
        deleted = {number: tombstones.nested(inner[number]) for number, tombstones in self.tombstones.items()}
        return Snapshot((), IMPACTS).extended(inner, deleted)

    @once
    def has_vectors(self) -> bool:
        """Whether any document has a vector; deleted documents count."""
        return any(segment.vectors is not None for segment in self.segments)

    @once
    def largest_frequency(self) -> int:
        """No document has a term more often, in any field. Deleted documents count."""
        return max((int(segment.class_frequencies.max(initial=0)) for segment in self.segments), default=0)

    @once
    def derived(self) -> dict[str, Any]:
        """What other files work out for this snapshot once, by their names for it."""
        return {}

    @once
    def contributions(self) -> tuple[Contributions, ...]:
        return tuple(Contributions(segment, self.bm25, self.statistics) for segment in self.segments)

    def document_frequencies(self, terms: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """How many live documents hold each of these terms (vocabulary ids), int64, same shape."""
        if self.counts is not None:
            frequencies = np.zeros(terms.shape, dtype=np.int64)
            known = terms < len(self.counts)
            frequencies[known] = self.counts[terms[known]]
            return frequencies
        total = np.zeros(len(terms), dtype=np.int64)
        for number, segment in enumerate(self.segments):
            positions = segment.locate(terms)
            present = positions >= 0
            lists = positions[present]
            total[present] += segment.offsets[lists + 1] - segment.offsets[lists]
            tombstones = self.tombstones.get(number)
            if tombstones is not None and len(tombstones.terms):
                indexes = np.minimum(np.searchsorted(tombstones.terms, positions), len(tombstones.terms) - 1)
                total -= np.where(tombstones.terms[indexes] == positions, tombstones.frequencies[indexes], 0)
        return total

    def alive(self, segment: int) -> npt.NDArray[np.bool_] | None:
        """Which documents of a segment are live, bool [documents]; None means all of them."""
        tombstones = self.tombstones.get(segment)
        return None if tombstones is None else tombstones.alive

    def windows(self, segment: int, window: float) -> npt.NDArray[np.int64]:
        """The numbers of the time windows that hold a live document of a segment, ascending."""
        tombstones = self.tombstones.get(segment)
        if tombstones is None:
            return self.segments[segment].windows(window)
        known = tombstones.windows.get(window)
        if known is None:
            known = tombstones.windows[window] = self.segments[segment].windows_among(tombstones.alive, window)
        return known

    def find(self, record_id: str) -> Place | None:
        """Where the live document with this id is, or None."""
        return self.find_all([record_id]).get(record_id)

    def find_all(self, ids: Sequence[str], hashes: npt.NDArray[np.uint64] | None = None) -> dict[str, Place]:
        """The place of each of these ids that a live document has; `hashes` [ids] are their hashes, if known."""
        places: dict[str, Place] = {}
        if not self.segments or not ids:
            return places
        if hashes is None:
            hashes = hashes_of(ids)
        for number, segment in enumerate(self.segments):
            tombstones = self.tombstones.get(number)
            for index, position in segment.ids.find_all(ids, hashes):
                if tombstones is None or not tombstones.deleted[position]:
                    places[ids[index]] = Place(number, position)
        return places

    @once
    def record_ids(self) -> RecordIds:
        """The record ids (str) of document numbers."""
        return RecordIds([segment.ids.strings for segment in self.segments])

    def ids_of(self, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        """The record ids (str) of these document numbers, same shape; None for -1."""
        return self.record_ids(documents)

    def numbers_of(self, column: str, documents: npt.NDArray[np.int64]) -> FloatArray:
        """The values of a number column at these document numbers, same shape [n]; NaN where there is no value."""
        return self._fill(np.full(len(documents), np.nan), lambda columns: columns.numbers.get(column), documents)

    def codes_of(self, column: str, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """The codes of a category column at these document numbers, same shape [n]; `ABSENT` where there is none."""
        codes = np.full(len(documents), ABSENT, dtype=np.int32)
        return self._fill(codes, lambda columns: columns.categories.get(column), documents)

    def _fill(
        self,
        values: npt.NDArray[N],
        read: Callable[[Columns], npt.NDArray[N] | None],
        documents: npt.NDArray[np.int64],
    ) -> npt.NDArray[N]:
        """`values` [n] with what `read` finds in the segments' columns at these document numbers."""
        for first, segment in zip(self.firsts, self.segments, strict=True):
            column = read(segment.columns)
            inside = (documents >= first) & (documents < first + segment.size)
            if column is not None and inside.any():
                values[inside] = column[documents[inside] - first]
        return values

    def filtered(self, accepted: CompiledFilter) -> tuple[Snapshot, npt.NDArray[np.int64]]:
        """(a snapshot of the live documents that pass, the number of each of them in this snapshot [documents]).

        It has no vectors, learned weights and entities, as their scores do not depend on statistics. Up to `FILTERED`
        such snapshots are kept.
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
            found = np.concatenate(numbers)
            known = self._emptied(found).extended(parts), found
            if len(self._filtered) >= FILTERED:
                self._filtered.clear()
            self._filtered[accepted] = known
        return known

    def _emptied(self, kept: npt.NDArray[np.int64]) -> Snapshot:
        """A snapshot without documents, to which those with the numbers `kept`, ascending, are added."""
        return Snapshot((), self.bm25)

    @once
    def _filtered(self) -> dict[CompiledFilter, tuple[Snapshot, npt.NDArray[np.int64]]]:
        return {}

    @once
    def compiled(self) -> dict[tuple[int, str | None, str | None], tuple[object, CompiledFilter]]:
        """Filters that searches compiled; `engine/search/batch.py` fills it."""
        return {}

    def extended(
        self,
        new: Sequence[Segment],
        deleted: Mapping[int, Tombstones] = NOTHING_DELETED,
        first: int | None = None,
    ) -> Snapshot:
        """The snapshot with the `new` segments after its own. `deleted` holds their tombstones by index in `new`.

        `first` is the number of the first new document's write, where no store numbers them.
        """
        counts, arrivals = self.counts, self.arrivals
        if first is not None and (arrivals is not None or not self.segments):
            arrivals = (arrivals or Arrivals()).extended([segment.size for segment in new], first)
        shifted = {len(self.segments) + number: new_tombstones for number, new_tombstones in deleted.items()}
        tombstones = {**self.tombstones, **shifted}
        snapshot = replace(
            self,
            segments=(*self.segments, *new),
            tombstones=MappingProxyType(tombstones),
            counts=None,
            arrivals=arrivals,
        )
        if counts is None:
            counts = snapshot.all_document_frequencies().astype(np.int32) if snapshot.counted else None
        else:
            width = max((int(s.terms[-1]) + 1 for s in new if len(s.terms)), default=0)
            counts = np.concatenate([counts, np.zeros(max(width - len(counts), 0), dtype=np.int32)])
            for segment in new:
                counts[segment.terms] += np.diff(segment.offsets).astype(np.int32)
            for number, new_tombstones in deleted.items():
                counts[new[number].terms[new_tombstones.terms]] -= new_tombstones.frequencies.astype(np.int32)
        return replace(snapshot, counts=counts)

    @property
    def counted(self) -> bool:
        """Whether the namespace is large enough to keep `counts`."""
        return self.numbers >= COUNTED_DOCUMENTS

    def without(self, places: Iterable[Place], words: OwnWords | None = None) -> Snapshot:
        """The snapshot without these live documents. `words` reads the records of few."""
        positions: dict[int, list[int]] = {}
        for place in places:
            positions.setdefault(place.segment, []).append(place.position)
        return self._without({number: np.array(sorted(found)) for number, found in positions.items()}, words)

    def _without(self, documents: Mapping[int, npt.NDArray[np.int64]], words: OwnWords | None = None) -> Snapshot:
        """The snapshot without these live documents, given as ascending positions by segment number."""
        if not documents:
            return self
        tombstones = dict(self.tombstones)
        counts = None if self.counts is None else self.counts.copy()
        for number, deleted in documents.items():
            segment = self.segments[number]
            counted = count_documents(segment, deleted, words)
            if counts is not None:
                counts[segment.terms[counted[""].terms]] -= counted[""].frequencies.astype(np.int32)
            before = tombstones.get(number) or Tombstones.none(segment)
            tombstones[number] = before.extended(segment, deleted, counted)
        return replace(self, tombstones=MappingProxyType(tombstones), counts=counts)

    @once
    def expiring(self) -> bool:
        """Whether any document has a time of expiry. Deleted documents count."""
        return any(len(segment.expiries) for segment in self.segments)

    def at(self, clock: float) -> Snapshot:
        """The snapshot without the documents that have expired by `clock` (seconds), as if they were deleted.

        Between two times of expiry it is the same object, so what was worked out for it stays.
        """
        if not self.expiring:
            return self
        passed = tuple(int(np.searchsorted(segment.expiries, clock, "right")) for segment in self.segments)
        known = self._at.get(passed)
        if known is None:
            known = self._without(self._expired(passed))
            if len(self._at) >= CLOCKS:
                self._at.clear()
            self._at[passed] = known
        return known

    def _expired(self, passed: Sequence[int]) -> dict[int, npt.NDArray[np.int64]]:
        """The live documents that have expired, by segment; `passed` says how many of its `expiries` lie behind."""
        found = {}
        for number, count in enumerate(passed):
            expires = self.segments[number].columns.numbers.get("expires")
            if not count or expires is None:
                continue
            gone = expires <= self.segments[number].expiries[count - 1]
            alive = self.alive(number)
            if alive is not None:
                gone &= alive
            if gone.any():
                found[number] = np.flatnonzero(gone)
        return found

    def expired(self, clock: float, ids: Sequence[str] | None = None) -> dict[str, Place]:
        """The live documents that have expired by `clock`, by record id; of `ids` alone where they are given."""
        present = self.at(clock)
        if present is self:
            return {}
        if ids is not None:
            remaining = present.find_all(ids)
            return {record_id: place for record_id, place in self.find_all(ids).items() if record_id not in remaining}
        found = {}
        for number, segment in enumerate(self.segments):
            alive, remains = self.alive(number), present.alive(number)
            if remains is None:
                continue
            for position in np.flatnonzero(~remains if alive is None else alive & ~remains).tolist():
                found[segment.ids[position]] = Place(number, position)
        return found

    @once
    def _at(self) -> dict[tuple[int, ...], Snapshot]:
        return {}

    def replaced(self, merge: Merge, merged: Segment | None) -> Snapshot | None:
        """The snapshot with `merged` in place of the segments of the merge, or None if it does not hold them.

        Documents that were deleted since the merge began are deleted in `merged` too. If `merged` is None, the merge
        left no document.
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
            number + (shift if number >= last else 0): segment_tombstones
            for number, segment_tombstones in self.tombstones.items()
            if not first <= number < last
        }
        deleted = np.concatenate(late)
        if merged is not None and deleted.any():
            tombstones[first] = Tombstones.of(merged, deleted)
        middle = () if merged is None else (merged,)
        segments = (*self.segments[:first], *middle, *self.segments[last:])
        arrivals = self.arrivals and self.arrivals.merged(first, merge.deleted, merged is not None)
        return replace(self, segments=segments, tombstones=MappingProxyType(tombstones), arrivals=arrivals)

    def merges(self, limit: int, window: float = WEEK) -> Iterator[Merge]:
        """The merges that should be done, each of at most `limit` documents.

        Neighbours are merged so that each segment is at most half as large as the one before it. So there are O(log N)
        small segments, and a document is copied O(log N) times in its life. A segment with many deleted documents is
        rewritten alone.
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
            tombstones = self.tombstones.get(group[0]) if len(group) == 1 else None
            many_deleted = (
                tombstones is not None
                and tombstones.count >= max(DELETED_SHARE * len(tombstones.deleted), 1)
                and len(tombstones.deleted) <= limit
            )
            if len(group) > 1 or many_deleted:
                yield self.merge_of(group)

    def rewrite(self) -> Merge | None:
        """The merge of the first segment that holds deleted documents, alone; None if none does."""
        return self.merge_of([min(self.tombstones)]) if self.tombstones else None

    def merge_of(self, group: Sequence[int]) -> Merge:
        """The merge of these neighbouring segments."""
        return Merge(
            tuple([self.segments[number] for number in group]),
            tuple([self.tombstones[number].deleted if number in self.tombstones else None for number in group]),
        )

    def compacted(self, limit: int | None = None, window: float = WEEK, tally: Tally = count_nothing) -> Snapshot:
        """The snapshot after all its merges of at most `limit` documents (default: `MAX_SEGMENT_DOCUMENTS`)."""
        snapshot = self
        limit = MAX_SEGMENT_DOCUMENTS if limit is None else limit
        while merges := list(snapshot.merges(limit, window)):
            for merge in merges:
                tally(merge, merged := merge.run())
                following = snapshot.replaced(merge, merged)
                assert following is not None
                snapshot = following
        return snapshot
