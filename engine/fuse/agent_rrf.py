"""Reciprocal rank fusion with a bonus for recent and for important records."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..arrays import Floats
from ..errors import ParameterError, QueryError, RecencyWarning
from .age import DAY, ages_of, check_now, exponential
from .candidates import Candidates, Channel, Fused
from .fusion import check_name, check_number, checked_table
from .rrf import RRF

RECENCY_TYPES = ("temporal-reasoning", "knowledge-update", "multi-session")
"""Types of questions whose answers tend to be recent (SPEC A063)."""
TAU_DAYS = 30.0
TAU_DAYS_BY_TYPE: dict[str, float] = {"multi-session": 120.0}
"""The note of SPEC A064: the answer to one such question lies in several sessions, and a fast decay hides the older
ones. The strategy ``agent_rrf-per-type`` has it; the paper's rows of ``agent_rrf`` have one tau for all."""
SAFE_ALPHA = 0.01


# Sources: A061 to A064, A066, X03, X06 to X08.
@dataclass(frozen=True)
class AgentRRF(RRF):
    """``RRF + alpha * exp(-age / tau) + beta * importance``.

    The age is the number of days from the record's time to the query's `now`, and 0 for a record from the future. A
    record without a time gets no recency bonus. A record without an importance has importance 0.

    The recency bonus is for queries of the `recency_types`; None means every type. A query without a type gets it too,
    because a type must be predicted and must not be read off the answer. `QueryError` is raised for a query that would
    get the bonus and has no `now`. `tau_days_by_type` holds the tau of the types that it names; `tau_days` is the tau
    of all others.

    The bonus does more than break ties. Neighbouring ranks at the top differ by .00026 a list. With the defaults, take
    a record that is first in both of two lists. If it is a month old, a fresh record of rank 7 in both overtakes it; if
    it is 78 days old, a fresh record of rank 11 does. R@10 on 344 recency questions is .966 to .971 for alpha .001 to
    .005, .949 to .966 for .010, and .749 to .909 for .030. An alpha above .010 gives a `RecencyWarning`.
    """

    name: ClassVar[str] = "agent_rrf"

    alpha: float = 0.005
    tau_days: float = TAU_DAYS
    beta: float = 0.0
    tau_days_by_type: Mapping[str, float] | None = field(default=None, hash=False)
    recency_types: tuple[str, ...] | None = RECENCY_TYPES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("alpha, the weight of recency,", self.alpha, 0.0)
        check_number("tau_days", self.tau_days, 0.0, above=True)
        check_number("beta, the weight of importance,", self.beta, 0.0)
        if self.tau_days_by_type is not None:
            table = checked_table("tau_days_by_type", self.tau_days_by_type, above=True)
            object.__setattr__(self, "tau_days_by_type", table)
        if self.recency_types is not None:
            if not isinstance(self.recency_types, (list, tuple)):
                raise ParameterError(f"recency_types must be a list of names or None, not {self.recency_types!r}")
            for name in self.recency_types:
                check_name("a recency type", name)
            object.__setattr__(self, "recency_types", tuple(self.recency_types))
        if self.alpha > SAFE_ALPHA:
            warnings.warn(
                f"alpha {self.alpha:g} is above {SAFE_ALPHA:g}: at .030 recency outweighs relevance, and R@10 on 344 "
                "recency questions falls from .97 to .75 (tau 7 days) or .91 (120 days); take .001 to .005",
                RecencyWarning,
                stacklevel=3,
            )

    def leans(self, type: str | None) -> bool:
        """Whether queries of this type get the recency bonus; None stands for queries without a type."""
        return self.alpha > 0.0 and (self.recency_types is None or type is None or type in self.recency_types)

    def __call__(self, candidates: Candidates) -> Fused:
        ranked = super().__call__(candidates)
        for name in ("recency", "importance"):
            if name in ranked.shares:
                raise ParameterError(f"the fusion {self.name!r} adds a share {name!r}; give the channel another name")
        types = np.array(candidates.types, dtype=object)
        biased = np.array([self.leans(query_type) for query_type in candidates.types], dtype=np.bool_)
        check_now(candidates, biased, self.name)
        tau = np.full(len(candidates), float(self.tau_days))
        for name, tau_days in (self.tau_days_by_type or {}).items():
            tau[types == name] = tau_days
        ages = ages_of(candidates)
        recent = biased[candidates.owners] & ~np.isnan(ages)
        days = np.where(recent, ages, 0.0) / DAY
        bonus = self.alpha * exponential(-(days / tau[candidates.owners]))
        importance = np.where(np.isnan(candidates.importance), 0.0, candidates.importance)
        shares = {**ranked.shares, "recency": np.where(recent, bonus, 0.0), "importance": self.beta * importance}
        return Fused.of(shares, ranked.kept)

    # Sources: A082, whose Algorithm 4 fuses so over any backend.
    def fuse(
        self,
        lists: Mapping[str, Sequence[Hashable]],
        *,
        times: Mapping[Hashable, float | None] | None = None,
        importances: Mapping[Hashable, float | None] | None = None,
        now: float | None = None,
        type: str | None = None,
    ) -> list[tuple[Hashable, float]]:
        """Fuse lists that any system has ranked: (id, score) of every id, best first.

        `lists` holds each list under the name of its channel: ids, best first, each once. `times` (seconds since
        1970-01-01 UTC) and `importances` (from 0 to 1) are read for the ids of the lists alone, with ``get``; None, or
        an id that they lack, has none. `now` is the query's own time and `type` its type.

        A score has the bits that the engine's ``agent_rrf`` gives for these ranks, times and importances. Of equal
        scores the id that occurs first comes first, list by list. (The engine puts the record first that arrived
        first.) Raises `ParameterError` for lists that are no lists of ids, for an id that a list repeats, and for a
        time or an importance that is not a number in range; `QueryError` if the query gets the recency bonus and has
        no `now`.
        """
        if not isinstance(lists, Mapping):
            raise ParameterError(f"lists must map names to lists of ids, such as {{'bm25': ids}}, not {lists!r}")
        if now is None and self.leans(type):
            raise QueryError(f"the fusion {self.name!r} counts ages from the query's own time; give 'now', in seconds")
        numbers: dict[Hashable, int] = {}
        for name, ids in lists.items():
            check_name("a list's name", name)
            for id in _checked_ids(name, ids):
                numbers.setdefault(id, len(numbers))
        offsets = np.array([0, len(numbers)], dtype=np.int64)
        channels = {}
        for name, ids in lists.items():
            scores, listed = np.zeros(len(numbers)), np.zeros(len(numbers), dtype=np.bool_)
            places = [numbers[id] for id in ids]
            scores[places], listed[places] = -np.arange(len(ids), dtype=np.float64), True
            channels[name] = Channel.of(scores, listed, listed, offsets)
        candidates = Candidates(
            offsets,
            np.arange(len(numbers)),
            channels,
            np.array([math.nan if now is None else _seconds("now", now)], dtype=np.float64),
            _values(times, numbers, lambda id, value: _seconds(f"the time of {id!r}", value)),
            _values(importances, numbers, _importance),
            (type,),
        )
        scored = zip(numbers, self(candidates).scores.tolist(), strict=True)
        return sorted(scored, key=lambda hit: -hit[1])


def _checked_ids(name: str, ids: Sequence[Hashable]) -> Sequence[Hashable]:
    """The ids of a list. Raises `ParameterError` where they are no ids, or not different."""
    try:
        distinct = set(ids)
    except TypeError:
        distinct = None
    if distinct is None or isinstance(ids, (str, bytes)):
        raise ParameterError(f"the list {name!r} must be a list of ids, best first, not {ids!r}")
    if len(distinct) < len(ids):
        raise ParameterError(f"the list {name!r} holds an id twice; give each once, best first")
    return ids


def _values(
    known: Mapping[Hashable, float | None] | None,
    ids: Mapping[Hashable, int],
    checked: Callable[[Hashable, float], float],
) -> Floats:
    """[ids] what is known of each id, NaN where nothing is."""
    values = np.full(len(ids), np.nan)
    for id, number in ids.items():
        value = None if known is None else known.get(id)
        if value is not None:
            values[number] = checked(id, value)
    return values


def _seconds(what: str, value: object) -> float:
    number = math.nan
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer beyond float64
            number = float(value)
    if not math.isfinite(number):
        raise ParameterError(f"{what} must be finite seconds since 1970-01-01 UTC, not {value!r}")
    return number


def _importance(id: Hashable, value: float) -> float:
    check_number(f"the importance of {id!r}", value, 0.0, 1.0)
    return float(value)
