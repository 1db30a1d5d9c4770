"""Dense scores with what records borrow from their neighbours (`engine/records/neighbours.py`).

A document with a vector scores its own similarity, plus weight times the sum of the similarities of the one before and
the one after, for each distance, the nearest first. A neighbour without a vector lends nothing, and a document without
one is no hit. The similarities are exact, and the float64 operations on them have one order, so the bits are the same
on every backend and in every batch. All similarities of a query are needed, as any document may lend.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays import Floats, Integers
from ..errors import QueryError
from ..index.neighbours import links_of
from ..index.snapshot import Snapshot
from ..records.neighbours import STEPS, Neighbours
from ..search.batch import Batch
from ..vectors.vectors import Halves
from ..vectors.verbs import DenseVerbs, Mode, Stretch
from .strategy import Dense

# Similarities that are worked out at once: 32 MiB.
PAIRS = 1 << 22


def rows_by_loan(batch: Batch, channel: Dense, rows: Integers) -> dict[tuple[int, ...], Integers]:
    """These rows by what records lend each other for them (`Neighbours.steps`; empty: nothing).

    Raises `QueryError` where they lend and the channel's mode is not exact.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in rows.tolist():
        own = batch.queries[row].neighbours
        assert own is None or isinstance(own, Neighbours)
        neighbours = channel.neighbours if own is None else own
        groups.setdefault(() if neighbours is None else neighbours.steps, []).append(row)
    if channel.mode == "hnsw" and any(groups):
        raise QueryError(
            f"channel {channel.name!r} lists what a graph finds, so records borrow nothing there; use mode 'exact' or "
            "'int8', or a query without neighbours"
        )
    return {lent: np.array(members, dtype=np.int64) for lent, members in groups.items()}


def best_borrowing(
    verbs: DenseVerbs,
    channel: Dense,
    queries: Halves,
    snapshot: Snapshot,
    candidates: Integers,
    depth: int,
    lent: Sequence[int],
) -> tuple[Floats, Integers]:
    """(scores, documents) [B, depth]: the best of the `candidates`, which ascend and have vectors; padding -inf and -1.

    Equal scores stand in the order of the documents.
    """
    scores = np.full((len(queries), depth), -np.inf)
    documents = np.full((len(queries), depth), -1, dtype=np.int64)
    near = links_of(snapshot).around(candidates, len(lent))
    width = min(depth, len(candidates))
    every = np.concatenate([stretch.first + np.flatnonzero(stretch.vectors.held) for stretch in stretches_of(snapshot)])
    rows = max(1, PAIRS // max(1, len(every)))
    for start in range(0, len(queries) if width else 0, rows):
        part = queries[start : start + rows]
        # One place more for a neighbour that is not there.
        own = np.zeros((len(part), snapshot.numbers + 1))
        own[:, every] = verbs.scores_of(
            part,
            stretches_of(snapshot),
            np.arange(len(part) + 1) * len(every),
            np.tile(every, len(part)),
            channel.interaction,
            _mode(channel),
        ).reshape(len(part), len(every))
        sums = own[:, candidates]
        for distance, steps in enumerate(lent):
            sums = sums + (own[:, near[:, 2 * distance]] + own[:, near[:, 2 * distance + 1]]) * (steps / STEPS)
        for row, values in enumerate(sums + 0.0, start):
            chosen = np.arange(len(candidates))
            if width < len(candidates):
                kth = np.partition(values, len(values) - width)[len(values) - width]
                chosen = np.flatnonzero(values >= kth)
            order = chosen[np.argsort(-values[chosen], kind="stable")][:width]
            scores[row, :width], documents[row, :width] = values[order], candidates[order]
    return scores, documents


def scores_borrowing(
    verbs: DenseVerbs,
    channel: Dense,
    snapshot: Snapshot,
    queries: Halves,
    offsets: Integers,
    documents: Integers,
    lent: Sequence[int],
) -> Floats:
    """As `DenseVerbs.scores_of`, with what the documents borrow."""
    near = np.concatenate([documents[:, None], links_of(snapshot).around(documents, len(lent))], axis=1)
    scores = verbs.scores_of(
        queries,
        stretches_of(snapshot),
        offsets * near.shape[1],
        near.reshape(-1),
        channel.interaction,
        _mode(channel),
    ).reshape(near.shape)
    own = np.where(scores > -np.inf, scores, 0.0)
    sums = scores[:, 0]
    for distance, steps in enumerate(lent):
        sums = sums + (own[:, 2 * distance + 1] + own[:, 2 * distance + 2]) * (steps / STEPS)
    return sums + 0.0


def stretches_of(snapshot: Snapshot) -> list[Stretch]:
    """All vectors of a snapshot: what does not pass a filter lends, too."""
    return [
        Stretch(segment.vectors, first)
        for segment, first in zip(snapshot.segments, snapshot.firsts, strict=True)
        if segment.vectors is not None
    ]


def _mode(channel: Dense) -> Mode:
    return "int8" if channel.mode == "int8" else "exact"
