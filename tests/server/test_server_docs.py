"""The commands of docs/server.md: what ``curl`` prints is what the page shows.

``...`` stands for any text within a line.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import source
from support.serving import running

import fanrank as fr
from fanrank.server.app import ServerOptions, make_app
from fanrank.server.limits import Limits
from fanrank.server.operations import operations

SHOWN = "$M"
"""The address of the page's commands."""
EXAMPLE = re.compile(r"^(curl .*\n(?:  .*\n)*)((?:# .*\n)+)", re.MULTILINE)


def run_curl(command: str, address: str) -> str:
    """What a command prints, sent to this address. The first waits until the server listens."""
    command = command.replace(SHOWN, address).replace("curl ", "curl --retry 20 --retry-connrefused --retry-delay 1 ")
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_curl_prints_what_the_page_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FANRANK_PROFILE", raising=False)
    page = (Path(source.ROOT) / "docs" / "server.md").read_text(encoding="utf-8")
    examples = EXAMPLE.findall(page)
    assert len(examples) == page.count("\ncurl -s ")
    (tmp_path / "backups").mkdir()
    memory = fr.Engine.open(tmp_path / "memory")
    app = make_app(memory, options=ServerOptions(backups=tmp_path / "backups"))
    with memory, running(app) as address:
        for command, shown in examples:
            pattern = re.escape(shown.strip().removeprefix("# ").replace("\n# ", "\n")).replace(re.escape("..."), ".*")
            printed = run_curl(command, address)
            assert re.fullmatch(pattern, printed), (command, printed)


def test_every_operation_has_a_curl() -> None:
    page = (Path(source.ROOT) / "docs" / "server.md").read_text(encoding="utf-8")
    sent = set()
    for command, _ in EXAMPLE.findall(page):
        method = re.search(r"-X (\w+)", command)
        path = re.search(r"\$M(/[^'\"\s?]*)", command)
        assert path is not None, command
        sent.add((method[1] if method else "POST" if re.search(" (-d|--json) ", command) else "GET", path[1]))
    for operation in operations(Limits()):
        pattern = re.sub(r"\\{\w+\\}", "[^/].*", re.escape(operation.path))
        assert any(method == operation.method and re.fullmatch(pattern, path) for method, path in sent), (
            f"{operation.method} {operation.path}"
        )
