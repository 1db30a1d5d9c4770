"""The input of a plan: the queries of a batch that search one snapshot, reduced to what scoring needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from ..arrays import Integers, offsets_of, ranges
from ..errors import QueryError
from ..index.masks import EVERYTHING, CompiledFilter


@dataclass(frozen=True)
class QuerySettings:
    """Which documents may be hits of a query, and how its scores decay. Most queries of a batch share them."""

    filter: CompiledFilter = EVERYTHING
    since: float = -math.inf  # seconds; with a finite bound, documents without a time do not pass
    until: float = math.inf
    now: float = 0.0
    rate: float = 0.0  # `decay.rate_of(half_life)`; 0: no decay
    lent: tuple[int, ...] = ()  # `Neighbours.steps`: what neighbours lend, by distance; empty: nothing

    @property
    def ranged(self) -> bool:
        """Whether a bound on time is finite."""
        return self.since > -math.inf or self.until < math.inf


@dataclass(frozen=True)
class Request:
    """One query. `Requests.of` joins several. The fields are those of `QuerySettings` and `Requests`."""

    row: int
    terms: Sequence[int]
    k: int
    filter: CompiledFilter = EVERYTHING
    since: float = -math.inf
    until: float = math.inf
    now: float = 0.0
    rate: float = 0.0
    weights: Sequence[int] | None = None
    lent: tuple[int, ...] = ()

    @property
    def settings(self) -> QuerySettings:
        return QuerySettings(self.filter, self.since, self.until, self.now, self.rate, self.lent)


@dataclass(frozen=True, eq=False)
class Requests:
    """Several queries, as columns. The columns [terms] hold the terms of all queries, one query after another."""

    rows: Integers  # [queries] row in the batch's answer
    k: Integers  # [queries]
    terms: npt.NDArray[np.int32]  # [terms] vocabulary ids; repeats count
    offsets: Integers  # [queries + 1] into terms
    settings: tuple[QuerySettings, ...]  # the distinct settings of the queries
    setting: Integers  # [queries] position in `settings`
    weights: Integers | None = None  # [terms] 1 or more; those of repeats add up. None: 1 each
    weighted: npt.NDArray[np.bool_] | None = None  # [queries] whether the query has weights. None: no query has

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, queries: Integers) -> Requests:
        """These queries alone, in this order."""
        counts = np.diff(self.offsets)[queries]
        terms = ranges(self.offsets[queries], counts)
        used, setting = np.unique(self.setting[queries], return_inverse=True)
        return Requests(
            rows=self.rows[queries],
            k=self.k[queries],
            terms=self.terms[terms],
            offsets=offsets_of(counts),
            settings=tuple(self.settings[number] for number in used.tolist()),
            setting=setting.reshape(-1),
            weights=None if self.weights is None else self.weights[terms],
            weighted=None if self.weighted is None else self.weighted[queries],
        )

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Requests:
        """Joins these queries. Raises `QueryError` if a query has not one weight for each term, or a weight below 1."""
        terms = np.array(list(chain.from_iterable(request.terms for request in requests)), dtype=np.int32)
        weighted = np.array([request.weights is not None for request in requests], dtype=np.bool_)
        numbers: dict[QuerySettings, int] = {}
        return cls(
            rows=np.array([request.row for request in requests], dtype=np.int64),
            k=np.array([request.k for request in requests], dtype=np.int64),
            terms=terms,
            offsets=offsets_of([len(request.terms) for request in requests]),
            setting=np.array(
                [numbers.setdefault(request.settings, len(numbers)) for request in requests], dtype=np.int64
            ),
            settings=tuple(numbers),
            weights=np.concatenate([_weights_of(request) for request in requests]) if weighted.any() else None,
            weighted=weighted if weighted.any() else None,
        )


def _weights_of(request: Request) -> Integers:
    count = len(request.terms)
    weights = np.ones(count, dtype=np.int64) if request.weights is None else np.array(request.weights, dtype=np.int64)
    if weights.shape != (count,):
        raise QueryError(f"a query has {count} terms but {len(weights)} weights")
    if weights.min(initial=1) < 1:
        raise QueryError(f"a query's weights must be 1 or more, not {weights.min()}; leave the term out")
    return weights
