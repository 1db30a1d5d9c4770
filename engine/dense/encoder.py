"""Texts to vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]


class Encoder(Protocol):
    """A model of embeddings. What it makes is only comparable with what the same name and version made (B004)."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Another one whenever a vector may differ: other weights, prompts, prefixes."""
        ...

    @property
    def dimension(self) -> int: ...

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Rows:
        """The vectors of passages, [texts, dimension], of any length. `progress` shows a bar if it takes long."""
        ...

    def queries(self, texts: Sequence[str]) -> Rows:
        """The vectors of queries, [texts, dimension]."""
        ...
