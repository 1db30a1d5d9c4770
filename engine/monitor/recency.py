"""The k* rule: how many of the newest windows are enough to search. Its rate is learned from the windows of used hits.

The age rank of a window is 0 for the newest window that is not empty, 1 for the next, and so on. Suppose that a used
hit has age rank r with probability proportional to ``exp(-rate * r)``. Then the newest k windows hold
``1 - exp(-rate * k)`` of the hits, and ``k* = max(1, ceil(ln(1 / epsilon) / rate))`` windows hold at least
``1 - epsilon`` of them (SPEC A031, A032). If hits are not mostly recent, the rate falls towards 0. Then k* reaches its
cap, and a search of all windows is the right default (A036).

A search of k windows finds no hit beyond them. Fitting the plain law to such hits would raise the rate and lower k*;
the next searches would find even fewer old hits, until one window is left. So each hit counts under the law truncated
to the windows that its search could reach. The estimate then stays unbiased, and a search of one window teaches
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import ParameterError
from ..locks import make_short_lock

EPSILON = 0.05
MAX_WINDOWS = 4
RATE = 1.4
"""Defaults: at most 4 windows (A030), 5 % of the hits missed, and the rate measured on agent workloads (A032)."""

PRIOR = 50.0
"""The number of hits that the initial rate weighs as much as.

From n hits, the standard error of a rate near 1.4 is 1.52 / sqrt(n). k* changes at a rate of 1.0 (ln(20) / 3), which is
.4 away. At 50 hits the error is .21, about half of that, so the k* of fewer hits is mostly noise. Five hits in the
fourth window leave k* at 3; six make it 4.
"""
MEMORY = 4096.0
"""Beyond this number of hits, all earlier hits lose half their weight.

The standard error is then near .03, and the rate still follows changes.
"""

LOWEST, HIGHEST = 1e-3, 50.0


class Recency:
    """The rate of one namespace, and the k* that follows from it. Safe to use from many threads.

    `epsilon` is the share of used hits that may lie beyond the windows searched. `max_windows` caps k* (None: no cap).
    `rate` is the rate until hits are observed. Raises `ParameterError` for a value out of range.
    """

    def __init__(self, epsilon: float = EPSILON, max_windows: int | None = MAX_WINDOWS, rate: float = RATE) -> None:
        _check_number("epsilon", epsilon)
        if not 0.0 < epsilon < 1.0:
            raise ParameterError(f"epsilon must lie in (0, 1), not {epsilon!r}")
        _check_number("rate", rate)
        if not LOWEST <= rate <= HIGHEST:
            raise ParameterError(f"rate must lie in [{LOWEST:g}, {HIGHEST:g}], not {rate!r}")
        self.epsilon = float(epsilon)
        self.max_windows = None if max_windows is None else _integer("max_windows", max_windows, 1)
        self._prior_mean = _mean(float(rate), None)
        self._rate: float | None = float(rate)
        self._sum = 0.0
        # Weights of hits, by the number of windows that their search could reach. There is one entry for each number
        # that was ever in use.
        self._hits: dict[int | None, float] = {}
        self._observed = 0
        self._kept = 0  # hits observed when the changes were last kept
        self._lock = make_short_lock()

    def observe(self, ranks: Iterable[int], windows: int | None = None) -> None:
        """Learn from used hits. `ranks` are the age ranks of their windows, counted over windows that are not empty.

        `windows` is how many of the newest windows the search could reach; None: all windows. Raises `ParameterError`,
        and learns nothing, if a rank is not an integer in [0, windows).
        """
        if windows is not None:
            windows = _integer("windows", windows, 1)
        checked = [_integer("a window's rank", rank, 0) for rank in ranks]
        if not checked:
            return
        if windows is not None and max(checked) >= windows:
            raise ParameterError(f"a hit has window rank {max(checked)}, but the search could reach only {windows}")
        with self._lock:
            self._hits[windows] = self._hits.get(windows, 0.0) + len(checked)
            self._sum += sum(checked)
            self._observed += len(checked)
            self._rate = None
            while sum(self._hits.values()) > MEMORY:
                self._hits = {reach: count / 2.0 for reach, count in self._hits.items()}
                self._sum /= 2.0

    def changes(self) -> dict[str, Any] | None:
        """What was learned, as JSON that `restore` takes; None if nothing was since `mark_kept`."""
        with self._lock:
            return None if self._observed == self._kept else self._learned()

    def learned(self) -> dict[str, Any]:
        """All that was learned, as `changes` gives it."""
        with self._lock:
            return self._learned()

    def _learned(self) -> dict[str, Any]:
        return {"hits": [*map(list, self._hits.items())], "sum": self._sum, "observed": self._observed}

    def mark_kept(self, changes: Mapping[str, Any]) -> None:
        """Note that what `changes` gave is kept."""
        with self._lock:
            self._kept = int(changes["observed"])

    def restore(self, learned: Mapping[str, Any]) -> None:
        """Go on from what `changes` gave."""
        with self._lock:
            self._hits = {reach: float(count) for reach, count in learned["hits"]}
            self._sum, self._observed = float(learned["sum"]), int(learned["observed"])
            self._kept = self._observed
            self._rate = None

    @property
    def rate(self) -> float:
        """The maximum-likelihood rate of all hits and of the prior's `PRIOR` hits; in [LOWEST, HIGHEST]."""
        with self._lock:
            if self._rate is None:
                self._rate = self._fit()
            return self._rate

    def _fit(self) -> float:
        # The likelihood is largest where the expected sum of ranks equals the observed sum. The expected sum falls as
        # the rate grows, so bisection finds the rate.
        observed = self._sum + PRIOR * self._prior_mean
        low, high = LOWEST, HIGHEST
        for _ in range(60):
            middle = 0.5 * (low + high)
            expected = PRIOR * _mean(middle, None)
            expected += sum(count * _mean(middle, reach) for reach, count in self._hits.items())
            if expected > observed:
                low = middle
            else:
                high = middle
        return 0.5 * (low + high)

    def windows(self) -> int:
        """k*: how many of the newest windows to search."""
        needed = max(1, math.ceil(-math.log(self.epsilon) / self.rate))
        return needed if self.max_windows is None else min(needed, self.max_windows)

    def mass(self, windows: int) -> float:
        """The share of used hits that the newest `windows` windows hold under the estimated rate.

        The true share is at least that, as the number of windows is finite.
        """
        return -math.expm1(-self.rate * _integer("windows", windows, 0))

    def to_dict(self) -> dict[str, Any]:
        windows = self.windows()
        return {
            "rate": self.rate,
            "observed": self._observed,
            "epsilon": self.epsilon,
            "max_windows": self.max_windows,
            "windows": windows,
            "mass": self.mass(windows),
        }


def _mean(rate: float, windows: int | None) -> float:
    """The mean age rank under the law truncated to `windows` windows."""
    whole = 1.0 / math.expm1(rate)
    if windows is None or rate * windows > 700.0:  # exp would overflow, and the term left out is 0
        return whole
    return whole - windows / math.expm1(rate * windows)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ParameterError(f"{name} must be a number, not {value!r}")


def _integer(name: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise ParameterError(f"{name} must be an integer of {low} or more, not {value!r}")
    return int(value)
