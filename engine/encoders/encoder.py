"""The protocol of encoders, which turn texts into vectors, and an encoder for callers who bring their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import EncoderError, ParameterError
from ..vectors.vectors import MAX_DIMENSION

Rows = npt.NDArray[np.float32]


# Sources: B004.
class Encoder(Protocol):
    """A model of embeddings. Vectors can be compared only if they are of the same name and version."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Differs whenever a vector may differ: for other weights, prompts or prefixes."""
        ...

    @property
    def dimension(self) -> int: ...

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Rows:
        """The vectors of passages, [texts, dimension]; a vector may have any length. `progress` may show a bar."""
        ...

    def queries(self, texts: Sequence[str]) -> Rows:
        """The vectors of queries, [texts, dimension]."""
        ...


@dataclass(frozen=True)
class OwnVectors:
    """The encoder of callers who bring their own vectors. It pins name, version and dimension, and encodes nothing.

    A record that is added without a vector has none, and only its words can match.

    Raises `ParameterError` for an empty name or version, and for a dimension out of range. `documents` and `queries`
    raise `EncoderError`, except for an empty list of texts.
    """

    dimension: int
    name: str = "own"
    version: str = "1"

    encodes: ClassVar[bool] = False
    """Whether to call this encoder for a record without a vector. An encoder without this attribute is called."""

    def __post_init__(self) -> None:
        whole = isinstance(self.dimension, int) and not isinstance(self.dimension, bool)
        if not whole or not 1 <= self.dimension <= MAX_DIMENSION:
            raise ParameterError(f"dimension must be from 1 to {MAX_DIMENSION:,}, not {self.dimension!r}")
        for field in ("name", "version"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise ParameterError(f"the {field} of the model must be a string, and not empty, not {value!r}")

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Rows:
        return self._refuse(texts, "a record", "Record(..., embedding=vector)")

    def queries(self, texts: Sequence[str]) -> Rows:
        return self._refuse(texts, "a query", "Query(..., vector=vector)")

    def _refuse(self, texts: Sequence[str], what: str, instead: str) -> Rows:
        if len(texts):
            raise EncoderError(
                f"{what} came without a vector, and {self.name!r} cannot make one of text: pass {instead}, "
                "or open the engine with a model as its encoder"
            )
        return np.zeros((0, self.dimension), dtype=np.float32)


def check_rows(rows: npt.ArrayLike, texts: Sequence[str], encoder: Encoder) -> Rows:
    """The rows that `encoder` returned for `texts`, checked, as float32 [texts, dimension].

    Raises `EncoderError` for another shape, for a value that is not finite, and for a vector of length 0.
    """
    try:
        vectors = np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        raise EncoderError(f"{encoder.name!r} answered with something other than rows of numbers") from None
    if vectors.size == 0 and not len(texts):
        return np.zeros((0, encoder.dimension), dtype=np.float32)
    if vectors.shape != (len(texts), encoder.dimension):
        shape = len(texts), encoder.dimension
        raise EncoderError(f"{encoder.name!r} answered with an array of shape {vectors.shape} where {shape} was asked")
    bad = ~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1)
    if bad.any():
        position = int(np.argmax(bad))
        what = "a vector of length 0" if np.isfinite(vectors[position]).all() else "a value that is not finite"
        raise EncoderError(f"{encoder.name!r} made {what} of {texts[position][:80]!r}")
    return vectors
