"""Checks of values that records and queries share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import numpy as np

from ..errors import RecordError

MAX_TIME = 1e15
"""Seconds from 1970: 31 million years. Windows of one millisecond can still be counted in int64 up to this time."""


def checked_weights(weights: object) -> dict[str, float]:
    """A copy of term weights, as a dictionary. Raises `ValueError`; the caller adds what the weights belong to."""
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
    """`repr`, cut to 80 characters. An integer of 10**20 or more is not printed, as it can be of any length."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "an integer beyond float64"
    return text if len(text) <= 80 else text[:79] + "…"


def parse_time(text: str, record_id: str | None) -> float:
    """An ISO 8601 date as seconds since 1970-01-01 UTC. A date without a zone is UTC. Raises `RecordError`."""
    try:
        # Python 3.10's parser does not accept a trailing Z.
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        raise RecordError(f"'time' is not an ISO 8601 date: {text!r}", record_id=record_id) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp()
