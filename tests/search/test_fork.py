"""A process that is forked while other threads search can search itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own, as pytest may have threads. A child ends with 0 if it finds what its parent finds.
PROGRAM = """
import os, signal, sys, threading
import fanrank as fr

words = [f"w{number}" for number in range(40)]
engine = fr.Engine.from_records([fr.Record(str(n), " ".join(words[n % 40 :][: n % 7])) for n in range(4000)])
wanted = engine.search(words, threads=2).ids.tolist()
stop = threading.Event()

def search():
    while not stop.is_set():
        assert engine.search(words, threads=2).ids.tolist() == wanted

def write():
    number = 0
    while not stop.is_set():
        engine.update([fr.Record("other", f"x{number} y{number}")], insert=True)
        engine.search([f"x{number}"])
        number += 1

threads = [threading.Thread(target=search), threading.Thread(target=search), threading.Thread(target=write)]
for thread in threads:
    thread.start()
failed = 0
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            same = all(engine.search(words, threads=2).ids.tolist() == wanted for _ in range(3))
            os._exit(0 if same and engine.search(["nothing", "x1"]) is not None else 3)
        except BaseException:
            os._exit(4)
    failed += os.waitpid(child, 0)[1] != 0
stop.set()
for thread in threads:
    thread.join()
sys.exit(failed)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_child_searches_whatever_its_parent_was_doing(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path), "12"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, (done.returncode, signal.SIGALRM, done.stderr)
