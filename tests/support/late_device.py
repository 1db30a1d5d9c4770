"""A device that runs late: a model of streams, events, graphs and torch's allocator, for the drivers to run over.

What is given to a stream is queued, and runs only when somebody waits, in an order of the streams that a seed draws. A
queued operation holds addresses, not tensors, as a launched kernel does. A block whose tensor dies goes to the pool of
the stream that allocated it, is handed out at once, and what lay there is overwritten in that stream's order, which is
when the next owner could write. So a driver that forgets to wait, frees too early or writes over what is still read
gives a wrong answer under some seed, and the same drivers with the right events never do.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import random
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fanrank.kernels.work import SEGMENT_FIELDS, Tables, Verbs, Work

# Allocations are rounded up to this, as torch's are, so that blocks of nearly one size are taken again.
GRAIN = 512
POISON = 0xA5


class Deadlock(AssertionError):
    """Streams that wait for each other."""


class LateEvent:
    """A point in a stream's queue."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.reached = False

    def done(self) -> bool:
        self.device.counts["events asked"] += 1
        self.device.forbid_in_capture("an event is asked")
        with self.device.lock:
            # Now and then the device gets on while the host does not look.
            if self.device.random.random() < self.device.pace:
                self.device.step()
            return self.reached

    def wait(self) -> None:
        self.device.counts["host waits"] += 1
        self.device.forbid_in_capture("an event is waited for")
        with self.device.lock:
            while not self.reached and not self.device.stopped:
                if not self.device.step():
                    raise Deadlock("an event is waited for that nothing will reach")


class LateStream:
    """A queue of operations. An operation is what to run, or an event to record or to wait for."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue: deque[Callable[[], None] | tuple[str, LateEvent]] = deque()
        self.pool: list[npt.NDArray[np.uint8]] = []
        self.graph: LateGraph | None = None


class LateGraph:
    """Recorded operations. They name the memory that they named when they were captured."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.operations: list[tuple[str, Callable[[], None]]] = []
        self.pool: list[npt.NDArray[np.uint8]] = []

    @property
    def nodes(self) -> list[str]:
        """What each node is."""
        return [name for name, _ in self.operations]

    def replay(self) -> None:
        self.device.counts["replays"] += 1
        with self.device.lock:
            for _, operation in self.operations:
                self.device.stream.queue.append(operation)


class LateDevice:
    """A `Runtime` whose work runs late. Any thread may use it.

    `pace` is the chance that an operation runs while an event is only asked for. `counts` says what was asked of it.
    """

    captures = True

    def __init__(self, seed: int = 0, pace: float = 0.3) -> None:
        self.device = torch.device("cpu")
        self.random = random.Random(seed)
        self.pace = pace
        self.lock = threading.RLock()
        self.counts: Counter[str] = Counter()
        self.fails: Callable[[str], None] = lambda what: None
        """Called with what is asked for: "empty", "pinned" or "capture". A test has it raise."""
        self.live = self.pinned_live = self.peak = 0
        """Bytes of the tensors that live, on the device and in pinned memory, and the most there were."""
        self.graphs: list[LateGraph] = []
        self.stopped = False
        self._streams = [LateStream(0)]
        self._current = threading.local()
        self._blocks: dict[int, int] = {}

    @property
    def stream(self) -> LateStream:
        """The thread's current one."""
        return getattr(self._current, "stream", self._streams[0])

    def active(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def new_stream(self) -> LateStream:
        with self.lock:
            self._streams.append(LateStream(len(self._streams)))
            return self._streams[-1]

    @contextlib.contextmanager
    def on(self, stream: LateStream) -> Iterator[None]:
        before, self._current.stream = self.stream, stream
        try:
            yield
        finally:
            self._current.stream = before

    def current(self) -> int:
        return self.stream.number

    def capturing(self) -> bool:
        return self.stream.graph is not None

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        self.counts["device allocations"] += 1
        self.fails("empty")
        size = -(-max(1, count * dtype.itemsize) // GRAIN) * GRAIN
        with self.lock:
            stream = self.stream
            pool = stream.pool if stream.graph is None else stream.graph.pool
            fitting = [number for number, block in enumerate(pool) if size <= len(block) <= 2 * size]
            if fitting:
                block = pool.pop(min(fitting, key=lambda number: len(pool[number])))
            else:
                block = np.full(size, POISON, dtype=np.uint8)
                self._blocks[block.ctypes.data] = len(block)
            window = np.frombuffer(block, dtype=np.uint8)
            used = count * dtype.itemsize
            self.live += used
            self.peak = max(self.peak, self.live)
            weakref.finalize(window, self._free, block, stream, pool, used).atexit = False
        return torch.from_numpy(window)[:used].view(dtype)

    def _free(
        self, block: npt.NDArray[np.uint8], stream: LateStream, pool: list[npt.NDArray[np.uint8]], used: int
    ) -> None:
        with self.lock:
            self.live -= used
            pool.append(block)
            if pool is stream.pool:
                stream.queue.append(lambda: block.fill(POISON))

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        self.counts["pinned allocations"] += 1
        self.fails("pinned")
        block = np.zeros(count * dtype.itemsize, dtype=np.uint8)
        with self.lock:
            self.pinned_live += len(block)
        weakref.finalize(block, self._unpin, len(block)).atexit = False
        return torch.from_numpy(block).view(dtype)

    def _unpin(self, used: int) -> None:
        with self.lock:
            self.pinned_live -= used

    def upload(self, array: npt.NDArray[Any]) -> torch.Tensor:
        source = torch.from_numpy(np.array(array, order="C"))
        self.counts["uploads"] += 1
        self.counts["bytes up"] += source.nbytes
        target = self.empty(source.numel(), source.dtype)
        self._queue("upload", _copied, self.address(target), source.view(-1))
        return target.view(source.shape)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        up, down = not self.owns(source), not self.owns(target)
        self.counts["copies"] += 1
        self.counts["bytes up" if up else "bytes down" if down else "bytes moved"] += source.nbytes
        self._queue("copy", _copied, self.address(target), self.address(source))

    def record(self) -> LateEvent:
        self.counts["events recorded"] += 1
        self.forbid_in_capture("an event is recorded")
        event = LateEvent(self)
        with self.lock:
            self.stream.queue.append(("record", event))
        return event

    def wait_for(self, event: LateEvent) -> None:
        self.counts["stream waits"] += 1
        self.forbid_in_capture("a stream waits")
        with self.lock:
            self.stream.queue.append(("wait", event))

    def call(self, function: Callable[..., None], *given: Any) -> None:
        self.launch(function.__name__, function, *given)

    def launch(self, name: str, function: Callable[..., None], *given: Any) -> None:
        """Queue a function over tensors, or over dataclasses of tensors, whose addresses alone are kept."""
        self.counts["launches"] += 1
        self._queue(name, function, *(self.address(each) for each in given))

    def capture(self, stream: LateStream, work: Callable[[], None]) -> LateGraph:
        self.counts["captures"] += 1
        self.fails("capture")
        graph = LateGraph(self)
        with self.on(stream):
            stream.graph = graph
            try:
                work()
            finally:
                stream.graph = None
        self.graphs.append(graph)
        return graph

    def free_bytes(self, *, now: bool = False) -> int | None:
        return None

    def forbid_in_capture(self, what: str) -> None:
        assert self.stream.graph is None, f"{what} while the stream is captured"

    def synchronize(self) -> None:
        """Run all that was given to the device. For tests; the drivers cannot ask for it."""
        with self.lock:
            while self.step():
                pass
            assert not any(stream.queue for stream in self._streams), "streams wait for each other"

    def stop(self) -> None:
        """Forget what was given to the device, after a fault of it. Nothing waits any more."""
        with self.lock:
            self.stopped = True
            for stream in self._streams:
                stream.queue.clear()

    def step(self) -> bool:
        """Run one operation of a stream that may go on. False if none may."""
        ready = [stream for stream in self._streams if stream.queue and _may_run(stream.queue[0])]
        if not ready:
            return False
        operation = self.random.choice(ready).queue.popleft()
        if callable(operation):
            operation()
        elif operation[0] == "record":
            operation[1].reached = True
        return True

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in memory of the device."""
        return self.holds(tensor.data_ptr(), tensor.nbytes)

    def holds(self, address: int, size: int) -> bool:
        """Whether so many bytes lie in one block, which may be free."""
        with self.lock:
            return any(start <= address and address + size <= start + own for start, own in self._blocks.items())

    def address(self, given: Any) -> Any:
        """The same tensors by their addresses, which keep no memory alive."""
        if isinstance(given, torch.Tensor):
            if not given.numel() or not self.owns(given):
                return given
            assert given.is_contiguous()
            raw = (ctypes.c_uint8 * given.nbytes).from_address(given.data_ptr())
            return torch.from_numpy(np.frombuffer(raw, dtype=np.uint8)).view(given.dtype).view(given.shape)
        if dataclasses.is_dataclass(given) and not isinstance(given, type):
            changed = {each.name: self.address(getattr(given, each.name)) for each in dataclasses.fields(given)}
            return dataclasses.replace(given, **changed)
        return given

    def _queue(self, name: str, function: Callable[..., None], *given: Any) -> None:
        def operation() -> None:
            function(*given)

        with self.lock:
            if self.stream.graph is not None:
                self.stream.graph.operations.append((name, operation))
            else:
                self.stream.queue.append(operation)


def _may_run(operation: Callable[[], None] | tuple[str, LateEvent]) -> bool:
    return callable(operation) or operation[0] == "record" or operation[1].reached


def _copied(target: torch.Tensor, source: torch.Tensor) -> None:
    target.view(-1).copy_(source.view(-1))


ADDRESSES = SEGMENT_FIELDS.index("term_count")
"""So many first columns of a row of segments are addresses."""


class LateVerbs:
    """A family's verbs, given to the late device's current stream. What they read of segments must be its memory."""

    def __init__(self, verbs: Verbs, device: LateDevice) -> None:
        self._verbs, self._device = verbs, device
        self.name, self.posting_bytes = f"late {verbs.name}", verbs.posting_bytes
        self.tile_bits, self.scratch_bytes = verbs.tile_bits, verbs.scratch_bytes

    def __getattr__(self, name: str) -> Callable[..., None]:
        verb = getattr(self._verbs, name)

        def checked(*given: Any) -> None:
            for each in given:
                self._check(each)
            verb(*given)

        return lambda *given: self._device.launch(name, checked, *given)

    def _check(self, given: Any) -> None:
        """The addresses in rows of segments; a caller's own tensors may lie anywhere."""
        if isinstance(given, Work | Tables):
            rows = given.segments if isinstance(given, Work) else given.segment
            for address in rows[:, :ADDRESSES].flatten().tolist():
                assert not address or self._device.holds(address, 1), "what is read is not the device's memory"
