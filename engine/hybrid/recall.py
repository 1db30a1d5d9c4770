"""Collects evidence for strategies that read entities, times and types of record in a query (SPEC B060 to B062).

::

    parse ─ optimize ─ bm25, dense, graph, temporal, conversation ─ fuse, raised where the hinted types agree

An optimizer that filters (`Optimizer.filters`, the source's letter) searches in another way::

    parse ─ optimize ─┬─ bm25, dense: among the hinted types ─ fewer than 5: among all ─┐
                      └─ graph, temporal, conversation: among all ──────────────────────┴─ fuse

The first stage of Five Retrievers also resolves coreference. That is left to the caller, who knows the conversation
and can name the entities (`Query.entities`).

A channel that the optimizer leaves out for a query lists nothing for it, and the query's text is not encoded if no
channel needs its vector. A query that names nothing but a time is left to the time window alone only where the window
holds an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..arrays import Flags, Floats, Integers, ranges
from ..fuse.boosted import Boosted
from ..fuse.candidates import Candidates, Channel
from ..fuse.score_rrf import GRAPH_WEIGHT, MULTI_HOP_WEIGHT, SPECULATIVE_WEIGHT, TEMPORAL_WEIGHT
from ..index.columns import ABSENT
from ..index.snapshot import Snapshot
from ..index.time_order import newest_between
from ..locks import once
from ..recall.conversation import rank, seeds_of
from ..recall.entity_graph import HOP_SCORES, Reached
from ..recall.hints import EVENT
from ..recall.optimizer import NO_TIME, ONLY_TIME, Parsed, Route, Stats, content_words
from ..recall.resolution import Mention, asks_many_hops, resolve, roots_of
from ..records.decision import Decision
from ..records.explanation import Explanation
from ..records.filters import ColumnComparison
from ..records.query import searched_fields
from ..search.explain import explainer_of
from ..search.lexical import analyse
from ..text.time_expressions.parse import When
from ..timing import Phases
from ..vectors.vectors import Halves
from .evidence import NUMBER_BITS, ChannelResults, EvidenceCollector, Group
from .occasions import date_occasion, time_named
from .sources import has_texts, query_vectors
from .strategy import SCORING, Conversation, Dense, Graph, Hinted, Learned, Lexical, Temporal
from .strategy import AnyChannel as AnyChannel

MAX_HOPS = len(HOP_SCORES) - 1
NO_NOW = "the query has no 'now' to read times by"


class RecallCollector(EvidenceCollector):
    """As `EvidenceCollector`, for channels beyond words and vectors, and an optimizer."""

    def __init__(self, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self._passes: dict[str, list[EvidenceCollector]] = {}
        """The collectors that searched for a channel: first the hinted types, then all types for rows with few hits."""
        self._widened: set[int] = set()
        self._far: dict[str, Integers] = {}
        """By graph channel, the (row, document) keys, ascending, of the documents that it reached over an edge."""
        self._cut: dict[str, set[int]] = {}
        """By graph channel, the rows for which it reached more documents than it lists."""

    @property
    def served(self) -> str:
        names = [
            collector.lists[name].served
            for channel in self.strategy.channels
            for collector in self._passes.get(channel.name, ())
            for name in collector.lists
        ]
        if self.strategy.dense and self.vectors[1].any():
            names.append(f"dense {self.backend.dense().name}")
        return ", ".join(dict.fromkeys(names)) or self.backend.name

    @once
    def mentions(self) -> dict[int, tuple[Mention, ...]]:
        """The entities of each row that is searched; none where neither the optimizer nor a channel needs them."""
        batch = self.batch
        mentions_of: dict[int, tuple[Mention, ...]] = dict.fromkeys(batch.rows, ())
        if self.strategy.optimizer is None and not any(
            isinstance(channel, Graph) for channel in self.strategy.channels
        ):
            return mentions_of
        with self.phases("parse"):
            # Every graph of a snapshot has the same names. The graph of a channel exists already or will be needed.
            prior = next((channel.type_prior for channel in self.strategy.channels if isinstance(channel, Graph)), None)
            rows_of: dict[Snapshot, list[int]] = {}
            for row in batch.rows:
                rows_of.setdefault(batch.asked[row].snapshot, []).append(row)
            for snapshot, rows in rows_of.items():
                graph = self.sources.graphs.entities(batch.memory, snapshot, prior)
                queries = [batch.queries[row] for row in rows]
                askers = [
                    query.scope.id if query.scope is not None and query.scope.column == "user" else None
                    for query in queries
                ]
                texts, given = [query.text for query in queries], [query.entities for query in queries]
                meant = partial(self.sources.meant, searched_fields(queries[0]))
                resolved = resolve(graph, texts, given, askers, meant)
                mentions_of.update(zip(rows, resolved, strict=True))
        return mentions_of

    @once
    def whens(self) -> dict[int, When | None]:
        """The time that each row names, rows of namespaces that hold nothing included."""
        days = next((channel.recent_days for channel in self.strategy.channels if isinstance(channel, Temporal)), None)
        times: dict[int, When | None] = {}
        with self.phases("parse"):
            for row in sorted(set(self.batch.source)):
                query = self.batch.queries[row]
                times[row] = None
                if days is None:
                    continue
                find_event = partial(date_occasion, self.batch.memory, self.batch.asked[row], self.sources.records)
                times[row] = time_named(query, row, recent_days=float(days), find_event=find_event)
        return times

    @once
    def routes(self) -> dict[int, Route]:
        """The optimizer's decision for each row, rows of namespaces that hold nothing included."""
        batch, optimizer = self.batch, self.strategy.optimizer
        every = sorted(set(batch.source))
        if optimizer is None:
            return {row: Route(tuple(batch.queries[row].hints or ())) for row in every}
        mentions, whens = self.mentions, self.whens
        # Some channels find nothing, so it is no reason to leave all others out.
        names = [channel.name for channel in self.strategy.channels if not isinstance(channel, SCORING)]
        routes = {}
        with self.phases("parse"):
            for row in every:
                query = batch.queries[row]
                snapshot = batch.asked[row].snapshot
                known, stats = 0, Stats(0)
                if snapshot.segments:
                    terms = np.array(analyse(batch.memory, query), dtype=np.int32)
                    known = int((snapshot.document_frequencies(terms) > 0).sum())
                    stats = self.sources.graphs.stats(batch.memory, snapshot)
                parsed = Parsed(
                    query.text,
                    content_words(query.text, whens[row]) if query.terms is None else tuple(query.terms),
                    known,
                    whens[row],
                    tuple(mention.name for mention in mentions.get(row, ())),
                )
                route = optimizer(parsed, stats, names)
                skipped = dict(route.skipped)
                if query.now is None and skipped.get("temporal") == NO_TIME:
                    skipped["temporal"] = NO_NOW
                routes[row] = Route(route.hints if query.hints is None else tuple(query.hints), skipped)
            self._reopen(routes)
        return routes

    def _reopen(self, routes: dict[int, Route]) -> None:
        """Let words and vectors answer a query that names nothing but a time, where no event lies in that time."""
        bare = {row for row, route in routes.items() if ONLY_TIME in route.skipped.values()}
        for group in self.groups if bare else []:
            rows = self._timed(group, bare)
            if len(rows):
                bare.difference_update(rows[(self._newest_events(group, rows, 1)[0] >= 0).any(axis=1)].tolist())
        # A row of a namespace that holds nothing is left alone: its lists stay empty.
        for row in bare.intersection(self.batch.rows):
            skipped = {name: why for name, why in routes[row].skipped.items() if why != ONLY_TIME}
            routes[row] = replace(routes[row], skipped=skipped)

    def _running(self, channel: str) -> set[int]:
        """The searched rows for which a channel is not left out."""
        return {row for row in self.batch.rows if channel not in self.routes[row].skipped}

    @once
    def vectors(self) -> tuple[Halves, Flags]:
        rows = {row for channel in self.strategy.dense for row in self._running(channel.name)}
        if not rows:
            # No error where the engine holds no vectors: the optimizer left the dense channels out.
            return np.zeros((len(self.batch), 1), dtype=np.float16), np.zeros(len(self.batch), dtype=np.bool_)
        with self.phases("encode"):
            return query_vectors(self.batch.limit_to(rows), self.sources)

    def candidates(self, vectors: Halves | None = None) -> Candidates:
        self._passes.clear()
        lists, vectors = self.search_channels(vectors)
        searched = [channel for channel in self.strategy.channels if isinstance(channel, _SEARCHED)]
        asked = {row for channel in searched for row in self._running(channel.name)}
        narrow = {row for row, route in self.routes.items() if self._filters and route.hints and row in asked}
        below = 0 if self.strategy.optimizer is None else self.strategy.optimizer.widen_below
        if narrow and below:
            rows = np.array(sorted(narrow), dtype=np.int64)
            sorted_lists = [np.sort(lists[channel.name][1][rows], axis=1) for channel in searched]
            counts = [
                len(np.unique(row_documents[row_documents >= 0]))
                for row_documents in np.concatenate(sorted_lists, axis=1)
            ]
            self._widened = set(rows[np.array(counts) < below].tolist())
        if self._widened:
            for channel in searched:
                again = self._search_rows(channel, self._widened & self._running(channel.name), vectors, hinted=False)
                lists[channel.name] = _replace_rows(lists[channel.name], again, sorted(self._widened))
        return self.join_lists(lists, vectors)

    @property
    def _filters(self) -> bool:
        """Whether words and vectors search the hinted types alone (B042)."""
        return self.strategy.optimizer is not None and self.strategy.optimizer.filters

    @property
    def encodes(self) -> bool:
        # What decides which channels run is worked out here, before two threads read it.
        rows = {row for channel in self.strategy.dense for row in self._running(channel.name)}
        return has_texts(self.batch, rows, self.sources)

    def search_channel(
        self, channel: AnyChannel, vectors: Halves | None, phases: Phases | None = None
    ) -> ChannelResults:
        if isinstance(channel, _SEARCHED):
            return self._search_rows(channel, self._running(channel.name), vectors, phases, hinted=self._filters)
        if isinstance(channel, SCORING):
            return np.zeros((len(self.batch), 0)), np.zeros((len(self.batch), 0), dtype=np.int64)
        with self.phases(channel.name):
            if isinstance(channel, Graph):
                return self._search_graph(channel)
            if isinstance(channel, Temporal):
                return self._search_window(channel)
            assert isinstance(channel, Conversation)
            return self._search_conversation(channel)

    def _search_rows(
        self,
        channel: AnyChannel,
        rows: set[int],
        vectors: Halves | None,
        phases: Phases | None = None,
        *,
        hinted: bool,
    ) -> ChannelResults:
        """The list of a channel of words or vectors for these rows, among the hinted types (`hinted`) or among all."""
        changed = {}
        if hinted:
            for row in rows:
                if hints := self.routes[row].hints:
                    changed[row] = self.batch.narrow(row, ColumnComparison("type", "in", hints))
        batch = self.batch.limit_to(rows, changed)
        collector = EvidenceCollector(batch, self.backend, self.sources, self.strategy, self.options, of=self)
        self._passes.setdefault(channel.name, []).append(collector)
        return collector.search_channel(channel, vectors, phases)

    def _make_padding(self) -> ChannelResults:
        """Lists of padding alone, as deep as the deepest row's."""
        shape = len(self.batch), max(self.depths.values(), default=0)
        return np.full(shape, -np.inf), np.full(shape, -1, dtype=np.int64)

    def _search_graph(self, channel: Graph) -> ChannelResults:
        """The memories around each row's entities, best first."""
        scores, documents = self._make_padding()
        running = self._running(channel.name)
        far = [np.zeros(0, dtype=np.int64)]
        cut = self._cut[channel.name] = set()
        for rows, part in self._walk(channel, running):
            order = np.lexsort((part.documents, -part.scores, part.rows))
            group_rows, reached = part.rows[order], part.documents[order]
            score, steps = part.scores[order], part.hops[order]
            place = np.arange(len(group_rows)) - np.searchsorted(group_rows, group_rows)
            inside = place < np.array([self.depths[row] for row in rows[group_rows].tolist()], dtype=np.int64)
            cut.update(rows[group_rows[~inside]].tolist())
            best = np.flatnonzero(inside)
            at = rows[group_rows[best]], place[best]
            scores[at], documents[at] = score[best], reached[best]
            over = best[steps[best] > 0]
            far.append(rows[group_rows[over]] << NUMBER_BITS | reached[over])
        self._far[channel.name] = np.sort(np.concatenate(far))
        return scores, documents

    def _walk(self, channel: Graph, asked: set[int]) -> Iterator[tuple[Integers, Reached]]:
        """Yield (rows of a group, memories that walks from their entities reach and that may be hits).

        The rows of the memories are places among the group's rows.
        """
        for group in self.groups:
            rows = np.array([row for row in group.rows.tolist() if row in asked], dtype=np.int64)
            if not len(rows):
                continue
            queries = [self.batch.queries[row] for row in rows.tolist()]
            roots = [roots_of(self.mentions[row]) for row in rows.tolist()]
            now = [np.nan if query.now is None else float(query.now) for query in queries]
            hops = [min(channel.hops + asks_many_hops(query.text), MAX_HOPS) for query in queries]
            graph = self.sources.graphs.entities(self.batch.memory, group.snapshot, channel.type_prior)
            for part in graph.parts(roots, now, hops):
                kept = np.flatnonzero(group.flags[part.documents])
                yield rows, Reached(part.rows[kept], part.documents[kept], part.scores[kept], part.hops[kept])

    def _search_window(self, channel: Temporal) -> ChannelResults:
        """The latest events in each row's window."""
        scores, documents = self._make_padding()
        running = self._running(channel.name)
        for group in self.groups:
            rows = self._timed(group, running)
            if not len(rows):
                continue
            depths = np.array([self.depths[row] for row in rows.tolist()])
            found, times = self._newest_events(group, rows, int(depths.max()))
            listed = (np.arange(found.shape[1]) < depths[:, None]) & (found >= 0)
            at = np.nonzero(listed)
            places = rows[at[0]], at[1]
            documents[places] = found[at]
            scores[places] = times[at] if channel.newest_first else 1.0
        return scores, documents

    def _timed(self, group: Group, among: set[int]) -> Integers:
        """The rows of a group that name a time, of these rows."""
        rows = [row for row in group.rows.tolist() if row in among and self.whens[row] is not None]
        return np.array(rows, dtype=np.int64)

    def _windows(self, group: Group, rows: Integers) -> tuple[Floats, Floats]:
        """(first, last) moment [rows] of the time that each row names, within the range that its query allows."""
        named = [(when.start, when.end) for row in rows.tolist() if (when := self.whens[row]) is not None]
        starts, ends = np.array(named, dtype=np.float64).reshape(-1, 2).T
        return np.maximum(starts, group.since), np.minimum(ends, group.until)

    @once
    def _event(self) -> int:
        """The code of the type of events; where no record has it, a code of no document (`ABSENT` is that of many)."""
        return self.batch.memory.values["type"].ids.get(EVENT, ABSENT - 1)

    def _newest_events(self, group: Group, rows: Integers, count: int) -> tuple[Integers, Floats]:
        """(documents, times) [rows, width] of the latest events in the rows' windows; padding -1, -inf."""
        return newest_between(group.snapshot, self._event, group.accepted, *self._windows(group, rows), count)

    def _search_conversation(self, channel: Conversation) -> ChannelResults:
        """The newest turns of each row, ordered by their rank."""
        scores, documents = self._make_padding()
        running = self._running(channel.name)
        memory = self.batch.memory
        for group in self.groups:
            rows = [row for row in group.rows.tolist() if row in running]
            if not rows:
                continue
            asked = self.batch.asked[rows[0]]
            chosen = asked.accepted, asked.settings.since, asked.settings.until
            graph = self.sources.graphs.conversation(memory, group.snapshot, group.passing, chosen, channel.ranking)
            seeds = seeds_of(graph, [analyse(memory, self.batch.queries[row]) for row in rows])
            for row, ranks in zip(rows, rank(graph, seeds), strict=True):
                reached = np.flatnonzero(ranks > 0.0)
                best = reached[np.argsort(-ranks[reached], kind="stable")][: self.depths[row]]
                scores[row, : len(best)], documents[row, : len(best)] = ranks[best], graph.documents[best]
        return scores, documents

    def score_channel(
        self,
        channel: AnyChannel,
        scores: Floats,
        named: Flags,
        offsets: Integers,
        documents: Integers,
        vectors: Halves | None,
    ) -> Channel:
        if isinstance(channel, Graph):
            return self._score_graph(channel, scores, named, offsets, documents)
        if isinstance(channel, Hinted):
            agreeing = self._agree(offsets, documents)
            return Channel.of(np.ones(len(documents)), agreeing, agreeing, offsets, tied=True)
        if isinstance(channel, Temporal):
            return self._score_window(channel, scores, named, offsets, documents)
        if isinstance(channel, Conversation):
            return Channel.of(scores, named, named, offsets)
        return super().score_channel(channel, scores, named, offsets, documents, vectors)

    def _score_graph(
        self, channel: Graph, scores: Floats, named: Flags, offsets: Integers, documents: Integers
    ) -> Channel:
        """Weights by distance (B052). A fusion of boosts needs the scores beyond the channel's depth too.

        Otherwise the first hundred of the 370 turns of a speaker would be raised above the rest by their age alone.
        """
        keys = np.repeat(np.arange(len(self.batch)), np.diff(offsets)) << NUMBER_BITS | documents
        far = np.isin(keys, self._far[channel.name])
        scored = named.copy()
        if isinstance(self.strategy.fusion, Boosted) and self._cut[channel.name]:
            with self.phases(channel.name):
                for rows, part in self._walk(channel, self._cut[channel.name]):
                    reached = rows[part.rows] << NUMBER_BITS | part.documents
                    places = np.minimum(np.searchsorted(keys, reached), max(len(keys) - 1, 0))
                    known = np.flatnonzero(keys[places] == reached)
                    at = places[known]
                    scores[at], scored[at], far[at] = part.scores[known], True, part.hops[known] > 0
        return Channel.of(scores, scored, named, offsets, np.where(far, MULTI_HOP_WEIGHT, GRAPH_WEIGHT))

    def _agree(self, offsets: Integers, documents: Integers) -> Flags:
        """[candidates] whether a candidate is of a type that its query hints at."""
        agreeing = np.zeros(len(documents), dtype=np.bool_)
        codes_of = self.batch.memory.values["type"].ids
        for group in self.groups:
            for row in group.rows.tolist():
                wanted = [codes_of[kind] for kind in self.routes[row].hints if kind in codes_of]
                if not wanted:
                    continue
                places = slice(int(offsets[row]), int(offsets[row + 1]))
                agreeing[places] = np.isin(group.snapshot.codes_of("type", documents[places]), wanted)
        return agreeing

    # Sources: B035.
    def _score_window(
        self, channel: Temporal, scores: Floats, named: Flags, offsets: Integers, documents: Integers
    ) -> Channel:
        """Where all events in a window share a rank, each candidate in it counts, whichever channel listed it."""
        weight = [
            SPECULATIVE_WEIGHT if (when := self.whens.get(row)) is not None and when.speculative else TEMPORAL_WEIGHT
            for row in range(len(self.batch))
        ]
        weights = np.repeat(np.array(weight, dtype=np.float64), np.diff(offsets))
        if channel.newest_first:
            return Channel.of(scores, named, named, offsets, weights)
        moments = np.full(len(documents), -np.inf)
        running = self._running(channel.name)
        for group in self.groups:
            rows = self._timed(group, running)
            counts = offsets[rows + 1] - offsets[rows]
            places = ranges(offsets[rows], counts)
            times = group.snapshot.numbers_of("time", documents[places])
            starts, ends = (np.repeat(bounds, counts) for bounds in self._windows(group, rows))
            event = group.snapshot.codes_of("type", documents[places]) == self._event
            inside = event & (times >= starts) & (times <= ends)
            moments[places[inside]] = times[inside]
        inside = moments > -np.inf
        return Channel.of(np.ones(len(documents)), inside, inside, offsets, weights, latest=moments)

    def explainer(self, channel: Lexical, row: int) -> Callable[[int, str], Explanation] | None:
        for part in reversed(self._passes[channel.name]):
            if row in part.batch.rows:
                return explainer_of(part.batch, part.search_postings(channel).plans)
        return None

    def costs(self) -> dict[int, float]:
        """Milliseconds of each row that is searched. The time of a stage is shared by the queries that it worked on."""
        repeats = np.bincount(np.array(self.batch.source, dtype=np.int64), minlength=len(self.batch))
        every = set(self.batch.rows)
        dense = {row for channel in self.strategy.dense for row in self._running(channel.name)}
        users = {channel.name: self._running(channel.name) for channel in self.strategy.channels}
        users |= {"dense": dense, "encode": dense}
        costs = dict.fromkeys(every, 0.0)
        for stage, spent in self.phases.milliseconds.items():
            rows = users.get(stage, every) or every
            each = spent / max(int(repeats[list(rows)].sum()), 1)
            for row in rows:
                costs[row] += each
        return costs

    def decisions(self) -> dict[int, Decision]:
        name, costs = self.strategy.name, self.costs()
        return {
            row: Decision(
                name,
                costs.get(row, 0.0),
                type=self.batch.queries[row].type,
                when=self.whens[row],
                entities=roots_of(self.mentions.get(row, ())),
                hints=route.hints,
                skipped=route.skipped,
                widened=row in self._widened,
            )
            for row, route in self.routes.items()
        }


_SEARCHED = (Lexical, Learned, Dense)
"""Channels that an optimizer with `filters` lets search among the hinted types alone (B042)."""


def _replace_rows(before: ChannelResults, after: ChannelResults, rows: list[int]) -> ChannelResults:
    """The lists `before`, with these rows taken from `after`."""
    width = max(before[0].shape[1], after[0].shape[1])
    replaced = []
    for old, new, padding in zip(before, after, (-np.inf, -1), strict=True):
        joined = np.full((len(old), width), padding, dtype=old.dtype)
        joined[:, : old.shape[1]] = old
        joined[rows] = padding
        joined[rows, : new.shape[1]] = new[rows]
        replaced.append(joined)
    return replaced[0], replaced[1]
