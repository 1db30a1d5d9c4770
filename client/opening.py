"""`open`: a memory by what names it, which is an address, a directory of either kind, or nothing."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from ..engine.engine import Engine
from ..engine.errors import ParameterError
from ..engine.memory import Memory
from ..engine.signatures import EngineOptions
from ..shards.choosing import ShardSettings, is_address, open_directory
from .synchronous import Client

OPENING = ("read_only", "wait", "progress")
"""Options by which a directory is opened, which say nothing of a server."""
OF_SHARDS = tuple(each.name for each in fields(ShardSettings))
OF_DIRECTORY = ("accept_loss", "backend", *EngineOptions.__annotations__, *OF_SHARDS)


def open(target: str | os.PathLike[str] | None = None, **options: Any) -> Memory:
    """The memory that `target` names.

    An address (``http://...``) is that of a server: `options` are those of `Client`, such as ``key``. A path is that of
    a directory, of one engine or of shards, which is made if it is not there: `options` are those of `Engine.open`, and
    ``shards``, ``transport``, ``address``, ``storage`` and ``replicas`` as in `ShardedEngine.open`, but that shards
    without an ``address`` are in this process. None: a new engine in memory, with the options of `Engine`.

    Raises as what it calls.
    """
    if target is None:
        return Engine(**options)
    settings = {name: options.pop(name) for name in OF_SHARDS if name in options}
    return open_with(target, ShardSettings(**settings), **options)


def open_with(target: str | os.PathLike[str], settings: ShardSettings | None, **options: Any) -> Memory:
    """As `open_directory`; at an address the memory of its server, with the options of `Client`."""
    if isinstance(target, str) and is_address(target):
        # On a command line a transport is always said.
        said = {**options, **vars(settings or ShardSettings()), "transport": None}
        given = {name: value for name, value in said.items() if value is not None and name not in OPENING}
        for name in given:
            if name in OF_DIRECTORY:
                raise ParameterError(f"{target}: {name} is for a directory; leave it out")
        return Client(target, **given)
    return open_directory(target, settings, **options)
