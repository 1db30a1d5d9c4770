"""The commands that carry a memory: export, import, copy, columns; and add from standard input."""

import json
from pathlib import Path

import click.testing
import pytest
from support.carry_cases import COLUMNS, encoded, held, plain
from support.commands import fails, run, run_json, write

import fanrank as fr
from fanrank.engine.cli import main as cli

LINES = '{"id": "a", "text": "tea time", "project": "x", "n": 1}\n{"id": "b", "text": "tea pot", "project": "y"}\n'


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    with fr.Engine.open(tmp_path / "memory", encoder="own:3", columns={"project": "category"}) as engine:
        engine.add(plain(50))
    return tmp_path / "memory"


def piped(text: str, *arguments: object) -> click.testing.Result:
    return click.testing.CliRunner().invoke(cli.main, [str(argument) for argument in arguments], input=text)


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz"])
def test_export_and_import(tmp_path: Path, memory: Path, name: str) -> None:
    file, target = tmp_path / name, tmp_path / "target"
    assert run("export", memory, file).stdout == f"50 records exported: {file}\n"
    done = run_json("add", target, file, "--resume", "--encoder", "own:3")
    assert {key: done[key] for key in ("added", "replaced", "held", "documents")} == {
        "added": 50,
        "replaced": 0,
        "held": 0,
        "documents": 50,
    }
    text = "0 records added, 50 there before as they are, 50 there now: "
    assert run("add", target, file, "--resume").stdout == f"{text}{target}\n"
    with fr.Engine.open(target) as engine:
        assert held(engine) == encoded(plain(50))
    assert "id is already taken" in fails("add", target, file)
    assert run_json("add", target, file, "--upsert")["added"] == 50


def test_some_records_are_exported(tmp_path: Path, memory: Path) -> None:
    found = run_json(
        "export", memory, tmp_path / "x.jsonl", "--namespace", "n", "--filter", "project=a", "--no-vectors"
    )
    wanted = [one for one in plain(50) if one.namespace == "n" and one.extra.get("project") == "a"]
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert found["exported"] == len(rows) == len(wanted) > 0
    assert [row["id"] for row in rows] == [one.id for one in wanted]
    assert not any("embedding" in row for row in rows)


def test_standard_input_and_output(tmp_path: Path) -> None:
    added = piped(LINES, "add", tmp_path / "m", "-", "--column", "project:category", "--json")
    assert json.loads(added.stdout)["added"] == 2
    shown = run("export", tmp_path / "m", "-")
    assert [json.loads(line)["id"] for line in shown.stdout.splitlines()] == ["a", "b"]
    assert shown.stderr == "2 records exported\n"
    assert "2 records added" in piped(shown.stdout, "add", tmp_path / "two", "-", "--resume").output
    found = json.loads(run("search", tmp_path / "m", "tea", "--filter", "project=y", "--json").stdout)
    assert '"id": "b"' in json.dumps(found)
    assert '"id": "a"' not in json.dumps(found)
    broken = piped("{\n", "add", tmp_path / "m", "-")
    assert broken.exit_code == 2
    assert ":1: not JSON" in broken.output
    again = piped(LINES, "add", tmp_path / "m", "-")
    assert again.exit_code == 2
    assert "id 'a'" in again.output
    assert piped(LINES, "add", tmp_path / "m", "-", "--upsert").exit_code == 0


def test_columns(tmp_path: Path, memory: Path) -> None:
    assert run_json("columns", memory)["columns"] == {"project": "category"}
    assert run("columns", memory, "--add", "priority:number").stdout.split() == [
        *("project", "category"),
        *("priority", "number"),
    ]
    with fr.Engine.open(memory) as engine:
        assert engine.columns == COLUMNS
    assert run("columns", memory, "--drop", "project", "--drop", "priority").stdout == "no declared columns\n"
    assert "--add takes NAME:KIND, each name once and as category, number or json, not 'x'" in fails(
        "columns", memory, "--add", "x"
    )
    assert "no declared column 'nope'; there are: none" in fails("columns", memory, "--drop", "nope")
    assert "no engine's directory" in fails("columns", tmp_path)
    assert "--column takes NAME:KIND" in fails("add", tmp_path / "new", "-", "--column", "x:text")


def test_copy(tmp_path: Path, memory: Path) -> None:
    copied = run("copy", memory, tmp_path / "copy", "--analyzer", "minimal", "--column", "priority:number")
    assert copied.stdout == f"50 records copied: {tmp_path / 'copy'}\n"
    with fr.Engine.open(tmp_path / "copy") as engine:
        assert engine.analyzer.name == "minimal"
        assert engine.columns == {"priority": "number"}
        assert held(engine) == encoded(plain(50))
    assert "is there already" in fails("copy", memory, tmp_path / "copy")
    assert run_json("copy", memory, tmp_path / "other")["vectors_made"] is False


def test_a_copy_with_another_model_says_that_vectors_are_made_anew(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Model:
        name, version, dimension = "model", "9", 2

        def documents(self, texts: list[str], *, progress: bool = False) -> list[list[float]]:
            return [[1.0, len(text)] for text in texts]

        queries = documents

    monkeypatch.setattr("fanrank.engine.cli.options.open_encoder", lambda name, cache: Model())
    shown = run("copy", memory, tmp_path / "copy", "--encoder", "model").stdout
    assert shown.startswith("50 records copied; vectors made anew by 'model', version '9', 2 dimensions: ")


def test_columns_change_together_or_not_at_all(memory: Path) -> None:
    assert "'project' is to be dropped twice" in fails("columns", memory, "--drop", "project", "--drop", "project")
    assert "must be" in fails("columns", memory, "--drop", "project", "--add", "project:number")
    assert run_json("columns", memory)["columns"] == {"project": "category"}


def test_what_cannot_be_read_makes_no_directory(tmp_path: Path) -> None:
    new, missing = tmp_path / "new", tmp_path / "missing.jsonl"
    for file in (missing, tmp_path):
        assert "cannot be read" in fails("add", new, file)
    for verb, *rest in (("restore", new), ("serve",), ("shards", "--shards", 2)):
        assert "is an address, and this takes a directory" in fails(verb, "http://127.0.0.1:9", *rest)
    for verb, *rest in (("add", __file__), ("search", "tea"), ("serve",)):
        assert "the address of a server is http://127.0.0.1:9, and" in fails(verb, "127.0.0.1:9", *rest)
    assert "--key is for the address of a server" in fails("search", new, "tea", "--key", "k")
    assert [path for path in (new, Path("http:"), Path("127.0.0.1:9")) if path.exists()] == []
    assert "- stands for standard input, and records go to a directory" in piped(LINES, "add", "-", "-").output
    (tmp_path / "records.txt").write_text(LINES)
    assert run_json("add", new, tmp_path / "records.txt")["added"] == 2


def test_messages_name_options(tmp_path: Path, memory: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(LINES)
    run("add", tmp_path / "m", file)
    file.write_text(LINES.replace("tea", "pot"))
    assert "give --upsert to replace it" in fails("add", tmp_path / "m", file, "--resume")
    file.write_text('{"id": "f", "text": "tea", "fields": {"title": "pot"}}\n')
    assert "make the directory with --field NAME=WEIGHT, or keep" in fails("add", tmp_path / "m", file, "--resume")
    run("add", tmp_path / "fields", file, "--field", "title=1")
    message = fails("copy", tmp_path / "fields", tmp_path / "fewer", "--field", "body=1")
    assert message.endswith("keep it with --field NAME=WEIGHT")
    assert "id 'f'" in message


def test_records_that_have_expired_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"id": "a", "text": "tea", "expires": 1}\n')
    assert "1 records added (1 of them have expired already), 0 there now" in run("add", tmp_path / "m", file).stdout
    assert "0 records added, 1 passed over as they have exp" in run("add", tmp_path / "n", file, "--resume").stdout
    assert run_json("add", tmp_path / "n", file, "--resume")["expired"] == 1


def test_filters_take_dates(tmp_path: Path) -> None:
    file, memory = tmp_path / "x.jsonl", tmp_path / "m"
    rows = [("a", "2026-03-01T23:59:59Z"), ("b", "2026-03-02"), ("c", "2026-03-03")]
    run("add", memory, write(file, [{"id": each, "text": "tea", "time": time} for each, time in rows]))
    for moment in ("2026-03-02", "2026-03-02T00:00:00Z", "2026-03-02 01:00+01:00", "1772409600"):
        late = f"time>={moment}"
        for condition, count in ((late, 2), (f"time={moment}", 1), (f"expires<{moment}", 0)):
            assert run_json("count", memory, "--filter", condition)["count"] == count
        assert run("list", memory, "--filter", late).stdout.count("\n") == 2
        found = run_json("search", memory, "tea", "--filter", late)["queries"][0]["hits"]
        assert [hit["id"] for hit in found] == ["b", "c"]
    assert run_json("delete", memory, "--where", late)["removed"] == 2
    assert "'soon' is neither seconds since 1970 nor an ISO 8601 date" in fails("list", memory, "--filter", "time>soon")
