"""Triton's kernels on CPU tensors by way of their PTX: what stands in for ``kernel[grid](...)``.

For a process that imports triton without its interpreter.
"""

import contextlib
import ctypes
import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton

from fanrank.kernels.cuda_host.launcher import HostLauncher, Order

from ..source import ROOT
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
# Options of a launch; all other arguments are the kernel's own.
OPTIONS = ("num_warps", "num_stages", "num_ctas", "enable_fp_fusion", "maxnreg")


class Compiled(NamedTuple):
    """A kernel with its constants, as Triton compiled it."""

    name: str
    constants: tuple[tuple[str, Any], ...]
    ptx: str
    warps: int
    shared: int
    """Bytes of its shared memory."""
    fused: bool
    """Whether multiplications and additions may be contracted."""


class Device:
    """How compiled Triton kernels run: the order of a block's threads, and how many blocks run at once.

    Where not `runs`, they are compiled for `capability` alone; `compiled` has them.
    """

    def __init__(
        self, *, order: Order = "ascending", seed: int = 0, residents: int = 1, runs: bool = True, capability: int = 90
    ) -> None:
        self.order, self.seed, self.residents, self.runs, self.capability = order, seed, residents, runs, capability
        self.compiled: set[Compiled] = set()

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
        key = (function, tuple(signature.items()), tuple(constants.items()), tuple(options.items()))
        compiled = _compiled(*key, self.capability)
        self.compiled.add(compiled)
        if self.runs:
            library = _library(compiled)
            launcher = HostLauncher(library, order=self.order, seed=self.seed, residents=self.residents)
            blocks, threads = (*grid, 1, 1)[:3], (THREADS_OF_A_WARP * compiled.warps, 1, 1)
            # Two pointers follow that Triton adds: scratch memory, and the profiler's.
            launcher.launch(library.stem, blocks, threads, compiled.shared, [*arguments, None, None])


@functools.cache
def _compiled(
    function: Any,
    signature: tuple[tuple[str, Any], ...],
    constants: tuple[tuple[str, Any], ...],
    options: tuple[tuple[str, Any], ...],
    capability: int,
) -> Compiled:
    source = triton.compiler.ASTSource(function, dict(signature), dict(constants))
    target = triton.backends.compiler.GPUTarget("cuda", capability, THREADS_OF_A_WARP)
    kernel = triton.compile(source, target=target, options=dict(options))
    assert kernel.metadata.global_scratch_size == 0, "scratch memory would have to be handed over"
    fused = dict(options).get("enable_fp_fusion", True)
    made = (kernel.asm["ptx"], kernel.metadata.num_warps, kernel.metadata.shared, fused)
    return Compiled(function.__name__, constants, *made)


@functools.cache
def _library(compiled: Compiled) -> Path:
    return build(parse(compiled.ptx), compiled.name)


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


def rows_of(program: str, *arguments: Any) -> list[dict[str, Any]]:
    """The lines of JSON that a program prints, in a process without Triton's interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "ignore", program, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def planted(module: ModuleType, old: str, new: str, folder: Path) -> Any:
    """A module of the family with a fault, from a file, since Triton compiles from source."""
    text = Path(str(module.__file__)).read_text()
    assert text.count(old) == 1, f"{text.count(old)} times: {old!r}"
    path = folder / Path(str(module.__file__)).name
    path.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_planted", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made
