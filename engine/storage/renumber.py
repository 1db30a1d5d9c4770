"""Vocabularies without their unused entries: terms and column values that no segment holds any more.

::

    old numbers    0 tea   1 gone   2 cup   3 gone   4 milk
    new numbers    0 tea            1 cup            2 milk    the same order, so lists keep theirs

New vocabularies and segments are made beside the old ones while searches and writes go on. A segment shares all arrays
but its terms and its column codes. Under the write lock only what came meanwhile is added, and one assignment publishes
all of it (`Storage.renumber`). Searches that run on the old state finish on it. No answer depends on the numbers.

A writer may bring an unused string back while the new vocabulary is made. Then it gets a number at the end, like a new
one, and the lists of the segments that hold it are put into the new order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Integers
from ..index.merge import Merge
from ..index.segment import NESTED, NewNumbers, Segment
from ..index.snapshot import Snapshot
from ..index.tombstones import Tombstones
from ..text.vocabulary import TermIndexer, Vocabulary
from .state import MemoryState, new_numbering

# A vocabulary is renumbered when at least so many of its entries are unused, and half of all, ...
LEAST_UNUSED = 1 << 14
UNUSED_SHARE = 0.5
# ... and one for so many documents: all segments that hold its numbers are written to files again.
DOCUMENTS_PER_UNUSED = 8
# Dead entries are counted by one pass over the terms and codes of all segments. It waits until a quarter as many
# postings and documents as the last pass read have left the index.
COUNT_SHARE = 0.25

TERMS, COLUMN = "terms", "column"
Key = tuple[str, str]
"""A vocabulary: (`TERMS`, name of the nested segment or "") or (`COLUMN`, name of the category column)."""


def vocabularies_of(state: MemoryState) -> dict[Key, Vocabulary]:
    """All vocabularies of the state."""
    return {
        (TERMS, ""): state.indexer.vocabulary,
        (TERMS, "learned"): state.weight_terms,
        (TERMS, "entities"): state.entity_terms,
        **{(COLUMN, name): values for name, values in state.values.items()},
    }


class Left:
    """What merges and drops took out of the index: an upper bound of the entries that died by it."""

    def __init__(self) -> None:
        self.merges = self.merged_documents = self.compacted_documents = 0
        self.postings = Counter(dict.fromkeys(("", *NESTED), 0))  # by the nested segment's name, "" for BM25's
        self.documents = 0

    def merge(self, merge: Merge, merged: Segment | None) -> None:
        """Count a merge and its result."""
        size = 0 if merged is None else merged.size
        gone = sum([segment.size for segment in merge.segments]) - size
        self.merges += 1
        self.merged_documents += size
        self.compacted_documents += gone
        if gone:
            self._leave(merge.segments, 1)
            self._leave(() if merged is None else (merged,), -1)

    def drop(self, snapshot: Snapshot) -> None:
        """Count a namespace that is gone."""
        self._leave(snapshot.segments, 1)

    def _leave(self, segments: Iterable[Segment], sign: int) -> None:
        for segment in segments:
            self.documents += sign * segment.size
            self.postings[""] += sign * segment.postings
            for name in NESTED:
                self.postings[name] += sign * segment.nested_postings(name)

    def of(self, key: Key) -> int:
        """How many entries of this vocabulary may have died, at most."""
        kind, name = key
        return self.postings[name] if kind == TERMS else self.documents

    @property
    def all(self) -> int:
        return self.documents + self.postings.total()

    def add(self, other: Left) -> None:
        self.merges += other.merges
        self.merged_documents += other.merged_documents
        self.compacted_documents += other.compacted_documents
        self.documents += other.documents
        self.postings.update(other.postings)


class UnusedEntries:
    """How many entries of each vocabulary may be unused: what the last pass counted, and what left the index since."""

    def __init__(self, state: MemoryState | None = None) -> None:
        """The entries of `state` may all be unused: files do not say. Without a state there are none."""
        self._counted = {} if state is None else {key: len(entry) for key, entry in vocabularies_of(state).items()}
        self._left = Left()
        self._read = self._documents = 0

    def leave(self, left: Left) -> None:
        """What a publication took out of the index."""
        self._left.add(left)

    def worth_counting(self, state: MemoryState) -> bool:
        """Whether so much may be unused that a pass over the segments is due."""
        left = self._left.all
        # Most writes end here: no vocabulary can have so many.
        if left < COUNT_SHARE * self._read or left + max(self._counted.values(), default=0) < LEAST_UNUSED:
            return False
        return any(
            _is_due(self._counted.get(key, 0) + self._left.of(key), len(vocabulary), self._documents)
            for key, vocabulary in vocabularies_of(state).items()
        )

    def begin(self) -> None:
        """A pass begins. The state that it counts is read after this call."""
        self._left = Left()

    def count(self, state: MemoryState, *, all_unused: bool = False) -> dict[Key, Integers]:
        """The live entries, ascending, of each vocabulary that is due; with `all_unused`, of each that has any.

        What left the index since `begin` counts for the next pass.
        """
        segments = [segment for snapshot in state.snapshots.values() for segment in snapshot.segments]
        self._documents = sum(segment.size for segment in segments)
        self._read, due = 0, {}
        for key, vocabulary in vocabularies_of(state).items():
            live = np.flatnonzero(self._find_live(segments, key, len(vocabulary)))
            unused = self._counted[key] = len(vocabulary) - len(live)
            if unused > 0 if all_unused else _is_due(unused, len(vocabulary), self._documents):
                due[key] = live
        if due:
            self._read = 0  # Where the renumbering fails, the next attempt need not wait.
        return due

    def renumbered(self, live: Iterable[Key]) -> None:
        """These vocabularies were made anew from what `count` found."""
        self._counted.update(dict.fromkeys(live, 0))

    def _find_live(self, segments: Iterable[Segment], key: Key, size: int) -> Flags:
        """[size] which entries a segment holds."""
        flags = np.zeros(size + 1, dtype=np.bool_)  # the last is for `ABSENT`
        for segment in segments:
            if (numbers := _numbers_in(segment, key)) is not None:
                self._read += len(numbers)
                flags[numbers] = True
        return flags[:-1]


def _is_due(unused: int, size: int, documents: int) -> bool:
    return unused >= max(LEAST_UNUSED, UNUSED_SHARE * size, documents / DOCUMENTS_PER_UNUSED)


def _numbers_in(segment: Segment, key: Key) -> npt.NDArray[np.int32] | None:
    """The numbers of a vocabulary that the segment holds."""
    kind, name = key
    if kind == COLUMN:
        return segment.columns.categories.get(name)
    inner = segment.held(name) if name else segment
    return None if inner is None else inner.terms


@dataclass(frozen=True, eq=False)
class Renumbering:
    """New vocabularies, and the segments of a state in their numbers. Made beside the state, which may go on."""

    base: MemoryState
    live: Mapping[Key, Integers]
    """The old numbers that stay, ascending, of each vocabulary that is made anew."""
    vocabularies: Mapping[Key, Vocabulary]
    indexer: TermIndexer
    segments: Mapping[Segment, Segment]

    @classmethod
    def of(cls, base: MemoryState, live: Mapping[Key, Integers]) -> Renumbering:
        """`live` is as `UnusedEntries.count` gives it for this state."""
        old = vocabularies_of(base)
        new = {key: Vocabulary(map(old[key].strings.__getitem__, kept.tolist())) for key, kept in live.items()}
        text = new.get((TERMS, ""))
        indexer = base.indexer if text is None else TermIndexer(base.analyzer, text)
        numbers = {key: _new_numbers(kept, int(kept[-1]) + 1 if len(kept) else 0) for key, kept in live.items()}
        segments = {
            segment: _renumber(segment, numbers)
            for snapshot in base.snapshots.values()
            for segment in snapshot.segments
        }
        return cls(base, live, new, indexer, segments)

    def finish(self, current: MemoryState) -> MemoryState | None:
        """`current`, a later state of the same numbering, in the new numbering; None if it has another one already.

        Adds to the new vocabularies what came since `base`. Nothing may write meanwhile.
        """
        if current.numbering != self.base.numbering:
            return None
        late = [
            segment
            for snapshot in current.snapshots.values()
            for segment in snapshot.segments
            if segment not in self.segments
        ]
        numbers = {key: self._append(key, vocabulary, late) for key, vocabulary in self._old(current)}
        segments = {**self.segments, **{segment: _renumber(segment, numbers) for segment in late}}
        snapshots = {
            name: _renumber_snapshot(snapshot, segments, numbers.get((TERMS, "")))
            for name, snapshot in current.snapshots.items()
        }
        new = {**vocabularies_of(current), **self.vocabularies}
        return replace(
            current,
            indexer=self.indexer,
            weight_terms=new[TERMS, "learned"],
            entity_terms=new[TERMS, "entities"],
            values={name: new[COLUMN, name] for name in current.values},
            snapshots=snapshots,
            unions={},
            version=current.version + 1,
            numbering=new_numbering(),
        )

    def _old(self, current: MemoryState) -> Iterator[tuple[Key, Vocabulary]]:
        return ((key, old) for key, old in vocabularies_of(current).items() if key in self.vocabularies)

    def _append(self, key: Key, old: Vocabulary, late: Iterable[Segment]) -> NewNumbers:
        """The new number of each old one, after the entries that `late` segments hold were given numbers at the end."""
        numbers = _new_numbers(self.live[key], len(old))
        held = np.zeros(len(old) + 1, dtype=np.bool_)
        for segment in late:
            if (used := _numbers_in(segment, key)) is not None:
                held[used] = True
        fresh = np.flatnonzero(held[:-1] & (numbers[:-1] < 0))
        strings = [old.strings[number] for number in fresh.tolist()]
        vocabulary = self.vocabularies[key]
        numbers[fresh] = np.arange(len(vocabulary), len(vocabulary) + len(fresh), dtype=np.int32)
        if key == (TERMS, ""):
            self.indexer.add_terms(strings)
        else:
            vocabulary.extend(strings)
        return numbers


def _new_numbers(live: Integers, size: int) -> NewNumbers:
    """The new number of each of `size` old ones, -1 for the unused; and -1 at the end, for `ABSENT`."""
    numbers = np.full(size + 1, -1, dtype=np.int32)
    numbers[live] = np.arange(len(live), dtype=np.int32)
    return numbers


def _renumber(segment: Segment, numbers: Mapping[Key, NewNumbers]) -> Segment:
    of: dict[str, dict[str, Any]] = {TERMS: {}, COLUMN: {}}
    for (kind, name), new in numbers.items():
        of[kind][name] = new
    return segment.renumbered(of[TERMS], of[COLUMN])


def _renumber_snapshot(snapshot: Snapshot, renumbered: Mapping[Segment, Segment], terms: NewNumbers | None) -> Snapshot:
    """The snapshot with the renumbered segments. `terms` has the new number of each old term; None where terms keep
    theirs. Returns the snapshot itself where nothing changes.
    """
    segments = tuple(renumbered[segment] for segment in snapshot.segments)
    counts = snapshot.counts
    if counts is not None and terms is not None:
        held = np.flatnonzero(counts)
        moved = terms[held]
        new_counts = np.zeros(int(moved.max(initial=-1)) + 1, dtype=np.int32)
        new_counts[moved] = counts[held]
        counts = new_counts
    if counts is snapshot.counts and segments == snapshot.segments:
        return snapshot
    # Tombstones hold positions. They are made anew where the lists stand in another order. The others are copied,
    # because they keep what they worked out for the old nested segments.
    tombstones = {
        number: replace(old)
        if segments[number].offsets is snapshot.segments[number].offsets
        else Tombstones.of(segments[number], old.deleted)
        for number, old in snapshot.tombstones.items()
    }
    return replace(snapshot, segments=segments, tombstones=MappingProxyType(tombstones), counts=counts)
