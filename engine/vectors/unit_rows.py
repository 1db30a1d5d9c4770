"""Vectors of callers as unit vectors in half precision."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .vectors import Halves


UNIT = 2.0**-10
"""How far from 1 the length of a vector of length 1 is after its components are rounded to half precision, at most."""


FIRST = 16
"""Components that tell most rows that float16 does not hold exactly."""


def unit_rows(value: Any) -> Halves:
    """These vectors [d] or [n, d] as unit vectors in half precision, float16 [n, d], read-only.

    A row that float16 holds exactly and whose length is 1 but for rounding (`UNIT`) stays as it is, so that what was
    normalised once keeps its bits however often it is read and written again. Raises `ValueError` as `normalize`, for
    the caller to name what they are of, and for no row at all.
    """
    # Not above: engine/vectors/vectors.py needs engine/index/columns.py, and that needs this module.
    from .vectors import as_rows, normalize

    try:
        given = as_rows(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError("must be numbers, all rows of one length") from None
    made = normalize(given)
    if not len(made):
        raise ValueError("has no row; leave it out where there is no vector")
    # Their first components tell nearly all other rows, which cost next to nothing so.
    for row in np.flatnonzero(_exact(given[:, :FIRST])).tolist():
        own = given[row].astype(np.float64)
        if _exact(own) and abs(math.sqrt(own @ own) - 1.0) <= UNIT:
            made[row] = own
    made.flags.writeable = False
    return made


def _exact(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether float16 holds all values along the last axis."""
    wide = values.astype(np.float64)
    with np.errstate(over="ignore"):
        same: npt.NDArray[np.bool_] = (wide.astype(np.float16) == wide).all(axis=-1)
    return same
