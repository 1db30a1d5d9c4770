"""What the drivers ask of a device, counted without one. ``python -m bench.gpu.counted``.

========  ============================================================================================================
fan-out   20 queries over 1, 4 and 16 segments: first use, capture, replay, and the first use after a write
compile   milliseconds of CPU to compile each kernel of a first fan-out, and to start; a row a family, in `counts`
========  ============================================================================================================

The drivers run over a device that counts: what they give to it, what it copies, and what the host waits for. Their
kernels are CUDA's on the host build. The counts of the drivers do not depend on what the kernels find.
"""

import contextlib
import ctypes
import importlib.util
import resource
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy.typing as npt
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fanrank.engine.index.snapshot import Snapshot
from fanrank.kernels import cuda
from fanrank.kernels.cuda.launcher import OPTIONS, DeviceLimits, source_of
from fanrank.kernels.cuda.verbs import CudaVerbs
from fanrank.kernels.cuda_host import HostLauncher, build
from fanrank.kernels.device import Residency
from fanrank.kernels.runtime import Event, Graph, Runtime
from fanrank.kernels.search import EVERY_RECORD, DeviceSearch
from fanrank.kernels.work import Buffers, KernelAnswer, Verbs, Work

from ..harness.command import Command, among
from . import corpora as gpu_corpora
from .corpora import Problem

PARTS = ("fan-out", "compile")
SEGMENTS = (1, 4, 16)
FAN_OUT, FAN_OUT_K = 20, 10
FAN_OUT_DOCUMENTS = 300
"""Of a segment."""


Row = dict[str, Any]
"""`counts` is by name; `nodes` are those of the graph that the call replayed, if it did. `verbs` is the
family whose kernels ran."""


class _Operations(TorchDispatchMode):
    """Notes the torch operations that would be kernels or copies on a device: all but views and allocations."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and not name.startswith(("empty", "_local_scalar", "detach", "alias")):
            self._note(f"torch {name}")
        return made


class _Event:
    """Done once the host waited for it, or for a later one."""

    def __init__(self, device: "CountingDevice", number: int) -> None:
        self._device, self._number = device, number

    def done(self) -> bool:
        return self._number <= self._device.finished

    def wait(self) -> None:
        self._device.counts["host waits"] += 1
        self._device.finished = max(self._device.finished, self._number)


class _Recorded:
    """A graph: what was given to the stream while it was captured."""

    def __init__(self, device: "CountingDevice") -> None:
        self._device = device
        self.given: list[Callable[[], None]] = []

    def replay(self) -> None:
        device = self._device
        device.counts["graph launches"] += 1
        device.counts["host launches"] += 1
        device.nodes, device.in_graph = [], True
        try:
            for work in self.given:
                work()
        finally:
            device.in_graph = False


class CountingDevice(Runtime):
    """A runtime that does everything at once and counts it. `nodes` are those of the graph replayed last."""

    captures = True

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.counts: Counter[str] = Counter()
        self.nodes: list[str] = []
        self.in_graph = False
        self.finished = self._recorded = 0
        self._graph: _Recorded | None = None
        self._pinned: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()

    def note(self, name: str, kind: str = "kernels") -> None:
        """A kernel, or another thing that the device does."""
        self.counts[kind] += 1
        if self.in_graph:
            self.nodes.append(name)
        else:
            self.counts["host launches"] += 1

    def give(self, work: Callable[[], None]) -> None:
        """Do it, or record it in the graph that is captured."""
        if self._graph is None:
            work()
        else:
            self._graph.given.append(work)

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        self.counts["allocations"] += 1
        return super().empty(count, dtype)

    def pinned(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        self.counts["pinned allocations"] += 1
        made = super().pinned(count, dtype)
        self._pinned[id(made)] = made
        return made

    def upload(self, array: npt.NDArray[Any]) -> torch.Tensor:
        self.counts["allocations"] += 1
        self.counts["bytes up"] += array.nbytes
        self.note("copy", "copies")
        return super().upload(array)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        way = (
            "bytes up" if id(source) in self._pinned else "bytes down" if id(target) in self._pinned else "bytes moved"
        )

        def work() -> None:
            self.counts[way] += source.nbytes
            self.note("copy", "copies")
            target.copy_(source)

        self.give(work)

    def record(self) -> Event:
        self.counts["events"] += 1
        self._recorded += 1
        return _Event(self, self._recorded)

    def wait_for(self, event: Event) -> None:
        self.counts["stream waits"] += 1

    def call(self, function: Callable[..., None], *given: Any) -> None:
        self.give(lambda: self.run(function, *given))

    def run(self, function: Callable[..., None], *given: Any) -> None:
        """Do it, and note its torch operations."""
        with _Operations(self.note):
            function(*given)

    def capturing(self) -> bool:
        return self._graph is not None

    def capture(self, stream: Any, work: Callable[[], None]) -> Graph:
        self.counts["captures"] += 1
        graph = self._graph = _Recorded(self)
        try:
            work()
        finally:
            self._graph = None
        return graph


def _clear(answer: KernelAnswer) -> None:
    answer.scores.zero_()
    answer.documents.fill_(-1)
    answer.counts.zero_()


class _Given:
    """Verbs whose work goes through the device's stream, so that a graph can hold it."""

    def __init__(self, verbs: Verbs, device: "CountingDevice") -> None:
        self._verbs, self._device = verbs, device
        self.name, self.posting_bytes, self.tile_bits = verbs.name, verbs.posting_bytes, verbs.tile_bits
        self.scratch_bytes = verbs.scratch_bytes

    def __getattr__(self, name: str) -> Callable[..., None]:
        verb = getattr(self._verbs, name)
        return lambda *given: self._device.call(verb, *given)


class _Noting:
    """A launcher that notes kernels by name. All else is the launcher's."""

    def __init__(self, launcher: HostLauncher, device: "CountingDevice") -> None:
        self._launcher, self._device = launcher, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)

    def launch(self, name: str, *given: Any) -> None:
        self._device.note(name)
        self._launcher.launch(name, *given)


class Counted:
    """A device search over a counting device, on the host build's kernels."""

    def __init__(self) -> None:
        self.device = CountingDevice()
        folder = Path(cuda.__file__).parent
        noting: Any = _Noting(HostLauncher(build(sorted(folder.glob("*.cu")), include=[folder])), self.device)
        given: Any = _Given(CudaVerbs(noting, name="cuda-host"), self.device)
        residency = Residency(self.device.device, runtime=self.device)
        self.search = DeviceSearch(given, self.device.device, residency=residency)

    def texts(self, problem: Problem, snapshot: Snapshot, count: int, k: int) -> Callable[[], object]:
        """A search of the first queries of a problem, given as texts."""
        offsets = problem.offsets[: count + 1]
        terms = problem.terms[: offsets[-1]]
        texts = [(str(number),) for number in range(count)]
        return lambda: self.search.search_texts(
            snapshot, EVERY_RECORD, (terms, offsets), texts, k, threads=1, execution="auto"
        )

    def count(self, ask: Callable[[], object]) -> dict[str, Any]:
        """`counts` and `nodes` of one call."""
        before = self.device.counts.copy()
        self.device.nodes = []
        ask()
        spent = self.device.counts - before
        return {"counts": dict(sorted(spent.items())), "nodes": list(self.device.nodes)}


def count_fan_outs() -> Iterator[Row]:
    """A fan-out from its first use on, and after a write."""
    for count in SEGMENTS:
        shape = replace(
            gpu_corpora.SMOKE["nq-shaped"],
            name=f"nq-shaped-{count}-segments",
            documents=(count + 1) * FAN_OUT_DOCUMENTS,
            segment_documents=FAN_OUT_DOCUMENTS,
            queries=FAN_OUT,
        )
        problem = gpu_corpora.load_shaped(shape)
        parts, bm25 = problem.snapshot.segments, problem.snapshot.bm25
        # A write that replaces the last segment, as one that is merged into it does.
        before, after = Snapshot(parts[:count], bm25), Snapshot((*parts[: count - 1], parts[count]), bm25)
        counted = Counted()
        for step, snapshot in (("first use", before), ("capture", before), ("replay", before), ("write", after)):
            yield {
                **{"part": "fan-out", "corpus": problem.name, "step": step, "queries": FAN_OUT, "k": FAN_OUT_K},
                **{"segments": count, "documents": snapshot.size, "verbs": counted.search.verbs.name},
                **counted.count(counted.texts(problem, snapshot, FAN_OUT, FAN_OUT_K)),
            }


def count_compilation() -> Iterator[Row]:
    """For sm_90, as a process does that finds none of the kernels, and runs none; a row of each family."""
    if importlib.util.find_spec("triton") is not None:
        yield _compilation(_triton())
    if nvrtc := sorted(find_nvrtc()):
        yield _compilation(_nvrtc(nvrtc[-1]))


Compiling = contextlib.AbstractContextManager[tuple[Verbs, str, dict[str, int]]]
"""Verbs that compile and run nothing, by what they do, and what that takes."""


def _compilation(compiling: Compiling) -> Row:
    problem = gpu_corpora.load_shaped(replace(gpu_corpora.SMOKE["nq-shaped"], queries=FAN_OUT))
    terms, texts = problem.terms[: problem.offsets[FAN_OUT]], [(str(number),) for number in range(FAN_OUT)]
    with compiling as (verbs, step, counts):
        select = verbs.select

        def nothing(work: Work, buffers: Buffers, answer: KernelAnswer) -> None:
            select(work, buffers, answer)
            _clear(answer)

        with mock.patch.object(verbs, "select", nothing):
            search = DeviceSearch(verbs, torch.device("cpu"), residency=Residency(torch.device("cpu")))
            given = (terms, problem.offsets[: FAN_OUT + 1])
            search.search_texts(problem.snapshot, EVERY_RECORD, given, texts, FAN_OUT_K, threads=1, execution="auto")
    segments = len(problem.snapshot.segments)
    return {
        **{"part": "compile", "corpus": problem.name, "step": step, "queries": FAN_OUT, "k": FAN_OUT_K},
        **{"segments": segments, "verbs": verbs.name, "counts": counts, "nodes": []},
    }


def _spent() -> float:
    """Milliseconds of CPU, with those of processes that ended."""
    return 1000 * sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


@contextlib.contextmanager
def _triton() -> Iterator[tuple[Verbs, str, dict[str, int]]]:
    """Triton's, into a new folder."""
    import triton

    from fanrank.kernels.triton import TritonVerbs
    from fanrank.kernels.triton.verbs import DEFAULT

    def nothing(place):  # type: ignore[no-untyped-def]
        pass

    def timed(source: Any, target: Any, options: dict[str, Any]) -> Any:
        before = _spent()
        compiler(source, target=target, options=options)
        counts["start" if source.name == "nothing" else source.name] = round(_spent() - before)
        return SimpleNamespace(launch_metadata=lambda *_: None, function=0, packed_metadata=0, run=lambda *_: None)

    counts: dict[str, int] = {}
    compiler, target = triton.compiler.compile, triton.backends.compiler.GPUTarget("cuda", 90, 32)
    zero = lambda *_: 0  # noqa: E731
    driver = SimpleNamespace(get_current_device=zero, get_current_stream=zero, get_current_target=lambda: target)
    verbs = TritonVerbs("cpu", DEFAULT)
    verbs._processors = 132
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(triton.knobs.cache, "dir", folder),
        mock.patch.object(triton.knobs.runtime, "interpret", False),
        mock.patch.object(triton.runtime.driver, "_active", driver),
        mock.patch.object(triton.compiler, "compile", timed),
    ):
        triton.jit(nothing)[(1,)](1)
        yield verbs, f"triton {triton.__version__}", counts


def find_nvrtc() -> Iterator[Path]:
    """Those of NVIDIA's wheels."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        yield from (path for path in Path(root).glob("*/lib/libnvrtc.so.*") if ".alt" not in path.name)


@contextlib.contextmanager
def _nvrtc(path: Path) -> Iterator[tuple[Verbs, str, dict[str, int]]]:
    """CUDA's, to machine code, with what CuPy adds to the options."""
    counts: dict[str, int] = {}
    # NVRTC 13.0 does not look for its own builtins beside itself.
    for builtins in path.parent.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(builtins))
    library, numbers = ctypes.CDLL(str(path)), (ctypes.c_int(), ctypes.c_int())
    library.nvrtcVersion(*map(ctypes.byref, numbers))
    options = [option.encode() for option in (*OPTIONS, "-ftz=true", "--gpu-architecture=sm_90")]

    def compile(name: str, text: str) -> None:
        before, program = _spent(), ctypes.c_void_p()
        library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
        status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        library.nvrtcDestroyProgram(ctypes.byref(program))
        assert status == 0, name
        counts[name] = round(_spent() - before)

    class Launcher:
        limits = DeviceLimits(132, 228 << 10, 227 << 10)

        def launch(self, name: str, *_: Any) -> None:
            if name not in counts:
                compile(name, source_of(name.partition("_")[0], name))

    compile("start", 'extern "C" __global__ void start() {}')
    yield CudaVerbs(Launcher()), f"nvrtc {numbers[0].value}.{numbers[1].value}", counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Count."""
    command = Command("gpu.counted", "What the drivers ask of a device, counted without one.", *["gpu_counted"] * 2)
    command.add("--parts", type=among(PARTS), default=PARTS)
    options = command.parse(arguments)
    if "fan-out" in options.parts:
        command.keep(count_fan_outs())
    if "compile" in options.parts:
        command.keep(count_compilation())
    return command.end()


if __name__ == "__main__":
    raise SystemExit(main())
