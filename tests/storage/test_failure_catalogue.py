"""Failures that the papers report of their own systems (SPEC A129); stale slots and tickers are tested elsewhere."""

import math
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support import borders

import fanrank as fr

DAY = 86_400.0
NOW = 1.7e9


def names(hits: fr.Hits, row: int = 0) -> list[str]:
    return [name for name, _ in hits[row]]


def near(cosine: float) -> list[float]:
    """A vector with this cosine to [1, 0]."""
    return [cosine, math.sqrt(1.0 - cosine * cosine)]


def test_f2_recency_over_weight() -> None:
    """SPEC A129, A064: at a tau of 30 days what is new and sixth in both lists hides what is old and first; questions
    over several sessions have 120 days."""
    ages = [60.0, 300.0, 300.0, 300.0, 300.0, 0.0]
    engine = fr.Engine(encoder=fr.OwnVectors(2))
    engine.add(
        fr.Record(str(n), "garden" + " word" * n, time=NOW - age * DAY, embedding=near(0.9 - n / 10))
        for n, age in enumerate(ages)
    )
    query = fr.Query("garden", now=NOW, vector=[1, 0])
    assert names(engine.search([query], strategy="bm25")) == names(engine.search([query], strategy="dense"))
    spread = replace(query, type="multi-session")
    by_type = "agent_rrf-per-type"
    for strategy, asked, first in (("agent_rrf", spread, "5"), (by_type, query, "5"), (by_type, spread, "0")):
        assert names(engine.search([asked], strategy=strategy))[0] == first


def test_f4_a_build_holds_a_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC F4, A126: records of a stream are let go once their chunk is analysed, and the index is the same."""
    borders.shrink(monkeypatch, BUILD_CHUNK=50)
    made: list[weakref.ref[fr.Record]] = []
    most = 0

    def stream() -> Iterator[fr.Record]:
        nonlocal most
        for n in range(1000):
            record = fr.Record(str(n), f"word{n % 7} word{n % 11} common")
            made.append(weakref.ref(record))
            yield record
            del record
            most = max(most, sum(own() is not None for own in made))

    streamed = fr.Engine.from_records(stream(), keep_texts=False)
    assert most <= 3 * 50
    monkeypatch.undo()
    at_once = fr.Engine.from_records(fr.Record(str(n), f"word{n % 7} word{n % 11} common") for n in range(1000))
    for text in ("common", "word3 word5", "word10"):
        assert streamed.search([text], 50)[0] == at_once.search([text], 50)[0]
    assert not any(own() is not None for own in made)
