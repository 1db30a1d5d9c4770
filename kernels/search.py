"""The search verb on a device: the same answer as `cpu_fallback/search.py`, whichever kernel family serves.

plans -> upload -> derive -> launches of bounded size: plan, cut, score, select, download

Only what comes before the download holds the lock. Calls take two streams in turn, each with buffers and an answer of
its own in pinned memory, so the next call's launches are on their way while this one's answer is waited for.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..engine.arrays import Floats, Integers
from ..engine.errors import DeviceMemoryError, ParameterError
from ..engine.index.bm25 import INT32_MAX, SCALE
from ..engine.index.snapshot import Snapshot
from ..engine.plan.plan import Plan
from ..engine.plan.requests import QuerySettings
from ..engine.plan.verbs import TextHits
from ..engine.timing import Phases
from .batch import Download, Share, chunks, halves, make_launch
from .device import Residency
from .fanout import Fanouts
from .launch import run
from .tensors import TensorHits, TensorSearch
from .timing import DevicePhases
from .work import Verbs

# Places for candidates and for cuts in one launch, where memory does not say less: 768 and 192 MiB.
MAX_CANDIDATES = 1 << 26
MAX_CUTS = 1 << 24

STREAMS = 2

EVERY_RECORD = QuerySettings()
_UNIT = 1.0 / SCALE

Output = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]


class Downloads:
    """The downloads of one call's launches that the batch's answer waits for, oldest first."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._waiting: deque[tuple[npt.NDArray[np.int64], Download]] = deque()

    def add(self, rows: npt.NDArray[np.int64], download: Download) -> None:
        """Add the download of these rows. Waits for those before it, and releases their pinned memory."""
        self._waiting.append((rows, download))
        self.write_answers(1)

    def write_answers(self, waiting: int = 0) -> None:
        """Wait for all downloads but the last `waiting`, and write them into the batch's answer."""
        while len(self._waiting) > waiting:
            rows, download = self._waiting.popleft()
            scores, documents, counts = download.wait()
            self._out[0][rows, : scores.shape[1]] = scores
            self._out[1][rows, : documents.shape[1]] = documents
            self._out[2][rows] = counts


class DeviceSearch:
    """One engine's search on one device. Any thread may call it.

    `STREAMS` calls are on the device at once, or one where the bytes are bounded.
    """

    def __init__(
        self,
        verbs: Verbs,
        device: torch.device,
        max_device_bytes: int | None = None,
        *,
        posting_bytes: int = 8,
        residency: Residency | None = None,
    ) -> None:
        """Over segments of its own, of which `posting_bytes` are as `Residency` has them, or over those of another.

        Searches over one residency must not run at once. Raises `ParameterError` where the family does not read such.
        """
        self.residency = residency or Residency(device, max_device_bytes, posting_bytes)
        if self.residency.posting_bytes not in verbs.posting_bytes:
            raise ParameterError(
                f"{verbs.name} reads postings of {verbs.posting_bytes} bytes, not {self.residency.posting_bytes!r}"
            )
        self.verbs = verbs
        self.lock = threading.RLock()
        self._tensors = TensorSearch(self.residency, verbs)
        self._fanouts = Fanouts(self._tensors)
        self._streams = _streams(device)
        self._calls = itertools.count()

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
        clock = DevicePhases(phases, self.residency.device)
        downloads = Downloads(out)
        # Where bytes are bounded, what a call takes must be let go before the next takes its own.
        with self.lock if self.residency.limit is not None else contextlib.nullcontext():
            with self.lock, self._current():
                self._make_ready([plan.snapshot for plan in plans], clock)
                with self._stream():
                    self._begin(plans, execution, clock, downloads)
                    clock.finish()
            downloads.write_answers()
        return out

    def search_texts(
        self,
        snapshot: Snapshot,
        settings: QuerySettings,
        analysed: Any,
        texts: Sequence[str] | Sequence[tuple[str, ...]],
        k: int,
        *,
        threads: int,
        execution: str,
    ) -> TextHits | None:
        """As `SearchTexts`, for fan-outs: few texts, which every record may answer and where no score fades."""
        width = min(k, snapshot.size)
        if execution != "auto" or settings != EVERY_RECORD or snapshot.bm25.query_tf == "unique" or not width:
            return None
        begun = time.perf_counter_ns()
        terms, offsets = _terms_of(analysed, texts)
        longest = int((offsets[1:] - offsets[:-1]).max(initial=0))
        if snapshot.long or snapshot.highest_bound * longest >= INT32_MAX:
            return None
        ready = time.perf_counter_ns()
        # As in `__call__`: where bytes are bounded, the next call waits until this one has let go of its own.
        clock = DevicePhases(None, self.residency.device)
        with self.lock if self.residency.limit is not None else contextlib.nullcontext():
            with self.lock, self._current():
                self._make_ready([snapshot], clock)
                with self._stream():
                    download = self._small(lambda: self._fanouts.begin_terms(snapshot, terms, offsets, width), clock)
            if download is None:
                return None
            quanta, documents, counts = download.wait()
        scores: Floats = np.multiply(quanta, _UNIT, dtype=np.float64)
        scores[documents < 0] = -np.inf
        if width < k:
            scores = np.pad(scores, ((0, 0), (0, k - width)), constant_values=-np.inf)
            documents = np.pad(documents, ((0, 0), (0, k - width)), constant_values=-1)
        first: dict[object, int] = {}
        source = np.array([first.setdefault(text, row) for row, text in enumerate(texts)], dtype=np.int64)
        spent = ready - begun, 0, time.perf_counter_ns() - ready
        return TextHits(scores, documents, counts, source, (), spent)

    def _begin(
        self,
        plans: Sequence[Plan],
        execution: str,
        clock: DevicePhases,
        downloads: Downloads,
    ) -> None:
        """Launch everything on the current stream; `downloads` is where the answers will be found."""
        if len(plans) == 1 and execution == "auto":
            small = self._small(lambda: self._fanouts.begin(plans[0]), clock)
            if small is not None:
                downloads.add(plans[0].rows, small)
                return
        tile_bits = self.verbs.tile_bits(any(bool(plan.wide.any()) or plan.snapshot.long for plan in plans))
        candidates, cuts = self.residency.room_for(MAX_CANDIDATES, MAX_CUTS)
        for shares in chunks(plans, tile_bits, candidates, cuts):
            self._answer(shares, tile_bits, clock, downloads)

    def _stream(self) -> contextlib.AbstractContextManager[object]:
        """The next of the streams made the current one."""
        if not self._streams:
            return contextlib.nullcontext()
        stream: contextlib.AbstractContextManager[object] = torch.cuda.stream(
            self._streams[next(self._calls) % len(self._streams)]
        )
        return stream

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

    def _small(self, begin: Callable[[], Download | None], clock: DevicePhases) -> Download | None:
        """The fan-out's path, begun, if the batch is one and its padded shape has room."""
        try:
            with clock("fan-out"):
                return begin()
        except (DeviceMemoryError, torch.OutOfMemoryError):
            return None

    def _answer(self, shares: list[Share], tile_bits: int, clock: DevicePhases, downloads: Downloads) -> None:
        failure = self._launch(shares, tile_bits, clock, downloads)
        if failure is None:
            return
        parts = halves(shares)
        if len(parts) < 2:
            raise self._too_large("a single query", RuntimeError(failure))
        if self.residency.device.type == "cuda":
            torch.cuda.empty_cache()
        for part in parts:
            self._answer(part, tile_bits, clock, downloads)

    def _launch(self, shares: list[Share], tile_bits: int, clock: DevicePhases, downloads: Downloads) -> str | None:
        """Launch a chunk, or say how memory ran out; then nothing of the launch is held any more.

        Its buffers are let go before it is done: their memory goes to what the same stream does next, and no other.
        """
        try:
            with clock("plan"):
                launch = make_launch(shares, self.residency, tile_bits)
            run(self.verbs, launch.work, launch.buffers, launch.answer, clock)
            with clock("download"):
                downloads.add(launch.rows, Download.of(launch.answer))
        except torch.OutOfMemoryError as error:
            return str(error)
        return None


def _terms_of(analysed: Any, texts: Sequence[Any]) -> tuple[Integers, Integers]:
    """(terms, offsets) of the texts, by the compiled analysis or as they are given."""
    if isinstance(analysed, tuple):
        return analysed[0].astype(np.int64), analysed[1]
    terms, offsets = analysed.encode_queries(texts)
    return np.frombuffer(terms, np.int32).astype(np.int64), np.frombuffer(offsets, np.int64)


def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    """The streams that calls take in turn; none where the device is the host."""
    if device.type != "cuda":
        return []
    return [torch.cuda.Stream(device) for _ in range(STREAMS)]  # type: ignore[no-untyped-call]
