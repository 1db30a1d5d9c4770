"""Texts to vectors."""

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
    """A model of embeddings. What it makes is only comparable with what the same name and version made."""

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


@dataclass(frozen=True)
class OwnVectors:
    """The encoder of callers who bring their vectors along: it pins name, version and dimension, and encodes nothing.

    A record that comes without a vector has none, and is found by its words alone.

    Raises `ParameterError` for a name or version that is empty, or a dimension out of range; `documents` and `queries`
    raise `EncoderError`, but for no texts at all.
    """

    dimension: int
    name: str = "own"
    version: str = "1"

    encodes: ClassVar[bool] = False
    """Read where a record has no vector: whether to ask for one (an encoder without this attribute is asked)."""

    def __post_init__(self) -> None:
        whole = isinstance(self.dimension, int) and not isinstance(self.dimension, bool)
        if not whole or not 1 <= self.dimension <= MAX_DIMENSION:
            raise ParameterError(f"dimension must be from 1 to {MAX_DIMENSION:,}, not {self.dimension!r}")
        for field in ("name", "version"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise ParameterError(f"the {field} of the model must be a string, and not empty, not {value!r}")

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Rows:
        return self._none(texts, "a record", "Record(..., embedding=vector)")

    def queries(self, texts: Sequence[str]) -> Rows:
        return self._none(texts, "a query", "Query(..., vector=vector)")

    def _none(self, texts: Sequence[str], what: str, instead: str) -> Rows:
        if len(texts):
            raise EncoderError(
                f"{what} came without a vector, and {self.name!r} cannot make one of text: pass {instead}, "
                "or open the engine with a model as its encoder"
            )
        return np.zeros((0, self.dimension), dtype=np.float32)


def check_rows(rows: npt.ArrayLike, texts: Sequence[str], encoder: Encoder) -> Rows:
    """What an encoder made of `texts`, as float32 [texts, dimension].

    Raises `EncoderError` for another shape, and for a vector that is not finite or has length 0.
    """
    try:
        found = np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        raise EncoderError(f"{encoder.name!r} answered with something other than rows of numbers") from None
    if found.size == 0 and not len(texts):
        return np.zeros((0, encoder.dimension), dtype=np.float32)
    if found.shape != (len(texts), encoder.dimension):
        wanted = len(texts), encoder.dimension
        raise EncoderError(f"{encoder.name!r} answered with an array of shape {found.shape} where {wanted} was asked")
    bad = ~np.isfinite(found).all(axis=1) | ~found.any(axis=1)
    if bad.any():
        place = int(np.argmax(bad))
        what = "a vector of length 0" if np.isfinite(found[place]).all() else "a value that is not finite"
        raise EncoderError(f"{encoder.name!r} made {what} of {texts[place][:80]!r}")
    return found
