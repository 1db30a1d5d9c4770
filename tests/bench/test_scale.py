"""bench/scale.py: its formulas on rows whose answers are known, the same figures from the same rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Behind everything else, so that the folders there (engine, kernels) shadow no module.
sys.path.append(str(ROOT))
try:
    from bench import scale
finally:
    sys.path.remove(str(ROOT))

WRITES = [{"figures": {"peak_bytes_per_record": 400}, "date": "1"}, {"figures": {"records": 3}, "date": "2"}]


def shard_row(phase: str, case: str, shards: int, **fields: Any) -> dict[str, Any]:
    quantiles = [200.0] * 201
    row = {"run": "r2", "scheduling": "other", "k": 10, "fan_out": 20, "phase": phase, "case": case, "shards": shards}
    return {**row, "quantiles_us": quantiles, **fields}


def shard_rows(service: list[float] | None = None) -> list[dict[str, Any]]:
    moved = {"sent_bytes": 1_000, "received_bytes": 3_000}
    return [
        shard_row("service", "split", 1, records=1_000, quantiles_us=[100.0] * 201),
        shard_row("service", "split", 1, records=50_000, quantiles_us=service or [1_000.0] * 201),
        shard_row("fan-out", "split", 0),
        shard_row("fan-out", "split", 1, empty_p50_us=200.0, **moved),
        shard_row("fan-out", "split", 3, empty_p50_us=260.0, sent_bytes=3_000, received_bytes=5_000),
        shard_row("fan-out", "tenant", 1, empty_p50_us=200.0, sent_bytes=500, received_bytes=1_500),
        shard_row("agents", "tenant", 1, queries_per_s=10_000.0),
        # An older run, one by real-time priority, other k and other fan-outs count for nothing.
        {**shard_row("service", "split", 1, records=9_000_000), "run": "r1"},
        {**shard_row("service", "split", 1, records=9_000_000), "run": "r3", "scheduling": "rr"},
        shard_row("service", "split", 1, records=50_000, k=1_000, quantiles_us=[9_000.0] * 201),
        shard_row("fan-out", "split", 1, fan_out=5, empty_p50_us=900.0, sent_bytes=1, received_bytes=1),
    ]


def measured(service: list[float] | None = None) -> scale.Measured:
    return scale.Measured.of(shard_rows(service), WRITES)


def test_what_rows_say_of_one_shard() -> None:
    found = measured()
    assert found.message == 30.0  # (260 - 200) / (3 - 1)
    assert (found.record_bytes, found.queries_per_s, found.tenant_bytes) == (400, 10_000.0, 2_000)
    assert [found.batch_bytes(shards) for shards in (1, 3, 101)] == [4_000, 8_000, 204_000]
    # The next larger one that was measured; beyond the largest, in proportion.
    assert [found.service(records).max() for records in (10, 1_000, 1_001, 50_000, 200_000)] == [
        100,
        100,
        1e3,
        1e3,
        4e3,
    ]


def test_a_missing_row_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for phase in ("service", "agents"):
        with pytest.raises(ValueError, match=r"bench\.shards"):
            scale.Measured.of([row for row in shard_rows() if row["phase"] != phase], WRITES)
    with pytest.raises(ValueError, match=r"bench\.writes"):
        scale.Measured.of(shard_rows(), [])
    assert scale.main(["--shards", str(tmp_path / "none.jsonl")]) == 1
    assert "are to be taken first" in capsys.readouterr().err


def test_constant_times_give_the_formula() -> None:
    times = scale.simulate(measured(), 11, 50_000, draws=400)
    # The slowest of equal shards, Ray's message, and ten further messages: 1,000 + 200 + 10 * 30 us.
    assert (times.p50, times.p99) == (1.5, 1.5)
    # With stragglers, one of 11 shards is late in one fan-out of nine: the 99th percentile waits for it.
    assert times.straggling_p99 == 10.5
    # The second copy is asked once a shard is late, and answers in 1,200 us: 1,200 + 1,200 + 300 us.
    assert times.hedged_p99 == pytest.approx(2.7)
    assert 0.0 < times.asked_again < 0.05


def test_more_shards_are_never_faster() -> None:
    spread = [float(place) for place in range(201)]
    found = [scale.simulate(measured(spread), shards, 50_000, draws=500) for shards in (1, 4, 64, 1024)]
    for name in ("p50", "p99", "straggling_p99"):
        values = [getattr(each, name) for each in found]
        assert values == sorted(values)
        assert values[0] < values[-1]
    assert all(each.p50 <= each.p99 <= each.straggling_p99 and each.hedged_p99 <= each.straggling_p99 for each in found)
    # One uniform time has its median in the middle; of 64, the slowest is nearly the longest.
    assert found[0].p50 == pytest.approx(0.3, abs=0.02)
    assert found[2].p50 == pytest.approx(0.2 + 0.2 * 0.5 ** (1 / 64) + 63 * 0.03, rel=0.01)


def test_what_a_platform_needs() -> None:
    platform = scale.Platform.of(measured(), 1_000_000, 10_000_000_000)
    memory = 10_000_000_000 * 400 / 2**30
    assert platform.memory_gib == memory
    assert platform.queries_per_s == pytest.approx(1_000_000 * 100 * 20 * 3 / 86_400)
    assert platform.traffic_shards == 7  # 69,444 queries a second, 10,000 of a shard
    assert platform.shards == -(-memory // (24 * 0.7)) == 222
    assert platform.nodes == 111  # two shards of 24 GiB in 64 GiB
    assert (platform.largest, platform.parts) == (100_000_000, 5)
    small = scale.Platform.of(measured(), 1_000_000, 1_000_000)
    assert (small.shards, small.parts) == (7, 1)


def test_the_same_rows_give_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"shards": shard_rows([float(place) for place in range(201)]), "writes": WRITES}
    for name, rows in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--draws", "200", *(part for name in files for part in (f"--{name}", str(tmp_path / f"{name}.jsonl")))]
    page, results = tmp_path / "page.md", tmp_path / "scale.jsonl"
    page.write_text(f"above\n{scale.BEGIN}\nold\n{scale.END}\nbelow\n")
    assert scale.main([*given, "--page", str(page), "--results", str(results)]) == 0
    first, written = capsys.readouterr().out, page.read_text()
    assert scale.main([*given, "--page", str(page)]) == 0
    assert (capsys.readouterr().out, page.read_text()) == (first, written)
    assert written == f"above\n{scale.BEGIN}\n\n{first.strip()}\n\n{scale.END}\nbelow\n"
    assert scale.main([*given, "--seed", "1"]) == 0
    assert capsys.readouterr().out != first
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["shards"] for row in rows if row["phase"] == "fan-in"] == list(scale.FAN_INS)
    assert [row["records"] for row in rows if row["phase"] == "platform"] == list(scale.PLATFORMS)
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="has no"):
        scale.main([*given, "--page", str(page)])
    assert page.read_text() == "no marks\n"
