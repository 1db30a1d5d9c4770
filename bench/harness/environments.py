"""A virtual environment for every peer, made on first use."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from .paths import ENVIRONMENTS
from .systems import Peer


class PeerError(Exception):
    """A peer cannot be measured. The message is the reason that its rows hold."""


def python_of(peer: Peer) -> Path:
    """The interpreter to run the peer with. Raises `PeerError` if it is missing and cannot be made."""
    if not peer.installs:
        return Path(sys.executable)
    home = ENVIRONMENTS / peer.name
    stamp, expected = home / "installed.json", json.dumps([sys.version_info[:2], peer.installs])
    python = home / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == expected:
        return python
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    log = home / "install.log"
    _run([sys.executable, "-m", "venv", str(home)], log)
    for arguments in peer.installs:
        _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", *arguments], log)
    stamp.write_text(expected)
    return python


def _run(command: list[str], log: Path) -> None:
    with log.open("a") as handle:
        code = subprocess.run(command, stdout=handle, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
    if code:
        errors = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERROR")]
        reason = errors[-1] if errors else f"exit code {code}"
        raise PeerError(f"cannot be installed: {reason}")
