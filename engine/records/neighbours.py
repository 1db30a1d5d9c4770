"""`Neighbours`: what a record borrows from the records before and after it in its session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import QueryError, refuse_unknown
from ..locks import once
from .checks import naming, shorten

STEP_BITS = 6
"""Weights are whole numbers of steps of ``2**-STEP_BITS``, so a sum of quanta and borrowed quanta is an integer."""
STEPS = 1 << STEP_BITS
MAX_WINDOW = 8


@naming
@dataclass(frozen=True)
class Neighbours:
    """What a record borrows from its neighbours, when it is scored.

    ``score(d) + sum over o = 1..window of weight_o * (score(d - o) + score(d + o))``: a record's own score, and a share
    of those of the records that stand up to `window` places before and after it in its session. A neighbour is a live
    record of the same session and namespace, in the order of arrival. Other sessions may stand between. A record
    without a session has no neighbours.

    `window` is 0 to 8; with 0 nothing is borrowed. `weight` is one number for all distances, or one for each, in
    (0, 1], rounded to a multiple of 1/64. Raises `QueryError` for anything else, and for a weight below 1/128, which
    would be rounded to 0.
    """

    window: int = 2
    weight: float | Sequence[float] = 0.25

    def __post_init__(self) -> None:
        if isinstance(self.window, bool) or not isinstance(self.window, (int, np.integer)):
            raise QueryError(f"neighbours: the window must be an integer, not {shorten(self.window)}")
        if not 0 <= self.window <= MAX_WINDOW:
            raise QueryError(f"neighbours: the window must lie in [0, {MAX_WINDOW}], not {self.window}")
        object.__setattr__(self, "window", int(self.window))
        if isinstance(self.weight, (str, bytes)) or not isinstance(self.weight, Sequence):
            object.__setattr__(self, "weight", _checked(self.weight))
            return
        if len(self.weight) != self.window:
            raise QueryError(
                f"neighbours: {len(self.weight)} weights for a window of {self.window}; give one number, or one for "
                "each distance"
            )
        object.__setattr__(self, "weight", tuple([_checked(weight) for weight in self.weight]))

    @once
    def steps(self) -> tuple[int, ...]:
        """[window] the weight of each distance, in steps of 1/64."""
        return tuple([round(weight * STEPS) for weight in self._weights(self.window)])

    def _weights(self, repeated: int) -> tuple[float, ...]:
        """The weight of each distance; one that is for all of them, so many times."""
        given = self.weight
        return tuple(given) if isinstance(given, Sequence) else (given,) * repeated

    @classmethod
    def of(cls, value: object) -> Neighbours:
        """`value`, or what a mapping with `window` and `weight` stands for. Raises `QueryError`."""
        if isinstance(value, Neighbours):
            return value
        if not isinstance(value, Mapping):
            raise QueryError(
                f"neighbours must be a Neighbours, or a mapping with 'window' and 'weight', not {shorten(value)}"
            )
        refuse_unknown(value, ("window", "weight"), "neighbours have no", QueryError)
        given: dict[str, Any] = dict(value)
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, which `of` takes."""
        return {"window": self.window, "weight": list(self.weight) if isinstance(self.weight, tuple) else self.weight}

    def __str__(self) -> str:
        return f"{self.window} neighbours by {', '.join(f'{weight:g}' for weight in self._weights(1))}"


def _checked(weight: object) -> float:
    """The weight as a multiple of a step."""
    if isinstance(weight, bool) or not isinstance(weight, (int, float, np.integer, np.floating)):
        raise QueryError(f"neighbours: a weight must be a number, not {shorten(weight)}")
    if not 0.5 / STEPS < weight <= 1.0:
        raise QueryError(
            f"neighbours: a weight must lie in (1/{2 * STEPS}, 1], not {shorten(weight)}; for none, use window 0"
        )
    return round(float(weight) * STEPS) / STEPS
