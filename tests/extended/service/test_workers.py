"""`fanrank serve --workers`: workers are killed, and no acknowledged write is lost or unseen."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.threads import PATIENCE, in_threads, until

import fanrank as fr

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")
WORKERS = 3


@contextmanager
def team(path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process that starts the workers, and their address."""
    command = [sys.executable, "-m", "fanrank.engine.cli.start", "serve", str(path), "--port", "0", "--log", "none"]
    process = subprocess.Popen([*command, "--workers", str(WORKERS), *options], stderr=subprocess.PIPE, text=True)
    try:
        yield process, process.stderr.readline().strip()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def workers(process: subprocess.Popen[str]) -> list[int]:
    """The processes of the workers; the one that writes was started before the others of its age."""
    return [int(number) for number in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def up(url: str) -> set[str]:
    """The numbers of the workers that answer."""
    try:
        return set(re.findall(r'fanrank_ready\{worker="(\d)"\} 1', httpx.get(f"{url}/metrics", timeout=PATIENCE).text))
    except httpx.TransportError:
        return set()


def test_killed_workers_lose_nothing_and_come_back(tmp_path: Path) -> None:
    """Writers go on over new connections; each read that begins after an acknowledged write sees it."""
    path, acknowledged, done = tmp_path / "memory", set[str](), []

    def write(url: str, place: int) -> None:
        for number in range(10_000):
            name = f"{place}-{number}"
            try:
                with fr.Client(url, retries=0) as client:
                    client.upsert([fr.Record(name, "green tea")])
                    acknowledged.add(name)
                    assert client.get(name) is not None
            except (fr.errors.ServerError, fr.errors.UnreachableError):
                continue
            if done:
                return

    def kill(process: subprocess.Popen[str], url: str) -> None:
        try:
            for place in (0, -1, 0):
                until(lambda: up(url) == set("012"))
                before, written = workers(process), len(acknowledged)
                os.kill(before[place], signal.SIGKILL)
                until(lambda: before[place] not in workers(process) and len(acknowledged) > written + 5)  # noqa: B023
            until(lambda: up(url) == set("012"))
        finally:
            done.append(True)

    with team(path) as (process, url):
        in_threads(lambda: write(url, 0), lambda: write(url, 1), lambda: kill(process, url))
    with fr.Engine.open(path) as engine:
        assert acknowledged <= {record.id for record in engine.records()}


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    with team(tmp_path / "memory") as (process, url):
        assert up(url) == set("012")
        numbers = workers(process)
        process.kill()
        process.wait()
        until(lambda: not any(Path(f"/proc/{number}/fd").exists() for number in numbers))
    with fr.Engine.open(tmp_path / "memory") as engine:
        assert engine.count() == 0


def test_what_keeps_workers_from_beginning_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fanrank.engine.cli.start", "serve", str(tmp_path / "m"), "--workers", "2"]
    with fr.Engine.open(tmp_path / "m"), team(tmp_path / "other") as (_, url):
        for options, said in (([], "one writer"), (["--shards", "2"], "one engine"), (["--port", url[17:]], "in use")):
            failed = subprocess.run(
                [*command, *(options or ["--port", "0"])], capture_output=True, text=True, timeout=PATIENCE
            )
            assert failed.returncode == 2
            assert said in failed.stderr
            assert failed.stderr.count("\n") == 1
