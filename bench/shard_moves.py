"""How long writes wait while a namespace goes to another shard: ``python -m bench.shard_moves``.

One caller writes single records to another namespace meanwhile. A row has the times of its writes during the move, of
which `most_us` is the longest, as `alone` those before it, and the `seconds` of the move. Rows join those of
`bench.shards`, with the phase ``move``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fanrank as fr

from .harness.methods import round_digits, stamp_rows
from .harness.options import numbers, progress
from .harness.rows import append
from .shards import OPTIONS, SPLIT, Corpus, ShardsRow, percentiles, timed

MOVED = (1_000, 10_000, 100_000)
"""Records of the namespace that moves."""
WRITES = 200
"""Writes before it moves."""
TRANSPORTS = ("local", "ray")


def move_row(corpus: Corpus, records: int, folder: Path, transport: str, common: dict[str, Any]) -> ShardsRow:
    """The row of a namespace of so many records that moves between two shards while others write."""
    written: list[float] = []

    def write() -> None:
        written.append(timed(lambda: engine.upsert([fr.Record("one", "a record", "others")])))

    with fr.ShardedEngine.open(folder, shards=2, transport=transport, split_at=10 * records, **OPTIONS) as engine:
        engine.add(fr.Record(f"r{n}", text, SPLIT) for n, text in enumerate(corpus.texts(records)))
        held = len(engine)
        for _ in range(WRITES):
            write()
        alone, written = percentiles(written), []
        (home,) = engine.coordinator.placement.homes(SPLIT)
        moved = threading.Event()

        def go_on() -> None:
            while not moved.is_set():
                write()

        writer = threading.Thread(target=go_on)
        writer.start()
        try:
            took = timed(lambda: engine.coordinator.place(SPLIT, (1 - home,)))
        finally:
            moved.set()
            writer.join()
        right = engine.count(namespace=SPLIT) == held
    middle, last = percentiles(written)
    return ShardsRow(
        phase="move",
        case=transport,
        shards=2,
        records=held,
        p50_us=middle,
        p99_us=last,
        most_us=round_digits(max(written)),
        alone_p50_us=alone[0],
        alone_p99_us=alone[1],
        seconds=round_digits(took / 1e6),
        verified=right,
        **common,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the rows; they are written only with --results. Returns 0 if no record was lost, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.shard_moves", description="Writes during a move.")
    parser.add_argument("--records", type=numbers, default=MOVED, help="default 1000,10000,100000")
    parser.add_argument("--results", type=Path, help="append the rows to this file, as bench/results/shards.jsonl")
    options = parser.parse_args(arguments)
    import ray  # the rows say its version

    ray.init("local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    say, rows = progress(), list[ShardsRow]()
    try:
        common = stamp_rows("shards")
        common["machine"] |= {"ray": ray.__version__}
        corpus = Corpus(max(options.records))
        for records in options.records:
            for transport in TRANSPORTS:
                say(f"{records:,} records, {transport}")
                with tempfile.TemporaryDirectory(prefix="fanrank-shards-") as name:
                    rows.append(move_row(corpus, records, Path(name) / "memory", transport, common))
    finally:
        ray.shutdown()
    if options.results:
        append(options.results, rows)
    print("\n".join(json.dumps(asdict(row)) for row in rows))
    return int(not all(row.verified for row in rows))


if __name__ == "__main__":
    sys.exit(main())
