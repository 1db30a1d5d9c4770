"""Feedback, query by query, against plain loops; what leaves a query as it is; the same bits in any batch."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanrank.engine.errors import ParameterError
from fanrank.engine.feedback.amp import Amp, Gated, NormConvergence, Projection, TailGap
from fanrank.engine.feedback.centroid import SoftCentroid, WeightedCentroid
from fanrank.engine.feedback.first_sentence import FirstSentence, SentenceAmp
from fanrank.engine.feedback.iterated import Iterated
from fanrank.engine.feedback.pool import SHORTEST, Feedback, Pool, lengths, next_pool
from fanrank.engine.feedback.registry import FEEDBACKS, PRESETS, feedback_of, feedback_to_dict
from fanrank.engine.feedback.rocchio import Rocchio, RocchioFloor
from fanrank.engine.feedback.routed import AdaptiveSoftCentroid, FactoidRoute, is_factoid, median_gap
from fanrank.engine.feedback.sentences import first_sentence, sentences
from fanrank.engine.vectors.vectors import normalize

CLOSE = 1e-9
LONG, MEDIUM, SHORT = "word " * 80, "word " * 30, "word"


@dataclass(frozen=True)
class One:
    """A query, its hits as (cosine, vector) in their order, and the first sentences of the hits."""

    text: str
    query: list[float]
    hits: list[tuple[float, list[float]]]
    firsts: list[list[float]]

    def firsts_of(self, k: int) -> list[list[float]]:
        return [first for first in self.firsts[: min(k, len(self.hits))] if any(first)]


def ones(queries: Any, pool: Pool, firsts: Any) -> list[One]:
    return [
        One(
            pool.texts[row],
            queries[row].tolist(),
            [(float(pool.similarities[row, at]), pool.vectors[row, at].astype(float).tolist()) for at in range(count)],
            firsts[row].tolist(),
        )
        for row, count in enumerate(pool.counts.tolist())
    ]


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def combined(parts: Sequence[tuple[float, Sequence[float]]], width: int) -> list[float]:
    return [math.fsum(weight * vector[at] for weight, vector in parts) for at in range(width)]


def unit(vector: Sequence[float], otherwise: list[float]) -> list[float]:
    long = math.sqrt(dot(vector, vector))
    return [value / long for value in vector] if long > SHORTEST else otherwise


def plus(one: One, weight: float, anchor: Sequence[float]) -> list[float]:
    return unit(combined([(1.0, one.query), (weight, anchor)], len(one.query)), one.query)


def between(one: One, alpha: float, weights: list[float]) -> list[float]:
    total = math.fsum(weights)
    if not total:
        return one.query
    parts = [(weight / total, vector) for weight, (_, vector) in zip(weights, one.hits, strict=False)]
    centroid = combined(parts, len(one.query))
    return unit(combined([(1.0 - alpha, one.query), (alpha, centroid)], len(one.query)), one.query)


def gap(one: One, k: int) -> float:
    return max(0.0, one.hits[0][0] - one.hits[min(k, len(one.hits)) - 1][0]) if one.hits else 0.0


def rocchio(f: Rocchio, one: One) -> list[float]:
    hits = [vector for _, vector in one.hits[: f.k]]
    return plus(one, f.beta, combined([(1.0 / len(hits), v) for v in hits], len(one.query))) if hits else one.query


def rocchio_floor(f: RocchioFloor, one: One) -> list[float]:
    hits = [(cosine, vector) for cosine, vector in one.hits[: f.k] if cosine >= f.floor]
    return rocchio(Rocchio(f.k, f.beta), replace(one, hits=hits))


def soft_centroid(f: SoftCentroid, one: One) -> list[float]:
    hits = one.hits[: f.k]
    if not hits:
        return one.query
    best = max(cosine for cosine, _ in hits)
    return between(one, f.alpha, [math.exp((cosine - best) / f.tau) for cosine, _ in hits])


def weighted_centroid(f: WeightedCentroid, one: One) -> list[float]:
    cosines = [cosine for cosine, _ in one.hits[: f.k]]
    weights = {
        "uniform": [1.0] * len(cosines),
        "linear": [float(len(cosines) - at) for at in range(len(cosines))],
        "cosine": [max(0.0, cosine / max(cosines)) ** f.power if max(cosines) > 0.0 else 0.0 for cosine in cosines],
        "top": [1.0][: len(cosines)],
    }
    return between(one, f.alpha, weights[f.weighting])


def tail_gap(f: TailGap, one: One) -> list[float]:
    weight = gap(one, f.k)
    return plus(one, weight, one.hits[0][1]) if weight else one.query


def amp(f: Amp, one: One) -> list[float]:
    return plus(one, one.hits[0][0], one.hits[0][1]) if one.hits and one.hits[0][0] else one.query


def projection(f: Projection, one: One) -> list[float]:
    return unit(combined(one.hits[: f.k], len(one.query)), one.query)


def first_sentence_of(f: FirstSentence, one: One) -> list[float]:
    anchors = one.firsts_of(1)
    if not anchors:
        return one.query
    return unit(combined([(1.0 - f.alpha, one.query), (f.alpha, anchors[0])], len(one.query)), one.query)


def sentence_amp(f: SentenceAmp, one: One) -> list[float]:
    cosines = [(dot(one.query, anchor), -at, anchor) for at, anchor in enumerate(one.firsts_of(f.k))]
    if not cosines:
        return one.query
    weight, _, anchor = max(cosines)
    return plus(one, weight, anchor) if weight else one.query


def gated(f: Gated, one: One) -> list[float]:
    cosines = [cosine for cosine, _ in one.hits[: f.k]]
    sure = bool(cosines) and sum(cosines) / len(cosines) > f.floor
    return expected(f.of, one) if sure else one.query


def adaptive(f: AdaptiveSoftCentroid, one: One) -> list[float]:
    once = soft_centroid(SoftCentroid(f.k, f.alpha, f.tau), one)
    if len(one.text) > f.long_chars:
        anchors = one.firsts_of(1)
        twice = by_rounds(Iterated(SoftCentroid(f.k, f.alpha, f.tau), 2, False, f.rescored), one)
        return sentence_amp(SentenceAmp(), replace(one, query=twice)) if anchors else twice
    if len(one.text) > f.medium_chars and gap(one, f.k) > f.gap:
        return plus(replace(one, query=once), gap(one, f.k), one.hits[0][1])
    return once


def one_pool(one: One) -> Pool:
    """Its pool of one query, in its order."""
    cosines = np.array([[cosine for cosine, _ in one.hits]]).reshape(1, len(one.hits))
    vectors = np.array([[vector for _, vector in one.hits]], dtype=np.float16)
    shaped = vectors.reshape(1, len(one.hits), len(one.query))
    return Pool([one.text], cosines, cosines, shaped, np.array([len(one.hits)]))


def rescored(one: One, moved: list[float], limit: int) -> One:
    """The query rounded as the engine rounds it, and its first hits in their new order."""
    query = one.query if moved == one.query else normalize([moved])[0].astype(float).tolist()
    hits = [(dot(query, vector), -at, vector) for at, (_, vector) in enumerate(one.hits[:limit])]
    return replace(one, query=query, hits=[(cosine, vector) for cosine, _, vector in sorted(hits, reverse=True)])


def by_rounds(f: Iterated, one: One) -> list[float]:
    # Rounding may turn a difference in the last bit into one of 2**-11: the rounds are checked, not `of` again.
    for left in reversed(range(f.rounds)):
        moved = f.of(np.array([one.query]), one_pool(one))[0].tolist()
        if left:
            one = rescored(one, moved, f.rescored)
    return moved


def norm_convergence(f: NormConvergence, one: One) -> list[float]:
    if not one.hits:
        return one.query
    last = math.inf
    for _ in range(f.rounds):
        moved = Amp()(np.array([one.query]), one_pool(one))
        step = float(lengths(moved - np.array([one.query]))[0])
        found = moved[0].tolist()
        if step > last:
            break
        one, last = rescored(one, found, f.rescored), step
    return found


ORACLES: dict[str, Callable[[Any, One], list[float]]] = {
    "rocchio": rocchio,
    "rocchio-floor": rocchio_floor,
    "softcentroid": soft_centroid,
    "weighted-centroid": weighted_centroid,
    "tail-gap": tail_gap,
    "amp": amp,
    "projection": projection,
    "first-sentence": first_sentence_of,
    "sentence-amp": sentence_amp,
    "gated": gated,
    "factoid-route": lambda f, one: one.query if is_factoid(one.text) else expected(f.of, one),
    "adaptive-softcentroid": adaptive,
    "iterated": by_rounds,
    "norm-convergence": norm_convergence,
}


def expected(feedback: Feedback, one: One) -> list[float]:
    return ORACLES[feedback.name](feedback, one)


METHODS: list[Feedback] = [
    *(kind() for kind in FEEDBACKS.values()), Rocchio(k=5, beta=0.7), RocchioFloor(k=4, floor=0.1), SoftCentroid(k=1),
    SoftCentroid(k=10, alpha=1.0, tau=1e-320), SoftCentroid(k=2, alpha=0.5, tau=1e300),
    *(WeightedCentroid(k=4, alpha=0.5, weighting=weighting) for weighting in ("uniform", "linear", "cosine", "top")),
    WeightedCentroid(k=3, alpha=0.9, weighting="cosine", power=900.0), PRESETS["hard-top1"], TailGap(k=2),
    Projection(k=5), FirstSentence(alpha=1.0), SentenceAmp(k=2), SentenceAmp(k=9), Gated(SentenceAmp(), k=1, floor=0.3),
    Gated(SoftCentroid(), k=4, floor=-0.2), FactoidRoute(FirstSentence()),
    AdaptiveSoftCentroid(gap=0.3, k=2, rescored=4), Iterated(Rocchio(), rounds=3, rescored=3),
    Iterated(Gated(SoftCentroid()), rounds=2), NormConvergence(rescored=2), NormConvergence(rounds=1),
]  # fmt: skip
FRESH: list[Feedback] = [
    Iterated(fresh=True),
    Iterated(SoftCentroid(k=2, tau=0.5), rounds=3, fresh=True),
    NormConvergence(fresh=True),
    AdaptiveSoftCentroid(fresh=True),
    PRESETS["p103"],
]


components = st.lists(st.integers(-3, 3), min_size=4, max_size=4)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, Pool, Any]:
    """Few dimensions and small integers: ties, opposites that cancel, hits beyond and below K, empty pools."""
    width, dimension, count = draw(st.integers(0, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 3))

    def vector(zero: bool = False) -> Any:
        raw = np.array(draw(components)[:dimension], dtype=float)
        if not raw.any():
            return np.zeros(dimension) if zero else np.eye(dimension)[0]
        return normalize([raw])[0].astype(float)

    queries = np.array([vector() for _ in range(count)])
    vectors = np.zeros((count, width, dimension), dtype=np.float16)
    firsts = np.zeros((count, width, dimension))
    similarities = np.full((count, width), -np.inf)
    counts = np.array([draw(st.integers(0, width)) for _ in range(count)])
    by_cosine = draw(st.booleans())
    for row in range(count):
        hits = [vector() for _ in range(counts[row])]
        if by_cosine:
            hits.sort(key=lambda hit, row=row: -dot(queries[row], hit))
        for at, hit in enumerate(hits):
            vectors[row, at], similarities[row, at] = hit, dot(queries[row], hit)
            firsts[row, at] = vector(zero=True)
    texts = [draw(st.sampled_from((SHORT, MEDIUM, LONG, "who wrote it", "When was it?"))) for _ in range(count)]
    return queries, Pool(texts, similarities, similarities, vectors, counts, lambda n: firsts[:, :n]), firsts


@pytest.mark.parametrize("feedback", METHODS, ids=str)
@settings(max_examples=5, deadline=None)
@given(case=cases())
def test_each_query_is_moved_as_plain_loops_move_it(feedback: Feedback, case: tuple[Any, Pool, Any]):
    queries, pool, firsts = case
    found = feedback(queries, pool)
    assert found.shape == queries.shape
    assert found.dtype == np.float64
    for row, one in enumerate(ones(queries, pool, firsts)):
        np.testing.assert_allclose(found[row], expected(feedback, one), rtol=0.0, atol=CLOSE)
        if not one.hits:
            assert found[row].tobytes() == queries[row].tobytes()
        assert abs(dot(found[row], found[row]) - 1.0) < 5e-3


class World:
    """Random documents in clusters, their first sentences, and queries; searched exhaustively."""

    def __init__(self, seed: int = 0, documents: int = 40, dimension: int = 67) -> None:
        random = np.random.default_rng(seed)
        centres = random.normal(size=(5, dimension))

        def many(count: int) -> Any:
            rows = [centres[random.integers(5)] + 0.8 * random.normal(size=dimension) for _ in range(count)]
            return normalize(rows).astype(float)

        self.documents, self.firsts, self.queries = many(documents), many(documents), many(33)
        self.texts = [(SHORT, MEDIUM, LONG, "who founded it")[row % 4] for row in range(33)]

    @cache  # noqa: B019
    def cosines(self, query: bytes) -> list[float]:
        """Of a query's float64s with every document."""
        own = np.frombuffer(query).tolist()
        return [dot(own, row) for row in self.documents.tolist()]

    def pool(self, queries: Any, texts: Sequence[str], width: int = 12) -> Pool:
        cosines = np.array([self.cosines(query.tobytes()) for query in np.ascontiguousarray(queries)])
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :width]
        values = np.take_along_axis(cosines, order, axis=1)
        counts = np.full(len(queries), width)
        vectors = self.documents[order].astype(np.float16)
        return Pool(
            texts, values, values, vectors, counts, lambda n: self.firsts[order[:, :n]],
            lambda moved: self.pool(moved, texts, width),
        )  # fmt: skip


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.mark.parametrize("feedback", METHODS + FRESH, ids=str)
def test_the_bits_do_not_depend_on_the_batch(feedback: Feedback, world: World):
    rows = [0, 1, 2, 3, 10, 31, 32]
    whole = feedback(world.queries, world.pool(world.queries, world.texts))
    for row in rows:
        alone = feedback(world.queries[[row]], world.pool(world.queries[[row]], [world.texts[row]]))
        assert alone[0].tobytes() == whole[row].tobytes()
    order = np.array(rows[::-1])
    some = feedback(world.queries[order], world.pool(world.queries[order], [world.texts[row] for row in order]))
    assert some.tobytes() == whole[order].tobytes()


@pytest.mark.parametrize("feedback", METHODS + FRESH, ids=str)
def test_hits_beyond_its_depth_change_nothing(feedback: Feedback, world: World):
    narrow = world.pool(world.queries, world.texts, min(feedback.depth, 20))
    wide = world.pool(world.queries, world.texts, 20)
    again = replace(narrow, again=wide.again)
    assert feedback(world.queries, again).tobytes() == feedback(world.queries, wide).tobytes()


@pytest.mark.parametrize("feedback", [f for f in METHODS if isinstance(f, (Iterated, NormConvergence))], ids=str)
def test_rescoring_all_documents_is_searching_again(feedback: Feedback, world: World):
    pool = world.pool(world.queries, world.texts, len(world.documents))
    if feedback.rescored >= len(world.documents):
        assert feedback(world.queries, pool).tobytes() == replace(feedback, fresh=True)(world.queries, pool).tobytes()
    assert not np.array_equal(feedback(world.queries, pool), world.queries)


def test_rescored_hits_of_one_cosine_keep_their_order():
    queries = normalize([[1.0, 0.0, 0.0]]).astype(float)
    turns = np.arange(40) * 0.1
    heights = np.where(np.arange(40) % 3, 0.25, 0.5)
    vectors = np.stack([heights, np.cos(turns), np.sin(turns)], axis=1).astype(np.float16)[None]
    cosines = np.zeros((1, 40))
    asked, pool = next_pool("f", Pool(["q"], cosines, cosines, vectors, np.array([36])), queries, queries, False, 38)
    order = [*range(0, 36, 3), *(n for n in range(36) if n % 3)]
    assert asked.tobytes() == queries.tobytes()
    assert pool.counts.tolist() == [36]
    np.testing.assert_array_equal(pool.vectors[0, :36], vectors[0, order])
    np.testing.assert_array_equal(pool.similarities[0], [*[0.5] * 12, *[0.25] * 24, -np.inf, -np.inf])


def test_a_cosine_at_the_floor_is_a_hit_of_rocchio_and_no_sure_one():
    queries = normalize([[1.0, 0.0]]).astype(float)
    vectors = np.array([[[0.5, 0.866]]], dtype=np.float16)
    pool = Pool(["q"], np.array([[0.5]]), np.array([[0.5]]), vectors, np.array([1]))
    assert RocchioFloor(floor=0.5)(queries, pool)[0, 1] > 0.1
    assert RocchioFloor(floor=0.5001)(queries, pool).tobytes() == queries.tobytes()
    assert Gated(k=1, floor=0.5)(queries, pool).tobytes() == queries.tobytes()
    assert Gated(k=1, floor=0.4999)(queries, pool)[0, 1] > 0.1


FACTOID = """when was the Eiffel tower built | When is the next eclipse? |   when did it end | “Who was Ada Lovelace?” |
who founded Rome | WHO IS the mayor | where was he born | Where is Ankara | which country has no army |
which year saw it | what year did it open | what city hosts it | what name did she take | what\tdate |
how many goals did X score | how much is it | how long is the Nile | how old is the sun"""
OTHER = """when | whenever it was dark | when pigs fly | who | whoever was there | the man who was Thursday |
where to eat | which is better | which countrymen came | what is entropy | what yearning means | how |
how to cook rice | how does aspirin work | how manyfold | tell me when was it built | why is it so | show many goals |
somewhere is fine | """


def test_factoid_questions():
    assert [text for text in FACTOID.replace("\n", " ").split(" | ") if not is_factoid(text)] == []
    assert [text for text in OTHER.replace("\n", " ").split(" | ") if is_factoid(text)] == []


def test_adaptive_takes_one_of_three_ways(world: World):
    pool = world.pool(world.queries, [SHORT] * 33)
    threshold = median_gap(pool)
    feedback = AdaptiveSoftCentroid(gap=threshold)
    once = SoftCentroid()(world.queries, pool)
    gaps = pool.similarities[:, 0] - pool.similarities[:, 2]
    assert threshold == np.median(gaps)

    def moved(text: str) -> Any:
        return feedback(world.queries, replace(pool, texts=[text] * 33))

    assert moved("x" * 100).tobytes() == once.tobytes()
    boosted = once + gaps[:, None] * pool.vectors[:, 0].astype(float)
    boosted /= np.linalg.norm(boosted, axis=1, keepdims=True)
    sure = gaps > threshold
    assert 0 < sure.sum() < 33
    for text in ("x" * 101, "x" * 350):
        np.testing.assert_allclose(moved(text), np.where(sure[:, None], boosted, once), rtol=0.0, atol=1e-12)
    twice = Iterated(SoftCentroid(), 2)(world.queries, pool)
    assert moved("x" * 351).tobytes() == SentenceAmp()(twice, pool).tobytes()


def test_sentences_are_only_asked_for_where_a_query_is_long(world: World):
    asked: list[int] = []
    pool = world.pool(world.queries, world.texts)
    watched = replace(pool, first_sentences=lambda n: asked.append(n) or world.firsts[:33, None, :])
    AdaptiveSoftCentroid()(world.queries, replace(watched, texts=[MEDIUM] * 33))
    assert not asked
    AdaptiveSoftCentroid()(world.queries, watched)
    assert asked == [1]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Rocchio(k=0), "k must be an integer of 1 or more, not 0"),
        (lambda: Rocchio(k=True), "k must be"),
        (lambda: Rocchio(beta=0.0), "beta must be a number above 0, not 0.0"),
        (lambda: Rocchio(beta=math.inf), "beta"),
        (lambda: RocchioFloor(floor=1.5), "floor must be a number from -1 to 1"),
        (lambda: SoftCentroid(alpha=0.0), "alpha must be a number above 0 and at most 1"),
        (lambda: SoftCentroid(tau=0.0), "tau must be a number above 0"),
        (lambda: SoftCentroid(tau=math.nan), "tau"),
        (lambda: WeightedCentroid(weighting="best"), "unknown weighting 'best'; there are: uniform, linear"),
        (lambda: WeightedCentroid(power=0.0), "power"),
        (lambda: TailGap(k=1), "k must be an integer of 2 or more"),
        (lambda: Gated(of="amp"), "of must be feedback, not 'amp'"),
        (lambda: Iterated(rounds=0), "rounds"),
        (lambda: Iterated(fresh=1), "fresh must be true or false"),
        (lambda: Iterated(rescored=2), "rescored must be an integer of 3 or more"),
        (lambda: Iterated(FirstSentence()), "use fresh=True"),
        (lambda: AdaptiveSoftCentroid(medium_chars=-1), "medium_chars"),
        (lambda: AdaptiveSoftCentroid(medium_chars=400), "long_chars must be an integer of 400 or more"),
        (lambda: AdaptiveSoftCentroid(tau=0), "'adaptive-softcentroid': .*tau"),
        (lambda: feedback_of("rochio"), "no feedback 'rochio'; did you mean 'rocchio'"),
        (lambda: feedback_of({"k": 3}), "must say its 'name'"),
        (lambda: feedback_of({"name": "rocchio", "alpha": 1}), "has no field 'alpha'; there are: "),
        (lambda: feedback_of({"name": "gated", "of": {"name": "rocchio", "k": 0}}), "k must be"),
        (lambda: feedback_of(SoftCentroid), "must be a name or an object"),
    ],
)
def test_what_is_refused(build: Callable[[], Any], message: str):
    with pytest.raises(ParameterError, match=message):
        build()


def test_a_pool_that_cannot_do_what_is_asked_says_so(world: World):
    pool = replace(world.pool(world.queries, world.texts), first_sentences=None, again=None)
    for feedback in (FirstSentence(), SentenceAmp(), AdaptiveSoftCentroid()):
        with pytest.raises(ParameterError, match="this pool has no encoder"):
            feedback(world.queries, pool)
    for feedback in (Iterated(fresh=True), NormConvergence(fresh=True)):
        with pytest.raises(ParameterError, match="use fresh=False"):
            feedback(world.queries, pool)


@pytest.mark.parametrize("feedback", [*METHODS, *FRESH, *PRESETS.values()], ids=str)
def test_feedback_is_a_json_value(feedback: Feedback):
    written = json.loads(json.dumps(feedback_to_dict(feedback)))
    assert feedback_of(written) == feedback
    assert feedback_of(feedback) is feedback
    assert hash(feedback) == hash(feedback_of(written))
    assert isinstance(feedback, Feedback)


def test_names_and_presets():
    assert {kind().name for kind in FEEDBACKS.values()} == set(FEEDBACKS) == set(ORACLES)
    assert not set(PRESETS) & set(FEEDBACKS)
    assert feedback_of("softcentroid") == SoftCentroid(k=3, alpha=0.5, tau=0.05)
    assert feedback_of({"name": "softcentroid", "k": 10}) == SoftCentroid(k=10)
    assert feedback_of({"name": "gated", "of": "p97", "k": 1}) == Gated(SentenceAmp(k=2), k=1)
    assert feedback_of("p40") == Iterated(Rocchio(), rounds=2, fresh=True)


def test_costs_and_depths():
    free = [f for f in METHODS if not f.needs_sentences]
    assert {f.cost for f in free} == {1.0}
    costs = [("first-sentence", 2.0), ("p19", 2.0), ("p33", 2.0), ("p97", 3.0), ("p103", 3.0)]
    assert [feedback_of(name).cost for name, _ in costs] == [cost for _, cost in costs]
    assert AdaptiveSoftCentroid().cost == 1.5
    assert [feedback_of(name).depth for name in ("rocchio", "softcentroid", "amp", "iterated")] == [2, 3, 1, 100]
    assert (Iterated(fresh=True).depth, Gated(TailGap(k=7)).depth, AdaptiveSoftCentroid().depth) == (3, 7, 100)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" \n\t ", []),
        ("no end", ["no end"]),
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("One.Two", ["One.Two"]),
        ("One\nline. Two\nlines.", ["One\nline.", "Two\nlines."]),
        ("A title\n\nIts text. More.", ["A title", "Its text.", "More."]),
        ("A title\r\n \r\nIts text.", ["A title", "Its text."]),
        ("Dr. Ana M. Diaz met Mr. Lee. They spoke.", ["Dr. Ana M. Diaz met Mr. Lee.", "They spoke."]),
        ("J. R. R. Tolkien wrote it. I read it.", ["J. R. R. Tolkien wrote it.", "I read it."]),
        ("It rose 3.5 percent. Then it fell.", ["It rose 3.5 percent.", "Then it fell."]),
        ("It costs 3.5. Then it rose.", ["It costs 3.5.", "Then it rose."]),
        ("See Fig. 2 and Eq. 3. Both hold.", ["See Fig. 2 and Eq. 3.", "Both hold."]),
        ("Lee et al. 2024 disagree. So do we.", ["Lee et al. 2024 disagree.", "So do we."]),
        ("Use a map, e.g. Paper. It helps.", ["Use a map, e.g. Paper.", "It helps."]),
        ("It was plan B. It failed.", ["It was plan B. It failed."]),
        ("The U.S. Senate met. It voted.", ["The U.S. Senate met.", "It voted."]),
        ("She has a Ph.D. in law. He has none.", ["She has a Ph.D. in law.", "He has none."]),
        ("Go to fanrank.io. Read it.", ["Go to fanrank.io.", "Read it."]),
        ("2. Methods are here. 3. Results.", ["2. Methods are here.", "3. Results."]),
        ("Room no. 5 is free. I said no. Then I left.", ["Room no. 5 is free.", "I said no.", "Then I left."]),
        ("Apples, pears etc. We ate.", ["Apples, pears etc.", "We ate."]),
        ("He said “Stop.” She did.", ["He said “Stop.”", "She did."]),
        ("“Stop!” he said. (She did.) Fine.", ["“Stop!” he said.", "(She did.)", "Fine."]),
        ("Wait... what? Wait… No.", ["Wait... what?", "Wait…", "No."]),
        ("Really?! Yes.", ["Really?!", "Yes."]),
        ("It was p < .05. We stopped.", ["It was p < .05.", "We stopped."]),
        ("你好。再见！ 好", ["你好。", "再见！", "好"]),
        ("... And so on. End.", ["...", "And so on.", "End."]),
    ],
)
def test_sentences(text: str, parts: list[str]):
    assert list(sentences(text)) == parts
    assert first_sentence(text) == (parts[0] if parts else "")


@settings(deadline=None)
@given(st.text(alphabet="aB1 .!?…\n\"'()。-", max_size=60))
def test_sentences_lose_nothing_but_white_space(text: str):
    found = list(sentences(text))
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in found)
