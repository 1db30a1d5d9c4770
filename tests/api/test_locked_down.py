"""A container that may write nothing: no home, no folder for temporary files, no program to start, no extension."""

import json
import os
import subprocess
import sys
from pathlib import Path

from fanrank.native import compiled

# What a read-only system refuses, for any user: tests may run as root, whom permissions do not stop.
REFUSE = """
import errno, os, sys

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"}
tried = []

def refuse(event, arguments):
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    # What torch imports if it is there opens the null device, which changes nothing.
    writes = writes and arguments[0] != os.devnull
    if writes or event in CHANGES:
        # The interpreter may try to keep the bytecode of what it imports.
        if "__pycache__" not in str(arguments[0]):
            tried.append(f"{event} {arguments[0]}")
        raise OSError(errno.EROFS, "read-only", str(arguments[0]))
    if event in STARTS:
        raise FileNotFoundError(errno.ENOENT, "no such program")

sys.addaudithook(refuse)
"""
WITHOUT_EXTENSION = "sys.modules['fanrank.native._compiled'] = None\n"
SEARCH = """
import json, fanrank as fr
engine = fr.Engine.from_records([fr.Record("a", "error 4711: the key expired"), fr.Record("b", "Ana prefers tea")])
engine.add([fr.Record("c", "tea and error 4711")])
engine.delete(["b"])
hits = engine.search(["error 4711", "tea", "nothing"], k=2)
fields = {"ids": hits.ids.tolist(), "scores": hits.scores.tolist(), "backend": engine.backend.name}
print(json.dumps({**fields, "tried": tried}))
"""
DOCTOR = "from fanrank.engine.cli.main import main\nmain(['doctor'])\n"


def run(code: str, folder: Path) -> str:
    folder.chmod(0o555)
    source = Path(__file__).resolve().parents[2] / "src"
    environment = {"PATH": "", "PYTHONPATH": str(source), "TMPDIR": str(folder / "none")}
    kept = {name: os.environ[name] for name in ("SYSTEMROOT", "LD_PRELOAD", "PYTHONMALLOC") if name in os.environ}
    command = [sys.executable, "-c", REFUSE + code]
    done = subprocess.run(command, cwd=folder, env=environment | kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_extension_is_no_matter_to_a_search(tmp_path: Path) -> None:
    plain = json.loads(run(WITHOUT_EXTENSION + SEARCH, tmp_path))
    assert plain["backend"] == "numpy"
    assert plain["ids"] == [["c", "a"], ["c", None], [None, None]]
    found = json.loads(run(SEARCH, tmp_path))
    assert found["backend"] == ("numpy" if compiled is None else "native")
    assert (found["ids"], found["scores"]) == (plain["ids"], plain["scores"])
    assert found["tried"] == plain["tried"] == []


def test_doctor_says_what_is_missing_and_what_to_do(tmp_path: Path) -> None:
    told = run(WITHOUT_EXTENSION + DOCTOR, tmp_path)
    (line,) = [line for line in told.splitlines() if line.split()[:1] == ["native"]]
    assert "not usable: the extension was not built (" in line
    assert "install a C++20 compiler" in line
    assert "would serve: numpy" in told
