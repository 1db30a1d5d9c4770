"""Kernels that are compiled once, and what they are launched with."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import triton

from ..runtime import KernelNotLoaded, compiles_later
from ..work import by_name

# Searches that meet a new kernel together compile it once.
_compiling = threading.Lock()
Grid = tuple[int, ...]


class CompiledApart(triton.JITFunction):  # type: ignore[misc]
    """A kernel that `with_kernels` compiles, as it does CUDA's. Triton keeps it in a folder of the user's."""

    compile: Any

    def create_binder(self) -> Any:
        """As Triton's, which is asked for once a device and sets `compile`."""
        made = super().create_binder()
        self.compile = partial(self._compile, self.compile, {})
        return made

    def _compile(
        self,
        compiler: Callable[..., Any],
        compiled: dict[tuple[str, str], Any],
        source: Any,
        *,
        options: Mapping[str, Any],
        **given: Any,
    ) -> Any:
        key = source.hash(), repr(options)

        def load() -> None:
            with _compiling:
                if key not in compiled:
                    compiled[key] = compiler(source, options=options, **given)

        if key not in compiled and compiles_later():
            raise KernelNotLoaded(self.__name__, load)
        load()
        return compiled[key]


def compiled_once(function: Callable[..., None]) -> Any:
    """A kernel whose code depends on its constants alone.

    Triton would compile it anew for tensors that are aligned in another way and for other numbers, and change its
    registers. What lies in a tuple is specialised whatever it is told (3.4 and 3.9), so arguments stand one a line.
    """
    parameters = inspect.signature(function).parameters.values()
    return compiled_for(*(each.name for each in parameters if each.annotation != "tl.constexpr"))(function)


def compiled_for(*any_value: str) -> Callable[[Callable[..., None]], Any]:
    """A kernel that is not compiled anew for other values of these parameters."""
    jit = triton.jit if triton.knobs.runtime.interpret else CompiledApart
    return lambda function: jit(function, do_not_specialize=list(any_value))


def launch_by_name(kernel: Any, grid: Grid, options: Mapping[str, Any], *sources: object, **own: Any) -> None:
    """Launch with `own`, and the attributes of the sources that have the names of the kernel's parameters."""
    kernel[grid](**by_name(kernel.__name__, tuple(kernel.arg_names), sources, own), **options)
