"""Learned sparse weights ride the CSR: equal to scipy's product of the same integers, difference 0 (A105 to A107)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")

from support import borders  # noqa: E402

import fanrank as fr  # noqa: E402
from fanrank.engine.backends import choose as backend  # noqa: E402
from fanrank.engine.evaluate.beir import load_beir  # noqa: E402
from fanrank.engine.index import (  # noqa: E402
    learned,
)
from fanrank.engine.index.bm25 import DOT, MAX_IMPACT, SCALE, Statistics  # noqa: E402
from fanrank.engine.index.columns import Columns, Ids, Schema  # noqa: E402
from fanrank.engine.index.decay import decayed_bits, rate_of  # noqa: E402
from fanrank.engine.index.learned import IMPACTS, SCORE_UNIT, build_learned, query_terms  # noqa: E402
from fanrank.engine.index.masks import EVERYTHING, CompiledFilter, compile_filter  # noqa: E402
from fanrank.engine.index.segment import Segment, merge_segments  # noqa: E402
from fanrank.engine.index.snapshot import Place, Snapshot  # noqa: E402
from fanrank.engine.metrics.ranking import per_query  # noqa: E402
from fanrank.engine.plan.plan import Plan, Request, make_plan, plan_of  # noqa: E402
from fanrank.engine.text.vocabulary import Vocabulary  # noqa: E402

SCHEMA = Schema.of(None)
VOCABULARY = 30_522  # words of SPLADE's vocabulary (A105)
EXECUTIONS = ("exhaustive", "pruned", "auto")
CPU = ("numpy", "native")
DEVICES = ("cuda-host", pytest.param("triton", id="triton-interpreter"))

Weights = Mapping[str, float]
Serve = Callable[..., Any]
Answer = list[list[tuple[int, int]]]


@dataclass
class Corpus:
    """Documents given as weights, in segments, and what their columns hold."""

    parts: list[list[Weights | None]]
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    values: dict[str, Vocabulary] = field(default_factory=lambda: {name: Vocabulary() for name in SCHEMA.categories})

    def __post_init__(self) -> None:
        self.documents = [own for part in self.parts for own in part]
        # In no order of time.
        self.records = [
            fr.Record(f"r{n}", "", session=f"s{n % 3}", time=float(n * 5 % 7)) for n in range(len(self.documents))
        ]
        segments, start = [], 0
        for part in self.parts:
            segments.append(self.segment(part, self.records[start : start + len(part)]))
            start += len(part)
        self.snapshot = Snapshot(tuple(segments), IMPACTS)

    def segment(self, part: list[Weights | None], records: list[fr.Record]) -> Segment:
        columns = Columns.of(records, SCHEMA, self.values)
        return build_learned(part, self.vocabulary, Ids.of([record.id for record in records]), columns)

    def filter(self, session: str) -> CompiledFilter:
        return compile_filter(fr.col("session") == session, SCHEMA, self.values)

    def request(self, weights: Weights, k: int, row: int = 0, **options: Any) -> Request:
        terms, integers = query_terms(weights, self.vocabulary)
        return Request(row, terms, k, weights=integers, **options)

    def matrix(self) -> Any:
        """int64 [documents, vocabulary] the stored integers, worked out from the weights one by one."""
        return integers_of(self.documents, self.vocabulary)

    def expected(
        self, requests: list[Request], deleted: tuple[int, ...] = (), passing: list[Callable[[int], bool]] | None = None
    ) -> Answer:
        """The rows by the scipy product, a full sort, and masks."""
        matrix, rows = self.matrix(), []
        for number, request in enumerate(requests):
            query = np.zeros(matrix.shape[1], dtype=np.int64)
            np.add.at(query, np.array(request.terms, dtype=np.int64), np.array(request.weights, dtype=np.int64))
            sums = np.asarray((sparse.csr_matrix(query) @ matrix.T).toarray())[0]
            assert sums.dtype == np.int64
            times = np.array([record.time for record in self.records])
            held = (sums > 0) & (times >= request.since) & (times <= request.until)
            held[list(deleted)] = False
            if passing is not None:
                held &= np.array([passing[number](document) for document in range(len(held))], dtype=np.bool_)
            keys = decayed_bits(sums, times, request.now, request.rate) if request.rate else sums
            order = np.lexsort((np.arange(len(keys)), -keys))
            rows.append([(d, int(keys[d])) for d in order.tolist() if held[d]][: request.k])
        return rows


def integers_of(documents: list[Weights | None], vocabulary: Vocabulary) -> Any:
    held = [
        (row, vocabulary.ids[term], round(float(weight) * 1024))
        for row, own in enumerate(documents)
        for term, weight in (own or {}).items()
        if round(float(weight) * 1024)
    ]
    rows, terms, weights = np.array(held, dtype=np.int64).reshape(-1, 3).T
    return sparse.csr_matrix((weights, (rows, terms)), shape=(len(documents), max(len(vocabulary), 1)))


@cache
def chosen(name: str) -> backend.Backend:
    status = next(status for status in backend.statuses() if status.name == name)
    if not status.usable:
        pytest.skip(status.reason)
    found = backend.choose(name)
    if found.device is not None:
        found.device.verbs.tile_bits = lambda wide: 5  # type: ignore[method-assign]
    return found


def serve(name: str) -> Serve:
    """The search verb of a backend; on a device a fresh residency, in tiles of 32 documents."""
    found = chosen(name)
    if found.device is None:
        return found.search
    from fanrank.kernels.search import DeviceSearch

    return DeviceSearch(found.device.verbs, found.device.residency.device)


def answer(verb: Serve, plan: Plan, batch: int, k: int, execution: str = "auto") -> Answer:
    scores, documents, counts = verb((plan,), batch, k, execution=execution)
    assert scores.dtype == documents.dtype == np.int64
    for row, count in enumerate(counts.tolist()):
        assert (documents[row, count:] == -1).all()
        assert (scores[row, count:] == 0).all()
    return [
        list(zip(documents[row, :count].tolist(), scores[row, :count].tolist(), strict=True))
        for row, count in enumerate(counts.tolist())
    ]


def paths(name: str, snapshot: Snapshot, requests: list[Request], k: int) -> Iterator[tuple[str, Answer]]:
    """Every way of asking that must not change the answer."""
    batch = len(requests)
    for execution in EXECUTIONS[:1] if name == "triton" else EXECUTIONS:
        yield execution, answer(serve(name), make_plan(snapshot, requests), batch, k, execution)
    if name != "triton":
        alone = [replace(request, row=0) for request in requests]
        yield "one by one", [answer(serve(name), make_plan(snapshot, [one]), 1, k)[0] for one in alone]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles, groups, chunks and rows so small that a few documents cross all their borders."""
    borders.shrink(
        monkeypatch,
        {"search.GROUP": 3},
        TILE_BITS=2,
        MIN_TILES=2,
        DENSE_POSTINGS=2,
        FIRST_BLOCK=2,
        LAST_BLOCK=8,
        SCATTER_BLOCK=8,
        CHUNK_BYTES=64,
    )


# The formula and its integers.


def test_a_posting_contributes_its_frequency() -> None:
    frequencies = np.array([[1, 2, 3, 1023, 4095, 4096, MAX_IMPACT, (1 << 31) - 1]], dtype=np.int32)
    norms = IMPACTS.norms(np.zeros_like(frequencies), Statistics(5, (0,)))
    idf = IMPACTS.idf(np.array([1, 3, 5]), Statistics(5, (0,)))
    assert idf.tolist() == [1.0, 1.0, 1.0]
    saturated = IMPACTS.saturated(frequencies, norms)
    assert IMPACTS.quanta(saturated, np.ones(8)).tolist() == frequencies[0].tolist()
    # The order in which a loop may multiply.
    assert (saturated * (SCALE * 1.0) == frequencies[0]).all()
    assert IMPACTS.bounds(np.ones(2)).tolist() == [MAX_IMPACT, MAX_IMPACT]
    assert IMPACTS.bounds(np.array([1.0, 0.0]), 700).tolist() == [700, 0]
    assert not IMPACTS.needs_int64(Statistics(1 << 40, (0,)))
    assert not IMPACTS.signed
    assert DOT not in fr.text.METHODS
    with pytest.raises(fr.errors.ParameterError, match="'dot' has no fields"):
        fr.BM25(DOT, fields={"text": 1.0, "title": 2.0})


def test_quantize() -> None:
    assert learned.DOCUMENT_STEP * 1024 == 1.0
    assert [learned.quantize(w / 1024) for w in (0.0, 0.5, 0.51, 1.5, 2.5, MAX_IMPACT)] == [0, 0, 1, 2, 2, MAX_IMPACT]
    assert learned.quantize(np.float32(1.1)) == 1126
    # log1p(relu(logit)) below 4 (A105) fits the 12 bits of a word on a device.
    assert learned.quantize(math.log1p(53.0)) <= 4095
    assert SCORE_UNIT == 2.0**-20
    assert learned.quantize(3.0) * learned.quantize(1.25, learned.QUERY_STEP) * SCORE_UNIT == 3.75


@settings(deadline=None)
@given(st.lists(st.floats(0.0, learned.MAX_DOCUMENT_WEIGHT), max_size=20))
def test_a_whole_batch_is_quantized_as_its_weights(weights: list[float]) -> None:
    corpus = Corpus([[{str(n): weight for n, weight in enumerate(weights)}]])
    own = corpus.snapshot.segments[0]
    found = dict(zip(own.terms.tolist(), own.frequencies()[0].tolist(), strict=True))
    stored = {corpus.vocabulary.strings[term]: impact for term, impact in found.items()}
    assert stored == {str(n): learned.quantize(w) for n, w in enumerate(weights) if learned.quantize(w)}


def test_the_segment() -> None:
    vocabulary = Vocabulary(["dog"])
    own = build_learned(
        [{"dog": 0.25, "cat": 1.5, "ant": 0.0001}, None, {"dog": 1.5, "bee": 65_535.9990234375}, {}],
        vocabulary,
        Ids.of(["a", "b", "c", "d"]),
        Columns.of([fr.Record(name, "") for name in "abcd"], SCHEMA, {n: Vocabulary() for n in SCHEMA.categories}),
    )
    # New terms alphabetically, without the one that no posting has.
    assert vocabulary.strings == ["dog", "bee", "cat"]
    assert own.terms.tolist() == [0, 1, 2]
    assert own.offsets.tolist() == [0, 2, 3, 4]
    assert own.documents.tolist() == [0, 2, 2, 0]
    assert own.frequencies().tolist() == [[256, 1536, MAX_IMPACT, 1536]]
    assert own.class_frequencies.tolist() == [[256, 1536, MAX_IMPACT]]
    assert own.impact_classes.dtype == np.uint16
    assert own.lengths.tolist() == [[0, 0, 0, 0]]
    assert (own.size, own.total_lengths, own.ids[2]) == (4, (0,), "c")
    assert [a.dtype for a in (own.terms, own.offsets, own.documents)] == [np.int32, np.int64, np.int32]


def test_nothing_held() -> None:
    for part in ([], [None, {}], [{"a": 0.0}]):
        corpus = Corpus([part])
        assert corpus.snapshot.segments[0].postings == len(corpus.vocabulary) == 0
        plan = make_plan(corpus.snapshot, [corpus.request({"a": 1.0}, 3)])
        assert answer(serve("numpy"), plan, 1, 3) == [[]]


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (-0.5, r"must lie in \[0, 65,535.999\], not -0.5"),
        (math.nan, "must lie in .*, not nan"),
        (math.inf, "must lie in .*, not inf"),
        (65_536.0, "must lie in .*, not 65536.0"),
        (np.float32(65_536.0), "must lie in"),
        (10**400, "must lie in"),
        ("2", "must be a number, not '2'"),
        (None, "must be a number, not None"),
        (True, "must be a number, not True"),
    ],
)
def test_weights_that_cannot_be_held(weight: Any, message: str) -> None:
    with pytest.raises(fr.errors.RecordError, match=f"id 'r1': the weight of 'b' {message}"):
        Corpus([[{"a": 1.0}, {"a": 2.0, "b": weight}]])
    vocabulary = Vocabulary(["b"])
    if weight not in (65_536.0, 10**400):
        with pytest.raises(fr.errors.QueryError, match=r"the weight of the query's term 'b' must "):
            query_terms({"a": 1.0, "b": weight}, vocabulary)
    with pytest.raises(fr.errors.QueryError, match=r"must lie in \[0, 131,071.999\], not 131072"):
        query_terms({"b": 131_072}, vocabulary)


@pytest.mark.parametrize(("term", "message"), [(7, "must be a string, not 7"), ("\ud800", "lone surrogate")])
def test_terms_that_cannot_be_held(term: Any, message: str) -> None:
    vocabulary = Vocabulary(["b"])
    ids = Ids.of(["x", "y"])
    columns = Columns(2, {}, {})
    with pytest.raises(fr.errors.RecordError, match=f"id 'y': .*{message}"):
        build_learned([{"a": 1.0}, {term: 1.0}], vocabulary, ids, columns)
    assert vocabulary.strings == ["b"]


def test_query_terms() -> None:
    vocabulary = Vocabulary(["b", "a"])
    weights = {"a": 1.5, "unknown": 3.0, "b": 0.0004, np.str_("b"): 1024.0}
    assert query_terms(weights, vocabulary) == ([1, 0], [1536, 1 << 20])
    assert query_terms({"a": 0.0, "b": 0.0004}, vocabulary) == ([], [])


def test_weights_of_a_query_that_add_up_to_too_much() -> None:
    vocabulary = Vocabulary(["a"])
    most = learned.MAX_QUERY_WEIGHT
    assert query_terms({"a": most}, vocabulary) == ([0], [learned.MAX_MULTIPLICITY])
    # Terms that no document has count too: else a write could make a query fail.
    with pytest.raises(fr.errors.QueryError, match=r"add up to 131,072.000, and sums are exact up to 131,071.999"):
        query_terms({"a": most, "unknown": 2.0**-10}, vocabulary)
    assert MAX_IMPACT * learned.MAX_MULTIPLICITY < 1 << 53


# Query weights in plans.


def test_weights_of_repeated_terms_add_up() -> None:
    corpus = Corpus([[{"a": 1.0}, {"b": 1.0}]])
    plan = make_plan(corpus.snapshot, [Request(0, [1, 0, 1], 2, weights=[5, 7, 9]), Request(1, [0, 0], 2)])
    assert plan.multiplicities.tolist() == [7, 14, 2]
    assert plan.large.tolist() == [False, False]
    unique = Snapshot(corpus.snapshot.segments, fr.BM25(DOT, query_tf="unique"))
    plan = make_plan(unique, [Request(0, [1, 0, 1], 2, weights=[5, 7, 9]), Request(1, [0, 0], 2)])
    assert plan.multiplicities.tolist() == [7, 14, 1]


def test_weights_that_do_not_fit() -> None:
    snapshot = Corpus([[{"a": 1.0}]]).snapshot
    with pytest.raises(fr.errors.QueryError, match="2 terms but 1 weights"):
        make_plan(snapshot, [Request(0, [0, 0], 1, weights=[1])])
    with pytest.raises(fr.errors.QueryError, match="must be 1 or more, not 0"):
        make_plan(snapshot, [Request(0, [0], 1), Request(1, [0, 0], 1, weights=[1, 0])])
    with pytest.raises(fr.errors.QueryError, match="add up to 2,147,483,648"):
        make_plan(snapshot, [Request(0, [0] * 2048, 1, weights=[1 << 20] * 2048)])


def test_text_queries_may_bring_weights() -> None:
    engine = fr.Engine.from_records([fr.Record("x", "cat dog"), fr.Record("y", "dog dog"), fr.Record("z", "cat")])
    (snapshot,) = engine.index.memory.snapshots.values()
    cat, dog = (engine.index.memory.indexer.encode_query(word)[0] for word in ("cat", "dog"))
    repeated = make_plan(snapshot, [Request(0, [cat] * 3 + [dog] * 2, 3)])
    weighted = make_plan(snapshot, [Request(0, [cat, dog], 3, weights=[3, 2])])
    assert answer(serve("numpy"), weighted, 1, 3) == answer(serve("numpy"), repeated, 1, 3)


@pytest.mark.parametrize("name", [*CPU, *DEVICES])
def test_where_int32_ends(name: str) -> None:
    """The bound is the largest weight that is held, and one more than int32 holds takes the int64 path."""
    held = {"a": 63.0, "b": 63.0}  # 64,512 each
    corpus = Corpus([[held, {"a": 1.0}, {"b": 63.0}, {"c": 63.0}] * 10])
    last = ((1 << 31) - 1) // (2 * 64_512)
    narrow, wide = ([0, 1], [last, last]), ([0, 1], [last, last + 1])
    requests = [Request(n, terms, 25, weights=own) for n, (terms, own) in enumerate([narrow, wide, ([0, 1], [1, 1])])]
    plan = make_plan(corpus.snapshot, requests)
    assert plan.large.tolist() == [False, True, False]
    expected = corpus.expected(requests)
    assert expected[0][0][1] < 1 << 31 <= expected[1][0][1]
    for path, found in paths(name, corpus.snapshot, requests, 25):
        assert found == expected, path


# One answer on every path.

NAMES = [f"t{number}" for number in range(12)]
# Few values, so that ties are common, among them the largest and one that rounds to 0.
LARGEST = learned.MAX_DOCUMENT_WEIGHT
some_weight = st.sampled_from([0.0004, 1 / 1024, 0.25, 0.5, 1.0, 1.0, 3.999, 64.0, 255.0, LARGEST]) | st.floats(
    0.0, 4.0
)
document = st.dictionaries(st.sampled_from(NAMES), some_weight, max_size=6) | st.none()
parts = st.lists(st.lists(document, max_size=25), min_size=1, max_size=3)
query = st.dictionaries(
    st.sampled_from([*NAMES, "unknown"]),
    # Thirteen of the largest stay below the limit of a query.
    st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.25, 255.0, 10_000.0, 10_000.0009765625]) | st.floats(0.0, 5.0),
)
queries = st.lists(
    st.tuples(
        query,
        st.integers(0, 40),
        st.sampled_from([None, "s0", "s1", "nobody"]),
        st.sampled_from([(-math.inf, math.inf), (2.0, math.inf), (1.0, 4.0), (9.0, 9.5)]),
        st.sampled_from([0.0, 0.0, rate_of(2.0)]),
    ),
    min_size=1,
    max_size=6,
)


def check_paths(name: str, documents: list[list[Weights | None]], batch: list[Any], deleted: list[int]) -> None:
    corpus = Corpus(documents)
    size = len(corpus.documents)
    deleted = sorted({number % size for number in deleted}) if size else []
    places, snapshot = [], corpus.snapshot
    for number in deleted:
        own = max(n for n, first in enumerate(snapshot.firsts) if first <= number and snapshot.segments[n].size)
        places.append(Place(own, number - snapshot.firsts[own]))
    snapshot = snapshot.without(places)
    requests, passing = [], []
    for row, (weights, k, session, (since, until), rate) in enumerate(batch):
        accepted = EVERYTHING if session is None else corpus.filter(session)
        options = {"filter": accepted, "since": since, "until": until, "now": 8.0, "rate": rate}
        requests.append(corpus.request(weights, k, row, **options))
        passing.append(lambda n, session=session: session is None or corpus.records[n].session == session)
    expected = corpus.expected(requests, tuple(deleted), passing)
    k = max(request.k for request in requests)
    for path, found in paths(name, snapshot, requests, k):
        assert found == expected, path


SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", CPU)
@settings(max_examples=150, deadline=None, suppress_health_check=SLOW)
@given(documents=parts, batch=queries, deleted=st.lists(st.integers(0, 80), max_size=5))
def test_every_road_equals_the_product(
    name: str, documents: list[list[Weights | None]], batch: list[Any], deleted: list[int]
) -> None:
    check_paths(name, documents, batch, deleted)


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_equals_the_product(name: str) -> None:
    @settings(max_examples=8 if name == "triton" else 60, deadline=None, suppress_health_check=SLOW)
    @given(documents=parts, batch=queries, deleted=st.lists(st.integers(0, 80), max_size=5))
    # A segment without documents beside a query that decays.
    @example(documents=[[], [{"t0": 1.0}]], batch=[({"t0": 0.5}, 1, None, (-math.inf, math.inf), 1.0)], deleted=[])
    def check(documents: list[list[Weights | None]], batch: list[Any], deleted: list[int]) -> None:
        check_paths(name, documents, batch, deleted)

    check()


def test_tensors_in_tensors_out() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    corpus = Corpus([[{"a": 1.0, "b": 3.5}, {"a": 63.0}, None, {"b": 0.25, "c": 1.0}] * 20, [{"a": 2.0}] * 5])
    asked: list[Weights] = [{"a": 1.5, "b": 0.5}, {}, {"c": 1024.0, "a": 1024.0}]
    requests = [corpus.request(own, 7, row) for row, own in enumerate(asked)]
    offsets = np.cumsum([0, *(len(own.terms) for own in requests)])
    terms, weights = (
        torch.tensor([number for own in requests for number in getattr(own, name) or ()], dtype=torch.int64)
        for name in ("terms", "weights")
    )
    chosen("cuda-host")
    found = serve("cuda-host").tensors(corpus.snapshot, terms, torch.from_numpy(offsets), weights, 7)
    expected = corpus.expected(requests)
    assert found.counts.tolist() == [len(row) for row in expected]
    for row, own in enumerate(expected):
        assert found.documents[row, : len(own)].tolist() == [document for document, _ in own]
        assert (found.scores[row, : len(own)] * SCALE).tolist() == [total for _, total in own]


@settings(max_examples=60, deadline=None)
@given(documents=parts)
def test_merged_equals_built_at_once(documents: list[list[Weights | None]]) -> None:
    corpus = Corpus(documents)
    merged = merge_segments(corpus.snapshot.segments)
    at_once = corpus.segment(corpus.documents, corpus.records)
    for name in ("terms", "offsets", "documents", "lengths"):
        assert getattr(merged, name).tolist() == getattr(at_once, name).tolist()
    assert merged.frequencies().tolist() == at_once.frequencies().tolist()


# Published impact indexes: integers of 8 bits, or weights times 100, given as matrices.


def published(rng: np.random.Generator, documents: int, queries: int, kind: str) -> tuple[Any, Any]:
    """(documents, queries) as float32 matrices of integers."""
    made = []
    for rows, terms, most in ((documents, 20, 255), (queries, 8, 60)):
        weights = sparse.random(rows, 80, terms / 80, "csr", np.float32, rng)
        weights.data = np.ceil(weights.data * most if kind == "8 bits" else np.log1p(weights.data * 50) * 100)
        made.append(weights.astype(np.float32))
    return made[0], made[1]


@pytest.mark.parametrize("kind", ["8 bits", "times 100"])
@pytest.mark.parametrize("name", [*CPU, *DEVICES])
def test_published_indexes_score_as_the_product(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(name)
    documents, asked = published(np.random.default_rng(11), 200, 4 if name == "triton" else 12, kind)
    engine = fr.Engine(backend=name)
    held = [fr.Record(f"d{n}", "", weights=own) for n, own in enumerate(fr.encoders.weights_of(documents))]
    for start in range(0, 200, 70):
        engine.add(held[start : start + 70])
    plans: list[Plan] = []
    monkeypatch.setattr("fanrank.engine.search.lexical.plan_of", lambda *own: plans.append(plan_of(*own)) or plans[-1])
    queries = [fr.Query("", weights=own) for own in fr.encoders.weights_of(asked)]
    hits = engine.search(queries, k=200, strategy="sparse")
    product = (asked.astype(np.float64) @ documents.astype(np.float64).T).toarray()
    for scores, exact, count, found in zip(hits.scores, product, hits.counts, hits.documents, strict=True):
        order = np.lexsort((np.arange(200), -exact))[: np.count_nonzero(exact)]
        assert count == len(order)
        assert found[:count].tolist() == order.tolist()
        assert (scores[:count] == exact[order]).all()
    # The factor 2**10 of the queries' integers goes into the unit, so their sums stay in int32 and on the fast path.
    assert not any(plan.large.any() for plan in plans)


def test_a_query_of_integers_and_one_of_real_numbers_share_a_batch() -> None:
    engine = fr.Engine.from_records([fr.Record("a", "", weights={"x": 200.0, "y": 0.5}), fr.Record("b", "")])
    weights = [{"x": 3.0}, {"x": 0.125, "y": 1.0}, {"y": 2.0**-10}, {}, {"z": 7.0}, {"x": 1024.0, "y": 2.0**-10}]
    hits = engine.search([fr.Query("", weights=own) for own in weights], k=1, strategy="sparse")
    expected = [600.0, 25.5, 2.0**-11, -math.inf, -math.inf, 204_800.0 + 2.0**-11]
    assert hits.scores[:, 0].tolist() == expected


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.dictionaries(st.integers(0, 9), some_weight, max_size=6), min_size=1, max_size=12),
    none=st.sets(st.integers(0, 11)),
    known=st.lists(st.sampled_from("bdfhj"), unique=True),
)
def test_rows_of_a_matrix_become_the_segment_of_their_dictionaries(
    rows: list[dict[int, float]], none: set[int], known: list[str]
) -> None:
    dense = np.zeros((len(rows), 10))
    for row, own in enumerate(rows):
        dense[row, list(own)] = list(own.values())
    given_rows = fr.encoders.weights_of(sparse.csr_matrix(dense), [*"jihgfedcba"])
    as_rows = [None if n in none else own for n, own in enumerate(given_rows)]
    as_dicts = [None if own is None else dict(own) for own in as_rows]
    first, second = Vocabulary(known), Vocabulary(known)
    ids = Ids.of([f"r{n}" for n in range(len(rows))])
    columns = Columns(len(rows), {}, {})
    one, other = (build_learned(own, v, ids, columns) for own, v in ((as_rows, first), (as_dicts, second)))
    assert first.strings == second.strings
    for name in ("terms", "offsets", "documents", "impact_classes", "class_frequencies", "lengths"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist(), name
        assert getattr(one, name).dtype == getattr(other, name).dtype, name
    # A row beside a dictionary, or rows of two matrices, take the other way.
    if len(as_rows) > 1:
        mixed = [*as_rows[:-1], {"a": 1.0}]
        plain = build_learned([own and dict(own) for own in mixed], Vocabulary(), ids, columns)
        assert build_learned(mixed, Vocabulary(), ids, columns).frequencies().tolist() == plain.frequencies().tolist()


def test_a_row_that_cannot_be_held() -> None:
    engine = fr.Engine()
    rows = fr.encoders.weights_of(np.array([[1.0, 2.0], [3.0, 65_536.0]]), ["a", "b"])
    with pytest.raises(fr.errors.RecordError, match=r"id 'r1': the weight of 'b' must lie in \[0, 65,535.999\], not 6"):
        engine.add([fr.Record(f"r{n}", "", weights=own) for n, own in enumerate(rows)])
    assert engine.search([fr.Query("", weights={"a": 1.0})], k=1, strategy="sparse").counts.tolist() == [0]


def test_rows_on_disk_and_back(tmp_path: Path) -> None:
    rows = fr.encoders.weights_of(np.array([[100.0, 0.25], [0.0, 250.0]], dtype=np.float32), ["a", "b"])
    with fr.Engine.open(tmp_path / "memory") as engine:
        engine.add([fr.Record(f"r{n}", "", weights=own) for n, own in enumerate(rows)])
    with fr.Engine.open(tmp_path / "memory") as engine:
        assert [dict(engine.get(name).weights) for name in ("r0", "r1")] == [{"a": 100.0, "b": 0.25}, {"b": 250.0}]
        hits = engine.search([fr.Query("", weights={"b": 2.0})], k=2, strategy="sparse")
        assert hits.scores.tolist() == [[500.0, 0.5]]


# At the size of SciFact.


def impact_matrix(rng: np.random.Generator, rows: int, low: int, high: int, popular: Any) -> Any:
    """float64 [rows, VOCABULARY], log1p(relu(logit)): `low` to `high` terms drawn a row, a third of them popular."""
    drawn = [
        np.unique(np.concatenate([rng.choice(popular, n // 3), rng.choice(VOCABULARY, n - n // 3, replace=False)]))
        for n in rng.integers(low, high + 1, rows).tolist()
    ]
    owners = np.repeat(np.arange(rows), [len(own) for own in drawn])
    weights = np.log1p(np.maximum(rng.normal(1.0, 2.0, len(owners)), 0.0))
    return sparse.csr_matrix((weights, (owners, np.concatenate(drawn))), shape=(rows, VOCABULARY))


def as_weights(matrix: Any, name: Callable[[int], str] = "t{}".format) -> list[Weights]:
    return [
        {name(term): weight for term, weight in zip(row.indices.tolist(), row.data.tolist(), strict=True)}
        for row in matrix
    ]


@dataclass
class Case:
    """Documents and queries as float matrices over one vocabulary, indexed, and the product of their integers."""

    documents: Any
    queries: Any

    def __post_init__(self) -> None:
        names = [f"t{number:06d}" for number in range(self.documents.shape[1])]
        self.corpus = Corpus([as_weights(self.documents, names.__getitem__)])
        self.requests = [
            self.corpus.request(own, 100, row) for row, own in enumerate(as_weights(self.queries, names.__getitem__))
        ]
        self.sums = np.asarray((stepped(self.queries) @ stepped(self.documents).T).toarray())
        assert self.sums.dtype == np.int64

    def expected(self, k: int) -> Answer:
        order = np.argsort(-self.sums, axis=1, kind="stable")[:, :k]
        return [
            [(d, int(sums[d])) for d in own.tolist() if sums[d]] for own, sums in zip(order, self.sums, strict=True)
        ]


def stepped(matrix: Any) -> Any:
    return sparse.csr_matrix(
        (np.rint(matrix.data * 1024).astype(np.int64), matrix.indices, matrix.indptr), matrix.shape
    )


@pytest.fixture(scope="module")
def random_case() -> Case:
    rng = np.random.default_rng(5)
    popular = rng.choice(VOCABULARY, 300, replace=False)
    documents = impact_matrix(rng, 5000, 60, 200, popular)
    queries = sparse.vstack(
        [impact_matrix(rng, 12, 60, 60, popular), impact_matrix(rng, 6, 100, 500, popular)], format="csr"
    )
    # The last ones so heavy that their sums leave int32.
    queries.data[queries.indptr[-3] :] *= 200.0
    return Case(documents, queries)


def check_at_size(name: str, case: Case, queries: int | None = None) -> None:
    """The first so many queries, or all."""
    requests = case.requests[:queries]
    for k in (10, 100):
        plan = make_plan(case.corpus.snapshot, [replace(request, k=k) for request in requests])
        expected = case.expected(k)[:queries]
        for execution in EXECUTIONS:
            assert answer(serve(name), plan, len(requests), k, execution) == expected, (k, execution)
    for request in requests[::5]:
        alone = make_plan(case.corpus.snapshot, [replace(request, row=0, k=10)])
        assert answer(serve(name), alone, 1, 10) == [case.expected(10)[request.row]]


@pytest.mark.parametrize("name", CPU)
def test_random_weights(name: str, random_case: Case) -> None:
    plan = make_plan(random_case.corpus.snapshot, random_case.requests)
    assert plan.large.tolist() == [False] * 16 + [True] * 2
    assert random_case.sums.max() > 1 << 31
    assert np.diff(plan.offsets).max() > 100
    check_at_size(name, random_case)


@dataclass
class Dataset:
    """A BEIR dataset, BM25's contributions to it as weights (quanta / 2**18), and its queries as counts."""

    folder: Path

    def __post_init__(self) -> None:
        self.data = load_beir(self.folder)
        engine = fr.Engine.from_records(self.data.records, analyzer="nltk", backend="numpy")
        (snapshot,) = engine.index.memory.snapshots.values()
        width = len(engine.index.memory.indexer.vocabulary)
        rows, terms, weights = [], [], []
        for first, own, made in zip(snapshot.firsts, snapshot.segments, snapshot.contributions, strict=True):
            idf = snapshot.bm25.idf(snapshot.document_frequencies(own.terms), snapshot.statistics)
            made.derive(np.arange(len(own.terms)), idf)
            rows.append(own.documents + first)
            terms.append(np.repeat(own.terms, np.diff(own.offsets)))
            weights.append(made.quanta / SCALE)
        documents = sparse.csr_matrix(
            (np.concatenate(weights), (np.concatenate(rows), np.concatenate(terms))), shape=(snapshot.size, width)
        )
        asked = [engine.index.memory.indexer.encode_query(query.text) for query in self.data.queries]
        owners = np.repeat(np.arange(len(asked)), [len(own) for own in asked])
        queries = sparse.csr_matrix((np.ones(len(owners)), (owners, np.concatenate(asked))), (len(asked), width))
        queries.sum_duplicates()
        self.case = Case(documents, queries)


@pytest.fixture(scope="module")
def scifact(data: Path) -> Dataset:
    return Dataset(data / "scifact")


@pytest.mark.parametrize("name", CPU)
def test_bm25_weights_of_scifact(name: str, scifact: Dataset) -> None:
    check_at_size(name, scifact.case, None if name == CPU[-1] else 60)


def test_bm25_weights_of_cranfield_on_the_cuda_kernels(data: Path) -> None:
    case = Dataset(data / "cranfield").case
    found = chosen("cuda-host")
    assert found.device is not None
    plan = make_plan(case.corpus.snapshot, [replace(request, k=10) for request in case.requests[:40]])
    assert answer(serve("cuda-host"), plan, 40, 10) == case.expected(10)[:40]


def error_bounds(documents: Any, queries: Any) -> Any:
    """[queries, documents] by how much steps of 2**-10 can move a score."""

    def pattern(matrix: Any) -> Any:
        return sparse.csr_matrix((np.ones(matrix.nnz), matrix.indices, matrix.indptr), matrix.shape)

    heavy, shared = (
        queries @ pattern(documents).T + pattern(queries) @ documents.T,
        pattern(queries) @ pattern(documents).T,
    )
    return ((heavy * 2.0**-10 + shared * 2.0**-21) / 2).toarray()


def test_the_error_of_quantisation(
    random_case: Case, scifact: Dataset, record_property: Callable[[str, object], None]
) -> None:
    for name, case in (("random", random_case), ("scifact", scifact.case)):
        exact = (case.queries @ case.documents.T).toarray()
        errors = np.abs(case.sums * SCORE_UNIT - exact)
        bounds = error_bounds(case.documents, case.queries)
        # The float64 product itself rounds.
        assert (errors <= bounds + 1e-12 * exact).all()
        assert errors.max() > bounds.max() / 100  # or the bound says nothing
        record_property(
            f"{name}: largest error, its bound, largest score", [float(v.max()) for v in (errors, bounds, exact)]
        )
        print(f"{name}: largest error {errors.max():.6f}, bound {bounds.max():.6f}, score {exact.max():.3f}")


def test_ndcg_does_not_change(scifact: Dataset) -> None:
    pytest.importorskip("pytrec_eval", reason="pytrec_eval is not installed")
    ids = [record.id for record in scifact.data.records]
    rng = np.random.default_rng(3)
    counts = scifact.case.queries
    real = counts.copy()
    real.data = np.log1p(1.5 * counts.data * rng.uniform(0.5, 1.5, counts.nnz))
    for queries in (counts, real):
        exact = (queries @ scifact.case.documents.T).toarray()
        order = np.argsort(-exact, axis=1, kind="stable")[:, :100]
        names = [f"t{number:06d}" for number in range(queries.shape[1])]
        requests = [
            scifact.case.corpus.request(own, 100, row) for row, own in enumerate(as_weights(queries, names.__getitem__))
        ]
        plan = make_plan(scifact.case.corpus.snapshot, requests)
        found = answer(serve("numpy"), plan, len(requests), 100)
        values = []
        for rows in (
            [row[exact[n, row] > 0].tolist() for n, row in enumerate(order)],
            [[d for d, _ in r] for r in found],
        ):
            ranked = {q.id: [ids[d] for d in row] for q, row in zip(scifact.data.queries, rows, strict=True)}
            values.append(float(np.mean(per_query(ranked, scifact.data.relevant, ["ndcg@10"])["ndcg@10"])))
        print(f"nDCG@10: float {values[0]:.6f}, quantised {values[1]:.6f}")
        assert round(values[0], 4) == round(values[1], 4)
        assert values[0] > 0.6
