"""Checks for the fields of feedback methods. The error names the method, the field and the value."""

from __future__ import annotations

import math
from typing import Any

from ..errors import ParameterError
from .pool import Feedback


def check_whole(owner: str, field: str, value: Any, least: int = 1) -> None:
    """Raise `ParameterError` unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ParameterError(f"feedback {owner!r}: {field} must be an integer of {least} or more, not {value!r}")


def check_above(owner: str, field: str, value: Any, low: float, most: float = math.inf) -> None:
    """Raise `ParameterError` unless `value` is a finite number above `low` and at most `most`."""
    if not _number(value) or not low < value <= most:
        bound = f" and at most {most:g}" if most < math.inf else ""
        raise ParameterError(f"feedback {owner!r}: {field} must be a number above {low:g}{bound}, not {value!r}")


def check_within(owner: str, field: str, value: Any, low: float, high: float) -> None:
    """Raise `ParameterError` unless `value` is a number from `low` to `high`."""
    if not _number(value) or not low <= value <= high:
        raise ParameterError(f"feedback {owner!r}: {field} must be a number from {low:g} to {high:g}, not {value!r}")


def flag(owner: str, field: str, value: Any) -> None:
    """Raise `ParameterError` unless `value` is true or false."""
    if not isinstance(value, bool):
        raise ParameterError(f"feedback {owner!r}: {field} must be true or false, not {value!r}")


def feedback(owner: str, field: str, value: Any) -> None:
    """Raise `ParameterError` unless `value` is a feedback object."""
    if isinstance(value, type) or not isinstance(value, Feedback):
        raise ParameterError(f"feedback {owner!r}: {field} must be feedback, not {value!r}; make it with feedback_of")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
