"""What a kind of memory cannot do, in one table that can be read before a call: `Memory.lacking` of each class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from .errors import NotSupportedError

_NUMBERED = "each shard numbers its own terms; use search, or an Engine for tensors"
SHARDS: Mapping[str, str] = {
    "from_records": "a sharded memory lives in a directory: ShardedEngine.open(path, shards=...), then add the records",
    "load": "a saved index is of one engine, and has no records; use ShardedEngine.open(path)",
    "save": "each shard keeps an index of its own, beside its records; backup(path) copies all of them",
    "copy_to": "copy_to makes one engine's directory; export the records to a file, open another memory with the new "
    "parameters (ShardedEngine.open or Engine.open), and import_records from the file",
    "to": "a shard that is started anew serves from where it was opened: say num_gpus=1, or backend, to "
    "ShardedEngine.open",
    "encode": _NUMBERED,
    "numbering": _NUMBERED,
    "search_tensors": _NUMBERED,
}

_BY_ENGINE = (
    "__enter__ close flush vacuum sweep refresh verify backup check_backup restore copy_to import_records add_column "
    "drop_column change_columns keep_columns rewrite arewrite search_stream"
)
NAMESPACE: Mapping[str, str] = dict.fromkeys(
    _BY_ENGINE.split(), "it is of more than one namespace: call it on what the handle was made of"
)

_OF_FILES = "flush vacuum sweep verify backup check_backup restore copy_to import_records export"
_OF_MEMORY = (
    "opened opening_error backend ids distinct events candidates search_stream observe resolved recency health drift "
    "columns add_column drop_column change_columns keep_columns"
)
CLIENT: Mapping[str, str] = {
    **dict.fromkeys(_OF_FILES.split(), "it is done on the server's machine, in its process or by the command fanrank"),
    **dict.fromkeys(_OF_MEMORY.split(), "no request asks for it; do it in the process that has the memory open"),
    **dict.fromkeys(("rewrite", "arewrite"), "no function can be sent; use patch, or update_where with a mapping"),
}


class Lacking:
    """Stands in a class for a verb that its memories do not have."""

    def __init__(self, kind: str, verb: str, why: str) -> None:
        self.message = f"{kind} has no {verb}: {why}"
        self.__doc__ = f"Raises `NotSupportedError`: {why}."

    def __get__(self, memory: object | None, kind: type) -> Any:
        return self if memory is None else self()

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise NotSupportedError(self.message)
