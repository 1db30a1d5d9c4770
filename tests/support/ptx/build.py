"""Translated kernels as libraries that `HostLauncher` loads."""

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fanrank.kernels.cuda_host.build import FLAGS, RUNTIME, SHIM, CompileError, compiler

from .parse import Module
from .translate import translate

HERE = Path(__file__).parent
CACHE = Path(__file__).resolve().parents[3] / "build" / "ptx"
"""Libraries by the hash of what they were made of."""


def build(module: Module, kernel: str) -> Path:
    """The library of one kernel of a module, compiled unless it is in the cache; its stem is the name to launch.

    Raises `PtxError` for an instruction that is not known, `CompileError` where the translation does not compile.
    """
    text = translate(module, module.kernels[kernel])
    cxx, version = compiler()
    # -O1: a kernel compiles in a second. Its registers must fit a fiber's stack.
    flags = [*(flag for flag in FLAGS if flag != "-O2"), "-O1", "-Werror=frame-larger-than=32768"]
    flags += [f"-I{SHIM.parent}", f"-I{HERE}"]
    key = _digest(text, (HERE / "ptx.h").read_text(), _headers(), " ".join(flags), version)
    library = CACHE / f"{kernel}-{key}.so"
    if not library.exists():
        runtime = _runtime(cxx, version)
        with tempfile.TemporaryDirectory(prefix="build-", dir=CACHE) as scratch:
            unit = Path(scratch, f"{kernel}.cpp")
            unit.write_text(text)
            output = Path(scratch, library.name)
            named = f'-DFANRANK_PTX_NAME="{library.stem}"'
            _run([cxx, *flags, named, "-shared", str(unit), str(runtime), "-Wl,-rpath,$ORIGIN", "-o", str(output)])
            output.replace(library)
    return library


@cache
def _headers() -> str:
    return "".join(path.read_text() for path in sorted(SHIM.parent.glob("*.h")))


@cache
def _runtime(cxx: str, version: str) -> Path:
    """The runtime, which all kernels of a process share, and with it the stacks of their threads."""
    CACHE.mkdir(parents=True, exist_ok=True)
    output = CACHE / f"runtime-{_digest(_headers(), ' '.join(FLAGS), version)}.so"
    if not output.exists():
        with tempfile.TemporaryDirectory(prefix="build-", dir=CACHE) as scratch:
            unit, made = Path(scratch, "runtime.cpp"), Path(scratch, output.name)
            unit.write_text(f'#include "{RUNTIME}"\n')
            named = f"-Wl,-soname,{output.name}"
            _run([cxx, *FLAGS, "-fvisibility=default", named, "-shared", str(unit), "-o", str(made)])
            made.replace(output)
    return output


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise CompileError(f"{Path(command[0]).name} failed with status {done.returncode}:\n{done.stderr.strip()}")
