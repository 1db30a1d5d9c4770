"""A batch answered by postings (BM25 or learned weights): analyse, plan, serve, convert. Takes no lock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, repeat
from operator import or_
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Integers, offsets_of, ranges
from ..backends.choose import Backend
from ..index.bm25 import SCALE
from ..index.learned import SCORE_UNIT, query_terms
from ..index.masks import EVERYTHING
from ..index.snapshot import Snapshot
from ..plan.plan import Plan, plan_of
from ..plan.requests import QuerySettings, Requests
from ..records.hits import Hits
from ..records.neighbours import STEPS, Neighbours
from ..records.query import Query
from ..records.record import RecordsOf
from ..storage.state import MemoryState
from ..text.vocabulary import Vocabulary
from ..timing import Phases
from .batch import Batch, Corpus, searched_snapshot
from .explain import explainer_of
from .notes import Notes
from .options import SearchOptions
from .shaping import DEEP_PLACES, Pages, Ranked

UNKNOWN = -1

Answer = tuple[npt.NDArray[np.float64], Integers, npt.NDArray[np.int32]]
"""Scores [B, width], documents [B, width] and counts [B]."""


@dataclass(frozen=True, eq=False)
class RetrieverResults:
    """The hits of one pass over posting lists, by row of the batch; rows that were not searched hold padding."""

    served: str
    scores: npt.NDArray[np.float64]  # [B, width] padding -inf
    documents: Integers  # [B, width] numbers in the namespace, padding -1
    counts: npt.NDArray[np.int32]  # [B]
    plans: Mapping[Corpus, Plan]

    def ranked(self, row: int) -> Ranked:
        """The hits of a row, best first."""
        count = self.counts[row]
        return self.scores[row, :count], self.documents[row, :count]


def search_lists(
    batch: Batch,
    backend: Backend,
    depths: Mapping[int, int],
    options: SearchOptions,
    phases: Phases,
    *,
    learned: Mapping[int, Mapping[str, float]] | None = None,
    expanded: Mapping[int, Mapping[int, int]] | None = None,
    steps: int = 1,
    neighbours: Neighbours | None = None,
) -> RetrieverResults:
    """The best ``depths[row]`` documents of each row, by BM25 or by the `learned` term weights of each row.

    `expanded` gives the terms of each row's BM25 in place of its words: how many `steps` of a weight of 1 each counts.
    `neighbours` is for the rows whose queries do not say what records borrow. Learned weights are not borrowed.
    """
    memory, rows = batch.memory, batch.rows
    width = max(depths.values(), default=0)
    with phases("analyse"):
        units = np.full(len(batch), 1.0 / SCALE)
        if expanded is not None:
            words, units = _weigh_terms([expanded.get(row, {}) for row in rows]), units / steps
        elif learned is None:
            words = analyse_queries(memory, [batch.queries[row] for row in rows])
        else:
            words, units[rows] = _number_weights(memory, [learned.get(row, {}) for row in rows])
    with phases("plan"):
        corpora: dict[Corpus, tuple[Snapshot, Integers | None]] = {
            # Learned weights need no statistics, so a corpus of filtered records makes no difference here.
            corpus: _corpus(corpus) if learned is None else (corpus[0].learned, None)
            for corpus in batch.rows_of
        }
        snapshots = {corpus: snapshot for corpus, (snapshot, _) in corpora.items()}
        plans = _make_plans(batch, snapshots, depths, words, neighbours, learned=learned is not None)
    with phases("serve"):
        served, (quanta, documents, counts) = backend.serve(
            tuple(plans.values()),
            len(batch),
            width,
            threads=options.threads,
            execution=options.execution,
            phases=phases if options.timing else None,
        )
    with phases("convert"):
        scores = quanta.astype(np.float64) * units[:, None]
        for corpus, plan in plans.items():
            decayed = plan.rows[plan.rates > 0]
            scores[decayed] = quanta[decayed].view(np.float64) * units[decayed, None]
            borrows = np.array([bool(each.lent) for each in plan.requests.settings], dtype=np.bool_)
            if borrows.any():
                scores[plan.rows[borrows[plan.requests.setting]]] *= 1.0 / STEPS
            numbers = corpora[corpus][1]
            if numbers is not None:
                hits = documents[plan.rows]
                documents[plan.rows] = np.where(hits >= 0, numbers[np.maximum(hits, 0)] if len(numbers) else -1, -1)
        scores[documents < 0] = -np.inf
    return RetrieverResults(served, scores, documents, counts, plans)


def plan_batch(batch: Batch) -> Mapping[Corpus, Plan]:
    """The plans of a batch by BM25, such as an explanation needs."""
    words = analyse_queries(batch.memory, [batch.queries[row] for row in batch.rows])
    snapshots = {corpus: _corpus(corpus)[0] for corpus in batch.rows_of}
    return _make_plans(batch, snapshots, {row: batch.asked[row].k for row in batch.rows}, words)


def _make_plans(
    batch: Batch,
    snapshots: Mapping[Corpus, Snapshot],
    depths: Mapping[int, int],
    words: Words,
    neighbours: Neighbours | None = None,
    *,
    learned: bool = False,
) -> dict[Corpus, Plan]:
    plans = {}
    first = 0
    for corpus, rows in batch.rows_of.items():
        requests = _make_requests(batch, rows, depths, words.slice(first, first + len(rows)), neighbours, learned)
        plans[corpus] = plan_of(snapshots[corpus], requests)
        first += len(rows)
    return plans


class Words(NamedTuple):
    """The terms of queries, one query after another."""

    terms: npt.NDArray[np.int32]  # [terms] vocabulary ids
    offsets: Integers  # [queries + 1]
    weights: Integers | None  # [terms] weights; None where each term counts once

    def slice(self, first: int, last: int) -> Words:
        """The terms of the queries from `first` to `last`, `last` excluded."""
        if not first and last == len(self.offsets) - 1:
            return self
        start, stop = self.offsets[[first, last]].tolist()
        weights = None if self.weights is None else self.weights[start:stop]
        return Words(self.terms[start:stop], self.offsets[first : last + 1] - start, weights)


def analyse_queries(memory: MemoryState, queries: Sequence[Query]) -> Words:
    """The terms of these queries, as `analyse` gives them for each."""
    texts = [query.text for query in queries if query.terms is None]
    if len(texts) == len(queries):
        return Words(*memory.indexer.encode_queries(texts), None)
    term_lists = [query.terms for query in queries if query.terms is not None]
    given_terms, given_offsets = number_terms(term_lists, memory.indexer.vocabulary)
    if not texts:
        return Words(given_terms, given_offsets, None)
    # Some queries are texts and some are lists of terms: their terms are brought into the queries' order.
    terms, offsets = memory.indexer.encode_queries(texts)
    is_text = np.array([query.terms is None for query in queries])
    lengths, starts = np.empty(len(queries), dtype=np.int64), np.empty(len(queries), dtype=np.int64)
    lengths[is_text], starts[is_text] = np.diff(offsets), offsets[:-1]
    lengths[~is_text], starts[~is_text] = np.diff(given_offsets), given_offsets[:-1] + len(terms)
    return Words(np.concatenate([terms, given_terms])[ranges(starts, lengths)], offsets_of(lengths), None)


def _number_weights(
    memory: MemoryState, weights: Sequence[Mapping[str, float]]
) -> tuple[Words, npt.NDArray[np.float64]]:
    """(the learned terms of queries with these weights, the value of one unit of each query's sums). Raises as
    `query_terms`.

    A power of two that divides all weights of a query goes into its unit. So the sums of queries whose weights are
    integers fit int32, which the compiled loops need.
    """
    numbered = [query_terms(query_weights, memory.weight_terms) for query_weights in weights]
    integers = [quanta for _, quanta in numbered]
    factors = [_power_of_two_in(quanta) for quanta in integers]
    words = Words(
        np.array([term for terms, _ in numbered for term in terms], dtype=np.int32),
        offsets_of([len(terms) for terms, _ in numbered]),
        np.array(
            [quantum // factor for quanta, factor in zip(integers, factors, strict=True) for quantum in quanta],
            dtype=np.int64,
        ),
    )
    return words, SCORE_UNIT * np.array(factors, dtype=np.float64)


def _power_of_two_in(integers: Sequence[int]) -> int:
    """The largest power of two that divides all of these, 1 for none. All are above 0."""
    bits = reduce(or_, integers, 0)
    return bits & -bits or 1


def _weigh_terms(weights: Sequence[Mapping[int, int]]) -> Words:
    """The terms, by number, and the weights of queries."""
    return Words(
        np.array([term for own in weights for term in own], dtype=np.int32),
        offsets_of([len(own) for own in weights]),
        np.array([weight for own in weights for weight in own.values()], dtype=np.int64),
    )


def number_terms(lists: Sequence[Sequence[str]], vocabulary: Vocabulary) -> tuple[npt.NDArray[np.int32], Integers]:
    """(the ids of the terms of all lists, one list after another; offsets [lists + 1]). Unknown terms are left out."""
    offsets = offsets_of([len(terms) for terms in lists])
    numbers = map(vocabulary.ids.get, chain.from_iterable(lists), repeat(UNKNOWN))
    terms = np.fromiter(numbers, dtype=np.int32, count=int(offsets[-1]))
    known = terms != UNKNOWN
    return (terms, offsets) if known.all() else (terms[known], offsets_of(known)[offsets])


def _make_requests(
    batch: Batch,
    rows: Sequence[int],
    depths: Mapping[int, int],
    words: Words,
    neighbours: Neighbours | None,
    learned: bool,
) -> Requests:
    """The requests of these rows, which are all of one corpus; a plan is made of them."""
    shared = {id(asked.settings): asked for asked in (batch.asked[row] for row in rows)}
    numbers = {identity: number for number, identity in enumerate(shared)}
    settings = tuple(
        asked.settings
        if neighbours is None or asked.query.neighbours is not None
        else replace(asked.settings, lent=neighbours.steps)
        for asked in shared.values()
    )
    weighted = None if words.weights is None else np.ones(len(rows), dtype=np.bool_)
    if learned:
        accepted = batch.asked[rows[0]].corpus[1]
        # A half-life decays BM25 alone. Learned weights need no statistics, so the filter that makes up a corpus is an
        # ordinary filter here.
        settings = tuple(
            QuerySettings(bm25.filter if accepted is EVERYTHING else accepted, bm25.since, bm25.until)
            for bm25 in settings
        )
    return Requests(
        rows=np.array(rows, dtype=np.int64),
        k=np.array([depths[row] for row in rows], dtype=np.int64),
        terms=words.terms,
        offsets=words.offsets,
        settings=settings,
        setting=np.array([numbers[id(batch.asked[row].settings)] for row in rows], dtype=np.int64),
        weights=words.weights,
        weighted=weighted,
    )


def answer_lexical(
    batch: Batch,
    backend: Backend,
    options: SearchOptions,
    phases: Phases | None = None,
    records: RecordsOf | None = None,
) -> Hits:
    """The hits of a batch by BM25. `phases` holds the phases that ran before this call, if any did.

    `records` is as for `Pages`.
    """
    phases = phases or Phases(options.timing)
    with phases("prepare"):
        depths = {row: batch.asked[row].k for row in batch.rows}
        pages = Pages.of(batch, records)
    if pages is None:
        results = search_lists(batch, backend, depths, options, phases)
        found = results.scores, results.documents, results.counts
    else:
        results, found = _search_pages(batch, backend, depths, pages, options, phases)
    with phases("convert"):
        return Hits(
            *expand_duplicates(batch, *found),
            batch.queries,
            results.served,
            batch.resolver(),
            explainer_of(batch, results.plans),
            phases.milliseconds if options.timing else None,
            phases.counts.get("postings") if options.timing else None,
            source=batch.source,
            annotator=Notes(batch.memory.indexer, batch.asked),
        )


def _search_pages(
    batch: Batch,
    backend: Backend,
    depths: Mapping[int, int],
    pages: Pages,
    options: SearchOptions,
    phases: Phases,
) -> tuple[RetrieverResults, Answer]:
    """(the results of all rows, the answer with its pages). Rows whose page is not full are searched again, deeper."""
    # A few deep rows must not give every row of the first launch their width.
    deep = {**depths, **pages.wanted}
    together = len(batch) * max(deep.values(), default=0) <= DEEP_PLACES
    results = search_lists(batch, backend, deep if together else depths, options, phases)
    if together:
        pages.take({row: results.ranked(row) for row in [*pages.wanted]})
    while pages.wanted:
        for rows in pages.portions():
            part = batch.select([batch.asked[row] for row in rows])
            part_depths = {place: pages.wanted[row] for place, row in enumerate(rows)}
            part_results = search_lists(part, backend, part_depths, options, phases)
            pages.take({row: part_results.ranked(place) for place, row in enumerate(rows)})
    return results, pages.fill(results.scores, results.documents, results.counts)


def expand_duplicates(
    batch: Batch,
    scores: npt.NDArray[np.float64],
    documents: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The answer with the batch's width: each row is copied from the row that was searched for equal queries."""
    short = batch.width - scores.shape[1]
    if short > 0:
        scores = np.pad(scores, ((0, 0), (0, short)), constant_values=-np.inf)
        documents = np.pad(documents, ((0, 0), (0, short)), constant_values=-1)
    source = np.array(batch.source, dtype=np.int64)
    if (source != np.arange(len(batch))).any():
        scores, documents, counts = scores[source], documents[source], counts[source]
    return scores, documents, counts


def _corpus(corpus: Corpus) -> tuple[Snapshot, npt.NDArray[np.int64] | None]:
    """The snapshot that a corpus counts, and the number that each of its documents has in what is searched (None: the
    same number).
    """
    snapshot, accepted = corpus
    return (snapshot, None) if accepted is EVERYTHING else snapshot.filtered(accepted)


def analyse(memory: MemoryState, query: Query) -> list[int]:
    """The vocabulary ids of a query's terms. Repeated terms stay, unknown terms are left out."""
    if query.terms is not None:
        return memory.indexer.encode_terms(query.terms)
    return memory.indexer.encode_query(query.text)


def encode_batch(memory: MemoryState, queries: Sequence[Query]) -> tuple[Integers, Integers]:
    """As `Engine.encode`."""
    clock = time.time()
    lists = []
    for query in queries:
        terms = np.array(analyse(memory, query), dtype=np.int32)
        indexed = terms[searched_snapshot(memory, query, clock).document_frequencies(terms) > 0]
        numbers: list[int] = indexed.tolist()
        lists.append(list(dict.fromkeys(numbers)) if memory.bm25.query_tf == "unique" else numbers)
    offsets = offsets_of([len(numbers) for numbers in lists])
    return np.array([number for numbers in lists for number in numbers], dtype=np.int64), offsets
