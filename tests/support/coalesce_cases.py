"""Callers of all kinds, launches that are held, and what a caller can see of an answer."""

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import fanrank as fr
from fanrank.engine.errors import FanrankError
from fanrank.engine.serve import calls, coalesce

PATIENCE = 60.0
"""Seconds after which a test gives up waiting for what must happen."""
DEADLINE = 0.3
"""Seconds by a `Clock`, which stands until a test moves it."""
WORDS = ["tea", "milk", "key", "job", "ana", "fix", "rust", "moon"]
DAY = 86_400.0


def records(count: int = 300) -> Iterator[fr.Record]:
    draw = random.Random(5)
    for number in range(count):
        yield fr.Record(
            f"r{number}",
            " ".join(draw.choices(WORDS, weights=range(len(WORDS), 0, -1), k=draw.randrange(1, 9))),
            role=draw.choice(["user", "tool"]),
            session=f"s{number % 3}",
            time=DAY * number,
            namespace=draw.choice(["", "", "a", "b"]),
            embedding=[draw.gauss(0, 1) for _ in range(4)],
        )


def query(draw: random.Random) -> str | fr.Query | list[str]:
    text = " ".join(draw.choices([*WORDS, "unknown"], k=draw.randrange(0, 4)))
    kind = draw.randrange(4)
    if kind == 0:
        return text
    if kind == 1:
        return text.split()
    now = draw.choice([None, DAY * 200])
    return fr.Query(
        text,
        k=draw.choice([None, None, 0, 1, 30]),
        filter=draw.choice([None, {"role": "user"}, fr.col("session") == "s1"]),
        namespace=draw.choice(["", "", "a", "b", "nobody"]),
        now=now,
        half_life=None if now is None else draw.choice([None, 9 * DAY]),
        scope=draw.choice([None, None, fr.SearchScope.session("s2")]),
        id=draw.choice([None, "q"]),
        vector=[draw.gauss(0, 1) for _ in range(4)],
    )


def with_vector(asked: str | fr.Query | list[str]) -> fr.Query:
    """As strategies over vectors take it."""
    if isinstance(asked, fr.Query):
        return dataclasses.replace(asked, now=DAY * 200)
    terms = None if isinstance(asked, str) else asked
    return fr.Query(asked if isinstance(asked, str) else "", terms=terms, vector=[1, 2, 3, 4], now=DAY * 200)


def case(seed: int) -> tuple[list[Any], int, dict[str, Any]]:
    """A caller's batch, its k, and its options."""
    draw = random.Random(seed)
    asked: list[Any] = [query(draw) for _ in range(draw.randrange(0, 8))]
    strategy = draw.choice(["bm25", "bm25", "bm25", "rrf", "decay", "dense-int8", CASCADE, "softcentroid-fused"])
    if strategy != "bm25":
        asked = [with_vector(own) for own in asked]
    how = {"strategy": strategy, "execution": draw.choice(["auto", "auto", "exhaustive"])}
    return asked, draw.choice([10, 10, 3, 1, 0, 40]), how


CASCADE = fr.Cascade(tau=0.3, escalate="rrf")


def assert_same(found: fr.Hits, alone: fr.Hits) -> None:
    """All that a caller can see of the answer, bit for bit."""
    for name in ("scores", "documents", "counts", "ids"):
        one, other = getattr(found, name), getattr(alone, name)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), name
        assert one.tolist() == other.tolist(), name
        assert one.flags.c_contiguous
        assert one.flags.writeable == other.flags.writeable
    assert found.queries == alone.queries
    assert found.distinct == alone.distinct
    assert len(found) == len(alone)
    assert list(found) == list(alone)
    assert found.query_ids() == alone.query_ids()
    names = found.query_ids()
    if len(set(names)) == len(names):
        assert found.to_run() == alone.to_run()
    assert (found.reranked is None) == (alone.reranked is None)
    assert (found.decisions is None) == (alone.decisions is None)
    for one, other in zip(found.decisions or (), alone.decisions or (), strict=True):
        assert dataclasses.replace(one, milliseconds=0.0) == dataclasses.replace(other, milliseconds=0.0)
    for position in (*range(len(alone)), -1):
        for record in ("r1", "r17", "none"):
            assert outcome(lambda: found.explain(position, record)) == outcome(  # noqa: B023
                lambda: alone.explain(position, record)  # noqa: B023
            )
    assert outcome(lambda: found.explain(len(found), "r1")) == outcome(lambda: alone.explain(len(alone), "r1"))


def outcome(work: Callable[[], Any]) -> Any:
    """What comes back, or what is raised."""
    try:
        return work()
    except FanrankError as error:
        return type(error), str(error)


class Gate:
    """Holds launches of an engine: `began` says that one began, `go` lets one through."""

    def __init__(self, engine: fr.Engine) -> None:
        self.engine = engine
        self.inner = engine.backend
        self.sizes: list[int] = []
        self.worked: list[int] = []
        self.began, self.go = threading.Semaphore(0), threading.Semaphore(0)
        engine.backend = dataclasses.replace(self.inner, search=self._search, texts=None)

    def _search(self, plans: Sequence[Any], batch: int, k: int, **how: Any) -> Any:
        self.sizes.append(batch)
        self.worked.append(sum(len(plan.rows) for plan in plans))
        self.began.release()
        assert self.go.acquire(timeout=PATIENCE)
        return self.inner.search(plans, batch, k, **how)

    def hold(self) -> Any:
        """A launch of one query that runs until it is let through."""
        future = self.engine.submit(["tea"])
        assert self.began.acquire(timeout=PATIENCE)
        return future

    def open(self) -> None:
        """Hold nothing from now on."""
        self.engine.backend = self.inner
        for _ in range(1000):
            self.go.release()


def few(**how: Any) -> fr.Engine:
    """An engine of few records, whose coalescer is set up so."""
    engine = fr.Engine.from_records(records(40), analyzer="minimal", encoder=fr.OwnVectors(4))
    engine.coalescer.configure(**how)
    return engine


def small(**how: Any) -> tuple[fr.Engine, Gate]:
    engine = few(**how)
    return engine, Gate(engine)


class Clock:
    """The time by which deadlines pass. Waits still take real seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, perf_counter=time.perf_counter)
        for module in (calls, coalesce):
            monkeypatch.setattr(module, "time", clock)
