"""A batch of several strategies: what each caller's slice of it shows."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from support.coalesce_cases import assert_same

import fanrank as fr
from fanrank.engine.search import notes

STRATEGIES: list[Any] = [None, None, "bm25", "rrf", "recall", fr.Cascade(tau=0.5, escalate="rrf")]
TEXTS = ["tea", "jam tea", "zzz", "the", "", "tea jam salt"]


@pytest.fixture(scope="module")
def engine() -> fr.Engine:
    rng = random.Random(1)
    made = fr.Engine(encoder=fr.OwnVectors(2))
    made.add(
        fr.Record(
            str(n),
            " ".join(rng.choices(["tea", "jam", "salt"], k=3)),
            time=float(n % 4),
            namespace=["", "ana", "bo"][n % 3],
            embedding=[[1, n]],
        )
        for n in range(60)
    )
    return made


def batch_of(rng: random.Random) -> list[fr.Query]:
    """The queries of one caller, equal ones among them."""
    namespace = rng.choice(["", "ana", "bo", "nobody"])
    made = [
        fr.Query(namespace=namespace, newest=True, k=rng.choice([0, 2]))
        if rng.random() < 0.2
        else fr.Query(
            rng.choice(TEXTS), namespace=namespace, strategy=rng.choice(STRATEGIES), vector=[1.0, 0.0], now=9.0
        )
        for _ in range(rng.randint(1, 3))
    ]
    return [rng.choice(made) for _ in range(rng.randint(1, 5))]


RERANKER = fr.strategies.CheckedReranker(lambda pairs: [float(len(text)) for _, text in pairs], unchecked=True)
"""It prefers longer texts."""


@pytest.mark.parametrize("keywords", [{}, {"reranker": RERANKER}, {"offset": 1, "min_score": 0.01, "collapse": "text"}])
@pytest.mark.parametrize("seed", range(2))
def test_a_caller_sees_nothing_of_those_who_share_its_launch(
    engine: fr.Engine, seed: int, keywords: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    batches = [batch_of(rng) for _ in range(12)]

    async def ask() -> list[fr.Hits]:
        return await asyncio.gather(*(engine.asearch(batch, 4, **keywords) for batch in batches))

    before = engine.coalescer.stats()["launches"]
    for batch, hits in zip(batches, asyncio.run(ask()), strict=True):
        alone = engine.search(batch, 4, **keywords)
        assert_same(hits, alone)
        assert (hits.notes, [*hits.source]) == (alone.notes, [*alone.source])
        assert hits.reranked is None or hits.reranked.tobytes() == alone.reranked.tobytes()
        # A cascade and recall name what served any query that they answered.
        if not any(query.strategy in STRATEGIES[4:] for query in batch):
            assert hits.backend == alone.backend
    assert engine.coalescer.stats()["launches"] == before + 1


def test_a_tenant_of_a_mapping_sees_its_own_policy_alone(engine: fr.Engine) -> None:
    strategies = fr.routing.ByNamespace({"ana": "bm25", "bo": "recall"})
    batches = [[fr.Query(text, namespace=name, vector=[1.0, 0.0]) for text in ("zzz", "tea")] for name in ("bo", "ana")]

    async def ask() -> list[fr.Hits]:
        return await asyncio.gather(*(engine.asearch(batch, strategy=strategies) for batch in batches))

    bo, ana = asyncio.run(ask())
    assert (ana.decisions, ana.source, ana.backend) == (None, (0, 1), engine.backend.name)
    assert [one.strategy for one in bo.decisions] == ["recall", "recall"]


def test_rows_of_other_strategies_keep_their_notes(engine: fr.Engine) -> None:
    batch = ["the", "zzz", fr.Query(newest=True), fr.Query("zzz", strategy="rrf", vector=[0.0, 1.0]), "tea"]
    hits = engine.search(batch)
    assert hits.notes == (engine.search(["the"]).notes[0], notes.UNKNOWN, None, None, None)
    mapped = engine.search(
        [fr.Query("zzz", namespace="ana"), fr.Query("the", namespace="bo"), fr.Query("zzz")],
        strategy={"ana": "bm25", "bo": fr.Strategy("shallow", (fr.strategies.Lexical("text"),), depth=5)},
    )
    assert mapped.notes == (notes.UNKNOWN, hits.notes[0], notes.UNKNOWN)
