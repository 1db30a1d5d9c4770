"""The answer to a batch of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import MissingExtraError, QueryError
from .query import Query

if TYPE_CHECKING:
    from .decision import Decision
    from .explanation import Explanation, FusedExplanation


class Resolver(Protocol):
    """Document numbers [B, n] to record ids, of each query's namespace; None for -1."""

    def __call__(self, documents: npt.NDArray[np.int64], /) -> npt.NDArray[np.object_]: ...

    def slice(self, start: int, stop: int) -> Resolver:
        """That of the queries at [start, stop) alone."""
        ...


@dataclass(frozen=True, eq=False)
class Hits:
    """The answer to a batch of B queries as arrays of shape [B, k].

    Row b holds `counts[b]` hits in order of score, highest first, equal scores in order of document number (older
    first); the rest of the row is padding: score ``-inf``, document -1, id ``None``.
    """

    scores: npt.NDArray[np.float64]  # [B, k]
    documents: npt.NDArray[np.int64]  # [B, k] document numbers in the query's namespace
    counts: npt.NDArray[np.int32]  # [B]
    queries: tuple[Query, ...]
    backend: str
    resolver: Resolver = field(repr=False)
    explainer: Callable[[int, str], Explanation | FusedExplanation] = field(repr=False)
    timing: dict[str, float] | None = None
    """Milliseconds of each phase of the search, in order, where `Engine.search` was asked for it."""
    postings: int | None = None
    """Postings that were read from lists, likewise (not those of rows kept by document, nor look-ups); None where the
    backend does not count them."""
    reranked: npt.NDArray[np.float64] | None = None
    """[B, k] the reranker's scores where one decided the order, NaN behind the hits that it read; `scores` stay the
    strategy's."""
    decisions: tuple[Decision, ...] | None = None
    """What was decided for each query, where something was: by a cascade, a router, or ``recall``."""
    source: Sequence[int] | None = None
    """[B] a number for each query, the same where two are equal: such are answered once. None: each by itself."""

    @property
    def distinct(self) -> int | None:
        """Different queries."""
        return None if self.source is None else len(set(self.source))

    def slice(self, start: int, stop: int, width: int, queries: tuple[Query, ...]) -> Hits:
        """The answer to the queries at [start, stop), as if they had been the batch: arrays [stop - start, width].

        `queries` are what stands in their places, and `width` is their largest k. The arrays are copies, so that a part
        does not keep the whole; what explains a strategy other than ``bm25`` does keep what was gathered for the whole.
        Times and counts of the whole are left out, and `backend` names who served the whole.
        """
        rows = slice(start, stop)
        whole, count = self.explainer, stop - start

        def explain(position: int, record_id: str) -> Explanation | FusedExplanation:
            if not -count <= position < count:
                raise QueryError(f"no query {position} in a batch of {count}")
            position %= count
            return whole(start + position, record_id).at(position)

        cut = getattr(whole, "slice", None)
        return Hits(
            self.scores[rows, :width].copy(),
            self.documents[rows, :width].copy(),
            self.counts[rows].copy(),
            queries,
            self.backend,
            self.resolver.slice(start, stop),
            explain if cut is None else cut(start, stop),
            reranked=None if self.reranked is None else self.reranked[rows, :width].copy(),
            decisions=None if self.decisions is None else self.decisions[rows],
            source=None if self.source is None else self.source[rows],
        )

    @cached_property
    def ids(self) -> npt.NDArray[np.object_]:
        """[B, k] record ids (str) or None; resolved when first asked for."""
        return self.resolver(self.documents)

    def __len__(self) -> int:
        """The number of queries in the batch."""
        return len(self.counts)

    def __getitem__(self, query: int) -> list[tuple[str, float]]:
        """The hits of one query as ``(id, score)`` pairs, best first."""
        count = int(self.counts[query])
        return list(zip(self.ids[query, :count].tolist(), self.scores[query, :count].tolist(), strict=True))

    def __iter__(self) -> Iterator[list[tuple[str, float]]]:
        return (self[query] for query in range(len(self)))

    def query_ids(self) -> list[str]:
        """The id of each query, or its position in the batch where it has none."""
        return [str(number) if query.id is None else query.id for number, query in enumerate(self.queries)]

    def to_run(self) -> dict[str, dict[str, float]]:
        """``{query id: {record id: score}}``, each inner dict best first (the form of BEIR, MTEB and ranx).

        Evaluators sort a run by its scores, so where a reranker decided the order these are 1 / rank. Raises
        `QueryError` if two queries have the same id.
        """
        names = self.query_ids()
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise QueryError(f"two queries of the batch have the id {twice!r}; a run holds one answer for each id")
        return {name: dict(self._ordered(query)) for query, name in enumerate(names)}

    def _ordered(self, query: int) -> list[tuple[str, float]]:
        """As ``self[query]``, with scores that give the order back."""
        hits = self[query]
        return hits if self.reranked is None else [(name, 1.0 / rank) for rank, (name, _) in enumerate(hits, 1)]

    def to_trec(self, tag: str = "fanrank") -> Iterator[str]:
        """TREC run lines ``qid Q0 docid rank score tag``, ranks from 1. Scores are those of `to_run`, printed exactly.

        Raises `QueryError` if a query's or a record's id holds white space, which the format cannot carry.
        """
        for query, name in enumerate(self.query_ids()):
            for rank, (record, score) in enumerate(self._ordered(query), 1):
                for value in (name, record):
                    if not value or value.split() != [value]:
                        raise QueryError(f"id {value!r} is empty or holds white space; a TREC run cannot carry it")
                yield f"{name} Q0 {record} {rank} {score!r} {tag}"

    def _columns(self) -> dict[str, Any]:
        present = np.arange(self.scores.shape[1]) < self.counts[:, None]
        rows, ranks = np.nonzero(present)
        names = np.array(self.query_ids(), dtype=object)
        return {
            "query": names[rows] if len(names) else names,
            "rank": ranks.astype(np.int64) + 1,
            "id": self.ids[present],
            "score": self.scores[present],
        }

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the columns query, rank (from 1), id, score, a row per hit."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError("pandas", "tables") from None
        return pd.DataFrame(self._columns())

    def to_arrow(self) -> Any:
        """A `pyarrow.Table` with the columns query, rank (from 1), id, score, a row per hit."""
        try:
            import pyarrow as pa
        except ImportError:
            raise MissingExtraError("pyarrow", "tables") from None
        columns = self._columns()
        return pa.table(
            {
                "query": pa.array(columns["query"], pa.string()),
                "rank": pa.array(columns["rank"], pa.int64()),
                "id": pa.array(columns["id"], pa.string()),
                "score": pa.array(columns["score"], pa.float64()),
            }
        )

    def to_torch(self) -> tuple[Any, Any, Any]:
        """``(scores, documents, counts)`` as torch tensors that share memory with the arrays."""
        try:
            import torch
        except ImportError:
            raise MissingExtraError("torch", "gpu") from None
        return torch.from_numpy(self.scores), torch.from_numpy(self.documents), torch.from_numpy(self.counts)

    def explain(self, query: int, document: str) -> Explanation | FusedExplanation:
        """How the record with id `document` scored for the query at this position: BM25's score term by term, or what
        each channel of a strategy says and adds.

        Computed against the index as it was when the batch was searched. Raises `UnknownIdError`, `QueryError`.
        """
        return self.explainer(query, document)
