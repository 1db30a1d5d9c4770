"""Compile the `.cu` files with NVRTC through CuPy and launch their kernels on torch's current stream."""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from ...engine.errors import BackendUnavailableError, ParameterError
from ..runtime import KernelNotLoaded, compiles_later

FOLDER = Path(__file__).parent
Size = tuple[int, int, int]

OPERATIONS = ("derive", "plan", "order", "score", "select")
SOURCES = tuple(FOLDER / f"{operation}.cu" for operation in OPERATIONS)
"""The CUDA sources; a kernel's name begins with the name of its file."""
# NVRTC 13.0, which torch 2.11 to 2.13 brings, takes a generic lambda of a kernel for a host function otherwise.
OPTIONS = ("-std=c++17", "-default-device", f"-I{FOLDER}")

_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
_KERNEL = re.compile(
    r'^extern "C" __global__ void __launch_bounds__\([^)]*\) (\w+)\(.*?^\}\n', re.MULTILINE | re.DOTALL
)

# A kernel must request more dynamic shared memory than this.
DEFAULT_SHARED_BYTES = 48 * 1024
MOST_SHARED = 100  # percent of what may be shared memory or first-level cache

# Of the driver and the runtime alike.
OUT_OF_MEMORY = 2
INVALID_VALUE, OUT_OF_RESOURCES = 1, 701
DECLINED = (INVALID_VALUE, OUT_OF_RESOURCES)


@dataclass(frozen=True)
class DeviceLimits:
    """What a device has for blocks."""

    multiprocessors: int
    multiprocessor_bytes: int  # of shared memory, for all its blocks
    block_bytes: int  # of shared memory that a block may ask for


class Launcher(Protocol):
    """What runs a kernel: `CupyLauncher`, or the host shim's launcher."""

    @property
    def limits(self) -> DeviceLimits:
        """Of the device that it launches on."""

    def launch(self, name: str, grid: Size, block: Size, shared_bytes: int, args: Sequence[Any]) -> None:
        """Launch a kernel by its ``extern "C"`` name.

        `args`: contiguous tensors (passed as data pointers), None (a null pointer), and ctypes scalars and structures
        (passed by value).
        """


class CupyLauncher:
    """Launches on the current stream of a CUDA device. Each kernel is compiled by itself, before its first launch.

    CuPy keeps what was compiled in a folder of the user's (CUPY_CACHE_DIR, or ~/.cupy/kernel_cache), for every process.
    Within `with_kernels` a launch of a kernel that is not there raises `KernelNotLoaded`.

    Raises `BackendUnavailableError` where CuPy is missing, or where a source cannot be compiled for the device or
    loaded; `torch.OutOfMemoryError` where the driver has no memory for a module or a launch; `ParameterError` where the
    device cannot hold a block of a launch.
    """

    # By class, device and name, for all engines: what raises a kernel's limit of shared memory raises that of all.
    _loaded: dict[tuple[type, int, str], Any] = {}  # noqa: RUF012
    # Searches that meet a new kernel together compile it once.
    _loading = threading.Lock()
    _shared_bytes: dict[tuple[int, str], int] = {}  # noqa: RUF012
    # Of two engines that raise one kernel's limit, the one that asks for more must come last.
    _raising = threading.Lock()

    def __init__(self, device: torch.device | None = None) -> None:
        try:
            import cupy
        except ImportError as error:
            raise BackendUnavailableError(
                "the CUDA kernels need CuPy; install cupy-cuda12x or cupy-cuda13x, as your driver's CUDA version is"
            ) from error
        self._cupy: Any = cupy
        index = None if device is None else device.index
        self._device = torch.cuda.current_device() if index is None else index
        self._kernels: dict[str, Any] = {}
        self._streams: dict[int, Any] = {}
        attributes = cupy.cuda.Device(self._device).attributes
        self.limits = DeviceLimits(
            attributes["MultiProcessorCount"],
            attributes["MaxSharedMemoryPerMultiprocessor"],
            attributes["MaxSharedMemoryPerBlockOptin"],
        )

    def launch(self, name: str, grid: Size, block: Size, shared_bytes: int, args: Sequence[Any]) -> None:
        # CuPy passes a numpy array of size one by value, whatever its type.
        slots = [slot_of(argument, f"kernel {name}") for argument in args]
        values = tuple(np.frombuffer(bytes(slot), np.dtype((np.void, ctypes.sizeof(slot)))) for slot in slots)
        with self._current():
            kernel = self._kernels.get(name)
            if kernel is None:
                if compiles_later():
                    raise KernelNotLoaded(name, partial(self._load, name))
                kernel = self._load(name)
            key = (self._device, name)
            what = f"kernel {name} with {math.prod(block)} threads and {shared_bytes:,} bytes of shared memory a block"
            with self._named_errors(what, launching=True):
                if shared_bytes > self._shared_bytes.get(key, DEFAULT_SHARED_BYTES):
                    with self._raising:
                        self._raise_shared_bytes(kernel, key, shared_bytes)
                with self._stream():
                    kernel(grid, block, values, shared_mem=shared_bytes)

    def _load(self, name: str) -> Any:
        """The kernel, compiled if it is not there."""
        key = type(self), self._device, name
        with self._loading, self._current(), self._named_errors(f"kernel {name} cannot be loaded"):
            if key not in self._loaded:
                module = self._cupy.RawModule(code=self._source(name), options=OPTIONS, backend="nvrtc")
                self._loaded[key] = module.get_function(name)
            self._kernels[name] = self._loaded[key]
        return self._kernels[name]

    def _source(self, name: str) -> str:
        """The text to compile a kernel from."""
        operation = name.partition("_")[0]
        if operation not in OPERATIONS:
            raise ParameterError(f"no CUDA source {operation}.cu; there are: {', '.join(OPERATIONS)}")
        return source_of(operation, name)

    def _raise_shared_bytes(self, kernel: Any, key: tuple[int, str], shared_bytes: int) -> None:
        if shared_bytes > self._shared_bytes.get(key, DEFAULT_SHARED_BYTES):
            kernel.max_dynamic_shared_size_bytes = shared_bytes
            # Else the driver may leave so much to the first-level cache that fewer blocks fit.
            kernel.preferred_shared_memory_carveout = MOST_SHARED
            self._shared_bytes[key] = shared_bytes

    @contextlib.contextmanager
    def _named_errors(self, what: str, *, launching: bool = False) -> Iterator[None]:
        """Turns CuPy's errors into those that the engine answers: smaller launches, another backend, or a message."""
        cuda = self._cupy.cuda
        try:
            yield
        except cuda.memory.OutOfMemoryError as error:
            raise torch.OutOfMemoryError(f"{what}: {error}") from error
        except (cuda.driver.CUDADriverError, cuda.runtime.CUDARuntimeError) as error:
            if error.status == OUT_OF_MEMORY:
                raise torch.OutOfMemoryError(f"{what}: {error}") from error
            if launching and error.status in DECLINED:
                raise ParameterError(f"{what}: the device declines it ({error}); ask for smaller tiles") from error
            if not launching:
                raise BackendUnavailableError(
                    f"{what}: {error}; update the driver, or choose another backend"
                ) from error
            raise
        except cuda.compiler.CompileException as error:
            raise BackendUnavailableError(f"{what}, as NVRTC does not compile it: {error}") from error

    def _current(self) -> contextlib.AbstractContextManager[object]:
        """Makes the device current only if it is not, because entering CuPy's context costs microseconds."""
        if torch.cuda.current_device() == self._device:
            return contextlib.nullcontext()
        device: contextlib.AbstractContextManager[object] = self._cupy.cuda.Device(self._device)
        return device

    def _stream(self) -> Any:
        """torch's current stream, as CuPy's."""
        pointer = torch.cuda.current_stream(self._device).cuda_stream
        stream = self._streams.get(pointer)
        if stream is None:
            stream = self._streams[pointer] = self._cupy.cuda.ExternalStream(pointer, self._device)
        return stream


def source_of(operation: str, kernel: str | None = None) -> str:
    """A source as `with_headers` gives it; with a `kernel`, without the others, whose code takes seconds to compile."""
    text = with_headers(FOLDER / f"{operation}.cu")
    return text if kernel is None else _KERNEL.sub(lambda match: match[0] if match[1] == kernel else "", text)


def with_headers(path: Path) -> str:
    """A source with its headers in place of the ``#include`` lines.

    CuPy's cache of compiled modules compares the source's text alone, so the headers must be part of that text.
    """
    included: set[str] = set()

    def header(name: str) -> str:
        if name in included:
            return ""
        included.add(name)
        return expanded((FOLDER / name).read_text().replace("#pragma once\n", ""))

    def expanded(text: str) -> str:
        return _INCLUDE.sub(lambda match: header(match[1]), text)

    return expanded(path.read_text())


def slot_of(argument: Any, where: str) -> Any:
    """A ctypes object that holds an argument of a launch."""
    if argument is None:
        return ctypes.c_void_p()
    if isinstance(argument, torch.Tensor):
        if not argument.is_contiguous():
            raise ParameterError(f"{where}: the tensor is not contiguous")
        return ctypes.c_void_p(argument.data_ptr())
    try:
        ctypes.sizeof(argument)
    except TypeError:
        raise ParameterError(f"{where}: must be a tensor, None or of ctypes, got {argument!r}") from None
    return argument
