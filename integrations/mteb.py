"""MTEB: fanrank as a searcher that `mteb.evaluate` runs, and as the index behind an encoder of MTEB."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.encoders.embed import as_encoder
from ..engine.encoders.encoder import OwnVectors
from ..engine.engine import Engine
from ..engine.errors import MissingExtraError, ParameterError, QueryError, RecordError
from ..engine.evaluate.encoders import describe_encoder
from ..engine.hybrid.strategy import AnyStrategy, Strategy
from ..engine.records.query import Query
from ..engine.records.record import Record
from ..engine.route.policy import Policy, answerer_to_dict, strategy_of
from ..engine.signatures import EngineOptions
from .candidates import COLUMN, score_candidates, with_column

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

try:
    from mteb.models.model_meta import ModelMeta, ScoringFunction
except ImportError:
    raise MissingExtraError("mteb", "mteb") from None

logger = logging.getLogger(__name__)

ROWS = 10_000
"""Rows of a dataset that are read at a time."""

Run = dict[str, dict[str, float]]


class FanrankSearch:
    """A `mteb.SearchProtocol`: each split of a task is indexed anew, and its queries are searched as one batch.

    `strategy` is what `Engine.search` takes: ``"bm25"``, or with an `encoder` such as ``"dense"`` or ``"auto"``.
    `options` are those of `Engine`. A document's text is its title, the `separator` and its text, without the title
    where it has none. MTEB's own BM25 has a line break there, and ``fanrank eval beir`` a blank. With `instructions` a
    query's instruction follows its text, as for MTEB's own BM25.

    MTEB sorts equal scores by id, descending. With `keep_order` they stay in the order of arrival, as ``fanrank eval``
    counts them: all but the first are handed over a unit in the last place of float32 lower (`Hits.to_run`).

    `name` is the model's name in MTEB's results. MTEB keeps results by name and revision, so the revision is a hash of
    all that an answer depends on.

    Raises `ParameterError`, and what `Engine` raises.
    """

    def __init__(
        self,
        strategy: AnyStrategy | Policy = "bm25",
        *,
        name: str | None = None,
        separator: str = "\n",
        instructions: bool = True,
        keep_order: bool = True,
        threads: int = 1,
        backend: str | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.strategy = strategy_of(strategy)
        self.name = f"fanrank/{self.strategy.name}" if name is None else name
        if not isinstance(self.name, str) or self.name.count("/") != 1:
            raise ParameterError(f"name must be written organisation/model, as MTEB asks, not {name!r}")
        self.separator, self.instructions, self.keep_order = separator, instructions, keep_order
        self.threads = threads
        # A model that is opened here takes MTEB's batch size. One that is given has its own.
        self._opened = isinstance(options.get("encoder"), str)
        self._encoder = as_encoder(options.get("encoder"))
        columns = with_column(options.get("columns"))
        self._options: EngineOptions = {**options, "columns": columns, "encoder": self._encoder}
        self._backend = backend
        self._engine: Engine | None = None
        self.mteb_model_meta = self._describe(Engine(backend=backend, **self._options))

    @property
    def engine(self) -> Engine:
        """The engine of the split that was indexed last. Raises `QueryError` before the first `index`."""
        if self._engine is None:
            raise QueryError("nothing is indexed yet: call index before search")
        return self._engine

    def index(
        self,
        corpus: Any,
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        encode_kwargs: Mapping[str, Any] | None = None,
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Index the documents of a split, in place of those before: a dataset with id, text and perhaps title.

        Of `encode_kwargs`, ``show_progress_bar`` shows a bar and ``batch_size`` is for an encoder given by its name.
        Raises `ParameterError` for a ``precision``, which fanrank does not have, and `RecordError` for documents
        without text and ids that stand there twice.
        """
        given = dict(encode_kwargs or {})
        if given.get("precision") not in (None, "float32"):
            raise ParameterError(
                f"encode_kwargs: precision {given['precision']!r} is not supported; vectors are kept in half precision"
            )
        encoder: Any = self._encoder
        if self._opened and "batch_size" in given and hasattr(encoder, "batch_size"):
            encoder.batch_size = given["batch_size"]
        if self._engine is not None:
            self._engine.close()
        engine = Engine(backend=self._backend, **self._options)
        engine.add(self._documents(corpus), progress=bool(given.get("show_progress_bar", False)))
        self._engine = engine

    def search(
        self,
        queries: Any,
        *,
        top_k: int,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        encode_kwargs: Mapping[str, Any] | None = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        num_proc: int | None = None,
        **kwargs: Any,
    ) -> Run:
        """``{query id: {document id: score}}`` of the `top_k` best documents of each query, best first.

        All queries are one batch. With `top_ranked` only the documents that it names for a query are ranked: all of
        them, each with the score that it has among all documents (`score_candidates`).

        Raises `QueryError` for a query without text, for a document in `top_ranked` that was not indexed, and before
        `index`.
        """
        engine = self.engine
        asked = [Query(text, id=name) for name, text in zip(queries["id"], self._query_texts(queries), strict=True)]
        if top_ranked is None:
            hits = engine.search(asked, k=top_k, strategy=self.strategy, threads=self.threads)
            return hits.to_run(keep_order=self.keep_order)
        without = [query.id for query in asked if not top_ranked.get(str(query.id))]
        if without:
            logger.warning("%d queries have no documents in top_ranked, such as %r", len(without), without[0])
        return score_candidates(
            engine,
            asked,
            {str(query.id): top_ranked.get(str(query.id)) or () for query in asked},
            self.strategy,
            top_k=top_k,
            threads=self.threads,
            keep_order=self.keep_order,
        )

    def _documents(self, corpus: Any) -> Iterator[Record]:
        for rows in _batches(corpus):
            if "text" not in rows:
                raise RecordError(f"documents have no 'text', only {', '.join(rows)}: fanrank searches texts")
            titles = rows.get("title") or [None] * len(rows["id"])
            for name, title, text in zip(rows["id"], titles, rows["text"], strict=True):
                yield Record(name, f"{title}{self.separator}{text}" if title else text, extra={COLUMN: name})

    def _query_texts(self, queries: Any) -> list[str]:
        names = queries.column_names
        if "text" not in names:
            raise QueryError(f"queries have no 'text', only {', '.join(names)}: fanrank searches texts")
        texts = list(queries["text"])
        instructions = (
            list(queries["instruction"]) if self.instructions and "instruction" in names else [None] * len(texts)
        )
        return [_query_text(text, instruction) for text, instruction in zip(texts, instructions, strict=True)]

    def _describe(self, engine: Engine) -> Any:
        answer = {
            "version": importlib.import_module("fanrank").__version__,
            "strategy": answerer_to_dict(self.strategy),
            "bm25": repr(engine.bm25),
            "analyzer": engine.analyzer.name,
            "encoder": describe_encoder(self._encoder),
            "term_encoder": describe_encoder(self._options.get("term_encoder")),
            "separator": self.separator,
            "instructions": self.instructions,
            "keep_order": self.keep_order,
        }
        dense = bool(self.strategy.dense)
        alone = isinstance(self.strategy, Strategy) and len(self.strategy.channels) == 1
        return ModelMeta.create_empty(
            overwrites={
                "name": self.name,
                "revision": hashlib.sha256(json.dumps(answer, sort_keys=True).encode()).hexdigest()[:12],
                "model_type": [("dense" if dense else "sparse") if alone else "hybrid"],
                "embed_dim": None if self._encoder is None else self._encoder.dimension,
                "similarity_fn_name": ScoringFunction.COSINE if dense and alone else None,
                "use_instructions": self.instructions,
                "license": "mit",
                "open_weights": True,
            }
        )


def _batches(dataset: Any) -> Iterator[dict[str, Any]]:
    """The columns of a dataset, some rows at a time."""
    if hasattr(dataset, "iter"):
        yield from dataset.iter(batch_size=ROWS)
    else:
        raise RecordError(f"a corpus must be a datasets.Dataset, not {type(dataset).__name__}")


def _query_text(text: Any, instruction: str | None) -> str:
    """A query's text with its instruction; a conversation as MTEB writes it for encoders."""
    if isinstance(text, str):
        return f"{text} {instruction}" if instruction else text
    if not isinstance(text, list) or not all(isinstance(turn, (str, Mapping)) for turn in text):
        raise QueryError(f"a query's text must be a string or a list of turns, not {text!r}")
    turns = [turn if isinstance(turn, str) else f"{turn['role']}: {turn['content']}" for turn in text]
    return f"{instruction} {'; '.join(turns)}" if instruction else "; ".join(turns)


class FanrankIndex:
    """A `mteb.IndexEncoderSearchProtocol`: searches the vectors that an encoder of MTEB makes.

    ``SearchEncoderWrapper(model, index_backend=FanrankIndex(model))``. fanrank keeps vectors of length 1 in half
    precision and compares them by cosine. So the model's similarity must be the cosine, and a similarity differs from
    MTEB's own by up to about .001. Raises `ParameterError` for another one.
    """

    def __init__(self, model: Any, *, threads: int = 1, backend: str | None = None) -> None:
        similarity = model.mteb_model_meta.similarity_fn_name
        if similarity is not ScoringFunction.COSINE:
            raise ParameterError(
                f"fanrank compares vectors by cosine, and the similarity of this model is {similarity}"
            )
        self.threads = threads
        self._backend = backend
        self._engine: Engine | None = None
        self._positions: dict[str, int] = {}

    def add_documents(self, embeddings: Any, idxs: Sequence[str]) -> None:
        """Add the documents with these ids, and their vectors [documents, dimension]."""
        rows, names = _rows(embeddings), list(idxs)
        if self._engine is None:
            self._engine = Engine(
                encoder=OwnVectors(rows.shape[1]), columns={COLUMN: "category"}, keep_texts=False, backend=self._backend
            )
        self._engine.add([Record(name, "", extra={COLUMN: name}) for name in names], vectors=rows)
        for name in names:
            self._positions[name] = len(self._positions)

    def search(
        self,
        embeddings: Any,
        top_k: int,
        similarity_fn: Callable[..., Any] | None = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        query_idx_to_id: Mapping[int, str] | None = None,
    ) -> tuple[list[list[float]], list[list[int]]]:
        """The similarities of the `top_k` best documents of each query, best first, and their positions.

        Positions count the documents in the order in which they were added, or with `top_ranked` the documents that it
        names for the query. `similarity_fn` is not called: similarities are cosines.

        Raises `QueryError` before `add_documents`, and for a document in `top_ranked` that was not added.
        """
        if self._engine is None:
            raise QueryError("nothing is indexed: call add_documents before search")
        rows = _rows(embeddings)
        dense = strategy_of("dense")
        if top_ranked is None:
            asked = [Query(vector=row, id=str(number)) for number, row in enumerate(rows)]
            hits = self._engine.search(asked, k=top_k, strategy=dense.deep(), threads=self.threads)
            return (
                [[hit.score for hit in row] for row in hits],
                [[self._positions[hit.id] for hit in row] for row in hits],
            )
        if query_idx_to_id is None:
            raise QueryError("top_ranked needs query_idx_to_id, which says which query a row is")
        asked = [Query(vector=row, id=query_idx_to_id[number]) for number, row in enumerate(rows)]
        wanted = {str(query.id): list(top_ranked.get(str(query.id)) or ()) for query in asked}
        run = score_candidates(self._engine, asked, wanted, dense, top_k=top_k, threads=self.threads, keep_order=False)
        places = {query: {name: place for place, name in enumerate(names)} for query, names in wanted.items()}
        ranked = [(str(query.id), run[str(query.id)]) for query in asked]
        return (
            [list(scores.values()) for _, scores in ranked],
            [[places[query][name] for name in scores] for query, scores in ranked],
        )

    def clear(self) -> None:
        """Forget all documents."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None
        self._positions = {}


def _rows(embeddings: Any) -> Any:
    """Vectors of torch or numpy as float32 [n, d]."""
    if hasattr(embeddings, "detach"):
        embeddings = embeddings.detach().cpu().float().numpy()
    return np.asarray(embeddings, dtype=np.float32)
