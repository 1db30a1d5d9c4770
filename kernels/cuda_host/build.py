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
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...engine.errors import BackendUnavailableError, FanrankError, ParameterError

SHIM = Path(__file__).with_name("shim.h")
RUNTIME = Path(__file__).with_name("runtime.h")

# A contracted multiply-add rounds once where two operations round twice. Kernels view shared memory as several types.
FLAGS: tuple[str, ...] = ("-std=c++20", "-O2", "-fPIC", "-pthread", "-fvisibility=hidden", "-DFANRANK_CUDA_HOST")
FLAGS += ("-ffp-contract=off", "-fno-strict-aliasing")

# Of the preprocessed text: a kernel's name follows its marker, `void` and launch bounds (an empty macro).
MARKER = "fanrank_kernel_marker"
KERNEL = re.compile(rf"\b{MARKER}\b[^(){{}};]*?\b(\w+)\s*\(")


class CompileError(FanrankError, RuntimeError):
    """The compiler rejected a source; the message is the compiler's."""


def build(
    sources: Sequence[Path],
    *,
    include: Sequence[Path] = (),
    flags: Sequence[str] = FLAGS,
    instrument: Sequence[str] = (),
) -> Path:
    """The shared library of all ``extern "C" __global__`` functions in `sources`, compiled unless it is in the cache.

    `instrument` are flags of the sources alone, not of what runs them. The cache is
    ``$XDG_CACHE_HOME/fanrank/cuda_host``.
    """
    if not sources:
        raise ParameterError("sources must name at least one file")
    for source in sources:
        if not Path(source).is_file():
            raise ParameterError(f"no such source: {source}")
    cxx, version = compiler()
    paths = [Path(source).resolve() for source in sources]
    search = [f"-I{Path(path).resolve()}" for path in include]
    texts = [_preprocess(cxx, path, [*flags, *search]) for path in paths]
    headers = [path.read_bytes() for path in sorted(SHIM.parent.glob("*.h"))]
    runtime_key = digest(*headers, " ".join(flags), version)
    cache = _cache()
    library = cache / f"{digest(runtime_key, *instrument, *texts)}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache) as scratch:
        folder = Path(scratch)
        runtime = cache / f"runtime-{runtime_key}.o"
        if not runtime.exists():
            unit = folder / "runtime.cpp"
            unit.write_text(f'#include "{RUNTIME}"\n')
            output = folder / "runtime.o"
            run([cxx, *flags, "-c", str(unit), "-o", str(output)])
            output.replace(runtime)
        units = []
        for i, (path, text) in enumerate(zip(paths, texts, strict=True)):
            unit = folder / f"unit{i}.cpp"
            # The unnamed namespace keeps equal helpers of two sources apart and their shared arrays in one section.
            registered = "".join(f"FANRANK_REGISTER({name})\n" for name in KERNEL.findall(text))
            unit.write_text(f'#include "{SHIM}"\nnamespace {{\n#include "{path}"\n{registered}}}\n')
            units.append(str(unit))
        output = folder / library.name
        run([cxx, *flags, *search, *instrument, "-shared", *units, str(runtime), "-o", str(output)])
        output.replace(library)
    return library


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
        done = subprocess.run([path, "--version"], capture_output=True, text=True, env=environment(), check=False)
        if done.returncode == 0:
            return path, done.stdout
    raise BackendUnavailableError(
        f"no C++ compiler ({' or '.join(wanted)}) on PATH, and running CUDA sources on a CPU needs one; "
        "install g++ 11 or newer (Debian: apt install g++), or set CXX"
    )


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(root) if root and os.path.isabs(root) else Path.home() / ".cache") / "fanrank" / "cuda_host"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def environment() -> dict[str, str]:
    """The environment for a compiler: messages in English, and no library that this process was started with."""
    return {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"} | {"LC_ALL": "C"}


def run(command: Sequence[str]) -> str:
    """What a compiler prints. Raises `CompileError`."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment(), check=False)
    if done.returncode:
        raise CompileError(f"{Path(command[0]).name} failed with status {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout


def _preprocess(cxx: str, path: Path, flags: Sequence[str]) -> str:
    """The source with its headers, without comments, macros and paths, kernels marked: what the cache's key is of."""
    marks = [f"-D__global__={MARKER}", "-D__launch_bounds__(...)="]
    return run([cxx, "-E", "-P", "-x", "c++", *marks, *flags, str(path)])


def digest(*parts: str | bytes) -> str:
    """A name for what is made of these parts."""
    state = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()[:32]
