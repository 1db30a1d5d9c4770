"""`ShardedSettings`: what a `ShardedEngine` says of itself, its columns, and the verbs that need a single engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..engine.backends.choose import Backend
from ..engine.encoders.embed import Given
from ..engine.encoders.encoder import Encoder
from ..engine.encoders.sparse import TermEncoder
from ..engine.errors import ShardError
from ..engine.records.query import DEFAULT_K
from ..engine.search.batch import AnyQuery
from ..engine.signatures import EngineOptions
from ..engine.writing import AnyRecord
from .coordinator.columns import change_columns
from .opening.opening import Opened
from .processes.links import call_all
from .reading import ShardedReading
from .shard.shard import Shard

if TYPE_CHECKING:
    import torch

    from ..engine.backends.choose import TensorHits

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack


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

    @classmethod
    def from_records(
        cls,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        progress: bool = False,
        threads: int | None = None,
        backend: str | None = None,
        **options: Unpack[EngineOptions],
    ) -> NoReturn:
        """Raises `ShardError`: a sharded memory lives in a directory."""
        raise ShardError(
            "a sharded memory lives in a directory: ShardedEngine.open(path, shards=...), then add the records"
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        verify: bool = True,
        encoder: str | os.PathLike[str] | Encoder | None = None,
        term_encoder: TermEncoder | None = None,
        backend: str | None = None,
    ) -> NoReturn:
        """Raises `ShardError`: a saved index has no records, which shards keep."""
        raise ShardError("a saved index is of one engine, and has no records; use ShardedEngine.open(path)")

    def save(self, path: str | os.PathLike[str]) -> NoReturn:
        """Raises `ShardError`: each shard keeps an index of its own."""
        raise ShardError("each shard keeps an index of its own, beside its records; backup(path) copies all of them")

    def copy_to(
        self, path: str | os.PathLike[str], *, progress: bool = False, **options: Unpack[EngineOptions]
    ) -> NoReturn:
        """Raises `ShardError`: an export and an import do the same, to shards on any machines."""
        raise ShardError(
            "copy_to makes one engine's directory; export the records to a file, open another memory with the new "
            "parameters (ShardedEngine.open or Engine.open), and import_records from the file"
        )

    def to(
        self,
        device: str,
        *,
        max_device_bytes: int | None = None,
        posting_bytes: int | None = None,
        tile_bits: int | None = None,
        select: str | None = None,
    ) -> NoReturn:
        """Raises `ShardError`: where a shard serves from is said when the memory is opened."""
        raise ShardError(
            "a shard that is started anew serves from where it was opened: say num_gpus=1, or backend, to "
            "ShardedEngine.open"
        )

    def encode(self, queries: Sequence[AnyQuery]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Raises `ShardError`: each shard numbers its own terms."""
        raise ShardError("each shard numbers its own terms; use search, or an Engine for tensors")

    @property
    def numbering(self) -> int:
        """Raises `ShardError`: each shard numbers its own terms."""
        raise ShardError("each shard numbers its own terms; use search, or an Engine for tensors")

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
        """Raises `ShardError`: each shard numbers its own terms."""
        raise ShardError("each shard numbers its own terms; use search, or an Engine for tensors")


def vacuum_shard(shard: Shard) -> int:
    """Give back what deleted records take; returns how many bytes."""
    return shard.engine.vacuum()


def sweep_shard(shard: Shard) -> int:
    """Delete what has expired; returns how many records."""
    return shard.engine.sweep()
