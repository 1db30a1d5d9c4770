"""How `fanrank serve`, `fanrank keys` and `fanrank mcp` begin, fail and end: in a line that says what to do."""

import builtins
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commands import ENVIRONMENT, START, fails, run, write

import fanrank as fr
from fanrank.server.keys import add_key

posix = pytest.mark.skipif(os.name != "posix", reason="signals and rights of POSIX")


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", START, *map(str, arguments), "--port", "0"]
    with subprocess.Popen(command, env=ENVIRONMENT, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """End a server, which must exit with 0 and print nothing more than it returns, on standard error."""
    process.send_signal(number)
    rest, said = process.communicate(timeout=300)
    assert (process.returncode, rest) == (0, "")
    return said


@posix
def test_a_directory_is_served_as_it_was_made_and_the_server_says_where_and_to_whom(tmp_path: Path) -> None:
    memory, keys = tmp_path / "memory", tmp_path / "keys.json"
    query = fr.Query("tea", filter={"project": "atlas"})
    options = write(tmp_path / "options.json", [{"log": "none", "column": ["project:category"], "k1": 0.5}])
    with started("serve", memory, "--config", options, "--k1", "0.9") as process:
        url = process.stderr.readline().rstrip("\n")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        # Both lines are read alike: what one reader has buffered is lost to another.
        assert process.stderr.readline() == (
            f"serves {memory}, a new and empty memory, to everyone on this machine; Ctrl-C ends it\n"
        )
        with fr.Client(url) as client:
            client.add([fr.Record(name, "tea", extra={"project": name}) for name in ("atlas", "other")])
            first = client.search([query])
        # An interrupt ends it without a word.
        assert end(process, signal.SIGINT) == ""
    key = add_key(keys, ["*"])
    with started("serve", memory, "--keys", keys, "--json") as process:
        with fr.Client(json.loads(process.stdout.readline())["url"], key) as client:
            # The options were kept with the directory.
            assert client.search([query])[0] == first[0] != []
        lines = end(process, signal.SIGTERM).splitlines()
        assert lines
        assert all(" INFO " in line for line in lines)


def test_a_sharded_memory_is_made_and_served(tmp_path: Path) -> None:
    asked = ["tea", fr.Query("tea", under="users")]
    local, answers = ("--transport", "local", "--json"), []
    for options in (("--shards", 2), ("--replicas", 2)):
        with (
            started("serve", tmp_path / "memory", *options, *local) as process,
            fr.Client(json.loads(process.stdout.readline())["url"]) as client,
        ):
            if not answers:
                client.add([fr.Record(f"r{n}", "tea", f"users/u{n % 3}") for n in range(9)])
            # The replicas of a shard take turns.
            answers += [[list(row) for row in client.search(asked, 5)] for _ in range(3)]
    assert (tmp_path / "memory" / "shard-0001").is_dir()
    assert answers == [answers[0]] * 6
    assert len(answers[0][1]) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--k1", "-1"], "k1 must lie in"),
        (["--address", "auto"], "is no sharded memory, for which --address is"),
        (["--replicas", "2"], "is no sharded memory, for which --replicas is"),
        (["--embeddings", "cache.db"], "--embeddings keeps what --encoder makes"),
    ],
)
def test_a_mistake_is_one_line_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in run("serve", "memory", *arguments, code=2).stderr
    assert list(tmp_path.iterdir()) == []


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
    file.write_text("{")
    file.chmod(0o600)
    assert fails(*asked).startswith(f"{file}: is not JSON, at line 1: ")
    if os.name == "posix":
        file.chmod(0o622)
        assert fails(*asked) == f"{file}: others than its owner may write it; run: chmod 600"
    assert not (tmp_path / "memory").exists()


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
    assert fails("serve", tmp_path / "file", "--port", 0).endswith("is a file: fanrank serve MEMORY")
    options = write(tmp_path / "options.json", [{"max-kk": 4}])
    assert "has no option 'max-kk'; did you mean 'max-k'?" in fails("serve", memory, "--config", options)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("x")
    assert "holds other files" in fails("serve", tmp_path / "other", "--port", 0)


@pytest.mark.parametrize(
    "arguments",
    [
        *(("serve", "m", "--max-k", "0"), ("serve",), ("keys", "add"), ("mcp",), ("search", "index"), ("unknown",)),
        *(("search", "index", "tea", "--threads", "0"), ("search", "index", "tea", "--backend", "tpu")),
        *(("search", "index", "tea", "--execution", "fast"), ("check", "x", "--limit", "0")),
    ],
)
def test_a_wrong_option_is_no_traceback(arguments: tuple[str, ...]) -> None:
    ended = run(*arguments, code=2)
    assert ended.stderr.startswith("Usage: ")
    assert "--help" in ended.stderr
