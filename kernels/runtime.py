"""Streams, events, copies, graphs and memory of a device: the little that the drivers ask of one.

The drivers know no CUDA. They run over `CudaRuntime`, over `Runtime` where kernels run on the CPU, and in the tests
over one whose streams run late and whose allocator hands a freed block out at once.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ..engine.errors import DeviceMemoryError

MAX_STAGED = 1 << 20
"""Larger uploads do not go through pinned memory: torch keeps that for good, and it cannot be paged out."""

FREE_KNOWN = 1.0
"""Seconds for which the free bytes are taken as known. To ask sorts torch's 120 counters twice, .2 ms of Python."""

_capturing = threading.Lock()
_call = threading.local()

T = TypeVar("T")


class KernelNotLoaded(Exception):
    """A launch needs a kernel that is not compiled yet; `load` compiles it."""

    def __init__(self, name: str, load: Callable[[], object]) -> None:
        super().__init__(f"kernel {name} is not compiled yet")
        self.load = load


def with_kernels(answer: Callable[[], T]) -> T:
    """What `answer` returns.

    Where a launch needs a kernel that is not compiled, `answer` is left by `KernelNotLoaded`, and so lets go of its
    locks. Then the kernel is compiled, and `answer` is called again.
    """
    before, _call.defers = compiles_later(), True
    try:
        return answer()
    except KernelNotLoaded as missing:
        missing.load()
    finally:
        _call.defers = before
    return with_kernels(answer)


def compiles_later() -> bool:
    """Whether a launch of a kernel that is not there is to raise `KernelNotLoaded`."""
    return getattr(_call, "defers", False)


class Event(Protocol):
    """A point in a stream's work."""

    def done(self) -> bool:
        """Whether the work before it is done. Never waits."""

    def wait(self) -> None:
        """Wait until it is, on the host."""


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Give the work to the current stream."""


class _Done:
    """An event of a device that does everything at once."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class Runtime:
    """One device: the CPU here, where kernels have run when their launch returns; others override what differs.

    What is given to a stream runs in its order; streams are tied to each other by events alone. The memory of a tensor
    that dies goes to what is allocated next on the *same* stream. Work of other streams that may still read it is the
    caller's to wait for (`lifetime.py`). Where memory is short, all raise `torch.OutOfMemoryError`.
    """

    captures = False
    """Whether it has graphs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def active(self) -> contextlib.AbstractContextManager[object]:
        """Make the device the thread's own."""
        return contextlib.nullcontext()

    def new_stream(self) -> Any:
        return None

    def on(self, stream: Any) -> contextlib.AbstractContextManager[object]:
        """Make the stream the thread's current one."""
        return contextlib.nullcontext()

    def current(self) -> int:
        """A number of the current stream, as long as that lives."""
        return 0

    def capturing(self) -> bool:
        """Whether the current stream's work is being captured. Then no event may be asked or waited for."""
        return False

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised [count], of the current stream."""
        return torch.empty(count, dtype=dtype, device=self.device)

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised [count] on the host. Once it dies, it is not used again before its queued copies ran."""
        return torch.empty(count, dtype=dtype)

    def upload(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """A copy of a host array, of the current stream; the array may change as soon as this returns."""
        return torch.from_numpy(np.array(array, order="C"))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy on the current stream: from or to pinned memory, or on the device. Converts the type."""
        target.copy_(source)

    def record(self) -> Event:
        """An event after all work that the current stream was given."""
        return _Done()

    def wait_for(self, event: Event) -> None:
        """Have the current stream wait for the event. The host does not."""

    def call(self, function: Callable[..., None], *given: Any) -> None:
        """Run torch operations on the current stream. `given` are the tensors, or dataclasses of tensors, it works on.

        The function allocates nothing that outlives it.
        """
        function(*given)

    def capture(self, stream: Any, work: Callable[[], None]) -> Graph:
        """The graph of `work`, captured on `stream`, not run. Raises `RuntimeError` where it cannot be captured."""
        raise RuntimeError(f"{self.device} has no graphs")

    def free_bytes(self, *, now: bool = False) -> int | None:
        """Bytes that may be allocated; None where nobody can tell.

        Those that were free at most `FREE_KNOWN` seconds ago, less what was allocated here since; what was let go since
        is not among them. With `now`, those that are free.
        """
        return None


def runtime_of(device: torch.device) -> Runtime:
    """The runtime of a device."""
    return CudaRuntime(device) if device.type == "cuda" else Runtime(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of ours, torch, CuPy or the driver says that memory ran out, on the device or of pinned pages.

    `torch.OutOfMemoryError` comes from torch's device allocator alone. Pinned memory, modules and launches raise other
    classes of `RuntimeError` that say so in words.
    """
    if isinstance(error, DeviceMemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "out of memory" in str(error).lower().replace("_", " ")


class _CudaEvent:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()


class CudaRuntime(Runtime):
    """A CUDA device, through torch. Nothing here waits for the whole device or empties a cache of torch's.

    torch's caches and its other streams may be another library's of the same process, a language model's for instance.
    """

    captures = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._free_bytes, self._free_asked_at = 0, -math.inf

    def active(self) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.device(self.device)

    def new_stream(self) -> Any:
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def on(self, stream: Any) -> contextlib.AbstractContextManager[object]:
        made_current: contextlib.AbstractContextManager[object] = torch.cuda.stream(stream)
        return made_current

    def current(self) -> int:
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def capturing(self) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        self._free_bytes -= count * dtype.itemsize
        return torch.empty(count, dtype=dtype, device=self.device)

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        try:
            return torch.empty(count, dtype=dtype, pin_memory=True)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise torch.OutOfMemoryError(f"no {count * dtype.itemsize:,} bytes of pinned memory: {error}") from error

    def upload(self, array: npt.NDArray[Any]) -> torch.Tensor:
        contiguous = np.ascontiguousarray(array)
        # Memory-mapped arrays are read-only, which torch warns of.
        if not contiguous.flags.writeable:
            contiguous = contiguous.copy()
        host = torch.from_numpy(contiguous)
        self._free_bytes -= host.nbytes
        if array.nbytes > MAX_STAGED:
            # Of pageable memory the driver has taken a copy when this returns. First it waits for this stream.
            return host.to(self.device, non_blocking=True)
        staged = self.pinned(host.numel(), host.dtype)
        staged.copy_(host.view(-1))
        return staged.to(self.device, non_blocking=True).view(host.shape)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def record(self) -> Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return _CudaEvent(event)

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent)
        torch.cuda.current_stream(self.device).wait_event(event.event)

    def capture(self, stream: Any, work: Callable[[], None]) -> Graph:
        """As `Runtime.capture`.

        Not with `torch.cuda.graph`: that waits for the device, empties the process's allocator caches, and captures on
        one stream for the whole process, which may be another device's. Then launches on this device run at once,
        the graph stays empty, and each replay returns what the last call left.
        """
        graph = torch.cuda.CUDAGraph()
        # torch captures one graph at a time. Other threads may use the device meanwhile.
        with _capturing, torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                if not self.capturing():
                    raise RuntimeError(f"the work is given to another stream than the one that {self.device} captures")
                work()
            except BaseException:
                # What ended the capture matters, not that it cannot be ended properly.
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def free_bytes(self, *, now: bool = False) -> int | None:
        if now or time.monotonic() - self._free_asked_at >= FREE_KNOWN:
            cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            self._free_bytes = int(torch.cuda.mem_get_info(self.device)[0] + cached)
            self._free_asked_at = time.monotonic()
        return self._free_bytes
