"""A policy's answer is made of its strategies' answers, bit for bit, for each caller; routers beside loops."""

import asyncio
import math
import random
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.coalesce_cases import assert_same
from support.hashing import Hashing

import fanrank as fr
from fanrank import Engine, OwnVectors, Query, Record
from fanrank.engine.errors import ModelMismatchError, ParameterError, QueryError
from fanrank.engine.hybrid.strategy import NAMED, Strategy
from fanrank.engine.records.hits import Hits
from fanrank.engine.route.cascade import Cascade
from fanrank.engine.route.classifier import Classifier
from fanrank.engine.route.router import LONGMEMEVAL_SYSTEMS, Router
from fanrank.engine.search import notes
from fanrank.strategies import CheckedReranker

WORDS = ["tea", "rain", "boat", "red", "wind", "moon"]
DAY = 86400.0


def vector(text: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(text.encode()) + len(text)).normal(size=8)


def engine_of(texts: list[str], backend: str | None = None) -> Engine:
    engine = Engine(encoder=OwnVectors(8), analyzer="minimal", backend=backend)
    engine.add(
        Record(f"r{i}", text, time=i * DAY, embedding=vector(text) if text and i % 5 else None)
        for i, text in enumerate(texts)
    )
    return engine


def asked(text: str, **how: Any) -> Query:
    return Query(text, vector=vector(text + "?"), now=40 * DAY, **how)


def same(found: Hits, row: int, expected: Hits, at: int = 0) -> bool:
    count = int(expected.counts[at])
    return bool(
        found.counts[row] == count
        and np.array_equal(found.documents[row, :count], expected.documents[at, :count])
        and np.array_equal(found.scores[row, :count], expected.scores[at, :count])
        and (found.documents[row, count:] == -1).all()
        and (found.scores[row, count:] == -math.inf).all()
    )


texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join), max_size=24)
questions = st.lists(st.lists(st.sampled_from([*WORDS, "unknown"]), max_size=4).map(" ".join), min_size=1, max_size=6)


@settings(max_examples=20)
@given(texts, questions, st.sampled_from([0.0, 0.05, 0.3, 1.0, math.inf]), st.integers(0, 12))
def test_a_cascade_is_bm25_where_it_is_sure_and_its_strategy_elsewhere(
    texts: list[str], questions: list[str], tau: float, k: int
) -> None:
    engine = engine_of(texts)
    batch = [asked(text, k=None if i % 3 else i) for i, text in enumerate(questions)]
    found = engine.search(batch, k, strategy=Cascade(tau))
    for row, query in enumerate(batch):
        first = engine.search([replace(query, k=2)])[0]
        confidence = None if len(first) < 2 or first[0][1] <= 0 else (first[0][1] - first[1][1]) / first[0][1]
        sure = confidence is not None and confidence >= tau
        decision = found.decisions[row]
        assert (decision.confidence, decision.threshold, decision.escalated) == (confidence, tau, not sure)
        assert decision.strategy == ("bm25" if sure else "agent_rrf")
        assert decision.milliseconds > 0.0
        assert same(found, row, engine.search([query], k, strategy=decision.strategy))


DRINK = np.array([[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]])
CLASSIFIER = Classifier(
    ("drink", "sky"), tuple(sorted(WORDS)), np.ones(6), np.concatenate([DRINK, -DRINK]), np.array([0.1, 0.0])
)


@settings(max_examples=15)
@given(texts, questions)
def test_a_router_answers_by_the_strategy_of_the_type(texts: list[str], questions: list[str]) -> None:
    engine = engine_of(texts)
    router = Router({"drink": "dense", "sky": "rrf"}, "bm25", CLASSIFIER)
    batch = [asked(text, type=[None, "sky", "other"][i % 3]) for i, text in enumerate(questions)]
    found = engine.search(batch, strategy=router)
    assert found.decisions is not None
    for row, query in enumerate(batch):
        kind = query.type or CLASSIFIER.predict([query.text])[0]
        best = {"drink": "dense", "sky": "rrf"}.get(kind, "bm25")
        assert (found.decisions[row].type, found.decisions[row].strategy) == (kind, best)
        assert same(found, row, engine.search([query], strategy=best))


@settings(max_examples=15)
@given(texts, questions, st.integers(1, 7))
def test_a_soft_router_adds_weighted_reciprocal_ranks(texts: list[str], questions: list[str], k: int) -> None:
    engine = engine_of(texts)
    router = Router({"drink": "dense", "sky": "rrf"}, "bm25", CLASSIFIER, soft=True)
    batch = [asked(text, type=[None, None, "sky"][i % 3]) for i, text in enumerate(questions)]
    found = engine.search(batch, k, strategy=router)
    assert found.decisions is not None
    for row, query in enumerate(batch):
        chances = CLASSIFIER.probabilities([query.text])[0].tolist()
        weights = {"rrf": 1.0} if query.type else {"dense": chances[0], "rrf": chances[1]}
        assert found.decisions[row].weights == weights
        expected: dict[str, float] = {}
        for name, weight in weights.items():
            for rank, (record, _) in enumerate(engine.search([query], 100, strategy=name)[0], 1):
                expected[record] = expected.get(record, 0.0) + weight / (60.0 + rank)
        order = sorted(expected.items(), key=lambda item: (-item[1], int(item[0][1:])))[:k]
        assert found[row] == order
        for record, score in order:
            shares = found.explain(row, record).channels  # type: ignore[union-attr]
            assert reduce(add, (share.share for share in shares)) == score


def test_a_cascade_may_escalate_to_a_router() -> None:
    engine = engine_of(["tea rain", "tea boat", "red wind", "red moon", "moon moon", "boat"])
    router = Router({"drink": "dense", "sky": "rrf"}, "bm25", CLASSIFIER)
    batch = [asked("tea rain"), asked("moon"), asked("nothing known")]
    found = engine.search(batch, strategy=Cascade(0.1, escalate=router))
    assert [decision.strategy for decision in found.decisions] == ["bm25", "bm25", "dense"]
    assert [decision.escalated for decision in found.decisions] == [False, False, True]
    assert found.decisions[2].type == CLASSIFIER.predict(["nothing known"])[0]
    assert same(found, 2, engine.search(batch[2:], strategy="dense"))


def test_only_what_is_not_sure_is_encoded() -> None:
    encoder = Hashing(dimension=8)
    engine = Engine(encoder=encoder, analyzer="minimal")
    engine.add(Record(f"r{i}", text) for i, text in enumerate(["tea rain", "tea", "red red wind", "red"]))
    seen = encoder.asked
    seen.clear()
    found = engine.search(["tea", "red wind", "unknown"], strategy=Cascade(0.3, escalate="rrf"))
    assert seen == [q.text for q, d in zip(found.queries, found.decisions, strict=True) if d.escalated]
    assert "unknown" in seen
    assert len(seen) < 3
    seen.clear()
    soft = Router({"drink": "dense", "sky": "rrf"}, "fused", CLASSIFIER, soft=True)
    engine.search(["tea", "red wind"], strategy=soft)
    assert sorted(seen) == ["red wind", "tea"]  # once, though two strategies of each compare vectors


def test_what_a_policy_may_need_is_asked_for_before_anything_is_answered() -> None:
    """Whether a batch fails must not depend on what BM25 happens to be sure of."""
    sure = Engine(encoder=OwnVectors(8), analyzer="minimal")
    sure.add([Record("a", "tea rain", embedding=vector("a")), Record("b", "tea", embedding=vector("b"))])
    question = Query("tea rain", vector=vector("x"))
    with pytest.raises(QueryError, match="query 0: policy 'cascade' may weigh by age"):
        sure.search([question], strategy="cascade")
    assert sure.search([question], strategy=Cascade(escalate="rrf")).decisions[0].escalated is False  # type: ignore[index]
    plain = Engine(analyzer="minimal")
    plain.add([Record("a", "tea rain"), Record("b", "tea")])
    with pytest.raises(QueryError, match="holds no vectors"):
        plain.search(["tea rain"], strategy=Cascade(escalate="rrf"))
    other = Classifier(("x", "y"), (), np.zeros(0), np.eye(2), np.zeros(2), 2, "other")
    for policy in (Router({}, "bm25", other), Cascade(escalate=Router({}, "rrf", other))):
        with pytest.raises(ModelMismatchError, match="other with 2 dimensions"):
            sure.search([question], strategy=policy)


def test_embedding_features_take_queries_without_a_vector() -> None:
    rows = np.stack([vector("tea?"), vector("moon?")])
    fitted = Classifier(("drink", "sky"), (), np.zeros(0), rows, np.zeros(2), 8, "own")
    engine = engine_of(["tea rain", "moon"])
    router = Router({"drink": "dense", "sky": "bm25"}, "bm25", fitted)
    batch = [asked("tea"), Query(terms=("moon",), now=0.0), asked("moon")]
    found = engine.search(batch, strategy=router)
    alone = [engine.search([query], strategy=router).decisions[0].type for query in batch]  # type: ignore[index]
    assert [decision.type for decision in found.decisions] == alone


def test_a_soft_router_s_reranker_reads_the_nearest_passage(tmp_path: Path) -> None:
    read: list[str] = []

    def reading(pairs: Any) -> list[float]:
        read.extend(text for _, text in pairs)
        return [0.0] * len(pairs)

    with Engine.open(tmp_path, encoder=OwnVectors(2), analyzer="minimal") as engine:
        engine.add([Record("a", "tea and milk", passages=["tea", "milk"], embedding=[[1, 0], [0, 1]])])
        query = Query("tea", vector=[0, 1], now=0.0)
        reranker = CheckedReranker(reading, unchecked=True)
        for strategy in ("rrf", Router({}, "rrf", soft=True), Router({}, "rrf"), Cascade(2.0, escalate="rrf")):
            read.clear()
            engine.search([query], strategy=strategy, reranker=reranker)
            assert read == ["milk"], strategy


LABELS = ("knowledge-update", "multi-session", "single-session-user", "temporal-reasoning", "untabled")
TOLD = Classifier(LABELS, (), np.zeros(0), np.zeros((5, 0)), np.zeros(5))
SOFT = Router(LONGMEMEVAL_SYSTEMS, NAMED["fused"], TOLD, soft=True)

POSTERIOR = st.lists(st.sampled_from([0.0, 0.0, 0.125, 0.3, 1.0, 1e-9]), min_size=5, max_size=5)
TYPES = st.sampled_from([None, None, *LABELS, "unheard of"])


@given(st.lists(st.tuples(POSTERIOR, TYPES), max_size=6))
def test_weights_are_sums_of_the_posterior(queries: list[tuple[list[float], str | None]]) -> None:
    """SPEC A097: ``w(s) = sum over types of P(type) [best(type) = s]``."""
    types = [type for _, type in queries]
    posterior = np.array([own for own, _ in queries]).reshape(-1, 5)
    found = SOFT.weights(posterior, types)
    assert len(found) == len(queries)
    for (own, type), weights in zip(queries, found, strict=True):
        expected = {}
        for name in SOFT.strategies:
            total = 0.0
            for label, probability in zip(LABELS, own, strict=True):
                best = LONGMEMEVAL_SYSTEMS[label].name if label in LONGMEMEVAL_SYSTEMS else "fused"
                total += probability if best == name else 0.0
            if type is not None:
                total = float((LONGMEMEVAL_SYSTEMS[type].name if type in LONGMEMEVAL_SYSTEMS else "fused") == name)
            if total:
                expected[name] = total
        assert weights == expected
        assert list(weights) == list(expected)


def test_probabilities_of_what_is_declined() -> None:
    with pytest.raises(ParameterError, match="shape"):
        SOFT.weights(np.ones((1, 4)), [None])
    with pytest.raises(ParameterError, match="no classifier"):
        Router({}, NAMED["rrf"]).weights(np.ones((1, 5)), [None])


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"table": []}, "table must be a mapping"),
        ({"table": {"": "rrf"}}, "a type"),
        ({"table": {"a": "everything"}}, "unknown strategy"),
        ({"default": None}, "a strategy is"),
        ({"table": {"a": Strategy("rrf")}}, "two different strategies"),
        ({"classifier": "tfidf"}, "a classifier is"),
        ({"soft": 1}, "soft"),
        ({"k": -1.0}, "k must be"),
        ({"k": float("inf")}, "k must be"),
        ({"name": None}, "name"),
    ],
)
def test_what_is_declined(given_: dict[str, object], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        Router(**{"table": {}, "default": "rrf", **given_})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [None, "router", {"kind": "router", "table": {}}, {"kind": "router", "table": {}, "default": "rrf", "x": 1}],
)
def test_what_is_no_router(value: object) -> None:
    with pytest.raises(ParameterError, match="router"):
        Router.of(value)  # type: ignore[arg-type]


STRATEGIES: list[Any] = [None, None, "bm25", "rrf", "recall", fr.Cascade(tau=0.5, escalate="rrf")]
TEXTS = ["tea", "jam tea", "zzz", "the", "", "tea jam salt"]


@pytest.fixture(scope="module")
def engine() -> fr.Engine:
    rng = random.Random(1)
    made = fr.Engine(encoder=fr.OwnVectors(2))
    made.add(
        fr.Record(
            str(n),
            " ".join(rng.choices(["tea", "jam", "salt"], k=3)),
            time=float(n % 4),
            namespace=["", "ana", "bo"][n % 3],
            embedding=[[1, n]],
        )
        for n in range(60)
    )
    return made


def batch_of(rng: random.Random) -> list[fr.Query]:
    """The queries of one caller, equal ones among them."""
    namespace = rng.choice(["", "ana", "bo", "nobody"])
    made = [
        fr.Query(namespace=namespace, newest=True, k=rng.choice([0, 2]))
        if rng.random() < 0.2
        else fr.Query(
            rng.choice(TEXTS), namespace=namespace, strategy=rng.choice(STRATEGIES), vector=[1.0, 0.0], now=9.0
        )
        for _ in range(rng.randint(1, 3))
    ]
    return [rng.choice(made) for _ in range(rng.randint(1, 5))]


RERANKER = fr.strategies.CheckedReranker(lambda pairs: [float(len(text)) for _, text in pairs], unchecked=True)
"""It prefers longer texts."""


@pytest.mark.parametrize("keywords", [{}, {"reranker": RERANKER}, {"offset": 1, "min_score": 0.01, "collapse": "text"}])
@pytest.mark.parametrize("seed", range(2))
def test_a_caller_sees_nothing_of_those_who_share_its_launch(
    engine: fr.Engine, seed: int, keywords: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    batches = [batch_of(rng) for _ in range(12)]

    async def ask() -> list[fr.Hits]:
        return await asyncio.gather(*(engine.asearch(batch, 4, **keywords) for batch in batches))

    before = engine.coalescer.stats()["launches"]
    for batch, hits in zip(batches, asyncio.run(ask()), strict=True):
        alone = engine.search(batch, 4, **keywords)
        assert_same(hits, alone)
        assert (hits.notes, [*hits.source]) == (alone.notes, [*alone.source])
        assert hits.reranked is None or hits.reranked.tobytes() == alone.reranked.tobytes()
        # A cascade and recall name what served any query that they answered.
        if not any(query.strategy in STRATEGIES[4:] for query in batch):
            assert hits.backend == alone.backend
    assert engine.coalescer.stats()["launches"] == before + 1


def test_a_tenant_of_a_mapping_sees_its_own_policy_alone(engine: fr.Engine) -> None:
    strategies = fr.routing.ByNamespace({"ana": "bm25", "bo": "recall"})
    batches = [[fr.Query(text, namespace=name, vector=[1.0, 0.0]) for text in ("zzz", "tea")] for name in ("bo", "ana")]

    async def ask() -> list[fr.Hits]:
        return await asyncio.gather(*(engine.asearch(batch, strategy=strategies) for batch in batches))

    bo, ana = asyncio.run(ask())
    assert (ana.decisions, ana.source, ana.backend) == (None, (0, 1), engine.backend.name)
    assert [one.strategy for one in bo.decisions] == ["recall", "recall"]


def test_rows_of_other_strategies_keep_their_notes(engine: fr.Engine) -> None:
    batch = ["the", "zzz", fr.Query(newest=True), fr.Query("zzz", strategy="rrf", vector=[0.0, 1.0]), "tea"]
    hits = engine.search(batch)
    assert hits.notes == (engine.search(["the"]).notes[0], notes.UNKNOWN, None, None, None)
    mapped = engine.search(
        [fr.Query("zzz", namespace="ana"), fr.Query("the", namespace="bo"), fr.Query("zzz")],
        strategy={"ana": "bm25", "bo": fr.Strategy("shallow", (fr.strategies.Lexical("text"),), depth=5)},
    )
    assert mapped.notes == (notes.UNKNOWN, hits.notes[0], notes.UNKNOWN)
