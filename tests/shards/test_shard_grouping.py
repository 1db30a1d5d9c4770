"""Many small namespaces that go to other shards together: the same answers, and work that grows as their number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import borders
from support.sharding import Crash, FailingLink, assert_in_order, assert_same_answers, crash, opened

import fanrank as fr
from fanrank.engine.storage import failpoints
from fanrank.shards.engine import ShardedEngine
from fanrank.shards.processes.links import LocalLink
from fanrank.shards.protocol.owner import OwnerFile

POINTS = ("move.copied", "batch.prepared", "batch.decided", "batch.sent", "batch.acknowledged")


def tenants(count: int) -> list[fr.Record]:
    """Two records of equal score in each namespace, the second of which was written last."""
    return [fr.Record(f"r{turn}", "ant bee", f"tenant{number}") for turn in range(2) for number in range(count)]


def check(one: fr.Engine, several: ShardedEngine, count: int) -> None:
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
        check(one, several, size)
        several.close()
    for moved, messages in found:
        # A message for each that reads it, one in 16 that drops what is empty, and some for all.
        assert messages <= 1.25 * moved + 30


@pytest.mark.parametrize("point", POINTS)
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
        assert moved == (point in POINTS[2:])
        check(one, again, 40)
        again.rebalance()
        check(one, again, 40)
        for engine in (one, again):
            engine.upsert([fr.Record("r0", "ant ant", f"tenant{number}") for number in range(40)])
        check(one, again, 40)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("shard", "at"), [(0, 1), (0, 2), (2, 1)])
def test_moves_go_on_after_a_shard_ended(tmp_path: Path, shard: int, at: int, after: bool) -> None:
    one, several = filled(tmp_path, 40)
    links: Any = several.coordinator.links
    links[shard] = FailingLink(links[shard], at, after=after)
    assert several.rebalance()["moves"]
    assert links[shard].at <= 0
    check(one, several, 40)
    several.close()
    with opened(tmp_path) as again:
        check(one, again, 40)


def test_groups_are_small_and_larger_namespaces_go_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    borders.shrink(monkeypatch, {"moves.TOGETHER": 3})
    one, several = filled(tmp_path, 20)
    several.coordinator.page = 5
    home = several.coordinator.placement.home
    more = [fr.Record(f"more{number}", "ant", "tenant0") for number in range(9)]
    grown = [fr.Record(f"more{number}", "ant", "tenant1") for number in range(40)]
    for engine in (one, several):
        engine.add([*more, *grown])
    targets = {f"tenant{number}": ((home(f"tenant{number}") + 1) % 4, 2) for number in range(20)}
    # Of one it is known that it is large, another has grown since.
    targets["tenant0"] = targets["tenant0"][0], 11
    apart = several.coordinator.place_together(targets)
    assert apart == {"tenant0", "tenant1"}
    assert [home(name) for name in targets] != [several.coordinator.placement.home(name) for name in targets]
    for name, (target, _) in targets.items():
        assert (several.coordinator.placement.home(name) == target) == (name not in apart)
    check(one, several, 20)
    assert several.coordinator.place_together(targets) == {"tenant0", "tenant1"}
    several.coordinator.place("tenant2", (0, 1, 2))
    assert "tenant2" in several.coordinator.place_together({"tenant2": (3, 2)})
    several.close()
