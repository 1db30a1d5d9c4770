"""What a server serves in tests: one engine, or a sharded memory with the same records."""

from __future__ import annotations

from typing import Any, cast

from support.sharding import sharded

import fanrank as fr

KINDS = ("engine", "shards")

SPLIT = ("", "users/ana", "acme/ana")
"""Namespaces of a sharded memory that lie in all of its shards. The others lie whole in one."""


def make_memory(kind: str, **options: Any) -> fr.Engine:
    """An empty memory of this kind, with these options of an engine."""
    if kind == "engine":
        return fr.Engine(**options)
    # It has the verbs of an engine.
    return cast(fr.Engine, sharded(2, split=SPLIT, **options))
