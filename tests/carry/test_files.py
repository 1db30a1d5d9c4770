"""Export and import: a file carries all of a record, or names the one that it cannot; equal records, equal answers."""

import base64
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from support import borders
from support.carry_cases import COLUMNS, batches, encoded, engine_at, held, plain

import fanrank as fr
from fanrank.engine.carry.importing import Imported

NAMES = ("records.jsonl", "records.jsonl.gz")


@settings(max_examples=10, deadline=None)
@given(batches())
def test_every_field_comes_back_bit_by_bit(given_records: list[fr.Record]) -> None:
    with tempfile.TemporaryDirectory() as folder, borders.shrunken(STREAM_ROWS=3, GROUP_RECORDS=4, READ_RECORDS=3):
        root = Path(folder)
        fields = {"text": 1.0, "title": 1.0, "predicate": 2.0}
        with engine_at(root / "memory", fields=fields) as engine:
            engine.add(given_records)
            assert held(engine) == encoded(given_records)
            for name in NAMES:
                assert engine.export(root / name) == len(given_records)
            lines = (root / NAMES[0]).read_bytes()
            # Equal records make equal files.
            engine.export(root / NAMES[0])
            assert (root / NAMES[0]).read_bytes() == gzip.decompress((root / NAMES[1]).read_bytes()) == lines
        for name in NAMES:
            with engine_at(root / f"{name}.memory", fields=fields) as engine, borders.shrunken(BATCH_RECORDS=5):
                assert engine.import_records(root / name) == Imported(added=len(given_records))
                assert held(engine) == encoded(given_records)
                assert engine.import_records(root / name) == Imported(held=len(given_records))


def test_a_namespace_a_filter_and_vectors_choose(tmp_path: Path) -> None:
    with engine_at(tmp_path / "one", columns=COLUMNS) as one, engine_at(tmp_path / "two") as two:
        history = plain(200)
        one.add(history)
        with borders.shrunken(FILTER_RECORDS=7):
            chosen = (fr.col("priority") >= 2) & (fr.col("project") != "a")
            count = one.namespace("n").export(tmp_path / "some.jsonl", filter=chosen, vectors=False)
        two.import_records(tmp_path / "some.jsonl")
        wanted = [
            fr.Record(**{**vars(record), "embedding": None})
            for record in history
            if record.namespace == "n" and record.extra.get("priority", -1) >= 2 and record.extra.get("project") != "a"
        ]
        assert 0 < len(wanted) == count
        assert held(two) == encoded(wanted)


def test_an_export_shows_one_moment_while_writes_go_on(tmp_path: Path) -> None:
    """The file holds what was there when the export began, although each record that is written lets a write in."""
    with engine_at(tmp_path / "one") as one:
        one.add(plain(50))
        before = held(one)

        class Slow(io.BytesIO):
            def write(self, data: Any) -> int:
                number = len(one)
                thread = threading.Thread(target=lambda: one.add([fr.Record(f"late {number}", "tea")]))
                thread.start()
                thread.join()
                return super().write(data)

        file = Slow()
        with borders.shrunken(STREAM_ROWS=4):
            one.export(file)
        assert len(one) > 80
        with engine_at(tmp_path / "two") as two:
            two.import_records(io.BytesIO(file.getvalue()))
            assert held(two) == before


def test_an_export_needs_no_more_memory_for_more_records(tmp_path: Path) -> None:
    """Of 4 MB of records, no more than a quarter is alive at a time."""

    class Nowhere(io.RawIOBase):
        def write(self, data: Any) -> int:
            return len(data)

    with engine_at(tmp_path / "one") as one:
        one.add(fr.Record(f"r{number}", "x" * 4_000) for number in range(1_000))
        with borders.shrunken(STREAM_ROWS=20):
            tracemalloc.start()
            one.export(Nowhere(), format="jsonl")
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    assert most < 1_000_000


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_text("old\n")
    with engine_at(tmp_path / "one") as one:
        one.add([fr.Record("a", "tea"), fr.Record("b", "tea")])
        store = one.index.memory.store
        with store._transaction() as writer:
            writer.execute("UPDATE records SET data = '{}' WHERE id = 'b'")
        with pytest.raises(fr.errors.DamagedStoreError, match="'b' was altered"):
            one.export(path)
        assert path.read_text() == "old\n"
        assert sorted(file.name for file in tmp_path.iterdir()) == ["old.jsonl", "one"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
def test_what_is_no_file_is_written_to_as_it_is(tmp_path: Path) -> None:
    engine = fr.Engine.from_records([fr.Record("a", "tea"), fr.Record("b", "key")])
    engine.export(tmp_path / "plain.jsonl")
    wanted = (tmp_path / "plain.jsonl").read_bytes()
    for name in ("pipe.jsonl", "pipe.jsonl.gz"):
        pipe, read = tmp_path / name, list[bytes]()
        os.mkfifo(pipe)
        reader = threading.Thread(target=lambda pipe=pipe, read=read: read.append(pipe.read_bytes()))
        reader.start()
        assert engine.export(pipe) == 2
        reader.join()
        assert (gzip.decompress(read[0]) if name.endswith(".gz") else read[0]) == wanted
        assert pipe.is_fifo()
        pipe.unlink()
    assert engine.export("/dev/null", format="jsonl") == 2
    assert Path("/dev/null").is_char_device()
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(fr.errors.StorageError, match=r"folder.jsonl: cannot be written: it is a directory"):
        engine.export(tmp_path / "folder.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.jsonl", "plain.jsonl"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the system has no /proc")
def test_standard_output_is_written_to(tmp_path: Path) -> None:
    program = (
        "import fanrank as fr; fr.Engine.from_records([fr.Record('a', 'tea')]).export('/dev/stdout', format='jsonl')"
    )
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "FANRANK_BACKEND": "numpy"}
    piped = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert (piped.returncode, json.loads(piped.stdout)["id"]) == (0, "a"), piped.stderr
    with (tmp_path / "all").open("ab") as file:
        file.write(b"before\n")
        file.flush()
        subprocess.run(command, stdout=file, check=True, env=environment)
    assert (tmp_path / "all").read_bytes() == b"before\n" + piped.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["all"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_the_target_of_a_link_is_replaced(tmp_path: Path) -> None:
    engine = fr.Engine.from_records([fr.Record("a", "tea")])
    (tmp_path / "deep").mkdir()
    real, link, chain = tmp_path / "deep" / "real", tmp_path / "link.jsonl", tmp_path / "chain.jsonl.gz"
    link.symlink_to("deep/real")
    chain.symlink_to("link.jsonl")
    for content in (None, "old\n"):  # the first finds no target
        if content is not None:
            real.write_text(content)
        assert engine.export(link) == 1
        assert json.loads(real.read_bytes())["id"] == "a"
    assert engine.export(chain) == 1
    assert json.loads(gzip.decompress(real.read_bytes()))["id"] == "a"
    assert link.is_symlink()
    assert chain.is_symlink()
    link.unlink()
    link.symlink_to("chain.jsonl.gz")
    with pytest.raises(fr.errors.StorageError, match="cannot be written"):
        engine.export(link)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["real"]


def test_what_is_no_binary_file_or_path_says_so(tmp_path: Path) -> None:
    engine = fr.Engine.open(tmp_path / "one")
    (tmp_path / "text").touch()
    with (tmp_path / "text").open() as text, tempfile.NamedTemporaryFile("w") as temporary:
        for file in (io.StringIO(), text, temporary):
            for verb in (engine.export, engine.import_records):
                with pytest.raises(fr.errors.ParameterError, match="is open for text"):
                    verb(file)
    for call in (
        engine.backup, engine.copy_to, fr.Engine.check_backup, lambda path: fr.Engine.restore(path, tmp_path / "x"),
        lambda path: fr.Engine.restore(tmp_path / "one", path),
    ):  # fmt: skip
        with pytest.raises(fr.errors.ParameterError, match="a path must be text or a Path, not int"):
            call(3)
    engine.close()


def test_what_cannot_be_exported_says_so(tmp_path: Path) -> None:
    with pytest.raises(fr.errors.ParameterError, match=r"x.csv: the suffix names no format; say format="):
        fr.Engine().export(tmp_path / "x.csv")
    with pytest.raises(fr.errors.ParameterError, match="unknown format 'csv'; there are: jsonl, parquet"):
        fr.Engine().export(tmp_path / "x.csv", format="csv")
    with pytest.raises(fr.errors.ParameterError, match="Parquet compresses by itself"):
        fr.Engine().export(tmp_path / "x.parquet.gz")
    with pytest.raises(fr.errors.ParameterError, match="a path or an open binary file, not int"):
        fr.Engine().export(7)  # type: ignore[arg-type]
    with engine_at(tmp_path / "one") as one:
        with pytest.raises(fr.errors.QueryError, match="colour"):
            one.export(tmp_path / "x.jsonl", filter={"colour": "red"})
        with pytest.raises(fr.errors.StorageError, match="cannot be written"):
            one.export(tmp_path / "missing" / "x.jsonl")
    with pytest.raises(fr.errors.StorageError, match="closed"):
        one.export(tmp_path / "x.jsonl")
    assert not (tmp_path / "x.jsonl").exists()


def test_the_lines_are_what_the_documentation_says(tmp_path: Path) -> None:
    with engine_at(tmp_path / "one") as one:
        one.add([fr.Record("a", "tea", time=3, payload={"k": [1]}, expires=9.5e9, embedding=[0.6, 0.8, 0.0])])
        file = io.BytesIO()
        one.export(file)
    row = json.loads(file.getvalue())
    rows = np.frombuffer(base64.b64decode(row["embedding"].pop("float16")), "<f2")
    assert rows.tolist() == np.array([0.6, 0.8, 0.0], np.float16).tolist()
    assert row == {
        "id": "a",
        "text": "tea",
        "time": 3.0,
        "expires": 9500000000.0,
        "payload": {"k": [1]},
        "embedding": {"rows": 1, "model": "own 1"},
    }


def test_other_programs_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "beir.jsonl").write_text('\n{"_id": "d1", "text": "tea", "title": "on tea", "embedding": [3, 4, 0]}\n')
    with engine_at(tmp_path / "one") as one:
        one.import_records(tmp_path / "beir.jsonl")
        (record,) = one.fetch(["d1"])
    assert (record.extra, record.embedding.tolist()) == (
        {"title": "on tea"},
        [np.array([0.6, 0.8, 0]).astype("f2").tolist()],
    )


@pytest.mark.parametrize("cut", [10, -30])
def test_a_cut_file_is_refused(tmp_path: Path, cut: int) -> None:
    fr.Engine.from_records(plain(100), encoder="own:3").export(tmp_path / "r.jsonl.gz")
    (tmp_path / "r.jsonl.gz").write_bytes((tmp_path / "r.jsonl.gz").read_bytes()[:cut])
    with pytest.raises((fr.errors.StorageError, fr.errors.RecordError), match=r"r\.jsonl\.gz"):
        fr.Engine(encoder="own:3").import_records(tmp_path / "r.jsonl.gz")


def test_without_pyarrow_the_extra_is_named(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import fanrank as fr\n"
        f"engine = fr.Engine.open({str(tmp_path / 'm')!r})\n"
        f"engine.export({str(tmp_path / 'x.jsonl')!r})\n"
        f"try: engine.export({str(tmp_path / 'x.parquet')!r})\n"
        "except fr.errors.MissingExtraError as error: print(error)\n"
    )
    environment = {**os.environ, "FANRANK_BACKEND": "numpy"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "pyarrow is not installed; run: pip install 'fanrank[tables]'\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m", "x.jsonl"]


NO_JSON: list[dict[Any, Any]] = [
    {"a": {1}},
    {"a": float("nan")},
    {1: 2},
    {"a": b"bytes"},
    {"a": (1, 2)},
    {"a": ["\ud800"]},
]


@pytest.mark.parametrize("value", NO_JSON, ids=repr)
def test_a_payload_is_json_wherever_it_is_kept(tmp_path: Path, value: dict[Any, Any]) -> None:
    messages = []
    stored = fr.Engine.open(tmp_path / "one", backend="numpy")
    for engine in (stored, fr.Engine(backend="numpy"), fr.Engine(backend="numpy", keep_texts=False)):
        with engine, pytest.raises(fr.errors.RecordError) as refused:
            engine.add([fr.Record("good", "tea"), fr.Record("odd", "tea", payload=value)])
        assert refused.value.record_id == "odd"
        assert len(engine) == 0
        messages.append(str(refused.value))
    assert len(set(messages)) == 1
    memory = fr.Engine.from_records([fr.Record("a", "tea", payload={"n": 1})], backend="numpy")
    with pytest.raises(fr.errors.RecordError):
        memory.patch("a", payload=value)
    found = memory.get("a")
    assert found.payload == {"n": 1}


@pytest.mark.parametrize("value", NO_JSON, ids=repr)
def test_an_export_names_the_record_that_no_file_can_hold(tmp_path: Path, value: dict[Any, Any]) -> None:
    engine = fr.Engine.from_records([fr.Record("good", "tea"), fr.Record("odd", "tea", extra=value)], backend="numpy")
    with pytest.raises(fr.errors.RecordError, match="'extra'") as refused:
        engine.export(tmp_path / "x.jsonl")
    assert refused.value.record_id == "odd"
    assert list(tmp_path.iterdir()) == []
