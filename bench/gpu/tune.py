"""Block sizes, tried one at a time: ``python -m bench.gpu.tune``. Prints the best in the form of the sources.

CUDA: every tile size with every number of threads, and both ways to select. Triton: from the tuning in use, each
setting in turn takes the value that is fastest, until none gains more than `GAIN`. Every answer is checked first.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fanrank.engine.backends import choose as backend

from . import corpora as gpu_corpora
from . import run as gpu_run
from . import systems as gpu_systems
from .run import Cell
from .systems import DeviceSystem

GAIN = 0.01
REPS = 5

TILE_BITS = (11, 12, 13, 14, 15)
# (threads of a scoring block, blocks of a multiprocessor that its registers must leave room for)
THREADS = ((256, 3), (256, 6), (512, 2), (512, 3), (768, 2), (1024, 1), (1024, 2))

TRITON: dict[str, tuple[Any, ...]] = {
    "narrow_tile_bits": (9, 10, 11, 12, 13),
    "score.warps": (2, 4, 8, 16),
    "score.slots": (2, 4, 8),
    "score.postings": (64, 128, 256, 512),
    "score.programs": (1, 2, 3, 4),
    "score.slab": (8 << 20, 16 << 20, 32 << 20, 64 << 20),
    "plan.postings": (128, 256, 512),
    "plan.ways": (32, 128, 256),
    "order.tiles": (32, 64, 128),
    "order.slots": (4, 8, 16),
    "order.classes": (16, 64, 128, 256),
    "order.warps": (2, 4, 8),
    "select.block": (512, 1024, 2048),
    "select.warps": (4, 8, 16),
    "select.stripe": (2048, 4096, 8192),
    "derive.block": (256, 512, 1024),
    "derive.warps": (2, 4, 8),
}
TRITON_SMOKE: dict[str, tuple[Any, ...]] = {"narrow_tile_bits": (6, 7), "score.postings": (16, 32)}


def milliseconds(system: DeviceSystem, cell: Cell, phase: str = "kernel") -> float:
    """The median time of a batch. Its answers are checked first; raises `RuntimeError` where one is wrong."""
    system.forget()
    ready = system.ready(cell.variants, phase, 1.0)
    verdict = gpu_run.verify(cell, ready)
    if verdict["identical"] < 1.0 or not verdict["repeatable"]:
        raise RuntimeError(f"another answer than numpy's: {verdict}")
    gpu_run.time_batch(ready.run, len(cell.variants), 1, ready.on_device)
    return statistics.median(gpu_run.time_batch(ready.run, len(cell.variants), 1, ready.on_device) for _ in range(REPS))


def derive_milliseconds(system: DeviceSystem) -> float:
    work = system.rederive()
    gpu_run.time_batch(work, 1, 1, system.torch_device.type == "cuda")
    return statistics.median(gpu_run.time_batch(work, 1, 1, system.torch_device.type == "cuda") for _ in range(REPS))


def tune_cuda(system: DeviceSystem, cell: Cell, smoke: bool) -> Iterator[tuple[float, str]]:
    """(milliseconds, setting) of every candidate that runs."""
    from fanrank.kernels.cuda import verbs

    host = system.torch_device.type != "cuda"
    original = system.search.verbs
    tiles = (6, 7) if smoke else TILE_BITS
    threads = ((verbs.SCORE_THREADS, 0),) if host else THREADS
    try:
        for (count, blocks), bits in itertools.product(threads, tiles):
            launcher = original._launcher if host else _edit_launcher(count, blocks)
            verbs_of = verbs.CudaVerbs(launcher, tile_bits=bits, name=original.name)
            yield from _try_setting(
                system, cell, verbs_of, f"tile_bits {bits}, {count} threads, {blocks} blocks", count
            )
        for method in verbs.SELECT_METHODS[1:]:
            verbs_of = verbs.CudaVerbs(original._launcher, method, name=original.name)
            yield from _try_setting(system, cell, verbs_of, f"select {method}", verbs.SCORE_THREADS)
    finally:
        system.search.verbs = original


def _try_setting(
    system: DeviceSystem, cell: Cell, verbs_of: Any, setting: str, threads: int
) -> Iterator[tuple[float, str]]:
    from fanrank.kernels.cuda import verbs

    kept, verbs.SCORE_THREADS = verbs.SCORE_THREADS, threads
    system.search.verbs = verbs_of
    try:
        yield milliseconds(system, cell), setting
    except Exception as error:
        print(f"  {setting}: {type(error).__name__}: {str(error)[:150]}", file=sys.stderr, flush=True)
    finally:
        verbs.SCORE_THREADS = kept


def edited_score(source: str, threads: int, blocks: int) -> str:
    """score.cu with another number of threads and blocks. Raises `ValueError` if it does not read as expected."""
    source, found = re.subn(r"constexpr i32 THREADS = \d+;", f"constexpr i32 THREADS = {threads};", source)
    source, bounds = re.subn(
        r"__launch_bounds__\(\d+, FANRANK_NARROW_BLOCKS\)", f"__launch_bounds__({threads}, {blocks})", source
    )
    source = re.sub(r"__launch_bounds__\(512, \d\)", f"__launch_bounds__({threads}, 1)", source)
    if found != 1 or not bounds:
        raise ValueError("score.cu declares its threads in another way; adapt bench/gpu/tune.py")
    return source


def _edit_launcher(threads: int, blocks: int) -> Any:
    from fanrank.kernels.cuda.launcher import CupyLauncher, source_of

    class Edited(CupyLauncher):
        """A launcher with its own version of score.cu."""

        _shared_bytes: dict[tuple[int, str], int] = {}  # noqa: RUF012

        def _source(self, name: str) -> str:
            plain = super()._source(name)
            return edited_score(source_of("score"), threads, blocks) if name.startswith("score") else plain

    return Edited()


def tune_triton(system: DeviceSystem, cell: Cell, smoke: bool, minutes: float) -> Any:
    """The best tuning, found setting by setting. Prints every step."""
    from fanrank.kernels.triton.verbs import TritonVerbs, tuning

    begin = time.monotonic()
    best = tuning(system.torch_device)

    def tried(candidate: Any, name: str) -> float:
        system.search.verbs = TritonVerbs(system.torch_device, candidate)
        return derive_milliseconds(system) if name.startswith("derive.") else milliseconds(system, cell)

    gained = True
    while gained and time.monotonic() - begin < 60 * minutes:
        gained = False
        for name, values in (TRITON_SMOKE if smoke else TRITON).items():
            if time.monotonic() - begin > 60 * minutes:
                break
            current, least = tried(best, name), None
            for value in values:
                candidate = change_setting(best, name, value)
                if candidate == best:
                    continue
                try:
                    ms = tried(candidate, name)
                except Exception as error:
                    print(f"  {name} {value}: {type(error).__name__}: {str(error)[:150]}", file=sys.stderr, flush=True)
                    continue
                print(f"  {name} {value}: {ms:.4g} ms (was {current:.4g})", file=sys.stderr, flush=True)
                if ms < current * (1 - GAIN) and (least is None or ms < least[0]):
                    least = (ms, candidate)
            if least is not None:
                best, gained = least[1], True
        if smoke:
            break
    return best


def change_setting(tuning: Any, name: str, value: Any) -> Any:
    """The tuning with one setting changed; a dot leads into a kernel's settings."""
    head, _, rest = name.partition(".")
    if not rest:
        return dataclasses.replace(tuning, **{head: value})
    return dataclasses.replace(tuning, **{head: dataclasses.replace(getattr(tuning, head), **{rest: value})})


def render_tuning(device: str, tuning: Any) -> str:
    """The tuning as an entry of `TUNING` in kernels/triton/verbs.py: what differs from the defaults."""
    default = type(tuning)()
    parts = []
    for field in dataclasses.fields(tuning):
        own, usual = getattr(tuning, field.name), getattr(default, field.name)
        if own == usual:
            continue
        if dataclasses.is_dataclass(own):
            inner = ", ".join(
                f"{f.name}={getattr(own, f.name)!r}"
                for f in dataclasses.fields(own)
                if getattr(own, f.name) != getattr(usual, f.name)
            )
            parts.append(f"{field.name}={field.name}.Settings({inner})")
        else:
            parts.append(f"{field.name}={own!r}")
    return f'"{device}": Tuning({", ".join(parts)}),'


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.tune", description=__doc__.split("\n")[0])
    parser.add_argument("--families", default="cuda,triton")
    parser.add_argument("--corpus", default="nq-shaped", choices=gpu_corpora.CORPORA)
    parser.add_argument("--batch", type=int, default=256, help="0: all queries")
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=8.0, help="Triton's sweep ends after so many")
    parser.add_argument("--smoke", action="store_true", help="tiny corpora, two values a setting; needs no GPU")
    options = parser.parse_args(arguments)
    if not options.smoke and not torch.cuda.is_available():
        parser.error("no CUDA device; --smoke tries it on the CPU")
    problem = gpu_corpora.problem(options.corpus, options.smoke)
    expected = gpu_systems.reference(problem, options.k, gpu_systems.default_threads())
    cell = gpu_run.cell_of(problem, options.batch, options.k, expected)
    cell = dataclasses.replace(cell, variants=cell.variants[: 1 if options.smoke else 4])
    statuses = {status.name: status for status in backend.statuses()}
    for family in options.families.split(","):
        if not statuses[family].usable:
            print(f"{family}: {statuses[family].reason}")
            continue
        system = DeviceSystem(family, problem)
        if family == "triton":
            print(render_tuning(system.device, tune_triton(system, cell, options.smoke, options.minutes)))
            continue
        for ms, setting in sorted(tune_cuda(system, cell, options.smoke)):
            print(f"{family}, {system.device}: {ms:.4g} ms with {setting}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
