"""Many callers in one launch, where something fails, dies, is interrupted, nests or would cost too much."""

import asyncio
import dataclasses
import gc
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from support import borders
from support.coalesce_cases import DEADLINE, PATIENCE, WORDS, Clock, Gate, assert_same, few, outcome, small
from support.threads import in_threads, until

import fanrank as fr
from fanrank.engine.searcher import Searcher
from fanrank.engine.serve import coalesce, turns
from fanrank.engine.serve.calls import LaunchOptions


def test_what_a_callback_raises_harms_nobody_else() -> None:
    engine, gate = small()
    held = gate.hold()
    futures = [engine.submit([word]) for word in WORDS]
    for future in (held, *futures[::2]):
        future.add_done_callback(Mock(side_effect=SystemExit(3)))
    gate.open()
    for future, word in zip(futures, WORDS, strict=True):
        assert_same(future.result(PATIENCE), engine.search([word]))
    assert_same(engine.submit(["tea"]).result(PATIENCE), engine.search(["tea"]))


def test_a_future_finished_by_its_caller_harms_nobody_else() -> None:
    engine, gate = small()
    gate.hold()
    finished, other = engine.submit(["milk"]), engine.submit(["key"])
    finished.set_result(None)
    gate.open()
    assert_same(other.result(PATIENCE), engine.search(["key"]))
    assert_same(engine.submit(["tea"]).result(PATIENCE), engine.search(["tea"]))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_refuses_its_queue_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, died = few(), list[threading.Thread]()

    def broken(lane: Any) -> Any:
        died.append(threading.current_thread())
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr(engine.coalescer, "_take", broken)
    with pytest.raises(fr.errors.StorageError, match="ended by MemoryError"):
        engine.submit(["tea"]).result(PATIENCE)
    assert_same(engine.submit(["tea"]).result(PATIENCE), engine.search(["tea"]))
    assert engine.coalescer.stats()["waiting"] == 0
    died[0].join(PATIENCE)  # its traceback is this test's


@pytest.mark.parametrize("name", ["_enters", "_leaves"])
def test_an_interrupt_leaves_no_lane_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = few()
    inner = getattr(engine.coalescer, name)

    def interrupted(lane: Any) -> None:
        if name == "_enters":
            inner(lane)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.coalescer, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.coalescer.search(["tea"])
    monkeypatch.undo()
    assert_same(engine.submit(["tea"]).result(PATIENCE), engine.search(["tea"]))


def test_a_deep_caller_does_not_widen_everybodys_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"coalesce.SMALL": 0})
    engine, gate = small()
    gate.hold()
    ks = [1, 1, 1, 1, 1, 200, 1, 2]
    futures = [engine.submit([word], k) for word, k in zip(WORDS, ks, strict=True)]
    gate.open()
    for future, word, k in zip(futures, WORDS, ks, strict=True):
        assert_same(future.result(PATIENCE), engine.search([word], k))
    stats = engine.coalescer.stats()
    assert (stats["launches"], stats["largest"]) == (3, 7)


def test_an_answer_keeps_nothing_of_those_it_shared_a_launch_with(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, gate = small()
    gate.hold()
    own = engine.namespace("a").submit(["tea"])
    other = engine.namespace("b").submit(["tea", "key"])
    launches, inner = list[Any](), Searcher.answer

    def search(self: Searcher, *asked: Any) -> fr.Hits:
        found = inner(self, *asked)
        launches.append((weakref.ref(found), weakref.ref(found.scores), len(found)))
        return found

    monkeypatch.setattr(Searcher, "answer", search)
    gate.open()
    found, _ = own.result(PATIENCE), other.result(PATIENCE)
    del other
    whole, scores, size = launches[-1]
    assert size == 3
    until(lambda: gc.collect() >= 0 and whole() is None and scores() is None)
    own_snapshot = engine.index.memory.snapshot("a")
    assert {snapshot for snapshot, _ in found.resolver.searched} == {own_snapshot}
    assert [snapshot for snapshot, _ in found.explainer.plans] == [own_snapshot]
    assert {asked.snapshot for asked in found.explainer.asked.values()} == {own_snapshot}
    assert not found.explainer.memory.snapshots
    assert_same(found, engine.namespace("a").search(["tea"]))


def test_a_failure_of_the_engine_costs_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, gate = small()
    gate.hold()
    futures = [engine.submit([f"w{number}"]) for number in range(200)]
    answer = Mock(side_effect=fr.errors.EncoderError("the service is down"))
    monkeypatch.setattr(Searcher, "answer", answer)
    gate.open()
    for future in futures:
        with pytest.raises(fr.errors.EncoderError, match="the service is down"):
            future.result(PATIENCE)
    assert answer.call_count < 20
    assert engine.health().failure_count == {"EncoderError": 200}


def test_who_is_late_is_left_out_of_a_failed_launchs_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, gate = small()
    clock = Clock(monkeypatch)
    gate.hold()
    futures = [engine.submit([word], deadline=DEADLINE) for word in WORDS]

    def search(*_: Any) -> fr.Hits:
        clock.now += DEADLINE
        raise ZeroDivisionError

    answer = Mock(side_effect=search)
    monkeypatch.setattr(Searcher, "answer", answer)
    gate.open()
    for future in futures:
        with pytest.raises(fr.errors.DeadlineError):
            future.result(PATIENCE)
    assert answer.call_count == 1


def test_a_call_may_be_withdrawn_by_a_thread_that_holds_the_lock() -> None:
    """Garbage is collected anywhere, and a coroutine that it ends withdraws its call."""
    engine, gate = small()
    gate.hold()
    future = engine.submit(["milk", "key"])

    def collected() -> None:
        with engine.coalescer._lock:
            future.cancel()

    in_threads(collected)
    assert engine.coalescer.stats()["waiting"] == 0
    gate.open()


def test_a_callback_may_wait_for_what_it_asks() -> None:
    engine, gate = small()
    held, found, over = gate.hold(), list[Any](), threading.Event()

    def ask(_: Any) -> None:
        found.append(engine.submit(["milk"]).result(PATIENCE))
        found.append(asyncio.run(engine.asearch(["key"])))
        found.append(outcome(lambda: engine.coalescer.search(["tea"], deadline=-1)))
        found.append(engine.submit(["key"]))
        found.append(outcome(lambda: engine.submit([fr.Query("tea", filter={"nowhere": 1})]).result(PATIENCE)))
        engine.coalescer.close()
        found.append(outcome(lambda: engine.coalescer.search(["tea"])))
        over.set()

    held.add_done_callback(ask)
    gate.open()
    assert over.wait(PATIENCE)
    assert_same(found[0], engine.search(["milk"]))
    assert_same(found[1], engine.search(["key"]))
    assert found[2][0] is fr.errors.ParameterError
    assert outcome(lambda: found[3].result(PATIENCE)) == (fr.errors.StorageError, "the engine is closed")
    assert found[4][0] is fr.errors.UnknownColumnError
    assert found[5] == (fr.errors.StorageError, "the engine is closed")


def test_options_join_by_more_than_equality() -> None:
    """Shares are added up in the order of a table, which the equality of mappings passes over."""
    bm25, rrf = fr.strategies.STRATEGIES["bm25"], fr.strategies.STRATEGIES["rrf"]
    routers = [fr.Router({"a": bm25, "b": rrf}, bm25), fr.Router({"b": rrf, "a": bm25}, bm25)]
    assert routers[0] == routers[1]
    one, other = (LaunchOptions.of({"strategy": router}, None) for router in routers)
    assert not one.joins(other)
    assert one.joins(LaunchOptions.of({"strategy": dataclasses.replace(routers[0])}, None))


def test_a_launch_that_runs_while_the_engine_closes_may_read_records_no_more(tmp_path: Path) -> None:
    engine = fr.Engine.open(tmp_path, analyzer="minimal")
    engine.add([fr.Record("1", "tea")])
    gate = Gate(engine)
    futures = [gate.hold()]
    engine.coalescer.configure(max_batch=1)  # the next runs beside it
    reranker = fr.strategies.CheckedReranker(lambda pairs: [0.0] * len(pairs), unchecked=True)
    futures.append(engine.submit(["tea", "milk"], reranker=reranker))
    assert gate.began.acquire(timeout=PATIENCE)
    engine.close()
    gate.open()
    assert_same(futures[0].result(PATIENCE), engine.search(["tea"]))
    with pytest.raises(fr.errors.StorageError, match="the store is closed"):
        futures[1].result(PATIENCE)


def test_max_wait_leaves_a_deadline_time_for_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = few(max_wait=3 * PATIENCE)
    expected = engine.search(["tea"])
    clock, moments = Clock(monkeypatch), []

    def left_until(moment: float) -> float:
        moments.append(moment)
        return 0.0

    monkeypatch.setattr(coalesce, "seconds_until", left_until)
    assert_same(engine.coalescer.search(["tea"], deadline=2 * PATIENCE), expected)
    assert moments == [clock.now + PATIENCE]  # the launch waits for others for half of the deadline


def test_a_loop_closed_before_its_turn_ended_is_forgotten() -> None:
    engine = few()
    loop = asyncio.new_event_loop()
    task = loop.create_task(engine.asearch(["tea"]))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert loop in engine.coalescer._arrivals
    assert_same(asyncio.run(engine.asearch(["key"])), engine.search(["key"]))
    assert not engine.coalescer._arrivals
    assert not task.done()


def test_tenants_are_launched_by_turns_and_their_large_calls_in_pieces_of_one_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, name, value in ((coalesce, "LARGE", 200), (turns, "TIMES", 0), (turns, "TARGET", 0.0)):
        monkeypatch.setattr(module, name, value)
    engine, launched = few(), list[str]()
    batches = {name: [f"{word} {name}" for word in ("tea", "key", "oil", "jam")] for name in ("many", "once")}
    expected = {name: engine.search(batch, texts=True) for name, batch in batches.items()}
    answer = engine.searcher.answer

    def note(queries: Any, *rest: Any) -> Any:
        launched.append(" ".join(query.text for query in queries))
        if len(launched) == 2:
            engine.add([fr.Record(f"later {word}", word) for word in WORDS])
        return answer(queries, *rest)

    async def ask() -> list[Any]:
        calls = [engine.asearch(batches[name], tenant=name, texts=True) for name in ("many", "many", "once")]
        return await asyncio.gather(*calls)

    monkeypatch.setattr(engine.searcher, "answer", note)
    many, _, once = asyncio.run(ask())
    # Query by query in turn, though the one with two calls came first; and no piece sees the later records.
    assert [{text[-4:] for text in launched[row : row + 2]} for row in range(0, 8, 2)] == [{*batches}] * 4
    assert launched[8:] == batches["many"]
    assert_same(many, expected["many"])
    assert_same(once, expected["once"])


def test_short_queries_of_which_nothing_is_known_are_cut_until_many_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in ((coalesce, "HELD", 0.0), (turns, "TARGET", 60.0)):
        monkeypatch.setattr(module, name, value)
    engine, words = few(), [fr.Query("tea", k=1 + number % 14, latest="role") for number in range(15)]
    expected, answer, launched = engine.search(words), engine.searcher.answer, list[tuple[int, Any]]()
    monkeypatch.setattr(engine.searcher, "answer", lambda q, *r: launched.append((len(q), r[-1])) or answer(q, *r))
    for _ in range(2):
        hits = asyncio.run(engine.asearch(words, tenant="a"))
        assert (hits.to_dicts(), hits.distinct) == (expected.to_dicts(), 14)
    assert {clock for _, clock in launched[:4]} == {launched[0][1]} != {None}, "pieces of one moment"
    # The first call learns, each piece twice the last one, and equal queries in one. The next is one launch.
    assert [size for size, _ in launched] == [2, 2, 4, 7, 15]


def test_a_launch_that_is_sure_to_be_short_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalesce, "AT_ONCE", 1e9)
    engine, threads = few(), list[int]()
    engine.coalescer.on_launch = lambda *_: threads.append(threading.get_ident())

    async def ask() -> None:
        expected = engine.search(["tea"])
        for keywords in ({}, {}, {"texts": True}, {"namespaces": [""]}, {"filter": {"role": "x"}}, {"deadline": 60.0}):
            hits = await engine.asearch(["tea"], tenant="a", **keywords)
            assert "filter" in keywords or hits.ids.tolist() == expected.ids.tolist()
            while engine.coalescer._lanes[0].runner is not None:
                await asyncio.sleep(0)
        several = await asyncio.gather(*(engine.asearch([word], tenant=word) for word in WORDS[:4]))
        assert [hits.ids.tolist() for hits in several] == [engine.search([word]).ids.tolist() for word in WORDS[:4]]

    asyncio.run(ask())
    # Of the first nothing is known. Records, several namespaces and filters may take long.
    own = [thread == threading.get_ident() for thread in threads]
    assert own == [False, True, False, False, False, True, True]


def test_nothing_joins_a_call_in_pieces_where_the_bound_of_a_launch_is_raised() -> None:
    engine, words = few(), ["tea", "key", "oil", "jam"]
    expected, coalescer = engine.search(words), engine.coalescer.configure(max_batch=3)

    async def ask() -> list[Any]:
        with coalescer._lock:
            calls = [asyncio.ensure_future(engine.asearch(words, tenant=name, deadline=60)) for name in ("a", None)]
            while coalescer._waiting < 8:
                await asyncio.sleep(0)
            coalescer.configure(max_batch=99)
        return await asyncio.gather(*calls)

    for hits in asyncio.run(ask()):
        assert_same(hits, expected)


def test_a_launch_grows_where_many_queries_take_as_long_as_one() -> None:
    for fixed, each, least, most in ((0.03, 0, 64, 4096), (0, 0.03, 1, 2), (0, 1e-4, 64, 256)):
        pace, queries = turns.Pace(), 1
        for _ in range(9):
            pace.learn(100 * queries, queries, fixed + each * queries)
            queries = max(1, pace.room // 100)
        assert least <= queries <= most


def test_a_clock_shares_among_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """By work and not by turns; what one took alone is not owed, and only who owes something is remembered."""
    borders.shrink(monkeypatch, REMEMBERED=4)
    clock, had, costs = turns.Clock(), Counter[str](), {"a": 9, "b": 1, "late": 3}
    for number in range(900):
        who = min(("a", "b", "late") if number >= 600 else ("a", "b") if number >= 300 else ("a",), key=clock.start)
        clock.charge(who, costs[who])
        had[who] += costs[who] if number >= 600 else 0
    assert max(had.values()) - min(had.values()) <= 2 * 9
    for number in range(99):
        clock.charge(str(number), 0)
    assert len(clock._begun) <= 5
