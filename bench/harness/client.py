"""The parent's end of a worker: it sends one command and waits for one answer, with a limit on the time."""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .environments import PeerError
from .paths import BENCH

ONE_THREAD = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS")
MOST_THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")


class Worker:
    """A peer's process, for the commands of `worker.Worker`. `threads` caps the pools of its libraries."""

    def __init__(
        self,
        python: Path,
        peer: str,
        threads: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        environment = {**os.environ, **(environment or {})}
        if python != Path(sys.executable):
            # What the caller's interpreter imports is of no use to another one.
            environment = {key: value for key, value in environment.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        environment.update(dict.fromkeys(ONE_THREAD, "1"))
        environment.update({name: str(threads) for name in MOST_THREADS})
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("w") as handle:
            self.process = subprocess.Popen(
                [str(python), str(BENCH / "harness" / "worker.py"), peer],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=handle,
                env=environment,
                bufsize=0,
            )

    def ask(self, do: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        """The worker's answer. Raises `PeerError`, and ends the process, if it dies or does not answer in time."""
        assert self.process.stdin is not None
        if self.process.stdin.closed:
            raise PeerError(f"{do}: the worker was ended earlier in this run")
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        except BrokenPipeError:
            raise PeerError(self._death(do)) from None
        answer = json.loads(self._line(do, timeout))
        if not answer["ok"]:
            raise PeerError(f"{do}: {answer['error']}")
        return dict(answer)

    def _line(self, do: str, timeout: float) -> bytes:
        assert self.process.stdout is not None
        received, deadline = b"", time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.close()
                    raise PeerError(f"{do}: no answer in {timeout:.0f} s")
                chunk = os.read(self.process.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise PeerError(self._death(do))
                received += chunk
        return received

    def _death(self, do: str) -> str:
        code = self.process.wait()
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{do}: the worker ended with code {code}" + (f": {lines[-1][:200]}" if lines else "")

    def close(self) -> None:
        """End the process and wait for it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
