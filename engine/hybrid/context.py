"""Scores candidates by what stands around them in their session, and by how they are said.

The channels `ContextWords`, `ContextVectors` and `Cue` list nothing: they score the candidates that other channels
listed. That is done here, in numpy, whichever backend searched, so their bits do not depend on it. Words are integers:
a word's quanta times steps of 2**-6. Inner products of vectors are exact in float64 (docs/hybrid.md), and what is made
of them has one order of operations.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Floats, Integers
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
from ..search.batch import Batch, namespaces_of
from ..search.lexical import plan_batch
from ..timing import Phases
from ..vectors.vectors import BLOCK_VALUES, Halves
from ..vectors.verbs import Stretch, document_vectors
from .channels import ContextVectors, ContextWords, Cue
from .neighbours import stretches_of
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

_ASKS = re.compile(r"[?\uff1f\u061f][\s\"'\u201d\u2019)*_]*\Z")
_SPEAKER = re.compile(r"\s*([^\W\d_][^:\n]{0,39}):\s")
_WORDS = re.compile(r"\w\w+")

# What is read of a record's text, kept by its segment: whether it asks, and who speaks.
_UNREAD, _NO, _YES = 0, 1, 2


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
            # Where statistics are those of the filtered records, these are numbered by themselves.
            numbers = None if accepted is EVERYTHING else searched.filtered(accepted)[1]
            _check_size(plan, lent)
            parts = lending_parts(plan)
            for query, row in enumerate(plan.rows.tolist()):
                span = slice(int(offsets[row]), int(offsets[row + 1]))
                own = documents[span]
                if not len(own):
                    continue
                at = own if numbers is None else np.searchsorted(numbers, own)
                if numbers is not None:
                    # A vector's hit that the filter let through is always among them.
                    at = np.where(numbers[np.minimum(at, max(len(numbers) - 1, 0))] == own, at, -1)
                near = np.concatenate([at[:, None], links_of(plan.snapshot).around(at, len(lent))], axis=1)
                sums = _best_of_words(plan, parts, query, near, (STEPS, *np.repeat(lent, 2).tolist()))
                rate = float(plan.rates[query])
                faded = sums.astype(np.float64)
                if rate:
                    times = searched.numbers_of("time", own)
                    faded = decay(sums, ticks_of(times, float(plan.now[query]), rate))
                scores[span] = faded / STEPS / SCALE
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
                near = np.concatenate(
                    [own[:, None], links_of(group.snapshot).around(own, len(channel.neighbours.steps))], axis=1
                )
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
            for row in group.rows.tolist():
                span = slice(int(offsets[row]), int(offsets[row + 1]))
                own = documents[span]
                if not len(own):
                    continue
                near = links_of(group.snapshot).around(own, 1)
                turns = near.max(axis=1) >= 0
                if channel.cue in ("length", "assistant_length"):
                    lengths = _lengths(group.snapshot, own)
                    found = lengths / (lengths + HALF_LENGTH)
                    if channel.cue == "assistant_length":
                        found = np.where(self._by_assistants(group.snapshot, own), found, 0.0)
                elif channel.cue == "speaker":
                    words = set(_WORDS.findall(self.batch.queries[row].text.casefold()))
                    speakers = self._read(group.snapshot, row, np.where(turns, own, -1))[1].tolist()
                    found = np.array([bool(speaker) and not words.isdisjoint(speaker) for speaker in speakers])
                else:
                    at = np.where(turns, own, -1) if channel.cue == "asks" else near[:, 0]
                    found = self._read(group.snapshot, row, at)[0] == _YES
                scores[span] = np.where(turns, found, 0.0)
        return scores

    def _by_assistants(self, snapshot: Snapshot, documents: Integers) -> Flags:
        """[documents] whether an assistant says each: by its role, or without one by how much the two sides write."""
        roles = snapshot.codes_of("role", documents)
        assistants: Flags = roles == self.batch.memory.values["role"].ids.get(ASSISTANT, ABSENT - 1)
        without = np.flatnonzero(roles == ABSENT)
        if len(without):
            assistants[without] = _wordy_sides(snapshot, documents[without])
        return assistants

    def _read(
        self, snapshot: Snapshot, row: int, documents: Integers
    ) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.object_]]:
        """(whether each document asks, the words of its speaker's name); of none where a number is -1.

        A text is read once: its segment keeps what was read. Raises `QueryError` where nobody keeps texts.
        """
        if self.sources.records is None:
            raise QueryError(
                f"strategy {self.collector.strategy.name!r} reads how records are said, and this engine keeps no "
                "texts; use Engine.open(path), an engine in memory without keep_texts=False, or a strategy without "
                "Cue channels"
            )
        asks, speakers = np.zeros(len(documents), dtype=np.int8), np.full(len(documents), None, dtype=object)
        for first, segment in zip(snapshot.firsts, snapshot.segments, strict=True):
            inside = np.flatnonzero((documents >= first) & (documents < first + segment.size))
            if not len(inside):
                continue
            known = segment.derived.get("cues")
            if known is None:
                made = np.zeros(segment.size, dtype=np.int8), np.full(segment.size, None, dtype=object)
                known = segment.derived.setdefault("cues", made)
            local = documents[inside] - first
            self._read_texts(snapshot, row, first, np.unique(local[known[0][local] == _UNREAD]), known)
            asks[inside], speakers[inside] = known[0][local], known[1][local]
        return asks, speakers

    def _read_texts(self, snapshot: Snapshot, row: int, first: int, local: Integers, known: tuple[Any, Any]) -> None:
        if not len(local):
            return
        assert self.sources.records is not None
        ids = snapshot.ids_of(local + first)
        spaces = namespaces_of(snapshot, self.batch.queries[row].namespace, local + first)
        for space in dict.fromkeys(spaces.tolist()):
            own = np.flatnonzero(spaces == space)
            for place, record in zip(local[own].tolist(), self.sources.records(space, ids[own].tolist()), strict=True):
                # A record that was deleted or replaced after the search began is left unread: a segment keeps
                # what its own document says.
                if record is None:
                    continue
                match = _SPEAKER.match(record.text)
                # The flag is written last: who sees it finds the name.
                known[1][place] = frozenset(_WORDS.findall(match[1].casefold())) if match else None
                known[0][place] = _YES if _ASKS.search(record.text) else _NO


def _check_size(plan: Plan, lent: Sequence[int]) -> None:
    """Raise `QueryError` where a sum of steps may leave 64 bits. A word is lent at most whole."""
    tokens = plan.summed(plan.multiplicities).max(initial=0) if plan.large.any() else 0
    if plan.snapshot.highest_bound * float(tokens) * max(STEPS, *lent, 0) >= MOST_STEPS:
        raise QueryError("scores of words around would leave 64 bits: contributions are extreme; use a smaller k1")


def _best_of_words(
    plan: Plan, parts: Sequence[SegmentPlan], query: int, near: Integers, steps: Sequence[int]
) -> Integers:
    """[candidates] for each word the most that a document of `near` [candidates, 1 + 2 window] gives it, added up.

    In steps of 2**-6 quanta. `steps` [1 + 2 window] are the weights of the columns of `near`.
    """
    distinct, places = np.unique(near, return_inverse=True)
    places = places.reshape(near.shape)
    weights = np.array(steps, dtype=np.int64)
    sums = np.zeros(len(near), dtype=np.int64)
    start, end = plan.offsets[query : query + 2].tolist()
    for term, multiplicity in zip(plan.slots[start:end].tolist(), plan.multiplicities[start:end].tolist(), strict=True):
        quanta = np.zeros(len(distinct), dtype=np.int64)
        held = np.zeros(len(distinct), dtype=np.bool_)
        for part in parts:
            first, last = int(part.starts[term]), int(part.ends[term])
            low, high = np.searchsorted(distinct, [part.first, part.first + part.segment.size]).tolist()
            if first == last or low == high:
                continue
            listed, wanted = part.segment.documents[first:last], distinct[low:high] - part.first
            at = np.minimum(np.searchsorted(listed, wanted), last - first - 1)
            there = np.flatnonzero(listed[at] == wanted)
            where = first + at[there]
            quanta[low + there] = part.contributions.at(where, np.full(len(where), plan.idf[term]))
            held[low + there] = True
        # Contributions may be negative, so a word that is not there must not count as 0.
        given = np.where(held[places], quanta[places] * weights, np.iinfo(np.int64).min).max(axis=1)
        sums += np.where(held[places].any(axis=1), given, 0) * multiplicity
    return sums


def _cosines(stretches: Sequence[Stretch], asked: Floats, near: Integers, steps: Floats) -> Floats:
    """[candidates] the cosine of `asked` [dimension] and the sum of each row of `near` [candidates, 1 + 2 window].

    `steps` [1 + 2 window] are the weights of the columns. -inf for a row whose first document has no vector.
    """
    distinct, places = np.unique(near, return_inverse=True)
    found = document_vectors(stretches, distinct).astype(np.float64)
    around = found[places.reshape(near.shape)]  # [candidates, 1 + 2 window, dimension]
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


def _wordy_sides(snapshot: Snapshot, documents: Integers) -> Flags:
    """[documents] whether each is of a side of its session that writes at length, while the other does not."""
    near = np.concatenate([documents[:, None], links_of(snapshot).around(documents, SIDES)], axis=1)
    distinct, places = np.unique(near, return_inverse=True)
    # Whole numbers, so their sums and products are exact; 0 for a neighbour that is not there.
    lengths = _lengths(snapshot, distinct)[places].reshape(near.shape)
    # Of the columns (the record, 1 before, 1 after, 2 before, ...) those at even distances are of its own side.
    own = (np.arange(near.shape[1]) + 1) // 2 % 2 == 0
    (terms, turns), (other_terms, other_turns) = (
        (lengths[:, side].sum(axis=1), (near[:, side] >= 0).sum(axis=1)) for side in (own, ~own)
    )
    wordy: Flags = (terms >= WORDY * turns) & (terms * other_turns >= TIMES * other_terms * turns)
    return wordy


def _lengths(snapshot: Snapshot, documents: Integers) -> Floats:
    """[documents] the terms of each, over all fields."""
    lengths = np.zeros(len(documents))
    for first, segment in zip(snapshot.firsts, snapshot.segments, strict=True):
        inside = np.flatnonzero((documents >= first) & (documents < first + segment.size))
        lengths[inside] = segment.lengths[:, documents[inside] - first].sum(axis=0)
    return lengths
