"""Haystack's documents as records, and back, with nothing lost.

The content is the record's text, the metadata its payload, and the embedding its vector, in half precision.
``Record.extra["haystack"]`` holds what else a document has: ``score``, ``blob``, ``sparse_embedding``, the embedding as
it was given, and ``content`` null for a document without content, which is a record with an empty text.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ..engine.errors import MissingExtraError, RecordError
from ..engine.records.record import Record

try:
    from haystack.dataclasses import ByteStream, Document, SparseEmbedding
except ImportError as error:
    raise MissingExtraError("haystack-ai", "haystack") from error

EXTRA = "haystack"
"""The key of `Record.extra`."""
KNOWN = {field.name for field in fields(Document)} == {
    *("id", "content", "blob", "meta", "score", "embedding", "sparse_embedding")
}
"""Whether a document has the fields that are set here and no others. Then its constructor is left out, which checks
what was checked when the document was written: it takes 3 us, and the answers to 20 queries hold 200 documents."""
FORMS = ("<f2", "<f4", "<f8")
"""How the numbers of an embedding may be kept: as the first form that holds all of them exactly."""


def record_of(document: Document) -> Record:
    """The record of a document. Raises `RecordError` for what no record can hold."""
    rest: dict[str, Any] = {}
    if document.content is None:
        rest["content"] = None
    if document.score is not None:
        rest["score"] = document.score
    if document.blob is not None:
        data = base64.b64encode(document.blob.data).decode()
        rest["blob"] = {"data": data, "meta": document.blob.meta, "mime_type": document.blob.mime_type}
    if document.sparse_embedding is not None:
        rest["sparse_embedding"] = document.sparse_embedding.to_dict()
    if document.embedding is not None:
        rest["embedding"] = _packed(document.embedding, document.id)
    return Record(
        document.id,
        document.content or "",
        payload=document.meta or None,
        extra={EXTRA: rest} if rest else {},
        embedding=document.embedding,
    )


def document_of(record: Record, score: float | None = None, *, embedding: bool = False) -> Document:
    """The document of a record that was read for the caller alone; the document takes the record's objects over.

    `score` takes the place of the document's own. A record that was not written as a document gives one of its text and
    its payload.
    """
    values: dict[str, Any] = {
        "id": record.id,
        "content": record.text,
        "blob": None,
        "meta": record.payload or {},
        "score": score,
        "embedding": None,
        "sparse_embedding": None,
    }
    rest = record.extra.get(EXTRA) if record.extra else None
    if isinstance(rest, dict):
        if "content" in rest:
            values["content"] = None
        if (blob := rest.get("blob")) is not None:
            values["blob"] = ByteStream(base64.b64decode(blob["data"]), blob["meta"], blob["mime_type"])
        if (sparse := rest.get("sparse_embedding")) is not None:
            values["sparse_embedding"] = SparseEmbedding(**sparse)
        if embedding and (packed := rest.get("embedding")) is not None:
            values["embedding"] = _unpacked(packed)
        if score is None:
            values["score"] = rest.get("score")
    if not KNOWN:
        return Document(**values)
    made = object.__new__(Document)
    made.__dict__.update(values)
    return made


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
