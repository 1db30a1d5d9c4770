"""Runs the command line in this process, and writes what it reads."""

import inspect
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click.testing

import fanrank as fr
from fanrank.engine.cli import main as cli

START = (
    # A process that was started in a shell's background ignores interrupts, and so do its children.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from fanrank.engine.cli.start import main; main()"
)
"""A program that runs the command line, and can be interrupted."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(fr.__file__).parents[1])}
"""In it, a process finds the package that this one imports, wherever that is installed from."""
RUNNER_OPTIONS = inspect.signature(click.testing.CliRunner).parameters


def run(*arguments: object, code: int = 0) -> click.testing.Result:
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in RUNNER_OPTIONS else {}  # click before 8.2
    runner = click.testing.CliRunner(**apart)
    result = runner.invoke(cli.main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output + result.stderr
    return result


def run_json(*arguments: object, code: int = 0) -> Any:
    result = run(*arguments, "--json", code=code)
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def fails(*arguments: object) -> str:
    """The one line that a failing command prints."""
    result = run(*arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("fanrank: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removeprefix("fanrank: ").rstrip("\n")


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def save_index(records: Path, path: Path, **options: Any) -> Path:
    """The records of a file as a saved index, which holds no texts."""
    engine = fr.Engine(keep_texts=False, **options)
    engine.add(map(json.loads, records.read_text(encoding="utf-8").splitlines()))
    engine.save(path)
    return path


def write_questions(path: Path, questions: Iterable[fr.evaluation.Labelled]) -> Path:
    """Labelled questions as ``fanrank tune`` reads them."""
    rows = [(one.query.text, one.query.namespace, [*one.relevant]) for one in questions]
    return write(path, [dict(zip(("text", "namespace", "relevant"), row, strict=True)) for row in rows])


def make_beir(root: Path) -> Path:
    """Twelve documents, four judged queries and one that is not, as a dataset of BEIR."""
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
