"""``python .ci/commits.py``: the number of the commit, by which CI takes turns."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commit_number() -> int:
    """A number that moves on with each commit: how many there are, or where the history is cut short, the hash.

    0 without git.
    """

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
        except OSError:
            return ""
        return done.stdout.strip()

    if git("rev-parse", "--is-shallow-repository") == "false":
        return int(git("rev-list", "--count", "HEAD") or 0)
    return int(git("rev-parse", "HEAD") or "0", 16) % (1 << 31)


if __name__ == "__main__":
    print(commit_number())
