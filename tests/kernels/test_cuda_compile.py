"""Every .cu file compiles for real, without a device, and no kernel spills a register.

Through NVRTC (the wheel nvidia-cuda-nvrtc, or nvidia-cuda-nvrtc-cu12), which is what CuPy compiles with, and through
nvcc where it is on the PATH.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from fanrank.engine.errors import ParameterError  # noqa: E402
from fanrank.kernels.cuda.arguments import HEADER, LAYOUTS, Layout, read_layouts  # noqa: E402
from fanrank.kernels.cuda.launcher import FOLDER, OPERATIONS, OPTIONS, SOURCES, source_of  # noqa: E402

ARCHITECTURES = ("sm_80", "sm_90", "newest")
STATIC_SHARED = 48 * 1024
NARROW_TILE_BYTES = (1 << 14) * 4 + (1 << 14) // 8
SM90_SHARED = 228 * 1024
SM90_REGISTERS = 64 * 1024

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
        count = ctypes.c_int()
        self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        architectures = (ctypes.c_int * count.value)()
        self._library.nvrtcGetSupportedArchs(architectures)
        self.newest = f"sm_{max(architectures)}"

    def compile(self, source: Path, architecture: str) -> str:
        """The log; raises AssertionError with it if the source does not compile."""
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
        self._library.nvrtcDestroyProgram(ctypes.byref(program))
        assert status == 0, f"{source.name} for {architecture}:\n{log.value.decode()}"
        return log.value.decode()


class Nvcc:
    def __init__(self, path: str) -> None:
        self._path = path
        listed = subprocess.run([path, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout
        self.newest = f"sm_{max(map(int, re.findall(r'sm_([0-9]+)', listed)))}"
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"release ([\d.]+)", version)
        self.version = f"nvcc {found[1] if found else ''}"

    def compile(self, source: Path, architecture: str) -> str:
        command = [self._path, *OPTIONS, f"-arch={architecture}", "-cubin", "-Xptxas", "-v", "-o", "/dev/null"]
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


@functools.cache
def usage_of(place: int, architecture: str) -> dict[str, Usage]:
    compiler = compilers()[place]
    target = compiler.newest if architecture == "newest" else architecture
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        logs = list(pool.map(lambda source: compiler.compile(source, target), SOURCES))
    rows = [usage for log in logs for usage in usages(log)]
    print(f"\n{compiler.version}, {target}\n{'kernel':28} registers  shared  spills")
    for row in rows:
        print(f"{row.kernel:28} {row.registers:9} {row.shared:7} {row.spills:7}")
    return {row.kernel: row for row in rows}


def every_compiler() -> range:
    if not compilers():
        pytest.skip("no CUDA compiler; install the wheel nvidia-cuda-nvrtc, or put nvcc on the PATH")
    return range(len(compilers()))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_compiles_without_spills(architecture: str) -> None:
    kernels = set(re.findall(r"__launch_bounds__\([^)]*\) (\w+)\(", "".join(file.read_text() for file in SOURCES)))
    for place in every_compiler():
        if place and architecture != "sm_90":
            continue  # one compiler for every target, and every compiler for one
        usage = usage_of(place, architecture)
        assert set(usage) == kernels
        assert {row.kernel: row.spills for row in usage.values() if row.spills} == {}
        assert max(row.shared for row in usage.values()) <= STATIC_SHARED


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


def test_three_blocks_of_narrow_scoring_fit_a_multiprocessor() -> None:
    """sm_90 has 228 KiB of shared memory, 1 KiB of it taken by each block, and 65,536 registers."""
    for place in every_compiler():
        row = usage_of(place, "sm_90")["score_narrow"]
        assert 3 * (row.shared + NARROW_TILE_BYTES + 1024) <= SM90_SHARED
        assert 3 * 512 * row.registers <= SM90_REGISTERS


def test_no_source_includes_anything_of_the_system() -> None:
    for file in (*SOURCES, *FOLDER.glob("*.cuh")):
        assert not re.findall(r"#include <", file.read_text()), f"NVRTC has no system headers: {file.name}"
