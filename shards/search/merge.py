"""Makes one answer of those of several shards, ordered as one engine orders its hits: by score, then by last write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...engine.arrays import Floats, Integers, offsets_of
from ...engine.fuse.candidates import Candidates, Channel, Fused, best
from ...engine.hybrid.strategy import Dense, Strategy
from ...engine.records.query import Query
from ...engine.search.notes import EMPTY, NARROWED, NO_RECORDS, UNDATED, UNKNOWN, UNSEARCHABLE
from ..protocol.messages import ListedEvidence, Ranked, Scope, ShardNote

Objects = npt.NDArray[np.object_]
Places = Callable[[Integers, Objects], Integers]
"""The place of each namespace in the scope of its row's query, by rows [n] and namespaces [n]: records of one namespace
come before those of the next."""


@dataclass(frozen=True, eq=False)
class Pages:
    """What each query keeps of its ranking [B]: as many hits as `k`, after `offset`, with `least` or more as score."""

    k: Integers
    offset: Integers
    least: Floats

    @classmethod
    def of(cls, queries: Sequence[Query], k: Sequence[int]) -> Pages:
        return cls(
            np.array(k, dtype=np.int64),
            np.array([query.offset for query in queries], dtype=np.int64),
            np.array([-np.inf if query.min_score is None else query.min_score for query in queries]),
        )

    def cut(self, scores: Floats, ranking: Integers, named: Sequence[npt.NDArray[Any]], width: int) -> Ranked:
        """The pages of rankings: `ranking` [B, n] are places in `scores` and in what is `named`: (orders, ids,
        namespaces), best first. Padding has a negative order.
        """
        page = Ranked.empty(len(self.k), width)
        if not ranking.shape[1]:
            return page
        ranked = np.take_along_axis(scores, ranking, 1)
        found = (np.take_along_axis(named[0], ranking, 1) >= 0) & (ranked >= self.least[:, None])
        # What passes the least score is a prefix of the ranking.
        page.counts[:] = np.clip(found.sum(axis=1) - self.offset, 0, self.k)
        columns = np.arange(width)
        taken = columns < page.counts[:, None]
        at = np.minimum(self.offset[:, None] + columns, ranking.shape[1] - 1)
        chosen = np.take_along_axis(ranking, at, 1)
        for whole, own in zip((page.scores, page.orders, page.ids, page.namespaces), (scores, *named), strict=True):
            whole[taken] = np.take_along_axis(own, chosen, 1)[taken]
        return page


def merge_lists(parts: Sequence[Ranked], pages: Pages, width: int, places: Places) -> Ranked:
    """The hits of BM25 from the lists of the shards, each of which is at least as long as the page needs."""
    if not parts:
        return Ranked.empty(len(pages.k), width)
    scores, orders, ids, names = (
        np.concatenate([getattr(part, name) for part in parts], axis=1)
        for name in ("scores", "orders", "ids", "namespaces")
    )
    rows = np.repeat(np.arange(len(scores)), scores.shape[1])
    place = places(rows, names.reshape(-1)).reshape(scores.shape)
    ranking = np.lexsort((orders, place, -scores, orders < 0), axis=1)
    return pages.cut(scores, ranking, (orders, ids, names), width)


@dataclass(frozen=True, eq=False)
class MergedEvidence:
    """The candidates of all shards. The documents of a query are numbered in the order of their last writes."""

    candidates: Candidates
    orders: Integers  # [candidates]
    ids: Objects
    namespaces: Objects


def join_evidence(
    parts: Sequence[tuple[Integers, ListedEvidence]],
    strategy: Strategy,
    depths: Integers,
    queries: Sequence[Query],
    places: Places,
) -> MergedEvidence:
    """The candidates that one engine would have: the best `depths` [B] of each channel, with what all channels say.

    The best of all records are among the best of each shard, so nothing is missing. What a shard lists beyond the depth
    over all shards is no candidate.
    """
    count = len(queries)
    answers = [part for _, part in parts]
    # Equal queries were searched once.
    firsts = offsets_of([len(part.source) for part in answers])
    source = np.concatenate([np.add(part.source, first) for part, first in zip(answers, firsts[:-1], strict=True)])
    whole, at = concatenated([part.candidates for part in answers]).take(source)
    ids, names = (np.concatenate([getattr(part, name) for part in answers])[at] for name in ("ids", "namespaces"))
    rows = np.concatenate([own for own, _ in parts])[whole.owners]
    orders = whole.documents
    ranking = np.lexsort((orders, places(rows, names), rows))
    rows = rows[ranking]
    listed: dict[str, npt.NDArray[np.bool_]] = {}
    kept = np.full(len(rows), strategy.complete, dtype=np.bool_)
    for name, held in whole.channels.items():
        own = held.listed[ranking]
        listed[name] = own if strategy.complete else _cut(held.scores[ranking], own, rows, depths)
        kept |= listed[name]
    chosen = ranking[kept]
    rows = rows[kept]
    offsets = np.searchsorted(rows, np.arange(count + 1))
    documents = np.arange(len(rows)) - offsets[rows]
    made = {}
    for channel in strategy.channels:
        found, inside = whole.channels[channel.name].at(chosen, offsets), listed[channel.name][kept]
        # A list of postings scores what it holds. Beyond its depth a candidate has 0.
        scores = found.scores if isinstance(channel, Dense) else np.where(inside, found.scores, 0.0)
        made[channel.name] = Channel.of(scores, found.scored, inside, offsets)
    now = np.array([np.nan if query.now is None else float(query.now) for query in queries])
    types = tuple(query.type for query in queries)
    candidates = Candidates(offsets, documents, made, now, whole.times[chosen], whole.importance[chosen], types)
    return MergedEvidence(candidates, orders[chosen], ids[chosen], names[chosen])


def concatenated(parts: Sequence[Candidates]) -> Candidates:
    """The candidates of the queries of all parts, one part after another."""

    def join(name: str) -> Any:
        return np.concatenate([getattr(part, name) for part in parts])

    offsets = offsets_of(np.concatenate([np.diff(part.offsets) for part in parts]))
    channels = {name: _concatenated([part.channels[name] for part in parts], offsets) for name in parts[0].channels}
    types = tuple(name for part in parts for name in part.types)
    return Candidates(offsets, join("documents"), channels, join("now"), join("times"), join("importance"), types)


def _concatenated(parts: Sequence[Channel], offsets: Integers) -> Channel:
    def join(name: str, missing: float | None = None) -> Any:
        """The values of all parts. Where some have none, it is `missing`; None where no part has any."""
        values = [getattr(part, name) for part in parts]
        if all(own is None for own in values):
            return None
        filled = [
            np.full(len(part.scores), missing) if own is None else own for part, own in zip(parts, values, strict=True)
        ]
        return np.concatenate(filled)

    weights, latest = join("weights", 1.0), join("latest", -np.inf)
    tied = any(part.tied for part in parts)
    return Channel(join("scores"), join("scored"), join("listed"), offsets, weights, latest, tied)


def _cut(scores: Floats, listed: npt.NDArray[np.bool_], rows: Integers, depths: Integers) -> npt.NDArray[np.bool_]:
    """Which candidates, in order of row and write, are among the best `depths` of what their row lists."""
    places = np.flatnonzero(listed)
    own = rows[places]
    by_score = np.lexsort((places, -scores[places], own))
    ranked = places[by_score]
    starts = np.searchsorted(own, np.arange(len(depths)))
    inside = np.arange(len(ranked)) - starts[own] < depths[own]
    cut = np.zeros(len(listed), dtype=np.bool_)
    cut[ranked[inside]] = True
    return cut


def fuse(strategy: Strategy, candidates: Candidates) -> Fused:
    """The fused scores, as one engine has them."""
    if strategy.fusion is not None:
        return strategy.fusion(candidates)
    ((name, channel),) = candidates.channels.items()
    return Fused.of({name: channel.scores}, channel.listed)


def merge_evidence(evidence: MergedEvidence, fused: Fused, pages: Pages, width: int) -> Ranked:
    """The hits of a strategy from its candidates."""
    candidates, last = evidence.candidates, pages.k + pages.offset
    depth = min(int(last.max(initial=0)), int(np.diff(candidates.offsets).max(initial=0)))
    scores, _, places = best(fused, candidates, last, depth)
    ranked = Ranked.empty(len(pages.k), depth)
    found = places >= 0
    for whole, own in (
        (ranked.orders, evidence.orders),
        (ranked.ids, evidence.ids),
        (ranked.namespaces, evidence.namespaces),
    ):
        whole[found] = own[places[found]]
    ranking = np.broadcast_to(np.arange(depth), scores.shape)
    return pages.cut(scores, ranking, (ranked.orders, ranked.ids, ranked.namespaces), width)


def place_of(scopes: Sequence[Scope]) -> Places:
    """Places by the scope of each row. Below a path, namespaces follow each other by their names."""
    single = all(scope.single for scope in scopes)
    given = [
        None if scope.names is None else {name: place for place, name in enumerate(scope.names)} for scope in scopes
    ]

    def places(rows: Integers, names: Objects) -> Integers:
        found = np.zeros(len(rows), dtype=np.int64)
        if single:
            return found
        sorted_names = {name: place for place, name in enumerate(sorted({name for name in names if name is not None}))}
        for at, (row, name) in enumerate(zip(rows.tolist(), names.tolist(), strict=True)):
            if name is not None:
                found[at] = (given[row] or sorted_names)[name]
        return found

    return places


def note_over(query: Query, notes: Sequence[ShardNote]) -> str | None:
    """The note of one engine with all records, from those of shards with a part each.

    A shard may hold no records of a namespace that has some, and lack a word that another one has.
    """
    for same in (EMPTY, UNSEARCHABLE):
        if any(note == same for note, _ in notes):
            return same
    there = [(note, undated) for note, undated in notes if note != NO_RECORDS]
    if not there:
        return NO_RECORDS if notes else None
    if query.k != 0 and all(undated for _, undated in there):
        return UNDATED
    some = [note for note, _ in there]
    if set(some) == {UNKNOWN}:
        return UNKNOWN
    return NARROWED if NARROWED in some and not query.offset and query.min_score is None else None
