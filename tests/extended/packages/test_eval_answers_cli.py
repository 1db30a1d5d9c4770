"""`fanrank eval` with readings, several strategies, and models that answer and judge, served by a local server."""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click.testing
import pytest

from fanrank.engine.cli import main as cli
from fanrank.engine.hybrid.strategy import STRATEGIES

RUNNER_OPTIONS = inspect.signature(click.testing.CliRunner).parameters


def run(*arguments: object, code: int = 0) -> click.testing.Result:
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in RUNNER_OPTIONS else {}  # click before 8.2
    result = click.testing.CliRunner(**apart).invoke(cli.main, ["eval", *(str(each) for each in arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output + result.stderr
    return result


def read_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def fails(*arguments: object) -> str:
    """The one line that a failing command prints."""
    result = run(*arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("fanrank: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def turn(role: str, content: str, gold: bool = False) -> dict[str, Any]:
    return {"role": role, "content": content, "has_answer": gold}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Four questions of two types, one of them an abstention question, each with three sessions."""
    sessions = [
        [turn("user", "I adopted a puppy called Rex.", True), turn("assistant", "Lovely.")],
        [turn("user", "The marathon in Berlin was rainy.", True)],
        [turn("assistant", "Here is a recipe of soup.")],
    ]
    entries = [
        {
            "question_id": name,
            "question_type": kind,
            "question": question,
            "answer": answer,
            "answer_session_ids": [gold],
            "haystack_session_ids": ["s1", "s2", "s3"],
            "haystack_sessions": sessions,
        }
        for name, kind, question, answer, gold in (
            ("q1", "user", "How is the puppy called?", "Rex", "s1"),
            ("q2", "user", "Where was the rainy marathon?", "Berlin", "s2"),
            ("q3", "other", "Which marathon?", "Berlin", "s2"),
            ("q4_abs", "other", "Which recipe of cake?", "Not told.", "s3"),
        )
    ]
    path = tmp_path / "longmemeval.json"
    path.write_text(json.dumps(entries))
    return path


class Handler(BaseHTTPRequestHandler):
    """Answers with the words of the first record, and judges yes where they hold the reference answer."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][1]["content"]
        if "Reference answer: " in prompt:
            gold, answer = prompt.split("Reference answer: ")[1].split("\n\nAnswer to grade: ")
            text = "Yes." if gold in answer else "No."
        else:
            text = prompt.split("\n\n")[0]
        content = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send_response(200 if body["model"] != "lost" else 404)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_address[1]}/v1"
        serving.shutdown()
        thread.join(30)


def test_readings_reach_the_loader(file: Path) -> None:
    assert read_json("longmemeval", file)["n"] == 3
    assert read_json("longmemeval", file, "--preset", "agentir")["n"] == 4
    found = read_json("longmemeval", file, "--abstention", "--unit", "turn", "--text", "user", "--latency", 0)
    assert found["n"] == 4
    assert "latency" not in found
    reading = {"abstention": True, "unit": "turn", "text": "user"}
    assert {name: found["parameters"][name] for name in reading} == reading
    assert read_json("longmemeval", file, "--whole")["parameters"]["passages"] is False
    assert "longmemeval is not read with 'captions'; locomo have it" in fails("longmemeval", file, "--captions")
    assert "longmemeval is not read with 'strict'; beir have it" in fails("longmemeval", file, "--lost-documents")
    assert "unknown text 'speakers'; there are: user, roles, turns" in fails("longmemeval", file, "--text", "speakers")


def test_latency_and_answers_in_context_are_printed(file: Path) -> None:
    found = read_json("longmemeval", file, "--preset", "agentir", "--latency", 2)
    assert found["latency"]["n"] == 2
    assert found["latency"]["p50_ms"] <= found["latency"]["p95_ms"] <= found["latency"]["p99_ms"]
    assert found["answers"]["metrics"]["answer_substring@5"] == 3 / 4
    lines = run("longmemeval", file, "--preset", "agentir").stdout.splitlines()
    assert any(line.startswith("  warm: mean ") and "queries/s alone" in line for line in lines)
    assert "  answer_substring@5     0.7500" in lines
    assert any(line.startswith("  other (n = 2): answer_substring@5 0.5000") for line in lines)


def test_models_answer_and_judge(file: Path, url: str) -> None:
    how = ("longmemeval", file, "--preset", "opsem", "--answer-with", url, "--model", "small", "--answer-depth", 1)
    found = read_json(*how, "--judge", "large", "--abstention")
    assert (found["judged"]["n"], found["judged"]["strict"]) == (4, 0.75)
    assert [each["judgement"] for each in found["judged"]["answers"]] == ["yes", "yes", "yes", "no"]
    assert found["judged"]["per_category"]["user"]["lenient"] == 1.0
    sampled = read_json(*how, "--per-type", 1, "--answer-seed", 3)
    assert sampled["judged"]["n"] == 2
    printed = run(*how, "--abstention")
    assert "  judged (n = 4): strict 0.7500, lenient 0.7500" in printed.stdout
    assert "answered and judged 4 of 4 questions" in printed.stderr


def test_slips_with_models_are_named(file: Path, url: str) -> None:
    how = ("longmemeval", file, "--latency", 0)
    assert "--per-type is for answers by a model; give its server with --answer-with" in fails(*how, "--per-type", 3)
    assert "give --model" in fails(*how, "--answer-with", url)
    assert "must begin with http" in fails(*how, "--answer-with", "host", "--model", "m")
    assert "answers 404" in fails(*how, "--answer-with", url, "--model", "lost")
    several = ("--strategy", "bm25", "--strategy", "dense")
    assert "--answer-with is for one" in fails(*how, *several, "--answer-with", url, "--model", "m")


def test_several_strategies_make_a_table(file: Path) -> None:
    other = json.dumps(replace(STRATEGIES["bm25"], name="short", depth=1).to_dict())
    found = read_json("longmemeval", file, "--strategy", "bm25", "--strategy", other)
    assert list(found["systems"]) == ["bm25", "short"]
    assert [(row["first"], row["second"]) for row in found["differences"]] == [("short", "bm25")]
    assert found["metric"] == "hit@5"
    assert found["latency"]["short"]["n"] == 3
    printed = run("longmemeval", file, "--strategy", "bm25", "--strategy", other).stdout
    assert "hit@5" in printed
    assert "ms a query, warm" in printed
    alone = read_json("longmemeval", file, "--strategy", "bm25")
    assert found["systems"]["bm25"] == alone["metrics"]
    assert "each of another name" in fails("longmemeval", file, "--strategy", "bm25", "--strategy", "bm25")
    assert "for one strategy" in fails("longmemeval", file, "--strategy", "bm25", "--strategy", other, "--tau", 0.1)
