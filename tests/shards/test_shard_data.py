"""Published corpora over shards: the answers of one engine, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.hashing import Hashing
from support.sharding import assert_same_answers, sharded

import fanrank as fr
from fanrank.engine.evaluate import load_beir, load_locomo


@pytest.mark.parametrize("shards", [2, 7])
def test_scifact_split_over_shards(data: Path, shards: int) -> None:
    if not (data / "scifact").is_dir():
        pytest.skip("no SciFact")
    corpus = load_beir(data / "scifact")
    encoder = Hashing(dimension=16)
    one, several = fr.Engine(encoder=encoder), sharded(shards, split=[""], encoder=encoder)
    records = list(corpus.records)
    for engine in (one, several):
        for start in range(0, len(records), 1_000):
            engine.add(records[start : start + 1_000])
        engine.delete([record.id for record in records[::50]])
        engine.update(records[7:500:5])
    for strategy in ("bm25", "fused", "rm3"):
        assert_same_answers(one, several, corpus.queries, k=100, strategy=strategy)
    assert several.stats()["documents"] == len(one)
    several.close()


def test_locomo_one_namespace_a_conversation(data: Path) -> None:
    file = data / "locomo" / "locomo10.json"
    if not file.is_file():
        pytest.skip("no LoCoMo")
    dataset = load_locomo(file, unit="turn")
    records, questions = list(dataset.records), dataset.queries[::9]
    split = records[0].namespace
    encoder = Hashing(dimension=16)
    one, several = fr.Engine(encoder=encoder), sharded(3, split=[split], encoder=encoder)
    for engine in (one, several):
        engine.add(records)
    now = max(record.time for record in records if record.time is not None)
    asked = [replace(question, now=now) for question in questions]
    everywhere = [
        fr.Query(question.text, namespaces=sorted({record.namespace for record in records}), now=now)
        for question in questions[::12]
    ]
    for strategy in ("bm25", "fused", "recall", "dialogue", "auto"):
        assert_same_answers(one, several, asked, k=20, strategy=strategy)
    for strategy in ("bm25", "rrf"):
        assert_same_answers(one, several, everywhere, k=50, strategy=strategy)
    several.close()
