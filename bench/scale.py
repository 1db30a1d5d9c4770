"""What a platform of many shards needs, and how long its answers take: ``python -m bench.scale``.

Nothing is measured here. The times of one shard, of Ray's messages and their bytes come from the rows of
`bench.shards`, the bytes of a record from those of `bench.writes`. The rest is this model, and a simulation with a
seed: the same rows give the same figures.

A fan-out over n shards takes::

    T(n) = max over shards i of (travel_i + service_i) + (n - 1) * message

- ``service`` is drawn from the times of one shard (`phase` ``service``). A part that is larger than any that was
  measured takes longer in proportion to its records: an upper bound, as pruning leaves out more of a longer list.
- ``travel`` is drawn from the times of an empty message to one shard (`quantiles_us` of a ``fan-out`` over one).
- ``message`` is what each further shard costs the owner's process, which sends the messages one after another: the
  slope of the empty message's median between the fewest and the most shards that were measured.
- Of all answers, `STRAGGLERS` take `SLOWER` times as long.
- With hedging, a shard that has not answered by `HEDGE` of its times is asked again at another replica, and the first
  answer counts. With ``replicas=2`` fanrank does so later, after twice the longest of the last 64 reads: these columns
  are a bound.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fanrank.shards.protocol.placement import SPLIT_AT

from .harness.methods import FAN_OUT, K, round_digits, stamp_rows
from .harness.paths import ROOT
from .harness.rows import append

Fields = Mapping[str, Any]

FAN_INS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DRAWS = 4_000
BLOCK = 500
"""Fan-outs that are drawn at a time."""
SEED = 22
STRAGGLERS, SLOWER = 0.01, 10.0
HEDGE = 0.95

GIB = 2**30
SHARD_GIB = 24.0
"""Memory of one shard."""
FILLED = 0.7
"""How much of it records fill: the rest is for merges, and for the searches themselves."""
NODE_GIB = 64.0
TENANTS = 1_000_000
PLATFORMS = (1_000_000_000, 10_000_000_000)
LARGEST = 0.01
"""The share of all records that the largest tenant has."""
FAN_OUTS_A_DAY = 100
"""Of a tenant."""
PEAK = 3.0
"""The busiest hour, in times of the mean."""
BEGIN, END = "<!-- scale: begin -->", "<!-- scale: end -->"


@dataclass(frozen=True)
class ScaleRow:
    """One cell: a number of shards that answer together (`phase` ``fan-in``), or a platform (``platform``)."""

    bench: str
    run: str
    phase: str
    shards: int
    records: int
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    straggling_p99_ms: float | None = None
    hedged_p99_ms: float | None = None
    asked_again: float | None = None
    tenants: int | None = None
    nodes: int | None = None
    memory_gib: float | None = None
    queries_per_s: float | None = None
    traffic_shards: int | None = None
    batch_bytes: int | None = None
    largest_parts: int | None = None
    largest_batch_bytes: int | None = None
    largest_p99_ms: float | None = None
    note: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    commit: str = ""
    code: str = ""
    date: str = ""


@dataclass(frozen=True)
class Measured:
    """What rows say of one shard; times are microseconds."""

    services: Mapping[int, Sequence[float]]
    """Records -> quantiles of the times of one shard with so many."""
    travel: Sequence[float]
    """Quantiles of an empty message."""
    message: float
    bytes_of: Mapping[int, float]
    """Shards -> bytes of a fan-out over a split namespace, both ways."""
    tenant_bytes: float
    queries_per_s: float
    """Of one shard, from many agents."""
    record_bytes: float
    run: str

    @classmethod
    def of(cls, shards: Sequence[Fields], writes: Sequence[Fields]) -> Measured:
        """From the newest run of `bench.shards` by time slices, and the rows of `bench.writes`.

        Raises `ValueError`.
        """
        shards = [
            row
            for row in shards
            if row["phase"] != "move"
            and row.get("scheduling", "other") == "other"
            and row["k"] == K
            and row["fan_out"] == FAN_OUT
        ]
        run = max((row["run"] for row in shards), default="")
        rows = [row for row in shards if row["run"] == run]
        services = {row["records"]: row["quantiles_us"] for row in rows if row["phase"] == "service"}
        split = {row["shards"]: row for row in rows if _is(row, "fan-out", "split")}
        tenant = [row for row in rows if _is(row, "fan-out", "tenant")]
        agents = [row for row in rows if _is(row, "agents", "tenant") and row["shards"] == 1]
        held = [row for row in writes if "peak_bytes_per_record" in row["figures"]]
        if not (services and len(split) > 1 and 1 in split and tenant and agents and held):
            raise ValueError(
                "the rows of bench.shards (service, 1 and more shards) and bench.writes are to be taken first"
            )
        fewest, most = min(split), max(split)
        slope = (split[most]["empty_p50_us"] - split[fewest]["empty_p50_us"]) / (most - fewest)
        newest = max(held, key=lambda row: row["date"])
        return cls(
            services,
            split[1]["quantiles_us"],
            max(slope, 0.0),
            {number: row["sent_bytes"] + row["received_bytes"] for number, row in split.items()},
            tenant[0]["sent_bytes"] + tenant[0]["received_bytes"],
            agents[0]["queries_per_s"],
            newest["figures"]["peak_bytes_per_record"],
            run,
        )

    def service(self, records: int) -> npt.NDArray[np.float64]:
        """Quantiles of the times of a shard whose part has so many records: those of the next larger one measured."""
        larger = [size for size in self.services if size >= records]
        if larger:
            return np.array(self.services[min(larger)])
        most = max(self.services)
        return np.array(self.services[most]) * (records / most)

    def batch_bytes(self, shards: int) -> int:
        """Bytes of a fan-out over a split namespace: a straight line through those over one shard and over the most."""
        most = max(self.bytes_of)
        each = (self.bytes_of[most] - self.bytes_of[1]) / (most - 1)
        return round(self.bytes_of[1] + each * (shards - 1))


def _is(row: Fields, phase: str, case: str) -> bool:
    return row["phase"] == phase and row["case"] == case and row["shards"] > 0


@dataclass(frozen=True)
class Times:
    """Milliseconds of a fan-out over n shards, and the share of messages that hedging sends again."""

    p50: float
    p99: float
    straggling_p99: float
    hedged_p99: float
    asked_again: float


def simulate(measured: Measured, shards: int, records: int, *, draws: int = DRAWS, seed: int = SEED) -> Times:
    """Fan-outs over so many shards, whose parts have so many records."""
    random = np.random.default_rng([seed, shards, records])
    service, travel = measured.service(records), np.array(measured.travel)
    points, points_of_travel = np.linspace(0, 1, len(service)), np.linspace(0, 1, len(travel))

    def draw(count: int, straggling: bool) -> npt.NDArray[np.float64]:
        shape = count, shards
        times = np.interp(random.random(shape), points, service)
        if straggling:
            times = np.where(random.random(shape) < STRAGGLERS, SLOWER * times, times)
        return times + np.interp(random.random(shape), points_of_travel, travel)

    plain, straggling, hedged, again = [], [], [], 0
    due = float(np.quantile(draw(BLOCK, True), HEDGE))
    for start in range(0, draws, BLOCK):
        count = min(BLOCK, draws - start)
        plain.append(draw(count, False).max(axis=1))
        first = draw(count, True)
        straggling.append(first.max(axis=1))
        late = first > due
        hedged.append(np.where(late, np.minimum(first, due + draw(count, True)), first).max(axis=1))
        again += int(late.sum())
    own = measured.message * (shards - 1)

    def quantile(parts: Sequence[npt.NDArray[np.float64]], share: float) -> float:
        return round_digits(float(np.quantile(np.concatenate(parts) + own, share)) / 1e3)

    return Times(
        quantile(plain, 0.5),
        quantile(plain, 0.99),
        quantile(straggling, 0.99),
        quantile(hedged, 0.99),
        round_digits(again / (draws * shards)),
    )


@dataclass(frozen=True)
class Platform:
    """What so many tenants with so many records need.

    ::

        memory        = records * bytes a record
        shards        = the more of: memory / (SHARD_GIB * FILLED), peak queries a second / those of a shard
        nodes         = shards / whole shards in NODE_GIB
        peak queries  = tenants * FAN_OUTS_A_DAY * FAN_OUT * PEAK / 86,400
        largest parts = LARGEST * records / split_at, at least 1
    """

    tenants: int
    records: int
    memory_gib: float
    queries_per_s: float
    traffic_shards: int
    shards: int
    nodes: int
    largest: int
    parts: int

    @classmethod
    def of(cls, measured: Measured, tenants: int, records: int) -> Platform:
        memory = records * measured.record_bytes / GIB
        peak = tenants * FAN_OUTS_A_DAY * FAN_OUT * PEAK / 86_400
        traffic = math.ceil(peak / measured.queries_per_s)
        shards = max(math.ceil(memory / (SHARD_GIB * FILLED)), traffic)
        largest = round(LARGEST * records)
        return cls(
            tenants,
            records,
            memory,
            peak,
            traffic,
            shards,
            math.ceil(shards / int(NODE_GIB // SHARD_GIB)),
            largest,
            max(math.ceil(largest / SPLIT_AT), 1),
        )


def make_rows(measured: Measured, common: dict[str, Any], *, draws: int = DRAWS, seed: int = SEED) -> list[ScaleRow]:
    """All rows. The parts of the fan-ins have as many records as the largest shard that was measured."""
    part = max(measured.services)
    rows = []
    for shards in FAN_INS:
        times = simulate(measured, shards, part, draws=draws, seed=seed)
        rows.append(
            ScaleRow(
                phase="fan-in",
                shards=shards,
                records=part * shards,
                p50_ms=times.p50,
                p99_ms=times.p99,
                straggling_p99_ms=times.straggling_p99,
                hedged_p99_ms=times.hedged_p99,
                asked_again=times.asked_again,
                batch_bytes=measured.batch_bytes(shards),
                note=f"bench.shards of {measured.run}, seed {seed}",
                **common,
            )
        )
    for records in PLATFORMS:
        platform = Platform.of(measured, TENANTS, records)
        tenant = simulate(measured, 1, records // TENANTS, draws=draws, seed=seed)
        largest = simulate(measured, platform.parts, platform.largest // platform.parts, draws=draws, seed=seed)
        rows.append(
            ScaleRow(
                phase="platform",
                shards=platform.shards,
                records=records,
                p50_ms=tenant.p50,
                p99_ms=tenant.p99,
                straggling_p99_ms=tenant.straggling_p99,
                tenants=TENANTS,
                nodes=platform.nodes,
                memory_gib=round_digits(platform.memory_gib),
                queries_per_s=round_digits(platform.queries_per_s),
                traffic_shards=platform.traffic_shards,
                batch_bytes=round(measured.tenant_bytes),
                largest_parts=platform.parts,
                largest_batch_bytes=measured.batch_bytes(platform.parts),
                largest_p99_ms=largest.p99,
                note=f"bench.shards of {measured.run}, seed {seed}",
                **common,
            )
        )
    return rows


def render(rows: Sequence[ScaleRow]) -> str:
    """Tables of Markdown."""
    fan_ins = [row for row in rows if row.phase == "fan-in"]
    platforms = [row for row in rows if row.phase == "platform"]
    lines = [
        f"A fan-out over n shards with {fan_ins[0].records:,} records each, simulated ({fan_ins[0].note}):",
        "",
        "| shards | p50 ms | p99 ms | p99 ms, stragglers | p99 ms, stragglers and hedging | bytes a batch |",
        "|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {row.shards:,} | {row.p50_ms:,} | {row.p99_ms:,} | {row.straggling_p99_ms:,} | {row.hedged_p99_ms:,} | "
            f"{row.batch_bytes:,} |"
            for row in fan_ins
        ),
        "",
        f"A platform with {TENANTS:,} tenants that ask {FAN_OUTS_A_DAY} fan-outs of {FAN_OUT} queries a day each:",
        "",
        f"| | {' | '.join(f'{row.records:,} records' for row in platforms)} |",
        "|---|" + "---:|" * len(platforms),
    ]
    named = {
        "memory, GiB": "memory_gib",
        "queries a second, busiest hour": "queries_per_s",
        "shards for these queries alone": "traffic_shards",
        "shards": "shards",
        f"nodes of {NODE_GIB:.0f} GiB": "nodes",
        "tenant's fan-out, p50 ms": "p50_ms",
        "tenant's fan-out, p99 ms": "p99_ms",
        "tenant's fan-out, bytes": "batch_bytes",
        f"parts of the largest tenant ({LARGEST:.0%} of all records)": "largest_parts",
        "largest tenant's fan-out, p99 ms": "largest_p99_ms",
        "largest tenant's fan-out, bytes": "largest_batch_bytes",
    }
    lines += [
        f"| {label} | {' | '.join(f'{getattr(row, name):,}' for row in platforms)} |" for label, name in named.items()
    ]
    return "\n".join(lines)


def put(page: Path, text: str) -> None:
    """Put the tables into a page, between its marks. Raises `ValueError` where it has none."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page}: has no {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def read(path: Path) -> list[Fields]:
    """The rows of a file; none where it is not there."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate and print; rows are written only with --results. Returns 0, or 1 without the rows of one shard."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="A platform of many shards, by a model.")
    recorded = ROOT / "bench" / "results"
    parser.add_argument("--shards", type=Path, default=recorded / "shards.jsonl", help="rows of bench.shards")
    parser.add_argument("--writes", type=Path, default=recorded / "writes.jsonl", help="rows of bench.writes")
    parser.add_argument("--draws", type=int, default=DRAWS, help=f"fan-outs of a cell (default {DRAWS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"default {SEED}")
    parser.add_argument("--results", type=Path, help="append the rows to this file, as bench/results/scale.jsonl")
    parser.add_argument("--page", type=Path, help="put the tables into this page, as docs/scaling.md")
    parser.add_argument("--json", action="store_true", help="print the rows instead of the tables")
    options = parser.parse_args(arguments)
    if options.draws < 1:
        parser.error("--draws must be 1 or more")
    try:
        measured = Measured.of(read(options.shards), read(options.writes))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    rows = make_rows(measured, stamp_rows("scale"), draws=options.draws, seed=options.seed)
    if options.results:
        append(options.results, rows)
    if options.page:
        put(options.page, render(rows))
    print("\n".join(json.dumps(asdict(row)) for row in rows) if options.json else render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
