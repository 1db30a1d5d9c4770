"""`tune_bm25`: a grid over one index gives what engines of these parameters give, and keeps what it cannot better."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.commands import run, run_json, write_questions

import fanrank as fr
from fanrank.engine.tune import parameters
from fanrank.engine.tune.parameters import scored_by
from fanrank.evaluation import Labelled, tune_bm25


def memory(**options: object) -> tuple[fr.Engine, list[Labelled]]:
    """Long records that answer and short ones that do not: every question gains by a small b."""
    engine = fr.Engine(analyzer="minimal", **options)  # type: ignore[arg-type]
    questions = []
    for space in range(8):
        name = f"s{space}"
        for number in range(4):
            word = f"x{number}"
            long = " ".join([word] * 3 + [f"{name}y{number}n{i}" for i in range(40)])
            engine.add(
                [fr.Record(f"right{number}", long, namespace=name), fr.Record(f"w{number}", word, namespace=name)]
            )
            questions.append(Labelled(fr.Query(word, namespace=name), {f"right{number}": 1}))
    engine.namespace("s0").delete(["w3"])
    return engine, questions


@pytest.mark.parametrize("method", ["lucene", "okapi", "bm25l", "bm25+"])
def test_other_parameters_over_the_same_segments_are_those_of_an_engine_made_with_them(method: str) -> None:
    engine, questions = memory()
    other, _ = memory(method=method, k1=0.7, b=0.2)
    batch = [question.query for question in questions]
    with scored_by(engine, other.bm25) as shared:
        found, expected = shared.search(batch, 50), other.search(batch, 50)
    assert found.scores.tobytes() == expected.scores.tobytes()
    assert np.array_equal(found.ids, expected.ids)
    assert engine.search(batch, 50).scores.tobytes() != expected.scores.tobytes()


def test_it_takes_what_unseen_questions_gain_by() -> None:
    engine, questions = memory()
    before = engine.search([question.query for question in questions]).scores.tobytes()
    tuned = tune_bm25(engine, questions, methods=["lucene"], k1=[1.2], b=[0.0, 0.9])
    assert [(point.method, point.k1, point.b) for point in tuned.points] == [
        ("lucene", 1.2, 0.75), ("lucene", 1.2, 0.0), ("lucene", 1.2, 0.9),
    ]  # fmt: skip
    assert tuned.chosen is tuned.best is tuned.points[1]
    assert tuned.current.value == pytest.approx(33 / 64)
    assert tuned.best.value == 1.0
    assert tuned.folds_chose == (tuned.points[1],) * 5
    assert tuned.cross_validated == 1.0
    assert tuned.unseen.low > 0.0
    assert fr.Engine(**tuned.chosen.options()).bm25 == fr.BM25("lucene", 1.2, 0.0)
    assert engine.search([question.query for question in questions]).scores.tobytes() == before


def test_it_keeps_what_it_cannot_better(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, questions = memory(b=0.0)
    tuned = tune_bm25(engine, questions, methods=["lucene"], k1=[1.2], b=[0.0, 0.9])
    assert len(tuned.points) == 2
    assert tuned.chosen is tuned.current
    assert tuned.to_dict()["changed"] is False
    # Where each fold's others choose badly, the best over all questions is luck.
    engine, questions = memory()
    table = {0.75: 0.5, 0.0: 0.6}
    noise = np.random.default_rng(0).normal(0.0, 1.0, len(questions))
    monkeypatch.setattr(
        parameters, "_values", lambda _e, q, bm25, _m: np.full(len(q), table[bm25.b]) + noise * (bm25.b == 0.0)
    )
    lucky = tune_bm25(engine, questions, methods=["lucene"], k1=[1.2], b=[0.0])
    assert lucky.best.value > lucky.current.value or lucky.best is lucky.current
    assert lucky.chosen is lucky.current


def test_what_it_refuses() -> None:
    engine, questions = memory()
    with pytest.raises(fr.errors.ParameterError, match="4 questions cannot be split into 5 folds"):
        tune_bm25(engine, questions[:4])
    with pytest.raises(fr.errors.ParameterError, match="unknown BM25 method 'dot'"):
        tune_bm25(engine, questions, methods=["dot"])
    with pytest.raises(fr.errors.ParameterError, match=r"b must lie in \[0, 1\]"):
        tune_bm25(engine, questions, b=[2.0])
    with pytest.raises(fr.errors.ParameterError, match="'tea' has no relevant record"):
        tune_bm25(engine, [*questions, Labelled(fr.Query("tea"), {"1": 0})])


def test_the_command_writes_options_of_an_engine(tmp_path: Path) -> None:
    made, questions = memory()
    with fr.Engine.open(tmp_path / "memory", analyzer="minimal", profile="literature") as engine:
        for name in made.namespaces:
            engine.add(fr.Record(record.id, record.text, namespace=name) for record in made.namespace(name).records())
    asked, out = write_questions(tmp_path / "questions.jsonl", questions), tmp_path / "bm25.json"
    told = ("tune", tmp_path / "memory", "--questions", asked, "--bm25")
    result = run_json(*told, "--out", out)
    options = json.loads(out.read_text())
    assert result["chosen"] == options
    assert (result["changed"], result["n"], result["metric"]) == (True, 32, "map")
    assert len(result["points"]) == 3 * 5 * 6  # the engine's own is one of them
    with fr.Engine.open(tmp_path / "memory") as engine:
        engine.copy_to(tmp_path / "copy", **options)
    with fr.Engine.open(tmp_path / "copy") as copy:
        assert {name: getattr(copy.bm25, name) for name in options} == options
    assert f"take --method {options['method']} --k1 {options['k1']:g} --b {options['b']:g}" in run(*told).stdout
    assert "--bm25 fits no policy: leave out --system" in run(*told, "--system", "bm25", code=2).stderr
