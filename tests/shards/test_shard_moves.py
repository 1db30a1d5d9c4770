"""Namespaces that move, alone or together, and split, and shards that are added, change no answer, whatever comes."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.sharding import (
    WORDS,
    Crash,
    FailingLink,
    assert_in_order,
    assert_same_answers,
    assert_same_records,
    crash,
    opened,
    sharded,
    turns,
    write,
)

import fanrank as fr
from fanrank.engine.storage import failpoints
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.moves.balancing import Step, plan_steps, together
from fanrank.shards.processes.links import LocalLink
from fanrank.shards.protocol.owner import OwnerFile
from fanrank.shards.protocol.placement import Placement, chosen_part, chosen_shard

SPACES = ("", "big", "team/a", "team/b")
EXPIRY = 9e9
"""Later than now: engines delete what has expired when it suits them, and a query of an earlier moment can tell."""
QUERIES = [
    *(fr.Query(text, namespace=space) for text in ("ant bee", "dog elk") for space in SPACES),
    fr.Query("ant cat", namespaces=["team/b", "big", ""]),
    fr.Query("bee dog", under="team"),
    fr.Query("bee", namespace="big", now=EXPIRY + 1.0),
    # Fewer than there are equal scores: each shard must cut its list by the order of all writes.
    fr.Query("ant", namespace="big", k=3),
]

ids = st.integers(0, 14).map(str)
texts = st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join)
records = st.builds(
    fr.Record, ids, texts, namespace=st.sampled_from(SPACES), expires=st.sampled_from([None, None, None, EXPIRY])
)
writes = st.one_of(
    st.tuples(st.just("upsert"), st.lists(records, max_size=10, unique_by=lambda each: (each.namespace, each.id))),
    st.tuples(st.just("delete"), st.tuples(st.lists(ids, max_size=5), st.sampled_from(SPACES), st.just(True))),
    st.tuples(st.just("drop"), st.sampled_from(SPACES)),
)
changes = st.one_of(
    st.tuples(st.just("place"), st.tuples(st.sampled_from(SPACES), st.permutations(range(6)), st.integers(1, 4))),
    st.tuples(st.just("add_shards"), st.integers(1, 2)),
    st.tuples(st.just("rebalance"), st.none()),
)


def open_in_small_pages(folder: Path, **options: Any) -> ShardedEngine:
    engine = opened(folder, **options)
    engine.coordinator.page = 3
    return engine


def check(one: fr.Engine, several: ShardedEngine) -> None:
    assert_same_answers(one, several, QUERIES, k=20)
    assert several.namespaces == tuple(sorted(one.namespaces))
    assert several.count(namespace=None) == one.count(namespace=None) == len(several)
    assert_same_records(one, several, SPACES)
    assert_in_order(several)


def between_pages(act: Callable[[], None]) -> None:
    """Do this after each page of a move."""

    def again() -> None:
        failpoints.arm("move.page", action=again)
        act()

    failpoints.arm("move.page", action=again)


def change(engine: ShardedEngine, verb: str, what: Any) -> None:
    if verb == "place":
        places = tuple(dict.fromkeys(shard % engine.coordinator.placement.shards for shard in what[1]))[: what[2]]
        with suppress(fr.errors.ShardError):  # parts of a split namespace cannot go to all shards
            engine.coordinator.place(what[0], places)
    elif verb == "add_shards":
        if engine.coordinator.placement.shards < 5:
            engine.add_shards(what)
    else:
        engine.rebalance()


def run_history(one: fr.Engine, several: ShardedEngine, history: Any, between: Any) -> None:
    left, thread = iter(between), threading.current_thread()

    def act() -> None:
        if threading.current_thread() is not thread:
            return  # a split in the background: this thread compares meanwhile, and would see half of a write
        verb, what = next(left, (None, None))
        for engine in (one, several) if verb is not None else ():
            write(engine, verb, what)
        check(one, several)

    for verb, what in history:
        if verb in ("place", "add_shards", "rebalance"):
            between_pages(act)
            change(several, verb, what)
            failpoints.disarm()
        else:
            for engine in (one, several):
                write(engine, verb, what)
        check(one, several)
    several.close()


def to(shard: int) -> Any:
    """A move of the namespace "big" to one shard."""
    return "place", ("big", [shard, 2, 3, 4, 5], 1)


THERE_AND_BACK = [to(0), to(1), to(0)]
"""Moves of more than one page, so that what is asked between pages meets the copies."""
GROWTH = [
    ("upsert", [fr.Record(f"x{number}", "ant bee", "big") for number in range(60)]),
    ("place", ("big", [0, 1], 2)),
    ("add_shards", 1),
    ("place", ("big", [0, 1, 2], 3)),
]
"""A third part, which takes records of equal scores from both others."""


@given(history=st.lists(st.one_of(writes, changes), max_size=10), between=st.lists(writes, max_size=10))
@example(history=THERE_AND_BACK, between=[])
@example(history=THERE_AND_BACK, between=[("upsert", turns(2, 6, "dog")), ("delete", (["r0", "r4"], "big", True))] * 3)
@example(history=[("place", ("big", [0, 1], 2)), ("add_shards", 2), ("place", ("big", [2, 3], 2))], between=[])
@example(history=GROWTH, between=[("upsert", turns(30, 6))])
@settings(max_examples=25)
def test_any_history_of_moves_gives_the_answers_of_one_engine(history: Any, between: Any) -> None:
    several = sharded(2, settings={"split_at": 6})
    several.coordinator.page = 3
    start = [("upsert", turns(0, 5))]
    run_history(fr.Engine(), several, [*start, *history], between)


POINTS = ("move.page", "move.copied", "batch.prepared", "batch.decided", "batch.sent", "batch.acknowledged")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("split", [False, True], ids=["move", "grow"])
def test_a_crash_leaves_the_old_or_the_new_home(tmp_path: Path, point: str, split: bool) -> None:
    one, several = fr.Engine(), open_in_small_pages(tmp_path, shards=4)
    home = several.coordinator.placement.home("big")
    first, second, third = (number for number in range(4) if number != home)
    for engine in (one, several):
        engine.add(turns(0, 10))
    if split:
        several.coordinator.place("big", (home, first))
    before = several.coordinator.placement.homes("big")
    after = (home, second, third) if split else (first,)
    for engine in (one, several):
        engine.update(turns(3, 4, "dog"))
    failpoints.arm(point, action=crash)
    with pytest.raises(Crash):
        several.coordinator.place("big", after)
    failpoints.disarm()
    assert_same_answers(one, several, QUERIES, k=20)
    several.close()
    with open_in_small_pages(tmp_path) as again:
        placed = point in POINTS[3:]
        assert again.coordinator.placement.homes("big") == (after if placed else before)
        check(one, again)
        assert again.verify() == {"records": 10, "missing": 0, "extra": 0}
        held = again.holdings()
        assert {shard for shard, own in held.items() if "big" in own} <= {*(after if placed else before)}
        assert sum(own["big"][0] for own in held.values() if "big" in own) == 10
        again.coordinator.place("big", after)
        check(one, again)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("failing", ["old", "new"])
def test_a_move_goes_on_after_a_shard_ended(tmp_path: Path, failing: str, at: int, after: bool) -> None:
    one, several = fr.Engine(), open_in_small_pages(tmp_path, shards=3)
    for engine in (one, several):
        engine.add(turns(0, 10))
    home = several.coordinator.placement.home("big")
    target = (home + 1) % 3
    links: Any = several.coordinator.links
    shard = home if failing == "old" else target
    links[shard] = FailingLink(links[shard], at, after=after)
    number = 0

    def act() -> None:
        nonlocal number
        number += 1
        for engine in (one, several):
            engine.upsert(turns(number, 2, "elk"))
            try:
                engine.delete([f"r{number + 3}"], namespace="big", missing_ok=True)
            except fr.errors.ShardError:  # it is not known whether that was done
                engine.delete([f"r{number + 3}"], namespace="big", missing_ok=True)
        check(one, several)

    between_pages(act)
    several.coordinator.place("big", (target,))
    failpoints.disarm()
    check(one, several)
    assert several.coordinator.placement.homes("big") == (target,)
    assert several.verify()["records"] == len(one)
    several.close()


def test_a_namespace_that_outgrows_its_shard_is_split_while_others_write() -> None:
    one, several = fr.Engine(), sharded(4, settings={"split_at": 20})
    for first in range(0, 60, 6):
        for engine in (one, several):
            engine.add(turns(first, 6))
        check(one, several)
    several.finish_splits()
    several.add(turns(60, 1))
    one.add(turns(60, 1))
    several.finish_splits()
    assert len(several.coordinator.placement.homes("big")) >= 3
    check(one, several)
    several.close()


def test_what_cannot_move_is_refused() -> None:
    several = sharded(4)
    several.add(turns(0, 8))
    several.coordinator.place("big", (0, 1, 2))
    for after in ((0,), (1, 0, 2), (0, 1), (2, 3, 1)):
        with pytest.raises(fr.errors.ShardError, match="cannot go to"):
            several.coordinator.place("big", after)
    several.coordinator.place("small", (2, 0))
    assert several.coordinator.parts_of("small", 4) == (2, 0, 3, 1)
    with pytest.raises(fr.errors.ParameterError, match="shards"):
        several.coordinator.place("big", (0, 1, 9))
    with pytest.raises(fr.errors.ParameterError, match="add_shards"):
        several.add_shards(0)
    several.close()
    with pytest.raises(fr.errors.StorageError, match="closed"):
        several.rebalance()


def test_an_added_shard_gets_its_share_and_no_other_namespace_moves() -> None:
    several = sharded(4)
    names = [f"tenant{number}" for number in range(200)]
    several.add([fr.Record("1", "ant bee", name) for name in names])
    before = {name: several.coordinator.placement.home(name) for name in names}
    assert several.add_shards(1) == 5
    placement = several.coordinator.placement
    assert {name: placement.home(name) for name in names} == before
    report = several.rebalance()
    placement = several.coordinator.placement
    moved = {name for name in names if placement.home(name) != before[name]}
    chosen = {name for name in names if chosen_shard(name, 5) == 4}
    assert {step["namespace"] for step in report["moves"]} == moved
    assert 20 <= len(moved) <= 70
    # All but what evens out the rest are those that choose the new shard.
    assert len(moved - chosen) <= 20
    assert max(report["after"]) <= 1.15 * sum(report["after"]) / 5
    assert several.rebalance()["moves"] == []
    several.close()


def test_a_plan_evens_out_and_ends() -> None:
    holdings = {0: {"a": (100, 1000), "b": (10, 400), "c": (5, 300)}, 1: {"d": (1, 100)}, 2: {}}
    placement = Placement(3, split_at=90, moved={"a": 0, "b": 0, "c": 0, "d": 1})
    steps = {step.namespace: step for step in plan_steps(holdings, placement)}
    assert steps["a"].why == "split"
    assert len(steps["a"].after) == 2
    assert steps["a"].after[0] == 0
    assert plan_steps({0: {"a": (1, 10)}, 1: {}}, Placement(2, moved={"a": 0})) == [] or chosen_shard("a", 2) == 0
    assert plan_steps({0: {}}, Placement(1)) == []


def test_a_further_part_takes_records_of_all_others_and_moves_none_among_them() -> None:
    names = [str(number) for number in range(2_000)]
    for parts in range(1, 9):
        old = [chosen_part(name, parts) for name in names]
        new = [chosen_part(name, parts + 1) for name in names]
        changed = [(one, other) for one, other in zip(old, new, strict=True) if one != other]
        assert all(other == parts for _, other in changed)
        assert abs(len(changed) - len(names) / (parts + 1)) < 120


STAGES = ("move.copied", "batch.prepared", "batch.decided", "batch.sent", "batch.acknowledged")


def tenants(count: int) -> list[fr.Record]:
    """Two records of equal score in each namespace, the second of which was written last."""
    return [fr.Record(f"r{turn}", "ant bee", f"tenant{number}") for turn in range(2) for number in range(count)]


def check_grouped(one: fr.Engine, several: ShardedEngine, count: int) -> None:
    names = [f"tenant{number}" for number in range(count)]
    queries = [fr.Query("ant", namespace=name) for name in names]
    assert_same_answers(one, several, [*queries, fr.Query("bee", namespaces=names)], k=1, texts=True)
    assert several.namespaces == tuple(sorted(one.namespaces))
    assert len(several) == len(one)
    assert several.fetch(["r0", "r1"], namespace=names[-1]) == one.fetch(["r0", "r1"], namespace=names[-1])
    assert several.verify()["records"] == len(one)
    for shard, own in several.holdings().items():
        assert {several.coordinator.placement.home(name) for name in own} <= {shard}
    assert_in_order(several)


def filled(path: Path, count: int) -> tuple[fr.Engine, ShardedEngine]:
    """One engine, and a memory to which two shards were just added."""
    one, several = fr.Engine(), opened(path, shards=2)
    for engine in (one, several):
        engine.add(tenants(count))
    several.add_shards(2)
    return one, several


def test_work_grows_as_the_number_of_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    decide, send = OwnerFile.decide, LocalLink.send

    def counted_send(self: LocalLink, verb: str, *arguments: Any, **keywords: Any) -> Any:
        counts["messages"] += 1
        return send(self, verb, *arguments, **keywords)

    def counted_decide(self: OwnerFile, *arguments: Any) -> None:
        counts["decisions"] += 1
        decide(self, *arguments)

    monkeypatch.setattr(LocalLink, "send", counted_send)
    monkeypatch.setattr(OwnerFile, "decide", counted_decide)
    found = []
    for size in (100, 200, 400):
        one, several = filled(tmp_path / str(size), size)
        counts.clear()
        moved = len(several.rebalance()["moves"])
        found.append((moved, counts["messages"]))
        assert moved > size // 3
        # All together make less than a page.
        assert counts["decisions"] == 1
        check_grouped(one, several, size)
        several.close()
    for moved, messages in found:
        # A message for each that reads it, one in 16 that drops what is empty, and some for all.
        assert messages <= 1.25 * moved + 30


@pytest.mark.parametrize("point", STAGES)
def test_a_crash_leaves_each_namespace_in_one_home(tmp_path: Path, point: str) -> None:
    one, several = filled(tmp_path, 40)
    before = several.coordinator.placement
    failpoints.arm(point, action=crash)
    with pytest.raises(Crash):
        several.rebalance()
    failpoints.disarm()
    assert_same_answers(one, several, [fr.Query("ant", namespace=f"tenant{number}") for number in range(40)], k=2)
    several.close()
    with opened(tmp_path) as again:
        moved = again.coordinator.placement.generation > before.generation
        assert moved == (point in STAGES[2:])
        check_grouped(one, again, 40)
        again.rebalance()
        check_grouped(one, again, 40)
        for engine in (one, again):
            engine.upsert([fr.Record("r0", "ant ant", f"tenant{number}") for number in range(40)])
        check_grouped(one, again, 40)


def test_groups_are_small_and_larger_namespaces_go_by_themselves(tmp_path: Path) -> None:
    one, several = filled(tmp_path, 20)
    several.coordinator.page = 5
    homes = {name: several.coordinator.placement.homes(name) for name in (f"tenant{number}" for number in range(20))}
    steps = [Step(name, home, ((home[0] + 1) % 4,), 2, 9, "even") for name, home in homes.items()]
    large, split = replace(steps[0], records=6), replace(steps[2], after=(0, 1))
    groups = together([large, steps[1], split, *steps[3:]], 5)
    assert groups[:2] == [[steps[1], steps[3]], steps[4:6]]
    assert groups[-2:] == [[large], [split]]
    for engine in (one, several):  # one has grown since
        engine.add([fr.Record(f"more{number}", "ant", "tenant1") for number in range(40)])
    for group in groups[:-1]:
        several.coordinator.place_all({step.namespace: step.after for step in group})
    for step in steps:
        assert several.coordinator.placement.homes(step.namespace) == (step.before if step is steps[2] else step.after)
    check_grouped(one, several, 20)
    several.close()


def test_what_is_dropped_while_its_move_begins_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The move begins after the drop has looked for one, and before it holds the namespace."""
    engine = open_in_small_pages(tmp_path / "several", shards=2)
    coordinator = engine.coordinator
    engine.add([fr.Record(str(n), "ant", namespace="big") for n in range(20)])
    (home,) = coordinator.placement.homes("big")
    bounded = coordinator._bounded
    begun, dropped = threading.Event(), threading.Event()

    def pause() -> None:
        begun.set()
        assert dropped.wait(30)

    failpoints.arm("move.page", action=pause)
    mover = threading.Thread(target=coordinator.place, args=("big", ((home + 1) % 2,)))

    def late() -> Any:
        monkeypatch.setattr(coordinator, "_bounded", bounded)
        mover.start()
        assert begun.wait(30)
        return bounded()

    monkeypatch.setattr(coordinator, "_bounded", late)
    engine.drop("big")
    dropped.set()
    mover.join(30)
    assert not mover.is_alive()
    assert (engine.count(namespace="big"), [*engine.ids(namespace="big")], coordinator.moving()) == (0, [], [])
    engine.add([fr.Record("0", "ant", namespace="big")])
    assert engine.count(namespace="big") == 1
    engine.close()
