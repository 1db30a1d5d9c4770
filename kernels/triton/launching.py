"""Kernels that are compiled once, and what they are launched with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton

from ..work import by_name


def compiled_once(function: Callable[..., None]) -> Any:
    """A kernel whose code depends on its constants alone.

    Triton would compile it anew for tensors that are aligned in another way and for other numbers, and change its
    registers. What lies in a tuple is specialised whatever it is told (3.4 and 3.9), so arguments stand one a line.
    """
    parameters = inspect.signature(function).parameters.values()
    return triton.jit(do_not_specialize=[each.name for each in parameters if each.annotation != "tl.constexpr"])(
        function
    )


def arguments(kernel: Any, *sources: object, **own: Any) -> dict[str, Any]:
    """What a kernel takes: `own`, and the attributes of the sources that have the names of its parameters."""
    return by_name(tuple(kernel.arg_names), sources, own)
