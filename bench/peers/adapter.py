"""The interface of an adapter."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Arrays = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


class Adapter(Protocol):
    """One peer. Texts go in, so its own analysis is in the clock. The worker calls the methods in this order.

    The constructor takes the stop words, and the options of the system. `build` writes an index to `folder`, with
    `threads` where the peer can, and keeps it, so that its memory can be measured. `store` keeps ids and texts in
    `folder`, each batch durable before the next; only peers that can have it. `open` reads it and returns the
    backend or mode in use. `ask` takes texts and returns ids and scores of the `k` best in the peer's own form;
    `arrays` makes it documents [Q, k] (padding -1) and scores [Q, k].
    """

    def version(self) -> str: ...
    def build(self, texts: Iterable[str], folder: Path, threads: int) -> None: ...
    def store(self, batches: Iterable[list[tuple[str, str]]], folder: Path) -> None: ...
    def open(self, folder: Path) -> str: ...
    def ask(self, texts: list[str], k: int) -> Any: ...
    def arrays(self, result: Any, k: int) -> Arrays: ...
