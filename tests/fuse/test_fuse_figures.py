"""Fusion: the papers' figures, worked by the code; what each method declines; its weight with each group left out."""

import json
import math
from collections import Counter
from collections.abc import Hashable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fuse_cases import DAY, NOW, Document, Evidence, FusionQuery, batch_of, scores_of

from fanrank.engine.errors import ParameterError, QueryError
from fanrank.engine.fuse.age import exponential
from fanrank.engine.fuse.agent_rrf import TAU_DAYS_BY_TYPE, AgentRRF
from fanrank.engine.fuse.alpha import ALPHAS, fit_alpha, folds
from fanrank.engine.fuse.candidates import Candidates
from fanrank.engine.fuse.decay import Decay
from fanrank.engine.fuse.minmax import MinMax
from fanrank.engine.fuse.rrf import RRF
from fanrank.engine.fuse.score_rrf import ScoreRRF
from fanrank.engine.fuse.zscore import ZScore


def one_list(length: int) -> Candidates:
    return scores_of([float(length - place) for place in range(length)])


def pair(ages: list[float], scores: list[float] | None = None) -> Candidates:
    """Two lists of the same order, the documents of these ages in days; ranks follow the list."""
    scores = scores or [float(len(ages) - place) for place in range(len(ages))]
    documents = [
        Document(number, {"bm25": Evidence(score), "dense": Evidence(score)}, time=NOW - age * DAY)
        for number, (age, score) in enumerate(zip(ages, scores, strict=True))
    ]
    return batch_of([FusionQuery(documents)], ["bm25", "dense"])


def test_reciprocal_ranks() -> None:
    """SPEC B053: the first and the fiftieth of a list, and how far apart k sets them."""
    scores = RRF()(one_list(50)).scores
    assert (scores[0], scores[49]) == (1 / 61, 1 / 110)
    assert (round(scores[0], 4), round(scores[49], 4)) == (0.0164, 0.0091)
    for k, spread in ((60.0, 1.80), (10.0, 5.45), (200.0, 1.24)):
        scores = RRF(k=k)(one_list(50)).scores
        assert round(scores[0] / scores[49], 2) == spread
    assert RRF(base=0)(one_list(2)).scores.tolist() == [1 / 60, 1 / 61]


def test_roots_of_scores() -> None:
    """SPEC B053, B007: three cosines; below 0 counts as 0, half precision's excess over 1 as 1."""
    fused = ScoreRRF()(scores_of([0.95, 0.60, 0.25, -0.1], [1.0004], name="dense"))
    roots = (fused.scores[:4] * [61, 62, 63, 64]).tolist()
    assert roots == pytest.approx([0.975, 0.775, 0.5, 0.0], abs=5e-4)
    assert fused.scores[4] == 1 / 61
    assert fused.kept.all()


def test_scales() -> None:
    """SPEC B051, X20: BM25 by its largest or by s / (s + 1), lists without scores as 1."""
    candidates = scores_of([9.0, 3.0, 1.0], [0.0, 0.0])
    by_largest = ScoreRRF()(candidates).scores
    assert by_largest.tolist() == [1 / 61, math.sqrt(3.0 / 9.0) / 62, math.sqrt(1.0 / 9.0) / 63, 0.0, 0.0]
    ratio = ScoreRRF(scales={"bm25": "ratio"})(candidates).scores
    assert ratio.tolist() == [math.sqrt(0.9) / 61, math.sqrt(0.75) / 62, math.sqrt(0.5) / 63, 0.0, 0.0]
    windows = scores_of([9.0, 3.0], name="temporal")
    assert ScoreRRF()(windows).scores.tolist() == RRF()(windows).scores.tolist()


def test_spread_too_small_to_tell() -> None:
    """SPEC D003: a standard deviation below 1e-9 gives zeros; one above does not."""
    for step, flat in ((1e-10, True), (1e-8, False)):
        batch = [
            FusionQuery([Document(n, {"bm25": Evidence(1.0 + n * step), "dense": Evidence(0.5)}) for n in range(2)])
        ]
        fused = ZScore()(batch_of(batch, ["bm25", "dense"]))
        assert fused.shares["dense"].tolist() == [0.0, 0.0]
        assert fused.scores == pytest.approx([0.0, 0.0] if flat else [-0.5, 0.5])


def test_a_constant_channel_of_any_length_is_flat() -> None:
    """Rounding in the mean of equal scores stays below the guard."""
    documents = [Document(n, {"bm25": Evidence(0.1), "dense": Evidence(1 / 3)}) for n in range(20_000)]
    assert not ZScore()(batch_of([FusionQuery(documents)], ["bm25", "dense"])).scores.any()


def test_an_empty_session_is_below_all() -> None:
    """SPEC D002: what has no vector takes no part in z, and no scored session of the channel stands below it."""
    cosines = [0.9, 0.2, 0.4]
    held = [Document(n, {"bm25": Evidence(0.0), "dense": Evidence(cosine)}) for n, cosine in enumerate(cosines)]
    empty = Document(3, {"bm25": Evidence(0.0), "dense": Evidence(-9.0, False, False)})
    fused = ZScore(alpha=0.0)(batch_of([FusionQuery([*held, empty])], ["bm25", "dense"]))
    z = (np.array(cosines) - np.mean(cosines)) / np.std(cosines)
    assert fused.scores[:3] == pytest.approx(z)
    assert fused.scores[3] == fused.scores[1] == fused.scores.min()


def test_a_constant_pool_is_stretched_to_nothing() -> None:
    """SPEC E011, X30: the cosine stands as it is, BM25 between its least, 0 where nothing matches, and its largest."""
    cases = [([3.0, 3.0], [0.0, 0.0]), ([3.0, 0.0], [0.1, 0.0]), ([3.0, 2.0, 1.0], [0.1, 0.05, 0.0]), ([7.0], [0.0])]
    for bm25, shares in cases:
        documents = [Document(n, {"bm25": Evidence(score), "dense": Evidence(0.5)}) for n, score in enumerate(bm25)]
        candidates = batch_of([FusionQuery(documents)], ["bm25", "dense"])
        fused = MinMax()(candidates)
        assert fused.shares["bm25"].tolist() == shares
        assert fused.shares["dense"].tolist() == [0.9 * 0.5] * len(bm25)
        assert MinMax(normalize_dense=True)(candidates).shares["dense"].tolist() == [0.0] * len(bm25)


def test_recency_is_no_mere_tie_breaker() -> None:
    """SPEC X06, A061: how far .005 carries a fresh record over the first of both lists, by that one's age."""
    assert round(1 / 61 - 1 / 62, 5) == 0.00026
    for age, reach in ((30.0, 7), (77.0, 10), (78.0, 11), (3650.0, 11)):
        overtaken = [
            rank
            for rank in range(2, 20)
            if (scores := AgentRRF()(pair([age] * (rank - 1) + [0.0])).scores)[rank - 1] > scores[0]
        ]
        assert overtaken == list(range(2, reach + 1))
    # With a tau of 7 days a month is enough for rank 11.
    scores = AgentRRF(tau_days=7.0)(pair([30.0] * 10 + [0.0])).scores
    assert scores[10] > scores[0]


def test_the_bonus() -> None:
    """SPEC A061, A062, A064: in days from the query's own time, 0 from the future, by the type's tau."""
    ages = [0.0, 30.0, -5.0, 120.0, math.nan]
    plain = pair(ages)
    recency = AgentRRF()(plain).shares["recency"]
    assert recency == pytest.approx([0.005, 0.005 / math.e, 0.005, 0.005 * math.exp(-4.0), 0.0], rel=1e-15)
    documents = [Document(n, {"bm25": Evidence(1.0)}, NOW - 120.0 * DAY, 0.5) for n in range(2)]
    types = ["multi-session", "temporal-reasoning", "single-session-user", None]
    candidates = batch_of([FusionQuery(documents, type=kind) for kind in types], ["bm25"])
    for fusion, expected in (
        (AgentRRF(), [math.exp(-4.0), math.exp(-4.0), 0.0, math.exp(-4.0)]),
        (AgentRRF(recency_types=None), [math.exp(-4.0), math.exp(-4.0), math.exp(-4.0), math.exp(-4.0)]),
        (AgentRRF(recency_types=()), [0.0, 0.0, 0.0, math.exp(-4.0)]),
        (AgentRRF(tau_days_by_type=TAU_DAYS_BY_TYPE), [math.exp(-1.0), math.exp(-4.0), 0.0, math.exp(-4.0)]),
    ):
        assert fusion(candidates).shares["recency"][::2] == pytest.approx([0.005 * own for own in expected], rel=1e-15)
    assert AgentRRF(beta=0.01)(candidates).shares["importance"].tolist() == [0.005] * 8
    assert list(AgentRRF()(candidates).shares) == ["bm25", "recency", "importance"]


def test_half_lives() -> None:
    """SPEC C003, C011: an hour weighs .990 and a week .186; lambda and its half-life."""
    hours = [1.0, 168.0, 69.3]
    fused = Decay()(pair([own / 24.0 for own in hours], [1.0, 1.0, 1.0]))
    assert [round(score, 3) for score in fused.scores.tolist()] == [0.990, 0.186, 0.500]
    assert fused.scores[0] > 2.0 * fused.scores[1]
    for rate, half in ((0.01, 69.3), (0.001, 693.0), (0.1, 6.93)):
        fused = Decay(rate=rate)(pair([half / 24.0], [8.0]))
        assert fused.scores == pytest.approx([4.0], rel=3e-4)
    assert round(693.0 / 24.0, 1) == 28.9


def test_whole_hours_and_no_age() -> None:
    """SPEC C004: 1 h 59 min is an hour or 1.98; the future and records without a time do not fade."""
    candidates = pair([119 / 60 / 24, 59 / 60 / 24, -1.0, math.nan], [2.0, 2.0, 2.0, 2.0])
    assert Decay(whole_hours=True)(candidates).scores == pytest.approx([2.0 * math.exp(-0.01), 2.0, 2.0, 2.0])
    parts = [2.0 * math.exp(-0.01 * minutes / 60.0) for minutes in (119, 59)]
    assert Decay()(candidates).scores == pytest.approx([*parts, 2.0, 2.0])
    assert Decay(rate=0)(candidates).scores.tolist() == [2.0] * 4


def test_the_exponential_is_off_by_less_than_two_units() -> None:
    random = np.random.default_rng(11)
    values = np.concatenate(
        [-random.uniform(0.0, 745.0, 1500), -(10.0 ** random.uniform(-20.0, 1.0, 1500)), [-0.0, 0.0, -1.0, -744.4]]
    )
    found = exponential(values).tolist()
    with localcontext() as context:
        context.prec = 50
        for value, own in zip(values.tolist(), found, strict=True):
            exact = Decimal(value).exp()
            assert abs(Decimal(own) - exact) < 2 * Decimal(math.ulp(float(exact))), value
    assert exponential(np.array([-0.0, -746.0, -1e6, -1e300, -np.inf])).tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert (np.diff(exponential(np.linspace(-1.0, 0.0, 10_001))) > 0.0).all()


def test_a_query_without_its_time_is_declined() -> None:
    documents = [Document(0, {"bm25": Evidence(1.0)}, NOW)]
    batch = [
        FusionQuery(documents),
        FusionQuery(documents, math.nan, "single-session-user"),
        FusionQuery(documents, math.nan),
    ]
    candidates = batch_of(batch, ["bm25"])
    with pytest.raises(QueryError, match=r"query 2: the fusion 'agent_rrf'.*set its 'now'"):
        AgentRRF()(candidates)
    with pytest.raises(QueryError, match=r"query 1: .*'agent_rrf'"):
        AgentRRF(recency_types=None)(candidates)
    with pytest.raises(QueryError, match=r"query 1: .*'decay'"):
        Decay()(candidates)
    # Without a weight for recency no time is needed.
    assert AgentRRF(alpha=0.0)(candidates).scores.tolist() == RRF()(candidates).scores.tolist()


def test_scores_below_zero_do_not_decay() -> None:
    """A negative score times less than 1 would rise with age (SPEC X01, X03)."""
    with pytest.raises(QueryError, match=r"query 1: the channel 'bm25' scores a hit -0.5"):
        Decay()(scores_of([0.0, 1.0], [2.0, -0.5]))
    beyond = [Document(0, {"bm25": Evidence(-0.5, True, False)}), Document(1, {"bm25": Evidence(0.5)})]
    fused = Decay()(batch_of([FusionQuery(beyond)], ["bm25"]))
    assert (fused.scores.tolist(), fused.kept.tolist()) == ([0.0, 0.5], [False, True])


def best_row(rows: list[list[float]], queries: list[int]) -> int:
    """The first row with the largest sum over these queries, rounded once."""
    sums = [float(sum((Fraction(row[query]) for query in queries), Fraction(0))) for row in rows]
    return sums.index(max(sums))


tables = st.integers(2, 12).flatmap(
    lambda queries: st.tuples(
        st.lists(
            st.lists(
                st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0.0, 1.0)), min_size=queries, max_size=queries
            ),
            min_size=3,
            max_size=3,
        ),
        st.lists(st.sampled_from(["a", "b", 3, ("c", 1)]), min_size=queries, max_size=queries).filter(
            lambda groups: len(set(groups)) > 1
        ),
    )
)


@settings(max_examples=40)
@given(tables)
def test_the_oracle_agrees(case: tuple[list[list[float]], list[Hashable]]) -> None:
    rows, groups = case
    grid = [0.0, 0.3, 1.0]
    fit = fit_alpha(rows, groups, grid)
    everyone = list(range(len(groups)))
    assert list(fit.chosen) == list(dict.fromkeys(groups))
    for query, group in enumerate(groups):
        row = best_row(rows, [other for other in everyone if groups[other] != group])
        assert fit.chosen[group] == grid[row]
        assert fit.values[query] == rows[row][query]
    assert fit.best == grid[best_row(rows, everyone)]
    exact = [float(sum((Fraction(value) for value in row), Fraction(0))) / len(row) for row in rows]
    assert fit.curve.tolist() == exact
    assert fit.mean == float(sum((Fraction(value) for value in fit.values.tolist()), Fraction(0))) / len(groups)
    json.dumps(fit.to_dict())


def test_the_grid() -> None:
    """SPEC D004: 21 values, each the number as written."""
    assert len(ALPHAS) == 21
    assert [f"{alpha:g}" for alpha in ALPHAS[:4]] == ["0", "0.05", "0.1", "0.15"]
    assert all(alpha == float(f"{alpha:.2f}") for alpha in ALPHAS)
    assert (ALPHAS[8], ALPHAS[12], ALPHAS[20]) == (0.40, 0.60, 1.0)
    assert np.allclose(np.diff(ALPHAS), 0.05)


def test_equal_alphas_give_the_smallest() -> None:
    # .1 ten times over and 1 once are equal to the last bit only if rounded once; in any order of the queries.
    row = np.array([0.1] * 6 + [0.7, 0.2, 0.3] * 2)
    random = np.random.default_rng(0)
    groups = ["a"] * 12 + ["b"] * 12
    for _ in range(20):
        values = np.stack([np.concatenate([random.permutation(row) for _ in range(2)]) for _ in range(5)])
        fit = fit_alpha(values, groups, [0.0, 0.1, 0.2, 0.3, 0.4])
        assert fit.best == 0.0
        assert set(fit.chosen.values()) == {0.0}


def test_folds() -> None:
    """SPEC R12: five at random, seeded, as equal as they can be."""
    for queries, count in ((150, 5), (7, 5), (2, 2), (13, 13)):
        numbers = folds(queries, count)
        sizes = Counter(numbers)
        assert set(sizes) == set(range(count))
        assert max(sizes.values()) - min(sizes.values()) <= 1
        assert all(type(number) is int for number in numbers)
    assert folds(150) == folds(150, 5, 0) != folds(150, 5, 1)
    assert folds(150) != sorted(folds(150)) != [query % 5 for query in range(150)]
    values = np.random.default_rng(1).random((21, 150))
    assert len(fit_alpha(values, folds(150)).chosen) == 5


@pytest.mark.parametrize(("queries", "count"), [(5, 1), (5, 6), (0, 2), (1, 2)])
def test_folds_that_cannot_be_are_declined(queries: int, count: int) -> None:
    with pytest.raises(ParameterError, match="folds"):
        folds(queries, count)


@pytest.mark.parametrize(
    ("values", "groups", "alphas", "message"),
    [
        ([[1.0, 0.0]], ["a", "a"], [0.5], r"two groups or more, not 1: .*folds"),
        (np.zeros((1, 0)), [], [0.5], "two groups or more, not 0"),
        ([[1.0, 0.0]], ["a", "b"], [0.0, 1.0], r"here \(2, 2\), not \(1, 2\)"),
        ([1.0, 0.0], ["a", "b"], [0.0, 1.0], r"not \(2,\)"),
        ([[1.0, np.nan]], ["a", "b"], [0.5], "the values must be finite"),
        ([[1.0, 0.0]] * 2, ["a", "b"], [0.5, 0.5], "ascend"),
        ([[1.0, 0.0]] * 2, ["a", "b"], [1.0, 0.0], "ascend"),
        ([[1.0, 0.0]], ["a", "b"], [np.inf], "finite"),
        (np.zeros((0, 2)), ["a", "b"], [], "alphas"),
    ],
)
def test_bad_input_is_declined(values: object, groups: list[str], alphas: list[float], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        fit_alpha(np.asarray(values), groups, alphas)
