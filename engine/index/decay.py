"""Scores that fade with age, exactly: the same float64 on every backend (SPEC C001, C003, C004, X03).

An age is counted in *ticks* of 1/65,536 half-life. With T the table of one half-life in steps of a tick, a document
whose contributions add up to the integer S quanta scores::

    ticks        = floor((now - time) * rate)                          rate = 65536 / half-life; never negative (A062)
    whole, part  = ticks >> 16, ticks & 65535
    decayed      = (float64(S) * float64(T[part])) * 2.0 ** -(whole + 30)

in quanta. The second multiplication is by a power of two and rounds nothing, so any order of backends and devices gives
the same bits. More quanta never score less, and neither does a younger document. The bits of positive float64 numbers
are ordered as integers, so `decayed_bits` rank like the wide integer scores that they stand in for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..arrays import Floats
from ..errors import ParameterError

PART_BITS = 16
TICKS = 1 << PART_BITS
"""Ticks in a half-life. A factor is off by at most one: 1.1e-5 of itself."""
MAX_HALF_LIVES = 900
"""Older than this is as old as this: 2**-930, the least power of two that `decay` needs, is a normal float64."""
FACTOR_BITS = 30


TABLE: npt.NDArray[np.int32] = np.rint(2.0**FACTOR_BITS * np.exp2(-np.arange(TICKS) / TICKS)).astype(np.int32)
"""T: ``round(2**30 * 2**(-i / 65536))``, from 2**30 down to just above 2**29.

No exact value lies nearer than 2e-5 to where rounding turns, and float64 is off by some 2e-7: no libm can show.
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
    """Age in ticks of documents written at `times` (seconds): 0 from the future or without a time (+inf or NaN).

    `now` and `rate` are one for all, or each document's own. A rate of 0 gives 0.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        age = (now - np.asarray(times, dtype=np.float64)) * rate
        return np.where(age > 0.0, np.minimum(age, MAX_HALF_LIVES << PART_BITS), 0.0).astype(np.int64)


def decay(scores: npt.NDArray[np.int64], ticks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """What these scores, integers of at least 0, are worth at these ages; in quanta."""
    whole, part = ticks >> PART_BITS, ticks & TICKS - 1
    products = np.asarray(scores).astype(np.float64) * TABLE[part].astype(np.float64)
    return np.asarray(np.ldexp(products, -(whole + FACTOR_BITS)))


def decayed_bits(
    scores: npt.NDArray[np.int64], times: Floats, now: float | Floats, rate: float | Floats
) -> npt.NDArray[np.int64]:
    """The bits of `decay` as integers, in the same order."""
    return decay(scores, ticks_of(times, now, rate)).view(np.int64)
