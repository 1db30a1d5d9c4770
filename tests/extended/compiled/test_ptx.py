"""What NVRTC makes of the CUDA kernels gives the bits of the plain model on a CPU, thread by thread.

The sources run in tests/kernels/test_cuda_kernels.py as g++ compiles them; here runs the PTX of each target.
"""

import itertools

import pytest

torch = pytest.importorskip("torch")

import support.kernel_cases as kc  # noqa: E402
from support.ptx.launchers import ARCHITECTURES, SOURCE_OF, CudaPtx  # noqa: E402
from support.ptx.nvrtc import libraries, module_of  # noqa: E402
from support.ptx.translate import translate  # noqa: E402

from fanrank.engine.errors import BackendUnavailableError  # noqa: E402
from fanrank.kernels.cuda.verbs import CudaVerbs  # noqa: E402
from fanrank.kernels.cuda_host.build import compiler  # noqa: E402
from fanrank.kernels.cuda_host.launcher import Order  # noqa: E402

ORDERS: tuple[tuple[Order, int], ...] = (("ascending", 0), ("descending", 0), ("shuffle", 1))
BLOCKS_AT_ONCE = 8


@pytest.fixture(autouse=True, scope="module")
def _compilers() -> None:
    if not libraries():
        pytest.skip("no NVRTC; install the wheel nvidia-cuda-nvrtc")
    try:
        compiler()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kernel_is_translated(architecture: str) -> None:
    for operation, source in SOURCE_OF.items():
        module = module_of(source, architecture)
        assert module.target == architecture
        for name, kernel in module.kernels.items():
            assert name.startswith(operation)
            assert f"FANRANK_PTX_NAME, {len(kernel.parameters)}, SIZES" in translate(module, kernel)


# Each target has an order of its own.
@pytest.mark.parametrize(("architecture", "order"), list(zip(ARCHITECTURES, ORDERS, strict=True)))
def test_every_case(architecture: str, order: tuple[Order, int]) -> None:
    verbs = CudaVerbs(CudaPtx(architecture, *order))
    for number, case in enumerate(kc.cases()):
        kc.check_derive(verbs, case)
        kc.check_family(verbs, case)
        kc.check_plan(verbs, case, number)


def test_blocks_may_run_at_once() -> None:
    """Threads of a persistent block read what others raise; they must agree on it before they part at a barrier."""
    for seed in range(60):
        # Of many queries over small tiles, whose thresholds rise while others read them.
        case = kc.build(seed, tile_bits=5, queries=12, ks=(3,), sizes=(150, 90), restricted=0.0, empty=0.0)
        verbs = CudaVerbs(CudaPtx("sm_90", "shuffle", seed, residents=BLOCKS_AT_ONCE))
        kc.check_family(verbs, case)
        kc.check_plan(verbs, case, seed)


def test_every_feature_with_blocks_at_once() -> None:
    for seed in range(1, 4):
        verbs = CudaVerbs(CudaPtx("sm_90", "shuffle", seed, residents=BLOCKS_AT_ONCE))
        for number, case in enumerate(itertools.islice(kc.cases(), seed, None, 4)):
            kc.check_family(verbs, case)
            kc.check_plan(verbs, case, number)
