"""The search verb on a device: the same answer as `cpu_fallback/search.py`, whichever kernel family serves.

plans -> upload -> derive -> launches of bounded size: plan, cut, score, select, download
"""

from __future__ import annotations

import contextlib
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
        execution: str = "auto",
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
        with self.lock, self._current():
            clock = DevicePhases(phases, self.residency.device)
            self._make_ready([plan.snapshot for plan in plans], clock)
            if len(plans) == 1 and execution == "auto" and self._small(plans[0], clock, out):
                clock.finish()
                return out
            tile_bits = self.verbs.tile_bits(any(bool(plan.wide.any()) or plan.snapshot.long for plan in plans))
            candidates, cuts = self.residency.places(MAX_CANDIDATES, MAX_CUTS)
            for shares in chunks(plans, tile_bits, candidates, cuts):
                self._answer(shares, tile_bits, clock, out)
            clock.finish()
        return out

    def tensors(
        self, snapshot: Snapshot, terms: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, k: int
    ) -> TensorHits:
        """As `Engine.search_tensors`."""
        with self.lock, self._current():
            self._make_ready([snapshot], DevicePhases(None, self.residency.device))
            try:
                return self._tensors(snapshot, terms, offsets, weights, k)
            except torch.OutOfMemoryError as error:
                raise self._too_large(f"a batch of {len(offsets) - 1} queries", error) from error

    def _current(self) -> contextlib.AbstractContextManager[object]:
        """Makes the device the thread's own, which streams, events and graphs follow."""
        device = self.residency.device
        return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()

    def _make_ready(self, snapshots: Sequence[Snapshot], clock: DevicePhases) -> None:
        try:
            self.residency.make_ready(snapshots, self.verbs, clock)
        except torch.OutOfMemoryError as error:
            raise self._too_large("the index", error) from error

    def _too_large(self, what: str, error: Exception) -> DeviceMemoryError:
        return DeviceMemoryError(
            f"{self.residency.device} has no room for {what} beside {self.residency.bytes:,} bytes of segments; serve "
            f"from the CPU, or free memory ({error})"
        )

    def _small(self, plan: Plan, clock: DevicePhases, out: Output) -> bool:
        """Answer by the fan-out's path, if the batch is one and its padded shape has room."""
        try:
            with clock("fan-out"):
                found = self._fanouts.answer(plan)
        except (DeviceMemoryError, torch.OutOfMemoryError):
            return False
        if found is None:
            return False
        _place(plan.rows, found, out)
        return True

    def _answer(self, shares: list[Share], tile_bits: int, clock: DevicePhases, out: Output) -> None:
        failure = self._launch(shares, tile_bits, clock, out)
        if failure is None:
            return
        parts = halves(shares)
        if len(parts) < 2:
            raise self._too_large("a single query", RuntimeError(failure))
        if self.residency.device.type == "cuda":
            torch.cuda.empty_cache()
        for part in parts:
            self._answer(part, tile_bits, clock, out)

    def _launch(self, shares: list[Share], tile_bits: int, clock: DevicePhases, out: Output) -> str | None:
        """Answer a chunk, or say how memory ran out; then nothing of the launch is held any more."""
        try:
            with clock("plan"):
                launch = make_launch(shares, self.residency, tile_bits)
            run(self.verbs, launch.work, launch.buffers, launch.answer, clock)
            with clock("download"):
                found = to_host(launch.answer)
        except torch.OutOfMemoryError as error:
            return str(error)
        _place(launch.rows, found, out)
        return None


def _place(rows: npt.NDArray[np.int64], found: Output, out: Output) -> None:
    """Write the rows of a launch into the batch's answer."""
    for target, own in zip(out[:2], found[:2], strict=True):
        target[rows, : own.shape[1]] = own
    out[2][rows] = found[2]
