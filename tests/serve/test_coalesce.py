"""Many callers in one launch: each gets what a call of its own gives, and nobody pays for another."""

import asyncio
import dataclasses
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import borders
from support.coalesce_cases import (
    DAY,
    DEADLINE,
    PATIENCE,
    WORDS,
    Clock,
    Gate,
    assert_same,
    case,
    few,
    outcome,
    records,
    small,
)
from support.commands import ENVIRONMENT
from support.threads import until

import fanrank as fr
from fanrank.engine.searcher import Searcher
from fanrank.engine.serve import calls
from fanrank.engine.serve.calls import LaunchOptions


@pytest.fixture(scope="module")
def engine() -> fr.Engine:
    return fr.Engine.from_records(records(), analyzer="minimal", encoder=fr.OwnVectors(4))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6))
def test_futures_of_one_launch_are_direct_calls(engine: fr.Engine, seeds: list[int]) -> None:
    """Whatever is joined: other ks, filters, namespaces, strategies."""
    gate = Gate(engine)
    try:
        before = engine.coalescer.stats()["callers"]
        held = gate.hold()
        cases = [case(seed) for seed in seeds]
        futures = [engine.submit(asked, k, **how) for asked, k, how in cases]
        assert engine.coalescer.stats()["waiting"] == sum(len(asked) for asked, _, _ in cases)
    finally:
        gate.open()
    assert_same(held.result(PATIENCE), engine.search(["tea"]))
    for future, (asked, k, how) in zip(futures, cases, strict=True):
        assert_same(future.result(PATIENCE), engine.search(asked, k, **how))
    until(lambda: engine.coalescer.stats()["callers"] == before + 1 + len(cases))


def test_tasks_of_one_turn_are_one_launch() -> None:
    engine = few()

    async def main() -> None:
        found = await asyncio.gather(*(engine.asearch([word, "ana"], 3) for word in WORDS))
        for word, hits in zip(WORDS, found, strict=True):
            assert_same(hits, engine.search([word, "ana"], 3))

    asyncio.run(main())
    stats = engine.coalescer.stats()
    assert (stats["launches"], stats["callers"], stats["largest"]) == (1, 8, 16)
    assert stats["shared"] == 8  # "ana" of all, and "ana" twice


def test_a_lone_caller_launches_in_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = few()
    threads = []
    inner = engine.searcher.search

    def search(*asked: Any) -> fr.Hits:
        threads.append(threading.current_thread())
        return inner(*asked)

    monkeypatch.setattr(engine.searcher, "search", search)
    assert_same(engine.coalescer.search(["tea"], 4), inner(["tea"], 4, {}))
    assert threads == [threading.current_thread()]
    assert engine.coalescer._lanes[0].thread is None


BAD: list[tuple[Any, Any, dict[str, Any]]] = [
    ([fr.Query("tea", filter={"nowhere": 1})], 10, {}),
    ([5], 10, {}),
    (["tea"], 2.5, {}),
    (["tea"], 10, {"strategy": "none such"}),
    (["tea"], 10, {"threads": 0}),
    (["tea"], 10, {"reranker": "none"}),
    (["tea", "milk"], 10, {"strategy": "decay"}),
    ([fr.Query(vector=[1, 2])], 10, {"strategy": "rrf"}),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_bad_batch_fails_its_caller_alone(number: int) -> None:
    """With the error of a direct call, among good callers with the same options."""
    asked, k, how = BAD[number]
    engine, gate = small()
    gate.hold()
    good_how = how if how.get("strategy") in ("decay", "rrf") else {}
    good = [fr.Query("tea", now=DAY, vector=[1, 2, 3, 4])]
    before = [engine.submit(good, 4, **good_how) for _ in range(2)]

    def blocking() -> Any:
        return outcome(lambda: engine.coalescer.search(asked, k, **how))

    def awaited() -> Any:
        return outcome(lambda: asyncio.run(engine.asearch(asked, k, **how)))

    with ThreadPoolExecutor(2) as pool:
        bad = [pool.submit(blocking), pool.submit(awaited)]
        until(lambda: all(work.done() for work in bad) or engine.coalescer.stats()["waiting"] == 2 + 2 * len(asked))
        after = engine.submit(good, 4, **good_how)
        gate.open()
        expected = outcome(lambda: engine.search(asked, k, **how))
        assert isinstance(expected, tuple)
        assert [work.result(PATIENCE) for work in bad] == [expected] * 2
        assert outcome(lambda: engine.submit(asked, k, **how).result(PATIENCE)) == expected
    for future in (*before, after):
        assert_same(future.result(PATIENCE), engine.search(good, 4, **good_how))


def test_errors_that_are_no_errors_of_fanrank_reach_their_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, gate = small()
    gate.hold()
    inner = Searcher.answer

    def search(self: Searcher, queries: Sequence[Any], *rest: Any) -> fr.Hits:
        if any(query.text == "exit" for query in searching(queries)):
            raise SystemExit(3)
        if any(query.text == "zero" for query in searching(queries)):
            raise ZeroDivisionError
        return inner(self, queries, *rest)

    def searching(queries: Sequence[Any]) -> list[fr.Query]:
        return [own if isinstance(own, fr.Query) else fr.Query(own) for own in queries]

    monkeypatch.setattr(Searcher, "answer", search)
    good, zero, other = engine.submit(["milk"]), engine.submit(["zero"]), engine.submit(["tea"])
    exits = engine.submit(["exit"], strategy="bm25", execution="exhaustive")
    gate.open()
    with pytest.raises(ZeroDivisionError):
        zero.result(PATIENCE)
    with pytest.raises(SystemExit):
        exits.result(PATIENCE)
    assert good.result(PATIENCE)[0] == engine.search(["milk"])[0]
    assert other.result(PATIENCE)[0] == engine.search(["tea"])[0]


def test_failures_are_counted_for_the_guilty_tenant_alone() -> None:
    engine, gate = small()
    gate.hold()
    good = engine.submit([fr.Query("tea", namespace="a")])
    bad = engine.submit([fr.Query("tea", namespace="b", filter={"nowhere": 1})])
    gate.open()
    assert good.result(PATIENCE)
    assert isinstance(bad.exception(PATIENCE), fr.errors.QueryError)
    assert engine.health("a").failure_count == {}
    assert engine.health("b").failure_count == {"UnknownColumnError": 1}


def test_a_cancelled_future_is_not_run() -> None:
    engine, gate = small()
    held = gate.hold()
    first, second = engine.submit(["milk", "key"]), engine.submit(["ana"])
    assert engine.coalescer.stats()["waiting"] == 3
    assert first.cancel()
    assert engine.coalescer.stats()["waiting"] == 1
    assert not held.cancel()  # it has begun
    gate.open()
    assert held.result(PATIENCE)
    assert_same(second.result(PATIENCE), engine.search(["ana"]))
    with pytest.raises(CancelledError):
        first.result()
    stats = engine.coalescer.stats()
    assert (stats["queries"], stats["cancelled"]) == (2, 1)


@pytest.mark.parametrize("begun", [False, True])
def test_a_cancelled_task_harms_no_launch(begun: bool) -> None:
    engine, gate = small()

    async def main() -> None:
        if not begun:
            gate.hold()
        # Held by a gate of its own, or in the queue behind one that is held.
        given_up, stays = (asyncio.create_task(engine.asearch([word, "tea"])) for word in ("milk", "key"))
        if begun:
            await asyncio.to_thread(gate.began.acquire, True, PATIENCE)
        else:
            while engine.coalescer.stats()["waiting"] != 4:
                await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert engine.coalescer.stats()["waiting"] == (0 if begun else 2)
        gate.open()
        assert_same(await stays, engine.search(["key", "tea"]))

    asyncio.run(main())
    stats = engine.coalescer.stats()
    assert stats["cancelled"] == 1
    assert stats["queries"] == (4 if begun else 3)


def test_deadlines() -> None:
    """Of queries that wait: on a thread, awaited and as a future; none of them is run."""
    engine, gate = small()
    held = gate.hold()
    with pytest.raises(fr.errors.DeadlineError, match=r"2 queries were not .*: its launch did not begin"):
        engine.coalescer.search(["tea", "milk"], deadline=0.0)
    with pytest.raises(TimeoutError):
        asyncio.run(engine.asearch(["tea"], deadline=0.001))
    future = engine.submit(["key"], deadline=0.0)
    gate.open()
    assert held.result(PATIENCE)
    with pytest.raises(fr.errors.DeadlineError, match="1 query was not"):
        future.result(PATIENCE)
    assert engine.coalescer.search(["key"], deadline=PATIENCE)[0] == engine.search(["key"])[0]
    stats = engine.coalescer.stats()
    assert (stats["expired"], stats["queries"], stats["waiting"]) == (3, 2, 0)


def test_a_deadline_passes_while_the_launch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, gate = small()
    clock = Clock(monkeypatch)

    def left_until(_: float) -> float:
        """No time is left to the thread that waits, but not before its launch has begun."""
        assert gate.began.acquire(timeout=PATIENCE)
        return 0.0

    async def awaited() -> None:
        loop, timers = asyncio.get_running_loop(), []
        call_later = loop.call_later

        def held(seconds: float, expire: Any, call: Any) -> Any:
            timers.append((seconds, partial(expire, call)))
            return call_later(PATIENCE, expire, call)

        monkeypatch.setattr(loop, "call_later", held)
        task = asyncio.create_task(engine.asearch(["tea"], deadline=DEADLINE))
        assert await asyncio.to_thread(gate.began.acquire, True, PATIENCE)
        [(seconds, expire)] = timers
        assert seconds == DEADLINE
        expire()
        with pytest.raises(fr.errors.DeadlineError, match="launch took longer"):
            await task

    monkeypatch.setattr(calls, "seconds_until", left_until)
    with pytest.raises(fr.errors.DeadlineError, match="launch took longer"):
        engine.coalescer.search(["tea"], deadline=DEADLINE)
    gate.go.release()
    until(lambda: engine.coalescer._lanes[0].runner is None)
    asyncio.run(awaited())
    gate.go.release()
    until(lambda: engine.coalescer._lanes[0].runner is None)
    future = engine.submit(["tea"], deadline=DEADLINE)
    until(lambda: len(gate.sizes) == 3)
    clock.now += DEADLINE
    gate.go.release()
    with pytest.raises(fr.errors.DeadlineError, match="launch took longer"):
        future.result(PATIENCE)
    assert engine.coalescer.stats()["expired"] == 3


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_wait", [-1, "1"]),
        ("max_batch", [0]),
        ("max_waiting", [True]),
        ("threads", [1.5]),
        ("deadline", [-1, True, float("nan"), float("inf"), "1"]),
    ],
)
def test_bad_settings(engine: fr.Engine, name: str, values: list[Any]) -> None:
    calls: list[Any] = [partial(fr.Coalescer, engine), engine.coalescer.configure]
    if name == "deadline":
        calls = [partial(ask, ["tea"]) for ask in (engine.coalescer.search, engine.submit)]
        calls.append(lambda **how: asyncio.run(engine.asearch(["tea"], **how)))
    for value in values:
        for call in calls:
            with pytest.raises(fr.errors.ParameterError, match=f"{name} must be"):
                call(**{name: value})


def test_back_pressure() -> None:
    engine, gate = small(max_waiting=3)
    held = gate.hold()
    first = engine.submit(["milk", "key", "ana"])  # fits
    for refused in (
        lambda: engine.submit(["tea"], wait=False),
        lambda: engine.coalescer.search(["tea"], wait=False),
        lambda: asyncio.run(engine.asearch(["tea"], wait=False)),
    ):
        with pytest.raises(fr.errors.OverloadedError, match="3 queries wait, and 1 more would be over max_waiting = 3"):
            refused()
    with pytest.raises(fr.errors.DeadlineError):
        engine.submit(["tea"], deadline=0.001)  # blocked until then
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(engine.submit, ["moon"])
        until(lambda: engine.coalescer.stats()["waiting"] == 4)
        assert not blocked.done()
        assert first.cancel()  # makes room
        second = blocked.result(PATIENCE)
        assert not second.done()
        third = pool.submit(engine.submit, ["milk"] * 3)
        until(lambda: engine.coalescer.stats()["waiting"] == 4)
        gate.open()
        assert_same(third.result(PATIENCE).result(PATIENCE), engine.search(["milk"] * 3))
    assert_same(second.result(PATIENCE), engine.search(["moon"]))
    assert held.result(PATIENCE)
    stats = engine.coalescer.stats()
    assert (stats["rejected"], stats["expired"], stats["cancelled"], stats["waiting"]) == (3, 1, 1, 0)


def test_a_batch_larger_than_the_queue_is_taken_when_nobody_waits() -> None:
    engine, gate = small(max_waiting=2)
    gate.hold()
    with ThreadPoolExecutor(1) as pool:
        many = pool.submit(engine.submit, WORDS, wait=False)
        until(lambda: engine.coalescer.stats()["waiting"] == len(WORDS))
        gate.open()
        assert_same(many.result(PATIENCE).result(PATIENCE), engine.search(WORDS))
    assert engine.coalescer.stats()["rejected"] == 0


def test_launches_keep_to_max_batch_and_the_order_of_callers() -> None:
    engine, gate = small(max_batch=4)
    gate.hold()
    futures = [engine.submit(WORDS[:size], size) for size in (2, 2, 3, 1, 2)]
    for _ in range(4):
        gate.go.release()
    found = [future.result(PATIENCE) for future in futures]
    assert gate.sizes == [1, 4, 4, 2]
    gate.open()
    for hits, size in zip(found, (2, 2, 3, 1, 2), strict=True):
        assert_same(hits, engine.search(WORDS[:size], size))


def test_callers_with_other_options_take_turns() -> None:
    engine, gate = small()
    gate.hold()
    ends: list[str] = []
    for name in ("a", "b", "a", "b"):
        execution = "exhaustive" if name == "a" else "auto"
        future = engine.submit(["tea", "milk"], execution=execution)
        future.add_done_callback(lambda _, name=name: ends.append(name))
    gate.open()
    until(lambda: len(ends) == 4)
    assert ends == ["a", "a", "b", "b"]
    assert engine.coalescer.stats()["launches"] == 3


def test_a_huge_batch_runs_beside_the_others_over_one_snapshot() -> None:
    engine, gate = small(max_batch=4)
    huge = [engine.submit(WORDS * 3), engine.submit(WORDS * 2)]
    assert gate.began.acquire(timeout=PATIENCE)  # held
    small_one = engine.submit(["tea"])
    assert gate.began.acquire(timeout=PATIENCE)  # begins all the same
    assert sorted(gate.sizes) == [1, 24]
    gate.open()
    assert_same(small_one.result(PATIENCE), engine.search(["tea"]))
    for future, times in zip(huge, (3, 2), strict=True):
        assert_same(future.result(PATIENCE), engine.search(WORDS * times))


def test_max_wait_lets_others_come() -> None:
    engine = few(max_wait=PATIENCE, max_batch=3)
    one, two = engine.submit(["tea"]), engine.submit(["milk"])
    assert not one.done()
    three = engine.coalescer.search(["key"])  # the third query: the launch is full
    assert three[0] == engine.search(["key"])[0]
    assert (one.result(PATIENCE)[0], two.result(PATIENCE)[0]) == tuple(engine.search(["tea", "milk"]))
    assert engine.coalescer.stats()["launches"] == 1


def test_what_was_acknowledged_before_the_call_is_found() -> None:
    """However the launch came about: each writer asks for its own record at once, beside others that ask."""
    engine = fr.Engine(analyzer="minimal")

    def write(writer: int) -> None:
        for number in range(10):
            name = f"w{writer}x{number}"
            engine.add([fr.Record(name, name)])
            assert engine.coalescer.search([name])[0][0][0] == name
            assert engine.submit([name]).result(PATIENCE)[0][0][0] == name

    async def awaited() -> None:
        for number in range(10):
            name = f"loop{number}"
            await asyncio.to_thread(engine.add, [fr.Record(name, name)])
            assert (await engine.asearch([name]))[0][0][0] == name

    with ThreadPoolExecutor(4) as pool:
        works = [pool.submit(write, writer) for writer in range(3)] + [pool.submit(lambda: asyncio.run(awaited()))]
        for work in works:
            work.result(PATIENCE)


def test_close_refuses_those_who_wait() -> None:
    engine, gate = small()
    held = gate.hold()
    waiting = engine.submit(["milk"])
    cancelled = engine.submit(["milk"])
    cancelled.cancel()

    async def awaited() -> None:
        task = asyncio.create_task(engine.asearch(["key"]))
        while engine.coalescer.stats()["waiting"] != 2:
            await asyncio.sleep(0)
        engine.close()
        with pytest.raises(fr.errors.StorageError, match="the engine is closed"):
            await task

    asyncio.run(awaited())
    with pytest.raises(fr.errors.StorageError, match="the engine is closed"):
        waiting.result(PATIENCE)
    for ask in (engine.coalescer.search, engine.submit, lambda own: asyncio.run(engine.asearch(own))):
        with pytest.raises(fr.errors.StorageError, match="the engine is closed"):
            ask(["tea"])
    gate.open()
    assert held.result(PATIENCE)[0] == engine.search(["tea"])[0]  # the launch that ran is answered
    engine.close()
    until(lambda: engine.coalescer._lanes[0].thread is None)


def test_an_approximate_channel_is_asked_alone() -> None:
    """An HNSW graph is asked for as many as the largest k of a batch, so another's k could change the answer."""
    own = LaunchOptions.of({"strategy": "rrf"}, None)
    for strategy in (
        fr.strategies.STRATEGIES["dense-hnsw"],
        fr.Cascade(escalate=fr.strategies.STRATEGIES["dense-hnsw"]),
    ):
        approximate = dataclasses.replace(own, answerer=strategy)
        assert not approximate.joins(approximate)
    assert own.joins(dataclasses.replace(own))
    assert not own.joins(LaunchOptions.of({"strategy": "rrf", "execution": "exhaustive"}, None))


def test_threads_end_and_the_engine_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, LINGER=0.0)
    before = set(threading.enumerate())
    engine = fr.Engine.from_records([fr.Record("1", "tea")], analyzer="minimal")
    assert engine.submit(["tea"]).result(PATIENCE)
    assert asyncio.run(engine.asearch(["tea"]))
    until(lambda: not {own for own in threading.enumerate() if own.name == "fanrank-coalesce"} - before)
    assert engine.submit(["tea"]).result(PATIENCE)  # another thread takes over
    until(lambda: not {own for own in threading.enumerate() if own.name == "fanrank-coalesce"} - before)
    gone = weakref.ref(engine)
    del engine
    until(lambda: gc.collect() >= 0 and gone() is None)


SCRIPT = """
import os, sys, threading
import fanrank as fr
engine = fr.Engine.from_records([fr.Record("1", "tea"), fr.Record("2", "milk")], analyzer="minimal", backend="numpy")
inner, began, go = engine.searcher.answer, threading.Event(), threading.Event()
def held(*asked):
    began.set()
    go.wait(30)
    return inner(*asked)
engine.searcher.answer = held
first = engine.submit(["tea"])
assert began.wait(30)
waiting = engine.submit(["milk"])
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + script], capture_output=True, text=True, timeout=PATIENCE, env=ENVIRONMENT
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_a_queue_of_its_own() -> None:
    """Forked while a launch runs and others wait; parent and child both answer afterwards."""
    done = run(
        """
child = os.fork()
go.set()
engine.searcher.answer = inner
assert engine.submit(["tea"]).result(30)[0][0][0] == "1"
assert engine.coalescer.search(["milk"])[0][0][0] == "2"
if not child:
    assert engine.coalescer.stats()["callers"] == 2
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert waiting.result(30)[0][0][0] == "2"
print("both")
"""
    )
    assert done.stdout == "both\n", done.stderr


def test_the_interpreter_ends_while_callers_wait() -> None:
    done = run("print('ends')")
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
