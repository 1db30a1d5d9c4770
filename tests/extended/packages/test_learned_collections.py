"""Published impact indexes beside scipy's products, and what rounding to steps costs on a real collection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from support.learned_cases import CPU, DEVICES, chosen

import fanrank as fr
from fanrank.engine.evaluate import Dataset, load_beir
from fanrank.engine.index.bm25 import SCALE
from fanrank.engine.metrics.ranking import per_query
from fanrank.engine.plan.plan import Plan, plan_of


def published(rng: np.random.Generator, documents: int, queries: int, kind: str) -> tuple[Any, Any]:
    """(documents, queries) as float32 matrices of integers."""
    made = []
    for rows, terms, most in ((documents, 20, 255), (queries, 8, 60)):
        weights = sparse.random(rows, 80, terms / 80, "csr", np.float32, rng)
        weights.data = np.ceil(weights.data * most if kind == "8 bits" else np.log1p(weights.data * 50) * 100)
        made.append(weights.astype(np.float32))
    return made[0], made[1]


@pytest.mark.parametrize("kind", ["8 bits", "times 100"])
@pytest.mark.parametrize("name", [*CPU, *DEVICES])
def test_published_indexes_score_as_the_product(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(name)
    documents, asked = published(np.random.default_rng(11), 200, 4 if name == "triton" else 12, kind)
    engine = fr.Engine(backend=name)
    held = [fr.Record(f"d{n}", "", weights=own) for n, own in enumerate(fr.encoders.weights_of(documents))]
    for start in range(0, 200, 70):
        engine.add(held[start : start + 70])
    plans: list[Plan] = []
    monkeypatch.setattr("fanrank.engine.search.lexical.plan_of", lambda *own: plans.append(plan_of(*own)) or plans[-1])
    queries = [fr.Query("", weights=own) for own in fr.encoders.weights_of(asked)]
    hits = engine.search(queries, k=200, strategy="sparse")
    product = (asked.astype(np.float64) @ documents.astype(np.float64).T).toarray()
    for scores, exact, count, found in zip(hits.scores, product, hits.counts, hits.documents, strict=True):
        order = np.lexsort((np.arange(200), -exact))[: np.count_nonzero(exact)]
        assert count == len(order)
        assert found[:count].tolist() == order.tolist()
        assert (scores[:count] == exact[order]).all()
    # The factor 2**10 of the queries' integers goes into the unit, so their sums stay in int32 and on the fast path.
    assert not any(plan.large.any() for plan in plans)


def bm25_as_weights(data: Dataset) -> tuple[Any, Any]:
    """(documents, queries): BM25's contributions to a dataset as weights (quanta / 2**18), its queries as counts."""
    engine = fr.Engine.from_records(data.records, analyzer="nltk", backend="numpy")
    (snapshot,) = engine.index.memory.snapshots.values()
    width = len(engine.index.memory.indexer.vocabulary)
    rows, terms, weights = [], [], []
    for first, own, made in zip(snapshot.firsts, snapshot.segments, snapshot.contributions, strict=True):
        idf = snapshot.bm25.idf(snapshot.document_frequencies(own.terms), snapshot.statistics)
        made.derive(np.arange(len(own.terms)), idf)
        rows.append(own.documents + first)
        terms.append(np.repeat(own.terms, np.diff(own.offsets)))
        weights.append(made.quanta / SCALE)
    documents = sparse.csr_matrix(
        (np.concatenate(weights), (np.concatenate(rows), np.concatenate(terms))), shape=(snapshot.size, width)
    )
    asked = [engine.index.memory.indexer.encode_query(query.text) for query in data.queries]
    owners = np.repeat(np.arange(len(asked)), [len(own) for own in asked])
    queries = sparse.csr_matrix((np.ones(len(owners)), (owners, np.concatenate(asked))), (len(asked), width))
    queries.sum_duplicates()
    return documents, queries


def test_ndcg_does_not_change(data: Path) -> None:
    dataset = load_beir(data / "scifact")
    documents, counts = bm25_as_weights(dataset)
    ids = [record.id for record in dataset.records]
    engine = fr.Engine.from_records(
        fr.Record(name, "", weights=own) for name, own in zip(ids, fr.encoders.weights_of(documents), strict=True)
    )
    real = counts.copy()
    real.data = np.log1p(1.5 * counts.data * np.random.default_rng(3).uniform(0.5, 1.5, counts.nnz))
    for queries in (counts, real):
        asked = [fr.Query("", weights=own) for own in fr.encoders.weights_of(queries)]
        exact = (queries @ documents.T).toarray()
        order = np.argsort(-exact, axis=1, kind="stable")[:, :100]
        values = []
        for rows in (
            [[ids[d] for d in row if exact[n, d] > 0] for n, row in enumerate(order)],
            [[hit.id for hit in row] for row in engine.search(asked, 100, strategy="sparse")],
        ):
            ranked = {q.id: row for q, row in zip(dataset.queries, rows, strict=True)}
            values.append(float(np.mean(per_query(ranked, dataset.relevant, ["ndcg@10"])["ndcg@10"])))
        assert round(values[0], 4) == round(values[1], 4)
        assert values[0] > 0.6
