"""The kernel families by name, and the device that each serves from."""

from __future__ import annotations

from pathlib import Path

import torch

from .search import DeviceSearch
from .work import Verbs


def device_search(name: str, max_device_bytes: int | None = None) -> DeviceSearch:
    """The search verb of the family ``cuda``, ``triton`` or ``cuda-host``; compiles kernels where that is needed."""
    verbs, device = _family(name)
    return DeviceSearch(verbs, device, max_device_bytes)


def _family(name: str) -> tuple[Verbs, torch.device]:
    gpu = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    if name == "triton":
        from .triton.verbs import WHOLE_CORPUS, TritonVerbs

        if gpu is not None:
            return TritonVerbs(gpu), gpu
        return TritonVerbs("cpu", WHOLE_CORPUS), torch.device("cpu")
    from . import cuda
    from .cuda.verbs import CudaVerbs

    if name == "cuda-host":
        from .cuda_host import HostLauncher, build

        folder = Path(cuda.__file__).parent
        library = build(sorted(folder.glob("*.cu")), include=[folder])
        return CudaVerbs(HostLauncher(library), name=name), torch.device("cpu")
    assert gpu is not None, "the backend's probe found a device"
    from .cuda.launcher import CupyLauncher

    return CudaVerbs(CupyLauncher()), gpu
