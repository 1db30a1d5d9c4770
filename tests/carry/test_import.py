"""Imports: batches that are durable, errors that name a line and what was imported, and runs that go on."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import borders
from support.carry_cases import engine_at, held

import fanrank as fr
from fanrank.engine.carry.importing import Imported
from fanrank.engine.storage.storage import Storage


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, BATCH_RECORDS=8)


def lines(*rows: dict[str, Any] | str) -> io.BytesIO:
    return io.BytesIO(b"".join((row if isinstance(row, str) else json.dumps(row)).encode() + b"\n" for row in rows))


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": f"r{number}", "text": f"tea {number}", **more} for number in range(count)]


def texts(engine: fr.Engine, ids: Sequence[str]) -> list[str | None]:
    return [None if record is None else record.text for record in engine.fetch(ids)]


ONE = {"id": "x", "text": "tea"}
REFUSED: list[tuple[list[dict[str, Any] | str], dict[str, Any], str, str, int]] = [
    # Lines, keywords, error, message, and how many records are imported all the same.
    (
        [*rows(11), '{"id": "r11", "text": 5}', *rows(2)],
        {},
        "RecordError",
        "^file:12, id 'r11': 'text' must be a s",
        11,
    ),
    ([*rows(2), "{", *rows(3)], {}, "RecordError", "^file:3: not JSON: ", 2),
    ([*rows(3), {**ONE, "n": "many"}, {**ONE, "id": "y"}], {}, "RecordError", "^file:4, id 'x': column 'n' must be", 3),
    ([*rows(4), {**ONE, "embedding": [1, 0]}], {}, "RecordError", "^file:5, id 'x': 'embedding' has 2 dimensions", 4),
    ([*rows(3), {**ONE, "fields": {"title": "pot"}}], {}, "RecordError", "^file:4, id 'x': no search would find", 3),
    ([ONE, *rows(3), {**ONE, "text": "two"}], {}, "DuplicateIdError", "^file:5, id 'x': .*says something else", 4),
    ([*rows(2), *rows(1)], {"resume": False}, "DuplicateIdError", "^file:3, id 'r0'", 2),
    # An id of two namespaces blames its own line, in the same batch and in another.
    (
        [{**ONE, "namespace": "a", "n": 1}, {**ONE, "namespace": "b", "n": "many"}],
        *({}, "RecordError", "^file:2, id 'x': column 'n' must", 1),
    ),
    (
        [*({**ONE, "namespace": name} for name in "abcd"), *rows(4), {**ONE, "n": "many"}],
        *({}, "RecordError", "^file:9, id 'x': column 'n' must", 8),
    ),
]


@pytest.mark.parametrize(("given", "how", "error", "message", "imported"), REFUSED)
def test_a_bad_line_is_named_and_what_came_before_it_is_there(
    tmp_path: Path, given: list[Any], how: dict[str, Any], error: str, message: str, imported: int
) -> None:
    with engine_at(tmp_path / "one", columns={"n": "number"}) as one:
        with pytest.raises(getattr(fr.errors, error), match=rf"{message}.*\({imported} records before it are imported"):
            one.import_records(lines(*given), **how)
        assert len(one) == imported


def test_an_import_goes_on_once_its_file_is_repaired(tmp_path: Path) -> None:
    file, good = tmp_path / "bad.jsonl", rows(20)
    file.write_bytes(lines(*good[:11], '{"id": "r11", "text": 5}', *good[12:]).getvalue())
    with engine_at(tmp_path / "one") as one:
        with pytest.raises(fr.errors.RecordError) as refused:
            one.import_records(file)
        assert str(refused.value) == (
            "bad.jsonl:12, id 'r11': 'text' must be a string, not int (11 records before it are imported; repair it "
            "and run the import again, and it goes on there)"
        )
        file.write_bytes(lines(*good).getvalue())
        assert one.import_records(file) == Imported(added=9, held=11)
        assert texts(one, ["r11", "r19"]) == ["tea 11", "tea 19"]
        assert one.import_records(file, resume=False, upsert=True) == Imported(replaced=20)


def test_an_id_that_says_something_else_is_refused_or_replaced(tmp_path: Path) -> None:
    with engine_at(tmp_path / "one") as one:
        one.add(rows(3))
        changed = [{"id": "a", "text": "new"}, {"id": "r1", "text": "changed"}, {"id": "b", "text": "new"}]
        with pytest.raises(
            fr.errors.DuplicateIdError, match=r"^file:2, id 'r1': .* says something else; give upsert=T"
        ):
            one.import_records(lines(*changed))
        assert texts(one, ["a", "r1", "b"]) == ["new", "tea 1", None]
        assert one.import_records(lines(*changed), upsert=True) == Imported(added=1, replaced=1, held=1)
        assert texts(one, ["a", "r1", "b"]) == ["new", "changed", "new"]
        # The replaced record is the youngest but for what came after it, as with `update`.
        assert list(held(one)) == [""]
        assert [row.id for row in held(one)[""]] == ["r0", "r2", "a", "r1", "b"]


def test_the_id_of_an_expired_record_is_free(tmp_path: Path) -> None:
    with engine_at(tmp_path / "one") as one:
        one.add([{"id": "a", "text": "old", "expires": 1.0}, {"id": "b", "text": "old"}])
        assert one.import_records(lines({"id": "a", "text": "new"})) == Imported(added=1)
        assert texts(one, ["a", "b"]) == ["new", "old"]


@pytest.mark.parametrize("upsert", [False, True])
def test_an_expired_record_is_passed_over(tmp_path: Path, upsert: bool) -> None:
    over = [{"id": "a", "text": "old", "expires": 1.0}, {"id": "b", "text": "tea"}]
    with engine_at(tmp_path / "one") as one:
        assert one.import_records(lines(*over), upsert=upsert) == Imported(added=1, expired=1)
        sequence = one.stats()["sequence"]
        assert one.import_records(lines(*over), upsert=upsert) == Imported(held=1, expired=1)
        assert one.stats()["sequence"] == sequence
        one.add([{"id": "a", "text": "live"}])
        if upsert:  # what it replaces is gone with it
            assert one.import_records(lines(*over), upsert=True) == Imported(replaced=1, held=1)
            assert texts(one, ["a"]) == [None]
        else:
            with pytest.raises(fr.errors.DuplicateIdError, match=r"^file:1, id 'a'"):
                one.import_records(lines(*over))


def test_what_a_batch_does_is_decided_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    between: list[Any] = []
    busy: list[bool] = []
    plain_write = Storage.write

    def write(memory: Storage, **options: Any) -> int:
        if between and not busy:
            busy.append(True)
            between.pop(0)()
            busy.clear()
        return plain_write(memory, **options)

    monkeypatch.setattr(Storage, "write", write)
    with engine_at(tmp_path / "one") as one:
        # Another writer comes just before each attempt to write.
        between[:] = [lambda: one.upsert([{"id": "r1", "text": "other"}]), lambda: one.add(rows(1))]
        assert one.import_records(lines(*rows(4)), upsert=True) == Imported(added=2, replaced=1, held=1)
        assert texts(one, ["r0", "r1", "r2", "r3"]) == ["tea 0", "tea 1", "tea 2", "tea 3"]
        between[:] = [lambda: one.delete(["r2"])]
        assert one.import_records(lines(*rows(4))) == Imported(added=1, held=3)
        between[:] = [lambda: one.delete(["r3"]), lambda: one.add([{"id": "r5", "text": "other"}])]
        with pytest.raises(fr.errors.DuplicateIdError, match=r"^file:6, id 'r5'.*\(5 records before it are imported"):
            one.import_records(lines(*rows(8)))
        assert texts(one, ["r3", "r4", "r5", "r6"]) == ["tea 3", "tea 4", "other", None]


def test_equal_content_counts_whatever_the_order_of_keys(tmp_path: Path) -> None:
    with engine_at(tmp_path / "one") as one:
        one.add([fr.Record("a", "tea", extra={"x": 1, "y": True})])
        assert one.import_records(lines('{"text": "tea", "extra": {"y": true, "x": 1}, "id": "a"}')) == Imported(held=1)
        with pytest.raises(fr.errors.DuplicateIdError):  # in Python, 1 == True
            one.import_records(lines('{"text": "tea", "extra": {"y": 1, "x": 1}, "id": "a"}'))


def test_records_are_encoded_where_they_bring_no_vectors(tmp_path: Path) -> None:
    class Lengths:
        name, version, dimension = "lengths", "1", 2

        def documents(self, texts: Sequence[str], *, progress: bool = False) -> list[list[float]]:
            return [[len(text), 1.0] for text in texts]

        def queries(self, texts: Sequence[str]) -> list[list[float]]:
            return self.documents(texts)

    with fr.Engine.open(tmp_path / "one", encoder=Lengths(), backend="numpy") as one:  # type: ignore[arg-type]
        one.import_records(lines(*rows(10)))
        assert one.stats()["vectors"] == 10
        assert one.import_records(lines(*rows(10))) == Imported(held=10)
        one.export(tmp_path / "x.jsonl")
    other = pytest.raises(fr.errors.ModelMismatchError, match=r"^x\.jsonl:1: its vector was made by 'lengths 1', and")
    with engine_at(tmp_path / "two", encoder="own:2") as two, other:
        two.import_records(tmp_path / "x.jsonl")
    none = pytest.raises(fr.errors.RecordError, match="has an embedding, and the engine has no encoder")
    with fr.Engine.open(tmp_path / "three") as three, none:
        three.import_records(tmp_path / "x.jsonl")


def test_an_engine_in_memory_imports(tmp_path: Path) -> None:
    engine = fr.Engine(backend="numpy")
    assert engine.import_records(lines(*rows(20))) == Imported(added=20)
    assert engine.import_records(lines(*rows(21)), upsert=True) == Imported(added=1, held=20)
    assert len(engine) == 21
    assert engine.export(tmp_path / "x.jsonl") == 21
    assert fr.Engine(backend="numpy").import_records(tmp_path / "x.jsonl") == Imported(added=21)
    textless = fr.Engine(backend="numpy", keep_texts=False)
    assert textless.import_records(lines(*rows(20))) == Imported(added=20)
    with pytest.raises(fr.errors.DuplicateIdError, match="is there"):
        textless.import_records(lines(*rows(20)))
    assert textless.import_records(lines(*rows(21)), upsert=True) == Imported(added=1, replaced=20)
    with pytest.raises(fr.errors.StorageError, match="there are no texts"):
        textless.export(tmp_path / "y.jsonl")


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(fr.errors.StorageError, match=r"no\.jsonl: cannot be read: No such file"):
        fr.Engine().import_records(tmp_path / "no.jsonl")
    wrong = {"id": "a", "text": "t", "embedding": {"rows": 2, "float16": "AAA="}}
    with pytest.raises(fr.errors.RecordError, match=r"^file:1, id 'a': 'embedding' must be numbers, or an object"):
        fr.Engine().import_records(lines(wrong))
