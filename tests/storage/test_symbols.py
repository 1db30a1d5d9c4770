"""Rows in symbols and packed arrays come back as they were, whoever reads them; what was altered is named."""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import borders

import fanrank as fr
from fanrank.engine.index.columns import Ids, Strings, hashes_of, stable_hash
from fanrank.engine.records.entities import Relation
from fanrank.engine.settings import compiled_loops
from fanrank.engine.storage import failpoints
from fanrank.engine.storage.index_arrays import BITS, packed, unpacked
from fanrank.engine.storage.record_store import Change, RecordStore
from fanrank.engine.storage.record_stream import stream_stored
from fanrank.engine.storage.row_codec import RECORDS, encode

needs_loops = pytest.mark.skipif(compiled_loops() is None, reason="rows are packed by compiled loops")
ODD = ["", '\0\x1f"\\', "漢字 漢字 漢字", "é" * 300, "🦘 quokka", "\uffff", "the rain in Spain stays mainly " * 200]


def records_of(first: int, count: int) -> list[fr.Record]:
    """Records that say much the same, and some that say anything but."""
    texts = [ODD[n % 20] if n % 20 < len(ODD) else f"I would like reservation number {n}" for n in range(count)]
    return [fr.Record(f"m{n}", text, payload={"n": n}) for n, text in enumerate(texts, first)]


def kinds_in(path: Path) -> dict[str, int]:
    """How many rows there are of each type."""
    raw = sqlite3.connect(path / RECORDS)
    found = dict(raw.execute("SELECT typeof(data), count(*) FROM records GROUP BY 1").fetchall())
    raw.close()
    return found


@needs_loops
def test_rows_come_back_whoever_packs_and_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, LEARN_ROWS=60)
    given = records_of(0, 900)
    with fr.Engine.open(tmp_path, backend="numpy") as engine:
        for start, end in ((0, 50), (50, 100), (100, 900)):
            engine.add(given[start:end])
        store = engine.index.memory.store
        assert store is not None
        assert [hit for hit, _ in store.keyword_scan("", ["QUOKKA"], 2)] == ["m884", "m864"]
    assert kinds_in(tmp_path)["blob"] > kinds_in(tmp_path)["text"] > 50
    ids = [record.id for record in given]
    for loops in (True, False):
        if not loops:
            monkeypatch.setenv("FANRANK_BACKEND", "numpy")
        with fr.Engine.open(tmp_path, read_only=True, backend="numpy") as reader:
            assert reader.fetch(ids) == given
        with fr.Engine.open(tmp_path, backend="numpy") as engine:
            engine.update(given[850:])
            assert engine.index.memory.store is not None
            assert list(stream_stored(engine.index.memory.store)) == given
    assert kinds_in(tmp_path)["text"] > 100  # Without loops they are written as they are.


@needs_loops
@pytest.mark.parametrize("loops", [True, False])
def test_a_vacuum_leaves_no_runs_of_deleted_records(
    loops: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink(monkeypatch, LEARN_ROWS=10, REPLAY_CHUNK=7)
    with fr.Engine.open(tmp_path, backend="numpy") as engine:
        engine.add([fr.Record(f"s{n}", "zyxwvuts " * 9) for n in range(40)])
        engine.add(records_of(0, 60))
        engine.delete([f"s{n}" for n in range(40)])
    assert b"zyxwvuts" in (tmp_path / RECORDS).read_bytes()
    if not loops:
        monkeypatch.setenv("FANRANK_BACKEND", "numpy")
    with fr.Engine.open(tmp_path, backend="numpy") as engine:
        engine.vacuum()
        assert engine.fetch([f"m{n}" for n in range(60)]) == records_of(0, 60)
        if not loops:
            monkeypatch.setattr("fanrank.engine.storage.record_store.learned", None)  # No write reads rows in vain.
        engine.add(records_of(60, 60))
    with fr.Engine.open(tmp_path, backend="numpy") as engine:
        assert engine.fetch([f"m{n}" for n in range(120)]) == records_of(0, 60) + records_of(60, 60)
    assert b"zyx" not in (tmp_path / RECORDS).read_bytes()
    assert (kinds_in(tmp_path).get("blob", 0) > 60) is loops


@needs_loops
def test_a_table_goes_with_the_batch_that_brought_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, LEARN_ROWS=5)
    with fr.Engine.open(tmp_path, backend="numpy") as engine:

        def fail() -> None:
            raise OSError(28, "No space left on device")

        failpoints.arm("write.commit", 1, fail)
        with pytest.raises(fr.errors.StorageError):
            engine.add(records_of(0, 20))
        failpoints.disarm()
        few = [fr.Record(f"a{n}", f"I would like reservation number {n}") for n in range(2)]
        engine.add(few)
        assert engine.fetch(["a0", "a1"]) == few


@needs_loops
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE meta SET value = substr(value, 1, length(value) - 1) || x'00' WHERE key = 'symbols/1'",
        "DELETE FROM meta WHERE key = 'symbols/1'",
        "UPDATE records SET data = substr(data, 1, length(data) - 1) WHERE id = 'm15'",
        "UPDATE records SET data = data || x'ff' WHERE id = 'm15'",
        "UPDATE records SET data = x'' WHERE id = 'm15'",
        "UPDATE records SET data = x'63' || substr(data, 2) WHERE id = 'm15'",
    ],
)
def test_what_was_altered_is_named(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, LEARN_ROWS=5)
    with fr.Engine.open(tmp_path, backend="numpy") as engine:
        engine.add(records_of(0, 30))
    raw = sqlite3.connect(tmp_path / RECORDS)
    raw.execute(change)
    raw.commit()
    raw.close()
    for loops in (True, False):
        if not loops:
            monkeypatch.setenv("FANRANK_BACKEND", "numpy")
        with fr.Engine.open(tmp_path, backend="numpy") as engine:
            with pytest.raises(fr.errors.DamagedStoreError, match="m15"):
                engine.fetch(["m15"])
            assert engine.add([fr.Record(f"after {loops}", "tea")]) == 1


def test_a_store_has_the_format_of_its_newest_row(tmp_path: Path) -> None:
    with RecordStore.open(tmp_path) as store:
        raw = sqlite3.connect(tmp_path / RECORDS)
        edge = Relation("ana", "ben", "knows", valid_to=9.0)
        parts: list[dict[str, Any]] = [{"weights": {"x": 1.0}}, {"entities": {}}, {"relations": [edge]}, {}]
        for number, (part, version) in enumerate(zip([*parts, {"payload": {}}, {}], (2, 3, 3, 3, 4, 4), strict=True)):
            record = fr.Record(f"{number}", "a", **part)
            store.write([[Change("", added=[encode(record)])]])
            assert raw.execute("PRAGMA user_version").fetchone() == (version,)
            assert store.fetch("", [record.id]) == [record]
        raw.close()


def test_arrays_come_back_with_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """By compiled loops and by numpy, whichever packed them: both make the same bytes."""
    borders.shrink(monkeypatch, PACKED_LEAST=1, _BLOCKS_AT_ONCE=2)
    rng = np.random.default_rng(7)
    for dtype in (np.uint16, np.int16, np.int32, np.uint32, np.int64):
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        held = 0
        for top in (1, 6, 200, 300, 70_000, 1 << 31, most):
            values = rng.integers(0, min(top, most), size=(2, 501), dtype=dtype, endpoint=True)
            shapes = values, np.sort(values), np.where(values % 7, values, least), values - dtype(3)
            for array in (*shapes, np.sort(values[0] // 2) + least, values[:, :0], values[:, ::2]):
                data = packed(array)
                with monkeypatch.context() as patch:
                    patch.setenv("FANRANK_BACKEND", "numpy")
                    same = packed(array)
                if data is None or same is None:
                    assert data is same
                    continue
                assert data.tobytes() == same.tobytes()
                assert len(data) < array.nbytes
                for backend in ("", "numpy"):
                    with monkeypatch.context() as patch:
                        patch.setenv("FANRANK_BACKEND", backend)
                        back = unpacked(data, BITS, array.dtype.str, list(array.shape))
                    assert back.dtype == array.dtype
                    assert np.array_equal(back, array)
                held += 1
        assert held > 5, dtype
    assert all(
        packed(array) is None
        for array in (np.zeros(9), np.zeros(9, bool), np.zeros(99, np.uint8), np.zeros(99, np.uint64))
    )


@pytest.mark.parametrize("backend", ["", "numpy"])
def test_bits_that_do_not_fit_are_refused(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, PACKED_LEAST=1)
    monkeypatch.setenv("FANRANK_BACKEND", backend)
    data = packed(np.arange(100, dtype=np.int32) ** 2 % 91)
    assert data is not None
    head = 9  # the least number in eight bytes, then the bits of a step, then the widths of four blocks
    for wrong in (data[:-1], data[: head - 1], np.append(data, np.uint8(0))):
        with pytest.raises(ValueError, match=r"fit together|at most 32|larger dtype"):
            unpacked(wrong, BITS, "<i4", [100])
    for place, value in ((head - 5, 1), (head - 1, 33), (head, 33), (head + 3, 0)):
        wrong = data.copy()
        wrong[place] = value
        with pytest.raises(ValueError, match=r"fit together|at most 32|larger dtype"):
            unpacked(wrong, BITS, "<i4", [100])
    with pytest.raises(ValueError, match=r"fit together|at most 32|larger dtype"):
        unpacked(data, BITS, "<i4", [129])


def test_compiled_hashes_of_ids_are_those_of_python() -> None:
    ids = ["a" * size for size in range(260)] + ODD
    expected = [stable_hash(each) for each in ids]
    assert hashes_of(ids).tolist() == expected
    column = Ids(Strings.of(ids), None)
    assert column.by_position().tolist() == expected
    assert (column.hashes.tolist(), column.by_position().tolist()) == (sorted(expected), expected)
    assert hashes_of(["\ud800"]).tolist() == [stable_hash("\ud800")]
