"""Every test of test_cuda_kernels.py once more over the PTX of each target, in every order that they take."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parent))
import test_cuda_kernels as on_sources  # noqa: E402
from support.ptx.launchers import ARCHITECTURES, CudaPtx  # noqa: E402
from support.ptx.nvrtc import libraries  # noqa: E402

from fanrank.kernels.cuda_host.launcher import Order  # noqa: E402

pytestmark = pytest.mark.slow

# ThreadSanitizer follows what g++ compiled; mutations of the sources are planted there.
LEFT_OUT = ("race", "mutations", "takes_four_loads", "declines")
globals().update(
    {
        name: value
        for name, value in vars(on_sources).items()
        if name.startswith("test_") and not any(part in name for part in LEFT_OUT)
    }
)


@pytest.fixture(autouse=True, scope="module", params=ARCHITECTURES)
def _target(request: pytest.FixtureRequest) -> Iterator[None]:
    """`Launchers` of those tests, over the PTX of a target."""
    if not libraries():
        pytest.skip("no NVRTC; install the wheel nvidia-cuda-nvrtc")

    class Launchers(CudaPtx):
        def __init__(
            self,
            edits: on_sources.Edits = (),
            order: Order = "ascending",
            seed: int = 0,
            sanitized: Sequence[str] = (),
        ) -> None:
            super().__init__(request.param, tuple(edits), order, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_sources, "Launchers", Launchers)
        yield
