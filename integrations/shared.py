"""What several adapters need: the memory that they work on, and the filters of their framework."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..client.opening import open as open_memory
from ..engine.engine import Engine
from ..engine.errors import ParameterError
from ..engine.index.columns import AUTO
from ..engine.memory import Memory
from ..engine.records.dialects.parse import parse_filter
from ..engine.records.filters import Filter
from ..engine.records.record import Record
from ..engine.signatures import EngineOptions
from ..shards.choosing import is_address

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

AnyEngine = Memory | str | os.PathLike[str] | None
"""What an adapter works on: any memory (an engine, a tenant's handle, shards, a client), the path of a directory of one
engine or of shards, the address of a server, or None for an engine in memory."""


def open_engine(engine: AnyEngine = None, **options: Unpack[EngineOptions]) -> Memory:
    """The memory that is given, or what `fanrank.open` opens.

    A new engine has ``columns="auto"``, unless `options` say other columns, so that a filter may name any key of the
    metadata. `options` are the constructor's; a server has its own, and they say nothing of it. Raises `ParameterError`
    for options that are given with an engine, for anything else in `engine`, and for a directory that was made with
    other columns (``add_column("*", "json")`` makes it such a one); and as `Engine.open`.
    """
    if isinstance(engine, Memory):
        if options:
            raise ParameterError(
                f"{', '.join(options)}: these options are for an engine that is made here; make the given one with them"
            )
        return engine
    if engine is not None and not isinstance(engine, str | os.PathLike):
        raise ParameterError(
            f"engine must be a Memory, the path of a directory, an address or None, not {type(engine).__name__}"
        )
    if is_address(engine):
        return open_memory(engine)
    options.setdefault("columns", AUTO)
    return open_memory(engine, **options)


def path_of(memory: Memory | None) -> Path | None:
    """The directory of an engine; None for other memories, and for one without files."""
    store = memory.index.ready().store if isinstance(memory, Engine) else None
    return None if store is None else Path(store.path).parent


def check_memory(memory: Memory, *verbs: str) -> None:
    """Raise `NotSupportedError` for a memory that lacks a verb which the adapter needs."""
    for verb in verbs:
        getattr(memory, verb)


def metadata_filter(spec: Any, dialect: str) -> Filter | None:
    """The framework's filter `spec` over the metadata that an adapter keeps in `Record.payload`.

    As `parse_filter` with ``payload=True``: a key such as ``type`` means the payload's, not the column `Record.type`.
    """
    return parse_filter(spec, dialect, payload=True)


def with_text(record: Record, text: str, time: float, **fields: Any) -> Record:
    """The record with another text. What was derived from the old one goes with it; `fields` are further changes."""
    gone: dict[str, Any] = dict.fromkeys(("embedding", "passages", "weights", "entities", "relations"))
    return replace(record, text=text, time=time, **gone, **fields)
