"""Gives queries the vectors and term weights that a strategy compares, so that no shard opens a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    if answerer is None:
        return tuple(queries)
    made = list(queries)
    if answerer.dense:
        _add_vectors(made, models)
    if answerer.learned:
        _add_weights(made, models)
    return tuple(made)


def _add_vectors(queries: list[Query], models: Models) -> None:
    encoder = models.encoder
    if encoder is None or not getattr(encoder, "encodes", True):
        return
    rows_of = _texts(queries, "vector")
    if not rows_of:
        return
    texts = list(rows_of)
    vectors = unit_rows(check_rows(encoder.queries(texts), texts, encoder))
    for number, rows in enumerate(rows_of.values()):
        for row in rows:
            queries[row] = with_fields(queries[row], vector=vectors[number : number + 1])


def _add_weights(queries: list[Query], models: Models) -> None:
    encoder = models.term_encoder
    rows_of = {} if encoder is None else _texts(queries, "weights")
    if not rows_of:
        return
    assert encoder is not None
    texts = list(rows_of)
    encoded: Sequence[Mapping[str, float]] = checked_terms(encoder.queries(texts), len(texts), encoder)
    for weights, rows in zip(encoded, rows_of.values(), strict=True):
        for row in rows:
            queries[row] = with_fields(queries[row], weights=weights)


def _texts(queries: Sequence[Query], lacking: str) -> dict[str, list[int]]:
    """The texts of the queries without this field, each with the rows whose query it is."""
    rows_of: dict[str, list[int]] = {}
    for row, query in enumerate(queries):
        if getattr(query, lacking) is None and query.terms is None and query.text.strip():
            rows_of.setdefault(query.text, []).append(row)
    return rows_of
