"""NVRTC, which CuPy compiles with, compiles every CUDA source for every target, without a device.

What it makes of a kernel must fit a multiprocessor, spill nothing and add with native instructions.
"""

import ctypes
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from support.ptx.nvrtc import libraries, tool  # noqa: E402

from fanrank.kernels.cuda import verbs as verbs_module  # noqa: E402
from fanrank.kernels.cuda.arguments import LAYOUTS, Layout  # noqa: E402
from fanrank.kernels.cuda.launcher import OPERATIONS, SOURCES, DeviceLimits  # noqa: E402
from fanrank.kernels.cuda.verbs import CudaVerbs, tile_bytes  # noqa: E402

STATIC_SHARED = 48 * 1024
LIMITS = {
    "sm_80": DeviceLimits(108, 164 << 10, 163 << 10),
    "sm_86": DeviceLimits(84, 100 << 10, 99 << 10),
    "sm_89": DeviceLimits(128, 100 << 10, 99 << 10),
    "sm_90": DeviceLimits(132, 228 << 10, 227 << 10),
    "sm_100": DeviceLimits(148, 228 << 10, 227 << 10),
    "sm_120": DeviceLimits(188, 100 << 10, 99 << 10),
}
"""As CUDA's programming guide has them."""
BOUNDS = re.compile(r"__launch_bounds__\((\d+)[^)]*\)\s+(\w+)\(")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)", re.MULTILINE)
USAGE = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill "
    r"loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Usage:
    """What the assembler says of one kernel."""

    registers: int
    shared: int
    spills: int


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    if not libraries():
        pytest.skip("no NVRTC; install the wheel nvidia-cuda-nvrtc")


def usages(log: str) -> dict[str, Usage]:
    """Of each kernel that a log of the assembler names."""
    found = {}
    for match in USAGE.finditer(log):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        spills = int(match["stores"]) + int(match["loads"])
        found[match["kernel"]] = Usage(int(match["registers"]), int(shared[1]) if shared else 0, spills)
    return found


def disassembled(cubin: Path) -> str:
    disassembler = tool("cuobjdump")
    if disassembler is None:
        pytest.skip("no cuobjdump; Triton's wheel has one")
    return subprocess.run([disassembler, "-sass", cubin], capture_output=True, text=True, check=True).stdout


@functools.cache
def built(target: str) -> tuple[dict[str, Usage], str]:
    """(what the assembler says of each kernel, the machine code of score.cu)."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = [Path(folder) / f"{source.stem}.cubin" for source in SOURCES]
        logs = list(
            pool.map(lambda pair: libraries()[0].compile(pair[0], target, pair[1]), zip(SOURCES, cubins, strict=True))
        )
        listing = disassembled(cubins[OPERATIONS.index("score")])
    return {kernel: usage for log in logs for kernel, usage in usages(log).items()}, listing


def kernels() -> dict[str, int]:
    """The threads of a block of every kernel."""
    return {name: int(threads) for source in SOURCES for threads, name in BOUNDS.findall(source.read_text())}


class Fixed:
    """A launcher that knows its device alone."""

    def __init__(self, limits: DeviceLimits) -> None:
        self.limits = limits

    def launch(self, *arguments: object) -> None:
        raise AssertionError(arguments)


def dynamic_bytes(kernel: str, target: str) -> int:
    """Dynamic shared memory of a block of a kernel of `score`, with the tiles that the family prefers."""
    wide = "narrow" not in kernel
    bits = CudaVerbs(Fixed(LIMITS[target])).tile_bits(wide)
    return tile_bytes(bits, wide=wide, signed="signed" in kernel, decays="decayed" in kernel)


@pytest.mark.parametrize("target", LIMITS)
def test_every_kernel_compiles_without_spills(target: str) -> None:
    usage, _ = built(target)
    assert set(usage) == set(kernels())
    assert {kernel: row.spills for kernel, row in usage.items() if row.spills} == {}
    assert max(row.shared for row in usage.values()) <= STATIC_SHARED
    for kernel, row in usage.items():
        if kernel.startswith("score_"):
            assert row.shared <= verbs_module.SCORE_STATIC
            assert row.shared + dynamic_bytes(kernel, target) <= LIMITS[target].block_bytes


def opcodes(listing: str) -> dict[str, Counter[str]]:
    """How often each kernel of a disassembly has each instruction."""
    return {part.split()[0]: Counter(INSTRUCTION.findall(part)) for part in listing.split("Function : ")[1:]}


def matching(counts: Counter[str], pattern: str) -> dict[str, int]:
    return {opcode: count for opcode, count in sorted(counts.items()) if re.match(pattern, opcode)}


SWAPPED, GENERIC, LOCAL = r"ATOM\w*\.(.*\.)?CAS", r"(LD|ST|ATOM)(\.|$)", r"(LDL|STL)(\.|$)"
"""A loop that compares and swaps, an access to memory of any kind, and one to a thread's own memory."""


@pytest.mark.parametrize("target", LIMITS)
def test_scoring_adds_with_native_instructions(target: str) -> None:
    """The loops and tests of anything else would lie in the hot loop."""
    for kernel, counts in opcodes(built(target)[1]).items():
        for pattern in (SWAPPED, GENERIC, LOCAL):
            assert matching(counts, pattern) == {}, kernel
        assert matching(counts, r"ATOMS\.ADD"), kernel
        assert sum(matching(counts, r"(REDG?|ATOMG)\..*MAX\.S64").values()) == 1, kernel


OFFSET_OF = """
template <typename S, typename T>
__device__ long long offset_of(T S::*member) {
    S a;
    return reinterpret_cast<char*>(&(a.*member)) - reinterpret_cast<char*>(&a);
}
"""


def misplaced(expected: dict[str, tuple[str, int]], folder: Path) -> list[str]:
    """Those of these C++ numbers that the compiler finds to be others: their names stay in the PTX as comments.

    NVRTC 13.0 takes no offset for a constant before it optimises.
    """
    lines = [
        f'if ({number} != {value}) asm volatile("// other: {name}");' for name, (number, value) in expected.items()
    ]
    source = folder / "layout.cu"
    kernel = 'extern "C" __global__ void layout() {'
    source.write_text("\n".join(['#include "arguments.cuh"', OFFSET_OF, kernel, *lines, "}\n"]))
    return re.findall(r"// other: ([\w.]+)", libraries()[0].ptx(source, "sm_90"))


def places(layout: Layout) -> dict[str, tuple[str, int]]:
    """The size and the offsets of a structure by their names: in C++, and as ctypes has them."""
    name, structure = layout.name, layout.structure
    found = {name: (f"sizeof({name})", ctypes.sizeof(structure))}
    for field, *_ in structure._fields_:
        found[f"{name}.{field}"] = f"offset_of(&{name}::{field})", getattr(structure, field).offset
    return found


def test_arguments_lie_where_the_compiler_reads_them(tmp_path: Path) -> None:
    expected = {name: pair for layout in LAYOUTS.values() for name, pair in places(layout).items()}
    assert misplaced(expected, tmp_path) == []
    for name in ("ScoreArguments", "ScoreArguments.counts", "PlanArguments.widest"):
        number, value = expected[name]
        assert misplaced({**expected, name: (number, value + 8)}, tmp_path) == [name]


BUDGET = {
    # Three blocks of 512 threads, and two.
    "kernels": [{"match": "^score_narrow(_4)?$", "gate": "spill_instrs==0, regs<=40"}],
    "default": "spill_instrs==0, regs<=64",
}


def test_cuxray_finds_no_spill_and_no_register_too_many(tmp_path: Path) -> None:
    """cuxray reads the machine code itself, whatever the assembler's log says."""
    program = Path(sys.executable).with_name("cuxray")
    disassembler = tool("nvdisasm")
    if not program.exists() or disassembler is None:
        pytest.skip("no cuxray, or no nvdisasm; Triton's wheel has one")
    budget = tmp_path / "budget.json"
    budget.write_text(json.dumps(BUDGET))
    environment = {**os.environ, "PATH": f"{disassembler.parent}:{os.environ['PATH']}"}
    for source in SOURCES:
        cubin = tmp_path / f"{source.stem}.cubin"
        libraries()[0].compile(source, "sm_90", cubin)
        command = [program, "gate", cubin, "--budget", budget]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
