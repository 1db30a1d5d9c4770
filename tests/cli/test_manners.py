"""How the real command ends: one line that says what to do, and the right exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import ENVIRONMENT, START, fails, run, save_index

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
posix = pytest.mark.skipif(os.name != "posix", reason="signals and pipes of POSIX")


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    records = tmp_path / "records.jsonl"
    records.write_text("".join(json.dumps({"id": f"m{n}", "text": f"tea number {n}"}) + "\n" for n in range(300)))
    run("add", tmp_path / "memory", records)
    return tmp_path / "memory"


def command(*arguments: object, code: str = START) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


@needs_full
@pytest.mark.parametrize("arguments", [("--help",), ("search", "tea", "--json")])
def test_a_full_output_is_one_line(memory: Path, arguments: tuple[str, ...]) -> None:
    name, *rest = arguments
    words = [name] if name == "--help" else [name, memory, *rest]
    with FULL.open("w") as full:
        ended = subprocess.run(
            command(*words), stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, env=ENVIRONMENT
        )
    lines = ended.stderr.splitlines()
    assert lines[-1] == "fanrank: standard output: cannot be written: No space left on device"
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 2


@posix
def test_a_reader_that_leaves_early_is_no_failure_to_report(memory: Path) -> None:
    queries = memory.parent / "queries.jsonl"
    # Enough lines that they do not fit into the pipe.
    queries.write_text('{"text": "tea number"}\n' * 200)
    started = subprocess.Popen(
        command("search", memory, "--queries", queries, "-k", 50),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert started.stdout.readline() == "? tea number\n", started.stderr.read()
    started.stdout.close()
    assert started.stderr.read() == ""
    assert started.wait(timeout=300) == 1


INTERRUPTED_LOAD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "fanrank.engine.cli.main":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""
INTERRUPTED_WORK = """
import signal
from fanrank.engine.engine import Engine
def search(*_, **__):
    signal.raise_signal(signal.SIGINT)
Engine.search = search
"""


@posix
@pytest.mark.parametrize("begin", [INTERRUPTED_LOAD, INTERRUPTED_WORK], ids=["while it loads", "while it works"])
def test_an_interrupt_is_one_line(memory: Path, begin: str) -> None:
    ended = subprocess.run(
        command("search", memory, "tea", code=begin + START),
        capture_output=True,
        text=True,
        timeout=300,
        env=ENVIRONMENT,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "fanrank: interrupted\n")
    # The program starts where an interrupt is caught.
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    assert 'fanrank = "fanrank.engine.cli.start:main"' in project.read_text()


def test_commands_say_what_to_do_with_a_directory_of_another_kind(memory: Path) -> None:
    records, index = memory.parent / "records.jsonl", memory.parent / "index"
    save_index(records, index)
    assert fails("check", memory) == (
        f"{memory}: is an engine's directory; this command takes records (JSON lines) or a dataset. "
        f"`fanrank stats {memory} --verify` compares an index with its records"
    )
    assert "is a saved index, which keeps no texts; give the records" in fails("check", f"{index}/")
    assert "saved index, which keeps no records to compare with" in fails("stats", index, "--verify")
    assert "leave --verify out" in fails("stats", index, "--verify")
    assert "is a saved index, which keeps no records and cannot grow" in fails("add", index, records)
    other = memory.parent / "other"
    other.mkdir()
    (other / "notes.txt").write_text("notes")
    assert fails("add", other, records) == f"{other}: holds other files; choose an empty or new directory"
    assert run("stats", memory, "--verify").exit_code == run("stats", index).exit_code == 0
    assert [file.name for file in other.iterdir()] == ["notes.txt"]
