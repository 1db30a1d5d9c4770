"""Answers as pandas frames and Arrow tables, and memories as Parquet files; tests/carry has what no format changes."""

import io
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from pyarrow import parquet
from support import borders
from support.carry_cases import batches, encoded, engine_at, held, plain

import fanrank as fr
from fanrank.engine.carry.importing import Imported


def test_answers_as_a_frame_and_as_a_table() -> None:
    """Queries without hits have no row; each hit names its namespace."""
    engine = fr.Engine.from_records(
        [
            *(fr.Record("m1", "tea", namespace="a"), fr.Record("m1", "tea tea", namespace="b")),
            *(fr.Record("m2", "tea"), fr.Record("c", "milk")),
        ]
    )
    drink, white = fr.Query("tea", id="drink", namespaces=["a", "b"]), fr.Query("milk coffee", id="white", k=1)
    hits = engine.search([drink, fr.Query("water"), "tea", white], k=3)
    found = [hit for row in hits for hit in row]
    expected = {
        "query": ["drink", "drink", hits.query_ids()[2], "white"],
        "rank": [1, 2, 1, 1],
        "id": ["m1", "m1", "m2", "c"],
        "score": [hit.score for hit in found],
        "namespace": [hit.namespace for hit in found],
    }
    assert sorted(expected["namespace"]) == ["", "", "a", "b"]
    frame, table = hits.to_pandas(), hits.to_arrow()
    assert frame.to_dict("list") == table.to_pydict() == expected
    assert list(frame.columns) == list(expected)
    types = {
        **{name: pyarrow.string() for name in ("query", "id", "namespace")},
        **{"rank": pyarrow.int64(), "score": pyarrow.float64()},
    }
    assert {field.name: field.type for field in table.schema} == types
    assert len(fr.Engine().search([], 3).to_pandas()) == 0
    empty = fr.Engine().search(["x"], 3).to_arrow()
    assert (empty.num_rows, empty.schema) == (0, table.schema)


@settings(max_examples=25, deadline=None)
@given(batches())
def test_every_field_comes_back_bit_by_bit(given_records: list[fr.Record]) -> None:
    with tempfile.TemporaryDirectory() as folder, borders.shrunken(STREAM_ROWS=3, GROUP_RECORDS=4, READ_RECORDS=3):
        root = Path(folder)
        fields = {"text": 1.0, "title": 1.0, "predicate": 2.0}
        with engine_at(root / "one", fields=fields) as one, engine_at(root / "two", fields=fields) as two:
            one.add(given_records)
            assert one.export(root / "r.parquet") == one.export(root / "again.parquet") == len(given_records)
            assert (root / "again.parquet").read_bytes() == (root / "r.parquet").read_bytes()
            with borders.shrunken(BATCH_RECORDS=5):
                assert two.import_records(root / "r.parquet") == Imported(added=len(given_records))
                assert held(two) == encoded(given_records)
                assert two.import_records(root / "r.parquet") == Imported(held=len(given_records))


def test_an_export_needs_no_more_memory_for_more_records(tmp_path: Path) -> None:
    """Of 16 MB of records, no more than a quarter is alive at a time."""
    with engine_at(tmp_path / "one") as one:
        one.add(fr.Record(f"r{number}", "x" * 4_000) for number in range(4_000))
        with borders.shrunken(STREAM_ROWS=50, GROUP_RECORDS=50):
            tracemalloc.start()
            one.export(io.BytesIO(), format="parquet")
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
    assert most < 4_000_000


def test_a_table_has_typed_columns_and_row_groups(tmp_path: Path) -> None:
    with engine_at(tmp_path / "one") as one, borders.shrunken(GROUP_RECORDS=30):
        one.add(plain(100))
        one.export(tmp_path / "t.parquet")
    table = parquet.ParquetFile(tmp_path / "t.parquet")
    kinds = {field.name: str(field.type) for field in table.schema_arrow}
    assert (kinds["time"], kinds["text"], kinds["passages"]) == ("double", "string", "list<element: string>")
    assert (kinds["embedding"], kinds["embedding_rows"]) == ("list<element: float>", "int32")
    assert table.num_row_groups == 4


def test_other_programs_tables_are_read(tmp_path: Path) -> None:
    times = pyarrow.array([1_500_000], pyarrow.timestamp("us", tz="UTC"))
    columns = {"id": ["d2"], "text": ["pot"], "time": times, "colour": ["red"], "payload": [{"a": 1}]}
    parquet.write_table(pyarrow.table({**columns, "embedding": [[0.0, 2.0, 0.0]]}), tmp_path / "other.parquet")
    with engine_at(tmp_path / "one", columns={"colour": "category"}) as one:
        one.import_records(tmp_path / "other.parquet")
        (record,) = one.fetch(["d2"])
    assert record is not None
    assert (record.time, record.extra, record.payload) == (1.5, {"colour": "red"}, {"a": 1})
    assert np.array_equal(record.embedding, [[0.0, 1.0, 0.0]])


@pytest.mark.parametrize("cut", [10, -30])
def test_a_cut_table_is_refused(tmp_path: Path, cut: int) -> None:
    with engine_at(tmp_path / "one") as one:
        one.add(plain(200))
        one.export(tmp_path / "r.parquet")
    (tmp_path / "r.parquet").write_bytes((tmp_path / "r.parquet").read_bytes()[:cut])
    with pytest.raises((fr.errors.StorageError, fr.errors.RecordError), match=r"r\.parquet"):
        fr.Engine().import_records(tmp_path / "r.parquet")


def test_what_is_no_table_or_of_a_newer_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"no table")
    with pytest.raises(fr.errors.RecordError, match=r"^x\.parquet:1: not a Parquet table"):
        fr.Engine().import_records(tmp_path / "x.parquet")
    table = pyarrow.table({"id": ["a"], "text": ["tea"]})
    parquet.write_table(table.replace_schema_metadata({"fanrank": '{"version": 2, "model": null}'}), tmp_path / "x.pq")
    with pytest.raises(fr.errors.NewerFormatError, match="reads up to 1; upgrade fanrank"):
        fr.Engine().import_records(tmp_path / "x.pq")
