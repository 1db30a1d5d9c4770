"""After a record is forgotten, no file says what it said: looked for here byte by byte, raw and decoded."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.memories import make_memory
from support.serving import served

import fanrank as fr
from fanrank.engine.cli.main import main
from fanrank.engine.encoders.cache import CachedEncoder
from fanrank.engine.storage import record_store
from fanrank.engine.storage.row_codec import UNPACKED
from fanrank.engine.storage.sqlite import open_reader
from fanrank.engine.trust.leftovers import Needles, strings_in, symbols_in

SECRET = "The vault code of Zanzibar is quixotically kryptonite-77431."
ORDINARY = "Note of the morning: the code of the deploy is green, and tea is on the table."
TELLING = ("zanzibar", "quixotically", "kryptonit", "77431", "vault code", "obsidian", "tresor/geheim")
ROW = np.random.default_rng(5).normal(size=16)


def secret(id: str = "secret", **fields: Any) -> fr.Record:
    about: Any = {"extra": {"project": "obsidian"}, "payload": {"where": "tresor/geheim"}, "session": 'a "zanzibar"'}
    return fr.Record(id, SECRET, embedding=ROW, **about, **fields)


def others(count: int, namespace: str = "") -> list[fr.Record]:
    """Records that share words with the secret, and none of those that tell it."""
    rows = np.random.default_rng(6).normal(size=(count, 16))
    return [fr.Record(f"o{n}", f"{n} {ORDINARY}", namespace, embedding=rows[n]) for n in range(count)]


def telling_files(folder: Path, row: bytes = b"") -> list[str]:
    """The files that tell it: their bytes in any case, the rows of their databases decoded, the strings of indexes."""
    found = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        data = path.read_bytes()
        said = [data.lower()]
        if path.name == "records.sqlite":
            with closing(open_reader(path)) as reader:
                tables = [
                    name.decode() for (name,) in reader.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                ]
                said += [repr(reader.execute(f"SELECT * FROM {name}").fetchall()).lower().encode() for name in tables]
                said += [bytes(one).lower() for (one,) in reader.execute(f"SELECT {UNPACKED} FROM records")]
            runs = [run for run in symbols_in(path) if len(run) > 5 and run not in ORDINARY.encode()]
            found += [f"symbols of {path.name}" for run in runs if run in SECRET.encode()]
            said += [string.encode() for _, string in strings_in(path)]
        if any(word.encode() in one for one in said for word in TELLING) or (row and row in data):
            found.append(path.name)
    return found


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(record_store, "LEARN_ROWS", 64)  # so that rows are packed, and a table of symbols is learned
    return tmp_path_factory.mktemp("memories")


def opened(kind: str, folder: Path) -> Any:
    options: Any = {"encoder": fr.OwnVectors(16), "columns": {"project": "category"}}
    if kind == "engine":
        return fr.Engine.open(folder, **options)
    return fr.ShardedEngine.open(folder, shards=2, transport="local", **options)


@pytest.mark.parametrize("kind", ["engine", "shards"])
def test_after_a_secret_is_forgotten_no_file_tells_it(kind: str, folder: Path) -> None:
    memory, row = opened(kind, folder / "memory"), secret().embedding.tobytes()
    memory.add([*others(100), secret(), *others(30, "ana"), *(secret(f"s{n}", namespace="often") for n in range(90))])
    memory.flush()
    memory.update([secret(time=3.0)])
    memory.backup(folder / "backup")
    memory.export(folder / "all.jsonl")
    assert telling_files(folder / "memory", row)
    shown = memory.forget("quixotically zanzibar", k=3, preview=True)
    assert [(one["id"], one["score"] > 0, one["text"]) for one in shown["records"]] == [("secret", True, SECRET)]
    assert memory.get("secret") is not None

    certificate = memory.forget(filter={"project": "obsidian"}, namespace="often")
    assert (certificate["forgotten"], certificate["passed"]) == (90, True)  # what is left is the other record's own
    certificate = memory.forget("quixotically zanzibar", k=3)
    assert (certificate["forgotten"], certificate["ids"]) == (1, ["secret"])
    assert (certificate["left"], certificate["strings"], certificate["passed"]) == ([], [], True)
    assert certificate["pieces"] > certificate["shared"] > 0
    assert [Path(one["path"]).name for one in certificate["copies"] if one["holds"]] == ["backup", "all.jsonl"]
    assert telling_files(folder / "memory", row) == []
    assert memory.search(["vault zanzibar kryptonite"]).counts[0] == 0
    assert len(memory) == 130
    assert memory.audit()["passed"]
    memory.close()
    assert telling_files(folder / "memory", row) == []


def test_what_stays_in_a_file_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = opened("engine", folder / "memory")
    memory.add([*others(100), secret()])
    monkeypatch.setattr(fr.Engine, "vacuum", lambda self: 0)  # deleted, and nothing more
    (folder / "memory" / "debug.log").write_text(f"asked: {SECRET}")
    certificate = memory.forget(ids=["secret"])
    named = {Path(one["file"]).name for one in certificate["left"]}
    assert named >= {"debug.log"}
    assert not certificate["passed"]
    monkeypatch.undo()
    (folder / "memory" / "debug.log").unlink()
    memory.add([secret()])
    memory.flush()
    monkeypatch.setattr(type(memory.index.memory), "renumber", lambda self, **_: False)  # the vocabulary stays
    certificate = memory.forget(filter={"project": "obsidian"})
    assert {"kind": "project", "string": "obsidian"} in certificate["strings"]
    assert "zanzibar" in {one["string"] for one in certificate["strings"]}
    assert not certificate["passed"]
    memory.close()


def test_needles_are_found_wherever_they_begin_and_across_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanrank.engine.trust.leftovers.READ_AT_ONCE", 64)
    needles, path = Needles(), tmp_path / "file"
    pieces = [bytes(np.random.default_rng(n).integers(0, 256, 8 + n).tolist()) for n in range(20)]
    for piece in pieces:
        needles.add(piece)
    for start in range(0, 140, 7):
        path.write_bytes(b"x" * start + pieces[start // 7] + b"y" * (start % 9))
        assert needles.in_file(path) == needles.inside(path.read_bytes()) == {pieces[start // 7]}
    needles.add(b"        ")
    assert needles.inside(b" " * 40) == needles.in_file(tmp_path / "removed meanwhile") == set()


def test_a_cache_of_embeddings_forgets_too_and_a_filter_is_forgotten_by_the_command(folder: Path) -> None:
    class Counting:
        name, version, dimension = "counting", "1", 4

        def documents(self, texts: Any, *, progress: bool = False) -> Any:
            return np.array([[len(text), 1, 2, text.count("a")] for text in texts], dtype=np.float32)

        queries = documents

    cache = CachedEncoder(Counting(), folder / "cache.sqlite")
    memory = fr.Engine.open(folder / "memory", encoder=cache)
    memory.add([{"id": "a", "text": SECRET, "role": "user"}, {"id": "b", "text": "tea", "role": "tool"}])
    assert len(cache) == 2
    with served(memory) as url, fr.Client(url) as client:
        with pytest.raises(fr.errors.UnknownIdError):
            client.forget(ids=["a", "none"])
        assert client.forget(ids=["a"])["passed"]
    assert len(cache) == 1
    for wrong in ({}, {"query": "x", "ids": ["a"]}, {"ids": ["a"], "filter": {"role": "user"}}):
        with pytest.raises(fr.errors.QueryError, match="say what to forget"):
            memory.forget(**wrong)
    memory.close()
    command = ["forget", str(folder / "memory"), "--filter", "role=tool", "--json"]
    assert json.loads(CliRunner().invoke(main, [*command, "--preview"]).output)["forget"]["count"] == 1
    done = CliRunner().invoke(main, command)
    assert (done.exit_code, json.loads(done.output)["forget"]["passed"]) == (0, True)


def test_a_memory_without_files_forgets_too_and_a_query_takes_a_filter() -> None:
    memory = make_memory("engine")
    memory.add([{"id": "a", "text": SECRET, "role": "user"}, {"id": "b", "text": SECRET, "role": "tool"}])
    shown = memory.forget("zanzibar", filter={"role": "tool"}, preview=True)
    assert [one["id"] for one in shown["records"]] == ["b"]
    assert memory.forget("zanzibar", k=1)["ids"] == ["a"]
    assert memory.count() == 1
