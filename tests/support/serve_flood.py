"""Sends a server 10,000 requests at once, each on a connection of its own: ``python -m tests.support.serve_flood``.

The server is a process of `fanrank serve` with a directory of `--records` records. Prints what the clients met, how
long they waited, and the server's resident memory before, at its most and after; then whether it still answers. All
is bounded: `--requests` requests, and `--seconds` for all of them together.
"""

from __future__ import annotations

import argparse
import json
import random
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fanrank as fr

WORDS = 2_000
RECORDS, REQUESTS, SECONDS, QUERIES = 20_000, 10_000, 240.0, 1
MIB = 1 << 20


@dataclass
class Seen:
    """What the clients met: statuses, or the kind of error where there was none, and the milliseconds of each."""

    answers: Counter[str] = field(default_factory=Counter)
    milliseconds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, kind: str, milliseconds: float) -> None:
        self.answers[kind] += 1
        self.milliseconds.setdefault(kind, []).append(milliseconds)

    def to_dict(self) -> dict[str, Any]:
        return {
            kind: {
                "requests": count,
                "p50_ms": round(share_of(self.milliseconds[kind], 0.5), 1),
                "p99_ms": round(share_of(self.milliseconds[kind], 0.99), 1),
                "most_ms": round(max(self.milliseconds[kind]), 1),
            }
            for kind, count in sorted(self.answers.items())
        }


def share_of(values: Sequence[float], share: float) -> float:
    """The value below which this share of them lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def make_request(seed: int, queries: int) -> bytes:
    """A search of a few words as it goes over the wire."""
    made = random.Random(seed)
    asked = [" ".join(f"w{made.randrange(WORDS)}" for _ in range(4)) for _ in range(queries)]
    body = json.dumps({"queries": asked, "k": 10}).encode()
    head = "POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def flood(port: int, requests: Sequence[bytes], seconds: float) -> Seen:
    """Open a connection for each request, all at once, and send it as soon as the connection stands.

    Without asyncio: its clients take seconds from the connection to the request, and count as slow.
    """
    seen, until = Seen(), time.perf_counter() + seconds
    with selectors.DefaultSelector() as selector:
        for sent in requests:
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", port))
            selector.register(connection, selectors.EVENT_WRITE, Waiting(connection, sent, time.perf_counter()))
        while selector.get_map() and (left := until - time.perf_counter()) > 0:
            for key, _ in selector.select(left):
                one: Waiting = key.data
                kind = one.advance()
                if kind is not None:
                    selector.unregister(one.connection)
                    one.end(kind, seen)
                elif one.sent:
                    selector.modify(one.connection, selectors.EVENT_READ, one)
        for key in list(selector.get_map().values()):
            key.data.end("no answer", seen)
    return seen


@dataclass
class Waiting:
    """A connection, the request that it sends, and the beginning of its answer."""

    connection: socket.socket
    request: bytes
    began: float
    sent: bool = False
    answer: bytes = b""

    def advance(self) -> str | None:
        """Send the request, or read of the answer. Returns what came in the end, at the end."""
        try:
            if not self.sent:
                self.connection.send(self.request)
                self.sent = True
                return None
            part = self.connection.recv(65_536)
        except OSError as error:
            return type(error).__name__
        self.answer = (self.answer + part)[:16]
        return None if part else self.answer[9:12].decode() or "closed"

    def end(self, kind: str, seen: Seen) -> None:
        seen.add(kind, (time.perf_counter() - self.began) * 1e3)
        self.connection.close()


def memory_of(pid: int) -> dict[str, int]:
    """MiB of a process: `resident` now, and `most` so far. Linux."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return {"resident": int(sizes["VmRSS"]) * 1024 // MIB, "most": int(sizes["VmHWM"]) * 1024 // MIB}


def run(records: int, requests: int, queries: int, seconds: float, options: Sequence[str] = ()) -> dict[str, Any]:
    """Flood a server of its own, and say what was seen."""
    import resource  # not on Windows

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    made = random.Random(0)
    sent = [make_request(seed, queries) for seed in range(requests)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory"
        with fr.Engine.open(path) as engine:
            engine.add(
                fr.Record(str(place), " ".join(f"w{made.randrange(WORDS)}" for _ in range(30)))
                for place in range(records)
            )
        command = [sys.executable, "-m", "fanrank.engine.cli.start", "serve", str(path), "--port", "0", *options]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            port = int(process.stderr.readline().strip().rpartition(":")[2])
            flood(port, sent[:50], seconds)
            before = memory_of(process.pid)
            began = time.perf_counter()
            seen = flood(port, sent, seconds)
            took = time.perf_counter() - began
            after = memory_of(process.pid)
            again = flood(port, sent[:50], seconds)
            return {
                "records": records,
                "requests": requests,
                "queries_a_request": queries,
                "seconds": round(took, 2),
                "answers": seen.to_dict(),
                "memory_before_mib": before["resident"],
                "memory_after_mib": after["resident"],
                "memory_most_mib": after["most"],
                "answers_afterwards": again.to_dict(),
            }
        finally:
            process.terminate()
            try:
                process.wait(60)
            finally:
                process.kill()
                process.wait()
                if process.stderr is not None:
                    process.stderr.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the flood and print what it met. Returns 1 where the server failed, or does not answer afterwards."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.serve_flood")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--queries", type=int, default=QUERIES, help="queries of a request")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("options", nargs="*", help="options of fanrank serve, after --")
    given = parser.parse_args(arguments)
    told = run(given.records, given.requests, given.queries, given.seconds, given.options)
    print(json.dumps(told))
    fine = set(told["answers"]) <= {"200", "503"} and set(told["answers_afterwards"]) == {"200"}
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
