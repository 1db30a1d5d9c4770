"""An encoder without a model."""

import hashlib
from collections.abc import Sequence

import numpy as np

from fanrank.engine.encoders.encoder import Rows


class Hashing:
    """Vectors that look random and depend on nothing but the text; counts what it is asked."""

    def __init__(self, name: str = "hashing", version: str = "1", dimension: int = 4) -> None:
        self.name, self.version, self.dimension = name, version, dimension
        self.asked: list[str] = []
        self.calls = 0

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Rows:
        return self._rows("d", texts)

    def queries(self, texts: Sequence[str]) -> Rows:
        return self._rows("q", texts)

    def _rows(self, kind: str, texts: Sequence[str]) -> Rows:
        self.asked.extend(texts)
        self.calls += 1
        rows = [hashlib.blake2b((kind + self.version + text).encode()).digest()[: self.dimension] for text in texts]
        return np.array([[byte - 127.3 for byte in row] for row in rows], dtype=np.float32)
