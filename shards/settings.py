"""`ShardedSettings`: what a `ShardedEngine` says of itself, its columns, and the verbs that need a single engine."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any, NoReturn

from ..engine.backends.choose import Backend
from ..engine.encoders.encoder import Encoder
from ..engine.encoders.sparse import TermEncoder
from ..engine.engine import Engine
from ..engine.errors import ShardError
from .coordinator.columns import change_columns
from .opening.opening import Opened
from .processes.links import call_all
from .reading import ShardedReading
from .shard.shard import Shard

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
    def encoder(self) -> Encoder | None:
        """As `Engine.encoder`."""
        return self.template.encoder

    @property
    def pin(self) -> dict[str, Any] | None:
        """As `Engine.pin`."""
        return self.template.pin

    @property
    def term_encoder(self) -> TermEncoder | None:
        """As `Engine.term_encoder`."""
        return self.template.term_encoder

    @property
    def term_pin(self) -> dict[str, Any] | None:
        """As `Engine.term_pin`."""
        return self.template.term_pin

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

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def columns(self) -> dict[str, str]:
        """As `Engine.columns`."""
        return self.template.columns

    def add_column(self, name: str, kind: str) -> None:
        """As `Engine.add_column`, in all shards or in none."""
        self._check_open()
        change_columns(self.coordinator, self.template, (), {name: kind})

    def drop_column(self, name: str) -> None:
        """As `Engine.drop_column`, in all shards. After a crash in between, `open` brings the column back."""
        self._check_open()
        change_columns(self.coordinator, self.template, (name,), {})

    def keep_columns(self) -> None:
        """As `Engine.keep_columns`."""
        self.template.keep_columns()

    def refresh(self) -> None:
        """Does nothing: the process that owns a sharded memory sees all its writes."""

    def vacuum(self) -> int:
        """As `Engine.vacuum`, in all shards at a time. Writes to all of them wait."""
        self._check_open()
        with self.coordinator.paused():
            return sum(call_all(self.coordinator.links, None, "call", vacuum_shard).values())

    def sweep(self) -> int:
        """As `Engine.sweep`, in all shards."""
        self._check_open()
        with self.coordinator.paused():
            return sum(call_all(self.coordinator.links, None, "call", sweep_shard).values())

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


def vacuum_shard(shard: Shard) -> int:
    """Give back what deleted records take; returns how many bytes."""
    return shard.engine.vacuum()


def sweep_shard(shard: Shard) -> int:
    """Delete what has expired; returns how many records."""
    return shard.engine.sweep()
