"""Vocabularies without their unused entries: the same answers, less memory, and nothing of what is gone."""

import threading
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from support import borders, history
from support.threads import in_threads

import fanrank as fr
from fanrank.engine.storage import failpoints
from fanrank.engine.storage.renumber import Renumbering, UnusedEntries


def made() -> fr.Engine:
    return fr.Engine(analyzer="minimal", encoder=fr.OwnVectors(2))


def words_of(engine: fr.Engine) -> set[str]:
    return set(engine.index.memory.indexer.vocabulary.strings)


def test_words_that_come_and_go_leave_the_vocabularies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The central promise, counted in entries: rounds of new words end as they began."""
    borders.shrink(monkeypatch, LEAST_UNUSED=100)
    with fr.Engine(analyzer="minimal") as engine:
        engine.add([fr.Record("stays", "tea", session="stays")])
        entries = []
        for number in range(10):
            names = [f"r{number}-{row}" for row in range(300)]
            engine.add([fr.Record(name, f"word{name}", session=name, weights={name: 1.0}) for name in names])
            engine.delete(names)
            engine.flush()
            stats = engine.stats()
            sizes = stats["vocabulary"], stats["weight_terms"], stats["column_values"]
            entries.append((*sizes, stats["vocabulary_bytes"]))
        assert [entry[:3] for entry in entries] == [(1, 0, 1)] * 10  # `tea`; `stays`
        assert len({entry[3] for entry in entries}) == 1
        assert engine.stats()["renumberings"] == 10
        assert list(engine.search(["tea"])[0]) == [("stays", engine.search(["tea"])[0][0][1])]


def test_few_unused_entries_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renumbering writes all segments anew, so it waits until half of the entries are unused, and enough of them."""

    def churned(live: int, gone: int) -> fr.Engine:
        engine = fr.Engine(analyzer="minimal")
        engine.add([fr.Record(f"l{number}", f"live{number}") for number in range(live)])
        engine.add([fr.Record(f"g{number}", f"gone{number}") for number in range(gone)])
        engine.delete([f"g{number}" for number in range(gone)])
        engine.flush()
        return engine

    borders.shrink(monkeypatch, LEAST_UNUSED=40, COUNT_SHARE=0.0)
    assert churned(10, 39).stats()["vocabulary"] == 49
    assert churned(10, 40).stats()["vocabulary"] == 10
    assert churned(41, 40).stats()["vocabulary"] == 81
    borders.shrink(monkeypatch, DOCUMENTS_PER_UNUSED=2)
    assert churned(100, 60).stats()["vocabulary"] == 160


def test_an_unused_word_that_comes_back_meanwhile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new vocabularies are made beside the writers: what they bring back gets a number behind all others."""
    borders.shrink(monkeypatch, COUNTED_DOCUMENTS=24)
    engine = made()
    engine.add(
        [fr.Record(f"d{n}", f"unused{n} cup", session=f"unused{n}", weights={f"unused{n}": 1.0}) for n in range(30)]
    )
    engine.add([fr.Record(f"r{n}", f"live{n} cup", session=f"live{n}", weights={f"live{n}": 1.0}) for n in range(30)])
    engine.delete([f"d{n}" for n in range(30)])
    memory = engine.index.memory
    memory.flush()
    unused = UnusedEntries()
    base = memory.state
    prepared = Renumbering.of(base, unused.count(base, all_unused=True))
    back = [
        fr.Record(
            f"b{n}", f"cup unused{n} live{n} new{n}", session=f"unused{n}", weights={f"unused{n}": 2.0, f"live{n}": 1.0}
        )
        for n in range(0, 30, 3)
    ]
    engine.add(back)
    engine.delete(["r3", "b6"])
    engine.add([fr.Record("late", "unused9 tea", "another")])
    memory.join()
    following = prepared.finish(memory.state)
    assert following is not None
    asked = [
        fr.Query(f"{word}{n} cup", weights={f"{word}{n}": 1.0}, filter=only)
        for n in range(9)
        for word in ("unused", "live", "new")
        for only in (None, {"session": f"unused{n}"})
    ] + [fr.Query(word, namespace="another", weights={word: 1.0}) for word in ("unused9", "unused1")]
    expected = [[list(row) for row in engine.search(asked, strategy=name)] for name in ("bm25", "sparse")]
    memory.state = following
    assert [[list(row) for row in engine.search(asked, strategy=name)] for name in ("bm25", "sparse")] == expected
    strings = following.indexer.vocabulary.strings
    assert "unused0" in strings
    assert "unused1" not in strings
    for snapshot in following.snapshots.values():
        for segment in snapshot.segments:
            assert (np.diff(segment.terms) > 0).all()
    # Writes and merges go on in the new numbering.
    engine.add([fr.Record("after", "unused0 unused1 cup")])
    memory.flush()
    assert {name for name, _ in engine.search(["unused0"])[0]} == {"b0", "after"}


def test_a_renumbering_is_not_published_over_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink_all(monkeypatch, LEAST_UNUSED=1 << 20)
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record("a", "tea"), fr.Record("b", "cup")])
    engine.delete(["a"])
    memory = engine.index.memory
    memory.flush()
    base = memory.state
    prepared = Renumbering.of(base, UnusedEntries().count(base, all_unused=True))
    assert memory.renumber(all_unused=True)
    assert prepared.finish(memory.state) is None
    assert words_of(engine) == {"cup"}


def test_what_keeps_its_numbers_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant whose terms come before the unused ones keeps its segments, and so its files and what is on a device."""
    borders.shrink_all(monkeypatch, LEAST_UNUSED=1)
    engine = fr.Engine(analyzer="minimal")
    for namespace, words in (("first", "tea"), ("gone", "cup milk"), ("last", "jug")):
        engine.add([fr.Record("r", words, namespace)])
    before = engine.index.memory.snapshots
    engine.drop("gone")
    engine.flush()
    after = engine.index.memory.snapshots
    assert after["first"] is before["first"]
    assert after["last"].segments[0] is not before["last"].segments[0]
    assert after["last"].segments[0].documents is before["last"].segments[0].documents
    assert after["last"].segments[0].terms.tolist() == [1]


def test_searches_and_writes_go_on_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    history.shrink(monkeypatch)
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record("stays", "tea stays", session="stays")])
    memory, stop = engine.index.memory, threading.Event()

    def ask() -> None:
        query = fr.Query("stays nothing", filter={"session": "stays"})
        while not stop.is_set():
            assert [name for name, _ in engine.search([query], 3)[0]] == ["stays"]

    def renumber() -> None:
        while not stop.is_set():
            memory.renumber(all_unused=True)

    def write() -> None:
        try:
            for number in range(25):
                names = [f"{number}-{row}" for row in range(4)]
                engine.add([fr.Record(name, f"word{name} tea", session=name) for name in names])
                engine.delete(names)
        finally:
            stop.set()

    in_threads(ask, ask, renumber, write)
    memory.flush()
    memory.renumber(all_unused=True)
    assert not history.unused_entries(engine)
    assert engine.stats()["renumberings"] > 1


def texts_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


def test_a_dropped_tenant_leaves_no_word_in_the_index(tmp_path: Path) -> None:
    """However few its words are: `flush` after a drop takes them out of the vocabularies and of the index files."""
    path = tmp_path / "memory"
    own = fr.Record("a", "plover", "tenant", session="curlew", weights={"dunlin": 1.0}, entities={"plover": "knot"})
    with fr.Engine.open(path, analyzer="minimal") as engine:
        engine.add([own, fr.Record("b", "tea", "other", session="s")])
        engine.flush()
        secrets = [b"plover", b"curlew", b"dunlin", b"knot"]
        assert all(secret in texts_in(path / "index") for secret in secrets)
        engine.drop("tenant")
        assert "plover" in words_of(engine)
        engine.flush()
        assert not history.unused_entries(engine)
        assert words_of(engine) == {"tea"}
        assert not any(secret in texts_in(path / "index") for secret in secrets)
        engine.add([fr.Record("c", "jug tea", "other")])
    with fr.Engine.open(path, analyzer="minimal") as engine:
        assert engine.opened == "loaded"
        assert engine.verify() == {"records": 2, "missing": 0, "extra": 0}
        assert [name for name, _ in engine.namespace("other").search(["jug tea"])[0]] == ["c", "b"]


def test_a_failure_leaves_the_old_numbers_and_the_next_attempt_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink_all(monkeypatch, LEAST_UNUSED=1)
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record("a", "tea"), fr.Record("b", "cup")])
    memory = engine.index.memory
    failpoints.arm("renumber.begin", action=Mock(side_effect=MemoryError))
    engine.delete(["a"])
    memory.join()
    assert engine.stats()["background_error"] == "MemoryError: "
    assert "tea" in words_of(engine)
    assert [name for name, _ in engine.search(["cup"])[0]] == ["b"]
    engine.flush()
    assert words_of(engine) == {"cup"}
    assert engine.stats()["background_error"] is None


def test_drift_compares_words_and_not_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink_all(monkeypatch)
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record("a", "tea cup"), fr.Record("b", "jug milk"), fr.Record("c", "milk jug")])
    engine.delete(["a"])
    assert engine.drift().jaccard == 1.0
    engine.index.memory.flush()
    assert engine.index.memory.renumber(all_unused=True)
    assert engine.drift().jaccard == 1.0


def test_numbers_are_counted_where_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """`encode` says that its ids are of another numbering."""
    borders.shrink_all(monkeypatch)
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record("a", "tea"), fr.Record("b", "cup")])
    first = engine.encode(["tea"])
    assert first.terms.tolist() == [1]
    engine.delete(["b"])
    engine.index.memory.flush()
    assert engine.encode(["tea"]).terms.tolist() == [1]
    assert engine.encode(["tea"]).numbering == first.numbering
    assert engine.index.memory.renumber(all_unused=True)
    second = engine.encode(["tea"])
    assert second.terms.tolist() == [0]
    assert second.numbering != first.numbering
