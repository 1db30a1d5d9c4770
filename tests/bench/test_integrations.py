"""The bench of adapters in small: right answers, what is missing is left out by name, and rows become tables."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))
try:
    from bench import integrations
    from bench.harness import adapters
    from bench.report import integrations as report_integrations
    from bench.report.rows import Recorded
finally:
    sys.path.remove(str(ROOT))

WORDS = ["tea", "coffee", "billing", "job", "error", "key", "deploy", "login", "cache", "Ana", "Bo", "Berlin"]


def small_work(records: int, questions: int) -> adapters.Work:
    draw = np.random.default_rng(1)
    texts = [" ".join(draw.choice(WORDS, 5)) for _ in range(60)] * 2  # each text twice, as in SGD
    asked = [" ".join(draw.choice(WORDS, 2, replace=False)) + f" {number}" for number in range(30)]
    vectors, of_questions = (draw.standard_normal((count, 8)).astype(np.float32) for count in (60, 30))
    return adapters.Work(
        ids=[f"m{number}" for number in range(120)],
        texts=texts,
        metadata=[{"session": f"s{number % 7}"} for number in range(120)],
        vectors=np.vstack([vectors / np.linalg.norm(vectors, axis=1, keepdims=True)] * 2),
        questions=asked,
        question_vectors=of_questions / np.linalg.norm(of_questions, axis=1, keepdims=True),
        k=5,
    )


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> adapters.Work:
    monkeypatch.setattr(integrations, "load_work", small_work)
    return small_work(0, 0)


def made(kind: type[adapters.System], work: adapters.Work) -> adapters.System:
    """The system, or a skip that names what is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peers warn of their own end
            return kind(work)
    except ImportError as error:
        pytest.skip(f"{kind.name}: {error}")


@pytest.mark.parametrize("kind", adapters.ADAPTERS, ids=lambda kind: kind.name)
def test_an_adapter_gives_what_the_engine_gives(kind: type[adapters.Adapter], work: adapters.Work) -> None:
    system = made(kind, work)
    assert isinstance(system, adapters.Adapter)
    assert integrations.is_right(system, 7)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", adapters.PEERS, ids=lambda kind: kind.name)
def test_a_peer_answers_every_question(kind: type[adapters.System], work: adapters.Work) -> None:
    system = made(kind, work)
    found = system.ask([0, 3, 5])
    assert found
    assert system.of in {each.name for each in adapters.ADAPTERS}
    system.close()


def test_systems_have_names_of_their_own() -> None:
    every = [kind.name for kind in (*adapters.ADAPTERS, *adapters.PEERS)]
    assert len({*every}) == len(every)
    assert not any("," in name for name in every)  # `--systems` is a list with commas


def run(tmp_path: Path, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    code = integrations.main(["--small", "--out", str(tmp_path), *arguments])
    path = tmp_path / "integrations.jsonl"
    return code, [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_in_small_is_recorded_and_shown(
    work: adapters.Work, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows = run(tmp_path, "--systems", "engine,tools")
    assert code == 0
    assert [(row["part"], row["system"]) for row in rows] == [
        (part, system) for system in ("engine", "tools") for part in ("fan-out", "agents")
    ]
    tools = rows[2]
    assert tools["verified"] is True
    assert tools["overhead_low"] <= tools["overhead"] <= tools["overhead_high"]
    assert "overhead" not in rows[0]
    assert all(row["queries_per_s"] > 0 and row["p50_ms"] <= row["p99_ms"] and row["machine"] for row in rows)
    assert rows[1]["agents"] == 8
    assert "over the engine" in capsys.readouterr().out
    peer = {**rows[0], "system": "another store", "ours": False, "compared_with": "tools", "queries_per_s": 1.0}
    text = "\n".join(report_integrations.integrations(Recorded([], {"integrations": [*rows, peer]})))
    assert "| fanrank for tools (reads JSON and writes JSON) |" in text
    assert f"| {tools['calls']} |" in text
    assert "another store" in text
    assert "differed" not in text


def test_no_rows_name_the_command() -> None:
    assert report_integrations.integrations(Recorded([], {})) == ["No row yet: `make integrations`."]


def test_a_wrong_answer_is_seen(work: adapters.Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = adapters.Tools.ask

    def swapped(self: adapters.Tools, questions: Sequence[int]) -> Any:
        value = json.loads(ask(self, questions))
        value["answers"][0]["ids"].reverse()
        return json.dumps(value)

    monkeypatch.setattr(adapters.Tools, "ask", swapped)
    code, rows = run(tmp_path, "--systems", "tools", "--parts", "fan-out")
    assert code == 1
    assert [row["verified"] for row in rows] == [False]
    text = "\n".join(report_integrations.integrations(Recorded([], {"integrations": rows})))
    assert "Answers differed from the plain engine's: tools." in text


def test_an_awaited_answer_is_compared_too(work: adapters.Work, monkeypatch: pytest.MonkeyPatch) -> None:
    async def other(self: adapters.PlainEngine, questions: Sequence[int]) -> Any:
        return self.plain([*questions][::-1])

    monkeypatch.setattr(adapters.PlainEngine, "wait", other)
    assert not integrations.is_right(adapters.PlainEngine(work), 7)


def test_what_is_not_installed_is_left_out_by_name(
    work: adapters.Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "fanrank.integrations.tools", None)
    code, rows = run(tmp_path, "--systems", "engine,tools", "--parts", "fan-out")
    assert code == 0
    assert [row["system"] for row in rows] == ["engine"]
    assert "left out: tools: " in capsys.readouterr().out


def test_an_unknown_system_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        integrations.main(["--systems", "elastic"])
    assert "no elastic; there are: engine, langchain" in capsys.readouterr().err
