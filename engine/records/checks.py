"""Checks of values that records and queries share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import numpy as np

from ..errors import RecordError

MAX_TIME = 1e15
"""Seconds from 1970, 31 million years: windows of a millisecond can still be counted in int64."""


def checked_weights(weights: object) -> dict[str, float]:
    """Term weights as a dictionary of their own. Raises `ValueError`, for the caller to name what they are of."""
    if not isinstance(weights, Mapping):
        raise ValueError(f"must map terms to numbers, not {type(weights).__name__}")
    for term, weight in weights.items():
        if not isinstance(term, str):
            raise ValueError(f"must have strings as terms, not {shorten(term)}")
        if not term.isascii() and term.encode("utf-8", "replace").decode() != term:
            raise ValueError(f"must have terms without lone surrogates, which no file can store, not {term!r}")
        if isinstance(weight, bool) or not isinstance(weight, (int, float, np.integer, np.floating)):
            raise ValueError(f"must map terms to numbers, not {term!r} to {shorten(weight)}")
        if not is_finite(weight) or weight < 0:
            raise ValueError(f"must be finite and 0 or more, not {shorten(weight)} as that of {term!r}")
    return {term: float(weight) for term, weight in weights.items()}


def is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond float64
        return False


def shorten(value: object) -> str:
    """`repr`, cut: an integer can be any length."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "an integer beyond float64"
    return text if len(text) <= 80 else text[:79] + "…"


def parse_time(text: str, record_id: str | None) -> float:
    """Seconds since 1970-01-01 UTC of an ISO 8601 date, UTC where it names no zone. Raises `RecordError`."""
    try:
        # Python 3.10's parser knows no trailing Z.
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        raise RecordError(f"'time' is not an ISO 8601 date: {text!r}", record_id=record_id) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp()
