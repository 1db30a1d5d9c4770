"""The drivers over a device that runs late: one answer in any order of streams.

Faults of that order are planted with the others, in tests/extended/planted/kernels.txt.
"""

import gc
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from support import borders  # noqa: E402
from support.device_cases import assert_same_bits  # noqa: E402
from support.host_kernels import Launchers, family, need_compiler  # noqa: E402
from support.late_device import LateDevice, LateGraph, LateVerbs  # noqa: E402
from support.threads import in_threads  # noqa: E402

import fanrank as fr  # noqa: E402
from fanrank.engine.backends import choose as backend  # noqa: E402
from fanrank.engine.plan.plan import make_plan  # noqa: E402
from fanrank.engine.plan.requests import Request  # noqa: E402
from fanrank.kernels import device, download, runtime, search  # noqa: E402
from fanrank.kernels.cuda.verbs import CudaVerbs  # noqa: E402

WORDS = [f"w{number}" for number in range(9)]


@pytest.fixture(autouse=True, scope="module")
def _compiler() -> None:
    need_compiler()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several segments, merges, and fan-outs that leave their padded shapes."""
    borders.shrink(monkeypatch, MAX_SEGMENT_DOCUMENTS=60, INLINE_DOCUMENTS=60, BUILD_CHUNK=60)
    borders.shrink(monkeypatch, {"fanout.QUERIES": (4,)}, TERMS=(12,), WIDTHS=(4, 64), TABLED_POSTINGS=4, LEAST_TILES=1)


class Memory:
    """An engine whose searches go to a late device, and what numpy answers on the same records."""

    def __init__(self, seed: int, count: int = 100, limit: int | None = None, method: str = "lucene") -> None:
        self.draw = random.Random(seed)
        self.runtime = LateDevice(seed)
        residency = device.Residency(self.runtime.device, limit, runtime=self.runtime)
        self.search = search.DeviceSearch(
            LateVerbs(family(tile_bits=5), self.runtime),  # type: ignore[arg-type]
            self.runtime.device,
            residency=residency,
        )
        self.engine = fr.Engine(analyzer="minimal", backend="numpy", method=method)
        self.numpy = self.engine.backend
        self.late = backend.Backend("late", "a test", self.search, self.search, texts=self.search.search_texts)
        self.written = 0
        self.open: list[tuple[Any, tuple[Any, ...]]] = []
        """Answers of `search_tensors` that nobody has looked at yet, and what they should be. Nothing here keeps a
        snapshot alive."""
        self.write(count)

    def write(self, count: int) -> None:
        self.engine.backend = self.numpy
        self.engine.add(
            fr.Record(
                f"r{n}",
                " ".join(self.draw.choices(WORDS, k=self.draw.randrange(1, 7))),
                session=f"s{n % 7}",
                time=float(n),
            )
            for n in range(self.written, self.written + count)
        )
        self.written += count

    def forget(self, count: int) -> None:
        """Delete so many records, which rewrites segments."""
        self.engine.backend = self.numpy
        self.engine.delete([f"r{n}" for n in self.draw.sample(range(self.written), count)], missing_ok=True)

    def texts(self, count: int) -> list[str]:
        return [" ".join(self.draw.choices([*WORDS, "unknown"], k=self.draw.randrange(1, 4))) for _ in range(count)]

    def near(self) -> list[fr.Query]:
        """Queries whose records borrow from their neighbours, of every kind."""
        lent = {"neighbours": fr.Neighbours(self.draw.choice([1, 2]))}
        faded = {"half_life": 20.0, "now": 200.0}
        kinds: list[dict[str, Any]] = [{}, faded, {"since": 10.0, "until": 80.0}]
        return [fr.Query(text, **lent, **kind) for text, kind in zip(self.texts(3), kinds, strict=True)]

    def expected(self, batch: list[Any], k: int) -> fr.Hits:
        self.engine.backend = self.numpy
        return self.engine.search(batch, k)

    def ask(self, batch: list[Any], k: int, **how: Any) -> None:
        """Search, and compare."""
        wanted = self.expected(batch, k)
        self.engine.backend = self.late
        assert_same_bits(self.engine.search(batch, k, **how), wanted)

    def ask_tensors(self, texts: list[str], k: int, stream: Any, weight: int | None = None) -> None:
        """Search on a caller's stream, and look at the answer later."""
        hits = self.expected(texts, k)
        wanted = hits.scores, hits.documents, hits.counts
        del hits
        self.engine.backend = self.late
        terms, offsets = (torch.tensor(array) for array in self.engine.encode(texts)[:2])
        weights = None if weight is None else torch.full_like(terms, weight)
        with self.runtime.on(stream):
            found = self.engine.search_tensors(terms, offsets, weights, k=k)
            self.open.append(((found, terms, offsets, weights, weight or 1, self.runtime.record()), wanted))

    def look(self, keep: int = 0) -> None:
        while len(self.open) > keep:
            (found, *_, weight, event), (scores, documents, counts) = self.open.pop(0)
            event.wait()
            width = scores.shape[1]
            np.testing.assert_array_equal(found.counts.numpy(), counts)
            np.testing.assert_array_equal(found.documents.numpy()[:, :width], documents)
            np.testing.assert_array_equal(found.scores.numpy()[:, :width], weight * scores)


def some_day(memory: Memory, steps: int = 14) -> None:
    """Searches on every path, beside writes and deletions, with answers that are looked at late."""
    draw = memory.draw
    callers = [memory.runtime.new_stream() for _ in range(2)]
    memory.ask(memory.texts(2), 3)
    for _ in range(steps):
        step = draw.choice(
            ["texts", "texts", "write", "forget", "plans", "decay", "near", "tensors", "tensors", "weights", "many"]
        )
        if step == "write":
            memory.write(draw.choice([1, 5, 40]))
        elif step == "forget":
            memory.forget(draw.choice([1, 20]))
        elif step == "texts":
            memory.ask(memory.texts(draw.randrange(1, 5)), draw.choice([3, 4, 10]))
        elif step == "many":
            memory.ask(memory.texts(9), 5)
        elif step == "plans":
            memory.ask(memory.texts(draw.choice([2, 7])), 5, execution="exhaustive")
        elif step == "decay":
            ranged = [fr.Query(text, since=10.0, until=80.0) for text in memory.texts(2)]
            memory.ask([*memory.texts(2), fr.Query("w1 w2", half_life=20.0, now=200.0), *ranged], 5)
        elif step == "near":
            memory.ask(memory.near(), 5)
        else:
            weight = 3000 if step == "weights" else None
            memory.ask_tensors(memory.texts(draw.randrange(1, 4)), draw.choice([3, 8]), draw.choice(callers), weight)
        memory.look(keep=3)
        gc.collect(0)
    memory.look()


@pytest.mark.parametrize("seed", range(12))
def test_every_road_beside_writes(seed: int) -> None:
    memory = Memory(seed)
    some_day(memory)
    assert memory.runtime.counts["replays"] or memory.runtime.counts["captures"] == 0


NODES = ["copy", "plan", "order", "score", "select", "copy"]


@pytest.mark.parametrize("count", [50, 130, 500])
def test_a_write_between_fan_outs_costs_no_capture(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"LEAST_TILES": 16, "fanout.SEGMENTS": (16,)})
    memory = Memory(1, count)
    counts = memory.runtime.counts
    for _ in range(3):
        memory.ask(memory.texts(3), 4)
    assert counts["captures"] == 1
    seen = set()
    for _ in range(5):
        memory.write(1)
        seen.add(len(memory.engine.index.memory.snapshot("").segments))
        before = counts.copy()
        memory.ask(memory.texts(3), 4)
        spent = counts - before
        assert (spent["captures"], spent["replays"], spent["host waits"]) == (0, 1, 1)
    assert max(seen) > 1
    assert [graph.nodes for graph in memory.runtime.graphs] == [NODES]


def test_a_grown_capacity_has_buffers_of_its_own() -> None:
    memory = Memory(2, 40)
    for _ in range(12):
        for _ in range(3):
            memory.ask(memory.texts(3), 4)
        memory.write(50)
    shapes = [one.shape for one in memory.search.fanouts]
    assert len({(shape.segments, shape.tiles) for shape in shapes}) == len(shapes) >= 3
    assert memory.runtime.counts["captures"] == len(memory.runtime.graphs) >= 3
    assert all(graph.nodes == NODES for graph in memory.runtime.graphs)
    # The default one, those of calls, of writes and of captures, whatever the shapes.
    assert len(memory.runtime._streams) == 1 + search.STREAMS + 2


def test_a_capture_on_another_stream_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def elsewhere(self: LateDevice, stream: Any, work: Callable[[], None]) -> LateGraph:
        """The work is not given to the captured stream: it runs at once, and the graph stays empty."""
        self.counts["captures"] += 1
        work()
        return LateGraph(self)

    monkeypatch.setattr(LateDevice, "capture", elsewhere)
    memory = Memory(0)
    for _ in range(4):
        memory.ask(memory.texts(3), 4)
    assert memory.runtime.counts["captures"] == 1
    # To see that nothing was captured.
    assert memory.runtime.counts["replays"] == 1
    assert "the graph did not copy the answer of its call" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("operation not permitted"), torch.OutOfMemoryError("planted")])
def test_a_failed_capture_goes_on_without_a_graph(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(3)
    _fail(memory, "capture", error)
    for _ in range(4):
        memory.ask(memory.texts(3), 4)
        memory.write(3)
    assert memory.runtime.counts["captures"] == 1
    assert str(error) in caplog.text


def _fail(memory: Memory, what: str, error: Exception) -> None:
    def fails(asked: str) -> None:
        if asked == what:
            raise error

    memory.runtime.fails = fails


def test_no_pinned_memory_is_answered_like_no_memory() -> None:
    memory = Memory(4)
    memory.ask(memory.texts(9), 4)
    _fail(memory, "pinned", torch.OutOfMemoryError("planted"))
    memory.engine.backend = memory.late
    for batch in (memory.texts(3), memory.texts(9), [fr.Query("w1", since=3.0)]):
        with pytest.raises(
            fr.errors.DeviceMemoryError, match=r"no room for a single query beside .* serve from the CPU"
        ):
            memory.engine.search(batch, 4)
    memory.runtime.fails = lambda asked: None
    memory.ask(memory.texts(3), 4)


def test_short_memory_is_answered_by_smaller_launches() -> None:
    memory = Memory(5)
    batch = [f"{a} {b}" for a in WORDS for b in WORDS[:4]]
    memory.ask(batch, 4)
    calls = []

    def fails(asked: str) -> None:
        calls.append(asked)
        if asked == "empty" and len(calls) in (1, 2):
            raise torch.OutOfMemoryError("planted")

    for how in ({}, {"execution": "exhaustive"}):
        calls.clear()
        memory.runtime.fails = fails
        memory.ask(batch, 4, **how)
        assert calls.count("empty") >= 5


def test_all_that_is_held_is_counted() -> None:
    memory = Memory(6)
    caller = memory.runtime.new_stream()
    search_, runtime = memory.search, memory.runtime
    for _ in range(3):
        memory.ask(memory.texts(3), 4)
        memory.ask(memory.texts(9), 4)
        memory.ask([fr.Query("w1 w2", half_life=20.0, now=200.0)], 4)
        memory.ask_tensors(memory.texts(2), 4, caller)
        memory.write(30)
        memory.forget(9)
    memory.look()
    runtime.synchronize()
    gc.collect()
    held = runtime.live + runtime.pinned_live
    assert search_.residency.account.taken == held
    assert search_.residency.bytes < held
    assert search_.residency.lifetimes.bytes
    search_.residency.lifetimes.sweep()
    gc.collect()
    assert not search_.residency.lifetimes.bytes
    assert search_.residency.account.taken == runtime.live + runtime.pinned_live < held


def test_a_limit_bounds_all_of_it() -> None:
    plain = Memory(7)
    batch = plain.texts(30)
    plain.ask(batch, 4)
    plain.runtime.synchronize()
    need = plain.search.residency.account.taken
    memory = Memory(7, limit=2 * need + 40_000)
    for _ in range(4):
        memory.ask(memory.texts(3), 4)
        memory.ask(batch, 4, execution="exhaustive")
        memory.ask(batch, 4)
        assert memory.runtime.live + memory.runtime.pinned_live <= 2 * need + 40_000


class Epochs:
    """Snapshots of a memory as it grew, and what each answers."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.known = memory, []
        for _ in range(3):
            texts = [tuple(text.split()) for text in memory.texts(3)]
            wanted = memory.expected([fr.Query(terms=text) for text in texts], 4)
            given = tuple(np.asarray(array) for array in memory.engine.encode([list(text) for text in texts])[:2])
            self.known.append((memory.engine.index.memory.snapshot(""), given, texts, wanted))
            memory.write(30)

    def ask(self, draw: random.Random, number: int | None = None) -> None:
        """Search one of them, and compare."""
        snapshot, given, texts, wanted = self.known[draw.randrange(3) if number is None else number]
        found = self.memory.search.search_texts(
            snapshot, search.EVERY_RECORD, given, texts, 4, threads=1, execution="auto"
        )
        assert found is not None
        np.testing.assert_array_equal(found.documents, wanted.documents)
        np.testing.assert_array_equal(found.scores, wanted.scores)


def test_fewer_segments_after_more_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink(monkeypatch, {"LEAST_TILES": 16, "fanout.SEGMENTS": (16,)})
    epochs = Epochs(Memory(11))
    assert len({len(snapshot.segments) for snapshot, *_ in epochs.known}) > 1
    for number in (2, 2, 2, 0, 1, 2, 0):
        epochs.ask(epochs.memory.draw, number)
    assert epochs.memory.runtime.counts["captures"] == 1


@pytest.mark.parametrize("seed", range(3))
def test_epochs_that_share_segments_in_one_batch(seed: int) -> None:
    epochs = Epochs(Memory(seed))
    plans, wanted = [], []
    for number, (snapshot, (terms, offsets), _, hits) in enumerate(epochs.known):
        requests = [Request(3 * number + row, terms[offsets[row] : offsets[row + 1]].tolist(), 4) for row in range(3)]
        plans.append(make_plan(snapshot, requests))
        wanted.append(hits)
    quanta, documents, counts = epochs.memory.search(plans, 9, 4)
    np.testing.assert_array_equal(counts, np.concatenate([hits.counts for hits in wanted]))
    np.testing.assert_array_equal(documents, np.concatenate([hits.documents for hits in wanted]))
    found = np.concatenate([hits.scores for hits in wanted])
    np.testing.assert_array_equal(quanta[documents >= 0], found[documents >= 0] * (1 << 18))


def test_contributions_below_one_quantum() -> None:
    memory = Memory(12, method="robertson")
    for count in (3, 3, 3, 9):
        memory.ask(memory.texts(count), 20)
    memory.ask_tensors(memory.texts(3), 20, memory.runtime.new_stream())
    memory.look()


def test_threads_over_several_epochs() -> None:
    epochs = Epochs(Memory(8))

    def ask(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(10):
            epochs.ask(draw)

    in_threads(*(partial(ask, seed) for seed in range(3)))


@pytest.mark.parametrize("seed", range(4))
def test_calls_within_calls_over_several_epochs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others come while the first waits for its answer, as those of threads do."""
    memory, depth, wait = Memory(seed), 0, download.Download.wait
    epochs = Epochs(memory)

    def others_first(self: download.Download) -> Any:
        nonlocal depth
        if depth < 2:
            depth += 1
            epochs.ask(memory.draw)
            depth -= 1
        return wait(self)

    monkeypatch.setattr(download.Download, "wait", others_first)
    for _ in range(6):
        epochs.ask(memory.draw)


def test_a_caller_captures_tensors() -> None:
    memory = Memory(9)
    runtime, caller = memory.runtime, memory.runtime.new_stream()
    batches = [["w1 w2", "w3"], ["w4 w5", "w6"], ["w0 w8", "w1"]]
    wanted = [memory.expected(batch, 4) for batch in batches]
    memory.engine.backend = memory.late
    terms, offsets = (torch.tensor(array) for array in memory.engine.encode(batches[0])[:2])
    ask = lambda k: memory.engine.search_tensors(terms, offsets, k=k)  # noqa: E731
    with runtime.on(caller):
        ask(4)
        found: list[Any] = []
        graph = runtime.capture(caller, lambda: found.append(ask(4)))
        for batch, own in zip(batches, wanted, strict=True):
            terms.copy_(torch.tensor(memory.engine.encode(batch)[0]))
            graph.replay()
            # Other calls of the shape come between, on the same stream and on another.
            ask(4)
            with runtime.on(runtime.new_stream()):
                ask(4)
            runtime.record().wait()
            np.testing.assert_array_equal(found[0].documents.numpy(), own.documents)
            np.testing.assert_array_equal(found[0].scores.numpy(), own.scores)
        with pytest.raises(fr.errors.QueryError, match="call once before the capture"):
            runtime.capture(caller, lambda: ask(5))
        runtime.synchronize()
        memory.write(1)
        memory.engine.backend = memory.late
        with pytest.raises(fr.errors.QueryError, match="the index changed since the last call"):
            runtime.capture(caller, lambda: ask(4))


def test_an_answer_that_nobody_reads_gives_its_buffers_back() -> None:
    memory = Memory(10)
    memory.ask(memory.texts(3), 4)
    snapshot = memory.engine.index.memory.snapshot("")
    for _ in range(3):
        terms, offsets, _ = memory.engine.encode(["w1 w2"])
        memory.search.fanouts.begin_terms(snapshot, terms.astype(np.int64), offsets, 4)
        memory.runtime.synchronize()
    assert len(list(memory.search.fanouts)) == 1


class Stopped(Exception):
    """Ends a verb right after it was launched, as an interrupt could."""


def _stops(memory: Memory, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = getattr(memory.search.verbs, verb)

    def stopped(*given: Any) -> None:
        launch(*given)
        raise Stopped

    monkeypatch.setattr(memory.search.verbs, verb, stopped, raising=False)


def test_contributions_that_were_begun_are_of_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = Epochs(Memory(11))
    epochs.ask(epochs.memory.draw, 0)
    with monkeypatch.context() as patch:
        _stops(epochs.memory, "derive", patch)
        with pytest.raises(Stopped):
            epochs.ask(epochs.memory.draw, 2)
    for number in range(3):
        epochs.ask(epochs.memory.draw, number)


@pytest.mark.parametrize("verb", ["plan", "score"])
def test_what_a_failed_call_launched_is_waited_for(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(3)
    caller, lifetimes = memory.runtime.new_stream(), memory.search.residency.lifetimes
    memory.ask_tensors(memory.texts(2), 4, caller)
    memory.look()
    before = lifetimes._launches[caller.number]
    with monkeypatch.context() as patch:
        _stops(memory, verb, patch)
        with pytest.raises(Stopped):
            memory.ask_tensors(memory.texts(2), 4, caller)
    assert lifetimes._launches[caller.number] is not before


def test_buffers_of_a_failed_fan_out_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(10)
    memory.ask(memory.texts(3), 4)
    lifetimes = memory.search.residency.lifetimes
    snapshot = memory.engine.index.memory.snapshot("")
    terms, offsets, _ = memory.engine.encode(["w1 w2"])
    stream = memory.runtime.new_stream()
    with memory.runtime.on(stream), monkeypatch.context() as patch:
        _stops(memory, "score", patch)
        with pytest.raises(Stopped):
            memory.search.fanouts.begin_terms(snapshot, terms.astype(np.int64), offsets, 4)
        # As another part of the same call would, where memory is short.
        assert lifetimes.reclaim()
        assert lifetimes._launches[stream.number].reached


def test_kernels_are_compiled_one_by_one_outside_the_lock() -> None:
    """Each when it is first launched; whoever asked comes again and gets the answer."""
    launcher = Launchers()
    loaded: list[str] = []
    free: list[bool] = []

    class Cold:
        limits = launcher.limits

        def launch(self, name: str, *given: Any) -> None:
            if name in loaded:
                launcher.launch(name, *given)
            elif runtime.compiles_later():
                raise runtime.KernelNotLoaded(name, lambda: load(name))
            else:
                raise AssertionError(f"{name} is compiled under the lock")

    def load(name: str) -> None:
        other = threading.Thread(target=look)
        other.start()
        other.join()
        loaded.append(name)

    def look() -> None:
        free.append(lock.acquire(blocking=False))
        if free[-1]:
            lock.release()

    engine = fr.Engine(analyzer="minimal", backend="numpy")
    engine.add(fr.Record(f"r{n}", f"w{n % 5} w{n % 3}", time=float(n)) for n in range(200))
    made = search.DeviceSearch(CudaVerbs(Cold(), tile_bits=5), torch.device("cpu"))
    lock = made.lock
    engine.backend = backend.Backend("cold", "a test", made, made, texts=made.search_texts)
    engine.search(["w1 w2", "w3"], 4)
    fan_out = ["derive_int32", "plan_tables", "plan_terms", "order_plain", "score_narrow", "select_warp_narrow_32"]
    assert loaded == fan_out
    engine.search([fr.Query("w1", half_life=20.0, now=200.0)], 200)
    assert loaded[6:] == ["plan_describe", "order_decayed", "score_narrow_decayed", "select_bitonic_wide"]
    engine.search([fr.Query("w1", neighbours=fr.Neighbours(1))], 200)
    assert free == [True] * 10
