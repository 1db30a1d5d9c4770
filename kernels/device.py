"""Segments resident on a device: uploaded once, kept while the engine holds them, contributions derived per epoch."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..engine.errors import DeviceMemoryError, ParameterError
from ..engine.index.bm25 import BM25, DOT, SCALE, Statistics
from ..engine.index.decay import TABLE
from ..engine.index.segment import Segment
from ..engine.index.snapshot import Snapshot
from ..engine.index.tombstones import Tombstones
from .timing import DevicePhases
from .work import CANDIDATE_BYTES, CUT_BYTES, DOCUMENT_BITS, POSTING_BYTES, DevicePostings, Formula, Verbs, tiles_of

MAX_FREQUENCY = (1 << 32 - DOCUMENT_BITS) - 1
"""The largest frequency that a posting's word can hold: 4,095."""

# The most impact classes of postings in a segment, by the bytes of a posting.
MAX_CLASSES = {6: 1 << 16, 4: 1 << 32 - DOCUMENT_BITS}

# Arrays of one upload start at multiples of this: kernels load 16 bytes at a time.
ALIGNMENT = 16

_TYPES = {"<i8": torch.int64, "<i4": torch.int32, "<u4": torch.int32, "|u1": torch.uint8, "<f8": torch.float64}
_SHAPES = {"bm25l": 1, "bm25+": 2, DOT: 3}


class Resident:
    """One segment on the device: 8 bytes a posting, 12 a term, 4 a document and field.

    Where a frequency does not fit the word, or there are several fields, frequencies take 4 more bytes a posting and
    field. Once a query decays, times take 8 a document.

    With fewer bytes a posting, contributions are not kept but computed from the posting's impact class. At 6 bytes the
    kind's number lies beside the word, at 4 in the word in place of the frequency. Terms then take 20 bytes, an impact
    class 8.
    """

    def __init__(self, segment: Segment, device: torch.device, long: bool, posting_bytes: int = 8) -> None:
        words = segment.documents.astype(np.uint32)
        frequencies = None
        self.posting_bytes = posting_bytes
        if posting_bytes == 4:
            words |= segment.impact_classes.astype(np.uint32) << np.uint32(DOCUMENT_BITS)
        elif posting_bytes == 6:
            pass
        elif _packs(segment):
            words |= segment.frequencies()[0].astype(np.uint32) << np.uint32(DOCUMENT_BITS)
        else:
            frequencies = _move(segment.frequencies(), device)
        self.words = _move(words.view(np.int32), device)
        self.terms = _move(segment.terms, device)
        self.postings = DevicePostings(
            self.words, frequencies, _move(segment.offsets, device), _move(segment.lengths, device)
        )
        self.quanta = torch.empty(0, dtype=torch.int32, device=device)
        self.impact_classes = torch.empty(0, dtype=torch.int16, device=device)
        self.saturated = torch.empty(0, dtype=torch.float64, device=device)
        """float64 [impact classes] what a posting of each contributes, without the idf, in this epoch. Only with
        fewer than 8 bytes a posting."""
        self.idf = torch.empty(0, dtype=torch.float64, device=device)
        """float64 [terms] the idf in this epoch, likewise."""
        if posting_bytes == 8:
            self.quanta = torch.empty(segment.postings, dtype=torch.int64 if long else torch.int32, device=device)
        else:
            self.saturated = torch.empty(segment.class_frequencies.shape[1], dtype=torch.float64, device=device)
            self.idf = torch.empty(len(segment.terms), dtype=torch.float64, device=device)
        if posting_bytes == 6:
            # The bits of uint16.
            self.impact_classes = _move(segment.impact_classes.astype(np.uint16).view(np.int16), device)
        self.size = segment.size
        self._epoch: weakref.ref[Snapshot] | None = None
        # The array alone. A reference to the segment would keep the segment alive.
        self._host_times = segment.times
        self._times: torch.Tensor | None = None
        self._latest: dict[int, torch.Tensor] = {}

    @property
    def bytes(self) -> int:
        tensors = [self.words, self.quanta, self.terms, self.postings.offsets, self.postings.lengths]
        tensors += [self.impact_classes, self.saturated, self.idf]
        tensors += [tensor for tensor in (self.postings.frequencies, self._times) if tensor is not None]
        tensors += list(self._latest.values())
        return sum(tensor.nbytes for tensor in tensors)

    def has_times(self, tile_bits: int) -> bool:
        return self._times is not None and tile_bits in self._latest

    @property
    def times(self) -> torch.Tensor:
        """float64 [documents] seconds, +inf where a record has none. Uploaded when first asked for."""
        if self._times is None:
            known = np.full(self.size, np.nan) if self._host_times is None else self._host_times
            self._times = _move(np.where(np.isnan(known), np.inf, known), self.words.device)
        return self._times

    def latest(self, tile_bits: int) -> torch.Tensor:
        """float64 [tiles] the latest of `times` in each tile of ``2**tile_bits`` documents. Made when first asked."""
        if tile_bits not in self._latest:
            tiles = tiles_of(self.size, tile_bits)
            missing = (tiles << tile_bits) - self.size
            padded = torch.nn.functional.pad(self.times, (0, missing), value=-torch.inf)
            self._latest[tile_bits] = torch.amax(padded.view(tiles, 1 << tile_bits), dim=1)
        return self._latest[tile_bits]

    @property
    def values(self) -> torch.Tensor:
        """The tensor whose address is `Work.quanta`."""
        return self.impact_classes if self.posting_bytes == 6 else self.quanta

    @staticmethod
    def bytes_of(segment: Segment, long: bool, posting_bytes: int = 8) -> int:
        """The bytes that the segment will take."""
        if posting_bytes < 8:
            varying = posting_bytes * segment.postings + 8 * (segment.class_frequencies.shape[1] + len(segment.terms))
            return int(varying) + segment.terms.nbytes + segment.offsets.nbytes + segment.lengths.nbytes
        a_posting = 4 + (8 if long else 4) + (0 if _packs(segment) else 4 * len(segment.class_frequencies))
        return a_posting * segment.postings + segment.terms.nbytes + segment.offsets.nbytes + segment.lengths.nbytes

    def is_of(self, snapshot: Snapshot) -> bool:
        """Whether `quanta` belong to the snapshot's epoch."""
        return self._epoch is not None and self._epoch() is snapshot

    def derive(self, snapshot: Snapshot, number: int, verbs: Verbs) -> None:
        """Derive the contributions of the snapshot's epoch; the segment is the snapshot's `number`-th."""
        idf = _move(snapshot.term_idf[snapshot.segments[number].terms], self.quanta.device)
        if self.posting_bytes < 8:
            self.idf.copy_(idf)
            self.saturated.copy_(torch.from_numpy(snapshot.contributions[number].saturated))
            self._epoch = weakref.ref(snapshot)
            return
        verbs.derive(self.postings, formula(snapshot.bm25, snapshot.statistics), idf, self.quanta)
        self._epoch = weakref.ref(snapshot)


@dataclass(frozen=True, eq=False)
class SegmentTable:
    """The arrays, on the device, that a launch over all S segments of a snapshot needs."""

    tiles: tuple[int, ...]  # of each segment
    words: torch.Tensor  # int64 [S] addresses
    quanta: torch.Tensor  # int64 [S] addresses
    saturated: torch.Tensor  # int64 [S] addresses, of fewer than 8 bytes a posting
    sizes: torch.Tensor  # int32 [S]
    firsts: torch.Tensor  # int64 [S]
    alive: torch.Tensor  # int64 [S] address of the bitmap of live documents, 0 where all are
    tile_offset: torch.Tensor  # int64 [S + 1] tiles before each segment


class Residency:
    """The memory of one engine on one device. `limit`, if any, bounds the bytes of segments and buffers together.

    `posting_bytes` are those of a posting whose contribution is at least one quantum and fits int32; others take 8
    always. Raises `ParameterError`, as does an upload of a segment with more impact classes of postings than
    `MAX_CLASSES`.
    """

    def __init__(self, device: torch.device, limit: int | None = None, posting_bytes: int = 8) -> None:
        if posting_bytes not in POSTING_BYTES:
            raise ParameterError(f"posting_bytes must be one of {POSTING_BYTES}, not {posting_bytes!r}")
        self.device = device
        self.posting_bytes = posting_bytes
        self.limit = limit
        # Key: whether contributions are int64. Searches may alternate between epochs with and without.
        self._held: weakref.WeakKeyDictionary[Segment, dict[bool, Resident]] = weakref.WeakKeyDictionary()
        self._decay_table: torch.Tensor | None = None
        self._alive: weakref.WeakKeyDictionary[Tombstones, torch.Tensor] = weakref.WeakKeyDictionary()
        self._tables: weakref.WeakKeyDictionary[Snapshot, dict[int, SegmentTable]] = weakref.WeakKeyDictionary()

    @property
    def bytes(self) -> int:
        return sum(resident.bytes for widths in list(self._held.values()) for resident in list(widths.values()))

    @property
    def free(self) -> int | None:
        """Bytes that may still be allocated, or None where neither a limit nor the device tells."""
        bounds = [] if self.limit is None else [self.limit - self.bytes]
        if self.device.type == "cuda":
            bounds.append(torch.cuda.mem_get_info(self.device)[0] + _cached(self.device))
        return min(bounds) if bounds else None

    def make_ready(self, snapshots: Sequence[Snapshot], verbs: Verbs, clock: DevicePhases) -> None:
        """Upload the missing segments, and derive the contributions of the snapshots' epochs.

        Raises `DeviceMemoryError` before an upload that cannot fit.
        """
        with clock("upload"):
            for snapshot in snapshots:
                for segment in snapshot.segments:
                    self._upload_segment(segment, snapshot)
        with clock("derive"):
            stale = [
                (snapshot, number)
                for snapshot in snapshots
                for number, segment in enumerate(snapshot.segments)
                if not self.resident_of(segment, snapshot.long).is_of(snapshot)
            ]
            if not stale:
                return
            # Launches on other streams may still read the last epoch's arrays, or soon the new ones.
            self.settle()
            for snapshot, number in stale:
                self.resident_of(snapshot.segments[number], snapshot.long).derive(snapshot, number, verbs)
            self.settle()

    def settle(self) -> None:
        """Wait until the device is idle, so that every stream sees the uploaded arrays."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def table(self, snapshot: Snapshot, tile_bits: int) -> SegmentTable:
        """The snapshot's table; its segments must be ready. Made once for each tile size."""
        known = self._tables.setdefault(snapshot, {})
        if tile_bits not in known:
            tiles = tuple(tiles_of(segment.size, tile_bits) for segment in snapshot.segments)
            residents = [self.resident_of(segment, snapshot.long) for segment in snapshot.segments]
            alive = [0] * len(residents)
            for number, tombstones in snapshot.tombstones.items():
                alive[number] = self._alive_bitmap(tombstones).data_ptr()
            words, quanta, saturated, sizes, firsts, alive_at, offsets = self.upload(
                [
                    np.array([resident.words.data_ptr() for resident in residents], dtype=np.int64),
                    np.array([resident.values.data_ptr() for resident in residents], dtype=np.int64),
                    np.array([resident.saturated.data_ptr() for resident in residents], dtype=np.int64),
                    np.array([resident.size for resident in residents], dtype=np.int32),
                    np.array(snapshot.firsts, dtype=np.int64),
                    np.array(alive, dtype=np.int64),
                    np.cumsum([0, *tiles], dtype=np.int64),
                ]
            )
            self.settle()
            known[tile_bits] = SegmentTable(tiles, words, quanta, saturated, sizes, firsts, alive_at, offsets)
        return known[tile_bits]

    def _alive_bitmap(self, tombstones: Tombstones) -> torch.Tensor:
        """Kept as long as the tombstones are."""
        if tombstones not in self._alive:
            self._alive[tombstones] = _move(bitmap(tombstones.alive).view(np.int32), self.device)
        return self._alive[tombstones]

    def resident_of(self, segment: Segment, long: bool) -> Resident:
        """The arrays of a segment that was made ready, with contributions of this width."""
        return self._held[segment][long]

    def times_of(self, segment: Segment, long: bool, tile_bits: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(times, latest) of a segment that was made ready, as `Resident` has them. Raises `DeviceMemoryError`."""
        resident = self.resident_of(segment, long)
        before = resident.bytes
        if not resident.has_times(tile_bits):
            self.reserve(8 * (segment.size + tiles_of(segment.size, tile_bits)))
        arrays = resident.times, resident.latest(tile_bits)
        if resident.bytes > before:
            self.settle()
        return arrays

    def decay_table(self) -> torch.Tensor:
        """`decay.TABLE`, uploaded when first asked for."""
        if self._decay_table is None:
            self._decay_table = _move(TABLE, self.device)
            self.settle()
        return self._decay_table

    def bytes_for(self, snapshot: Snapshot) -> int:
        """Bytes of a posting of the snapshot's segments."""
        return 8 if snapshot.long or snapshot.bm25.signed else self.posting_bytes

    def _upload_segment(self, segment: Segment, snapshot: Snapshot) -> None:
        long, posting_bytes = snapshot.long, self.bytes_for(snapshot)
        widths = self._held.setdefault(segment, {})
        if long not in widths:
            classes, most = segment.class_frequencies.shape[1], MAX_CLASSES.get(posting_bytes)
            if most is not None and classes > most:
                raise ParameterError(
                    f"a segment has {classes:,} kinds of postings (frequency and length), and {posting_bytes} bytes a "
                    f"posting hold {most:,}; use more of {POSTING_BYTES}"
                )
            self.reserve(Resident.bytes_of(segment, long, posting_bytes))
            widths[long] = Resident(segment, self.device, long, posting_bytes)

    def reserve(self, need: int) -> None:
        """Raise `DeviceMemoryError` if so many more bytes cannot be had."""
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return
        free = self.free
        if free is not None and need > free:
            raise DeviceMemoryError(
                f"{need:,} bytes are needed on {self.device}, where {max(free, 0):,} are free and {self.bytes:,} are "
                "held; raise max_device_bytes, ask in smaller batches, or serve from the CPU"
            )

    def room_for(self, candidates: int, cuts: int) -> tuple[int, int]:
        """How many candidates and cuts a launch may have: these many, or what three quarters of the free bytes hold."""
        free = self.free
        if free is None:
            return candidates, cuts
        return min(candidates, free // 2 // CANDIDATE_BYTES), min(cuts, free // 4 // CUT_BYTES)

    def upload(self, arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
        """Arrays moved to the device in one copy, as windows of one block."""
        starts, end = [], 0
        for array in arrays:
            starts.append(end)
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        host = torch.empty(end, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        block = host.numpy()
        for array, start in zip(arrays, starts, strict=True):
            block[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        moved = host.to(self.device, non_blocking=True)
        return [
            moved[start : start + array.nbytes].view(_TYPES[array.dtype.str]).view(array.shape)
            for array, start in zip(arrays, starts, strict=True)
        ]


def bitmap(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """A mask as words, document d at bit d & 31 of word d >> 5."""
    padded = np.zeros(-(-len(mask) // 32) * 4, dtype=np.uint8)
    packed = np.packbits(mask, bitorder="little")
    padded[: len(packed)] = packed
    return padded.view(np.uint32)


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


def _move(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    # Memory-mapped arrays are read-only, which torch warns of; a copy on the CPU is not.
    contiguous = np.ascontiguousarray(array)
    if not contiguous.flags.writeable or device.type == "cpu":
        contiguous = contiguous.copy()
    return torch.from_numpy(contiguous).to(device)


def _cached(device: torch.device) -> int:
    """Bytes that torch's allocator keeps for reuse."""
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
