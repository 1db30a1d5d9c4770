"""What a memory must answer, in plain Python: records in order of last write, the oracle over them, ages as fractions.

Nothing here reads the engine's arrays. `shrink` makes every size so small that a few dozen records cross all borders.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from world import Model

import fanrank as fr
from fanrank.engine.backends import choose as backend

from . import borders

WORDS = ["a1", "b2", "c3", "d4", "e5", "f6"]
EXECUTIONS = ("exhaustive", "pruned", "auto")

ROOMY = {"vocabulary_bytes", "index_bytes", "cache_bytes"}
"""Keys of `Engine.stats` that count the room of lists and dictionaries too, which depends on how they grew."""

Answer = list[tuple[str, float]]


# Other sizes than `borders.SMALL` has, where the histories need less to cross a border.
SIZES = {
    "COUNTED_DOCUMENTS": 6, "FILTERED": 2, "MAX_SEGMENT_DOCUMENTS": 12, "INLINE_DOCUMENTS": 3, "MAX_SEGMENTS": 8,
    "BUILD_CHUNK": 5, "CHECKPOINT_CHANGES": 12, "LEAST_UNUSED": 1, "DOCUMENTS_PER_UNUSED": 1000, "COUNT_SHARE": 0.0,
    "MERGE_BLOCK": 3, "postings.FLAGS": 8, "RANKS": (1, 2, 4), "DENSE_USES": 1, "PRUNED_DOCUMENTS": 2, "LEARN_ROWS": 20,
    "PACKED_LEAST": 64,
}  # fmt: skip


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments, windows, tiles, blocks, merges and checkpoints of a few documents."""
    borders.shrink_all(monkeypatch, SIZES)
    small_blocks(monkeypatch)


def small_blocks(monkeypatch: pytest.MonkeyPatch, documents: int = 4) -> None:
    """Blocks of so many documents for searches from the newest to the oldest."""
    borders.shrink(monkeypatch, TIME_BLOCK=documents, FADED_TILE=documents)


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
) -> Answer:
    """The answer of a namespace that holds `records`, by the model of `world`. `passes` states the query's filter."""
    if query.statistics == "filtered":
        records = [record for record in records if passes(record)]
    if query.k is not None:
        k = query.k
    elif query.scope is not None and query.scope.limit is not None:
        k = query.scope.limit
    held = {record.id: record for record in records}
    ranked = Model(held={query.namespace: held}).search(replace(query, filter=None, k=len(held)))
    return [(name, score) for _, name, score, *_ in ranked if passes(held[name])][:k]


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
