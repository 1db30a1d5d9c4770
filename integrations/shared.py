"""What several adapters need: the engine that they work on, and the filters of their framework."""

from __future__ import annotations

import os
import sys
from typing import Any

from ..engine.engine import Engine
from ..engine.errors import ParameterError
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

    A new engine has ``columns="auto"``, so that a filter may name any key of the metadata. A directory that is there
    already keeps the columns that it was made with. `options` are the constructor's, for a new engine. Raises
    `ParameterError` for options that are given with an engine that exists and for anything else in `engine`, and as
    `Engine.open`.
    """
    if isinstance(engine, Engine | Namespace):
        if options:
            raise ParameterError(
                f"{', '.join(options)}: options are for an engine that is made here, and one is given; make that with them"
            )
        return engine
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
