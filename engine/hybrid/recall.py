"""Collects evidence for strategies that read entities, times and types of record in a query (SPEC B060 to B062).

::

    parse ─ optimize ─┬─ bm25, dense: among the hinted types ─ fewer than 5: among all ─┐
                      └─ graph, temporal, conversation: among all ──────────────────────┴─ fuse

The first stage of Five Retrievers also resolves coreference. That is left to the caller, who knows the conversation
and can name the entities (`Query.entities`).

A channel that the optimizer leaves out for a query lists nothing for it, and the query's text is not encoded if no
channel needs its vector. A query that names nothing but a time is left to the time window alone only where the window
holds an event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..arrays import Flags, Floats, Integers
from ..errors import ParameterError, QueryError
from ..fuse.candidates import Candidates, Channel
from ..fuse.score_rrf import GRAPH_WEIGHT, MULTI_HOP_WEIGHT, SPECULATIVE_WEIGHT, TEMPORAL_WEIGHT
from ..index.snapshot import Snapshot
from ..locks import once
from ..recall.conversation import rank, seeds_of
from ..recall.entity_graph import HOP_SCORES
from ..recall.hints import EVENT
from ..recall.optimizer import NO_TIME, ONLY_TIME, Parsed, Route, Stats, content_words
from ..recall.resolution import Mention, asks_many_hops, resolve, roots_of
from ..records.decision import Decision
from ..records.explanation import Explanation
from ..records.filters import ColumnComparison
from ..records.query import searched_fields, zone_of
from ..search.explain import explainer_of
from ..search.lexical import analyse
from ..text.time_expressions.parse import When, parse_when
from ..vectors.vectors import Halves
from .evidence import NUMBER_BITS, ChannelResults, EvidenceCollector, Group
from .sources import query_vectors
from .strategy import AnyChannel as AnyChannel
from .strategy import Conversation, Dense, Graph, Learned, Lexical, Temporal

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

    @property
    def served(self) -> str:
        names = [
            collector.lists[name].served
            for passes in self._passes.values()
            for collector in passes
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
                if query.now is None or days is None:
                    continue
                try:
                    times[row] = parse_when(
                        query.text,
                        float(query.now),
                        last_session_end=query.last_session_end,
                        recent_days=float(days),
                        timezone=zone_of(query.timezone),
                    )
                except ParameterError as error:
                    raise QueryError(f"query {row}: {error}") from None
        return times

    @once
    def routes(self) -> dict[int, Route]:
        """The optimizer's decision for each row, rows of namespaces that hold nothing included."""
        batch, optimizer = self.batch, self.strategy.optimizer
        every = sorted(set(batch.source))
        if optimizer is None:
            return {row: Route(tuple(batch.queries[row].hints or ())) for row in every}
        mentions, whens = self.mentions, self.whens
        names = [channel.name for channel in self.strategy.channels]
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
        for group, _, times in self._events if bare else []:
            for row in bare.intersection(group.rows.tolist()):
                when = self.whens[row]
                if when is None or not ((times >= when.start) & (times <= when.end)).any():
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
        if vectors is None and self.strategy.dense:
            vectors = self.vectors[0]
        self._passes.clear()
        lists = {channel.name: self.search_channel(channel, vectors) for channel in self.strategy.channels}
        searched = [channel for channel in self.strategy.channels if isinstance(channel, _SEARCHED)]
        asked = {row for channel in searched for row in self._running(channel.name)}
        narrow = {row for row, route in self.routes.items() if route.hints and row in asked}
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

    def search_channel(self, channel: AnyChannel, vectors: Halves | None) -> ChannelResults:
        if isinstance(channel, _SEARCHED):
            return self._search_rows(channel, self._running(channel.name), vectors, hinted=True)
        with self.phases(channel.name):
            if isinstance(channel, Graph):
                return self._search_graph(channel)
            if isinstance(channel, Temporal):
                return self._search_window(channel)
            assert isinstance(channel, Conversation)
            return self._search_conversation(channel)

    def _search_rows(
        self, channel: AnyChannel, rows: set[int], vectors: Halves | None, *, hinted: bool
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
        return collector.search_channel(channel, vectors)

    def _make_padding(self) -> ChannelResults:
        """Lists of padding alone, as deep as the deepest row's."""
        shape = len(self.batch), max(self.depths.values(), default=0)
        return np.full(shape, -np.inf), np.full(shape, -1, dtype=np.int64)

    def _search_graph(self, channel: Graph) -> ChannelResults:
        """The memories around each row's entities, best first."""
        scores, documents = self._make_padding()
        running = self._running(channel.name)
        far = [np.zeros(0, dtype=np.int64)]
        for group in self.groups:
            rows = np.array([row for row in group.rows.tolist() if row in running], dtype=np.int64)
            if not len(rows):
                continue
            queries = [self.batch.queries[row] for row in rows.tolist()]
            roots = [roots_of(self.mentions[row]) for row in rows.tolist()]
            now = [np.nan if query.now is None else float(query.now) for query in queries]
            hops = [min(channel.hops + asks_many_hops(query.text), MAX_HOPS) for query in queries]
            graph = self.sources.graphs.entities(self.batch.memory, group.snapshot, channel.type_prior)
            flags = group.flags
            for part in graph.parts(roots, now, hops):
                kept = np.flatnonzero(flags[part.documents])
                group_rows, reached, score = part.rows[kept], part.documents[kept], part.scores[kept]
                order = np.lexsort((reached, -score, group_rows))
                group_rows, reached, score, steps = (
                    group_rows[order],
                    reached[order],
                    score[order],
                    part.hops[kept][order],
                )
                place = np.arange(len(group_rows)) - np.searchsorted(group_rows, group_rows)
                best = np.flatnonzero(place < np.array([self.depths[row] for row in rows[group_rows].tolist()]))
                at = rows[group_rows[best]], place[best]
                scores[at], documents[at] = score[best], reached[best]
                over = best[steps[best] > 0]
                far.append(rows[group_rows[over]] << NUMBER_BITS | reached[over])
        self._far[channel.name] = np.sort(np.concatenate(far))
        return scores, documents

    def _search_window(self, channel: Temporal) -> ChannelResults:
        """The events in each row's window: the first by document where they tie, else the latest."""
        scores, documents = self._make_padding()
        running = self._running(channel.name)
        for group, every, moments_of in self._events:
            order = np.argsort(moments_of, kind="stable")
            numbers, times = every[order], moments_of[order]
            for row in group.rows.tolist():
                when = self.whens[row]
                if when is None or row not in running:
                    continue
                start, end = np.searchsorted(times, when.start), np.searchsorted(times, when.end, side="right")
                inside, moments = numbers[start:end], times[start:end]
                first = np.argsort(inside) if not channel.newest_first else np.lexsort((inside, -moments))
                first = first[: self.depths[row]]
                documents[row, : len(first)] = inside[first]
                scores[row, : len(first)] = moments[first] if channel.newest_first else 1.0
        return scores, documents

    @once
    def _events(self) -> list[tuple[Group, Integers, Floats]]:
        """Each group with its events: document numbers ascending, and times."""
        return [(group, *self._events_of(group)) for group in self.groups]

    def _events_of(self, group: Group) -> tuple[Integers, Floats]:
        code = self.batch.memory.values["type"].ids.get(EVENT)
        numbers, times = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
        for first, segment, eligible in zip(group.snapshot.firsts, group.snapshot.segments, group.passing, strict=True):
            codes = segment.columns.categories.get("type")
            if codes is None or code is None or segment.times is None:
                continue
            positions = np.flatnonzero(eligible & (codes == code) & ~np.isnan(segment.times))
            numbers.append(first + positions)
            times.append(segment.times[positions])
        return np.concatenate(numbers), np.concatenate(times)

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
            keys = np.repeat(np.arange(len(self.batch)), np.diff(offsets)) << NUMBER_BITS | documents
            weights = np.where(np.isin(keys, self._far[channel.name]), MULTI_HOP_WEIGHT, GRAPH_WEIGHT)
            return Channel.of(scores, named, named, offsets, weights)
        if isinstance(channel, Temporal):
            return self._score_window(channel, scores, named, offsets, documents)
        if isinstance(channel, Conversation):
            return Channel.of(scores, named, named, offsets)
        return super().score_channel(channel, scores, named, offsets, documents, vectors)

    # Sources: B035.
    def _score_window(
        self, channel: Temporal, scores: Floats, named: Flags, offsets: Integers, documents: Integers
    ) -> Channel:
        """Where all events in a window tie, every candidate in it counts, whichever channel listed it."""
        weight = [
            SPECULATIVE_WEIGHT if (when := self.whens.get(row)) is not None and when.speculative else TEMPORAL_WEIGHT
            for row in range(len(self.batch))
        ]
        weights = np.repeat(np.array(weight, dtype=np.float64), np.diff(offsets))
        if channel.newest_first:
            return Channel.of(scores, named, named, offsets, weights)
        inside = named.copy()
        running = self._running(channel.name)
        for group, numbers, times in self._events:
            for row in group.rows.tolist():
                when = self.whens[row]
                if when is None or row not in running:
                    continue
                candidates = slice(int(offsets[row]), int(offsets[row + 1]))
                among = numbers[(times >= when.start) & (times <= when.end)]
                inside[candidates] |= np.isin(documents[candidates], among)
        return Channel.of(np.ones(len(documents)), inside, inside, offsets, weights, tied=True)

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
"""Channels that search among the types that a query hints at (B042)."""


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
