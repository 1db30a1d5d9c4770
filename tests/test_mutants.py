"""The table of planted faults can be used: each is found in the code, names its tests, and is planted and taken out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.mutants import __main__ as command
from support.mutants import run
from support.mutants.fault import Fault
from support.mutants.table import FAULTS

ROOT = Path(__file__).resolve().parents[1]


def test_every_fault_applies() -> None:
    reasons = {fault.name: reason for fault in FAULTS if (reason := fault.reason(ROOT))}
    assert reasons == {}
    assert len(FAULTS) >= 40
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_every_fault_names_tests_that_are_there() -> None:
    for fault in FAULTS:
        named = [argument for argument in fault.test.split(" -k ")[0].split() if not argument.startswith("-")]
        assert named, fault.name
        for argument in named:
            path, _, function = argument.partition("[")[0].partition("::")
            assert (ROOT / path).exists(), (fault.name, path)
            assert not function or f"def {function}(" in (ROOT / path).read_text(), (fault.name, function)


def test_the_parts_are_the_whole() -> None:
    parts = [command.part_of(FAULTS, f"{number}/7") for number in range(7)]
    assert sorted(fault.name for part in parts for fault in part) == sorted(fault.name for fault in FAULTS)
    assert command.part_of(FAULTS, "9/7") == parts[2]
    assert command.part_of(FAULTS, "HEAD/7") in parts
    for wrong in ("1", "1/0", "a/b", "HEAD"):
        with pytest.raises(SystemExit, match="--part takes N/M"):
            command.part_of(FAULTS, wrong)
    with pytest.raises(SystemExit, match="no fault is named xyz"):
        command.chosen(FAULTS, ["xyz"])


CODE = "def double(x):\n    return 2 * x\n"
TESTS = "from engine.double import double\n\ndef test_two():\n    assert double(2) == 4\n"
IMPORTS = "[tool.pytest.ini_options]\npythonpath = ['.']\n"


@pytest.fixture
def checkout(tmp_path: Path) -> run.Checkout:
    """Of a product of one function."""
    for name, text in {"engine/double.py": CODE, "tests/test_double.py": TESTS, "pyproject.toml": IMPORTS}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "native").mkdir()
    made = run.Checkout(tmp_path, limit=60)
    made.refresh()
    return made


def fault(old: str, new: str, test: str = "tests/test_double.py") -> Fault:
    return Fault("a fault", "engine/double.py", old, new, test)


@pytest.mark.parametrize(
    ("planted", "status", "detail"),
    [
        (fault("2 * x", "3 * x"), run.CAUGHT, ""),
        (fault("2 * x", "x + 2"), run.SURVIVED, ""),
        (fault("2 * x", "__import__('os').abort()"), run.CAUGHT, "by signal 6"),
        (fault("2 * x", "x +"), run.BROKEN, "error"),
        (fault("2 * x", "3 * x", "tests/test_double.py -k nothing"), run.BROKEN, "deselected"),
        (fault("4 * x", "3 * x"), run.STALE, "holds its code 0 times"),
        (fault("x", "y"), run.STALE, "holds its code 2 times"),
        (fault("2 * x", "2 * x"), run.STALE, "changes nothing"),
        (fault("2 * x", "3 * x")._replace(file="engine/other.py"), run.STALE, "is not there"),
    ],
)
def test_what_becomes_of_a_fault(checkout: run.Checkout, planted: Fault, status: str, detail: str) -> None:
    result = checkout.plant(planted)
    assert result.status == status, result
    assert detail in result.detail
    assert (checkout.copy / "engine" / "double.py").read_text() == CODE
    assert json.loads(json.dumps(result._asdict()))["status"] == status
    assert str(result).startswith(status)


def test_a_fault_that_hangs_is_caught_by_the_limit(checkout: run.Checkout) -> None:
    checkout.limit = 3
    result = checkout.plant(fault("    return", "    while True: pass\n    return"))
    assert (result.status, result.detail) == (run.CAUGHT, "by the limit of time")


def test_a_copy_has_one_user(checkout: run.Checkout) -> None:
    with checkout.held(), pytest.raises(SystemExit, match="another process plants faults"), checkout.held():
        pass
    with checkout.held():
        pass


def test_a_test_that_fails_without_a_fault_is_named(checkout: run.Checkout) -> None:
    assert list(checkout.baseline([fault("2 * x", "3 * x")])) == []
    (checkout.root / "engine" / "double.py").write_text(CODE.replace("2", "5"))
    (checkout.root / "tests" / "test_gone.py").write_text("")
    checkout.refresh()
    (found,) = checkout.baseline([fault("5 * x", "3 * x")])
    assert (found.status, found.test) == (run.BROKEN, "tests/test_double.py")
    # What leaves the checkout leaves the copy.
    (checkout.root / "tests" / "test_gone.py").unlink()
    checkout.refresh()
    assert not (checkout.copy / "tests" / "test_gone.py").exists()
