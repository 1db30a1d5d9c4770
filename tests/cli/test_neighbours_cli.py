"""`--neighbours` and `--neighbour-weight` of `fanrank search` and `fanrank eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import fails, run, run_json, write

TURNS = ["Where did the puppy go?", "To Lisbon.", "With Ana.", "How nice for all."]


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    rows = [{"id": f"t{n}", "text": text, "session": "s"} for n, text in enumerate(TURNS)]
    run("add", tmp_path / "memory", write(tmp_path / "records.jsonl", rows))
    return tmp_path / "memory"


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    session = [{"speaker": "Ann", "dia_id": f"D1:{n}", "text": text} for n, text in enumerate(TURNS, 1)]
    asked = [{"question": "Where did the puppy go?", "answer": "Lisbon", "evidence": ["D1:2"], "category": 4}]
    conversation = {"session_1": session, "session_1_date_time": "1:56 pm on 8 May, 2023"}
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps([{"sample_id": "c", "conversation": conversation, "qa": asked}]))
    return path


def scores(*arguments: object) -> dict[str, float]:
    return {hit["id"]: hit["score"] for hit in run_json("search", *arguments)["queries"][0]["hits"]}


def test_search_lets_records_borrow(memory: Path, tmp_path: Path) -> None:
    plain = scores(memory, "puppy")
    assert set(plain) == {"t0"}
    first = plain["t0"]
    quarter = {"t0": first, "t1": first / 4, "t2": first / 4}
    assert scores(memory, "puppy", "--neighbours", 2) == quarter
    assert scores(memory, "puppy", "--neighbours", 2, "--neighbour-weight", ".25") == quarter
    one_each = ("--neighbour-weight", ".5", "--neighbour-weight", ".125")
    assert scores(memory, "puppy", "--neighbours", 2, *one_each) == {"t0": first, "t1": first / 2, "t2": first / 8}
    assert scores(memory, "puppy", "--neighbours", 0) == plain
    # A query of a file brings its own.
    asked = write(tmp_path / "q.jsonl", [{"text": "puppy", "neighbours": {"window": 2, "weight": [0.5, 0.125]}}])
    assert scores(memory, "--queries", asked, "--neighbours", 1) == {"t0": first, "t1": first / 2, "t2": first / 8}
    explained = run_json("search", memory, "puppy", "--neighbours", 1, "--explain")["queries"][0]["explain"]
    assert [share["id"] for share in explained["neighbours"]] == ["t1"]
    # The option goes before what the strategy says.
    strategy = {"name": "near", "channels": [{"kind": "lexical", "neighbours": {"window": 1, "weight": 0.5}}]}
    given = ("--strategy", json.dumps(strategy))
    assert scores(memory, "puppy", *given) == {"t0": first, "t1": first / 2}
    assert scores(memory, "puppy", *given, "--neighbours", 0) == plain


def test_eval_measures_what_records_borrow(chat: Path) -> None:
    pytest.importorskip("pytrec_eval", reason="the extra 'eval' is not installed")
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
    pytest.importorskip("pytrec_eval", reason="the extra 'eval' is not installed")
    common = ("eval", "locomo", chat, "--unit", "turn", "--latency", 0, "--strategy", "rm3")
    assert run_json(*common)["strategy"] == "rm3"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--neighbour-weight", ".5"], "--neighbour-weight needs a number of neighbours: give --neighbours"),
        (["--neighbours", "9"], "neighbours: the window must lie in [0, 8], not 9"),
        (["--neighbours", "2", "--neighbour-weight", "2"], "neighbours: a weight must lie in (1/128, 1], not 2.0"),
        (
            ["--neighbours", "3", "--neighbour-weight", ".5", "--neighbour-weight", ".2"],
            "neighbours: 2 weights for a window of 3",
        ),
        (["--neighbours", "1", "--strategy", "rm3"], "rm3 does not let records borrow from their neighbours"),
    ],
)
def test_what_cannot_be_is_one_line(memory: Path, chat: Path, arguments: list[Any], said: str) -> None:
    assert fails("search", memory, "puppy", *arguments).startswith(said)
    pytest.importorskip("pytrec_eval", reason="the extra 'eval' is not installed")
    assert fails("eval", "locomo", chat, "--unit", "turn", *arguments).splitlines()[-1].startswith(said)


def test_the_study_takes_no_neighbours(chat: Path) -> None:
    pytest.importorskip("pytrec_eval", reason="the extra 'eval' is not installed")
    said = fails("eval", "locomo", chat, "--encoder", "any", "--neighbours", "1")
    assert said == "--neighbours is for a --strategy or --policy; the study has parameters of its own"
