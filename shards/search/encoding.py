"""Gives queries the vectors and term weights that a strategy compares, so that no shard opens a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...engine.encoders.embed import checked_terms
from ...engine.encoders.encoder import check_rows
from ...engine.encoders.pins import Models
from ...engine.records.query import Query
from ...engine.route.policy import Answerer
from ...engine.search.shaping import with_fields
from ...engine.vectors.vectors import unit_rows


def encode_queries(queries: Sequence[Query], answerer: Answerer | None, models: Models) -> tuple[Query, ...]:
    """The queries with what `answerer` compares and their texts can give. What they bring themselves stays.

    A policy decides later which strategies it needs, so its queries get what any of them compares. Raises
    `EncoderError`.
    """
    made = list(queries)
    encoder, terms = models.encoder, models.term_encoder
    if answerer is not None and answerer.dense and encoder is not None and getattr(encoder, "encodes", True):
        _fill(made, "vector", lambda texts: unit_rows(check_rows(encoder.queries(texts), texts, encoder))[:, None])
    if answerer is not None and answerer.learned and terms is not None:
        _fill(made, "weights", lambda texts: checked_terms(terms.queries(texts), len(texts), terms))
    return tuple(made)


def _fill(queries: list[Query], field: str, encode: Callable[[list[str]], Iterable[Any]]) -> None:
    """Give queries without this field what is made of their texts; equal texts are encoded once."""
    rows_of: dict[str, list[int]] = {}
    for row, query in enumerate(queries):
        if getattr(query, field) is None and query.terms is None and query.text.strip():
            rows_of.setdefault(query.text, []).append(row)
    if rows_of:
        for value, rows in zip(encode(list(rows_of)), rows_of.values(), strict=True):
            for row in rows:
                queries[row] = with_fields(queries[row], **{field: value})
