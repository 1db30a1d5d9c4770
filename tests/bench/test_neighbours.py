"""The bench of neighbours in small: right answers, and rows that become tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanrank as fr
from fanrank.cpu_fallback import neighbours as numpy_neighbours
from fanrank.engine.backends import choose as backends
from fanrank.engine.evaluate import Dataset

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
try:
    from bench import neighbours
    from bench.report import neighbours as report_neighbours
    from bench.report.rows import Recorded
finally:
    sys.path.remove(str(ROOT))


class Letters:
    """An encoder of letter counts."""

    name, version, dimension = "letters", "1", 26

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
        return np.array([[t.lower().count(chr(97 + n)) + 0.1 for n in range(26)] for t in texts], dtype=np.float32)

    queries = documents


def talks() -> Dataset:
    """Four conversations in which the answer follows the question."""
    records, queries, relevant = [], [], {}
    for space in "abcd":
        for n, text in enumerate(["where is the puppy", "with ana", "the marathon was long", "what a day"]):
            records.append(fr.Record(f"D1:{n}", text, namespace=space, session="D1", time=float(n)))
        queries.append(fr.Query("where is the puppy now", id=space, namespace=space))
        relevant[space] = {"D1:1": 1}
    return Dataset("talks", records, queries, relevant)


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    if not next(status for status in backends.statuses() if status.name == "native").usable:
        pytest.skip("no compiled loops here")
    monkeypatch.setattr(neighbours, "locomo", talks)
    monkeypatch.setattr(neighbours, "open_encoder", lambda *_: Letters())
    return ["--memories", "locomo", "--rounds", "1", "--encoder", "letters", "--out", str(tmp_path)]


def test_a_memory_in_small_is_measured_and_shown(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert neighbours.main(arguments) == 0
    assert "2 by 0.25" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "neighbours.jsonl").read_text().splitlines()]
    cost = [row for row in rows if row["part"] == "cost"]
    assert len(cost) == 2 * (2 + len(neighbours.LOANS))
    assert all(row["verified"] and row["records"] == 16 for row in cost)
    quality = {(row["kind"], row["borrows"]): row for row in rows if row["part"] == "quality"}
    assert set(quality) == {(kind, borrows) for kind in ("bm25", "dense", "fused") for borrows in (False, True)}
    # The answer has no word of the question, and the turn before it has them all.
    plain, near = (quality["bm25", borrows] for borrows in (False, True))
    assert (plain["metrics"]["hit@5"], near["metrics"]["hit@5"]) == (0.0, 1.0)
    assert (near["difference"], near["n"], near["chosen_on"]) == (1.0, 2, 2)
    dialogue = {(row["strategy"], row["without"]): row for row in rows if row["part"] == "dialogue"}
    assert len(dialogue) == (6 + 4) + (5 + 4)
    whole, without = dialogue["dialogue-words", ""], dialogue["dialogue-words", "both"]
    assert (whole["n"], whole["n_halves"], whole["conversations"]) == (4, [2, 2], 4)
    assert whole["metrics"]["hit@1"] == 1.0
    # Without what stands around the answer has no word of the question, so its own words speak against it.
    assert without["weights"][0]["context_words"] < 0.0
    assert list(without["weights"][0]) == ["context_words"]
    text = "\n".join(report_neighbours.neighbours(Recorded([], {"neighbours": rows})))
    assert "| locomo | 16 | 20 | plain |" in text
    assert "+100.0 [+100.0, +100.0]" in text
    assert "| dialogue-words | what stands around |" in text


def test_a_wrong_answer_is_seen(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = numpy_neighbours.borrowed_sums
    monkeypatch.setattr(numpy_neighbours, "borrowed_sums", lambda own, around, lent: plain(own, around, lent) + 1)
    assert neighbours.main([*arguments, "--parts", "cost"]) == 1


def test_no_rows_name_the_command() -> None:
    assert report_neighbours.neighbours(Recorded([], {})) == ["No row yet: `python -m bench.neighbours`."]
