"""`--neighbours` and `--neighbour-weight` of `fanrank search`."""

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
def test_what_cannot_be_is_one_line(memory: Path, arguments: list[Any], said: str) -> None:
    assert fails("search", memory, "puppy", *arguments).startswith(said)
