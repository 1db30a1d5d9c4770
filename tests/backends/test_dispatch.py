"""Which backend serves, and why the others do not; and what runs where (SPEC A043, X23): the newest windows for a query
that asks for them, a device for batches that it answers sooner, as measured times tell, one thread unless the caller
asks for more."""

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from support import borders

import fanrank as fr
from fanrank.cpu_fallback import search as vectorised
from fanrank.engine.backends import choose as backend
from fanrank.engine.backends.choose import BackendStatus
from fanrank.engine.backends.crossover import CALIBRATION, Crossover, work_of
from fanrank.engine.plan.plan import Request, make_plan
from fanrank.engine.plan.verbs import Output

WEEK = 7 * 86400.0
NOW = 1000.5 * WEEK
PER_WEEK = 20
AUTO = 3
"""Windows that the k* rule searches by default (A032)."""


def memory(weeks: int, name: str | None = None) -> fr.Engine:
    """`PER_WEEK` records a week up to that of NOW: "tea" in all, "milk" in every other."""
    engine = fr.Engine(analyzer="minimal", backend=name)
    for week in range(1001 - weeks, 1001):
        engine.add(
            fr.Record(f"{week}-{n}", "tea milk" if n % 2 else "tea", time=week * WEEK + 600.0 * n)
            for n in range(PER_WEEK)
        )
    return engine


@pytest.mark.parametrize("name", backend.CPU)
@pytest.mark.parametrize("weeks", [8, 40])
def test_a_recency_query_reads_the_newest_windows_alone(name: str, weeks: int, monkeypatch: Any) -> None:
    borders.shrink(monkeypatch, WINDOWED_RECORDS=0)
    if name == "native":
        pytest.importorskip("fanrank.native._compiled")
    engine = memory(weeks, name)
    hits = engine.search([fr.Query("tea milk", windows="auto", now=NOW)], 1000, timing=True)
    newest = {f"{week}-{n}" for week in range(1001 - AUTO, 1001) for n in range(PER_WEEK)}
    assert {record for record, _ in hits[0]} == newest
    assert hits.postings == AUTO * (PER_WEEK + PER_WEEK // 2)
    since = fr.Query("tea milk", since=(1001 - AUTO) * WEEK)
    assert engine.search([since], 1000)[0] == hits[0]


def test_a_batch_goes_to_the_device_and_a_recency_query_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the postings that they touch, not by the number of queries: numpy stands for the device, with a line at which
    500 postings are the border."""
    borders.shrink(monkeypatch, WINDOWED_RECORDS=0)
    engine = memory(80, "numpy")
    cpu = backend.choose(among=backend.CPU)
    crossover = Crossover(("device", cpu.name))
    for work in range(0, 1000 * (CALIBRATION + 2), 1000):
        crossover.add("device", work, 500e-6)
        crossover.add(cpu.name, work, work * 1e-6)
    # What these batches really take must not move the lines.
    monkeypatch.setattr(crossover, "add", lambda *_: None)
    engine.backend = backend.Backend("device", "a test", engine.backend.search, cpu=cpu, crossover=crossover)

    def served(*batch: fr.Query) -> str:
        return engine.search(batch).backend

    recent = fr.Query("tea milk", windows="auto", now=NOW)
    assert served(recent) == cpu.name
    assert served(fr.Query("tea milk")) == "device"
    assert served(*(fr.Query("tea milk", k=k) for k in range(1, 21))) == "device"


@pytest.mark.parametrize("size", [1, 20])
def test_one_thread_unless_more_are_asked_for(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of records; more change no bit of the answer."""
    for method in (fr.Engine.search, fr.Engine.candidates):
        assert inspect.signature(method).parameters["threads"].default == 1
    engine = memory(8, "numpy")
    asked: list[int] = []
    own = engine.backend.search

    def search(*given: Any, threads: int = 1, **how: Any) -> Output:
        asked.append(threads)
        return own(*given, threads=threads, **how)

    engine.backend = backend.Backend("numpy", "a test", search)
    batch = [fr.Query("tea milk", k=k) for k in range(1, size + 1)]
    one, two = engine.search(batch), engine.search(batch, threads=2)
    assert asked == [1, 2]
    np.testing.assert_array_equal(one.scores, two.scores)
    np.testing.assert_array_equal(one.documents, two.documents)


def test_numpy_keeps_to_one_thread_where_python_has_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, started = memory(8, "numpy"), []
    in_threads = vectorised.run_in_threads

    def counted(run: Any, tasks: Any, threads: int) -> None:
        started.append(threads)
        in_threads(run, tasks, threads)

    monkeypatch.setattr(vectorised, "run_in_threads", counted)
    for pays, threads in ((False, 1), (True, 2)):
        borders.shrink(monkeypatch, THREADS_PAY=pays)
        engine.search(["tea milk"] * 2, threads=2)
        assert started.pop() == threads


def taught(device: tuple[float, float], cpu: tuple[float, float]) -> Crossover:
    """A crossover that has seen both paths take ``fixed + slope * work`` seconds."""
    crossover = Crossover(("gpu", "cpu"))
    for work in (10, 1_000, 20_000, 300_000, 1_000_000):
        for name, (fixed, slope) in (("gpu", device), ("cpu", cpu)):
            crossover.add(name, work, fixed + slope * work)
    return crossover


def test_both_roads_are_tried_before_either_is_trusted() -> None:
    crossover = Crossover(("gpu", "cpu"))
    chosen = []
    while len(chosen) < 2 * (CALIBRATION + 1):
        chosen.append(crossover.choose(100))
        crossover.add(chosen[-1], 100, 1e-3 if chosen[-1] == "gpu" else 2e-3)
    assert chosen.count("gpu") == chosen.count("cpu") == CALIBRATION + 1
    assert crossover.choose(100) == "gpu"


def test_the_first_batch_of_a_road_is_not_counted() -> None:
    crossover = Crossover(("gpu", "cpu"))
    crossover.add("gpu", 100, 60.0)  # compiles and uploads
    for _ in range(CALIBRATION):
        crossover.add("gpu", 100, 1e-4)
    for _ in range(CALIBRATION + 1):
        crossover.add("cpu", 100, 1e-3)
    assert crossover.choose(100) == "gpu"


def test_each_batch_goes_where_it_is_sooner() -> None:
    crossover = taught((100e-6, 0.01e-9), (5e-6, 1e-9))
    # 100 us + .01 ns p = 5 us + 1 ns p at p = 95,960 postings.
    assert [crossover.choose(work) for work in (0, 90_000, 100_000, 10**9)] == ["cpu", "cpu", "gpu", "gpu"]
    assert str(crossover) == "crossover by measured time: gpu 100 us + 0.01 ns a posting, cpu 5 us + 1.00 ns a posting"
    assert "gpu not measured yet" in str(Crossover(("gpu", "cpu")))


def test_noise_makes_no_slope_negative() -> None:
    crossover = Crossover(("gpu", "cpu"))
    for work, seconds in ((1, 9.0), (10, 3e-3), (1000, 1e-3), (2000, 0.5e-3)):
        crossover.add("gpu", work, seconds)
        crossover.add("cpu", work, 1e-3)
    assert crossover.choose(10**9) == "cpu"


def test_work_is_the_postings_touched() -> None:
    engine = fr.Engine.from_records(
        [fr.Record(str(n), "tea milk" if n % 2 else "tea") for n in range(10)], analyzer="minimal"
    )
    snapshot = engine.index.memory.snapshots[""]
    tea, milk = (engine.encode([[term]])[0].tolist()[0] for term in ("tea", "milk"))
    queries = [[tea], [tea, milk], [tea, tea]]
    plan = make_plan(snapshot, [Request(row, terms, k=5) for row, terms in enumerate(queries)])
    assert work_of([plan]) == 10 + 15 + 10


def test_a_device_without_room_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fr.Engine.from_records([fr.Record(str(n), "tea") for n in range(50)], backend="numpy")
    cpu = backend.choose(among=backend.CPU)
    full = Mock(side_effect=fr.errors.DeviceMemoryError("no room"))
    engine.backend = backend.Backend("device", "a test", full, cpu=cpu, crossover=Crossover(("device", cpu.name)))
    assert {engine.search(["tea"]).backend for _ in range(10)} == {cpu.name}
    assert "device avoided: no room" in str(engine.backend)


@pytest.fixture(autouse=True)
def no_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backend.ENVIRONMENT_VARIABLE, raising=False)


def probe(name: str, usable: bool, reason: str, by_name: bool = False) -> Callable[[], BackendStatus]:
    return lambda: BackendStatus(name, usable, reason, by_name)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setitem(backend._PROBES, "cuda", probe("cuda", False, "no driver"))
    monkeypatch.setitem(backend._PROBES, "triton", probe("triton", False, "no torch"))
    monkeypatch.setitem(backend._PROBES, "cuda-host", probe("cuda-host", True, "a compiler", by_name=True))
    monkeypatch.setitem(backend._PROBES, "native", probe("native", False, "not installed"))


def test_statuses_name_every_backend_with_a_reason() -> None:
    found = backend.statuses()
    assert (
        tuple(status.name for status in found) == backend.BACKENDS == ("cuda", "triton", "cuda-host", "native", "numpy")
    )
    assert all(status.reason for status in found)
    assert found[-1].usable


@pytest.mark.usefixtures("no_gpu")
def test_the_first_that_can_serve_is_chosen_and_says_whom_it_passed_over() -> None:
    chosen = backend.choose()
    assert chosen.name == "numpy"
    assert chosen.reason.startswith(
        "not cuda: no driver; not triton: no torch; not cuda-host: only by name; not native: not installed; numpy "
    )
    assert fr.Engine().backend.name == "numpy"


@pytest.mark.usefixtures("no_gpu")
def test_chosen_by_argument() -> None:
    chosen = backend.choose("numpy")
    assert (chosen.name, chosen.reason) == ("numpy", "asked for by the caller")
    with pytest.raises(fr.errors.BackendUnavailableError) as caught:
        fr.Engine(backend="cuda")
    assert str(caught.value) == "backend 'cuda' (asked for by the caller) cannot serve: no driver"
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.usefixtures("no_gpu")
def test_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FANRANK_BACKEND", "numpy")
    assert backend.choose().reason == "asked for by FANRANK_BACKEND"
    monkeypatch.setenv("FANRANK_BACKEND", "triton")
    with pytest.raises(fr.errors.BackendUnavailableError, match=r"'triton' \(asked for by FANRANK_BACKEND\).*no torch"):
        fr.Engine()
    # The argument goes before the environment, and an empty variable is none.
    assert fr.Engine(backend="numpy").backend.name == "numpy"
    monkeypatch.setenv("FANRANK_BACKEND", "")
    assert backend.choose().name == "numpy"


def test_unknown_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        fr.errors.BackendUnavailableError,
        match=r"no backend 'tpu' \(asked for by the caller\).*cuda, triton, cuda-host, na",
    ):
        fr.Engine(backend="tpu")
    monkeypatch.setenv("FANRANK_BACKEND", "NumPy")
    with pytest.raises(fr.errors.BackendUnavailableError, match=r"no backend 'NumPy' \(asked for by FANRANK_BACKEND\)"):
        fr.Engine()


@pytest.mark.usefixtures("no_gpu")
def test_nothing_can_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend._PROBES, "numpy", probe("numpy", False, "no luck"))
    with pytest.raises(fr.errors.BackendUnavailableError) as caught:
        backend.choose()
    assert str(caught.value) == (
        "no backend can serve: not cuda: no driver; not triton: no torch; not cuda-host: only by name; "
        "not native: not installed; not numpy: no luck"
    )


@pytest.mark.parametrize(
    ("triton", "numpy", "usable"), [("3.6.0", "2.5.5", False), ("3.6.0", "2.3.5", True), ("3.7.0", "2.5.5", True)]
)
def test_an_interpreter_that_does_not_run_with_numpy_is_refused(
    triton: str, numpy: str, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("torch", "2.13.0"), ("triton", triton)):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(__version__=version))
    monkeypatch.setattr(backend.np, "__version__", numpy)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    status = backend._triton_status()
    assert status.usable == usable
    assert usable or "triton 3.6.0 does not run with numpy 2.5.5; install triton 3.7 or newer" in status.reason


def test_a_slow_backend_serves_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend._PROBES, "cuda", probe("cuda", False, "no driver"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert backend.choose().name in backend.CPU
    with pytest.raises(
        fr.errors.BackendUnavailableError, match=r"cannot serve from cuda: no backend can serve: .*only by name"
    ):
        fr.Engine().to("cuda")


def test_a_device_chosen_unasked_shares_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend._PROBES, "cuda", probe("cuda", True, "a device"))
    monkeypatch.setattr(backend, "_backend", lambda name, reason, *_: backend.Backend(name, reason, lambda *_: None))  # type: ignore[arg-type,return-value]
    unasked, asked, moved = backend.choose(), backend.choose("cuda"), backend.choose(among=backend.DEVICES)
    assert (unasked.name, asked.name, moved.name) == ("cuda", "cuda", "cuda")
    assert unasked.cpu.name in backend.CPU
    assert (asked.cpu, asked.crossover, moved.cpu, moved.crossover) == (None, None, None, None)
