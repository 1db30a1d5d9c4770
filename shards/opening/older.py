"""Memories of the first format are read and carried over to `owner.sqlite`.

They keep a table in `shards.json`, and in `intents` what was about to be done when the owner ended: a batch for several
shards, or namespaces that change their shards. That is done first. The two files go once `owner.sqlite` is there, so a
crash in between begins anew.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engine.errors import DamagedIndexError, ForeignIndexError, NewerFormatError, ParameterError
from ...engine.storage.index_files import SHARDS
from ...engine.storage.sqlite import named
from ..processes.links import Link, call_all
from ..protocol.messages import Part
from ..protocol.placement import Placement
from ..shard.parts import decode_record
from ..shard.shard import Shard

INTENTS = "intents"
_HEADER = struct.Struct("<QI")

Move = tuple[str, Sequence[int], Sequence[int]]
"""A namespace, and the shards of its parts before and after; after (): it is dropped."""


@dataclass(frozen=True)
class Older:
    """What a memory of the first format keeps."""

    placement: Placement
    settings: Mapping[str, Any]
    copies: Mapping[str, Sequence[int]]
    """The shards that records of a namespace were being copied to."""
    batches: Mapping[int, Part]
    moves: Sequence[Move]


def read_older(folder: Path) -> Older | None:
    """What a folder keeps in the first format; None where there is no table.

    Raises `StorageError`, `ForeignIndexError`, `NewerFormatError` and `DamagedIndexError`.
    """
    path = folder / SHARDS
    if not path.exists():
        return None
    table = _read_json(path)
    if not isinstance(table, dict) or table.get("format") != "fanrank-shards":
        raise ForeignIndexError(f"{path}: is not the table of a sharded memory")
    if table.get("version") != 1:
        raise NewerFormatError(
            f"{path}: has version {table.get('version')!r}, and this fanrank knows 1; upgrade fanrank"
        )
    try:
        placement = Placement(
            **{name: table[name] for name in ("shards", "split_at", "whole_at", "generation")},
            moved={str(name): int(home) for name, home in table["moved"].items()},
            split={str(name): tuple(map(int, parts)) for name, parts in table["split"].items()},
        )
        copies = {str(name): tuple(map(int, parts)) for name, parts in table["moving"].items()}
        settings = dict(table["settings"])
        if len(settings.get("stores", range(placement.shards))) != placement.shards:
            raise ValueError("it does not name the store of each shard")
    except (KeyError, TypeError, ValueError, AttributeError, ParameterError) as error:
        raise DamagedIndexError(f"{path}: is incomplete ({error}); restore it from a copy of the memory") from None
    batches, moves = _read_intent(folder / INTENTS)
    return Older(placement, settings, copies, batches, moves)


def carry_over(older: Older, links: Sequence[Link], until: float | None) -> Placement:
    """Do what was about to be done, and delete copies that were not placed; returns where records lie then.

    Raises `DamagedIndexError` where a copy would be deleted whose original is not there.
    """
    placement = older.placement
    for shard, batch in older.batches.items():
        # A shard that has done it does it again, with the same numbers of writes.
        links[shard].send("call", write_again, batch.again()).result(until)
    gone: list[tuple[str, int]] = []
    for namespace, before, after in older.moves:
        if not after:
            placement = placement.placed({namespace: tuple(before[:1])})
            for shard in before:
                links[shard].send("call", drop_namespace, namespace).result(until)
            continue
        for shard in dict.fromkeys((*before, *after)):
            homes = placement.homes(namespace)
            if shard not in homes:
                gone.append((namespace, shard))
            elif len(homes) > 1:
                strangers = links[shard].send("strangers", namespace, homes).result(until)
                links[shard].send("call", write_again, Part({namespace: strangers})).result(until)
    for namespace, shards in older.copies.items():
        gone += [(namespace, shard) for shard in shards if shard not in placement.homes(namespace)]
    for namespace, shard in gone:
        held = call_all(links, until, "holdings", namespace)
        if held[shard] and not any(held[home] for home in placement.homes(namespace)):
            raise DamagedIndexError(
                f"{SHARDS}: has namespace {namespace!r} in shards {list(placement.homes(namespace))}, which hold "
                f"nothing of it, and shard {shard} does: the table is older than its shards; restore the memory from a "
                "copy"
            )
        links[shard].send("call", drop_namespace, namespace).result(until)
    return placement


def forget_older(folder: Path) -> None:
    """Delete the files of the first format."""
    for name in (SHARDS, INTENTS):
        (folder / name).unlink(missing_ok=True)


def write_again(shard: Shard, batch: Part) -> None:
    """Let a shard do a batch, before it is tagged."""
    shard.engine.index.ready().write(removed=batch.removed, added=batch.added, missing_ok=True)


def drop_namespace(shard: Shard, namespace: str) -> None:
    """Let a shard drop a namespace, before it is tagged."""
    shard.engine.drop(namespace)


def _read_json(path: Path) -> Any:
    try:
        with named(path):
            return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedIndexError(f"{path}: is no JSON ({error}); restore it from a copy of the memory") from None


def _read_intent(path: Path) -> tuple[dict[int, Part], list[Move]]:
    """What was about to be done. One that is torn was never synced, so no shard has seen it."""
    with named(path):
        data = path.read_bytes() if path.exists() else b""
    size, checksum = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (0, 0)
    body = data[_HEADER.size : _HEADER.size + size]
    if not size or len(body) < size:
        return {}, []
    try:
        if zlib.crc32(body) != checksum:
            raise ValueError("its checksum differs")
        found = json.loads(body)
        batches = {
            int(shard): Part(batch["removed"], [decode_record(*row) for row in batch["added"]])
            for shard, batch in found["batches"].items()
        }
        return batches, [(namespace, before, after) for namespace, before, after in found["moves"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedIndexError(
            f"{path}: holds no intent that can be read ({error}), and shards may have carried it out in part; "
            "restore the memory from a copy"
        ) from error
