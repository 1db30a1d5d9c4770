"""Scores the candidates of each query, all of them: the reranking of MTEB and PyTerrier.

A query's candidates are a filter on a column of ids. So each gets the score that it has among all records, and none is
lost because it lies beyond the best k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..engine.errors import QueryError
from ..engine.hybrid.strategy import Strategy
from ..engine.index.columns import Schema
from ..engine.memory import Memory
from ..engine.metrics.ranking import strictly_descending
from ..engine.records.filters import all_of, col, parse_filter
from ..engine.records.query import Query
from ..engine.route.policy import Answerer

COLUMN = "docno"
"""The declared column of record ids that `score_candidates` filters by."""

MASK_BYTES = 2**28
"""A filter takes a byte for each record. A launch has as many queries as fit into this many bytes."""


def with_column(columns: Mapping[str, str] | str | None) -> dict[str, str]:
    """These columns of an engine and `COLUMN`. Raises `ParameterError`."""
    return {**Schema.of(columns).declared(), COLUMN: "category"}


def score_candidates(
    engine: Memory,
    queries: Sequence[Query],
    candidates: Mapping[str, Sequence[str]],
    answerer: Answerer,
    *,
    top_k: int | None = None,
    threads: int = 1,
    keep_order: bool = True,
) -> dict[str, dict[str, float]]:
    """``{query id: {candidate: score}}``, best first, of the `top_k` best (None: all) candidates of each query.

    Every query needs an id, and `candidates` maps it to ids of records. By BM25 a candidate has the score that it has
    in a search of all records, and 0.0 without a word of the query. By other strategies each channel ranks all the
    candidates for which it has evidence. Those without any come last, with one score below 0. Candidates with equal
    evidence are in the order of arrival, and `keep_order` is that of `Hits.to_run`. Candidates without evidence keep
    equal scores, as no order among them means anything.

    Raises `QueryError` for a candidate that is no record and for an engine without the column `COLUMN`.
    """
    _check_candidates(engine, candidates)
    plain = isinstance(answerer, Strategy) and answerer.plain
    scored: dict[str, dict[str, float]] = {}
    step = max(1, MASK_BYTES // max(len(engine), 1))
    for start in range(0, len(queries), step):
        part = queries[start : start + step]
        asked = []
        for query in part:
            wanted = list(dict.fromkeys(candidates.get(str(query.id), ())))
            asked.append(
                replace(query, filter=all_of(parse_filter(query.filter), col(COLUMN).isin(wanted)), k=len(wanted))
            )
        # With a k of all candidates each channel lists all of them, whatever the strategy's depth.
        hits = engine.search(asked, strategy=answerer, threads=threads)
        for query, found in zip(part, hits.to_run().items(), strict=True):
            scored[str(query.id)] = _complete(found[1], candidates.get(str(query.id), ()), plain, top_k, keep_order)
    return scored


def _check_candidates(engine: Memory, candidates: Mapping[str, Sequence[str]]) -> None:
    wanted = list(dict.fromkeys(name for names in candidates.values() for name in names))
    if not wanted:
        return
    try:
        known = set(engine.ids(col(COLUMN).isin(wanted)))
    except QueryError as error:
        raise QueryError(
            f"{error}: candidates are found by the column {COLUMN!r}; make the engine with columns={{{COLUMN!r}: "
            f"'category'}}, and give each record its id under that name in `extra`"
        ) from None
    lost = next((name for name in wanted if name not in known), None)
    if lost is not None:
        query = next(query for query, names in candidates.items() if lost in names)
        raise QueryError(f"query {query!r}: the candidate {lost!r} is no record: none has it in the column {COLUMN!r}")


def _complete(
    found: Mapping[str, float], wanted: Sequence[str], plain: bool, top_k: int | None, keep_order: bool
) -> dict[str, float]:
    """The scores of all candidates, of which the search `found` those with evidence, best first."""
    rest = [name for name in dict.fromkeys(wanted) if name not in found]
    scores = dict(found)
    if keep_order and scores:
        scores = dict(zip(scores, strictly_descending(list(scores.values())), strict=True))
    without = 0.0 if plain else min([0.0, *scores.values()]) - 1.0
    scores |= dict.fromkeys(rest, without)
    # By a method with negative contributions a match may score below 0, and then below those without a word.
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    return dict(ranked[:top_k])
