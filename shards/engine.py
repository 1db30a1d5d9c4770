"""`ShardedEngine`: the verbs of `Engine` over several shards."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial as bind
from math import inf
from pathlib import Path

from ..engine.errors import ParameterError
from ..engine.namespace import Namespace
from ..engine.offered import SHARDS
from ..engine.records.hits import Hits
from ..engine.records.query import DEFAULT_K, QueryDefaults
from ..engine.search.given import AnyBatch
from ..engine.search.options import SearchOptions
from ..engine.signatures import EngineOptions, SearchKeywords, hinting
from ..engine.storage.sqlite import named
from .coordinator.checks import check_opening
from .opening.importing import import_records
from .opening.opening import Opened, Start, open_memory, start_local
from .replicas.replicas import check_replicas
from .search.searcher import PARTIAL, REFUSE, ShardedSearcher
from .verbs import ShardedVerbs

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

LOCAL, RAY = "local", "ray"

DEADLINE = 30.0
"""Seconds that a shard has for an answer."""


class ShardedEngine(ShardedVerbs, lacking=SHARDS):
    """One memory over several shards. Each shard is an engine with a directory of its own, and an actor of Ray.

    Its answers are those of one `Engine` that holds all records: ids, scores and order, bit for bit. A namespace lies
    whole in one shard; one that outgrows a shard is split by record id, and scored by the statistics of all its parts.
    One process owns the memory. Others reach it through ``fanrank serve``.

    Its verbs raise as those of `Engine`, and `DeadlineError` and `ShardError` where a shard does not answer.
    docs/scaling.md says what else differs.
    """

    def __init__(self, opened: Opened, partial: str = REFUSE, release: Callable[[], None] | None = None) -> None:
        """An engine over what `opened` holds; `release` lets go of the cluster. Programs call `open`."""
        super().__init__()
        self.coordinator = opened.coordinator
        self.template = opened.template
        self.index, self.bm25, self.monitor = opened.template.index, opened.template.bm25, opened.template.monitor
        self.searcher = ShardedSearcher(opened.template, opened.coordinator, partial)
        self._opened = opened
        self._release = release
        self._closed = False

    @classmethod
    @hinting(*EngineOptions.__annotations__)
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        shards: int | None = None,
        replicas: int = 1,
        address: str | None = None,
        transport: str = RAY,
        storage: str | os.PathLike[str] | None = None,
        source: str | os.PathLike[str] | None = None,
        progress: bool = False,
        shared: bool = False,
        split_at: int | None = None,
        whole_at: int | None = None,
        deadline: float = DEADLINE,
        partial: str = REFUSE,
        num_gpus: float = 0,
        num_cpus: float = 0,
        backend: str | None = None,
        **options: Unpack[EngineOptions],
    ) -> ShardedEngine:
        """The memory whose table lies in the directory `path`, which is made if it is not there.

        `shards` is how many it has; it is kept, and may be left out later. Each is an actor of Ray, on the cluster at
        `address` (``"auto"``, ``"ray://host:port"``); None: a Ray of this process alone, on this machine. With
        ``transport="local"`` the shards run in this process, without Ray.

        `replicas` is how many processes answer for each shard. One holds its directory and does its writes; the others
        follow it in memory, are filled in the background, and serve searches, also while the first is away. Answers are
        the same whichever gives them.

        `storage` is the folder of the shards' directories, on the machines where they run; None: `path`. Each shard
        runs on the machine that holds its directory. `shared` says that all machines see the same `storage`; then Ray
        may start a shard on any of them.

        A namespace of which a shard holds more than `split_at` records is split over shards, while it is searched and
        written. Strategies that read a split namespace as one are served from a whole copy in memory of at most
        `whole_at` records.

        `source` is the directory of one engine, and `path` is new: the memory then has its parameters, its records, and
        what it has learned, so its answers are the same. The directory stays as it is, and nobody may write to it
        meanwhile. A call that was cut off is to be made again, and goes on where it was; until then the memory opens
        for nothing else. `progress` shows a bar on a terminal.

        A shard has `deadline` seconds for an answer. Where one does not answer, a search raises `DeadlineError` or
        `ShardError`; with ``partial="allow"`` it gives the hits of the others, and `Hits.missing_shards`. `num_gpus`
        and `num_cpus` are what each actor takes of its machine's GPUs and cores.

        `backend` and `options` are those of `Engine.open`. The owner's process holds the encoders, and shards open
        none.

        Raises as `Engine.open`, `ShardError`, `ShardVersionError`, `MissingExtraError` without Ray.
        """
        if partial not in PARTIAL:
            raise ParameterError(f"partial must be one of {', '.join(map(repr, PARTIAL))}, not {partial!r}")
        if isinstance(deadline, bool) or not isinstance(deadline, (int, float)) or not 0 < deadline < inf:
            raise ParameterError(f"deadline must be seconds above 0, not {deadline!r}")
        if transport not in (LOCAL, RAY):
            raise ParameterError(f"transport must be {RAY!r} or {LOCAL!r}, not {transport!r}")
        check_replicas(replicas)
        check_opening(storage, address, num_gpus=num_gpus, num_cpus=num_cpus, actors=transport == RAY)
        start: Start = start_local
        release = None
        if transport == RAY:
            from .processes.cluster import Cluster  # Ray takes half a second to import, and is an extra

            cluster = Cluster.connect(address, num_cpus=num_cpus)
            start = bind(cluster.start, backend=backend, num_gpus=num_gpus, num_cpus=num_cpus, shared=shared)
            release = cluster.close
        try:
            opened = open_memory(
                Path(path).expanduser(),
                shards,
                start,
                options,
                # The owner scores nothing. Where shards are actors, the backend is that of their machines.
                backend=backend if transport == LOCAL else None,
                storage=None if storage is None else Path(storage),
                settings={"split_at": split_at, "whole_at": whole_at},
                deadline=float(deadline),
                source=None if source is None else Path(source),
                replicas=replicas,
            )
        except BaseException:
            if release is not None:
                release()
            with named(Path(path)):  # also where the system refuses the directory or its lock
                raise
        engine = cls(opened, partial, release)
        if opened.source is not None:
            try:
                import_records(engine.searcher, opened.source, progress=progress)
            except BaseException:
                engine.close()
                raise
            finally:
                opened.source.close()
        return engine

    def __repr__(self) -> str:
        view = self.coordinator.view
        return f"{type(self).__name__}({view.placement.shards} shards, epoch {view.epoch})"

    def namespace(self, name: str) -> Namespace:
        """As `Engine.namespace`."""
        return Namespace(self, name)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that hold live records, sorted."""
        return tuple(sorted(self.sizes()))

    def close(self) -> None:
        """Close all shards and release the directory. A second call does nothing. Raises `StorageError`."""
        if self._closed:
            return
        self._closed = True
        if (coalescer := self.__dict__.get("_coalescer")) is not None:
            coalescer.close()
        self._end_writers()
        self.coordinator.close()
        with ExitStack() as closing:
            # From the last to the first: what one of them raises does not keep the others open.
            if self._release is not None:
                closing.callback(self._release)
            closing.callback(self._opened.release)
            for link in self.coordinator.links:
                closing.callback(link.close)
            closing.callback(self.coordinator.clear_wholes)

    def search(
        self,
        queries: AnyBatch,
        k: int = DEFAULT_K,
        *,
        partial: str | None = None,
        **keywords: Unpack[SearchKeywords],
    ) -> Hits:
        """As `Engine.search`, over all shards at one epoch. `partial` is as in `open` (None: as it was opened).

        `Hits.documents` are numbers of the shard that answered, or of the writes where several did. They tell the hits
        of a row apart, and stand for no place in an index. Ids say which records the hits are.

        Raises as `Engine.search`, `DeadlineError` and `ShardError`.
        """
        searcher = self.searcher if partial is None else self.searcher.allowing(partial)
        return searcher.search(queries, k, keywords)

    def _search_stream(
        self, batches: Iterable[AnyBatch], k: int, options: SearchOptions, ahead: int, defaults: QueryDefaults
    ) -> Iterator[Hits]:
        """All batches that were read are on their way to the shards at once."""
        self.coordinator.check_open()
        return self.searcher.stream(batches, k, options, ahead=ahead, defaults=defaults)
