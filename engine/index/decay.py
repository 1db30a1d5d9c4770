"""Scores that fade with age, exactly: the same float64 on every backend (SPEC C001, C003, C004, X03).

An age is counted in *ticks* of 1/65,536 half-life. T is a table of one half-life in steps of a tick. A document whose
contributions add up to the integer S quanta scores::

    ticks        = floor((now - time) * rate)                          rate = 65536 / half-life; never negative (A062)
    whole, part  = ticks >> 16, ticks & 65535
    decayed      = (float64(S) * float64(T[part])) * 2.0 ** -(whole + 30)

in quanta. The second multiplication is by a power of two and rounds nothing, so all backends and devices give the same
bits. A document with more quanta never scores less, and neither does a younger document. The bits of positive float64
numbers, read as integers, have the same order as the numbers. So `decayed_bits` can be ranked as wide integer scores.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..arrays import Floats
from ..errors import ParameterError

PART_BITS = 16
TICKS = 1 << PART_BITS
"""Ticks in a half-life. An age is off by at most one tick, so a factor is off by at most 1.1e-5 of itself."""
MAX_HALF_LIVES = 900
"""Ages above this many half-lives count as this many. So the least power of two that `decay` needs is 2**-930, a normal
float64."""
FACTOR_BITS = 30


TABLE: npt.NDArray[np.int32] = np.rint(2.0**FACTOR_BITS * np.exp2(-np.arange(TICKS) / TICKS)).astype(np.int32)
"""T: ``round(2**30 * 2**(-i / 65536))``, from 2**30 down to just above 2**29.

No exact value is closer than 2e-5 to a rounding boundary, and float64 is off by some 2e-7. So every libm gives the same
table.
"""
TABLE.flags.writeable = False


def rate_of(half_life: float) -> float:
    """Ticks a second. Raises `ParameterError` unless `half_life`, in seconds, is finite and above 1e-300."""
    if not 1e-300 < half_life < np.inf:
        raise ParameterError(
            f"half_life is the seconds in which a score halves, finite and above 1e-300, not {half_life!r}; leave it "
            "out for scores that do not decay"
        )
    return TICKS / half_life


def ticks_of(times: Floats, now: float | Floats, rate: float | Floats) -> npt.NDArray[np.int64]:
    """The age in ticks of documents written at `times` (seconds). It is 0 for a time in the future and for a document
    without a time (+inf or NaN).

    `now` and `rate` are each one number for all documents, or one for each. A rate of 0 gives 0.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        age = (now - np.asarray(times, dtype=np.float64)) * rate
        return np.where(age > 0.0, np.minimum(age, MAX_HALF_LIVES << PART_BITS), 0.0).astype(np.int64)


def decay(scores: npt.NDArray[np.int64], ticks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """These scores, integers of at least 0, decayed by these ages; in quanta."""
    whole, remainder = ticks >> PART_BITS, ticks & TICKS - 1
    products = np.asarray(scores).astype(np.float64) * TABLE[remainder].astype(np.float64)
    return np.asarray(np.ldexp(products, -(whole + FACTOR_BITS)))


def decayed_bits(
    scores: npt.NDArray[np.int64], times: Floats, now: float | Floats, rate: float | Floats
) -> npt.NDArray[np.int64]:
    """The bits of the scores that `decay` gives, as integers; they are ordered as the scores are."""
    return decay(scores, ticks_of(times, now, rate)).view(np.int64)
