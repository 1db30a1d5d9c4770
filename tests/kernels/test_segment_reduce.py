"""Rows to documents in numpy and Triton's interpreter, against plain loops (SPEC D001, D020, X26)."""

import math
import os
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanrank.engine.arrays import offsets_of
from fanrank.engine.backends import choose as backend
from fanrank.engine.errors import ParameterError
from fanrank.engine.vectors.interaction import KINDS, Interaction
from fanrank.engine.vectors.segment_reduce import segment_reduce as numpy_reduce

Reduce = Callable[[np.ndarray, np.ndarray, Interaction], np.ndarray]


def of_triton(cosines: np.ndarray, offsets: np.ndarray, interaction: Interaction) -> np.ndarray:
    os.environ.setdefault("TRITON_INTERPRET", "1")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    triton = pytest.importorskip("triton", reason="triton is not installed")
    from fanrank.kernels.triton import segment_reduce as kernel

    if isinstance(kernel._segment_reduce, triton.runtime.JITFunction):
        pytest.skip("triton was imported without TRITON_INTERPRET=1")
    status = next(status for status in backend.statuses() if status.name == "triton")
    if not status.usable:
        pytest.skip(status.reason)
    # Several programs, several chunks of a segment.
    small = kernel.Settings(segments=4, rows=4)
    found: np.ndarray = kernel.segment_reduce(torch.tensor(cosines), torch.tensor(offsets), interaction, small).numpy()
    return found


PATHS: list[Reduce] = [numpy_reduce, of_triton]
paths = pytest.mark.parametrize("reduce", PATHS, ids=["numpy", "triton"])


def plain(values: list[float], interaction: Interaction) -> float:
    if not values:
        return -math.inf
    if interaction.kind == "late":
        best = values[0]
        for value in values:
            best = max(best, value)
        return best
    if interaction.kind == "top":
        largest = sorted(values, reverse=True)[: interaction.rows]
        total = 0.0
        for value in largest:
            total += value
        return total / len(largest)
    total = 0.0
    for value in values:
        total += math.exp(interaction.beta * (value - max(values)))
    if interaction.kind == "lme":
        total /= len(values)
    return max(values) + math.log(total) / interaction.beta


def check(reduce: Reduce, cosines: np.ndarray, counts: list[int], interaction: Interaction) -> None:
    offsets = offsets_of(counts)
    found = reduce(cosines, offsets, interaction)
    assert (found.shape, found.dtype) == ((len(cosines), len(counts)), np.float64)
    for own, row in zip(found.tolist(), cosines.tolist(), strict=True):
        for segment, count in enumerate(counts):
            expected = plain(row[offsets[segment] : offsets[segment + 1]], interaction)
            if interaction.exact or not count:
                assert own[segment] == expected
            else:
                assert abs(own[segment] - expected) <= 2 * interaction.rounding(count)


INTERACTIONS = st.builds(
    Interaction,
    kind=st.sampled_from([kind for kind in KINDS if kind != "early"]),
    rows=st.sampled_from([1, 2, 3, 5, 40]),
    beta=st.sampled_from([1e-6, 0.5, 10.0, 1000.0, 1e6]),
)


def cosines_of(seed: int, queries: int, rows: int, few: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if few:
        return rng.choice([-1.0, -0.25, 0.0, 0.25, 0.3], size=(queries, rows))
    return rng.uniform(-1.01, 1.01, size=(queries, rows))


@paths
@settings(deadline=None, max_examples=10)
@given(
    seed=st.integers(0, 1 << 32),
    queries=st.integers(0, 3),
    counts=st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5, 8, 9, 33]), max_size=9),
    interaction=INTERACTIONS,
    few=st.booleans(),
)
def test_reduction(
    reduce: Reduce, seed: int, queries: int, counts: list[int], interaction: Interaction, few: bool
) -> None:
    check(reduce, cosines_of(seed, queries, sum(counts), few), counts, interaction)


@paths
@pytest.mark.parametrize("kind", ["top", "lse"])
def test_a_long_segment_beside_short_ones(reduce: Reduce, kind: str) -> None:
    """More of the largest than float64 adds exactly: the order of the sum counts."""
    interaction = Interaction(kind, rows=33, beta=10.0)  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    check(reduce, rng.uniform(-1, 1, size=(2, 50)) / 3, [0, 3, 0, 40, 0, 7, 0], interaction)


@paths
def test_early_is_no_reduction(reduce: Reduce) -> None:
    with pytest.raises(ValueError, match="centroids"):
        reduce(np.zeros((1, 1)), np.array([0, 1]), Interaction("early"))


@paths
@pytest.mark.parametrize("kind", ["late", "top", "lse", "lme"])
def test_a_number_depends_on_its_segment_alone(reduce: Reduce, kind: str) -> None:
    interaction = Interaction(kind)  # type: ignore[arg-type]
    counts = [3, 1, 17, 2]
    offsets, cosines = offsets_of(counts), cosines_of(5, 3, sum(counts), False)
    whole = reduce(cosines, offsets, interaction)
    for query in range(len(cosines)):
        for segment, count in enumerate(counts):
            own = np.ascontiguousarray(cosines[query : query + 1, offsets[segment] : offsets[segment + 1]])
            alone = reduce(own, np.array([0, count]), interaction)
            assert alone[0, 0] == whole[query, segment]


def test_numpy_takes_float32_and_any_layout() -> None:
    cosines = np.asfortranarray(cosines_of(2, 3, 10, True).astype(np.float32))
    found = numpy_reduce(cosines, offsets_of([4, 0, 6]), Interaction())
    assert found.dtype == np.float32
    assert found[:, 2].tolist() == cosines[:, 4:].max(axis=1).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_scores_its_cosine(kind: str) -> None:
    if kind != "early":
        found = numpy_reduce(np.array([[0.123]]), np.array([0, 1]), Interaction(kind))  # type: ignore[arg-type]
        assert found.tolist() == [[0.123]]


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "mean"},
        {"kind": "top", "rows": 0},
        {"rows": True},
        {"rows": 1.5},
        {"beta": 0.0},
        {"beta": -1.0},
        {"beta": 1e7},
        {"beta": math.nan},
        {"beta": math.inf},
        {"beta": "10"},
        {"beta": True},
    ],
)
def test_interactions_refuse(options: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        Interaction(**options)  # type: ignore[arg-type]


def test_names_of_interactions() -> None:
    given_ones = [
        Interaction("early"),
        Interaction(),
        Interaction("top"),
        Interaction("lse"),
        Interaction("lme", beta=2),
    ]
    assert [str(one) for one in given_ones] == ["early", "late", "top3", "lse10", "lme2"]
    assert [one.exact for one in given_ones] == [True, True, True, False, False]
