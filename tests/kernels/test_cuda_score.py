"""The score kernels of CUDA alone: turns, thresholds that lag, tiles of every size, halves that carry, errors by name.

The other verbs are those of `support.plain_verbs`. `test_cuda_kernels.py` runs the whole family.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fanrank.engine.errors import BackendUnavailableError, ParameterError  # noqa: E402
from fanrank.kernels.cuda.launcher import FOLDER, CupyLauncher, DeviceLimits  # noqa: E402
from fanrank.kernels.cuda.verbs import MAX_TURNS, CudaVerbs, tile_bytes  # noqa: E402
from fanrank.kernels.cuda_host.build import build as build_library  # noqa: E402
from fanrank.kernels.cuda_host.build import compiler  # noqa: E402
from fanrank.kernels.cuda_host.launcher import LIMITS, HostLauncher, KernelFault  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import support.kernel_cases as kc  # noqa: E402

# The package has a function of the module's name.
build_module = importlib.import_module("fanrank.kernels.cuda_host.build")

Edits = tuple[tuple[str, str, str], ...]

PLAIN = ("tabulate", "describe", "order", "select")
MANY = replace(LIMITS, multiprocessors=1 << 20)
"""Of a device that holds a block for every turn."""
ONE = DeviceLimits(1, 100 << 10, 99 << 10)
"""Of a device with one multiprocessor, so that a block takes many turns at a time."""

SMALL = (
    ("score_tile.cuh", "constexpr i32 MAX_REACHED = 2048;", "constexpr i32 MAX_REACHED = 6;"),
    ("score_tile.cuh", "constexpr i32 SLOTS = 128;", "constexpr i32 SLOTS = 32;"),
    ("score_tile.cuh", "constexpr i32 RUN = WARP * UNROLL;", "constexpr i32 RUN = WARP;"),
    ("score_tile.cuh", "constexpr i32 UNROLL = 4;", "constexpr i32 UNROLL = 1;"),
)
"""As in test_cuda_kernels.py: lists that overflow, slots in several chunks, every run crossed."""

TURNS = "    for (;;) {\n        if (threadIdx.x < WARP) {\n"
ONE_TURN = (("score.cu", TURNS, TURNS.replace("(;;)", "(i32 only = 0; only < 1; ++only)")),)
"""A block ends after a turn, so that each turn has a block of its own."""
REVERSED = (
    (
        "score.cu",
        "const u32 number = static_cast<u32>(first) + lane;",
        "const u32 number = total - 1 - (static_cast<u32>(first) + lane);",
    ),
)
"""The worst entries come first."""
READ = "    return *const_cast<const volatile i64*>(&a.thresholds[query]);\n"
LAGGING = (
    (
        "score_tile.cuh",
        READ,
        f"    static u32 reads = 0;\n    if (++reads % 3 != 0) {{\n        return LOWEST_I64;\n    }}\n{READ}",
    ),
)
"""Two reads of a threshold in three find what it was at first, as if others raised it in between."""


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    try:
        compiler()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


@functools.cache
def library(edits: Edits, flags: str) -> Path:
    assert flags
    return build_library([FOLDER / "score.cu"], edits=edits)


def family(
    order: str = "ascending", seed: int = 0, *, edits: Edits = (), limits: DeviceLimits = LIMITS, **options: Any
) -> CudaVerbs:
    own = library(edits, " ".join(build_module.FLAGS))
    return CudaVerbs(HostLauncher(own, order=order, seed=seed, limits=limits), name="cuda-host", **options)  # type: ignore[arg-type]


def every_case() -> Iterator[kc.Case]:
    return itertools.chain(kc.cases(), kc.border_cases())


@pytest.mark.parametrize("limits", [MANY, ONE], ids=["a block a turn", "one multiprocessor"])
@pytest.mark.parametrize(
    "edits",
    [
        pytest.param(REVERSED, id="last first", marks=pytest.mark.sweep),
        pytest.param(LAGGING, id="lag", marks=pytest.mark.sweep),
        pytest.param((*SMALL, *REVERSED, *LAGGING), id="all"),
    ],
)
def test_no_order_of_turns_shows(edits: Edits, limits: DeviceLimits) -> None:
    edits = (*edits, *(ONE_TURN if limits is MANY else ()))
    for case in every_case():
        kc.check_family(family("shuffle", 1, edits=edits, limits=limits), case, PLAIN)


def test_options_change_no_answer() -> None:
    for options in ({"sums": "global"}, {"raises_thresholds": False}, {"tile_bits": 5}):
        for case in kc.cases():
            kc.check_family(family(**options), case, PLAIN)


def taken(limits: DeviceLimits, edits: Edits = ()) -> tuple[int, int, kc.Case]:
    """(turns that a launch of 40 queries took, that there were, the case)."""
    case = kc.build(1, sizes=(900, 300), tile_bits=5, queries=40, ks=(3,), wide="none", restricted=0.0)
    own = kc.Standing(family(edits=edits, limits=limits), case, PLAIN)
    kc.tabulate(own, case)
    (work,) = case.launches()
    buffers, answer, _ = kc.fresh(work, "cpu")
    kc.launch(own, work, buffers, answer)
    kc.check_answer(case, work, answer)
    return int(buffers.progress[1]), int(buffers.progress[0]) * 40, case


def test_turns_are_taken_in_chunks() -> None:
    """Up to 32 at a time, an eighth of an even share; in the end each block takes one chunk too many."""
    for multiprocessors, blocks in ((1, 2), (3, 6), (1000, 1 << 20)):
        progress, turns, case = taken(replace(ONE, multiprocessors=multiprocessors))
        grid = min(40 * case.work.most_tiles, multiprocessors * 4, blocks * 2)
        chunk = max(1, min(32, turns // (grid * 8)))
        assert turns <= progress <= turns + (grid + 1) * chunk, (multiprocessors, progress, turns)
        assert multiprocessors > 1 or chunk == 32


@pytest.mark.parametrize("method", ["lucene", "robertson"])
@pytest.mark.parametrize("long_quanta", [False, True])
def test_sums_of_halves_carry(method: str, long_quanta: bool) -> None:
    """Weights that bring every sum beyond 2**32, and below -2**32 where contributions are negative."""
    options: dict[str, Any] = {"sizes": (90, 40), "tile_bits": 5, "wide": "all", "restricted": 0.0, "ks": (3, 200)}
    for seed in range(6):
        case = kc.build(seed, method=method, long_quanta=long_quanta, max_weight=1 << 30, terms=12, **options)
        scores = [abs(score) for own in case.matches for score in own.values()]
        assert max(scores) > 1 << 33
        kc.check_family(family("shuffle", seed, edits=SMALL), case, PLAIN)


@pytest.mark.parametrize(("bits", "wide"), [(14, "none"), (13, "all"), (13, "none")])
@pytest.mark.parametrize("decays", ["none", "some"])
def test_full_tiles(bits: int, wide: str, decays: str) -> None:
    """More documents reach the threshold than are listed, many of them with equal scores; k beyond the list as well."""
    options: dict[str, Any] = {
        "terms": 4,
        "queries": 4,
        "wide": wide,
        "decays": decays,
        "restricted": 0.0,
        "empty": 0.0,
    }
    sizes = ((1 << bits) + 3000,)
    for identical in (False, True):
        case = kc.build(bits, sizes=sizes, tile_bits=bits, ks=(7, 300, 2048, 2500), identical=identical, **options)
        kc.check_family(family("descending"), case, PLAIN)


SM_120 = DeviceLimits(188, 100 << 10, 99 << 10)
SM_80 = DeviceLimits(108, 164 << 10, 163 << 10)


def test_tiles_follow_the_device() -> None:
    for limits, narrow, wide in ((LIMITS, 14, 13), (SM_80, 14, 13), (SM_120, 13, 12), (replace(ONE), 13, 12)):
        own = family(limits=limits)
        assert (own.tile_bits(False), own.tile_bits(True)) == (narrow, wide)
        for bits, is_wide in ((narrow, False), (wide, True)):
            most = tile_bytes(bits, wide=is_wide, signed=True, decays=False)
            assert 2 * (9 * 1024 + most + 1024) <= limits.multiprocessor_bytes
    assert family(limits=SM_120, tile_bits=6).tile_bits(True) == 6
    # Twice the sums: wide tiles are what still fits.
    assert (family(limits=LIMITS, tile_bits=15).tile_bits(False), family(tile_bits=15).tile_bits(True)) == (15, 14)


def test_a_tile_that_does_not_fit_is_declined_before_its_launch() -> None:
    with pytest.raises(ParameterError, match=r"tile of 2\*\*15 .* has 99; ask for tile_bits of at most 14"):
        family(limits=SM_120, tile_bits=15)
    case = kc.build(0, wide="none", tile_bits=5)
    (work,) = case.launches()
    buffers, _, _ = kc.fresh(work, "cpu")
    for limits, bits, wide in ((SM_120, 15, False), (SM_120, 14, True), (LIMITS, 15, True)):
        with pytest.raises(ParameterError, match="shared memory"):
            family(limits=limits).score(replace(work, tile_bits=bits, wide=wide), buffers)
    with pytest.raises(ParameterError, match="fewer queries at a time"):
        family().score(replace(work, most_tiles=MAX_TURNS), buffers)
    family().score(replace(work, most_tiles=0), buffers)


MUTATIONS: dict[str, tuple[str, str, str]] = {
    "a carry dropped": ("score_tile.cuh", "(before + part < part ? 1u : 0u)", "0u"),
    "the high half dropped": ("score_tile.cuh", "static_cast<u32>(static_cast<u64>(value) >> 32)", "0u"),
    "an entry scored twice": ("score.cu", "u64(chunk));", "u64(larger(chunk - 1, 1u)));"),
    "a chunk's last turn lost": (
        "score.cu",
        "if (lane < static_cast<i32>(chunk) &&",
        "if (lane < static_cast<i32>(larger(chunk - 1, 1u)) &&",
    ),
    "an end at the first chunk without an entry": ("score.cu", "alive_lanes == 0 && first < total", "false"),
    "the last turn of all": ("score.cu", "first + lane < total)", "first + lane + 1 < total)"),
    "an entry of another query": (
        "score.cu",
        "a.entries[a.entry_offset[turn.query] + rank]",
        "a.entries[a.entry_offset[rank < a.entry_counts[0] ? 0 : turn.query] + rank]",
    ),
    "an entry at the threshold left out": (
        "score.cu",
        "turn.bound >= live_threshold(a, turn.query)",
        "turn.bound > live_threshold(a, turn.query)",
    ),
    "a tile at the threshold left out": (
        "score.cu",
        "shared.state.bound < shared.state.threshold",
        "shared.state.bound <= shared.state.threshold",
    ),
    "the threshold read by each thread": (
        "score.cu",
        "shared.state.bound < shared.state.threshold",
        "shared.state.bound < live_threshold(a, shared.state.query)",
    ),
    "a threshold above the k-th score": (
        "score_candidates.cuh",
        "atomicMax(&a.thresholds[shared.state.query], static_cast<i64>(kth))",
        "atomicMax(&a.thresholds[shared.state.query], static_cast<i64>(kth) + 1)",
    ),
    "slots beyond the first chunk": (
        "score_tile.cuh",
        "descriptors[static_cast<i64>(chunk + index) * tiles]",
        "descriptors[static_cast<i64>(index) * tiles]",
    ),
    "the idf of slots of the first chunk": (
        "score_tile.cuh",
        "a.idf[a.unit_slots[unit] + chunk + index]",
        "a.idf[a.unit_slots[unit] + index]",
    ),
    "a full list taken for all": ("score_candidates.cuh", "!DECAYS && shared.reached_count > MAX_REACHED", "false"),
    "no barrier before the list is let go": (
        "score_candidates.cuh",
        "                // Others may still look at the list's length.\n                __syncthreads();\n",
        "",
    ),
    "what shares the digits not listed": (
        "score_candidates.cuh",
        "static_cast<Score>(static_cast<Key>(lowest) + found.key)",
        "static_cast<Score>(static_cast<Key>(lowest) + found.key + (Key(1) << shift))",
    ),
    "ties beyond the last digit": (
        "score_candidates.cuh",
        "            if (largest.rank < largest.equal) {",
        "            if (false) {",
    ),
    "the restricted documents of a scanned tile": (
        "score_candidates.cuh",
        "passing &= tile.allowed()[first / 32] >> (first % 32);",
        "passing &= tile.allowed()[0] >> (first % 32);",
    ),
    "the document of another score": (
        "score_candidates.cuh",
        "score_of(tile.listed()[place], shared.reached[place])",
        "score_of(tile.listed()[place], shared.reached[0])",
    ),
    "scores below an eighth of the bound": ("score_candidates.cuh", "largest.equal == 0 && lowest > kth", "false"),
    "sums that later scores replaced": (
        "score_candidates.cuh",
        "        __syncthreads();\n#pragma unroll\n        for (i32 i = 0; i < PER_THREAD; ++i) {\n"
        "            const i32 place = thread + i * THREADS;\n            if (place < count) {\n"
        "                // A listed",
        "#pragma unroll\n        for (i32 i = 0; i < PER_THREAD; ++i) {\n"
        "            const i32 place = thread + i * THREADS;\n            if (place < count) {\n"
        "                // A listed",
    ),
}
"""What each of these breaks of the turns, the halves, the selection and the decayed scores of a tile."""


@pytest.mark.sweep
@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_of_score_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    # As in test_cuda_kernels.py.
    monkeypatch.setattr(build_module, "FLAGS", tuple("-O0" if flag == "-O2" else flag for flag in build_module.FLAGS))

    def failure(edits: Edits, order: str, limits: DeviceLimits, case: kc.Case) -> str:
        own = family(order, 1, edits=(mutation, *edits), limits=limits)
        try:
            kc.check_family(own, case, PLAIN)
            if not case.work.signed and not case.work.long_quanta:
                kc.check_family(own, kc.of_classes(case, 6), PLAIN)
        except (AssertionError, KernelFault) as error:
            return str(error).strip().splitlines()[0]
        return ""

    paths: list[tuple[Edits, str]] = [((), "ascending"), (SMALL, "ascending"), (LAGGING, "shuffle"), (SMALL, "shuffle")]
    found = (failure(*path, limits, case) for path in paths for limits in (LIMITS, ONE) for case in every_case())
    caught = next(filter(None, found), "")
    print(f"{name}: {caught}")
    assert caught


class DriverError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class FakeCupy(types.ModuleType):
    """As much of CuPy as `CupyLauncher` uses, without a device. `raises` is raised at `where`."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.where, self.raises = "", Exception()
        self.launched: list[tuple[Any, ...]] = []
        self.kernels: list[FakeKernel] = []
        errors = {name: type(name, (Exception,), {}) for name in ("OutOfMemoryError", "CompileException")}
        self.cuda = types.SimpleNamespace(
            Device=FakeDevice,
            ExternalStream=lambda pointer, device: FakeDevice(device),
            memory=types.SimpleNamespace(OutOfMemoryError=errors["OutOfMemoryError"]),
            compiler=types.SimpleNamespace(CompileException=errors["CompileException"]),
            driver=types.SimpleNamespace(CUDADriverError=DriverError),
            runtime=types.SimpleNamespace(CUDARuntimeError=type("CUDARuntimeError", (DriverError,), {})),
        )

    def fail_at(self, where: str) -> None:
        if self.where == where:
            raise self.raises

    def RawModule(self, **options: Any) -> FakeCupy:
        self.fail_at("compile")
        return self

    def get_function(self, name: str) -> FakeKernel:
        self.fail_at("load")
        if not self.kernels:
            self.kernels.append(FakeKernel(self, name))
        return self.kernels[0]


class FakeDevice:
    def __init__(self, number: int) -> None:
        self.attributes = {
            "MultiProcessorCount": 132,
            "MaxSharedMemoryPerMultiprocessor": 228 << 10,
            "MaxSharedMemoryPerBlockOptin": 227 << 10,
        }

    def __enter__(self) -> FakeDevice:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class FakeKernel:
    def __init__(self, cupy: FakeCupy, name: str) -> None:
        self._cupy, self._name = cupy, name
        self.preferred_shared_memory_carveout = -1
        self._most = 0

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        return self._most

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, value: int) -> None:
        self._cupy.fail_at("attribute")
        self._most = value

    def __call__(self, *arguments: Any, shared_mem: int) -> None:
        self._cupy.fail_at("launch")
        self._cupy.launched.append((self._name, shared_mem))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(CupyLauncher, "_modules", {})
    monkeypatch.setattr(CupyLauncher, "_shared_bytes", {})
    return fake


def launched(shared_bytes: int) -> None:
    CupyLauncher().launch("score_narrow", (1, 1, 1), (512, 1, 1), shared_bytes, ())


def test_the_launcher_asks_for_shared_memory(cupy: FakeCupy) -> None:
    own = CupyLauncher()
    assert own.limits == DeviceLimits(132, 228 << 10, 227 << 10)
    for shared_bytes in (0, 67584, 67584, 1024):
        own.launch("score_narrow", (1, 1, 1), (512, 1, 1), shared_bytes, ())
    assert cupy.launched == [("score_narrow", shared_bytes) for shared_bytes in (0, 67584, 67584, 1024)]
    (kernel,) = cupy.kernels
    assert (kernel.max_dynamic_shared_size_bytes, kernel.preferred_shared_memory_carveout) == (67584, 100)


@pytest.mark.parametrize(
    ("where", "error", "named", "message"),
    [
        ("compile", "CompileException", BackendUnavailableError, "NVRTC does not compile"),
        ("compile", "OutOfMemoryError", torch.OutOfMemoryError, "cannot be loaded"),
        ("load", 2, torch.OutOfMemoryError, "cannot be loaded"),
        ("load", 209, BackendUnavailableError, "status 209; update the driver"),
        ("attribute", 1, ParameterError, "67,584 bytes of shared memory a block: .* smaller tiles"),
        ("launch", 1, ParameterError, "score_narrow with 512 threads"),
        ("launch", 701, ParameterError, "smaller tiles"),
        ("launch", 2, torch.OutOfMemoryError, "score_narrow"),
        ("launch", "OutOfMemoryError", torch.OutOfMemoryError, "score_narrow"),
        # The device is lost; nothing that is tried instead would answer.
        ("launch", 700, DriverError, "status 700"),
    ],
)
def test_errors_of_the_driver_have_names(cupy: FakeCupy, where: str, error: Any, named: Any, message: str) -> None:
    kinds = [cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError]
    if isinstance(error, str):
        kinds = [getattr(cupy.cuda.memory, error, None) or getattr(cupy.cuda.compiler, error)]
    for kind in kinds:
        cupy.where, cupy.raises = where, kind(error)
        with pytest.raises(named, match=message):
            launched(67584)
        assert cupy.launched == []
    # Nothing of a launch that failed is kept.
    cupy.where = ""
    launched(67584)
    assert cupy.launched == [("score_narrow", 67584)]
    assert cupy.kernels[-1].max_dynamic_shared_size_bytes == 67584
