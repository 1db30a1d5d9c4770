"""What NVRTC makes of the CUDA kernels gives the bits of the plain model on a CPU, thread by thread.

The sources run in test_cuda_kernels.py as g++ compiles them; here runs the PTX of each target.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import support.kernel_cases as kc  # noqa: E402
from support.ptx.faults import FAULTS, places  # noqa: E402
from support.ptx.launchers import ARCHITECTURES, SOURCE_OF, CudaPtx  # noqa: E402
from support.ptx.nvrtc import libraries, module_of  # noqa: E402
from support.ptx.translate import translate  # noqa: E402

from fanrank.engine.errors import BackendUnavailableError  # noqa: E402
from fanrank.kernels.cuda.verbs import CudaVerbs  # noqa: E402
from fanrank.kernels.cuda_host.build import compiler  # noqa: E402
from fanrank.kernels.cuda_host.launcher import KernelFault, Order  # noqa: E402

# The others differ in few instructions, and take turns.
HOPPER_FIRST = [pytest.param(each, marks=[pytest.mark.sweep] * (each != "sm_90")) for each in ARCHITECTURES]
ORDERS: tuple[tuple[Order, int], ...] = (("ascending", 0), ("descending", 0), ("shuffle", 1), ("shuffle", 2))
BLOCKS_AT_ONCE = 4
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True, scope="module")
def _compilers() -> None:
    if not libraries():
        pytest.skip("no NVRTC; install the wheel nvidia-cuda-nvrtc")
    try:
        compiler()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


def check(verbs: CudaVerbs, cases: Iterator[kc.Case]) -> None:
    for number, case in enumerate(cases):
        kc.check_derive(verbs, case)
        kc.check_family(verbs, case)
        kc.check_plan(verbs, case, number)


# Each target in an order of its own; every order of each in the long test below.
@pytest.mark.parametrize(("architecture", "order"), list(zip(ARCHITECTURES, ORDERS[:3], strict=True)))
def test_every_case(architecture: str, order: tuple[Order, int]) -> None:
    check(CudaVerbs(CudaPtx(architecture, (), *order)), kc.cases())


# ThreadSanitizer follows what g++ compiled; mutations of the sources are planted there.
LEFT_OUT = "race or mutations or sanitizer or four_loads or declines"


@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_test_of_the_sources(architecture: str) -> None:
    """All of test_cuda_kernels.py, with its edited sources, in every order that it takes."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "FANRANK_PTX": architecture, "PYTHONPATH": paths}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "support.ptx.plugin", "-k", f"not ({LEFT_OUT})"]
    tests = str(ROOT / "tests" / "kernels" / "test_cuda_kernels.py")
    done = subprocess.run([*command, tests], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("architecture", HOPPER_FIRST)
def test_blocks_may_run_at_once(architecture: str) -> None:
    """Threads of a persistent block read what others raise; they must agree on it before they part at a barrier."""
    for seed in range(1, 4):
        verbs = CudaVerbs(CudaPtx(architecture, (), "shuffle", seed, residents=BLOCKS_AT_ONCE))
        for number, case in enumerate(itertools.islice(kc.cases(), seed, None, 4)):
            kc.check_family(verbs, case)
            kc.check_plan(verbs, case, number)


@pytest.mark.parametrize("architecture", HOPPER_FIRST)
def test_every_kernel_is_translated(architecture: str) -> None:
    for operation, source in SOURCE_OF.items():
        module = module_of(source, architecture)
        assert module.target == architecture
        for name, kernel in module.kernels.items():
            assert name.startswith(operation)
            assert f"{len(kernel.parameters)}, PARAMETERS" in translate(module, kernel)


def failure(fault: tuple[str, str, int]) -> str:
    """What the first case that a faulty kernel fails says of it."""
    for order in ORDERS[:3]:
        verbs = CudaVerbs(CudaPtx("sm_90", (), *order, fault=fault), "bitonic")
        try:
            check(verbs, itertools.islice(kc.cases(), 0, None, 3))
        except (AssertionError, KernelFault) as error:
            return str(error).strip().splitlines()[0]
    return ""


# Of the instructions that a fault can change, some cannot matter: a branch around what has no effect, a count that only
# chooses a threshold, a copy of a loop's body for more rounds than a case has. So up to this many are tried, far apart,
# until so many were caught.
TRIED, CAUGHT = 12, 2
PLANTED = (
    ("score_narrow", "a dropped barrier"),
    ("score_narrow", "a dropped atomic"),
    ("score_narrow", "a changed shift"),
    ("select_bitonic_narrow", "a dropped predicate"),
    ("select_bitonic_narrow", "a dropped barrier"),
    ("derive_int32", "a dropped predicate"),
    ("order_plain", "a flipped shuffle distance"),
)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [pytest.param(*each, marks=[pytest.mark.sweep] * (each[0] != "select_bitonic_narrow")) for each in PLANTED],
)
def test_a_planted_fault_is_caught(kernel: str, name: str) -> None:
    assert name in FAULTS
    found = places(module_of(SOURCE_OF[kernel.partition("_")[0]], "sm_90").kernels[kernel], name)
    chosen = found[:: max(1, -(-len(found) // TRIED))]
    wanted = min(CAUGHT, len(chosen))
    caught: list[str] = []
    for place in chosen:
        caught += filter(None, [failure((kernel, name, place))])
        if len(caught) == wanted:
            break
    print(f"{kernel}, {name}: {caught}")
    assert len(caught) == wanted
