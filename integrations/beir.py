"""BEIR: fanrank as a `BaseSearch` that `EvaluateRetrieval` runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..engine.encoders.embed import as_encoder
from ..engine.encoders.encoder import OwnVectors
from ..engine.engine import Engine
from ..engine.errors import MissingExtraError, ParameterError, QueryError
from ..engine.hybrid.strategy import AnyStrategy
from ..engine.records.query import Query
from ..engine.records.record import Record
from ..engine.route.policy import Answerer, Policy, strategy_of
from ..engine.signatures import EngineOptions

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

try:
    from beir.retrieval.search import BaseSearch
except ImportError:
    raise MissingExtraError("beir", "beir") from None

Run = dict[str, dict[str, float]]

ROWS = 50_000
"""Documents whose vectors are in one file of `FanrankSearch.encode`, as in BEIR's own searchers."""


class FanrankSearch(BaseSearch):  # type: ignore[misc]
    """Searches a BEIR corpus: ``EvaluateRetrieval(FanrankSearch()).retrieve(corpus, queries)``.

    `strategy` is what `Engine.search` takes: ``"bm25"``, or with an `encoder` such as ``"dense"`` or ``"auto"``.
    `options` are those of `Engine`. A document's text is its title, a blank and its text, as BEIR joins them.

    BEIR takes a document with the id of the query for the query itself and never counts it as found. So does this class
    with `ignore_identical_ids`: it looks one hit deeper and leaves that document out. Where queries and documents are
    numbered alike, as in Cranfield, that loses true answers: say False here and to `EvaluateRetrieval.evaluate`.

    trec_eval, which BEIR measures by, sorts equal scores by id, descending. With `keep_order` they stay in the order of
    arrival (`Hits.to_run`).

    Raises `ParameterError`, and what `Engine` raises.
    """

    def __init__(
        self,
        strategy: AnyStrategy | Policy = "bm25",
        *,
        ignore_identical_ids: bool = True,
        keep_order: bool = True,
        threads: int = 1,
        backend: str | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.strategy = strategy_of(strategy)
        self.ignore_identical_ids, self.keep_order, self.threads = ignore_identical_ids, keep_order, threads
        self._encoder = as_encoder(options.get("encoder"))
        self._options: EngineOptions = {**options, "encoder": self._encoder}
        self._backend = backend
        self._engine: Engine | None = None
        self.results: Run = {}
        Engine(backend=backend, **self._options)  # says what is wrong with the options now

    def index(self, corpus: Mapping[str, Mapping[str, str]]) -> None:
        """Index a corpus in place of the one before, for searches with ``corpus=None``. Raises `RecordError`."""
        engine = Engine(backend=self._backend, **self._options)
        engine.add(Record(name, _text(document)) for name, document in corpus.items())
        if self._engine is not None:
            self._engine.close()
        self._engine = engine

    def search(
        self,
        corpus: Mapping[str, Mapping[str, str]] | None,
        queries: Mapping[str, str],
        top_k: int,
        score_function: str | None = None,
        **kwargs: Any,
    ) -> Run:
        """``{query id: {document id: score}}`` of the `top_k` best documents, best first; all queries are one batch.

        The corpus is indexed first; None searches the one that `index` has indexed. `score_function` is that of
        vectors: fanrank compares them by cosine, ``"cos_sim"``.

        Raises `QueryError` for a corpus of None before `index`, and `ParameterError` for another score function where
        the strategy reads vectors.
        """
        if self.strategy.dense:
            _check_score_function(score_function)
        if corpus is not None:
            self.index(corpus)
        if self._engine is None:
            raise QueryError("nothing is indexed: give a corpus, or call index before")
        asked = [Query(text, id=name) for name, text in queries.items()]
        self.results = self._run(self._engine, asked, top_k, self.strategy)
        return self.results

    def encode(
        self,
        corpus: Mapping[str, Mapping[str, str]],
        queries: Mapping[str, str],
        encode_output_path: str = "./embeddings/",
        overwrite: bool = False,
        query_filename: str = "queries.pkl",
        corpus_filename: str = "corpus.*.pkl",
        **kwargs: Any,
    ) -> None:
        """Write the encoder's vectors of queries and documents to files in BEIR's form, 50,000 documents a file.

        A file that is there stays unless `overwrite`. Raises `ParameterError` without an encoder.
        """
        if self._encoder is None:
            raise ParameterError("encode needs an encoder: FanrankSearch('dense', encoder=...)")
        from beir.retrieval.search.dense.util import save_embeddings

        # BEIR makes the folder of a file, and the current one has no name.
        folder = os.path.join(".", encode_output_path)
        path = os.path.join(folder, query_filename)
        if overwrite or not os.path.exists(path):
            save_embeddings(self._encoder.queries(list(queries.values())), list(queries), path)
        names = list(corpus)
        for start in range(0, len(names), ROWS):
            part = names[start : start + ROWS]
            path = os.path.join(folder, corpus_filename.replace("*", str(start // ROWS)))
            if overwrite or not os.path.exists(path):
                save_embeddings(self._encoder.documents([_text(corpus[name]) for name in part]), part, path)

    def search_from_files(
        self,
        query_embeddings_file: str,
        corpus_embeddings_files: Sequence[str],
        top_k: int,
        score_function: str | None = None,
        **kwargs: Any,
    ) -> Run:
        """As `search`, over the vectors in files of `encode` or of BEIR's own searchers, by cosine.

        The files are pickles: load none that you do not trust. Documents come in the order of the files' names.
        Raises `ParameterError` for another score function than ``"cos_sim"``.
        """
        from beir.retrieval.search.dense.util import pickle_load

        _check_score_function(score_function)
        rows, names = pickle_load(query_embeddings_file)
        engine = Engine(encoder=OwnVectors(rows.shape[1]), keep_texts=False, backend=self._backend)
        for file in sorted(corpus_embeddings_files, key=lambda path: (len(str(path)), str(path))):
            vectors, ids = pickle_load(file)
            engine.add([Record(name, "") for name in ids], vectors=vectors)
        asked = [Query(vector=row, id=name) for name, row in zip(names, rows, strict=True)]
        with engine:
            self.results = self._run(engine, asked, top_k, strategy_of("dense").deep())
        return self.results

    def _run(self, engine: Engine, asked: Sequence[Query], top_k: int, strategy: Answerer) -> Run:
        depth = top_k + 1 if self.ignore_identical_ids else top_k
        run = engine.search(asked, k=depth, strategy=strategy, threads=self.threads).to_run(keep_order=self.keep_order)
        if self.ignore_identical_ids:
            for query, row in run.items():
                row.pop(query, None)
                run[query] = dict(list(row.items())[:top_k])
        return run


def _text(document: Mapping[str, str]) -> str:
    return f"{document.get('title') or ''} {document.get('text') or ''}".strip()


def _check_score_function(name: str | None) -> None:
    if name not in (None, "cos_sim"):
        raise ParameterError(f"fanrank compares vectors by cosine ('cos_sim'), not by {name!r}")
