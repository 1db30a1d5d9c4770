"""Copies answer as engines that were made with the new parameters, and are there whole or not at all."""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support import borders
from support.carry_cases import COLUMNS, DIMENSION, answers, engine_at, filtered_questions, held, plain
from support.vector_cases import Terms

import fanrank as fr
from fanrank.engine.storage import failpoints

CHANGES: list[dict[str, Any]] = [
    {"columns": COLUMNS},
    {"analyzer": "minimal", "window": 100.0, "columns": {}},
    {"k1": 0.6, "method": "bm25+", "fields": {"text": 1.0, "title": 2.0}},
]


class Letters:
    """An encoder: how often the letters e and t occur."""

    name, dimension = "letters", 3

    def __init__(self, version: str = "1") -> None:
        self.version = version

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> list[list[float]]:
        return [[1.0 + text.count("e"), float(text.count("t")), float(len(self.version))] for text in texts]

    def queries(self, texts: Sequence[str]) -> list[list[float]]:
        return self.documents(texts)


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_copy_answers_as_a_fresh_engine(tmp_path: Path, change: dict[str, Any]) -> None:
    history = [
        fr.Record(**{**vars(record), "fields": {"title": "tea pot"[: number % 8]}})
        for number, record in enumerate(plain(120))
    ]
    made: dict[str, Any] = {"columns": {"project": "category"}, "fields": {"text": 1.0, "title": 1.0}}
    with engine_at(tmp_path / "one", **made) as one, borders.shrunken(BUILD_CHUNK=50):
        for start in range(0, 120, 41):
            one.add(history[start : start + 41])
        gone = [record for record in history[20:60:3] if record.namespace == ""]
        one.delete([record.id for record in gone])
        one.update(history[60:100:3])
        assert one.copy_to(tmp_path / "two", **change) == len(one)
        before = held(one)
    with fr.Engine.open(tmp_path / "two") as two:
        assert two.opened == "loaded"
        assert two.pin == one.pin
        assert held(two) == before
        updated = {record.id for record in history[60:100:3]}
        order = [record for record in history if record not in gone and record.id not in updated]
        fresh = fr.Engine.from_records(
            [*order, *history[60:100:3]], encoder=f"own:{DIMENSION}", backend="numpy", **{**made, **change}
        )
        assert answers(two) == answers(fresh)
        if change.get("columns") == COLUMNS:
            assert answers(two, filtered_questions()) == answers(fresh, filtered_questions())
        assert two.columns == fresh.columns
        two.add([fr.Record("later", "tea")])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one", "two"]


def test_another_encoder_makes_the_vectors_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    words = [fr.Record(f"r{n}", text) for n, text in enumerate(["tea", "tee time", "", "pot", "kettle"])]

    def vectors(path: str) -> list[Any]:
        with fr.Engine.open(tmp_path / path) as engine:
            found = engine.fetch([record.id for record in words])
            return [None if one is None or one.embedding is None else one.embedding.tolist() for one in found]

    with fr.Engine.open(tmp_path / "one", encoder=Letters()) as one:
        one.add(words)
        with caplog.at_level("INFO", "fanrank"):
            one.copy_to(tmp_path / "same")
            one.copy_to(tmp_path / "given", encoder=Letters())
            assert "made anew" not in caplog.text
            one.copy_to(tmp_path / "other", encoder=Letters("22"))
            assert "copy: the vectors are made anew by 'letters', version '22', 3 dimensions" in caplog.text
        one.copy_to(tmp_path / "none", encoder=None)
        with pytest.raises(fr.errors.ModelMismatchError, match="were encoded by 'letters'"):
            one.copy_to(tmp_path / "own", encoder=fr.OwnVectors(3))
    with fr.Engine.open(tmp_path / "fresh", encoder=Letters("22")) as fresh:
        fresh.add(words)
        pin = fresh.pin
    assert vectors("one") == vectors("same") == vectors("given") != vectors("other")
    assert vectors("other") == vectors("fresh")
    assert vectors("none") == [None] * 5
    with fr.Engine.open(tmp_path / "other") as other:
        assert other.pin == pin
        other.copy_to(tmp_path / "again")  # its encoder is not at hand
    assert vectors("again") == vectors("other")
    with pytest.raises(fr.errors.ModelMismatchError):
        fr.Engine.open(tmp_path / "again", encoder=Letters("1"))
    with fr.Engine.open(tmp_path / "none") as none:
        assert none.pin is None
        none.copy_to(tmp_path / "back", encoder=Letters("22"))
    assert vectors("back") == vectors("fresh")


def test_learned_weights_are_copied_made_or_left_out(tmp_path: Path) -> None:
    def weights(path: str) -> Any:
        with fr.Engine.open(tmp_path / path) as engine:
            found = engine.fetch(["own", "made"])
            return [one.weights for one in found if one is not None], engine.searcher.models.term_pin

    with fr.Engine.open(tmp_path / "plain") as plain_engine:
        plain_engine.add([fr.Record("own", "tea", weights={"t": 7.0}), fr.Record("made", "pot")])
        plain_engine.copy_to(tmp_path / "one", term_encoder=Terms("1"))
    first = {"name": "terms", "version": "1"}
    assert weights("one") == ([{"t": 7.0}, {"pot": 1.0}], first)
    with fr.Engine.open(tmp_path / "one") as one:
        one.copy_to(tmp_path / "same")
        one.copy_to(tmp_path / "other", term_encoder=Terms("22"))
        one.copy_to(tmp_path / "none", term_encoder=None)
    assert weights("same") == weights("one")
    assert weights("other") == ([{"tea": 2.0}, {"pot": 2.0}], {"name": "terms", "version": "22"})
    assert weights("none") == ([None, None], None)


def test_a_copy_is_refused_where_something_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    with engine_at(tmp_path / "one") as one:
        one.add(plain(10))
        assert one.copy_to(tmp_path / "empty") == one.copy_to(tmp_path / "new" / "deep") == 10
        for path in ("full", "one", "empty", "full/file"):
            with pytest.raises(fr.errors.ForeignIndexError, match="is there already; a copy needs a new directory"):
                one.copy_to(tmp_path / path)
        (tmp_path / ".other.partial").mkdir()
        (tmp_path / ".other.partial" / "file").write_text("mine")
        with pytest.raises(fr.errors.ForeignIndexError, match="holds other files"):
            one.copy_to(tmp_path / "other")
    assert (tmp_path / ".other.partial" / "file").read_text() == "mine"
    with pytest.raises(fr.errors.StorageError, match="there are no texts"):
        fr.Engine(keep_texts=False).copy_to(tmp_path / "memory")


@pytest.mark.parametrize("gone", [[], ["records.sqlite", "lock"], ["index/manifest.json", "lock"]])
def test_what_a_killed_copy_left_is_no_obstacle(tmp_path: Path, gone: list[str]) -> None:
    """Each kill may leave any part of the hidden directory: also one while the next copy empties it."""
    with engine_at(tmp_path / "one") as one:
        one.add(plain(10))
        one.copy_to(tmp_path / ".other.partial")
        assert (tmp_path / ".other.partial" / "index" / "manifest.json").exists()
        (tmp_path / ".other.partial" / "lock").touch()
        for name in gone:
            (tmp_path / ".other.partial" / name).unlink()
        assert one.copy_to(tmp_path / "other") == 10
        (tmp_path / ".third.partial" / "index").mkdir(parents=True)
        (tmp_path / ".third.partial" / "index" / "mine.npy").write_text("mine")
        with pytest.raises(fr.errors.ForeignIndexError, match="holds other files"):
            one.copy_to(tmp_path / "third")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".third.partial", "one", "other"]
    assert (tmp_path / ".third.partial" / "index" / "mine.npy").exists()


def test_an_engine_in_memory_is_copied(tmp_path: Path) -> None:
    engine = fr.Engine(columns=COLUMNS, encoder=f"own:{DIMENSION}", backend="numpy")
    engine.add(plain(30))
    engine.delete([next(engine.ids())])
    assert engine.copy_to(tmp_path / "copy", k1=0.9) == 29
    with engine_at(tmp_path / "copy") as copy:
        assert (copy.columns, copy.bm25.k1) == (COLUMNS, 0.9)
        assert held(copy) == held(engine)


def test_a_failing_copy_leaves_nothing(tmp_path: Path) -> None:
    with engine_at(tmp_path / "one") as one:
        one.add([fr.Record(f"r{n}", "tea", extra={"n": n if n < 90 else "many"}) for n in range(100)])
        with borders.shrunken(BUILD_CHUNK=10):
            with pytest.raises(fr.errors.RecordError, match=r"id 'r90': column 'n' must be"):
                one.copy_to(tmp_path / "two", columns={"n": "number"})
            with pytest.raises(fr.errors.ParameterError, match="k1"):
                one.copy_to(tmp_path / "two", k1=-1.0)
            for point in failpoints.CARRYING[4:7]:
                failpoints.arm(point, action=Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
                with pytest.raises(fr.errors.StorageError, match="No space left"):
                    one.copy_to(tmp_path / "two")
                failpoints.disarm()
    assert [file.name for file in tmp_path.iterdir()] == ["one"]


def test_a_copy_shows_one_moment_and_keeps_others_from_its_path(tmp_path: Path) -> None:
    with engine_at(tmp_path / "one") as one, borders.shrunken(BUILD_CHUNK=10, STREAM_ROWS=5):
        one.add(plain(40))
        before = held(one)

        def meanwhile() -> None:
            one.add([fr.Record("late", "tea")])
            with pytest.raises(fr.errors.StoreLockedError):
                one.copy_to(tmp_path / "two")

        failpoints.arm("copy.batch", action=meanwhile)
        one.copy_to(tmp_path / "two")
        failpoints.disarm()
        assert len(one) == 41
    with fr.Engine.open(tmp_path / "two") as two:
        assert held(two) == before


def test_a_field_that_the_copy_does_not_search_is_refused(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "one", backend="numpy", fields={"text": 1.0, "title": 1.0}) as one:
        one.add([fr.Record("a", "tea"), fr.Record("b", "tea", fields={"title": "pot"})])
        with pytest.raises(fr.errors.RecordError, match=r"id 'b': .* 'title'.* fields=\{'text': 1.0, 'title': 1.0\}"):
            one.copy_to(tmp_path / "two", fields={"text": 1.0})
        assert not (tmp_path / "two").exists()
        assert one.copy_to(tmp_path / "two", fields={"text": 2.0, "title": 1.0}) == 2


def test_no_copy_is_made_inside_the_memory(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "one", backend="numpy") as one:
        one.add([fr.Record("a", "tea")])
        files = sorted(file.name for file in (tmp_path / "one").iterdir())
        for make in (one.copy_to, one.backup):
            for target in (tmp_path / "one" / "sub", tmp_path / "one" / "more" / ".." / "deep" / "sub"):
                with pytest.raises(fr.errors.ForeignIndexError, match="lies in the directory that is copied"):
                    make(target)
        assert sorted(file.name for file in (tmp_path / "one").iterdir()) == files
        one.backup(tmp_path / "backup")
        with pytest.raises(fr.errors.ForeignIndexError, match="lies in the directory that is copied"):
            fr.Engine.restore(tmp_path / "backup", tmp_path / "backup" / "sub")
