"""What several adapters need: the engine that they work on, and the filters of their framework."""

from __future__ import annotations

import os
import sys
from typing import Any

from ..engine.engine import Engine
from ..engine.errors import ParameterError
from ..engine.index.columns import AUTO
from ..engine.namespace import Namespace
from ..engine.records.dialects.parse import parse_filter
from ..engine.records.filters import Filter
from ..engine.signatures import EngineOptions

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

AnyEngine = Engine | Namespace | str | os.PathLike[str] | None
"""What an adapter works on: an engine, a tenant's handle, the path of a directory, or None for an engine in memory."""


def open_engine(engine: AnyEngine = None, **options: Unpack[EngineOptions]) -> Engine | Namespace:
    """The engine or the handle that is given; else a new engine over the directory at this path, or (None) in memory.

    A new engine has ``columns="auto"``, unless `options` say other columns, so that a filter may name any key of the
    metadata. `options` are the constructor's. Raises `ParameterError` for options that are given with an engine, for
    anything else in `engine`, and for a directory that was made with other columns (``add_column("*", "json")`` makes
    it such a one); and as `Engine.open`.
    """
    if isinstance(engine, Engine | Namespace):
        if options:
            raise ParameterError(
                f"{', '.join(options)}: these options are for an engine that is made here; make the given one with them"
            )
        return engine
    options.setdefault("columns", AUTO)
    if engine is None:
        return Engine(**options)
    if not isinstance(engine, str | os.PathLike):
        raise ParameterError(
            f"engine must be an Engine, a Namespace, the path of a directory or None, not {type(engine).__name__}"
        )
    return Engine.open(engine, **options)


def metadata_filter(spec: Any, dialect: str) -> Filter | None:
    """The framework's filter `spec` over the metadata that an adapter keeps in `Record.payload`.

    As `parse_filter` with ``payload=True``: a key such as ``type`` means the payload's, not the column `Record.type`.
    """
    return parse_filter(spec, dialect, payload=True)
