"""`fanrank list`, `fanrank count` and `fanrank delete --where`."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import fails, run, run_json, save_index, write

import fanrank as fr
from fanrank.engine.cli.list import as_line

RELATION = {"source": "x", "target": "y", "kind": "k"}
ROWS: list[dict[str, Any]] = [
    {"id": "a", "text": "tea\nwith   milk", "role": "user", "time": 86400, "payload": {"n": 1}},
    {"id": "b", "text": "snow", "role": "tool"},
    {"id": "c", "text": "rain " * 60, "role": "user", "time": 0, "relations": [RELATION], "payload": {"n": "2"}},
    {"id": "a", "text": "tea of bob", "namespace": "bob"},
]


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    run("add", tmp_path / "memory", write(tmp_path / "records.jsonl", ROWS))
    return tmp_path / "memory"


def lines(*arguments: object) -> list[str]:
    return run("list", *arguments).stdout.splitlines()


def objects(*arguments: object) -> tuple[list[dict[str, Any]], str | None]:
    """The records of a listing as JSON, and its cursor."""
    *records, last = map(json.loads, lines(*arguments, "--json"))
    assert list(last) == ["cursor"]
    return records, last["cursor"]


def test_a_line_a_record(memory: Path) -> None:
    assert lines(memory) == [
        f"{'a':20}  1970-01-02T00:00:00Z  tea with milk",
        f"{'b':20}  {'-':20}  snow",
        f"{'c':20}  1970-01-01T00:00:00Z  {' '.join(['rain'] * 60)}",
    ]
    assert lines(memory, "--all", "--order", "id")[:2] == [
        f"{'a':20}  1970-01-02T00:00:00Z  -  tea with milk",
        f"{'a':20}  {'-':20}  bob  tea of bob",
    ]
    assert lines(memory, "--namespace", "bob") == [f"{'a':20}  {'-':20}  tea of bob"]
    assert lines(memory, "--namespace", "nobody") == []


def test_a_filter_may_name_a_key_of_the_payload(memory: Path) -> None:
    for condition, other, found in (('{"n": 1}', "n!=1", "a"), ("n=1", "n!=1.0", "a"), ("n=2", "n!=2", "c")):
        assert run_json("count", memory, "--filter", condition)["count"] == 1
        assert run_json("count", memory, "--filter", other)["count"] == 2
        assert run_json("search", memory, "tea rain", "--filter", condition)["queries"][0]["hits"][0]["id"] == found


def test_records_as_json_are_whole(memory: Path) -> None:
    records, cursor = objects(memory, "--all")
    assert cursor is None
    again = [fr.Record.from_dict(record) for record in records]
    assert again == [fr.Record.from_dict(row) for row in ROWS]
    assert records[1] == {"id": "b", "text": "snow", "role": "tool"}


def test_orders_filters_and_pages(memory: Path) -> None:
    assert [record["id"] for record in objects(memory, "--order", "time")[0]] == ["c", "a", "b"]
    assert [record["id"] for record in objects(memory, "--order", "time", "--reverse")[0]] == ["a", "c", "b"]
    assert [record["id"] for record in objects(memory, "--filter", "role=user", "--reverse")[0]] == ["c", "a"]
    assert [record["id"] for record in objects(memory, "--filter", '{"time": {">": 5}}')[0]] == ["a"]
    first, cursor = objects(memory, "--limit", "2")
    assert cursor is not None
    second, end = objects(memory, "--limit", "2", "--after", cursor)
    assert ([record["id"] for record in first + second], end) == (["a", "b", "c"], None)
    shown = run("list", memory, "--limit", "2")
    assert shown.stderr == f"more: --after {cursor}\n"
    assert run("list", memory, "--limit", "3").stderr == ""


def test_counts(memory: Path) -> None:
    assert run("count", memory).stdout == "3\n"
    assert run_json("count", memory, "--all") == {"path": str(memory), "count": 4}
    assert run_json("count", memory, "--filter", "role=user")["count"] == 2
    assert run("count", memory, "--by", "role", "--all").stdout.splitlines() == [
        f"{2:>12}  user",
        f"{1:>12}  tool",
        f"{1:>12}  -",
    ]
    assert run_json("count", memory, "--by", "time") == {
        "path": str(memory),
        "column": "time",
        "counts": [{"value": value, "count": 1} for value in (0.0, 86400.0, None)],
    }
    assert run("count", memory, "--namespace", "nobody", "--by", "role").stdout == "no records\n"


def test_a_saved_index_is_counted_but_not_listed(tmp_path: Path, memory: Path) -> None:
    save_index(tmp_path / "records.jsonl", tmp_path / "index")
    assert run_json("count", tmp_path / "index")["count"] == 3
    assert "a saved index, which keeps no records" in fails("list", tmp_path / "index")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--after", "tea"], "after: 'tea' is no cursor"),
        (["list", "--filter", "colour=red"], "no column 'colour'"),
        (["list", "--filter", "{"], "not JSON"),
        (["count", "--by", "colour"], "no column 'colour' to count by"),
        (["delete"], "either IDS or --where"),
        (["delete", "--where", "role=user", "a"], "either IDS or --where"),
        (["delete", "--where", "{}"], "--where says nothing"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(memory: Path, arguments: list[str], message: str) -> None:
    verb, *rest = arguments
    assert message in fails(verb, memory, *rest)
    assert run_json("count", memory)["count"] == 3


def test_lines_are_cut_to_a_terminal() -> None:
    record = fr.Record("c", "rain " * 60, "bob", time=0.0)
    assert as_line(record, False, 60) == f"{'c':20}  1970-01-01T00:00:00Z  rain rain rain …"
    assert len(as_line(record, True, 60)) == 60
    assert as_line(fr.Record("a", "tea"), True, 60) == f"{'a':20}  {'-':20}  -  tea"
