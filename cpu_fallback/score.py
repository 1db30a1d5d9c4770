"""Sum the quanta of each query's postings into a row of scores, vectorised over a chunk of queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.signedinteger[Any]]


class Workspace:
    """Buffers of one thread, grown on demand and reused, so that a fan-out pays no page faults."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, np.dtype[Any]], npt.NDArray[Any]] = {}

    def take(self, name: str, size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A buffer of `size` elements; its content is whatever the last user left."""
        key = (name, np.dtype(dtype))
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[key] = np.empty(size, dtype=dtype)
        return buffer[:size]


def accumulate(
    scores: Scores,
    matched: npt.NDArray[np.bool_] | None,
    documents: Sequence[npt.NDArray[np.int32]],
    quanta: Sequence[npt.NDArray[np.signedinteger[Any]]],
    terms: Sequence[Sequence[int]],
    multiplicities: Sequence[Sequence[int]],
    workspace: Workspace,
) -> None:
    """Add to `scores` [rows, width] (zeroed) the contributions of each row's terms; flag matches in `matched`.

    `documents[t]` and `quanta[t]` are the posting list of distinct term t; row r holds ``terms[r]``, each as often as
    ``multiplicities[r]`` says. The rows advance term by term together: within one row a list holds each document
    once, so a gather, an add and a scatter need no atomics.
    """
    width = scores.shape[1]
    flat = scores.reshape(-1)
    flags = None if matched is None else matched.reshape(-1)
    for slot in range(max(map(len, terms), default=0)):
        members = [row for row, own in enumerate(terms) if slot < len(own)]
        chosen = [terms[row][slot] for row in members]
        weights = [multiplicities[row][slot] for row in members]
        lengths = [len(documents[term]) for term in chosen]
        total = sum(lengths)
        if not total:
            continue
        where = workspace.take("where", total, np.intp)
        if len(members) == 1:
            np.copyto(where, documents[chosen[0]])
            if members[0]:
                where += members[0] * width
            added = quanta[chosen[0]]
            if weights[0] != 1:
                added = np.multiply(added, weights[0], dtype=scores.dtype)
        else:
            np.concatenate([documents[term] for term in chosen], out=where)
            where += np.repeat(np.array(members) * width, lengths)
            added = np.concatenate([quanta[term] for term in chosen])
            if any(weight != 1 for weight in weights):
                factors = np.repeat(np.array(weights, dtype=scores.dtype), lengths)
                added = np.multiply(added, factors, dtype=scores.dtype)
        if slot == 0:
            flat[where] = added
        else:
            # mode="clip" lets take write straight into the buffer; every index is in range.
            sums = np.take(flat, where, out=workspace.take("sums", total, scores.dtype), mode="clip")
            sums += added
            flat[where] = sums
        if flags is not None:
            flags[where] = True
