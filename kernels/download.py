"""Answers on their way to the host: a copy through pinned memory behind an event, and where its rows belong."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..engine.arrays import Integers
from .frame import answer_in
from .runtime import Event, Runtime

Rows = tuple[Integers, Integers, npt.NDArray[np.int32]]
"""(scores [Q, width], documents [Q, width], counts [Q])."""


@dataclass(frozen=True, eq=False)
class Download:
    """The copy of an answer to the host. It runs after the earlier work of its stream."""

    block: torch.Tensor  # int64, on the host
    event: Event
    padded: tuple[int, int]  # queries and width of the block
    queries: int
    width: int
    release: Callable[[], None] | None = None  # called once `block` was read and may be written again

    @classmethod
    def of(cls, runtime: Runtime, block: torch.Tensor, queries: int, width: int) -> Download:
        """Begin to copy the block of an answer, without waiting."""
        host = runtime.pinned(len(block), torch.int64)
        runtime.copy(host, block)
        return cls(host, runtime.record(), (queries, width), queries, width)

    def wait(self) -> Rows:
        """The first `queries` rows, `width` columns of them."""
        self.event.wait()
        padded = answer_in(self.block, *self.padded)
        hits = slice(self.queries), slice(self.width)
        counts = np.minimum(padded.counts.numpy()[: self.queries], self.width).astype(np.int32)
        # The pinned memory is written again by the next fan-out.
        answer = padded.scores.numpy()[hits].copy(), padded.documents.numpy()[hits].copy(), counts
        if self.release is not None:
            self.release()
        return answer


class Downloads:
    """The downloads of one call's launches that the batch's answer waits for, oldest first."""

    def __init__(self, out: Rows) -> None:
        self._out = out
        self._waiting: deque[tuple[Integers, Download]] = deque()

    def add(self, rows: Integers, download: Download) -> None:
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
