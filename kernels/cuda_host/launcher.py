"""Launch the kernels of a library that `build` made, on CPU tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from ...engine.errors import FanrankError, ParameterError
from ..cuda.launcher import DeviceLimits, Size, slot_of

Order = Literal["ascending", "descending", "shuffle"]

LIMITS = DeviceLimits(multiprocessors=2, multiprocessor_bytes=228 * 1024, block_bytes=227 * 1024)
"""Of a launcher that is told nothing else: the shared memory of sm_90, and few multiprocessors, as blocks run one after
another."""

ORDERS: dict[str, int] = {"ascending": 0, "descending": 1, "shuffle": 2}
FAULT = 2


class KernelFault(FanrankError, RuntimeError):
    """A kernel broke a rule of its device: a deadlock, a bad mask, a write outside its shared memory."""


class HostLauncher:
    """The kernels of one library, launched on CPU tensors.

    `order` (and `seed`, for "shuffle") is the order in which blocks, warps and lanes run in a library of mode "fibers";
    both may be changed between launches. A kernel without races gives the same answer in every order. With several
    `residents` so many blocks run at once, in turns that `seed` draws (translated PTX alone, whose threads give way).
    `limits` are those of the device that it stands for.
    """

    def __init__(
        self,
        library: Path,
        *,
        order: Order = "ascending",
        seed: int = 0,
        residents: int = 1,
        limits: DeviceLimits = LIMITS,
    ) -> None:
        library = Path(library)
        try:
            self._launch = ctypes.CDLL(str(library)).fanrank_launch
        except (OSError, AttributeError) as error:
            raise ParameterError(f"{library} is not a library that build() made: {error}") from error
        self._launch.restype = ctypes.c_int
        self.library = library
        self.limits = limits
        self.order: Order = order
        self.seed = seed
        self.residents = residents

    def launch(self, name: str, grid: Size, block: Size, shared_bytes: int, args: Sequence[Any]) -> None:
        """As `Launcher.launch`; runs to the end. `args` must have the number and sizes of the kernel's parameters."""
        if self.order not in ORDERS:
            raise ParameterError(f"order must be one of {', '.join(ORDERS)}, got {self.order!r}")
        if shared_bytes < 0:
            raise ParameterError(f"shared_bytes must not be negative, got {shared_bytes}")
        for i, argument in enumerate(args):
            if isinstance(argument, torch.Tensor) and argument.device.type != "cpu":
                raise ParameterError(f"kernel {name}: argument {i}: it is on {argument.device}, not on the CPU")
        slots = [slot_of(argument, f"kernel {name}: argument {i}") for i, argument in enumerate(args)]
        sizes = (ctypes.c_uint16 * max(1, len(args)))(*map(ctypes.sizeof, slots))
        pointers = (ctypes.c_void_p * max(1, len(args)))(*map(ctypes.addressof, slots))
        message = ctypes.create_string_buffer(4096)
        status = self._launch(
            name.encode(),
            (ctypes.c_uint32 * 3)(*grid),
            (ctypes.c_uint32 * 3)(*block),
            ctypes.c_uint64(shared_bytes),
            ctypes.c_uint32(len(args)),
            pointers,
            sizes,
            ctypes.c_int32(ORDERS[self.order]),
            ctypes.c_uint64(self.seed),
            ctypes.c_uint32(self.residents),
            message,
            ctypes.c_uint64(len(message)),
        )
        if status:
            raise (KernelFault if status == FAULT else ParameterError)(message.value.decode(errors="replace"))
