"""The crossover learns from measured times alone, and says what it learned."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.backends.crossover import CALIBRATION, Crossover, work_of
from fanrank.engine.plan.plan import Request, make_plan


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
