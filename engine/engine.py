"""`Engine`: records in, a batch of queries in one call, hits out; in memory, or over a durable directory.

The verbs that every memory has are those of `Memory`; what is of one engine alone stands here.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .backends import choose as backends
from .backends.choose import Backend
from .encoders.embed import Given
from .encoders.encoder import Encoder
from .encoders.pins import PINNED, Models
from .encoders.sparse import TermEncoder
from .errors import BackendUnavailableError, ForeignIndexError, ParameterError, QueryError, choices
from .index.column_names import check_names
from .index.columns import AUTO, ORDER, Schema
from .index.profiles import CHOSEN, LITERATURE, bm25_of, default_profile
from .index.snapshot import WEEK
from .memory import Memory
from .moments import Span
from .monitor.monitor import Monitor
from .monitor.recency import EPSILON, MAX_WINDOWS, RATE
from .namespace import Namespace
from .opening import OpenIndex
from .plan.device_options import DeviceOptions
from .records.checks import checked_span
from .records.query import DEFAULT_K
from .search.given import AnyBatch, as_queries
from .search.lexical import encode_batch
from .searcher import Searcher
from .signatures import EngineOptions, hinting
from .storage import index_files
from .storage.record_store import RecordStore
from .storage.storage import Storage
from .text.analyzers import DEFAULT_ANALYZER, Analyzer, get_analyzer
from .writing import AnyRecord

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

if TYPE_CHECKING:
    import torch

    from .backends.choose import TensorHits


SERVING = ("cuda", "triton", "cuda-host")
"""What `Engine.to` takes beside ``cpu``."""


class Encoded(NamedTuple):
    """A batch's terms, by `Engine.encode`."""

    terms: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    numbering: int


# Sources: A030 to A032, B004.
class Engine(Memory):
    """A batch retrieval engine over records that grow while they are searched.

    ``analyzer`` names a text analyzer (`fanrank.text.ANALYZERS`, or as ``snowball:german``). ``profile`` says what the
    records are like and gives BM25's ``method``, ``k1`` and ``b`` (`fanrank.text.PROFILES`; None: ``general``, or what
    the environment variable FANRANK_PROFILE names); what is given beside it wins. They are fixed numbers, whatever is
    added later. ``delta``, ``query_tf`` and ``fields`` are further BM25 parameters (see `fanrank.BM25`). ``columns``
    declares metadata columns beside the built-in ones, as in ``{"project": "category", "priority": "number", "tags":
    "json"}``; their values come from `Record.extra`, or else from `Record.payload`. A filter that names another key of
    a record declares it, with kind ``json``; with ``"auto"``, or ``"*": "json"`` beside others, also one that no record
    has.

    ``window`` is the length of a time window: seconds, a `timedelta`, or text such as ``"7d"``. ``epsilon``,
    ``max_windows`` and ``recency_rate`` set the k* rule, which chooses how many of the newest windows a query with
    ``windows="auto"`` searches where there are at least 100,000 records.

    ``encoder`` makes the vectors by which queries and records are compared. It is a model's name or path, or an
    `Encoder`; `OwnVectors` is for vectors that the caller brings. Its name, version and dimension are the engine's
    `pin`, which is kept with the records. Vectors of another model are refused. ``term_encoder`` (such as
    `SparseSentenceEncoder`) makes learned term weights for records and queries that bring none.

    ``keep_texts`` says whether an engine in memory keeps its records, for `fetch`, hits with texts, rerankers and
    feedback on sentences. It keeps the records themselves, not copies of their texts. A directory keeps them always.

    ``backend`` forces a backend by name. The log (the logger "fanrank": INFO for a batch, WARNING for a fallback, ERROR
    for a failure) holds no text of a query unless ``log_texts`` is true; then its lines hold the queries' texts, their
    best scores and the messages of errors. It belongs to the process, and is not kept with a directory.

    Any thread may write and search at any time. A search sees whole batches only, and never waits for a writer.
    """

    _serves_shard = False
    """Whether it is that of a shard, in whose directory no other engine writes."""

    @hinting()
    def __init__(
        self,
        *,
        analyzer: str | Analyzer = DEFAULT_ANALYZER,
        profile: str | None = None,
        method: str | None = None,
        k1: float | None = None,
        b: float | None = None,
        delta: float | None = None,
        query_tf: str = "count",
        fields: Mapping[str, float] | None = None,
        columns: Mapping[str, str] | str | None = None,
        window: Span = WEEK,
        epsilon: float = EPSILON,
        max_windows: int | None = MAX_WINDOWS,
        recency_rate: float = RATE,
        encoder: str | os.PathLike[str] | Encoder | None = None,
        term_encoder: TermEncoder | None = None,
        keep_texts: bool = True,
        log_texts: bool = False,
        backend: str | None = None,
    ) -> None:
        self.profile = default_profile() if profile is None else profile
        self.bm25 = bm25_of(self.profile, method, k1, b, delta, query_tf, fields)
        self.analyzer = get_analyzer(analyzer)
        schema = Schema.of(columns)
        serving = backends.choose(backend)
        self.window = checked_span("window", window, 1e-3, 1e12)
        self.monitor = Monitor(epsilon=epsilon, max_windows=max_windows, rate=recency_rate, log_texts=log_texts)
        if not isinstance(keep_texts, bool):
            raise ParameterError(f"keep_texts must be true or false, not {keep_texts!r}")
        own = self.bm25, self.analyzer, schema, self.window
        if schema.auto and not keep_texts:
            raise ParameterError(
                f"columns={AUTO!r} reads the records' values when a filter first names a column, and keep_texts=False "
                "keeps none; leave one of them out"
            )
        self.index = OpenIndex(partial(Storage, *own, learned=self.monitor, keep_texts=keep_texts))
        self.searcher = Searcher(self.index, Models(encoder, term_encoder), serving, self.monitor)
        self._closed = False

    @classmethod
    @hinting(*EngineOptions.__annotations__)
    def from_records(
        cls,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        progress: bool = False,
        threads: int | None = None,
        backend: str | None = None,
        **options: Unpack[EngineOptions],
    ) -> Engine:
        """A new engine that holds these records.

        `vectors`, `progress` and `threads` are as in `add`; `backend` and `options` are the constructor's. Raises as
        the constructor and `add`.
        """
        engine = cls(backend=backend, **options)
        engine.add(records, vectors=vectors, progress=progress, threads=threads)
        return engine

    # Sources: C009.
    @classmethod
    @hinting(*EngineOptions.__annotations__)
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        accept_loss: bool = False,
        wait: bool = True,
        progress: bool = False,
        backend: str | None = None,
        **options: Unpack[EngineOptions],
    ) -> Engine:
        """The engine whose records live in the directory `path`, which is made if it is not there.

        A write returns once it is durable: the records are in SQLite's write-ahead log, and the log is synced. A crash
        of the process or of the machine then loses neither the records nor a part of their batch. The index files are
        derived from the records. What is missing or damaged in them is built again, and `opened` says what was done.

        One process may write. Any number may open the directory with ``read_only`` and call `refresh`. The directory of
        a shard is written by its sharded memory alone: it opens with ``read_only``, or with ``accept_loss``.

        Where acknowledged changes are missing (a lost or cut write-ahead log, an older copy of the database),
        `DamagedStoreError` says how many and which records, and all files stay as they are. With ``accept_loss`` the
        engine goes on without these changes, builds the index anew and logs a warning.

        `options` are the constructor's. They are kept when the directory is made; later they may be left out, and must
        not differ. Of the encoder only its `pin` is kept. Without the encoder all works but what must be encoded. A
        directory that was made without an encoder and has records takes none later, as its records have no vectors.

        With ``wait`` false the call returns at once. Searches wait while index files are loaded. Where the index must
        be built from the records, a scan for keywords answers them until it is there (``hits.backend`` says
        ``keyword-scan``).

        Raises `StoreLockedError` while another writer has it open, `ParameterError` for options that differ,
        `ModelMismatchError` for another encoder, `ForeignIndexError`, `NewerFormatError`, `DamagedStoreError`,
        `StorageError`.
        """
        if options.get("keep_texts") is False:
            raise ParameterError("keep_texts=False is for an engine in memory; a directory always keeps the records")
        may_open_shards = read_only or accept_loss or cls._serves_shard
        new = None
        if not read_only and not os.path.exists(path):
            # Options that cannot be kept are refused before anything is written.
            new = cls(backend=backend, **options)
            check_names(new.columns, of_shard=may_open_shards)
            new._config()
        store = RecordStore.open(path, read_only=read_only, accept_loss=accept_loss)
        try:
            config = store.config
            kept: Any = (config or {}).get("columns") or ()
            if not may_open_shards and ORDER in kept:
                raise ForeignIndexError(
                    f"{path}: is a shard, whose sharded memory alone writes to it; open that, or this with read_only"
                )
            if config is None and read_only:
                raise ForeignIndexError(f"{path}: holds nothing yet; open it for writing once")
            if config is None:
                engine = cls(backend=backend, **options) if new is None else new
                check_names(engine.columns, of_shard=may_open_shards)
                config = {**engine._config(), "store": secrets.token_hex(8)}
                store.set_config(config)
            else:
                known = {name: value for name, value in config.items() if name not in ("store", *PINNED)}
                # The numbers that are kept win over those of the profile. None stands for what is kept, too.
                known.setdefault("profile", LITERATURE)
                given = {name: value for name, value in options.items() if value is not None or name not in CHOSEN}
                columns: Any = given.get("columns")
                if columns is not None and Schema.of(known.get("columns")).keeps(Schema.of(columns)):
                    del given["columns"]
                engine = cls(backend=backend, **{**known, **given})
                for name, value in engine._config().items():
                    if known.get(name, value) != value:
                        raise ParameterError(
                            f"{path}: was made with {name} = {known[name]!r}, not {value!r}; leave it out, or make "
                            "another directory (copy_to, add_column)"
                        )
                if store.sequence == 0 and not read_only:
                    # Nothing was encoded yet, so whoever first opens it with an encoder may choose the encoder.
                    engine.searcher.models.adopt({**config, **engine._settings()}, str(path))
                    fresh = {**engine._config(), "store": config["store"]}
                    if fresh != config:
                        store.set_config(fresh, replace=True)
                else:
                    engine.searcher.models.adopt(config, str(path))
            engine.monitor.restore(store)
            engine.index.attach(store, Path(path), config["store"])
            if wait:
                engine.index.fill(progress)
            else:
                engine.index.fill_behind()
        except BaseException:
            store.close()
            raise
        return engine

    def _config(self) -> dict[str, Any]:
        _check_name(self.analyzer)
        return {
            "analyzer": self.analyzer.name,
            **self.bm25.to_dict(),
            "columns": self.columns,
            **self._settings(),
        }

    def _settings(self) -> dict[str, Any]:
        return {
            "profile": self.profile,
            "window": self.window,
            "epsilon": self.monitor.epsilon,
            "max_windows": self.monitor.max_windows,
            "recency_rate": self.monitor.rate,
            **self.searcher.models.pins(),
        }

    @property
    def backend(self) -> Backend:
        """The backend that serves searches. Assign another, or let `to` choose one."""
        return self.searcher.backend

    @backend.setter
    def backend(self, backend: Backend) -> None:
        self.searcher.backend = backend

    @classmethod
    @hinting()
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        verify: bool = True,
        encoder: str | os.PathLike[str] | Encoder | None = None,
        term_encoder: TermEncoder | None = None,
        backend: str | None = None,
    ) -> Engine:
        """An engine in memory over the index that was saved at `path`; its arrays are memory-mapped.

        With `verify` every file is compared with its checksum. `encoder` and `term_encoder` are as in `open`. Raises
        `ForeignIndexError`, `NewerFormatError`, `DamagedIndexError`, `StorageError`, `ModelMismatchError` or
        `ParameterError`.
        """
        saved = index_files.load(path, verify=verify)
        settings = {name: value for name, value in saved.settings.items() if name not in PINNED}
        settings.setdefault("profile", LITERATURE)
        engine = cls(
            analyzer=saved.analyzer.partition(" ")[0],
            columns=saved.columns,
            encoder=encoder,
            term_encoder=term_encoder,
            backend=backend,
            **saved.parameters,
            **settings,
        )
        engine.analyzer.check_stored(saved.analyzer)
        engine.searcher.models.adopt(saved.settings, str(path))
        engine.index.memory.restore(saved)
        return engine

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index, without the records' texts, to the directory `path`.

        The directory is made if it is not there. A saved index in it is replaced in one step. Raises
        `ForeignIndexError` if the directory holds something else, `StorageError` if it cannot be written,
        `ParameterError` for an analyzer that `load` could not find by its name.
        """
        _check_name(self.analyzer)
        index_files.save(path, replace(self.index.ready().saved(), settings=self._settings()))

    def __repr__(self) -> str:
        memory = self.index.memory
        sizes = [snapshot.size for snapshot in memory.state.present(time.time()).values() if snapshot.size]
        where = "in memory" if memory.store is None else repr(str(memory.store.path.parent))
        building = ", opening" if self.index.building else ""
        name, backend = type(self).__name__, self.backend.name
        return f"{name}({sum(sizes):,} records, {len(sizes):,} namespaces, backend {backend!r}, {where}{building})"

    def __len__(self) -> int:
        """The number of live records, over all namespaces."""
        return sum(snapshot.size for snapshot in self.index.ready().state.present(time.time()).values())

    def close(self) -> None:
        """Bring the index files up to date and release the directory; writes are refused from now on.

        `search` still works on what is in memory. `asearch` and `submit` are refused, and so are calls that wait. A
        launch that runs is answered. Where it has yet to read records (a reranker, sentences for feedback), it fails
        with `StorageError`. A `Coalescer` that the caller made is not closed. A second call does nothing. Raises
        `StorageError`.
        """
        self._closed = True
        if (coalescer := self.__dict__.get("_coalescer")) is not None:
            coalescer.close()
        self.index.close()
        self._end_writers()

    @property
    def _joins(self) -> bool:
        """Whether small awaited writes are written together: not where a model makes vectors, which takes long."""
        models = self.searcher.models
        return models.encoder is None and models.term_encoder is None

    def namespace(self, name: str) -> Namespace:
        """A handle on one namespace. It sees no record of any other namespace."""
        return Namespace(self, name)

    def to(
        self,
        device: str,
        *,
        max_device_bytes: int | None = None,
        posting_bytes: int | None = None,
        tile_bits: int | None = None,
        select: str | None = None,
    ) -> Engine:
        """Serve from ``"cpu"`` or ``"cuda"``; returns the engine.

        ``"cuda"`` takes the CUDA kernels, else Triton's. ``"triton"`` and ``"cuda-host"`` (the CUDA kernels on the CPU,
        slowly) name a family of kernels.

        `max_device_bytes` bounds all that the engine takes there, pinned memory included: segments and their tables,
        buffers of launches and of captured graphs with the kernels' scratch, vectors. `DeviceMemoryError` is raised
        before they would take more. What the driver keeps of a graph and of kernels, the scratch of vector products,
        and the indexes of approximate search come on top. The memory that another device had for this engine is
        released.

        The other options change the time and the memory that searches take on the device, never an answer. None leaves
        them to the kernels. They belong to the device, so a directory does not keep them.

        - `posting_bytes`: bytes of a posting in device memory: 8, or 4 with the CUDA kernels, for segments whose
          postings are of at most 4,096 kinds (frequency and length). A search of others raises
          `ParameterError`. The contributions of 4 are computed where they are added. Methods with contributions
          below zero (robertson, okapi), and contributions beyond int32, take 8 in any case.
        - `tile_bits`: ``2**tile_bits`` documents are scored together. 5 to 15 with the CUDA kernels, 5 to 13 with
          Triton's.
        - `select`: how the CUDA kernels find the best: ``bitonic`` sorts in shared memory, ``auto`` has warps keep
          lists in registers up to k = 128

        Raises `BackendUnavailableError` with the reason, and `ParameterError`, also for an option that the family of
        kernels does not have. The engine then serves from where it did.
        """
        if not isinstance(device, str) or device not in ("cpu", *SERVING):
            raise ParameterError(f"unknown device {device!r}{choices(device, ('cpu', *SERVING))}")
        limit = max_device_bytes
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ParameterError(f"max_device_bytes must be 1 or more, not {max_device_bytes!r}")
        options = DeviceOptions(posting_bytes, tile_bits, select)
        try:
            if device in ("cpu", "cuda"):
                among = backends.CPU if device == "cpu" else backends.DEVICES
                chosen = backends.choose(among=among, max_device_bytes=limit, options=options)
            else:
                chosen = backends.choose(device, max_device_bytes=limit, options=options)
        except BackendUnavailableError as error:
            raise BackendUnavailableError(f"cannot serve from {device}: {error}") from None
        self.searcher.backend = chosen
        return self

    def encode(self, queries: AnyBatch) -> Encoded:
        """The batch's terms as `search_tensors` takes them: vocabulary ids [T], offsets [B + 1] and their numbering.

        The ids hold as long as `encode` gives the same numbering: unused terms leave the vocabulary. Terms that no
        record of the query's namespace has are left out. Repeated terms stay, unless ``query_tf`` is ``unique``. Raises
        `QueryError`.
        """
        batch = as_queries(queries, "encode")
        state = self.index.ready().state
        return Encoded(*encode_batch(state, batch), state.numbering)

    def search_tensors(
        self,
        terms: torch.Tensor,
        offsets: torch.Tensor,
        weights: torch.Tensor | None = None,
        *,
        k: int = DEFAULT_K,
        namespace: str = "",
        numbering: int | None = None,
    ) -> TensorHits:
        """Answer a batch given as device tensors with device tensors: scores, documents [B, k] and counts [B].

        `terms` (int32 or int64 [T]) are vocabulary ids from `encode`; -1 matches nothing. Query b has the terms from
        ``offsets[b]`` to ``offsets[b + 1]``. `offsets` (int32 or int64 [B + 1]) go from 0 to T. They are not checked,
        as a check would wait for the device. `weights` (integers [T] from 1 to 2**20; others are taken as the nearest)
        multiply the contributions of each term. k is at most 1,024.

        `numbering` is the one that `encode` gave with the ids. Where it is given and another one is in force,
        the ids may stand for other terms, and the call raises `QueryError`.

        Work goes to the current stream, and the host waits for nothing. The first call of an epoch or of a shape (B, T,
        weights or not, k) uploads and derives. Later calls of the shape can be captured in a CUDA graph. Its replays
        come after the first call, in the order of streams or by a wait. They read the index as it was captured: let
        them end before records are added or deleted, and capture anew then.

        Raises `BackendUnavailableError` where no device serves, `QueryError`, `ParameterError`, `DeviceMemoryError`.
        """
        if self.backend.device is None:
            raise BackendUnavailableError(
                f"search_tensors needs a backend on a device, and {self.backend.name} serves; call engine.to('cuda')"
            )
        state = self.index.ready().state
        if numbering is not None and numbering != state.numbering:
            raise QueryError("the terms have other ids since they were encoded; call engine.encode again")
        return self.backend.device.tensors(state.snapshot(namespace), terms, offsets, weights, k)


def _check_name(analyzer: Analyzer) -> None:
    try:
        known = get_analyzer(analyzer.name)
    except ParameterError:
        raise ParameterError(
            f"a saved index and a directory keep the name of their analyzer, and nothing is known by the name "
            f"{analyzer.name!r}: pass the analyzer to fanrank.text.register_analyzer first"
        ) from None
    if known is not analyzer:
        raise ParameterError(f"the analyzer's name {analyzer.name!r} stands for another one; it cannot be saved")
