"""`fanrank serve` and `fanrank mcp` from the command line: what they open, and what they print."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import source

COMMAND = [sys.executable, "-m", f"{source.PACKAGE}.engine.cli.start"]


@contextmanager
def serving(*arguments: str | Path) -> Iterator[str]:
    """The address that the command prints. It ends with the block, by the signal of Ctrl-C, without an error."""
    command = [*COMMAND, *map(str, arguments), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield json.loads(line)["url"]
            process.send_signal(2)
            rest, errors = process.communicate(timeout=60)
            assert (process.returncode, rest) == (0, "")
            # A line for each request, and no error.
            assert all(" INFO " in line for line in errors.splitlines()), errors
        finally:
            process.kill()


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)


def wait_until_ready(url: str) -> None:
    """Until the index is there. Before that, a scan for keywords answers."""
    for _ in range(600):
        if is_ready(url):
            return
        time.sleep(0.1)
    raise AssertionError("the server was not ready within a minute")


def is_ready(url: str) -> bool:
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/v1/ready", timeout=60).close()
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return False
    return True


def test_a_new_directory_has_the_options_of_the_command(tmp_path: Path) -> None:
    search = {"query": {"text": "tea", "filter": {"project": "atlas"}}, "k": 5}
    records = [{"id": name, "text": "tea", "extra": {"project": name}} for name in ("atlas", "other")]
    with serving("serve", tmp_path / "memory", "--column", "project:category", "--k1", "0.9") as url:
        assert post(f"{url}/v1/records", {"records": records}) == {"written": 2}
        first = post(f"{url}/v1/search", search)
    # They are kept with the directory.
    with serving("serve", tmp_path / "memory") as url:
        wait_until_ready(url)
        assert post(f"{url}/v1/search", search)["results"] == first["results"]
    assert [hit["id"] for hit in first["results"][0]["hits"]] == ["atlas"]


def test_a_sharded_memory_is_made_and_served(tmp_path: Path) -> None:
    search = {"queries": ["tea", {"text": "tea", "under": "users"}], "k": 5}
    records = [{"id": f"r{number}", "text": "tea", "namespace": f"users/u{number % 3}"} for number in range(9)]
    local = "--transport", "local"
    with serving("serve", tmp_path / "memory", "--shards", "2", *local) as url:
        assert post(f"{url}/v1/records", {"records": records}) == {"written": 9}
        first = post(f"{url}/v1/search", search)
    assert (tmp_path / "memory" / "shard-0001").is_dir()
    with serving("serve", tmp_path / "memory", "--replicas", "2", *local) as url:
        assert is_ready(url)
        for _ in range(3):  # the replicas of a shard take turns
            assert post(f"{url}/v1/search", search)["results"] == first["results"]
    assert len(first["results"][1]["hits"]) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "memory", "--k1", "-1"], "k1 must lie in"),
        (["serve", "memory", "--address", "auto"], "is no sharded memory, for which --address is"),
        (["serve", "memory", "--replicas", "2"], "is no sharded memory, for which --replicas is"),
        (["serve", "memory", "--embeddings", "cache.db"], "--embeddings keeps what --encoder makes"),
    ],
)
def test_a_mistake_is_one_line_and_makes_nothing(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = subprocess.run([*COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
