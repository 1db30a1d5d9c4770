"""One hit of an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import NotBroughtError
from .filters import TIMES
from .record import CATEGORIES, NUMBERS, Record


class Hit(tuple[str, float]):
    """One hit: the pair ``(id, score)``, with what else the answer knows of it as attributes.

    It equals the pair and unpacks as one. `Hits` makes it.
    """

    rank: int
    """The place in the answer to its query, from 1."""
    namespace: str
    """The namespace of the record."""
    exchange: tuple[str, ...] | None = None
    """The ids of its exchange in the order of arrival, its own among them; None where exchanges were not asked for."""
    copies: tuple[str, ...] | None = None
    """The ids of the other records that it stands for, in the order of arrival; None where nothing is collapsed."""
    _record: Record | None = None
    _texts = False
    _payload = False

    @property
    def id(self) -> str:
        """The id of the record."""
        return self[0]

    @property
    def score(self) -> float:
        """The score, as in `Hits.scores`."""
        return self[1]

    @property
    def record(self) -> Record:
        """The record as it was scored, without its vectors.

        Raises `NotBroughtError` if it was not searched with ``texts=True``.
        """
        if not self._texts or self._record is None:
            raise self._missing("record", "texts")
        return self._record

    @property
    def text(self) -> str:
        """The text of the record, as it was scored. Raises as `record`."""
        if not self._texts or self._record is None:
            raise self._missing("text", "texts")
        return self._record.text

    @property
    def payload(self) -> Mapping[str, Any] | None:
        """The payload of the record, None where it has none.

        Raises `NotBroughtError` if it was not searched with ``payload=True`` or ``texts=True``.
        """
        if self._record is None:
            raise self._missing("payload", "payload")
        return self._record.payload

    def _missing(self, what: str, keyword: str) -> NotBroughtError:
        return NotBroughtError(f"the hit {self.id!r} has no {what}: search with {keyword}=True to bring it")

    def to_dict(self) -> dict[str, Any]:
        """The hit as a dictionary: id, score, rank and namespace.

        Of a query for exchanges also ``exchange``, of one that collapses also ``copies``. With texts also text, time
        and metadata: the columns that are set, importance and `Record.extra`. With payloads also the payload.
        """
        values: dict[str, Any] = {
            "id": self.id,
            "score": self.score,
            "rank": self.rank,
            "namespace": self.namespace,
        }
        if self.exchange is not None:
            values["exchange"] = [*self.exchange]
        if self.copies is not None:
            values["copies"] = [*self.copies]
        record = self._record
        if record is not None and self._texts:
            values |= {"text": record.text, "time": record.time, "metadata": metadata_of(record)}
        if record is not None and self._payload:
            values["payload"] = record.payload
        return values


_SHOWN = (*CATEGORIES, *(name for name in NUMBERS if name not in TIMES))


def metadata_of(record: Record) -> dict[str, Any]:
    """What a record holds beside its text, its time and its payload: the columns that are set, and `Record.extra`."""
    columns = {name: getattr(record, name) for name in _SHOWN}
    return {**record.extra, **{name: value for name, value in columns.items() if value is not None}}


def make_hits(pairs: Iterable[tuple[str, float]], namespaces: Iterable[str]) -> list[Hit]:
    """The hits of a query, best first, each in its namespace."""
    hits = [*map(Hit, pairs)]
    for rank, (hit, namespace) in enumerate(zip(hits, namespaces, strict=False), 1):
        hit.rank, hit.namespace = rank, namespace
    return hits


def bare_dicts(
    ids: npt.NDArray[np.object_],
    scores: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int32],
    namespaces: Callable[[int], Iterable[str]],
) -> list[list[dict[str, Any]]]:
    """`Hit.to_dict` of hits that bring no records, in a third of its time.

    `ids` and `scores` are [B, k] and `counts` [B], as those of `Hits`. `namespaces` tells those of a query's hits.
    """
    columns = zip(ids.tolist(), scores.tolist(), counts.tolist(), strict=True)
    return [
        [
            {"id": name, "score": score, "rank": rank, "namespace": namespace}
            for rank, name, score, namespace in zip(range(1, count + 1), names, own, namespaces(query), strict=False)
        ]
        for query, (names, own, count) in enumerate(columns)
    ]


def add_records(hits: Sequence[Hit], records: Iterable[Record], *, texts: bool, payload: bool) -> None:
    """Give each hit its record, of which it shows what was brought."""
    for hit, record in zip(hits, records, strict=False):
        hit._record, hit._texts, hit._payload = record, texts, payload
