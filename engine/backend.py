"""Which backend serves, and why the others do not. The engine reaches every backend through this file alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .errors import BackendUnavailableError
from .plan import Plan

ENVIRONMENT_VARIABLE = "FANRANK_BACKEND"

STRATEGIES = ("auto", "exhaustive", "pruned")


class Search(Protocol):
    """The search verb, the same for every backend; `cpu_fallback/search.py` states the promise."""

    def __call__(
        self, plans: Sequence[Plan], batch: int, k: int, *, threads: int, strategy: str
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]: ...


@dataclass(frozen=True)
class BackendStatus:
    """Whether a backend can serve on this machine, and the reason."""

    name: str
    usable: bool
    reason: str


@dataclass(frozen=True)
class Backend:
    """The backend in use, why it was chosen, and its verb."""

    name: str
    reason: str
    search: Search


def _numpy_status() -> BackendStatus:
    return BackendStatus("numpy", True, f"numpy {np.__version__}, vectorised, on the CPU")


def _no_kernels(name: str) -> Callable[[], BackendStatus]:
    return lambda: BackendStatus(name, False, f"this version of fanrank has no {name} kernels yet")


def _numba_status() -> BackendStatus:
    try:
        import numba
    except ImportError as error:
        return BackendStatus("numba", False, f"{error}; install fanrank[cpu] for compiled loops on the CPU")
    return BackendStatus("numba", True, f"numba {numba.__version__}, compiled loops, on the CPU")


_PROBES: dict[str, Callable[[], BackendStatus]] = {
    "cuda": _no_kernels("cuda"),
    "triton": _no_kernels("triton"),
    "numba": _numba_status,
    "numpy": _numpy_status,
}

BACKENDS = tuple(_PROBES)
"""Backend names, preferred first."""

CPU = ("numba", "numpy")
"""Those that serve from the CPU."""


def statuses() -> list[BackendStatus]:
    """Every backend with whether it can serve here and why (not), preferred first."""
    return [probe() for probe in _PROBES.values()]


def choose(requested: str | None = None, among: Sequence[str] = BACKENDS) -> Backend:
    """The backend to use: `requested`, else the environment's, else the first of `among` that can serve.

    Raises `BackendUnavailableError` if the one asked for by name cannot serve; there is no silent fallback.
    """
    name, asker = requested, "asked for by the caller"
    if name is None and os.environ.get(ENVIRONMENT_VARIABLE):
        name, asker = os.environ[ENVIRONMENT_VARIABLE], f"asked for by {ENVIRONMENT_VARIABLE}"
    if name is not None:
        if name not in _PROBES:
            raise BackendUnavailableError(f"no backend {name!r} ({asker}); there are: {', '.join(BACKENDS)}")
        status = _PROBES[name]()
        if not status.usable:
            raise BackendUnavailableError(f"backend {name!r} ({asker}) cannot serve: {status.reason}")
        return Backend(name, asker, _verb(name))
    passed_over: list[str] = []
    for status in (_PROBES[name]() for name in among):
        if status.usable:
            return Backend(status.name, "; ".join([*passed_over, status.reason]), _verb(status.name))
        passed_over.append(f"not {status.name}: {status.reason}")
    raise BackendUnavailableError("no backend can serve: " + "; ".join(passed_over))


def _verb(name: str) -> Search:
    if name == "numba":
        from ..cpu_fallback import compiled

        return compiled.search
    from ..cpu_fallback import search

    return search.search
