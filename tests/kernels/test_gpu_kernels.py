"""Both kernel families on a GPU, over the same cases as on the CPU: poisoned and reused buffers, every edge."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support import kernel_cases as kc  # noqa: E402

from fanrank.engine.index.bm25 import BM25, METHODS  # noqa: E402
from fanrank.kernels.work import Verbs  # noqa: E402

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


def cuda(select_method: str) -> Verbs:
    from fanrank.kernels.cuda.launcher import CupyLauncher
    from fanrank.kernels.cuda.verbs import CudaVerbs

    return CudaVerbs(CupyLauncher(), select_method)


def triton() -> Verbs:
    from fanrank.kernels.triton import TritonVerbs

    return TritonVerbs("cuda")


FAMILIES: dict[str, Callable[[], Verbs]] = {
    "cuda, bitonic": lambda: cuda("bitonic"),
    "cuda, auto": lambda: cuda("auto"),
    "triton": triton,
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def verbs(request: pytest.FixtureRequest) -> Verbs:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return FAMILIES[request.param]()


EVERY = [*((name, kc.CASES) for name in kc.CASES), *((name, kc.BORDERS) for name in kc.BORDERS)]


@pytest.mark.parametrize("number", range(len(EVERY)), ids=[name for name, _ in EVERY])
def test_every_case(verbs: Verbs, number: int) -> None:
    """Every verb, on launches that were planned on the host and on the device, at every size of a posting."""
    name, table = EVERY[number]
    case = kc.build(number, device=DEVICE, name=name, **table[name])
    kc.check_derive(verbs, case)
    for each in (case, *classed(verbs, case)):
        kc.check_family(verbs, each)
        kc.check_plan(verbs, each, number)


def classed(verbs: Verbs, case: kc.Case) -> list[kc.Case]:
    """The case with fewer bytes a posting, where the family reads those and the case can have them."""
    if case.work.signed or case.work.long_quanta:
        return []
    return [kc.of_classes(case)] if 4 in verbs.posting_bytes else []


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 32),
    method=st.sampled_from(METHODS),
    identical=st.booleans(),
    borders=st.booleans(),
    decays=st.sampled_from(["none", "some", "all"]),
    times=st.sampled_from(["mixed", "ordered"]),
)
def test_random_launches(verbs: Verbs, seed: int, **options: Any) -> None:
    case = kc.build(seed, device=DEVICE, **options)
    kc.check_derive(verbs, case)
    kc.check_family(verbs, case)
    kc.check_plan(verbs, case, seed)


@pytest.mark.parametrize("method", METHODS)
def test_derive_over_a_grid(verbs: Verbs, method: str) -> None:
    for options in ({}, {"k1": 0.0, "b": 1.0}, {"fields": {"text": 2.5, "title": 1.0}, "b": 1.0}):
        kc.check_derive_grid(verbs, BM25(method=method, **options), DEVICE)


@pytest.mark.parametrize("k", [1, 31, 32, 33, 100, 1023, 1024])
@pytest.mark.parametrize("wide", [False, True])
def test_selection(verbs: Verbs, k: int, wide: bool) -> None:
    for seed, count in enumerate((0, 1, k - 1, k, k + 1, 2 * k, 5000)):
        kc.check_select(verbs, seed, [count, 7], [k, k], wide=wide, device=DEVICE)
