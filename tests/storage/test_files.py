"""An index on disk: the same engine after loading, and a named error for everything that is not an index."""

import errno
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support import borders, history

import fanrank as fr
from fanrank.engine.storage import index_files as files

BATCH = [
    fr.Query("restart error 4711", id="q"),
    fr.Query("tea", filter={"role": "user"}),
    fr.Query("tea", filter={"session": [None, "s2"]}),
    fr.Query("error", namespace="bob"),
    fr.Query("tea", namespace="nobody"),
]


def engine(**options: Any) -> fr.Engine:
    made = fr.Engine(fields={"text": 1.0, "predicate": 2.5}, encoder=fr.OwnVectors(2), **options)
    made.add(
        [
            fr.Record("a", "error 4711 was fixed by a restart", role="tool", session="s1", time=10.5),
            fr.Record("b", "prefers tea over coffee", role="user", session="s1", fields={"predicate": "tea"}),
            fr.Record("c", "tea time", role="user", time=-3.0, namespace="bob"),
            fr.Record("ä", "", role="user"),
        ]
    )
    made.add([fr.Record("d", "tea " * 300, session="s2")])
    made.add([fr.Record("e", "error error", tool="grep", agent="x", type="log", namespace="bob")])
    made.add([fr.Record("z", "tea error 4711"), fr.Record("y", "coffee")])
    made.add([fr.Record("v", "", embedding=[1, 0], weights={"x": 1.0}, entities={"Ana": "ana"})])
    made.delete(["z"])
    return made


def answers(made: fr.Engine) -> tuple[bytes, bytes, list[list[tuple[str, float]]]]:
    hits = made.search(BATCH, 5)
    return hits.scores.tobytes(), hits.documents.tobytes(), list(hits)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    engine().save(tmp_path / "index")
    return tmp_path / "index"


def arrays(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.npy"))


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / files.MANIFEST).read_text(encoding="utf-8"))
    return found


def entries(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every array that a manifest names, by its file."""
    groups = [found["head"], *found["strings"], *(part["arrays"] for part in found["parts"])]
    return {entry["file"]: entry for group in groups for entry in group.values()}


def entry_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for file, entry in entries(found).items() if file.startswith(f"{name}."))


def stored(made: fr.Engine) -> dict[str, Any]:
    """What an engine says of what it holds, but for what it did since it was made."""
    passing = {"writes", "commits", "merges", "merged_documents", "compacted_documents", *history.ROOMY}
    return {name: value for name, value in made.stats().items() if name not in passing}


def rewrite(folder: Path, changed: dict[str, Any]) -> None:
    """Write the manifest with a right checksum."""
    changed["checksum"] = files._manifest_checksum(changed)
    (folder / files.MANIFEST).write_text(json.dumps(changed), encoding="utf-8")


@pytest.mark.parametrize("verify", [True, False])
def test_round_trip(saved: Path, verify: bool) -> None:
    before, after = engine(), fr.Engine.load(saved, verify=verify)
    assert answers(after) == answers(before)
    assert before.search(BATCH, 5).counts.tolist() == [1, 1, 1, 1, 0]
    assert before.stats()["deleted"] == 1
    assert stored(after) == stored(before)
    assert (len(after), after.namespaces) == (8, ("", "bob"))
    assert after.bm25 == before.bm25
    assert after.analyzer.name == before.analyzer.name == "agent"
    kinds = ("terms", "offsets", "documents", "impact_classes", "class_frequencies", "class_lengths", "lengths")
    for name in before.namespaces:
        held, loaded = before.index.memory.snapshots[name], after.index.memory.snapshots[name]
        assert held.statistics == loaded.statistics
        assert held.tombstones.keys() == loaded.tombstones.keys()
        for number in held.tombstones:
            np.testing.assert_array_equal(held.tombstones[number].deleted, loaded.tombstones[number].deleted)
        for one, other in zip(held.segments, loaded.segments, strict=True):
            for kind in ("categories", "numbers"):
                mine, theirs = getattr(one.columns, kind), getattr(other.columns, kind)
                assert mine.keys() == theirs.keys()
                for column in mine:
                    np.testing.assert_array_equal(mine[column], theirs[column])
            assert one.ids.strings.tolist() == other.ids.strings.tolist()
            assert [other.ids.find(i) for i in one.ids.strings.tolist()] == list(range(one.size))
            for array in kinds:
                np.testing.assert_array_equal(getattr(one, array), getattr(other, array))
                assert getattr(one, array).dtype == getattr(other, array).dtype
    assert str(after.explain("error 4711", "a")) == str(before.explain("error 4711", "a"))
    assert after.explain("tea", "b").terms[0].frequencies == {"text": 1, "predicate": 1}


def test_parameters_come_back(tmp_path: Path) -> None:
    options = {"analyzer": "lucene", "method": "bm25l", "k1": 1.7, "b": 0.3, "delta": 0.1, "query_tf": "unique"}
    before = fr.Engine.from_records([fr.Record("1", "cats and dogs")], **options)
    before.save(tmp_path / "index")
    after = fr.Engine.load(tmp_path / "index")
    assert after.analyzer.name == "lucene"
    assert {name: getattr(after.bm25, name) for name in options if name != "analyzer"} == {
        name: value for name, value in options.items() if name != "analyzer"
    }


def test_an_empty_engine(tmp_path: Path) -> None:
    fr.Engine(analyzer="minimal").save(tmp_path / "index")
    loaded = fr.Engine.load(tmp_path / "index")
    assert len(loaded) == 0
    assert loaded.search(["x"], 3).counts.tolist() == [0]
    loaded.add([fr.Record("1", "x")])
    assert loaded.search(["x"], 3).counts.tolist() == [1]


def test_a_second_save_writes_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments stay in the parts that hold them, until too little of a part is in use or there are too many parts."""
    made, directory = fr.Engine(analyzer="minimal"), files.IndexDirectory(tmp_path)
    made.add([fr.Record(f"r{n}", f"tea w{n}", role=f"role{n}") for n in range(9)])
    seen: set[str] = set()

    def save() -> tuple[int, int]:
        """(parts, files of parts that are new)."""
        nonlocal seen
        directory.save(made.index.memory.saved())
        held = {path.name for path in tmp_path.iterdir()}
        found = manifest(tmp_path)
        assert held == {files.MANIFEST} | entries(found).keys()
        again = fr.Engine.load(tmp_path)
        assert stored(again) == stored(made)
        batch = ["tea w1", "tea w8 w20", fr.Query("tea", filter={"role": "role5"})]
        assert list(again.search(batch, 50)) == list(made.search(batch, 50))
        new = {part["tag"] for part in found["parts"]} - seen
        seen |= new
        return len(found["parts"]), len(new)

    assert save() == (1, 1)
    assert save() == (1, 0)
    made.delete(["r1"])
    assert save() == (1, 0)
    made.add([fr.Record(f"r{n}", f"tea w{n}", role=f"role{n}") for n in range(9, 12)])
    assert (made.stats()["segments"], save()) == (2, (2, 1))
    # A merge leaves nothing of the older parts in use.
    made.add([fr.Record(f"r{n}", "tea") for n in range(12, 60)])
    assert (made.stats()["segments"], save()) == (1, (1, 1))
    # Less than half of a part.
    made.add([fr.Record(f"r{m}", "tea", namespace=f"n{n}") for n in range(60, 63) for m in range(3)])
    assert save() == (2, 1)
    for n in range(60, 62):
        made.drop(f"n{n}")
    assert save() == (2, 1)
    made.drop("n62")
    assert save() == (1, 0)
    # More parts than are wanted: the smaller half becomes one.
    borders.shrink(monkeypatch, MAX_PARTS=3)
    found = []
    for n in range(6):
        made.add([fr.Record("one", "tea", namespace=f"n{n}")])
        found.append(save())
    assert [new for _, new in found] == [1] * 6
    assert [parts for parts, _ in found] == [2, 3, 4, 2, 3, 4]
    # A directory that was loaded knows what it holds.
    monkeypatch.undo()
    fresh = files.IndexDirectory(tmp_path)
    loaded = fr.Engine.load(tmp_path)
    held = fresh.load()
    fresh.save(held)
    assert {part["tag"] for part in manifest(tmp_path)["parts"]} <= seen
    assert stored(fr.Engine.load(tmp_path)) == stored(loaded)


def test_nothing_is_pickled_and_arrays_are_mapped(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in arrays(saved):
        array = np.load(path, allow_pickle=False)
        assert array.dtype.kind in "iuf"
        assert list(array.shape) == entries(manifest(saved))[path.name]["shape"]
    assert {path.suffix for path in saved.iterdir()} == {".npy", ".json"}
    watched = Mock(wraps=np.load)
    monkeypatch.setattr(np, "load", watched)
    loaded = fr.Engine.load(saved)
    assert [call.kwargs.get("allow_pickle", True) for call in watched.mock_calls] == [False] * len(arrays(saved))
    segments = loaded.index.memory.snapshots[""].segments
    (vectors,) = (segment.vectors for segment in segments if segment.vectors is not None)
    (entities,) = (segment.entities for segment in segments if segment.entities is not None)
    base: Any
    for base in (segments[0].documents, vectors.matrix, vectors.offsets, entities.documents, entities.offsets):
        while base is not None and not isinstance(base, np.memmap):
            base = base.base
        assert isinstance(base, np.memmap)


def test_strings_are_never_objects(saved: Path) -> None:
    path = next(iter(arrays(saved)))
    with path.open("wb") as handle:
        np.save(handle, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    changed = manifest(saved)
    entries(changed)[path.name].update(
        bytes=path.stat().st_size, crc32=files._file_checksum(path), dtype="|O", shape=[1]
    )
    rewrite(saved, changed)
    with pytest.raises(fr.errors.DamagedIndexError):
        fr.Engine.load(saved)


def test_every_file_truncated_flipped_or_missing(saved: Path) -> None:
    assert len(arrays(saved)) > 20
    for path in arrays(saved):
        content = path.read_bytes()
        # Sizes are compared without checksums, too.
        for damage, verify in ((content[:-1], True), (content[:-1], False), (b"", False), (content + b"\0", False)):
            path.write_bytes(damage)
            with pytest.raises(fr.errors.DamagedIndexError, match=f"{path.name}.*bytes instead of.*build it again"):
                fr.Engine.load(saved, verify=verify)
        for place in {0, len(content) // 2, len(content) - 1}:
            flipped = bytearray(content)
            flipped[place] ^= 0x10
            path.write_bytes(flipped)
            with pytest.raises(fr.errors.DamagedIndexError, match=f"{path.name}.*altered"):
                fr.Engine.load(saved)
        path.unlink()
        with pytest.raises(fr.errors.DamagedIndexError, match=f"{path.name}: missing"):
            fr.Engine.load(saved)
        path.write_bytes(content)
    assert answers(fr.Engine.load(saved)) == answers(engine())


def test_an_array_of_another_type_is_noticed_without_its_checksum(saved: Path) -> None:
    entry = entry_of(manifest(saved), "part_documents")
    path = saved / entry["file"]
    other = np.load(path).view(np.float32)
    with path.open("wb") as handle:
        np.save(handle, other)
    assert path.stat().st_size == entry["bytes"]
    with pytest.raises(fr.errors.DamagedIndexError, match="not the array that the manifest names"):
        fr.Engine.load(saved, verify=False)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"format": "fanrank index"', b"[" * 100_000])
def test_manifest_that_is_not_json(saved: Path, content: bytes) -> None:
    (saved / files.MANIFEST).write_bytes(content)
    with pytest.raises(fr.errors.DamagedIndexError, match=r"manifest\.json: not valid JSON"):
        fr.Engine.load(saved)


@pytest.mark.parametrize("content", ["[]", "null", "{}", '"fanrank index"', '{"format": "other", "version": 1}'])
def test_manifest_of_something_else(saved: Path, content: str) -> None:
    (saved / files.MANIFEST).write_text(content)
    with pytest.raises(fr.errors.ForeignIndexError):
        fr.Engine.load(saved)
    before = {path.name for path in saved.iterdir()}
    with pytest.raises(fr.errors.ForeignIndexError):
        engine().save(saved)
    assert {path.name for path in saved.iterdir()} == before


def test_newer_format(saved: Path) -> None:
    changed = manifest(saved)
    changed["version"] = files.VERSION + 1
    changed["something"] = "new"
    rewrite(saved, changed)
    with pytest.raises(fr.errors.NewerFormatError, match="format 9, and this fanrank reads up to 8; upgrade"):
        fr.Engine.load(saved)
    # An older fanrank does not destroy what a newer one wrote.
    with pytest.raises(fr.errors.NewerFormatError):
        engine().save(saved)
    assert arrays(saved)


@pytest.mark.parametrize("part", ["parameters", "analyzer", "parts", "checksum"])
def test_altered_manifest(saved: Path, part: str) -> None:
    (saved / files.MANIFEST).write_text(json.dumps({**manifest(saved), part: 1}))
    with pytest.raises(fr.errors.DamagedIndexError, match="altered since it was written"):
        fr.Engine.load(saved)


def test_terms_of_earlier_rules_are_made_again_or_refused(saved: Path, tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "m") as made:
        made.add([fr.Record("a", "thé")])
    for folder in (saved, tmp_path / "m" / "index"):
        rewrite(folder, {**manifest(folder), "analyzer": "agent"})
    with pytest.raises(fr.errors.ParameterError, match="terms of the analyzer 'agent', and 'agent 2' makes others"):
        fr.Engine.load(saved)
    for opened in ("built: the index holds terms of", "loaded"):
        with fr.Engine.open(tmp_path / "m") as made:
            assert (made.opened or "").startswith(opened)
            assert made.search(["thé"]).counts.tolist() == [1]


@pytest.mark.parametrize("part", ["head", "strings", "parts", "parameters", "analyzer", "columns", "sequence"])
def test_manifest_that_lacks_a_part(saved: Path, part: str) -> None:
    changed = manifest(saved)
    del changed[part]
    rewrite(saved, changed)
    with pytest.raises(fr.errors.DamagedIndexError, match="do not fit together"):
        fr.Engine.load(saved)


def arrays_of(found: dict[str, Any], group: str | tuple[str, int]) -> dict[str, Any]:
    if isinstance(group, str):
        return found[group]  # type: ignore[no-any-return]
    own = found[group[0]][group[1]]
    return own["arrays"] if group[0] == "parts" else own  # type: ignore[no-any-return]


def test_manifest_that_lacks_an_array_or_leaves_its_directory(saved: Path) -> None:
    whole = manifest(saved)
    groups = ("head", *(("strings", n) for n in range(len(whole["strings"]))), *(("parts", n) for n in range(1)))
    tried = 0
    for group in groups:
        for name in arrays_of(whole, group):
            if name.startswith(("category_", "number_")):
                continue  # a part has no files for columns that no record has
            if name == "id_order":
                continue  # a part without it has its look-up by id made anew
            changed = json.loads(json.dumps(whole))
            del arrays_of(changed, group)[name]
            rewrite(saved, changed)
            with pytest.raises(fr.errors.DamagedIndexError):
                fr.Engine.load(saved)
            tried += 1
    assert tried > 25
    for group in ("strings", "parts"):
        changed = json.loads(json.dumps(whole))
        changed[group].pop()
        rewrite(saved, changed)
        with pytest.raises(fr.errors.DamagedIndexError):
            fr.Engine.load(saved)
    for name in ("../terms.npy", "/etc/passwd"):
        changed = json.loads(json.dumps(whole))
        entry_of(changed, "part_terms")["file"] = name
        rewrite(saved, changed)
        with pytest.raises(fr.errors.DamagedIndexError, match="leaves the directory"):
            fr.Engine.load(saved)


def test_not_an_index(tmp_path: Path) -> None:
    with pytest.raises(fr.errors.ForeignIndexError, match="no such directory"):
        fr.Engine.load(tmp_path / "none")
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(fr.errors.ForeignIndexError, match="not a directory"):
        fr.Engine.load(file)
    with pytest.raises(fr.errors.ForeignIndexError, match=r"has no manifest\.json"):
        fr.Engine.load(tmp_path)
    (tmp_path / files.MANIFEST).mkdir()
    with pytest.raises(fr.errors.StorageError):
        fr.Engine.load(tmp_path)


def test_foreign_directories_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("do not lose")
    with pytest.raises(fr.errors.ForeignIndexError, match="holds other files"):
        engine().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, file / "index", tmp_path / ("n" * 300)):
        with pytest.raises(fr.errors.StorageError, match="cannot be written") as caught:
            engine().save(path)
        assert isinstance(caught.value, OSError)
    assert file.read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


full_disk = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.parametrize("at", [0, 1, 7, 20, "manifest", "replace", "interrupt"])
def test_a_save_that_fails_leaves_the_old_index(saved: Path, monkeypatch: pytest.MonkeyPatch, at: int | str) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    grown = engine()
    grown.add([fr.Record("new", "tea")])
    if at == "manifest":
        monkeypatch.setattr(json, "dump", full_disk)
    elif at == "replace":
        monkeypatch.setattr(os, "replace", full_disk)
    elif at == "interrupt":
        monkeypatch.setattr(os, "fsync", Mock(side_effect=KeyboardInterrupt))
    else:
        plain, written = np.save, iter(range(1000))
        monkeypatch.setattr(np, "save", lambda *a, **o: full_disk() if next(written) == at else plain(*a, **o))
    message = None if at == "interrupt" else "cannot be written: No space left on device"
    with pytest.raises((fr.errors.StorageError, KeyboardInterrupt), match=message):
        grown.save(saved)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert answers(fr.Engine.load(saved)) == answers(engine())
    grown.save(saved)
    assert len(fr.Engine.load(saved)) == 9


def test_a_save_takes_away_only_what_saves_wrote(tmp_path: Path) -> None:
    engine = fr.Engine.from_records([fr.Record("1", "tea")], analyzer="minimal")
    engine.save(tmp_path)
    mine = tmp_path / "my_embeddings.npy"
    mine.write_bytes(b"mine")
    (tmp_path / "terms.deadbeef.npy").write_bytes(b"left by a killed save")
    (tmp_path / "manifest.json.deadbeef").write_bytes(b"left by a killed save")
    engine.save(tmp_path)
    assert mine.read_bytes() == b"mine"
    assert not list(tmp_path.glob("*deadbeef*"))


def test_a_load_meets_the_old_index_or_the_new_one(tmp_path: Path) -> None:
    """A save that replaces the index between a reader's manifest and its arrays."""
    one = fr.Engine.from_records([fr.Record("1", "tea")], analyzer="minimal")
    two = fr.Engine.from_records([fr.Record("1", "tea"), fr.Record("2", "milk")], analyzer="minimal")
    one.save(tmp_path)
    plain, calls = files._read_array, []

    def read(*arguments: Any) -> Any:
        if not calls:
            two.save(tmp_path)
        calls.append(1)
        return plain(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_read_array", read)
        assert len(fr.Engine.load(tmp_path)) == 2


def test_an_analyzer_that_no_name_finds_cannot_be_saved(tmp_path: Path) -> None:
    named = fr.text.Analyzer("nltk", str.split, str)
    with pytest.raises(fr.errors.ParameterError, match="'nltk' stands for another"):
        fr.Engine(analyzer=named).save(tmp_path)


def test_time_windows_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, WINDOWED_RECORDS=5)
    made = fr.Engine(window=10.0, epsilon=0.3, max_windows=2, recency_rate=0.5)
    made.add([fr.Record(f"r{n}", "tea", time=n * 10.0) for n in range(5)])
    made.save(tmp_path / "index")
    again = fr.Engine.load(tmp_path / "index")
    asked = [fr.Query("tea", windows=2), fr.Query("tea", windows="auto"), fr.Query("tea", windows=1, now=25.0)]
    assert list(again.search(asked)) == list(made.search(asked))
    assert again.search(asked).counts.tolist() == [2, 2, 1]
    assert again.recency().to_dict() == made.recency().to_dict()
