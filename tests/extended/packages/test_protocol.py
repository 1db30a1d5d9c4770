"""The presets against the published rows, and the protocol's rules on answers made by hand."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import borders
from support.commands import write
from support.evaluations import Letters, Scripted, needs, write_locomo

from fanrank.engine.engine import Engine
from fanrank.engine.errors import ParameterError
from fanrank.engine.evaluate import (
    Dataset,
    compare,
    compare_strategies,
    encoders,
    evaluate,
    find_preset,
    load_beir,
    load_locomo,
    rank,
    run,
)
from fanrank.engine.evaluate.dataset import RecordStream
from fanrank.engine.evaluate.encoders import RecordCache, open_encoder
from fanrank.engine.evaluate.protocol import classifier_of, prepare_dataset
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.records.decision import Decision
from fanrank.engine.records.query import Query
from fanrank.engine.records.record import Record
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.route.classifier import Classifier
from fanrank.engine.route.router import Router


def toy(*relevant: str) -> Dataset:
    records = [Record(name, "", space) for space in ("x", "y") for name in ("d1", "d2", "d3", "d4")]
    queries = [Query("", id=f"q{number}", namespace="xy"[number % 2]) for number in range(len(relevant))]
    return Dataset("toy", records, queries, {f"q{n}": {name: 1} for n, name in enumerate(relevant)})


def test_unmatched_documents_follow_in_document_order() -> None:
    answers = {"q0": [("d4", 2.0), ("d2", 1.0)], "q1": []}
    searcher, dataset = Scripted(answers), toy("d3", "d2")
    completed = rank(searcher, dataset, k=4, complete=True)
    assert completed.ranked == {"q0": ["d4", "d2", "d1", "d3"], "q1": ["d1", "d2", "d3", "d4"]}
    assert completed.values["mrr"].tolist() == [1 / 4, 1 / 2]
    as_it_is = rank(searcher, dataset, k=4, complete=False)
    assert as_it_is.ranked == {"q0": ["d4", "d2"], "q1": []}
    assert as_it_is.values["mrr"].tolist() == [0.0, 0.0]
    assert as_it_is.backend == "scripted"


def test_exchanges_are_ranked_once_and_never_completed() -> None:
    said = (("u1", "user"), ("a1", "assistant"), ("u2", "user"), ("a2", "assistant"))
    records = [Record(name, "tea", session="s", role=role, time=float(at)) for at, (name, role) in enumerate(said)]
    dataset = Dataset("toy", records, [Query("tea", id="q", unit="exchange")], {"q": {"u2": 1}})
    engine = Engine.from_records(records)
    assert rank(engine, dataset, k=5, complete=False).ranked == {"q": ["u1", "u2"]}
    with pytest.raises(ParameterError, match="this protocol ranks all records, and exchanges are not"):
        rank(engine, dataset, k=5, complete=True)


def test_a_query_does_not_find_itself() -> None:
    dataset = toy("d3", "d2")
    dataset.own["q0"] = "d1"
    searcher = Scripted({"q0": [("d1", 9.0), ("d3", 4.0), ("d4", 3.0)], "q1": [("d1", 9.0), ("d2", 4.0), ("d3", 1.0)]})
    found = rank(searcher, dataset, k=2, complete=False)
    assert found.ranked == {"q0": ["d3", "d4"], "q1": ["d1", "d2"]}
    assert found.confidence.tolist() == [0.25, 5 / 9]
    assert rank(searcher, dataset, k=4, complete=True).ranked["q0"] == ["d3", "d4", "d2"]


def test_margin_sweep() -> None:
    answers = {
        "q0": [("d1", 4.0), ("d2", 3.0)],  # c = .25
        "q1": [("d1", 4.0), ("d2", 4.0), ("d3", 1.0)],  # c = 0
        "q2": [("d1", 4.0), ("d2", 2.0)],  # c = .5
        "q3": [("d1", 4.0)],  # one candidate: never skipped (SPEC X04)
        "q4": [],  # no match: never skipped, not even at tau = 0 (A077)
        "q5": [("d1", -1.0), ("d2", -2.0)],
    }
    found = rank(Scripted(answers), toy(*["d1"] * 6), k=4, complete=True)
    assert found.confidence.tolist()[:3] == [0.25, 0.0, 0.5]
    assert np.isnan(found.confidence[3:]).all()
    assert [row["skip"] for row in found.margin_sweep([0.0, 0.25, 0.26, 0.5, 1.0])] == [3 / 6, 2 / 6, 1 / 6, 1 / 6, 0.0]
    assert found.margin_sweep([0.25]) == [{"tau": 0.25, "skip": 2 / 6, "skip_percent": 33.3}]
    assert np.isnan(rank(Scripted(answers), toy("d1"), k=1, complete=True).confidence).all()


def test_rows_of_a_policy_are_completed_as_what_answered_them() -> None:
    answers = {f"q{n}": [("d2", 1.0), ("d1", -1.0)] for n in range(4)}
    decisions = {
        "q0": Decision("bm25", confidence=0.5, threshold=0.1, escalated=False),
        "q1": Decision("fused", confidence=0.05, threshold=0.1, escalated=True),
        "q2": Decision("fused", threshold=0.1, escalated=True),
        "q3": Decision("bm25", type="a"),  # a router's, which escalates nothing
    }
    found = rank(Scripted(answers, decisions), toy(*["d1"] * 4), k=4, complete=True, strategy=Cascade())
    # What BM25 did not match scores 0, above a negative score; what a fusion did not keep comes last.
    assert found.ranked["q0"] == ["d2", "d3", "d4", "d1"]
    assert [found.ranked[f"q{n}"] for n in (1, 2, 3)] == [["d2", "d1", "d3", "d4"]] * 3
    assert found.confidence[:2].tolist() == [0.5, 0.05]
    assert np.isnan(found.confidence[2:]).all()
    assert found.skip == 1 / 3
    assert found.answered_by() == {"bm25": 2, "fused": 2}
    as_it_is = rank(Scripted(answers, decisions), toy("d1"), k=4, complete=False, strategy=Cascade())
    assert as_it_is.ranked == {"q0": ["d2", "d1"]}
    assert as_it_is.skip == 1.0
    static = rank(Scripted(answers), toy("d1"), k=4, complete=True)
    assert (static.skip, static.answered_by(), static.decisions) == (None, {}, None)


def test_compare() -> None:
    dataset = toy(*["d1"] * 8)
    good = rank(Scripted({f"q{n}": [("d1", 1.0)] for n in range(8)}), dataset, k=4, complete=True)
    bad = rank(Scripted({f"q{n}": [("d2", 1.0)] for n in range(8)}), dataset, k=4, complete=True)
    found = compare(good, bad, "hit@1")
    assert set(found) == {"questions"}
    assert (found["questions"].difference, found["questions"].p) == (1.0, 0.0001)
    dataset.clusters.update({f"q{n}": "xy"[n % 2] for n in range(8)})
    assert compare(bad, good, "mrr")["clusters"].p == 1.0
    with pytest.raises(ParameterError, match="was not measured"):
        compare(good, bad, "hit@7")
    other = rank(Scripted({"q0": []}), toy("d1"), k=4, complete=True)
    with pytest.raises(ParameterError, match="different queries"):
        compare(good, other, "hit@1")


def test_result_has_the_promised_shape(tmp_path: Path) -> None:
    file = write_locomo(tmp_path / "locomo.json")
    found = evaluate("locomo", file, preset="opsem", latency=1)
    assert json.loads(json.dumps(found)) == found
    assert {name: found[name] for name in ("dataset", "preset", "analyzer", "n")} == {
        "dataset": "locomo",
        "preset": "opsem",
        "analyzer": "opsem",
        "n": 6,
    }
    named = {"hit@1", "hit@5", "hit@10", "mrr", "recall@3", "recall@5", "recall@100", "ndcg@5", "ndcg@10"}
    assert named <= set(found["metrics"])
    # The third question matches nothing; its answer is the third of three sessions.
    assert found["metrics"]["hit@1"] == 4 / 6
    assert found["metrics"]["mrr"] == pytest.approx((1 + 1 + 1 / 3) / 3)
    assert found["per_category"]["adversarial"]["n"] == 2
    assert found["per_category"]["single-hop"]["hit@1"] == 1.0
    assert [row["tau"] for row in found["margin_sweep"]] == [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0]
    parameters = found["parameters"]
    assert (parameters["method"], parameters["k1"], parameters["k"]) == ("lucene", 1.5, 3)
    assert (parameters["query_tf"], parameters["gold"], parameters["complete"]) == ("unique", "strict", True)
    assert set(found["seconds"]) == {"load", "index", "search", "metrics"}
    assert found["backend"]
    assert (found["strategy"], found["encoder"]) == ("bm25", None)
    assert set(found["stages_ms"]) == {"batch", "per_query"}
    # A margin is BM25's; other measures of confidence are not swept as one.
    other = evaluate("locomo", file, preset="opsem", strategy=Cascade(confidence="entropy"), encoder=Letters())
    assert other["margin_sweep"] is None


def classifier(dimension: int = 0) -> Classifier:
    """ "where" means single-hop, anything else adversarial; or the first values of the vector decide."""
    terms = ("where",)
    weights = np.zeros((2, len(terms) + dimension))
    weights[1, 0] = 2.0
    if dimension:
        weights[1] = [0.0, 1.0, *[0.0] * (dimension - 1)]
        weights[0] = [0.0, 0.0, 1.0, *[0.0] * (dimension - 2)]
    bias = np.array([0.0, -1.0 if not dimension else 0.0])
    return Classifier(("adversarial", "single-hop"), terms, np.ones(1), weights, bias, dimension)


def test_predicted_types_are_the_classifiers(tmp_path: Path) -> None:
    file = write_locomo(tmp_path / "locomo.json")
    dataset = load_locomo(file)
    policy = Cascade(classifier=classifier())
    told = [query.type for query in prepare_dataset(dataset, policy, "predicted").queries]
    assert told == ["adversarial", "single-hop", "adversarial"] * 2
    assert [query.type for query in prepare_dataset(dataset, policy, "none").queries] == [None] * 6
    inner = Cascade(escalate=Router({}, NAMED["bm25"], classifier()))
    assert classifier_of(inner) is inner.escalate.classifier
    assert classifier_of(NAMED["bm25"]) is None
    assert [query.type for query in prepare_dataset(dataset, inner, "predicted").queries] == told
    # One that looks at vectors: more a's than b's are single-hop.
    seen = Cascade(classifier=classifier(26))
    with pytest.raises(ParameterError, match="looks at query vectors: give an encoder"):
        prepare_dataset(dataset, seen, "predicted")
    by_vector = prepare_dataset(dataset, seen, "predicted", encoder=Letters()).queries
    texts = [query.text.lower() for query in dataset.queries]
    assert [q.type for q in by_vector] == [
        "single-hop" if t.count("a") > t.count("b") else "adversarial" for t in texts
    ]

    # What the classifier decides by itself and what it tells beforehand are one.
    router = Router({"single-hop": NAMED["bm25"]}, NAMED["rrf"], classifier())
    found = {
        types: evaluate("locomo", file, preset="opsem", strategy=router, types=types, encoder=Letters())
        for types in ("none", "predicted", "oracle")
    }
    assert found["predicted"]["answered_by"] == found["none"]["answered_by"] == {"rrf": 4, "bm25": 2}
    assert found["oracle"]["answered_by"] == {"bm25": 4, "rrf": 2}
    assert found["predicted"]["metrics"] == found["none"]["metrics"]
    assert found["predicted"]["seconds"]["types"] > 0.0
    assert found["predicted"]["parameters"]["types"] == "predicted"


def test_queries_are_encoded_each_time_and_records_once(tmp_path: Path) -> None:
    file = write_locomo(tmp_path / "locomo.json")
    first, second = Letters(), Letters()
    for encoder in (first, second):
        evaluate("locomo", file, strategy="rrf", encoder=encoder, embeddings=tmp_path / "vectors.db")
    assert (len(set(first.embedded)), second.embedded) == (3, [])
    assert set(second.asked) == set(first.asked) == {query.text for query in load_locomo(file).queries}
    both = Letters()
    compare_strategies("locomo", file, ["rrf", "fused"], encoder=both)
    assert (len(both.embedded), len(both.asked)) == (6, 3)
    with RecordCache(second, tmp_path / "vectors.db") as cached:
        before = len(second.asked)
        assert cached.queries(["b", "a"])[:, 0].tolist() == pytest.approx([0.1, 1.1])
        assert len(second.asked) == before + 2
    assert type(open_encoder(first, tmp_path / "vectors.db")) is not RecordCache
    assert open_encoder(first) is first


def test_the_encoder_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_locomo(tmp_path / "locomo.json")
    with monkeypatch.context() as patch:
        borders.shrink(patch, DEFAULT_ENCODER="no-distribution-of-this-name")
        for strategy in ("fused", "cascade"):
            with pytest.raises(
                ParameterError, match=f"'{strategy}' has a dense channel: give an encoder .*not installed"
            ):
                evaluate("locomo", file, strategy=strategy)
        assert evaluate("locomo", file)["encoder"] is None
        with pytest.raises(ParameterError, match="give both"):
            evaluate("locomo", file, embeddings=tmp_path / "vectors.db")
    found = evaluate("locomo", file, strategy="cascade", embeddings=tmp_path / "vectors.db")
    assert found["encoder"]["name"] == encoders.DEFAULT_ENCODER
    assert found["encoder"]["default"] is True


def rounded(values: dict[str, float], names: Sequence[str]) -> list[str]:
    return [f"{values[name]:.4f}" for name in names]


def test_agentir_row_and_sweep(data: Path) -> None:
    found = evaluate("locomo", needs(data, "locomo/locomo10.json"), preset="agentir")
    assert found["n"] == 1982  # SPEC R40, A120, A087
    assert rounded(found["metrics"], ["hit@1", "hit@5", "hit@10", "mrr"]) == ["0.6246", "0.8749", "0.9455", "0.7353"]
    assert round(found["metrics"]["hit@1"] * 1982, 6) == 1238
    sweep = [row["skip_percent"] for row in found["margin_sweep"]]
    assert sweep == [100.0, 82.0, 67.9, 56.5, 47.2, 30.0, 8.2, 0.0]


def test_opsem_row(data: Path) -> None:
    found = evaluate("locomo", needs(data, "locomo/locomo10.json"), preset="opsem")
    assert found["n"] == 1978  # SPEC R41, D010
    names = ["hit@1", "recall@3", "recall@5", "mrr", "ndcg@5", "hit@5", "hit@10", "recall@1", "recall@10"]
    printed = ["0.6395", "0.7788", "0.8325", "0.7504", "0.7456", "0.8822", "0.9444", "0.5960", "0.9052"]
    assert rounded(found["metrics"], names) == printed
    # Hit@1 of BM25 by category (SPEC D017).
    hits = {name: f"{row['hit@1']:.3f}" for name, row in found["per_category"].items()}
    assert hits == {
        "multi-hop": "0.434",
        "temporal": "0.583",
        "single-hop": "0.712",
        "open-domain": "0.371",
        "adversarial": "0.726",
    }


def test_a_plain_analyzer_and_the_date_line(data: Path) -> None:
    # SPEC R42 measured .6896 / .8631 / .7836, and .7224 / .8803 / .8076 with the date line, with another tokenizer.
    file = needs(data, "locomo/locomo10.json")
    preset = replace(find_preset("default", "locomo"), analyzer="nltk")
    plain, dated = run(load_locomo(file), preset), run(load_locomo(file, date=True), preset)
    for found, expected in ((plain, (0.6896, 0.8631, 0.7836)), (dated, (0.7224, 0.8803, 0.8076))):
        got = found.metrics()
        assert (got["hit@1"], got["recall@5"], got["ndcg@5"]) == pytest.approx(expected, abs=0.002)
    gained = compare(dated, plain, "hit@1")
    assert gained["questions"].low > 0.0
    assert gained["clusters"].p < 0.05


def test_scifact(data: Path) -> None:
    found = evaluate("beir", needs(data, "scifact"), analyzer="nltk")
    assert (found["dataset"], found["n"]) == ("scifact", 300)
    assert found["metrics"]["ndcg@10"] >= 0.6828
    assert found["metrics"]["recall@100"] >= 0.927
    assert "margin_sweep" not in found
    assert "per_category" not in found


def test_longmemeval(data: Path) -> None:
    file = needs(data, "longmemeval_subset/longmemeval_s_3haystacks.json")
    for preset in ("default", "opsem"):
        found = evaluate("longmemeval", file, preset=preset)
        assert (found["n"], found["parameters"]["k"]) == (26, 41)
        assert found["metrics"]["hit@1"] > 0.9
        assert {row["n"] for row in found["per_category"].values()} == {9, 17}


def test_a_streamed_corpus_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "toy"
    (root / "qrels").mkdir(parents=True)
    write(root / "corpus.jsonl", [{"_id": str(n), "text": f"word{n}"} for n in range(500)])
    write(root / "queries.jsonl", [{"_id": str(n + 9), "text": f"word{n}"} for n in (1, 2)])
    (root / "qrels" / "test.tsv").write_text("10\t1\t1\n11\t2\t1\n")
    listed, streamed = load_beir(root), load_beir(root, stream=True)
    alive = peak = 0

    class Counted(Record):
        def __post_init__(self) -> None:
            nonlocal alive, peak
            super().__post_init__()
            alive += 1
            peak = max(peak, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def read() -> Iterator[Record]:
        for record in listed.records:
            yield Counted(record.id, record.text)

    borders.shrink(monkeypatch, BUILD_CHUNK=20, READ=20)
    dataset = replace(streamed, records=RecordStream(read, 500))
    found = run(dataset, find_preset("default", "beir"))
    assert found.ranked == run(listed, find_preset("default", "beir")).ranked
    assert alive == 0
    assert 0 < peak < 200
