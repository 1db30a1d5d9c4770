"""The pages whose examples show frameworks run where these are installed."""

import subprocess
import sys

from support.source import ROOT


def test_examples_of_the_pages_run_with_their_frameworks() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-k", "python_blocks or examples", "tests/docs/test_docs.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
