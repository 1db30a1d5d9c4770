"""The CUDA sources by way of NVRTC's PTX, behind the launcher of `CudaVerbs`."""

from typing import Any

from fanrank.kernels.cuda.launcher import SOURCES
from fanrank.kernels.cuda_host.launcher import LIMITS, HostLauncher, Order

from .build import build
from .nvrtc import module_of

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
SOURCE_OF = {source.stem: source for source in SOURCES}


class CudaPtx:
    """What NVRTC makes of the sources for one target, on CPU tensors; a kernel is built on its first launch."""

    def __init__(self, architecture: str, order: Order = "ascending", seed: int = 0, *, residents: int = 1) -> None:
        self._architecture = architecture
        self._how: dict[str, Any] = {"order": order, "seed": seed, "residents": residents}
        self._launchers: dict[str, HostLauncher] = {}
        self.limits = LIMITS

    def launch(self, name: str, grid: Any, block: Any, shared_bytes: int, args: Any) -> None:
        if name not in self._launchers:
            module = module_of(SOURCE_OF[name.partition("_")[0]], self._architecture)
            self._launchers[name] = HostLauncher(build(module, name), **self._how)
        launcher = self._launchers[name]
        launcher.launch(launcher.library.stem, grid, block, shared_bytes, args)
