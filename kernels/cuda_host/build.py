"""Compile CUDA sources with a C++ compiler into a library that `HostLauncher` runs.

Beside this file, `shim.h` is what the sources see and `runtime.h` is what runs them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...engine.errors import BackendUnavailableError, FanrankError, ParameterError

SHIM = Path(__file__).with_name("shim.h")
RUNTIME = Path(__file__).with_name("runtime.h")
SANITIZED_SUFFIX = ".tsan.so"

# A contracted multiply-add rounds once where two operations round twice. Kernels view shared memory as several types.
FLAGS = ("-std=c++20", "-O2", "-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing")

# Of the preprocessed text: a kernel's name follows its marker, `void` and launch bounds (an empty macro).
MARKER = "fanrank_kernel_marker"
KERNEL = re.compile(rf"\b{MARKER}\b[^(){{}};]*?\b(\w+)\s*\(")


class CompileError(FanrankError, RuntimeError):
    """The compiler rejected a source; the message is the compiler's."""


@dataclass(frozen=True)
class Sanitized:
    """The result of a process under ThreadSanitizer."""

    returncode: int
    output: str  # standard output and standard error, as written
    races: tuple[str, ...]  # ThreadSanitizer's reports


def build(
    sources: Sequence[Path],
    *,
    include: Sequence[Path] = (),
    mode: Literal["fibers", "threads"] = "fibers",
    sanitize: bool = False,
    defines: Mapping[str, str] = {},
    edits: Sequence[tuple[str, str, str]] = (),
) -> Path:
    """The shared library of all ``extern "C" __global__`` functions in `sources`, compiled unless it is in the cache.

    `mode` "fibers" runs a block's threads as coroutines, in a chosen order; "threads" gives each an OS thread.
    `sanitize` (threads only) compiles with ThreadSanitizer; such a library loads only in a process that
    `run_sanitized` started. `edits` are (file name, old, new): each changes a copy of a source or header, and `old`
    must stand in it exactly once. The cache is ``$XDG_CACHE_HOME/fanrank/cuda_host``.
    """
    if mode not in ("fibers", "threads"):
        raise ParameterError(f"mode must be 'fibers' or 'threads', got {mode!r}")
    if sanitize and mode != "threads":
        raise ParameterError("sanitize needs mode='threads': ThreadSanitizer does not follow fibers")
    if not sources:
        raise ParameterError("sources must name at least one file")
    for source in sources:
        if not Path(source).is_file():
            raise ParameterError(f"no such source: {source}")
    cxx, version = compiler()
    if sanitize:
        sanitizer_library()
    definitions = ["-DFANRANK_CUDA_HOST"]
    if mode == "threads":
        definitions.append("-DFANRANK_CUDA_THREADS")
    definitions += [f"-D{name}={value}" for name, value in sorted(defines.items())]
    flags = [*FLAGS, *definitions]
    if sanitize:
        flags += ["-g1", "-fno-omit-frame-pointer"]
    headers = [path.read_bytes() for path in sorted(SHIM.parent.glob("*.h"))]
    cache = _cache()

    with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as scratch:
        folder = Path(scratch)
        paths = [Path(source).resolve() for source in sources]
        includes = [Path(path).resolve() for path in include]
        if edits:
            paths, includes = _edited(paths, includes, edits, folder / "source")
        search = [f"-I{path}" for path in includes]
        texts = [_preprocess(cxx, path, [*definitions, *search]) for path in paths]

        runtime_key = _digest(*headers, " ".join(flags), version)
        key = _digest(runtime_key, str(sanitize), *(text.replace(scratch, "") for text in texts))
        library = cache / f"{key}{SANITIZED_SUFFIX if sanitize else '.so'}"
        if library.exists():
            return library

        runtime = cache / f"runtime-{runtime_key}.o"
        if not runtime.exists():
            # Never instrumented: the runtime itself reports its ordering to ThreadSanitizer.
            unit = folder / "runtime.cpp"
            unit.write_text(f'#include "{RUNTIME}"\n')
            output = folder / "runtime.o"
            _run([cxx, *flags, "-c", str(unit), "-o", str(output)])
            output.replace(runtime)

        units = []
        for i, (path, text) in enumerate(zip(paths, texts, strict=True)):
            names = KERNEL.findall("\n".join(line for line in text.splitlines() if not line.startswith("#")))
            unit = folder / f"unit{i}.cpp"
            # The unnamed namespace keeps equal helpers of two sources apart and their shared arrays in one section.
            unit.write_text(
                f'#include "{SHIM}"\nnamespace {{\n#include "{path}"\n'
                + "".join(f"FANRANK_REGISTER({name})\n" for name in names)
                + "}\n"
            )
            units.append(str(unit))
        output = folder / library.name
        instrument = ["-fsanitize=thread"] if sanitize else []
        _run([cxx, *flags, *search, *instrument, "-shared", *units, str(runtime), "-o", str(output)])
        output.replace(library)
    return library


def run_sanitized(arguments: Sequence[str], *, timeout: float = 600, env: Mapping[str, str] | None = None) -> Sanitized:
    """Run ``python *arguments`` with ThreadSanitizer's runtime loaded, so that sanitized libraries can be launched.

    Any script or ``-c`` text that builds with ``mode="threads", sanitize=True`` and launches will do. `env` is added
    to the environment. ThreadSanitizer does not stop at a race; the exit status is then 66.
    """
    library = sanitizer_library()
    options = "ignore_noninstrumented_modules=1 detect_deadlocks=0 report_signal_unsafe=0 history_size=4 exitcode=66"
    environment = {**os.environ, **(env or {}), "LD_PRELOAD": str(library), "TSAN_OPTIONS": options}
    done = subprocess.run(
        [*_fixed_addresses(), sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        env=environment,
        check=False,
    )
    reports = re.findall(r"^WARNING: ThreadSanitizer: .*?(?=^=+$)", done.stdout, re.MULTILINE | re.DOTALL)
    return Sanitized(done.returncode, done.stdout, tuple(reports))


@functools.cache
def compiler() -> tuple[str, str]:
    """(program, its version text): $CXX, else g++, else clang++."""
    if platform.system() != "Linux":
        raise BackendUnavailableError(f"CUDA sources are run on a CPU on Linux only; this is {platform.system()}")
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    for name in wanted:
        path = shutil.which(name)
        if path is None:
            continue
        done = subprocess.run([path, "--version"], capture_output=True, text=True, env=_environment(), check=False)
        if done.returncode == 0:
            return path, done.stdout
    raise BackendUnavailableError(
        f"no C++ compiler ({' or '.join(wanted)}) on PATH, and running CUDA sources on a CPU needs one; "
        "install g++ 11 or newer (Debian: apt install g++), or set CXX"
    )


@functools.cache
def sanitizer_library() -> Path:
    """The runtime library of g++'s ThreadSanitizer."""
    cxx, version = compiler()
    if "clang" in version:
        raise BackendUnavailableError("ThreadSanitizer is used through g++; set CXX=g++")
    done = subprocess.run(
        [cxx, "-print-file-name=libtsan.so"], capture_output=True, text=True, env=_environment(), check=False
    )
    library = Path(done.stdout.strip())
    if not library.is_absolute() or not library.exists():
        raise BackendUnavailableError(f"{cxx} has no ThreadSanitizer; install libtsan (Debian: apt install libtsan2)")
    return library.resolve()


def _fixed_addresses() -> list[str]:
    """The prefix that turns address randomisation off where it is wider than ThreadSanitizer's memory map allows."""
    try:
        wide = int(Path("/proc/sys/vm/mmap_rnd_bits").read_text()) > 28
    except (OSError, ValueError):
        wide = False
    setarch = shutil.which("setarch")
    return [setarch, platform.machine(), "-R"] if wide and setarch else []


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(root) if root and os.path.isabs(root) else Path.home() / ".cache") / "fanrank" / "cuda_host"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _environment() -> dict[str, str]:
    """The environment for a compiler, without the variables that `run_sanitized` set."""
    return {key: value for key, value in os.environ.items() if key not in ("LD_PRELOAD", "TSAN_OPTIONS")} | {
        "LC_ALL": "C"
    }


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=_environment(), check=False)
    if done.returncode:
        raise CompileError(f"{Path(command[0]).name} failed with status {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


def _preprocess(cxx: str, path: Path, flags: Sequence[str]) -> str:
    """The source with its headers, without comments and macros, kernels marked: what the cache's key is output of."""
    marks = [f"-D__global__={MARKER}", "-D__launch_bounds__(...)="]
    return _run([cxx, "-E", "-x", "c++", "-std=c++20", *marks, *flags, str(path)])


def _digest(*parts: str | bytes) -> str:
    state = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()[:32]


def _edited(
    paths: Sequence[Path], includes: Sequence[Path], edits: Sequence[tuple[str, str, str]], root: Path
) -> tuple[list[Path], list[Path]]:
    """Copies of the sources, their folders' headers and the include folders, with the edits applied."""
    folders = dict.fromkeys([path.parent for path in paths] + list(includes))
    copies = {folder: root / str(i) for i, folder in enumerate(folders)}
    for folder, copy in copies.items():
        for file in folder.rglob("*"):
            if file.suffix in (".cu", ".cuh", ".h", ".hpp") and file.is_file():
                target = copy / file.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
    for path in paths:
        shutil.copyfile(path, copies[path.parent] / path.name)
    for name, old, new in edits:
        files = [file for file in root.rglob(name) if file.is_file()]
        if len(files) != 1:
            raise ParameterError(f"an edit names {name}, of which the sources have {len(files)}")
        text = files[0].read_text()
        if text.count(old) != 1:
            raise ParameterError(f"an edit's text must stand once in {name}, not {text.count(old)} times: {old!r}")
        files[0].write_text(text.replace(old, new))
    return [copies[path.parent] / path.name for path in paths], [copies[path] for path in includes]
