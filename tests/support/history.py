"""What a memory must answer, in plain Python: records in order of last write, the oracle over them, ages as fractions.

Nothing here reads the engine's arrays. `shrink` makes every size so small that a few dozen records cross all borders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pytest
from world import faded

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.check.oracle import Oracle
from fanrank.engine.index.snapshot import WEEK

from . import borders

WORDS = ["a1", "b2", "c3", "d4", "e5", "f6"]
EXECUTIONS = ("exhaustive", "pruned", "auto")

ROOMY = {"vocabulary_bytes", "index_bytes", "cache_bytes"}
"""Keys of `Engine.stats` that count the room of lists and dictionaries too, which depends on how they grew."""

Answer = list[tuple[str, float]]
Kept = dict[str, dict[str, fr.Record]]
"""Namespace -> id -> record, in order of last write."""


# Other sizes than `borders.SMALL` has, where the histories need less to cross a border.
SIZES = {
    "COUNTED_DOCUMENTS": 6,
    "FILTERED": 2,
    "MAX_SEGMENT_DOCUMENTS": 12,
    "INLINE_DOCUMENTS": 3,
    "MAX_SEGMENTS": 8,
    "BUILD_CHUNK": 5,
    "CHECKPOINT_CHANGES": 12,
    "LEAST_UNUSED": 1,
    "DOCUMENTS_PER_UNUSED": 1000,
    "COUNT_SHARE": 0.0,
    "MERGE_BLOCK": 3,
    "postings.FLAGS": 8,
    "RANKS": (1, 2, 4),
    "DENSE_USES": 1,
    "PRUNED_DOCUMENTS": 2,
}


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments, windows, tiles, blocks, merges and checkpoints of a few documents."""
    borders.shrink_all(monkeypatch, SIZES)
    small_blocks(monkeypatch)


def small_blocks(monkeypatch: pytest.MonkeyPatch, documents: int = 4) -> None:
    """Blocks of so many documents for searches from the newest to the oldest."""
    borders.shrink(
        monkeypatch,
        TIME_BLOCK=documents,
        FIRST_BLOCK=documents,
        LAST_BLOCK=2 * documents,
        LEAST_WORK=1,
        FADED_TILE=documents,
    )


def unused_entries(engine: fr.Engine) -> dict[str, set[str]]:
    """The entries of each vocabulary that no segment holds."""
    state = engine.index.memory.state
    segments = [segment for snapshot in state.snapshots.values() for segment in snapshot.segments]
    held: dict[str, set[str]] = {}
    for name, vocabulary, inner in (
        ("terms", state.indexer.vocabulary, segments),
        ("learned", state.weight_terms, [segment.learned for segment in segments]),
        ("entities", state.entity_terms, [segment.entities for segment in segments]),
    ):
        numbers = {number for segment in inner if segment is not None for number in segment.terms.tolist()}
        held[name] = set(vocabulary.strings) - {vocabulary.strings[number] for number in numbers}
    for column, vocabulary in state.values.items():
        codes = [segment.columns.categories.get(column) for segment in segments]
        used = {code for own in codes if own is not None for code in own.tolist() if code >= 0}
        held[f"column {column}"] = set(vocabulary.strings) - {vocabulary.strings[code] for code in used}
    return {name: unused for name, unused in held.items() if unused}


def backends() -> list[str]:
    return [status.name for status in backend.statuses() if status.usable and not status.by_name]


def expected(
    records: Sequence[fr.Record],
    query: fr.Query,
    k: int = 10,
    *,
    passes: Callable[[fr.Record], bool] = lambda record: True,
    method: str = "lucene",
    window: float = WEEK,
    newest: int | None = None,
) -> Answer:
    """The answer of a namespace that holds `records`. `passes` states the query's filter, `newest` its windows."""
    scope = query.scope
    if query.k is not None:
        k = query.k
    elif scope is not None and scope.limit is not None:
        k = scope.limit

    def found_by(record: fr.Record) -> bool:
        own = scope is None or scope.column is None or getattr(record, scope.column) == scope.id
        return own and passes(record)

    windows = sorted({math.floor(record.time / window) for record in records if record.time is not None})
    if query.now is not None:
        windows = [number for number in windows if number <= math.floor(query.now / window)]
    searched = set(windows[-newest:]) if newest else None
    if query.statistics == "filtered":
        records = [record for record in records if found_by(record)]
    delta = fr.BM25(method=method).delta
    assert delta is not None
    plain = Oracle([[record.text.split()] for record in records], method=method, delta=delta)
    terms = list(query.text.split() if query.terms is None else query.terms)
    found: list[tuple[float, int, str]] = []
    for number, record in enumerate(records):
        quanta = plain.score(terms, number)
        if quanta is None or not found_by(record):
            continue
        ranged = query.since is not None or query.until is not None or searched is not None
        if ranged and (
            record.time is None
            or (query.since is not None and record.time < query.since)
            or (query.until is not None and record.time > query.until)
            or (searched is not None and math.floor(record.time / window) not in searched)
        ):
            continue
        value = quanta / 2.0**18
        if query.half_life is not None:
            assert query.now is not None
            value = faded(quanta, record.time, query.now, query.half_life)
        found.append((-value, number, record.id))
    return [(name, -value) for value, _, name in sorted(found)[:k]]


def rows(hits: fr.Hits, kept: Sequence[Mapping[str, fr.Record]]) -> list[Answer]:
    """The hits, after checking shapes, padding, and that documents are numbered in order of last write.

    ``kept[b]`` are the records of query b's namespace.
    """
    for row, records in enumerate(kept):
        count = int(hits.counts[row])
        assert (hits.documents[row, count:] == -1).all()
        assert np.isneginf(hits.scores[row, count:]).all()
        assert all(name is None for name in hits.ids[row, count:])
        place = {name: number for number, name in enumerate(records)}
        numbered = sorted(zip(hits.documents[row, :count].tolist(), hits.ids[row, :count].tolist(), strict=True))
        assert len({number for number, _ in numbered}) == count
        assert [place[name] for _, name in numbered] == sorted(place[name] for _, name in numbered)
    return list(hits)


def paths(engine: fr.Engine, batch: Sequence[fr.Query], k: int) -> Iterator[tuple[str, fr.Hits]]:
    """Every way of asking that must not change the answer."""
    served = engine.backend
    for name in backends():
        engine.backend = backend.choose(name)
        for execution in EXECUTIONS:
            yield f"{name}, {execution}", engine.search(batch, k, execution=execution)
        yield f"{name}, 3 threads", engine.search(batch, k, threads=3)
    engine.backend = served


def statistics(engine: fr.Engine, namespace: str) -> tuple[int, int, dict[str, int]]:
    """(N, total length, document frequencies) as the engine counts them."""
    held = engine.index.memory.snapshot(namespace)
    words = engine.index.memory.indexer.vocabulary.strings
    counts = held.document_frequencies(np.arange(len(words), dtype=np.int32)).tolist()
    every = held.all_document_frequencies().tolist()
    assert every == counts[: len(every)]
    assert not any(counts[len(every) :])
    found = {word: count for word, count in zip(words, counts, strict=True) if count}
    return held.statistics.documents, held.statistics.total_lengths[0], found


def stated(records: Sequence[fr.Record]) -> tuple[int, int, dict[str, int]]:
    """The same, counted."""
    plain = Oracle([[record.text.split()] for record in records])
    return len(records), plain.totals[0], dict(plain.df)
