"""Runs and metrics beside those of ranx, ir_measures and trec_eval: the same order, the same numbers."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import fanrank as fr
from fanrank.engine.metrics.ranking import per_query, strictly_descending

TEXTS = ["tea", "tea and jam", "jam", "tea tea", "milk", "coffee with milk", "tea with milk"]


def random_case(seed: int) -> tuple[fr.Hits, dict[str, dict[str, int]]]:
    """An answer with many equal scores, and judgements of it. A query in three finds nothing."""
    rng = random.Random(seed)
    names = [f"d{number}" for number in rng.sample(range(1000), 60)]
    engine = fr.Engine.from_records([fr.Record(name, rng.choice(TEXTS)) for name in names])
    texts = ["tea", "jam milk", "nothing there"] * 4
    hits = engine.search([fr.Query(text, id=f"q{number}") for number, text in enumerate(texts)], k=40)
    grades = {query: {name: rng.choice([0, 1, 1, 2]) for name in rng.sample(names, 12)} for query in hits.query_ids()}
    return hits, grades


def our_metrics(hits: fr.Hits, grades: Mapping[str, Mapping[str, int]], *metrics: str) -> dict[str, Any]:
    ranked = {query: [hit.id for hit in row] for query, row in zip(hits.query_ids(), hits, strict=True)}
    return per_query(ranked, grades, metrics)


@pytest.mark.parametrize(
    "scores",
    [[], [2.0], [3.0, 2.0, 1.0], [1.0] * 5, [1.0, 1.0, 0.0, 0.0, -1.0, -1.0], [1e9, 1e9, 5.0], [64.0000001, 64.0]],
)
def test_scores_fall_at_every_step_as_float32(scores: list[float]) -> None:
    found = strictly_descending(scores)
    assert (np.diff(np.array(found, dtype=np.float32)) < 0).all()
    assert found == sorted(found, reverse=True)
    assert np.allclose(found, scores, rtol=1e-6, atol=1e-15)
    if len(set(np.array(scores, dtype=np.float32).tolist())) == len(scores):
        assert found == scores


def test_a_long_run_of_equal_scores_stays_beside_its_score() -> None:
    found = strictly_descending([1.5] * 10_000 + [1.4999])
    assert (np.diff(np.array(found, dtype=np.float32)) < 0).all()
    assert min(found) > 1.49


def test_runs_keep_the_order_of_the_hits_under_trec_eval() -> None:
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="the extra 'eval' is not installed")
    differed = 0
    for seed in range(5):
        hits, grades = random_case(seed)
        ours = our_metrics(hits, grades, "ndcg@10", "recall@5", "map", "mrr")
        names = {"ndcg@10": "ndcg_cut_10", "recall@5": "recall_5", "map": "map", "mrr": "recip_rank"}
        evaluator = pytrec_eval.RelevanceEvaluator(grades, {"ndcg_cut.10", "recall.5", "map", "recip_rank"})
        kept = evaluator.evaluate(hits.to_run(keep_order=True))
        by_id = evaluator.evaluate(hits.to_run())
        for metric, name in names.items():
            assert [kept[query][name] for query in grades] == ours[metric].tolist()
            differed += [by_id[query][name] for query in grades] != ours[metric].tolist()
    assert differed  # or else the runs have no equal scores, and this test tests nothing


def test_trec_lines_carry_the_scores_of_runs() -> None:
    hits, _ = random_case(0)
    run = hits.to_run(keep_order=True)
    lines = [line.split() for line in hits.to_trec(keep_order=True)]
    assert [(line[0], line[2], float(line[4])) for line in lines] == [
        (query, name, score) for query, row in run.items() for name, score in row.items()
    ]


def test_runs_of_other_packages_hold_the_hits_in_their_order() -> None:
    pytest.importorskip("ranx", reason="ranx is not installed")
    pytest.importorskip("ir_measures", reason="ir_measures is not installed")
    hits, _ = random_case(11)
    rows = {query: [hit.id for hit in row] for query, row in zip(hits.query_ids(), hits, strict=True) if row}
    assert {query: list(row) for query, row in hits.to_ranx().to_dict().items()} == rows
    pairs = [(query, name) for query, row in rows.items() for name in row]
    assert [(one.query_id, one.doc_id) for one in hits.to_ir_measures()] == pairs
    exact = [one.score for one in hits.to_ir_measures(keep_order=False)]
    assert exact == [hit.score for row in hits for hit in row]


def test_ranx_takes_an_answer_without_hits() -> None:
    pytest.importorskip("ranx", reason="ranx is not installed")
    hits = fr.Engine.from_records([fr.Record("m1", "tea")]).search(["nothing"])
    assert dict(hits.to_ranx().to_dict()) == {}
    assert hits.to_ir_measures() == []


@pytest.mark.parametrize(
    ("package", "method", "extra"), [("ranx", "to_ranx", "ranx"), ("ir_measures", "to_ir_measures", "ir-measures")]
)
def test_a_missing_package_is_named(package: str, method: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    hits = fr.Engine.from_records([fr.Record("m1", "tea")]).search(["tea"])
    with pytest.raises(fr.errors.MissingExtraError, match=rf"fanrank\[{extra}\]"):
        getattr(hits, method)()
