"""Plants faults in the product, one at a time, and runs the test that must fail.

``python -m tests.extended.planted [--part N/M] [name ...]`` takes all faults, part N of M, or those whose name or file
holds a word. It prints a line for each: caught, SURVIVED, does not apply (its code is not found exactly once), or
broken (nothing was tested), and exits with 1 unless all are caught.

The faults stand in the text files of this folder. A file of the product heads its faults::

    [path of the file]
    what is wrong | arguments of pytest, or of sanitize.sh where "thread" ends the line
    -the code, which stands there exactly once
    +what takes its place
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "build", "dist", "*.svg", "*.egg-info")
# Seconds of a build and of a test. The slowest test takes one minute where nothing else runs.
LIMIT = 600
CAUGHT, SURVIVED, STALE, BROKEN = "caught", "SURVIVED", "does not apply", "broken"
BUILD_KERNELS = "from fanrank.kernels.families import device_search; device_search('cuda-host')"


@dataclass
class Fault:
    """Code of one file that is replaced, and the test that must fail then."""

    name: str
    file: str
    test: str
    thread: bool = False
    """Whether the test fails only under the thread sanitizer."""
    codes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def apply(self, root: Path) -> str | None:
        """The file with the fault; None where its code is not there exactly once."""
        path, code = root / self.file, "\n".join(self.codes)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        return text.replace(code, "\n".join(self.faults)) if text.count(code) == 1 else None


def read_faults() -> Iterator[Fault]:
    """The faults of every file of this folder."""
    for path in sorted(FOLDER.glob("*.txt")):
        if path.name == "requirements.txt":
            continue
        file, fault = "", None
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("["):
                file = line.strip("[]")
            elif line.startswith(("-", "+")) and fault is not None:
                (fault.codes if line[0] == "-" else fault.faults).append(line[1:])
            elif line:
                if fault is not None:
                    yield fault
                name, test, *thread = line.split(" | ")
                fault = Fault(name, file, test, bool(thread))
        if fault is not None:
            yield fault


def choose_faults(part: str, names: list[str]) -> list[Fault]:
    """Every M-th fault from the N-th on, for part N/M, of those that the names choose. Raises `SystemExit`."""
    faults = [one for one in read_faults() if not names or any(name in one.name or name in one.file for name in names)]
    number, _, parts = part.partition("/")
    if not faults or not (number.isdigit() and parts.isdigit() and int(parts)):
        raise SystemExit(f"no fault is named {', '.join(names)}, or --part {part} is not N/M")
    return faults[int(number) % int(parts) :: int(parts)]


class Checkout:
    """A copy of the checkout in ``build/planted``, into which faults are planted."""

    def __init__(self) -> None:
        self.copy = ROOT / "build" / "planted"
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(ROOT, self.copy, symlinks=True, ignore=LEFT_OUT)

    def plant(self, fault: Fault) -> tuple[str, str]:
        """(what became of the fault, detail)."""
        planted, path = fault.apply(self.copy), self.copy / fault.file
        if planted is None:
            return STALE, ""
        kept = path.read_text(encoding="utf-8")
        path.write_text(planted, encoding="utf-8")
        try:
            return self._build(fault) or self._test(fault)
        finally:
            path.write_text(kept, encoding="utf-8")
            if path.is_relative_to(self.copy / "native"):
                for built in (ROOT / "native").glob("*.so"):
                    shutil.copy2(built, self.copy / "native" / built.name)

    def _build(self, fault: Fault) -> tuple[str, str] | None:
        """Build what is compiled of the file; the status where that fails."""
        command: list[str] = []
        if fault.file.startswith("native/") and not fault.thread:
            for built in (self.copy / "native").glob("*.so"):
                built.unlink()
            command = ["setup.py", "-q", "build_ext", "--inplace"]
        elif fault.file.endswith((".cu", ".cuh", ".h")):
            command = ["-c", BUILD_KERNELS]
        if not command:
            return None
        code, output = self._run([sys.executable, *command])
        # The extension is optional, so a build that fails says nothing by its code.
        there = any((self.copy / "native").glob("*.so")) or fault.thread
        return None if code == 0 and there else (BROKEN, f"does not compile: {output}")

    def _test(self, fault: Fault) -> tuple[str, str]:
        if fault.thread:
            script = "tests/extended/sanitizers/sanitize.sh"
            code, output = self._run(["bash", script, "thread", *fault.test.split()], PYTHON=sys.executable)
        else:
            options = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", "-p", "no:randomly", "--hypothesis-seed=0"]
            code, output = self._run([sys.executable, "-m", "pytest", *options, *fault.test.split()])
        if code is None:
            return CAUGHT, "by the limit of time"
        if code == 1 or (code < 0 and code != -signal.SIGKILL):
            return CAUGHT, ""
        return (SURVIVED, "") if code == 0 and "passed" in output else (BROKEN, output)

    def _run(self, command: list[str], **more: str) -> tuple[int | None, str]:
        """(exit code, end of the output); no code where the limit of time was reached."""
        data = os.environ.get("FANRANK_DATA") or str(ROOT.parent / "shared" / "data")
        own = {"PYTHONPATH": str(self.copy / "src"), "FANRANK_DATA": data, "FANRANK_MUTANTS": "1"}
        environment = {**os.environ, **own, "XDG_CACHE_HOME": str(self.copy / "build" / "cache"), **more}
        try:
            done = subprocess.run(
                command, cwd=self.copy, env=environment, capture_output=True, text=True, errors="replace", timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            return None, ""
        return done.returncode, " | ".join((done.stdout + done.stderr).strip().splitlines()[-6:])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.extended.planted", description="Which faults tests catch.")
    parser.add_argument("names", nargs="*", help="parts of the names, or of the files, of the faults")
    parser.add_argument("--part", default="0/1", help="N/M: part N of M")
    options = parser.parse_args()
    faults, checkout, caught = choose_faults(options.part, options.names), Checkout(), 0
    for fault in faults:
        status, detail = checkout.plant(fault)
        caught += status == CAUGHT
        print(f"{status:<14}  {fault.name} ({fault.file}): {fault.test}  {detail}", flush=True)
    print(f"{caught} of {len(faults)} caught")
    return int(caught != len(faults))


if __name__ == "__main__":
    sys.exit(main())
