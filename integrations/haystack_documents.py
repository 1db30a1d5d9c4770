"""Haystack's documents as records, and back, with nothing lost.

The content is the record's text, and the embedding its vector, in half precision. `Record.payload` holds what else a
document has: ``id`` and ``meta``, which filters read, and where they are set ``score``, ``blob``, ``sparse_embedding``
and the embedding as it was given. A document without content (None) is a record with an empty text, and ``content``
null.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.errors import MissingExtraError, RecordError
from ..engine.records.record import Record

try:
    from haystack.dataclasses import ByteStream, Document, SparseEmbedding
except ImportError as error:
    raise MissingExtraError("haystack-ai", "haystack") from error

FORMS = ("<f2", "<f4", "<f8")
"""How the numbers of an embedding may be kept: as the first form that holds all of them exactly."""


def record_of(document: Document) -> Record:
    """The record of a document. Raises `RecordError` for what no record can hold."""
    payload: dict[str, Any] = {"id": document.id, "meta": document.meta}
    if document.content is None:
        payload["content"] = None
    if document.score is not None:
        payload["score"] = document.score
    if document.blob is not None:
        payload["blob"] = {
            "data": base64.b64encode(document.blob.data).decode(),
            "meta": document.blob.meta,
            "mime_type": document.blob.mime_type,
        }
    if document.sparse_embedding is not None:
        payload["sparse_embedding"] = document.sparse_embedding.to_dict()
    if document.embedding is not None:
        payload["embedding"] = _packed(document.embedding, document.id)
    return Record(document.id, document.content or "", payload=payload, embedding=document.embedding)


def document_of(record: Record, score: float | None = None, *, embedding: bool = False) -> Document:
    """The document of a record that was read for the caller alone; the document takes the record's objects over.

    `score` takes the place of the document's own score. A record that was not written as a document (by another
    program, or through the engine) gives a document with its payload as ``meta``.
    """
    payload = record.payload
    if not isinstance(payload, dict) or payload.get("id") != record.id or not isinstance(payload.get("meta"), dict):
        return Document(id=record.id, content=record.text, meta=dict(payload or {}), score=score)
    rest: dict[str, Any] = {}
    if len(payload) > 2:
        if (blob := payload.get("blob")) is not None:
            rest["blob"] = ByteStream(base64.b64decode(blob["data"]), blob["meta"], blob["mime_type"])
        if (sparse := payload.get("sparse_embedding")) is not None:
            rest["sparse_embedding"] = SparseEmbedding(**sparse)
        if embedding and (packed := payload.get("embedding")) is not None:
            rest["embedding"] = _unpacked(packed)
        if score is None:
            score = payload.get("score")
    content = None if "content" in payload else record.text
    return Document(id=record.id, content=content, meta=payload["meta"], score=score, **rest)


def meta_of(record: Record) -> Mapping[str, Any]:
    """The ``meta`` of a record's document."""
    return document_of(record).meta


def _packed(embedding: Sequence[float], id: str) -> dict[str, str]:
    try:
        numbers = np.asarray(embedding, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise RecordError("'embedding' must be numbers", record_id=id) from None
    with np.errstate(over="ignore"):
        form = next(form for form in FORMS if (numbers.astype(form) == numbers).all() or form == FORMS[-1])
    return {"form": form, "data": base64.b64encode(numbers.astype(form).tobytes()).decode()}


def _unpacked(packed: Mapping[str, str]) -> list[float]:
    numbers: list[float] = np.frombuffer(base64.b64decode(packed["data"]), packed["form"]).astype(np.float64).tolist()
    return numbers
