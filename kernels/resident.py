"""One segment on a device: its postings, its contributions of one epoch, and tables of its long lists."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ..engine.arrays import Floats, Integers
from ..engine.index.bm25 import BM25, DOT, SCALE, Statistics
from ..engine.index.segment import Segment
from ..engine.index.snapshot import Snapshot
from .runtime import Runtime
from .work import DOCUMENT_BITS, SEGMENT_FIELDS, TABLED_POSTINGS, DevicePostings, Formula, Tables, Verbs, tiles_of

MAX_FREQUENCY = (1 << 32 - DOCUMENT_BITS) - 1
"""The largest frequency that a posting's word can hold: 4,095."""

_SHAPES = {"bm25l": 1, "bm25+": 2, DOT: 3}


@dataclass(frozen=True, eq=False)
class Contributions:
    """The postings of a segment and what each contributes, as torch operations read them."""

    words: torch.Tensor
    quanta: torch.Tensor
    saturated: torch.Tensor
    idf: torch.Tensor
    posting_bytes: int


class LongLists:
    """The lists of a segment with at least `TABLED_POSTINGS` a tile, for one tile size.

    `order` reads the cuts and maxima of such a list here, which an epoch makes once, and streams the others.
    """

    def __init__(self, lengths: Integers, tiles: int, runtime: Runtime) -> None:
        """`lengths` [terms] of the segment's lists."""
        terms = np.flatnonzero(lengths >= TABLED_POSTINGS * tiles)
        rows = np.full(len(lengths), -1, dtype=np.int32)
        rows[terms] = np.arange(len(terms))
        self.terms = runtime.upload(terms.astype(np.int32))
        self.rows = runtime.upload(rows)
        self.cuts = runtime.empty(len(terms) * (tiles + 1), torch.int32).view(len(terms), tiles + 1)
        self.maxima = runtime.empty(len(terms) * tiles, torch.int64).view(len(terms), tiles)
        self.of: object = None
        """What the maxima were made of, as `Resident.derived` says it."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.terms, self.rows, self.cuts, self.maxima]

    @staticmethod
    def bytes_of(lengths: Integers, tiles: int) -> int:
        """The bytes that they will take."""
        count = int(np.count_nonzero(lengths >= TABLED_POSTINGS * tiles))
        return 4 * len(lengths) + count * (4 + 4 * (tiles + 1) + 8 * tiles)


class Resident:
    """One segment on the device: 8 bytes a posting, 12 a term, 4 a document and field.

    Where a frequency does not fit the word, or there are several fields, frequencies take 4 more bytes a posting and
    field. Once a query decays, times take 8 a document.

    With 4 bytes a posting, contributions are not kept but computed from the posting's impact class, which lies in the
    word in place of the frequency. Terms then take 20 bytes, an impact class 8.

    All is uploaded and written on the stream that is current; `Residency` ties it to the launches.
    """

    def __init__(self, segment: Segment, runtime: Runtime, long: bool, posting_bytes: int = 8) -> None:
        words = segment.documents.astype(np.uint32)
        frequencies = None
        self._runtime = runtime
        self.posting_bytes = posting_bytes
        if posting_bytes == 4:
            words |= segment.impact_classes.astype(np.uint32) << np.uint32(DOCUMENT_BITS)
        elif _packs(segment):
            words |= segment.frequencies()[0].astype(np.uint32) << np.uint32(DOCUMENT_BITS)
        else:
            frequencies = runtime.upload(segment.frequencies())
        self.words = runtime.upload(words.view(np.int32))
        self.terms = runtime.upload(segment.terms)
        self.postings = DevicePostings(
            self.words, frequencies, runtime.upload(segment.offsets), runtime.upload(segment.lengths)
        )
        self.quanta = runtime.empty(0, torch.int32)
        self.saturated = runtime.empty(0, torch.float64)
        """float64 [impact classes] what a posting of each contributes, without the idf, in this epoch. Only with
        fewer than 8 bytes a posting."""
        self.idf = runtime.empty(0, torch.float64)
        """float64 [terms] the idf in this epoch, likewise."""
        self.long = long
        if posting_bytes == 8:
            self.quanta = runtime.empty(segment.postings, torch.int64 if long else torch.int32)
        else:
            self.saturated = runtime.empty(segment.class_frequencies.shape[1], torch.float64)
            self.idf = runtime.empty(len(segment.terms), torch.float64)
        self.size = segment.size
        self.derived: object = None
        """Changes whenever the contributions do."""
        self._epoch: weakref.ref[Snapshot] | None = None
        # The arrays alone. A reference to the segment would keep the segment alive.
        self._host_times = segment.times
        self._offsets = segment.offsets
        self._times: torch.Tensor | None = None
        self._latest: dict[int, torch.Tensor] = {}
        self._lists: dict[int, LongLists] = {}

    @property
    def contributions(self) -> Contributions:
        return Contributions(self.words, self.quanta, self.saturated, self.idf, self.posting_bytes)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All of it, the tables of long lists included."""
        return [*self._own(), *self._tables()]

    @property
    def bytes(self) -> int:
        """Of the segment, without the tables."""
        return sum(tensor.nbytes for tensor in self._own())

    @property
    def table_bytes(self) -> int:
        """Of the tables of long lists, for all tile sizes."""
        return sum(tensor.nbytes for tensor in self._tables())

    def _own(self) -> Iterator[torch.Tensor]:
        yield from (self.words, self.quanta, self.terms, self.postings.offsets, self.postings.lengths)
        yield from (self.saturated, self.idf)
        yield from (tensor for tensor in (self.postings.frequencies, self._times) if tensor is not None)
        yield from list(self._latest.values())

    def _tables(self) -> Iterator[torch.Tensor]:
        for lists in list(self._lists.values()):
            yield from lists.tensors

    @staticmethod
    def bytes_of(segment: Segment, long: bool, posting_bytes: int = 8) -> int:
        """The bytes that the segment will take."""
        if posting_bytes < 8:
            varying = posting_bytes * segment.postings + 8 * (segment.class_frequencies.shape[1] + len(segment.terms))
            return int(varying) + segment.terms.nbytes + segment.offsets.nbytes + segment.lengths.nbytes
        a_posting = 4 + (8 if long else 4) + (0 if _packs(segment) else 4 * len(segment.class_frequencies))
        return a_posting * segment.postings + segment.terms.nbytes + segment.offsets.nbytes + segment.lengths.nbytes

    def is_of(self, snapshot: Snapshot) -> bool:
        """Whether the contributions belong to the snapshot's epoch."""
        return self._epoch is not None and self._epoch() is snapshot

    def stage(self, snapshot: Snapshot, number: int) -> tuple[torch.Tensor, ...]:
        """What `derive` needs of the snapshot's epoch, uploaded; the segment is the snapshot's `number`-th."""
        idf = self._runtime.upload(snapshot.term_idf[snapshot.segments[number].terms])
        if self.posting_bytes == 8:
            return (idf,)
        return idf, self._runtime.upload(snapshot.contributions[number].saturated)

    def derive(self, snapshot: Snapshot, staged: tuple[torch.Tensor, ...], verbs: Verbs) -> None:
        """Derive the contributions of the snapshot's epoch in place. No launch may read them meanwhile."""
        # Where this ends half way, they are of no epoch.
        self._epoch = None
        if self.posting_bytes < 8:
            self._runtime.copy(self.idf, staged[0])
            self._runtime.copy(self.saturated, staged[1])
        else:
            verbs.derive(self.postings, formula(snapshot.bm25, snapshot.statistics), staged[0], self.quanta)
        self._epoch, self.derived = weakref.ref(snapshot), object()

    def table_need(self, tile_bits: int, decays: bool) -> int:
        """Bytes that `row` will take beyond what is held."""
        need = 0
        tiles = tiles_of(self.size, tile_bits)
        if tile_bits not in self._lists:
            need += LongLists.bytes_of(np.diff(self._offsets), tiles)
        if decays:
            need += (8 * self.size if self._times is None else 0) + (8 * tiles if tile_bits not in self._latest else 0)
        return need

    def lists(self, tile_bits: int) -> LongLists:
        """The long lists; their cuts and maxima are there only after `tabulate`."""
        if tile_bits not in self._lists:
            tiles = tiles_of(self.size, tile_bits)
            self._lists[tile_bits] = LongLists(np.diff(self._offsets), tiles, self._runtime)
        return self._lists[tile_bits]

    def is_tabulated(self, tile_bits: int) -> bool:
        """Whether the tables for this tile size are of the contributions that are there."""
        return tile_bits in self._lists and self._lists[tile_bits].of is self.derived

    def tabulate(self, tile_bits: int, row: torch.Tensor, verbs: Verbs) -> None:
        """Make the tables for a tile size; `row` is the segment's, int64 [1, fields], on the device."""
        lists = self.lists(tile_bits)
        if len(lists.terms):
            tiles = tiles_of(self.size, tile_bits)
            verbs.tabulate(
                Tables(row, tile_bits, tiles, self.long, self.posting_bytes, lists.terms, lists.cuts, lists.maxima)
            )
        lists.of = self.derived

    def row(self, tile_bits: int, decays: bool) -> dict[str, int]:
        """The segment's numbers in `Work.segments`, but for its place among the others and its tombstones."""
        lists = self.lists(tile_bits)
        row = dict.fromkeys(SEGMENT_FIELDS, 0) | {
            "words": self.words.data_ptr(),
            "quanta": self.quanta.data_ptr(),
            "saturated": self.saturated.data_ptr(),
            "idf": self.idf.data_ptr(),
            "terms": self.terms.data_ptr(),
            "offsets": self.postings.offsets.data_ptr(),
            "rows": lists.rows.data_ptr(),
            "row_cuts": lists.cuts.data_ptr(),
            "row_maxima": lists.maxima.data_ptr(),
            "term_count": len(self.terms),
            "size": self.size,
            "tiles": tiles_of(self.size, tile_bits),
        }
        if decays:
            row["times"], row["latest"] = self._upload_times(tile_bits)
        return row

    def _upload_times(self, tile_bits: int) -> tuple[int, int]:
        """Addresses of the times and of the latest of each tile, uploaded when first asked for."""
        known = np.full(self.size, np.nan) if self._host_times is None else self._host_times
        times: Floats = np.where(np.isnan(known), np.inf, known)
        if self._times is None:
            self._times = self._runtime.upload(times)
        if tile_bits not in self._latest:
            tiles = tiles_of(self.size, tile_bits)
            padded = np.full(tiles << tile_bits, -np.inf)
            padded[: self.size] = times
            self._latest[tile_bits] = self._runtime.upload(
                padded.reshape(tiles, 1 << tile_bits).max(axis=1, initial=-np.inf)
            )
        return self._times.data_ptr(), self._latest[tile_bits].data_ptr()


def _packs(segment: Segment) -> bool:
    """Whether the words hold the frequencies."""
    return len(segment.class_frequencies) == 1 and int(segment.class_frequencies.max(initial=0)) <= MAX_FREQUENCY


def formula(bm25: BM25, statistics: Statistics) -> Formula:
    """The epoch's formula in numbers."""
    assert bm25.delta is not None
    return Formula(
        shape=_SHAPES.get(bm25.method, 0),
        fielded=bm25.fielded,
        signed=bm25.signed,
        k1=bm25.k1,
        b=bm25.b,
        delta=bm25.delta,
        scale=SCALE,
        weights=list(bm25.fields.values()),
        average_lengths=[statistics.average_length(position) for position in range(len(bm25.fields))],
    )
