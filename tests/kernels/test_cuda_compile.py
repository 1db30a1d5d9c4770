"""Every .cu file compiles for real, without a device; what the compiler makes of it is held in a table.

Through NVRTC (the wheel nvidia-cuda-nvrtc, or nvidia-cuda-nvrtc-cu12), which is what CuPy compiles with, and through
nvcc where it is on the PATH. `compiled.json` beside this file is what the compiler that it names makes of each kernel
for each target. After a change of a kernel, `python tests/kernels/test_cuda_compile.py` writes it anew.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fanrank.engine.errors import ParameterError  # noqa: E402
from fanrank.kernels.cuda import verbs as verbs_module  # noqa: E402
from fanrank.kernels.cuda.arguments import HEADER, LAYOUTS, Layout, read_layouts  # noqa: E402
from fanrank.kernels.cuda.launcher import FOLDER, OPERATIONS, OPTIONS, SOURCES, DeviceLimits, source_of  # noqa: E402
from fanrank.kernels.cuda.verbs import CudaVerbs, tile_bytes  # noqa: E402

TABLE = Path(__file__).with_name("compiled.json")
STATIC_SHARED = 48 * 1024
REGISTERS = 64 * 1024
"""Of a multiprocessor, whose four parts share them."""
THREADS = {"sm_80": 2048, "sm_86": 1536, "sm_89": 1536, "sm_90": 2048, "sm_100": 2048, "sm_120": 1536}
"""Of a multiprocessor, by target."""
LIMITS = {
    "sm_80": DeviceLimits(108, 164 << 10, 163 << 10),
    "sm_86": DeviceLimits(84, 100 << 10, 99 << 10),
    "sm_89": DeviceLimits(128, 100 << 10, 99 << 10),
    "sm_90": DeviceLimits(132, 228 << 10, 227 << 10),
    "sm_100": DeviceLimits(148, 228 << 10, 227 << 10),
    "sm_120": DeviceLimits(188, 100 << 10, 99 << 10),
}
"""As CUDA's programming guide has them."""
TARGETS = [pytest.param(target, marks=[pytest.mark.sweep] * (target not in ("sm_90", "sm_86"))) for target in LIMITS]
BOUNDS = re.compile(r"__launch_bounds__\((\d+)[^)]*\)\s+(\w+)\(")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)([^;]*);", re.MULTILINE)

USAGE = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill "
    r"stores, (?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Usage:
    kernel: str
    registers: int
    shared: int
    spills: int


def usages(text: str) -> list[Usage]:
    """What ``ptxas -v`` says of each kernel."""
    found = []
    for match in USAGE.finditer(text):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        spills = int(match["stores"]) + int(match["loads"])
        found.append(Usage(match["kernel"], int(match["registers"]), int(shared[1]) if shared else 0, spills))
    return found


class Nvrtc:
    """The little of NVRTC that compiling to machine code takes."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = f"NVRTC {major.value}.{minor.value}"

    def compile(self, source: Path, architecture: str, cubin: Path | None = None) -> str:
        """The log; raises AssertionError with it if the source does not compile. The machine code goes to `cubin`."""
        program = ctypes.c_void_p()
        text = source.read_bytes()
        made = self._library.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None)
        assert made == 0
        options = [option.encode() for option in (*OPTIONS, f"--gpu-architecture={architecture}", "--ptxas-options=-v")]
        status = self._library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        size = ctypes.c_size_t()
        self._library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self._library.nvrtcGetProgramLog(program, log)
        if cubin is not None and status == 0:
            self._library.nvrtcGetCUBINSize(program, ctypes.byref(size))
            code = ctypes.create_string_buffer(size.value)
            self._library.nvrtcGetCUBIN(program, code)
            cubin.write_bytes(code.raw)
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        assert status == 0, f"{source.name} for {architecture}:\n{log.value.decode()}"
        return log.value.decode()


class Nvcc:
    def __init__(self, path: str) -> None:
        self._path = path
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"release ([\d.]+)", version)
        self.version = f"nvcc {found[1] if found else ''}"

    def compile(self, source: Path, architecture: str, cubin: Path | None = None) -> str:
        output = "/dev/null" if cubin is None else str(cubin)
        command = [self._path, *OPTIONS, f"-arch={architecture}", "-cubin", "-Xptxas", "-v", "-o", output]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{source.name} for {architecture}:\n{done.stderr}"
        return done.stderr


@functools.cache
def compilers() -> tuple[Nvrtc | Nvcc, ...]:
    found: list[Nvrtc | Nvcc] = []
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        # Newer wheels keep the library in nvidia/cu13, older ones in nvidia/cuda_nvrtc.
        found += [Nvrtc(path) for path in sorted(Path(root).glob("*/lib/libnvrtc.so.*")) if ".alt" not in path.name]
    nvcc = shutil.which("nvcc")
    if nvcc:
        found.append(Nvcc(nvcc))
    return tuple(found)


@dataclass(frozen=True)
class Code:
    """The instructions of one kernel."""

    opcodes: Counter[str]
    instructions: tuple[tuple[int, str, str], ...]  # (address, opcode, operands)

    def matching(self, pattern: str) -> dict[str, int]:
        return {opcode: count for opcode, count in sorted(self.opcodes.items()) if re.match(pattern, opcode)}

    def hot_loop(self, additions: int) -> int:
        """Instructions of the shortest loop that loads from global memory and adds to shared memory this often."""
        lengths = []
        for end, (address, opcode, operands) in enumerate(self.instructions):
            target = re.search(r"0x([0-9a-f]+)", operands)
            if not opcode.startswith("BRA") or target is None or int(target[1], 16) >= address:
                continue
            body = [place for place in range(end + 1) if self.instructions[place][0] >= int(target[1], 16)]
            names = [self.instructions[place][1] for place in body]
            added = sum(name.startswith("ATOMS.ADD") for name in names)
            if added >= additions and any(name.startswith("LDG") for name in names):
                lengths.append(len(body))
        return min(lengths)


@functools.cache
def built(place: int, target: str) -> tuple[dict[str, Usage], dict[str, Code]]:
    """(what ptxas says of each kernel, the instructions of those of score.cu where they can be disassembled)."""
    compiler = compilers()[place]
    disassembler = tool("cuobjdump")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        cubins = [Path(folder) / f"{source.stem}.cubin" for source in SOURCES]
        logs = list(
            pool.map(lambda pair: compiler.compile(pair[0], target, pair[1]), zip(SOURCES, cubins, strict=True))
        )
        listing = ""
        if disassembler is not None:
            cubin = cubins[OPERATIONS.index("score")]
            listing = subprocess.run([disassembler, "-sass", cubin], capture_output=True, text=True, check=True).stdout
    codes = {}
    for part in listing.split("Function : ")[1:]:
        rows = tuple((int(at, 16), opcode, operands) for at, opcode, operands in INSTRUCTION.findall(part))
        codes[part.split()[0]] = Code(Counter(opcode for _, opcode, _ in rows), rows)
    return {row.kernel: row for log in logs for row in usages(log)}, codes


def tool(name: str) -> Path | None:
    """A program of CUDA's toolkit, which Triton's wheel brings as well."""
    spec = importlib.util.find_spec("triton")
    for root in spec.submodule_search_locations or () if spec else ():
        path = Path(root) / "backends" / "nvidia" / "bin" / name
        if path.exists():
            return path
    found = shutil.which(name)
    return Path(found) if found else None


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
    if kernel.partition("_")[0] != "score" or kernel == "score_narrow_global":
        return 0
    wide = "narrow" not in kernel
    bits = CudaVerbs(Fixed(LIMITS[target])).tile_bits(wide)
    return tile_bytes(bits, wide=wide, signed="signed" in kernel, decays="decayed" in kernel)


def blocks_of(row: Usage, threads: int, target: str) -> int:
    """Blocks of a kernel that a multiprocessor holds; of kernels other than `score` with static shared memory alone."""
    own = row.shared + dynamic_bytes(row.kernel, target) + verbs_module.BLOCK_RESERVED
    # A warp's registers are allotted by 256.
    warps = REGISTERS // 4 // (-(-row.registers // 8) * 8 * 32) * 4
    return min(warps * 32 // threads, LIMITS[target].multiprocessor_bytes // own, THREADS[target] // threads)


def table(place: int) -> dict[str, Any]:
    """What `compiled.json` holds."""
    rows: dict[str, Any] = {}
    threads = kernels()
    for kernel in sorted(threads):
        usage = {target: built(place, target)[0][kernel] for target in LIMITS}
        rows[kernel] = {
            "registers": [row.registers for row in usage.values()],
            "static shared bytes": [row.shared for row in usage.values()],
            "blocks": [blocks_of(row, threads[kernel], target) for target, row in usage.items()],
        }
        if kernel.startswith("score_"):
            rows[kernel]["dynamic shared bytes"] = [dynamic_bytes(kernel, target) for target in LIMITS]
            codes = [built(place, target)[1].get(kernel) for target in LIMITS]
            if kernel != "score_narrow_global" and all(codes):
                # Four postings, added in one instruction or two.
                loads = 2 if kernel.endswith("_4") else 4
                additions = loads * (1 if "narrow" in kernel else 2)
                rows[kernel]["hot loop, instructions a posting"] = [
                    round(code.hot_loop(additions) / loads, 1) for code in codes if code
                ]
    return {"compiler": compilers()[place].version, "targets": list(LIMITS), "kernels": rows}


def written(found: dict[str, Any]) -> str:
    """A kernel's field a line."""
    text = json.dumps(found, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda match: re.sub(r"\s+", " ", match[0]), text) + "\n"


def every_compiler() -> range:
    if not compilers():
        pytest.skip("no CUDA compiler; install the wheel nvidia-cuda-nvrtc, or put nvcc on the PATH")
    return range(len(compilers()))


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles_without_spills(target: str) -> None:
    for place in every_compiler():
        if place and target != "sm_90":
            continue  # one compiler for every target, and every compiler for one
        usage, _ = built(place, target)
        assert set(usage) == set(kernels())
        assert {row.kernel: row.spills for row in usage.values() if row.spills} == {}
        assert max(row.shared for row in usage.values()) <= STATIC_SHARED
        score = [row for row in usage.values() if row.kernel.startswith("score_")]
        assert max(row.shared for row in score) <= verbs_module.SCORE_STATIC
        for row in score:
            assert row.shared + dynamic_bytes(row.kernel, target) <= LIMITS[target].block_bytes


@pytest.mark.sweep
def test_the_compiled_kernels_are_those_of_the_table() -> None:
    kept = json.loads(TABLE.read_text())
    assert set(kept["kernels"]) == set(kernels()), "write the table anew"
    places = [place for place in every_compiler() if compilers()[place].version == kept["compiler"]]
    if not places:
        pytest.skip(f"the table is of {kept['compiler']}")
    if tool("cuobjdump") is None:
        pytest.skip("no cuobjdump; Triton's wheel has one")
    found = table(places[0])
    for kernel, row in kept["kernels"].items():
        assert found["kernels"][kernel] == row, f"{kernel} is not as in {TABLE.name}; if it may be so, write it anew"
    assert written(found) == TABLE.read_text()


@pytest.mark.parametrize("target", TARGETS)
def test_scoring_adds_with_native_instructions(target: str) -> None:
    """No compare and swap, and no address that may lie in any memory: those loops and tests lie in the hot loop."""
    for place in every_compiler():
        if place and target != "sm_90":
            continue
        _, codes = built(place, target)
        if not codes:
            pytest.skip("no cuobjdump; Triton's wheel has one")
        assert len(codes) == len([kernel for kernel in kernels() if kernel.startswith("score_")])
        for kernel, code in codes.items():
            assert code.matching(r"ATOM\w*\.(.*\.)?CAS") == {}, kernel
            assert code.matching(r"(LD|ST|ATOM)(\.|$)") == {}, kernel
            assert code.matching(r"(LDL|STL)(\.|$)") == {}, kernel
            if kernel != "score_narrow_global":
                assert sum(code.matching(r"ATOMS\.ADD").values()) >= (4 if "narrow" in kernel else 8) // (
                    2 if kernel.endswith("_4") else 1
                ), kernel
            assert sum(code.matching(r"(REDG?|ATOMG)\..*MAX\.S64").values()) == 1, kernel


GENERIC = """
extern "C" __global__ void __launch_bounds__(32) score_probe(unsigned long long* global, int* anywhere[1]) {
    __shared__ unsigned long long sums[32];
    sums[threadIdx.x] = *anywhere[0];
    __syncthreads();
    atomicAdd(&sums[global[0] & 31], global[threadIdx.x]);
    __syncthreads();
    global[threadIdx.x] = sums[threadIdx.x];
}
"""


def test_what_is_not_native_is_seen(tmp_path: Path) -> None:
    """The patterns of the test above find a 64-bit addition in shared memory and a load of unknown memory."""
    disassembler = tool("cuobjdump")
    if disassembler is None:
        pytest.skip("no cuobjdump; Triton's wheel has one")
    source = tmp_path / "probe.cu"
    source.write_text(GENERIC)
    for place in list(every_compiler())[:1]:
        compilers()[place].compile(source, "sm_90", tmp_path / "probe.cubin")
        listed = subprocess.run([disassembler, "-sass", tmp_path / "probe.cubin"], capture_output=True, text=True)
        opcodes = [opcode for _, opcode, _ in INSTRUCTION.findall(listed.stdout)]
        code = Code(Counter(opcodes), ())
        assert code.matching(r"ATOM\w*\.(.*\.)?CAS")
        assert code.matching(r"(LD|ST|ATOM)(\.|$)")


def asserted(layout: Layout) -> str:
    """C++ that compiles only if the compiler lays the structure out as ctypes does."""
    lines = [f'static_assert(sizeof({layout.name}) == {ctypes.sizeof(layout.structure)}, "size");']
    for field in layout.structure._fields_:
        offset = getattr(layout.structure, field[0]).offset
        lines.append(f'static_assert(__builtin_offsetof({layout.name}, {field[0]}) == {offset}, "{field[0]}");')
    return "\n".join(lines)


def test_arguments_lie_where_the_compiler_reads_them(tmp_path: Path) -> None:
    assert sorted(LAYOUTS) == sorted(re.findall(r"^struct (\w+)", HEADER.read_text(), re.MULTILINE))
    checks = "\n".join(map(asserted, LAYOUTS.values()))
    source, wrong = tmp_path / "layout.cu", tmp_path / "wrong.cu"
    source.write_text(f'#include "arguments.cuh"\n{checks}\n')
    wrong.write_text(source.read_text().replace("ScoreArguments, stride) ==", "ScoreArguments, stride) == 8 +"))
    for place in every_compiler():
        compilers()[place].compile(source, "sm_90")
        with pytest.raises(AssertionError, match="stride"):
            compilers()[place].compile(wrong, "sm_90")


def test_a_field_needs_a_known_type_and_a_comment() -> None:
    fields = "    i32 count;         // number\n    const i64* words;  // [S] int64\n    void* any;  // [P]\n"
    layout = read_layouts(f"struct Known {{\n{fields}}};\n")["Known"]
    assert [field[0] for field in layout.structure._fields_] == ["count", "words", "any"]
    assert layout.pointers == {"words": 8, "any": 0}
    for line in ("    i32 count;\n", "    i16 count;  // number\n", "    double* ;  // [S]\n"):
        with pytest.raises(ValueError, match="Wrong: not a field"):
            read_layouts(f"struct Wrong {{\n{line}}};\n")


def test_the_values_of_a_structure_are_checked() -> None:
    layout = read_layouts("struct Pair {\n    i32 count;         // number\n    const i64* words;  // [S] int64\n};\n")[
        "Pair"
    ]
    words = torch.arange(4)
    assert layout.fill(count=3, words=words).words == words.data_ptr()
    assert layout.fill(count=3, words=None).words is None
    for message, values in [
        (r"missing or unknown: \['words'\]", {"count": 3}),
        (r"missing or unknown: \['more'\]", {"count": 3, "words": None, "more": 1}),
        ("Pair.words must be a tensor or None", {"count": 3, "words": 7}),
        ("not contiguous", {"count": 3, "words": words[::2]}),
        ("elements of 8 bytes, got a tensor with elements of 4", {"count": 3, "words": words.int()}),
    ]:
        with pytest.raises(ParameterError, match=message):
            layout.fill(**values)  # type: ignore[arg-type]


def test_sources_are_compiled_with_their_headers() -> None:
    for operation in OPERATIONS:
        text = source_of(operation)
        assert "#include" not in text
        assert text.count("constexpr i32 WARP = 32;") == 1


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_that_a_multiprocessor_holds(target: str) -> None:
    """Three narrow tiles of 2**14 documents where there are 228 KiB of shared memory, else two of what fits."""
    expected = {"sm_80": (14, 13, 2), "sm_90": (14, 13, 3), "sm_100": (14, 13, 3)}
    narrow, wide, blocks = expected.get(target, (13, 12, 2))
    own = CudaVerbs(Fixed(LIMITS[target]))
    assert (own.tile_bits(False), own.tile_bits(True)) == (narrow, wide)
    for place in list(every_compiler())[:1]:
        usage, _ = built(place, target)
        for kernel, threads in kernels().items():
            if kernel.startswith("score_"):
                fitting = blocks_of(usage[kernel], threads, target)
                assert fitting >= (blocks if kernel in ("score_narrow", "score_narrow_4") else 2), kernel


def test_no_source_includes_anything_of_the_system() -> None:
    for file in (*SOURCES, *FOLDER.glob("*.cuh")):
        assert not re.findall(r"#include <", file.read_text()), f"NVRTC has no system headers: {file.name}"


if __name__ == "__main__":
    TABLE.write_text(written(table(0)))
