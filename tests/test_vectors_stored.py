"""Vectors and learned weights with the records: the same bits by every road, and nothing half-done."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sqlite3
import sys
import tempfile
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import history
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fanrank as fr
from fanrank.engine import embed, failpoints, files, learned, memory, store
from fanrank.engine.dense.vectors import Vectors
from fanrank.engine.embed import embedded
from fanrank.engine.errors import EncoderError, ModelMismatchError
from fanrank.engine.records import UNIT, Record, unit_rows
from fanrank.engine.segment import Segment, build_segment, merge_segments, select_documents
from fanrank.engine.store import RECORDS, Change, RecordStore, decode, encode

D = 5
Bits = dict[tuple[str, str], bytes]


@dataclasses.dataclass
class Letters:
    """Counts the letters a to e, a vector a text; keeps what it was asked."""

    name: str = "letters"
    version: str = "1"
    dimension: int = D
    encodes: bool = True
    asked: list[list[str]] = dataclasses.field(default_factory=list)

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
        if not self.encodes:
            raise AssertionError("must not be asked")
        self.asked.append(list(texts))
        return np.array([self.one(text) for text in texts], dtype=np.float32)

    queries = documents

    @staticmethod
    def one(text: str) -> list[float]:
        return [text.count(letter) + 0.1 for letter in "abcde"]


def own(dimension: int = D) -> Letters:
    return Letters("own", "1", dimension, encodes=False)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def bits(engine: fr.Engine) -> Bits:
    """The rows of every live document, read off the segments one by one."""
    found: Bits = {}
    for namespace, snapshot in engine._memory.snapshots.items():
        for number, part in enumerate(snapshot.segments):
            alive = snapshot.alive(number)
            for position, name in enumerate(part.ids.strings.tolist()):
                if alive is not None and not alive[position]:
                    continue
                rows = b""
                if part.vectors is not None:
                    assert len(part.vectors) == part.size
                    assert part.vectors.matrix.dtype == np.float16
                    assert not part.vectors.matrix.flags.writeable
                    start, end = part.vectors.offsets[position : position + 2].tolist()
                    rows = part.vectors.matrix[start:end].tobytes()
                assert (namespace, name) not in found
                found[namespace, name] = rows
    return found


def weights(engine: fr.Engine) -> dict[tuple[str, str], dict[str, int]]:
    """The integer weights of every live document, read off the nested snapshots."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    terms = engine._memory.weight_terms.strings
    for namespace, snapshot in engine._memory.snapshots.items():
        nested = snapshot.learned
        assert (nested.firsts, nested.numbers, nested.size) == (snapshot.firsts, snapshot.numbers, snapshot.size)
        df = dict.fromkeys(range(len(terms)), 0)
        for number, (part, inner) in enumerate(zip(snapshot.segments, nested.segments, strict=True)):
            assert inner is part.nested
            assert inner.ids is part.ids
            assert inner.columns is part.columns
            assert not inner.lengths.any()
            assert part.learned is None or part.learned.postings
            alive, theirs = snapshot.alive(number), nested.alive(number)
            np.testing.assert_array_equal(alive, theirs)
            names = part.ids.strings.tolist()
            for position, name in enumerate(names):
                if alive is None or alive[position]:
                    found[namespace, name] = {}
            for place, term in enumerate(inner.terms.tolist()):
                for posting in range(*inner.offsets[place : place + 2].tolist()):
                    document = int(inner.documents[posting])
                    if alive is None or alive[document]:
                        found[namespace, names[document]][terms[term]] = int(inner.frequencies()[0, posting])
                        df[term] += 1
        counted = nested.document_frequencies(np.arange(len(terms), dtype=np.int32))
        assert counted.tolist() == list(df.values())
    return found


Kept = dict[tuple[str, str], Record]


def expected_bits(kept: Kept) -> Bits:
    """By the records as they were given, their embeddings normalised once."""
    return {key: b"" if r.embedding is None else r.embedding.tobytes() for key, r in kept.items()}


def expected_weights(kept: Kept) -> dict[tuple[str, str], dict[str, int]]:
    step = learned.DOCUMENT_STEP
    return {
        key: {term: round(w / step) for term, w in (r.weights or {}).items() if round(w / step)}
        for key, r in kept.items()
    }


def check(engine: fr.Engine, kept: Kept) -> None:
    assert bits(engine) == expected_bits(kept)
    assert weights(engine) == expected_weights(kept)
    rows = sum(len(part.vectors.matrix) for part in segments_of(engine) if part.vectors is not None)
    postings = sum(part.nested.postings for part in segments_of(engine))
    stats = engine.stats()
    assert (stats["vectors"], stats["weights"]) == (rows, postings)
    assert rows >= sum(0 if r.embedding is None else len(r.embedding) for r in kept.values())
    assert (stats["vector_bytes"] > 0) == (rows > 0)
    for namespace, snapshot in engine._memory.snapshots.items():
        assert snapshot.has_vectors == any(part.vectors is not None for part in snapshot.segments)
        own_stats = engine.namespace(namespace).stats()
        assert own_stats["weights"] == sum(part.nested.postings for part in snapshot.segments)


def segments_of(engine: fr.Engine) -> list[Segment]:
    return [part for snapshot in engine._memory.snapshots.values() for part in snapshot.segments]


components = st.floats(-100, 100, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)
vectors = st.lists(components, min_size=D, max_size=D).filter(any)
WEIGHTS = st.none() | st.dictionaries(st.sampled_from(["x", "y", "zoë"]), st.sampled_from([0.0, 0.5, 1.25, 7.0]))
NAMES = [f"r{number}" for number in range(8)]


@st.composite
def some_records(draw: st.DrawFn) -> Record:
    rows = draw(st.none() | st.lists(vectors, min_size=1, max_size=3))
    passages = None
    if rows is not None and draw(st.booleans()):
        passages = [f"a{number}" for number in range(len(rows))]
    return Record(
        draw(st.sampled_from(NAMES)),
        draw(st.sampled_from(["a b", "", "b c d"])),
        draw(st.sampled_from(["", "n"])),
        session=draw(st.none() | st.just("s")),
        passages=passages,
        embedding=rows,
        weights=draw(WEIGHTS),
    )


batches = st.lists(some_records(), max_size=5, unique_by=lambda r: (r.namespace, r.id))
operations = st.lists(
    st.tuples(st.just("put"), batches)
    | st.tuples(st.just("delete"), st.sampled_from(NAMES))
    | st.just(("flush", None)),
    max_size=8,
)


def perform(engine: fr.Engine, kept: Kept, name: str, what: Any) -> None:
    if name == "put":
        engine.update(what, insert=True)
        for record in what:
            kept.pop((record.namespace, record.id), None)
            kept[record.namespace, record.id] = record
    elif name == "delete":
        engine.delete([what], missing_ok=True)
        kept.pop(("", what), None)
    elif what is None:
        engine.flush()


@given(operations)
@settings(max_examples=20, deadline=None)
def test_every_road_holds_the_same_bits(script: list[tuple[str, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        history.shrink(patch)
        root = Path(folder)
        kept: Kept = {}
        plain = fr.Engine(encoder=own(), analyzer="minimal")
        with fr.Engine.open(root / "memory", encoder=own(), analyzer="minimal") as durable:
            for step in script:
                perform(plain, {}, *step)
                perform(durable, kept, *step)
                check(durable, kept)
            check(plain, kept)
            with fr.Engine.open(root / "memory", read_only=True) as reader:
                check(reader, kept)
            assert durable.verify() == {"records": len(kept), "missing": 0, "extra": 0}
            for (namespace, name), record in kept.items():
                (back,) = durable.fetch([name], namespace=namespace)
                assert back == record
                assert back.embedding is None or back.embedding.tobytes() == record.embedding.tobytes()
                assert (back.embedding is None) == (record.embedding is None)
            durable.save(root / "saved")
        with fr.Engine.open(root / "memory") as again:
            assert again.opened == "loaded" or not kept
            check(again, kept)
        shutil.rmtree(root / "memory" / "index", ignore_errors=True)
        with fr.Engine.open(root / "memory") as rebuilt:
            assert rebuilt.opened == "built: there were no index files"
            check(rebuilt, kept)
            rebuilt.save(root / "saved")  # over another save
            rebuilt.save(root / "anew")
        for path, verify in (("saved", True), ("anew", False)):
            loaded = fr.Engine.load(root / path, verify=verify)
            check(loaded, kept)
            loaded._memory._dirty |= set(loaded._memory.snapshots)
            loaded.flush()  # merges
            check(loaded, kept)
        once = fr.Engine.from_records(kept.values(), encoder=own(), analyzer="minimal")
        check(once, kept)


def test_what_dies_and_what_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts with and without vectors and weights side by side, and what is left when all that had some are gone."""
    history.shrink(monkeypatch)
    engine = fr.Engine(encoder=own())
    kept: Kept = {}
    for number in range(40):
        record = Record(
            f"r{number}",
            "a",
            embedding=np.eye(D)[: 1 + number % 3] + number if 10 <= number < 30 else None,
            weights={"x": number, "y": 1} if 5 <= number < 15 else None,
        )
        engine.add([record])
        kept["", record.id] = record
        check(engine, kept)
    gone = [f"r{number}" for number in range(40) if 5 <= number < 30 or number % 2]
    engine.delete(gone)
    for name in gone:
        del kept["", name]
    engine.flush()
    engine._memory._dirty.add("")
    engine.flush()
    check(engine, kept)
    whole = merge_segments(
        engine._memory.snapshots[""].segments,
        [engine._memory.snapshots[""].tombstones[n].dead if n in engine._memory.snapshots[""].tombstones else None
         for n in range(len(engine._memory.snapshots[""].segments))],
    )  # fmt: skip
    assert whole.vectors is None
    assert whole.learned is None


def built(records: Sequence[Record]) -> Segment:
    from fanrank.engine.columns import Schema
    from fanrank.engine.text import get_analyzer
    from fanrank.engine.vocabulary import Encoder, Vocabulary

    schema = Schema.of(None)
    values = {name: Vocabulary() for name in schema.categories}
    encoder = Encoder(get_analyzer("minimal"), Vocabulary(["a", "b"]))
    return build_segment(records, encoder, ("text",), schema, values, weight_terms=Vocabulary(["x", "y"]))


def test_a_segments_documents_are_chosen_with_all_they_have() -> None:
    records = [
        Record("r0", "a", embedding=[[1, 0], [0, 1]], weights={"x": 1.0}),
        Record("r1", "b"),
        Record("r2", "a b", embedding=[3, 4], weights={"x": 2.0, "y": 0.5}),
    ]
    whole = built(records)
    assert isinstance(whole.vectors, Vectors)
    assert whole.vectors.offsets.tolist() == [0, 2, 2, 3]
    np.testing.assert_array_equal(whole.vectors.matrix, np.array([[1, 0], [0, 1], [0.6, 0.8]], dtype=np.float16))
    for kept in ([True, False, True], [False, True, True], [False, True, False], [False] * 3, [True] * 3):
        mask = np.array(kept)
        one = select_documents(whole, mask)
        other = built([record for record, keeps in zip(records, kept, strict=True) if keeps])
        assert (one.vectors is None) == (other.vectors is None) == (not mask[[0, 2]].any())
        assert (one.learned is None) == (other.learned is None) == (not mask[[0, 2]].any())
        if one.vectors is not None and one.learned is not None and other.learned is not None:
            np.testing.assert_array_equal(one.vectors.matrix, other.vectors.matrix)
            np.testing.assert_array_equal(one.vectors.offsets, other.vectors.offsets)
            np.testing.assert_array_equal(one.learned.terms, other.learned.terms)
            np.testing.assert_array_equal(one.learned.documents, other.learned.documents)
            np.testing.assert_array_equal(one.learned.frequencies(), other.learned.frequencies())
            assert one.learned.ids is one.ids
        text = select_documents(whole, mask, text_only=True)
        assert (text.vectors, text.learned) == (None, None)
        assert text.terms.tolist() == one.terms.tolist()
    assert built(records[1:2]).nested.postings == 0
    assert built(records[1:2]).nested.size == 1


rows = st.integers(1, 40).flatmap(
    lambda d: st.lists(
        st.lists(st.floats(-1e4, 1e4, width=32), min_size=d, max_size=d).filter(lambda row: max(map(abs, row)) > 1e-6),
        min_size=1,
        max_size=4,
    )
)


@given(rows)
@settings(deadline=None)
def test_what_is_normalised_once_keeps_its_bits(given_rows: list[list[float]]) -> None:
    once = unit_rows(given_rows)
    for row, found in zip(given_rows, once.tolist(), strict=True):
        length = math.sqrt(math.fsum(x * x for x in row))
        assert all(abs(x / length - y) <= max(abs(y) * 2.0**-10, 2.0**-24) for x, y in zip(row, found, strict=True))
        assert abs(math.sqrt(math.fsum(y * y for y in found)) - 1.0) <= UNIT
    for again in (once, once.astype(np.float64), once.tolist(), np.asfortranarray(once)):
        assert unit_rows(again).tobytes() == once.tobytes()
    record = Record("a", "x", embedding=given_rows)
    assert record.embedding.tobytes() == once.tobytes()
    assert not record.embedding.flags.writeable
    back = decode("", encode(record))
    assert (back.embedding.tobytes(), back.embedding.shape, back.embedding.dtype) == (
        once.tobytes(),
        once.shape,
        np.float16,
    )
    assert not back.embedding.flags.writeable
    assert dataclasses.replace(back, namespace="n").embedding.tobytes() == once.tobytes()
    query = fr.Query("x", vector=given_rows[0])
    assert query.vector.tobytes() == once[0].tobytes()
    assert query.vector.shape == (1, len(given_rows[0]))
    assert dataclasses.replace(query, k=3).vector.tobytes() == once[0].tobytes()


def test_some_rows_do_move_when_they_are_normalised_twice() -> None:
    """Else the rule that keeps them would be for nothing."""
    from fanrank.engine.dense.vectors import normalized

    rng = np.random.default_rng(1)
    once = normalized(rng.normal(size=(20_000, 3)))
    assert (normalized(once) != once).any()
    assert unit_rows(once).tobytes() == once.tobytes()


def test_halves_of_another_length_are_made_unit() -> None:
    np.testing.assert_array_equal(unit_rows(np.array([3, 4], dtype=np.float16)), np.array([[0.6, 0.8]], np.float16))
    np.testing.assert_array_equal(unit_rows([[3, 4], [0, 1]]), np.array([[0.6, 0.8], [0, 1]], np.float16))
    assert unit_rows([70_000.0, 0.0]).tolist() == [[1.0, 0.0]]  # beyond float16
    assert unit_rows([2**70, 0]).tolist() == [[1.0, 0.0]]
    # Exact in its first components alone.
    row = [0.0] * 16 + [0.1, 1.0]
    assert unit_rows(row).tolist() == [np.float16(np.array(row) / math.sqrt(1.01)).tolist()]


def test_a_record_in_itself() -> None:
    record = Record("a", "x", passages=["one", "two"], embedding=[[1, 0], [0, 2]], weights={"x": np.float32(0.5)})
    assert record.passages == ("one", "two")
    assert record.weights == {"x": 0.5}
    assert type(record.weights["x"]) is float
    assert record == Record("a", "x", passages=("one", "two"), weights={"x": 0.5})
    assert "embedding" not in repr(record)
    assert decode("", encode(record)) == record
    assert repr(decode("", encode(record))) == repr(record)
    mapped = Record.from_dict({"id": "a", "text": "x", "passages": ["p"], "embedding": [3, 4], "weights": {}})
    assert (mapped.passages, mapped.weights, mapped.embedding.tolist()) == (("p",), {}, unit_rows([3, 4]).tolist())
    assert decode("", encode(mapped)).weights == {}
    nothing = Record.from_dict({"id": "a", "text": "x", "passages": None, "embedding": None, "weights": None})
    assert nothing == Record("a", "x")
    query = fr.Query("x", vector=[1.0], model="m", weights={"x": 2}, type="multi-hop")
    assert (query.model, query.weights, query.type) == ("m", {"x": 2.0}, "multi-hop")
    assert query == fr.Query("x", model="m", weights={"x": 2}, type="multi-hop")
    assert "vector" not in repr(query)


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"passages": []}, "no passages"),
        ({"passages": "text"}, "'passages' must be a sequence of strings, not str"),
        ({"passages": 7}, "'passages' must be a sequence of strings, not int"),
        ({"passages": ["a", 7]}, "passage 1 must be a string, not int"),
        ({"embedding": [1.0, NAN]}, "'embedding' holds a value that is not finite"),
        ({"embedding": [[1.0, 0.0], [0.0, math.inf]]}, "'embedding' holds a value that is not finite"),
        ({"embedding": [0.0, 0.0]}, "'embedding' has length 0, which is no direction"),
        ({"embedding": []}, "'embedding' must have from 1 to"),
        ({"embedding": np.zeros((0, 3))}, "'embedding' has no row"),
        ({"embedding": 7.0}, "'embedding' must be rows of numbers"),
        ({"embedding": np.ones((1, 2, 3))}, "'embedding' must be rows of numbers"),
        ({"embedding": [[1.0], [1.0, 2.0]]}, "'embedding' must be numbers, all rows of one length"),
        ({"embedding": "words"}, "'embedding' must be numbers"),
        ({"embedding": [1j, 1]}, "'embedding' must be"),
        ({"embedding": [[1.0], [2.0]], "passages": ["a"]}, "'embedding' must have a row for each of 1 passages, not 2"),
        ({"weights": [("a", 1)]}, "'weights' must map terms to numbers, not list"),
        ({"weights": {7: 1.0}}, "'weights' must have strings as terms, not 7"),
        ({"weights": {"a": NAN}}, "'weights' must be finite and 0 or more, not nan as that of 'a'"),
        ({"weights": {"a": -0.5}}, "'weights' must be finite and 0 or more, not -0.5"),
        ({"weights": {"a": 10**400}}, "'weights' must be finite"),
        ({"weights": {"a": True}}, "'weights' must map terms to numbers, not 'a' to True"),
        ({"weights": {"a": "1"}}, "'weights' must map terms to numbers"),
        ({"weights": {"\ud800": 1.0}}, "'weights' must have terms without lone surrogates"),
    ],
)
def test_bad_records_and_queries(values: dict[str, Any], match: str) -> None:
    with pytest.raises(fr.RecordError, match=f"id 'm7': {match}"):
        Record("m7", "x", **values)
    asked = {"vector" if name == "embedding" else name: value for name, value in values.items()}
    if "passages" not in asked:
        with pytest.raises(fr.QueryError, match="a query's " + match.replace("embedding", "vector")):
            fr.Query("x", **asked)


def test_bad_queries() -> None:
    with pytest.raises(fr.QueryError, match="'vector' must be one vector, not 2"):
        fr.Query("x", vector=[[1.0], [1.0]])
    for name in ("model", "type"):
        with pytest.raises(fr.QueryError, match=f"'{name}' must be a string, not int"):
            fr.Query("x", **{name: 7})  # type: ignore[arg-type]


def test_a_passage_that_no_file_can_store(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path) as engine:
        with pytest.raises(
            fr.RecordError, match="'m7': 'text', 'passages', 'fields' or 'extra' holds a lone surrogate"
        ):
            engine.add([Record("m7", "x", passages=["\ud800"])])
        assert len(engine) == 0


def given_by(road: str, records: Sequence[Record], engine: fr.Engine) -> None:
    """Give these records, each with one row, to the engine."""
    bare = [dataclasses.replace(record, embedding=None) for record in records]
    given_vectors: Any = None
    if road == "array":
        given_vectors = np.array([record.embedding[0] for record in records])
    elif road == "mapping":
        given_vectors = {record.id: record.embedding[0] for record in reversed(records)}
    engine.add(iter(bare if given_vectors is not None else records), vectors=given_vectors)


@pytest.mark.parametrize("chunk", [1, 3, 1024])
@pytest.mark.parametrize("road", ["own", "array", "mapping"])
def test_vectors_come_by_three_roads(road: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "CHUNK", chunk)
    monkeypatch.setattr(memory, "BUILD_CHUNK", 4)
    rng = np.random.default_rng(3)
    records = [Record(f"r{n}", "a", "n" if n % 3 else "", embedding=rng.normal(size=D)) for n in range(11)]
    engine = fr.Engine(encoder=own())
    given_by(road, records, engine)
    assert bits(engine) == {(r.namespace, r.id): unit_rows(r.embedding).tobytes() for r in records}


@pytest.mark.parametrize("chunk", [1, 3, 1024])
def test_what_has_no_vector_is_encoded(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "CHUNK", chunk)
    encoder = Letters()
    engine = fr.Engine(encoder=encoder)
    records = [
        Record("r0", "a b"),
        Record("r1", "a", embedding=[1, 0, 0, 0, 0]),
        Record("r2", "a", passages=["c", "dd", ""]),
        Record("r3", "e"),
        Record("r4", "c"),
    ]
    engine.add(records, vectors={"r4": [0, 2, 0, 0, 0]})
    expected = {
        "r0": [Letters.one("a b")],
        "r1": [[1, 0, 0, 0, 0]],
        "r2": [Letters.one(text) for text in ("c", "dd", "")],
        "r3": [Letters.one("e")],
        "r4": [[0, 1, 0, 0, 0]],
    }
    wanted = {("", name): unit_rows(np.array(held, dtype=np.float32)).tobytes() for name, held in expected.items()}
    assert bits(engine) == wanted
    assert [text for batch in encoder.asked for text in batch] == ["a b", "c", "dd", "", "e"]
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
    monkeypatch.setattr(embed, "CHUNK", 8)
    monkeypatch.setattr(memory, "BUILD_CHUNK", 20)
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
    waiting = embedded(source(), engine.pin, encoder)
    encoder.asked.clear()
    read = 0
    next(waiting)
    assert read == 8


def test_small_batches_are_encoded_before_the_lock_is_taken() -> None:
    engine = fr.Engine()

    class Looking(Letters):
        def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
            held.append(engine._memory._writing.locked())
            return super().documents(texts)

    held: list[bool] = []
    engine = fr.Engine(encoder=Looking())
    engine.add([Record("a", "a")])
    engine.update([Record("a", "b")])
    assert held == [False, False]


def refused(engine: fr.Engine, error: type[Exception], match: str, act: Callable[[], object]) -> None:
    """The call fails by name, and the engine is as before."""
    before = bits(engine), engine.stats(), len(engine._memory.weight_terms), engine._memory.snapshots
    with pytest.raises(error, match=match):
        act()
    assert (bits(engine), engine.stats(), len(engine._memory.weight_terms), engine._memory.snapshots) == before


@pytest.mark.parametrize("durable", [False, True])
def test_vectors_that_do_not_fit(durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "CHUNK", 2)
    engine = fr.Engine.open(tmp_path, encoder=own()) if durable else fr.Engine(encoder=own())
    with engine:
        engine.add([Record("held", "a", embedding=np.ones(D), weights={"x": 1})])
        three = [Record(f"r{n}", "new", weights={f"w{n}": 1}) for n in range(3)]
        good = np.ones((3, D))
        wrong = good.copy()
        wrong[2, 1] = NAN
        zero = good.copy()
        zero[1] = 0
        for vectors_given, error, match in (
            (good[:2], fr.RecordError, "id 'r2': 'vectors' has 2 rows, and there are more records"),
            (np.ones((4, D)), fr.RecordError, "'vectors' has 4 rows, and there are 3 records"),
            (np.ones((3, 4)), fr.RecordError, "id 'r0': 'embedding' has 4 dimensions, and .* 'own' has 5"),
            (np.ones(D), fr.RecordError, r"'vectors' must be \[records, dimension\].* not of shape \(5,\)"),
            ([[1.0], [1.0, 2.0]], fr.RecordError, "'vectors' must be numbers"),
            (7, fr.RecordError, "'vectors' must be"),
            (wrong, fr.RecordError, "id 'r2': 'vectors' holds a value that is not finite"),
            (zero, fr.RecordError, "id 'r1': 'vectors' has length 0"),
            ({"r1": np.ones(D), "r9": np.ones(D)}, fr.UnknownIdError, "'vectors' holds one for 'r9'"),
            ({"held": np.ones(D)}, fr.UnknownIdError, "'held'"),
            ({"r1": np.ones(4)}, fr.RecordError, "id 'r1': 'embedding' has 4 dimensions"),
            ({"r1": np.zeros(D)}, fr.RecordError, "id 'r1': 'vectors' has length 0"),
            ({"r1": np.ones((2, 2, 2))}, fr.RecordError, "id 'r1': 'vectors' must be rows"),
        ):  # fmt: skip
            for records in (three, iter(three)):
                refused(engine, error, match, lambda: engine.add(records, vectors=vectors_given))  # noqa: B023
            refused(engine, error, match, lambda: engine.update(three, vectors=vectors_given, insert=True))  # noqa: B023
        match = "id 'r1': has an embedding, and one in 'vectors'"
        both = [Record("r0", "a"), Record("r1", "a", embedding=np.ones(D)), Record("r2", "a")]
        refused(engine, fr.RecordError, match, lambda: engine.add(both, vectors=good))
        refused(engine, fr.RecordError, match, lambda: engine.add(both, vectors={"r1": np.ones(D)}))
        match = "'r1': 'embedding' has 2 dimensions, and the engine's model 'own' has 5"
        refused(engine, fr.RecordError, match, lambda: engine.add([both[0], Record("r1", "a", embedding=[1, 2])]))
        match = "id 'p': 'embedding' must have a row for each of 2 passages, not 1"
        pair = [Record("p", "a", passages=["x", "y"])]
        refused(engine, fr.RecordError, match, lambda: engine.add(pair, vectors=np.ones((1, D))))
        refused(engine, fr.RecordError, match, lambda: engine.add(pair, vectors={"p": np.ones(D)}))
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
            refused(engine, fr.RecordError, r"id 'r1': has an embedding.*OwnVectors", lambda: engine.add(one))  # noqa: B023
            match = "'vectors' were given to an engine without an encoder"
            refused(engine, fr.RecordError, match, lambda: engine.add(one[:1], vectors=[[1, 2]]))  # noqa: B023
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
        (lambda texts: np.array([[1.0] * D, [NAN] * D]), fr.RecordError, "id 'r1': what 'letters' made of it holds a"),
        (lambda texts: np.zeros((2, D)), fr.RecordError, "id 'r0': what 'letters' made of it has length 0"),
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
    with pytest.raises(fr.ParameterError, match=match):
        fr.Engine(encoder=Letters(**change))
    with pytest.raises(fr.ParameterError, match="encoder must be a model's name, or an object"):
        fr.Engine(encoder=object())  # type: ignore[arg-type]


def test_a_name_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = types.ModuleType("fanrank.engine.dense.sentence")
    sentence.resolve = Letters  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, sentence.__name__, sentence)
    engine = fr.Engine(encoder="some-model")
    assert isinstance(engine.encoder, Letters)
    assert engine.pin == {"name": "some-model", "version": "1", "dimension": D}


PINNED = {"name": "letters", "version": "1", "dimension": D}


@pytest.mark.parametrize("road", ["directory", "saved"])
def test_the_pin_is_kept_and_another_model_refused(road: str, tmp_path: Path) -> None:
    def opened(**options: Any) -> fr.Engine:
        if road == "directory":
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
    assert issubclass(ModelMismatchError, fr.ParameterError)
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
        refused(engine, fr.RecordError, match, lambda: engine.add([Record("d", "d")]))
        refused(engine, fr.RecordError, "6 dimensions", lambda: engine.add([Record("d", "d", embedding=np.ones(6))]))
        engine.save(tmp_path / "again")
    assert fr.Engine.load(tmp_path / "again").pin == PINNED


def test_what_was_made_without_an_encoder_takes_none(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "memory") as engine:
        engine.add([Record("a", "a b")])
        engine.save(tmp_path / "saved")
    with pytest.raises(fr.ParameterError, match=r"memory: was made without such an encoder.*new engine"):
        fr.Engine.open(tmp_path / "memory", encoder=Letters())
    with pytest.raises(fr.ParameterError, match="saved: was made without such an encoder"):
        fr.Engine.load(tmp_path / "saved", encoder=Letters())
    with fr.Engine.open(tmp_path / "memory") as engine:  # and its lock is free
        assert engine.pin is None


def test_nothing_is_encoded_again(tmp_path: Path) -> None:
    class Silent(Letters):
        def documents(self, texts: Sequence[str], *, progress: bool = False) -> Any:
            raise AssertionError("the stored rows are the truth")

    with fr.Engine.open(tmp_path, encoder=Letters()) as engine:
        engine.add([Record(f"r{n}", "abc"[: n % 4], passages=["a", "b"] if n % 2 else None) for n in range(9)])
        engine.delete(["r4"])
        wanted = bits(engine)
        assert all(wanted.values())
    shutil.rmtree(tmp_path / "index")
    for _ in range(2):
        with fr.Engine.open(tmp_path, encoder=Silent()) as engine:
            assert bits(engine) == wanted


@pytest.mark.parametrize("point", ["write.begin", "write.records", "write.commit"])
def test_a_commit_that_fails_leaves_no_weight_term(point: str, tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path, encoder=own()) as engine:
        engine.add([Record("a", "a", embedding=np.ones(D), weights={"x": 1})])

        def full() -> None:
            raise OSError("disk full")

        failpoints.arm(point, action=full)
        new = [Record("b", "b", embedding=np.ones(D), weights={"y": 1, "a": 2})]
        refused(engine, fr.StorageError, "disk full", lambda: engine.add(new))
        failpoints.disarm()
        engine.add(new)
        assert engine._memory.weight_terms.strings == ["x", "a", "y"]
        assert weights(engine) == {("", "a"): {"x": 1024}, ("", "b"): {"a": 2048, "y": 1024}}


def test_a_batch_that_fails_late_leaves_no_weight_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "BUILD_CHUNK", 1)
    engine = fr.Engine(columns={"project": "category"})
    engine.add([Record("a", "a", weights={"x": 1})])
    late = [Record("b", "b", weights={"y": 1}), Record("c", "c", extra={"project": 7})]
    refused(engine, fr.RecordError, "project", lambda: engine.add(late))
    refused(engine, fr.DuplicateIdError, "already taken", lambda: engine.add([late[0], Record("a", "a")]))


# Files.


def some_engine(**options: Any) -> fr.Engine:
    engine = fr.Engine(**options)
    engine.add([Record("a", "a b", session="s", time=1.0), Record("b", "b")])
    engine.add([Record("c", "a", "n")])
    return engine


def manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / files.MANIFEST).read_text(encoding="utf-8"))
    return found


BEFORE = {
    "shapes", "terms", "offsets", "documents", "kinds", "kind_frequencies", "kind_lengths", "lengths", "id_hashes",
    "id_order", "category_session", "number_time", "ids_block", "ids_offsets",
}  # fmt: skip


def test_an_index_without_vectors_is_what_it_was(tmp_path: Path) -> None:
    some_engine().save(tmp_path / "plain")
    found = manifest(tmp_path / "plain")
    assert found["version"] == 2
    assert "encoder" not in found["settings"]
    assert set(found["lengths"]) == {"vocabulary", *(f"values_{name}" for name in some_engine().schema.categories)}
    assert [set(part["arrays"]) for part in found["parts"]] == [BEFORE]
    assert found["parts"][0]["arrays"]["shapes"]["shape"] == [2, 4]
    assert fr.Engine.load(tmp_path / "plain").stats()["vectors"] == 0


@pytest.mark.parametrize("what", ["vectors", "weights", "encoder"])
def test_an_index_with_more_is_of_its_own_version(what: str, tmp_path: Path) -> None:
    """So that a fanrank that knows of none of it refuses it, rather than leave it out."""
    engine = some_engine(encoder=None if what == "weights" else own())
    if what == "vectors":
        engine.add([Record("v", "a", embedding=np.ones(D))])
    elif what == "weights":
        engine.add([Record("v", "a", weights={"x": 1})])
    engine.save(tmp_path / "saved")
    found = manifest(tmp_path / "saved")
    assert found["version"] == files.VERSION == 3
    more = {name for part in found["parts"] for name in part["arrays"]} - BEFORE
    assert (
        more
        == {
            "vectors": {"vectors", "vector_offsets"},
            "weights": {f"learned_{name}" for name in BEFORE if name in segment_arrays()},
            "encoder": set(),
        }[what]
    )
    assert found["lengths"].get("weight_terms") == (1 if what == "weights" else None)
    loaded = fr.Engine.load(tmp_path / "saved")
    assert bits(loaded) == bits(engine)
    assert weights(loaded) == weights(engine)
    assert loaded.pin == engine.pin


def segment_arrays() -> set[str]:
    return {"shapes", "terms", "offsets", "documents", "kinds", "kind_frequencies", "kind_lengths"}


def base_of(array: Any) -> Any:
    while isinstance(array, np.ndarray) and array.base is not None and not isinstance(array, np.memmap):
        array = array.base
    return array


def test_vectors_are_mapped_and_checked(tmp_path: Path) -> None:
    engine = fr.Engine(encoder=own())
    engine.add([Record(f"r{n}", "a", embedding=np.eye(D)[n], weights={"x": 1}) for n in range(4)])
    engine.save(tmp_path / "saved")
    loaded = fr.Engine.load(tmp_path / "saved")
    (part,) = segments_of(loaded)
    assert part.vectors is not None
    assert part.learned is not None
    for array in (part.vectors.matrix, part.vectors.offsets, part.learned.documents, part.learned.terms):
        assert isinstance(base_of(array), np.memmap)
    for pattern in ("part_vectors.*", "part_vector_offsets.*", "part_learned_kinds.*", "strings_weight_terms_block.*"):
        (file,) = (tmp_path / "saved").glob(pattern)
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(fr.DamagedIndexError, match="altered since it was written"):
            fr.Engine.load(tmp_path / "saved")
        file.write_bytes(content)
    whole = manifest(tmp_path / "saved")
    for name in ("vectors", "vector_offsets", *(f"learned_{name}" for name in segment_arrays())):
        changed = json.loads(json.dumps(whole))
        del changed["parts"][0]["arrays"][name]
        changed["checksum"] = files._manifest_checksum(changed)
        (tmp_path / "saved" / files.MANIFEST).write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(fr.DamagedIndexError):
            fr.Engine.load(tmp_path / "saved")


def test_a_checkpoint_writes_only_the_new_vectors(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path, encoder=own()) as engine:
        engine.add([Record(f"r{n}", "a", embedding=np.eye(D)[n % D] + n, weights={"x": 1}) for n in range(40)])
        engine.flush()
        before = {file.name for file in (tmp_path / "index").glob("part_vectors.*")}
        engine.add([Record("new", "a", embedding=np.ones(D), weights={"y": 1})])
        engine.flush()
        after = {file.name for file in (tmp_path / "index").glob("part_vectors.*")}
        assert before < after
        wanted = bits(engine), weights(engine)
    with fr.Engine.open(tmp_path) as engine:
        assert engine.opened == "loaded"
        assert (bits(engine), weights(engine)) == wanted


# The store.


def written(path: Path) -> None:
    with RecordStore.open(path) as made:
        records = [
            Record("m0", "tea", embedding=[[3, 4], [1, 0]], passages=["a", "b"], weights={"x": 0.5}),
            Record("m1", "prefers tea", embedding=[1, 1]),
            Record("m2", "coffee"),
            Record("m3", "tea", embedding=[1, 1]),
        ]
        made.write([[Change("", added=[encode(record) for record in records])]])


def altered(path: Path, *statements: str) -> None:
    raw = sqlite3.connect(path / RECORDS)
    for statement in statements:
        raw.execute(statement)
    raw.commit()
    raw.close()


@pytest.mark.parametrize(
    "change",
    [
        "vectors = NULL WHERE id = 'm1'",
        "vectors = X'' WHERE id = 'm1'",
        "vectors = X'00000000' WHERE id = 'm1'",
        "vectors = 7 WHERE id = 'm1'",
        "vectors = CAST('words' AS TEXT) WHERE id = 'm1'",
        "vectors = substr(vectors, 1, 6) WHERE id = 'm1'",
        "vectors = CAST(vectors || X'3c00' AS BLOB) WHERE id = 'm1'",
        "vectors = (SELECT vectors FROM records WHERE id = 'm3') WHERE id = 'm1'",
        "vectors = (SELECT vectors FROM records WHERE id = 'm0') WHERE id = 'm1'",
        "data = replace(data, '\"rows\":1', '\"rows\":2') WHERE id = 'm1'",
        "data = replace(data, ',\"rows\":1', '') WHERE id = 'm1'",
        "data = replace(data, '0.5', '0.6') WHERE id = 'm0'",
        "vectors = X'' WHERE id = 'm2'",
        "vectors = (SELECT vectors FROM records WHERE id = 'm1') WHERE id = 'm2'",
    ],
)
def test_a_damaged_vector_is_named(change: str, tmp_path: Path) -> None:
    written(tmp_path)
    altered(tmp_path, f"UPDATE records SET {change}")
    name = change[-3:-1]
    with RecordStore.open(tmp_path) as made:
        for use in (lambda: made.fetch("", [name]), lambda: list(made.changes_after(0))):
            with pytest.raises(fr.DamagedStoreError, match=f"id '{name}' w.* altered.*restore the file from a copy"):
                use()
        others = [other for other in ("m0", "m1", "m2", "m3") if other != name]
        assert None not in made.fetch("", others)
        if "data" not in change:
            # What looks for words reads no vectors.
            assert [hit for hit, _ in made.keyword_scan("", ["tea"], 9)] == ["m3", "m1", "m0"]


def test_one_flipped_bit_of_a_vector(tmp_path: Path) -> None:
    written(tmp_path)
    raw = sqlite3.connect(tmp_path / RECORDS)
    (content,) = raw.execute("SELECT vectors FROM records WHERE id = 'm1'").fetchone()
    assert content[4:] == unit_rows([1, 1]).tobytes()
    for place in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        raw.execute("UPDATE records SET vectors = ? WHERE id = 'm1'", (bytes(flipped),))
        raw.commit()
        with (
            RecordStore.open(tmp_path, read_only=True) as made,
            pytest.raises(fr.DamagedStoreError, match="the vectors of the record with id 'm1' were altered"),
        ):
            made.fetch("", ["m1"])
    raw.close()


def test_damage_is_found_when_the_index_is_rebuilt(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path, encoder=own()) as engine:
        engine.add([Record("m1", "a", embedding=np.ones(D))])
    altered(tmp_path, "UPDATE records SET vectors = NULL")
    shutil.rmtree(tmp_path / "index")
    with pytest.raises(fr.DamagedStoreError, match="'m1'"):
        fr.Engine.open(tmp_path)


def test_words_are_looked_for_without_the_vectors(tmp_path: Path) -> None:
    written(tmp_path)
    seen: list[Record] = []
    with RecordStore.open(tmp_path) as made:
        made.keyword_scan("", ["tea"], 9, lambda record: bool(seen.append(record)))
    assert [record.id for record in seen] == ["m3", "m1", "m0"]
    assert [record.embedding for record in seen] == [None] * 3
    assert seen[2].passages == ("a", "b")


OLD_SCHEMA = (
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE namespaces(number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE records(sequence INTEGER PRIMARY KEY, namespace INTEGER NOT NULL, id TEXT NOT NULL,"
    " checksum INTEGER NOT NULL, data TEXT NOT NULL)",
    "CREATE UNIQUE INDEX record_ids ON records(namespace, id)",
    "CREATE TABLE deletions(sequence INTEGER PRIMARY KEY, namespace INTEGER NOT NULL, id TEXT)",
    "PRAGMA application_id=1717661298",
    "PRAGMA user_version=1",
    "PRAGMA journal_mode=WAL",
)


def old_store(path: Path, config: Mapping[str, Any] | None) -> None:
    """A directory as version 1 made it."""
    path.mkdir()
    raw = sqlite3.connect(path / RECORDS)
    for statement in OLD_SCHEMA:
        raw.execute(statement)
    raw.execute("INSERT INTO namespaces VALUES (1, 'n')")
    for sequence, (name, data) in enumerate([("a", '{"text":"old tea"}'), ("b", '{"text":"tea","role":"user"}')], 1):
        checksum = zlib.crc32(data.encode(), zlib.crc32(f"n\0{name}".encode()))
        raw.execute("INSERT INTO records VALUES (?, 1, ?, ?, ?)", (sequence, name, checksum, data))
    raw.execute("INSERT INTO deletions VALUES (3, 1, 'c')")
    if config is not None:
        value = json.dumps(config, separators=(",", ":"))
        rows_of_meta = ("config", value, "checksum", zlib.crc32(value.encode()))
        raw.execute("INSERT INTO meta VALUES (?, ?), (?, ?)", rows_of_meta)
    raw.commit()
    raw.close()


def version(path: Path) -> tuple[int, list[str]]:
    raw = sqlite3.connect(path / RECORDS)
    found = (
        raw.execute("PRAGMA user_version").fetchone()[0],
        [row[1] for row in raw.execute("PRAGMA table_info(records)")],
    )
    raw.close()
    return found


OLD = [Record("a", "old tea", "n"), Record("b", "tea", "n", role="user")]


def test_a_store_of_version_1(tmp_path: Path) -> None:
    old_store(tmp_path / "old", None)
    with RecordStore.open(tmp_path / "old", read_only=True) as reader:
        assert reader.fetch("n", ["b", "a", "c"]) == [OLD[1], OLD[0], None]
        assert [run.added for run in reader.changes_after(0)] == [OLD]
        assert reader.keyword_scan("n", ["old"], 5) == [("a", 1)]
        assert version(tmp_path / "old")[0] == 1
        with RecordStore.open(tmp_path / "old") as writer:
            assert version(tmp_path / "old") == (2, ["sequence", "namespace", "id", "checksum", "data", "vectors"])
            assert writer.sequence == 3
            new = Record("c", "new", "n", embedding=[3, 4])
            writer.write([[Change("n", added=[encode(new)])]])
            for made in (reader, writer):  # the reader, opened before, sees the column come
                *before, found = made.fetch("n", ["a", "b", "c"])
                assert before == OLD
                assert found is not None
                assert found.embedding.tobytes() == new.embedding.tobytes()
                assert [record.id for run in made.changes_after(0) for record in run.added] == ["a", "b", "c"]
    with RecordStore.open(tmp_path / "old") as again:
        assert again.fetch("n", ["a"]) == OLD[:1]


def test_an_engine_over_a_store_of_version_1(tmp_path: Path) -> None:
    old_store(tmp_path / "old", {**fr.Engine(analyzer="minimal")._config(), "store": "0123"})
    with fr.Engine.open(tmp_path / "old", read_only=True) as reader:
        assert reader.search([fr.Query("old", namespace="n")]).ids[0, 0] == "a"
        assert reader.fetch(["a"], namespace="n") == OLD[:1]
        assert version(tmp_path / "old")[0] == 1
    with pytest.raises(fr.ParameterError, match="was made without such an encoder"):
        fr.Engine.open(tmp_path / "old", encoder=own())
    with fr.Engine.open(tmp_path / "old") as engine:
        assert engine.pin is None
        engine.add([Record("c", "new", "n", weights={"x": 1}, passages=["p"])])
    with fr.Engine.open(tmp_path / "old") as engine:
        assert engine.opened == "loaded"
        assert engine.stats()["weights"] == 1
        assert engine.verify() == {"records": 3, "missing": 0, "extra": 0}


def test_a_migration_that_fails_leaves_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old_store(tmp_path / "old", None)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_MIGRATION", (*store._MIGRATION, "CREATE TABLE records(sequence)"))
        with pytest.raises(fr.StorageError):
            RecordStore.open(tmp_path / "old")
    assert version(tmp_path / "old") == (1, ["sequence", "namespace", "id", "checksum", "data"])
    with RecordStore.open(tmp_path / "old") as made:
        assert made.fetch("n", ["a"]) == OLD[:1]
