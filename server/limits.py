"""What one request may ask for, how long it may take, and how many may be under way."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ..engine.errors import ParameterError


@dataclass(frozen=True)
class Limits:
    """The bounds of a server, as `HELP` says. A request beyond one is refused with a problem that names it."""

    body_bytes: int = 8 << 20
    head_bytes: int = 64 << 10
    bodies_bytes: int = 256 << 20
    bodies_bytes_per_key: int = 64 << 20
    queries: int = 256
    k: int = 1_000
    hits: int = 65_536
    explained: int = 512
    explained_terms: int = 65_536
    text: int = 10_000
    terms: int = 1_000
    filter_depth: int = 16
    comparisons: int = 1_000
    depth: int = 1_000
    searches: int = 64
    namespaces: int = 256
    records: int = 10_000
    ids: int = 10_000
    id_length: int = 1_024
    payload_bytes: int = 1 << 20
    answer_bytes: int = 64 << 20
    in_flight: int = 1_024
    in_flight_per_key: int = 256
    connections: int = 8_192
    seconds: float = 30.0
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    answer_seconds: float = 60.0
    stop_seconds: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            known = isinstance(value, int | float) and not isinstance(value, bool)
            if not known or not value > 0 or not math.isfinite(value):
                raise ParameterError(f"the limit {field.name} must be a number above 0, not {value!r}")

    def least(self, other: Limits) -> Limits:
        """The smaller of each bound."""
        return Limits(
            **{field.name: min(getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        )


HELP: dict[str, str] = {
    "body_bytes": "Bytes of a request's body (413).",
    "head_bytes": "Bytes of a request's address and headers (400).",
    "bodies_bytes": "Bytes of all bodies that are held at once (503). A body of at most 64 KiB is always let in.",
    "bodies_bytes_per_key": "Bytes of the bodies with one key that are held at once (429), with the same exception.",
    "queries": "Queries of a search (422).",
    "k": "Hits of a query, with its offset (422).",
    "hits": "Hits of a search, over all its queries (422).",
    "explained": "Hits of a search, over all its queries, that are explained (422).",
    "explained_terms": "Terms of all explanations of a search (422).",
    "text": "Characters of a query's text (422).",
    "terms": "Terms, weights, entities or hints of a query, of each (422).",
    "filter_depth": "How deeply a filter is nested (422).",
    "comparisons": "Comparisons of a filter (422).",
    "depth": "Each whole number of a strategy object, such as its depth (422).",
    "searches": "Channels of a strategy object, each again for each round of feedback; rounds, iterations (422).",
    "namespaces": "Namespaces of a query (422).",
    "records": "Records of a write (422).",
    "ids": "Ids of a request (422).",
    "id_length": "Characters of the id, and of the namespace, of a record that is written (422).",
    "payload_bytes": "Bytes of a record's payload, as JSON (422).",
    "answer_bytes": "Bytes of an answer (422); a list of records is then shorter.",
    "in_flight": "Requests under way at once (503).",
    "in_flight_per_key": "Requests under way at once with one key (429).",
    "connections": "Connections at once (503). The system's limit on open files may allow fewer.",
    "seconds": "Seconds of a request, but for a write that has begun; Fanrank-Deadline asks for less (504).",
    "head_seconds": "Seconds in which a request's headers arrive. Then the connection ends.",
    "body_seconds": "Seconds in which a request's body arrives (408).",
    "answer_seconds": "Seconds in which a client takes what it was sent. Then the connection ends.",
    "stop_seconds": "Seconds in which what is under way is answered, once the server is asked to stop.",
}
"""What each limit bounds, and the status of the refusal."""
