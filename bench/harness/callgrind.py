"""Counts instructions of stretches of a program with valgrind's callgrind, by C++ function.

The counted program loads a small library that switches counting on and off (`Counting`). Outside these stretches it
runs without instrumentation, some ten times slower than alone instead of fifty.
"""

import ctypes
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

LIBRARY = "FANRANK_CALLGRIND"
"""The environment variable that leads the counted program to the library."""
SOURCE = """
#include <valgrind/callgrind.h>
extern "C" void counting_begin() { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
extern "C" void counting_end(const char* name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""
HEADER = Path("/usr/include/valgrind/callgrind.h")
_FIELD = re.compile(r"(fn|cfn|calls)=(.*)")


@dataclass
class Profile:
    """Instructions of one stretch: in all, of each function itself, and of each call (caller, callee) inclusively."""

    name: str = ""
    total: int = 0
    own: Counter[str] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)


def missing() -> str | None:
    """What this machine lacks for counting, in words; None where it lacks nothing."""
    if shutil.which("valgrind") is None:
        return "no valgrind"
    if not HEADER.is_file():
        return f"no {HEADER}"
    return None if compiler() else "no C++ compiler"


def compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))


def build_library(folder: Path) -> Path:
    """The library of `Counting`, compiled. Raises `subprocess.CalledProcessError`."""
    path, source = folder / "libcounting.so", folder / "counting.cpp"
    source.write_text(SOURCE)
    subprocess.run([str(compiler()), "-O2", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    return path


class Counting:
    """In the counted program: counts what runs in a `with` block of `stretch`. Raises `KeyError` outside of `run`."""

    def __init__(self) -> None:
        library = ctypes.CDLL(os.environ[LIBRARY])
        self._begin, self._end = library.counting_begin, library.counting_end
        self._end.argtypes = [ctypes.c_char_p]

    @contextmanager
    def stretch(self, name: str) -> Iterator[None]:
        self._begin()
        try:
            yield
        finally:
            self._end(name.encode())


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> dict[str, Profile]:
    """Run a program that counts, and return its stretches by name. Files are written to the empty folder `folder`.

    Raises `RuntimeError` with the end of its output if it fails.
    """
    library = build_library(folder)
    valgrind = [
        *("valgrind", "--tool=callgrind", "--instr-atstart=no", "--compress-strings=no", "--compress-pos=no"),
        f"--callgrind-out-file={folder / 'out'}",
    ]
    done = subprocess.run(
        [*valgrind, *command],
        env={**environment, LIBRARY: str(library)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"valgrind ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    # The file without a number is of the program's end, where nothing is counted.
    found = [parse(path.read_text(encoding="utf-8", errors="replace")) for path in sorted(folder.glob("out.*"))]
    return {profile.name: profile for profile in found}


def parse(text: str) -> Profile:
    """A callgrind file without compression of names and positions."""
    profile = Profile()
    function = called = ""
    after_calls = False
    for line in text.splitlines():
        if line.startswith("desc: Trigger: Client Request: "):
            profile.name = line.rpartition("Request: ")[2].strip()
        elif line.startswith("totals:"):
            profile.total = int(line.split()[1])
        elif match := _FIELD.match(line):
            if match[1] == "fn":
                function = match[2]
            elif match[1] == "cfn":
                called = match[2]
            else:
                after_calls = True
        elif line and line[0] in "0123456789+-*":
            cost = int(line.split()[-1])
            if after_calls:
                profile.calls[function, called] += cost
            else:
                profile.own[function] += cost
            after_calls = False
    return profile


def qualified(function: str) -> str:
    """The name of a function without arguments, template arguments and the type that it returns."""
    name = function.replace("(anonymous namespace)::", "")
    for bracket in "<(":
        name = name.partition(bracket)[0]
    return name.split()[-1] if name.split() else function


def by_phase(profile: Profile, phases: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Instructions of each phase: its functions, which begin with one of its prefixes, and all that they call, less
    the phases within. Of several prefixes the longest counts.

    Recursion through a function of no phase would be counted twice.
    """
    prefixes = sorted(
        ((prefix, name) for name, own in phases.items() for prefix in own), key=lambda each: -len(each[0])
    )

    def phase_of(function: str) -> str | None:
        name = qualified(function)
        return next((phase for prefix, phase in prefixes if name.startswith(prefix)), None)

    known = {function: phase_of(function) for pair in profile.calls for function in pair}
    counts = dict.fromkeys(phases, 0)
    for (caller, callee), cost in profile.calls.items():
        outer, inner = known[caller], known[callee]
        if inner is not None and outer != inner:
            counts[inner] += cost
            if outer is not None:
                counts[outer] -= cost
    return counts
