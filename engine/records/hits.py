"""The answer to a batch of queries."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..errors import MissingExtraError, QueryError
from ..locks import once
from .checks import shorten
from .hit import Hit, add_records, bare_dicts, make_hits
from .query import RECORD, Query, searched_fields

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

Annotator = Callable[[int, Query], "str | None"]
"""Says why the query at a position of the batch has no hits."""

Value = TypeVar("Value")

SHOWN_QUERIES, SHOWN_HITS = 3, 3
"""The queries, and the hits of each, that `repr` shows."""


class Origin(Protocol):
    """What an answer was made from. It makes what few callers read of an answer."""

    @property
    def namespace(self) -> str:
        """The namespace that all queries search."""
        ...

    def queries(self) -> tuple[Query, ...]: ...

    def explainer(self) -> Explain: ...

    def annotate(self, position: int, query: Query, /) -> str | None:
        """Says why the query at a position of the batch has no hits."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class Hits:
    """The answer to a batch of B queries as arrays of shape [B, k].

    ``hits[b]`` is the list of the hits of query b (`Hit`), and iteration goes through these lists. Hits can be pickled
    and copied deeply. What came out of a pickle holds ids and records, and explains no scores.

    Row b holds `counts[b]` hits in order of score, highest first. Equal scores are in order of document number, older
    documents first; of a strategy with a temporal channel, events in the time that the query names come before, the
    latest first. Padding fills the row: score ``-inf``, document -1, id ``None``.
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
    """Postings read from lists, with ``timing=True`` only; look-ups do not count. None: the backend counts none."""
    reranked: npt.NDArray[np.float64] | None = None
    """[B, k] the reranker's scores where one decided the order, NaN after the hits that it read; `scores` stays."""
    decisions: tuple[Decision, ...] | None = None
    """The decision for each query, if a cascade, a router or ``recall`` made one."""
    source: Sequence[int] | Integers | None = None
    """[B] a number for each query. Equal queries have the same number and are answered once. None: every query was
    answered by itself."""
    annotator: Annotator | None = field(default=None, repr=False)
    """Says why a query has no hits; None where nothing is known."""
    records: npt.NDArray[np.object_] | None = field(default=None, repr=False)
    """[B, k] the records of the hits (`Record`) without their vectors, as they were scored. None if they were not
    searched with ``texts`` or ``payload``."""
    texts: bool = False
    """Whether the hits bring their texts, times and metadata."""
    payload: bool = False
    """Whether the hits bring their payloads."""
    missing_shards: tuple[int, ...] = ()  # that did not answer a `ShardedEngine` with ``partial="allow"``

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
                "annotator": origin.annotate,
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
        spaces = {*map(searched_fields, self.queries)}
        if len(spaces) != 1:
            return None
        name, names, path = spaces.pop()
        return name if names is None and path is None else None

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

    @once
    def exchanges(self) -> npt.NDArray[np.object_] | None:
        """[B, k] the ids of each hit's exchange in the order of arrival (tuple), or None where its query does not ask
        for exchanges; None where no query does."""
        return self._named("exchanges", "unit", RECORD)

    @once
    def copies(self) -> npt.NDArray[np.object_] | None:
        """[B, k] the ids of the other records that each hit stands for, in the order of arrival (tuple), or None where
        its query does not collapse; None where no query does."""
        return self._named("copies", "collapse", None)

    def _named(self, what: str, field: str, silent: object) -> npt.NDArray[np.object_] | None:
        """What the resolver says to queries whose `field` is not `silent`."""
        # A resolver of what no query asks has no such method. Queries of plain texts are not made for it.
        resolve = getattr(self.resolver, what, None)
        asking = [] if resolve is None else [getattr(query, field) != silent for query in self.queries]
        if resolve is None or True not in asking:
            return None
        found: npt.NDArray[np.object_] = resolve(np.where(np.array(asking)[:, None], self.documents, -1))
        return found

    @property
    def distinct(self) -> int | None:
        """The number of different queries; None where `source` is None."""
        return None if self.source is None else len({*self.source})

    def slice(self, start: int, stop: int, width: int, queries: tuple[Query, ...]) -> Hits:
        """The answer to the queries at [start, stop), as if they had been the batch: arrays [stop - start, width].

        `queries` are the queries of the new answer, and `width` is their largest k. The arrays are copies, so that a
        slice does not keep the whole answer in memory. For a strategy other than ``bm25``, the explainer does keep the
        evidence of the whole batch. Times and counts of the whole batch are left out. Where several strategies answered
        the batch, `backend`, `decisions` and `reranked` are of those that answered these queries.
        """
        rows = slice(start, stop)
        resolver = self.resolver.slice(start, stop)
        parts: Sequence[Any] | None = getattr(resolver, "parts", None)
        backend = self.backend if parts is None else join_names([part.backend for part in parts])
        decided, reranked = self.decisions is not None, self.reranked is not None
        if parts is not None:
            decided = any(part.decided for part in parts)
            reranked = any(part.reranked for part in parts)
        whole, count = self.explainer, stop - start

        def explain(position: int, record_id: str) -> Explanation | FusedExplanation:
            if not -count <= position < count:
                raise QueryError(f"no query {position} in a batch of {count}")
            position %= count
            return whole(start + position, record_id).at(position)

        slice_explainer, slice_annotator = getattr(whole, "slice", None), getattr(self.annotator, "slice", None)
        return Hits(
            self.scores[rows, :width].copy(),
            self.documents[rows, :width].copy(),
            self.counts[rows].copy(),
            queries,
            backend,
            resolver,
            explain if slice_explainer is None else slice_explainer(start, stop),
            reranked=self.reranked[rows, :width].copy() if reranked and self.reranked is not None else None,
            decisions=self.decisions[rows] if decided and self.decisions is not None else None,
            source=None if self.source is None else _first_rows(self.source[rows]),
            annotator=self.annotator if slice_annotator is None else slice_annotator(start, stop),
            records=None if self.records is None else self.records[rows, :width].copy(),
            texts=self.texts,
            payload=self.payload,
            missing_shards=self.missing_shards,
        )

    def with_records(self, records: npt.NDArray[np.object_], *, texts: bool, payload: bool) -> Hits:
        """The same answer with these records [B, k]."""
        # Not `replace`: it would make the fields that are made when they are read.
        return self._copy({"records": records, "texts": texts, "payload": payload})

    def _copy(self, changed: dict[str, Any]) -> Hits:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, **changed)
        return copied

    def __copy__(self) -> Hits:
        return self._copy({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Hits:
        # What resolves, explains and annotates reads snapshots, which never change, so the copy shares it.
        scored = "scores", "documents", "counts", "reranked", "timing", "records"
        arrays = *scored, "ids", "namespaces", "exchanges", "copies"
        return self._copy({name: copy.deepcopy(getattr(self, name), memo) for name in arrays})

    def __getstate__(self) -> dict[str, Any]:
        """What travels: snapshots stay behind, so all that they are read for is worked out first."""
        from .travelled import TravelledIds  # a search loads nothing that only travels

        worked_out = "namespace", "namespaces", "ids", "exchanges", "copies", "notes"
        state = {name: getattr(self, name) for name in (*self.__dataclass_fields__, *worked_out)}
        resolver = TravelledIds(self.documents, self.ids, self.namespaces, self.exchanges, self.copies)
        return {**state, "resolver": resolver, "explainer": _explain_nothing, "annotator": None}

    @once
    def ids(self) -> npt.NDArray[np.object_]:
        """[B, k] record ids (str) or None; resolved at the first access."""
        return self.resolver(self.documents)

    def __len__(self) -> int:
        """The number of queries in the batch."""
        return len(self.counts)

    def __getitem__(self, query: int) -> list[Hit]:
        """The hits of one query, best first. Each equals the pair ``(id, score)`` and unpacks as one."""
        count = int(self.counts[query])
        pairs = zip(self.ids[query, :count].tolist(), self.scores[query, :count].tolist(), strict=True)
        hits = make_hits(pairs, self._namespaces(query))
        if self.records is not None:
            add_records(hits, self.records[query], texts=self.texts, payload=self.payload)
        for name, found in (("exchange", self.exchanges), ("copies", self.copies)):
            for hit, ids in zip(hits, () if found is None else found[query], strict=False):
                setattr(hit, name, ids)
        return hits

    def __iter__(self) -> Iterator[list[Hit]]:
        return (self[query] for query in range(len(self)))

    def _namespaces(self, query: int) -> Iterable[str]:
        """The namespace of each hit of a query."""
        namespace = self.namespace
        return self.namespaces[query].tolist() if namespace is None else repeat(namespace)

    def to_dicts(self) -> list[list[dict[str, Any]]]:
        """For each query the list of its hits as dictionaries, best first.

        Each has id, score, rank (from 1) and namespace. Searched with ``texts=True`` it also has text, time and
        metadata, which are the columns that are set, importance and `Record.extra`. With ``payload=True`` it also has
        the payload. Of a query for exchanges it has ``exchange``, of one that collapses ``copies``, as `Hit` has them.
        Where a reranker decided the order, ``reranked`` is its score, or None for a hit that it did not read.
        """
        arrays = self.ids, self.scores, self.counts
        bare = all(more is None for more in (self.records, self.exchanges, self.copies))
        rows = bare_dicts(*arrays, self._namespaces) if bare else [[hit.to_dict() for hit in row] for row in self]
        if self.reranked is not None:
            for row, scores in zip(rows, self.reranked.tolist(), strict=True):
                for hit, score in zip(row, scores, strict=False):
                    hit["reranked"] = None if score != score else score
        return rows

    @once
    def notes(self) -> tuple[str | None, ...]:
        """[B] for each query without hits a short word why, such as that no record holds a word of it; else None."""
        annotator = None if self.counts.all() else self.annotator
        if annotator is None:
            return (None,) * len(self)
        return tuple(
            None if count else annotator(position, query)
            for position, (count, query) in enumerate(zip(self.counts, self.queries, strict=True))
        )

    def __repr__(self) -> str:
        total = int(self.counts.sum())
        lines = [f"{type(self).__name__}({len(self)} queries, {total} hits, backend {self.backend!r})"]
        for number, query in enumerate(self.queries[:SHOWN_QUERIES]):
            words = query.text if query.terms is None else " ".join(query.terms)
            row = self[number]
            shown = (
                ", ".join(f"{hit.id} {hit.score:.4g}" for hit in row[:SHOWN_HITS]) or self.notes[number] or "no hits"
            )
            more = ", ..." if len(row) > SHOWN_HITS else ""
            lines.append(f"  {number} {shorten(words)}: {shown}{more}")
        if len(self) > SHOWN_QUERIES:
            lines.append("  ...")
        return "\n".join(lines)

    def query_ids(self) -> list[str]:
        """The id of each query, or its position in the batch where it has none."""
        return [str(number) if query.id is None else query.id for number, query in enumerate(self.queries)]

    def _unique_query_ids(self) -> list[str]:
        """As `query_ids`. Raises `QueryError` if two are the same: their hits could not be told apart."""
        names = self.query_ids()
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise QueryError(f"two queries of the batch have the id {twice!r}; a run holds one answer for each id")
        return names

    def to_run(self, *, keep_order: bool = False) -> dict[str, dict[str, float]]:
        """``{query id: {record id: score}}``, each inner dict best first (the form of BEIR, MTEB, ranx, ir_measures).

        Evaluators sort a run by its scores. Where a reranker decided the order, the scores are therefore 1 / rank.
        Equal scores, also those equal as float32, they order by id or at random. With `keep_order` such scores are
        lowered by a unit in the last place of float32 each, so that the order stays (`strictly_descending`).

        Raises `QueryError` if two queries have the same id, or two hits of a query, which are then from different
        namespaces.
        """
        names = self._unique_query_ids()
        self._check_unique_ids(names)
        return {name: dict(self._list_hits(query, keep_order)) for query, name in enumerate(names)}

    def _check_unique_ids(self, names: Sequence[str]) -> None:
        """Raise `QueryError` if two hits of a query have one id: in a run one would take the place of the other."""
        if self.namespace is not None:
            return
        for name, row in zip(names, self, strict=True):
            first: dict[str, Hit] = {}
            for hit in row:
                other = first.setdefault(hit.id, hit)
                if other is not hit:
                    raise QueryError(
                        f"query {name!r} has two hits with the id {hit.id!r}, of the namespaces {other.namespace!r} "
                        f"and {hit.namespace!r}, and a run holds one score for each id; ask for one namespace a query, "
                        "or use to_dicts, to_pandas or to_arrow, which name the namespace"
                    )

    def _list_hits(self, query: int, keep_order: bool) -> Iterable[tuple[str, float]]:
        """As ``self[query]``, but with scores that sort into the order of the hits: 1 / rank after a reranker."""
        count = int(self.counts[query])
        names = self.ids[query, :count].tolist()
        if self.reranked is not None:
            return [(name, 1.0 / rank) for rank, name in enumerate(names, 1)]
        if not keep_order:
            return zip(names, self.scores[query, :count].tolist(), strict=True)
        from ..metrics.ranking import strictly_descending  # a search loads no metrics

        return zip(names, strictly_descending(self.scores[query, :count]), strict=True)

    def to_trec(self, tag: str = "fanrank", *, keep_order: bool = False) -> Iterator[str]:
        """TREC run lines ``qid Q0 docid rank score tag``, ranks from 1. Scores are those of `to_run`, printed exactly.

        Raises `QueryError` if a query's or a record's id holds white space, which the format cannot carry, and as
        `to_run`.
        """
        from ..metrics.runs import run_lines  # a search loads no metrics

        names = self._unique_query_ids()
        self._check_unique_ids(names)
        for query, name in enumerate(names):
            yield from run_lines(name, self._list_hits(query, keep_order), tag)

    def _columns(self) -> dict[str, Any]:
        present = np.arange(self.scores.shape[1]) < self.counts[:, None]
        rows, ranks = np.nonzero(present)
        names = np.array(self._unique_query_ids(), dtype=object)
        return {
            "query": names[rows] if len(names) else names,
            "rank": ranks.astype(np.int64) + 1,
            "id": self.ids[present],
            "score": self.scores[present],
            "namespace": self.namespaces[present],
        }

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with the columns query, rank (from 1), id, score and namespace, a row per hit.

        Raises `QueryError` if two queries have the same id.
        """
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtraError("pandas", "tables") from None
        return pd.DataFrame(self._columns())

    def to_arrow(self) -> Any:
        """A `pyarrow.Table` with the columns query, rank (from 1), id, score and namespace, a row per hit.

        Raises `QueryError` if two queries have the same id.
        """
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
                "namespace": pa.array(columns["namespace"], pa.string()),
            }
        )

    def to_ranx(self, name: str | None = None, *, keep_order: bool = True) -> Any:
        """A `ranx.Run` called `name`, of the queries that have hits. Scores, `keep_order` and errors: as `to_run`."""
        try:
            import ranx
        except ImportError:
            raise MissingExtraError("ranx", "ranx") from None
        run = {query: row for query, row in self.to_run(keep_order=keep_order).items() if row}
        return ranx.Run(run or None, name=name)

    def to_ir_measures(self, *, keep_order: bool = True) -> list[Any]:
        """The hits as a list of `ir_measures.ScoredDoc`. Scores, `keep_order` and errors are as in `to_run`."""
        try:
            import ir_measures
        except ImportError:
            raise MissingExtraError("ir_measures", "ir-measures") from None
        run = self.to_run(keep_order=keep_order)
        return [ir_measures.ScoredDoc(query, hit, score) for query, row in run.items() for hit, score in row.items()]

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


def join_names(backends: Iterable[str]) -> str:
    """Each name once, of backends that may be several names already."""
    return ", ".join(dict.fromkeys([name for served in backends for name in served.split(", ")]))


def _first_rows(source: Sequence[int] | Integers) -> tuple[int, ...]:
    """For each query, the first row that has the same number."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(int(number), row) for row, number in enumerate(source)])


def _explain_nothing(query: int, document: str) -> NoReturn:
    raise QueryError(
        "hits that were pickled explain no scores, as the index stays behind; explain before, or ask engine.explain"
    )
