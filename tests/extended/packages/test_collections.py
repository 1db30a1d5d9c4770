"""Real collections: all paths agree on them, and rounding to quanta changes no nDCG in the fourth decimal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanrank as fr
from fanrank.engine.check.check import check
from fanrank.engine.check.oracle import Oracle
from fanrank.engine.evaluate import load_beir, load_locomo, rank
from fanrank.engine.evaluate.dataset import Dataset


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
