"""What `fanrank search` shows of a hit: its text, its time and its namespace, on one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.commands import fails, run, run_json, write

from fanrank.engine.cli import output
from fanrank.engine.cli import search as command

LONG = "tea " + "word " * 60
RECORDS: list[dict[str, Any]] = [
    {"id": "a", "text": "tea\nand\tjam \x1b[31m", "time": "2026-01-02T03:04:05Z", "role": "user", "payload": {"x": 1}},
    {"id": "b", "text": LONG},
    {"id": "c", "text": "tea", "namespace": "acme", "project": "p"},
]


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    run("add", tmp_path / "memory", write(tmp_path / "records.jsonl", RECORDS))
    return tmp_path / "memory"


def lines_of(*arguments: Any) -> list[str]:
    return run("search", *arguments).stdout.splitlines()


def test_a_line_has_namespace_time_and_text(memory: Path) -> None:
    first, best, long = lines_of(memory, "tea")
    assert first == "? tea"
    assert best.startswith("   1  ")
    # No character of a text can begin another line or steer the terminal.
    assert best.endswith("  a  2026-01-02T03:04:05Z  tea and jam  [31m")
    assert long.endswith(f"  b  {LONG}")
    _, other = lines_of(memory, "tea", "--namespace", "acme")
    assert other.endswith("  c  acme  tea")


def test_a_line_is_cut_to_the_terminal(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lines_of(memory, "tea")[1]
    for width in (20, 200):
        monkeypatch.setattr(command, "terminal_width", lambda width=width: width)
        _, best, long = lines_of(memory, "tea")
        assert (len(long), long[-1]) == (width, "…")
        assert best == (whole if width == 200 else whole[:19] + "…")


@pytest.mark.parametrize(
    ("line", "width", "shown"),
    [
        ("tea", None, "tea"),
        ("tea", 3, "tea"),
        ("teas", 3, "te…"),
        ("", 1, ""),
        ("ab", 1, "…"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("日本語", 3, "日…"),
        ("日本語", 2, "…"),
    ],
)
def test_wide_characters_take_two_columns(line: str, width: int | None, shown: str) -> None:
    assert output.cut_to(line, width) == shown


def test_the_width_is_asked_of_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    assert output.terminal_width() is None
    monkeypatch.setattr(output.sys, "stdout", Terminal())
    monkeypatch.setattr(output.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((77, 9)))
    assert output.terminal_width() == 77


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "1970-01-01T00:00:00Z"),
        (1.9, "1970-01-01T00:00:01Z"),
        (-1.0, "1969-12-31T23:59:59Z"),
        (1e12, "1e+12"),
        (-1e12, "-1e+12"),
    ],
)
def test_a_time_that_no_calendar_has_is_a_number(seconds: float, shown: str) -> None:
    assert output.shown_time(seconds) == shown


def test_json_has_all_of_it(memory: Path) -> None:
    best, long = run_json("search", memory, "tea")["queries"][0]["hits"]
    assert best.pop("score") > long["score"]
    assert best == {
        "id": "a",
        "rank": 1,
        "namespace": "",
        "text": RECORDS[0]["text"],
        "time": 1767323045.0,
        "metadata": {"role": "user"},
        "payload": {"x": 1},
    }
    assert (long["text"], long["time"], long["metadata"], long["payload"]) == (LONG, None, {}, None)
    (other,) = run_json("search", memory, "tea", "--namespace", "acme")["queries"][0]["hits"]
    assert (other["namespace"], other["metadata"]) == ("acme", {"project": "p"})


def test_a_query_without_hits_says_why(memory: Path, tmp_path: Path) -> None:
    assert lines_of(memory, "the", "zebra") == [
        "? the",
        "      no hits: no word of the query is searchable: the analyzer left none",
        "? zebra",
        "      no hits: no record holds a word of the query",
    ]
    stop, unknown, found = run_json("search", memory, "the", "zebra", "tea")["queries"]
    assert stop["note"] == "no word of the query is searchable: the analyzer left none"
    assert unknown["note"] == "no record holds a word of the query"
    assert "note" not in found
    assert (stop["hits"], unknown["hits"]) == ([], [])


def test_a_saved_index_shows_ids_alone(tmp_path: Path) -> None:
    run("index", write(tmp_path / "records.jsonl", RECORDS), tmp_path / "index")
    _, *lines = lines_of(tmp_path / "index", "tea")
    assert [line.split()[2:] for line in lines] == [["a"], ["b"]]
    assert {*run_json("search", tmp_path / "index", "tea")["queries"][0]["hits"][0]} == {
        "id",
        "score",
        "rank",
        "namespace",
    }


def test_a_run_of_several_namespaces_is_refused_where_ids_repeat(memory: Path, tmp_path: Path) -> None:
    run("add", memory, write(tmp_path / "more.jsonl", [{"id": "a", "text": "tea", "namespace": "acme"}]))
    queries = write(tmp_path / "queries.jsonl", [{"text": "tea", "namespaces": ["", "acme"]}])
    path = tmp_path / "run.txt"
    assert "two hits with the id 'a'" in fails("search", memory, "--queries", queries, "--trec", path)
    assert not path.exists()
