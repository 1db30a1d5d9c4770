"""The engine: records in, a batch of queries in one call, hits out."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from . import backend as backends
from . import files
from .bm25 import BM25, SCALE
from .columns import compile_filter, stable_hash
from .errors import BackendUnavailableError, DuplicateIdError, ParameterError, QueryError, RecordError, UnknownIdError
from .explain import Explanation, explain
from .index import Snapshot
from .plan import Plan, make_plan
from .records import CATEGORIES, DEFAULT_K, Hits, Query, Record, check_k
from .segment import Segment, build_segment
from .text import DEFAULT_ANALYZER, Analyzer, get_analyzer
from .timing import Phases
from .vocabulary import Encoder, Vocabulary

if TYPE_CHECKING:
    import torch

    from ..kernels.tensors import TensorHits

# Records analysed at a time while an index is built (A126): bounds what is held beside the index.
BUILD_CHUNK = 50_000
# Places for hits in one batch: 2 GiB for each array of the answer.
MAX_HITS = 1 << 28

AnyQuery = str | Query | Sequence[str]


class Engine:
    """A batch retrieval engine over records that grow.

    ``analyzer`` names a text analyzer (`fanrank.ANALYZERS`); ``method``, ``k1``, ``b``, ``delta``, ``query_tf`` and
    ``fields`` are the BM25 parameters (see `fanrank.BM25`); ``backend`` forces a backend by name. One thread may add
    while others search: a search sees the records of whole `add` calls only.
    """

    def __init__(
        self,
        *,
        analyzer: str | Analyzer = DEFAULT_ANALYZER,
        method: str = "lucene",
        k1: float = 1.2,
        b: float = 0.75,
        delta: float | None = None,
        query_tf: str = "count",
        fields: Mapping[str, float] | None = None,
        backend: str | None = None,
    ) -> None:
        self.bm25 = BM25(method, k1, b, delta, query_tf, {"text": 1.0} if fields is None else fields)
        self.analyzer = get_analyzer(analyzer)
        self.backend = backends.choose(backend)
        self._encoder = Encoder(self.analyzer, Vocabulary())
        self._categories = {name: Vocabulary() for name in CATEGORIES}
        self._snapshots: dict[str, Snapshot] = {}
        self._writing = threading.Lock()

    @classmethod
    def from_records(
        cls, records: Iterable[Record | Mapping[str, Any]], *, progress: bool = False, **options: Any
    ) -> Engine:
        """An engine over these records. `options` are the constructor's. Raises as the constructor and `add`."""
        engine = cls(**options)
        engine.add(records, progress=progress)
        return engine

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = True, backend: str | None = None) -> Engine:
        """The engine saved at `path`; its arrays are memory-mapped.

        `verify` compares every file with its checksum. Raises `ForeignIndexError`, `NewerFormatError`,
        `DamagedIndexError` or `StorageError`.
        """
        saved = files.load(path, verify=verify)
        engine = cls(
            analyzer=saved.analyzer,
            backend=backend,
            **saved.parameters,
        )
        engine._encoder = Encoder(engine.analyzer, Vocabulary(saved.terms))
        engine._categories = {name: Vocabulary(saved.categories.get(name, ())) for name in CATEGORIES}
        engine._snapshots = {name: Snapshot(segments, engine.bm25) for name, segments in saved.namespaces.items()}
        return engine

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to the directory `path` (made if need be; an index there is replaced in one step).

        Raises `ForeignIndexError` if the directory holds something else, `StorageError` if it cannot be written,
        `ParameterError` for an analyzer that `load` could not find by its name.
        """
        if get_analyzer(self.analyzer.name) is not self.analyzer:
            raise ParameterError(
                f"the analyzer's name {self.analyzer.name!r} stands for another one; it cannot be saved"
            )
        with self._writing:
            files.save(
                path,
                files.SavedIndex(
                    analyzer=self.analyzer.name,
                    parameters=self.bm25.to_dict(),
                    terms=self._encoder.vocabulary.strings,
                    categories={name: values.strings for name, values in self._categories.items()},
                    namespaces={name: snapshot.segments for name, snapshot in self._snapshots.items()},
                ),
            )

    def __len__(self) -> int:
        """The number of records, over all namespaces."""
        return sum(snapshot.size for snapshot in self._snapshots.values())

    @property
    def namespaces(self) -> tuple[str, ...]:
        return tuple(self._snapshots)

    def to(self, device: str, *, max_device_bytes: int | None = None) -> Engine:
        """Serve from ``"cpu"`` or ``"cuda"``; returns the engine. Raises `BackendUnavailableError` with the reason.

        `max_device_bytes` bounds the segments and the buffers of a launch together (`DeviceMemoryError` before they
        would take more); small tables and the pools of captured graphs come on top. What another device held for this
        engine is let go.
        """
        if device not in ("cpu", "cuda"):
            raise ParameterError(f"unknown device {device!r}; there are: cpu, cuda")
        limit = max_device_bytes
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ParameterError(f"max_device_bytes must be 1 or more, not {max_device_bytes!r}")
        among = backends.CPU if device == "cpu" else backends.DEVICES
        try:
            self.backend = backends.choose(among=among, max_device_bytes=max_device_bytes)
        except BackendUnavailableError as error:
            raise BackendUnavailableError(f"cannot serve from {device}: {error}") from None
        return self

    def stats(self) -> dict[str, Any]:
        """Sizes of the index: namespaces, documents, segments, vocabulary, postings, bytes (all int but the ratio).

        `device_bytes` is what the backend holds on its device.
        """
        segments = [segment for snapshot in self._snapshots.values() for segment in snapshot.segments]
        postings = sum(segment.postings for segment in segments)
        size = sum(segment.index_bytes for segment in segments)
        return {
            "namespaces": len(self._snapshots),
            "documents": len(self),
            "segments": len(segments),
            "vocabulary": len(self._encoder.vocabulary),
            "postings": postings,
            "index_bytes": size,
            "bytes_per_posting": size / postings if postings else 0.0,
            "backend": self.backend.name,
            "device_bytes": self.backend.device.residency.bytes if self.backend.device else 0,
        }

    def add(self, records: Iterable[Record | Mapping[str, Any]], *, progress: bool = False) -> int:
        """Add records (or mappings, read by `Record.from_dict`); returns how many.

        All or nothing: on any error the engine is as before. Raises `RecordError` for a bad record, `DuplicateIdError`
        for an id that its namespace already holds. `progress` shows a bar if standard error is a terminal.
        """
        if isinstance(records, (Record, Mapping, str)) or not isinstance(records, Iterable):
            raise RecordError("add takes a batch: pass a list of records")
        shown = tqdm(records, "indexing", unit=" records", disable=not (progress and sys.stderr.isatty()))
        with self._writing:
            terms = len(self._encoder.vocabulary)
            values = {name: len(column) for name, column in self._categories.items()}
            new: dict[str, list[Segment]] = {}
            count = 0
            try:
                source = _checked(shown)
                while chunk := list(islice(source, BUILD_CHUNK)):
                    for namespace, group in _by_namespace(chunk).items():
                        built = new.setdefault(namespace, [])
                        built.append(self._build(namespace, group, built))
                    count += len(chunk)
                snapshots = dict(self._snapshots)
                for namespace, segments in new.items():
                    snapshots[namespace] = self._snapshot(namespace).extended(segments, compact=count > BUILD_CHUNK)
            except BaseException:
                self._encoder.forget(terms)
                for name, column in self._categories.items():
                    column.truncate(values[name])
                raise
            self._snapshots = snapshots
        return count

    def _snapshot(self, namespace: str) -> Snapshot:
        return self._snapshots.get(namespace) or Snapshot((), self.bm25)

    def _build(self, namespace: str, records: Sequence[Record], built: Sequence[Segment]) -> Segment:
        before = (*self._snapshot(namespace).segments, *built)
        ids = [record.id for record in records]
        taken: str | None = None
        if len(set(ids)) < len(ids):
            seen: set[str] = set()
            taken = next(i for i in ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
        elif before:
            hashes = np.array([stable_hash(i) for i in ids], dtype=np.uint64)
            taken = next((i for segment in before if (i := segment.ids.find_any(ids, hashes)) is not None), None)
        if taken is not None:
            place = f"namespace {namespace!r}" if namespace else None
            raise DuplicateIdError("the id is already taken; ids must be unique", where=place, record_id=taken)
        first = before[-1].first + before[-1].size if before else 0
        return build_segment(records, first, self._encoder, list(self.bm25.fields), self._categories)

    def search(
        self,
        queries: Sequence[AnyQuery],
        k: int = DEFAULT_K,
        *,
        threads: int = 1,
        strategy: str = "auto",
        timing: bool = False,
    ) -> Hits:
        """Answer a batch of B queries in one call.

        A query is a string, a `Query`, or a sequence of pre-analysed terms. `k` is the number of hits for queries that
        do not say their own. `threads` and `strategy` (``auto``, ``exhaustive``, ``pruned``) change how fast the
        answer comes, never the answer. `timing` fills `Hits.timing` with the milliseconds of each phase. Raises
        `QueryError`, `ParameterError`, `DeviceMemoryError`.
        """
        if isinstance(queries, (str, Query, Mapping)) or not isinstance(queries, Iterable):
            raise QueryError("search takes a batch: pass a list of queries")
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise ParameterError(f"threads must be 1 or more, not {threads!r}")
        if strategy not in backends.STRATEGIES:
            raise ParameterError(f"unknown strategy {strategy!r}; there are: {', '.join(backends.STRATEGIES)}")
        k = check_k(k)
        batch = tuple(_as_query(query, position) for position, query in enumerate(queries))
        wanted = [k if query.k is None else query.k for query in batch]
        width = max(wanted, default=k)
        if max(len(batch), 1) * width > MAX_HITS:
            raise QueryError(f"{len(batch)} queries with k = {width} are more than {MAX_HITS:,} places; ask for fewer")
        # The snapshots come before the analysis: a term numbered meanwhile is then in no posting list of theirs.
        snapshots = self._snapshots
        filters = [compile_filter(query, self._categories) for query in batch]
        # Agents repeat themselves: equal queries are answered once.
        seen: dict[object, int] = {}
        source = [
            seen.setdefault(
                (q.namespace, q.text, None if q.terms is None else tuple(q.terms), wanted[row], filters[row]), row
            )
            for row, q in enumerate(batch)
        ]
        rows_of: dict[str, list[int]] = {}
        for row in seen.values():
            if batch[row].namespace in snapshots:
                rows_of.setdefault(batch[row].namespace, []).append(row)
        phases = Phases()
        with phases("analyse"):
            encoded = {namespace: [self._encode(batch[row]) for row in rows] for namespace, rows in rows_of.items()}
        with phases("plan"):
            plans = {
                namespace: make_plan(
                    snapshots[namespace],
                    rows,
                    encoded[namespace],
                    [wanted[row] for row in rows],
                    [filters[row] for row in rows],
                )
                for namespace, rows in rows_of.items()
            }
        served, (quanta, documents, counts) = self.backend.serve(
            tuple(plans.values()),
            len(batch),
            width,
            threads=threads,
            strategy=strategy,
            phases=phases if timing else None,
        )
        if len(seen) < len(batch):
            quanta, documents, counts = quanta[source], documents[source], counts[source]
        scores = quanta / SCALE
        scores[documents < 0] = -np.inf
        spaces = np.array([query.namespace for query in batch], dtype=object)

        def resolve(documents: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
            ids = np.full(documents.shape, None, dtype=object)
            for namespace in plans:
                present = (documents >= 0) & (spaces == namespace)[:, None]
                ids[present] = snapshots[namespace].ids_of(documents[present])
            return ids

        def explain_hit(position: int, record_id: str) -> Explanation:
            if not -len(batch) <= position < len(batch):
                raise QueryError(f"no query {position} in a batch of {len(batch)}")
            position %= len(batch)
            namespace = batch[position].namespace
            if namespace not in plans:
                raise UnknownIdError(f"no record with id {record_id!r} in namespace {namespace!r}")
            row = rows_of[namespace].index(source[position])
            return self._explain(snapshots[namespace], plans[namespace], row, position, record_id)

        found = phases.milliseconds if timing else None
        return Hits(scores, documents, counts, batch, served, resolve, explain_hit, found)

    def encode(self, queries: Sequence[AnyQuery]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The batch's terms as `search_tensors` takes them: vocabulary ids [T] and offsets [B + 1].

        Terms that no record has are left out; repeats count, unless ``query_tf`` is ``unique``. Raises `QueryError`.
        """
        if isinstance(queries, (str, Query, Mapping)):
            raise QueryError("encode takes a batch: pass a list of queries")
        encoded = [self._encode(_as_query(query, position)) for position, query in enumerate(queries)]
        if self.bm25.query_tf == "unique":
            encoded = [list(dict.fromkeys(terms)) for terms in encoded]
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum([len(terms) for terms in encoded], out=offsets[1:])
        return np.array([term for terms in encoded for term in terms], dtype=np.int64), offsets

    def search_tensors(
        self,
        terms: torch.Tensor,
        offsets: torch.Tensor,
        weights: torch.Tensor | None = None,
        *,
        k: int = DEFAULT_K,
        namespace: str = "",
    ) -> TensorHits:
        """Answer a batch given as device tensors with device tensors: scores, documents [B, k] and counts [B].

        `terms` (int32 or int64 [T]) are vocabulary ids (`encode`; -1 matches nothing), ``offsets[b]`` to
        ``offsets[b + 1]`` those of query b (int32 or int64 [B + 1], from 0 to T: not checked, as that would wait for
        the device), `weights` [T] integers from 1 to 2**20 (others are taken as the nearest) that multiply each term's
        contributions. k is at most 1,024. Work goes to the current stream and nothing is synchronised, except by the
        first call of an epoch or of a shape (B, T, weights or not, k), which uploads and derives. Later calls of the
        shape can be captured in a CUDA graph; capture again once records were added. Raises
        `BackendUnavailableError` where no device serves, `QueryError`, `ParameterError`, `DeviceMemoryError`.
        """
        if self.backend.device is None:
            raise BackendUnavailableError(
                f"search_tensors needs a backend on a device, and {self.backend.name} serves; call engine.to('cuda')"
            )
        return self.backend.device.tensors(self._snapshot(namespace), terms, offsets, weights, k)

    def _encode(self, query: Query) -> list[int]:
        if query.terms is not None:
            return self._encoder.encode_terms(query.terms)
        return self._encoder.encode_query(query.text)

    def explain(self, query: AnyQuery, document: str) -> Explanation:
        """How the record with id `document` scores for the query, term by term. Raises `UnknownIdError`."""
        return self.search([query]).explain(0, document)

    def _explain(self, snapshot: Snapshot, plan: Plan, row: int, query: int, record_id: str) -> Explanation:
        found = snapshot.find(record_id)
        if found is None:
            raise UnknownIdError(f"no record with id {record_id!r} in the query's namespace")
        segment, position = found
        terms = [self._encoder.vocabulary.strings[term] for term in plan.terms.tolist()]
        number = snapshot.segments.index(segment)
        return explain(plan, row, query, record_id, number, position, terms, list(self.bm25.fields))


def _checked(records: Iterable[Record | Mapping[str, Any]]) -> Iterator[Record]:
    for number, record in enumerate(records, 1):
        if isinstance(record, Record):
            yield record
            continue
        try:
            yield Record.from_dict(record)
        except RecordError as error:
            raise error.at(f"record {number}") from None


def _by_namespace(records: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.namespace, []).append(record)
    return groups


def _as_query(query: AnyQuery, position: int) -> Query:
    if isinstance(query, Query):
        return query
    if isinstance(query, str):
        return Query(query)
    if isinstance(query, Sequence) and not isinstance(query, (bytes, bytearray)):
        return Query(terms=tuple(query))
    raise QueryError(f"query {position} must be a string, a Query or a sequence of terms, not {type(query).__name__}")
