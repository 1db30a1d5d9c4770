"""Every planted fault can be planted, and names tests that are there; one that changes a rule is caught."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT))
try:
    from tests.extended.planted.__main__ import choose_faults, read_faults
finally:
    sys.path.remove(str(ROOT))

FAULTS = list(read_faults())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_applies_and_its_test_is_there(fault) -> None:
    assert fault.apply(ROOT) is not None
    assert fault.codes != fault.faults
    for argument in re.sub(r" -k .*", "", fault.test).split():
        path, _, function = argument.partition("[")[0].partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {function}" in text, argument


def test_faults_have_names_of_their_own_and_parts_are_the_whole() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert sorted(fault.name for part in range(7) for fault in choose_faults(f"{part}/7", [])) == sorted(names)


def test_a_fault_is_caught() -> None:
    command = [sys.executable, "-m", "tests.extended.planted", "ties of dense scores go to the younger document"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.endswith("1 of 1 caught\n"), done.stdout + done.stderr
