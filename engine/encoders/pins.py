"""The encoders of an engine, and the pins: the names and versions of the models of its vectors and weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..records.record import Record
from .embed import Given, add_embeddings, add_weights, as_encoder, check_pin, pin_of, term_pin_of
from .encoder import Encoder
from .sparse import TermEncoder

PINNED = ("encoder", "term_encoder")
"""The keys of an engine's configuration that hold the pins."""


class Models:
    """The encoders that turn texts into vectors and learned term weights, and their pins.

    A pin is stored with the records, so it is known when an engine is opened without its encoder. Raises
    `ParameterError` for an object that is no encoder, and as `as_encoder`.
    """

    def __init__(
        self, encoder: str | os.PathLike[str] | Encoder | None = None, term_encoder: TermEncoder | None = None
    ) -> None:
        self.encoder = as_encoder(encoder)
        """Turns texts into vectors; None if there is no such encoder."""
        self.pin: dict[str, Any] | None = None if self.encoder is None else pin_of(self.encoder)
        """``name``, ``version`` and ``dimension`` of the vectors' model; None if there are no vectors."""
        self.term_encoder = term_encoder
        """Turns texts into learned term weights; None if there is no such encoder."""
        self.term_pin: dict[str, Any] | None = None if term_encoder is None else term_pin_of(term_encoder)
        """``name`` and ``version`` of the weights' model; None if there are no weights."""

    def pins(self) -> dict[str, dict[str, Any]]:
        """The pins that are not None, by their keys in a configuration."""
        return {name: pin for name, pin in zip(PINNED, (self.pin, self.term_pin), strict=True) if pin is not None}

    def adopt(self, config: Mapping[str, Any], where: str) -> None:
        """Take over the pins of a configuration, which is stored at `where`.

        Raises `ModelMismatchError` if an encoder is of another model, and `ParameterError` if the configuration has no
        pin for it.
        """
        vectors, terms = (config.get(name) for name in PINNED)
        if self.pin is None:
            self.pin = vectors
        else:
            check_pin(vectors, self.pin, where)
        if self.term_pin is None:
            self.term_pin = terms
        else:
            check_pin(terms, self.term_pin, where)

    def encode(self, records: Iterable[Record], vectors: Given) -> Iterator[Record]:
        """The records with vectors and term weights: their own, those of `vectors`, or those of the encoders."""
        return add_weights(add_embeddings(records, self.pin, self.encoder, vectors), self.term_encoder)
