"""How many of the newest windows are enough: the k* rule, with its rate learned from where used hits lay.

If the window of a used hit has age rank r (0: the newest that is not empty) with probability proportional to
``exp(-rate * r)``, the newest k windows hold ``1 - exp(-rate * k)`` of the hits, and ``k* = max(1, ceil(ln(1 / epsilon)
/ rate))`` windows hold at least ``1 - epsilon`` (SPEC A031, A032). The rate falls towards 0 where hits do not lean
towards the recent; then k* reaches its cap, and a search of all windows is the right default (A036).

A search of k windows shows no hit beyond them. Fitting the plain law to such hits would raise the rate, lower k*, and
show fewer still, until one window is left. So each hit counts under the law truncated to the windows that its search
could reach; the estimate stays unbiased, and a search of one window teaches nothing.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import ParameterError

EPSILON = 0.05
MAX_WINDOWS = 4
RATE = 1.4
"""Defaults: at most 4 windows (A030), 5 % of the hits missed, and the rate measured on agent workloads (A032)."""

PRIOR = 50.0
"""Hits that the initial rate counts for.

From n hits the standard error of a rate near 1.4 is 1.52 / sqrt(n), and k* changes at 1.0 (ln(20) / 3). At 50 hits that
error is .21, half the way: what fewer hits say about k* is mostly noise. Five hits in the fourth window leave k* at 3,
six make it 4.
"""
MEMORY = 4096.0
"""Hits after which older ones lose half their weight: a standard error near .03, and changes are followed."""

LOWEST, HIGHEST = 1e-3, 50.0


class Recency:
    """The rate of one namespace, and k* from it. Safe to use from many threads.

    `epsilon` is the share of used hits that may lie beyond the windows searched; `max_windows` caps k* (None: no cap);
    `rate` is believed until hits are observed. Raises `ParameterError` for a value out of range.
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
        # Hits by the number of windows that their search could reach: one entry for each number ever in use.
        self._hits: dict[int | None, float] = {}
        self._observed = 0
        self._lock = threading.Lock()

    def observe(self, ranks: Iterable[int], windows: int | None = None) -> None:
        """Learn from used hits: the age rank of each one's window, counted over the windows that are not empty.

        `windows` is how many of the newest windows the search could reach, None for all there are or will be. Raises
        `ParameterError`, and learns nothing, if a rank is not an integer in [0, windows).
        """
        if windows is not None:
            windows = _integer("windows", windows, 1)
        taken = [_integer("a window's rank", rank, 0) for rank in ranks]
        if not taken:
            return
        if windows is not None and max(taken) >= windows:
            raise ParameterError(f"a hit has window rank {max(taken)}, but the search could reach only {windows}")
        with self._lock:
            self._hits[windows] = self._hits.get(windows, 0.0) + len(taken)
            self._sum += sum(taken)
            self._observed += len(taken)
            self._rate = None
            while sum(self._hits.values()) > MEMORY:
                self._hits = {reach: count / 2.0 for reach, count in self._hits.items()}
                self._sum /= 2.0

    @property
    def rate(self) -> float:
        """The maximum-likelihood rate of all hits, the prior's `PRIOR` hits among them; in [LOWEST, HIGHEST]."""
        with self._lock:
            if self._rate is None:
                self._rate = self._fit()
            return self._rate

    def _fit(self) -> float:
        # The likelihood is stationary where the expected sum of ranks, which falls as the rate grows, is the one seen.
        seen = self._sum + PRIOR * self._prior_mean
        low, high = LOWEST, HIGHEST
        for _ in range(60):
            middle = 0.5 * (low + high)
            expected = PRIOR * _mean(middle, None)
            expected += sum(count * _mean(middle, reach) for reach, count in self._hits.items())
            if expected > seen:
                low = middle
            else:
                high = middle
        return 0.5 * (low + high)

    def windows(self) -> int:
        """k*: how many of the newest windows to search."""
        needed = max(1, math.ceil(-math.log(self.epsilon) / self.rate))
        return needed if self.max_windows is None else min(needed, self.max_windows)

    def mass(self, windows: int) -> float:
        """The share of used hits that the newest `windows` windows hold under the estimate: at least that, as there are
        only finitely many."""
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
    if windows is None or rate * windows > 700.0:  # exp would overflow, and nothing lies that far
        return whole
    return whole - windows / math.expm1(rate * windows)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ParameterError(f"{name} must be a number, not {value!r}")


def _integer(name: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise ParameterError(f"{name} must be an integer of {low} or more, not {value!r}")
    return int(value)
