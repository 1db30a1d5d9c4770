"""Every part of the bench of policies on a few questions: what it records, and what it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fanrank.engine.evaluate.protocol import TAUS_A087

ROOT = Path(__file__).parents[2]
# Behind everything else, so that the folders there (engine, kernels) shadow no module.
sys.path.append(str(ROOT))
try:
    from bench import cascade
finally:
    sys.path.remove(str(ROOT))

pytest.importorskip("pytrec_eval", reason="the extra 'eval' is not installed")
pytest.importorskip("sklearn", reason="the extra 'tune' is not installed")

WORDS = ["tea", "rain", "boat", "red", "wind", "moon", "puppy", "shoes"]
QUESTIONS = 60


class Letters:
    """An encoder of letter counts."""

    name, version, dimension = "letters", "1", 26

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
        return np.array([[t.lower().count(chr(97 + n)) + 0.1 for n in range(26)] for t in texts], dtype=np.float32)

    queries = documents


def write(folder: Path) -> None:
    random = np.random.default_rng(1)
    talks = []
    for number in range(2):
        sessions: dict[str, Any] = {}
        for session in range(1, 7):
            turns = [" ".join(random.choice(WORDS, 5)) for _ in range(3)]
            sessions[f"session_{session}"] = [{"speaker": "Ann", "text": text} for text in turns]
            sessions[f"session_{session}_date_time"] = f"1:56 pm on {session} May, 2023"
        asked = [
            {
                "question": " ".join(random.choice(WORDS, 2)),
                "evidence": [f"D{random.integers(1, 7)}:1"],
                "category": int(random.integers(1, 6)),
            }
            for _ in range(QUESTIONS // 2)
        ]
        talks.append({"sample_id": f"c{number}", "conversation": sessions, "qa": asked})
    (folder / "locomo").mkdir()
    (folder / "locomo" / "locomo10.json").write_text(json.dumps(talks))


@pytest.mark.parametrize("unit", cascade.UNITS)
def test_every_part_is_recorded_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    write(tmp_path)
    monkeypatch.setattr(cascade, "data_folder", lambda: tmp_path)
    monkeypatch.setattr(cascade, "HELD_OUT", 20)
    monkeypatch.setattr(cascade, "open_encoder", lambda *given, **how: Letters())
    rows = list(cascade.measure("agentir", unit, "letters", tmp_path / "vectors.db", cascade.PARTS, 1))
    assert json.loads(json.dumps(rows)) == rows
    assert {row["part"] for row in rows} == set(cascade.PARTS)
    assert [row["part"] for row in rows if "error" in row] in ([], ["recall"])
    for row in rows:
        shown = cascade.render(row)
        assert shown.startswith(f"{row['part']}, agentir, {unit}, n = {QUESTIONS}")
        assert len(shown.splitlines()) > 2 or "error" in row
    for row in (row for row in rows if row["part"] == "sweep"):
        assert [own["tau"] for own in row["rows"]] == list(TAUS_A087)
        assert all(own["as_composed"] for own in row["rows"])
        assert all(own["ms"] > 0.0 and own["ms_fanout"] > 0.0 for own in row["rows"])
    for row in (row for row in rows if row["part"] == "folds"):
        assert sum(own["n"] for own in row["folds"]) == QUESTIONS
        for own in row["folds"]:
            # Without types the escalated strategy is the one whose values were composed.
            assert own["single"][cascade.METRIC] == pytest.approx(own["composed"]["single"])
    for row in (row for row in rows if row["part"] == "parts"):
        assert row["queries"] == QUESTIONS
        assert all(own["ratio"] > 0.0 for own in row["batch_ms"].values())
    tuned = next(row for row in rows if row["part"] == "tune")
    assert tuned["labels"] == 50

    quick = list(cascade.measure("agentir", unit, "letters", tmp_path / "vectors.db", ("static", "sweep"), 0))
    assert not any("ms" in own for row in quick if row["part"] == "sweep" for own in row["rows"])
    assert all(cascade.render(row) for row in quick)
