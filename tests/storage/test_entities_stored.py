"""What records say of entities lives and dies with them: equal to the plain list of live records by every path."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import borders
from support.entity_cases import check, plain_statements, stated

import fanrank as fr
from fanrank.engine.index.build import build_segment
from fanrank.engine.index.columns import Schema
from fanrank.engine.index.segment import Segment, merge_segments, select_documents
from fanrank.engine.records.entities import Relation, parse_term, terms_of
from fanrank.engine.records.record import Record
from fanrank.engine.storage import failpoints
from fanrank.engine.storage import index_files as files
from fanrank.engine.storage.record_store import Change, RecordStore
from fanrank.engine.storage.row_codec import ENTITIES_VERSION, PLAIN_VERSION, RECORDS, encode
from fanrank.engine.text.analyzers import get_analyzer
from fanrank.engine.text.vocabulary import TermIndexer, Vocabulary


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def built(records: list[Record], terms: Vocabulary) -> Segment:
    schema = Schema.of(None)
    values = {name: Vocabulary() for name in schema.categories}
    encoder = TermIndexer(get_analyzer("minimal"), Vocabulary(["a", "b"]))
    return build_segment(records, encoder, ("text",), schema, values, None, Vocabulary(["x"]), terms)


def said_by(segment: Segment, terms: Vocabulary) -> list[set[Any]]:
    """What each document says."""
    inner = segment.nested("entities")
    found: list[set[Any]] = [set() for _ in range(segment.size)]
    for place, term in enumerate(inner.terms.tolist()):
        for document in inner.documents[slice(*inner.offsets[place : place + 2].tolist())].tolist():
            found[document].add(parse_term(terms.strings[term]))
    return found


EDGE = Relation("ana", "ben", "knows", valid_to=9.0)
FOUR = [
    Record("r0", "a", entities={"Ana": "ana"}, weights={"x": 1.0}),
    Record("r1", "b"),
    Record("r2", "a b", relations=[EDGE]),
    Record("r3", "", entities=["ana", "cy"]),
]


def test_a_segment_and_its_terms() -> None:
    terms = Vocabulary()
    whole = built(FOUR, terms)
    assert terms.strings == sorted({term for record in FOUR for term in terms_of(record.entities, record.relations)})
    assert said_by(whole, terms) == [plain_statements(record) for record in FOUR]
    assert whole.entities is not None
    assert whole.entities.terms.dtype == whole.entities.documents.dtype == np.int32
    assert whole.entities.class_frequencies.tolist() == [[1]]
    assert whole.entities.ids is whole.ids
    # The words have no part in it, and it has none in them.
    assert whole.terms.tolist() == built([Record(r.id, r.text) for r in FOUR], Vocabulary()).terms.tolist()
    assert built([Record("r", "a", entities={}, relations=[])], Vocabulary()).entities is None


def test_a_segments_documents_are_chosen_with_what_they_say() -> None:
    terms = Vocabulary()
    whole = built(FOUR, terms)
    for bits in range(16):
        kept = np.array([bool(bits >> place & 1) for place in range(4)])
        chosen = select_documents(whole, kept)
        wanted = [plain_statements(record) for record, keeps in zip(FOUR, kept, strict=True) if keeps]
        assert said_by(chosen, terms) == wanted
        assert (chosen.entities is None) == (not any(wanted))
        assert (chosen.learned is None) == (not kept[0])
        text = select_documents(whole, kept, text_only=True)
        assert (text.entities, text.learned) == (None, None)
        gone = None if kept.all() else ~kept
        merged = merge_segments([whole, whole, built([FOUR[1]], terms)], [gone, None, None])
        assert said_by(merged, terms) == [*wanted, *(plain_statements(record) for record in FOUR), set()]
        none = merge_segments([built([FOUR[1]], terms)] * 2)
        assert none.entities is None


@pytest.mark.parametrize("durable", [False, True])
def test_a_refused_batch_leaves_no_term(durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fr.Engine.open(tmp_path) if durable else fr.Engine() as engine:
        engine.add([Record("held", "a", entities=["ana"])])
        before = list(engine.index.memory.entity_terms.strings), stated(engine), engine.index.memory.snapshots
        new = [Record("new", "b", entities=["ben"], relations=[EDGE]), Record("held", "b")]

        def same() -> bool:
            return (
                list(engine.index.memory.entity_terms.strings),
                stated(engine),
                engine.index.memory.snapshots,
            ) == before

        with pytest.raises(fr.errors.DuplicateIdError):
            engine.add(new)
        assert same()
        with monkeypatch.context() as patch:
            borders.shrink(patch, BUILD_CHUNK=1)
            with pytest.raises(fr.errors.DuplicateIdError):  # its first chunk is built by then
                engine.add(new)
        assert same()
        if durable:
            failpoints.arm("write.records", 1, lambda: (_ for _ in ()).throw(OSError(28, "full")))
            with pytest.raises(fr.errors.StorageError):
                engine.add(new[:1])
            assert same()
            assert user_version(tmp_path) == 3
        engine.add(new[:1])
        check(engine, [Record("held", "a", entities=["ana"]), new[0]])


# Files.


def manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / files.MANIFEST).read_text(encoding="utf-8"))
    return found


ARRAYS = {"shapes", "terms", "offsets", "documents", "kinds", "kind_frequencies", "kind_lengths"}


def test_only_an_index_with_entities_is_of_their_version(tmp_path: Path) -> None:
    """So that a fanrank that knows nothing of them refuses it, and takes all others."""
    engine = fr.Engine()
    engine.add([Record("a", "a", weights={"x": 1.0}), Record("b", "b", entities=[], relations=())])
    engine.save(tmp_path)
    before = manifest(tmp_path)
    assert before["version"] == files.EVIDENCE_VERSION == 3
    assert not [name for name in before["parts"][0]["arrays"] if name.startswith("entities")]
    assert "entity_terms" not in before["lengths"]
    engine.add([FOUR[0]])
    engine.save(tmp_path)
    after = manifest(tmp_path)
    assert after["version"] == files.ENTITIES_VERSION == 4
    assert after["lengths"]["entity_terms"] == 2
    more = {name for part in after["parts"] for name in part["arrays"] if name.startswith("entities_")}
    assert more == {f"entities_{name}" for name in ARRAYS}
    check(fr.Engine.load(tmp_path), [Record("a", "a"), Record("b", "b"), FOUR[0]])
    # The terms stay in the vocabulary, and so in the files.
    engine.delete(["r0"])
    engine.index.memory._dirty |= set(engine.index.memory.snapshots)
    engine.flush()
    engine.save(tmp_path)
    assert manifest(tmp_path)["version"] == 4
    check(fr.Engine.load(tmp_path), [Record("a", "a"), Record("b", "b")])


def base_of(array: Any) -> Any:
    while isinstance(array, np.ndarray) and array.base is not None and not isinstance(array, np.memmap):
        array = array.base
    return array


def test_entities_are_mapped_and_checked(tmp_path: Path) -> None:
    engine = fr.Engine()
    engine.add(FOUR)
    engine.save(tmp_path)
    ((part,),) = (snapshot.segments for snapshot in fr.Engine.load(tmp_path).index.memory.snapshots.values())
    assert part.entities is not None
    for array in (part.entities.documents, part.entities.terms, part.entities.offsets):
        assert isinstance(base_of(array), np.memmap)
    for pattern in (*(f"part_entities_{name}.*" for name in ARRAYS), "strings_entity_terms_block.*"):
        (file,) = tmp_path.glob(pattern)
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(fr.errors.DamagedIndexError, match="altered since it was written"):
            fr.Engine.load(tmp_path)
        file.write_bytes(content)
    whole = manifest(tmp_path)
    for name in (f"entities_{name}" for name in ARRAYS):
        changed = json.loads(json.dumps(whole))
        del changed["parts"][0]["arrays"][name]
        changed["checksum"] = files._manifest_checksum(changed)
        (tmp_path / files.MANIFEST).write_text(json.dumps(changed), encoding="utf-8")
        with pytest.raises(fr.errors.DamagedIndexError):
            fr.Engine.load(tmp_path)


# The records' store.


def user_version(path: Path) -> int:
    raw = sqlite3.connect(path / RECORDS)
    (found,) = raw.execute("PRAGMA user_version").fetchone()
    raw.close()
    return int(found)


def put(to: RecordStore, *records: Record) -> None:
    to.write([[Change("", added=[encode(record) for record in records])]])


@pytest.mark.parametrize("parts", [{"entities": ["ana"]}, {"relations": [EDGE]}, {"entities": {}}, {"relations": ()}])
def test_only_a_store_with_entities_is_of_their_version(parts: dict[str, Any], tmp_path: Path) -> None:
    with RecordStore.open(tmp_path) as made:
        put(made, Record("a", "a", weights={"x": 1.0}, passages=["p"]))
        assert user_version(tmp_path) == PLAIN_VERSION == 2
    with RecordStore.open(tmp_path) as made:
        assert user_version(tmp_path) == 2
        put(made, Record("b", "b"), Record("c", "c", **parts))
        assert user_version(tmp_path) == ENTITIES_VERSION == 3
        put(made, Record("d", "d"))
        with RecordStore.open(tmp_path, read_only=True) as reader:
            assert reader.fetch("", ["c", "d"]) == [Record("c", "c", **parts), Record("d", "d")]
    with RecordStore.open(tmp_path) as made:
        assert user_version(tmp_path) == 3
        put(made, Record("e", "e", entities=["ana"]))
