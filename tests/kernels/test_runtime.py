"""The CUDA runtime over a stand-in for torch, and what no file of the kernels may call.

What a search reads was written on another stream. `Residency` hands it out once the current stream waits for that, and
a torch operation that is not given to `Runtime.call` could run on any stream, or before the wait.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import numpy as np  # noqa: E402

import fanrank  # noqa: E402
from fanrank import kernels  # noqa: E402
from fanrank.engine.errors import DeviceMemoryError  # noqa: E402
from fanrank.engine.vectors.vectors import Vectors  # noqa: E402
from fanrank.kernels import runtime  # noqa: E402
from fanrank.kernels.dense import TorchDense  # noqa: E402
from fanrank.kernels.lifetime import Account  # noqa: E402
from fanrank.kernels.resident import Contributions  # noqa: E402
from fanrank.kernels.runtime import CudaRuntime, Runtime, is_out_of_memory, runtime_of  # noqa: E402

KERNELS = Path(fanrank.__file__).parent / "kernels"
# What changes the allocator of the process, or waits for work of others.
FORBIDDEN = {"empty_cache", "_host_emptyCache", "set_per_process_memory_fraction", "_set_allocator_settings"}
FORBIDDEN |= {"synchronize", "reset_peak_memory_stats", "graph", "make_graphed_callables", "set_stream", "set_device"}


def test_nothing_waits_for_the_device_or_changes_the_allocator() -> None:
    """`Event.synchronize` is a wait for one event, and allowed."""
    found = []
    for path in sorted(KERNELS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in FORBIDDEN:
                owner = ast.unparse(node.value)
                if owner in ("torch.cuda", "cuda", "torch.cuda.memory", "torch._C"):
                    found.append(f"{path.name}:{node.lineno} {owner}.{node.attr}")
    assert not found


class Stream:
    def __init__(self, device: Any, number: int) -> None:
        self.device, self.cuda_stream = device, number
        self.waited: list[Event] = []

    def wait_event(self, event: Event) -> None:
        self.waited.append(event)


class Event:
    def __init__(self) -> None:
        self.recorded: Stream | None = None
        self.waits = 0

    def record(self, stream: Stream) -> None:
        self.recorded = stream

    def query(self) -> bool:
        return self.waits > 0

    def synchronize(self) -> None:
        self.waits += 1


class Cuda:
    """torch.cuda, with one stream captured at a time, on whichever stream is current when a capture begins."""

    def __init__(self) -> None:
        self.made: list[Stream] = []
        self.now: Stream = Stream(None, 0)
        self.captured: Stream | None = None
        self.log: list[str] = []
        self.error_at_end = False

    def Stream(self, device: Any) -> Stream:
        self.made.append(Stream(device, len(self.made) + 1))
        return self.made[-1]

    def Event(self) -> Event:
        return Event()

    def CUDAGraph(self) -> Cuda:
        return self

    def capture_begin(self, capture_error_mode: str) -> None:
        self.captured = self.now
        self.log.append(f"begin {self.now.cuda_stream} {capture_error_mode}")

    def capture_end(self) -> None:
        self.log.append("end")
        self.captured = None
        if self.error_at_end:
            raise RuntimeError("the capture was invalidated")

    def is_current_stream_capturing(self) -> bool:
        return self.captured is not None and self.now is self.captured

    def current_stream(self, device: Any = None) -> Stream:
        return self.now

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.now = self.now, stream
        try:
            yield
        finally:
            self.now = before

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"torch.cuda.{name} is used")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    stand_in = Cuda()
    monkeypatch.setattr(runtime.torch, "cuda", stand_in)
    return stand_in


def test_a_capture_is_on_the_given_stream_and_ends(cuda: Cuda) -> None:
    second = CudaRuntime(torch.device("cuda", 1))
    stream = second.new_stream()
    assert stream.device == torch.device("cuda", 1)
    seen: list[bool] = []
    graph = second.capture(stream, lambda: seen.append(second.capturing() and cuda.now is stream))
    assert graph is cuda  # type: ignore[comparison-overlap]
    assert seen == [True]
    assert cuda.log == [f"begin {stream.cuda_stream} thread_local", "end"]
    assert cuda.now is not stream
    assert not second.capturing()


def test_a_capture_that_fails_is_ended_and_raises_what_failed(cuda: Cuda) -> None:
    device, stream = CudaRuntime(torch.device("cuda", 0)), None
    stream = device.new_stream()

    def fail() -> None:
        raise RuntimeError("not permitted")

    cuda.error_at_end = True
    with pytest.raises(RuntimeError, match="not permitted"):
        device.capture(stream, fail)
    assert cuda.log[-1] == "end"
    # The lock of captures is free again.
    cuda.error_at_end = False
    device.capture(stream, lambda: None)


def test_a_capture_of_another_stream_is_refused(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    device = CudaRuntime(torch.device("cuda", 0))
    other = device.new_stream()
    monkeypatch.setattr(cuda, "capture_begin", lambda capture_error_mode: setattr(cuda, "captured", other))
    ran: list[int] = []
    with pytest.raises(RuntimeError, match="the work is given to another stream than the one that cuda:0 captures"):
        device.capture(device.new_stream(), lambda: ran.append(1))
    assert not ran


def test_events_are_of_the_devices_current_stream(cuda: Cuda) -> None:
    device = CudaRuntime(torch.device("cuda", 0))
    stream = device.new_stream()
    with device.on(stream):
        event = device.record()
        assert device.current() == stream.cuda_stream
    assert event.event.recorded is stream  # type: ignore[attr-defined]
    device.wait_for(event)
    assert cuda.now.waited == [event.event]  # type: ignore[attr-defined]
    assert not event.done()
    event.wait()
    assert event.done()


def test_free_bytes_are_asked_for_once_a_second(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = [100.0], [0]

    def info(_: Any) -> tuple[int, int]:
        asked[0] += 1
        return 7 * asked[0], 1000

    cuda.memory_reserved, cuda.memory_allocated, cuda.mem_get_info = lambda _: 5, lambda _: 2, info  # type: ignore[attr-defined]
    monkeypatch.setattr(runtime.time, "monotonic", lambda: clock[0])
    device = CudaRuntime(torch.device("cuda", 0))
    assert [device.free_bytes() for _ in range(3)] == [10, 10, 10]
    assert device.free_bytes(now=True) == 17
    clock[0] += runtime.FREE_KNOWN
    assert [device.free_bytes() for _ in range(2)] == [24, 24]
    assert asked == [3]


def test_what_is_allocated_is_no_longer_free(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.memory_reserved, cuda.memory_allocated, cuda.mem_get_info = lambda _: 0, lambda _: 0, lambda _: (100, 100)  # type: ignore[attr-defined]
    monkeypatch.setattr(runtime.time, "monotonic", lambda: 7.0)
    empty = torch.empty
    monkeypatch.setattr(runtime.torch, "empty", lambda count, **how: empty(count, dtype=how["dtype"]))
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *given, **how: self)
    device = CudaRuntime(torch.device("cuda", 0))
    assert device.free_bytes() == 100
    device.empty(5, torch.int64)
    device.upload(np.zeros((3, 5), dtype=np.int32))
    assert (device.free_bytes(), device.free_bytes(now=True)) == (0, 100)


def test_copies_are_of_pinned_memory_and_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of other memory wait for the device, and a copy that waits ends a capture."""
    asked: list[dict[str, Any]] = []
    empty = torch.empty

    def noted(*given: Any, **how: Any) -> torch.Tensor:
        asked.append(how)
        return empty(*given, dtype=how["dtype"])

    monkeypatch.setattr(runtime.torch, "empty", noted)
    moved: list[dict[str, Any]] = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *given, **how: moved.append(how) or self)
    device = CudaRuntime(torch.device("cuda", 0))
    assert device.upload(np.arange(6).reshape(2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    device.pinned(4, torch.int32)
    assert [how["pin_memory"] for how in asked] == [True, True]
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, source, **how: moved.append(how))
    device.copy(torch.ones(1), torch.zeros(1))
    assert moved == [{"non_blocking": True}] * 2


class AcceleratorError(RuntimeError):
    pass


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (AcceleratorError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), True),
        (RuntimeError("cudaErrorMemoryAllocation: out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_that_say_that_memory_ran_out(error: Exception, short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_out_of_memory(error) == short

    def empty(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(runtime.torch, "empty", empty)
    with pytest.raises(torch.OutOfMemoryError if short else type(error)):
        CudaRuntime(torch.device("cuda", 0)).pinned(3, torch.int64)


def test_one_account_for_segments_and_vectors() -> None:
    account = Account(1_000)
    taken, spare = [600], [300]
    account.add(lambda: taken[0] + spare[0], lambda: bool(spare[0]) and spare.__setitem__(0, 0) is None)
    vectors = [Vectors(np.ones((count, 16), dtype=np.float16), np.arange(count + 1)) for count in (6, 5)]
    dense = TorchDense(torch.device("cpu"), account=account)
    dense._resident(vectors[0], "exact")
    # 192 bytes are needed where 100 are free, until what can be spared is let go.
    assert (dense.bytes, spare) == (192, [0])
    assert account.taken == 792
    taken[0] = 700
    with pytest.raises(DeviceMemoryError, match="160 bytes are needed on cpu, where 108 are free and 892 are held"):
        dense._resident(vectors[1], "exact")


def test_the_host_does_everything_at_once() -> None:
    host = runtime_of(torch.device("cpu"))
    assert isinstance(host, Runtime)
    array = np.arange(5)
    moved = host.upload(array)
    array[:] = 7
    assert moved.tolist() == [0, 1, 2, 3, 4]
    target = host.empty(5, torch.int32)
    with host.active(), host.on(host.new_stream()):
        host.copy(target, moved)
    event = host.record()
    host.wait_for(event)
    assert event.done()
    assert target.tolist() == [0, 1, 2, 3, 4]
    assert not host.capturing()
    with pytest.raises(RuntimeError, match="cpu has no graphs"):
        host.capture(None, lambda: None)


FOLDER = Path(kernels.__file__).parent
# The runtime is the door; dense search writes and reads on one stream of its own; the reduction is given to that.
APART = {"runtime.py", "dense.py", "families.py", "timing.py"}
RESIDENT = {field.name for field in fields(Contributions)} | {"on_device"}
# Types, and what makes a tensor or a view of one without a look at elements.
PLAIN = {"device", "empty", "iinfo", "split"}
READS = {"cpu", "item", "to", "gather", "clamp", "clone", "argsort", "repeat_interleave", "masked_fill"}


def operations(text: str) -> Iterator[str]:
    """The torch operations of a module that stand outside the functions that `Runtime.call` is given."""
    tree = ast.parse(text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    given = {
        node.args[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "call"
        and isinstance(node.args[0], ast.Name)
    }
    while True:
        called = {node.id for name in given & set(functions) for node in ast.walk(functions[name]) if _is_name(node)}
        if called & set(functions) <= given:
            break
        given |= called & set(functions)
    inside = {id(node) for name in given & set(functions) for node in ast.walk(functions[name])}
    for node in ast.walk(tree):
        if id(node) not in inside and _is_operation(node):
            yield f"{node.lineno}: {ast.unparse(node)}"  # type: ignore[attr-defined]


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _is_operation(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr in RESIDENT
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner, name = node.func.value, node.func.attr
    if isinstance(owner, ast.Name) and owner.id == "torch":
        return name not in PLAIN and not name.endswith("Error")
    in_place = name.endswith("_") and not name.startswith("_")
    return in_place or (name in READS and not (isinstance(owner, ast.Name) and owner.id == "np"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_torch_operations_of_the_drivers_are_given_to_the_runtime(path: Path) -> None:
    if path.name not in APART:
        # What sort.py has is given to the runtime by launch.py.
        text = path.read_text() + ((FOLDER / "launch.py").read_text() if path.stem == "sort" else "")
        assert not list(operations(text))


@pytest.mark.parametrize(
    "line",
    [
        "resident.words[where]",
        "sums.index_add_(0, places, values)",
        "torch.where(hits, keys, 0)",
        "keys.gather(1, order).cpu()",
    ],
)
def test_an_operation_outside_the_runtime_is_found(line: str) -> None:
    assert list(operations(f"def answer(runtime):\n    {line}\n"))
    assert not list(operations(f"def read():\n    {line}\ndef answer(runtime):\n    runtime.call(read)\n"))
