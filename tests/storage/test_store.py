"""The record store: what was acknowledged is there, whole, after anything."""

import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import borders

import fanrank as fr
from fanrank.engine.errors import DamagedStoreError, ForeignIndexError, NewerFormatError, StaleIndexError, StorageError
from fanrank.engine.records.record import CATEGORIES
from fanrank.engine.storage import failpoints
from fanrank.engine.storage.log import note_of
from fanrank.engine.storage.record_store import Change, RecordStore
from fanrank.engine.storage.row_codec import RECORDS, EncodedRecord, decode, encode, encode_all
from fanrank.engine.storage.sqlite import VERSION
from fanrank.engine.text.keywords import keywords

State = dict[str, dict[str, fr.Record]]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
finite = st.floats(-1e15, 1e15)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
records = st.builds(
    fr.Record,
    id=texts.filter(bool),
    text=texts,
    namespace=texts,
    time=st.none() | finite,
    importance=st.none() | st.floats(0, 1),
    fields=st.dictionaries(texts, texts, max_size=2),
    extra=st.dictionaries(texts, values, max_size=3),
    payload=st.none() | st.dictionaries(texts, values, max_size=3),
    expires=st.none() | finite,
    **{name: st.none() | texts for name in CATEGORIES},
)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[RecordStore]:
    with RecordStore.open(tmp_path / "memory") as made:
        yield made


def added(*records: fr.Record) -> list[EncodedRecord]:
    return [encode(record) for record in records]


def put(to: RecordStore, *ids: str, text: str = "tea", namespace: str = "") -> int:
    return to.write([[Change(namespace, added=added(*(fr.Record(i, text, namespace) for i in ids)))]])


def replayed(source: RecordStore, sequence: int = 0, onto: State | None = None) -> State:
    """The state after a replay, each namespace in order of arrival."""
    state: State = {name: dict(held) for name, held in (onto or {}).items()}
    for run in source.changes_after(sequence):
        held = state.setdefault(run.namespace, {})
        if run.dropped:
            held.clear()
        for record_id in run.removed:
            held.pop(record_id, None)
        for record in run.added:
            assert record.id not in held
            held[record.id] = record
    return {name: held for name, held in state.items() if held}


@given(records)
def test_a_record_comes_back_equal(record: fr.Record) -> None:
    (encoded,) = encode_all([record])
    assert encoded == encode(record)
    back = decode(record.namespace, encoded)
    assert back == record
    assert repr(back) == repr(record)  # 0.0 is not -0.0 here, nor 1 True
    assert json.loads(encoded.data).keys().isdisjoint({"id", "namespace"})
    assert encode_all([record], [7]) == [encode(record, 7)]
    assert encode_all([record], [7]) == [encode(replace(record, extra={**record.extra, "fanrank_order": 7}))]


def test_numbers_of_numpy_become_floats() -> None:
    record = fr.Record("a", "x", time=np.float32(0.1), importance=np.int64(1))
    back = decode("", encode_all([record])[0])
    assert (type(back.time), type(back.importance)) == (float, float)
    assert (back.time, back.importance) == (float(np.float32(0.1)), 1.0)


def deep() -> Any:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    "extra",
    [
        {"a": {1, 2}},
        {"a": math.nan},
        {"a": [-math.inf]},
        {1: "a"},
        {"a": {None: 1}},
        {"a": (1, 2)},
        {"a": object()},
        {"a": np.zeros(2)},
        {"a": deep()},
    ],
)
def test_an_extra_that_json_refuses_or_alters(extra: dict[Any, Any]) -> None:
    with pytest.raises(fr.errors.RecordError, match=r"^id 'm7': 'extra' cannot be stored as JSON: "):
        encode_all([fr.Record("m7", "x", extra=extra)])


@pytest.mark.parametrize(
    "part", [{"text": "\ud800"}, {"text": "", "fields": {"a": "\udfff"}}, {"text": "", "extra": {"\ud800": 1}}]
)
def test_a_lone_surrogate_is_refused_by_name(part: dict[str, Any]) -> None:
    with pytest.raises(fr.errors.RecordError, match=r"id 'm7': .*lone surrogate"):
        encode_all([fr.Record("m7", **part)])


def test_the_counter_survives_that_all_is_removed_and_pruned(tmp_path: Path) -> None:
    with RecordStore.open(tmp_path) as made:
        put(made, "a", "b")
        made.drop("")
        made.prune(99)
        assert (made.sequence, made.pruned) == (3, 3)
        made.prune(1)
        assert made.pruned == 3
    with RecordStore.open(tmp_path) as again:
        assert (again.sequence, again.count("")) == (3, 0)
        assert put(again, "a") == 4
        with pytest.raises(StaleIndexError, match=r"from 3 to 4, .* up to 5;"):
            next(again.changes_after(5))


def test_a_full_disk(opened: RecordStore) -> None:
    put(opened, "a")
    (pages,) = opened._writer.execute("PRAGMA page_count").fetchone()
    opened._writer.execute(f"PRAGMA max_page_count={pages + 2}")
    with pytest.raises(StorageError, match="no space left; nothing was written"):
        put(opened, *(f"b{number}" for number in range(300)), text="x" * 100)
    assert (opened.sequence, opened.count("")) == (1, 1)
    opened._writer.execute("PRAGMA max_page_count=100000")
    assert put(opened, *(f"b{number}" for number in range(300)), text="x" * 100) == 301


def test_an_id_that_is_live_already(opened: RecordStore) -> None:
    put(opened, "a")
    with pytest.raises(StorageError, match="does not fit the live records"):
        put(opened, "b", "a", namespace="")
    assert (opened.sequence, opened.count(""), put(opened, "b")) == (1, 1, 2)


def test_reads_see_the_last_commit_while_a_write_is_under_way(opened: RecordStore) -> None:
    put(opened, "a")
    seen: list[Any] = []

    def look() -> None:
        seen.extend([opened.count(""), opened.fetch("", ["b"]), opened.sequence, len(replayed(opened)[""])])

    failpoints.arm("write.commit", action=look)
    put(opened, "b")
    assert seen == [1, [None], 1, 1]
    assert opened.fetch("", ["b"]) == [fr.Record("b", "tea")]


def test_a_replay_is_of_one_moment(opened: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, REPLAY_CHUNK=3)
    put(opened, *"abcdefgh", text="old")
    replay = opened.changes_after(0)
    first = next(replay)
    opened.write([[Change("", removed=list("abcdefgh"), added=added(*(fr.Record(i, "new") for i in "hgf")))]])
    rest = [record for run in replay for record in run.added]
    assert [(record.id, record.text) for record in [*first.added, *rest]] == [(i, "old") for i in "abcdefgh"]
    assert [record.text for record in replayed(opened)[""].values()] == ["new"] * 3
    # Between the removals and the additions too, which are two questions to the database.
    replay = opened.changes_after(8)
    assert next(replay).removed == list("abc")
    opened.write([[Change("", removed=["h"], added=added(fr.Record("x", "newest")))]])
    later = list(replay)
    assert [name for run in later for name in run.removed] == list("defgh")
    assert [record.id for run in later for record in run.added] == ["h", "g", "f"]


def altered(folder: Path, *statements: str) -> None:
    with RecordStore.open(folder) as made:
        put(made, *(f"m{number}" for number in range(5)), text="prefers tea", namespace="ana")
    raw = sqlite3.connect(folder / RECORDS)
    for statement in statements:
        raw.execute(statement)
    raw.commit()
    raw.close()


@pytest.mark.parametrize(
    "change",
    [
        "data = replace(data, 'tea', 'tee')",
        "data = CAST(x'7bff7d' AS TEXT)",
        "data = 7",
        "data = CAST(data AS BLOB) || x'20'",
        "checksum = checksum + 1",
        "namespace = 2",
    ],
)
def test_an_altered_record_is_named(tmp_path: Path, change: str) -> None:
    altered(tmp_path, "INSERT INTO namespaces VALUES (2, 'bob')", f"UPDATE records SET {change} WHERE id = 'm3'")
    with RecordStore.open(tmp_path) as made:
        name = "bob" if change == "namespace = 2" else "ana"
        for use in (lambda: made.fetch(name, ["m3"]), lambda: list(made.changes_after(0))):
            with pytest.raises(DamagedStoreError, match=r"id 'm3' was altered.*restore the file from a copy"):
                use()
        assert made.fetch("ana", ["m2"]) == [fr.Record("m2", "prefers tea", "ana")]
        if "tee" in change:
            with pytest.raises(DamagedStoreError, match="id 'm3'"):
                made.keyword_scan("ana", ["prefers"], 9)


@pytest.mark.parametrize("change", ["CAST(replace(value, '1.2', '1.3') AS BLOB)", "7"])
def test_altered_parameters_are_noticed(tmp_path: Path, change: str) -> None:
    with RecordStore.open(tmp_path) as made:
        made.set_config({"k1": 1.2})
    altered(tmp_path, f"UPDATE meta SET value = {change} WHERE key = 'config'")
    with RecordStore.open(tmp_path) as made, pytest.raises(DamagedStoreError, match="parameters were altered"):
        assert made.config


def test_an_altered_id_is_noticed(tmp_path: Path) -> None:
    altered(tmp_path, "UPDATE records SET id = CAST(x'6dff' AS TEXT) WHERE id = 'm3'")
    with RecordStore.open(tmp_path) as made, pytest.raises(DamagedStoreError, match="id 'm\ufffd' was altered"):
        list(made.changes_after(0))


def test_an_altered_page(tmp_path: Path) -> None:
    altered(tmp_path)
    content = bytearray((tmp_path / RECORDS).read_bytes())
    for place in range(4096, len(content), 4096):
        content[place : place + 8] = b"\xff" * 8
    (tmp_path / RECORDS).write_bytes(content)
    with pytest.raises(DamagedStoreError, match=f"{RECORDS}: damaged .*restore the file from a copy"):
        RecordStore.open(tmp_path).fetch("ana", ["m3"])


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("content", [b"x", b"no database " * 1000])
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes, read_only: bool) -> None:
    (tmp_path / RECORDS).write_bytes(content)
    with pytest.raises(DamagedStoreError, match=f"{RECORDS}: .*not a database"):
        RecordStore.open(tmp_path, read_only=read_only)
    assert (tmp_path / RECORDS).read_bytes() == content


@pytest.mark.parametrize("read_only", [False, True])
def test_the_database_of_another_program(tmp_path: Path, read_only: bool) -> None:
    raw = sqlite3.connect(tmp_path / RECORDS)
    raw.execute("CREATE TABLE t(x)")
    raw.close()
    before = (tmp_path / RECORDS).read_bytes()
    with pytest.raises(ForeignIndexError, match="another program"):
        RecordStore.open(tmp_path, read_only=read_only)
    assert (tmp_path / RECORDS).read_bytes() == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_format(tmp_path: Path, read_only: bool) -> None:
    altered(tmp_path, f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(
        NewerFormatError, match=f"format {VERSION + 1}, and this fanrank reads up to {VERSION}; upgrade"
    ):
        RecordStore.open(tmp_path, read_only=read_only)


def test_places_that_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(ForeignIndexError, match="holds other files; choose an empty or new directory"):
        RecordStore.open(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]
    with pytest.raises(ForeignIndexError, match="not a directory"):
        RecordStore.open(tmp_path / "other" / "notes.txt")
    for place, why in (("other", RECORDS), ("nowhere", "no such directory")):
        with pytest.raises(ForeignIndexError, match=f"no fanrank records here .*{why}"):
            RecordStore.open(tmp_path / place, read_only=True)
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(StorageError, match="Not a directory"):
        RecordStore.open(tmp_path / "other" / "notes.txt" / "deeper")


def test_records_that_were_emptied_are_not_a_new_store(tmp_path: Path) -> None:
    put(made := RecordStore.open(tmp_path), "a")
    made.close()
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / RECORDS).write_bytes(b"")
    with pytest.raises(DamagedStoreError, match="1 acknowledged changes are missing: the database is empty"):
        RecordStore.open(tmp_path)
    note_of(tmp_path / RECORDS).unlink()
    with pytest.raises(DamagedStoreError, match="empty, beside an index"):
        RecordStore.open(tmp_path)
    with pytest.raises(ForeignIndexError, match="holds nothing yet"):
        RecordStore.open(tmp_path, read_only=True)
    (tmp_path / "manifest.json").unlink()
    with RecordStore.open(tmp_path) as again:
        assert again.sequence == 0


def test_keywords() -> None:
    assert keywords("What did we say about the Billing_job and its KEY rotation, error 4711, Grüße?") == [
        "billing_job",
        "rotation",
        "error",
    ]
    assert keywords("What did I tell you last time, remember?") == ["time"]
    assert keywords("tea tea TEAPOT Teapot ÄRGER") == ["teapot", "ärger"]
    assert keywords("") == []


def test_keyword_scan(opened: RecordStore) -> None:
    said: Sequence[tuple[str, str]] = [
        ("a", "the Billing job failed"),
        ("b", "nothing of note, role of text"),
        ("c", 'BILLING error: 100% of job_s, "quoted\\path"\nnext'),
        ("d", "ΟΔΟΣ and Straße"),
        ("e", "billing error"),
    ]
    opened.write([[Change("", added=added(*(fr.Record(i, text, role="user") for i, text in said)))]])
    put(opened, "a", text="billing", namespace="bob")
    opened.write([[Change("", removed=["a"], added=added(fr.Record("a", "billing, billing")))]])
    scan = opened.keyword_scan
    assert scan("", ["billing", "error"], 9) == [("a", 1), ("e", 2), ("c", 2)]
    assert scan("", ["billing", "BILLING"], 2) == [("a", 1), ("e", 1)]
    assert scan("", ["billing"], 9, lambda record: record.role == "user") == [("e", 1), ("c", 1)]
    assert scan("", ["billing"], 1, lambda record: record.role == "user") == [("e", 1)]
    for word in ('"quoted\\path"', "\nnext", "100%", "b_s"):
        assert scan("", [word], 9) == [("c", 1)]
    assert scan("", ["οδοσ"], 9) == scan("", ["STRASSE"], 9) == [("d", 1)]
    for nothing in (["user"], ["%"[:0]], ["b%ing"], []):
        assert scan("", nothing, 9) == []
    assert scan("", ["text"], 9) == [("b", 1)]
    assert scan("", ["billing"], 0) == scan("nobody", ["billing"], 9) == scan("\ud800", ["billing"], 9) == []
    assert scan("bob", ["billing"], 9) == [("a", 1)]
    opened.keyword_scan("", ["billing"], 9, lambda record: opened.fetch("", [record.id]) == [record])
