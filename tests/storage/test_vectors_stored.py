"""Vectors and learned weights with the records: the same bits by every path, and nothing half-done."""

import dataclasses
import shutil
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import borders, history
from support.vector_cases import D, Letters, bits, own

import fanrank as fr
from fanrank.engine.encoders.embed import add_embeddings
from fanrank.engine.errors import EncoderError, ModelMismatchError
from fanrank.engine.records.record import Record
from fanrank.engine.vectors.vectors import unit_rows


def given_by(path: str, records: Sequence[Record], engine: fr.Engine) -> None:
    """Give these records, each with one row, to the engine."""
    bare = [dataclasses.replace(record, embedding=None) for record in records]
    given_vectors: Any = None
    if path == "array":
        given_vectors = np.array([record.embedding[0] for record in records])
    elif path == "mapping":
        given_vectors = {record.id: record.embedding[0] for record in reversed(records)}
    engine.add(iter(bare if given_vectors is not None else records), vectors=given_vectors)


@pytest.mark.parametrize("chunk", [1, 3, 1024])
@pytest.mark.parametrize("path", ["own", "array", "mapping"])
def test_vectors_come_by_three_roads(path: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"embed.CHUNK": chunk}, BUILD_CHUNK=4)
    rng = np.random.default_rng(3)
    records = [Record(f"r{n}", "a", "n" if n % 3 else "", embedding=rng.normal(size=D)) for n in range(11)]
    engine = fr.Engine(encoder=own())
    given_by(path, records, engine)
    assert bits(engine) == {(r.namespace, r.id): unit_rows(r.embedding).tobytes() for r in records}


@pytest.mark.parametrize("chunk", [1, 3, 1024])
def test_what_has_no_vector_is_encoded(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"embed.CHUNK": chunk})
    encoder = Letters()
    engine = fr.Engine(encoder=encoder)
    records = [
        Record("r0", "a b"),
        Record("r1", "a", embedding=[1, 0, 0, 0, 0]),
        Record("r2", "a", passages=["c", "dd", "z"]),
        Record("r3", "e"),
        Record("r4", "c"),
    ]
    engine.add(records, vectors={"r4": [0, 2, 0, 0, 0]})
    expected = {
        "r0": [Letters.one("a b")],
        "r1": [[1, 0, 0, 0, 0]],
        "r2": [Letters.one(text) for text in ("c", "dd", "z")],
        "r3": [Letters.one("e")],
        "r4": [[0, 1, 0, 0, 0]],
    }
    wanted = {("", name): unit_rows(np.array(held, dtype=np.float32)).tobytes() for name, held in expected.items()}
    assert bits(engine) == wanted
    assert [text for batch in encoder.asked for text in batch] == ["a b", "c", "dd", "z", "e"]
    assert all(len(batch) < chunk + 3 for batch in encoder.asked)
    # An update is encoded anew, and what is given is not.
    encoder.asked.clear()
    engine.update([Record("r0", "c c"), Record("r1", "b")], vectors={"r1": [0, 0, 0, 0, 1]})
    assert encoder.asked == [["c c"]]
    wanted["", "r0"] = unit_rows(np.array(Letters.one("c c"), dtype=np.float32)).tobytes()
    wanted["", "r1"] = unit_rows([0, 0, 0, 0, 1]).tobytes()
    assert bits(engine) == wanted
    tenant = engine.namespace("n")
    tenant.add([Record("t", "a")], vectors=[[0, 0, 1, 0, 0]])
    tenant.update([Record("t", "a")], vectors={"t": [0, 0, 0, 1, 0]})
    assert bits(engine)["n", "t"] == unit_rows([0, 0, 0, 1, 0]).tobytes()


def test_a_large_add_is_read_and_encoded_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"embed.CHUNK": 8}, BUILD_CHUNK=20)
    encoder = Letters()
    read = 0

    def source() -> Iterator[Record]:
        nonlocal read
        for number in range(100):
            # What was read and is not encoded yet is never more than a chunk.
            assert read - sum(map(len, encoder.asked)) <= 8
            read += 1
            yield Record(f"r{number}", "a")

    engine = fr.Engine(encoder=encoder)
    assert engine.add(source()) == 100
    assert max(map(len, encoder.asked)) == 8
    waiting = add_embeddings(source(), engine.pin, encoder)
    encoder.asked.clear()
    read = 0
    next(waiting)
    assert read == 8


def test_small_batches_are_encoded_before_the_lock_is_taken() -> None:
    engine = fr.Engine()

    class Looking(Letters):
        def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
            held.append(engine.index.memory._writing.locked())
            return super().documents(texts)

    held: list[bool] = []
    engine = fr.Engine(encoder=Looking())
    engine.add([Record("a", "a")])
    engine.update([Record("a", "b")])
    assert held == [False, False]


def counts(engine: fr.Engine) -> dict[str, Any]:
    return {name: value for name, value in engine.stats().items() if name not in history.ROOMY}


def refused(engine: fr.Engine, error: type[Exception], match: str, act: Callable[[], object]) -> None:
    """The call fails by name, and the engine is as before."""
    before = bits(engine), counts(engine), len(engine.index.memory.weight_terms), engine.index.memory.snapshots
    with pytest.raises(error, match=match):
        act()
    assert (
        bits(engine),
        counts(engine),
        len(engine.index.memory.weight_terms),
        engine.index.memory.snapshots,
    ) == before


@pytest.mark.parametrize("durable", [False, True])
def test_vectors_that_do_not_fit(durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"embed.CHUNK": 2})
    engine = fr.Engine.open(tmp_path, encoder=own()) if durable else fr.Engine(encoder=own())
    with engine:
        engine.add([Record("held", "a", embedding=np.ones(D), weights={"x": 1})])
        three = [Record(f"r{n}", "new", weights={f"w{n}": 1}) for n in range(3)]
        good = np.ones((3, D))
        wrong = good.copy()
        wrong[2, 1] = np.nan
        zero = good.copy()
        zero[1] = 0
        for vectors_given, error, match in (
            (good[:2], fr.errors.RecordError, "id 'r2': 'vectors' has 2 rows, and there are more records"),
            (np.ones((4, D)), fr.errors.RecordError, "'vectors' has 4 rows, and there are 3 records"),
            (np.ones((3, 4)), fr.errors.RecordError, "id 'r0': 'embedding' has 4 dimensions, and .* 'own' has 5"),
            (np.ones(D), fr.errors.RecordError, r"'vectors' must be \[records, dimension\].* not of shape \(5,\)"),
            ([[1.0], [1.0, 2.0]], fr.errors.RecordError, "'vectors' must be numbers"),
            (7, fr.errors.RecordError, "'vectors' must be"),
            (wrong, fr.errors.RecordError, "id 'r2': 'vectors' holds a value that is not finite"),
            (zero, fr.errors.RecordError, "id 'r1': 'vectors' has length 0"),
            ({"r1": np.ones(D), "r9": np.ones(D)}, fr.errors.UnknownIdError, "'vectors' holds one for 'r9'"),
            ({"held": np.ones(D)}, fr.errors.UnknownIdError, "'held'"),
            ({"r1": np.ones(4)}, fr.errors.RecordError, "id 'r1': 'embedding' has 4 dimensions"),
            ({"r1": np.zeros(D)}, fr.errors.RecordError, "id 'r1': 'vectors' has length 0"),
            ({"r1": np.ones((2, 2, 2))}, fr.errors.RecordError, "id 'r1': 'vectors' must be rows"),
        ):  # fmt: skip
            for records in (three, iter(three)):
                refused(engine, error, match, lambda: engine.add(records, vectors=vectors_given))  # noqa: B023
            refused(engine, error, match, lambda: engine.upsert(three, vectors=vectors_given))  # noqa: B023
        match = "id 'r1': has an embedding, and one in 'vectors'"
        both = [Record("r0", "a"), Record("r1", "a", embedding=np.ones(D)), Record("r2", "a")]
        refused(engine, fr.errors.RecordError, match, lambda: engine.add(both, vectors=good))
        refused(engine, fr.errors.RecordError, match, lambda: engine.add(both, vectors={"r1": np.ones(D)}))
        match = "'r1': 'embedding' has 2 dimensions, and the engine's model 'own' has 5"
        refused(
            engine, fr.errors.RecordError, match, lambda: engine.add([both[0], Record("r1", "a", embedding=[1, 2])])
        )
        match = "id 'p': 'embedding' must have a row for each of 2 passages, not 1"
        pair = [Record("p", "a", passages=["x", "y"])]
        refused(engine, fr.errors.RecordError, match, lambda: engine.add(pair, vectors=np.ones((1, D))))
        refused(engine, fr.errors.RecordError, match, lambda: engine.add(pair, vectors={"p": np.ones(D)}))
        engine.add(pair, vectors={"p": np.ones((2, D))})
        engine.add([], vectors=np.ones((0, D)))
        engine.add([], vectors={})
        assert len(engine) == 2


def test_without_an_encoder_there_are_no_vectors(tmp_path: Path) -> None:
    for engine in (fr.Engine(), fr.Engine.open(tmp_path)):
        with engine:
            assert (engine.encoder, engine.pin) == (None, None)
            engine.add([Record("held", "a", passages=["a", "b"], weights={"x": 1})])
            one = [Record("r0", "a"), Record("r1", "a", embedding=[1, 2])]
            refused(engine, fr.errors.RecordError, "id 'r1': has an embedding.*'own:2'", lambda: engine.add(one))  # noqa: B023
            match = "'vectors' were given to an engine without an encoder"
            refused(engine, fr.errors.RecordError, match, lambda: engine.add(one[:1], vectors=[[1, 2]]))  # noqa: B023
            assert engine.stats()["weights"] == 1


def test_an_encoder_that_fails_or_answers_wrongly() -> None:
    class Wrong(Letters):
        answer: Any = None

        def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
            return self.answer(texts)

    encoder = Wrong()
    engine = fr.Engine(encoder=encoder)
    two = [Record("r0", "a"), Record("r1", "b", weights={"x": 1})]

    def failing(texts: Sequence[str]) -> Any:
        raise EncoderError("out of breath")

    for answer, error, match in (
        (lambda texts: np.ones((len(texts), 4)), EncoderError, r"'letters' made an array of shape \(2, 4\) of 2 texts"),
        (lambda texts: np.ones((1, D)), EncoderError, r"shape \(1, 5\) of 2 texts, not \(2, 5\)"),
        (
            lambda texts: np.array([[1.0] * D, [np.nan] * D]),
            fr.errors.RecordError,
            "id 'r1': what 'letters' made of it holds a",
        ),
        (lambda texts: np.zeros((2, D)), fr.errors.RecordError, "id 'r0': what 'letters' made of it has length 0"),
        (failing, EncoderError, "out of breath"),
    ):
        encoder.answer = answer
        refused(engine, error, match, lambda: engine.add(two))
    encoder.answer = lambda texts: np.ones((len(texts), D))
    engine.add(two)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"name": ""}, "its name is ''"),
        ({"name": None}, "its name is None"),
        ({"version": 3}, "its version is 3"),
        ({"dimension": 0}, "from 1 to 65,536, not 0"),
        ({"dimension": True}, "not True"),
        ({"dimension": 1 << 17}, "not 131072"),
        ({"dimension": "5"}, "not '5'"),
    ],
)
def test_what_is_no_encoder(change: dict[str, Any], match: str) -> None:
    with pytest.raises(fr.errors.ParameterError, match=match):
        fr.Engine(encoder=Letters(**change))
    with pytest.raises(fr.errors.ParameterError, match="encoder must be a model's name, or an object"):
        fr.Engine(encoder=object())  # type: ignore[arg-type]


def test_a_name_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = types.ModuleType("fanrank.engine.encoders.sentence")
    sentence.resolve = Letters  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, sentence.__name__, sentence)
    engine = fr.Engine(encoder="some-model")
    assert isinstance(engine.encoder, Letters)
    assert engine.pin == {"name": "some-model", "version": "1", "dimension": D}


PINNED = {"name": "letters", "version": "1", "dimension": D}


@pytest.mark.parametrize("path", ["directory", "saved"])
def test_the_pin_is_kept_and_another_model_refused(path: str, tmp_path: Path) -> None:
    def opened(**options: Any) -> fr.Engine:
        if path == "directory":
            return fr.Engine.open(tmp_path / "memory", **options)
        return fr.Engine.load(tmp_path / "saved", **options)

    with fr.Engine.open(tmp_path / "memory", encoder=Letters()) as engine:
        assert engine.pin == PINNED
        engine.add([Record("a", "a b")])
        engine.save(tmp_path / "saved")
        wanted = bits(engine)
    for other in (Letters("other"), Letters(version="2"), Letters(dimension=D + 1)):
        match = rf"were encoded by 'letters', version '1', 5 dimensions, not by {other.name!r}, version .* dimensions"
        with pytest.raises(ModelMismatchError, match=match):
            opened(encoder=other)
    assert issubclass(ModelMismatchError, fr.errors.ParameterError)
    with opened(encoder=Letters()) as engine:
        assert engine.encoder is not None
        engine.add([Record("b", "c")])
        assert bits(engine).keys() == {("", "a"), ("", "b")}
        engine.delete(["b"])
    with opened() as engine:
        assert (engine.encoder, engine.pin) == (None, PINNED)
        assert bits(engine) == wanted
        assert engine.search(["b"]).ids[0, 0] == "a"
        engine.add([Record("c", "c", embedding=np.ones(D))])
        match = r"id 'd': has no embedding, and the engine was opened without its encoder, 'letters'.*encoder="
        refused(engine, fr.errors.RecordError, match, lambda: engine.add([Record("d", "d")]))
        refused(
            engine, fr.errors.RecordError, "6 dimensions", lambda: engine.add([Record("d", "d", embedding=np.ones(6))])
        )
        engine.save(tmp_path / "again")
    assert fr.Engine.load(tmp_path / "again").pin == PINNED


def test_what_was_made_without_an_encoder_takes_none(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "memory") as engine:
        engine.add([Record("a", "a b")])
        engine.save(tmp_path / "saved")
    with pytest.raises(fr.errors.ParameterError, match=r"memory: was made without such an encoder.*new engine"):
        fr.Engine.open(tmp_path / "memory", encoder=Letters())
    with pytest.raises(fr.errors.ParameterError, match="saved: was made without such an encoder"):
        fr.Engine.load(tmp_path / "saved", encoder=Letters())
    with fr.Engine.open(tmp_path / "memory") as engine:  # and its lock is free
        assert engine.pin is None


def test_nothing_is_encoded_again(tmp_path: Path) -> None:
    class Silent(Letters):
        def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
            raise AssertionError("the stored rows are the truth")

    with fr.Engine.open(tmp_path, encoder=Letters()) as engine:
        engine.add([Record(f"r{n}", "abcd"[: n % 4 + 1], passages=["a", "b"] if n % 2 else None) for n in range(9)])
        engine.delete(["r4"])
        wanted = bits(engine)
        assert all(wanted.values())
    shutil.rmtree(tmp_path / "index")
    for _ in range(2):
        with fr.Engine.open(tmp_path, encoder=Silent()) as engine:
            assert bits(engine) == wanted
