"""The CUDA kernels as threads of the host under ThreadSanitizer."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support import kernel_cases as kc  # noqa: E402
from support.host_kernels import SMALL, Launchers, need_compiler  # noqa: E402
from support.sanitized import Sanitized, run_sanitized, sanitizer_library  # noqa: E402

from fanrank.engine.errors import BackendUnavailableError  # noqa: E402
from fanrank.kernels.cuda import verbs as verbs_module  # noqa: E402
from fanrank.kernels.cuda.launcher import SOURCES  # noqa: E402
from fanrank.kernels.cuda.verbs import CudaVerbs  # noqa: E402

# Each of a block's threads is one of the host's, so fewer of them: in the sources and in verbs.
FEW_THREADS = (
    ("score_tile.cuh", "constexpr i32 THREADS = 512;", "constexpr i32 THREADS = 64;"),
    ("derive.cu", "constexpr i32 THREADS = 256;", "constexpr i32 THREADS = 64;"),
    ("plan_slot.cuh", "constexpr i32 THREADS = 256;", "constexpr i32 THREADS = 64;"),
    ("order.cu", "constexpr i32 THREADS = 256;", "constexpr i32 THREADS = 64;"),
    ("select.cu", "constexpr i32 BITONIC_THREADS = 256;", "constexpr i32 BITONIC_THREADS = 64;"),
)
FEW = {"SCORE_THREADS": 64, "DERIVE_THREADS": 64, "DERIVE_POSTINGS": 1024, "BITONIC_THREADS": 64}
FEW |= {"PLAN_THREADS": 64, "ORDER_THREADS": 64}
BARRIER = ("score.cu", "    __syncthreads();\n\n    constexpr bool LISTED", "\n    constexpr bool LISTED")
"""Without the barrier before the sums are read."""


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    need_compiler()


def check_launch(verbs: CudaVerbs, case: kc.Case) -> None:
    kc.tabulate(verbs, case)
    for work in case.launches():
        buffers, answer, _ = kc.fresh(work, "cpu")
        kc.launch(verbs, work, buffers, answer)
        kc.check_answer(case, work, answer)


def launch_every_kernel() -> None:
    """Each at least once."""
    vars(verbs_module).update(FEW)
    launchers = Launchers((*FEW_THREADS, *SMALL), sanitized=[source.stem for source in SOURCES])
    few: dict[str, Any] = {"sizes": (33,), "tile_bits": 5, "queries": 2, "ks": (3,)}
    options: list[dict[str, Any]] = [{"ks": (40,)}, {}, {"wide": "all"}, {"wide": "all", "long_quanta": True}]
    for place, own in enumerate(options):
        for method in ("lucene", "robertson"):
            case = kc.build(7, **{**few, **own}, identical=place % 2 == 0, restricted=0.3, method=method)
            verbs = CudaVerbs(launchers, ("bitonic", "auto")[place % 2])
            kc.check_derive(verbs, case)
            check_launch(verbs, case)
    for place, (long, width) in enumerate(((False, "none"), (False, "all"), (True, "all"))):
        check_launch(CudaVerbs(launchers), kc.build(7 + place, decays="all", long_quanta=long, wide=width, **few))
    kc.check_plan(CudaVerbs(launchers), kc.build(7, wide="none", **few), 0)
    for width, decays in itertools.product(("none", "all"), ("none", "all")):
        # Of more terms than SMALL describes at a time, so that what impact classes are made with is written anew.
        case = kc.build(13, terms=60, wide=width, decays=decays, **few)
        assert int(case.work.unit_slots.diff().max()) > 32
        check_launch(CudaVerbs(launchers), kc.of_classes(case))
    for is_wide, select in itertools.product((False, True), ("bitonic", "auto")):
        for k in (3, 100) if select == "auto" else (40,):
            kc.check_select(CudaVerbs(launchers, select), 1, [300], [k], wide=is_wide)
    sources = "".join(source.read_text() for source in SOURCES)
    kernels = set(re.findall(r"__launch_bounds__\([^)]*\) (\w+)\(", sources))
    assert kernels == set(launchers.launched), kernels - set(launchers.launched)
    print("launched every kernel")


def launch_without_barrier() -> None:
    vars(verbs_module).update(FEW)
    launchers = Launchers((*FEW_THREADS, *SMALL, BARRIER), sanitized=["score"])
    case = kc.build(7, sizes=(33,), tile_bits=5, queries=3, ks=(3,), wide="none", restricted=0.0)
    (work,) = case.launches()
    buffers, answer, _ = kc.fresh(work, "cpu")
    verbs = CudaVerbs(launchers)
    kc.tabulate(verbs, case)
    kc.launch(verbs, work, buffers, answer)


def run_under_sanitizer(call: str) -> Sanitized:
    try:
        sanitizer_library()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    here = Path(__file__).resolve().parent
    folders = [str(here), str(here.parents[1])]
    return run_sanitized(["-c", f"import sys\nsys.path[:0] = {folders!r}\nimport test_kernel_races\n{call}"])


def test_no_kernel_has_a_race() -> None:
    result = run_under_sanitizer("test_kernel_races.launch_every_kernel()")
    assert "launched every kernel" in result.output, result.output[-3000:]
    assert not result.races, result.races[0]
    assert result.returncode == 0


def test_a_missing_barrier_is_a_race() -> None:
    result = run_under_sanitizer("test_kernel_races.launch_without_barrier()")
    assert result.races, result.output[-3000:]
    assert "score" in result.races[0]
