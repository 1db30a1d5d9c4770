"""Scores candidates by what stands around them in their session, and by how they are said.

The channels `ContextWords`, `ContextVectors` and `Cue` list nothing: they score the candidates that other channels
listed. That is done here, in numpy, whichever backend searched, so their bits do not depend on it. Words are integers:
a word's quanta times steps of 2**-6. Inner products of vectors are exact in float64 (docs/hybrid.md), and what is made
of them has one order of operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..arrays import Flags, Floats, Integers, numbered, offsets_of, ranges
from ..errors import QueryError
from ..fuse.candidates import Channel
from ..index.bm25 import SCALE
from ..index.columns import ABSENT
from ..index.decay import decay, ticks_of
from ..index.masks import EVERYTHING
from ..index.neighbours import links_of
from ..index.snapshot import Snapshot
from ..plan.borrowing import MOST_STEPS, lending_parts
from ..plan.plan import Plan, SegmentPlan
from ..records.neighbours import STEPS
from ..search.batch import Batch
from ..search.lexical import plan_batch
from ..timing import Phases
from ..vectors.vectors import BLOCK_VALUES, Halves, blocks_of
from ..vectors.verbs import Stretch, document_vectors
from .channels import ContextVectors, ContextWords, Cue
from .neighbours import stretches_of
from .said import are_named, asks, asks_what_was_told, read_texts, said_by, words_of
from .sources import Sources
from .strategy import Strategy

HALF_LENGTH = 16.0
"""A record of so many terms has half of the cue ``length``. From 4 to 32 LoCoMo's turns give the same figures."""
ASSISTANT = "assistant"
"""The role of what an assistant says."""
WORDY, TIMES, SIDES = 40, 3, 4
"""A side that writes `WORDY` terms a record on average, and `TIMES` as many as the other, is an assistant's.

So are 98 % of the assistants' turns in chats with long answers (20 chats, 5,732 turns, their roles taken away), none of
the users', and no turn of LoCoMo or SGD. From 40 to 80 terms, and from 2 to 3 times, this hardly changes. `SIDES` is
how far it looks.
"""


class SearchedRows(Protocol):
    """Rows of a batch that search the same documents."""

    @property
    def rows(self) -> Integers: ...
    @property
    def snapshot(self) -> Snapshot: ...


class Collector(Protocol):
    """What is read of `EvidenceCollector`, whose file imports this one."""

    batch: Batch
    sources: Sources
    strategy: Strategy
    phases: Phases

    @property
    def groups(self) -> Sequence[SearchedRows]: ...
    @property
    def vectors(self) -> tuple[Halves, Flags]: ...


class ContextScorer:
    """Scores the candidates of a collector's batch by a channel that lists nothing."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.batch, self.sources = collector.batch, collector.sources

    def score(
        self,
        channel: ContextWords | ContextVectors | Cue,
        offsets: Integers,
        documents: Integers,
        vectors: Halves | None,
    ) -> Channel:
        """What the channel says of all candidates; it listed none. Raises `QueryError`."""
        with self.collector.phases("context"):
            if isinstance(channel, ContextWords):
                scores = self._score_words(channel, offsets, documents)
            elif isinstance(channel, ContextVectors):
                assert vectors is not None
                scores = self._score_vectors(channel, offsets, documents, vectors)
            else:
                scores = self._score_cue(channel, offsets, documents)
            return Channel.of(scores, scores > -np.inf, np.zeros(len(documents), dtype=np.bool_), offsets)

    def _score_words(self, channel: ContextWords, offsets: Integers, documents: Integers) -> Floats:
        """[candidates] the best of each word in a record's surroundings, added up, in units of BM25."""
        scores = np.zeros(len(documents))
        lent = channel.neighbours.steps
        for (searched, accepted), plan in plan_batch(self.batch).items():
            _check_size(plan, lent)
            counts, places = _candidates_of(offsets, plan.rows)
            own = documents[places]
            at = own
            if accepted is not EVERYTHING:
                # Statistics are those of the filtered records, which are numbered by themselves. A vector's hit that
                # the filter let through is always among them.
                numbers = searched.filtered(accepted)[1]
                at = np.searchsorted(numbers, own)
                at = np.where(numbers[np.minimum(at, max(len(numbers) - 1, 0))] == own, at, -1)
            near = self._surroundings(plan.snapshot, at, len(lent))
            sums = _best_of_words(plan, counts, near, (STEPS, *np.repeat(lent, 2).tolist()))
            faded = sums.astype(np.float64)
            ends = np.cumsum(counts)
            for query in np.flatnonzero(plan.rates).tolist():
                span = slice(int(ends[query] - counts[query]), int(ends[query]))
                ticks = ticks_of(
                    searched.numbers_of("time", own[span]), float(plan.now[query]), float(plan.rates[query])
                )
                faded[span] = decay(sums[span], ticks)
            scores[places] = faded / STEPS / SCALE
        return scores

    def _score_vectors(
        self, channel: ContextVectors, offsets: Integers, documents: Integers, vectors: Halves
    ) -> Floats:
        """[candidates] the cosine of the query and a record's surroundings; -inf for a record without a vector."""
        scores = np.full(len(documents), -np.inf)
        steps = np.array([STEPS, *np.repeat(channel.neighbours.steps, 2).tolist()], dtype=np.float64) / STEPS
        has = self.collector.vectors[1]
        for group in self.collector.groups:
            stretches = stretches_of(group.snapshot)
            for row in group.rows[has[group.rows]].tolist() if stretches else ():
                span = slice(int(offsets[row]), int(offsets[row + 1]))
                if span.stop == span.start:
                    continue
                own = documents[span]
                near = self._surroundings(group.snapshot, own, len(channel.neighbours.steps))
                asked = vectors[row].astype(np.float64)
                # At once the vectors around all of 460,000 records, 5 of 384 numbers each, would be 7 GB.
                size = max(1, BLOCK_VALUES // max(1, near.shape[1] * len(asked)))
                for start in range(0, len(near), size):
                    block = slice(span.start + start, span.start + min(start + size, len(near)))
                    scores[block] = _cosines(stretches, asked, near[start : start + size], steps)
        return scores

    def _score_cue(self, channel: Cue, offsets: Integers, documents: Integers) -> Floats:
        """[candidates] the cue, in [0, 1]."""
        scores = np.zeros(len(documents))
        for group in self.collector.groups:
            counts, places = _candidates_of(offsets, group.rows)
            own = documents[places]
            near = links_of(group.snapshot).around(own, 1)
            turns = near.max(axis=1) >= 0
            found: Floats | Flags
            if channel.cue in ("length", "assistant_length"):
                lengths = _lengths(group.snapshot, own)
                found = lengths / (lengths + HALF_LENGTH)
                if channel.cue == "assistant_length":
                    found = np.where(self._by_assistants(group.snapshot, own)[1], found, 0.0)
            elif channel.cue == "told":
                asking = [asks_what_was_told(self.batch.queries[row].text) for row in group.rows.tolist()]
                found = np.repeat(np.array(asking, dtype=np.bool_), counts)
                if found.any():
                    found = found & self._by_assistants(group.snapshot, own)[1]
            elif channel.cue == "speaker":
                words = [words_of(self.batch.queries[row].text) for row in group.rows.tolist()]
                asked = [words[row] for row in np.repeat(np.arange(len(words)), counts).tolist()]
                found = are_named(group.snapshot, *self._read(group, np.where(turns, own, -1)), asked)
            else:
                at = np.where(turns, own, -1) if channel.cue == "asks" else near[:, 0]
                found = asks(self._read(group, at)[0])
            scores[places] = np.where(turns, found, 0.0)
        return scores

    def _surroundings(self, snapshot: Snapshot, documents: Integers, window: int) -> Integers:
        """[documents, 1 + 2 window] each document, and what stands around it and may lend to it; -1 for none.

        The long answers around would hold nearly every word of a query, so where an assistant writes at length only
        the other turn of the same exchange lends.
        """
        near = np.concatenate([documents[:, None], links_of(snapshot).around(documents, window)], axis=1)
        told, answers = self._by_assistants(snapshot, documents)
        own, other = _sides(snapshot, documents)
        wordy = np.where(told, np.where(answers, own.wordy, other.wordy), own.outwrites(other) | other.outwrites(own))
        # Of the columns (the record, 1 before, 1 after, 2 before, ...): an answer's question, a question's answer.
        kept = np.where(answers, 1, 2)
        columns = np.arange(near.shape[1])
        near[wordy[:, None] & (columns > 0) & (columns != kept[:, None])] = -1
        return near

    def _by_assistants(self, snapshot: Snapshot, documents: Integers) -> tuple[Flags, Flags]:
        """[documents] whether each has a role; and whether an assistant says it: by its role, or without one by how
        much the two sides write."""
        roles = snapshot.codes_of("role", documents)
        assistants: Flags = roles == self.batch.memory.values["role"].ids.get(ASSISTANT, ABSENT - 1)
        without = np.flatnonzero(roles == ABSENT)
        if len(without):
            own, other = _sides(snapshot, documents[without])
            assistants[without] = own.outwrites(other)
        return roles != ABSENT, assistants

    def _read(self, group: SearchedRows, documents: Integers) -> tuple[Integers, Integers]:
        """As `said_by`, after the texts were read. Raises `QueryError` where nobody keeps texts."""
        if self.sources.records is None:
            raise QueryError(
                f"strategy {self.collector.strategy.name!r} reads how records are said, and this engine keeps no "
                "texts; use Engine.open(path), an engine in memory without keep_texts=False, or a strategy without "
                "Cue channels"
            )
        namespace = self.batch.queries[int(group.rows[0])].namespace
        read_texts(group.snapshot, namespace, self.sources.records, documents)
        return said_by(group.snapshot, documents)


def _check_size(plan: Plan, lent: Sequence[int]) -> None:
    """Raise `QueryError` where a sum of steps may leave 64 bits. A word is lent at most whole."""
    tokens = plan.summed(plan.multiplicities).max(initial=0) if plan.large.any() else 0
    if plan.snapshot.highest_bound * float(tokens) * max(STEPS, *lent, 0) >= MOST_STEPS:
        raise QueryError("scores of words around would leave 64 bits: contributions are extreme; use a smaller k1")


def _candidates_of(offsets: Integers, rows: Integers) -> tuple[Integers, Integers]:
    """(how many candidates each of these rows has, the places of them all, one row after another)."""
    counts = offsets[rows + 1] - offsets[rows]
    return counts, ranges(offsets[rows], counts)


def _best_of_words(plan: Plan, counts: Integers, near: Integers, steps: Sequence[int]) -> Integers:
    """[candidates] for each word of its query the most that a document of `near` gives it, added up.

    In steps of 2**-6 quanta. `near` [candidates, 1 + 2 window] has `counts` [queries] candidates of each query, one
    query after another, and `steps` [1 + 2 window] are the weights of its columns.
    """
    sums = np.zeros(len(near), dtype=np.int64)
    parts = lending_parts(plan)
    queries = np.repeat(np.arange(len(counts)), counts)
    values = np.diff(plan.offsets)[queries] * near.shape[1]
    for block in blocks_of(offsets_of(values), BLOCK_VALUES):
        sums[block] = _best_of_block(plan, parts, queries[block], near[block], np.array(steps, dtype=np.int64))
    return sums


def _best_of_block(
    plan: Plan, parts: Sequence[SegmentPlan], queries: Integers, near: Integers, steps: Integers
) -> Integers:
    """As `_best_of_words`, of candidates whose `queries` [candidates] ascend. A pair is a term of a query, and a
    document that stands near a candidate of that query."""
    first, last = int(queries[0]), int(queries[-1]) + 1
    slots = np.arange(plan.offsets[first], plan.offsets[last])
    owners = np.repeat(np.arange(last - first), np.diff(plan.offsets[first : last + 1]))
    terms = plan.slots[slots]
    # The documents of each query, ascending; the first may be -1, a neighbour that is not there.
    width = plan.snapshot.numbers + 1
    keys, places = numbered((queries[:, None] - first) * width + near + 1)
    documents = keys % width - 1
    starts = np.searchsorted(keys, np.arange(last - first + 1) * width)
    pairs = offsets_of(np.diff(starts)[owners])
    quanta = np.zeros(pairs[-1], dtype=np.int64)
    held = np.zeros(pairs[-1], dtype=np.bool_)
    for part in parts:
        low = np.searchsorted(keys, np.arange(last - first) * width + part.first + 1)
        high = np.searchsorted(keys, np.arange(last - first) * width + part.first + part.segment.size + 1)
        begin, end = part.starts[terms], part.ends[terms]
        met = np.flatnonzero((begin < end) & (low < high)[owners])
        if not len(met):
            continue
        begin, end, low, high = begin[met], end[met], low[owners[met]], high[owners[met]]
        local, listed = documents - part.first, part.segment.documents
        found = [
            listed[start:stop].searchsorted(local[one:other])
            for start, stop, one, other in zip(begin.tolist(), end.tolist(), low.tolist(), high.tolist(), strict=True)
        ]
        lengths = high - low
        where = np.minimum(np.repeat(begin, lengths) + np.concatenate(found), np.repeat(end - 1, lengths))
        there = np.flatnonzero(listed[where] == local[ranges(low, lengths)])
        pair = ranges(pairs[met] + low - starts[owners[met]], lengths)[there]
        quanta[pair] = part.contributions.at(where[there], np.repeat(plan.idf[terms[met]], lengths)[there])
        held[pair] = True
    # Each term of a query meets each candidate of the query.
    edges = np.searchsorted(queries, np.arange(first, last + 1))
    counts = np.diff(edges)[owners]
    candidates = ranges(edges[owners], counts)
    near_pairs = places[candidates] + np.repeat(pairs[:-1] - starts[owners], counts)[:, None]
    # Contributions may be negative, so a word that is not there must not count as 0.
    given = np.where(held[near_pairs], quanta[near_pairs] * steps, np.iinfo(np.int64).min).max(axis=1)
    given = np.where(held[near_pairs].any(axis=1), given, 0) * np.repeat(plan.multiplicities[slots], counts)
    sums = np.zeros(len(near), dtype=np.int64)
    np.add.at(sums, candidates, given)
    return sums


def _cosines(stretches: Sequence[Stretch], asked: Floats, near: Integers, steps: Floats) -> Floats:
    """[candidates] the cosine of `asked` [dimension] and the sum of each row of `near` [candidates, 1 + 2 window].

    `steps` [1 + 2 window] are the weights of the columns. -inf for a row whose first document has no vector.
    """
    distinct, places = numbered(near)
    found = document_vectors(stretches, distinct).astype(np.float64)
    around = found[places]  # [candidates, 1 + 2 window, dimension]
    along = np.einsum("nwd,d->nw", around, asked)
    products = np.einsum("nwd,nvd->nwv", around, around)
    total, squared = np.zeros(len(near)), np.zeros(len(near))
    # Sums of so few numbers are added one after another: numpy may change the order of its own sums.
    for first, weight in enumerate(steps.tolist()):
        total = total + weight * along[:, first]
        for second, other in enumerate(steps.tolist()):
            squared = squared + weight * other * products[:, first, second]
    cosines = total / np.sqrt(np.where(squared > 0.0, squared, 1.0))
    return np.asarray(np.where(products[:, 0, 0] > 0.0, cosines, -np.inf))


@dataclass(frozen=True, eq=False)
class Side:
    """What one side of a session writes around some documents: whole numbers, so sums and products are exact."""

    terms: Floats  # [documents]
    turns: Integers  # [documents]

    @property
    def wordy(self) -> Flags:
        """[documents] whether it writes at length."""
        return (self.turns > 0) & (self.terms >= WORDY * self.turns)

    def outwrites(self, other: Side) -> Flags:
        """[documents] whether it writes at length, while the other does not."""
        return self.wordy & (self.terms * other.turns >= TIMES * other.terms * self.turns)


def _sides(snapshot: Snapshot, documents: Integers) -> tuple[Side, Side]:
    """The side of its session that each document is of, and the other."""
    near = np.concatenate([documents[:, None], links_of(snapshot).around(documents, SIDES)], axis=1)
    distinct, places = numbered(near)
    lengths = _lengths(snapshot, distinct)[places]  # 0 for a neighbour that is not there
    # Of the columns (the record, 1 before, 1 after, 2 before, ...) those at even distances are of its own side.
    own = (np.arange(near.shape[1]) + 1) // 2 % 2 == 0
    mine, theirs = (Side(lengths[:, side].sum(axis=1), (near[:, side] >= 0).sum(axis=1)) for side in (own, ~own))
    return mine, theirs


def _lengths(snapshot: Snapshot, documents: Integers) -> Floats:
    """[documents] the terms of each, over all fields."""
    lengths = np.zeros(len(documents))
    for first, segment in zip(snapshot.firsts, snapshot.segments, strict=True):
        inside = np.flatnonzero((documents >= first) & (documents < first + segment.size))
        lengths[inside] = segment.lengths[:, documents[inside] - first].sum(axis=0)
    return lengths
