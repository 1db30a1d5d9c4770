"""Kills a server with SIGKILL in the middle of its clients' writes, and holds what comes back against what it said.

The promise: every write that was acknowledged is there after a restart, and no write is there by half. ``python -m
tests.support.serve_kills --rounds 100 --seed 1``.

A round is one directory. Its server is killed several times; each life has clients on threads, which add, upsert and
delete whole batches in namespaces of their own and note what was acknowledged. After each kill another server opens the
directory, and what it gives is compared: the state after the acknowledged writes, or that and the one write in flight.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import fanrank as fr

LIVES = 2
CLIENTS = 4
PATIENCE = 300.0
"""Seconds after which a server that does not come up counts as hung. On a machine with ten times more work than cores
60 were too few: a start takes 2 s of a core, and was killed as hung.
"""
LIVE_WRITES, LATER = (1, 60), 0.02
"""A life ends once its clients have so many writes acknowledged, and up to so many seconds later."""
FOLDER = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
"""A kill loses no written page, be there a disk below or not."""
SERVER = """
import socket, sys, time, uvicorn
import fanrank as fr
from fanrank.server.app import make_app
listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
listening.bind(("127.0.0.1", 0))
listening.listen(2048)
began = time.perf_counter()
with fr.Engine.open(sys.argv[1]) as engine:
    print(listening.getsockname()[1], time.perf_counter() - began, flush=True)
    server = uvicorn.Server(uvicorn.Config(make_app(engine), log_level="critical", access_log=False))
    server.run(sockets=[listening])
"""

Texts = dict[str, str]
"""Records by id: their texts."""


class Broken(Exception):
    """The promise does not hold."""


class Server:
    """A server's process over a directory. `seconds` of them the engine took to open it."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", SERVER, str(path)], stdout=subprocess.PIPE, text=True)
        hung = threading.Event()

        def give_up() -> None:
            hung.set()
            self.process.kill()

        timer = threading.Timer(PATIENCE, give_up)
        timer.start()
        assert self.process.stdout is not None
        said = self.process.stdout.readline().split()
        timer.cancel()
        if not said:
            self.end()
            how = f"was killed after {PATIENCE:g} s" if hung.is_set() else f"ended with {self.process.returncode}"
            raise Broken(f"the server did not open {path}: it {how}")
        self.url = f"http://127.0.0.1:{said[0]}"
        self.seconds = float(said[1])

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Let the process end, by force if it still runs."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@dataclass
class Writer:
    """One client: its namespace, what was acknowledged, and the write in flight."""

    name: str
    seed: str
    acknowledged: Texts = field(default_factory=dict)
    in_flight: Texts | None = None
    writes: int = 0
    error: BaseException | None = None

    def run(self, url: str) -> None:
        """Write until the server is gone."""
        made = random.Random(f"{self.seed} {self.writes}")
        try:
            with fr.Client(url, retries=0) as client:
                memory = client.namespace(self.name)
                while True:
                    self._write(memory, made)
        except fr.errors.UnreachableError:
            return
        except BaseException as error:
            self.error = error

    def _write(self, memory: fr.Client, made: random.Random) -> None:
        following, number = dict(self.acknowledged), self.writes
        verb = made.choice(("add", "add", "upsert", "delete")) if following else "add"
        if verb == "delete":
            ids = made.sample(sorted(following), min(len(following), made.randint(1, 5)))
            for name in ids:
                del following[name]
            self.in_flight = following
            memory.delete(ids)
        else:
            names = [f"{number}-{place}" for place in range(made.randint(1, 20))]
            if verb == "upsert":
                names += made.sample(sorted(following), min(len(following), 5))
            rows = [{"id": name, "text": f"write {number} of {self.name}"} for name in names]
            following |= {row["id"]: row["text"] for row in rows}
            self.in_flight = following
            (memory.add if verb == "add" else memory.upsert)(rows)
        self.acknowledged, self.in_flight, self.writes = following, None, number + 1

    def check(self, url: str) -> None:
        """Compare what the server has with what it acknowledged. Raises `Broken`."""
        with fr.Client(url) as client:
            found = {record.id: record.text for record in client.namespace(self.name).records()}
        if found != self.acknowledged and found != self.in_flight:
            lost = sorted(self.acknowledged.items() - found.items())[:3]
            more = sorted(found.items() - self.acknowledged.items())[:3]
            raise Broken(f"{self.name} after {self.writes} writes: lost {lost}, unexpected {more}, or half of a write")
        # The write in flight is done or not; its number is not used again either way.
        self.acknowledged, self.in_flight, self.writes = found, None, self.writes + 1


@dataclass
class Round:
    """What a round did."""

    kills: int = 0
    acknowledged: int = 0
    in_flight: int = 0
    recovery: list[float] = field(default_factory=list)
    """Seconds in which the engine opened the directory after each kill."""


def run_round(seed: int, number: int, lives: int = LIVES) -> Round:
    """One directory and its kills. Raises `Broken`."""
    made, done = random.Random(f"{seed} {number}"), Round()
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        path = Path(folder) / "memory"
        writers = [Writer(f"tenants/{place}", f"{seed} {number} {place}") for place in range(CLIENTS)]
        server = Server(path)
        try:
            for _ in range(lives):
                _live(server, writers, made.randint(*LIVE_WRITES), made.uniform(0.0, LATER))
                done.kills += 1
                done.in_flight += sum(writer.in_flight is not None for writer in writers)
                server = Server(path)
                done.recovery.append(server.seconds)
                for writer in writers:
                    if writer.error is not None:
                        raise Broken(f"a write failed: {writer.error}") from writer.error
                    writer.check(server.url)
        finally:
            server.end()
        done.acknowledged = sum(writer.writes for writer in writers) - done.kills * len(writers)
    return done


def _live(server: Server, writers: Sequence[Writer], writes: int, later: float) -> None:
    """Let the clients write, and kill the server `later` seconds after so many of their writes."""
    threads = [threading.Thread(target=writer.run, args=(server.url,)) for writer in writers]
    before, until = sum(writer.writes for writer in writers), time.monotonic() + PATIENCE
    for thread in threads:
        thread.start()
    while sum(writer.writes for writer in writers) < before + writes and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(later)
    server.kill()
    for thread in threads:
        thread.join()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds and print what they did. Returns 1 if one of them broke the promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.serve_kills")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lives", type=int, default=LIVES, help="kills of a round")
    options = parser.parse_args(arguments)
    rounds, broken = [], 0
    for number in range(options.rounds):
        try:
            rounds.append(run_round(options.seed, number, options.lives))
        except Broken as error:  # noqa: PERF203 each round is judged by itself
            broken += 1
            print(f"round {number}: {error}", file=sys.stderr)
    recovery = sorted(seconds for one in rounds for seconds in one.recovery)
    told = {
        "rounds": options.rounds,
        "broken": broken,
        "kills": sum(one.kills for one in rounds),
        "acknowledged_writes": sum(one.acknowledged for one in rounds),
        "writes_in_flight": sum(one.in_flight for one in rounds),
        "recovery_seconds_median": recovery[len(recovery) // 2] if recovery else None,
        "recovery_seconds_most": recovery[-1] if recovery else None,
    }
    print(json.dumps(told))
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
