"""Shards beside the oracle, which knows neither shards nor engines: ids, scores and order, with tolerance zero."""

from __future__ import annotations

import random

import pytest
from support import borders
from support.history import Answer, expected
from support.sharding import sharded

import fanrank as fr
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.processes.links import LocalLink

WORDS = ("ant", "bee", "cat", "dog", "elk", "fox")
SPLIT, FULL, WHOLE = "split", "full", "whole"
"""Namespaces: one in all shards, one in all shards whose every record holds the same word, and one in one shard."""
SIZES = {SPLIT: 1_300, FULL: 60, WHOLE: 60}
TEXTS = ("ant", "ant bee cat", "fox", "dog dog elk ant", "unknown", "ant unknown", "")
K = (1, 3, 64, 1_100, 5_000)
"""Fewer than there are equal scores, more than 1,024, and more than there are records."""

Kept = dict[str, dict[str, fr.Record]]
"""Namespace -> id -> record, in order of last write."""


def make_text(draw: random.Random, namespace: str) -> str:
    """Few words, so that scores are often equal. Outside of `FULL` some texts are empty. "fox" is rare."""
    words = draw.choices(WORDS[:5], k=draw.randint(0, 4)) + ["fox"] * (draw.random() < 0.01)
    return " ".join([WORDS[0], *words] if namespace == FULL else words)


def fill(engine: ShardedEngine) -> Kept:
    """Write, replace and delete records in batches over all namespaces; what is there afterwards."""
    draw, kept = random.Random(7), {name: dict[str, fr.Record]() for name in SIZES}
    rows = [(name, f"{name} {number}") for name, size in SIZES.items() for number in range(size)]
    draw.shuffle(rows)
    for step in (1, 4):  # all records, then a quarter of them once more
        written = [fr.Record(name, make_text(draw, space), space) for space, name in rows[::step]]
        for start in range(0, len(written), 150):
            engine.upsert(written[start : start + 150])
        for record in written:
            kept[record.namespace].pop(record.id, None)
            kept[record.namespace][record.id] = record
    for space, names in kept.items():
        removed = [*names][::9]
        engine.delete(removed, namespace=space)
        for name in removed:
            del names[name]
    return kept


def segments_of(engine: ShardedEngine, namespace: str) -> list[int]:
    """How many segments each shard has of a namespace."""
    counts = []
    for link in engine.coordinator.links:
        assert isinstance(link, LocalLink)
        counts.append(len(link.shard.engine.index.ready().state.snapshots[namespace].segments))
    return counts


def answers_of(engine: ShardedEngine, queries: list[fr.Query], k: int) -> list[Answer]:
    return [[(hit.id, hit.score) for hit in row] for row in engine.search(queries, k)]


@pytest.mark.parametrize("method", ["lucene", "robertson"])  # with the second, a word of all records scores below 0
@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_any_number_of_shards_answers_as_the_oracle(shards: int, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, MAX_SEGMENT_DOCUMENTS=64, INLINE_DOCUMENTS=64)
    several = sharded(shards, split=[SPLIT, FULL], method=method)
    kept = fill(several)
    assert len(several.coordinator.placement.homes(SPLIT)) == shards
    assert len(several.coordinator.placement.homes(WHOLE)) == 1
    assert min(segments_of(several, SPLIT)) > 1
    assert all(WORDS[0] in record.text.split() for record in kept[FULL].values())
    assert any(not record.text for record in kept[SPLIT].values())
    ties = 0
    for space, records in kept.items():
        assert several.count(namespace=space) == len(records)
        queries = [fr.Query(text, namespace=space) for text in TEXTS]
        full = [expected([*records.values()], query, max(K), method=method) for query in queries]
        ties += sum(len(row) - len({score for _, score in row}) for row in full)
        for k in K:
            assert answers_of(several, queries, k) == [row[:k] for row in full]
    assert ties > 1_000
    several.close()


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_several_namespaces_answer_as_the_oracle_of_all_their_records(shards: int) -> None:
    several = sharded(shards, split=[SPLIT, FULL])
    kept = fill(several)
    for spaces in ([FULL, SPLIT, WHOLE], [FULL, WHOLE]):  # in the order of their names, as ties are
        records = [record for space in spaces for record in kept[space].values()]
        for text in ("ant bee", "fox unknown"):
            full = expected(records, fr.Query(text), max(K))
            for k in K:
                assert answers_of(several, [fr.Query(text, namespaces=spaces[::-1])], k) == [full[:k]]
    several.close()
