"""The kernel families by name, the options of each, and the device that each serves from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from ..engine.errors import ParameterError
from ..engine.plan.device_options import FAMILY, DeviceOptions
from .search import DeviceSearch
from .work import MIN_TILE_BITS, Verbs

CUDA_OPTIONS = ("posting_bytes", "tile_bits", "select")
OPTIONS = {"cuda": CUDA_OPTIONS, "cuda-host": CUDA_OPTIONS, "triton": ("posting_bytes", "tile_bits")}
"""By family, the names of the options that it has. Triton reads postings of 8 bytes alone."""
# A program of 8 warps holds a tile's sums in registers while it emits: 32 a thread at 2^13.
MAX_TRITON_TILE_BITS = 13


def device_search(name: str, max_device_bytes: int | None = None, options: DeviceOptions = FAMILY) -> DeviceSearch:
    """The search verb of the family ``cuda``, ``triton`` or ``cuda-host``; compiles kernels where that is needed.

    Raises `ParameterError` for an option that the family does not have, or a value that it does not take.
    """
    options.check(name, OPTIONS[name])
    verbs, device = _family(name, options)
    posting_bytes = 8 if options.posting_bytes is None else options.posting_bytes
    return DeviceSearch(verbs, device, max_device_bytes, posting_bytes=posting_bytes)


def _family(name: str, options: DeviceOptions) -> tuple[Verbs, torch.device]:
    gpu = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    if name == "triton":
        from .triton.verbs import WHOLE_CORPUS, TritonVerbs, tuning

        device = torch.device("cpu") if gpu is None else gpu
        settings = WHOLE_CORPUS if gpu is None else tuning(gpu)
        bits = options.tile_bits
        if bits is not None:
            if not MIN_TILE_BITS <= bits <= MAX_TRITON_TILE_BITS:
                raise ParameterError(f"tile_bits must lie in [{MIN_TILE_BITS}, {MAX_TRITON_TILE_BITS}], not {bits}")
            settings = replace(settings, narrow_tile_bits=bits, wide_tile_bits=max(MIN_TILE_BITS, bits - 1))
        return TritonVerbs(device, settings), device
    from . import cuda
    from .cuda.verbs import CudaVerbs

    select = options.select or "auto"
    if name == "cuda-host":
        from .cuda_host import HostLauncher, build

        folder = Path(cuda.__file__).parent
        library = build(sorted(folder.glob("*.cu")), include=[folder])
        verbs = CudaVerbs(HostLauncher(library), select, tile_bits=options.tile_bits, name=name)
        return verbs, torch.device("cpu")
    assert gpu is not None, "the backend's probe found a device"
    from .cuda.launcher import CupyLauncher

    return CudaVerbs(CupyLauncher(), select, tile_bits=options.tile_bits), gpu
