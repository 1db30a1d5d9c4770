"""Published impact indexes beside scipy's products, and what rounding to steps costs on a real collection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from support.learned_cases import CPU, DEVICES, Corpus, Weights, answer, chosen, serve

import fanrank as fr
from fanrank.engine.evaluate.beir import load_beir
from fanrank.engine.index.bm25 import SCALE
from fanrank.engine.metrics.ranking import per_query
from fanrank.engine.plan.plan import Plan, make_plan, plan_of


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


def as_weights(matrix: Any, name: Callable[[int], str] = "t{}".format) -> list[Weights]:
    return [
        {name(term): weight for term, weight in zip(row.indices.tolist(), row.data.tolist(), strict=True)}
        for row in matrix
    ]


@dataclass
class Case:
    """Documents and queries as float matrices over one vocabulary, indexed."""

    documents: Any
    queries: Any

    def __post_init__(self) -> None:
        names = [f"t{number:06d}" for number in range(self.documents.shape[1])]
        self.corpus = Corpus([as_weights(self.documents, names.__getitem__)])


@dataclass
class Dataset:
    """A BEIR dataset, BM25's contributions to it as weights (quanta / 2**18), and its queries as counts."""

    folder: Path

    def __post_init__(self) -> None:
        self.data = load_beir(self.folder)
        engine = fr.Engine.from_records(self.data.records, analyzer="nltk", backend="numpy")
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
        asked = [engine.index.memory.indexer.encode_query(query.text) for query in self.data.queries]
        owners = np.repeat(np.arange(len(asked)), [len(own) for own in asked])
        queries = sparse.csr_matrix((np.ones(len(owners)), (owners, np.concatenate(asked))), (len(asked), width))
        queries.sum_duplicates()
        self.case = Case(documents, queries)


@pytest.fixture(scope="module")
def scifact(data: Path) -> Dataset:
    return Dataset(data / "scifact")


def test_ndcg_does_not_change(scifact: Dataset) -> None:
    ids = [record.id for record in scifact.data.records]
    rng = np.random.default_rng(3)
    counts = scifact.case.queries
    real = counts.copy()
    real.data = np.log1p(1.5 * counts.data * rng.uniform(0.5, 1.5, counts.nnz))
    for queries in (counts, real):
        exact = (queries @ scifact.case.documents.T).toarray()
        order = np.argsort(-exact, axis=1, kind="stable")[:, :100]
        names = [f"t{number:06d}" for number in range(queries.shape[1])]
        requests = [
            scifact.case.corpus.request(own, 100, row) for row, own in enumerate(as_weights(queries, names.__getitem__))
        ]
        plan = make_plan(scifact.case.corpus.snapshot, requests)
        found = answer(serve("numpy"), plan, len(requests), 100)
        values = []
        for rows in (
            [row[exact[n, row] > 0].tolist() for n, row in enumerate(order)],
            [[d for d, _ in r] for r in found],
        ):
            ranked = {q.id: [ids[d] for d in row] for q, row in zip(scifact.data.queries, rows, strict=True)}
            values.append(float(np.mean(per_query(ranked, scifact.data.relevant, ["ndcg@10"])["ndcg@10"])))
        assert round(values[0], 4) == round(values[1], 4)
        assert values[0] > 0.6
