"""The parts of a batch, and how each is asked of the shards and read from their answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from ...engine.arrays import Integers
from ...engine.errors import FanrankError, QueryError
from ...engine.hybrid.strategy import PLAIN, Strategy
from ...engine.locks import once
from ...engine.records.explanation import Explanation, FusedExplanation
from ...engine.records.hits import Hits, join_names
from ...engine.records.query import Query
from ...engine.records.travelled import TravelledIds
from ...engine.route.parts import Part, renumber
from ...engine.search.batch import check_places, k_of
from ...engine.search.explain import position_of
from ...engine.search.options import SearchOptions
from ...engine.search.shaping import with_fields
from ..protocol.messages import (
    Forward,
    Forwarded,
    Listed,
    ListedEvidence,
    Ranked,
    Scope,
    ScopeCounts,
    ShardNote,
    Spread,
)
from ..protocol.statistics import Counts
from .launches import Launch
from .merge import MergedEvidence, Pages, fuse, join_evidence, merge_evidence, merge_lists, note_over, place_of
from .routing import Routed, keys_of, shards_of

Counted = Mapping[Scope, tuple[int | None, Counts]]
"""The statistics of scopes: the epoch since which they hold (None: they are of this moment alone), and the counts."""

Explain = Callable[["Job", int, str], Explanation | FusedExplanation]
"""Explains the score of a record for the query at a place of a job."""


@dataclass(eq=False)
class Job:
    """The queries of a batch that are answered in one way by one strategy."""

    launch: Launch
    routed: Routed
    given: tuple[Query, ...]
    """The queries as the caller wrote them."""
    queries: tuple[Query, ...]
    """The same with their vectors."""
    k: int
    options: SearchOptions
    explain: Explain

    @property
    def shard(self) -> int:
        """The shard that all queries are forwarded to."""
        assert self.routed.way is not None
        return self.routed.way

    @once
    def limits(self) -> list[int]:
        """[B] the hits of each query."""
        return [k_of(query, self.k) for query in self.given]

    @once
    def width(self) -> int:
        return max(self.limits, default=self.k)

    def send(self, counted: Counted) -> None:
        """Add what is asked to the launch."""
        raise NotImplementedError

    def receive(self) -> Any:
        """The hits, once the launch is answered. Raises what the queries failed by."""
        raise NotImplementedError

    def hits(
        self, merged: Ranked, backend: str, timing: dict[str, float] | None, notes: tuple[str | None, ...]
    ) -> Hits:
        found = TravelledIds(merged.orders, merged.ids, merged.namespaces)
        own = self.given, backend, found, self.explain_hit, timing
        return Hits(merged.scores, merged.orders, merged.counts, *own, annotator=Notes(notes))

    def explain_hit(self, position: int, record_id: str) -> Explanation | FusedExplanation:
        """Explains the score of a record for the query at a position."""
        row = position_of(range(len(self.given)), position)
        if not isinstance(record_id, str):
            raise QueryError(f"a record's id is text, not {record_id!r}")
        return self.explain(self, row, record_id).at(row)


class ForwardJob(Job):
    """Queries that one shard answers, or the shard of whole copies."""

    _place = 0

    def forward(self, queries: tuple[Query, ...], explained: str | None = None) -> Forward:
        """What the shard is asked. A part has one strategy, also where its queries said it themselves."""
        chosen = self.routed.part.answerer
        plain = tuple(query if query.strategy is None else with_fields(query, strategy=None) for query in queries)
        return Forward(plain, self.k, PLAIN if chosen is None else chosen, self.options, explained)

    def send(self, counted: Counted) -> None:
        self._place = self.launch.add(self.shard, self.forward(self.queries))

    def receive(self) -> Hits:
        answer: Forwarded | None = self.launch.answer(self.shard, self._place)
        if answer is None:
            return self.hits(Ranked.empty(len(self.given), self.width), "", None, ())
        *named, notes = (answer.pop(name) for name in ("ids", "namespaces", "exchanges", "copies", "notes"))
        return Hits(
            queries=self.given,
            resolver=TravelledIds(answer["documents"], *named),
            explainer=self.explain_hit,
            annotator=Notes(notes),
            **answer,
        )


@dataclass(eq=False)
class SpreadJob(Job):
    """Queries that several shards answer together."""

    listing: ClassVar = True
    """Whether BM25 alone gives lists, not candidates."""
    places: dict[int, int] = field(default_factory=dict)
    """The place of what each shard is asked."""
    _rows: dict[int, list[int]] = field(default_factory=dict)

    @property
    def strategy(self) -> Strategy:
        chosen = self.routed.part.answerer
        assert isinstance(chosen, Strategy)
        return chosen

    def send(self, counted: Counted) -> None:
        check_places(len(self.given), self.width)
        scopes, keys = self.routed.scopes, keys_of(self.routed.scopes)
        # The ranking of one channel goes on behind the first k. That of several ends with its candidates.
        deeper = self.strategy.single
        depths = [
            min(limit + query.offset, max(limit, counted[scope][1].documents)) if deeper and limit else limit
            for query, limit, scope in zip(self.queries, self.limits, scopes, strict=True)
        ]
        asked = [
            with_fields(
                query,
                namespace=keys[scope],
                namespaces=None,
                under=None,
                strategy=None,
                k=depth,
                offset=0,
                min_score=None,
            )
            for query, scope, depth in zip(self.queries, scopes, depths, strict=True)
        ]
        self._depths = self._list_depths(depths, counted)
        for row, scope in enumerate(scopes):
            for shard in shards_of(scope, self.launch.view.placement):
                self._rows.setdefault(shard, []).append(row)
        strategy = None if self.strategy.plain and self.listing else self.strategy
        bare = replace(self.options, texts=False, payload=False)
        for shard, own in self._rows.items():
            known = dict.fromkeys(scopes[row] for row in own)
            held = tuple(ScopeCounts(scope, keys[scope], counted[scope][1], counted[scope][0]) for scope in known)
            item = Spread(tuple(asked[row] for row in own), self.k, strategy, held, bare)
            self.places[shard] = self.launch.add(shard, item)

    def _list_depths(self, limits: Sequence[int], counted: Counted) -> Integers:
        """[B] how many documents a channel lists over all shards."""
        sizes = [counted[scope][1].documents for scope in self.routed.scopes]
        depth = self.strategy.depth
        asked = sizes if depth is None else [max(depth, limit) for limit in limits]
        return np.minimum(np.array(sizes, dtype=np.int64), np.array(asked, dtype=np.int64))

    def receive(self) -> Any:
        answers = self._answers()
        parts = {shard: answer for shard, answer in answers.items() if answer is not None}
        pages, places = Pages.of(self.given, self.limits), place_of(self.routed.scopes)
        count = len(self.given)
        if self.strategy.plain:
            lists = [_expand_list(part, self._rows[shard], count) for shard, part in parts.items()]
            merged = merge_lists(lists, pages, self.width, places)
        elif parts:
            joined = self.join(parts)
            merged = merge_evidence(joined, fuse(self.strategy, joined.candidates), pages, self.width)
        else:
            merged = Ranked.empty(count, self.width)
        backend = join_names(part.backend for part in parts.values())
        hits = self.hits(
            merged, backend, _longest([part.timing for part in parts.values()]), self._notes(merged, parts)
        )
        if self.options.texts or self.options.payload:
            records = self.launch.records(merged)
            hits = hits.with_records(records, texts=self.options.texts, payload=self.options.payload)
        return hits

    def join(self, parts: Mapping[int, ListedEvidence]) -> MergedEvidence:
        """The candidates over all shards."""
        found = [(np.array(self._rows[shard]), part) for shard, part in parts.items()]
        return join_evidence(found, self.strategy, self._depths, self.given, place_of(self.routed.scopes))

    def _answers(self) -> dict[int, Any]:
        """What each shard answered. Raises the failure of the first row that failed in any."""
        answers: dict[int, Any] = {}
        failures: list[FanrankError] = []
        for shard, place in self.places.items():
            try:
                answers[shard] = self.launch.answer(shard, place)
            except FanrankError as error:  # noqa: PERF203
                renumber(error, Part(None, self._rows[shard]))
                failures.append(error)
        if failures:
            raise min(failures, key=lambda error: row_of(error, 0))
        return answers

    def _notes(self, merged: Ranked, parts: Mapping[int, Listed | ListedEvidence]) -> tuple[str | None, ...]:
        """Why queries have no hits in any shard."""
        notes_of: dict[int, list[ShardNote]] = {row: [] for row in np.flatnonzero(merged.counts == 0).tolist()}
        for shard, part in parts.items():
            for row, note in zip(self._rows[shard], part.notes, strict=True):
                if row in notes_of:
                    notes_of[row].append(note)
        return tuple(
            note_over(query, notes_of[row]) if row in notes_of else None for row, query in enumerate(self.given)
        )


def _expand_list(part: Ranked, rows: Sequence[int], count: int) -> Ranked:
    """A list over all rows of the job; those that did not ask this shard are empty."""
    if len(rows) == count:
        return part
    wide = Ranked.empty(count, part.scores.shape[1])
    for each in fields(Ranked):
        getattr(wide, each.name)[rows] = getattr(part, each.name)
    return wide


def _longest(parts: Sequence[dict[str, float] | None]) -> dict[str, float] | None:
    """The longest time of each phase: the shards work at the same time."""
    known = [part for part in parts if part is not None]
    names = dict.fromkeys(name for part in known for name in part)
    return {name: max(part.get(name, 0.0) for part in known) for name in names} if known else None


@dataclass(frozen=True)
class Notes:
    """Says why queries have no hits."""

    notes: tuple[str | None, ...]

    def __call__(self, position: int, query: Query) -> str | None:
        return self.notes[position] if position < len(self.notes) else None

    def slice(self, start: int, stop: int) -> Notes:
        return Notes(self.notes[start:stop])


class Failures:
    """The failures of the parts of a batch, of which the one is raised that one engine would find first.

    It goes through the strategies in the order of their first rows, and through the rows of each.
    """

    def __init__(self, routed: Sequence[Routed]) -> None:
        self._begins: dict[int, int] = {}
        for each in routed:
            self._begins.setdefault(id(each.part.answerer), min(each.part.rows, default=0))
        self._found: list[tuple[int, int, FanrankError]] = []

    def add(self, error: FanrankError, part: Part) -> None:
        """Note by what a part failed, in its own numbers of rows."""
        renumber(error, part)
        row = row_of(error, min(part.rows, default=0))
        self._found.append((self._begins[id(part.answerer)], row, error))

    def check(self) -> None:
        """Raise the first failure, if there is one."""
        if self._found:
            raise min(self._found, key=lambda found: found[:2])[2]


def row_of(error: FanrankError, otherwise: int) -> int:
    """The row that an error names."""
    named = re.match(r"query (\d+)\b", str(error))
    return int(named[1]) if named else otherwise
