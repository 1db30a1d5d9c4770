"""Any history of any kind of memory, over every backend, reads as the plain model says: bit for bit.

`FANRANK_MACHINE_SECONDS` lets the histories of each kind go on for so long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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
from support.memories import MEMORIES, Directory, Sharded
from support.twins import Twins, shrink
from world import NAMESPACES, WORDS, Write

import fanrank as fr
from fanrank.engine.backends import choose as backends
from fanrank.engine.plan.options import EXECUTIONS
from fanrank.engine.storage import failpoints

BACKENDS = [status.name for status in backends.statuses() if status.usable and status.name != "triton"]
"""Triton's interpreter takes half a second a search, so it has a test of its own."""
OF_WRITES = tuple(point for point in failpoints.POINTS if not point.startswith(("backup", "close")))
"""Failpoints that a write and the flush after it come by."""
OF_SHARDS = ("intent.written", "batch.sent", "batch.acknowledged", "intent.dropped")


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

    @initialize(texts=st.lists(world.texts, min_size=24, max_size=24), data=st.data())
    def grow(self, texts: list[str], data: st.DataObject) -> None:
        """Come to each border whatever is drawn: segments, merges, tombstones, unused terms, refusals, kills, moves."""
        twins = self.twins
        records = [
            fr.Record(
                f"r{n}",
                f"{text} {WORDS[n % 3]}",
                NAMESPACES[n % 4 if n % 2 else 0],
                session="st"[n % 2],
                time=float(n % 13),
                embedding=[1, n % 3] if n % 5 else None,
                weights={WORDS[n % 5]: 0.75},
                expires=world.EXPIRY if n % 6 == 5 else None,
            )
            for n, text in enumerate(texts)
        ]
        for start in range(0, 24, 3):
            twins.write(Write("add", tuple(records[start : start + 3])), awaited=start == 3)
        twins.write(Write("add", tuple(records[:2])))
        twins.write(Write("delete", ids=("r0", "r4", "r8"), namespace=""))
        twins.write(Write("patch", ids=("r2", "r20"), namespace=""))
        twins.check()
        if self.sharded:
            self.split("")
        if self.durable:
            self.kill(data.draw(st.sampled_from(OF_WRITES)), Write("upsert", tuple(records[3:9])))
            self.reopen(False)
        twins.own.flush()
        twins.check()

    # Writes.

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

    # What changes no answer.

    @rule()
    def flush(self) -> None:
        self.twins.own.flush()
        for engine in self.twins.own.engines:
            stats = engine.stats()
            assert (stats["background_error"], stats["merging"]) == (None, False)
            assert stats.get("checkpointed") == stats.get("sequence")

    @precondition(lambda self: not self.sharded)
    @rule(all_unused=st.booleans())
    def renumber(self, all_unused: bool) -> None:
        self.twins.own.settle()
        for engine in self.twins.own.engines:
            engine.index.memory.renumber(all_unused=all_unused)

    @precondition(lambda self: self.durable)
    @rule(checkpoint=st.booleans())
    def reopen(self, checkpoint: bool) -> None:
        self.twins.own.reopen(checkpoint)
        self.twins.reached["reopened" if checkpoint else "replayed"] += 1

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
        coordinator = self.twins.memory.coordinator
        coordinator.place(namespace, coordinator.parts_of(namespace, coordinator.placement.shards))
        self.twins.reached["moves"] += 1

    @precondition(lambda self: not self.sharded and self.twins.own.local)
    @rule()
    def save_and_load(self) -> None:
        folder = self.twins.own.root / "saved"
        self.twins.own.asked.save(folder)
        loaded = fr.Engine.load(folder)
        hits = loaded.search([fr.Query(terms=WORDS, namespace=name) for name in NAMESPACES], 40)
        assert list(hits) == [
            [(name, score) for _, name, score in self.twins.model.search(fr.Query(terms=WORDS, namespace=space), 40)]
            for space in NAMESPACES
        ]

    # What is read.

    @rule(
        data=st.data(),
        k=st.sampled_from([0, 1, 4, 50]),
        backend=st.sampled_from(BACKENDS),
        execution=st.sampled_from(EXECUTIONS),
        threads=st.sampled_from([1, 3]),
    )
    def search(self, data: st.DataObject, k: int, backend: str, execution: str, threads: int) -> None:
        batch = data.draw(st.lists(world.queries(evident=True, plain=self.signed), min_size=1, max_size=5))
        self.twins.own.serve_from(backend)
        self.twins.check_answers(batch, k, execution=execution, threads=threads)

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

    @precondition(lambda self: self.twins.own.local)
    @rule()
    def export(self) -> None:
        self.twins.check_export()

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


@pytest.mark.parametrize("kind", MEMORIES)
def test_any_history_reads_as_the_model(kind: str) -> None:
    reached = run(kind, 5, 20)
    wanted = {"merges", "compacted_documents", "deleted", "several segments", "counted", "refused"}
    if kind not in ("memory", "client"):
        wanted |= {"checkpoints", "replayed"}
    if kind.endswith(("shard", "shards")):
        wanted |= {"moves"}
    assert wanted <= {name for name, times in reached.items() if times}
