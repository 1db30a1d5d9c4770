"""Phases: they nest without being counted twice, and cover a search."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import fanrank as fr
from fanrank.engine import timing
from fanrank.engine.backends import choose as backend
from fanrank.engine.timing import Phases

BACKENDS = [
    pytest.param(status.name, marks=pytest.mark.skipif(not status.usable, reason=status.reason), id=status.name)
    for status in backend.statuses()
    if status.name in backend.CPU
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Seconds that pass by hand."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_nested_phases_add_up_to_the_time_of_the_outermost(clock: SimpleNamespace) -> None:
    phases = Phases()
    with phases("outer"):
        clock.now += 1
        with phases("inner"):
            clock.now += 2
            with phases("outer"):
                clock.now += 4
        clock.now += 8
        with phases("inner"):
            clock.now += 16
    with phases("after"):
        clock.now += 32
    assert phases.milliseconds == {"outer": 13e3, "inner": 18e3, "after": 32e3}
    assert list(phases.milliseconds)[-1] == "after"


def test_time_that_a_device_measured_is_not_the_hosts_too(clock: SimpleNamespace) -> None:
    phases = Phases()
    with phases("serve"):
        clock.now += 1
        phases.add("score", 600.0)
    with phases("serve"):
        clock.now += 1
        phases.add("score", 1100.0)
    assert phases.milliseconds == pytest.approx({"score": 1700.0, "serve": 400.0})


@pytest.mark.parametrize("timed", [False, True])
def test_phases_are_marked_for_a_profiler(timed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @contextmanager
    def annotate(name: str) -> Iterator[None]:
        seen.append(name)
        yield
        seen.append(f"end of {name}")

    monkeypatch.setattr(timing, "_annotate", annotate)
    phases = Phases(timed)
    with phases("outer"), phases("inner"):
        pass
    assert seen == ["outer", "inner", "end of inner", "end of outer"]
    assert set(phases.milliseconds) == ({"outer", "inner"} if timed else set())


@pytest.mark.parametrize("served", BACKENDS)
@pytest.mark.parametrize("ask", ["text", "terms", "filtered", "decayed", "two namespaces"])
def test_phases_cover_a_search(served: str, ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that ticks with each call of a function, so that the same share is covered everywhere."""
    words = [f"w{number}" for number in range(40)]
    records = [
        fr.Record(id=str(n), text=" ".join(words[n % 40 :] + words[: n % 7]), time=float(n), namespace="ab"[n % 2])
        for n in range(400)
    ]
    engine = fr.Engine.from_records(records, analyzer="minimal", backend=served)
    options: dict[str, dict[str, Any]] = {
        "filtered": {"filter": {"time": {">": 100}}},
        "decayed": {"now": 500.0, "half_life": 50.0},
    }
    queries = [
        fr.Query(
            "" if ask == "terms" else " ".join(asked),
            terms=asked if ask == "terms" else None,
            namespace="ab"[n % 2] if ask == "two namespaces" else "a",
            **options.get(ask, {}),
        )
        for n in range(200)
        for asked in [[words[n % 40], words[n * 7 % 40], f"unknown{n}"]]
    ]
    engine.search(queries, timing=True)
    calls = 0

    def tick(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: calls))
    sys.setprofile(tick)
    try:
        hits = engine.search(queries, timing=True)
    finally:
        sys.setprofile(None)
    assert hits.timing is not None
    # One compiled call serves texts: it says which share was what.
    served_texts = served == "native" and ask in ("text", "filtered", "decayed")
    last = {"score and select"} if served_texts else {"serve", "convert"}
    assert {"prepare", "analyse", "plan", *last} <= set(hits.timing)
    assert all(spent >= 0 for spent in hits.timing.values())
    if not served_texts:
        # Compiled phases are timed by a clock of their own.
        covered = sum(hits.timing.values()) / 1e3
        assert 0.95 * calls <= covered <= calls
