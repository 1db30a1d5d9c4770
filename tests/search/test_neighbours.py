"""Records that borrow from their neighbours: every way of asking equals sums in plain loops, with tolerance zero."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import borders
from support.answers import TERMS, document, made, oracle, parameters, queries, records

import fanrank as fr
from fanrank.engine.backends import choose as backends
from fanrank.engine.check.oracle import borrow
from fanrank.engine.index.bm25 import SCALE

Ranking = list[tuple[int, float]]

sessions = st.sampled_from(["s", "t", "u", None])
lent = st.lists(st.sampled_from([1, 13, 16, 64]), min_size=1, max_size=3)
histories = st.none() | st.integers(0, 1 << 16)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink_all(monkeypatch)


def of(weights: list[int]) -> fr.Neighbours:
    return fr.Neighbours(len(weights), [weight / 64 for weight in weights])


def best(sums: list[int | None], k: int, passing: list[bool] | None = None) -> Ranking:
    found = [
        (number, total / (64 * SCALE))
        for number, total in enumerate(sums)
        if total is not None and (passing is None or passing[number])
    ]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:k]


def numbered(hits: fr.Hits) -> list[Ranking]:
    return [[(int(name.removeprefix("r")), score) for name, score in row] for row in hits]


def ways(engine: fr.Engine, batch: list[fr.Query], k: int) -> Any:
    engine.index.memory.join()
    for name in (status.name for status in backends.statuses() if status.usable and not status.by_name):
        engine.backend = backends.choose(name)
        for execution in ("exhaustive", "pruned", "auto"):
            yield f"{name}, {execution}", numbered(engine.search(batch, k, execution=execution))
        yield f"{name}, 3 threads", numbered(engine.search(batch, k, threads=3))
        yield f"{name}, one by one", [row for one in batch for row in numbered(engine.search([one], k))]
    yield "mixed", numbered(engine.search([one for own in batch for one in (own, "a1 b2")], k))[::2]
    state = engine.index.memory.state
    engine.index.memory.flush()
    yield "merged", numbered(engine.search(batch, k))
    engine.index.memory.state = replace(
        state, snapshots={name: own.compacted(1 << 20) for name, own in state.snapshots.items()}
    )
    yield "in few segments", numbered(engine.search(batch, k))
    engine.index.memory.renumber(all_unused=True)
    yield "renumbered", numbered(engine.search(batch, k))
    engine.index.memory.state = state


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.tuples(document, sessions), max_size=40), queries, st.integers(0, 45), lent, histories, parameters())
def test_borrowed_scores_equal_the_oracle(
    documents: list[tuple[list[str], str | None]],
    batch: list[list[str]],
    k: int,
    weights: list[int],
    history: int | None,
    options: dict[str, object],
) -> None:
    texts, names = [t for t, _ in documents], [s for _, s in documents]
    wanted = [replace(r, session=s) for r, s in zip(records(texts), names, strict=True)]
    engine, plain = made(wanted, history, **options), oracle(texts, **options)
    sums = [borrow([plain.score(q, d) for d in range(len(texts))], names, weights) for q in batch]
    asked = [fr.Query(terms=tuple(q), neighbours=of(weights)) for q in batch]
    expected = [best(own, k) for own in sums]
    for way, got in ways(engine, asked, k):
        assert got == expected, way
    # A neighbour that does not pass the filter lends all the same.
    passing = [name in ("s", None) for name in names]
    filtered = [replace(q, filter={"session": ["s", None]}) for q in asked]
    for way, got in ways(engine, filtered, k):
        assert got == [best(own, k, passing) for own in sums], way


def test_a_first_example() -> None:
    engine = fr.Engine(analyzer="minimal")
    engine.add([fr.Record(f"r{n}", text, session="s") for n, text in enumerate(["b", "a", "c", "b"])])
    plain = dict(engine.search(["a"], 4)[0])
    near = dict(engine.search([fr.Query("a", neighbours=fr.Neighbours(2, [0.5, 0.25]))], 4)[0])
    assert near == {"r1": plain["r1"], "r0": plain["r1"] / 2, "r2": plain["r1"] / 2, "r3": plain["r1"] / 4}
