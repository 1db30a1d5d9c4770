"""`fit_weights`: finds the weights that made the labels, and keeps what it cannot better."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from support.commands import run, run_json, write_questions

import fanrank as fr
from fanrank.engine.route import policy as policies
from fanrank.evaluation import Labelled, fit_weights
from fanrank.strategies import Cue, Lexical, Linear

WORDS = ["lake", "boat", "rain", "sale", "tool", "blue", "euro", "plan", "trip", "tea"]
OWN = fr.Strategy(
    "own", (Lexical(), Cue("asks"), Cue("answers"), Cue("length")), Linear({"bm25": 1.0, "asks": 0.0, "answers": 0.0})
)


def talk(seed: int, right: str = "answers") -> tuple[list[fr.Record], list[Labelled]]:
    """Sessions in which each word is asked for and answered; what is right is the answer, or the question."""
    draw = random.Random(seed)
    records, questions = [], []
    for space in range(6):
        for number, word in enumerate(draw.sample(WORDS, 8)):
            for place, text in enumerate(("{} today", f"the {word} {{}}?", f"a {word} {{}}")):
                own = {"session": f"s{number}", "namespace": f"n{space}"}
                records.append(fr.Record(f"t{number}-{place}", text.format(draw.choice(WORDS)), **own))
            wanted = f"t{number}-{2 if right == 'answers' else 1}"
            questions.append(Labelled(fr.Query(word, namespace=f"n{space}"), {wanted: 1}))
    return records, questions


@pytest.mark.parametrize(("right", "sign"), [("answers", 1.0), ("asks", -1.0)])
def test_it_finds_what_tells_the_right_records(right: str, sign: float) -> None:
    records, questions = talk(0, right)
    engine = fr.Engine.from_records(records)
    before = engine.search([one.query for one in questions], strategy=OWN).scores.tobytes()
    found = fit_weights(engine, questions, OWN)
    weights = found.to_dict()["fitted"]
    assert sign * (weights["answers"] - weights["asks"]) > 1.0
    assert found.unseen.low > 0.0
    assert found.chosen is found.fitted
    assert found.values.mean() > 0.8
    assert len(found.folds) == 5
    assert found.fitted.channels == OWN.channels
    first = engine.search([one.query for one in questions], 1, strategy=found.chosen).ids[:, 0]
    assert np.mean([name in one.relevant for name, one in zip(first, questions, strict=True)]) > 0.6
    assert engine.search([one.query for one in questions], strategy=OWN).scores.tobytes() == before
    again = fit_weights(engine, questions, found.fitted)
    assert not again.to_dict()["changed"]
    assert again.chosen is found.fitted, "nothing is above chance, so the strategy stays"
    assert again.to_dict()["fitted"] == weights, "the one maximum, from any start"


def test_what_cannot_be_fitted_is_refused_by_name() -> None:
    records, questions = talk(0)
    engine = fr.Engine.from_records(records)
    with pytest.raises(fr.errors.ParameterError, match="'bm25' is not fused by Linear"):
        fit_weights(engine, questions, "bm25")
    with pytest.raises(fr.errors.ParameterError, match="4 questions cannot be split into 5 folds"):
        fit_weights(engine, questions[:4], OWN)
    lost = [Labelled(one.query, {"elsewhere": 1}) for one in questions]
    with pytest.raises(fr.errors.ParameterError, match="no question has a relevant record"):
        fit_weights(engine, lost, OWN)


def test_the_command_writes_a_strategy_that_search_takes(tmp_path: Path) -> None:
    records, questions = talk(0)
    with fr.Engine.open(tmp_path / "memory") as memory:
        memory.add(records)
    out, asked = tmp_path / "own.json", write_questions(tmp_path / "asked.jsonl", questions)
    told = ("tune", tmp_path / "memory", "--questions", asked, "--weights")
    assert "48 questions, ndcg@10, strategy dialogue-words" in run(*told, "--out", out).stdout
    found = run_json(*told)
    assert [*found["fitted"]] == [*fr.strategies.STRATEGIES["dialogue-words"].fusion.weights]
    chosen, about = policies.load(out)
    assert chosen.to_dict() == fr.Strategy.of({k: v for k, v in found["policy"].items() if k != "kind"}).to_dict()
    assert about["n"] == 48
    assert "leave out --bm25" in run(*told, "--bm25", code=2).stderr
