"""The temporal retriever and `Engine.events` against a plain scan of the records."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from support import borders

import fanrank as fr
from fanrank.engine.index import time_order
from fanrank.engine.text.time_expressions.parse import parse_when

DAY = 86_400.0
NOW = 400 * DAY
TEXTS = ("yesterday", "last week", "last month", "last year", "3 days ago", "this month", "a few weeks ago", "recently")


def made(chance: random.Random, number: int) -> fr.Record:
    """A record with one of few times, so that times tie in a segment and across segments; or with none."""
    time = None if chance.random() < 0.1 else NOW - chance.choice([0.0, 0.5, 1.0, 3.0, 3.0, 8.0, 20.0, 90.0]) * DAY
    return fr.Record(
        f"r{number}",
        chance.choice(["tea", "", "tea rain"]),
        namespace="aab"[number % 3],
        time=time if time is None or chance.random() < 0.6 else time - chance.random() * DAY,
        type=chance.choice(["Event", "Event", "Fact", None]),
        session=f"s{chance.randrange(4)}",
    )


Passes = Callable[[fr.Record], bool]


def inside(records: list[fr.Record], spaces: str, since: float, until: float, passes: Passes) -> list[fr.Record]:
    """The events of a closed interval that pass, the newest first; of equal times, the one that was written first."""
    found = [
        record
        for space in spaces
        for record in records
        if record.namespace == space and record.type == "Event" and record.time is not None
        if since <= record.time <= until and passes(record)
    ]
    return sorted(found, key=lambda record: -float(record.time or 0.0))


@pytest.mark.parametrize("seed", range(4))
def test_a_window_holds_what_a_scan_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        # Filters on few documents, and few cells at a time.
        borders.shrink(monkeypatch, {"BLOCK_SHARE": 1, "CELLS": 8, "KEPT_ORDERS": 2})
    chance, engine = random.Random(seed), fr.Engine(analyzer="minimal")
    records: list[fr.Record] = []
    for size in (40, 3, 90, 1):
        batch = [made(chance, len(records) + number) for number in range(size)]
        engine.add(batch)
        records += batch
    for old in chance.sample(records, 12):
        record = replace(made(chance, 0), id=old.id, namespace=old.namespace)
        engine.update([record])
        records.remove(old)
        records.append(record)
    for record in [record for record in records if chance.random() < (0.2, 0.9)[seed // 2]]:
        engine.delete([record.id], namespace=record.namespace)
        records.remove(record)
    shapes: list[tuple[dict[str, Any], Passes]] = [
        ({}, lambda record: True),
        ({"filter": {"session": "s1"}}, lambda record: record.session == "s1"),
        (
            {"filter": {"session": ["s2", "s3"]}, "since": NOW - 60 * DAY},
            lambda record: record.session in ("s2", "s3") and record.time >= NOW - 60 * DAY,
        ),
        ({"since": NOW - 10 * DAY, "until": NOW - DAY}, lambda record: NOW - 10 * DAY <= record.time <= NOW - DAY),
    ]
    asked, expected = [], []
    for text, spaces, (options, passes) in itertools.product(TEXTS, ("a", "b", "ab"), shapes):
        when = parse_when(text, NOW)
        asked.append(fr.Query(f"what took place {text}", now=NOW, namespaces=list(spaces), **options))
        expected.append([(r.id, 1.0) for r in inside(records, spaces, when.start, when.end, passes)[:7]])
    assert [[(name, score) for name, score in row] for row in engine.search(asked, 7, strategy="temporal")] == expected
    for since, until in ((NOW - 30 * DAY, NOW), (NOW - 3 * DAY, NOW - 3 * DAY), (NOW, NOW - DAY), (0.0, NOW)):
        for chosen, passes in shapes[:2]:
            newest = inside(records[::-1], "a", since, until, passes)  # of equal times, the last written first
            own = engine.events(since, until, namespace="a", **chosen)
            assert own == [(record.id, record.time) for record in newest]


def test_records_without_a_type_are_no_events_of_a_memory_without_events() -> None:
    engine = fr.Engine()
    engine.add([fr.Record("note", "tea", type="Note", time=NOW - 1.0), fr.Record("plain", "tea", time=NOW - 2.0)])
    query = fr.Query("what happened yesterday?", now=NOW)
    assert list(engine.search([query], strategy="temporal")) == [[]]
    both = fr.Strategy("both", (fr.strategies.Lexical(), fr.strategies.Temporal()), fr.strategies.RRF())
    scored = engine.explain(replace(query, text="tea yesterday"), "plain", strategy=both).channels
    assert [share.rank for share in scored] == [2, None]


def test_of_events_that_tie_the_latest_come_first_and_keep_their_scores() -> None:
    engine = fr.Engine(analyzer="minimal")
    engine.add(fr.Record(f"r{i}", "tea", type="Event", time=NOW - (300 - i) * DAY) for i in range(300))
    when = fr.parse_when("this year", NOW)
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
    counted = Mock(wraps=time_order.np.argsort)
    monkeypatch.setattr(time_order.np, "argsort", counted)
    for _ in range(3):
        engine.events(NOW - 50 * DAY, NOW)
    assert counted.call_count == 1
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
