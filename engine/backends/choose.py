"""Choice of the backend that serves, with the reason. The engine reaches every backend through this file alone."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import native
from ..errors import BackendUnavailableError, DeviceMemoryError, choices
from ..locks import once
from ..plan.borrowing import borrows, split
from ..plan.device_options import FAMILY, DeviceOptions
from ..plan.plan import Plan
from ..plan.verbs import Output, Search, SearchDialogues, SearchTexts
from ..settings import ENVIRONMENT_VARIABLE
from ..timing import Phases
from ..vectors.verbs import DenseVerbs
from .crossover import Crossover, work_of

if TYPE_CHECKING:
    from ...kernels.search import DeviceSearch
    from ...kernels.tensors import TensorHits as TensorHits


# The lowest compute capability. Thread blocks of older devices have too little shared memory for a tile.
LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class BackendStatus:
    """Whether a backend can serve on this machine, and why or why not."""

    name: str
    usable: bool
    reason: str
    by_name: bool = False
    """Serves only if asked for by name: its answers are right, but it is slower than the backends after it."""


@dataclass(frozen=True)
class Backend:
    """The backend in use, why it was chosen, and its search function."""

    name: str
    reason: str
    search: Search
    device: DeviceSearch | None = None
    """The search function once more where it runs on a device, for what only a device offers."""
    cpu: Backend | None = None
    """The CPU backend beside a device that nobody asked for by name: it answers the batches that it answers sooner."""
    crossover: Crossover | None = None
    """Measures which of the two answers a batch sooner; None where there is no `cpu`."""
    max_device_bytes: int | None = None
    texts: SearchTexts | None = None
    """A search that takes texts; None where the backend has none."""

    @once
    def dialogues(self) -> SearchDialogues | None:
        """A search by a strategy for dialogues that takes texts; None where the backend has none."""
        if self.name != "native":
            return None
        from ...cpu_fallback.native import search_dialogues

        return search_dialogues

    @property
    def gpu(self) -> int | None:
        """The number of the GPU that it serves from; None: it serves from the CPU."""
        return None if self.device is None else self.device.residency.device.index

    @once
    def _dense_verbs(self) -> DenseVerbs:
        if self.name in CPU or self.device is None:
            from ...cpu_fallback.dense import verbs

            return verbs
        from ...kernels.dense import dense_verbs

        return dense_verbs(self.name, self.max_device_bytes, self.gpu, self.device.residency.account)

    def dense(self) -> DenseVerbs:
        """What the backend does with vectors; its name is `dense().name`. It is made at the first call.

        It serves from the device of `search`, and lets go of what it holds there together with the backend.
        """
        return self._dense_verbs

    @once
    def _borrowing(self) -> Search:
        if self.device is not None:
            from ...kernels.neighbours import DeviceNeighbours

            return DeviceNeighbours(self.device)
        from ...cpu_fallback import native, neighbours

        return native.search_neighbours if self.name == "native" else neighbours.search_neighbours

    def answer(
        self, plans: Sequence[Plan], batch: int, k: int, *, threads: int, execution: str, phases: Phases | None = None
    ) -> Output:
        """As `search`, for any queries: those whose records borrow from their neighbours have a search of their own."""
        options: dict[str, Any] = {"threads": threads, "execution": execution, "phases": phases}
        if not borrows(plans):
            return self.search(plans, batch, k, **options)
        plain, borrowing = split(plans)
        out = self._borrowing(borrowing, batch, k, **options)
        if plain:
            rows = np.concatenate([plan.rows for plan in plain])
            scores, documents, counts = self.search(plain, batch, k, **options)
            out[0][rows], out[1][rows], out[2][rows] = scores[rows], documents[rows], counts[rows]
        return out

    def serve(
        self, plans: Sequence[Plan], batch: int, k: int, *, threads: int, execution: str, phases: Phases | None = None
    ) -> tuple[str, Output]:
        """The name of the backend that answered, and its answer."""
        if self.cpu is None or self.crossover is None:
            return self.name, self.answer(plans, batch, k, threads=threads, execution=execution, phases=phases)
        work = work_of(plans)
        chosen = self if self.crossover.choose(work) == self.name else self.cpu
        start = time.perf_counter()
        try:
            out = chosen.answer(plans, batch, k, threads=threads, execution=execution, phases=phases)
        except DeviceMemoryError as error:
            self.crossover.avoid(self.name, str(error))
            return self.cpu.serve(plans, batch, k, threads=threads, execution=execution, phases=phases)
        self.crossover.add(chosen.name, work, time.perf_counter() - start)
        return chosen.name, out

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" + (f"; {self.crossover}" if self.crossover else "")


def _missing_driver() -> str | None:
    """The message that there is no CUDA driver, or None. This is checked first, as importing torch takes seconds."""
    try:
        ctypes.CDLL("libcuda.so.1" if os.name != "nt" else "nvcuda.dll")
    except OSError:
        return "no CUDA driver on this machine"
    return None


# An `OSError`: a library that torch links is missing, or what it imports finds no folder for temporary files.
def _gpu_status(name: str, package: str) -> BackendStatus:
    missing = _missing_driver()
    if missing:
        return BackendStatus(name, False, missing)
    try:
        import torch

        __import__(package)
    except (ImportError, OSError) as error:
        extra = "gpu-cuda12] or fanrank[gpu-cuda13" if name == "cuda" else "gpu"
        return BackendStatus(name, False, f"{error}; install fanrank[{extra}]")
    if not torch.cuda.is_available():
        return BackendStatus(name, False, f"torch {torch.__version__} sees no CUDA device")
    capability = torch.cuda.get_device_capability()
    if capability < LEAST_CAPABILITY:
        return BackendStatus(
            name, False, f"{torch.cuda.get_device_name()} has compute capability {capability}, below 8.0"
        )
    return BackendStatus(name, True, f"{torch.cuda.get_device_name()}, torch {torch.__version__}")


def _cuda_status() -> BackendStatus:
    return _gpu_status("cuda", "cupy")


def _interpreted() -> bool:
    """Whether Triton's kernels run in its interpreter, which is right and slow."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _triton_status() -> BackendStatus:
    if not _interpreted():
        status = _gpu_status("triton", "triton")
        advice = "" if status.usable else "; TRITON_INTERPRET=1 runs its kernels in the interpreter"
        return BackendStatus("triton", status.usable, status.reason + advice)
    try:
        import torch
        import triton
    except (ImportError, OSError) as error:
        return BackendStatus("triton", False, f"{error}; install fanrank[gpu]")
    if _numbers(triton.__version__) < (3, 7) and _numbers(np.__version__) >= (2, 4):
        clash = f"the interpreter of triton {triton.__version__} does not run with numpy {np.__version__}"
        return BackendStatus("triton", False, f"{clash}; install triton 3.7 or newer, or numpy below 2.4")
    return BackendStatus(
        "triton", True, f"triton {triton.__version__} in its interpreter, torch {torch.__version__}", by_name=True
    )


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(number) for number in version.split(".")[:2])


def _cuda_host_status() -> BackendStatus:
    try:
        import torch
    except (ImportError, OSError) as error:
        return BackendStatus("cuda-host", False, f"{error}; install fanrank[gpu]")
    if shutil.which("g++") is None:
        return BackendStatus("cuda-host", False, "no g++ to compile the CUDA kernels for the CPU with")
    return BackendStatus("cuda-host", True, f"the CUDA kernels on the CPU, torch {torch.__version__}", by_name=True)


def _native_status() -> BackendStatus:
    return BackendStatus("native", native.compiled is not None, native.reason)


def _numpy_status() -> BackendStatus:
    return BackendStatus("numpy", True, f"numpy {np.__version__}, vectorised, on the CPU")


_PROBES: dict[str, Callable[[], BackendStatus]] = {
    "cuda": _cuda_status,
    "triton": _triton_status,
    "cuda-host": _cuda_host_status,
    "native": _native_status,
    "numpy": _numpy_status,
}

BACKENDS = tuple(_PROBES)
"""Backend names, preferred first."""

BY_NAME = ("cuda-host",)
"""Backends that serve only if asked for by name."""

CPU = ("native", "numpy")
"""Backends that serve from the CPU."""

DEVICES = ("cuda", "triton")
"""Backends that serve from a GPU."""


def statuses() -> list[BackendStatus]:
    """Every backend: whether it can serve here, and why or why not; preferred first."""
    return [probe() for probe in _PROBES.values()]


def choose(
    requested: str | None = None,
    *,
    among: Sequence[str] | None = None,
    max_device_bytes: int | None = None,
    options: DeviceOptions = FAMILY,
) -> Backend:
    """The backend to use: `requested`, or the first of `among` that serves, or the one that the environment variable
    names, or the first of all that serves.

    A device that was not asked for by name shares the work with the CPU (`Backend.cpu`), unless `among` is given.
    Raises `BackendUnavailableError` if a backend asked for by name cannot serve; there is no silent fallback. Raises
    `ParameterError` if the chosen backend does not have one of the `options` that are given.
    """
    name, asker = requested, "asked for by the caller"
    if name is None and among is None and os.environ.get(ENVIRONMENT_VARIABLE):
        name, asker = os.environ[ENVIRONMENT_VARIABLE], f"asked for by {ENVIRONMENT_VARIABLE}"
    if name is not None:
        if name not in _PROBES:
            raise BackendUnavailableError(f"no backend {name!r} ({asker}){choices(name, BACKENDS)}")
        status = _PROBES[name]()
        if not status.usable:
            raise BackendUnavailableError(f"backend {name!r} ({asker}) cannot serve: {status.reason}")
        return _backend(name, asker, max_device_bytes, options)
    passed_over: list[str] = []
    for name in among or BACKENDS:
        if name in BY_NAME or (name == "triton" and _interpreted()):
            # Its probe is not called: it imports torch, which takes a second.
            passed_over.append(f"not {name}: only by name")
            continue
        status = _PROBES[name]()
        if status.usable:
            chosen = _backend(status.name, "; ".join([*passed_over, status.reason]), max_device_bytes, options)
            if status.name in DEVICES and among is None:
                cpu = choose(among=CPU)
                # The crossover weighs plans, so texts go the general way.
                return replace(chosen, texts=None, cpu=cpu, crossover=Crossover((chosen.name, cpu.name)))
            return chosen
        passed_over.append(f"not {status.name}: {status.reason}")
    raise BackendUnavailableError("no backend can serve: " + "; ".join(passed_over))


def _backend(name: str, reason: str, max_device_bytes: int | None, options: DeviceOptions) -> Backend:
    if name in CPU:
        options.check(name, ())
    if name == "native":
        from ...cpu_fallback.native import search_native, search_texts

        return Backend(name, reason, search_native, texts=search_texts)
    if name == "numpy":
        from ...cpu_fallback import search

        return Backend(name, reason, search.search_numpy)
    from ...kernels.families import device_search

    device = device_search(name, max_device_bytes, options)
    return Backend(name, reason, device, texts=device.search_texts, device=device, max_device_bytes=max_device_bytes)
