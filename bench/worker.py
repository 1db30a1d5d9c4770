"""The child of the harness: one peer, in its own environment, obeying JSON lines on stdin.

Commands (one object a line, one answer a line; every answer has "ok", and "error" where it is false):
``{"do": "load", "corpus": folder, "scratch": folder}`` -> version, queries
``{"do": "build"}`` -> seconds, index_bytes
``{"do": "search", "k", "threads", "phase", "options", "queries": n, "loops": m, "save": path?}`` -> seconds, cpu
("search" runs the first n queries m times inside one clock; with "save" it stores documents and scores as npz).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any


class Worker:
    def __init__(self, peer: Any) -> None:
        self.peer = peer
        self.prepared: tuple[tuple[int, str], Any] | None = None

    def load(self, corpus: str, scratch: str) -> dict[str, Any]:
        from bench.corpora import load

        tokens = load(Path(corpus))
        Path(scratch).mkdir(parents=True, exist_ok=True)
        self.peer.load(tokens, Path(scratch))
        return {"version": self.peer.version(), "queries": tokens.queries}

    def build(self) -> dict[str, Any]:
        gc.collect()
        start = time.perf_counter()
        self.peer.build()
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "index_bytes": int(self.peer.index_bytes())}

    def search(
        self,
        k: int,
        threads: int,
        phase: str,
        options: dict[str, Any],
        queries: int,
        loops: int = 1,
        save: str | None = None,
    ) -> dict[str, Any]:
        if self.prepared is None or self.prepared[0] != (queries, phase):
            self.prepared = ((queries, phase), self.peer.prepare(slice(0, queries), phase))
        prepared = self.prepared[1]
        search = self.peer.search
        gc.collect()
        cpu, start = time.process_time(), time.perf_counter()
        for _ in range(loops):
            result = search(prepared, k, threads, phase, options)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        if save:
            import numpy as np

            documents, scores = self.peer.arrays(result, k)
            np.savez(save, documents=documents, scores=scores)
        return {"seconds": seconds, "cpu": cpu}


def main() -> None:
    # Peers print to stdout; the answers go to a copy of it, and stdout itself to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    root = str(Path(__file__).resolve().parents[1])
    sys.path[0] = root
    peers = importlib.import_module("bench.peers")
    # The root holds folders named like other people's packages (kernels, tests); they must not be found by name.
    sys.path.remove(root)
    worker: Worker | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if worker is None:
                worker = Worker(importlib.import_module(f"{peers.__name__}.{sys.argv[1]}").Peer())
            answer = {"ok": True, **getattr(worker, command.pop("do"))(**command)}
        except Exception as error:
            traceback.print_exc()
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
