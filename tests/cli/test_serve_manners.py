"""How `fanrank serve`, `fanrank keys` and `fanrank mcp` begin, fail and end: in a line that says what to do."""

from __future__ import annotations

import builtins
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commands import fails, run

import fanrank
import fanrank as fr
from fanrank.server.keys import add_key

# A process that was started in a shell's background ignores interrupts, and so do its children.
START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from fanrank.engine.cli.start import main; main()"
)
# The package that this test imports, wherever it is installed from.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(fanrank.__file__).parents[1])}
posix = pytest.mark.skipif(os.name != "posix", reason="signals and rights of POSIX")
# The superuser may read and write every file, but for these capabilities.
BOUND = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", START, *map(str, arguments)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read_line(stream: Any) -> str:
    return str(stream.readline()).rstrip("\n")


def read_json(url: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as answer:
        return json.loads(answer.read())


@posix
def test_the_server_says_where_it_is_and_an_interrupt_ends_it_without_a_word(tmp_path: Path) -> None:
    for memory in (f"{tmp_path / 'memory'}, a new and empty memory,", tmp_path / "memory"):
        with started("serve", tmp_path / "memory", "--port", 0, "--log", "none") as process:
            url = read_line(process.stderr)
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
            assert read_json(f"{url}/v1/health") == {"status": "alive"}
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            rest = process.stdout.read(), process.stderr.read()
            assert rest == ("", f"serves {memory} to everyone on this machine; Ctrl-C ends it\n")


def test_the_server_says_whom_it_serves(tmp_path: Path) -> None:
    add_key(tmp_path / "keys.json", ["*"])
    with started("serve", tmp_path / "memory", "--port", 0, "--keys", tmp_path / "keys.json") as process:
        url = read_line(process.stderr)
        assert read_json(f"{url}/v1/health") == {"status": "alive"}
        process.terminate()
        process.wait(60)
        assert f"to the keys of {tmp_path / 'keys.json'};" in process.stderr.read()


def without(modules: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an extra is not installed: its modules, and what was imported with them, are not there."""
    for name in list(sys.modules):
        if name.startswith("fanrank.server") or name.split(".")[0] in modules:
            monkeypatch.delitem(sys.modules, name)
    # The package keeps its modules as attributes too.
    for name in ("run", "keys", "mcp_run"):
        monkeypatch.delattr(f"fanrank.server.{name}", raising=False)
    whole = builtins.__import__

    def find(name: str, *rest: Any) -> Any:
        if name.split(".")[0] in modules and (len(rest) < 4 or rest[3] == 0):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
        return whole(name, *rest)

    monkeypatch.setattr(builtins, "__import__", find)


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (("serve", "memory"), "uvicorn", "server"),
        (("keys", "add", "keys.json", "--namespace", "*"), "starlette", "server"),
        (("mcp", "memory"), "mcp", "mcp"),
        (("serve", "memory", "--mcp"), "mcp", "mcp"),
    ],
)
def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], module: str, extra: str
) -> None:
    monkeypatch.chdir(tmp_path)
    without([module], monkeypatch)
    assert fails(*arguments) == f"{module} is not installed; run: pip install 'fanrank[{extra}]'"
    assert not any(tmp_path.iterdir())


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = fails("serve", tmp_path / "memory", "--port", port)
    assert answer.startswith(f"127.0.0.1:{port}: cannot be listened on: ")
    assert answer.endswith("; choose another --port (0: a free one)")
    assert not (tmp_path / "memory").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_host_that_others_reach_needs_keys(tmp_path: Path, host: str) -> None:
    assert fails("serve", tmp_path / "memory", "--port", 0, "--host", host) == (
        f"'{host}' ({host}) is reached from other machines: give --keys FILE, which `fanrank keys add` makes, "
        "or serve on 127.0.0.1"
    )
    assert not (tmp_path / "memory").exists()


def test_a_file_of_keys_that_cannot_serve(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    asked = ["serve", tmp_path / "memory", "--port", 0, "--keys", file]
    assert fails(*asked) == f"{file}: is not there; `fanrank keys add` makes it"
    for text, fault in (
        ("{", "is not JSON"),
        ("{}", "is no file of keys; `fanrank keys add` makes one"),
        ('{"format": "fanrank-keys", "version": 2, "keys": []}', "is of version 2, and this fanrank reads version 1"),
    ):
        file.write_text(text)
        file.chmod(0o600)
        assert fails(*asked) == f"{file}: {fault}"
    if os.name == "posix":
        file.chmod(0o622)
        assert fails(*asked) == f"{file}: others than its owner may write it; run: chmod 600"
    assert not (tmp_path / "memory").exists()


@posix
def test_files_of_others(tmp_path: Path) -> None:
    bound = BOUND if os.geteuid() == 0 else []
    if bound and shutil.which("setpriv") is None:
        pytest.skip("the superuser may read and write every file, and setpriv is not here")
    file, folder = tmp_path / "keys.json", tmp_path / "closed"
    add_key(file, ["*"])
    file.chmod(0)
    folder.mkdir(0o500)
    for arguments, fault in (
        (("serve", tmp_path / "memory", "--port", 0, "--keys", file), f"File '{file}' is not readable."),
        (("serve", folder / "memory", "--port", 0), f"{folder / 'memory'}/records.sqlite: Permission denied"),
        (("keys", "add", folder / "keys.json", "--namespace", "*"), "keys.json: cannot be written: Permission denied"),
    ):
        command = [*bound, sys.executable, "-c", START, *map(str, arguments)]
        ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.endswith(f"{fault}\n")
        assert "Traceback" not in ended.stderr


def test_a_directory_that_cannot_serve(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    with fr.Engine.open(memory) as engine:
        engine.add([fr.Record("a", "tea")])
        assert fails("serve", memory, "--port", 0) == (
            f"{memory}: process {os.getpid()} writes to it; there is one writer at a time"
        )
    with closing(sqlite3.connect(memory / "records.sqlite")) as file:
        file.execute("PRAGMA user_version=999")
    assert re.search(
        r"written in format 999, and this fanrank reads up to \d+; upgrade fanrank$",
        fails("serve", memory, "--port", 0),
    )
    (tmp_path / "file").write_text("x")
    assert fails("serve", tmp_path / "file", "--port", 0).endswith("file: not a directory")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("x")
    assert "holds other files" in fails("serve", tmp_path / "other", "--port", 0)


@pytest.mark.parametrize(
    "arguments",
    [("serve", "m", "--port", "x"), ("serve", "m", "--max-k", "0"), ("serve",), ("keys", "add"), ("mcp",)],
)
def test_a_wrong_option_is_no_traceback(arguments: tuple[str, ...]) -> None:
    ended = run(*arguments, code=2)
    assert ended.stderr.startswith("Usage: ")
    assert "--help" in ended.stderr
