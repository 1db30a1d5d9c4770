"""PyTerrier: frames in, frames out, its operators and experiments, without Java."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanrank as fr

pt = pytest.importorskip("pyterrier", reason="the extra 'pyterrier' is not installed")

import pandas as pd  # noqa: E402

from fanrank.engine.metrics.ranking import strictly_descending  # noqa: E402
from fanrank.integrations.pyterrier import FanrankIndexer, FanrankRetriever  # noqa: E402

DATA = Path(os.environ.get("FANRANK_DATA", "../shared/data")) / "cranfield"
WORDS = ["tea", "jam", "milk", "bread", "butter", "salt", "rice", "corn", "egg", "fish", "leek", "plum"]
QUERIES = pd.DataFrame(
    [[str(n), f"{WORDS[n]} {WORDS[n + 1]}"] for n in range(8)] + [["8", "nothing"]], columns=["qid", "query"]
)


def documents(count: int = 60, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [
        {"docno": f"d{number}", "text": " ".join(rng.choices(WORDS, k=3)), "year": rng.randrange(2000, 2004)}
        for number in rng.sample(range(1000), count)
    ]


@pytest.fixture(scope="module")
def engine() -> Any:
    return FanrankIndexer().index(iter(documents()))


def hits_of(engine: fr.Engine, k: int, **options: Any) -> list[list[fr.Hit]]:
    """A loop over single queries."""
    return [engine.search([text], k=k, **options)[0] for text in QUERIES["query"]]


def ranking(frame: pd.DataFrame) -> dict[str, list[str]]:
    rows = frame.sort_values(["qid", "rank"])
    return {name: group["docno"].tolist() for name, group in rows.groupby("qid")}


def test_a_frame_of_queries_is_one_batch(engine: fr.Engine) -> None:
    found = FanrankRetriever(engine, num_results=7).transform(QUERIES)
    alone = hits_of(engine, 7)
    assert list(found.columns) == ["qid", "query", "docno", "score", "rank"]
    expected = [
        (name, text, hit.id, score, hit.rank - 1)
        for (name, text), row in zip(QUERIES.itertuples(index=False), alone, strict=True)
        for hit, score in zip(row, strictly_descending([hit.score for hit in row]), strict=True)
    ]
    assert list(found.itertuples(index=False, name=None)) == expected
    exact = FanrankRetriever(engine, num_results=7, keep_order=False).transform(QUERIES)
    assert exact["score"].tolist() == [hit.score for row in alone for hit in row]
    one = FanrankRetriever(engine, num_results=7).search(QUERIES["query"][2], qid="2")
    assert list(one.itertuples(index=False, name=None)) == [row for row in expected if row[0] == "2"]
    listed = FanrankRetriever(engine, num_results=7)([{"qid": "2", "query": QUERIES["query"][2]}])
    assert [row["docno"] for row in listed] == one["docno"].tolist()


def test_texts_and_payloads_come_as_columns(engine: fr.Engine) -> None:
    found = FanrankRetriever(engine, metadata=["text", "year", "colour"]).transform(QUERIES)
    known = {document["docno"]: document for document in documents()}
    assert found["text"].tolist() == [known[name]["text"] for name in found["docno"]]
    assert found["year"].tolist() == [known[name]["year"] for name in found["docno"]]
    assert set(found["colour"]) == {None}


def test_filters_for_all_queries_and_for_each(engine: fr.Engine) -> None:
    years = {document["docno"]: document["year"] for document in documents()}
    found = FanrankRetriever(engine, filter={"year": {">": 2001}}).transform(QUERIES)
    assert ranking(found) == {
        name: [hit.id for hit in row if years[hit.id] > 2001]
        for name, row in zip(QUERIES["qid"], hits_of(engine, 60), strict=True)
        if any(years[hit.id] > 2001 for hit in row)
    }
    each = QUERIES.assign(qfilter=[{"year": 2000 + number % 4} for number in range(9)])
    found = FanrankRetriever(engine, fields={"qfilter": "filter"}).transform(each)
    assert all(years[row.docno] == 2000 + int(row.qid) % 4 for row in found.itertuples())
    assert "qfilter" in found.columns
    with pytest.raises(pt.validate.InputValidationError):
        FanrankRetriever(engine, fields={"qfilter": "filter"}).transform(QUERIES)


def test_documents_are_scored_again_exactly(engine: fr.Engine) -> None:
    retriever = FanrankRetriever(engine, keep_order=False)
    whole = {(row.qid, row.docno): row.score for row in retriever.transform(QUERIES).itertuples()}
    rng = random.Random(4)
    names = [document["docno"] for document in documents()]
    given = QUERIES.merge(pd.DataFrame({"docno": rng.sample(names, 20)}), how="cross").assign(
        score=1.0, rank=0, note="x"
    )
    found = retriever.transform(given.sample(frac=1.0, random_state=1))
    assert len(found) == len(given)
    assert set(found["note"]) == {"x"}
    for row in found.itertuples():
        assert row.score == whole.get((row.qid, row.docno), 0.0)
    for _, group in found.groupby("qid"):
        assert group["rank"].tolist() == list(range(20))
        assert group["score"].is_monotonic_decreasing
    with pytest.raises(fr.errors.QueryError, match="'0': the candidate 'nobody' is no record"):
        retriever.transform(pd.DataFrame([["0", "tea", "nobody"]], columns=["qid", "query", "docno"]))
    plain = fr.Engine.from_records([fr.Record("d1", "tea")])
    with pytest.raises(fr.errors.QueryError, match="the engine with columns="):
        FanrankRetriever(plain).transform(pd.DataFrame([["0", "tea", "d1"]], columns=["qid", "query", "docno"]))


def test_a_cutoff_becomes_the_number_of_results(engine: fr.Engine) -> None:
    retriever = FanrankRetriever(engine, filter={"year": 2001}, metadata=["text"])
    compiled = (retriever % 3).compile()
    assert isinstance(compiled, FanrankRetriever)
    assert compiled.num_results == 3
    pd.testing.assert_frame_equal(compiled(QUERIES), (retriever % 3)(QUERIES))
    assert (compiled % 5).compile() is compiled
    # The same of documents that are scored again.
    first = FanrankRetriever(engine)(QUERIES)
    pd.testing.assert_frame_equal(compiled(first), (retriever % 3)(first), check_dtype=False)


def test_an_experiment_measures_the_order_of_the_hits() -> None:
    engine = FanrankIndexer().index({"docno": f"d{number:02}", "text": "tea"} for number in range(20))
    queries = pd.DataFrame([["q", "tea"]], columns=["qid", "query"])
    qrels = pd.DataFrame([["q", "d00", 1]], columns=["qid", "docno", "label"])
    systems = [FanrankRetriever(engine), FanrankRetriever(engine, keep_order=False)]
    found = pt.Experiment(systems, queries, qrels, ["recip_rank"], names=["order", "ties"])
    # d00 came first. Of equal scores the measure takes the id that sorts last.
    assert found["recip_rank"].tolist() == [1.0, 1.0 / 20]


@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is missing")
def test_an_experiment_finds_what_fanrank_eval_finds() -> None:
    data = fr.evaluation.load_beir(DATA)
    retriever = FanrankRetriever(FanrankIndexer().index({"docno": one.id, "text": one.text} for one in data.records))
    queries = pd.DataFrame([[one.id, one.text] for one in data.queries], columns=["qid", "query"])
    judged = [[query, name, grade] for query, grades in data.relevant.items() for name, grade in grades.items()]
    qrels = pd.DataFrame(judged, columns=["qid", "docno", "label"])
    measures = ["ndcg_cut_10", "recall_100", "recip_rank", "map"]
    found = pt.Experiment([retriever, retriever % 100 >> retriever], queries, qrels, measures)
    ours = fr.evaluation.evaluate("beir", DATA, k=1000, latency=0)["metrics"]
    for theirs, metric in (
        ("ndcg_cut_10", "ndcg@10"),
        ("recall_100", "recall@100"),
        ("recip_rank", "mrr"),
        ("map", "map"),
    ):
        assert found[theirs][0] == pytest.approx(ours[metric], abs=1e-12), metric
    assert found["ndcg_cut_10"][1] == found["ndcg_cut_10"][0]  # the first hundred, scored again


def test_reciprocal_ranks_of_two_retrievers_are_those_of_pyterrier_alpha() -> None:
    alpha = pytest.importorskip("pyterrier_alpha", reason="pyterrier-alpha is not installed")
    rng = np.random.default_rng(2)
    engine, given = fr.Engine(encoder=fr.OwnVectors(6)), documents(50, 2)
    engine.add([fr.Record(row["docno"], row["text"]) for row in given], vectors=rng.normal(size=(50, 6)))
    queries = QUERIES.assign(query_vec=list(rng.normal(size=(len(QUERIES), 6))))
    words, vectors = fr.strategies.Lexical(), fr.strategies.Dense()
    # PyTerrier's ranks begin at 0.
    both = fr.Strategy("both", (words, vectors), fr.strategies.RRF(k=60.0, base=0), depth=None)
    fused, *pair = (
        FanrankRetriever(engine, strategy=strategy, fields={"query_vec": "vector"}, keep_order=False)
        for strategy in (both, "bm25", fr.Strategy("vectors", (vectors,), depth=None))
    )

    def scores(frame: pd.DataFrame) -> dict[tuple[str, str], float]:
        return {(row.qid, row.docno): row.score for row in frame.itertuples()}

    assert scores(fused(queries)) == scores(alpha.fusion.RRFusion(*pair)(queries))


def test_a_directory_and_a_tenant(tmp_path: Path) -> None:
    with FanrankIndexer(tmp_path / "index").index(documents(20)) as written:
        expected = FanrankRetriever(written)(QUERIES)
    with fr.Engine.open(tmp_path / "index") as again:
        pd.testing.assert_frame_equal(
            FanrankRetriever(again, metadata=["text"])(QUERIES).drop(columns="text"), expected
        )
        pd.testing.assert_frame_equal(FanrankRetriever(again)(expected), expected, check_dtype=False)
    opened = FanrankRetriever(str(tmp_path / "index"))
    pd.testing.assert_frame_equal(opened(QUERIES), expected)
    opened.engine.close()
    shared = fr.Engine(columns={"docno": "category"})
    tenant, other = shared.namespace("users/ana"), shared.namespace("users/bo")
    FanrankIndexer(other).index(documents(20, 9))
    FanrankIndexer(tenant).index(documents(20))
    pd.testing.assert_frame_equal(FanrankRetriever(tenant)(QUERIES), expected)
    pd.testing.assert_frame_equal(FanrankRetriever(tenant)(expected), expected, check_dtype=False)


def test_an_indexing_pipeline(engine: fr.Engine) -> None:
    shout = pt.apply.text(lambda row: row["text"] + " loud")
    indexer = FanrankIndexer()
    (shout >> indexer).index(documents(10))
    assert indexer.engine.count() == 10
    assert len(FanrankRetriever(indexer.engine).search("loud")) == 10
    assert pt.inspect.indexer_inputs(indexer) == [["docno", "text"]]


def test_what_is_wrong_is_named(engine: fr.Engine) -> None:
    for options, message in (
        ({"num_results": 0}, "num_results must be 1 or more"),
        ({"metadata": "text"}, "metadata must be a list"),
        ({"metadata": ["score"]}, "'score' is a column of every answer"),
        ({"fields": {"qk": "k"}}, "'qk' cannot give 'k'"),
    ):
        with pytest.raises(fr.errors.ParameterError, match=message):
            FanrankRetriever(engine, **options)
    with pytest.raises(fr.errors.ParameterError, match="engine must be an Engine"):
        FanrankRetriever(None)
    with pytest.raises(fr.errors.ParameterError, match="text_attrs must be a list"):
        FanrankIndexer(text_attrs="text")
    for document, message in (
        ({"text": "tea"}, "document 1: 'docno' must be a string"),
        ({"docno": "d2"}, "'text' must be a string that is there"),
        ({"docno": "d1", "text": "tea"}, "d1"),
    ):
        fresh = FanrankIndexer()
        with pytest.raises(fr.errors.RecordError, match=message):
            fresh.index([{"docno": "d1", "text": "tea"}, document])
        assert fresh.engine.count() == 0
    with pytest.raises(fr.errors.ParameterError, match="options are for an engine"):
        FanrankIndexer(engine, k1=1.0)


class TestTransformer(pt.testing.TransformerTestCase):  # type: ignore[misc]
    """PyTerrier's own test of a transformer."""

    @staticmethod
    def get_transformer() -> FanrankRetriever:
        return FanrankRetriever(FanrankIndexer().index(documents(5)))
