"""Fusion: every method against a plain oracle, batches against single queries, and the registry."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import fuse_oracle
from support.fuse_cases import Document, Evidence, FusionQuery, batch_of, batches, large
from support.fuse_oracle import NAMES, Shares

from fanrank.engine.errors import ParameterError, RecencyWarning
from fanrank.engine.fuse import FUSIONS, fusion_of, fusion_to_dict
from fanrank.engine.fuse.agent_rrf import AgentRRF
from fanrank.engine.fuse.boosted import Boosted
from fanrank.engine.fuse.candidates import Candidates, Fused, best, ranks_of
from fanrank.engine.fuse.decay import Decay
from fanrank.engine.fuse.fusion import Fusion
from fanrank.engine.fuse.linear import Linear
from fanrank.engine.fuse.minmax import MinMax
from fanrank.engine.fuse.rrf import RRF
from fanrank.engine.fuse.score_rrf import ScoreRRF
from fanrank.engine.fuse.zscore import ZScore

Oracle = Callable[[FusionQuery], Shares]
WEIGHTS = {"dense": 0.4, "other": 0.0}

TAUS = {"multi-session": 120.0}
LEANING = ["temporal-reasoning", "knowledge-update", "multi-session"]
CASES: list[tuple[Fusion, Oracle]] = [
    (RRF(), fuse_oracle.rrf),
    (RRF(k=10, base=0, weights=WEIGHTS), lambda asked: fuse_oracle.rrf(asked, 10.0, 0, WEIGHTS)),
    (RRF(k=0), lambda asked: fuse_oracle.rrf(asked, 0.0)),
    (ScoreRRF(), fuse_oracle.score_rrf),
    (
        ScoreRRF(weights=WEIGHTS, scales={"bm25": "ratio", "dense": "max", "other": "clamp"}),
        lambda asked: fuse_oracle.score_rrf(asked, WEIGHTS, {"bm25": "ratio", "dense": "max", "other": "clamp"}),
    ),
    (ScoreRRF(scales={"other": "one"}), lambda asked: fuse_oracle.score_rrf(asked, scales={"other": "one"})),
    (ZScore(), lambda asked: fuse_oracle.zscore(asked, 0.5)),
    (ZScore(alpha=0.15), lambda asked: fuse_oracle.zscore(asked, 0.15)),
    (
        Linear({"bm25": 5.8, "dense": -0.95, "other": 0.0}, ("bm25", "other")),
        lambda asked: fuse_oracle.linear(asked, {"bm25": 5.8, "dense": -0.95, "other": 0.0}, ["bm25", "other"]),
    ),
    (Linear(), lambda asked: fuse_oracle.linear(asked, {"bm25": 1.0, "dense": 1.0}, ["bm25"])),
    (Boosted(), lambda asked: fuse_oracle.boosted(asked, 0.6, 0.5, {})),
    (
        Boosted(alpha=0.3, first="other", below=0.0, boosts={"bm25": 2.0}),
        lambda asked: fuse_oracle.boosted(asked, 0.3, 0.0, {"bm25": 2.0}, "other"),
    ),
    (MinMax(), lambda asked: fuse_oracle.minmax(asked, 0.1, False)),
    (MinMax(weight=0.35, normalize_dense=True), lambda asked: fuse_oracle.minmax(asked, 0.35, True)),
    (AgentRRF(), lambda asked: fuse_oracle.agent_rrf(asked, 0.005, 0.0, {}, LEANING)),
    (AgentRRF(tau_days_by_type=TAUS), lambda asked: fuse_oracle.agent_rrf(asked, 0.005, 0.0, TAUS, LEANING)),
    (
        AgentRRF(alpha=0.01, beta=0.02, tau_days_by_type={"unheard of": 7.0}, recency_types=None),
        lambda asked: fuse_oracle.agent_rrf(asked, 0.01, 0.02, {"unheard of": 7.0}, None),
    ),
    (AgentRRF(alpha=0, beta=1), lambda asked: fuse_oracle.agent_rrf(asked, 0.0, 1.0, {}, LEANING)),
    (Decay(), lambda asked: fuse_oracle.decay(asked, "bm25", 0.01, False)),
    (Decay(channel="dense", rate=0.1, whole_hours=True), lambda asked: fuse_oracle.decay(asked, "dense", 0.1, True)),
]


def check(fusion: Fusion, oracle: Oracle, batch: list[FusionQuery]) -> None:
    candidates = batch_of(batch, NAMES)
    fused = fusion(candidates)
    expected = [shares for asked in batch for shares in oracle(asked)]
    read = ("bm25", "dense", "other") if isinstance(fusion, (RRF, Boosted, Linear)) else fusion.reads
    total = np.zeros(len(candidates.documents))
    for part, share in fused.shares.items():
        assert share.dtype == np.float64
        np.testing.assert_array_equal(share, [shares[part] for shares in expected])
        total = total + share
    np.testing.assert_array_equal(fused.scores, total)
    for shares in expected:
        assert list(shares) == list(fused.shares)
    documents = [document for asked in batch for document in asked.documents]
    assert fused.kept.tolist() == [any(document.evidence[name].listed for name in read) for document in documents]
    assert np.isfinite(fused.scores).all()


cases = pytest.mark.parametrize(("fusion", "oracle"), CASES, ids=[str(fusion) for fusion, _ in CASES])


@cases
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_the_oracle_agrees(fusion: Fusion, oracle: Oracle, data: st.DataObject) -> None:
    # A score below 0 would rise with age.
    check(fusion, oracle, data.draw(batches(signed=not isinstance(fusion, Decay))))


@cases
def test_the_oracle_agrees_on_long_lists(fusion: Fusion, oracle: Oracle) -> None:
    check(fusion, oracle, large(0))


@cases
def test_a_query_alone_scores_as_in_a_long_batch(fusion: Fusion, oracle: Oracle) -> None:
    batch = large(7)
    together, place = fusion(batch_of(batch, NAMES)), 0
    for asked in batch:
        alone = fusion(batch_of([asked], NAMES))
        stretch = slice(place, place + len(asked.documents))
        place = stretch.stop
        assert alone.scores.tobytes() == together.scores[stretch].tobytes()
        assert alone.kept.tolist() == together.kept[stretch].tolist()
        assert list(alone.shares) == list(together.shares)
        for part, share in alone.shares.items():
            assert share.tobytes() == together.shares[part][stretch].tobytes()


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from([-1.5, -0.0, 0.0, 0.5, 3.0, np.inf, -np.inf]), st.booleans()))),
    st.lists(st.integers(0, 9), min_size=40, max_size=40),
    st.integers(0, 9),
)
def test_ranks_and_the_best(rows: list[list[tuple[float, bool]]], wanted: list[int], width: int) -> None:
    k = np.array(wanted[: len(rows)] + [3] * (len(rows) - len(wanted)), dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    scores = np.array([score for row in rows for score, _ in row], dtype=np.float64)
    kept = np.array([flag for row in rows for _, flag in row], dtype=np.bool_)
    numbers = [10 * place + 3 for row in rows for place in range(len(row))]
    nothing = np.zeros(0)
    candidates = Candidates(offsets, np.array(numbers, dtype=np.int64), {}, nothing, nothing, nothing, ())

    ranks = ranks_of(scores, kept, offsets)
    found_scores, found_documents, found_places = best(Fused(scores, {}, kept), candidates, k, width)
    assert ranks.dtype == found_documents.dtype == found_places.dtype == np.int64
    assert found_scores.shape == found_documents.shape == found_places.shape == (len(rows), width)
    for row, own in enumerate(rows):
        first = int(offsets[row])
        order = sorted(
            (place for place, (_, flag) in enumerate(own) if flag), key=lambda place: (-own[place][0], place)
        )
        expected = [0] * len(own)
        for rank, place in enumerate(order, 1):
            expected[place] = rank
        assert ranks[first : first + len(own)].tolist() == expected
        taken = order[: min(int(k[row]), width)]
        padding = width - len(taken)
        assert found_scores[row].tolist() == [own[place][0] for place in taken] + [-np.inf] * padding
        assert found_documents[row].tolist() == [10 * place + 3 for place in taken] + [-1] * padding
        assert found_places[row].tolist() == [first + place for place in taken] + [-1] * padding


def test_worth_by_the_name_of_the_channel() -> None:
    # Two of four candidates are listed by words, one of them also by each other channel.
    def evidence(score: float, listed: bool) -> Evidence:
        return Evidence(score, listed, listed)

    rows = [
        (evidence(1.0, True), evidence(0.4, True), evidence(1.0, True), evidence(9e8, True)),
        (evidence(1.0, True), evidence(0.0, False), evidence(0.0, False), evidence(0.0, False)),
        (evidence(0.0, False), evidence(7.0, True), evidence(1.0, True), evidence(8e8, True)),
        (evidence(0.0, False), evidence(-1.0, True), evidence(0.0, False), evidence(0.0, False)),
    ]
    names = ["bm25", "graph", "hints", "temporal", "dense"]
    documents = [
        Document(number, dict(zip(names, (*row, evidence(0.0, False)), strict=True))) for number, row in enumerate(rows)
    ]
    shares = Boosted()(batch_of([FusionQuery(documents)], names)).shares
    assert shares["graph"].tolist() == [0.5 * 0.5 * 0.4, 0.0, 0.5 * 0.5, 0.0]
    assert shares["hints"].tolist() == [0.25, 0.0, 0.25 * 61 / 62, 0.0]  # not tied here, so of two ranks
    assert shares["temporal"].tolist() == [0.5, 0.0, 0.5 * 61 / 62, 0.0]


FIELDS: list[dict[str, Any]] = [
    {"name": "rrf", "k": 20, "base": 0, "weights": {"bm25": 0.5}},
    {"name": "score_rrf", "weights": {"dense": 2.0}, "scales": {"dense": "max"}},
    {"name": "zscore", "alpha": 0.4, "first": "sparse", "second": "late"},
    {"name": "minmax", "weight": 0.2, "normalize_dense": True},
    {"name": "agent_rrf", "tau_days": 14.0, "tau_days_by_type": None, "recency_types": ["a", "b"]},
    {"name": "decay", "channel": "dense", "rate": 0.1, "whole_hours": True},
    {"name": "linear", "weights": {"bm25": 2.0, "late": -0.5}, "relative": ["bm25", "late"]},
    {"name": "boosted", "alpha": 0.6, "below": 1.0, "boosts": {"graph": 0.0}},
]


@pytest.mark.parametrize("data", [*FUSIONS, *FIELDS], ids=str)
def test_fusions_are_plain_values(data: str | dict[str, Any]) -> None:
    fusion = fusion_of(data)
    written = fusion_to_dict(fusion)
    again = fusion_of(json.loads(json.dumps(written)))
    assert again == fusion == pickle.loads(pickle.dumps(fusion))
    assert hash(again) == hash(fusion)
    assert repr(again) == repr(fusion)
    if isinstance(data, dict):
        assert data.items() <= written.items()
    else:
        assert written["name"] == fusion.name == data
        assert type(fusion) is FUSIONS[data]
    with pytest.raises(AttributeError):
        fusion.name = "other"  # type: ignore[misc]


def test_every_method_is_registered_and_tested() -> None:
    assert list(FUSIONS) == ["rrf", "score_rrf", "zscore", "minmax", "agent_rrf", "decay", "boosted", "linear"]
    assert {fusion.name for fusion, _ in CASES} == set(FUSIONS) == {data["name"] for data in FIELDS}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("rrff", r"unknown fusion 'rrff'; did you mean 'rrf'\? There are: rrf, "),
        ({"k": 60}, "unknown fusion None"),
        ({"name": ["rrf"]}, "unknown fusion"),
        (7, "a name or a mapping"),
        ({"name": "rrf", "alpha": 0.5}, "no parameter 'alpha'; there are: k, base, weights"),
        ({"name": "rrf", "k": -1}, "the k of reciprocal ranks must be a finite number of at least 0, not -1"),
        ({"name": "rrf", "k": float("nan")}, "not nan"),
        ({"name": "rrf", "k": 10**400}, "finite"),
        ({"name": "rrf", "k": 0, "base": 0}, "above 0, not 0"),
        ({"name": "rrf", "k": True}, "not True"),
        ({"name": "rrf", "k": "60"}, "not '60'"),
        ({"name": "rrf", "base": 2}, "0 or 1, not 2"),
        ({"name": "rrf", "base": True}, "not True"),
        ({"name": "rrf", "weights": 2.0}, "weights must be a mapping"),
        ({"name": "rrf", "weights": {"bm25": -1.0}}, r"weights\['bm25'\]"),
        ({"name": "rrf", "weights": {"": 1.0}}, "a name in weights"),
        ({"name": "score_rrf", "scales": {"bm25": "log"}}, "one of clamp, max, ratio, one, not 'log'"),
        ({"name": "score_rrf", "scales": {3: "max"}}, "a name in scales"),
        ({"name": "score_rrf", "scales": "max"}, "scales must be a mapping"),
        ({"name": "zscore", "alpha": 1.5}, "at most 1, not 1.5"),
        ({"name": "zscore", "first": ""}, "the first channel"),
        ({"name": "zscore", "first": "dense"}, "'dense' twice"),
        ({"name": "minmax", "second": 3}, "the second channel"),
        ({"name": "minmax", "weight": None}, "not None"),
        ({"name": "minmax", "normalize_dense": 1}, "True or False, not 1"),
        ({"name": "agent_rrf", "alpha": -0.1}, "alpha, the weight of recency"),
        ({"name": "agent_rrf", "tau_days": 0}, "tau_days must be a finite number above 0"),
        ({"name": "agent_rrf", "tau_days_by_type": {"a": 0.0}}, r"tau_days_by_type\['a'\]"),
        ({"name": "agent_rrf", "recency_types": "multi-session"}, "a list of names"),
        ({"name": "agent_rrf", "recency_types": [None]}, "a recency type"),
        ({"name": "decay", "channel": None}, "the channel that decays"),
        ({"name": "decay", "rate": -0.01}, "rate, the lambda"),
        ({"name": "decay", "whole_hours": "yes"}, "whole_hours"),
    ],
)
def test_bad_fusions_are_declined(data: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        fusion_of(data)


@pytest.mark.parametrize(
    "fusion",
    [
        RRF(weights={"colbert": 1.0}),
        ScoreRRF(scales={"colbert": "max"}),
        AgentRRF(weights={"colbert": 1.0}),
        ZScore(first="colbert"),
        MinMax(second="colbert"),
        Decay("colbert"),
    ],
    ids=str,
)
def test_a_channel_that_is_not_there_is_named(fusion: Fusion) -> None:
    assert "colbert" in fusion.reads
    with pytest.raises(ParameterError, match="names the channel 'colbert'; the strategy has: bm25, dense, other"):
        fusion(batch_of(large(0), NAMES))
    with pytest.raises(ParameterError, match="the strategy has: none"):
        fusion(replace(batch_of([], NAMES), channels={}))


def test_too_much_recency_is_warned_of() -> None:
    """SPEC A065, X08: what the grid of alpha and tau (A066) shows to cost more than a point is what is warned of."""
    grid = {0.001: 0.9695, 0.003: 0.9665, 0.005: 0.9657, 0.010: 0.9490, 0.030: 0.7493}  # the least over tau
    for alpha, recall in grid.items():
        if recall < 0.94:
            with pytest.warns(RecencyWarning, match=r"alpha 0\.03 is above 0\.01.*\.75") as seen:
                AgentRRF(alpha=alpha)
            assert seen[0].filename == __file__
        else:
            AgentRRF(alpha=alpha)
    with pytest.warns(RecencyWarning):
        fusion_of({"name": "agent_rrf", "alpha": 0.0101})
