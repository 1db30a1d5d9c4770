"""A memory that grows, forgets and merges while it is asked: always the plain oracle over the records that remain."""

import errno
import math
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest
from support import borders, history
from support.history import WORDS
from support.threads import PATIENCE, in_threads, until
from world import Model, Write

import fanrank as fr
from fanrank.engine.index.snapshot import WEEK
from fanrank.engine.storage import failpoints, writes
from fanrank.engine.storage.state import MemoryState
from fanrank.engine.storage.storage import Storage


class Script:
    """Write batches for two namespaces of one writer, the states between them, and how far the writer has come."""

    def __init__(self, writer: int, batches: int) -> None:
        self.spaces = (f"left{writer}", f"right{writer}")
        self.writes: list[Write] = []
        self.states: list[list[list[fr.Record]]] = [[[], []]]
        self.begun = self.acknowledged = 0
        model = Model()
        for number in range(1, batches + 1):
            verb = ("add", "add", "update", "delete")[number % 4]
            batch = []
            for place, namespace in enumerate(self.spaces):
                live = list(model.held.get(namespace, ()))
                if verb == "add":
                    ids = [f"{number}-{row}" for row in range(3)]
                elif verb == "update":
                    ids = live[:: 3 + place]
                else:
                    ids = live[number % 2 :: 3] if place == 0 else []
                tag = " ".join([WORDS[number % len(WORDS)], "tagged", *["more"] * (number % 3)])
                batch += [fr.Record(name, tag, namespace) for name in ids]
            deleted = Write("delete", ids=tuple(record.id for record in batch), namespace=self.spaces[0])
            self.writes.append(deleted if verb == "delete" else Write(verb, tuple(batch)))
            model.apply(self.writes[-1])
            self.states.append([model.all(name) for name in self.spaces])

    def write(self, engine: fr.Engine, asking: threading.Event) -> None:
        """Each batch as a search begins, so that there are searches beside every write."""
        for write in self.writes:
            asking.clear()
            asking.wait(PATIENCE)
            self.begun += 1
            write.run(engine)
            self.acknowledged += 1


@pytest.mark.parametrize("durable", [False, True])
def test_searches_see_whole_batches_in_their_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, durable: bool
) -> None:
    """Each answer is the oracle's of one state between what was acknowledged before it and what had begun after it."""
    history.shrink(monkeypatch)
    borders.shrink(monkeypatch, MAX_SEGMENTS=64, BUILD_CHUNK=64)
    scripts = [Script(writer, 32) for writer in range(2)]
    engine = fr.Engine.open(tmp_path, analyzer="minimal") if durable else fr.Engine(analyzer="minimal")
    asked = [
        [fr.Query(terms=terms, namespace=name) for name in script.spaces for terms in (["tagged"], ["more", "b2"])]
        for script in scripts
    ]
    stated = [
        [[history.expected(own, query, 200) for own in state for query in queries[:2]] for state in script.states]
        for script, queries in zip(scripts, asked, strict=True)
    ]
    writing, asking = threading.Event(), threading.Event()
    seen: set[tuple[int, int]] = set()

    def read(execution: str) -> None:
        last = [0, 0]
        while True:
            ending = not writing.is_set()
            before = [script.acknowledged for script in scripts]
            asking.set()
            hits = engine.search([query for queries in asked for query in queries], 200, execution=execution)
            after = [script.begun for script in scripts]
            answers = list(hits)
            for writer in range(2):
                own = answers[4 * writer : 4 * writer + 4]
                states = range(max(before[writer], last[writer]), after[writer] + 1)
                state = next((number for number in states if stated[writer][number] == own), None)
                assert state is not None, (writer, before, last, after)
                last[writer] = state
                seen.add((writer, state))
            if ending:
                return

    def write() -> None:
        try:
            in_threads(*(lambda script=script: script.write(engine, asking) for script in scripts))  # type: ignore[misc]
        finally:
            writing.clear()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    writing.set()
    try:
        in_threads(write, lambda: read("auto"), lambda: read("exhaustive"))
    finally:
        sys.setswitchinterval(interval)
    assert {(0, 32), (1, 32)} <= seen
    assert len(seen) > 10
    engine.flush()
    stats = engine.stats()
    assert stats["writes"] == 64
    assert stats["merges"]
    assert stats["background_error"] is None
    assert list(engine.search([query for queries in asked for query in queries], 200)) == [
        row for rows in stated for row in rows[-1]
    ]
    engine.close()


def queued(engine: fr.Engine, *tasks: Callable[[], object], armed: Callable[[], None] = lambda: None) -> None:
    """Let the tasks, each one write, wait for the engine together; `armed` is called before they go."""
    held = engine.index.memory
    holding = threading.Event()

    def hold() -> None:
        with held._writing:
            holding.set()
            until(lambda: len(held._queue) == len(tasks))
            armed()

    def after(task: Callable[[], object]) -> None:
        assert holding.wait(PATIENCE)
        task()

    in_threads(hold, *(lambda task=task: after(task) for task in tasks))  # type: ignore[misc]


DISK_FULL = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.parametrize("point", ["write.begin", "write.records", "write.commit"])
def test_a_commit_that_fails_changes_nothing(tmp_path: Path, point: str) -> None:
    def state(engine: fr.Engine) -> object:
        stats = engine.stats()
        hits = engine.search([["a1", "new", "b2"], fr.Query(terms=["a1"], filter={"session": "new"})], 9)
        counted = "documents", "vocabulary", "postings", "sequence", "writes", "commits", "weight_terms", "entity_terms"
        kept = {name: stats[name] for name in counted}
        return kept, list(hits), hits.documents.tolist(), engine.fetch(["1", "2", "3"]), engine.namespaces

    writes: list[Callable[[fr.Engine], object]] = [
        lambda engine: engine.add([fr.Record("3", "a1 new", session="new", weights={"w": 1.0}, entities=["e"])]),
        lambda engine: engine.add([fr.Record("1", "new", "other")]),
        lambda engine: engine.update([fr.Record("1", "new", session="new")]),
        lambda engine: engine.delete(["1", "2"]),
        lambda engine: engine.drop(""),
    ]
    for number, write in enumerate(writes):
        with fr.Engine.open(tmp_path / str(number), analyzer="minimal") as engine:
            engine.add([fr.Record("1", "a1"), fr.Record("2", "a1 b2")])
            before = state(engine)
            failpoints.arm(point, action=DISK_FULL)
            with pytest.raises(fr.errors.StorageError, match="no space left"):
                write(engine)
            assert state(engine) == before
            write(engine)
            after = state(engine)
            assert after != before
        with fr.Engine.open(tmp_path / str(number)) as again:
            assert state(again)[1:] == after[1:]  # type: ignore[index]


def test_a_commit_that_fails_fails_for_all_that_shared_it(tmp_path: Path) -> None:
    with fr.Engine.open(tmp_path, analyzer="minimal") as engine:
        engine.add([fr.Record("1", "a1")])
        failures: list[str] = []

        def write(number: int) -> None:
            try:
                engine.add([fr.Record(f"r{number}", f"w{number}")])
            except fr.errors.StorageError as error:
                failures.append(str(error))

        tasks = [lambda n=n: write(n) for n in range(3)]  # type: ignore[misc]
        queued(engine, *tasks, armed=lambda: failpoints.arm("write.commit", action=DISK_FULL))
        assert len(failures) == 3
        assert (len(engine), engine.stats()["vocabulary"]) == (1, 1)
        assert engine.add([fr.Record(f"r{number}", f"w{number}") for number in range(3)]) == 3
    with fr.Engine.open(tmp_path) as again:
        assert [again.search([[f"w{number}"]])[0][0][0] for number in range(3)] == ["r0", "r1", "r2"]


MEANWHILE: dict[str, Callable[[fr.Engine], object]] = {
    "delete": lambda engine: engine.delete([f"r{n}" for n in range(0, 40, 3)]),
    "delete all": lambda engine: engine.delete([f"r{n}" for n in range(40)]),
    "update": lambda engine: engine.update([fr.Record(f"r{n}", "a1 f6") for n in range(0, 40, 5)]),
    "add": lambda engine: engine.add([fr.Record(f"s{n}", "a1 f6") for n in range(9)]),
    "drop": lambda engine: engine.drop(""),
    "drop and add": lambda engine: (engine.drop(""), engine.add([fr.Record("r1", "a1")])),
    "nothing": lambda engine: None,
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_what_dies_during_a_merge_stays_unused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str) -> None:
    history.shrink(monkeypatch)
    borders.shrink(monkeypatch, INLINE_DOCUMENTS=0, MAX_SEGMENTS=64)
    monkeypatch.setattr(Storage, "wake", lambda self: None)

    def filled(engine: fr.Engine) -> fr.Engine:
        for number in range(40):
            engine.add([fr.Record(f"r{number}", f"a1 {WORDS[number % 5]}")])
        engine.delete(["r7", "r8", "r39"])
        engine.upsert([fr.Record("r7", "b2 a1"), fr.Record("r8", "b2"), fr.Record("r39", "a1")])
        return engine

    engine = filled(fr.Engine.open(tmp_path, analyzer="minimal"))
    plain = filled(fr.Engine(analyzer="minimal"))
    MEANWHILE[what](plain)
    batch = [["a1"], ["b2", "f6"], ["a1", "b2", "c3"]]
    happened: list[int] = []

    def meanwhile() -> None:
        happened.append(engine.stats()["segments"])
        MEANWHILE[what](engine)

    failpoints.arm("merge.built", 2, meanwhile)
    engine.flush()
    assert happened
    if not what.startswith("drop"):
        assert happened[0] > engine.stats()["segments"]
    assert list(engine.search(batch, 60)) == list(plain.search(batch, 60))
    assert history.statistics(engine, "") == history.statistics(plain, "")
    assert not any(engine.index.memory.snapshot("").merges(12, WEEK))
    engine.close()
    with fr.Engine.open(tmp_path) as again:
        assert again.opened == "loaded"
        assert list(again.search(batch, 60)) == list(plain.search(batch, 60))


def test_segments_stay_few() -> None:
    """Sizes at least halve from one to the next, so that a thousand single records are no more than ten segments."""
    engine = fr.Engine(analyzer="minimal")
    for number in range(1000):
        engine.add([fr.Record(f"r{number}", "a1")])
        assert engine.stats()["segments"] <= math.log2(number + 1) + 1
    for number in range(0, 1000, 2):
        engine.delete([f"r{number}"])
        assert engine.stats()["deleted"] <= 0.25 * 1000
    assert engine.stats()["segments"] <= 10
    assert engine.search([["a1"]], 1000).counts.tolist() == [500]


def test_a_full_segment_and_an_ended_window_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, WINDOW_DOCUMENTS=8)
    engine = fr.Engine(analyzer="minimal", window=80.0)
    for number in range(64):
        engine.add([fr.Record(f"r{number}", "a1", time=10.0 * number)])
    spans = [segment.span for segment in engine.index.memory.snapshot("").segments]
    assert spans == [(80.0 * number, 80.0 * number + 70.0) for number in range(8)]
    # Without time there are no windows.
    plain = fr.Engine(analyzer="minimal", window=80.0)
    for number in range(64):
        plain.add([fr.Record(f"r{number}", "a1")])
    assert plain.stats()["segments"] == 1


IN_MEMORY = {
    "namespaces", "documents", "deleted", "segments", "vocabulary", "postings", "index_bytes", "bytes_per_posting",
    "backend", "device_bytes", "writes", "commits", "merges", "merged_documents", "compacted_documents", "merging",
    "background_error", "vectors", "vector_bytes", "weights", "entities", "renumberings",
    "weight_terms", "entity_terms", "column_values", "posting_bytes", "evidence_bytes", "id_bytes", "column_bytes",
    "deleted_bytes", "vocabulary_bytes", "cache_bytes",
}  # fmt: skip


def test_statistics_are_named(tmp_path: Path) -> None:
    assert set(fr.Engine().stats()) == IN_MEMORY
    with fr.Engine.open(tmp_path, analyzer="minimal") as engine:
        engine.add([fr.Record("1", "a1"), fr.Record("2", "a1 b2", "n")])
        engine.delete(["1"])
        stats = engine.stats()
        assert set(stats) == IN_MEMORY | {"sequence", "checkpointed", "checkpoints", "store_bytes", "opened"}
        assert {name: stats[name] for name in ("documents", "namespaces", "writes", "sequence", "checkpointed")} == {
            "documents": 1,
            "namespaces": 1,
            "writes": 2,
            "sequence": 3,
            "checkpointed": 0,
        }
        engine.flush()
        assert engine.stats()["checkpointed"] == 3


def test_an_interrupt_after_the_commit_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is durable is seen, by searches and after reopening, although the call was interrupted."""
    with fr.Engine.open(tmp_path, analyzer="minimal") as engine:
        engine.add([fr.Record("r0", "a1")])
        for point, ids in (("write.committed", ["r1"]), ("write.commit", ["r2"]), ("write.published", ["r3"])):
            failpoints.arm(point, action=Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                engine.add([fr.Record(i, "a1 b2") for i in ids])
            failpoints.disarm()
        expected = ["r0", "r1", "r3"]
        assert sorted(i for i, _ in engine.search(["a1"])[0]) == expected
        assert engine.verify() == {"records": 3, "missing": 0, "extra": 0}
        engine.add([fr.Record("r2", "a1")])
    with fr.Engine.open(tmp_path) as again:
        assert again.opened == "loaded"
        assert sorted(i for i, _ in again.search(["a1"])[0]) == ["r0", "r1", "r2", "r3"]


def test_an_interrupted_leader_leaves_no_batch_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group commit: whoever waits for the interrupted thread is told, and its batch is not applied later."""
    engine = fr.Engine(analyzer="minimal")
    memory = engine.index.memory
    waiting = threading.Event()
    errors: list[BaseException | int] = []

    def follower() -> None:
        waiting.set()
        try:
            errors.append(engine.add([fr.Record("b", "tea")]))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=follower)
    whole = memory._prepare

    def interrupted(request: Any, working: Any) -> Any:
        if not thread.is_alive() and not waiting.is_set():
            thread.start()
            waiting.wait(30)
            while not memory._queue:
                pass
            raise KeyboardInterrupt
        return whole(request, working)

    monkeypatch.setattr(memory, "_prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.add([fr.Record("a", "tea")])
    thread.join(30)
    assert errors == [1]
    assert engine.search(["tea"])[0][0][0] == "b"
    assert len(engine) == 1


def outcome(write: Callable[[], int]) -> str:
    try:
        return str(write())
    except fr.FanrankError as error:
        return str(error)


@pytest.mark.parametrize("durable", [True, False])
def test_a_group_of_batches_does_what_they_do_one_by_one(tmp_path: Path, durable: bool) -> None:
    """Counts, the batch that fails, and the order of the records; with one commit for each group."""
    random = Random(7)
    with fr.Engine.open(tmp_path) if durable else fr.Engine() as grouped:
        plain, memory, commits, ids = fr.Engine(), grouped.index.memory, 0, [str(number) for number in range(30)]
        for _ in range(30):
            batches: list[Any] = []
            for number in range(random.randint(2, 9)):
                names = random.sample(ids, 2)
                removed = {"x": [*names[: random.randint(0, 2)], *random.sample(ids, random.randint(0, 1))]}
                records = [fr.Record(name, f"tea {number}", namespace="x") for name in names if random.random() < 0.7]
                batches.append((removed, records, random.random() < 0.9))
            group = [writes.Write(removed, [some] if some else [], missing_ok) for removed, some, missing_ok in batches]
            memory._apply(group)
            for write, (removed, records, missing_ok) in zip(group, batches, strict=True):
                alone = partial(plain.index.memory.write, removed=removed, added=records, missing_ok=missing_ok)
                assert str(write.error or write.count) == outcome(alone)
            commits += any(write.error is None for write in group)
            assert list(grouped.records(namespace="x")) == list(plain.records(namespace="x"))
        assert memory.stats()["commits"] == commits
        assert not durable or grouped.verify()["missing"] == 0


def test_records_that_write_themselves_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, BUILD_CHUNK=2)
    engine = fr.Engine()

    def source() -> Any:
        for n in range(9):
            if n == 6:
                engine.add([fr.Record("x", "tea")])
            yield fr.Record(f"r{n}", "tea")

    with pytest.raises(fr.errors.StorageError, match="an iterable that itself writes"):
        engine.add(source())
    assert len(engine) == 0
    assert engine.add([fr.Record("x", "tea")]) == 1


def test_the_merges_of_writes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against what the segments say: a segment that holds more than a batch, or none of it, came by a merge."""
    borders.shrink(monkeypatch, INLINE_DOCUMENTS=16, MAX_SEGMENT_DOCUMENTS=16)
    engine = fr.Engine(backend="numpy")
    merges = documents = compacted = 0
    for number in range(60):
        before = engine.index.memory.snapshot("").segments
        if number % 3 == 2:
            engine.delete([f"m{number - 2}"])
        else:
            engine.add([fr.Record(f"m{number}", "tea")])
        engine.index.memory.join()
        after = engine.index.memory.snapshot("").segments
        added = number % 3 != 2
        gone = [segment for segment in before if segment not in after]
        came = [segment for segment in after if segment not in before]
        if gone:
            merges += 1
            documents += sum(segment.size for segment in came)
            compacted += sum(segment.size for segment in gone) + added - sum(segment.size for segment in came)
    counted = engine.stats()
    assert counted["merges"] >= merges > 10
    assert counted["merged_documents"] >= documents > 0
    assert counted["compacted_documents"] == compacted > 0


def test_a_batch_that_is_stored_and_not_published_says_so_and_is_seen_by_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fr.Engine.open(tmp_path / "own", backend="numpy") as engine:
        engine.add([fr.Record("a", "tea")])
        with monkeypatch.context() as patch:
            patch.setattr(MemoryState, "following", Mock(side_effect=MemoryError))
            with pytest.raises(MemoryError):
                engine.add([fr.Record("b", "tea cup")])
            with pytest.raises(MemoryError):
                engine.delete(["a"])
        assert [len(engine), engine.fetch(["b"])[0].text] == [1, "tea cup"]  # type: ignore[union-attr]
        engine.add([fr.Record("c", "tea")])
        assert sorted(engine.search(["tea"]).ids[0].tolist()[:3]) == ["a", "b", "c"]
        assert engine.verify() == {"records": 3, "missing": 0, "extra": 0}
