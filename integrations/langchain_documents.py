"""What LangChain's retriever and vector store share: documents as records, options of a search, and encoders."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.encoders.encoder import Rows, check_rows
from ..engine.errors import MissingExtraError, ParameterError, QueryError, RecordError, choices
from ..engine.hybrid.strategy import AnyStrategy
from ..engine.records.dialects.parse import parse_filter
from ..engine.records.filters import CONNECTIVES, MAX_DEPTH, Filter
from ..engine.records.hits import Hits
from ..engine.records.query import Query
from ..engine.records.record import Record
from ..engine.route.by_namespace import ByNamespace, answerer_of
from ..engine.route.policy import Policy

try:
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.runnables.config import ContextThreadPoolExecutor, run_in_executor
except ImportError as error:
    raise MissingExtraError("langchain-core", "langchain") from error

AnyAnswerer = AnyStrategy | Policy | ByNamespace
"""What answers a search: all that `Engine.search` takes as its strategy."""

QUERY_OPTIONS = (
    *("now", "since", "until", "half_life", "windows", "newest", "timezone", "last_session_end"),
    *("scope", "namespaces", "under", "statistics", "neighbours", "type", "entities", "hints"),
)
"""Fields of `Query` that a search takes as options, the same for each query of its batch."""
SEARCH_OPTIONS = ("offset", "min_score", "collapse", "unit", "reranker", "rerank_depth", "threads", "execution")
"""Keywords of `Engine.search` that a search takes as options."""

# Texts of queries that are embedded at the same time, where the embeddings have no method for several. LangChain's own
# batch calls `embed_query` from a pool of threads too, so they bear it.
EMBED_THREADS = 16
_PROBE = "dimension"


class LangChainEncoder:
    """LangChain's embeddings as an `Encoder`: ``Engine(encoder=LangChainEncoder(OpenAIEmbeddings()))``.

    Documents go to ``embed_documents``, all in one call. Queries go to ``embed_query``, several at the same time, or to
    ``embed_queries(texts)`` in one call where the object has such a method.

    The engine keeps `name` and `version` with the vectors, and refuses those of another model. By default the name is
    that of the class with its attribute ``model_name`` or ``model``. Where vectors change and the name does not, give
    another `version`. `dimension` is that of a vector; None: one text is embedded to find out.

    Raises `ParameterError`, and `EncoderError` for embeddings that are no finite vectors of that dimension.
    """

    def __init__(
        self, embeddings: Embeddings, *, name: str | None = None, version: str = "1", dimension: int | None = None
    ) -> None:
        if not isinstance(embeddings, Embeddings):
            raise ParameterError(f"embeddings must be LangChain Embeddings, not {type(embeddings).__name__}")
        self.embeddings = embeddings
        self.name = _model_of(embeddings) if name is None else name
        self.version = version
        self.dimension = len(embeddings.embed_query(_PROBE)) if dimension is None else dimension

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, dimension={self.dimension})"

    def documents(self, texts: Sequence[str], *, progress: bool = False) -> Rows:
        """The vectors of documents, float32 [texts, dimension]. There is no bar: LangChain reports no progress."""
        return check_rows(self.embeddings.embed_documents(list(texts)) if texts else [], texts, self)

    def queries(self, texts: Sequence[str]) -> Rows:
        """The vectors of queries, float32 [texts, dimension]."""
        several = getattr(self.embeddings, "embed_queries", None)
        if callable(several):
            rows = several(list(texts)) if texts else []
        elif len(texts) < 2:
            rows = [self.embeddings.embed_query(text) for text in texts]
        else:
            with ContextThreadPoolExecutor(max_workers=min(EMBED_THREADS, len(texts))) as threads:
                rows = list(threads.map(self.embeddings.embed_query, texts))
        return check_rows(rows, texts, self)

    async def adocuments(self, texts: Sequence[str]) -> Rows:
        """As `documents`, by ``aembed_documents``."""
        return check_rows(await self.embeddings.aembed_documents(list(texts)) if texts else [], texts, self)

    async def aqueries(self, texts: Sequence[str]) -> Rows:
        """As `queries`, by ``aembed_query`` of all texts at once, or by ``aembed_queries`` where there is one."""
        several = getattr(self.embeddings, "aembed_queries", None)
        if callable(several):
            rows = await several(list(texts)) if texts else []
        elif callable(getattr(self.embeddings, "embed_queries", None)):
            return await run_in_executor(None, self.queries, texts)
        else:
            rows = await asyncio.gather(*map(self.embeddings.aembed_query, texts))
        return check_rows(rows, texts, self)


def _model_of(embeddings: Embeddings) -> str:
    named = (getattr(embeddings, attribute, None) for attribute in ("model_name", "model"))
    model = next((name for name in named if isinstance(name, str) and name), None)
    kind = type(embeddings).__name__
    return kind if model is None else f"{kind} {model}"


def metadata_filter(spec: Any, dialect: str | None) -> Filter | None:
    """The filter that `spec` says of documents' metadata: an expression, our JSON form, or that of `dialect`.

    Keys are those of the metadata, also where a column of fanrank has that name (``type``, ``role``, ``time``); an
    expression names columns itself. Raises `QueryError` and `ParameterError`.
    """
    if callable(spec):
        raise QueryError(
            "filter must be data, such as {'topic': 'billing'} or col('topic') == 'billing', not a function: it is "
            "applied inside the search"
        )
    if dialect is None:
        return parse_filter(_in_payload(spec, 0))
    return parse_filter(spec, dialect, payload=True)


def _in_payload(spec: Any, depth: int) -> Any:
    """Our JSON form with columns of the payload. What is nested too deeply is left for `parse_filter` to refuse."""
    if not isinstance(spec, Mapping) or depth > MAX_DEPTH:
        return spec
    named: dict[Any, Any] = {}
    for name, value in spec.items():
        if name not in CONNECTIVES:
            named[f"payload.{name}" if isinstance(name, str) and name else name] = value
        elif isinstance(value, list | tuple):
            named[name] = [_in_payload(inner, depth + 1) for inner in value]
        else:
            named[name] = _in_payload(value, depth + 1)
    return named


@dataclass(frozen=True)
class Request:
    """What a search asks for, beside its texts."""

    fields: dict[str, Any]
    """Those of each `Query`."""
    keywords: dict[str, Any]
    """Those of the search."""
    score_key: str | None
    dense: bool
    """Whether queries need vectors."""

    @classmethod
    def of(
        cls,
        *,
        strategy: AnyAnswerer,
        filter: Any = None,
        dialect: str | None = None,
        score_key: str | None = None,
        **options: Any,
    ) -> Request:
        """Reads the options of a call. Raises `ParameterError` for an unknown one, and `QueryError` for a filter."""
        unknown = sorted(options.keys() - {*QUERY_OPTIONS, *SEARCH_OPTIONS})
        if unknown:
            known = ("k", "filter", "dialect", "strategy", "score_key", *QUERY_OPTIONS, *SEARCH_OPTIONS)
            raise ParameterError(f"unknown search option {unknown[0]!r}{choices(unknown[0], known)}")
        if score_key is not None and not isinstance(score_key, str):
            raise ParameterError(f"score_key must be the metadata key for scores, or None, not {score_key!r}")
        answerer = answerer_of(strategy)
        fields = {name: value for name, value in options.items() if name in QUERY_OPTIONS}
        passing = metadata_filter(filter, dialect)
        if passing is not None:
            fields["filter"] = passing
        keywords = {name: value for name, value in options.items() if name in SEARCH_OPTIONS}
        keywords |= {"strategy": answerer, "texts": True, "payload": True}
        return cls(fields, keywords, score_key, bool(answerer.dense))

    def queries(self, texts: Sequence[str], vectors: Sequence[Any] | None = None) -> list[str] | list[Query]:
        """The queries of these texts, with these vectors."""
        if vectors is not None:
            return [Query(text, vector=row, **self.fields) for text, row in zip(texts, vectors, strict=True)]
        if self.fields:
            return [Query(text, **self.fields) for text in texts]
        return list(texts)

    def documents(self, hits: Hits) -> list[list[Document]]:
        """The documents of each query, best first."""
        return [[make_document(record, score, self.score_key) for record, score in row] for row in rows_of(hits)]

    def scored(self, hits: Hits) -> list[list[tuple[Document, float]]]:
        """The documents of each query with their scores, best first."""
        return [
            [(make_document(record, score, self.score_key), score) for record, score in row] for row in rows_of(hits)
        ]


def check_texts(texts: Any) -> list[str]:
    """The texts of a batch. A list within it would be searched as a list of terms, which LangChain does not know."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise QueryError(f"a batch must be a list of texts, not {type(texts).__name__}")
    batch = list(texts)
    for position, text in enumerate(batch):
        if not isinstance(text, str):
            raise QueryError(f"query {position} must be a text, not {type(text).__name__}")
    return batch


def rows_of(hits: Hits) -> Iterator[list[tuple[Record, float]]]:
    """The records and scores of each query's hits."""
    assert hits.records is not None
    rows = zip(hits.records.tolist(), hits.scores.tolist(), hits.counts.tolist(), strict=True)
    for records, scores, count in rows:
        yield list(zip(records[:count], scores[:count], strict=True))


def make_document(record: Record, score: float | None = None, score_key: str | None = None) -> Document:
    """The document of a record that an answer brought. It takes over the payload, which is the answer's own copy."""
    payload = record.payload
    metadata = payload if payload and type(payload) is dict else dict(payload or {})
    if score_key is not None:
        metadata[score_key] = score
    # What a pickle of a document holds. It takes half of the time of the constructor, which checks fields that are of
    # the right types here. A batch of 20 questions makes 200 documents.
    document = Document.__new__(Document)
    document.__setstate__(
        {
            "__dict__": {"id": record.id, "metadata": metadata, "page_content": record.text, "type": "Document"},
            "__pydantic_fields_set__": {"id", "metadata", "page_content"},
            "__pydantic_extra__": None,
            "__pydantic_private__": None,
        }
    )
    return document


def make_records(
    texts: Iterable[str], metadatas: Sequence[Mapping[str, Any]] | None, ids: Sequence[str | None] | None
) -> list[Record]:
    """The records of these texts; those without an id get a random one. Raises `RecordError`."""
    if isinstance(texts, str):
        raise RecordError("texts must be a list of texts, not one text")
    batch = list(texts)
    for name, given in (("metadatas", metadatas), ("ids", ids)):
        if given and len(given) != len(batch):
            raise RecordError(f"there are {len(batch):,} texts and {len(given):,} {name}; give each text its own")
    return [
        Record(str(uuid.uuid4()) if own is None else own, text, payload=metadata or None)
        for text, metadata, own in zip(batch, metadatas or [{}] * len(batch), ids or [None] * len(batch), strict=True)
    ]


def parts_of(documents: Sequence[Document]) -> tuple[list[str], list[dict[str, Any]], list[str | None]]:
    """The texts, the metadata and the ids of documents."""
    return (
        [document.page_content for document in documents],
        [document.metadata for document in documents],
        [document.id for document in documents],
    )
