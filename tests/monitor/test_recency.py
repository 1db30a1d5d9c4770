"""How many windows to search: k* from the rate, the rate from where hits lay."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
from support.threads import in_threads

from fanrank.engine.errors import ParameterError
from fanrank.engine.monitor.recency import MAX_WINDOWS, MEMORY, PRIOR, Recency


def ranks_of(rate: float, count: int, windows: int | None, seed: int) -> list[int]:
    """Age ranks under the law, those beyond the windows never seen."""
    drawn = np.random.default_rng(seed).geometric(-math.expm1(-rate), 20 * count) - 1
    seen = drawn if windows is None else drawn[drawn < windows]
    assert len(seen) >= count
    return [int(rank) for rank in seen[:count]]


def test_the_defaults_give_three_windows() -> None:
    # SPEC A032: ln(20) / 1.4 = 2.14.
    recency = Recency(epsilon=0.05, rate=1.4)
    assert recency.windows() == 3
    assert recency.rate == 1.4
    assert recency.mass(3) == pytest.approx(1.0 - math.exp(-4.2))
    assert recency.mass(0) == 0.0


@pytest.mark.parametrize("epsilon", [0.5, 0.05, 1e-3, 1e-9])
@pytest.mark.parametrize("rate", [0.05, 0.7, 1.4, 9.0])
def test_the_newest_windows_hold_what_they_should(epsilon: float, rate: float) -> None:
    recency = Recency(epsilon, None, rate)
    windows = recency.windows()
    assert recency.mass(windows) >= 1.0 - epsilon - 1e-12
    assert windows == 1 or recency.mass(windows - 1) < 1.0 - epsilon


def test_the_cap() -> None:
    assert Recency(rate=0.1).windows() == MAX_WINDOWS
    assert Recency(rate=0.1, max_windows=2).windows() == 2
    assert Recency(rate=0.1, max_windows=None).windows() == 30


@pytest.mark.parametrize("windows", [None, 3, 4, 60])
@pytest.mark.parametrize("rate", [0.3, 1.0, 1.4, 2.5])
def test_known_rates_are_recovered(rate: float, windows: int | None) -> None:
    # The prior begins at the true rate, so what is tested is what 4,000 hits say: 5 standard errors.
    reach = np.arange(10_000 if windows is None else windows)
    weights = np.exp(-rate * reach) / np.exp(-rate * reach).sum()
    variance = (weights * reach**2).sum() - (weights * reach).sum() ** 2
    recency = Recency(rate=rate)
    recency.observe(ranks_of(rate, 4000, windows, seed=7), windows)
    assert abs(recency.rate - rate) < 5.0 / math.sqrt(4000 * variance)


def test_the_estimate_does_not_feed_on_itself() -> None:
    # Each search reaches k* windows and shows only hits therein. The plain law would climb until one window is left.
    recency, random = Recency(rate=1.4, max_windows=None), np.random.default_rng(3)
    for _ in range(60):
        windows = recency.windows()
        drawn = random.geometric(-math.expm1(-0.8), 100) - 1
        recency.observe(drawn[drawn < windows].tolist(), windows)
    assert recency.rate == pytest.approx(0.8, abs=0.12)
    assert recency.windows() == 4  # ln(20) / .8 = 3.74


def test_one_window_teaches_nothing() -> None:
    recency = Recency(rate=1.4)
    recency.observe([0] * 3000, windows=1)
    assert recency.rate == pytest.approx(1.4)


def test_few_hits_do_not_swing_it() -> None:
    recency = Recency(rate=1.4)
    recency.observe([3] * 5)
    assert recency.windows() == 3
    recency.observe([3])
    assert recency.windows() == 4
    # All hits count alike with those of the prior: mean rank (18 + 50 m) / 56, m the prior's.
    mean = (18.0 + PRIOR / math.expm1(1.4)) / (6.0 + PRIOR)
    assert recency.rate == pytest.approx(math.log1p(1.0 / mean))


def test_old_hits_fade() -> None:
    recency = Recency()
    recency.observe(ranks_of(2.5, 20_000, None, 1))
    for start in range(5):
        recency.observe(ranks_of(0.7, int(MEMORY), None, start + 2))
    assert recency.rate == pytest.approx(0.7, abs=0.08)
    assert recency.to_dict()["observed"] == 20_000 + 5 * int(MEMORY)


def test_to_dict() -> None:
    recency = Recency()
    recency.observe([])
    assert recency.to_dict() == {
        "rate": 1.4,
        "observed": 0,
        "epsilon": 0.05,
        "max_windows": 4,
        "windows": 3,
        "mass": recency.mass(3),
    }


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("epsilon", [0.0, 1.0, math.nan, "0.05"]),
        ("rate", [0.0, -1.0, math.nan, math.inf, True]),
        ("max_windows", [0, 2.5]),
    ],
)
def test_parameters_out_of_range(name: str, values: list[Any]) -> None:
    for bad in values:
        with pytest.raises(ParameterError, match=name):
            Recency(**{name: bad})


@pytest.mark.parametrize(("ranks", "windows"), [([0, -1], None), ([0.5], None), ([1, 3], 3), ([0], 0), (["1"], None)])
def test_ranks_out_of_range_teach_nothing(ranks: list[Any], windows: int | None) -> None:
    recency = Recency()
    with pytest.raises(ParameterError):
        recency.observe(ranks, windows)
    assert (recency.rate, recency.to_dict()["observed"]) == (1.4, 0)
    with pytest.raises(ParameterError):
        recency.mass(-1)


def test_many_threads() -> None:
    recency, alone = Recency(), Recency()
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(200):
            recency.observe([0, 2], 3)
            assert 1 <= recency.windows() <= MAX_WINDOWS

    in_threads(*[work] * 4)
    alone.observe([0, 2] * 800, 3)
    assert recency.to_dict() == alone.to_dict()
