"""A cluster of Ray that others started, and a process that opens a memory there."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fanrank

STARTING = 120.0
"""Seconds in which a cluster must be up, on a machine with more work than cores."""

STARTS = 3
"""How often a client may come. Ray gives the server that it starts for a client half a minute, whatever the load."""

SPACES = ("big", "team/a", "team/b")
RECORDS = [(f"r{n}", ("ant", "ant bee", "bee cat")[n % 3], SPACES[n % 3]) for n in range(30)]


@dataclass(frozen=True)
class Existing:
    """Where a cluster listens, and the environment of processes that may use it."""

    address: str
    client: str
    environment: dict[str, str]

    def drive(self, address: str, folder: Path, *more: str, **environment: str) -> dict[str, Any]:
        """What a process of its own finds that opens a memory at an address. `more` are steps of `main`."""
        command = [sys.executable, __file__, address, str(folder), *more]
        for _ in range(STARTS):
            told = subprocess.run(command, capture_output=True, text=True, env={**self.environment, **environment})
            assert told.returncode == 0, told.stderr[-4000:]
            found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
            if "Starting Ray client server failed" not in found.get("message", ""):
                break
        return found


@contextmanager
def existing() -> Iterator[Existing]:
    """A cluster of two cores on this machine, as ``ray start --head`` starts one."""
    folder = tempfile.mkdtemp(prefix="fanrank-")  # of a short path, as sockets lie below
    ports = [_free_port() for _ in range(2)]
    environment = {
        **os.environ,
        # As Ray does where there is a token; the one of this machine's user is not touched.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "0" * 32,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": str(Path(fanrank.__file__).parent.parent),
    }
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=2"),
        *("--include-dashboard=false", f"--port={ports[0]}", f"--ray-client-server-port={ports[1]}"),
        *(f"--temp-dir={folder}", "--object-store-memory=80000000"),
    ]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for port in ports:
            _wait_for(port, process)
        yield Existing(f"127.0.0.1:{ports[0]}", f"ray://127.0.0.1:{ports[1]}", environment)
    finally:
        process.terminate()  # with --block, it ends all processes of the cluster
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + STARTING
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError:  # noqa: PERF203
            if time.monotonic() > end or process.poll() is not None:
                raise
            time.sleep(0.1)


def main(address: str, folder: str, *steps: str) -> dict[str, Any]:
    """Open the memory of a folder at an address, and use it. Says what it found.

    With the step ``leave`` the process ends without closing the memory; with ``version`` it says that its Ray is
    another one.
    """
    import ray

    import fanrank as fr
    from fanrank.shards.processes.cluster import ActorLink

    if "version" in steps:
        ray.__version__ = "2.99.0"
    try:
        memory = fr.ShardedEngine.open(folder, shards=2, address=address, deadline=STARTING)
    except fr.FanrankError as error:
        return {"error": type(error).__name__, "message": str(error)}
    queries = [fr.Query(text, namespace=space) for text in ("ant", "bee cat") for space in SPACES]

    def answers(engine: fr.Engine | fr.ShardedEngine) -> Any:
        hits = engine.search(queries)
        return [hits.ids.tolist(), [[score.hex() for score in row] for row in hits.scores.tolist()]]

    one = fr.Engine()
    one.add([fr.Record(*row) for row in RECORDS])
    found: dict[str, Any] = {"before": len(memory)}
    memory.upsert([fr.Record(*row) for row in RECORDS])
    memory.coordinator.place("big", (0, 1))
    found["moved"] = answers(memory) == answers(one)
    link = memory.coordinator.links[0]
    assert isinstance(link, ActorLink)
    os.kill(link.process(time.monotonic() + STARTING), 9)
    found["killed"] = answers(memory) == answers(one)
    if "leave" in steps:
        print(json.dumps(found), flush=True)
        os._exit(0)
    memory.close()
    return found


def left_of(address: str) -> dict[str, Any]:
    """What there is in a cluster."""
    import ray

    ray.init(address, log_to_driver=False, logging_level="ERROR")
    actors = [each["State"] for each in ray._private.state.actors().values()]
    free, all_of_it = ray.available_resources(), ray.cluster_resources()
    return {"actors": actors, "held": [name for name in all_of_it if free.get(name) != all_of_it[name]]}


if __name__ == "__main__":
    if sys.argv[2] == "left":
        print(json.dumps(left_of(sys.argv[1])))
    else:
        print(json.dumps(main(*sys.argv[1:])))
