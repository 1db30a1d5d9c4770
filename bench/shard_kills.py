"""Kills shards, and the owner of a sharded memory: ``python -m bench.shard_kills``. What it holds them to, and by which
writes, searches and moves, is in `tests/support/shard_kills.py`; a row says how often, and what it broke.

A kill of an owner takes 15 s on a core: a Ray starts in 8 s, the processes of its shards in 6. The memories after the
first one share a Ray, and take 8 s a kill.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support.shard_kills import Broken, Told, kill_owners, kill_shards, open_memory
from tests.support.sharding import FOLDER

from fanrank.shards.processes.cluster import Cluster

from .harness.methods import stamp_rows


def broken_by(what: str, seed: str, rounds: int, told: Told) -> str | None:
    """What so many rounds over one new memory break; None: nothing."""
    try:
        with ExitStack() as stack:
            if what == "shards":
                folder = stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER))
                memory = stack.enter_context(open_memory(Path(folder) / "memory", None))
                kill_shards(memory, seed, rounds, told)
            elif seed.endswith(" 0"):
                kill_owners(None, seed, rounds, told)
            else:
                # At a Ray that outlives its owners.
                import ray

                stack.callback(Cluster.connect(None).close)
                kill_owners(ray.get_runtime_context().gcs_address, seed, rounds, told)
    except Broken as error:
        return str(error)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds and print what they did. Returns 1 if one of them broke the promise."""
    parser = argparse.ArgumentParser(prog="python -m bench.shard_kills")
    parser.add_argument("--rounds", type=int, default=100, help="kills of shards")
    parser.add_argument("--owners", type=int, default=100, help="kills of owners")
    parser.add_argument("--each", type=int, default=10, help="rounds of one memory")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, help="append the rows to this JSON lines file")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for what, rounds in (("shards", options.rounds), ("owners", options.owners)):
        told, broken = Told(), 0
        for begin in range(0, rounds, options.each):
            some = min(options.each, rounds - begin)
            if error := broken_by(what, f"{options.seed} {what} {begin}", some, told):
                broken += 1
                print(f"{what}, rounds from {begin}: {error}", file=sys.stderr, flush=True)
        recovery = sorted(told.recovery)
        rows.append(
            {
                **{"bench": "shardkills", "killed": what, "seed": options.seed, "rounds": rounds, "broken": broken},
                **{"kills": told.kills, "acknowledged_writes": told.writes, "writes_in_flight": told.in_flight},
                **{"searches": told.searches, "moves": told.moves, "kills_in_moves": told.in_moves},
                "moves_interrupted": told.interrupted,
                "recovery_seconds_median": recovery[len(recovery) // 2] if recovery else None,
                "recovery_seconds_most": recovery[-1] if recovery else None,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    if options.results is not None:
        with options.results.open("a", encoding="utf-8") as handle:
            handle.writelines(json.dumps({**row, **stamp_rows("shardkills")}) + "\n" for row in rows)
    return int(any(row["broken"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
