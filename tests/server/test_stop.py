"""A server that stops under load loses no acknowledged write, answers or refuses who waits, and ends in time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.live import message, read_all
from support.threads import until

import fanrank as fr

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

WRITERS, SEARCHERS, ENOUGH = 3, 2, 20
"""Clients, and how many writes are acknowledged before the server is asked to stop."""
PATIENCE = 300
"""Seconds that the test waits for what must happen."""


@contextmanager
def process_of(path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`fanrank serve` of a directory, and its port."""
    command = [sys.executable, "-m", "fanrank.engine.cli.start", "serve", str(path), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process, int(process.stderr.readline().strip().rpartition(":")[2])
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


class Load:
    """Clients that write and search until the server is gone."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acknowledged: list[str] = []
        self.begun: set[str] = set()
        self.answers: Counter[str] = Counter()
        self.faults: list[BaseException] = []
        self.enough = threading.Event()
        self.threads = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]
        self.threads += [threading.Thread(target=self._search) for _ in range(SEARCHERS)]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def _until_refused(self, ask: object) -> None:
        assert callable(ask)
        try:
            with fr.Client(self.url, retries=0) as client:
                for number in range(100_000):
                    ask(client, number)
        except fr.errors.ServerError as error:
            self.answers[error.code] += 1
        except fr.errors.UnreachableError:
            self.answers["unreachable"] += 1
        except BaseException as error:
            self.faults.append(error)

    def _write(self, place: int) -> None:
        def write(client: fr.Client, number: int) -> None:
            name = f"{place}-{number}"
            self.begun.add(name)
            client.add([fr.Record(name, "green tea")])
            self.acknowledged.append(name)
            if len(self.acknowledged) >= ENOUGH:
                self.enough.set()

        self._until_refused(write)

    def _search(self) -> None:
        def search(client: fr.Client, number: int) -> None:
            client.search(["tea", f"tea {number}"])
            self.answers["answered"] += 1

        self._until_refused(search)


def test_a_stop_under_load_loses_no_acknowledged_write(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    with process_of(path) as (process, port), Load(f"http://127.0.0.1:{port}") as load:
        assert load.enough.wait(PATIENCE)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert load.faults == []
    assert load.answers["answered"] > 0
    # A request that came in time is answered; a later one is refused by name, or finds no server.
    assert set(load.answers) <= {"answered", "StoppingError", "unreachable"}
    with fr.Engine.open(path) as engine:
        kept = {record.id for record in engine.records()}
    assert set(load.acknowledged) <= kept <= load.begun


HANGING = {
    "nothing": b"",
    "half a head": b"GET /v1/stats HTTP/1.1\r\nHost: loc",
    "half a body": message(b'{"query": "tea"}')[:-3],
    "an open connection": message(b'{"query": "tea"}', close=False),
    "answers that are not read": message(
        b'{"k": 200, "texts": true, "queries": [' + b'"tea",' * 255 + b'"tea"]}', close=False
    )
    * 4,
}


def test_clients_that_hang_do_not_hold_up_the_stop(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    with fr.Engine.open(path) as engine:
        engine.add([fr.Record(str(place), f"tea {'x' * 200} {place}") for place in range(200)])
    patient = [option for part in ("head", "body", "answer") for option in (f"--max-{part}-seconds", "900")]
    with process_of(path, "--max-stop-seconds", "1", *patient) as (process, port):
        held = []
        for sent in HANGING.values():
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.connect(("127.0.0.1", port))
            connection.sendall(sent)
            held.append(connection)
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as asked:
            asked.sendall(message(b'{"query": "tea"}'))
            assert read_all(asked).startswith(b"HTTP/1.1 200")
        process.send_signal(signal.SIGTERM)
        # The rest of a body may take 15 minutes, and so may the reading of an answer: neither is waited for.
        assert process.wait(PATIENCE) == 0
        for connection in held:
            connection.close()
    with fr.Engine.open(path) as engine:
        assert engine.count() == 200


def ready(port: int) -> int:
    """The status of the server's readiness."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(b"GET /v1/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return int(read_all(connection).split()[1])


def test_a_second_signal_ends_the_process_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    """The first one waits for a body that is under way."""
    with process_of(tmp_path / "memory") as (process, port):
        with fr.Client(f"http://127.0.0.1:{port}") as client:
            client.add([fr.Record("a", "tea")])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as waiting:
            waiting.sendall(message(b"{}")[:-1])
            # This answer comes after the server began to wait for the body.
            assert ready(port) == 200
            process.send_signal(signal.SIGTERM)
            until(lambda: ready(port) == 503)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    with fr.Engine.open(tmp_path / "memory") as engine:
        assert engine.count() == 1
