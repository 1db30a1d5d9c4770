"""`ShardedSettings`: what a `ShardedEngine` says of itself, its columns, and the verbs that need a single engine."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any, NoReturn

from ..engine.backends.choose import Backend
from ..engine.engine import Engine
from ..engine.errors import ShardError
from .coordinator.columns import change_columns
from .opening.opening import Opened
from .processes.links import call_all
from .reading import ShardedReading
from .shard.records import of_engine

NUMBERED = "each shard numbers its own terms; use search, or an Engine for tensors"


def refuse(verb: str, why: str) -> Any:
    """A verb of `Engine`, with its parameters, which raises `ShardError`."""
    kept = inspect.getattr_static(Engine, verb)
    plain: Any = kept.fget if isinstance(kept, property) else getattr(kept, "__func__", kept)

    @wraps(plain)
    def refused(*_: object, **__: object) -> NoReturn:
        raise ShardError(why)

    refused.__doc__ = f"Raises `ShardError`: {why}."
    return refused if kept is plain else type(kept)(refused)


class ShardedSettings(ShardedReading):
    """A part of `ShardedEngine`, which says what it is."""

    _opened: Opened

    @property
    def backend(self) -> Backend:
        """What this process computes with. `Hits.backend` says what served in the shards."""
        return self.template.backend

    @property
    def keeps_texts(self) -> bool:
        """Always true: shards keep the records."""
        return True

    @property
    def opened(self) -> str | None:
        """As `Engine.opened`: ``loaded`` where all shards loaded their indexes, else why the first was built."""
        for number, how in enumerate(self._opened.opened):
            if how not in ("loaded", None):
                return f"{how} (shard {number})"
        return self._opened.opened[0]

    @property
    def opening(self) -> bool:
        """Always false: `open` returns once all shards are there."""
        return False

    @property
    def opening_error(self) -> BaseException | None:
        """Always None: what goes wrong, `open` raises."""
        return None

    def add_column(self, name: str, kind: str) -> None:
        """As `Engine.add_column`, in all shards or in none."""
        change_columns(self.coordinator, self.template, (), {name: kind})

    def drop_column(self, name: str) -> None:
        """As `Engine.drop_column`, in all shards. After a crash in between, `open` brings the column back."""
        change_columns(self.coordinator, self.template, (name,), {})

    def refresh(self) -> None:
        """Does nothing: the process that owns a sharded memory sees all its writes."""

    def vacuum(self) -> int:
        """As `Engine.vacuum`, in all shards at a time. Writes to all of them wait."""
        with self.coordinator.paused():
            return sum(call_all(self.coordinator.links, None, "call", of_engine, "vacuum").values())

    def sweep(self) -> int:
        """As `Engine.sweep`, in all shards."""
        with self.coordinator.paused():
            return sum(call_all(self.coordinator.links, None, "call", of_engine, "sweep").values())

    from_records = refuse(
        "from_records",
        "a sharded memory lives in a directory: ShardedEngine.open(path, shards=...), then add the records",
    )
    load = refuse("load", "a saved index is of one engine, and has no records; use ShardedEngine.open(path)")
    save = refuse("save", "each shard keeps an index of its own, beside its records; backup(path) copies all of them")
    copy_to = refuse(
        "copy_to",
        "copy_to makes one engine's directory; export the records to a file, open another memory with the new "
        "parameters (ShardedEngine.open or Engine.open), and import_records from the file",
    )
    to = refuse(
        "to",
        "a shard that is started anew serves from where it was opened: say num_gpus=1, or backend, to "
        "ShardedEngine.open",
    )
    encode = refuse("encode", NUMBERED)
    numbering = refuse("numbering", NUMBERED)
    search_tensors = refuse("search_tensors", NUMBERED)
