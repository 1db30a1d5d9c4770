"""`fanrank eval` under a policy, and what it says of slips."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

from fanrank.engine.cli import main as cli
from fanrank.engine.evaluate import command
from fanrank.engine.hybrid.strategy import STRATEGIES
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.route.classifier import Classifier
from fanrank.engine.route.policy import save
from fanrank.engine.route.router import Router

RUNNER_OPTIONS = inspect.signature(click.testing.CliRunner).parameters


def run(*arguments: object, code: int = 0) -> click.testing.Result:
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in RUNNER_OPTIONS else {}  # click before 8.2
    result = click.testing.CliRunner(**apart).invoke(cli.main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output + result.stderr
    return result


def run_json(*arguments: object) -> Any:
    result = run("eval", "locomo", *arguments, "--preset", "opsem", "--json")
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def fails(*arguments: object) -> str:
    """The one line that a failing command prints."""
    result = run("eval", "locomo", *arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("fanrank: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


class Letters:
    """An encoder of letter counts."""

    name, version, dimension = "letters", "1", 26

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
        return np.array([[t.lower().count(chr(97 + n)) + 0.1 for n in range(26)] for t in texts], dtype=np.float32)

    queries = documents


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two conversations of three sessions; letter counts are the encoder that is installed."""
    monkeypatch.setattr(command, "default_encoder", lambda why: "letters")
    monkeypatch.setattr(command, "open_encoder", lambda *given, **how: Letters())
    sessions = {
        "session_1": [{"speaker": "Ann", "text": "I adopted a puppy called Rex in the spring."}],
        "session_2": [{"speaker": "Bo", "text": "The marathon in Berlin was rainy."}],
        "session_3": [{"speaker": "Ann", "text": "Rex ate my marathon shoes."}],
    }
    questions = [
        {"question": "What is the name of the puppy?", "evidence": ["D1:1"], "category": 4},
        {"question": "Where was the marathon?", "evidence": ["D2:1"], "category": 1},
        {"question": "Quite unrelated words?", "evidence": ["D3:1"], "category": 5},
    ]
    path = tmp_path / "locomo.json"
    path.write_text(json.dumps([{"sample_id": f"c{n}", "conversation": sessions, "qa": questions} for n in range(2)]))
    return path


def test_a_cascade_tells_what_it_skipped_and_took(file: Path) -> None:
    bm25 = run_json(file)
    assert (bm25["encoder"], bm25["strategy"]) == (None, "bm25")
    assert bm25["ms_per_query"] > 0.0
    confident = {row["tau"]: row["skip"] for row in bm25["margin_sweep"]}
    for tau, skip in confident.items():
        found = run_json(file, "--strategy", "cascade", "--tau", tau)
        assert found["skip"] == skip
        assert found["ms_per_query"] > 0.0
        assert found["answered_by"].get("bm25", 0) == round(6 * skip)
        assert found["encoder"] == {"name": "letters", "version": "1", "default": True}
        assert found["parameters"]["strategy"]["tau"] == tau
    assert len(set(confident.values())) > 1
    assert run_json(file, "--strategy", "cascade")["parameters"]["strategy"]["tau"] == 0.10
    given = run_json(file, "--strategy", "cascade", "--encoder", "letters")
    assert given["encoder"] == {"name": "letters", "version": "1"}
    as_json = json.dumps(Cascade(0.3, escalate=STRATEGIES["rrf"]).to_dict())
    assert set(run_json(file, "--strategy", as_json)["answered_by"]) <= {"bm25", "rrf"}

    lines = run("eval", "locomo", file, "--preset", "opsem", "--strategy", "cascade", "--tau", "2").stdout.splitlines()
    assert lines[0].startswith("locomo: n = 6, preset opsem, analyzer opsem, strategy cascade, backend ")
    assert lines[1].endswith(" ms a query, encoder letters (the default)")
    assert lines[2] == "  answered by agent_rrf: 6; skipped 0.0%"


def test_a_policy_of_a_file(file: Path, tmp_path: Path) -> None:
    terms = ("puppy",)
    told = Classifier(("multi-hop", "single-hop"), terms, np.ones(1), np.array([[0.0], [9.0]]), np.array([1.0, 0.0]))
    table = {"single-hop": STRATEGIES["bm25"], "multi-hop": STRATEGIES["rrf"]}
    save(tmp_path / "router.json", Router(table, STRATEGIES["dense"], told), {})
    for types, counts in (
        ("none", {"rrf": 4, "bm25": 2}),
        ("predicted", {"rrf": 4, "bm25": 2}),
        # LoCoMo's multi-hop questions are what AgentIR calls multi-session, which this table has not.
        ("oracle", {"bm25": 2, "dense": 4}),
    ):
        found = run_json(file, "--policy", tmp_path / "router.json", "--types", types)
        assert dict(found["answered_by"]) == counts
        assert "skip" not in found
        assert found["parameters"]["types"] == types
    save(tmp_path / "cascade.json", Cascade(0.3), {})
    assert run_json(file, "--policy", tmp_path / "cascade.json")["parameters"]["strategy"]["tau"] == 0.3
    found = run_json(file, "--policy", tmp_path / "cascade.json", "--tau", "0", "--encoder", "letters")
    assert found["parameters"]["strategy"]["tau"] == 0.0


def test_slips_are_one_line(file: Path, tmp_path: Path) -> None:
    save(tmp_path / "cascade.json", Cascade(0.3), {})
    both = fails(file, "--strategy", "bm25", "--policy", tmp_path / "cascade.json")
    assert "give a strategy or a policy, not both" in both
    assert "tau is a cascade's threshold, and 'bm25' is none" in fails(file, "--tau", "0.1")
    assert "tau is a cascade's threshold" in fails(file, "--strategy", "fused", "--tau", "0.1")
    assert "--tau is for one --strategy or --policy" in fails(file, "--encoder", "letters", "--tau", "0.1")
    assert "tau must be" in fails(file, "--strategy", "cascade", "--tau", "-1")
    assert "types 'predicted'" in fails(file, "--strategy", "cascade", "--types", "predicted")
    assert "none.json" in fails(file, "--policy", tmp_path / "none.json")
    assert "locomo.json" in fails(file, "--policy", file)
    assert "unknown strategy 'cascades'" in fails(file, "--strategy", "cascades")
    assert "not JSON" in fails(file, "--strategy", '{"kind":')


def test_policies_are_listed() -> None:
    assert any(line.startswith("cascade: bm25 from ") for line in run("eval", "--list-strategies").stdout.splitlines())
