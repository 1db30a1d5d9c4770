"""What a plan is made of: the queries of a batch that search one snapshot, as far as scoring is concerned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from ..arrays import Integers, offsets_of
from ..errors import QueryError
from ..index.masks import EVERYTHING, CompiledFilter


@dataclass(frozen=True)
class QuerySettings:
    """Which documents may be hits of a query, and how scores fade: most queries of a batch share one."""

    filter: CompiledFilter = EVERYTHING
    since: float = -math.inf  # seconds; a bound that is not infinite lets no document pass that has no time
    until: float = math.inf
    now: float = 0.0
    rate: float = 0.0  # `decay.rate_of` the half-life; 0: no decay

    @property
    def ranged(self) -> bool:
        return self.since > -math.inf or self.until < math.inf


@dataclass(frozen=True)
class Request:
    """One query by itself; `Requests.of` puts several together. Fields as those of `QuerySettings` and `Requests`."""

    row: int
    terms: Sequence[int]
    k: int
    filter: CompiledFilter = EVERYTHING
    since: float = -math.inf
    until: float = math.inf
    now: float = 0.0
    rate: float = 0.0
    weights: Sequence[int] | None = None

    @property
    def settings(self) -> QuerySettings:
        return QuerySettings(self.filter, self.since, self.until, self.now, self.rate)


@dataclass(frozen=True, eq=False)
class Requests:
    """Queries in columns: those of terms hold all queries' terms, one query after another."""

    rows: Integers  # [queries] in the batch's answer
    k: Integers  # [queries]
    terms: npt.NDArray[np.int32]  # [terms] vocabulary ids; repeats count
    offsets: Integers  # [queries + 1] into terms
    settings: tuple[QuerySettings, ...]  # each is some query's
    setting: Integers  # [queries] which of `settings` is its own
    weights: Integers | None = None  # [terms] 1 or more; those of repeats add up. None: 1 each
    weighted: npt.NDArray[np.bool_] | None = None  # [queries] whether it brought weights, where there are some

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Requests:
        """These queries. Raises `QueryError` for weights that are not one for each term, or below 1."""
        terms = np.array(list(chain.from_iterable(own.terms for own in requests)), dtype=np.int32)
        weighted = np.array([own.weights is not None for own in requests], dtype=np.bool_)
        numbers: dict[QuerySettings, int] = {}
        return cls(
            rows=np.array([own.row for own in requests], dtype=np.int64),
            k=np.array([own.k for own in requests], dtype=np.int64),
            terms=terms,
            offsets=offsets_of([len(own.terms) for own in requests]),
            setting=np.array([numbers.setdefault(own.settings, len(numbers)) for own in requests], dtype=np.int64),
            settings=tuple(numbers),
            weights=np.concatenate([_weights(own) for own in requests]) if weighted.any() else None,
            weighted=weighted if weighted.any() else None,
        )


def _weights(request: Request) -> Integers:
    count = len(request.terms)
    own = np.ones(count, dtype=np.int64) if request.weights is None else np.array(request.weights, dtype=np.int64)
    if own.shape != (count,):
        raise QueryError(f"a query has {count} terms but {len(own)} weights")
    if own.min(initial=1) < 1:
        raise QueryError(f"a query's weights must be 1 or more, not {own.min()}; leave the term out")
    return own
