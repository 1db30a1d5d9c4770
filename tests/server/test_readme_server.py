"""README's commands of a server, as a reader types them: records go in, a server begins, and curl finds them."""

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

import fanrank

PAGE = (source.ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = "http://127.0.0.1:8765"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_serve_what_was_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "records.jsonl",
        [{"id": "m1", "text": "Error 4711: fixed by a new key"}, {"id": "m2", "text": "tea"}],
    )
    (added,) = re.findall(r"^fanrank (add .*)$", PAGE, re.MULTILINE)
    run(*shlex.split(added))
    ((served, curl),) = re.findall(r"^fanrank (serve .*)\n(curl .*)$", PAGE, re.MULTILINE)
    # The address that the page shows is the one by default.
    assert SHOWN in curl
    assert served == "serve memory/"
    command = [sys.executable, "-m", "fanrank.engine.cli.start", *shlex.split(served), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(fanrank.__file__).parents[1]), "no_proxy": "127.0.0.1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = process.stderr.readline().strip()
            ended = subprocess.run(
                ["bash", "-c", curl.replace(SHOWN, address)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
            )
        finally:
            process.terminate()
    (result,) = json.loads(ended.stdout)["results"]
    assert [hit["id"] for hit in result["hits"]] == ["m1"]
