"""Several processes over one directory: one of them writes, the others read and follow it.

::

    client ─ a socket for each worker ─┬─ worker 0: the engine that writes
                                       └─ worker 1, 2, ...: engines opened with `read_only`
                                                 └─ what may write ─ a socket of this machine ─ worker 0

The process that was started serves nothing. The system deals new connections out to the workers that listen, so one
that died gets none until the one in its place does; writes wait for that. How a request passes through a worker is in
`team.py`.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ..engine.errors import ParameterError, StorageError
from ..engine.settings import WORKER_VARIABLE

PAUSE = 1.0
"""Seconds between two starts of one worker, so that one that cannot start leaves the others the machine."""
KILLED = 0.9
"""Seconds after the time for what is under way in which a worker that has not ended is killed."""
UP = b"u"
Bind = Callable[[], list[socket.socket]]


@dataclass(frozen=True)
class Seat:
    """What a worker gets from the process that started it: numbers of open files, and where the others are reached."""

    number: int
    """0: the one that writes."""
    files: tuple[int, ...]
    """The sockets to listen on."""
    inner: int
    """A socket on which the other workers reach this one."""
    life: int
    """A socket that ends with the process that started the worker."""
    addresses: tuple[str, ...]
    """The inner sockets of all workers."""

    @property
    def writes(self) -> bool:
        return self.number == 0

    @classmethod
    def taken(cls) -> Seat | None:
        """The seat of this process; None where it was not started as a worker. What it starts has none."""
        text = os.environ.pop(WORKER_VARIABLE, None)
        if text is None:
            return None
        fields: dict[str, Any] = json.loads(text)
        fields |= {name: tuple(fields[name]) for name in ("files", "addresses")}
        seat = cls(**fields)
        for number in (*seat.files, seat.inner, seat.life):
            os.set_inheritable(number, False)
        return seat

    def listeners(self) -> list[socket.socket]:
        """The sockets to listen on."""
        return [socket.socket(fileno=number) for number in self.files]

    def inner_socket(self) -> socket.socket:
        """The socket on which the other workers reach this one."""
        return socket.socket(fileno=self.inner)

    def watch(self) -> Callable[[str], None]:
        """Stop this process with the one that started it, and return what tells that one that it serves."""
        life = socket.socket(fileno=self.life)

        def wait() -> None:
            with suppress(OSError):
                life.recv(1)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="fanrank-life", daemon=True).start()
        return lambda url: life.sendall(UP)


class Worker:
    """A process and what it is given, seen by the one that starts it."""

    def __init__(self, number: int, bind: Bind, addresses: tuple[str, ...]) -> None:
        self.number, self.bind, self.addresses = number, bind, addresses
        self.listeners = bind()
        self.inner = socket.socket(socket.AF_UNIX)
        self.inner.bind(addresses[number])
        self.inner.listen(socket.SOMAXCONN)
        self.process: subprocess.Popen[bytes] | None = None
        self.life: socket.socket | None = None
        self.up = False
        self.started = -PAUSE

    def start(self) -> socket.socket:
        """Start the process, and return the socket that says that it serves, and that it ended.

        Raises `StorageError`.
        """
        self.up, self.started = False, time.monotonic()
        self.listeners = self.listeners or self.bind()
        files = tuple(listener.fileno() for listener in self.listeners)
        try:
            if self.life is not None:
                self.life.close()
            self.life, theirs = socket.socketpair()
            seat = Seat(self.number, files, self.inner.fileno(), theirs.fileno(), self.addresses)
            with theirs:
                self.process = subprocess.Popen(
                    # The command as it was given. Python's own options are part of it.
                    [sys.executable, *sys.orig_argv[1:]],
                    env={**os.environ, WORKER_VARIABLE: json.dumps(vars(seat))},
                    pass_fds=(*files, seat.inner, seat.life),
                    # Ctrl-C reaches the process that was started, which stops the workers.
                    start_new_session=True,
                )
        except OSError as error:
            # The machine may have no room for a process just now.
            raise StorageError(f"worker {self.number} cannot be started: {error.strerror or error}") from None
        return self.life

    def close(self) -> None:
        """Listen no more. Whoever waits to be accepted is sent away."""
        for listener in self.listeners:
            listener.close()
        self.listeners = []

    def signal(self, number: int) -> None:
        """Send it a signal, if it is there."""
        if self.process is not None:
            self.process.send_signal(number)


class Supervisor:
    """Starts the workers, starts those anew that die, and stops all.

    `bind` gives the sockets of a worker, bound and not listening yet. `announce` is called once all serve.
    """

    def __init__(self, count: int, bind: Bind, stop_seconds: float, announce: Callable[[], None]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fanrank-"))
        addresses = tuple(str(self.folder / str(number)) for number in range(count))
        self.workers = [Worker(number, bind, addresses) for number in range(count)]
        self.stop_seconds, self.announce = stop_seconds, announce
        self.announced = False
        self.stop_at: float | None = None
        self.selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Serve until a signal. The exit code: 0, or that of a worker that could not begin."""
        before = {number: signal.signal(number, self.stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            # The others open what it has made.
            self.start(self.workers[0])
            code = None
            while code is None:
                code = self.step()
            return code
        finally:
            self.close()
            for number, handler in before.items():
                signal.signal(number, handler)

    def step(self) -> int | None:
        """Wait for something to happen, and do what it asks for; the exit code where that is the end."""
        for key, _ in self.selector.select(PAUSE / 4):
            worker: Worker = key.data
            if worker.life is not None and self.hears(worker.life):
                worker.up = True
            elif (code := self.bury(worker)) is not None:
                return code
        living = [worker for worker in self.workers if worker.process is not None]
        if self.stop_at is not None:
            if time.monotonic() > self.stop_at:
                for worker in living:
                    worker.signal(signal.SIGKILL)
            return None if living else 0
        if self.workers[0].up or self.announced:
            for worker in self.workers:
                if worker.process is None and time.monotonic() >= worker.started + PAUSE:
                    with suppress(StorageError):
                        self.start(worker)
        if not self.announced and all(worker.up for worker in self.workers):
            self.announced = True
            self.announce()
        return None

    def start(self, worker: Worker) -> None:
        self.selector.register(worker.start(), selectors.EVENT_READ, worker)

    @staticmethod
    def hears(life: socket.socket) -> bool:
        """Whether the worker says that it serves, and has not ended."""
        try:
            return life.recv(1) == UP
        except OSError:
            return False

    def bury(self, worker: Worker) -> int | None:
        """Take note that a worker has ended. Its exit code, where it could not even begin."""
        assert worker.process is not None
        assert worker.life is not None
        self.selector.unregister(worker.life)
        worker.life.close()
        code = worker.process.wait()
        worker.process, worker.up = None, False
        worker.close()
        return None if self.announced or self.stop_at is not None else abs(code) or 1

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Stop the workers. A second signal ends all at once."""
        again = self.stop_at is not None
        self.stop_at = self.stop_at or time.monotonic() + self.stop_seconds + KILLED
        for worker in self.workers:
            worker.signal(signal.SIGTERM)
            # Whoever comes now is refused by the system once the worker has closed its own.
            worker.close()
            worker.inner.close()
        if again:
            os._exit(128 + number)

    def close(self) -> None:
        """End whatever is left."""
        for worker in self.workers:
            if worker.process is not None:
                worker.process.kill()
                worker.process.wait()
            worker.close()
            worker.inner.close()
            if worker.life is not None:
                worker.life.close()
        self.selector.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def is_worker() -> bool:
    """Whether this process was started as one of several."""
    return WORKER_VARIABLE in os.environ


def check_workers(sharded: bool) -> None:
    """Raise `ParameterError` where several workers cannot serve the memory."""
    if sharded:
        raise ParameterError("--workers is for the directory of one engine; a sharded memory has one owner")
    if sys.platform != "linux":
        raise ParameterError("--workers needs Linux, which deals connections out to several processes")
