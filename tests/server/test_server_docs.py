"""The commands of docs/server.md and of the README: what ``curl`` prints is what the page shows.

``...`` stands for any text within a line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import source
from support.commands import run, write
from support.serving import served

import fanrank as fr
from fanrank.server.limits import Limits
from fanrank.server.operations import operations

SHOWN = "http://127.0.0.1:8765"
"""The address of the page's commands."""
README = (source.ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"```sh\n(curl.*?)```\n\n```json\n(.*?)```\n", re.DOTALL)


def run_curl(command: str, address: str) -> str:
    """What a command prints, sent to this address. The first waits until the server listens."""
    command = command.replace(SHOWN, address).replace("curl ", "curl --retry 20 --retry-connrefused --retry-delay 1 ")
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_curl_prints_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FANRANK_PROFILE", raising=False)
    page = (Path(source.ROOT) / "docs" / "server.md").read_text(encoding="utf-8")
    examples = EXAMPLE.findall(page)
    assert len(examples) == page.count("```sh\ncurl ")
    with served(fr.Engine()) as address:
        for command, shown in examples:
            pattern = re.escape(shown.strip()).replace(re.escape("..."), ".*")
            printed = run_curl(command, address)
            assert re.fullmatch(pattern, printed), (command, printed)


def test_every_operation_has_a_curl() -> None:
    page = (Path(source.ROOT) / "docs" / "server.md").read_text(encoding="utf-8")
    sent = set()
    for command, _ in EXAMPLE.findall(page):
        method = re.search(r"-X (\w+)", command)
        path = re.search(r"8765(/[^'\"\s?]*)", command)
        assert path is not None, command
        sent.add((method[1] if method else "POST" if " -d " in command else "GET", path[1]))
    for operation in operations(Limits()):
        pattern = re.sub(r"\\{\w+\\}", "[^/].*", re.escape(operation.path))
        assert any(method == operation.method and re.fullmatch(pattern, path) for method, path in sent), (
            f"{operation.method} {operation.path}"
        )


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_serve_what_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "records.jsonl",
        [{"id": "m1", "text": "Error 4711: fixed by a new key"}, {"id": "m2", "text": "tea"}],
    )
    (added,) = re.findall(r"^fanrank (add .*)$", README, re.MULTILINE)
    run(*shlex.split(added))
    ((served, curl),) = re.findall(r"^fanrank (serve .*)\n(curl .*)$", README, re.MULTILINE)
    # The address that the page shows is the one by default.
    assert SHOWN in curl
    assert served == "serve memory/"
    command = [sys.executable, "-m", "fanrank.engine.cli.start", *shlex.split(served), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(fr.__file__).parents[1]), "no_proxy": "127.0.0.1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = process.stderr.readline().strip()
            ended = subprocess.run(
                ["bash", "-c", curl.replace(SHOWN, address)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
            )
        finally:
            process.terminate()
    (result,) = json.loads(ended.stdout)["results"]
    assert [hit["id"] for hit in result["hits"]] == ["m1"]
