"""Writes that wait for the same shards are carried out together, and each is still whole, in its turn, or refused."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support.dying import AFTER, BEFORE, LATE, dying, link_of
from support.sharding import Crash, FailingLink, crash, opened, outcome, split_over_all
from support.threads import PATIENCE, in_threads, until

import fanrank as fr
from fanrank.engine.errors import DeadlineError, DuplicateIdError, ShardError, StorageError, UnknownIdError
from fanrank.engine.storage import failpoints
from fanrank.shards.coordinator import writes
from fanrank.shards.engine import ShardedEngine

HOME = 0


def names_of(several: ShardedEngine, shard: int, count: int) -> list[str]:
    """Namespaces of one shard."""
    home = several.coordinator.placement.home
    return [name for name in (f"n{number}" for number in range(100)) if home(name) == shard][:count]


def together(several: ShardedEngine, *tasks: Callable[[], Any]) -> list[Any]:
    """Let these writes wait in this order, then go; what each returns, or raises."""
    coordinator, outcomes = several.coordinator, [None] * len(tasks)

    def run(place: int) -> None:
        try:
            outcomes[place] = tasks[place]()
        except BaseException as error:
            outcomes[place] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(tasks))]
    with coordinator.paused():
        for place, thread in enumerate(threads):
            thread.start()
            until(lambda place=place: len(coordinator._writes) > place)  # type: ignore[misc]
    for thread in threads:
        thread.join(PATIENCE)
    return outcomes


def adding(several: Any, *records: fr.Record) -> Callable[[], int]:
    return lambda: several.add(list(records))


def count_of(several: ShardedEngine, shard: int) -> int:
    """The commits of a shard's store."""
    found: int = several.stats()["shards"][shard]["commits"]
    return found


def test_writes_that_wait_for_a_shard_are_one_commit(tmp_path: Path) -> None:
    with opened(tmp_path, shards=2) as several:
        names = names_of(several, HOME, 8)
        before = count_of(several, HOME)
        found = together(several, *(adding(several, fr.Record("a", "ant", name)) for name in names))
        assert found == [1] * 8
        assert count_of(several, HOME) == before + 1
        assert len(several) == 8


def test_what_a_group_refuses_is_refused_alone(tmp_path: Path) -> None:
    one = fr.Engine(columns={"n": "number"})
    with opened(tmp_path, shards=2, columns={"n": "number"}) as several:
        name = names_of(several, HOME, 1)[0]
        for engine in (one, several):
            engine.add([fr.Record("old", "ant", name), fr.Record("gone", "ant", name)])
        bad = fr.Record("bad", "ant", name, extra={"n": "seven"})
        calls: list[Callable[[Any], Any]] = [
            lambda engine: engine.add([fr.Record("a", "bee", name)]),
            lambda engine: engine.add([fr.Record("b", "bee", name), fr.Record("old", "bee", name)]),
            lambda engine: engine.upsert([fr.Record("c", "bee", name), fr.Record("d", "bee", name)]),
            lambda engine: engine.delete(["gone"], namespace=name, missing_ok=True),
            lambda engine: engine.delete(["nobody", "a2"], namespace=name, missing_ok=True),
            lambda engine: engine.add([fr.Record("x", "bee", name), bad]),
            lambda engine: engine.delete(["nobody"], namespace=name),
            lambda engine: engine.add([fr.Record("e", "bee", name)]),
        ]
        found = together(several, *(lambda call=call: outcome(call, several) for call in calls))  # type: ignore[misc]
        assert found == [outcome(call, one) for call in calls]
        assert list(several.ids(namespace=name)) == list(one.ids(namespace=name))


def test_a_write_of_one_shard_that_is_refused_is_in_no_decision_of_others(tmp_path: Path) -> None:
    with opened(tmp_path, shards=2) as several:
        split_over_all(several, "big")
        several.add([fr.Record("old", "ant", "big")])
        found = together(
            several,
            adding(several, *(fr.Record(f"r{number}", "ant", "big") for number in range(8))),
            lambda: outcome(several.add, [fr.Record("old", "bee", "big")]),
            lambda: outcome(several.delete, ["nobody"], namespace="big"),
            adding(several, fr.Record("new", "ant", "big")),
        )
        assert [found[0], found[1][0], found[2][0], found[3]] == [8, DuplicateIdError, UnknownIdError, 1]
        assert len(several) == 10


@pytest.mark.parametrize("split", [False, True], ids=["one shard", "all shards"])
def test_writes_of_a_group_have_the_order_in_which_they_came(tmp_path: Path, split: bool) -> None:
    with opened(tmp_path, shards=2) as several:
        if split:
            split_over_all(several, "big")
        records = [[fr.Record(f"r{number}-{place}", "ant", "big") for place in range(4)] for number in range(6)]
        assert together(several, *(adding(several, *batch) for batch in records)) == [4] * 6
        assert list(several.ids(namespace="big")) == [record.id for batch in records for record in batch]


def test_writes_of_one_record_come_one_after_another(tmp_path: Path) -> None:
    with opened(tmp_path, shards=2) as several:
        name = names_of(several, HOME, 1)[0]

        def upsert(number: int) -> Callable[[], int]:
            return lambda: several.upsert([fr.Record("a", f"word{number}", name)])

        before = count_of(several, HOME)
        assert together(several, *map(upsert, range(3)), adding(several, fr.Record("a", "last", name)))[:3] == [1] * 3
        found = several.get("a", namespace=name)
        assert found.text == "word2"
        assert count_of(several, HOME) == before + 3


def test_what_removes_a_record_of_the_same_line_finds_it(tmp_path: Path) -> None:
    with opened(tmp_path, shards=2) as several:
        name = names_of(several, HOME, 1)[0]
        delete = lambda: several.delete(["a"], namespace=name, missing_ok=True)  # noqa: E731
        assert together(several, adding(several, fr.Record("a", "ant", name)), delete) == [1, 1]
        assert len(several) == 0


def test_a_group_ends_where_it_grows_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "MOST", 5)
    with opened(tmp_path, shards=2) as several:
        name = names_of(several, HOME, 1)[0]
        before = count_of(several, HOME)
        batches = [[fr.Record(f"r{number}-{place}", "ant", name) for place in range(3)] for number in range(3)]
        assert together(several, *(adding(several, *batch) for batch in batches)) == [3] * 3
        assert count_of(several, HOME) == before + 3


@pytest.mark.parametrize("point", ["batch.prepared", "batch.decided", "batch.sent", "batch.acknowledged"])
def test_no_batch_is_torn_between_groups_by_a_crash(tmp_path: Path, point: str) -> None:
    several = opened(tmp_path, shards=2)
    split_over_all(several, "big")
    batches = [[fr.Record(f"r{number}-{place}", "ant", "big") for place in range(6)] for number in range(4)]
    failpoints.arm(point, action=crash)
    found = together(several, *(adding(several, *batch) for batch in batches))
    assert isinstance(found[0], Crash)
    assert all(isinstance(error, ShardError) for error in found[1:])
    several.close()
    with opened(tmp_path) as again:
        there = set(again.ids(namespace="big"))
        for batch in batches:
            own = {record.id for record in batch}
            assert own <= there if point != "batch.prepared" else own.isdisjoint(there)
        assert again.verify()["missing"] == 0


@pytest.mark.parametrize("split", [False, True], ids=["one shard", "all shards"])
def test_no_write_of_a_group_is_acknowledged_before_its_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: bool
) -> None:
    with opened(tmp_path, shards=2) as several:
        name = "big" if split else names_of(several, HOME, 1)[0]
        if split:
            split_over_all(several, name)
        store = several.coordinator.links[HOME].shard.engine.index.memory.store  # type: ignore[attr-defined]
        batches = [[fr.Record(f"r{number}-{place}", "ant", name) for place in range(6)] for number in range(4)]
        with monkeypatch.context() as patched:
            full = Mock(side_effect=StorageError("no space left; nothing was written. Free some and try again"))
            patched.setattr(store, "keep_notes" if split else "write", full)
            found = together(several, *(adding(several, *batch) for batch in batches))
        assert [type(error) for error in found] == [StorageError] * 4
        assert len(several) == 0
        assert together(several, *(adding(several, *batch) for batch in batches)) == [6] * 4


@pytest.mark.parametrize("how", [BEFORE, AFTER, LATE])
def test_a_shard_that_ends_in_the_middle_of_a_group_does_it_once(tmp_path: Path, how: str) -> None:
    with dying(tmp_path / "memory", 2) as several:
        names = names_of(several, HOME, 4)
        link_of(several, HOME).plan("apply", how)
        assert together(several, *(adding(several, fr.Record("a", "ant", name)) for name in names)) == [1] * 4
        assert {record.namespace for record in several.records(namespace=None)} == {*names}
        assert len(several) == 4


def test_a_write_that_waits_until_its_deadline_is_not_carried_out_later(tmp_path: Path) -> None:
    with opened(tmp_path, shards=2, deadline=0.2) as several:
        found: list[Any] = []
        tasks = [lambda n=n: outcome(several.add, [fr.Record(f"r{n}", "ant")]) for n in range(3)]  # type: ignore[misc]
        with several.coordinator.paused():
            in_threads(*(lambda task=task: found.append(task()) for task in tasks))  # type: ignore[misc]
        assert [kind for kind, _ in found] == [DeadlineError] * 3
        assert all("nothing was changed" in message for _, message in found)
        assert len(several) == 0
        assert several.add([fr.Record("r0", "ant")]) == 1


def test_a_group_is_not_done_where_its_shard_does_not_answer(tmp_path: Path) -> None:
    with opened(tmp_path, shards=2) as several:
        names = names_of(several, HOME, 3)
        links: Any = several.coordinator.links
        links[HOME] = FailingLink(links[HOME], after=False, error=DeadlineError("too late"))
        found = together(several, *(adding(several, fr.Record("a", "ant", name)) for name in names))
        assert [type(error) for error in found] == [DeadlineError] * 3
        assert all("is found out before the next one" in str(error) for error in found)
        assert together(several, *(adding(several, fr.Record("a", "ant", name)) for name in names)) == [1] * 3


def test_a_write_whose_namespace_moves_while_it_waits_follows_it(tmp_path: Path) -> None:
    with opened(tmp_path, shards=2) as several:
        name = names_of(several, HOME, 1)[0]
        several.add([fr.Record("a", "ant", name)])
        coordinator, done, over = several.coordinator, list[int](), threading.Event()
        new = coordinator._locks[1 - HOME]

        def hold() -> None:
            with coordinator.holding_shards({1 - HOME}):
                over.wait(PATIENCE)

        holder = threading.Thread(target=hold)
        writer = threading.Thread(target=lambda: done.append(several.add([fr.Record("b", "ant", name)])))
        with coordinator.paused():
            writer.start()
            until(lambda: len(coordinator._writes))
            holder.start()
            until(lambda: new._waiting)
            coordinator.place(name, (1 - HOME,))
        # The writer goes to its line's shard, and then waits for the new home, which the other thread holds first.
        until(lambda: new._waiting or done)
        assert done == []
        over.set()
        writer.join(PATIENCE)
        holder.join(PATIENCE)
        assert done == [1]
        assert coordinator.links[1 - HOME].shard.holdings(name)[name][0] == 2  # type: ignore[attr-defined]
