"""The protocol of a search that every backend implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Integers
from ..index.snapshot import Snapshot
from ..timing import Phases
from .plan import Plan
from .requests import QuerySettings

Output = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]


def empty_output(batch: int, k: int) -> Output:
    """The answer to queries that find nothing: (scores 0 [batch, k], documents -1 [batch, k], counts 0 [batch])."""
    return (
        np.zeros((batch, k), dtype=np.int64),
        np.full((batch, k), -1, dtype=np.int64),
        np.zeros(batch, dtype=np.int32),
    )


class Search(Protocol):
    """The search function, with the same signature in every backend. `cpu_fallback/search.py` states its promises."""

    def __call__(
        self,
        plans: Sequence[Plan],
        batch: int,
        k: int,
        *,
        threads: int = 1,
        execution: str = "auto",
        phases: Phases | None = None,
    ) -> Output: ...


class TextHits(NamedTuple):
    """The answer to a batch of texts; the first three as in `Hits`."""

    scores: Floats  # [B, k]
    documents: Integers  # [B, k]
    counts: npt.NDArray[np.int32]  # [B]
    source: Integers  # [B] for each text, the row that was searched for it: equal texts are answered once
    counted: tuple[int, ...]  # what was read, in the order of `COUNTED`
    nanoseconds: tuple[int, ...]  # of `TEXT_PHASES`


COUNTED = "postings", "row entries", "lookups", "bytes"
"""What a compiled search counts: postings read, entries of dense rows read, documents looked up in lists, and the bytes
of postings and entries.
"""

TEXT_PHASES = "analyse", "plan", "score and select"


class SearchTexts(Protocol):
    """A search that takes texts, where a backend has one: from the texts to the hits of plain BM25 in one call.

    `analysed` is the compiled analysis of the texts' vocabulary, or the terms and offsets of all texts, which may
    also be tuples of terms. All share the settings and k. None where this search does not serve the
    snapshot or the texts: then nothing was answered.
    """

    def __call__(
        self,
        snapshot: Snapshot,
        settings: QuerySettings,
        analysed: Any,
        texts: Sequence[str] | Sequence[tuple[str, ...]],
        k: int,
        *,
        threads: int,
        execution: str,
    ) -> TextHits | None: ...


class SearchDialogues(Protocol):
    """As `SearchTexts`, by a strategy for dialogues: `native/dialogue.hpp` says what `dialogue` is.

    The documents whose texts must be read first, where there are some: then nothing was answered.
    """

    def __call__(
        self,
        snapshot: Snapshot,
        settings: QuerySettings,
        analysed: Any,
        texts: Sequence[str],
        k: int,
        dialogue: Any,
        *,
        threads: int,
        execution: str,
    ) -> TextHits | list[int] | None: ...
