"""What a query keeps of its ranking, the newest records, and a strategy for each query: against plain statements."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import borders
from support.answers import TERMS, corpus, document, made, oracle, query, records

import fanrank as fr
from fanrank.engine.backends import choose as backend
from fanrank.engine.check.oracle import VectorOracle, WeightOracle, reciprocal_ranks
from fanrank.engine.hybrid.strategy import STRATEGIES

histories = st.none() | st.integers(0, 1 << 16)
Pair = tuple[int, float]
Values = Sequence[Any]
MANY = 1000
slow = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    borders.shrink_all(monkeypatch)


shapes = st.fixed_dictionaries(
    {},
    optional={
        "offset": st.integers(0, 45),
        "min_score": st.sampled_from([-1.0, 0.0, 0.01, 0.3, 1.0, 2.5]),
        "distinct": st.sampled_from(["session", "importance"]),
        "k": st.integers(0, 45),
    },
)


def keep(ranking: list[Pair], shape: dict[str, Any], k: int, values: dict[str, Values]) -> list[Pair]:
    """The plain statement: hits below `min_score` left out, then those that repeat a better one, then a page."""
    least = shape.get("min_score")
    kept, seen = [], set()
    for number, score in ranking:
        if least is not None and score < least:
            continue
        if "distinct" in shape:
            value = values[shape["distinct"]][number]
            if value is not None:
                if value in seen:
                    continue
                seen.add(value)
        kept.append((number, score))
    offset = shape.get("offset", 0)
    return kept[offset : offset + shape.get("k", k)]


def columned(plain: list[fr.Record], seed: int) -> tuple[list[fr.Record], dict[str, Values]]:
    """The records with few different sessions and importances, and some without."""
    rng = random.Random(seed)
    sessions = [rng.choice(["s", "t", "u", None]) for _ in plain]
    numbers = [rng.choice([0.0, 0.25, 1.0, None]) for _ in plain]
    changed = [
        replace(record, session=session, importance=number)
        for record, session, number in zip(plain, sessions, numbers, strict=True)
    ]
    return changed, {"session": sessions, "importance": numbers}


def numbered(hits: fr.Hits) -> list[list[Pair]]:
    """The hits by number of the record, after checking padding."""
    rows = []
    for row in range(len(hits)):
        count = int(hits.counts[row])
        assert (hits.documents[row, count:] == -1).all()
        assert (hits.scores[row, count:] == -np.inf).all()
        assert all(name is None for name in hits.ids[row, count:])
        assert (hits.documents[row, :count] >= 0).all()
        names = [int(name.removeprefix("r")) for name in hits.ids[row, :count]]
        rows.append(list(zip(names, hits.scores[row, :count].tolist(), strict=True)))
    return rows


def ways(
    engine: fr.Engine, batch: list[fr.Query], ask: Callable[..., fr.Hits]
) -> Iterator[tuple[str, list[list[Pair]]]]:
    """Every way of asking that must not change the answer."""
    for name in (status.name for status in backend.statuses() if status.usable and not status.by_name):
        engine.backend = backend.choose(name)
        for execution in ("exhaustive", "pruned"):
            yield f"{name}, {execution}", numbered(ask(batch, execution=execution))
        yield f"{name}, 3 threads", numbered(ask(batch, threads=3))
    yield "one by one", [row for own in batch for row in numbered(ask([own]))]
    yield "other neighbours", numbered(ask(batch[::-1]))[::-1]
    yield "twice", numbered(ask([*batch, *batch]))[len(batch) :]
    engine.index.memory.flush()
    yield "merged", numbered(ask(batch))


@slow
@given(corpus, st.lists(st.tuples(query, shapes), min_size=1, max_size=6), st.integers(0, 9), histories, st.integers())
def test_pages_of_bm25_are_parts_of_the_full_ranking(
    documents: list[list[str]], asked: list[tuple[list[str], dict[str, Any]]], k: int, history: int | None, seed: int
) -> None:
    wanted, values = columned(records(documents), seed)
    plain, engine = oracle(documents), made(wanted, history)
    expected = []
    for own, shape in asked:
        ranking = [(number, quanta / (1 << 18)) for number, quanta in plain.search(own, len(documents))]
        expected.append(keep(ranking, shape, k, values))
    batch = [fr.Query(terms=tuple(own), **shape) for own, shape in asked]
    for way, got in ways(engine, batch, lambda own, **options: engine.search(own, k, **options)):
        assert got == expected, way


def test_a_batch_gives_its_values_to_queries_without() -> None:
    wanted, values = columned(records([["a1"] * (1 + n % 3) for n in range(30)]), 1)
    engine = made(wanted, None)
    ranking = numbered(engine.search(["a1"], MANY))[0]
    hits = engine.search(
        ["a1", fr.Query("a1", offset=5), fr.Query("a1", distinct="importance"), fr.Query(newest=True)],
        4,
        offset=2,
        min_score=0.01,
        distinct="session",
    )
    shape = {"offset": 2, "min_score": 0.01, "distinct": "session"}
    for row, own in enumerate([{}, {"offset": 5}, {"distinct": "importance"}]):
        assert numbered(hits)[row] == keep(ranking, {**shape, **own}, 4, values)
    assert hits.counts[3] == len(keep([(n, 0.0) for n in range(30)], {**shape, "min_score": None}, 4, values))


@pytest.mark.parametrize("keywords", [{"offset": -1}, {"offset": 1.5}, {"min_score": "x"}, {"distinct": ""}])
def test_a_batch_refuses_what_a_query_refuses(keywords: dict[str, Any]) -> None:
    with pytest.raises(fr.errors.QueryError, match=next(iter(keywords))):
        fr.Engine().search(["a1"], **keywords)


def test_distinct_names_what_it_cannot_compare() -> None:
    engine = made(records([["a1"]]), None)
    with pytest.raises(fr.errors.QueryError, match="query 1: no column 'colour' to be distinct in; there are: text, "):
        engine.search(["a1", fr.Query("a1", distinct="colour")])


vector = st.lists(st.integers(-2, 2), min_size=3, max_size=3).filter(any)
weights = st.dictionaries(st.sampled_from(TERMS), st.sampled_from([2.0**-12, 0.75, 2.0]), max_size=4)
evidence = st.tuples(document, st.lists(vector, max_size=3), weights)
DEPTH = 5


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(evidence, max_size=30),
    st.lists(st.tuples(query, vector, weights, shapes), min_size=1, max_size=4),
    st.integers(0, 9),
    histories,
    st.integers(),
)
def test_pages_of_strategies_are_parts_of_their_rankings(
    documents: list[tuple[list[str], list[list[int]], dict[str, float]]],
    asked: list[tuple[list[str], list[int], dict[str, float], dict[str, Any]]],
    k: int,
    history: int | None,
    seed: int,
) -> None:
    plain = [
        replace(record, embedding=rows or None, weights=own)
        for record, (_, rows, own) in zip(records([t for t, _, _ in documents]), documents, strict=True)
    ]
    wanted, values = columned(plain, seed)
    engine = made(wanted, history, encoder=fr.OwnVectors(3))
    batch = [fr.Query(terms=tuple(t), vector=v, weights=own, **shape) for t, v, own, shape in asked]
    rows = [[] if record.embedding is None else record.embedding.tolist() for record in plain]
    lexical, dense = oracle([t for t, _, _ in documents]), VectorOracle(rows)
    learned = WeightOracle([own for _, _, own in documents])
    size = len(documents)
    fused = fr.Strategy("shallow", STRATEGIES["rrf"].channels, STRATEGIES["rrf"].fusion, depth=DEPTH)
    single = replace(STRATEGIES["dense"], depth=2)
    rankings: dict[str, list[list[Pair]]] = {"dense": [], "sparse": [], "shallow": []}
    for own, asks in zip(batch, asked, strict=True):
        near = dense.search(own.vector[0].tolist(), size)
        rankings["dense"].append(near)
        rankings["sparse"].append(learned.search(asks[2], size))
        # The candidates of a fusion are the best of each channel, as many as its depth or k.
        depth = max(DEPTH, asks[3].get("k", k))
        lists = [[n for n, _ in ranked[:depth]] for ranked in (lexical.search(asks[0], size), near)]
        rankings["shallow"].append(reciprocal_ranks(lists, 2 * size))
    for strategy in (single, STRATEGIES["sparse"], fused):
        expected = [
            keep(ranking, shape, k, values)
            for ranking, (_, _, _, shape) in zip(rankings[strategy.name], asked, strict=True)
        ]

        def ask(own: list[fr.Query], strategy: fr.Strategy = strategy, **options: Any) -> fr.Hits:
            return engine.search(own, k, strategy=strategy, **options)

        for way, got in ways(engine, batch, ask):
            assert got == expected, (strategy.name, way)


def rich_engine(path: Path | None, seed: int, count: int = 60) -> tuple[fr.Engine, dict[str, Values]]:
    """Records with everything that a strategy reads, in several segments of two namespaces, and their values."""
    rng = random.Random(seed)
    encoder = fr.OwnVectors(3)
    options: dict[str, Any] = {"analyzer": "minimal", "columns": {"project": "category"}, "encoder": encoder}
    engine = fr.Engine(**options) if path is None else fr.Engine.open(path, **options)
    names = [
        fr.Record(
            f"{n}",
            " ".join(rng.choices(TERMS[:4], k=rng.randrange(4))),
            time=rng.choice([None, float(rng.randrange(5))]),
            session=rng.choice(["s", "t", None]),
            importance=rng.choice([0.0, 0.5, None]),
            type=rng.choice(["Event", None]),
            embedding=rng.choice([None, [[rng.randint(1, 2), rng.randint(-2, 2), 1]]]),
            weights={rng.choice(TERMS): 1.0},
            extra={"project": rng.choice(["x", "y", None])},
            entities={"a1": "ana"} if n % 3 else None,
        )
        for n in range(count)
    ]
    own = names[:]
    for start in range(0, count, 13):
        piece = names[start : start + 13]
        for space in ("", "other"):
            engine.add([replace(record, id=f"{space}{record.id}", namespace=space) for record in piece])
    for space in ("", "other"):
        engine.delete([f"{space}{n}" for n in range(0, count, 9)], namespace=space)
        engine.update([replace(own[1], id=f"{space}1", namespace=space)])
    order = [n for n in range(count) if n % 9 and n != 1] + [1]
    values: dict[str, Values] = {
        "order": order,
        "text": [record.text for record in own],
        "session": [record.session for record in own],
        "importance": [record.importance for record in own],
        "project": [record.extra["project"] for record in own],
        "time": [record.time for record in own],
    }
    return engine, values


def rich_query(text: str, **fields: Any) -> fr.Query:
    base: dict[str, Any] = {"now": 5.0, "vector": [1.0, 1.0, 0.0], "weights": {"a1": 1.0}, "entities": ["ana"]}
    return fr.Query(text, **{**base, **fields})


EVERY = [name for name in STRATEGIES if name != "dense-hnsw" and "first-sentence" not in name]
ROUTER = fr.Router({"fact": "bm25", "other": "rrf"}, "dense")
SOFT = fr.Router(
    {"fact": "bm25", "other": "rrf"},
    "sparse",
    classifier=None,
    soft=True,
)


@pytest.mark.parametrize("name", [*EVERY, "cascade", "sure", "router", "soft"])
def test_every_strategy_and_policy_keeps_the_same_of_its_ranking(name: str, tmp_path: Path) -> None:
    engine, values = rich_engine(tmp_path / "memory", 3)
    policies: dict[str, Any] = {
        "router": ROUTER,
        "soft": SOFT,
        "cascade": fr.Cascade(tau=0.2, escalate="rrf"),
        "sure": fr.Cascade(tau=0.0, escalate="rrf"),
    }
    strategy = policies.get(name, name)
    kinds = [None, "fact", "other"]
    shapes_of = [
        {},
        {"offset": 3},
        {"min_score": 0.02, "offset": 1},
        {"distinct": "text"},
        {"distinct": "project", "offset": 2},
        {"distinct": "time", "min_score": 0.001},
        {"distinct": "session", "k": 30},
        {"offset": 1000},
    ]
    texts = ["a1 b2", "c3", "when did a1 happen yesterday", ""]
    asked = [(text, kinds[n % 3], shape) for n, shape in enumerate(shapes_of) for text in texts]
    full = engine.search([rich_query(text, type=kind) for text, kind, _ in asked], MANY, strategy=strategy)
    batch = [rich_query(text, type=kind, **shape) for text, kind, shape in asked]
    hits = engine.search(batch, 4, strategy=strategy)
    plain = engine.search([rich_query(text, type=kind) for text, kind, _ in asked], 4, strategy=strategy)
    for row, (_, _, shape) in enumerate(asked):
        assert numbered(hits)[row] == keep(numbered(full)[row], shape, 4, values), shape
        if not shape:
            assert numbered(hits)[row] == numbered(plain)[row]
        if hits.counts[row]:
            found, score = hits[row][-1]
            assert hits.explain(row, found).score == score
            assert hits.explain(row, found).query == row
    if hits.decisions is not None:
        assert plain.decisions is not None
        assert [d.strategy for d in hits.decisions] == [d.strategy for d in plain.decisions]
    engine.close()


def test_pages_of_one_ranking_are_apart_and_complete() -> None:
    engine, _ = rich_engine(None, 5)
    for strategy in ("bm25", "rrf", "dense", "sparse", "decay"):
        pages = [
            row
            for offset in range(0, 80, 4)
            for row in numbered(engine.search([rich_query("a1 b2", offset=offset)], 4, strategy=strategy))[0]
        ]
        assert pages == numbered(engine.search([rich_query("a1 b2")], MANY, strategy=strategy))[0]
        assert len({number for number, _ in pages}) == len(pages) > 6


class Lengths:
    """A reranker that prefers longer texts."""

    name = "lengths"

    def scores(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [float(len(text)) for _, text in pairs]


@pytest.mark.parametrize("strategy", ["bm25", "rrf", "cascade"])
def test_a_reranker_orders_the_hits_of_a_page(strategy: str, tmp_path: Path) -> None:
    engine, values = rich_engine(tmp_path / "memory", 7)
    chosen: Any = fr.Cascade(tau=0.2, escalate="rrf") if strategy == "cascade" else strategy
    shape = {"offset": 3, "distinct": "text", "min_score": 0.001}
    batch = [rich_query("a1 b2", **shape), rich_query("a1 b2"), rich_query("c3", **shape)]
    before = engine.search(batch, 6, strategy=chosen)
    hits = engine.search(
        batch, 6, strategy=chosen, reranker=fr.strategies.CheckedReranker(Lengths(), unchecked=True), rerank_depth=4
    )
    assert hits.reranked is not None
    for row in range(3):
        found, own = numbered(hits)[row], numbered(before)[row]
        head = sorted(own[:4], key=lambda pair: -len(values["text"][pair[0]]))
        assert found == [*head, *own[4:]]
    engine.close()


def test_distinct_reads_each_text_once_and_searches_deeper_only_where_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    borders.shrink(monkeypatch, FIRST=4)
    engine = fr.Engine.open(tmp_path / "memory", analyzer="minimal")
    texts = ["a1 b2"] * 200 + [f"a1 w{n} filler words" for n in range(20)] + [f"c3 u{n}" for n in range(30)]
    engine.add(fr.Record(str(n), text) for n, text in enumerate(texts))
    read: list[str] = []
    store = engine.index.memory.store
    assert store is not None
    fetch = store.fetch
    monkeypatch.setattr(store, "fetch", lambda namespace, ids: read.extend(ids) or fetch(namespace, ids))
    launches: list[int] = []
    serve = backend.Backend.serve

    def counted(self: backend.Backend, plans: Any, rows: int, *args: Any, **options: Any) -> Any:
        launches.append(rows)
        return serve(self, plans, rows, *args, **options)

    monkeypatch.setattr(backend.Backend, "serve", counted)
    hits = engine.search([fr.Query("a1", distinct="text"), fr.Query("c3", distinct="text"), "a1"], 3)
    assert [name for name, _ in hits[0]] == ["0", "200", "201"]
    assert [name for name, _ in hits[1]] == ["220", "221", "222"]
    assert launches[0] == 3
    assert set(launches[1:]) == {1}
    assert len(read) == len(set(read))
    assert not {str(n) for n in range(230, 250)} & set(read)
    engine.close()


def newest_of(values: dict[str, Values], passes: Callable[[int], bool], timed: bool) -> list[Pair]:
    """All records that pass, newest first, of equal times the last written, then those without a time."""
    times, order = values["time"], values["order"]
    written = {number: place for place, number in enumerate(order)}
    among = [n for n in order if passes(n) and not (timed and times[n] is None)]
    key = {n: (-math.inf if times[n] is None else times[n], written[n]) for n in among}
    return [(n, times[n] or 0.0) for n in sorted(among, key=key.__getitem__, reverse=True)]


@pytest.mark.parametrize("seed", range(4))
def test_the_newest_records_that_pass(seed: int, tmp_path: Path) -> None:
    engine, values = rich_engine(tmp_path / "memory", seed)
    conditions: list[tuple[dict[str, Any], Callable[[int], bool]]] = [
        ({}, lambda n: True),
        ({"filter": {"session": "s"}}, lambda n: values["session"][n] == "s"),
        ({"scope": fr.SearchScope.session("t", None)}, lambda n: values["session"][n] == "t"),
        ({"since": 2.0}, lambda n: (values["time"][n] or 0) >= 2),
        (
            {"until": 3.0, "filter": {"project": "x"}},
            lambda n: (values["time"][n] or 0) <= 3 and values["project"][n] == "x",
        ),
        ({"filter": {"session": "nobody"}}, lambda n: False),
    ]
    kept: list[dict[str, Any]] = [
        {},
        {"offset": 2, "k": 3},
        {"distinct": "text"},
        {"distinct": "session", "offset": 1},
        {"k": 0},
        {"k": 99},
    ]
    asked = [
        (
            condition,
            shape,
            keep(newest_of(values, passes, "since" in condition or "until" in condition), shape, 5, values),
        )
        for condition, passes in conditions
        for shape in kept
    ]
    batch = [fr.Query(newest=True, **condition, **shape) for condition, shape, _ in asked]
    ranked = [rich_query("a1 b2"), rich_query("c3", strategy="rrf")]
    for _ in range(2):
        hits = engine.search([ranked[0], *batch, ranked[1]], 5)
        for row, (condition, shape, expected) in enumerate(asked, 1):
            assert numbered(hits)[row] == expected, (condition, shape)
        assert hits[0] == engine.search(ranked[:1], 5)[0]
        assert hits[len(batch) + 1] == engine.search(ranked[1:], 5)[0]
        engine.index.memory.flush()
    with pytest.raises(fr.errors.QueryError, match="a query for the newest records is not ranked"):
        hits.explain(1, hits[1][0][0])
    engine.close()


def test_the_newest_of_segments_in_order_of_time_are_read_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    borders.shrink(monkeypatch, STEP=4)
    engine = fr.Engine(analyzer="minimal")
    for start in range(0, 300, 100):
        engine.add(
            fr.Record(f"r{n}", "a1", time=float(n // 3), session=f"s{n % 10}") for n in range(start, start + 100)
        )
    engine.delete(["r299", "r250"])
    for count in (1, 7, 150, 400):
        expected = [n for n in reversed(range(300)) if n not in (299, 250)][:count]
        assert [n for n, _ in numbered(engine.search([fr.Query(newest=True)], count))[0]] == expected
        few = [n for n in expected if n % 10 == 3]
        found = numbered(engine.search([fr.Query(newest=True, filter={"session": "s3"})], 400))[0]
        assert [n for n, _ in found][: len(few)] == few


@pytest.mark.parametrize("fields", [{"min_score": 1.0}, {"strategy": "rrf"}, {"half_life": 1.0, "now": 1.0}])
def test_a_query_for_the_newest_has_no_scores(fields: dict[str, Any]) -> None:
    with pytest.raises(fr.errors.QueryError, match="is not scored"):
        fr.Query(newest=True, **fields)


MIXED: list[Any] = [
    None,
    "bm25",
    "rrf",
    STRATEGIES["decay"],
    STRATEGIES["dense"].to_dict(),
    "recall",
    "cascade",
    {"kind": "router", "table": {}, "default": "sparse"},
    ROUTER,
]


@pytest.mark.parametrize("seed", range(3))
def test_a_row_has_the_answer_of_its_strategy_alone(seed: int) -> None:
    engine, _ = rich_engine(None, seed)
    rng = random.Random(seed)
    batch = [
        rich_query(
            rng.choice(["a1", "b2 c3", "", "unknown"]),
            strategy=rng.choice(MIXED),
            namespace=rng.choice(["", "other", "empty"]),
            k=rng.choice([None, 0, 2, 40]),
            offset=rng.choice([0, 2]),
            id=f"q{n}",
        )
        for n in range(40)
    ]
    for row in range(0, 40, 7):
        batch[row] = fr.Query(newest=True, namespace=rng.choice(["", "other", "empty"]), id=f"q{row}")
    hits = engine.search(batch, 5, timing=True)
    assert hits.timing is not None
    assert hits.scores.shape == (40, 40)
    assert hits.queries == tuple(batch)
    assert hits.source is not None
    for row, own in enumerate(batch):
        alone = engine.search([own], 5)
        count = int(alone.counts[0])
        width = alone.scores.shape[1]
        assert hits.counts[row] == count
        assert hits.scores[row, :width].tobytes() == alone.scores[0].tobytes()
        assert hits.documents[row, :width].tolist() == alone.documents[0].tolist()
        assert (hits.documents[row, width:] == -1).all()
        assert hits[row] == alone[0]
        if count and not own.newest:
            found, _ = hits[row][0]
            assert hits.explain(row, found) == alone.explain(0, found).at(row)
            assert hits.explain(row, found).query == row
        assert hits.decisions is not None
        if alone.decisions is not None:
            assert hits.decisions[row].strategy == alone.decisions[0].strategy
        twins = [other for other in range(40) if hits.source[other] == hits.source[row]]
        assert all(hits[other] == hits[row] for other in twins)
    part = hits.slice(10, 30, 40, tuple(batch[10:30]))
    assert part.ids.tolist() == hits.ids[10:30].tolist()
    for row in range(20):
        if part.counts[row] and not batch[10 + row].newest:
            found, _ = part[row][0]
            assert part.explain(row, found) == hits.explain(10 + row, found).at(row)


def test_each_tenant_has_its_own_policy_and_sees_nothing_of_the_others() -> None:
    engine = fr.Engine(analyzer="minimal", encoder=fr.OwnVectors(2))
    tenants = [f"t{n}" for n in range(12)]
    for tenant in tenants:
        engine.add(
            fr.Record(f"{tenant}-{n}", f"a1 b{n % 4}", namespace=tenant, time=float(n), embedding=[[n, 1]], session="s")
            for n in range(8)
        )
    chosen: dict[str, Any] = {
        tenant: ["rrf", "bm25", "dense", "cascade", STRATEGIES["decay"].to_dict()][n % 5]
        for n, tenant in enumerate(tenants)
    }
    chosen.pop("t11")
    shape: list[dict[str, Any]] = [{}, {"offset": 3}, {"distinct": "session"}, {"min_score": 1e-9}]
    batch = [
        fr.Query("a1 b2", namespace=tenants[n * 5 % 12], vector=[1, n % 3], now=9.0, **shape[n % 4]) for n in range(48)
    ]
    batch += [fr.Query(newest=True, namespace=tenant) for tenant in tenants]
    for default in ("sparse", "rrf"):
        hits = engine.search(batch, 5, strategy={**chosen, "": replace(STRATEGIES["rrf"], name=default)})
        for row, own in enumerate(batch):
            assert hits.counts[row]
            assert all(name.startswith(f"{own.namespace}-") for name, _ in hits[row])
            strategy = chosen.get(own.namespace, "rrf")
            alone = engine.search([own], 5, strategy="bm25" if own.newest else strategy)
            assert hits[row] == alone[0]
            other = next(tenant for tenant in tenants if tenant != own.namespace)
            if not own.newest:
                with pytest.raises(fr.errors.UnknownIdError):
                    hits.explain(row, f"{other}-0")
        part = hits.slice(3, 5, 5, tuple(batch[3:5]))
        assert set(part.ids.ravel()) == set(hits.ids[3:5].ravel())
    assert engine.namespace("t3").search(["a1"], 3, strategy={"t3": "bm25"})[0]


def test_the_default_of_a_mapping() -> None:
    engine, _ = rich_engine(None, 2)
    asked = [
        rich_query("a1"),
        rich_query("a1", namespace="other"),
        rich_query("a1", namespace="other", strategy="dense"),
    ]
    rows = {
        name: [engine.search([replace(own, strategy=None)], strategy=name)[0] for own in asked]
        for name in ("bm25", "rrf", "dense")
    }
    by_namespace = fr.routing.ByNamespace
    assert [*engine.search(asked, strategy={"other": "rrf"})] == [rows["bm25"][0], rows["rrf"][1], rows["dense"][2]]
    assert [*engine.search(asked, strategy={"": "rrf"})] == [rows["rrf"][0], rows["rrf"][1], rows["dense"][2]]
    given = by_namespace({"": "rrf"}, default="dense")
    assert [*engine.search(asked, strategy=given)] == [rows["rrf"][0], rows["dense"][1], rows["dense"][2]]
    assert by_namespace.of(given.to_dict()) == given
    assert [*engine.search(asked, strategy=given.to_dict())] == [*engine.search(asked, strategy=given)]
    assert engine.search([], strategy=given).scores.shape == (0, 10)


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({}, "empty"),
        ({"t": "nonsense"}, "namespace 't': unknown strategy 'nonsense'"),
        ({"t": 5}, "namespace 't': a strategy is a name"),
        ({"kind": "by-namespace"}, "has 'strategies' and 'default'"),
        ({5: "bm25"}, "a namespace's name must be a string"),
    ],
)
def test_a_mapping_that_is_none_is_refused(strategy: Any, message: str) -> None:
    with pytest.raises(fr.errors.ParameterError, match=message):
        fr.Engine().search(["a1"], strategy=strategy)


@pytest.mark.parametrize("name", ["name", "kind"])
def test_a_tenant_of_any_name_has_a_strategy(name: str) -> None:
    engine = made([fr.Record("r0", "a1", namespace=name), fr.Record("r1", "a1")], None, encoder=fr.OwnVectors(3))
    mappings: list[Any] = [
        {name: "recall", "": "bm25"},
        {name: "rrf"},
        {name: fr.Cascade()},
        {name: fr.Cascade(), "t": "bm25"},
        {name: "cascade", "t": "rrf"},
    ]
    for plain in mappings:
        with pytest.raises(fr.errors.ParameterError, match=f"for a namespace called '{name}' pass fanrank.routing.By"):
            engine.search(["a1"], strategy=plain)
    strategies = fr.routing.ByNamespace({name: "recall"})
    batch = [fr.Query("a1", namespace=name, vector=[1.0, 0.0, 0.0]), "a1"]
    for mapping in (strategies, strategies.to_dict(), fr.routing.ByNamespace.of(strategies.to_dict())):
        hits = engine.search(batch, strategy=mapping)
        assert hits.decisions is not None
        assert [one.strategy for one in hits.decisions] == ["recall", "bm25"]


@pytest.mark.parametrize("mapping", [{"kind": "oracle"}, {"kind": "cascade", "tau": -1}, {"name": "x", "channels": 3}])
def test_a_wrong_field_is_no_tenant(mapping: dict[str, Any]) -> None:
    with pytest.raises(fr.errors.ParameterError) as caught:
        fr.Engine().search(["a1"], strategy=mapping)
    assert "ByNamespace" not in str(caught.value)


def test_errors_of_a_part_name_the_row_of_the_batch() -> None:
    engine = made(records([["a1"]]), None, encoder=fr.OwnVectors(3))
    wrong = fr.Query("a1", strategy="dense", vector=[1.0])
    with pytest.raises(fr.errors.QueryError, match="query 2: its vector has 1 dimensions"):
        engine.search(["a1", "a1", wrong])
    with pytest.raises(fr.errors.QueryError, match="query 1: unknown strategy 'nonsense'"):
        engine.search(["a1", fr.Query("a1", strategy="nonsense")])
    with pytest.raises(fr.errors.QueryError, match="query 1: no column 'colour'"):
        engine.search(["a1", fr.Query(newest=True, distinct="colour")])


def test_several_namespaces_need_one_strategy() -> None:
    engine, _ = rich_engine(None, 2)
    by_namespace = fr.routing.ByNamespace({"u/a": "rrf", "u/b": "rrf", "v": "bm25"}, default="rrf")
    for own in (fr.Query("a1", namespaces=["u/a", "u/b"]), fr.Query("a1", under="u"), fr.Query("a1", under="u/a/")):
        assert by_namespace.answerer(own, 0) is STRATEGIES["rrf"]
    with pytest.raises(fr.errors.QueryError, match="query 4 searches namespaces that have different strategies"):
        by_namespace.answerer(fr.Query("a1", namespaces=["u/a", "v"]), 4)
    assert engine.search([rich_query("a1", namespace="other")], strategy=by_namespace)[0]


def test_streams_and_candidates_refuse_what_they_do_not_answer() -> None:
    engine, values = rich_engine(None, 2)
    for own in (fr.Query("a1", strategy="rrf"), fr.Query(newest=True)):
        with pytest.raises(fr.errors.QueryError, match=r"query 1 .*search_stream answers by bm25 alone; use search"):
            next(engine.search_stream([["a1", own]]))
        with pytest.raises(fr.errors.QueryError, match="query 1: candidates"):
            engine.candidates(["a1", own], "bm25")
    with pytest.raises(fr.errors.QueryError, match="query 0: candidates"):
        engine.candidates([fr.Query("a1", offset=1)], "bm25")
    shape = {"offset": 1, "distinct": "session"}
    (hits,) = engine.search_stream([[fr.Query("a1", **shape)]], 3)
    assert numbered(hits)[0] == keep(numbered(engine.search(["a1"], MANY))[0], shape, 3, values)


def test_callers_share_launches_whatever_they_ask() -> None:
    engine, _ = rich_engine(None, 4)
    batches = [
        [rich_query("a1 b2", offset=2), rich_query("a1", strategy="rrf")],
        [fr.Query(newest=True, k=3), "c3"],
        [rich_query("a1", strategy={"name": "x", "channels": [{"kind": "dense"}]}, k=2)],
        [rich_query("a1", strategy="dense-hnsw", k=2)],
        ["a1", "b2"],
    ]
    keywords: list[dict[str, Any]] = [{}, {}, {}, {}, {"offset": 1, "min_score": 0.1}]

    async def ask() -> list[fr.Hits]:
        return await asyncio.gather(
            *(engine.asearch(batch, 4, **own) for batch, own in zip(batches * 3, keywords * 3, strict=True))
        )

    for place, hits in enumerate(asyncio.run(ask())):
        number = place % len(batches)
        alone = engine.search(batches[number], 4, **keywords[number])
        assert numbered_by_name(hits) == numbered_by_name(alone)
        assert hits.queries == tuple(hits.queries)
        assert hits.scores.shape == alone.scores.shape
    future = engine.submit(batches[0], 4, distinct="session")
    assert numbered_by_name(future.result()) == numbered_by_name(engine.search(batches[0], 4, distinct="session"))
    engine.close()


def numbered_by_name(hits: fr.Hits) -> list[list[tuple[str, float]]]:
    return [list(row) for row in hits]


@pytest.mark.skipif(
    not next(status for status in backend.statuses() if status.name == "cuda-host").usable, reason="no host build"
)
def test_the_device_gives_the_same_pages() -> None:
    engine, values = rich_engine(None, 6)
    engine.backend = backend.choose("cuda-host")
    shapes_of = [
        {"offset": 3},
        {"distinct": "session"},
        {"min_score": 0.5},
        {"distinct": "project", "offset": 1, "k": 20},
    ]
    for strategy in ("bm25", "rrf", "sparse"):
        full = numbered(engine.search([rich_query("a1 b2")], MANY, strategy=strategy))[0]
        hits = engine.search([rich_query("a1 b2", **shape) for shape in shapes_of], 4, strategy=strategy)
        assert numbered(hits) == [keep(full, shape, 4, values) for shape in shapes_of]


def test_several_namespaces_are_paged_collapsed_and_read_from_the_newest(tmp_path: Path) -> None:
    engine = fr.Engine.open(tmp_path / "memory", analyzer="minimal")
    for space in ("b", "a"):
        for start in range(0, 20, 5):
            engine.add(
                fr.Record(
                    f"{n}",
                    f"a1 w{n % 3}",
                    namespace=space,
                    time=None if n % 5 == 0 else float(n // 4),
                    session=f"{n % 2}" if space == "a" else "0",
                )
                for n in range(start, start + 5)
            )
    spaces: dict[str, Any] = {"namespaces": ["a", "b"]}

    def named(asked: list[fr.Query], k: int) -> list[list[tuple[str, str, float]]]:
        hits = engine.search(asked, k)
        return [
            [
                (hits.namespaces[row, place], hits.ids[row, place], float(hits.scores[row, place]))
                for place in range(int(hits.counts[row]))
            ]
            for row in range(len(hits))
        ]

    (full,) = named([fr.Query("a1 w1", **spaces)], MANY)
    seen: set[str] = set()
    texts = [hit for hit in full if (text := f"w{int(hit[1]) % 3}") not in seen and not seen.add(text)]  # type: ignore[func-returns-value]
    timed = [(space, n) for space in "ab" for n in range(20) if n % 5]
    # As in one namespace that holds the records of a, then those of b.
    newest = sorted(timed, key=lambda pair: (pair[1] // 4, *pair), reverse=True)
    untimed = [(space, n) for space in "ba" for n in reversed(range(0, 20, 5))]
    expected = [(space, f"{n}", float(n // 4)) for space, n in newest] + [(space, f"{n}", 0.0) for space, n in untimed]
    for _ in range(2):
        rows = named(
            [
                fr.Query("a1 w1", offset=3, **spaces),
                fr.Query("a1 w1", distinct="text", **spaces),
                fr.Query(newest=True, **spaces),
                fr.Query(newest=True, offset=30, **spaces),
                fr.Query("a1", namespace="b", strategy="rrf") if engine.encoder else fr.Query("a1", namespace="b"),
            ],
            7,
        )
        assert rows[:2] == [full[3:10], texts[:7]]
        assert rows[2:4] == [expected[:7], expected[30:37]]
        assert {space for space, _, _ in rows[4]} == {"b"}
        engine.index.memory.flush()
    engine.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_newest_of_several_namespaces_are_those_of_one(seed: int) -> None:
    rng = random.Random(seed)
    several, one = fr.Engine(analyzer="minimal"), fr.Engine(analyzer="minimal")
    names = ["a", "b", "c"]
    times = [None, *(float(time) for time in range(4))]
    by_name = {
        name: [fr.Record(f"{name}{n}", "a1", time=rng.choice(times)) for n in range(rng.randint(0, 25))]
        for name in names
    }
    for start in range(0, 25, 6):
        for name in rng.sample(names, 3):
            several.add([replace(record, namespace=name) for record in by_name[name][start : start + 6]])
    one.add([record for name in names for record in by_name[name]])
    for name in names:
        gone = [record.id for record in by_name[name][::4]]
        several.delete(gone, namespace=name)
        one.delete(gone)
    for _ in range(2):
        for shape in ({}, {"offset": 7}, {"since": 1.0}, {"k": 3}):
            asked = fr.Query(newest=True, namespaces=names, **shape)
            (found,) = several.search([asked], 40)
            assert found == one.search([replace(asked, namespaces=None)], 40)[0]
        several.index.memory.flush()


def test_what_has_expired_is_neither_newest_nor_a_better_twin(tmp_path: Path) -> None:
    later = 1e11  # what has expired by the wall clock may be swept between two searches
    engine = fr.Engine.open(tmp_path / "memory", analyzer="minimal")
    engine.add(
        [
            fr.Record("old", "a1 b2", time=1.0),
            fr.Record("gone", "a1 b2", time=2.0, expires=later + 10),
            fr.Record("other", "a1 c3", time=0.0, expires=later + 20),
        ]
    )
    for now, names in ((5.0, ["gone", "old", "other"]), (15.0, ["old", "other"]), (25.0, ["old"])):
        hits = engine.search(
            [
                fr.Query(newest=True, now=later + now),
                fr.Query("b2 a1", now=later + now, distinct="text"),
                fr.Query("a1", now=later + now, offset=1),
            ]
        )
        assert [name for name, _ in hits[0]] == names
        assert [name for name, _ in hits[1]] == (["old", "other"] if now < 20 else ["old"])
        assert hits.counts[2] == len(names) - 1
    engine.close()


def test_a_hit_with_the_least_score_stays() -> None:
    engine, _ = rich_engine(None, 8)
    for strategy in ("bm25", "rrf", "sparse"):
        (ranking,) = engine.search([rich_query("a1 b2")], MANY, strategy=strategy)
        for _, score in ranking[:: max(len(ranking) // 4, 1)]:
            (kept,) = engine.search([rich_query("a1 b2", min_score=score)], MANY, strategy=strategy)
            assert kept == [hit for hit in ranking if hit[1] >= score]


@pytest.mark.parametrize("strategy", ["bm25", "dense", "sparse"])
def test_a_row_is_searched_until_its_page_is_full(strategy: str) -> None:
    engine = fr.Engine(analyzer="minimal", encoder=fr.OwnVectors(2))
    sessions = ["s"] * 150 + ["t"] * 40 + ["u", None, "v", "w"]
    engine.add(
        fr.Record(str(n), "a1 " * (200 - n), session=session, embedding=[[1000 - n, n]], weights={"a1": 1.5 - n / 200})
        for n, session in enumerate(sessions)
    )
    asked = fr.Query("a1", vector=[1.0, 0.0], weights={"a1": 1.0}, distinct="session")
    chosen = replace(STRATEGIES[strategy], depth=1)
    (ranking,) = engine.search([replace(asked, distinct=None)], MANY, strategy=chosen)
    values = {"session": sessions}
    for k in (2, 3, 6, 9):
        hits = engine.search([asked, "a1" if strategy == "bm25" else asked], k, strategy=chosen)
        expected = keep([(int(name), score) for name, score in ranking], {"distinct": "session"}, k, values)
        assert numbered(hits)[0] == expected
        assert len(expected) == min(k, 6)
        found, score = hits[0][-1]
        assert hits.explain(0, found).score == score
