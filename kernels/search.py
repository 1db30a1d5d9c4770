"""The search verb on a device: the same answer as `cpu_fallback/search.py`, whichever kernel family serves.

plans -> upload -> derive -> launches of bounded size: describe, order, score, select, download

Only what comes before the download holds the lock. Calls take two streams in turn, each with buffers and an answer of
its own in pinned memory, so the next call's launches are on their way while this one's answer is waited for. The host
waits for nothing but answers.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ..engine.arrays import Floats, Integers, ranges
from ..engine.errors import DeviceMemoryError, ParameterError
from ..engine.index.bm25 import INT32_MAX, SCALE
from ..engine.index.snapshot import Snapshot
from ..engine.plan.plan import Plan
from ..engine.plan.requests import QuerySettings
from ..engine.plan.verbs import Output, TextHits, empty_output
from ..engine.timing import Phases
from .batch import Chunk, Texts, chunks
from .device import Residency
from .download import Download, Downloads
from .fanout import Fanouts
from .launch import run
from .runtime import is_out_of_memory, with_kernels
from .tensors import TensorHits, TensorSearch
from .timing import DevicePhases
from .work import Verbs

# Places for candidates and for descriptors in one launch, where memory does not say less: 768 and 192 MiB.
MAX_CANDIDATES = 1 << 26
MAX_DESCRIPTORS = 1 << 23

STREAMS = 2

EVERY_RECORD = QuerySettings()
_UNIT = 1.0 / SCALE


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
            sizes = " or ".join(map(str, verbs.posting_bytes))
            raise ParameterError(f"{verbs.name} reads postings of {sizes} bytes, not {self.residency.posting_bytes!r}")
        self.verbs = verbs
        self.lock = self.residency.account.lock
        self.fanouts = Fanouts(self.residency, verbs)
        self._runtime = self.residency.runtime
        self._tensors = TensorSearch(self.residency, verbs)
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
        if not k:
            return empty_output(batch, k)
        return with_kernels(lambda: self._search(plans, batch, k, execution, phases))

    def _search(self, plans: Sequence[Plan], batch: int, k: int, execution: str, phases: Phases | None) -> Output:
        out = empty_output(batch, k)
        clock = DevicePhases(phases, self.residency.device)
        downloads = Downloads(out)
        with self._one_at_a_time():
            with self._serving():
                stream = self._next_stream()
                for group in apart(plans):
                    self._make_ready([plan.snapshot for plan in group], clock)
                    with self._launching(stream):
                        self._begin(group, execution, clock, downloads)
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
        """As `SearchTexts`, for texts that every record may answer and whose scores do not fade; any number of them."""
        width = min(k, snapshot.size)
        if execution != "auto" or settings != EVERY_RECORD or snapshot.bm25.query_tf == "unique" or not width:
            return None
        begun = time.perf_counter_ns()
        rows: dict[object, int] = {}
        source = np.array([rows.setdefault(text, row) for row, text in enumerate(texts)], dtype=np.int64)
        asked, places = np.unique(source, return_inverse=True)
        terms, offsets = _terms_of(analysed, texts)
        lengths = np.diff(offsets)[asked]
        if snapshot.long or snapshot.highest_bound * int(lengths.max(initial=0)) >= INT32_MAX or not lengths.any():
            return None
        if len(asked) < len(source):
            terms, offsets = terms[ranges(offsets[asked], lengths)], np.concatenate([[0], np.cumsum(lengths)])
        ready = time.perf_counter_ns()
        found = with_kernels(lambda: self._answer_texts(Texts(snapshot, terms, offsets, width)))
        if found is None:
            return None
        quanta, documents, counts = found
        scores: Floats = np.multiply(quanta, _UNIT, dtype=np.float64)
        scores[documents < 0] = -np.inf
        if len(asked) < len(source):
            scores, documents, counts = scores[places], documents[places], counts[places]
        if width < k:
            scores = np.pad(scores, ((0, 0), (0, k - width)), constant_values=-np.inf)
            documents = np.pad(documents, ((0, 0), (0, k - width)), constant_values=-1)
        spent = ready - begun, 0, time.perf_counter_ns() - ready
        return TextHits(scores, documents, counts, source, (), spent)

    def tensors(
        self, snapshot: Snapshot, terms: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, k: int
    ) -> TensorHits:
        """As `Engine.search_tensors`, on the caller's stream."""
        return with_kernels(lambda: self._search_tensors(snapshot, terms, offsets, weights, k))

    def _search_tensors(
        self, snapshot: Snapshot, terms: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None, k: int
    ) -> TensorHits:
        with self._serving():
            self._make_ready([snapshot], DevicePhases(None, self.residency.device))
            with self._naming_shortage(f"a batch of {len(offsets) - 1} queries"):
                return self._tensors(snapshot, terms, offsets, weights, k)

    def _one_at_a_time(self) -> contextlib.AbstractContextManager[object]:
        """Where bytes are bounded, what a call takes must be let go before the next takes its own."""
        return self.lock if self.residency.account.limit is not None else contextlib.nullcontext()

    @contextlib.contextmanager
    def _serving(self) -> Iterator[None]:
        """The lock and the device; what no launch reads any more is let go."""
        with self.lock, self._runtime.active():
            self.residency.lifetimes.sweep()
            yield

    @contextlib.contextmanager
    def _launching(self, stream: Any) -> Iterator[None]:
        """The stream made current; what it is given meanwhile may read everything."""
        with self._runtime.on(stream):
            try:
                yield
            finally:
                self.residency.lifetimes.launched()

    @cached_property
    def _streams(self) -> list[Any]:
        return [self._runtime.new_stream() for _ in range(STREAMS)]

    def _next_stream(self) -> Any:
        return self._streams[next(self._calls) % len(self._streams)]

    def _begin(
        self,
        plans: Sequence[Plan],
        execution: str,
        clock: DevicePhases,
        downloads: Downloads,
    ) -> None:
        """Launch everything on the current stream; `downloads` is where the answers will be found."""
        if len(plans) == 1 and execution == "auto":
            small = self._small(lambda: self.fanouts.begin(plans[0]), clock)
            if small is not None:
                downloads.add(plans[0].rows, small)
                return
        room = self.residency.room_for(MAX_CANDIDATES, MAX_DESCRIPTORS)
        for chunk in chunks(plans, self.verbs.tile_bits, *room):
            self._answer(chunk, clock, downloads)

    def _answer_texts(self, texts: Texts) -> Output | None:
        """The answer; None where even a single text has no room."""
        count = len(texts.offsets) - 1
        clock = DevicePhases(None, self.residency.device)
        # Every place is written.
        out = (
            np.empty((count, texts.k), dtype=np.int64),
            np.empty((count, texts.k), dtype=np.int64),
            np.empty(count, dtype=np.int32),
        )
        downloads = Downloads(out)
        with self._one_at_a_time():
            with self._serving():
                self._make_ready([texts.snapshot], clock)
                with self._launching(self._next_stream()):
                    small = self._small(
                        lambda: self.fanouts.begin_terms(texts.snapshot, texts.terms, texts.offsets, texts.k), clock
                    )
                    if small is not None:
                        downloads.add(np.arange(count), small)
                    else:
                        try:
                            self._launch_texts(texts, clock, downloads)
                        except DeviceMemoryError:
                            return None
            downloads.write_answers()
        return out

    def _launch_texts(self, texts: Texts, clock: DevicePhases, downloads: Downloads) -> None:
        """Launch all in chunks. Raises `DeviceMemoryError` where the table, or a single text, has no room."""
        tile_bits = self.verbs.tile_bits(False)
        tiles = self.residency.table(texts.snapshot, tile_bits, self.verbs, on_device=True).tiles
        room = self.residency.room_for(MAX_CANDIDATES, MAX_DESCRIPTORS)
        for part in texts.chunks(tiles, tile_bits, *room):
            self._answer(part, clock, downloads)

    def _make_ready(self, snapshots: Sequence[Snapshot], clock: DevicePhases) -> None:
        with self._naming_shortage("the index"):
            self.residency.make_ready(snapshots, self.verbs, clock)

    @contextlib.contextmanager
    def _naming_shortage(self, what: str) -> Iterator[None]:
        """Where memory runs out within it, `DeviceMemoryError` says for what."""
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise self._too_large(what, error) from error

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
        except (DeviceMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return None

    def _answer(self, chunk: Chunk | Texts, clock: DevicePhases, downloads: Downloads) -> None:
        failure = self._launch(chunk, clock, downloads)
        if failure is None:
            return
        parts = chunk.halves
        if len(parts) < 2:
            raise self._too_large("a single query", RuntimeError(failure))
        self.residency.account.release()
        for part in parts:
            self._answer(part, clock, downloads)

    def _launch(self, chunk: Chunk | Texts, clock: DevicePhases, downloads: Downloads) -> str | None:
        """Launch, or say how memory ran out; then nothing of the launch is held any more.

        Its buffers are let go before it is done: their memory goes to what the same stream does next, and no other.
        """
        try:
            with clock("plan"):
                launch = chunk.launch(self.residency, self.verbs)
            run(self.verbs, self._runtime, launch.work, launch.buffers, launch.answer, clock, launch.batch)
            with clock("download"):
                download = Download.of(self._runtime, launch.found, *launch.answer.scores.shape)
                downloads.add(launch.rows, download)
        except (DeviceMemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return str(error)
        return None


def apart(plans: Sequence[Plan]) -> Iterator[list[Plan]]:
    """The plans in groups within which no segment has contributions of two epochs, as a segment holds those of one."""
    group: list[Plan] = []
    epoch_of: dict[int, Snapshot] = {}
    for plan in plans:
        own = dict.fromkeys((id(segment) for segment in plan.snapshot.segments), plan.snapshot)
        if any(epoch_of.get(segment, plan.snapshot) is not plan.snapshot for segment in own):
            yield group
            group, epoch_of = [], {}
        group.append(plan)
        epoch_of |= own
    if group:
        yield group


def _terms_of(analysed: Any, texts: Sequence[Any]) -> tuple[Integers, Integers]:
    """(terms, offsets) of the texts, by the compiled analysis or as they are given."""
    if isinstance(analysed, tuple):
        return analysed[0].astype(np.int64), analysed[1]
    terms, offsets = analysed.encode_queries(texts)
    return np.frombuffer(terms, np.int32).astype(np.int64), np.frombuffer(offsets, np.int64)
