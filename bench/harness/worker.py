"""The worker process of the harness: one peer in its own environment, which reads commands as JSON lines from stdin.

Commands (one object a line, one answer a line; every answer has "ok", and "error" where it is false):
``{"do": "build", "texts": path, "folder", "stop": [words], "threads"}`` -> version, seconds, held_bytes, peak_bytes
``{"do": "store", "texts": path, "folder", "stop", "batch", "most"}`` -> version, records, cpu_seconds
``{"do": "open", "folder", "stop", "options"}`` -> version, mode, import and open, each [ms, CPU ms]
``{"do": "queries", "texts": [...]}`` -> nothing
``{"do": "time", "calls": [[0, 7], [3, 4]], "k"}`` -> ms of each call, CPU ms of each call
``{"do": "answer", "queries": n, "k", "save": path}`` -> nothing; stores documents and scores as npz
"build" reads a text a line, as JSON, while it builds. "held_bytes" is the growth of the process by the build, and
"peak_bytes" the most during it above what was held before. Both are null except on Linux.
"""

import ctypes
import gc
import importlib
import json
import os
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any


def memory(which: str) -> int | None:
    """A figure of this process from /proc, in bytes; None where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{which}:")), None)


def measure_settled() -> int | None:
    """The memory of this process after free memory was returned to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return memory("VmRSS")


def forget_peak() -> None:
    """Reset the peak to what is held now."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class Worker:
    """A peer. The adapter is imported by `build` or `open`, where the import is timed."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.texts: list[str] = []

    def build(self, texts: str, folder: str, stop: list[str], threads: int = 1) -> dict[str, Any]:
        self.peer = importlib.import_module(self.module).Peer(stop)
        before = measure_settled()
        forget_peak()
        start = time.perf_counter()
        with Path(texts).open(encoding="utf-8") as handle:
            self.peer.build(map(json.loads, handle), Path(folder), threads)
        seconds = time.perf_counter() - start
        peak, after = memory("VmHWM"), measure_settled()
        found: dict[str, Any] = {"version": self.peer.version(), "seconds": seconds}
        if before is None or peak is None or after is None:
            return {**found, "held_bytes": None, "peak_bytes": None}
        return {**found, "held_bytes": after - before, "peak_bytes": peak - before}

    def store(self, texts: str, folder: str, stop: list[str], batch: int, most: int) -> dict[str, Any]:
        self.peer = importlib.import_module(self.module).Peer(stop)
        with Path(texts).open(encoding="utf-8") as handle:
            records = [(f"r{number}", json.loads(line)) for number, line in zip(range(most), handle, strict=False)]
        batches = [records[start : start + batch] for start in range(0, len(records), batch)]
        begin = time.process_time()
        self.peer.store(batches, Path(folder))
        spent = time.process_time() - begin
        return {"version": self.peer.version(), "records": len(records), "cpu_seconds": spent}

    def open(self, folder: str, stop: list[str], options: dict[str, Any]) -> dict[str, Any]:
        clock = Clock()
        module = importlib.import_module(self.module)
        imported = clock.lap()
        self.peer = module.Peer(stop, **options)
        mode = self.peer.open(Path(folder))
        return {"import": imported, "open": clock.lap(), "version": self.peer.version(), "mode": mode}

    def queries(self, texts: list[str]) -> dict[str, Any]:
        self.texts = texts
        return {}

    def time(self, calls: list[list[int]], k: int) -> dict[str, Any]:
        asked = [[self.texts[number] for number in call] for call in calls]
        ask = self.peer.ask
        gc.collect()
        clock, laps = Clock(), []
        for texts in asked:
            clock.lap()
            result = ask(texts, k)
            laps.append(clock.lap())
            del result
        return {"ms": [ms for ms, _ in laps], "cpu_ms": [ms for _, ms in laps]}

    def answer(self, queries: int, k: int, save: str) -> dict[str, Any]:
        import numpy as np

        documents, scores = self.peer.arrays(self.peer.ask(self.texts[:queries], k), k)
        np.savez(save, documents=documents, scores=scores)
        return {}


class Clock:
    """Milliseconds since it was last read: of the wall, and of all threads of this process."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def lap(self) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        passed = 1e3 * (wall - self._wall), 1e3 * (cpu - self._cpu)
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return passed


def main() -> None:
    # Peers may print to stdout. So the answers go to a copy of it, and stdout itself goes to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    root = str(Path(__file__).resolve().parents[2])
    sys.path[0] = root
    peers = importlib.import_module("bench.peers")
    # The root holds folders with common package names (kernels, tests). An import must not find them.
    sys.path.remove(root)
    worker = Worker(f"{peers.__name__}.{sys.argv[1]}")
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"ok": True, **getattr(worker, command.pop("do"))(**command)}
        except Exception as error:
            traceback.print_exc()
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
