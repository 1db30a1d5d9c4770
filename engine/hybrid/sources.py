"""What a search needs beside the index: models, records' texts, graphs; and the vectors and weights of queries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Flags, Floats
from ..encoders.embed import checked_terms
from ..encoders.encoder import Encoder, check_rows
from ..encoders.sparse import TermEncoder
from ..errors import EncoderError, ModelMismatchError, QueryError
from ..index.snapshot import Snapshot
from ..recall.graphs import Graphs
from ..records.record import RecordsOf
from ..search.batch import Batch, PreparedQuery
from ..vectors.vectors import Halves, unit_rows

NO_VECTORS = {"dense": "no vectors to compare"}
"""What a decision says of a query that words alone answered for want of vectors."""


class Sources(NamedTuple):
    """What a search needs beside the index. Each call makes one, and a tuple is made sooner than a dataclass."""

    encoder: Encoder | None
    pin: Mapping[str, Any] | None
    term_encoder: TermEncoder | None
    records: RecordsOf | None
    """None for an engine that keeps no records."""
    sentences: Callable[[str, Sequence[str]], Floats] | None
    """Vectors, at length 1, of the first sentence of each of these records of a namespace; 0 for an empty one."""
    graphs: Graphs
    """The graphs of the engine's snapshots."""
    meant: Callable[[tuple[str, Sequence[str] | None, str | None], str], Mapping[str, int]]
    """How often a name meant each entity in past queries, by the `searched_fields` of a query, and the name."""


def query_vectors(batch: Batch, sources: Sources) -> tuple[Halves, Flags]:
    """(vectors [B, dimension], which rows have one) of the rows that are searched.

    A query's own vector goes before its text; a query with neither, or with terms alone, has no vector. Equal texts are
    encoded once, all in one call. Raises `QueryError`, `ModelMismatchError`, `EncoderError`.
    """
    dimension = check_vectors(batch, sources)
    vectors = np.zeros((len(batch), dimension), dtype=np.float16)
    has = np.zeros(len(batch), dtype=np.bool_)
    for row in batch.rows:
        query = batch.queries[row]
        if query.vector is not None:
            vectors[row], has[row] = query.vector[0], True
    texts = _texts_of(batch, [row for row in batch.rows if not has[row]])
    if texts:
        assert sources.encoder is not None
        encoded = unit_rows(check_rows(sources.encoder.queries(list(texts)), list(texts), sources.encoder))
        for vector, rows in zip(encoded, texts.values(), strict=True):
            vectors[rows], has[rows] = vector, True
    return vectors, has


def has_live_vector(snapshot: Snapshot) -> bool:
    """Whether a live document of the snapshot has a vector. It is worked out once for a snapshot."""
    known: bool | None = snapshot.derived.get("live vector")
    if known is None:
        known = snapshot.derived["live vector"] = any(
            bool((held if gone is None else held & gone.alive).any())
            for held, gone in (
                (segment.vectors.held, snapshot.tombstones.get(number))
                for number, segment in enumerate(snapshot.segments)
                if segment.vectors is not None
            )
        )
    return known


def has_vector(prepared: PreparedQuery, sources: Sources) -> bool:
    """Whether the query can be compared by vectors: live records that it searches have some, and it has or gets one."""
    if sources.pin is None or not has_live_vector(prepared.snapshot):
        return False
    query = prepared.query
    if query.vector is not None:
        return True
    encodes = sources.encoder is not None and getattr(sources.encoder, "encodes", True)
    return encodes and query.terms is None and bool(query.text.strip())


def check_vectors(batch: Batch, sources: Sources, *, needed: bool = True) -> int:
    """The dimension of the vectors. Checks first that every row that is searched can have a vector.

    Unless `needed`, a row may have none, and the dimension is 0 where there are no vectors at all. Raises `QueryError`,
    `ModelMismatchError`, `EncoderError`.
    """
    pin = sources.pin
    if pin is None and not needed:
        return 0
    if pin is None:
        raise QueryError(
            "the engine holds no vectors, and the strategy needs them; make it with encoder='model name', or with "
            "fanrank.OwnVectors(dimension) and vectors of your own"
        )
    model, dimension = f"{pin['name']}@{pin['version']}", int(pin["dimension"])
    for row, query in enumerate(batch.queries):
        if query.model is not None and query.model not in (pin["name"], model):
            raise ModelMismatchError(
                f"query {row}: its vector is of model {query.model!r}, and the records' are of "
                f"{model}; the two cannot be compared"
            )
        if query.vector is not None and query.vector.shape[1] != dimension:
            raise QueryError(
                f"query {row}: its vector has {query.vector.shape[1]} dimensions, and the records' have "
                f"{dimension} ({model})"
            )
    if (
        needed
        and sources.encoder is None
        and _texts_of(batch, [row for row in batch.rows if batch.queries[row].vector is None])
    ):
        raise EncoderError(
            f"queries need the encoder of the records, {model}: open the engine with encoder=..., "
            "or give each query its vector"
        )
    return dimension


def has_texts(batch: Batch, rows: Collection[int], sources: Sources) -> bool:
    """Whether the encoder is asked for the vector of one of these rows."""
    if sources.encoder is None:
        return False
    return bool(_texts_of(batch, [row for row in rows if batch.queries[row].vector is None]))


def _texts_of(batch: Batch, rows: Sequence[int]) -> dict[str, list[int]]:
    """The texts to encode for these rows, each with the rows whose query it is."""
    texts: dict[str, list[int]] = {}
    for row in rows:
        query = batch.queries[row]
        if query.text.strip() and query.terms is None:
            texts.setdefault(query.text, []).append(row)
    return texts


def query_weights(batch: Batch, sources: Sources) -> dict[int, Mapping[str, float]]:
    """The learned term weights, by row, of the searched rows that have some.

    A query's own weights go before its text. Raises `QueryError` where a text has none and nothing makes them.
    """
    weights_of: dict[int, Mapping[str, float]] = {}
    for row in batch.rows:
        weights = batch.queries[row].weights
        if weights is not None:
            weights_of[row] = weights
    texts = _texts_of(batch, [row for row in batch.rows if row not in weights_of])
    if texts:
        if sources.term_encoder is None:
            raise QueryError(
                "queries need learned term weights: make the engine with term_encoder=..., or give each its weights"
            )
        encoded = sources.term_encoder.queries(list(texts))
        for text_weights, rows in zip(
            checked_terms(encoded, len(texts), sources.term_encoder), texts.values(), strict=True
        ):
            weights_of |= dict.fromkeys(rows, text_weights)
    return weights_of
