"""Listings and their cursors, beside writers, after damage and expiry. The machine of memories holds what they list."""

import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import borders
from support.threads import in_threads

import fanrank as fr
from fanrank.engine.listing import listing as listings
from fanrank.engine.listing.orders import ORDERS

NAMESPACES = ("", "a", "b")
COLUMNS = {"project": "category", "priority": "number"}


def made(rng: random.Random, name: str, namespace: str) -> fr.Record:
    extra = {"other": rng.random(), "project": rng.choice("xyz"), "priority": rng.choice([0, 1.5])}
    time = rng.choice([None, 1.0, 2.0, -4.0])
    return fr.Record(name, "tea", namespace, time=time, role=rng.choice(["user", None]), extra=extra)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[fr.Engine]:
    with fr.Engine.open(tmp_path / "memory", columns=COLUMNS) as opened:
        yield opened


def pages(engine: fr.Engine, limit: int, **options: Any) -> list[fr.Record]:
    """All records of a listing, page by page."""
    listed: list[fr.Record] = []
    cursor: str | None = None
    while True:
        page = engine.records(after=cursor, limit=limit, **options)
        listed += page
        cursor = page.cursor
        if cursor is None:
            return listed


def test_pages_neither_repeat_nor_skip_what_lives_through_while_others_write(
    engine: fr.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink_all(monkeypatch)
    borders.shrink(monkeypatch, PAGE=5, LEAST_ENTRIES=1, MOST_ENTRIES=4)
    rng = random.Random(5)
    staying = [made(rng, f"stay{number}", rng.choice(NAMESPACES)) for number in range(60)]
    engine.add(staying)
    written = [(record.namespace, record.id) for record in engine.records(namespace=None)]
    stop = threading.Event()

    def write(seed: int) -> None:
        mine = random.Random(seed)
        while not stop.is_set():
            space = mine.choice(NAMESPACES)
            names = [f"{seed}-{mine.randrange(20)}" for _ in range(3)]
            engine.upsert([made(mine, name, space) for name in dict.fromkeys(names)])
            engine.delete([names[0]], namespace=space)

    def read() -> None:
        try:
            for order, reverse in itertools.product(ORDERS, (False, True)):
                how: Any = {"namespace": None, "order": order, "reverse": reverse}
                listed, streamed = (
                    [(record.namespace, record.id) for record in listing if record.id.startswith("stay")]
                    for listing in (pages(engine, 7, **how), engine.records(**how))
                )
                assert len(listed) == len({*listed}) == len(staying)
                assert streamed == listed
                if order == "written":
                    assert listed == (written[::-1] if reverse else written)
        finally:
            stop.set()

    in_threads(read, lambda: write(1), lambda: write(2))


def test_a_page_is_one_moment(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write between the keys and the rows: the page is read again, and in the end while writes wait."""
    engine.add([fr.Record(str(number), "tea 0") for number in range(9)])
    reads = 0
    rows = type(engine.index.memory.store).rows

    def write_first(store: Any, namespace: str, ids: Any) -> Any:
        nonlocal reads
        reads += 1
        if not engine.index.memory._writing.locked():
            engine.update([fr.Record(str(number), f"tea {reads}") for number in (3, 7)])
        return rows(store, namespace, ids)

    monkeypatch.setattr(type(engine.index.memory.store), "rows", write_first)
    for order in ORDERS:
        reads = 0
        listed = list(engine.records(order=order))
        assert reads == listings.WRITER_ATTEMPTS + 1
        assert sorted(record.id for record in listed) == [str(number) for number in range(9)]
        assert {record.text for record in listed if record.id in "37"} == {f"tea {listings.WRITER_ATTEMPTS}"}


def test_a_record_that_is_gone_from_the_file_is_damage(engine: fr.Engine) -> None:
    engine.add([fr.Record(str(number), "tea") for number in range(5)])
    store = engine.index.memory.store
    store._writer.execute("DELETE FROM records WHERE id = '3'")
    with pytest.raises(fr.errors.DamagedStoreError, match="id '3'"):
        list(engine.records())


def test_cursors(engine: fr.Engine) -> None:
    engine.add([fr.Record(str(number), "tea", time=float(number)) for number in range(5)])
    page = engine.records(limit=2, order="time")
    assert page.cursor is None
    assert next(page).id == "0"
    assert page.cursor == page.position is not None
    assert next(page).id == "1"
    assert [record.id for record in engine.records(order="time", after=page.cursor)] == ["2", "3", "4"]
    whole = engine.records()
    assert [*whole] == engine.fetch(["0", "1", "2", "3", "4"])
    assert whole.cursor is None
    engine.add([fr.Record("5", "tea")])
    assert [record.id for record in engine.records(after=whole.position)] == ["5"]
    assert [*engine.records(limit=0)] == []
    assert engine.records(limit=0).cursor is None
    assert engine.records(limit=0, order="time", after=page.cursor).cursor == page.cursor
    # A place stays although its record is gone.
    engine.delete(["1"])
    assert [record.id for record in engine.records(order="time", after=page.cursor, limit=1)] == ["2"]


def test_a_cursor_of_another_listing_is_refused(engine: fr.Engine, tmp_path: Path) -> None:
    engine.add([fr.Record(str(number), "tea", space) for number in range(3) for space in ("", "a")])
    cursor = engine.records(limit=1, order="id")
    next(cursor)
    for options, message in (
        ({"order": "time"}, "order='id', not 'time'"),
        ({"order": "id", "reverse": True}, "reverse=False, not True"),
        ({"order": "id", "namespace": "a"}, "cursor is of another listing; begin without it"),
    ):
        with pytest.raises(fr.errors.ParameterError, match=message):
            engine.records(after=cursor.cursor, **options)  # type: ignore[arg-type]
    for wrong in ("", "tea", "é", "W10", "IjEi", "WyJpZCIsZmFsc2UsIiIsIiIsMCwxLDJd", 3, b"tea"):
        with pytest.raises(fr.errors.ParameterError, match=r"no cursor|must be the cursor"):
            engine.records(order="id", after=wrong)  # type: ignore[arg-type]
    written = engine.records(limit=1)
    next(written)
    with fr.Engine.open(tmp_path / "other") as other:
        other.add([fr.Record("0", "tea")])
        for order, of_another in (("id", cursor), ("written", written)):
            with pytest.raises(fr.errors.ParameterError, match="is no cursor of this memory"):
                other.records(order=order, after=of_another.cursor)
    for place in range(len(cursor.cursor)):
        other_letter = "A" if cursor.cursor[place] != "A" else "B"
        with pytest.raises(fr.errors.ParameterError, match="is no cursor"):
            engine.records(order="id", after=cursor.cursor[:place] + other_letter + cursor.cursor[place + 1 :])
    with fr.Engine.open(tmp_path / "memory", read_only=True) as again:
        assert [record.id for record in again.records(after=written.cursor)] == ["1", "2"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda e: e.records(order="score"), "ParameterError", "unknown order 'score'; there are: time, id, written"),
        (lambda e: e.records(limit=-1), "ParameterError", "limit must be 0 or more"),
        (lambda e: e.records(limit=True), "ParameterError", "limit must be 0 or more"),
        (lambda e: e.records(filter={"colour": "red"}), "QueryError", "no column 'colour'"),
        (lambda e: e.records(namespace=3), "QueryError", "must be a string"),
        (lambda e: e.distinct("colour"), "QueryError", "no column 'colour' to count by; there are: role"),
        (lambda e: e.distinct("text"), "QueryError", "no column 'text'"),
        (lambda e: e.get(3), "RecordError", "an id must be a string, not 3"),
        (lambda e: e.delete_where({}), "ParameterError", "delete_where needs a filter"),
        (lambda e: e.update_where({}, role="x"), "ParameterError", "update_where needs a filter"),
        (lambda e: e.ids(namespace=None), "QueryError", "must be a string"),
    ],
)
def test_bad_calls_are_named(engine: fr.Engine, call: Any, error: str, message: str) -> None:
    with pytest.raises(getattr(fr.errors, error), match=message):
        call(engine)


def test_a_tenant_lists_its_own_records_alone(engine: fr.Engine) -> None:
    engine.add([fr.Record(str(number), f"tea of {space}", space, role=space) for number in range(4) for space in "ab"])
    tenant = engine.namespace("a")
    for order in ORDERS:
        assert [record.text for record in tenant.records(order=order)] == ["tea of a"] * 4
    assert (tenant.count(), list(tenant.ids()), tenant.distinct("role")) == (4, [*"0123"], {"a": 4})
    assert tenant.patch("1", role="x") == tenant.update_where({"role": "x"}, {"role": "y"}) == 1
    assert tenant.delete_where({"role": "b"}) == 0
    assert tenant.upsert([fr.Record("1", "milk"), fr.Record("9", "milk")]) == 2
    assert (engine.count(namespace="b"), engine.distinct("role", namespace="b")) == (4, {"b": 4})
    lengths = set()
    for number in range(3):
        page = engine.namespace("b").records(limit=1, order="id")
        next(page)
        lengths.add(len(page.cursor))
        engine.add([fr.Record(f"o{number}-{each}", "tea") for each in range(10**number)])
    # A cursor's length says nothing of others, and who is given another tenant's is not told whose it is.
    assert len(lengths) == 1
    for order in ("id", "time"):
        with pytest.raises(fr.errors.ParameterError, match="cursor is of another listing") as refused:
            tenant.records(after=page.cursor, order=order)
        assert "'b'" not in str(refused.value)
    assert tenant.get("9") == fr.Record("9", "milk", "a")
    assert engine.namespace("b").get("9") is None


def test_a_place_among_writes_outlives_its_record_in_memory() -> None:
    engine = fr.Engine.from_records([fr.Record(str(n), "tea") for n in range(6)])
    page = engine.records(limit=3, texts=False)
    assert [record.id for record in page] == [*"012"]
    engine.delete(["2", "1", "4"])
    engine.upsert([fr.Record("0", "tea")])
    engine.flush()
    engine.drop("")
    assert [record.id for record in engine.records(after=page.cursor, texts=False)] == []
    engine.add([fr.Record("1", "tea")])
    assert [record.id for record in engine.records(after=page.cursor, texts=False)] == ["1"]
    with pytest.raises(fr.errors.ParameterError, match="is no cursor of this memory"):
        fr.Engine().records(after=page.cursor, texts=False)


def test_a_later_page_of_a_stream_shows_a_later_moment(engine: fr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, PAGE=2)
    for order in ORDERS:
        for texts in (True, False):
            engine.drop("")
            engine.add([fr.Record(str(number), "tea", time=float(number)) for number in range(6)])
            stream = engine.records(order=order, texts=texts)
            read = [next(stream).id, next(stream).id]
            engine.delete(["3"])
            engine.add([fr.Record("7", "tea", time=7.0)])
            assert read + [record.id for record in stream] == [*"012457"]


@pytest.mark.parametrize("kept", ["memory", "directory"])
def test_records_that_are_fetched_in_parts_are_of_one_moment(kept: str, engine: fr.Engine) -> None:
    memory = engine if kept == "directory" else fr.Engine()
    memory.add([fr.Record(name, "old") for name in "abc"])
    seen: list[tuple[str, str | None]] = []

    def take(ids: Sequence[str], records: Sequence[fr.Record | None]) -> None:
        seen.extend((name, record and record.text) for name, record in zip(ids, records, strict=True))
        memory.upsert([fr.Record("b", "new"), fr.Record("x", "new")])
        memory.delete(["c"], missing_ok=True)

    memory.searcher.fetch_parts(["a", "b", "c", "x"], "", 1, take)
    assert seen == [("a", "old"), ("b", "old"), ("c", "old"), ("x", None)]
