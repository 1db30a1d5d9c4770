"""The records of one engine's directory go into a new sharded memory, whose answers are the same.

They are read as they lie on the disk, without the index, and written a batch at a time in the order of their last
writes. What the engine has learned of its namespaces goes with them. Until all is there, the owner's file says
from where the records come, and the memory opens for that alone. So one that was cut off never answers in part: the
same call goes on behind the last batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...engine.carry.progress import counted
from ...engine.encoders.pins import PINNED, Models
from ...engine.errors import ForeignIndexError, ParameterError, ShardError, StorageError
from ...engine.index.columns import ORDER
from ...engine.index.profiles import LITERATURE
from ...engine.records.record import Record
from ...engine.signatures import EngineOptions
from ...engine.storage.failpoints import reach
from ...engine.storage.index_files import is_sharded
from ...engine.storage.lock import LOCK, let_go, take_lock
from ...engine.storage.record_store import RecordStore
from ...engine.storage.record_stream import count_stored, stream_stored
from ...engine.storage.writes import chunks_of, group_by_namespace
from ..moves.moves import MovingCoordinator
from ..search.launches import Launch
from ..search.searcher import ShardedSearcher
from ..shard.records import find_records
from ..shard.shard import pinned_options

IMPORTING = "importing"
"""The setting beside the placement that says from where the records come, until all are there."""


KEPT = ("encoder", "term_encoder", "log_texts")
"""Options that do not change what is stored."""


def options_of(config: Mapping[str, Any]) -> EngineOptions:
    """The options of an engine that a configuration keeps."""
    known = {name: value for name, value in config.items() if name not in ("store", *PINNED)}
    kept: EngineOptions = {"profile": LITERATURE, **known}  # type: ignore[typeddict-item]
    return kept


class Source:
    """The directory of one engine, which is read. No other process may write to it meanwhile.

    Raises `ForeignIndexError`, `StoreLockedError`, `StorageError`, `DamagedStoreError`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if is_sharded(self.path):
            raise ForeignIndexError(f"{self.path}: is a sharded memory already; add shards to it with add_shards")
        self.store = RecordStore.open(self.path, read_only=True)
        try:
            # What is written from now on would be left out.
            self._lock = take_lock(self.path / LOCK)
        except BaseException as error:
            self.store.close()
            if isinstance(error, OSError) and not isinstance(error, StorageError):
                raise StorageError(f"{self.path / LOCK}: cannot be locked: {error.strerror}") from error
            raise
        config = self.store.config
        if config is None:
            self.close()
            raise ForeignIndexError(f"{self.path}: holds nothing yet; open it for writing once")
        self.config = config
        if ORDER in config.get("columns", {}):
            self.close()
            raise ForeignIndexError(f"{self.path}: is a shard of a sharded memory; open that memory")

    def close(self) -> None:
        """Let go of the directory."""
        self.store.close()
        let_go(self._lock)

    @property
    def moment(self) -> dict[str, Any]:
        """Which records these are: the engine, and its last write."""
        return {"path": str(self.path), "store": self.config["store"], "sequence": self.store.sequence}

    def options(self, given: EngineOptions) -> EngineOptions:
        """The options of the sharded memory: those of the engine, with the encoders of `given`.

        Raises `ParameterError` where others are given, and `ModelMismatchError`.
        """
        other = next((name for name in given if name not in KEPT), None)
        if other is not None:
            raise ParameterError(
                f"{other!r} is as in {self.path}, whose answers stay the same; leave it out, or copy it first with "
                "Engine.copy_to"
            )
        models = Models(given.get("encoder"), given.get("term_encoder"))
        models.adopt(self.config, str(self.path))
        options: EngineOptions = {**options_of(self.config), **given, **pinned_options(models.pin, models.term_pin)}
        if models.encoder is not None:
            options["encoder"] = models.encoder
        if models.term_encoder is not None:
            options["term_encoder"] = models.term_encoder
        return options

    def sizes(self) -> dict[str, int]:
        """The records of each namespace."""
        return {name: self.store.count(name) for name in self.store.namespaces()}

    def records(self, progress: bool) -> Iterator[Record]:
        """All records in the order of their last writes; with `progress` a bar counts them."""
        return counted(stream_stored(self.store), "importing", count_stored(self.store), progress)


def check_importing(folder: Path, settings: Mapping[str, Any], source: Source | None) -> None:
    """Raise where a memory with these settings is not to be opened for this import, or for none.

    Raises `ShardError` where records are missing yet, `ParameterError` where it holds others already.
    """
    begun = settings.get(IMPORTING)
    if begun is None:
        if source is not None:
            raise ParameterError(f"{folder}: is a sharded memory already; records of an engine go into a new one")
        return
    if source is None:
        raise ShardError(
            f"{folder}: the records of {begun['path']} are not all there yet; import them again, and it goes on where "
            f"it was: fanrank shards {folder} --import {begun['path']}"
        )
    moment = source.moment
    if (begun["store"], begun["sequence"]) != (moment["store"], moment["sequence"]):
        raise ShardError(
            f"{folder}: holds a part of {begun['path']} as it was before its last writes; delete {folder} and its "
            "shards' directories, and import it anew"
        )


def import_records(searcher: ShardedSearcher, source: Source, *, progress: bool = False) -> None:
    """Bring the records of an engine's directory into the memory that was opened for it.

    Those that are there already are passed over.
    """
    coordinator = searcher.coordinator
    assert isinstance(coordinator, MovingCoordinator)
    begun = bool(searcher.retry(Launch.sizes))
    coordinator.make_room(source.sizes())
    schema = searcher.template.index.memory.schema
    for chunk in chunks_of(source.records(progress)):
        if not begun or _is_missing(searcher, chunk):
            coordinator.write(schema, added=chunk)
        reach("source.batch")
    _learn(coordinator, source.store.learned())
    reach("source.copied")
    coordinator.forget_setting(IMPORTING)


def _is_missing(searcher: ShardedSearcher, batch: Sequence[Record]) -> bool:
    """Whether the memory does not hold a batch. It is there whole or not at all, but for what has expired since."""
    ids = {name: [record.id for record in records] for name, records in group_by_namespace(batch).items()}
    return not searcher.retry(lambda launch: launch.read_records(find_records, ids))


def _learn(coordinator: MovingCoordinator, learned: Mapping[str, Mapping[str, Any]]) -> None:
    """Let the shards go on from what the engine has learned of their namespaces."""
    for home, names in coordinator.placement.by_home(learned).items():
        own = {name: learned[name] for name in names}
        coordinator.links[home].send("learn", own).result(coordinator.until())
