"""The temporal retriever and `Engine.events` against a plain scan of the records."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from support import borders

import fanrank as fr
from fanrank.engine.index import time_order
from fanrank.engine.text.time_expressions.parse import parse_when

DAY = 86_400.0
NOW = 400 * DAY
TEXTS = ("yesterday", "last week", "last month", "last year", "3 days ago", "this month", "a few weeks ago", "recently")


class Log:
    """A memory and what a plain reader knows of it: the live records in the order of their last write."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.engine = fr.Engine(analyzer="minimal")
        self.records: dict[tuple[str, str], fr.Record] = {}
        self.made = 0

    def make(self) -> fr.Record:
        """A record with one of few times, so that times tie in a segment and across segments; or with none."""
        chance, self.made = self.random, self.made + 1
        time = None if chance.random() < 0.1 else NOW - chance.choice([0.0, 0.5, 1.0, 3.0, 3.0, 8.0, 20.0, 90.0]) * DAY
        return fr.Record(
            f"r{self.made}",
            chance.choice(["tea", "", "tea rain"]),
            namespace=chance.choice(["a", "a", "b"]),
            time=time if time is None or chance.random() < 0.6 else time - chance.random() * DAY,
            type=chance.choice(["Event", "Event", "Fact", None]),
            session=f"s{chance.randrange(4)}",
        )

    def add(self, count: int) -> None:
        batch = [self.make() for _ in range(count)]
        self.engine.add(batch)
        self.records.update({(record.namespace, record.id): record for record in batch})

    def delete(self, share: float) -> None:
        for space, name in [key for key in self.records if self.random.random() < share]:
            self.engine.delete([name], namespace=space)
            del self.records[space, name]

    def update(self, count: int) -> None:
        for key in self.random.sample(sorted(self.records), min(count, len(self.records))):
            record = replace(self.make(), id=key[1], namespace=key[0])
            self.engine.update([record])
            del self.records[key]
            self.records[key] = record

    def inside(self, since: float, until: float, accepts: Callable[[fr.Record], bool]) -> list[fr.Record]:
        """The events of a closed interval that pass, in order of writing."""
        return [
            record
            for record in self.records.values()
            if record.type == "Event" and record.time is not None and since <= record.time <= until and accepts(record)
        ]

    def check(self) -> None:
        cases: list[tuple[fr.Query, Callable[[fr.Record], bool], float, float]] = []
        for text in TEXTS:
            for space in ("a", "b"):
                base = fr.Query(f"what took place {text}", now=NOW, namespace=space)
                cases += [
                    (base, lambda r, s=space: r.namespace == s, -math.inf, math.inf),
                    (
                        replace(base, filter={"session": "s1"}),
                        lambda r, s=space: r.namespace == s and r.session == "s1",
                        -math.inf,
                        math.inf,
                    ),
                    (
                        replace(base, filter={"session": ["s2", "s3"]}, since=NOW - 60 * DAY),
                        lambda r, s=space: r.namespace == s and r.session in ("s2", "s3"),
                        NOW - 60 * DAY,
                        math.inf,
                    ),
                    (
                        replace(base, since=NOW - 10 * DAY, until=NOW - DAY),
                        lambda r, s=space: r.namespace == s,
                        NOW - 10 * DAY,
                        NOW - DAY,
                    ),
                ]
            both = fr.Query(f"what took place {text}", now=NOW, namespaces=["a", "b"])
            cases.append((both, lambda r: True, -math.inf, math.inf))
        hits = self.engine.search([query for query, *_ in cases], k=7, strategy="temporal")
        for row, (query, accepts, since, until) in enumerate(cases):
            when = parse_when(query.text, NOW)
            assert when is not None
            found = self.inside(max(when.start, since), min(when.end, until), accepts)
            if query.namespaces is not None:
                found.sort(key=lambda record: record.namespace)  # a union holds one namespace after another
            # The newest first; of equal times, the one that was written first.
            found.sort(key=lambda record: -float(record.time or 0.0))
            assert [(name, score) for name, score in hits[row]] == [(record.id, 1.0) for record in found[:7]], query
            if self.random.random() < 0.1:
                assert self.engine.search([query], k=7, strategy="temporal")[0] == hits[row]
        for space in ("a", "b"):
            for since, until in ((NOW - 30 * DAY, NOW), (NOW - 3 * DAY, NOW - 3 * DAY), (NOW, NOW - DAY), (0.0, NOW)):
                newest = self.inside(since, until, lambda r, s=space: r.namespace == s)[::-1]
                newest.sort(key=lambda record: -float(record.time or 0.0))
                own = self.engine.events(since, until, namespace=space)
                assert own == [(record.id, record.time) for record in newest]
                some = self.engine.events(since, until, namespace=space, filter={"session": "s3"})
                assert some == [(record.id, record.time) for record in newest if record.session == "s3"]


def test_records_without_a_type_are_no_events_of_a_memory_without_events() -> None:
    engine = fr.Engine()
    engine.add([fr.Record("note", "tea", type="Note", time=NOW - 1.0), fr.Record("plain", "tea", time=NOW - 2.0)])
    query = fr.Query("what happened yesterday?", now=NOW)
    assert list(engine.search([query], strategy="temporal")) == [[]]
    both = fr.Strategy("both", (fr.strategies.Lexical(), fr.strategies.Temporal()), fr.strategies.RRF())
    scored = engine.explain(replace(query, text="tea yesterday"), "plain", strategy=both).channels
    assert [share.rank for share in scored] == [2, None]


@pytest.mark.parametrize("seed", range(4))
def test_a_window_holds_what_a_scan_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        # Filters on few documents, and few cells at a time.
        borders.shrink(monkeypatch, {"BLOCK_SHARE": 1, "CELLS": 8, "KEPT_ORDERS": 2})
    log = Log(seed)
    log.check()
    for size in (40, 3, 90, 1):
        log.add(size)
        log.check()
    log.update(12)
    log.check()
    log.delete(0.2)
    log.check()
    log.delete(0.9)
    log.check()


def test_of_events_that_tie_the_latest_come_first_and_keep_their_scores() -> None:
    engine = fr.Engine(analyzer="minimal")
    engine.add(fr.Record(f"r{i}", "tea", type="Event", time=NOW - (300 - i) * DAY) for i in range(300))
    when = fr.parse_when("this year", NOW)
    assert when is not None
    inside = [f"r{i}" for i in range(300) if when.start <= NOW - (300 - i) * DAY <= when.end]
    for strategy in ("temporal", "recall"):
        hits = engine.search([fr.Query("what happened this year?", now=NOW)], strategy=strategy)
        assert [name for name, _ in hits[0]] == inside[::-1][:10]
        assert len({score for _, score in hits[0]}) == 1  # one rank for all (B035)
    # The next page goes on where the first ended.
    query = fr.Query("what happened this year?", now=NOW, offset=10)
    assert [name for name, _ in engine.search([query], strategy="recall")[0]] == inside[::-1][10:20]


def test_a_lookup_reads_an_order_that_was_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fr.Engine(analyzer="minimal")
    engine.add(fr.Record(f"r{i}", "tea", type="Event", time=NOW - i * DAY, session=f"s{i % 2}") for i in range(100))
    sorts: list[int] = []
    argsort = time_order.np.argsort

    def counted(values: object, *given: object, **how: object) -> object:
        sorts.append(1)
        return argsort(values, *given, **how)  # type: ignore[call-overload]

    monkeypatch.setattr(time_order.np, "argsort", counted)
    for _ in range(3):
        engine.events(NOW - 50 * DAY, NOW)
    assert len(sorts) == 1
    assert engine.stats()["cache_bytes"] >= 100 * 12


def test_a_type_that_is_no_string_is_named() -> None:
    engine = fr.Engine()
    with pytest.raises(fr.errors.QueryError, match="'type'"):
        engine.events(0.0, 1.0, type=3)  # type: ignore[arg-type]
    assert engine.events(0.0, 1.0, type="Nobody") == []


def test_a_short_answer_begins_a_long_one_and_is_explained_as_far(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink_all(monkeypatch)
    engine = fr.Engine(analyzer="minimal")
    for start in range(0, 300, 60):
        engine.add(fr.Record(f"r{i}", "tea", type="Event", time=float(i // 3)) for i in range(start, start + 60))
    assert len(engine.index.memory.snapshots[""].segments) > 1
    query = fr.Query("what happened today?", now=DAY / 2)
    long = [name for name, _ in engine.search([query], 300, strategy="temporal")[0]]
    assert len(long) == 300
    for k in (1, 2, 99, 100, 101):
        assert [name for name, _ in engine.search([query], k, strategy="temporal")[0]] == long[:k]
        paged = engine.search([replace(query, offset=150)], k, strategy="temporal")
        assert [name for name, _ in paged[0]] == long[150 : 150 + k]
        assert paged.explain(0, long[150]).score == 1.0
    hits = engine.search([query], 2, strategy="temporal")
    # As far as the strategy's depth, 100.
    assert [hits.explain(0, name).score for name in (long[0], long[99], long[100])] == [1.0, 1.0, None]
