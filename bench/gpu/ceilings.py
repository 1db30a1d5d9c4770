"""The ceilings of a device, measured by the kernels of ceilings.cu in the same run as the systems."""

import time
from collections.abc import Callable
from ctypes import c_int32, c_int64
from pathlib import Path
from typing import Any

import torch

from fanrank.kernels.cuda.launcher import Launcher

from .batches import launcher_of

SOURCE = Path(__file__).with_name("ceilings.cu")
THREADS = 512
SHARED_WORDS = 1 << 14
"""64 KiB of int32: the sums of a tile."""
TIMES = 7


def ceilings(device: torch.device, launcher: Launcher | None = None) -> dict[str, float]:
    """The most the device does a second, each the best of `TIMES` runs.

    ``copy_bytes``: a copy in device memory, bytes read plus written. ``shared_int32``, ``shared_float``,
    ``shared_int64``: atomic additions in shared memory. ``shared_int32`` adds at random addresses and reads the old
    value, as scoring does; ``_in_order`` has no bank conflicts; ``_unread`` reads nothing, and so do float and int64.
    ``shared_bytes``: bytes written to it. ``l2_bytes``: read from half the second-level cache. ``l2_int32``,
    ``l2_float``: atomic additions at random addresses of it. On a CPU the kernels are only checked, and an empty result
    is returned. Raises `RuntimeError` if a checksum is wrong.
    """
    launcher = launcher or launcher_of(device, SOURCE, SOURCE.read_text())
    gpu = device.type == "cuda"
    blocks, steps = 2, 40
    l2_bytes = 1 << 16
    if gpu:
        properties = torch.cuda.get_device_properties(device)
        blocks, steps = 3 * properties.multi_processor_count, 4096
        l2_bytes = properties.L2_cache_size
    threads = blocks * THREADS
    found: dict[str, float] = {}
    total = torch.zeros(1, dtype=torch.int64, device=device)

    def launch(kernel: str, shared_bytes: int, *arguments: Any) -> None:
        launcher.launch(f"ceiling_{kernel}", (blocks, 1, 1), (THREADS, 1, 1), shared_bytes, arguments)

    sizes = {"int32": 4, "int32_in_order": 4, "int32_unread": 4, "float": 4, "int64": 8}
    for name, size in sizes.items():
        words = SHARED_WORDS * 4 // size
        arguments = (f"shared_{name}", words * size, c_int32(words), c_int32(steps), c_int32(1), total)
        # A float counts exactly to 2**24. No address receives nearly so many additions.
        total.zero_()
        launch(*arguments)
        _check(f"shared_{name}", int(total), threads * steps)
        found[f"shared_{name}"] = threads * steps / _best(lambda a=arguments: launch(*a), device)
    written = ("shared_write", SHARED_WORDS * 4, c_int32(SHARED_WORDS), c_int32(steps), total)
    total.zero_()
    launch(*written)
    _check("shared_write", int(total), blocks * (SHARED_WORDS // 4) * 2 * steps)
    found["shared_bytes"] = blocks * SHARED_WORDS * 4 * steps / _best(lambda: launch(*written), device)

    # A block moves on by the grid and seven more blocks in each step, and may pass the end of the values once a step.
    vectors = max(l2_bytes // 2 // 16, threads + 7 * THREADS)
    values = torch.tensor([2, 1, 1, 1], dtype=torch.int32, device=device).repeat(vectors)
    total.zero_()
    reading = ("l2_read", 0, c_int64(vectors), c_int32(steps), values, total)
    launch(*reading)
    _check("l2_read", int(total), threads * steps * 3)
    found["l2_bytes"] = threads * steps * 16 / _best(lambda: launch(*reading), device)

    words = 1 << (l2_bytes // 2 // 4).bit_length() - 1
    l2_steps = max(8, steps // 8)
    for name, dtype in (("int32", torch.int32), ("float", torch.float32)):
        sums = torch.zeros(words, dtype=dtype, device=device)
        arguments = (f"l2_{name}", 0, c_int32(words), c_int32(l2_steps), c_int32(1), sums)
        launch(*arguments)
        _check(f"l2_{name}", int(sums.to(torch.int64).sum()), threads * l2_steps)
        found[f"l2_{name}"] = threads * l2_steps / _best(lambda a=arguments: launch(*a), device)
    if not gpu:
        return {}
    source = torch.randint(1 << 30, (1 << 29,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    found["copy_bytes"] = 2 * source.nbytes / _best(lambda: target.copy_(source), device)
    return {name: float(f"{rate:.4g}") for name, rate in found.items()}


def _check(kernel: str, got: int, wanted: int) -> None:
    if got != wanted:
        raise RuntimeError(f"the ceiling {kernel} counted {got:,}, not {wanted:,}")


def _best(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of `TIMES` runs."""
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    seconds = []
    for _ in range(TIMES):
        start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start_event.record()
        work()
        end_event.record()
        end_event.synchronize()
        seconds.append(start_event.elapsed_time(end_event) / 1e3)
    return min(seconds)
