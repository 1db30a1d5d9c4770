"""`fanrank published`: every headline has a figure, a command or a reason; what is measured is what `eval` gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.commands import run, run_json
from support.evaluations import needs

from fanrank.engine.evaluate.headlines import HEADLINES, Evaluated, simulated_session


def test_each_has_a_figure_a_command_or_a_reason() -> None:
    rows = run_json("published")["headlines"]
    assert len(rows) == len(HEADLINES) > 30
    assert len({row["source"] for row in rows}) == 5
    assert all(row["here"] for row in rows)
    for row, headline in zip(rows, HEADLINES, strict=True):
        assert bool(row["command"]) == (not isinstance(headline.here, str) and not callable(headline.here))
    lines = run("published").stdout.splitlines()
    assert lines[0].startswith("AgentIR, Table 17: ")


def test_what_is_computed() -> None:
    here = {row["what"]: row["here"] for row in run_json("published")["headlines"]}
    assert here["tenants at 0, 63, 89 % skipped"] == "154, 416, 1,399"
    assert here["ms a query at 63.0 % skipped"] == "19.94"
    assert here["serial shares, FiQA and SciDocs"] == "0.31, 0.46"
    seconds, slow = simulated_session("sequential").split(" s, ")
    assert float(seconds) == pytest.approx(459.2, rel=0.03)
    assert float(slow.partition("%")[0]) == pytest.approx(75.5, abs=1.0)


def test_what_is_measured_is_exact(data: Path) -> None:
    needs(data, "locomo/locomo10.json")
    for row, headline in zip(run_json("published", "--data", data)["headlines"], HEADLINES, strict=True):
        if isinstance(headline.here, Evaluated) and headline.here.strategy == "bm25" and "LoCoMo" in row["what"]:
            assert float(row["here"]) == pytest.approx(float(row["published"]), abs=6e-4), row
