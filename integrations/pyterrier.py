"""PyTerrier: a retriever that transforms frames of queries, and an indexer. Neither starts Java."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.engine import Engine
from ..engine.errors import MissingExtraError, ParameterError, RecordError
from ..engine.hybrid.strategy import AnyStrategy
from ..engine.index.columns import AUTO
from ..engine.memory import Memory
from ..engine.metrics.ranking import strictly_descending
from ..engine.records.filters import Filter
from ..engine.records.hits import Hits
from ..engine.records.query import Query
from ..engine.records.record import Record
from ..engine.route.policy import Policy, strategy_of
from ..engine.signatures import EngineOptions
from .candidates import COLUMN, score_candidates, with_column
from .shared import AnyEngine, open_engine

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

try:
    import pandas as pd
    import pyterrier as pt
except ImportError:
    raise MissingExtraError("pyterrier", "pyterrier") from None

FIELDS = tuple(name for name in Query.__dataclass_fields__ if name not in ("text", "id", "k", "offset"))
"""The fields of a query that a column of a frame may give."""


class FanrankRetriever(pt.Transformer):  # type: ignore[misc]
    """Retrieves for a frame of queries, or scores a frame of queries with documents; each frame is one batch.

    `engine` is an engine, a tenant's handle or the path of a directory. `strategy` is what `Engine.search` takes.
    `num_results` is the most documents of a query: in a pipeline ``retriever % 10`` becomes ``num_results=10`` once it
    is compiled. `filter` holds for all queries. `fields` maps columns of the frame to fields of `Query`, such as
    ``{"query_vec": "vector", "qfilter": "filter"}``; begin their names with q, so that PyTerrier keeps them with the
    query. `metadata` names columns of the answer: ``text``, and keys of the payload, None where a record has none.

    Scores are those of the engine. Evaluators sort equal scores by document. With `keep_order` they stay in the order
    of arrival: all but the first are a unit in the last place of float32 lower (`Hits.to_run`).

    Raises `ParameterError`, and what `Engine.open` raises.
    """

    def __init__(
        self,
        engine: Memory | str | os.PathLike[str],
        *,
        strategy: AnyStrategy | Policy = "bm25",
        num_results: int = 1000,
        filter: Filter | Mapping[str, Any] | None = None,
        fields: Mapping[str, str] | None = None,
        metadata: Sequence[str] | None = None,
        keep_order: bool = True,
        threads: int = 1,
    ) -> None:
        super().__init__()
        if isinstance(num_results, bool) or not isinstance(num_results, int) or num_results < 1:
            raise ParameterError(f"num_results must be 1 or more, not {num_results!r}")
        if isinstance(metadata, str) or not all(isinstance(name, str) for name in metadata or ()):
            raise ParameterError(f"metadata must be a list of columns such as ['text'], not {metadata!r}")
        taken = sorted({"qid", "query", "docno", "score", "rank"}.intersection(metadata or ()))
        if taken:
            raise ParameterError(f"metadata: {taken[0]!r} is a column of every answer; take another key")
        for column, field in (fields or {}).items():
            if field not in FIELDS:
                raise ParameterError(f"fields: {column!r} cannot give {field!r}; there are: {', '.join(FIELDS)}")
        if not isinstance(engine, Memory | str | os.PathLike):
            raise ParameterError(f"engine must be an Engine, a Namespace or the path of a directory, not {engine!r}")
        self.engine = engine if isinstance(engine, Memory) else Engine.open(engine)
        self.strategy = strategy_of(strategy)
        self.num_results = num_results
        self.filter = filter
        self.fields = dict(fields or {})
        # PyTerrier takes an empty tuple for inner pipelines.
        self.metadata = tuple(metadata) if metadata else None
        self.keep_order = keep_order
        self.threads = threads

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """The `num_results` best documents of each query, best first, in the order of the queries.

        A frame with the columns qid and query gives their documents: qid, query and other columns of queries, docno,
        `metadata`, score, and rank from 0. A frame that has a docno too is scored again: each document gets the score
        that it has among all records, 0 by BM25 without a word of the query; other columns stay.

        Raises `pyterrier.validate.InputValidationError` for a frame without these columns, and `QueryError` for a
        document that is no record.
        """
        needed = ["query", *self.fields]
        with pt.validate.any(inp) as frame:
            frame.query_frame(extra_columns=needed, mode="retrieve")
            frame.result_frame(extra_columns=needed, mode="rerank")
        return self._rerank(inp) if frame.mode == "rerank" else self._retrieve(inp)

    def fuse_rank_cutoff(self, k: int) -> FanrankRetriever:
        """The same retriever for at most `k` documents a query: what ``self % k`` compiles to."""
        if k >= self.num_results:
            return self
        fused: FanrankRetriever = pt.inspect.transformer_apply_attributes(self, num_results=k)
        return fused

    def schematic(self, *, input_columns: Sequence[str] | None = None) -> dict[str, Any]:
        # Without a help_url PyTerrier asks its site for one.
        return {"label": f"fanrank {self.strategy.name}"[:20], "help_url": None}

    def __repr__(self) -> str:
        return f"FanrankRetriever({self.engine!r}, strategy={self.strategy.name!r}, num_results={self.num_results})"

    def _queries(self, frame: pd.DataFrame) -> list[Query]:
        given = {field: frame[column].tolist() for column, field in self.fields.items()}
        return [
            Query(
                text, id=str(name), **{"filter": self.filter, **{field: values[row] for field, values in given.items()}}
            )
            for row, (name, text) in enumerate(zip(frame["qid"].tolist(), frame["query"].tolist(), strict=True))
        ]

    def _retrieve(self, frame: pd.DataFrame) -> pd.DataFrame:
        metadata = self.metadata or ()
        texts, payload = "text" in metadata, any(name != "text" for name in metadata)
        hits = self.engine.search(
            self._queries(frame),
            k=self.num_results,
            strategy=self.strategy,
            threads=self.threads,
            texts=texts,
            payload=payload,
        )
        counts = hits.counts
        present = np.arange(hits.scores.shape[1]) < counts[:, None]
        of_queries = set(pt.model.query_columns(frame))
        columns = [column for column in frame.columns if column in of_queries and column not in metadata]
        answer = frame[columns].iloc[np.repeat(np.arange(len(frame)), counts)].reset_index(drop=True)
        answer["docno"] = pd.Series(hits.ids[present], dtype="str" if len(frame) == 0 else None)
        for name, values in self._metadata_of(hits).items():
            answer[name] = pd.Series(values, dtype=object)
        answer["score"] = self._scores_of(hits, present)
        answer["rank"] = np.nonzero(present)[1].astype(np.int64)
        return answer

    def _scores_of(self, hits: Hits, present: Any) -> Any:
        if not self.keep_order:
            return hits.scores[present]
        rows = zip(hits.scores, hits.counts.tolist(), strict=True)
        return np.array([score for row, count in rows for score in strictly_descending(row[:count])], dtype=np.float64)

    def _metadata_of(self, hits: Hits) -> dict[str, list[Any]]:
        if not self.metadata:
            return {}
        found = [hit for row in hits for hit in row]
        return {
            name: [hit.text for hit in found] if name == "text" else [(hit.payload or {}).get(name) for hit in found]
            for name in self.metadata
        }

    def _rerank(self, frame: pd.DataFrame) -> pd.DataFrame:
        asked = frame.drop_duplicates("qid")
        names = [str(name) for name in frame["qid"].tolist()]
        documents = frame["docno"].tolist()
        candidates: dict[str, list[str]] = {}
        for name, document in zip(names, documents, strict=True):
            candidates.setdefault(name, []).append(document)
        run = score_candidates(
            self.engine,
            self._queries(asked),
            candidates,
            self.strategy,
            top_k=self.num_results,
            threads=self.threads,
            keep_order=self.keep_order,
        )
        ranks = {name: {document: rank for rank, document in enumerate(row)} for name, row in run.items()}
        places = list(zip(names, documents, strict=True))
        kept = [row for row, (name, document) in enumerate(places) if document in run[name]]
        order = {name: number for number, name in enumerate(run)}
        kept.sort(key=lambda row: (order[places[row][0]], ranks[places[row][0]][places[row][1]]))
        answer = frame.drop(columns=["score", "rank"], errors="ignore").iloc[kept].reset_index(drop=True)
        answer["score"] = np.array([run[places[row][0]][places[row][1]] for row in kept], dtype=np.float64)
        answer["rank"] = np.array([ranks[places[row][0]][places[row][1]] for row in kept], dtype=np.int64)
        return answer


class FanrankIndexer(pt.Indexer):  # type: ignore[misc]
    """Indexes an iterable of dictionaries with docno and text: ``engine = FanrankIndexer("index").index(documents)``.

    `engine` is an engine, a tenant's handle, the path of a directory, or None for an engine in memory; `options` are
    those of a new engine. `text_attrs` are the keys that are searched, joined by blanks in this order. All other keys
    are kept as the record's payload, which `FanrankRetriever(metadata=...)` gives back and filters may name. The docno
    is also a column of its own, by which a retriever over this engine finds documents to score again.

    Raises `ParameterError`, and what `open_engine` raises.
    """

    def __init__(
        self, engine: AnyEngine = None, *, text_attrs: Sequence[str] = ("text",), **options: Unpack[EngineOptions]
    ) -> None:
        super().__init__()
        if isinstance(text_attrs, str) or not text_attrs:
            raise ParameterError(f"text_attrs must be a list of keys such as ['title', 'text'], not {text_attrs!r}")
        self.text_attrs = tuple(text_attrs)
        if not isinstance(engine, Memory):
            options["columns"] = with_column(options.get("columns", AUTO))
        self.engine = open_engine(engine, **options)

    def index(self, iter: Iterable[Mapping[str, Any]], **kwargs: Any) -> Memory:
        """Add all documents as one write, durable in a directory. Returns the engine, for a `FanrankRetriever`.

        Raises `RecordError` for a document without docno or without a text, `DuplicateIdError` for a docno that is
        there already; then none is added.
        """
        self.engine.add(self._records(iter))
        return self.engine

    def index_inputs(self) -> list[list[str]]:
        return [["docno", *self.text_attrs]]

    def _records(self, documents: Iterable[Mapping[str, Any]]) -> Iterator[Record]:
        for number, document in enumerate(documents):
            values = dict(document)
            name = values.pop("docno", None)
            if not isinstance(name, str):
                raise RecordError(f"'docno' must be a string, not {name!r}", where=f"document {number}")
            parts = [values.pop(key, None) for key in self.text_attrs]
            lost = next(
                (key for key, part in zip(self.text_attrs, parts, strict=True) if not isinstance(part, str)), None
            )
            if lost is not None:
                raise RecordError(
                    f"{lost!r} must be a string that is there", where=f"document {number}", record_id=name
                )
            yield Record(name, " ".join(parts), payload=values or None, extra={COLUMN: name})
