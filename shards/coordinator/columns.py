"""Metadata columns that all shards declare, and declare no longer, together."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ...engine.engine import Engine
from ...engine.errors import FanrankError, ParameterError
from ...engine.index.columns import ORDER, Schema
from ..processes.links import Link, call_all
from ..protocol.order import with_order, without_order
from ..shard.shard import Shard
from .coordinator import Coordinator

logger = logging.getLogger("fanrank")


def change_columns(
    coordinator: Coordinator, template: Engine, dropped: Sequence[str], added: Mapping[str, str]
) -> None:
    """Change the columns of all shards, or of none after an error. Raises as `Engine.add_column`."""
    if ORDER in dropped:
        raise ParameterError(f"no declared column {ORDER!r}; there are: {', '.join(template.columns) or 'none'}")
    with coordinator.paused():
        before = template.columns
        template.change_columns(dropped, added)
        done: list[Link] = []
        try:
            waiting = [(link, link.send("change", take_columns, template.columns)) for link in coordinator.links]
            failure: FanrankError | None = None
            for link, each in waiting:
                try:
                    each.result(None)
                    done.append(link)
                except FanrankError as error:  # noqa: PERF203
                    failure = failure or error
            if failure is not None:
                raise failure
        except BaseException:
            call_all(done, None, "change", take_columns, before)
            set_columns(template, before)
            raise
        # They were made with the columns of before.
        coordinator.clear_wholes()


def set_columns(engine: Engine, columns: Mapping[str, str]) -> None:
    """Let an engine have these columns, and no others."""
    engine.index.ready().change_columns(lambda _: Schema.of(columns))


def take_columns(shard: Shard, columns: Mapping[str, str]) -> None:
    """Let a shard have these columns of the caller's, beside its own."""
    if without_order(shard.engine.columns) != dict(columns):
        set_columns(shard.engine, with_order(columns))


def settle_columns(links: Sequence[Link], held: Mapping[int, Mapping[str, Any]]) -> dict[str, str]:
    """Let all shards have the same columns, where a crash left some with others; returns them.

    `held` are those that each has. One that is in some shards comes to all; where a record's value does not fit it, it
    goes from all.
    """
    columns = {name: kind for own in held.values() for name, kind in own.items()}
    if all(own.keys() == columns.keys() for own in held.values()):
        return columns
    for name in list(columns):
        if all(name in own for own in held.values()):
            continue
        kept = without_order({**columns})
        try:
            call_all(links, None, "change", take_columns, kept)
        except FanrankError as error:
            logger.warning("column %r is in some shards alone, and is dropped: %s", name, error)
            del columns[name]
    call_all(links, None, "change", take_columns, without_order(columns))
    return columns
