"""BEIR's `EvaluateRetrieval` runs fanrank, and finds what ``fanrank eval`` finds."""

import os
from pathlib import Path
from typing import Any

import pytest
from support import borders
from support.evaluations import Letters

import fanrank as fr

pytest.importorskip("beir", reason="the extra 'beir' is not installed")

from beir.datasets.data_loader import GenericDataLoader
from beir.retrieval.evaluation import EvaluateRetrieval
from beir.retrieval.search import BaseSearch

from fanrank.integrations.beir import FanrankSearch

DATA = Path(os.environ.get("FANRANK_DATA", "../shared/data"))

CORPUS = {
    "d1": {"title": "Tea", "text": "A cup of tea with milk."},
    "d2": {"title": "", "text": "Coffee with milk"},
    "d3": {"title": "Jam", "text": "Bread and jam"},
    "tea": {"title": "", "text": "tea"},
    "d4": {"title": "", "text": "tea"},
}
QUERIES = {"tea": "tea", "q2": "milk jam", "q3": "nothing"}


@pytest.mark.parametrize(("name", "identical"), [("scifact", True), ("cranfield", False)])
def test_beir_finds_what_fanrank_eval_finds(name: str, identical: bool) -> None:
    folder = DATA / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing")
    corpus, queries, qrels = GenericDataLoader(data_folder=str(folder)).load(split="test")
    ours = fr.evaluation.evaluate("beir", folder, k=1000, latency=0)["metrics"]
    retriever = EvaluateRetrieval(FanrankSearch(ignore_identical_ids=identical))
    results = retriever.retrieve(corpus, queries)
    ndcg, _, recall, _ = retriever.evaluate(qrels, results, retriever.k_values, ignore_identical_ids=identical)
    for theirs, metric in (
        (ndcg["NDCG@10"], "ndcg@10"),
        (recall["Recall@100"], "recall@100"),
        (recall["Recall@1"], "recall@1"),
    ):
        assert theirs == round(ours[metric], 5), metric


def test_a_search_is_one_batch_and_equals_the_engine() -> None:
    model = FanrankSearch(ignore_identical_ids=False, keep_order=False)
    assert isinstance(model, BaseSearch)
    found = EvaluateRetrieval(model, k_values=[1, 3]).retrieve(CORPUS, QUERIES)
    texts = ["Tea A cup of tea with milk.", "Coffee with milk", "Jam Bread and jam", "tea", "tea"]
    engine = fr.Engine.from_records([fr.Record(name, text) for name, text in zip(CORPUS, texts, strict=True)])
    assert found == {name: dict(engine.search([text], k=3)[0]) for name, text in QUERIES.items()}
    assert model.results == found
    assert model.search(None, QUERIES, 3) == found
    other = {name: CORPUS[name] for name in ("d2", "d3")}
    assert {name: set(row) for name, row in model.search(other, QUERIES, 3).items()} == {
        "tea": set(),
        "q2": {"d2", "d3"},
        "q3": set(),
    }


def test_the_query_itself_is_not_found() -> None:
    found = FanrankSearch().search(CORPUS, QUERIES, 2)
    assert list(found["tea"]) == ["d4", "d1"]  # the document "tea" is the first hit of all
    kept = FanrankSearch(ignore_identical_ids=False).search(CORPUS, QUERIES, 2)
    assert list(kept["tea"]) == ["tea", "d4"]
    assert kept["tea"]["tea"] > kept["tea"]["d4"]  # of equal scores, the first to arrive


def test_vectors_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"beir.ROWS": 2})
    model = FanrankSearch("dense", encoder=Letters())
    direct = EvaluateRetrieval(model, k_values=[3]).retrieve(CORPUS, QUERIES)
    evaluated = EvaluateRetrieval(model, k_values=[3])
    found = evaluated.encode_and_retrieve(CORPUS, QUERIES, encode_output_path=str(tmp_path))
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "corpus.0.pkl",
        "corpus.1.pkl",
        "corpus.2.pkl",
        "queries.pkl",
    ]
    assert found == direct
    # Files that are there stay, unless they are to be overwritten.
    (tmp_path / "queries.pkl").write_bytes(b"")
    model.encode(CORPUS, QUERIES, str(tmp_path))
    assert (tmp_path / "queries.pkl").read_bytes() == b""
    model.encode(CORPUS, QUERIES, str(tmp_path), overwrite=True)
    files = [str(tmp_path / f"corpus.{number}.pkl") for number in (2, 0, 1)]
    assert model.search_from_files(str(tmp_path / "queries.pkl"), files, 3) == direct


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(fr.errors.QueryError, match="give a corpus"):
        FanrankSearch().search(None, QUERIES, 3)
    with pytest.raises(fr.errors.ParameterError, match="needs an encoder"):
        FanrankSearch().encode(CORPUS, QUERIES)
    with pytest.raises(fr.errors.ParameterError, match="not by 'dot'"):
        EvaluateRetrieval(FanrankSearch("dense", encoder=Letters()), score_function="dot").retrieve(CORPUS, QUERIES)
    assert EvaluateRetrieval(FanrankSearch(), score_function="dot").retrieve(CORPUS, QUERIES)["q2"]
    found: Any = FanrankSearch().search({}, QUERIES, 3)
    assert found == {"tea": {}, "q2": {}, "q3": {}}
