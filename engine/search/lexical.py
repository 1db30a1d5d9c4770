"""One batch: queries in, hits out. Reads snapshots, never a lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
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
from ..records.query import Query
from ..storage.memory import Memory
from ..text.vocabulary import Vocabulary
from ..timing import Phases
from .batch import Batch, Corpus
from .explain import explainer_of
from .options import SearchOptions

UNKNOWN = -1


@dataclass(frozen=True, eq=False)
class RetrieverResults:
    """What one pass over posting lists found, by row of the batch; rows that are not worked out hold padding."""

    served: str
    scores: npt.NDArray[np.float64]  # [B, width] padding -inf
    documents: Integers  # [B, width] numbers in the namespace, padding -1
    counts: npt.NDArray[np.int32]  # [B]
    plans: Mapping[Corpus, Plan]


def search_lists(
    batch: Batch,
    backend: Backend,
    depths: Mapping[int, int],
    options: SearchOptions,
    phases: Phases,
    *,
    learned: Mapping[int, Mapping[str, float]] | None = None,
) -> RetrieverResults:
    """The best documents of each row by BM25, or by `learned` weights (by row): ``depths[row]`` of them."""
    memory, rows = batch.memory, batch.rows
    width = max(depths.values(), default=0)
    with phases("analyse"):
        words = (
            analyse_queries(memory, [batch.queries[row] for row in rows])
            if learned is None
            else _number_weights(memory, [learned.get(row, {}) for row in rows])
        )
    with phases("plan"):
        corpora: dict[Corpus, tuple[Snapshot, Integers | None]] = {
            # Learned weights know no statistics, so it does not matter over what a query counts them.
            corpus: _corpus(batch.snapshots, corpus) if learned is None else (batch.snapshots[corpus[0]].learned, None)
            for corpus in batch.rows_of
        }
        plans: dict[Corpus, Plan] = {}
        first = 0
        for corpus, own in batch.rows_of.items():
            requests = _requests(batch, own, depths, words.slice(first, first + len(own)))
            plans[corpus] = plan_of(corpora[corpus][0], requests)
            first += len(own)
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
        unit = 1.0 / SCALE if learned is None else SCORE_UNIT
        scores = quanta.astype(np.float64) * unit
        for corpus, plan in plans.items():
            faded = plan.rows[plan.rates > 0]
            scores[faded] = quanta[faded].view(np.float64) * unit
            numbers = corpora[corpus][1]
            if numbers is not None:
                found = documents[plan.rows]
                documents[plan.rows] = np.where(found >= 0, numbers[np.maximum(found, 0)] if len(numbers) else -1, -1)
        scores[documents < 0] = -np.inf
    return RetrieverResults(served, scores, documents, counts, plans)


class Words(NamedTuple):
    """The terms of queries, one query after another."""

    terms: npt.NDArray[np.int32]  # [terms] vocabulary ids
    offsets: Integers  # [queries + 1]
    weights: Integers | None  # [terms] learned ones; None: the words of BM25

    def slice(self, first: int, last: int) -> Words:
        """Those of the queries from `first` to `last`."""
        if not first and last == len(self.offsets) - 1:
            return self
        start, stop = self.offsets[[first, last]].tolist()
        weights = None if self.weights is None else self.weights[start:stop]
        return Words(self.terms[start:stop], self.offsets[first : last + 1] - start, weights)


def analyse_queries(memory: Memory, queries: Sequence[Query]) -> Words:
    """The words of these queries, as `analyse` of each."""
    texts = [query.text for query in queries if query.terms is None]
    if len(texts) == len(queries):
        return Words(*memory.indexer.encode_queries(texts), None)
    given = [query.terms for query in queries if query.terms is not None]
    given_terms, given_offsets = _number_terms(given, memory.indexer.vocabulary)
    if not texts:
        return Words(given_terms, given_offsets, None)
    # Both kinds, brought into the queries' order.
    terms, offsets = memory.indexer.encode_queries(texts)
    is_text = np.array([query.terms is None for query in queries])
    lengths, starts = np.empty(len(queries), dtype=np.int64), np.empty(len(queries), dtype=np.int64)
    lengths[is_text], starts[is_text] = np.diff(offsets), offsets[:-1]
    lengths[~is_text], starts[~is_text] = np.diff(given_offsets), given_offsets[:-1] + len(terms)
    return Words(np.concatenate([terms, given_terms])[ranges(starts, lengths)], offsets_of(lengths), None)


def _number_weights(memory: Memory, weights: Sequence[Mapping[str, float]]) -> Words:
    """The learned terms of queries with these weights. Raises as `query_terms`."""
    found = [query_terms(own, memory.weight_terms) for own in weights]
    return Words(
        np.array([term for own, _ in found for term in own], dtype=np.int32),
        offsets_of([len(own) for own, _ in found]),
        np.array([weight for _, own in found for weight in own], dtype=np.int64),
    )


def _number_terms(lists: Sequence[Sequence[str]], vocabulary: Vocabulary) -> tuple[npt.NDArray[np.int32], Integers]:
    """The ids of all lists' terms, one list after another, and where each begins; unknown terms left out."""
    offsets = offsets_of([len(own) for own in lists])
    numbers = map(vocabulary.ids.get, chain.from_iterable(lists), repeat(UNKNOWN))
    terms = np.fromiter(numbers, dtype=np.int32, count=int(offsets[-1]))
    known = terms != UNKNOWN
    return (terms, offsets) if known.all() else (terms[known], offsets_of(known)[offsets])


def _requests(batch: Batch, rows: Sequence[int], depths: Mapping[int, int], words: Words) -> Requests:
    """What a plan takes of these rows, all of one corpus."""
    shared = {id(own): own for own in (batch.asked[row].settings for row in rows)}
    places = {own: place for place, own in enumerate(shared)}
    settings = tuple(shared.values())
    weighted = None
    if words.weights is not None:
        accepted = batch.asked[rows[0]].corpus[1]
        # A half-life fades BM25 alone; statistics are no matter, so that what a corpus accepts is a filter here.
        settings = tuple(
            QuerySettings(own.filter if accepted is EVERYTHING else accepted, own.since, own.until) for own in settings
        )
        weighted = np.ones(len(rows), dtype=np.bool_)
    return Requests(
        rows=np.array(rows, dtype=np.int64),
        k=np.array([depths[row] for row in rows], dtype=np.int64),
        terms=words.terms,
        offsets=words.offsets,
        settings=settings,
        setting=np.array([places[id(batch.asked[row].settings)] for row in rows], dtype=np.int64),
        weights=words.weights,
        weighted=weighted,
    )


def answer_lexical(batch: Batch, backend: Backend, options: SearchOptions, phases: Phases | None = None) -> Hits:
    """The hits of a batch by BM25. `phases` holds the phases that ran before this call, if any did."""
    phases = phases or Phases()
    with phases("prepare"):
        depths = {row: batch.asked[row].k for row in batch.rows}
    found = search_lists(batch, backend, depths, options, phases)
    with phases("convert"):
        return Hits(
            *expand_duplicates(batch, found.scores, found.documents, found.counts),
            batch.queries,
            found.served,
            batch.resolver(),
            explainer_of(batch, found.plans),
            phases.milliseconds if options.timing else None,
            phases.counts.get("postings") if options.timing else None,
            source=batch.source,
        )


def expand_duplicates(
    batch: Batch,
    scores: npt.NDArray[np.float64],
    documents: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The answer with the batch's width, equal queries' rows copied from the one that was worked out."""
    short = batch.width - scores.shape[1]
    if short > 0:
        scores = np.pad(scores, ((0, 0), (0, short)), constant_values=-np.inf)
        documents = np.pad(documents, ((0, 0), (0, short)), constant_values=-1)
    source = np.array(batch.source, dtype=np.int64)
    if (source != np.arange(len(batch))).any():
        scores, documents, counts = scores[source], documents[source], counts[source]
    return scores, documents, counts


def _corpus(snapshots: Mapping[str, Snapshot], corpus: Corpus) -> tuple[Snapshot, npt.NDArray[np.int64] | None]:
    """The snapshot that a corpus stands for, and the namespace's number of each of its documents (None: the same)."""
    namespace, accepted = corpus
    if accepted is EVERYTHING:
        return snapshots[namespace], None
    return snapshots[namespace].filtered(accepted)


def analyse(memory: Memory, query: Query) -> list[int]:
    """The vocabulary ids of a query's terms, repeats kept; unknown terms left out."""
    if query.terms is not None:
        return memory.indexer.encode_terms(query.terms)
    return memory.indexer.encode_query(query.text)
