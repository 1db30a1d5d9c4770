"""Answering and judging by callables, and answers in what was found, on small sets made by hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fanrank.engine.errors import AnswerError, ParameterError
from fanrank.engine.evaluate import Answering, Dataset, Evaluation, answers_in_context, draw_per_category, judge_answers
from fanrank.engine.records.query import Query
from fanrank.engine.records.record import Record

TEXTS = ("Rex is a puppy", "Berlin was rainy", "Bo runs")


def found(answers: dict[str, str], ranked: dict[str, list[str]], **more: Any) -> Evaluation:
    """An evaluation of these rankings. Question ``c:i`` is asked in the namespace ``c``."""
    records = [Record(f"d{n}", text, space) for space in "xy" for n, text in enumerate(TEXTS)]
    queries = [Query(f"{name}?", namespace=name[0], id=name) for name in ranked]
    dataset = Dataset("toy", records, queries, {name: {"d0": 1} for name in ranked}, answers=answers, **more)
    return Evaluation(dataset, ranked, np.zeros(len(ranked)), {}, "none", {})


def stub_answerer(question: Query, records: Sequence[Record], /) -> str:
    return " | ".join(record.text for record in records)


def stub_judge(question: Query, gold: str, answer: str, /) -> str:
    """Yes where the answer holds the gold one, partial where it holds its first word, else no."""
    return "yes" if gold in answer else "partial" if gold.split()[0] in answer else "no"


RANKED = {"x:0": ["d0", "d1"], "x:1": ["d1", "d0"], "y:0": ["d2", "d0"], "y:1": ["d2"], "y:2": []}
ANSWERS = {"x:0": "puppy", "x:1": "Berlin in May", "y:0": "rainy", "y:1": "Bo runs"}
CATEGORIES = {"x:0": "a", "x:1": "b", "y:0": "a", "y:1": "b", "y:2": "b"}


def test_strict_counts_yes_and_lenient_partial_too() -> None:
    evaluation = found(ANSWERS, RANKED, categories=CATEGORIES)
    judged = judge_answers(evaluation, stub_answerer, stub_judge, depth=2)
    assert [(each.id, each.judgement, each.records) for each in judged.answers] == [
        ("x:0", "yes", ("d0", "d1")),
        ("x:1", "partial", ("d1", "d0")),
        ("y:0", "no", ("d2", "d0")),
        ("y:1", "yes", ("d2",)),
    ]
    assert judged.answers[1].answer == "Berlin was rainy | Rex is a puppy"
    assert judged.accuracy() == {"n": 4, "strict": 0.5, "lenient": 0.75, "unreadable": 0}
    assert judged.per_category() == {
        "a": {"n": 2, "strict": 0.5, "lenient": 0.5, "unreadable": 0},
        "b": {"n": 2, "strict": 0.5, "lenient": 1.0, "unreadable": 0},
    }
    as_json = json.loads(json.dumps(judged.to_dict()))
    assert (as_json["depth"], as_json["answers"][2]["gold"]) == (2, "rainy")
    assert "answers" not in judged.to_dict(answers=False)


def test_workers_do_not_change_the_result() -> None:
    evaluation = found(ANSWERS, RANKED)
    both = threading.Barrier(2)

    def meet(question: Query, records: Sequence[Record], /) -> str:
        both.wait(300)  # two of the four questions are under way at once, twice
        return stub_answerer(question, records)

    done: list[tuple[int, int]] = []
    together = judge_answers(evaluation, meet, stub_judge, workers=2, progress=lambda *at: done.append(at))
    assert together == judge_answers(evaluation, stub_answerer, stub_judge)
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_slips_are_named() -> None:
    evaluation = found(ANSWERS, RANKED)
    with pytest.raises(AnswerError, match=r"question 'x:0': a judge must say one of yes, partial, no, .*not 'maybe'"):
        judge_answers(evaluation, stub_answerer, lambda *_: "maybe")
    with pytest.raises(AnswerError, match="an answerer must return a string, not NoneType"):
        judge_answers(evaluation, lambda *_: None, stub_judge)  # type: ignore[arg-type, return-value]
    with pytest.raises(ParameterError, match="toy has no gold answers"):
        judge_answers(found({}, RANKED), stub_answerer, stub_judge)
    with pytest.raises(ParameterError, match="toy has no gold answers"):
        answers_in_context(found({}, RANKED))
    for slip in ({"depth": 0}, {"workers": 0}):
        with pytest.raises(ParameterError, match="must be 1 or more"):
            judge_answers(evaluation, stub_answerer, stub_judge, **slip)
    with pytest.raises(ParameterError, match="1 or more questions of each category, not 0"):
        draw_per_category(evaluation.dataset, 0)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_an_answerer_raises_stops_the_questions(workers: int) -> None:
    asked = []

    def fail(question: Query, records: Sequence[Record], /) -> str:
        asked.append(question.id)
        raise AnswerError("the server is gone")

    ranked = {f"x:{n}": ["d0"] for n in range(50)}
    with pytest.raises(AnswerError, match="the server is gone"):
        judge_answers(found(dict.fromkeys(ranked, "puppy"), ranked), fail, stub_judge, workers=workers)
    assert 1 <= len(asked) <= workers


def test_a_sample_is_stratified_and_depends_on_the_seed_alone() -> None:
    ranked = {f"x:{n}": ["d0"] for n in range(60)}
    categories = {name: "abc"[min(number // 28, 2)] for number, name in enumerate(ranked)}
    dataset = found(dict.fromkeys(ranked, "puppy"), ranked, categories=categories).dataset
    drawn = draw_per_category(dataset, 17, seed=7)
    assert drawn == draw_per_category(dataset, 17, seed=7)
    assert drawn != draw_per_category(dataset, 17, seed=8)
    assert [sum(categories[name] == each for name in drawn) for each in "abc"] == [17, 17, 4]
    assert drawn == sorted(drawn, key=list(ranked).index)
    # Another order of the categories' names draws the same questions of each.
    unanswered = replace(dataset, answers={name: "puppy" for name in ranked if categories[name] != "c"})
    assert draw_per_category(unanswered, 17, seed=7) == [name for name in drawn if categories[name] != "c"]


def test_answers_in_context_by_category() -> None:
    in_context = answers_in_context(found(ANSWERS, RANKED, categories=CATEGORIES), (1, 2))
    assert in_context["n"] == 4
    assert in_context["metrics"] == {
        "answer_substring@1": 2 / 4,
        "answer_substring@2": 2 / 4,
        # x:0 puppy and y:1 runs are found, of x:1 Berlin alone, and y:0's rainy is not.
        "token_recall@1": 3 / 4,
        "token_recall@2": 3 / 4,
    }
    assert in_context["per_category"]["a"] == {
        "n": 2,
        "answer_substring@1": 0.5,
        "answer_substring@2": 0.5,
        "token_recall@1": 0.5,
        "token_recall@2": 0.5,
    }


@pytest.mark.parametrize(
    "slip", [{"depth": 0}, {"depth": "5"}, {"workers": 0}, {"per_category": 0}, {"judge": None}, {"answerer": "model"}]
)
def test_slips_are_named_before_a_search(slip: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(slip))):
        Answering(**{"answerer": lambda *_: "", "judge": lambda *_: "no", **slip})
