"""Times in the forms that callers have them in, as seconds: numbers, `datetime`, `timedelta`, ISO 8601 text.

Everything else of the engine computes with float64 seconds since 1970-01-01 UTC. These functions raise `ValueError`
with the words that follow the name of what was given; the caller adds the name and the value.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

Moment = float | dt.date | str
"""A point in time: seconds since 1970-01-01 UTC, a `datetime` or `date`, or ISO 8601 text."""
Span = float | dt.timedelta | str
"""A length of time: seconds, a `timedelta`, or a number with a unit, as in ``"7d"``."""

MAX_TIME = 1e15
"""Seconds from 1970: 31 million years. Windows of one millisecond can still be counted in int64 up to this time."""

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
"""Seconds of the units that a span may have."""

A_MOMENT = "must be finite seconds since 1970-01-01 UTC, a datetime, or an ISO 8601 date such as 2026-03-01T09:30:00Z"
A_SPAN = "must be finite seconds, a timedelta, or a number with a unit (s, m, h, d, w) such as '7d'"

# What Python 3.10 reads, and a trailing Z. Later versions read more, and a text must not depend on the version.
_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?(?:([Zz])|([+-]\d\d):?(\d\d))?)?", re.ASCII
)

if TYPE_CHECKING:

    class MomentField:
        """The type of a dataclass's field that takes a `Moment` and holds seconds."""

        def __get__(self, instance: object, owner: object) -> float | None: ...

        def __set__(self, instance: object, value: Moment | None) -> None: ...

    class SpanField:
        """The type of a dataclass's field that takes a `Span` and holds seconds."""

        def __get__(self, instance: object, owner: object) -> float | None: ...

        def __set__(self, instance: object, value: Span | None) -> None: ...
else:
    # Type checkers know what the constructor takes and what the field holds. At run time it is a plain field.
    MomentField, SpanField = Annotated[float | None, "moment"], Annotated[float | None, "span"]

NO_TIME: Any = None
"""The default of a `MomentField` or `SpanField`."""


def to_seconds(moment: object, zone: dt.tzinfo = dt.timezone.utc) -> float:
    """A point in time as seconds since 1970-01-01 UTC.

    A date without a time is its first moment. What names no time zone is in `zone`.
    """
    if isinstance(moment, str):
        moment = read_moment(moment)
    try:
        if isinstance(moment, dt.date):
            if not isinstance(moment, dt.datetime):
                moment = dt.datetime(moment.year, moment.month, moment.day)
            if moment.utcoffset() is None:
                moment = moment.replace(tzinfo=zone)
            seconds = moment.timestamp()
        else:
            seconds = _number(moment)
        if math.isfinite(seconds):
            return seconds
    except (ValueError, OverflowError):  # an offset beyond the calendar, pandas' NaT, an integer beyond float64
        pass
    raise ValueError(A_MOMENT)


def to_span(span: object) -> float:
    """A length of time in seconds. It may be 0 or negative; the caller knows what it allows."""
    try:
        if isinstance(span, dt.timedelta):
            seconds = span.total_seconds()
        elif isinstance(span, str):
            unit = UNITS.get(span[-1:])
            seconds = float(span) if unit is None else float(span[:-1]) * unit
        else:
            seconds = _number(span)
        if math.isfinite(seconds):
            return seconds
    except (ValueError, OverflowError):
        pass
    raise ValueError(A_SPAN)


def zone_named(name: object) -> dt.tzinfo:
    """The time zone of an IANA name. Raises `ValueError` for a name that the system does not know."""
    if name == "UTC":
        return dt.timezone.utc
    # Imported here: most calls name no zone, and loading the module takes some milliseconds.
    import zoneinfo

    try:
        if not isinstance(name, str):
            raise ValueError
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown zone, malformed name, name of a folder of zones
        raise ValueError(
            "give an IANA name such as 'Europe/Berlin' (where the system has no database of zones, install tzdata)"
        ) from None


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ValueError
    return float(value)


def read_moment(text: str) -> dt.datetime:
    """The date and time of ISO 8601 text, with the time zone that it names, or none. Raises `ValueError`."""
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError(A_MOMENT)
    day, time, fraction, utc, hours, minutes = match.groups()
    if time is not None:
        time = time if len(time) == 8 else f"{time}:00"
        offset = "+00:00" if utc else f"{hours}:{minutes}" if hours else ""
        # A datetime holds microseconds; further digits are dropped.
        day = f"{day}T{time}.{(fraction or '')[:6]:0<6}{offset}"
    try:
        return dt.datetime.fromisoformat(day)
    except ValueError:  # no such day or hour
        raise ValueError(A_MOMENT) from None
