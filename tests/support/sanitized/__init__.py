"""CUDA sources under ThreadSanitizer: each thread of a block is one of the host's, in a process of its own."""

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fanrank.engine.errors import BackendUnavailableError
from fanrank.kernels.cuda_host.build import FLAGS, SHIM, build, compiler, digest, environment

THREADS = Path(__file__).with_name("os_threads.h")
# The runtime is never instrumented: it reports itself what it orders.
INSTRUMENT = ("-fsanitize=thread", "-g1", "-fno-omit-frame-pointer")


@dataclass(frozen=True)
class Sanitized:
    """The result of a process under ThreadSanitizer."""

    returncode: int
    output: str  # standard output and standard error, as written
    races: tuple[str, ...]  # ThreadSanitizer's reports


def threads_flags() -> tuple[str, ...]:
    """Flags of `build` for a thread of the host each."""
    own = (
        f"-I{SHIM.parent}",
        f'-DFANRANK_CUDA_THREADS="{THREADS}"',
        f"-DFANRANK_THREADS_KEY={digest(THREADS.read_bytes())}",
    )
    return (*FLAGS, *own)


def build_sanitized(sources: Sequence[Path], include: Sequence[Path]) -> Path:
    """A library that loads only in a process that `run_sanitized` started."""
    sanitizer_library()
    return build(sources, include=include, flags=threads_flags(), instrument=INSTRUMENT)


def run_sanitized(arguments: Sequence[str], *, timeout: float = 600, env: Mapping[str, str] | None = None) -> Sanitized:
    """Run ``python *arguments`` with ThreadSanitizer's runtime loaded, so that sanitized libraries can be launched.

    `env` is added to the environment. ThreadSanitizer does not stop at a race; the exit status is then 66.
    """
    options = "ignore_noninstrumented_modules=1 detect_deadlocks=0 report_signal_unsafe=0 history_size=4 exitcode=66"
    own = {**os.environ, **(env or {}), "LD_PRELOAD": str(sanitizer_library()), "TSAN_OPTIONS": options}
    done = subprocess.run(
        [*_fixed_addresses(), sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        env=own,
        check=False,
    )
    reports = re.findall(r"^WARNING: ThreadSanitizer: .*?(?=^=+$)", done.stdout, re.MULTILINE | re.DOTALL)
    return Sanitized(done.returncode, done.stdout, tuple(reports))


@functools.cache
def sanitizer_library() -> Path:
    """The runtime library of g++'s ThreadSanitizer."""
    cxx, version = compiler()
    if "clang" in version:
        raise BackendUnavailableError("ThreadSanitizer is used through g++; set CXX=g++")
    command = [cxx, "-print-file-name=libtsan.so"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
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
