"""Both kernel families on a GPU, over the same cases as on the CPU: poisoned and reused buffers, every edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support import kernel_cases  # noqa: E402

from fanrank.engine.index.bm25 import METHODS  # noqa: E402
from fanrank.kernels.work import Verbs  # noqa: E402

pytestmark = pytest.mark.gpu


def cuda(select_method: str) -> Verbs:
    from fanrank.kernels.cuda.launcher import CupyLauncher
    from fanrank.kernels.cuda.verbs import CudaVerbs

    return CudaVerbs(CupyLauncher(), select_method)


def triton() -> Verbs:
    from fanrank.kernels.triton import TritonVerbs

    return TritonVerbs("cuda")


FAMILIES: dict[str, Callable[[], Verbs]] = {
    "cuda, bitonic": lambda: cuda("bitonic"),
    "cuda, warp": lambda: cuda("warp"),
    "triton": triton,
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def verbs(request: pytest.FixtureRequest) -> Verbs:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return FAMILIES[request.param]()


@pytest.mark.parametrize("number", range(len(kernel_cases.CASES)), ids=list(kernel_cases.CASES))
def test_family(verbs: Verbs, number: int) -> None:
    name, options = list(kernel_cases.CASES.items())[number]
    case = kernel_cases.build(number, device="cuda", name=name, **options)
    kernel_cases.check_derive(verbs, case)
    kernel_cases.check_family(verbs, case)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 32),
    method=st.sampled_from(METHODS),
    identical=st.booleans(),
    borders=st.booleans(),
    decays=st.sampled_from(["none", "some", "all"]),
    times=st.sampled_from(["mixed", "ordered"]),
)
def test_random_launches(verbs: Verbs, seed: int, **options: Any) -> None:
    case = kernel_cases.build(seed, device="cuda", **options)
    kernel_cases.check_derive(verbs, case)
    kernel_cases.check_family(verbs, case)


@pytest.mark.parametrize("k", [1, 31, 32, 33, 100, 1023, 1024])
@pytest.mark.parametrize("wide", [False, True])
def test_selection(verbs: Verbs, k: int, wide: bool) -> None:
    for seed, count in enumerate((0, 1, k - 1, k, k + 1, 2 * k, 5000)):
        kernel_cases.check_select(verbs, seed, [count, 7], [k, k], wide=wide, device="cuda")
