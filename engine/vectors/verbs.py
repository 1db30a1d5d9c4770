"""The dense verbs, the same for every backend, and the nouns that they work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Floats, Integers
from ..errors import ParameterError
from .interaction import Interaction
from .vectors import Halves, Vectors

Mode = Literal["exact", "int8", "hnsw"]
"""Cosines of the stored vectors; of their int8 codes; of the stored vectors, among what an approximate index finds."""
MODES: tuple[str, ...] = get_args(Mode)

Output = tuple[Floats, Integers, npt.NDArray[np.int32]]


@dataclass(frozen=True, eq=False)
class Stretch:
    """The vectors of neighbouring documents."""

    vectors: Vectors
    first: int
    """The number of its first document. No document may lie in two stretches of one search."""
    passing: Flags | None = None
    """[documents] which of them may be hits; None: all."""


class DenseVerbs(Protocol):
    """What a backend does with vectors. Queries are float16 [B, dimension] of length 1, as `normalized` makes them.

    The score of a document is that of `interaction` over the cosines of its rows: sums of products in float64 (mode
    ``exact`` and ``hnsw``), or ``(float64(sum) * step of the query) * step of the row`` over int8 codes (``int8``). All
    but ``lse`` and ``lme`` (`Interaction.rounding`) are the same bits on every backend and in every batch. A document
    without a row has no score and is never a hit.
    """

    name: str
    """The backend, for people."""

    def best(
        self,
        queries: Halves,
        stretches: Sequence[Stretch],
        k: int,
        interaction: Interaction,
        mode: Mode,
        *,
        threads: int = 1,
    ) -> Output:
        """The k best documents of each query over all stretches: (scores [B, k], documents [B, k], counts [B]).

        By score, highest first, then by document number, smallest first; places past a row's count hold -inf and -1.
        Raises `MissingExtraError` if ``hnsw`` is asked for without FAISS, and `DeviceMemoryError`.
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
        """The score of each given document [T] for its query: those of query b are ``[offsets[b], offsets[b + 1])``.

        -inf where the document has no vector, or lies in no stretch. Which documents pass does not count here.
        """
        ...


def check_mode(mode: str) -> None:
    """Raises `ParameterError` for a mode that is none."""
    if mode not in MODES:
        raise ParameterError(f"unknown mode {mode!r} of dense search; there are: {', '.join(MODES)}")


def rows_to_compare(vectors: Vectors, interaction: Interaction) -> tuple[Vectors, Interaction]:
    """The rows whose cosines an interaction takes, and how they become one number: of one row its cosine (``late``)."""
    if interaction.kind == "early":
        return vectors.centroids, replace(interaction, kind="late")
    if vectors.single:
        return vectors, replace(interaction, kind="late")
    return vectors, interaction


def places_in(stretch: Stretch, documents: Integers) -> tuple[Integers, Integers]:
    """(place, document within the stretch) of those of these documents that the stretch has a vector of."""
    own = documents - stretch.first
    place = np.flatnonzero((own >= 0) & (own < len(stretch.vectors)))
    place = place[stretch.vectors.held[own[place]]]
    return place, own[place]


def document_vectors(stretches: Sequence[Stretch], documents: Integers) -> Halves:
    """One vector [n, dimension] for each document [n]: its row, or the mean of its rows (`Vectors.centroids`).

    Zero where a number is -1, lies in no stretch, or has no vector. Raises `ValueError` if there is no stretch.
    """
    if not stretches:
        raise ValueError("without a stretch the dimension of its vectors is unknown")
    found = np.zeros((len(documents), stretches[0].vectors.dimension), dtype=np.float16)
    for stretch in stretches:
        place, own = places_in(stretch, documents)
        if len(place):
            means = stretch.vectors.centroids
            found[place] = means.matrix[means.offsets[own]]
    return found
