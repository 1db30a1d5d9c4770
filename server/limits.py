"""What one request may ask for, and how many may be under way."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..engine.errors import ParameterError


@dataclass(frozen=True)
class Limits:
    """The bounds of a server. A request beyond one is refused with a problem that names it."""

    body_bytes: int = 8 << 20
    """Bytes of a request's body (413)."""
    queries: int = 256
    """Queries of a search (422)."""
    k: int = 1_000
    """Hits of a query, with its offset (422)."""
    text: int = 10_000
    """Characters of a query's text (422)."""
    records: int = 10_000
    """Records of a write (422)."""
    in_flight: int = 1_024
    """Requests under way at once (503)."""
    in_flight_per_key: int = 256
    """Requests under way at once with one key (429)."""
    seconds: float = 30.0
    """The longest that a request may take; a caller asks for less with the header Fanrank-Deadline (504)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ParameterError(f"the limit {field.name} must be a number above 0, not {value!r}")
