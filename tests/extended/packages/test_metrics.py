"""The metrics against values worked out by hand, plain loops, and trec_eval itself."""

import math

import numpy as np
import pytest

from fanrank.engine.errors import ParameterError
from fanrank.engine.evaluate import METRICS, means, per_query
from fanrank.engine.metrics.ranking import HIGHEST_GRADE, cutoff

pytrec_eval = pytest.importorskip("pytrec_eval", reason="the extra 'eval' is not installed")


def one(ids: list[str], grades: dict[str, int], *metrics: str) -> list[float]:
    found = per_query({"q": ids}, {"q": grades}, metrics)
    return [float(found[metric][0]) for metric in metrics]


def test_graded_toy() -> None:
    # SPEC X13: the list holds grades 1, 2, 0, 1; linear gain .8600, exponential .8045.
    ids, grades = ["a", "b", "c", "d"], {"a": 1, "b": 2, "c": 0, "d": 1}
    linear = (1 + 2 / math.log2(3) + 1 / math.log2(5)) / (2 + 1 / math.log2(3) + 1 / 2)
    exponential = (1 + 3 / math.log2(3) + 1 / math.log2(5)) / (3 + 1 / math.log2(3) + 1 / 2)
    assert (round(linear, 4), round(exponential, 4)) == (0.8600, 0.8045)
    assert one(ids, grades, "ndcg@10", "ndcg_exp@10") == pytest.approx([linear, exponential], abs=1e-12)
    raw = pytrec_eval.RelevanceEvaluator({"q": grades}, {"ndcg_cut.10"})
    assert raw.evaluate({"q": {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}})["q"]["ndcg_cut_10"] == pytest.approx(linear)


def test_hit_is_not_recall() -> None:
    # SPEC X22: two relevant documents, one of them first.
    found = one(["a", "x", "b"], {"a": 1, "b": 1}, "hit@1", "recall@1", "recall_all@1", "recall@3", "recall_all@3")
    assert found == [1.0, 0.5, 0.0, 1.0, 1.0]


def test_reciprocal_rank_is_over_the_whole_list() -> None:
    ids = [f"x{number}" for number in range(10)] + ["a"]
    assert one(ids, {"a": 1}, "mrr", "mrr@10", "mrr@11", "hit@10") == [1 / 11, 0.0, 1 / 11, 0.0]
    assert one(ids[1:], {"a": 1}, "mrr@10") == [0.1]


def test_longmemeval_discounts_rank_two_by_nothing() -> None:
    # SPEC X34: rel1 + sum over i >= 2 of rel_i / log2(i).
    grades = {"a": 1, "b": 1, "c": 1}
    ideal = 1 + 1 / math.log2(2) + 1 / math.log2(3)
    got = 1 / math.log2(2) + 1 / math.log2(4)
    assert one(["x", "a", "y", "b"], grades, "ndcg_longmemeval@10") == pytest.approx([got / ideal])
    assert one(["x", "a", "y", "b"], grades, "ndcg_longmemeval@2") == pytest.approx([1 / 2])
    assert one(["x", "a"], {"a": 1}, "ndcg_longmemeval@10", "ndcg@10") == pytest.approx([1.0, 1 / math.log2(3)])


def test_other_measures_and_names_of_trec_eval() -> None:
    ids, grades = ["a", "x", "b", "y"], {"a": 1, "b": 1, "c": 1, "x": 0}
    assert one(ids, grades, "P@2", "p_4", "MAP@1", "map_cut_3", "AP") == pytest.approx([0.5, 0.5, 1 / 3, 5 / 9, 5 / 9])
    # Of three relevant, two are in the first three; one stands behind the only judged record that is not.
    assert one(ids, grades, "Rprec", "bpref", "set_P") == pytest.approx([2 / 3, 1 / 3, 1 / 2])
    assert one(ids, grades, "recip_rank", "Success@1", "R.4") == one(ids, grades, "mrr", "hit@1", "recall@4")
    with pytest.raises(ParameterError, match="metric 'rprec@5' must be written rprec"):
        cutoff("rprec@5")


def test_our_order_counts_whatever_the_ids() -> None:
    # trec_eval puts equal scores in descending order of id: a run of ties would be read z, y, x.
    assert one(["x", "y", "z"], {"x": 1}, "mrr") == [1.0]
    assert one(["z", "y", "x"], {"x": 1}, "mrr") == [1 / 3]
    tied = pytrec_eval.RelevanceEvaluator({"q": {"x": 1}}, {"recip_rank"}).evaluate({"q": {"x": 1.0, "y": 1.0}})
    assert tied["q"]["recip_rank"] == 0.5
    # It also holds scores as float32, where these two are equal.
    close = pytrec_eval.RelevanceEvaluator({"q": {"x": 1}}, {"recip_rank"})
    assert close.evaluate({"q": {"x": 1.0 + 2**-40, "y": 1.0}})["q"]["recip_rank"] == 0.5


def test_queries_without_a_list_score_zero_and_the_rest_is_left_out() -> None:
    found = per_query({"a": ["x"], "b": [], "stray": ["x"]}, {"b": {"x": 1}, "a": {"x": 1}, "c": {"x": 1}})
    assert list(found) == list(METRICS)
    for column in found.values():
        assert column.dtype == np.float64
        assert column.shape == (3,)
        assert column[0] == column[2] == 0.0
    assert found["hit@1"].tolist() == [0.0, 1.0, 0.0]
    assert means(found)["hit@1"] == 1 / 3


def test_no_query_at_all() -> None:
    assert set(means(per_query({}, {})).values()) == {0.0}
    assert per_query({"q": ["x"]}, {"q": {}}, ["hit@1"])["hit@1"].tolist() == [0.0]


@pytest.mark.parametrize("metric", ["hit", "hit@0", "hit@-1", "hit@x", "hit@05", "map@", "ndcg@", "p", ""])
def test_unknown_metrics(metric: str) -> None:
    with pytest.raises(ParameterError):
        cutoff(metric)
    with pytest.raises(ParameterError):
        per_query({}, {}, [metric])


def test_a_list_that_holds_an_id_twice() -> None:
    with pytest.raises(ParameterError, match="query 'q': the ranked list holds an id twice"):
        one(["a", "a"], {"a": 1}, "mrr")


def test_high_grades() -> None:
    top = {"a": HIGHEST_GRADE, "b": HIGHEST_GRADE - 1}
    gains = [2**grade - 1 for grade in top.values()]
    ideal = gains[0] + gains[1] / math.log2(3)
    assert one(["b", "a"], top, "ndcg_exp@10") == pytest.approx([(gains[1] + gains[0] / math.log2(3)) / ideal])
    with pytest.raises(ParameterError, match="grades up to"):
        one(["a"], {"a": HIGHEST_GRADE + 1}, "ndcg_exp@10")
    assert one(["a"], {"a": HIGHEST_GRADE + 1}, "ndcg@10") == [1.0]
