"""Segments resident on a device: uploaded once, kept while the engine holds them, contributions derived per epoch."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ..engine.arrays import Integers
from ..engine.errors import ParameterError, QueryError
from ..engine.index.decay import TABLE
from ..engine.index.segment import Segment
from ..engine.index.snapshot import Snapshot
from ..engine.index.tombstones import Tombstones
from .lifetime import Account, Lifetimes
from .resident import Resident
from .runtime import Runtime, runtime_of
from .timing import DevicePhases
from .work import (
    CANDIDATE_BYTES,
    DESCRIPTOR_BYTES,
    DOCUMENT_BITS,
    POSTING_BYTES,
    SEGMENT_FIELDS,
    Verbs,
    tiles_of,
)

# The most impact classes of postings in a segment, at 4 bytes a posting.
MAX_CLASSES = 1 << 32 - DOCUMENT_BITS

# Of a segment: 2,047 terms a document at its most. Cuts of a segment are a sixteenth of that at most, so that they fit
# 32 bits, too. Places of candidates, entries and descriptors do not.
MAX_POSTINGS = (1 << 31) - 1

_ALIVE, _FIRST, _OFFSET = (SEGMENT_FIELDS.index(name) for name in ("alive", "first", "tile_offset"))

K = TypeVar("K")
V = TypeVar("V")


class WhileAlive(Generic[K, V]):
    """Values by keys that are not kept alive. Once a key is gone, its value goes to `let_go`, in any thread."""

    def __init__(self, let_go: Callable[[V], None]) -> None:
        self._let_go = let_go
        self._kept: dict[int, tuple[weakref.ref[K], V]] = {}

    def get(self, key: K) -> V | None:
        kept = self._kept.get(id(key))
        return None if kept is None else kept[1]

    def add(self, key: K, value: V) -> V:
        """Keep a value while the key lives. Returns it."""
        number, own = id(key), weakref.ref(self)

        def gone(_: weakref.ref[K]) -> None:
            keeper = own()
            if keeper is not None:
                keeper._let_go(keeper._kept.pop(number)[1])

        self._kept[number] = weakref.ref(key, gone), value
        return value

    def values(self) -> list[V]:
        return [value for _, value in list(self._kept.values())]


@dataclass(eq=False)
class SegmentTable:
    """All S segments of a snapshot, as a launch reads them."""

    rows: Integers  # [S, fields of a row], on the host
    tiles: int  # of all segments
    on_device: torch.Tensor | None = None
    """`rows` once more, where a launch was planned on the device without a graph."""
    alive: list[torch.Tensor] = field(default_factory=list)
    """Bitmaps whose addresses are in the rows."""


class Residency:
    """The memory of one engine on one device. `limit`, if any, bounds all bytes that `account` counts.

    `posting_bytes` are those of a posting whose contribution is at least one quantum and fits int32; others take 8
    always. Raises `ParameterError`, as does an upload of a segment with more postings than `MAX_POSTINGS`, or more
    impact classes of them than `MAX_CLASSES`.

    What it writes is written on a stream of its own. That waits for the launches that may still read what is written
    over (`Lifetimes`). `table`, `decay_table` and `resident_of` alone hand out what is there, and each has the
    current stream wait for the last write first. The host waits for neither.
    """

    def __init__(
        self,
        device: torch.device,
        limit: int | None = None,
        posting_bytes: int = 8,
        *,
        runtime: Runtime | None = None,
    ) -> None:
        if posting_bytes not in POSTING_BYTES:
            raise ParameterError(f"posting_bytes must be one of {POSTING_BYTES}, not {posting_bytes!r}")
        self.device = device
        self.posting_bytes = posting_bytes
        self.runtime = runtime or runtime_of(device)
        self.account = Account(limit)
        self.lifetimes = Lifetimes(self.runtime)
        retire = self.lifetimes.retire
        # Key: whether contributions are int64. Searches may alternate between epochs with and without.
        self._held: WhileAlive[Segment, dict[bool, Resident]] = WhileAlive(
            lambda widths: retire([tensor for resident in widths.values() for tensor in resident.tensors])
        )
        self._alive: WhileAlive[Tombstones, torch.Tensor] = WhileAlive(lambda bits: retire([bits]))
        # Key: the tile size, and whether the rows have times.
        self._tables: WhileAlive[Snapshot, dict[tuple[int, bool], SegmentTable]] = WhileAlive(
            lambda tables: retire([table.on_device for table in tables.values() if table.on_device is not None])
        )
        self._decay_table: torch.Tensor | None = None
        self.account.add(lambda: self.bytes + self._other_bytes)
        self.account.add(lambda: self.lifetimes.bytes, self.lifetimes.reclaim)
        # What an engine leaves behind goes to others' allocations.
        weakref.finalize(self, self.lifetimes.drain).atexit = False

    @cached_property
    def _stream(self) -> Any:
        """Of what is written."""
        return self.runtime.new_stream()

    @property
    def bytes(self) -> int:
        """Bytes of the segments."""
        return sum(resident.bytes for widths in self._held.values() for resident in list(widths.values()))

    @property
    def _other_bytes(self) -> int:
        """Bytes of the tables, the bitmaps of live documents and the decay table."""
        lists = sum(resident.table_bytes for widths in self._held.values() for resident in list(widths.values()))
        tables = [table.on_device for known in self._tables.values() for table in list(known.values())]
        tensors = [*self._alive.values(), *tables, self._decay_table]
        return lists + sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def make_ready(self, snapshots: Sequence[Snapshot], verbs: Verbs, clock: DevicePhases) -> None:
        """Upload the missing segments, and derive the contributions of the snapshots' epochs.

        No segment may be in two of the snapshots. Raises `DeviceMemoryError` before an upload that cannot fit.
        """
        missing = [
            (segment, snapshot)
            for snapshot in snapshots
            for segment in snapshot.segments
            if snapshot.long not in (self._held.get(segment) or ())
        ]
        with self._writing(bool(missing)), clock("upload"):
            for segment, snapshot in missing:
                self._upload_segment(segment, snapshot)
        stale = [
            (snapshot, number, resident)
            for snapshot in snapshots
            for number, resident in enumerate(self._residents(snapshot))
            if not resident.is_of(snapshot)
        ]
        with self._writing(bool(stale)), clock("derive"):
            if stale:
                # All uploads first: one of pageable memory waits for what the stream was given before.
                staged = [resident.stage(snapshot, number) for snapshot, number, resident in stale]
                self.lifetimes.wait_for_launches()
                for (snapshot, _, resident), arrays in zip(stale, staged, strict=True):
                    resident.derive(snapshot, arrays, verbs)

    def table(
        self, snapshot: Snapshot, tile_bits: int, verbs: Verbs, *, decays: bool = False, on_device: bool = False
    ) -> SegmentTable:
        """The snapshot's segments, which must be ready, with tables of their long lists for this tile size.

        The current stream may read them and all that their rows name. With `decays` the rows have times. Raises
        `DeviceMemoryError`.
        """
        residents = self._residents(snapshot)
        known = self._tables.get(snapshot)
        if known is None:
            known = self._tables.add(snapshot, {})
        table = known.get((tile_bits, decays))
        if table is None:
            self.reserve(sum(resident.table_need(tile_bits, decays) for resident in residents))
            with self._writing():
                table = known[tile_bits, decays] = self._make_table(snapshot, residents, tile_bits, decays)
        stale = [number for number, resident in enumerate(residents) if not resident.is_tabulated(tile_bits)]
        if stale or (on_device and table.on_device is None):
            with self._writing():
                rows = self.runtime.upload(table.rows)
                if on_device:
                    table.on_device = rows
                # What made them stale has waited for the launches that read them: it wrote contributions in place.
                for number in stale:
                    residents[number].tabulate(tile_bits, rows[number : number + 1], verbs)
        self.lifetimes.wait_for_writes()
        return table

    def _make_table(
        self, snapshot: Snapshot, residents: Sequence[Resident], tile_bits: int, decays: bool
    ) -> SegmentTable:
        rows = np.zeros((len(residents), len(SEGMENT_FIELDS)), dtype=np.int64)
        for number, resident in enumerate(residents):
            rows[number] = list(resident.row(tile_bits, decays).values())
        rows[:, _FIRST] = snapshot.firsts
        tiles = [tiles_of(resident.size, tile_bits) for resident in residents]
        rows[:, _OFFSET] = np.cumsum([0, *tiles])[:-1]
        table = SegmentTable(rows, sum(tiles))
        for number, tombstones in snapshot.tombstones.items():
            table.alive.append(self._alive_bitmap(tombstones))
            rows[number, _ALIVE] = table.alive[-1].data_ptr()
        return table

    def decay_table(self) -> torch.Tensor:
        """`decay.TABLE`, uploaded when first asked for. The current stream may read it."""
        if self._decay_table is None:
            self.reserve(TABLE.nbytes)
            with self._writing():
                self._decay_table = self.runtime.upload(TABLE)
        self.lifetimes.wait_for_writes()
        return self._decay_table

    def resident_of(self, segment: Segment, long: bool) -> Resident:
        """A segment that was made ready, with contributions of this width. The current stream may read it."""
        self.lifetimes.wait_for_writes()
        return self._resident_of(segment, long)

    def _resident_of(self, segment: Segment, long: bool) -> Resident:
        widths = self._held.get(segment)
        assert widths is not None, "the segment was not made ready"
        return widths[long]

    def bytes_for(self, snapshot: Snapshot) -> int:
        """Bytes of a posting of the snapshot's segments."""
        return 8 if snapshot.long or snapshot.bm25.signed else self.posting_bytes

    def reserve(self, need: int) -> None:
        """As `Account.reserve`; while a stream is captured, nothing can be asked."""
        if not self.runtime.capturing():
            self.account.reserve(need, self.runtime)

    def room_for(self, candidates: int, descriptors: int) -> tuple[int, int]:
        """How many of each a launch may have: these many, or what three quarters of the free bytes hold."""
        free = self.account.free(self.runtime)
        if free is not None and free < max(2 * CANDIDATE_BYTES * candidates, 4 * DESCRIPTOR_BYTES * descriptors):
            free = self.account.free(self.runtime, now=True)
        if free is None:
            return candidates, descriptors
        return min(candidates, free // 2 // CANDIDATE_BYTES), min(descriptors, free // 4 // DESCRIPTOR_BYTES)

    def _residents(self, snapshot: Snapshot) -> list[Resident]:
        return [self._resident_of(segment, snapshot.long) for segment in snapshot.segments]

    @contextlib.contextmanager
    def _writing(self, anything: bool = True) -> Iterator[None]:
        """The stream of the writes made current, until what was written is marked as such.

        Raises `QueryError` while the caller's stream is captured.
        """
        if not anything:
            yield
            return
        if self.runtime.capturing():
            raise QueryError(
                "the index changed since the last call; call once, on the same records, before the capture"
            )
        with self.runtime.on(self._stream):
            try:
                yield
            finally:
                self.lifetimes.written()

    def _alive_bitmap(self, tombstones: Tombstones) -> torch.Tensor:
        """Kept as long as the tombstones are."""
        bits = self._alive.get(tombstones)
        if bits is None:
            bits = self._alive.add(tombstones, self.runtime.upload(bitmap(tombstones.alive).view(np.int32)))
        return bits

    def _upload_segment(self, segment: Segment, snapshot: Snapshot) -> None:
        long, posting_bytes = snapshot.long, self.bytes_for(snapshot)
        widths = self._held.get(segment)
        if widths is not None and long in widths:
            return
        if segment.postings > MAX_POSTINGS:
            raise ParameterError(
                f"a segment has {segment.postings:,} postings, and a device takes {MAX_POSTINGS:,}; serve from the "
                "CPU, or split the texts of its records"
            )
        classes = segment.class_frequencies.shape[1]
        if posting_bytes == 4 and classes > MAX_CLASSES:
            raise ParameterError(
                f"a segment has {classes:,} kinds of postings (frequency and length), and 4 bytes a posting hold "
                f"{MAX_CLASSES:,}; use 8"
            )
        self.reserve(Resident.bytes_of(segment, long, posting_bytes))
        made = Resident(segment, self.runtime, long, posting_bytes)
        if widths is None:
            self._held.add(segment, {long: made})
        else:
            widths[long] = made


def bitmap(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """A mask as words, document d at bit d & 31 of word d >> 5."""
    padded = np.zeros(-(-len(mask) // 32) * 4, dtype=np.uint8)
    packed = np.packbits(mask, bitorder="little")
    padded[: len(packed)] = packed
    return padded.view(np.uint32)
