"""`fanrank shards`: what the shards of a memory hold, and how records move between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...shards.choosing import refuse_address
from ..errors import ForeignIndexError
from ..storage.index_files import is_sharded
from .options import json_option, memory_argument
from .output import print_result

UNITS = "B", "KiB", "MiB", "GiB", "TiB"


@click.command("shards")
@memory_argument
@click.option("--shards", type=click.IntRange(min=1), metavar="COUNT", help="Make MEMORY, of so many shards.")
@click.option(
    "--import",
    "source",
    type=click.Path(),
    metavar="OLD",
    help="With --shards: bring in the records of OLD, the directory of one engine, whose answers stay the same.",
)
@click.option("--status", is_flag=True, help="Show what each shard holds. This is done after each change, too.")
@click.option(
    "--add", "added", type=click.IntRange(min=1), metavar="COUNT", help="Add so many shards, which are empty."
)
@click.option("--rebalance", is_flag=True, help="Move and split namespaces until the shards hold about as many bytes.")
@click.option("--storage", type=click.Path(), help="Folder of the shards' directories. Default: MEMORY.")
@click.option(
    "--address",
    help="Cluster of Ray whose machines hold the shards: auto, or ray://HOST:PORT. Default: this process holds them.",
)
@json_option
def shards_command(
    path: str,
    shards: int | None,
    source: str | None,
    status: bool,
    added: int | None,
    rebalance: bool,
    storage: str | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Make, show or change the shards of MEMORY.

    No other process may have it open. With --add and --rebalance the added shards get their share. A change that is cut
    off leaves each namespace where it was or where it was to go. An import that is cut off goes on where it was when it
    is run again; OLD stays as it is, and nobody may write to it meanwhile.
    """
    from ...shards.engine import ShardedEngine  # stands above the engine, and serves this command alone

    refuse_address(path)
    if not is_sharded(Path(path)) and shards is None:
        raise ForeignIndexError(f"{path}: is no sharded memory; --shards 4 makes one, in a new directory")
    moves: list[dict[str, Any]] = []
    with ShardedEngine.open(
        path,
        shards=shards,
        address=address,
        transport="local" if address is None else "ray",
        storage=storage,
        source=source,
        progress=True,
    ) as memory:
        if added is not None:
            memory.add_shards(added)
        if rebalance:
            moves = memory.rebalance(progress=True)["moves"]
        result = status_of(memory)
    lines = [f"{result['shards']} shards, {result['records']:,} records, table {result['generation']}"]
    if source is not None:
        lines.append(f"all records of {source} are there")
    if rebalance:
        lines.append(f"{len(moves):,} namespace(s) moved")
    lines.append("shard      records  namespaces        bytes         disk")
    lines += [
        f"{each['shard']:5} {each['records']:12,} {each['namespaces']:11,} {shown_bytes(each['bytes']):>12} "
        f"{shown_bytes(each['store_bytes']):>12}"
        for each in result["by_shard"]
    ]
    lines += [f"split: {name!r} over shards {', '.join(map(str, parts))}" for name, parts in result["split"].items()]
    print_result({"path": path, "moves": moves, **result}, as_json, "\n".join(lines))


def status_of(memory: Any) -> dict[str, Any]:
    """What the shards of an open memory hold."""
    stats, holdings = memory.stats(), memory.holdings()
    by_shard = [
        {
            "shard": own["shard"],
            "records": sum(records for records, _ in holdings[own["shard"]].values()),
            "namespaces": len(holdings[own["shard"]]),
            "bytes": own["bytes"],
            "store_bytes": own["store_bytes"],
        }
        for own in stats["shards"]
    ]
    return {
        "shards": len(by_shard),
        "records": sum(each["records"] for each in by_shard),
        "generation": stats["generation"],
        "split": stats["split"],
        "by_shard": by_shard,
    }


def shown_bytes(size: int) -> str:
    """A number of bytes in the unit that suits it."""
    value, unit = float(size), 0
    while value >= 1024 and unit + 1 < len(UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:,.1f} {UNITS[unit]}" if unit else f"{size} B"
