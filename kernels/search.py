"""The search verb on a device: the same answer as `cpu_fallback/search.py`, whichever kernel family serves.

plans -> upload -> derive -> launches of bounded size: plan, cut, score, select, download
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..engine.errors import DeviceMemoryError
from ..engine.index import Snapshot
from ..engine.plan import Plan
from ..engine.timing import Phases
from .batch import Share, chunks, halves, make_launch, to_host
from .device import Residency
from .fanout import Fanouts
from .launch import run
from .tensors import TensorHits, TensorSearch
from .timing import DevicePhases
from .work import Verbs

# Places for candidates and for cuts in one launch, where memory does not say less: 768 and 192 MiB.
MAX_CANDIDATES = 1 << 26
MAX_CUTS = 1 << 24

Output = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]


class DeviceSearch:
    """One engine's search on one device. Calls are answered one after another: a device is one queue."""

    def __init__(self, verbs: Verbs, device: torch.device, max_device_bytes: int | None = None) -> None:
        self.verbs = verbs
        self.residency = Residency(device, max_device_bytes)
        self.lock = threading.RLock()
        self._tensors = TensorSearch(self.residency, verbs)
        self._fanouts = Fanouts(self._tensors)

    def __call__(
        self,
        plans: Sequence[Plan],
        batch: int,
        k: int,
        *,
        threads: int = 1,
        strategy: str = "auto",
        phases: Phases | None = None,
    ) -> Output:
        """As the CPU's verb. `threads` says nothing here; ``auto`` takes the fan-out's path where the batch is small.

        Raises `DeviceMemoryError` if a segment, or a single query, does not fit the device.
        """
        scores = np.zeros((batch, k), dtype=np.int64)
        documents = np.full((batch, k), -1, dtype=np.int64)
        counts = np.zeros(batch, dtype=np.int32)
        out = (scores, documents, counts)
        if not k:
            return out
        with self.lock:
            clock = DevicePhases(phases, self.residency.device)
            self.residency.make_ready([plan.snapshot for plan in plans], self.verbs, clock)
            if len(plans) == 1 and strategy == "auto":
                with clock("fan-out"):
                    small = self._fanouts.answer(plans[0])
                if small is not None:
                    _place(plans[0].rows, small, out)
                    clock.finish()
                    return out
            tile_bits = self.verbs.tile_bits(any(bool(plan.wide.any()) or plan.long for plan in plans))
            candidates, cuts = self.residency.places(MAX_CANDIDATES, MAX_CUTS)
            for shares in chunks(plans, tile_bits, candidates, cuts):
                self._answer(shares, tile_bits, clock, out)
            clock.finish()
        return out

    def tensors(
        self, snapshot: Snapshot, terms: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, k: int
    ) -> TensorHits:
        """As `Engine.search_tensors`."""
        with self.lock:
            self.residency.make_ready([snapshot], self.verbs, DevicePhases(None, self.residency.device))
            return self._tensors(snapshot, terms, offsets, weights, k)

    def _answer(self, shares: list[Share], tile_bits: int, clock: DevicePhases, out: Output) -> None:
        try:
            with clock("plan"):
                launch = make_launch(shares, self.residency, tile_bits)
            run(self.verbs, launch.work, launch.buffers, launch.answer, clock)
            with clock("download"):
                found = to_host(launch.answer)
        except torch.OutOfMemoryError as error:
            failure: Exception = error
        else:
            _place(launch.rows, found, out)
            return
        # Outside the handler, where the traceback no longer keeps the failed launch's tensors alive.
        parts = halves(shares)
        if len(parts) < 2:
            raise DeviceMemoryError(
                f"{self.residency.device} has no room for a single query beside {self.residency.bytes:,} bytes of "
                f"segments; serve from the CPU, or free memory ({failure})"
            )
        del failure
        if self.residency.device.type == "cuda":
            torch.cuda.empty_cache()
        for part in parts:
            self._answer(part, tile_bits, clock, out)


def _place(rows: npt.NDArray[np.int64], found: Output, out: Output) -> None:
    """Write the rows of a launch into the batch's answer."""
    for target, own in zip(out[:2], found[:2], strict=True):
        target[rows, : own.shape[1]] = own
    out[2][rows] = found[2]
