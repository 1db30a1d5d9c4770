"""`Memory`: what every memory is, and its verbs, with what they promise. Those that rank records stand here."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from .backends.choose import Backend
from .carrying import Carrying
from .encoders.encoder import Encoder
from .encoders.sparse import TermEncoder
from .errors import check_names
from .hybrid.evidence import Evidence
from .hybrid.strategy import AnyStrategy, Strategy
from .moments import Moment
from .monitor.health import DriftReport, HealthReport
from .monitor.monitor import Monitor, checked_namespace
from .monitor.recency import Recency
from .offered import OFFERED, REST, Lacking, Offered, awaited, offered
from .reading import Proving, Reading
from .records.checks import About
from .records.explanation import Explanation, FusedExplanation
from .records.filters import parse_filter
from .records.hits import Hits
from .records.query import DEFAULT_K, QueryDefaults
from .rerank.reranker import DEPTH, CheckedReranker
from .route.by_namespace import ByNamespace
from .route.policy import Policy
from .search.given import AnyBatch, AnyQuery
from .search.options import SearchOptions
from .searcher import Searcher
from .signatures import AwaitedKeywords, LaunchKeywords
from .writing import Writing

if sys.version_info >= (3, 11):
    from typing import Self, Unpack
else:
    from typing_extensions import Self, Unpack

if TYPE_CHECKING:
    from .serve.coalesce import Coalescer


class Memory(Proving, Reading, Writing, Carrying):
    """Records, and what is asked of them: an engine, one of its namespaces, shards, or a client of a server.

    All have these verbs, with the same parameters, answers and errors. `Memory.lacking` of a class says which verbs its
    memories do not have, and why; using one raises `NotSupportedError`, and ``hasattr`` is false for it. `fanrank.open`
    opens one.
    """

    searcher: Searcher
    monitor: Monitor
    space: str | None = None
    """The namespace to which all of its records and queries belong; None: they name their own."""
    lacking: ClassVar[Mapping[str, str]] = {}
    """The verbs that memories of this class do not have, each with why, and what to do instead."""
    _closed: bool

    def __init_subclass__(
        cls, lacking: Mapping[str, str] | None = None, made: Callable[[Offered, str], Any] | None = None
    ) -> None:
        """`made` gives what stands in the class for each verb that is offered, and for its awaited twin."""
        if lacking is None:
            return
        missing = dict(lacking)
        for verb in OFFERED.values() if made is not None else ():
            for name in (verb.name, f"a{verb.name}"):
                if name not in vars(cls) and name not in missing and made is not None:
                    method = made(verb, name)
                    if isinstance(method, str):
                        missing[name] = method
                    elif method is not None:
                        setattr(cls, name, method)
        cls.lacking = missing
        for name, why in missing.items():
            setattr(cls, name, Lacking(cls.__name__, name, why))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what the memory holds. A second call does nothing."""
        raise NotImplementedError

    def __len__(self) -> int:
        """The number of live records, over all namespaces."""
        return self.count(namespace=None)

    def __bool__(self) -> bool:
        """True, also for a memory without records: ``memory or fr.Engine()`` keeps an empty one."""
        return True

    @property
    def encoder(self) -> Encoder | None:
        """The encoder that makes vectors of texts, or None."""
        return self.searcher.models.encoder

    @property
    def pin(self) -> dict[str, Any] | None:
        """``name``, ``version`` and ``dimension`` of the model that made the vectors; None where there are no vectors.

        A directory or a saved index keeps it, so it is known also where no encoder is given.
        """
        return self.searcher.models.pin

    @property
    def term_encoder(self) -> TermEncoder | None:
        """The encoder that makes learned term weights of texts, or None."""
        return self.searcher.models.term_encoder

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def search(
        self,
        queries: AnyBatch,
        k: int = DEFAULT_K,
        *,
        strategy: AnyStrategy | Policy | ByNamespace = "bm25",
        reranker: CheckedReranker | None = None,
        rerank_depth: int = DEPTH,
        threads: int = 1,
        execution: str = "auto",
        timing: bool = False,
        texts: bool = False,
        payload: bool = False,
        **defaults: Unpack[QueryDefaults],
    ) -> Hits:
        """Answer a batch of B queries in one call.

        A query is a string, a `Query`, a mapping with its fields, or a sequence of pre-analysed terms. One string,
        `Query` or mapping is a batch of one. `k` is the number of hits for queries that do not say their own.

        `defaults` are fields of `Query`, such as ``filter=`` or ``namespace=``, for the queries that leave them at
        their defaults. They may be all but those of a single query: its text, terms, id, k, vector, model, weights and
        strategy. A query that has one of `namespace`, `namespaces` and `under` gets none of the three.
        ``Query(offset=0)`` leaves the offset at its default: it belongs in a batch without `offset`. A mapping has all
        that it names and that is not None.

        `strategy` says what evidence counts and how it is fused: a name of `STRATEGIES`, a `Strategy` or its `to_dict`.
        It can also be a policy that decides this for each query: ``cascade``, a `Cascade` or a `Router`
        (`Hits.decisions` holds what was decided). A mapping from namespaces gives each tenant its own strategy or
        policy, as in ``{"tenant-a": "recall", "": "bm25"}``; that of ``""``, else ``bm25``, is for all others.
        `fanrank.routing.ByNamespace` names another default, and takes tenants called ``name`` or ``kind``, which in a
        plain mapping are fields of a strategy or a policy. `Query.strategy` goes before all of these. Queries with one
        strategy are one launch, and all of the batch reads one state of the memory.

        Hits below `min_score` are left out first, then those that repeat a better one, then the first `offset`. So row
        b holds the hits from `offset` to ``offset + k`` of what is kept of the full ranking. Scores are the strategy's,
        after its fusion. The full ranking of a strategy with several channels, of a feedback, or of an HNSW graph ends
        with its candidates: the best of each channel, as many as the strategy's depth, at least k. `reranker` reorders
        the first `rerank_depth` hits of each row by their texts, and so the hits of one page among themselves.

        `threads` and `execution` (``auto``, ``exhaustive``, ``pruned``) change how fast the answer comes, never the
        answer. `timing` fills `Hits.timing` with the milliseconds of each phase, and for ``bm25`` also `Hits.postings`.

        `texts` brings the records of the hits: their texts, times and metadata (`Hits.records`, `Hit.text`). `payload`
        brings `Record.payload`. A hit's record is the one that was scored: where a write changes it before it is read,
        the batch is searched again. An engine that was opened with ``read_only`` is refreshed for that.

        While the index is built from the records after `open` with ``wait`` false, a scan for keywords answers,
        whatever the strategy.

        Raises `QueryError`, `ParameterError`, `ModelMismatchError`, `EncoderError`, `DeviceMemoryError`, `StorageError`
        for texts that the engine does not keep, and `MissingExtraError` where a strategy needs a package that is not
        installed.
        """
        return self.searcher.search(
            queries,
            k,
            {
                "strategy": strategy,
                "reranker": reranker,
                "rerank_depth": rerank_depth,
                "threads": threads,
                "execution": execution,
                "timing": timing,
                "texts": texts,
                "payload": payload,
                **defaults,
            },
        )

    @property
    def coalescer(self) -> Coalescer:
        """The coalescer behind `asearch` and `submit`: it answers the batches of many callers in one launch."""
        coalescer: Coalescer | None = self.__dict__.get("_coalescer")
        if coalescer is None:
            from .serve.coalesce import Coalescer  # as below

            # `setdefault` keeps the first, where two threads make one at the same time.
            coalescer = self.__dict__.setdefault("_coalescer", Coalescer(self))
            if self._closed:
                coalescer.close()
        return coalescer

    async def asearch(self, queries: AnyBatch, k: int = DEFAULT_K, **keywords: Unpack[AwaitedKeywords]) -> Hits:
        """As `search`, awaited; concurrent callers share a launch. Keywords as `Coalescer.asearch`."""
        return await self.coalescer.asearch(queries, k, **keywords)

    def submit(self, queries: AnyBatch, k: int = DEFAULT_K, **keywords: Unpack[LaunchKeywords]) -> Future[Hits]:
        """As `search`, but returns a future; concurrent callers share a launch. Keywords as `Coalescer.submit`."""
        return self.coalescer.submit(queries, k, **keywords)

    def search_stream(
        self,
        batches: Iterable[AnyBatch],
        k: int = DEFAULT_K,
        *,
        ahead: int = 2,
        threads: int = 1,
        execution: str = "auto",
        timing: bool = False,
        texts: bool = False,
        payload: bool = False,
        **defaults: Unpack[QueryDefaults],
    ) -> Iterator[Hits]:
        """Answer batch after batch by ``bm25``, in order: while one is scored, the next is analysed and planned.

        Returns an iterator of one `Hits` a batch. Each is what `search` would have given at the moment when its batch
        was read: it sees all writes that were done by then, whole, and none later.

        `batches` is read only inside ``next``, by the thread that calls it. At most `ahead` batches (0 to 64) are read
        beyond the one that is handed out; with 0 the batches are answered one by one in the caller's thread. Up to
        `threads` threads score, one batch each, and one more plans. Where a device serves, two batches are on it at
        once. The threads end when the iterator is exhausted, closed, garbage-collected, or has raised.

        An error of a batch, or of `batches` itself, is raised when its turn comes. It ends the iterator, and nothing is
        read after it. `ParameterError` and `QueryError` for the arguments are raised at once; else raises as `search`.

        `texts`, `payload` and `defaults` are as in `search`. Where a write has changed the record of a hit, the batch
        is answered as of a later moment.

        Only the time of the analysis and of the plan is hidden, and only where cores are free.
        """
        options = SearchOptions(threads=threads, execution=execution, timing=timing, texts=texts, payload=payload)
        known = QueryDefaults.__annotations__
        shown = *known, "k", "ahead", "threads", "execution", "timing", "texts", "payload"
        check_names(defaults, known, shown, "search_stream")
        if "filter" in defaults:
            defaults["filter"] = parse_filter(defaults["filter"])  # once for all batches
        return self._search_stream(batches, k, options, ahead, defaults)

    def _search_stream(
        self, batches: Iterable[AnyBatch], k: int, options: SearchOptions, ahead: int, defaults: QueryDefaults
    ) -> Iterator[Hits]:
        from .serve import stream  # five modules that a plain search does not need

        return stream.search_stream(self.searcher, batches, k, options, ahead=ahead, defaults=defaults)

    def candidates(
        self, queries: AnyBatch, strategy: AnyStrategy, *, threads: int = 1, execution: str = "auto"
    ) -> Evidence:
        """The evidence of a strategy: what its channels say of each query's candidates, before fusion and feedback.

        Returns the candidates, and a function from the documents of all candidates to record ids (objects
        [candidates]). Use it to try several fusions on the same evidence: any fusion of `fanrank.engine.fuse` takes the
        candidates. Raises as `search`.
        """
        options = SearchOptions(threads=threads, execution=execution)
        return self.searcher.candidates(queries, Strategy.of(strategy), options)

    def explain(
        self, query: AnyQuery, document: str, *, strategy: AnyStrategy | Policy | ByNamespace = "bm25"
    ) -> Explanation | FusedExplanation:
        """How the record with id `document` scores for the query.

        The explanation is term by term, or channel by channel under a strategy other than ``bm25``. Raises
        `UnknownIdError`, `QueryError` for a query for the newest records, which are not scored, and as `search`.
        """
        return self.search([query], strategy=strategy).explain(0, document)

    def namespace(self, name: str) -> Memory:
        """A handle on one namespace. It sees no record of any other namespace."""
        raise NotImplementedError

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that hold live records."""
        present = self.index.ready().state.present(time.time())
        return tuple(name for name, snapshot in present.items() if snapshot.size)

    @property
    def backend(self) -> Backend:
        """The backend that serves searches."""
        return self.searcher.backend

    @property
    def keeps_texts(self) -> bool:
        """Whether the engine has the records' texts: on disk, or in memory."""
        memory = self.index.memory
        return memory.store is not None or memory.keeps

    @property
    def opened(self) -> str | None:
        """How `open` got the index: ``loaded``, or ``built`` and why. None for an engine in memory."""
        return self.index.opened

    @property
    def opening(self) -> bool:
        """Whether the index is still loaded or built after `open` with ``wait`` false.

        Searches wait while files are loaded. While the index is built from the records, a scan for keywords answers.
        """
        return self.index.building

    def flush(self) -> None:
        """Do the merges that are due and bring the index files up to date. Raises `StorageError`."""
        self.index.ready().flush()

    def vacuum(self) -> int:
        """Give back the disk and memory that deleted records still take; returns the bytes by which the files shrank.

        What is left of a deleted record is overwritten or gone afterwards: its document in the index, the words and
        values that only it had, and its room in the database. Expired records are deleted first. No answer changes.

        Everything is written anew: it takes as long as a copy, and up to twice the database's size on disk meanwhile.
        Searches go on, writes wait. A process that reads the directory at the moment may delay the shrinking until
        `close`. Raises `StorageError`.
        """
        return self.index.ready().vacuum()

    def sweep(self) -> int:
        """Delete the records that have expired by now; returns how many. Raises `StorageError`.

        They count in no answer since they expired. Writes, `flush` and the background thread sweep too, so a program
        need not call this.
        """
        return self.index.ready().sweep()

    def refresh(self) -> None:
        """Catch up with the writer of a directory opened with ``read_only``."""
        self.index.refresh()

    def stats(self, *, namespace: str | None = None) -> dict[str, Any]:
        """Sizes of the index, and the state of merges and checkpoints (all int but ratio, names and reasons).

        Counts:

        - `namespaces`, `documents`: those that are live; `deleted`: documents that no merge has left out yet
        - `segments`, `postings`: of BM25, deleted documents included, as in the next three
        - `vectors`: rows; `weights`: postings of learned term weights; `entities`: postings of what records say of
          entities
        - `vocabulary`, `weight_terms`, `entity_terms`, `column_values`: entries of the vocabularies

        Bytes in memory. Arrays that are mapped from files count in full:

        - `index_bytes`: the whole index, which is the sum of the next seven
        - `posting_bytes`: lists and lengths of BM25 (`bytes_per_posting` is their share of each posting)
        - `evidence_bytes`: the same of learned weights and of entities; `vector_bytes`: vectors
        - `id_bytes`: ids and their hash tables; `column_bytes`: codes and numbers of the metadata columns
        - `deleted_bytes`: what says which documents are deleted, and the document frequencies that large namespaces
          keep
        - `vocabulary_bytes`: strings of terms and column values, and their numbers
        - `cache_bytes`: beside the index, what searches worked out and keep: contributions, masks, filtered corpora.
          The tables of compiled loops are not counted.
        - `device_bytes`: what the backend holds on its device

        Work done: `writes` (batches), `commits`, `merges`, `merged_documents`, `compacted_documents` (deleted documents
        that merges left out), `renumberings` (of vocabularies without their unused entries). `merging` says whether the
        background thread runs, and `background_error` its last failure. `backend` names what serves.

        A durable engine also has `sequence` (the last change), `checkpointed` (the last change in the index files),
        `checkpoints`, `store_bytes` and `opened`.

        With a `namespace` they are the sizes of its part of the index, and the state of its k* rule (``recency``); over
        shards also which ``shards`` hold it.
        """
        if namespace is None:
            return self.searcher.stats()
        name = checked_namespace(namespace)
        return {**self._stats_of(name), "recency": self.recency(name).to_dict()}

    def _stats_of(self, namespace: str) -> dict[str, Any]:
        from .storage.sizes import snapshot_stats  # what a search does not need

        return snapshot_stats(self.index.ready().snapshot(namespace).at(time.time()))

    def recency(self, namespace: str = "") -> Recency:
        """The k* rule of a namespace: how many of its newest windows a query with ``windows="auto"`` searches."""
        return self.monitor.recency(namespace)

    # Sources: A032.
    @offered(REST, writes=True)
    def observe(
        self,
        ids: Annotated[Iterable[str], About("The ids of the hits that were used.", examples=("m1",))],
        *,
        namespace: str = "",
        now: Annotated[Moment | None, "moment", About("The time of the queries.")] = None,
        windows: Annotated[int | None, About("How many windows they searched; left out, all.", least=1)] = None,
    ) -> None:
        """Report which hits were used, so that the k* rule learns how recent useful records are.

        `now` is the time of the queries; `windows` is how many windows they searched (None: all). Ids that are not
        live, and records without a time, have no effect.
        """
        memory = self.index.ready()
        self.monitor.observe(memory, ids, namespace, now, windows)
        if self.monitor.shared:
            memory.keep_learned()

    # Sources: B025.
    @offered(REST, writes=True)
    def resolved(
        self,
        name: Annotated[str, About("The name, as in a query.", examples=("Ana",))],
        entity: Annotated[str, About("The id of the entity that it meant.", examples=("person/ana",))],
        *,
        namespace: str = "",
        times: Annotated[int, About("How often.", least=1)] = 1,
    ) -> None:
        """Report that `name`, in queries to a namespace, meant the entity with the id `entity`, so many `times`.

        Where several entities have one name, ``recall`` and the channel `Graph` believe a meaning the more, the more
        often it was reported: as a prior, beside the words around and the entities near. What was reported is kept with
        a directory at its next checkpoint, and goes with its namespace. A name's counts are halved beyond 256, and a
        namespace remembers 10,000 names, the last reported ones. Case and punctuation of a name do not matter. Raises
        `ParameterError` for a name without a word, an empty id, times outside 1 to 256, and an id or a namespace with a
        lone surrogate, which no file can store.
        """
        self.monitor.resolved(name, entity, namespace, times)
        if self.monitor.shared:
            self.index.ready().keep_learned()

    # Sources: B014.
    def drift(self, namespace: str = "") -> DriftReport:
        """How far the namespace's most frequent terms have moved since the last call."""
        return self.monitor.drift(self.index.ready(), namespace)

    # Sources: C040.
    def health(self, namespace: str = "") -> HealthReport:
        """Counts, latencies and fallbacks of the namespace's searches."""
        return self.monitor.health(namespace)

    if TYPE_CHECKING:
        adelete_where = awaited(Writing.delete_where)
        aupdate_where = awaited(Writing.update_where)
        adistinct, aevents = awaited(Reading.distinct), awaited(Reading.events)
        aadd_column, adrop_column = awaited(Carrying.add_column), awaited(Carrying.drop_column)
        achange_columns = awaited(Carrying.change_columns)
        aobserve, aresolved = awaited(observe), awaited(resolved)
        aaudit, areceipts = awaited(Proving.audit), awaited(Proving.receipts)
        aforget, areplay = awaited(Proving.forget), awaited(Proving.replay)


for _verb in OFFERED.values():
    setattr(Memory, f"a{_verb.name}", awaited(_verb.function))
