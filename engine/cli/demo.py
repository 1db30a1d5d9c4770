"""`fanrank demo`: searches the docstrings of the standard library, which every machine has."""

from __future__ import annotations

import ast
import os
import statistics
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from ..backends import choose as backends
from ..check.check import engine_answers, lasting, oracle_answers
from ..engine import Engine
from ..errors import ParameterError
from ..records.jsonl import read_records
from ..records.query import Query
from ..records.record import Record
from .options import backend_option, json_option
from .output import print_result

QUESTIONS = (
    "parse command line arguments and print a help message",
    "read rows of a CSV file as dictionaries",
    "wait for the first of several futures to complete",
    "compress a file with gzip",
    "compute a SHA-256 hash of a byte string",
    "walk a directory tree and delete temporary files",
    "send an email with an attachment over SMTP",
    "format a date with the weekday name in the local time zone",
    "find the shortest matching regular expression group",
    "run a subprocess and capture its standard output",
    "keep a heap of the smallest items",
    "connect to an IMAP server and search a mailbox",
    "pickle an object with protocol 5 buffers",
    "convert an IPv6 address to its compressed form",
    "log messages to a rotating file handler",
    "schedule a callback on the event loop after a delay",
    "compare two sequences and show the differences line by line",
    "decode base64 text that has no padding",
    "mock a method and check how it was called",
    "what raises EADDRINUSE errno 98",
)
"""A planner's fan-out: questions that an agent might look up before one step."""

START = 1_767_225_600.0  # 2026-01-01 UTC
SPAN = 180 * 86_400.0
REPEATS = 7
SHOWN = 3


def docstring_records(progress: bool = False) -> list[Record]:
    """Records of the docstrings in this Python's standard library. A module is a session; sessions span 180 days."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(
        file
        for file in root.rglob("*.py")
        if not {"site-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}
        & set(file.relative_to(root).parts)
    )
    records: dict[str, Record] = {}
    for number, file in enumerate(
        tqdm(files, "reading", unit=" files", disable=not (progress and sys.stderr.isatty()))
    ):
        module = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        moment = START + SPAN * number / len(files)
        for offset, (name, kind, text) in enumerate(_docstrings(file, module)):
            record = Record(
                name, text, role="tool", session=module, agent="demo", tool="help", type=kind, time=moment + offset
            )
            records.setdefault(name, record)
    return list(records.values())


def _docstrings(file: Path, module: str) -> Iterator[tuple[str, str, str]]:
    """(dotted name, kind, docstring) of each docstring in a file; a file that is not Python gives nothing."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return
    pending: list[tuple[str, ast.AST]] = [(module, tree)]
    while pending:
        name, node = pending.pop(0)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                kinds = {ast.Module: "module", ast.ClassDef: "class"}
                yield name, kinds.get(type(node), "function"), text
            pending += [
                (f"{name}.{child.name}", child)
                for child in node.body
                if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            ]


def questions_of(records: Sequence[Record], count: int = 20) -> list[Query]:
    """Make questions from records: the first 8 words of `count` evenly spaced records, each in its namespace."""
    count = min(count, len(records))
    chosen = [records[number * len(records) // count] for number in range(count)]
    return [Query(" ".join(record.text.split()[:8]), namespace=record.namespace) for record in chosen]


def run(
    data: str | os.PathLike[str] | None = None, *, backend: str | None = None, progress: bool = False
) -> dict[str, Any]:
    """Run the demo: index the records, search a batch, measure times, and compare with the oracle."""
    records = docstring_records(progress) if data is None else lasting(read_records(data))
    if not records:
        raise ParameterError(f"{data or 'the standard library here'}: holds no records")
    started = time.perf_counter()
    engine = Engine.from_records(records, backend=backend, progress=progress)
    built = time.perf_counter() - started
    batch = [Query(text) for text in QUESTIONS] if data is None else questions_of(records)

    hits = engine.search(batch, 10)
    batch_ms, single_ms = [], []
    for _ in range(REPEATS):
        started = time.perf_counter()
        hits = engine.search(batch, 10)
        batch_ms.append((time.perf_counter() - started) * 1e3)
        started = time.perf_counter()
        for query in batch:
            engine.search([query], 10)
        single_ms.append((time.perf_counter() - started) * 1e3)
    expected = oracle_answers(records, batch, 10, engine.analyzer, engine.bm25, progress=progress)
    differences = sum(a != b for a, b in zip(engine_answers(hits), expected, strict=True))
    text_of = {(record.namespace, record.id): record.text for record in records}
    return {
        "corpus": "the standard library's docstrings" if data is None else str(data),
        "records": len(records),
        "sessions": len({record.session for record in records}),
        "build_seconds": built,
        "stats": engine.stats(),
        "backend": engine.backend.name,
        "backends": [vars(status) for status in backends.statuses()],
        "answers": [
            {
                "question": query.text,
                "hits": [
                    {"id": name, "score": score, "text": _first_line(text_of[query.namespace, name])}
                    for name, score in ranking[:SHOWN]
                ],
            }
            for query, ranking in zip(batch, hits, strict=True)
        ],
        "batch_ms": statistics.median(batch_ms),
        "one_by_one_ms": statistics.median(single_ms),
        "repeats": REPEATS,
        "check": {"queries": len(batch), "differences": differences},
    }


def _first_line(text: str) -> str:
    line = " ".join(text.strip().split("\n\n")[0].split())
    return line if len(line) <= 72 else line[:71] + "…"


def render(result: dict[str, Any]) -> str:
    """The result as text for a person."""
    lines = [
        f"{result['records']:,} records in {result['sessions']:,} sessions from {result['corpus']}, "
        f"indexed in {result['build_seconds']:.2f} s "
        f"({result['stats']['postings']:,} postings, {result['stats']['bytes_per_posting']:.1f} bytes each)",
        "",
    ]
    for answer in result["answers"]:
        lines.append(f"? {answer['question']}")
        lines += [f"  {hit['score']:7.3f}  {hit['id']}: {hit['text']}" for hit in answer["hits"]]
        if not answer["hits"]:
            lines.append("  (no record holds any of these words)")
    lines.append("")
    lines.append(f"served by {result['backend']}")
    for status in result["backends"]:
        lines.append(f"  {status['name']}: {'usable' if status['usable'] else 'not usable'}: {status['reason']}")
    queries = result["check"]["queries"]
    lines.append(
        f"{queries} queries: {result['batch_ms']:.2f} ms as one batch, {result['one_by_one_ms']:.2f} ms one by one "
        f"(median of {result['repeats']})"
    )
    wrong = result["check"]["differences"]
    lines.append(
        f"oracle: all {queries} answers equal, ids, scores and order"
        if not wrong
        else f"oracle: {wrong} of {queries} answers DIFFER"
    )
    return "\n".join(lines)


@click.command()
@click.argument("data", required=False, type=click.Path())
@backend_option
@json_option
def demo(data: str | None, backend: str | None, as_json: bool) -> None:
    """Index the standard library's docstrings, or DATA, ask up to 20 questions as one batch, and check every answer.

    DATA is a file of JSON lines with "id" and "text". Exits 1 if an answer differs from the oracle's, a slow search in
    plain Python.
    """
    result = run(data, backend=backend, progress=True)
    print_result(result, as_json, render(result))
    if result["check"]["differences"]:
        sys.exit(1)
