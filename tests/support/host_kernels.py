"""The CUDA sources on a CPU for tests of the kernels: edited, in any order of threads, with every index watched."""

import functools
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fanrank.engine.errors import BackendUnavailableError
from fanrank.kernels.cuda.launcher import FOLDER, SOURCES, DeviceLimits
from fanrank.kernels.cuda.verbs import CudaVerbs
from fanrank.kernels.cuda_host.build import FLAGS, build, compiler
from fanrank.kernels.cuda_host.launcher import LIMITS, HostLauncher, Order

from .sanitized import build_sanitized

Edits = tuple[tuple[str, str, str], ...]
"""(file name, old, new): a change of a copy of a source or header."""

SMALL: Edits = (
    ("plan_slot.cuh", "constexpr i32 UNROLL = 4;", "constexpr i32 UNROLL = 1;"),
    ("order.cu", "constexpr i32 UNROLL = 4;", "constexpr i32 UNROLL = 1;"),
    ("order.cu", "constexpr i32 ENTRIES = 1024;", "constexpr i32 ENTRIES = THREADS + 4;"),
    ("score_tile.cuh", "constexpr i32 MAX_REACHED = 2048;", "constexpr i32 MAX_REACHED = 6;"),
    ("score_tile.cuh", "constexpr i32 SLOTS = 128;", "constexpr i32 SLOTS = 32;"),
    ("score_tile.cuh", "constexpr i32 RUN = WARP * UNROLL;", "constexpr i32 RUN = WARP;"),
    ("score_tile.cuh", "constexpr i32 UNROLL = 4;", "constexpr i32 UNROLL = 1;"),
)
"""Small constants: small cases overflow the list, describe slots in several chunks, cross every run, read beyond the
first words of a filter and sort entries in several parts."""


def need_compiler() -> None:
    """Skip the test where nothing compiles the sources."""
    try:
        compiler()
    except BackendUnavailableError as error:
        pytest.skip(str(error))


@functools.cache
def files_of(source: Path) -> frozenset[str]:
    """The names of a source and of the headers that it includes."""
    found, left = set(), [source.name]
    while left:
        name = left.pop()
        found.add(name)
        left += set(re.findall(r'^#include "(.+)"$', (FOLDER / name).read_text(), re.MULTILINE)) - found
    return frozenset(found)


def build_edited(
    source: Path, edits: Edits, build: Callable[[list[Path], list[Path]], Path], include: Sequence[Path] = (FOLDER,)
) -> Path:
    """What `build` makes of a source and its folders of headers, or of copies with the edits.

    The text that an edit changes must stand in its file exactly once.
    """
    if not edits:
        return build([source], list(include))
    with tempfile.TemporaryDirectory() as scratch:
        copies = []
        for number, folder in enumerate(dict.fromkeys([source.parent, *include])):
            copies.append(Path(scratch, str(number)))
            copies[-1].mkdir()
            for file in folder.glob("*.cu*"):
                shutil.copyfile(file, copies[-1] / file.name)
        for name, old, new in edits:
            (file,) = (copy / name for copy in copies if (copy / name).is_file())
            text = file.read_text()
            assert text.count(old) == 1, f"{text.count(old)} times in {name}: {old!r}"
            file.write_text(text.replace(old, new))
        return build([copies[0] / source.name], copies)


@functools.cache
def library(source: Path, edits: Edits = (), watched: bool = False, sanitize: bool = False) -> Path:
    """One source compiled, with edits of its own or of its headers.

    Where it is `watched`, an index outside its array and a misaligned address are faults. It is not optimised then,
    which takes a third of the time to compile.
    """
    if sanitize:
        return build_edited(source, edits, build_sanitized)
    flags = FLAGS
    if watched:
        flags = (*("-O0" if flag == "-O2" else flag for flag in flags), "-fsanitize=bounds-strict,alignment")
    return build_edited(source, edits, lambda sources, include: build(sources, include=include, flags=flags))


class Launchers:
    """A launcher over one library a source, so that an edit compiles its own file alone."""

    def __init__(
        self,
        edits: Edits = (),
        order: Order = "ascending",
        seed: int = 0,
        *,
        limits: DeviceLimits = LIMITS,
        watched: bool | None = None,
        sanitized: Sequence[str] = (),
    ) -> None:
        """Edited sources are `watched` unless it says otherwise."""
        self._edits, self._order, self._seed, self._sanitized = edits, order, seed, sanitized
        self._watched = bool(edits) and not sanitized if watched is None else watched
        self._launchers: dict[str, HostLauncher] = {}
        self.limits = limits
        self.launched: list[str] = []

    def launch(self, name: str, grid: Any, block: Any, shared_bytes: int, args: Any) -> None:
        self.launched.append(name)
        operation = name.partition("_")[0]
        if operation not in self._launchers:
            source = next(source for source in SOURCES if source.stem == operation)
            own = tuple(edit for edit in self._edits if edit[0] in files_of(source))
            made = library(source, own, self._watched, operation in self._sanitized)
            self._launchers[operation] = HostLauncher(made, order=self._order, seed=self._seed)
        self._launchers[operation].launch(name, grid, block, shared_bytes, args)


def family(
    order: Order = "ascending",
    seed: int = 0,
    *,
    edits: Edits = (),
    limits: DeviceLimits = LIMITS,
    watched: bool | None = None,
    **options: Any,
) -> CudaVerbs:
    """The CUDA kernels on the CPU."""
    return CudaVerbs(Launchers(edits, order, seed, limits=limits, watched=watched), name="cuda-host", **options)
