"""A memory outgrows one engine: it moves into three shards, and every answer stays the same bit for bit.

`transport="local"` keeps the shards in this process. Left out, they are actors of Ray, on one machine or many.

engine: 600 records of 20 tenants
shards: 600 records of 20 tenants, 3 shards
40 queries: every score and id is the same
after a write to both: the same
"""

import tempfile
from pathlib import Path

import numpy as np

import fanrank as fr

WORDS = ["deploy", "failed", "disk", "full", "billing", "key", "expired", "backup", "quota", "exceeded", "timeout"]


def records(seed: int) -> list[fr.Record]:
    draw = np.random.default_rng(seed)
    return [
        fr.Record(f"{seed}-{number}", " ".join(draw.choice(WORDS, 6)), namespace=f"tenant-{number % 20:02}")
        for number in range(600)
    ]


def asked(memory: fr.Engine | fr.ShardedEngine) -> list[list[tuple[str, float]]]:
    hits = memory.search(
        [fr.Query("disk full again", namespace=f"tenant-{number:02}") for number in range(20)]
        + [fr.Query("key of the backup", namespaces=[f"tenant-{number:02}", "tenant-00"]) for number in range(20)]
    )
    return [[(hit.id, hit.score) for hit in found] for found in hits]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        one, several = Path(folder, "one"), Path(folder, "several")
        with fr.Engine.open(one) as engine:
            engine.add(records(1))
            print(f"engine: {len(engine)} records of {len(engine.namespaces)} tenants")
            before = asked(engine)
        with fr.ShardedEngine.open(several, shards=3, source=one, transport="local") as shards:
            parts = len(shards.stats()["shards"])
            print(f"shards: {len(shards)} records of {len(shards.namespaces)} tenants, {parts} shards")
            same = asked(shards) == before
            print(f"{len(before)} queries: every score and id is {'the same' if same else 'NOT the same'}")
            shards.add(records(2))
            with fr.Engine.open(one) as engine:
                engine.add(records(2))
                print(f"after a write to both: {'the same' if asked(engine) == asked(shards) else 'NOT the same'}")


if __name__ == "__main__":
    main()
