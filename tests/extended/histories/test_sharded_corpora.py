"""Published corpora over shards: the answers of one engine, bit for bit, by all strategies."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from support.evaluations import needs
from support.hashing import Hashing
from support.sharding import assert_same_hits, sharded

import fanrank as fr
from fanrank.engine.evaluate import load_beir, load_locomo
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.route.policy import POLICIES
from fanrank.shards.engine import ShardedEngine

SHARDS = (1, 2, 3, 7)
FEW = SHARDS if os.environ.get("FANRANK_LONG") else (2, 7)
# The corpora bring no weights of terms, and faiss is no part of what the tests need.
NAMES = [name for name in (*NAMED, *POLICIES) if name not in ("sparse", "dense-hnsw")]
SUMMED = ("bm25", "dense", "rrf", "fused")
"""Strategies that a split namespace answers without a whole copy."""


class Memories:
    """One engine, and the same records over so many shards each."""

    def __init__(self, split: Sequence[str], shards: Sequence[int] = SHARDS) -> None:
        encoder = Hashing(dimension=16)
        self.one = fr.Engine(encoder=encoder)
        self.several = [sharded(count, split=split, encoder=encoder) for count in shards]

    @property
    def all(self) -> list[fr.Engine | ShardedEngine]:
        return [self.one, *self.several]

    def fill(self, records: Sequence[fr.Record], size: int) -> None:
        """Write the records in batches of this size, then delete some and write some anew."""
        removed: dict[str, list[str]] = {}
        for record in records[::50]:
            removed.setdefault(record.namespace, []).append(record.id)
        anew = [record for place, record in enumerate(records) if place % 9 == 7 and place % 50]
        for engine in self.all:
            for start in range(0, len(records), size):
                engine.add(records[start : start + size])
            for namespace, ids in removed.items():
                engine.delete(ids, namespace=namespace)
            engine.update(anew)

    def compare(self, queries: Sequence[fr.Query], k: int, names: Sequence[str]) -> int:
        """Compare the answers by each strategy; returns how many hits there were."""
        hits = 0
        for name in names:
            expected = self.one.search(queries, k, strategy=name)
            hits += int(expected.counts.sum())
            for several in self.several:
                assert_same_hits(expected, several.search(queries, k, strategy=name))
        return hits

    def close(self) -> None:
        sizes = {len(engine) for engine in self.all}
        for several in self.several:
            several.close()
        assert len(sizes) == 1


def turns(data: Path, count: int) -> list[fr.Record]:
    """Turns of SGD; the dialogues are those of six users, a namespace each."""
    with gzip.open(needs(data, "sgd/train.turns.jsonl.gz"), "rt", encoding="utf-8") as lines:
        rows = map(json.loads, islice(lines, count))
        return [
            fr.Record(
                f"{row['dialogue_id']}/{row['turn']}",
                row["utterance"],
                f"sgd/user{int(row['dialogue_id'].partition('_')[2]) % 6}",
                role="user" if row["speaker"] == "USER" else "assistant",
                session=row["dialogue_id"],
                time=1e9 + 60.0 * place,
            )
            for place, row in enumerate(rows)
        ]


def compare_sgd(data: Path, count: int, asked: int) -> None:
    records = turns(data, count)
    spaces = sorted({record.namespace for record in records})
    memories = Memories(split=spaces[:2])
    memories.fill(records, max(count // 12, 1))
    now = 1e9 + 60.0 * count
    texts = [record.text for record in records[3 :: max(count // asked, 1)]]
    queries = [fr.Query(text, namespace=spaces[place % 3], now=now) for place, text in enumerate(texts)]
    assert memories.compare(queries, 10, NAMES)
    wide = [
        *(fr.Query(text, under="sgd", now=now) for text in texts[::9]),
        *(fr.Query(text, namespaces=spaces[::-1][:5] + spaces[:1], now=now) for text in texts[::7]),
    ]
    assert memories.compare(wide, 50, [*SUMMED, "recall"])
    # Every record of a namespace, in its order.
    assert memories.compare(queries[:6], count, SUMMED)
    memories.close()


def test_sgd(data: Path) -> None:
    if os.environ.get("FANRANK_LONG"):
        compare_sgd(data, 50_000, 100)
    else:
        compare_sgd(data, 2_000, 12)


def test_scifact_split_over_shards(data: Path) -> None:
    corpus = load_beir(needs(data, "scifact"))
    memories = Memories(split=[""], shards=FEW)
    memories.fill(list(corpus.records), 1_000)
    queries = [replace(query, now=1e9) for query in corpus.queries]
    assert memories.compare(queries[:: 1 if FEW == SHARDS else 4], 100, ("bm25", "fused"))
    assert memories.compare(queries[::30], 20, NAMES)
    memories.close()


def test_locomo_one_namespace_a_conversation(data: Path) -> None:
    dataset = load_locomo(needs(data, "locomo/locomo10.json"), unit="turn")
    records, questions = list(dataset.records), dataset.queries[::9]
    spaces = sorted({record.namespace for record in records})
    memories = Memories(split=spaces[::4], shards=FEW)
    memories.fill(records, 1_000)
    now = max(record.time for record in records if record.time is not None)
    asked = [replace(question, now=now) for question in questions]
    everywhere = [fr.Query(question.text, namespaces=spaces, now=now) for question in questions[::12]]
    assert memories.compare(asked, 20, ("bm25", "fused", "recall", "dialogue", "auto"))
    assert memories.compare(asked[::8], 20, NAMES)
    assert memories.compare(everywhere, 50, ("bm25", "rrf", "recall"))
    memories.close()
