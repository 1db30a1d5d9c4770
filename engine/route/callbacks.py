"""A cascade over any retrieval system, one query at a time, by callbacks (SPEC A078, A082; Algorithm 4, X04).

It is for records that are kept outside the engine. Over an engine, `Engine.search(batch, strategy=Cascade(...))`
decides in the same way for a whole batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from ..errors import ParameterError
from ..fuse.agent_rrf import AgentRRF
from ..hybrid.strategy import DEPTH
from ..records.query import check_k
from .cascade import Cascade

K = 60.0
"""The k of reciprocal ranks (A060)."""

AnyQuery = TypeVar("AnyQuery")
Hit = tuple[Hashable, float]
"""A record, by the key that the retrieval system uses, and its score."""


@dataclass(frozen=True)
class Retrieved:
    """The answer to one query.

    - `results`: the hits, best first
    - `escalated`: whether dense evidence was used
    - `latency_ms`: wall-clock milliseconds of the whole call, callbacks included
    - `confidence`: BM25's confidence; None if fewer than two records matched
    """

    results: list[Hit]
    escalated: bool
    latency_ms: float
    confidence: float | None


@dataclass(frozen=True)
class CascadeRouter:
    """Algorithm 4, with `Cascade.decide` as its decision.

    All settings of the cascade that decide are used. `Cascade.escalate` and `Cascade.classifier` are not: the callbacks
    answer an escalated query and give its type.

    `depth` is the number of hits that a callback is asked for. It is larger where k or the confidence needs more,
    because the lists that are fused must be longer than the list that is returned. `fusion` joins the lists of an
    escalated query. Raises `ParameterError`.
    """

    cascade: Cascade = field(default_factory=Cascade)
    depth: int = DEPTH
    fusion: AgentRRF = field(default_factory=AgentRRF)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cascade", Cascade.of(self.cascade))
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 2:
            raise ParameterError(f"a cascade router's depth must be 2 or more, not {self.depth!r}")
        if not isinstance(self.fusion, AgentRRF):
            raise ParameterError(
                f"a cascade router's fusion is an AgentRRF, not {self.fusion!r}; give `retrieve` another as fuse_fn"
            )
        if self.cascade.classifier is not None:
            raise ParameterError(
                "a cascade router does not read queries, so it cannot use the cascade's classifier; leave that out, "
                "and give `retrieve` qtype_fn=lambda query: classifier.predict([query])[0]"
            )

    def retrieve(
        self,
        query: AnyQuery,
        k: int,
        bm25_fn: Callable[[AnyQuery, int], Sequence[Hit]],
        dense_fn: Callable[[AnyQuery, int], Sequence[Hit]],
        fuse_fn: Callable[[AnyQuery, Sequence[Hit], Sequence[Hit]], Sequence[Hit]] | None = None,
        qtype_fn: Callable[[AnyQuery], str | None] | None = None,
        *,
        records: Mapping[Any, Any] | None = None,
        now: float | None = None,
    ) -> Retrieved:
        """The k best hits, or fewer, for one query. The query may be any object that the callbacks take.

        - `bm25_fn` and `dense_fn` take the query and a number of hits. They return hits, best first, each record once;
          further hits are cut off. A BM25 score of 0 or less is no match, so zeros at the end of a list do not change
          its confidence.
        - `qtype_fn` returns a query's type for `Cascade.taus`, `Cascade.lexical_types` and `fusion`.
        - `records` tells the ``time`` (seconds since 1970-01-01 UTC) and the ``importance`` of records, by the keys of
          the hits: a mapping to `Record` objects, to mappings, or to anything with these attributes. It is read with
          ``get``, for the hits of an escalated query alone, so it may look them up elsewhere. A record that it lacks,
          or a field that is missing or None, is unknown. `now` is the query's own time.
        - With `records` an escalated query is answered by ``agent_rrf``, the `fusion`, which adds recency and
          importance to reciprocal ranks. Without them it is answered by reciprocal ranks alone.
        - `fuse_fn` replaces both. It takes the query and both lists and returns one list, best first, which is not
          checked.

        `dense_fn` and `fuse_fn` are not called if BM25's confidence reaches the threshold.

        Raises `QueryError` for a bad k, and where `fusion` counts ages and `now` is missing, even if the query would
        skip; `ParameterError` for lists that break these rules, for `now` without `records`, and for either beside
        `fuse_fn`. Errors of callbacks are passed on.
        """
        started = time.perf_counter()
        k = check_k(k)
        if fuse_fn is not None and (records is not None or now is not None):
            raise ParameterError(
                "records and now are for the router's own fusion; leave them out, or leave out fuse_fn"
            )
        if now is not None and records is None:
            raise ParameterError("now counts the ages of records; give records too, or leave now out")
        depth = max(k, self.depth, self.cascade.looks_at)
        lexical = _check_hits("bm25_fn", bm25_fn(query, depth), depth)
        scores = np.array([[score for _, score in lexical] + [-math.inf] * 2], dtype=np.float64)
        matched = np.array([(scores > 0.0).sum()], dtype=np.int64)
        type = None if qtype_fn is None else qtype_fn(query)
        if records is not None:
            # Refused before BM25's confidence is known, so that the contents of the memory do not decide.
            self.fusion.fuse({"bm25": [], "dense": []}, now=now, type=type)
        confidence, _, skipped = self.cascade.decide(scores, matched, [type])
        escalated = not skipped[0]
        if escalated:
            dense = _check_hits("dense_fn", dense_fn(query, depth), depth)
            if fuse_fn is not None:
                fused = list(fuse_fn(query, lexical, dense))
            elif records is None:
                fused = reciprocal_ranks(lexical, dense)
            else:
                fused = self._fuse(lexical, dense, records, now, type)
        else:
            fused = lexical
        known = None if math.isnan(confidence[0]) else float(confidence[0])
        return Retrieved(fused[:k], escalated, (time.perf_counter() - started) * 1e3, known)

    def _fuse(
        self, lexical: list[Hit], dense: list[Hit], records: Mapping[Any, Any], now: float | None, type: str | None
    ) -> list[Hit]:
        lists = {"bm25": [key for key, _ in lexical], "dense": [key for key, _ in dense]}
        known = {key: records.get(key) for ids in lists.values() for key in ids}
        return self.fusion.fuse(
            lists,
            times={key: _field_of(record, "time") for key, record in known.items()},
            importances={key: _field_of(record, "importance") for key, record in known.items()},
            now=now,
            type=type,
        )


# Sources: A060.
def reciprocal_ranks(*lists: Sequence[Hit], k: float = K) -> list[Hit]:
    """``sum over the lists of 1 / (k + rank)``, ranks from 1, best first.

    Among equal sums, the record that occurs first comes first, list by list.
    """
    fused: dict[Hashable, float] = {}
    for hits in lists:
        for rank, (record, _) in enumerate(hits, 1):
            fused[record] = fused.get(record, 0.0) + 1.0 / (k + rank)
    return sorted(fused.items(), key=lambda hit: -hit[1])


def _check_hits(name: str, hits: Sequence[Hit], depth: int) -> list[Hit]:
    checked = list(hits)[:depth]
    scores = [score for _, score in checked]
    if not all(math.isfinite(score) for score in scores):
        raise ParameterError(f"{name} gave a score that is not finite")
    for rank, (better, worse) in enumerate(pairwise(scores), 2):
        if worse > better:
            raise ParameterError(f"{name} must give the best first; hit {rank} scores {worse!r} after {better!r}")
    if len({record for record, _ in checked}) < len(checked):
        raise ParameterError(f"{name} gave a record twice")
    return checked


def _field_of(record: object, name: str) -> Any:
    """A record's field, None where it is missing."""
    return record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)
