"""The verbs of `ShardedEngine` that read, carry and keep records: what they give is what one engine gives."""

import pickle
import random
import shutil
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support import borders
from support.hashing import Hashing
from support.sharding import FOLDER, assert_same_answers, assert_same_records, outcome, sharded, split_over_all

import fanrank as fr
from fanrank.engine.carry.json_lines import write_lines
from fanrank.engine.carry.rows import model_of
from fanrank.engine.storage import storage
from fanrank.engine.storage.row_codec import RECORDS
from fanrank.errors import ForeignIndexError, StorageError
from fanrank.shards.coordinator.columns import take_columns
from fanrank.shards.coordinator.coordinator import Changes
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.opening.backup import begin_copy
from fanrank.shards.processes.links import Done, LocalLink
from fanrank.shards.processes.streams import Stream, begin_task, end_task
from fanrank.shards.protocol.order import without_order
from fanrank.shards.verbs import stream_all

SPACES = ("", "big", "team/a", "team/b")
HASHING = Hashing(dimension=8)
COLUMNS = {"kind": "category", "rank": "number"}
SHARDS = (1, 3)


@pytest.fixture(scope="module", autouse=True)
def as_between_processes() -> Iterator[None]:
    """All that is sent to a shard, and all that it answers, is pickled on the way, as between processes."""
    send = LocalLink.send

    def packed(self: LocalLink, verb: str, *arguments: Any, **keywords: Any) -> Any:
        arguments, keywords = pickle.loads(pickle.dumps((arguments, keywords)))
        answer = send(self, verb, *arguments, **keywords)
        try:
            return Done(pickle.loads(pickle.dumps(answer.result(None))))
        except fr.FanrankError as error:
            return Done(error=pickle.loads(pickle.dumps(error)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalLink, "send", packed)
        yield


def make_records(count: int, seed: int = 0) -> list[fr.Record]:
    """Records of several namespaces; some have the same times or none, and some a vector."""
    draw = random.Random(seed)
    return [
        fr.Record(
            f"r{number:03d}",
            " ".join(draw.choices(("ant", "bee", "cat"), k=draw.randint(0, 4))),
            namespace=draw.choice(SPACES),
            time=draw.choice([None, float(draw.randint(0, 9))]),
            type=draw.choice([None, "Fact"]),
            expires=draw.choice([None, None, 4e9]),
            extra={"kind": draw.choice(["x", "y"]), "rank": draw.randint(0, 3)},
            payload={"n": number},
        )
        for number in range(count)
    ]


def fill(engine: fr.Engine | ShardedEngine, records: list[fr.Record]) -> None:
    """Batches over several namespaces, with updates, insertions and deletions."""
    for start in range(0, len(records), 30):
        engine.add(records[start : start + 30])
    # In one batch: what replaces records, and what is new.
    engine.upsert([fr.Record("new", "ant", namespace="team/b"), *records[5:40:4], fr.Record("new", "bee")])
    for record in records[3::17]:
        engine.delete([record.id], namespace=record.namespace)


def make_memories(folder: Path, shards: int) -> tuple[fr.Engine, ShardedEngine]:
    """One engine, and shards over which the namespace "big" is split, after the same writes."""
    options: dict[str, Any] = {"columns": COLUMNS, "encoder": HASHING}
    one = fr.Engine.open(folder / "one", **options)
    several = ShardedEngine.open(folder / "several", shards=shards, transport="local", **options)
    records = make_records(120)
    fill(one, records[:60])
    fill(several, records[:60])
    split_over_all(several, "big")
    fill(one, records[60:])
    fill(several, records[60:])
    return one, several


@pytest.fixture(scope="module", params=SHARDS)
def memories(request: pytest.FixtureRequest) -> Any:
    """Memories that are read alone."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        one, several = make_memories(Path(folder), request.param)
        yield one, several
        one.close()
        several.close()


@pytest.fixture
def own_memories(tmp_path: Path) -> Any:
    """Memories that a test may change."""
    one, several = make_memories(tmp_path, 3)
    yield one, several
    one.close()
    several.close()


def test_a_cursor_outlives_moves_and_writes(own_memories: Any) -> None:
    one, several = own_memories
    expected = [record.id for record in one.records(namespace="team/a")]
    first = several.records(namespace="team/a", limit=4)
    found = [record.id for record in first]
    placement = several.coordinator.placement
    several.coordinator.place("team/a", ((placement.home("team/a") + 1) % placement.shards,))
    several.add([fr.Record("later", "ant", namespace="team/a")])
    found += [record.id for record in several.records(namespace="team/a", after=first.cursor)]
    assert found == [*expected, "later"]


def test_a_listing_names_a_record_that_its_shard_has_lost(tmp_path: Path) -> None:
    with ShardedEngine.open(tmp_path / "memory", shards=1, transport="local") as several:
        several.add([fr.Record(name, "ant") for name in ("a", "b", "c")])
        with sqlite3.connect(tmp_path / "memory" / "shard-0000" / RECORDS) as database:
            database.execute("DELETE FROM records WHERE id = 'b'")
        database.close()
        with pytest.raises(fr.errors.DamagedStoreError, match=r"id 'b'.*restore the file from a copy"):
            list(several.records())


@pytest.mark.parametrize(
    "how",
    [
        {"order": "age"},
        {"limit": -1},
        {"after": "no cursor"},
        {"filter": {"unknown": 1}},
        {"filter": {"fanrank_order": 1}},
        {"namespace": 3},
    ],
    ids=str,
)
def test_listings_refuse_what_an_engine_refuses(memories: Any, how: dict[str, Any]) -> None:
    one, several = (outcome(lambda engine=engine: list(engine.records(**how))) for engine in memories)
    assert one == several
    assert issubclass(one[0], fr.FanrankError)


def test_a_filter_declares_a_key_that_a_record_of_any_shard_has(
    own_memories: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, stream, seen = [], storage.stream_records, Counter[str]()
    counted = lambda *given, **how: (seen.update([one.id]) or one for one in stream(*given, **how))  # noqa: E731
    monkeypatch.setattr(storage, "stream_records", counted)
    for engine in own_memories:
        engine.add([fr.Record("glad", "tea", namespace="big", payload={"mood": "glad", "by": {"name": "Ana"}})])
        seen.clear()
        assert engine.count({"mood": "glad"}, namespace=None) == 1
        assert (seen["glad"], seen.total()) == (1, len(engine))  # read once, for keys and values
        assert len(engine.search("tea", filter={"by.name": "Ana"}, namespace="big")[0]) == 1
        with pytest.raises(
            fr.errors.UnknownColumnError, match=r"did you mean 'mood'\?.* No record has such a key"
        ) as error:
            engine.count({"moot": "glad"})
        refused.append((str(error.value), engine.columns))
    assert refused[0] == refused[1]


@pytest.mark.parametrize(
    "how", [{}, {"namespace": "big"}, {"filter": {"kind": "x", "rank": 3}}, {"vectors": False}], ids=str
)
def test_an_export_is_the_file_of_one_engine(memories: Any, tmp_path: Path, how: dict[str, Any]) -> None:
    one, several = memories
    assert several.export(tmp_path / "several.jsonl", **how) == one.export(tmp_path / "one.jsonl", **how)
    assert (tmp_path / "several.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


def test_what_is_ended_while_it_starts_is_ended_after_that() -> None:
    shard, task = Mock(tasks={}), Mock()
    task.start.side_effect = lambda: (end_task(shard, "key"), shard["lost"])
    with pytest.raises(TypeError):
        begin_task(shard, "key", lambda shard: task)
    assert [call[0] for call in task.method_calls] == ["start", "end", "end"]


def test_an_export_is_of_one_moment(own_memories: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, several = own_memories
    placement = several.coordinator.placement
    several.coordinator.place("team/b", ((placement.home("team/b") + 1) % 3,))
    one.export(tmp_path / "one.jsonl")
    borders.shrink(monkeypatch, **{"streams.PAGE": 5})
    batch = [fr.Record(f"between{number}", "late", namespace="big") for number in range(9)]
    writer, sent = write_after_first(monkeypatch, Stream, lambda: several.add(batch))
    records = stream_all(several.coordinator, None)
    found = [next(records)]
    for space in SPACES:
        several.upsert([fr.Record("late", "late", namespace=space), *several.records(namespace=space, limit=9)])
        several.delete(list(several.ids(namespace=space))[:5], namespace=space)
    several.drop("team/a")
    found += records
    writer.join()
    assert len(sent) == 3
    with (tmp_path / "several.jsonl").open("wb") as file:
        write_lines(file, found, model_of(several.pin))
    assert (tmp_path / "several.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert not any(link.shard.tasks for link in several.coordinator.links)


def test_an_import_does_what_it_does_to_one_engine(own_memories: Any, tmp_path: Path) -> None:
    given = make_records(90, seed=1)
    source = fr.Engine.open(tmp_path / "source", columns=COLUMNS, encoder=HASHING)
    source.add([*given, fr.Record("over", "ant", namespace="big", expires=1.0)])
    source.export(file := tmp_path / "all.jsonl")
    outcomes = []
    for engine in own_memories:
        ways: list[dict[str, Any]] = [{}, {"upsert": True}, {"upsert": True}, {"upsert": True, "resume": False}]
        outcomes.append([outcome(engine.import_records, file, **how) for how in ways])
    assert outcomes[0] == outcomes[1]
    # An id whose record has expired is free again.
    for engine in own_memories:
        engine.add([fr.Record(f"brief{number}", "ant", namespace="big") for number in range(9)], ttl=0.05)
    time.sleep(0.1)
    (tmp_path / "brief.jsonl").write_text(
        "".join(f'{{"id": "brief{number}", "namespace": "big", "text": "bee"}}\n' for number in range(9))
    )
    one, several = own_memories
    assert several.import_records(tmp_path / "brief.jsonl") == one.import_records(tmp_path / "brief.jsonl")
    assert list(several.records(namespace=None)) == list(one.records(namespace=None))
    source.close()


def write_after_first(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], write: Callable[[], Any]
) -> tuple[threading.Thread, list[str]]:
    """Let another thread write once the first shard has done `function`. Returns it, and what was sent meanwhile."""
    writer, sent, send = threading.Thread(target=write), list[str](), LocalLink.send

    def slowly(self: LocalLink, verb: str, *arguments: Any, **keywords: Any) -> Any:
        answer = send(self, verb, *arguments, **keywords)
        if function in arguments:
            sent.append(verb)
            if len(sent) == 1:
                writer.start()
                writer.join(0.1)  # it has to wait for the other shards
        return answer

    monkeypatch.setattr(LocalLink, "send", slowly)
    return writer, sent


def test_a_backup_is_of_one_epoch(own_memories: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, several = own_memories
    several.coordinator.place("team/b", ((several.coordinator.placement.home("team/b") + 1) % 3,))
    batch = [fr.Record(f"late{number}", "late", namespace="big") for number in range(9)]
    writer, sent = write_after_first(monkeypatch, begin_copy, lambda: several.add(batch))
    report = several.backup(tmp_path / "copy")
    monkeypatch.undo()
    writer.join()
    assert several.count(namespace="big") == one.count(namespace="big") + 9
    assert len(sent) == 3
    assert (report.records, report.namespaces) == (len(list(one.records(namespace=None))), len(one.namespaces))
    assert report.index == "whole"
    checked = ShardedEngine.check_backup(tmp_path / "copy")
    assert (checked.records, checked.namespaces, checked.bytes) == (report.records, report.namespaces, report.bytes)
    ShardedEngine.restore(tmp_path / "copy", tmp_path / "restored")
    for name in ("copy", "restored"):
        with ShardedEngine.open(tmp_path / name, transport="local", encoder=HASHING) as copy:
            assert list(copy.records(namespace=None)) == list(one.records(namespace=None))
            queries = [fr.Query("ant bee", namespace=space) for space in SPACES]
            assert_same_answers(one, copy, queries, k=20, strategy="rrf")
            assert copy.verify()["missing"] == 0
            copy.add(batch)
            assert copy.coordinator.placement.split == several.coordinator.placement.split


def test_a_backup_refuses_what_it_cannot_do(own_memories: Any, tmp_path: Path) -> None:
    _, several = own_memories
    (tmp_path / "there").mkdir()
    with pytest.raises(StorageError, match="is there already"):
        several.backup(tmp_path / "there")
    with pytest.raises(ForeignIndexError, match="lies in the directory"):
        several.backup(several.coordinator.owner.path.parent / "inside")
    with pytest.raises(ForeignIndexError, match="no sharded memory"):
        ShardedEngine.check_backup(tmp_path / "one")
    several.backup(tmp_path / "copy")
    several.backup(tmp_path / "other")
    shutil.rmtree(tmp_path / "copy" / "shard-0001")
    with pytest.raises(ForeignIndexError, match="shard-0001"):
        ShardedEngine.check_backup(tmp_path / "copy")
    with sharded(2) as memory, pytest.raises(StorageError, match="without files"):
        memory.backup(tmp_path / "none")
    assert not [path.name for path in tmp_path.iterdir() if "partial" in path.name]


def test_columns_come_and_go_in_all_shards(own_memories: Any, tmp_path: Path) -> None:
    one, several = own_memories
    queries = [fr.Query("ant bee", namespace=space, filter={"payload.n": {"<": 50}}) for space in SPACES]
    for engine in own_memories:
        engine.add([fr.Record("odd", "ant", namespace="big", extra={"size": "large"})])
    calls: list[tuple[str, tuple[str, ...]]] = [
        ("add_column", ("payload.n", "number")),
        ("add_column", ("payload.n", "number")),
        ("add_column", ("size", "number")),  # one record has a string there
        ("drop_column", ("nothing",)),
        ("drop_column", ("rank",)),
    ]
    for verb, arguments in calls:
        assert outcome(getattr(several, verb), *arguments) == outcome(getattr(one, verb), *arguments)
        assert several.columns == one.columns
        for link in several.coordinator.links:
            assert without_order(link.shard.engine.columns) == one.columns
        for strategy in ("bm25", "recall"):
            assert_same_answers(one, several, queries, k=20, strategy=strategy)
        assert several.distinct("payload.n", namespace=None) == one.distinct("payload.n", namespace=None)
    assert outcome(several.add_column, "fanrank_order", "number")[0] is fr.errors.ParameterError
    assert outcome(several.drop_column, "fanrank_order")[0] is fr.errors.ParameterError
    # A crash may leave a column in some shards alone.
    several.coordinator.links[1].send("call", take_columns, {"kind": "category"}).result(None)
    several.close()
    with ShardedEngine.open(tmp_path / "several", transport="local", encoder=HASHING) as again:
        assert again.columns == one.columns
        assert_same_answers(one, again, queries, k=20)


def test_expired_records_are_swept_in_all_shards(own_memories: Any) -> None:
    for engine in own_memories:
        engine.upsert([fr.Record(f"brief{number}", "ant", namespace="big") for number in range(9)], ttl=0.05)
    time.sleep(0.1)
    one, several = own_memories
    assert 0 <= several.sweep() <= 9  # the shards sweep by themselves too
    held = sum(size for own in several.holdings().values() for size, _ in own.values())
    assert held == len(list(one.records(namespace=None)))
    assert list(several.records(namespace=None)) == list(one.records(namespace=None))


DAY = 86_400.0


def test_what_is_learned_stays_with_a_namespace(tmp_path: Path) -> None:
    """The k* rule and the meanings of names are those of one engine, over copies, moves, splits and openings."""
    options: dict[str, Any] = {"window": "1d", "max_windows": None}
    one = fr.Engine.open(tmp_path / "one", **options)
    several = ShardedEngine.open(tmp_path / "several", shards=3, transport="local", **options)
    records = [
        fr.Record(
            f"r{number}",
            f"ant Ana {'bee' if number % 2 else 'cat'}",
            namespace="big",
            time=number * DAY,
            entities={"Ana": f"ana{number % 3}"},
        )
        for number in range(20)
    ]
    queries = [fr.Query("who is Ana", namespace="big", now=19 * DAY, windows="auto"), fr.Query("Ana", namespace="big")]

    def compare() -> None:
        assert several.recency("big").to_dict() == one.recency("big").to_dict()
        assert several.namespace("big").stats()["recency"] == one.namespace("big").stats()["recency"]
        for strategy in ("bm25", "recall"):
            assert_same_answers(one, several, queries, k=20, strategy=strategy)

    def learn(times: int) -> None:
        for engine in (one, several):
            for _ in range(times):
                engine.observe(["r19", "r18", "r3", "nobody"], namespace="big", now=19 * DAY)
                engine.observe(["r12", "r1"], namespace="big", windows=4)
            engine.resolved("Ana", "ana2", namespace="big", times=times)

    for engine in (one, several):
        engine.add(records)
    learn(3)
    compare()
    home = several.coordinator.placement.home("big")
    several.coordinator.place("big", ((home + 1) % 3,))
    compare()
    split_over_all(several, "big")
    compare()
    before = one.recency("big").windows()
    learn(30)
    assert one.recency("big").windows() > before  # so that what whole copies do not know is seen
    compare()
    wrong: list[dict[str, Any]] = [{"ids": "r1"}, {"ids": ["r1"], "windows": 0}, {"ids": ["r1"], "now": "soon"}]
    for how in wrong:
        assert outcome(several.observe, **how, namespace="big") == outcome(one.observe, **how, namespace="big")
    assert outcome(several.resolved, "", "ana1") == outcome(one.resolved, "", "ana1")
    several.close()
    with ShardedEngine.open(tmp_path / "several", transport="local") as again:
        assert again.recency("big").to_dict() == one.recency("big").to_dict()
        assert_same_answers(one, again, queries, k=20, strategy="recall")
    one.close()


def test_a_change_by_a_filter_is_written_in_the_order_of_its_records() -> None:
    one, several = fr.Engine(), sharded(3, split=["big"])
    for engine in (one, several):
        engine.add([fr.Record(f"r{number}", "ant", namespace="big", type="Word") for number in range(12)])
        engine.update_where({"type": "Word"}, namespace="big", type="Fact")
    assert_same_records(one, several, ["big"])


def test_drift_and_sizes_are_of_all_parts(own_memories: Any) -> None:
    for first in (0, 3, 30):
        reports = []
        for engine in own_memories:
            # Each record has a word of its own, so each shard has others.
            records = [fr.Record(f"d{number}", f"word{number}", namespace="big") for number in range(first, first + 20)]
            engine.delete_where({"type": "Word"}, namespace="big")
            engine.upsert([replace(record, type="Word") for record in records])
            reports.append([engine.drift(space) for space in SPACES])
        assert reports[0] == reports[1]
        assert first == 0 or 0 < reports[0][1].jaccard < 1
    one, several = own_memories
    for space in SPACES:
        known, own = one.namespace(space).stats(), several.namespace(space).stats()
        assert {*known, "shards"} == {*own}
        assert (own["documents"], own["recency"]) == (known["documents"], known["recency"])
    several.drop("big")
    one.drop("big")
    assert several.drift("big") == one.drift("big")


@pytest.mark.parametrize("space", ["team/a", "big"])
def test_hits_are_explained_after_writes_to_other_namespaces(own_memories: Any, space: str) -> None:
    one, several = own_memories
    queries = [fr.Query("ant bee", namespace=space)]
    known, found = one.search(queries), several.search(queries)
    best = known.ids[0, 0]
    for engine in own_memories:
        engine.add([fr.Record("other", "ant bee", namespace="team/b")])
        engine.drop("team/b")
    assert found.explain(0, best).to_dict() == known.explain(0, best).to_dict()
    several.add([fr.Record("own", "ant bee", namespace=space)])
    with pytest.raises(fr.errors.QueryError, match="were written since"):
        found.explain(0, best)


def test_namespaces_beyond_those_remembered_count_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, **{"coordinator.KEPT": 2})
    changes = Changes()
    for epoch, name in enumerate("abc", 1):
        changes.note([name], epoch)
    assert not changes.since("abc", 3)
    assert [changes.since(name, 1) for name in "abcd"] == [False, True, True, False]
    assert changes.since("d", 0)
    changes.note_all(9)
    assert changes.since("d", 8)
