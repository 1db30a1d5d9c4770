"""Real collections and published impact indexes: all paths agree, and rounding changes no nDCG that counts."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from support.learned_cases import CPU, DEVICES, chosen

import fanrank as fr
from fanrank.engine.check.check import check
from fanrank.engine.check.oracle import Oracle
from fanrank.engine.evaluate import Dataset, load_beir, load_locomo, rank
from fanrank.engine.index.bm25 import SCALE
from fanrank.engine.metrics.ranking import per_query
from fanrank.engine.plan.plan import Plan, plan_of


@pytest.mark.parametrize(
    ("load", "name", "asked", "options"),
    [
        (load_beir, "cranfield", 40, {}),
        (load_beir, "scifact", 25, {"analyzer": "lucene"}),
        (load_locomo, "locomo/locomo10.json", 1900, {}),
    ],
)
def test_all_paths_agree(data: Path, load: Any, name: str, asked: int, options: dict[str, Any]) -> None:
    dataset = load(data / name)
    found = check(dataset.records, dataset.queries[:asked], corpus=name, **options)
    assert (found["queries"], found["differences"]) == (asked, 0)


class FloatHits(list[list[tuple[str, float]]]):
    """Of `Hits`, what an evaluation looks at."""

    backend = "float64"
    timing = None
    decisions = None


class FloatSearcher:
    """BM25 (lucene) in float64 sums over whole arrays: what the integers are compared with."""

    def __init__(self, dataset: Dataset, analyzer: str) -> None:
        self.analyze = fr.text.get_analyzer(analyzer)
        self.names = [record.id for record in dataset.records]
        self.documents = [self.analyze(record.text) for record in dataset.records]
        self.lengths = np.array([len(document) for document in self.documents], dtype=np.float64)
        postings: dict[str, list[tuple[int, int]]] = {}
        for number, document in enumerate(self.documents):
            for term, tf in Counter(document).items():
                postings.setdefault(term, []).append((number, tf))
        self.postings = {term: np.array(pairs) for term, pairs in postings.items()}

    def one(self, terms: Sequence[str], k: int) -> list[tuple[int, float]]:
        scores = np.zeros(len(self.documents))
        norms = (1.0 - 0.75) + 0.75 * (self.lengths / (self.lengths.sum() / len(self.lengths)))
        for term, times in Counter(terms).items():
            if term in self.postings:
                at, tf = self.postings[term].T
                idf = math.log(1.0 + (len(scores) - len(at) + 0.5) / (len(at) + 0.5))
                scores[at] += times * (idf * (tf * 2.2 / (tf + 1.2 * norms[at])))
        best = np.lexsort((np.arange(len(scores)), -scores))[:k]
        return [(int(document), float(scores[document])) for document in best if scores[document] > 0.0]

    def search(self, queries: Sequence[fr.Query], k: int = 10, **_: Any) -> Any:
        return FloatHits(
            [(self.names[document], score) for document, score in self.one(self.analyze(query.text), k)]
            for query in queries
        )


@pytest.mark.parametrize(("name", "analyzer"), [("scifact", "nltk"), ("scifact", "lucene"), ("cranfield", "nltk")])
def test_quanta_change_no_ndcg_in_the_fourth_decimal(data: Path, name: str, analyzer: str) -> None:
    dataset = load_beir(data / name)
    floats = FloatSearcher(dataset, analyzer)
    if name == "cranfield":
        plain = Oracle([[document] for document in floats.documents])
        for query in dataset.queries[:3]:
            terms = floats.analyze(query.text)
            expected = plain.search_float(terms, 50)
            assert [d for d, _ in floats.one(terms, 50)] == [d for d, _ in expected]
            assert [s for _, s in floats.one(terms, 50)] == pytest.approx([s for _, s in expected], rel=1e-12)
    engine = fr.Engine.from_records(dataset.records, analyzer=analyzer)
    integers = rank(engine, dataset, k=100, complete=False)
    exact = rank(floats, dataset, k=100, complete=False)  # type: ignore[arg-type]
    assert exact.backend == "float64"
    for metric in ("ndcg@10", "recall@100"):
        assert f"{integers.metrics()[metric]:.4f}" == f"{exact.metrics()[metric]:.4f}"
    if name == "scifact":
        assert integers.metrics()["ndcg@10"] > 0.67


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
