"""Collects the evidence of one batch under one strategy: what each channel says of each query's candidates.

Long because every channel is searched, scored and explained from the same groups, depths and vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Floats, Integers, offsets_of, ranges
from ..backends.choose import Backend
from ..errors import QueryError
from ..feedback.pool import Pool, round_moved
from ..fuse.candidates import Candidates, Channel, Fused, best
from ..fuse.decay import Decay
from ..index.masks import CompiledFilter
from ..index.snapshot import Snapshot
from ..index.union import namespaces_of
from ..locks import once
from ..plan.passing import mask_of
from ..records.decision import Decision
from ..records.explanation import Explanation
from ..search.batch import Batch
from ..search.explain import explainer_of
from ..search.lexical import RetrieverResults, plan_batch, search_lists
from ..search.options import SearchOptions
from ..timing import Phases
from ..vectors.vectors import Halves
from ..vectors.verbs import Mode, Stretch, document_vectors
from .neighbours import best_borrowing, rows_by_loan, scores_borrowing
from .sources import Sources, has_texts, query_vectors, query_weights
from .strategy import SCORING, ContextVectors, ContextWords, Cue, Dense, Learned, Lexical, Strategy
from .strategy import AnyChannel as AnyChannel

ChannelResults = tuple[Floats, Integers]
"""The list of a channel: scores and documents [B, width], padding -1; NaN where a score is not computed yet."""

Evidence = tuple[Candidates, Callable[[Integers], npt.NDArray[np.object_]]]
"""Candidates, and a function from all their documents to record ids."""

# The most candidates of one batch, over all channels. Each takes some 125 bytes while they are fused: 4 GiB in all.
MAX_CANDIDATES = 1 << 25

# Bits of a document number in a (query, document) key.
NUMBER_BITS = 40


@dataclass(frozen=True, eq=False)
class Group:
    """Rows of the batch that search the same documents; `passing` says by segment which documents may be hits."""

    rows: Integers
    snapshot: Snapshot
    accepted: CompiledFilter
    since: float
    until: float

    @once
    def passing(self) -> tuple[Flags, ...]:
        """By segment, which documents may be hits: a mask [documents]. The temporal channel does without."""
        numbers = range(len(self.snapshot.segments))
        return tuple(mask_of(self.snapshot, number, self.accepted, self.since, self.until) for number in numbers)

    @once
    def documents(self) -> Integers:
        """The numbers of all documents that may be hits, ascending."""
        parts = [first + np.flatnonzero(mask) for first, mask in zip(self.snapshot.firsts, self.passing, strict=True)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    @once
    def flags(self) -> Flags:
        """By document number, whether the document may be a hit."""
        return np.concatenate([np.zeros(0, dtype=np.bool_), *self.passing])

    @once
    def embedded(self) -> Integers:
        """Those of `documents` that have a vector."""
        parts = [
            stretch.first
            + np.flatnonzero(
                stretch.vectors.held if stretch.passing is None else stretch.vectors.held & stretch.passing
            )
            for stretch in self.stretches
        ]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    @once
    def stretches(self) -> tuple[Stretch, ...]:
        """The segments with vectors that can hold a hit."""
        return tuple(
            Stretch(segment.vectors, first, None if mask.all() else mask)
            for segment, first, mask in zip(self.snapshot.segments, self.snapshot.firsts, self.passing, strict=True)
            if segment.vectors is not None and mask.any()
        )


class EvidenceCollector:
    """The evidence of one batch under one strategy."""

    def __init__(
        self,
        batch: Batch,
        backend: Backend,
        sources: Sources,
        strategy: Strategy,
        options: SearchOptions,
        *,
        of: EvidenceCollector | None = None,
    ) -> None:
        """`of` is the collector that this one works for. It has the depths and the vectors, and counts the time."""
        self.batch = batch
        self.backend = backend
        self.sources = sources
        self.strategy = strategy
        # Channels are timed as a whole: the phases inside a channel are not timed one by one.
        self.options = replace(options, timing=False)
        self.of = of
        self.phases: Phases = Phases() if of is None else of.phases
        self.lists: dict[str, RetrieverResults] = {}

    @property
    def served(self) -> str:
        """The names of the backends that answered; that of the vectors has the prefix ``dense``."""
        names = [self.lists[channel.name].served for channel in self.strategy.channels if channel.name in self.lists]
        if self.strategy.dense:
            names.append(f"dense {self.backend.dense().name}")
        return ", ".join(dict.fromkeys(names)) or self.backend.name

    @once
    def groups(self) -> list[Group]:
        rows: dict[tuple[Snapshot, CompiledFilter, float, float], list[int]] = {}
        for row in self.batch.rows:
            asked, settings = self.batch.asked[row], self.batch.asked[row].settings
            rows.setdefault((asked.snapshot, asked.accepted, settings.since, settings.until), []).append(row)
        return [Group(np.array(group_rows, dtype=np.int64), *searched) for searched, group_rows in rows.items()]

    @once
    def depths(self) -> dict[int, int]:
        """How many documents a channel lists for each row."""
        if self.of is not None:
            return self.of.depths
        batch, depth = self.batch, self.strategy.depth
        depths = {
            row: min(
                batch.asked[row].snapshot.size,
                MAX_CANDIDATES if depth is None else max(depth, batch.asked[row].k),
            )
            for row in batch.rows
        }
        places = sum(depths.values()) * len(self.strategy.channels)
        if places > MAX_CANDIDATES:
            raise QueryError(
                f"{len(batch)} queries with up to {max(depths.values()):,} candidates are {places:,}, more than "
                f"{MAX_CANDIDATES:,}; ask for fewer at once, or with a smaller depth"
            )
        return depths

    @once
    def vectors(self) -> tuple[Halves, Flags]:
        """(the queries' vectors [B, dimension], which of them have one)."""
        if self.of is not None:
            return self.of.vectors
        with self.phases("encode"):
            return query_vectors(self.batch, self.sources)

    @once
    def weights(self) -> dict[int, Mapping[str, float]]:
        """The queries' learned term weights, by row; rows without any are left out."""
        with self.phases("encode"):
            return query_weights(self.batch, self.sources)

    def search_postings(self, channel: Lexical | Learned, phases: Phases | None = None) -> RetrieverResults:
        """The results of a channel over postings, searched once. `phases` counts the time instead of the own ones."""
        if channel.name not in self.lists:
            with (phases or self.phases)(channel.name):
                # Those of few strategies are not imported above: a first search waits for its imports.
                if self.strategy.fades and self.strategy.depth is not None:
                    from .fading import search_faded

                    assert isinstance(self.strategy.fusion, Decay)
                    results = search_faded(self.batch, self.backend, self.depths, self.options, self.strategy.fusion)
                elif isinstance(channel, Lexical) and channel.rm3 is not None:
                    from .expansion import search_expanded

                    results = search_expanded(
                        self.batch, self.backend, self.depths, self.options, channel.rm3, self.sources.records
                    )
                else:
                    results = search_lists(
                        self.batch,
                        self.backend,
                        self.depths,
                        self.options,
                        Phases(timed=False),
                        learned=self.weights if isinstance(channel, Learned) else None,
                        neighbours=channel.neighbours if isinstance(channel, Lexical) else None,
                    )
            self.lists[channel.name] = results
        return self.lists[channel.name]

    def explainer(self, channel: Lexical, row: int) -> Callable[[int, str], Explanation] | None:
        """A function that explains a record's BM25 score for the queries of a row; None where BM25 did not run.

        None too for a query that the words of hits joined: its terms are not its own.
        """
        if channel.rm3 is not None:
            return None
        plans = plan_batch(self.batch) if self.strategy.fades else self.search_postings(channel).plans
        return explainer_of(self.batch, plans)

    def decisions(self) -> dict[int, Decision] | None:
        """The decision for each row; None for a strategy that decides nothing."""
        return None

    def search_dense(self, channel: Dense, vectors: Halves) -> tuple[Floats, Integers]:
        """The list of a dense channel for these query vectors: (scores, documents) [B, width], padding -1.

        NaN where a score is not computed yet.
        """
        has, depths = self.vectors[1], self.depths
        width = max((depths[row] for row in self.batch.rows if has[row]), default=0)
        scores = np.full((len(self.batch), width), np.nan)
        documents = np.full((len(self.batch), width), -1, dtype=np.int64)
        verbs = self.backend.dense()
        with self.phases("dense"):
            for group in self.groups:
                rows = group.rows[has[group.rows]]
                if not len(rows) or not group.stretches:
                    continue
                if self.strategy.depth is None:
                    # Every document with a vector is listed, so there is nothing to search.
                    documents[rows, : len(group.embedded)] = group.embedded
                    continue
                for lent, alike in rows_by_loan(self.batch, channel, rows).items():
                    row_depths = np.array([depths[row] for row in alike.tolist()])
                    depth = int(row_depths.max())
                    if lent:
                        best_scores, numbers = best_borrowing(
                            verbs, channel, vectors[alike], group.snapshot, group.embedded, depth, lent
                        )
                    else:
                        best_scores, numbers, _ = verbs.best(
                            vectors[alike],
                            group.stretches,
                            depth,
                            channel.interaction,
                            channel.mode,
                            threads=self.options.threads,
                            approximate=channel.approximate,
                        )
                    beyond = np.arange(numbers.shape[1]) >= row_depths[:, None]
                    scores[alike, : numbers.shape[1]] = best_scores
                    documents[alike, : numbers.shape[1]] = np.where(beyond, -1, numbers)
        return scores, documents

    def similarities(self, channel: Dense, vectors: Halves, offsets: Integers, documents: Integers) -> Floats:
        """[candidates] the scores of these documents by a dense channel, -inf for those without a vector."""
        has = self.vectors[1]
        scores = np.full(len(documents), -np.inf)
        verbs = self.backend.dense()
        mode: Mode = "int8" if channel.mode == "int8" else "exact"
        with self.phases("dense"):
            for group in self.groups:
                for lent, rows in rows_by_loan(self.batch, channel, group.rows[has[group.rows]]).items():
                    counts = offsets[rows + 1] - offsets[rows]
                    places = ranges(offsets[rows], counts)
                    if not len(places) or not group.stretches:
                        continue
                    asked = vectors[rows], offsets_of(counts), documents[places]
                    if lent:
                        scores[places] = scores_borrowing(verbs, channel, group.snapshot, *asked, lent)
                    else:
                        scores[places] = verbs.scores_of(
                            asked[0], group.stretches, *asked[1:], channel.interaction, mode
                        )
        return scores

    def candidates(self, vectors: Halves | None = None) -> Candidates:
        """The lists of all channels together. Dense channels search with `vectors` (None: the queries' own)."""
        return self.join_lists(*self.search_channels(vectors))

    def search_channels(self, vectors: Halves | None) -> tuple[dict[str, ChannelResults], Halves | None]:
        """(the list of each channel, the vectors). `vectors` is as for `candidates`.

        While queries are encoded, BM25 runs on a thread of its own: neither needs the other, and both work without the
        interpreter's lock. Where nothing is encoded, no thread is made: it would take as long as the words of a query.
        """
        words = [channel for channel in self.strategy.channels if isinstance(channel, Lexical)]
        others = [channel for channel in self.strategy.channels if not isinstance(channel, Lexical)]
        lists: dict[str, ChannelResults] = {}
        if vectors is None and words and self.encodes:
            from .beside import Beside  # as in `search_postings`

            _ = self.depths  # both sides read it
            phases = Phases(self.phases.timed)
            with Beside(lambda: [self.search_channel(channel, None, phases) for channel in words]) as beside:
                vectors = self.vectors[0]
                for channel in others:
                    lists[channel.name] = self.search_channel(channel, vectors)
            lists |= zip((channel.name for channel in words), beside.result, strict=True)
            for name, spent in phases.milliseconds.items():
                self.phases.add(name, spent)
        else:
            if vectors is None and self.strategy.dense:
                vectors = self.vectors[0]
            for each in self.strategy.channels:
                lists[each.name] = self.search_channel(each, vectors)
        return {channel.name: lists[channel.name] for channel in self.strategy.channels}, vectors

    @property
    def encodes(self) -> bool:
        """Whether a query's text must be encoded for a dense channel."""
        return bool(self.strategy.dense) and has_texts(self.batch, self.batch.rows, self.sources)

    def search_channel(
        self, channel: AnyChannel, vectors: Halves | None, phases: Phases | None = None
    ) -> ChannelResults:
        """The list of a channel for each row. `phases` is as for `search_postings`."""
        if isinstance(channel, Dense):
            assert vectors is not None
            return self.search_dense(channel, vectors)
        if isinstance(channel, SCORING):
            return np.zeros((len(self.batch), 0)), np.zeros((len(self.batch), 0), dtype=np.int64)
        assert isinstance(channel, (Lexical, Learned))
        results = self.search_postings(channel, phases)
        return results.scores, results.documents

    def join_lists(self, lists: Mapping[str, ChannelResults], vectors: Halves | None) -> Candidates:
        """Candidates from these lists, each with what every channel says of it."""
        with self.phases("fuse"):
            keys = [_make_keys(documents) for _, documents in lists.values()]
            if self.strategy.complete:
                keys += [(group.rows[:, None] << NUMBER_BITS | group.documents).reshape(-1) for group in self.groups]
            every = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *keys]))
            offsets = np.searchsorted(every, np.arange(len(self.batch) + 1) << NUMBER_BITS)
            documents = every & (1 << NUMBER_BITS) - 1
        channels = {}
        for channel in self.strategy.channels:
            listed_scores, numbers = lists[channel.name]
            positions = np.searchsorted(every, _make_keys(numbers))
            named = np.zeros(len(every), dtype=np.bool_)
            named[positions] = True
            scores = np.zeros(len(every))
            scores[positions] = listed_scores[numbers >= 0]
            channels[channel.name] = self.score_channel(channel, scores, named, offsets, documents, vectors)
        with self.phases("fuse"):
            return self._make_candidates(offsets, documents, channels)

    def score_channel(
        self,
        channel: AnyChannel,
        scores: Floats,
        named: Flags,
        offsets: Integers,
        documents: Integers,
        vectors: Halves | None,
    ) -> Channel:
        """What a channel says of all candidates.

        `named` [candidates] are those that it listed, and `scores` [candidates] their scores, NaN where a score is not
        computed yet.
        """
        if isinstance(channel, (ContextWords, ContextVectors, Cue)):
            from .context import ContextScorer  # as in `search_postings`

            return ContextScorer(self).score(channel, offsets, documents, vectors)
        scored = np.ones(len(documents), dtype=np.bool_)
        if isinstance(channel, Dense):
            assert vectors is not None
            unscored = np.flatnonzero(~named | np.isnan(scores))
            if len(unscored):
                rows = np.searchsorted(offsets, unscored, side="right") - 1
                counts = np.bincount(rows, minlength=len(self.batch))
                scores[unscored] = self.similarities(channel, vectors, offsets_of(counts), documents[unscored])
            scored = scores > -np.inf
        with self.phases("fuse"):
            return Channel.of(scores, scored, scored if self.strategy.complete else named & scored, offsets)

    def _make_candidates(self, offsets: Integers, documents: Integers, channels: Mapping[str, Channel]) -> Candidates:
        times, importance = np.full(len(documents), np.nan), np.full(len(documents), np.nan)
        if self.strategy.aged:
            for group in self.groups:
                places = ranges(offsets[group.rows], offsets[group.rows + 1] - offsets[group.rows])
                for name, column in (("time", times), ("importance", importance)):
                    column[places] = group.snapshot.numbers_of(name, documents[places])
        now = [np.nan if query.now is None else float(query.now) for query in self.batch.queries]
        types = tuple(query.type for query in self.batch.queries)
        return Candidates(offsets, documents, channels, np.array(now), times, importance, types)

    # Sources: E012.
    def rescore(self, candidates: Candidates, vectors: Halves) -> Candidates:
        """The same candidates, scored for other query vectors."""
        channels, offsets, documents = dict(candidates.channels), candidates.offsets, candidates.documents
        for channel in self.strategy.dense:
            scores = self.similarities(channel, vectors, offsets, documents)
            before = channels[channel.name]
            channels[channel.name] = Channel.of(scores, before.scored, before.listed, offsets)
        for around in self.strategy.around:
            made = channels[around.name]
            channels[around.name] = self.score_channel(around, made.scores, made.listed, offsets, documents, vectors)
        return replace(candidates, channels=channels)

    def fuse(self, candidates: Candidates) -> Fused:
        with self.phases("fuse"):
            if self.strategy.fusion is not None:
                return self.strategy.fusion(candidates)
            ((name, channel),) = candidates.channels.items()
            return Fused.of({name: channel.scores}, channel.listed)

    def apply_feedback(self, candidates: Candidates, fused: Fused) -> Candidates:
        """The candidates after feedback: scored again, or searched again, for the query vectors that the best of them
        gave.
        """
        feedback = self.strategy.feedback
        assert feedback is not None
        vectors, has = self.vectors
        rows = np.flatnonzero(has)
        queries = vectors[rows].astype(np.float64)
        with self.phases("feedback"):
            pool = self._make_pool(candidates, fused, rows, queries)
            new = feedback(queries, pool)
            halves = vectors.copy()
            halves[rows] = round_moved(queries, new).astype(np.float16)
        return self.candidates(halves) if self.strategy.search_again else self.rescore(candidates, halves)

    def _make_pool(self, candidates: Candidates, fused: Fused, rows: Integers, queries: Floats) -> Pool:
        """The pool of the feedback: the best candidates with a vector of these rows, whose vectors are `queries`."""
        feedback = self.strategy.feedback
        assert feedback is not None
        evidence = candidates.channels[self.strategy.dense[0].name]
        ready = Fused(fused.scores, fused.shares, fused.kept & evidence.scored)
        depth = min(feedback.depth, int(np.diff(candidates.offsets).max(initial=0)))
        every, numbers, positions = best(ready, candidates, np.full(len(self.batch), depth), depth)
        scores, documents, found = every[rows], numbers[rows], positions[rows] >= 0
        vectors = np.zeros((*documents.shape, self.vectors[0].shape[1]), dtype=np.float16)
        for group in self.groups:
            at = np.flatnonzero(np.isin(rows, group.rows))
            if len(at) and group.stretches:
                vectors[at] = document_vectors(group.stretches, documents[at].reshape(-1)).reshape(vectors[at].shape)

        def fresh(queries: Floats) -> Pool:
            halves = self.vectors[0].copy()
            halves[rows] = queries.astype(np.float16)
            again = self.candidates(halves)
            return self._make_pool(again, self.fuse(again), rows, queries)

        return Pool(
            texts=[self.batch.queries[row].text for row in rows.tolist()],
            scores=scores,
            # Similarities to the vectors that move the query: the channel's score may be of one passage among many.
            similarities=np.where(found, np.einsum("bpd,bd->bp", vectors.astype(np.float64), queries), -np.inf),
            vectors=vectors,
            counts=found.sum(axis=1),
            first_sentences=partial(self._sentences, rows, documents) if feedback.needs_sentences else None,
            again=fresh,
        )

    def _sentences(self, rows: Integers, documents: Integers, count: int) -> Floats:
        """Vectors of the first sentence of each of the first `count` documents [rows, count, d]; 0 where there is none.

        Raises `QueryError` where nobody keeps the records' texts.
        """
        if self.sources.sentences is None:
            raise QueryError(
                f"strategy {self.strategy.name!r} reads and encodes sentences of records: use an engine that keeps "
                "texts (Engine.open(path), or one in memory), with the records' encoder"
            )
        out = np.zeros((len(rows), count, self.vectors[0].shape[1]))
        for group in self.groups:
            at = np.flatnonzero(np.isin(rows, group.rows))
            if len(at):
                numbers = documents[at, :count]
                present = numbers >= 0
                found = numbers[present]
                ids = group.snapshot.ids_of(found)
                spaces = namespaces_of(group.snapshot, self.batch.queries[int(group.rows[0])].namespace, found)
                read = np.zeros((len(found), out.shape[2]))
                for space in dict.fromkeys(spaces.tolist()):
                    own = spaces == space
                    read[own] = self.sources.sentences(space, ids[own].tolist())
                vectors = np.zeros((*numbers.shape, out.shape[2]))
                vectors[present] = read
                out[at] = vectors
        return out

    def evidence(self) -> tuple[Candidates, Fused]:
        """The candidates and their fused scores, after feedback where the strategy has it."""
        candidates = self.candidates()
        fused = self.fuse(candidates)
        if self.strategy.feedback is not None and self.vectors[1].any():
            candidates = self.apply_feedback(candidates, fused)
            fused = self.fuse(candidates)
        return candidates, fused


def _make_keys(documents: Integers) -> Integers:
    """The (query, document) pairs of a list [B, width], each as one number; padding is left out."""
    rows, columns = np.nonzero(documents >= 0)
    return rows << NUMBER_BITS | documents[rows, columns]
