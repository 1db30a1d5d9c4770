"""Opens a directory as what it holds: the records of one engine, or the table of a sharded memory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.engine import Engine
from ..engine.errors import ParameterError
from ..engine.memory import Memory
from ..engine.storage import index_files
from ..engine.storage.row_codec import RECORDS

if TYPE_CHECKING:
    from .engine import ShardedEngine

LOCAL, RAY = "local", "ray"
HOST_AND_PORT = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:]+\]):\d{1,5}/?")
"""What may be meant as an address, and would else become the name of a directory."""


@dataclass(frozen=True)
class ShardSettings:
    """How a sharded memory is opened. One that is not there is made where `shards` says how many it is to have."""

    shards: int | None = None
    address: str | None = None
    storage: str | None = None
    transport: str | None = None
    """As in `ShardedEngine.open`; None: Ray where an address is given, and else this process."""
    replicas: int | None = None

    def keywords(self) -> dict[str, Any]:
        """The keywords of `ShardedEngine.open`."""
        transport = self.transport or (LOCAL if self.address is None else RAY)
        return {**vars(self), "transport": transport, "replicas": self.replicas or 1}


def is_address(target: object) -> bool:
    """Whether this names a server. A scheme that is none of a server's is no name of a directory either."""
    return isinstance(target, str) and "://" in target


def refuse_address(path: str | os.PathLike[str]) -> None:
    """Raise `ParameterError` for the address of a server, which would else become the name of a directory."""
    if is_address(path):
        raise ParameterError(f"{path}: is an address, and this takes a directory")
    if isinstance(path, str) and HOST_AND_PORT.fullmatch(path) and not os.path.exists(path):
        raise ParameterError(
            f"{path}: there is no such directory; the address of a server is http://{path}, and a new directory of "
            f"this name ./{path}"
        )


def is_sharded(path: str | os.PathLike[str]) -> bool:
    """Whether the directory is a sharded memory."""
    return index_files.is_sharded(Path(path))


def is_sharded_memory(engine: object) -> bool:
    """Whether this is a sharded memory, which is told without loading its module."""
    return hasattr(engine, "coordinator")


def memory_class(path: str | os.PathLike[str]) -> type[Memory]:
    """The class whose verbs check and restore such a directory."""
    if not is_sharded(path):
        return Engine
    from .engine import ShardedEngine  # as below

    return ShardedEngine


def open_directory(
    path: str | os.PathLike[str],
    settings: ShardSettings | None = None,
    *,
    read_only: bool = False,
    accept_loss: bool = False,
    wait: bool = True,
    progress: bool = False,
    **options: Any,
) -> Memory:
    """The engine or the sharded memory of the directory `path`, which is made if it is not there.

    A sharded memory has one owner. So `read_only` opens it as any other call does, and `wait` says nothing. The other
    keywords are those of `Engine.open`. Raises as it does and as `ShardedEngine.open`, and `ParameterError` for
    `settings` of shards where there are none, and for an address.
    """
    refuse_address(path)
    settings = settings or ShardSettings()
    root = Path(path)
    if is_sharded(root) or (settings.shards is not None and not (root / RECORDS).exists()):
        if accept_loss:
            raise ParameterError(
                f"{root}: is a sharded memory; a loss is accepted for the one shard that has it, by the directory that "
                "the error names"
            )
        return _open_shards(root, settings, progress=progress, **options)
    given = {name: value for name, value in vars(settings).items() if name != "transport" and value is not None}
    if given:
        do = (
            f"fanrank shards NEW --shards 4 --import {root} makes one of it"
            if (root / RECORDS).exists()
            else ("--shards 4 makes one")
        )
        raise ParameterError(f"{root}: is no sharded memory, for which --{min(given)} is; {do}")
    return Engine.open(root, read_only=read_only, accept_loss=accept_loss, wait=wait, progress=progress, **options)


def _open_shards(root: Path, settings: ShardSettings, **options: Any) -> ShardedEngine:
    from .engine import ShardedEngine  # who has one engine loads none of it

    return ShardedEngine.open(root, **settings.keywords(), **options)
