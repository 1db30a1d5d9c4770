"""Plants faults, one at a time, in a copy of the checkout in ``build/mutants``, and runs their tests on it."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .fault import Fault

ROOT = Path(__file__).resolve().parents[3]
# What is copied: all that a test imports or reads.
FOLDERS = (
    *("engine", "integrations", "kernels", "cpu_fallback", "native", "server", "client", "shards"),
    *("src", "tests", "bench"),
)
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
IGNORED = ("__pycache__", ".cache", ".peers", "*.svg")
# Seconds of a build and of a test. The slowest test of the table takes one minute where nothing else runs.
LIMIT = 600

CAUGHT, SURVIVED, STALE, BROKEN = "caught", "SURVIVED", "does not apply", "broken"
BUILD_KERNELS = "from fanrank.kernels.families import device_search; device_search('cuda-host')"


class Result(NamedTuple):
    """What became of one fault."""

    name: str
    file: str
    test: str
    status: str
    """`CAUGHT`; `SURVIVED`: the test passed; `STALE`: the code is not there; `BROKEN`: nothing was tested."""
    detail: str
    seconds: float

    def __str__(self) -> str:
        line = f"{self.status:<14}  {self.seconds:5.0f} s  {self.name} ({self.file}): {self.test}"
        return line if not self.detail else f"{line}\n    {self.detail}"


class Checkout:
    """A copy of the checkout, into which faults are planted."""

    def __init__(self, root: Path = ROOT, copy: Path | None = None, limit: float = LIMIT) -> None:
        self.root, self.limit = root, limit
        self.copy = copy or root / "build" / "mutants"
        self._libraries = self.copy / "cache"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes off the copy. Raises `SystemExit` where one has it."""
        self.copy.mkdir(parents=True, exist_ok=True)
        with (self.copy / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise SystemExit(f"another process plants faults in {self.copy}") from error
            yield

    def refresh(self) -> None:
        """Copy what has changed. An unchanged file keeps its time, so that its object file stays fresh."""
        if (self.copy / "objects").exists():
            # A run was ended with a fault planted, and objects may be compiled with it.
            shutil.rmtree(self.copy / "objects")
            shutil.rmtree(self.copy / "build", ignore_errors=True)
        for folder in FOLDERS:
            if not (self.root / folder).is_dir():
                continue
            wanted = set(_files(self.root / folder))
            names = {path.relative_to(self.root) for path in wanted}
            for own in _files(self.copy / folder) if (self.copy / folder).is_dir() else ():
                if own.relative_to(self.copy) not in names and own.suffix not in (".so", ".pyd"):
                    own.unlink()
            for path in wanted:
                _copy(path, self.copy / path.relative_to(self.root))
        for name in FILES:
            if (self.root / name).is_file():
                _copy(self.root / name, self.copy / name)
        self._restore_extension()

    def _restore_extension(self) -> None:
        """The extension as the checkout has it, in place of one with a fault."""
        for built in (self.copy / "native").glob("*.so"):
            built.unlink()
        for built in (self.root / "native").glob("*.so"):
            shutil.copy2(built, self.copy / "native" / built.name)

    @contextmanager
    def _planted(self, fault: Fault) -> Iterator[None]:
        """The fault in the copy, then the file as it was.

        Objects compiled with a fault in a file of the extension would look newer than the file, so those from before
        come back: a header with a fault costs one build of all that includes it, not two.
        """
        path, objects = self.copy / fault.file, self.copy / "build"
        kept = self.copy / "objects"
        if fault.builds == "native":
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(objects, kept)
        before, text = path.stat(), path.read_text(encoding="utf-8")
        path.write_text(text.replace(fault.code, fault.fault), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            if fault.builds == "native":
                shutil.rmtree(objects)
                kept.rename(objects)
                self._restore_extension()

    def _build(self) -> str | None:
        """Build the extension as it stands in the copy. Returns what the compiler says where that fails."""
        for built in (self.copy / "native").glob("*.so"):
            built.unlink()
        code, output = self._run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"])
        # The extension is optional, so a build that fails says nothing by its code.
        if code != 0 or not list((self.copy / "native").glob("*.so")):
            return output
        return None

    def plant(self, fault: Fault) -> Result:
        """Plant the fault, run its test, and take the fault out again."""
        start = time.monotonic()
        status, detail = STALE, fault.reason(self.root) or ""
        if not detail and fault.builds == "native" and (message := self._build()) is not None:
            status, detail = BROKEN, f"the extension does not compile without the fault: {message}"
        if not detail:
            with self._planted(fault):
                status, detail = self.test(fault.test, fault.builds, fault.thread_sanitizer)
        return Result(fault.name, fault.file, fault.test, status, detail, time.monotonic() - start)

    def baseline(self, faults: Iterable[Fault]) -> Iterator[Result]:
        """Each test of the faults, which must pass without one."""
        for test, sanitized in sorted({(fault.test, fault.thread_sanitizer) for fault in faults}):
            start = time.monotonic()
            status, detail = self.test(test, None, sanitized)
            if status != SURVIVED:
                yield Result("no fault", "", test, BROKEN, detail or "fails", time.monotonic() - start)

    def test(self, test: str, builds: str | None, sanitized: bool = False) -> tuple[str, str]:
        """(status, detail) of a test on the copy as it is, once what has changed is built."""
        # Of a fault's own library nothing is kept: it would be found by no other.
        libraries = set(self._libraries.rglob("*.so"))
        try:
            return self._test(test, builds, sanitized)
        finally:
            if builds == "cuda-host":
                for library in set(self._libraries.rglob("*.so")) - libraries:
                    library.unlink()

    def _test(self, test: str, builds: str | None, sanitized: bool) -> tuple[str, str]:
        if sanitized:
            script = self.copy / "tests" / "extended" / "sanitizers" / "sanitize.sh"
            code, output = self._run(["bash", str(script), "thread", *test.split()], PYTHON=sys.executable)
            return (SURVIVED, "") if code == 0 else (CAUGHT, "") if code == 1 else (BROKEN, output)
        if builds == "native" and (message := self._build()) is not None:
            return BROKEN, f"the extension does not compile: {message}"
        if builds == "cuda-host":
            code, output = self._run([sys.executable, "-c", BUILD_KERNELS])
            if code != 0:
                return BROKEN, f"the kernels do not compile: {output}"
        options = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", "-p", "no:randomly", "--hypothesis-seed=0"]
        code, output = self._run([sys.executable, "-m", "pytest", *options, *test.split()])
        if code is None:
            return CAUGHT, "by the limit of time"
        if code == 0 and "passed" not in output:
            return BROKEN, f"nothing was tested: {output}"
        if code < 0 and code != -signal.SIGKILL:
            return CAUGHT, f"by signal {-code}, which ended the test"
        return (SURVIVED, "") if code == 0 else (CAUGHT, "") if code == 1 else (BROKEN, output)

    def _run(self, command: list[str], **environment: str) -> tuple[int | None, str]:
        """(exit code, end of the output); no code where the limit of time was reached."""
        data = os.environ.get("FANRANK_DATA") or str(self.root.parent / "shared" / "data")
        own = {
            "PYTHONPATH": str(self.copy / "src"),
            "FANRANK_DATA": data,
            "XDG_CACHE_HOME": str(self._libraries),
            "FANRANK_MUTANTS": "1",
        }
        try:
            done = subprocess.run(
                command,
                cwd=self.copy,
                env={**os.environ, **own, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=self.limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"more than {self.limit:.0f} s"
        return done.returncode, " | ".join(done.stdout.strip().splitlines()[-6:])


def _files(folder: Path) -> Iterator[Path]:
    ignore = shutil.ignore_patterns(*IGNORED, "*.so", "*.pyd")
    for where, folders, names in os.walk(folder):
        left_out = ignore(where, [*folders, *names])
        folders[:] = [name for name in folders if name not in left_out and not (Path(where) / name).is_symlink()]
        links = [name for name in os.listdir(where) if (Path(where) / name).is_symlink()]
        yield from (Path(where) / name for name in sorted({*names, *links} - left_out))


def _copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        if not target.is_symlink():
            target.symlink_to(os.readlink(path))
    elif not target.exists() or target.read_bytes() != path.read_bytes():
        shutil.copy2(path, target)
