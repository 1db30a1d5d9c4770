"""The host shim for CUDA sources: built-ins, orders, faults, mutations, the race check, the build."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.host_kernels import build_edited  # noqa: E402
from support.sanitized import threads_flags  # noqa: E402

from fanrank.engine.errors import BackendUnavailableError, ParameterError  # noqa: E402
from fanrank.kernels.cuda_host import CompileError, HostLauncher, KernelFault, build  # noqa: E402
from fanrank.kernels.cuda_host.build import compiler  # noqa: E402

try:
    compiler()
except BackendUnavailableError as unavailable:
    pytest.skip(str(unavailable), allow_module_level=True)

HEADER = """
#pragma once
#ifdef FANRANK_CUDA_HOST
#define DYNAMIC_SHARED(name) unsigned char* const name = fanrank_dynamic_shared()
#else
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
constexpr unsigned ALL = 0xffffffffu;
"""

KERNELS = r"""
#include "tools.cuh"

// A __global__ void in_a_comment(int) is no kernel.
__device__ __forceinline__ int block_sum(int value) {
    __shared__ int partial[256];
    partial[threadIdx.x] = value;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
        __syncthreads();  // step
    }
    int sum = partial[0];
    __syncthreads();
    return sum;
}

extern "C" __global__ void __launch_bounds__(256) reduce(const int* __restrict__ values, int* __restrict__ sums) {
    int sum = block_sum(values[blockIdx.x * blockDim.x + threadIdx.x]);
    sum += block_sum(threadIdx.x == 3);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

using i64 = long long;
using u32 = unsigned;
using u64 = unsigned long long;

extern "C" __global__ void dynamic(const int* in, int* out, int elements, int past) {
    DYNAMIC_SHARED(memory);
    int* own = reinterpret_cast<int*>(memory);
    own[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = own[elements - 1 - threadIdx.x];
    if (past && threadIdx.x == 0 && blockIdx.x == 1) memory[past] = 1;
}

extern "C" __global__ void early(const int* in, int* out) {
    __shared__ int shared[256];
    if (in[threadIdx.x] == 0) return;
    shared[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    if (threadIdx.x % 2) return;
    const int count = __syncthreads_count(1);
    out[threadIdx.x] = shared[threadIdx.x] + count + __popc(__ballot_sync(ALL, 1));
}

extern "C" __global__ void deadlock(int kind) {
    const int i = threadIdx.x;
    if (kind == 0 && blockIdx.x == 2) {
        if (i == 5) __shfl_sync(ALL, i, 0);
        else __syncthreads();
    }
    if (kind == 1 && i == 9) __shfl_sync(0xffu, i, 0);
    if (kind == 2) {
        if (i % 2) __ballot_sync(ALL, 1);
        else __syncwarp();
    }
    if (kind == 3) {
        if (i % 2) __syncthreads_or(1);
        else __syncthreads();
    }
    if (kind == 4) __shfl_sync(ALL, i, 0, 7);
    if (kind == 5) {
        if (i == 0) __syncwarp(3u);
        if (i == 1) return;
    }
    if (kind == 6 && i == 33) __syncwarp(6u);
    if (kind == 6 && i == 34) __syncwarp(12u);
    if (kind == 6 && i == 35) __syncwarp(10u);
}

extern "C" __global__ void poison(u32* out) {
    DYNAMIC_SHARED(memory);
    __shared__ u32 shared[32];
    out[blockIdx.x * 64 + threadIdx.x] = shared[threadIdx.x];
    out[blockIdx.x * 64 + 32 + threadIdx.x] = reinterpret_cast<u32*>(memory)[threadIdx.x];
    shared[threadIdx.x] = 1;
    reinterpret_cast<u32*>(memory)[threadIdx.x] = 2;
}

extern "C" __global__ void tickets(int* next, int* out) {
    out[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(next, 1);
}
"""

STEP = ("kernels.cu", "        __syncthreads();  // step\n", "")
# Threads are for the sanitizer of tests/extended; building them takes seconds.
CONFIGURATIONS = ["descending", "shuffle", pytest.param("threads", marks=pytest.mark.extended)]
ORDERS = [("ascending", 0), ("descending", 0), *(("shuffle", seed) for seed in range(4))]

int32 = ctypes.c_int32


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "tools.cuh").write_text(HEADER)
    (folder / "kernels.cu").write_text(KERNELS)
    return folder / "kernels.cu"


@pytest.fixture(scope="module", params=CONFIGURATIONS)
def host(request: pytest.FixtureRequest, source: Path) -> HostLauncher:
    if request.param == "threads":
        return HostLauncher(build([source], flags=threads_flags()))
    return HostLauncher(build([source]), order=request.param, seed=1)


@pytest.fixture(scope="module")
def fibers(source: Path) -> HostLauncher:
    return HostLauncher(build([source]))


def integers(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(-99, 100, shape).astype(np.int32))


def test_reduce(host: HostLauncher) -> None:
    values, sums = integers(8, 256), torch.zeros(8, dtype=torch.int32)
    host.launch("reduce", (8, 1, 1), (256, 1, 1), 0, [values, sums])
    assert torch.equal(sums, values.sum(1, dtype=torch.int32) + 1)


@pytest.mark.parametrize("past", [-1, -1024, 400, 401, 1423])
def test_a_write_outside_dynamic_shared_memory_is_a_fault(host: HostLauncher, past: int) -> None:
    values, out = integers(3, 100), torch.zeros(3, 100, dtype=torch.int32)
    with pytest.raises(KernelFault, match=rf"block \(1, 0, 0\): wrote outside its 400 bytes .* at byte {past}$"):
        host.launch("dynamic", (3, 1, 1), (100, 1, 1), 400, [values, out, int32(100), int32(past)])


def test_threads_that_returned_count_as_arrived(host: HostLauncher) -> None:
    values, out = torch.zeros(70, dtype=torch.int32), torch.zeros(70, dtype=torch.int32)
    values[:40] = 5
    values[64] = 6
    host.launch("early", (1, 1, 1), (70, 1, 1), 0, [values, out])
    even = torch.arange(70) % 2 == 0
    counts = torch.tensor([16] * 32 + [4] * 32 + [1] * 6, dtype=torch.int32)
    assert torch.equal(out, torch.where(even & (values > 0), values + 21 + counts, 0))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (0, r"block \(2, 0, 0\): deadlock: of 64 threads 63 wait at __syncthreads .*\(5, 0, 0\) waits at __shfl_sync"),
        (1, r"thread \(9, 0, 0\): calls __shfl_sync with mask 0x000000ff, which lacks its own lane 9"),
        (2, "call different warp primitives"),
        (3, "while others wait at __syncthreads"),
        (4, "width must be a power of two"),
        (5, None),
        (6, r"0 wait at a block barrier and 3 at a warp primitive; 61 have returned; .* for the lanes 0x00000004"),
    ],
)
def test_deadlocks_and_bad_masks_are_faults(host: HostLauncher, kind: int, message: str | None) -> None:
    if message is None:
        host.launch("deadlock", (3, 1, 1), (64, 1, 1), 0, [int32(kind)])
    else:
        with pytest.raises(KernelFault, match=message):
            host.launch("deadlock", (3, 1, 1), (64, 1, 1), 0, [int32(kind)])
    values, sums = integers(2, 256), torch.zeros(2, dtype=torch.int32)
    host.launch("reduce", (2, 1, 1), (256, 1, 1), 0, [values, sums])
    assert torch.equal(sums, values.sum(1, dtype=torch.int32) + 1)


def test_shared_memory_is_poisoned_before_every_block(host: HostLauncher) -> None:
    out = torch.zeros(3, 64, dtype=torch.int32)
    host.launch("poison", (3, 1, 1), (32, 1, 1), 128, [out])
    assert (out == 0x7F7F7F7F).all()


def test_order(fibers: HostLauncher) -> None:
    def tickets(order: str, seed: int = 0) -> list[int]:
        launcher = HostLauncher(fibers.library, order=order, seed=seed)
        out = torch.zeros(6 * 70, dtype=torch.int32)
        launcher.launch("tickets", (6, 1, 1), (70, 1, 1), 0, [torch.zeros(1, dtype=torch.int32), out])
        return out.tolist()

    up = list(range(420))
    assert tickets("ascending") == up
    assert tickets("descending") == up[::-1]
    shuffled = [tickets("shuffle", seed) for seed in range(4)]
    assert all(sorted(one) == up and one != up for one in shuffled)
    assert len({tuple(one) for one in shuffled}) == 4
    assert tickets("shuffle", 2) == shuffled[2]


def edited(source: Path, *edits: tuple[str, str, str]) -> Path:
    return build_edited(source, edits, lambda sources, include: build(sources, include=include), include=())


def test_a_removed_barrier_changes_the_answer_in_some_order(source: Path) -> None:
    def wrong(library: Path) -> int:
        values, count = integers(4, 256), 0
        for order, seed in ORDERS:
            sums = torch.zeros(4, dtype=torch.int32)
            launcher = HostLauncher(library, order=order, seed=seed)
            launcher.launch("reduce", (4, 1, 1), (256, 1, 1), 0, [values, sums])
            count += not torch.equal(sums, values.sum(1, dtype=torch.int32) + 1)
        return count

    assert wrong(build([source])) == 0
    assert wrong(edited(source, STEP)) > 0


def test_arguments_are_checked(fibers: HostLauncher) -> None:
    one, three = (1, 1, 1), [int32(1)]
    values, out = integers(256), torch.zeros(256, dtype=torch.int32)
    refused = [
        ("no kernel named nothing; the library has .*reduce", ("nothing", one, one, 0, [])),
        ("reduce takes 2 arguments, got 1", ("reduce", one, one, 0, [values])),
        ("argument 1 must have 8 bytes, got 4", ("reduce", one, one, 0, [values, int32(1)])),
        ("argument 0 must have 4 bytes, got 8", ("deadlock", one, one, 0, [values])),
        ("not contiguous", ("reduce", one, one, 0, [values[::2], out])),
        ("of ctypes, got 1", ("deadlock", one, one, 0, [1])),
        ("on meta, not on the CPU", ("reduce", one, one, 0, [values.to("meta"), out])),
        ("1 to 1024 threads", ("deadlock", one, (1025, 1, 1), 0, three)),
        ("1 to 1024 threads", ("deadlock", one, (1, 0, 1), 0, three)),
        ("a grid has", ("deadlock", (0, 1, 1), one, 0, three)),
        ("a grid has", ("deadlock", (1, 65536, 1), one, 0, three)),
        ("a grid has", ("deadlock", (1, 1), one, 0, three)),
        ("1 to 1024 threads", ("deadlock", one, (-1, 1, 1), 0, three)),
        ("no device has more", ("deadlock", one, one, 228 * 1024, three)),
        ("not be negative", ("deadlock", one, one, -1, three)),
    ]
    for message, call in refused:
        with pytest.raises(ParameterError, match=message):
            fibers.launch(*call)
    with pytest.raises(ParameterError, match="order must be"):
        HostLauncher(fibers.library, order="sideways").launch("deadlock", one, one, 0, three)  # type: ignore[arg-type]


def test_what_cannot_be_built_is_refused(source: Path) -> None:
    with pytest.raises(ParameterError, match="at least one"):
        build([])
    with pytest.raises(ParameterError, match="no such source"):
        build([source.with_name("missing.cu")])
    with pytest.raises(ParameterError, match="is not a library that build"):
        HostLauncher(source)


def test_a_compile_error_shows_the_compilers_message(source: Path) -> None:
    for message, new in [
        ("no_such_thing", "no_such_thing(next)"),
        ("CUDA has no atomicAdd of this type", "atomicAdd(reinterpret_cast<i64*>(next), i64(1))"),
    ]:
        with pytest.raises(CompileError, match=message):
            edited(source, ("kernels.cu", "atomicAdd(next, 1)", new))


def test_without_a_compiler_the_error_says_so(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    compiler.cache_clear()
    try:
        with pytest.raises(BackendUnavailableError, match=r"no C\+\+ compiler \(g\+\+ or clang\+\+\)"):
            build([source])
    finally:
        compiler.cache_clear()


def test_the_cache(tmp_path: Path, cache: Path) -> None:
    header, first, second = tmp_path / "value.h", tmp_path / "first.cu", tmp_path / "second.cu"
    header.write_text("constexpr int VALUE = 1;\n")
    text = '#include "value.h"\n__device__ int helper() { return VALUE + 10; }\n'
    text += 'extern "C" __global__ void NAME(int* out) { *out = helper(); }\n'
    first.write_text(text.replace("NAME", "first"))
    second.write_text("#define VALUE 5\n" + text.replace("NAME", "second").replace('#include "value.h"\n', ""))

    def answer(library: Path, name: str = "first") -> int:
        out = torch.zeros(1, dtype=torch.int32)
        HostLauncher(library).launch(name, (1, 1, 1), (1, 1, 1), 0, [out])
        return int(out.item())

    library = build([first, second])
    assert library.is_relative_to(cache / "fanrank" / "cuda_host")
    assert (answer(library), answer(library, "second")) == (11, 15)

    written = library.stat().st_mtime_ns
    assert build([first, second]) == library
    assert library.stat().st_mtime_ns == written

    header.write_text("constexpr int VALUE = 2;\n")
    changed = build([first, second])
    assert changed != library
    assert answer(changed) == 12
    assert not [entry for entry in os.listdir(cache / "fanrank" / "cuda_host") if entry.startswith("build-")]
