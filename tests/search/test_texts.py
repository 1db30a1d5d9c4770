"""Hits with the records that were scored, whatever is written meanwhile."""

import asyncio
import pickle
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fanrank as fr
from fanrank.engine.records.hits import Hits
from fanrank.engine.search import texts as bringing
from fanrank.engine.searcher import Searcher
from fanrank.engine.storage.record_store import RecordStore

WORDS = ["tea", "milk", "jam", "bread", "salt"]


@pytest.fixture(params=["memory", "directory"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[fr.Engine]:
    made = fr.Engine(analyzer="minimal") if request.param == "memory" else fr.Engine.open(tmp_path, analyzer="minimal")
    with made:
        yield made


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[fr.Engine]:
    with fr.Engine.open(tmp_path / "store", analyzer="minimal") as made:
        made.add([fr.Record("a", "tea"), fr.Record("b", "tea tea milk"), fr.Record("c", "jam")])
        yield made


def scored_texts(hits: Hits) -> list[list[tuple[str, str]]]:
    return [[(hit.id, hit.text) for hit in row] for row in hits]


@pytest.mark.parametrize("strategy", ["bm25", "rrf", fr.Cascade(escalate="rrf", tau=1.0)])
def test_a_strategy_brings_texts_too(strategy: Any, tmp_path: Path) -> None:
    for made in (fr.Engine(encoder=fr.OwnVectors(2)), fr.Engine.open(tmp_path, encoder=fr.OwnVectors(2))):
        with made as engine:
            engine.add([fr.Record(f"r{n}", f"tea {n}", embedding=[1.0, n]) for n in range(9)])
            batch = [
                fr.Query("tea 3", vector=[1, 3]),
                fr.Query("tea 5", vector=[0, 1]),
                fr.Query("tea 3", vector=[1, 3]),
            ]
            hits = engine.search(batch, 4, strategy=strategy, texts=True)
            plain = engine.search(batch, 4, strategy=strategy)
            assert list(hits) == list(plain)
            assert hits.counts.all()
            for row in hits:
                for hit in row:
                    assert hit.text == f"tea {hit.id[1:]}"
                    assert hit.record.embedding is None
            assert hits.explain(0, hits[0][0].id).score == hits[0][0].score


def test_every_way_to_ask_brings_texts(engine: fr.Engine) -> None:
    engine.add([fr.Record(f"r{n}", f"tea {WORDS[n % 5]}", payload={"n": n}) for n in range(20)])
    batch = ["tea", "jam", "tea salt"]
    expected = engine.search(batch, 3, texts=True, payload=True).to_dicts()
    how: dict[str, Any] = {"texts": True, "payload": True}
    assert asyncio.run(engine.asearch(batch, 3, **how)).to_dicts() == expected
    assert engine.submit(batch, 3, **how).result().to_dicts() == expected
    assert engine.coalescer.search(batch, 3, **how).to_dicts() == expected
    assert engine.namespace("").search(batch, 3, **how).to_dicts() == expected
    assert [hits.to_dicts() for hits in engine.search_stream([batch, batch], 3, **how)] == [expected, expected]
    plain = engine.search(batch, 3).to_dicts()
    assert plain != expected
    assert [hits.to_dicts() for hits in engine.search_stream([batch], 3)] == [plain]

    async def together() -> list[Hits]:
        calls = [engine.asearch([text], 3, **(how if number % 2 else {})) for number, text in enumerate(batch * 4)]
        return list(await asyncio.gather(*calls))

    for number, hits in enumerate(asyncio.run(together())):
        assert hits.to_dicts() == [(expected if number % 2 else plain)[number % 3]]


def interfere(monkeypatch: pytest.MonkeyPatch, write: Callable[[int], object]) -> list[bool]:
    """Call `write` before each read of texts. Returns a list that gets an entry for each: whether it is pinned."""
    reads: list[bool] = []
    texts = RecordStore.texts

    def after_a_write(self: RecordStore, namespace: str, ids: Sequence[str], moment: Any = None) -> Any:
        reads.append(moment is not None)
        write(len(reads))
        return texts(self, namespace, ids, moment)

    monkeypatch.setattr(RecordStore, "texts", after_a_write)
    return reads


CHANGES: list[Callable[[fr.Engine], object]] = [
    lambda engine: engine.update([fr.Record("b", "nothing of the kind")]),
    lambda engine: engine.delete(["b"]),
    lambda engine: (engine.delete(["b"]), engine.add([fr.Record("b", "jam")])),
    lambda engine: engine.drop(""),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_search_and_read_is_searched_again(
    stored: fr.Engine, monkeypatch: pytest.MonkeyPatch, change: Callable[[fr.Engine], object]
) -> None:
    reads = interfere(monkeypatch, lambda number: change(stored) if number == 1 else None)
    hits = stored.search(["tea"], texts=True)
    assert all("tea" in hit.text.split() for hit in hits[0])
    assert list(hits) == list(stored.search(["tea"]))
    assert set(reads) == {False}
    assert len(reads) == (2 if hits.counts[0] else 1)


def test_a_write_elsewhere_does_not_search_again(stored: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = interfere(monkeypatch, lambda number: stored.add([fr.Record(f"new{number}", "tea")]))
    hits = stored.search(["tea"], texts=True)
    assert scored_texts(hits) == [[("a", "tea"), ("b", "tea tea milk")]] or len(hits[0]) == 2
    assert reads == [False]


def test_a_search_ends_beside_a_writer_that_never_rests(stored: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = interfere(monkeypatch, lambda number: stored.update([fr.Record("a", "tea" + " tea" * number)]))
    (row,) = stored.search(["tea"], texts=True)
    assert reads == [False] * bringing.TRIES + [True]
    # The last search saw the writes of the reads before, and not that of its own.
    assert {hit.id: hit.text for hit in row}["a"] == "tea" + " tea" * bringing.TRIES
    assert stored.fetch(["a"])[0] == fr.Record("a", "tea" + " tea" * (bringing.TRIES + 1))


def test_writers_go_on_while_a_pinned_search_runs(stored: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reranker that itself writes would wait for ever, if the search held the lock of the writers."""
    written: list[int] = []

    def rewriting(pairs: Sequence[tuple[str, str]]) -> list[float]:
        written.append(stored.update([fr.Record("a", "tea" + " milk" * len(written))]))
        return [float(len(text)) for _, text in pairs]

    checked = fr.strategies.CheckedReranker(rewriting, unchecked=True)
    (row,) = stored.search(["tea"], reranker=checked, texts=True)
    assert len(written) == bringing.TRIES + 1
    assert {hit.id for hit in row} == {"a", "b"}


def test_in_memory_the_texts_are_those_of_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record("a", "tea"), fr.Record("b", "tea milk")])
    answer = Searcher.answer

    def with_a_write_after(self: Searcher, *args: Any) -> Hits:
        hits = answer(self, *args)
        if len(args) == 5:  # the search itself, over a state
            engine.update([fr.Record("a", "jam")])
            engine.delete(["b"], missing_ok=True)
        return hits

    monkeypatch.setattr(Searcher, "answer", with_a_write_after)
    assert scored_texts(engine.search(["tea"], texts=True)) == [[("a", "tea"), ("b", "tea milk")]]
    assert scored_texts(engine.search(["tea"], texts=True)) == [[]]


def test_a_reader_catches_up_where_a_hit_was_changed(stored: fr.Engine, tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path / "store", read_only=True) as reader:
        stored.add([fr.Record("d", "tea")])
        assert {hit.id for hit in reader.search(["tea"], texts=True)[0]} == {"a", "b"}  # nothing of them was changed
        stored.update([fr.Record("b", "jam")])
        assert {hit.id for hit in reader.search(["tea"])[0]} == {"a", "b"}
        assert scored_texts(reader.search(["tea"], texts=True)) == [[("a", "tea"), ("d", "tea")]]
        assert {hit.id for hit in reader.search(["tea"])[0]} == {"a", "d"}


def test_a_reader_gives_up_beside_a_writer_that_never_rests(
    stored: fr.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fr.Engine.open(tmp_path / "store", read_only=True) as reader:
        reads = interfere(monkeypatch, lambda number: stored.update([fr.Record("a", "tea" + " tea" * number)]))
        with pytest.raises(fr.errors.StorageError, match=r"during 20 searches; search again, or without texts"):
            reader.search(["tea"], texts=True)
        assert len(reads) == bringing.READER_TRIES


@pytest.mark.parametrize("read_only", [False, True])
def test_a_record_that_is_lost_is_reported(tmp_path: Path, read_only: bool) -> None:
    with fr.Engine.open(tmp_path, analyzer="minimal") as engine:
        engine.add([fr.Record("a", "tea"), fr.Record("b", "tea"), fr.Record("c", "jam")])
    with fr.Engine.open(tmp_path, read_only=read_only) as engine:
        with closing(sqlite3.connect(tmp_path / "records.sqlite")) as other, other:
            other.execute("DELETE FROM records WHERE id = 'b'")
        assert [hit.text for hit in engine.search(["jam"], texts=True)[0]] == ["jam"]
        with pytest.raises(fr.errors.DamagedStoreError, match="the record of a hit is not found"):
            engine.search(["tea"], texts=True)


def test_an_engine_without_texts_says_why(tmp_path: Path) -> None:
    forgetful = fr.Engine(keep_texts=False)
    forgetful.add([fr.Record("a", "tea")])
    forgetful.save(tmp_path / "saved")
    kept = fr.Engine.from_records([fr.Record("a", "tea")])
    kept.save(tmp_path / "kept")
    assert (kept.keeps_texts, forgetful.keeps_texts) == (True, False)
    loaded = [fr.Engine.load(tmp_path / name) for name in ("saved", "kept")]
    loaded[1].add([fr.Record("b", "tea")])
    for engine, why in (
        (forgetful, "made with keep_texts=False"),
        *((one, "a saved index holds none") for one in loaded),
    ):
        assert not engine.keeps_texts
        assert engine.search(["tea"])[0]
        for ask in (
            lambda engine=engine: engine.fetch(["a"]),
            lambda engine=engine: engine.search(["tea"], texts=True),
            lambda engine=engine: engine.search(["tea"], payload=True),
            lambda engine=engine: engine.submit(["tea"], texts=True).result(),
            lambda engine=engine: list(engine.search_stream([["tea"]], texts=True)),
        ):
            with pytest.raises(fr.errors.StorageError, match=why):
                ask()
    with pytest.raises(fr.errors.ParameterError, match="keep_texts=False is for an engine in memory"):
        fr.Engine.open(tmp_path / "memory", keep_texts=False)
    assert not (tmp_path / "memory").exists()
    with pytest.raises(fr.errors.ParameterError, match="keep_texts must be true or false"):
        fr.Engine(keep_texts=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("spaces", [{}, {"namespaces": ["", "x"]}])
def test_equal_queries_share_nothing_that_can_be_changed(engine: fr.Engine, spaces: dict[str, Any]) -> None:
    engine.add([fr.Record("a", "tea", payload={"n": [1]}, extra={"m": {"x": 1}}), fr.Record("b", "tea tea")])
    batch = [fr.Query("tea", **spaces)] * 3
    for hits in (engine.search(batch, texts=True, payload=True), engine.search([*batch, "milk"], texts=True)):
        first, *others = ({hit.id: hit.record for hit in hits[row]}["a"] for row in range(3))
        first.payload["n"].append(2)  # type: ignore[index]
        first.extra["m"]["x"] = 2
        assert [(other.payload, other.extra) for other in others] == [({"n": [1]}, {"m": {"x": 1}})] * 2


def test_what_a_caller_changes_reaches_no_kept_record() -> None:
    extra, payload, fields = {"n": [1]}, {"deep": {"x": 1}}, {"title": "jam"}
    engine = fr.Engine(fields={"text": 1.0, "title": 1.0})
    engine.add([fr.Record("a", "tea", extra=extra, payload=payload, fields=fields)])
    stated = fr.Record("a", "tea", extra={"n": [1]}, payload={"deep": {"x": 1}}, fields={"title": "jam"})
    extra["n"].append(2)
    payload["deep"]["x"] = 2
    fields["title"] = "salt"
    for _ in range(2):
        (got,) = engine.fetch(["a"])
        (hit,) = engine.search(["tea"], texts=True)[0]
        assert got == hit.record == stated
        for record in (got, hit.record):
            record.payload["deep"]["x"] = 3  # type: ignore[index]
            record.extra["n"].append(3)
    nested: dict[str, Any] = {}
    nested["self"] = nested
    with pytest.raises(fr.errors.RecordError, match="nested too deeply"):
        engine.add([fr.Record("b", "tea", payload=nested)])
    assert len(engine) == 1


@pytest.mark.parametrize("fields", [None, {"text": 1.0, "title": 2.0}])
def test_a_field_that_no_search_would_find_is_refused(fields: dict[str, float] | None) -> None:
    engine = fr.Engine(fields=fields)
    batch: list[Any] = [{"id": "a", "text": "tea"}, {"id": "b", "text": "tea", "fields": {"title": "unicorn"}}]
    if fields is not None:
        assert engine.add(batch) == 2
        assert [hit.id for hit in engine.search(["unicorn"])[0]] == ["b"]
        return
    for write in (engine.add, engine.upsert, engine.namespace("n").add):
        with pytest.raises(fr.errors.RecordError, match=r"record 2, id 'b': no search would find the field 'title'"):
            write(batch)
        with pytest.raises(fr.errors.RecordError, match=r"fields=\{'text': 1.0, 'title': 1.0\}, or keep"):
            write([fr.Record("b", "tea", fields={"title": "unicorn"})])
        with pytest.raises(fr.errors.RecordError, match="'text' is the record's own text"):
            write([fr.Record("b", "tea", fields={"text": "unicorn"})])
    assert len(engine) == 0


def test_a_directory_that_holds_such_fields_still_opens(tmp_path: Path) -> None:
    old = fr.Record("a", "tea", fields={"title": "unicorn"})
    with fr.Engine.open(tmp_path) as engine:
        engine.index.memory.write(added=[old])  # as versions that did not refuse it
    with fr.Engine.open(tmp_path) as engine:
        assert engine.search(["tea"], texts=True)[0][0].record == old
        assert engine.search(["unicorn"])[0] == []


def test_several_namespaces_bring_the_texts_of_each(engine: fr.Engine) -> None:
    spaces = ["users/ana", "users/ana/work", "users/ben"]
    engine.add([fr.Record(str(n), f"tea {n} of {space}", space) for space in spaces for n in range(4)])
    engine.delete(["2"], namespace=spaces[0])
    batch = [
        fr.Query("tea", namespaces=spaces),
        fr.Query("tea 3", under="users/ana"),
        fr.Query("tea", namespace="users/ben"),
    ]
    for how in ({}, {"strategy": fr.Cascade(escalate="bm25", tau=1.0)}):
        hits = engine.search(batch, 20, texts=True, **how)  # type: ignore[arg-type]
        assert hits.counts.tolist() == [11, 7, 4]
        for row in (*hits, *pickle.loads(pickle.dumps(hits))):
            assert all(hit.text == f"tea {hit.id} of {hit.namespace}" for hit in row)
            assert all(hit.record.namespace == hit.namespace for hit in row)
        assert {hit.namespace for hit in hits[1]} == {*spaces[:2]}
        assert hits.slice(1, 2, 20, (batch[1],)).to_dicts() == hits.to_dicts()[1:2]
