"""The path of a planner's fan-out: a small batch in buffers of padded shape, on a GPU replayed as a CUDA graph.

At 5 to 20 queries the launches cost more than their work. A graph gives them to the device at once: one copy in, plan,
order, score, select, one copy out. The copy in holds the table of segments beside the terms, and buffers are sized by
capacities. So a graph does not depend on the epoch, and outlives any number of writes.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..engine.arrays import Integers
from ..engine.index.snapshot import Snapshot
from ..engine.plan.plan import Plan
from .device import Residency, SegmentTable
from .download import Download
from .frame import FIELDS, Frame, Shape, answer_in, answer_size, power_of_two
from .launch import run
from .runtime import Event, Graph, is_out_of_memory
from .timing import DevicePhases
from .work import SEGMENT_FIELDS, TermBatch, Verbs

# Padded shapes. A batch takes the smallest that holds it, so that few graphs are captured.
QUERIES = (8, 32)
TERMS = (64, 256)
WIDTHS = (16, 128, 1024)
# Rows of the segment table. Each takes 136 bytes of the copy in. A memory that grows by small writes has some 5
# segments, and hardly ever one.
SEGMENTS = (4, 16, 64)
# Tiles are rounded up to a power of two, and to this: at 2^14 documents a tile 262,144 documents, for 3 MiB of buffers
# at 32 queries and k = 128. So a small memory is not captured anew at each doubling.
LEAST_TILES = 16
# Graphs kept. The least recently used idle one is dropped first; each holds its buffers.
MAX_GRAPHS = 8

_TILE_OFFSET = SEGMENT_FIELDS.index("tile_offset")
_log = logging.getLogger(__name__)


def _padded(value: int, sizes: tuple[int, ...]) -> int | None:
    return next((size for size in sizes if value <= size), None)


class Fanout:
    """The buffers of one padded shape, captured at the second use.

    What goes in is ``[segment table, terms, offsets, number of the call]``, in one copy. What comes out is the number
    and the answer, which lie side by side, in another.
    """

    def __init__(self, shape: Shape, residency: Residency, verbs: Verbs, stream: Any) -> None:
        """`stream` is the one that it is captured on."""
        self.shape = shape
        self._verbs, self._runtime = verbs, residency.runtime
        runtime = residency.runtime
        table = shape.segments * FIELDS
        parts = [table, shape.terms, shape.queries + 1, 1]
        given, found = sum(parts), 1 + answer_size(shape.queries, shape.k)
        residency.reserve(shape.bytes + 8 * (2 * given + 2 * found))
        self._asked = runtime.pinned(given, torch.int64)
        self._found = runtime.pinned(found, torch.int64)
        # The number of the call is the last of what goes in and the first of what comes out.
        self._block = runtime.empty(given + found - 1, torch.int64)
        self._in, self._out = self._block[:given], self._block[given - 1 :]
        segments, terms, offsets, _ = self._in.split_with_sizes(parts)
        self._frame = Frame.over(runtime.empty(shape.bytes, torch.uint8), shape, segments.view(shape.segments, FIELDS))
        self._batch = TermBatch(terms, offsets, None, shape.k, shape.tiles, shape.candidates, None)
        self._answer = answer_in(self._out[1:], shape.queries, shape.k)
        self._stream = stream
        self._graph: Graph | None = None
        self._captures = runtime.captures
        self._uses = 0
        self._begun: weakref.ref[Download] | None = None
        self._event: Event | None = None

    @property
    def busy(self) -> bool:
        """Whether an answer is on its way, or not read yet. Begun under the lock of the search, read by any thread."""
        if self._begun is None or self._event is None:
            return False
        # Nobody will read the answer of a call that failed. Its copies may still run.
        return self._begun() is not None or not self._event.done()

    @property
    def tensors(self) -> list[torch.Tensor]:
        """On the device and in pinned memory."""
        return [self._asked, self._found, self._block, self._frame.block]

    @property
    def bytes(self) -> int:
        """Of `tensors`."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def captured(self) -> bool:
        """Whether a graph is replayed."""
        return self._graph is not None

    def begin(self, table: SegmentTable, terms: Integers, offsets: Integers, k: int) -> Download:
        """Launch the padded batch; its rows and the first `k` columns are what will be read."""
        self._uses += 1
        self._stage(table, terms, offsets)
        if self._captures and self._graph is None and self._uses > 1:
            self._capture()
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()
        block, padded = self._found[1:], (self.shape.queries, self.shape.k)
        self._event = self._runtime.record()
        download = Download(block, self._event, padded, len(offsets) - 1, k, self._let_go)
        self._begun = weakref.ref(download)
        return download

    def _stage(self, table: SegmentTable, terms: Integers, offsets: Integers) -> None:
        shape, staged = self.shape, self._asked.numpy()
        if len(table.rows) > shape.segments or table.tiles > shape.tiles:
            raise ValueError(f"{len(table.rows)} segments of {table.tiles} tiles do not fit a fan-out of {shape}")
        rows = staged[: shape.segments * FIELDS].reshape(shape.segments, FIELDS)
        rows[: len(table.rows)] = table.rows
        rows[len(table.rows) :] = 0
        rows[len(table.rows) :, _TILE_OFFSET] = table.tiles
        rest = staged[rows.size :]
        rest[: len(terms)] = terms
        rest[len(terms) : shape.terms] = -1
        # Queries past those of the batch are empty. The last of them reads the padding, which matches nothing.
        starts = rest[shape.terms : -1]
        starts[: len(offsets)] = offsets
        starts[len(offsets) :] = len(terms)
        starts[-1] = shape.terms
        staged[-1] = self._uses

    def _capture(self) -> None:
        """Capture the work, and replay it once to see that it is what was asked. If not, go on without a graph."""
        runtime, given = self._runtime, self._asked.numpy()
        try:
            graph = runtime.capture(self._stream, self._run)
            # Once a shape. A graph that recorded nothing would return what the last call left: work that went to
            # another stream than the captured one has run, and only a number that it has not seen tells them apart.
            runtime.record().wait()
            given[-1] = -self._uses
            graph.replay()
            runtime.record().wait()
            if int(self._found[0]) != -self._uses:
                raise RuntimeError("the graph did not copy the answer of its call")
            self._graph = graph
        except RuntimeError as error:
            self._captures = False
            cause = "memory ran out" if is_out_of_memory(error) else "the capture failed"
            _log.warning("fan-outs of %s are launched one kernel at a time: %s (%s)", self.shape, cause, error)
        finally:
            given[-1] = self._uses

    def _let_go(self) -> None:
        self._begun = None

    def _run(self) -> None:
        """Run from the host's input buffer to the host's output buffer, without waiting."""
        runtime = self._runtime
        runtime.copy(self._in, self._asked)
        clock = DevicePhases(None, runtime.device)
        frame = self._frame
        run(self._verbs, runtime, frame.work, frame.buffers, self._answer, clock, self._batch)
        runtime.copy(self._found, self._out)


class Fanouts:
    """The padded shapes of one engine. Called under the lock of the search."""

    def __init__(self, residency: Residency, verbs: Verbs) -> None:
        self._residency, self._verbs = residency, verbs
        # Key: the shape, and which of the fan-outs of that shape that are on their way at once.
        self._kept: OrderedDict[tuple[Shape, int], Fanout] = OrderedDict()
        residency.account.add(lambda: sum(each.bytes for each in list(self._kept.values())), self.drop_idle)

    @cached_property
    def _stream(self) -> Any:
        """The stream of all captures. torch hands out 32 in turn, so one a shape would soon be another library's."""
        return self._residency.runtime.new_stream()

    def __iter__(self) -> Iterator[Fanout]:
        return iter(list(self._kept.values()))

    def begin(self, plan: Plan) -> Download | None:
        """The started answer to the plan's queries; None unless they are few, unfiltered and narrow, with one k.

        The snapshot must be ready. Raises `DeviceMemoryError` where the padded shape has no room.
        """
        if len(plan.rows) > QUERIES[-1] or not plan.reads_all or plan.large.any() or plan.snapshot.long:
            return None
        k = int(plan.k[0]) if len(plan.k) else 0
        if (plan.k != k).any():
            return None
        owners = np.repeat(np.arange(len(plan.rows)), np.diff(plan.offsets))
        counts = np.bincount(owners, weights=plan.multiplicities, minlength=len(plan.rows)).astype(np.int64)
        if counts.sum() > TERMS[-1]:
            return None
        repeated = np.repeat(plan.terms[plan.slots], plan.multiplicities).astype(np.int64)
        return self.begin_terms(plan.snapshot, repeated, np.concatenate([[0], np.cumsum(counts)]), k)

    def begin_terms(self, snapshot: Snapshot, repeated: Integers, offsets: Integers, k: int) -> Download | None:
        """As `begin`, for queries given by the ids of their terms, which repeat and may be unknown to the snapshot."""
        queries, terms = _padded(len(offsets) - 1, QUERIES), _padded(len(repeated), TERMS)
        width, segments = _padded(k, WIDTHS), _padded(len(snapshot.segments), SEGMENTS)
        if not k or not len(repeated) or queries is None or terms is None or width is None or segments is None:
            return None
        table = self._residency.table(snapshot, self._verbs.tile_bits(False), self._verbs)
        shape = Shape.of(
            self._verbs,
            snapshot,
            self._residency.bytes_for(snapshot),
            queries=queries,
            terms=terms,
            k=width,
            segments=segments,
            tiles=max(LEAST_TILES, power_of_two(table.tiles)),
        )
        key, fanout = self._idle(shape)
        try:
            return fanout.begin(table, repeated, offsets, k)
        except BaseException:
            # Copies and kernels may be running, and nobody will wait for them.
            del self._kept[key]
            self._residency.lifetimes.launched()
            self._residency.lifetimes.retire(fanout.tensors)
            raise

    def drop_idle(self) -> bool:
        """Let go those whose answers were read. False if there are none."""
        idle = [key for key, fanout in list(self._kept.items()) if not fanout.busy]
        for key in idle:
            del self._kept[key]
        return bool(idle)

    def _idle(self, shape: Shape) -> tuple[tuple[Shape, int], Fanout]:
        """Buffers of this shape in which no other call's answer lies."""
        for turn in itertools.count():
            fanout = self._kept.get((shape, turn))
            if fanout is None or not fanout.busy:
                break
        if fanout is None:
            fanout = Fanout(shape, self._residency, self._verbs, self._stream)
        self._kept[shape, turn] = fanout
        self._kept.move_to_end((shape, turn))
        for key in list(self._kept):
            if len(self._kept) <= MAX_GRAPHS:
                break
            if not self._kept[key].busy and self._kept[key] is not fanout:
                del self._kept[key]
        return (shape, turn), fanout
