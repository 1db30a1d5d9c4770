"""Any history of any kind of memory, over every backend, reads as the plain model says: bit for bit.

`FANRANK_MACHINE_SECONDS` lets longer histories of each kind go on for so long.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import world
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support import borders
from support.memories import MEMORIES, Directory, Sharded
from support.twins import Twins, shrink
from world import WORDS, Write

import fanrank as fr
from fanrank.engine.backends import choose as backends
from fanrank.engine.index.bm25 import METHODS
from fanrank.engine.plan.options import EXECUTIONS
from fanrank.engine.storage import failpoints

BACKENDS = [status.name for status in backends.statuses() if status.usable and status.name != "triton"]
"""Triton's interpreter takes half a second a search, so it has a test of its own."""
PATHS = [
    {"backend": backend, "execution": execution, "threads": threads}
    for backend in BACKENDS
    for execution, threads in (*((execution, 1) for execution in EXECUTIONS), ("auto", 3))
]
OF_WRITES = tuple(point for point in failpoints.POINTS if not point.startswith(("backup", "close")))
"""Failpoints that a write and the flush after it come by."""
OF_SHARDS = ("batch.prepared", "batch.decided", "batch.sent", "batch.acknowledged")
OF_MOVES = ("move.page", "move.copied", "batch.prepared", "batch.decided", "batch.sent")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    shrink(monkeypatch)
    yield
    failpoints.disarm()


class Machine(RuleBasedStateMachine):
    """A memory and its model, and the rules by which both go on."""

    kind = "memory"
    method = "lucene"
    reached: Counter[str]
    """What all histories of a test came to."""

    def __init__(self) -> None:
        super().__init__()
        self.twins = Twins(self.kind, method=self.method)

    def teardown(self) -> None:
        self.twins.own.end()
        self.reached.update(self.twins.reached)

    @property
    def durable(self) -> bool:
        return isinstance(self.twins.own, Directory)

    @property
    def sharded(self) -> bool:
        return isinstance(self.twins.own, Sharded)

    @property
    def signed(self) -> bool:
        return self.method in ("robertson", "okapi")

    @initialize(texts=st.lists(world.texts, min_size=24, max_size=24), path=st.sampled_from(PATHS))
    def grow(self, texts: list[str], path: dict[str, Any]) -> None:
        """Histories are there for what they come to here, whatever is drawn."""
        self.twins.grow(texts)
        self.twins.check_battery([path])

    @rule(write=world.writes(world.evident_records), strict=st.integers(0, 4), awaited=st.booleans())
    def write(self, write: Write, strict: int, awaited: bool) -> None:
        self.twins.write(write if strict == 0 else self.twins.model.fit(write), awaited=awaited)

    @rule(good=world.batches(size=3), which=st.integers(0, 5))
    def fail(self, good: list[fr.Record], which: int) -> None:
        """What cannot be applied in full is not applied at all."""
        own = self.twins.model.all(None)
        if not own:
            return
        taken = own[which % len(own)]
        fresh = fr.Record("fresh", f"word-of-a-batch-that-fails {taken.text}", taken.namespace)
        good = [record for record in good if (record.namespace, record.id) != (taken.namespace, taken.id)]
        bad: Any = {"id": "bad", "text": 3}
        new = [record for record in good if not self.twins.model.live(record.namespace, record.id)]
        memory, errors = self.twins.memory, fr.errors
        error, verb, given = (
            (errors.DuplicateIdError, "add", [fresh, *new, taken]),
            (errors.DuplicateIdError, "upsert", [taken, *good, fresh, fresh]),
            (errors.RecordError, "add", [fresh, *new, bad]),
            (errors.RecordError, "upsert", [taken, *good, bad]),
            (errors.UnknownIdError, "update", [taken, fresh]),
            (errors.UnknownIdError, "delete", [taken.id, "fresh"]),
        )[which]
        with pytest.raises(error):
            getattr(memory, verb)(given, **({"namespace": taken.namespace} if verb == "delete" else {}))
        self.twins.reached["failures"] += 1

    @rule()
    def flush(self) -> None:
        self.twins.own.flush()
        for engine in self.twins.own.engines:
            stats = engine.stats()
            assert (stats["background_error"], stats["merging"]) == (None, False)
            assert stats.get("checkpointed") == stats.get("sequence")

    @rule()
    def renumber(self) -> None:
        self.twins.own.settle()
        self.twins.check_renumbered()
        self.twins.check_evidence()

    @precondition(lambda self: self.durable)
    @rule(checkpoint=st.booleans())
    def reopen(self, checkpoint: bool) -> None:
        self.twins.reopen(checkpoint)

    @precondition(lambda self: self.durable)
    @rule(
        point=st.sampled_from((*OF_WRITES, *OF_SHARDS)),
        write=world.writes(world.evident_records),
        count=st.integers(1, 3),
    )
    def kill(self, point: str, write: Write, count: int = 1) -> None:
        self.twins.kill(point, self.twins.model.fit(write), count)

    @precondition(lambda self: self.sharded)
    @rule(namespace=world.namespaces)
    def split(self, namespace: str) -> None:
        self.twins.split(namespace)

    @precondition(lambda self: self.sharded)
    @rule(more=st.integers(0, 1))
    def rebalance(self, more: int) -> None:
        if more and self.twins.memory.coordinator.placement.shards < 4:
            self.twins.memory.add_shards(more)
        self.twins.memory.rebalance()

    @precondition(lambda self: self.twins.own.local)
    @rule(name=st.sampled_from(sorted(world.LATE_COLUMNS)))
    def change_columns(self, name: str) -> None:
        self.twins.change_columns(name)

    @precondition(lambda self: self.twins.own.local)
    @rule()
    def carry(self) -> None:
        self.twins.check_export()
        self.twins.check_copies()

    @rule(data=st.data(), k=st.sampled_from([0, 1, 4, 50]), path=st.sampled_from(PATHS))
    def search(self, data: st.DataObject, k: int, path: dict[str, Any]) -> None:
        batch = data.draw(st.lists(world.queries(evident=True, plain=self.signed), min_size=1, max_size=5))
        self.twins.check_answers(batch, k, [path])

    @rule(namespace=world.namespaces, ids=st.lists(world.ids, max_size=6))
    def fetch(self, namespace: str, ids: list[str]) -> None:
        self.twins.check_fetch(namespace, ids)

    @rule(
        namespace=world.namespaces | st.none(),
        filter=world.filters,
        order=st.sampled_from(["written", "time", "id"]),
        reverse=st.booleans(),
        limit=st.integers(1, 9),
    )
    def list(self, namespace: str | None, filter: str, order: str, reverse: bool, limit: int) -> None:
        self.twins.check_listing(namespace, filter, order, reverse, limit)

    @rule(words=st.lists(world.words, min_size=1, max_size=4), place=st.integers(0, 99))
    def explain(self, words: list[str], place: int) -> None:
        held = self.twins.model.all(None)
        if held:
            self.twins.check_explanation(words, held[place % len(held)])

    @invariant()
    def alike(self) -> None:
        self.twins.check()


def run(kind: str, examples: int, steps: int, **attributes: Any) -> Counter[str]:
    """Run histories of a kind of memory; returns what they came to."""
    reached: Counter[str] = Counter()
    machine = type("Machine", (Machine,), {"kind": kind, "reached": reached, **attributes})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
    return reached


REACHED = {"merges", "compacted_documents", "deleted", "several segments", "counted", "refused", "hits", "renumberings"}


MANY = pytest.mark.extended


def wanted(kind: str) -> set[str]:
    """What each history of this kind of memory comes to."""
    durable = {"checkpoints", "replayed"} if kind != "memory" and not kind.endswith("client") else set()
    return REACHED | durable | ({"moves"} if kind.endswith(("shard", "shards")) else set())


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        *((kind, "lucene") for kind in MEMORIES if kind != "three shards"),
        ("memory", "robertson"),
        pytest.param("three shards", "lucene", marks=MANY),
        pytest.param("three shards", "robertson", marks=MANY),
        pytest.param("two shards", "bm25+", marks=MANY),
    ],
)
def test_any_history_reads_as_the_model(kind: str, method: str) -> None:
    end = time.monotonic() + float(os.environ.get("FANRANK_MACHINE_SECONDS", "0"))
    reached = run(kind, 2, 12, method=method)
    while time.monotonic() < end:
        run(kind, 10, 40, method=method)
    assert wanted(kind) <= {name for name, times in reached.items() if times}, reached


TEXTS = [f"{WORDS[n % 5]} {WORDS[n % 4]} x{n} {'c3 ' * (n % 3)}".strip() if n % 7 else "" for n in range(24)]


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        *((kind, "lucene") for kind in MEMORIES),
        ("memory", "robertson"),
        *(pytest.param("memory", method, marks=MANY) for method in METHODS if method not in ("lucene", "robertson")),
    ],
)
def test_every_path_reads_as_the_model(kind: str, method: str) -> None:
    """A query of each kind, by each backend and execution, over segments with tombstones and over merged ones."""
    twins = Twins(kind, method=method)
    twins.grow(TEXTS)
    # All of them where nothing is on disk, and one of each backend where something is.
    paths = PATHS if kind == "memory" else PATHS[2::4]
    twins.check_battery(paths if twins.own.local else PATHS[:1])
    for namespace, order, reverse in itertools.product(("", None), ("written", "time", "id"), (False, True)):
        twins.check_listing(namespace, "either", order, reverse, 3)
    if twins.own.local:
        for name in (*world.LATE_COLUMNS, *world.LATE_COLUMNS):
            twins.change_columns(name)
        twins.check_export()
        twins.check_copies()
    twins.own.end()


@pytest.mark.extended
def test_tritons_kernels_read_as_the_model() -> None:
    twins = Twins("memory")
    twins.grow(TEXTS)
    twins.check_answers(world.PLAIN_QUERIES, 4, [{"backend": "triton"}])
    twins.own.end()


@pytest.mark.parametrize(
    "kind", ["directory", "two shards", *(pytest.param(k, marks=MANY) for k in ("reader", "one shard"))]
)
def test_a_kill_at_any_failpoint_leaves_the_write_whole_or_undone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # All merges wait for the flush after the writes.
    borders.shrink(monkeypatch, INLINE_DOCUMENTS=0)
    twins = Twins(kind)
    records = twins.grow(TEXTS)

    def churn(text: str) -> None:
        for start in range(0, 12, 3):
            twins.write(Write("upsert", tuple(replace(r, text=text, namespace="") for r in records[start : start + 3])))

    for number, point in enumerate((*OF_WRITES, *(OF_SHARDS if kind == "two shards" else ()))):
        fresh = Write("upsert", tuple(replace(r, text=f"{r.text} y{number}") for r in records[number % 5 :: 3]))
        merges = point.startswith("merge")
        assert twins.kill(point, (lambda text=f"a1 y{number}": churn(text)) if merges else fresh), point
    if kind == "two shards":
        for point in OF_MOVES:
            assert twins.kill(point, twins.move), point
        for point in ("shards.started", "shards.added"):
            assert twins.kill(point, lambda: twins.memory.add_shards(1)), point
    twins.own.end()
