"""An answer by columns: all that a `Hits` holds, exactly, in fewer bytes than an object for each hit.

A client makes an equal `Hits` of it (client/answers.py). Floats are written so that they read back bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.carry.rows import to_json
from ..engine.records.hits import Hits
from ..engine.records.record import Record


def to_columns(hits: Hits, *, sharded: bool = False) -> dict[str, Any]:
    """One object a query with its hits as lists, best first, and what the batch has as a whole.

    Over shards, documents are numbered within the answer: their own numbers count the writes of all tenants.
    """
    ids, scores = hits.ids.tolist(), hits.scores.tolist()
    documents = (_renumbered(hits.documents) if sharded else hits.documents).tolist()
    spaces = hits.namespaces.tolist() if hits.namespace is None else None
    exchanges = None if hits.exchanges is None else hits.exchanges.tolist()
    copies = None if hits.copies is None else hits.copies.tolist()
    reranked = None if hits.reranked is None else hits.reranked.tolist()
    results = []
    notes = hits.notes
    for row, count in enumerate(hits.counts.tolist()):
        result: dict[str, Any] = {
            "ids": ids[row][:count],
            "scores": scores[row][:count],
            "documents": documents[row][:count],
        }
        if spaces is not None:
            result["namespaces"] = spaces[row][:count]
        if exchanges is not None and exchanges[row][:1] != [None]:
            result["exchanges"] = exchanges[row][:count]
        if copies is not None and copies[row][:1] != [None]:
            result["copies"] = copies[row][:count]
        if reranked is not None:
            result["reranked"] = [None if score != score else score for score in reranked[row][:count]]
        if hits.records is not None:
            result["records"] = [_as_json(record, hits.texts) for record in hits.records[row, :count]]
        if notes[row] is not None:
            result["note"] = notes[row]
        if hits.decisions is not None:
            result["decision"] = hits.decisions[row].to_dict()
        results.append(result)
    source = None if hits.source is None else [int(number) for number in hits.source]
    return {
        "results": results,
        "width": hits.scores.shape[1],
        "source": source,
        "decided": hits.decisions is not None,
        "reranked": reranked is not None,
        "backend": hits.backend,
    }


def _renumbered(documents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The documents of an answer as numbers from 0 on, in the same order; -1 stays."""
    known, places = np.unique(documents, return_inverse=True)
    numbers: npt.NDArray[np.int64] = places.reshape(documents.shape) - int((known < 0).sum())
    return numbers


def _as_json(record: Record, texts: bool) -> dict[str, Any]:
    """The record whole; where payloads alone were asked for, its payload alone."""
    if texts:
        return to_json(record, vectors=False)
    return {"id": record.id, "text": "", "namespace": record.namespace, "payload": record.payload}
