"""Messages as bytes: what goes by `pickle`, and what only Ray's own pickle knows how to send."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="messages between processes need Ray")

from fanrank.shards.processes.packing import pack, unpack

SCRIPT = """
import sys
from dataclasses import dataclass
from fanrank.shards.processes.packing import pack

@dataclass(frozen=True)
class Own:
    value: int

sys.stdout.buffer.write(pack((Own(3), lambda: 4)))
"""


def test_what_a_script_defines_is_sent_whole(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, check=True)
    own, function = unpack(done.stdout)
    assert (own.value, function()) == (3, 4)


def test_what_cannot_be_sent_says_so() -> None:
    with pytest.raises(TypeError):
        pack(threading.Lock())
