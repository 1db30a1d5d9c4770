"""Triton's kernels on CPU tensors by way of their PTX: what stands in for ``kernel[grid](...)``.

For a process that imports triton without its interpreter.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton

from fanrank.kernels.cuda_host.launcher import HostLauncher, Order

from .build import build
from .parse import parse

POINTERS = {
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}
THREADS_OF_A_WARP = 32
CAPABILITY = 90
# Options of a launch; all other arguments are the kernel's own.
OPTIONS = ("num_warps", "num_stages", "num_ctas", "enable_fp_fusion", "maxnreg")


class Device:
    """How translated Triton kernels run: the order of a block's threads, and how many blocks run at once."""

    def __init__(
        self,
        *,
        order: Order = "ascending",
        seed: int = 0,
        residents: int = 1,
        edits: Sequence[tuple[str, str, str]] = (),
    ) -> None:
        """`edits` are (kernel, old, new): a change of the kernel's PTX, whose old text must stand there once."""
        self.order, self.seed, self.residents, self.edits = order, seed, residents, tuple(edits)
        self.launched: set[str] = set()

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Within it ``kernel[grid](...)`` compiles for a GPU and runs here."""

        def launcher(function: Any, grid: Any) -> Any:
            return functools.partial(self.launch, function, grid)

        with mock.patch.object(triton.runtime.JITFunction, "__getitem__", launcher):
            yield

    def launch(self, function: Any, grid: Sequence[int], **given: Any) -> None:
        """Compile a kernel for what it was given, as Triton does but for its specialisations, and run it."""
        options = {name: given.pop(name) for name in OPTIONS if name in given}
        assert given.keys() == set(function.arg_names), given.keys() ^ set(function.arg_names)
        signature: dict[str, Any] = {}
        constants: dict[str, Any] = {}
        arguments: list[Any] = []
        for parameter in function.params:
            value = given[parameter.name]
            if parameter.is_constexpr or value is None:
                signature[parameter.name], constants[parameter.name] = "constexpr", value
                continue
            values = value if isinstance(value, tuple) else (value,)
            types = tuple(_type_of(each) for each in values)
            signature[parameter.name] = types if isinstance(value, tuple) else types[0]
            arguments += map(_passed, values, types)
        name = function.__name__
        edits = tuple(edit for edit in self.edits if edit[0] == name)
        key = (function, tuple(signature.items()), tuple(constants.items()), tuple(options.items()), edits)
        library, warps, shared = _library(*key)
        self.launched.add(name)
        # Two pointers follow that Triton adds: scratch memory, and the profiler's.
        launcher = HostLauncher(library, order=self.order, seed=self.seed, residents=self.residents)
        blocks = (*grid, 1, 1)[:3]
        launcher.launch(library.stem, blocks, (THREADS_OF_A_WARP * warps, 1, 1), shared, [*arguments, None, None])


@functools.cache
def _library(
    function: Any,
    signature: tuple[tuple[str, Any], ...],
    constants: tuple[tuple[str, Any], ...],
    options: tuple[tuple[str, Any], ...],
    edits: tuple[tuple[str, str, str], ...],
) -> tuple[Path, int, int]:
    """(the library of a kernel, its warps, bytes of its shared memory)."""
    source = triton.compiler.ASTSource(function, dict(signature), dict(constants))
    target = triton.backends.compiler.GPUTarget("cuda", CAPABILITY, THREADS_OF_A_WARP)
    kernel = triton.compile(source, target=target, options=dict(options))
    assert kernel.metadata.global_scratch_size == 0, "scratch memory would have to be handed over"
    text = kernel.asm["ptx"]
    for _, old, new in edits:
        assert text.count(old) == 1, f"{text.count(old)} times in the PTX: {old!r}"
        text = text.replace(old, new)
    return build(parse(text), function.__name__), kernel.metadata.num_warps, kernel.metadata.shared


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(1 << 31) <= value < 1 << 31 else "i64"


def _passed(value: Any, type_: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    return {"fp32": ctypes.c_float, "i32": ctypes.c_int32, "i64": ctypes.c_int64}[type_](value)
