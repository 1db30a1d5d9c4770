"""`fanrank eval` over a BEIR directory, and with records that borrow from their neighbours."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.commands import fails, run, run_json, write

from fanrank.engine.backends import choose as backend

TURNS = ["Where did the puppy go?", "To Lisbon.", "With Ana.", "How nice for all."]


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """Twelve documents, four judged queries and one that is not."""
    root = tmp_path / "toy"
    (root / "qrels").mkdir(parents=True)
    subjects = ["tea", "coffee", "cats", "dogs", "rain", "snow"]
    documents = [
        {"_id": f"d{n}", "title": f"About {subjects[n % 6]}", "text": f"Facts number {n} on {subjects[n % 6]}."}
        for n in range(12)
    ]
    write(root / "corpus.jsonl", documents)
    write(root / "queries.jsonl", [{"_id": f"q{n}", "text": f"facts on {subjects[n]}"} for n in range(5)])
    lines = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in range(4)), "q0\td6\t2"]
    (root / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    session = [{"speaker": "Ann", "dia_id": f"D1:{n}", "text": text} for n, text in enumerate(TURNS, 1)]
    asked = [{"question": "Where did the puppy go?", "answer": "Lisbon", "evidence": ["D1:2"], "category": 4}]
    conversation = {"session_1": session, "session_1_date_time": "1:56 pm on 8 May, 2023"}
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps([{"sample_id": "c", "conversation": conversation, "qa": asked}]))
    return path


def test_eval(beir: Path) -> None:
    result = run_json("eval", "beir", beir, "--analyzer", "minimal", "-k", "10")
    assert {"dataset", "preset", "analyzer", "backend", "n", "metrics"} <= set(result)
    assert (result["dataset"], result["preset"], result["analyzer"]) == ("toy", "default", "minimal")
    assert (result["backend"], result["n"]) == (backend.choose().name, 4)
    named = {"hit@1", "hit@5", "hit@10", "mrr", "recall@3", "recall@5", "ndcg@5", "ndcg@10"}
    assert named <= set(result["metrics"])
    # The two documents on each subject tie and the older comes first: every query finds one at rank 1.
    assert result["metrics"]["hit@1"] == result["metrics"]["mrr"] == result["metrics"]["recall@3"] == 1.0
    assert result["metrics"]["ndcg@10"] < 1.0  # q0's better document has the lower rank
    assert {"recall@100", "ndcg@10"} <= set(run_json("eval", "beir", beir)["metrics"])
    text = run("eval", "beir", beir, "--analyzer", "minimal").stdout.splitlines()
    assert text[0] == "toy: n = 4, preset default, analyzer minimal, strategy bm25, backend " + backend.choose().name
    assert ["hit@1", "1.0000"] in [line.split() for line in text]


def test_eval_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pytrec_eval", None)
        assert "pip install 'fanrank[eval]'" in fails("eval", "beir", tmp_path)
    assert "not a directory" in fails("eval", "beir", tmp_path / "none")
    assert "no preset 'agentir' for beir" in fails("eval", "beir", tmp_path, "--preset", "agentir")


def test_eval_measures_what_records_borrow(chat: Path) -> None:
    common = ("eval", "locomo", chat, "--unit", "turn", "--latency", 0)
    plain = run_json(*common)
    assert "neighbours" not in plain["parameters"]
    near = run_json(*common, "--neighbours", 1, "--neighbour-weight", ".5")
    assert near["parameters"]["neighbours"] == {"window": 1, "weight": 0.5}
    # The turn with the answer has no word of the question.
    assert plain["metrics"]["mrr"] < near["metrics"]["mrr"] == 0.5
    shown = run(*common, "--neighbours", 1, "--neighbour-weight", ".5").stdout
    assert "strategy bm25, 1 neighbours by 0.5, backend " in shown.splitlines()[0]
    several = run_json(*common, "--strategy", "bm25", "--strategy", "conversation", "--neighbours", 1)
    assert several["parameters"]["neighbours"] == {"window": 1, "weight": 0.25}


def test_eval_keeps_the_words_that_rm3_reads(chat: Path) -> None:
    common = ("eval", "locomo", chat, "--unit", "turn", "--latency", 0, "--strategy", "rm3")
    assert run_json(*common)["strategy"] == "rm3"


def test_the_study_takes_no_neighbours(chat: Path) -> None:
    said = fails("eval", "locomo", chat, "--encoder", "any", "--neighbours", "1")
    assert said == "--neighbours is for a --strategy or --policy; the study has parameters of its own"


def test_what_cannot_be_is_one_line(chat: Path) -> None:
    common = ("eval", "locomo", chat, "--unit", "turn")
    assert fails(*common, "--neighbour-weight", ".5").splitlines()[-1].startswith("--neighbour-weight needs")
    assert fails(*common, "--neighbours", "1", "--strategy", "rm3").endswith("borrow from their neighbours")
