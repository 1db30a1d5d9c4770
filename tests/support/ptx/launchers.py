"""The CUDA sources by way of NVRTC's PTX, behind the launcher of `CudaVerbs`."""

from __future__ import annotations

from typing import Any

from fanrank.kernels.cuda.launcher import SOURCES
from fanrank.kernels.cuda_host.launcher import LIMITS, Order

from .build import PtxLauncher
from .faults import planted
from .nvrtc import Edits, module_of
from .parse import Module

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SOURCE_OF = {source.stem: source for source in SOURCES}


class CudaPtx:
    """What NVRTC makes of the sources for one target, launched on CPU tensors.

    `edits` change copies of the sources, `fault` (kernel, name in `FAULTS`, place) an instruction of the PTX.
    """

    def __init__(
        self,
        architecture: str,
        edits: Edits = (),
        order: Order = "ascending",
        seed: int = 0,
        *,
        residents: int = 1,
        fault: tuple[str, str, int] | None = None,
        counted: bool = False,
    ) -> None:
        self._architecture, self._edits, self._fault = architecture, edits, fault
        self._launcher = PtxLauncher(self.module, order=order, seed=seed, residents=residents, counted=counted)
        self.limits = LIMITS
        self.launched: list[str] = []

    def module(self, operation: str) -> Module:
        """The PTX of a source, with the faults."""
        source = SOURCE_OF[operation]
        module = module_of(source, self._architecture, self._edits)
        if self._fault and self._fault[0].partition("_")[0] == operation:
            return planted(module, *self._fault)
        return module

    def launch(self, name: str, grid: Any, block: Any, shared_bytes: int, args: Any) -> None:
        self.launched.append(name)
        self._launcher.launch(name, grid, block, shared_bytes, args)
