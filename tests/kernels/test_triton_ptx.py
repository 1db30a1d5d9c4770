"""Triton's kernels as the PTX that Triton makes of them for a GPU, on CPU tensors: each warp loads for itself, barriers
are real, and blocks run at once.

`python tests/kernels/test_triton_ptx.py ORDER SEED RESIDENTS FIRST STEP [planted]` checks every STEP-th case and prints
a line of JSON for each. It must not run in Triton's interpreter, so the tests start it as a process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="triton is not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support import kernel_cases as kc  # noqa: E402
from support.ptx.triton_jit import Device  # noqa: E402

from fanrank.engine.errors import BackendUnavailableError  # noqa: E402
from fanrank.kernels.cuda_host.build import compiler  # noqa: E402
from fanrank.kernels.cuda_host.launcher import KernelFault  # noqa: E402
from fanrank.kernels.triton import TritonVerbs, score  # noqa: E402
from fanrank.kernels.triton import verbs as verbs_module  # noqa: E402
from fanrank.kernels.triton.verbs import DEFAULT  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BLOCKS_AT_ONCE = 8

# A warp that loaded a threshold before another block raised it meets a barrier that the others do not.
BARRIER = "            tl.debug_barrier()\n            emit("
PLANTED = (
    "            if tl.load(thresholds + query, cache_modifier='.cg') == threshold:\n"
    "                tl.debug_barrier()\n            emit("
)


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    try:
        compiler()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


def checked(order: str, seed: int, residents: int, first: int, step: int, *more: str) -> dict[str, str]:
    """What went wrong in each case, "" where nothing did."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "ignore", __file__, order, *map(str, (seed, residents, first, step)), *more]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    return {row["case"]: row["failure"] for row in map(json.loads, result.stdout.splitlines())}


def assert_sound(found: dict[str, str]) -> None:
    assert found
    assert {case: failure for case, failure in found.items() if failure} == {}


def test_some_cases_with_blocks_at_once() -> None:
    assert_sound(checked("shuffle", 1, BLOCKS_AT_ONCE, 5, 30))


@pytest.mark.long
@pytest.mark.parametrize(("order", "seed"), [("ascending", 0), ("descending", 0), ("shuffle", 1)])
def test_every_case(order: str, seed: int) -> None:
    assert_sound(checked(order, seed, 1, 0, 1))


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_every_case_with_blocks_at_once(seed: int) -> None:
    assert_sound(checked("shuffle", seed, BLOCKS_AT_ONCE, 0, 1))


def test_a_branch_by_what_each_warp_loaded_is_caught() -> None:
    found = [checked("shuffle", 1, BLOCKS_AT_ONCE, case, 100, "planted") for case in (13, 16)]
    assert any("while others wait at that of line" in failure for rows in found for failure in rows.values()), found


def planted_score(folder: Path) -> Any:
    """The module `score` with the fault, from a file, since Triton compiles from source."""
    text = Path(score.__file__).read_text()
    assert text.count(BARRIER) == 1
    path = folder / "score_planted.py"
    path.write_text(text.replace(BARRIER, PLANTED))
    spec = importlib.util.spec_from_file_location(f"{score.__package__}.score_planted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def failures(device: Device, first: int, step: int) -> Iterator[tuple[str, str]]:
    verbs = TritonVerbs("cpu", DEFAULT)
    with device.current():
        for number, case in islice(enumerate(kc.cases()), first, None, step):
            failure = ""
            try:
                if device.residents == 1:
                    kc.check_derive(verbs, case)
                kc.check_family(verbs, case)
                kc.check_plan(verbs, case, number)
            except (AssertionError, KernelFault) as error:
                failure = str(error).strip()[:300] or "an assertion"
            yield case.name, failure


def main(order: Any, seed: str, residents: str, first: str, step: str, planted: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        if planted:
            verbs_module.score = planted_score(Path(folder))
        device = Device(order=order, seed=int(seed), residents=int(residents))
        for case, failure in failures(device, int(first), int(step)):
            print(json.dumps({"case": case, "failure": failure}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
