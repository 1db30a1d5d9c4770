"""What every backend does with vectors (`DenseVerbs`), and the types that it takes and returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Floats, Integers
from ..errors import ParameterError, choices
from .index_options import Approximate
from .interaction import Interaction
from .vectors import Halves, Vectors

Mode = Literal["exact", "int8", "hnsw"]
"""``exact``: cosines of the stored vectors. ``int8``: cosines of their int8 codes. ``hnsw``: cosines of the stored
vectors, of the candidates that an approximate index finds: an HNSW graph on the CPU, CAGRA's or all rows on a GPU."""
MODES: tuple[str, ...] = get_args(Mode)

Output = tuple[Floats, Integers, npt.NDArray[np.int32]]


@dataclass(frozen=True, eq=False)
class Stretch:
    """The vectors of neighbouring documents, and which of the documents may be hits."""

    vectors: Vectors
    first: int
    """The number of its first document. No document may lie in two stretches of one search."""
    passing: Flags | None = None
    """[documents] which of them may be hits; None means all."""


class DenseVerbs(Protocol):
    """What a backend does with vectors. Queries are float16 [B, dimension] of length 1, as `normalize` returns them.

    `interaction` makes the score of a document from the cosines of its rows. A cosine is a sum of products in float64
    (modes ``exact`` and ``hnsw``), or ``(float64(sum) * step of the query) * step of the row`` over int8 codes (mode
    ``int8``). Scores are the same bits on every backend and in every batch, but for the interactions ``lse`` and
    ``lme`` (`Interaction.rounding`). A document without a row has no score and is never a hit.
    """

    name: str
    """The backend's name, as people read it."""
    gpu: int | None
    """The number of the GPU that it serves from; None: it serves from the CPU."""

    def best(
        self,
        queries: Halves,
        stretches: Sequence[Stretch],
        k: int,
        interaction: Interaction,
        mode: Mode,
        *,
        threads: int = 1,
        approximate: Approximate | None = None,
    ) -> Output:
        """The k best documents of each query over all stretches: (scores [B, k], documents [B, k], counts [B]).

        Ordered by score, highest first, then by document number, smallest first. Entries past a row's count hold -inf
        and -1. `approximate` holds the options of mode ``hnsw``; None: the defaults. Raises `DeviceMemoryError`, and
        for mode ``hnsw`` `MissingExtraError` without FAISS and `BackendUnavailableError` where it does not load.
        """
        ...

    def scores_of(
        self,
        queries: Halves,
        stretches: Sequence[Stretch],
        offsets: Integers,
        documents: Integers,
        interaction: Interaction,
        mode: Mode,
    ) -> Floats:
        """The score of each document [T] for its query. Query b has the documents ``[offsets[b], offsets[b + 1])``.

        The score is -inf where the document has no vector or lies in no stretch. `Stretch.passing` is ignored.
        """
        ...


def check_mode(mode: str) -> None:
    """Raises `ParameterError` for an unknown mode."""
    if mode not in MODES:
        raise ParameterError(f"unknown mode {mode!r} of dense search{choices(mode, MODES)}")


def rows_to_compare(vectors: Vectors, interaction: Interaction) -> tuple[Vectors, Interaction]:
    """The rows whose cosines an interaction takes, and the interaction that makes one number of them.

    Where every document has one row, that is ``late``: the score is the row's cosine.
    """
    if interaction.kind == "early":
        return vectors.centroids, replace(interaction, kind="late")
    if vectors.single:
        return vectors, replace(interaction, kind="late")
    return vectors, interaction


def places_in(stretch: Stretch, documents: Integers) -> tuple[Integers, Integers]:
    """(indexes into `documents`, document numbers within the stretch) of the documents that have a vector in it."""
    local = documents - stretch.first
    indexes = np.flatnonzero((local >= 0) & (local < len(stretch.vectors)))
    indexes = indexes[stretch.vectors.held[local[indexes]]]
    return indexes, local[indexes]


def document_vectors(stretches: Sequence[Stretch], documents: Integers) -> Halves:
    """One vector [n, dimension] for each document [n]: its row, or the mean of its rows (`Vectors.centroids`).

    The vector is zero where a number is -1, lies in no stretch, or has no vector. Raises `ValueError` if there is no
    stretch.
    """
    if not stretches:
        raise ValueError("without a stretch the dimension of its vectors is unknown")
    vectors = np.zeros((len(documents), stretches[0].vectors.dimension), dtype=np.float16)
    for stretch in stretches:
        indexes, local = places_in(stretch, documents)
        if len(indexes):
            means = stretch.vectors.centroids
            vectors[indexes] = means.matrix[means.offsets[local]]
    return vectors
