"""Kills shards, and the owner of a sharded memory: ``python -m bench.shard_kills``. What it holds them to, and by which
writes, searches and moves, is in `tests/support/shard_kills.py`; a row says how often, and what it broke.

A kill of an owner takes 15 s on a core: a Ray starts in 8 s, the processes of its shards in 6. The memories after the
first one share a Ray, and take 8 s a kill.
"""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.shard_kills import Broken, Told, kill_owners, kill_shards, open_memory
from tests.support.sharding import FOLDER

from fanrank.shards.processes.cluster import Cluster

from .harness.command import Command, positive


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
    """Run the rounds. Returns 1 if one of them broke the promise."""
    command = Command("shard_kills", "Kills shards, and the owner of a sharded memory.", "shardkills", "shardkills")
    command.add("--rounds", type=positive, default=100, help="kills of shards (default 100)")
    command.add("--owners", type=positive, default=100, help="kills of owners (default 100)")
    command.add("--each", type=positive, default=10, help="rounds of one memory (default 10)")
    command.add("--seed", type=int, default=1)
    options = command.parse(arguments)
    for what, rounds in (("shards", options.rounds), ("owners", options.owners)):
        told, broken = Told(), 0
        for begin in range(0, rounds, options.each):
            some = min(options.each, rounds - begin)
            if error := broken_by(what, f"{options.seed} {what} {begin}", some, told):
                broken += 1
                print(f"{what}, rounds from {begin}: {error}", file=sys.stderr, flush=True)
        recovery = sorted(told.recovery)
        row = {
            **{"killed": what, "seed": options.seed, "rounds": rounds, "broken": broken, "verified": not broken},
            **{"kills": told.kills, "acknowledged_writes": told.writes, "writes_in_flight": told.in_flight},
            **{"searches": told.searches, "moves": told.moves, "kills_in_moves": told.in_moves},
            "moves_interrupted": told.interrupted,
            "recovery_seconds_median": recovery[len(recovery) // 2] if recovery else None,
            "recovery_seconds_most": recovery[-1] if recovery else None,
        }
        command.keep([row])
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
