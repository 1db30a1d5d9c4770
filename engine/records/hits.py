"""The answer to a batch of queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..errors import MissingExtraError, QueryError
from .query import Query

if TYPE_CHECKING:
    from .decision import Decision
    from .explanation import Explanation, FusedExplanation


class Resolver(Protocol):
    """Maps document numbers [B, n] to record ids, row b in the namespace of query b. Document -1 gives None."""

    def __call__(self, documents: npt.NDArray[np.int64], /) -> npt.NDArray[np.object_]: ...

    def slice(self, start: int, stop: int) -> Resolver:
        """The resolver of the queries at [start, stop) alone."""
        ...


Explain = Callable[[int, str], "Explanation | FusedExplanation"]
"""Explains the score of a record for the query at a position of the batch."""

Value = TypeVar("Value")


class Origin(Protocol):
    """What an answer was made from. It makes what few callers read of an answer."""

    @property
    def namespace(self) -> str:
        """The namespace that all queries search."""
        ...

    def queries(self) -> tuple[Query, ...]: ...

    def explainer(self) -> Explain: ...


class once(cached_property[Value]):
    """A `cached_property` without the lock that all instances share before Python 3.12.

    Threads that read at the same time may compute the value twice; all get the one that was kept first.
    """

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return instance.__dict__.setdefault(self.attrname, self.func(instance))


@dataclass(frozen=True, eq=False)
class Hits:
    """The answer to a batch of B queries as arrays of shape [B, k].

    Row b holds `counts[b]` hits in order of score, highest first. Equal scores are in order of document number, older
    documents first. Padding fills the row: score ``-inf``, document -1, id ``None``.
    """

    scores: npt.NDArray[np.float64]  # [B, k]
    documents: npt.NDArray[np.int64]  # [B, k] document numbers in the query's namespace
    counts: npt.NDArray[np.int32]  # [B]
    queries: tuple[Query, ...]
    backend: str
    resolver: Resolver = field(repr=False)
    explainer: Callable[[int, str], Explanation | FusedExplanation] = field(repr=False)
    timing: dict[str, float] | None = None
    """Milliseconds of each phase of the search, in order, if `Engine.search` was called with ``timing=True``."""
    postings: int | None = None
    """Number of postings read from posting lists, also with ``timing=True`` only. Look-ups and rows stored by
    document do not count. None where the backend does not count postings."""
    reranked: npt.NDArray[np.float64] | None = None
    """[B, k] scores of the reranker, where one decided the order; NaN after the hits that it read. `scores` holds the
    strategy's scores either way."""
    decisions: tuple[Decision, ...] | None = None
    """The decision for each query, if a cascade, a router or ``recall`` made one."""
    source: Sequence[int] | Integers | None = None
    """[B] a number for each query. Equal queries have the same number and are answered once. None: every query was
    answered by itself."""

    @classmethod
    def of(
        cls,
        scores: npt.NDArray[np.float64],
        documents: Integers,
        counts: npt.NDArray[np.int32],
        origin: Origin,
        backend: str,
        resolver: Resolver,
        timing: dict[str, float] | None = None,
        postings: int | None = None,
        source: Sequence[int] | Integers | None = None,
    ) -> Hits:
        """An answer whose `queries` and `explainer` the `origin` makes once they are read."""
        hits = object.__new__(cls)
        # One assignment: the constructor of a frozen dataclass makes one for each field.
        object.__setattr__(
            hits,
            "__dict__",
            {
                "scores": scores,
                "documents": documents,
                "counts": counts,
                "backend": backend,
                "resolver": resolver,
                "timing": timing,
                "postings": postings,
                "reranked": None,
                "decisions": None,
                "source": source,
                "namespace": origin.namespace,
                "origin": origin,
            },
        )
        return hits

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            origin = self.__dict__.get("origin") if name in ("queries", "explainer") else None
            if origin is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return self.__dict__.setdefault(name, getattr(origin, name)())

    @once
    def namespace(self) -> str | None:
        """The namespace that all queries search; None where they search several, or there are none."""
        spaces = {query.namespace for query in self.queries}
        several = any(query.namespaces is not None or query.under is not None for query in self.queries)
        return spaces.pop() if len(spaces) == 1 and not several else None

    @once
    def namespaces(self) -> npt.NDArray[np.object_]:
        """[B, k] the namespace (str) of each hit, or None; resolved at the first access."""
        # A resolver that serves a single namespace has no such method.
        resolve = getattr(self.resolver, "namespaces", None)
        if resolve is None:
            single = np.full(self.documents.shape, None, dtype=object)
            single[self.documents >= 0] = self.namespace
            return single
        names: npt.NDArray[np.object_] = resolve(self.documents)
        return names

    @property
    def distinct(self) -> int | None:
        """The number of different queries; None where `source` is None."""
        return None if self.source is None else len({*self.source})

    def slice(self, start: int, stop: int, width: int, queries: tuple[Query, ...]) -> Hits:
        """The answer to the queries at [start, stop), as if they had been the batch: arrays [stop - start, width].

        `queries` are the queries of the new answer, and `width` is their largest k. The arrays are copies, so that a
        slice does not keep the whole answer in memory. For a strategy other than ``bm25``, the explainer does keep the
        evidence of the whole batch. Times and counts of the whole batch are left out. `backend` names the backend that
        served the whole batch.
        """
        rows = slice(start, stop)
        whole, count = self.explainer, stop - start

        def explain(position: int, record_id: str) -> Explanation | FusedExplanation:
            if not -count <= position < count:
                raise QueryError(f"no query {position} in a batch of {count}")
            position %= count
            return whole(start + position, record_id).at(position)

        slice_explainer = getattr(whole, "slice", None)
        return Hits(
            self.scores[rows, :width].copy(),
            self.documents[rows, :width].copy(),
            self.counts[rows].copy(),
            queries,
            self.backend,
            self.resolver.slice(start, stop),
            explain if slice_explainer is None else slice_explainer(start, stop),
            reranked=None if self.reranked is None else self.reranked[rows, :width].copy(),
            decisions=None if self.decisions is None else self.decisions[rows],
            source=None if self.source is None else self.source[rows],
        )

    @once
    def ids(self) -> npt.NDArray[np.object_]:
        """[B, k] record ids (str) or None; resolved at the first access."""
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

        Evaluators sort a run by its scores. Where a reranker decided the order, the scores are therefore 1 / rank.
        Raises `QueryError` if two queries have the same id.
        """
        names = self.query_ids()
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise QueryError(f"two queries of the batch have the id {twice!r}; a run holds one answer for each id")
        return {name: dict(self._list_hits(query)) for query, name in enumerate(names)}

    def _list_hits(self, query: int) -> list[tuple[str, float]]:
        """As ``self[query]``, but with scores that sort into the order of the hits: 1 / rank after a reranker."""
        hits = self[query]
        return hits if self.reranked is None else [(name, 1.0 / rank) for rank, (name, _) in enumerate(hits, 1)]

    def to_trec(self, tag: str = "fanrank") -> Iterator[str]:
        """TREC run lines ``qid Q0 docid rank score tag``, ranks from 1. Scores are those of `to_run`, printed exactly.

        Raises `QueryError` if a query's or a record's id holds white space, which the format cannot carry.
        """
        for query, name in enumerate(self.query_ids()):
            for rank, (record, score) in enumerate(self._list_hits(query), 1):
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
        """Explains the score of the record with id `document` for the query at this position.

        The explanation lists the BM25 score term by term, or the rank, score and share of each channel of a strategy.
        It uses the index as it was when the batch was searched. Raises `UnknownIdError`, `QueryError`.
        """
        return self.explainer(query, document)
