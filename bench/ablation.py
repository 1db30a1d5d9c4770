"""What each part of a search on a CPU is worth: ``python -m bench.ablation``.

SciFact's questions by BM25 with and without compiled loops, pruning and a second thread, as the source takes its search
apart (A113). The variants take turns, each round times all of them, and the answers of all are compared to the bit with
the first. Appends a row a variant to ``bench/results/ablation.jsonl``. ``analyse`` is the share of a batch that goes
into analysing its texts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fanrank.engine.engine import Engine
from fanrank.engine.evaluate import load_beir
from fanrank.engine.evaluate.tables import table

from .harness.code import code_of
from .harness.machine import commit, machine, now
from .harness.paths import RESULTS, data_folder

K = 100


@dataclass(frozen=True)
class Variant:
    """One way to the same answers."""

    name: str
    backend: str
    execution: str
    threads: int = 1


VARIANTS = (
    Variant("vectorised loops", "numpy", "exhaustive"),
    Variant("vectorised loops, pruned", "numpy", "pruned"),
    Variant("compiled loops", "native", "exhaustive"),
    Variant("compiled loops, pruned", "native", "pruned"),
    Variant("compiled loops, the faster of both", "native", "auto"),
    Variant("compiled loops, the faster of both, 2 threads", "native", "auto", 2),
)


def search(engine: Engine, texts: Sequence[str], variant: Variant) -> Any:
    """The hits of a batch by a variant, with the times of its stages."""
    return engine.search(texts, K, execution=variant.execution, threads=variant.threads, timing=True)


def measure(name: str, rounds: int) -> list[dict[str, Any]]:
    """The rows of a BEIR set below the data folder."""
    dataset = load_beir(data_folder() / name)
    texts = [query.text for query in dataset.queries]
    engines = {backend: Engine(backend=backend) for backend in dict.fromkeys(each.backend for each in VARIANTS)}
    for engine in engines.values():
        engine.add(dataset.records)
    first = search(engines[VARIANTS[0].backend], texts, VARIANTS[0])
    batches: dict[Variant, list[float]] = {variant: [] for variant in VARIANTS}
    alone: dict[Variant, list[float]] = {variant: [] for variant in VARIANTS}
    shares: dict[Variant, list[float]] = {variant: [] for variant in VARIANTS}
    equal: dict[Variant, bool] = {}
    for variant in VARIANTS:
        found = search(engines[variant.backend], texts, variant)
        equal[variant] = bool(np.array_equal(found.scores, first.scores) and np.array_equal(found.ids, first.ids))
    for _ in range(rounds):
        for variant in VARIANTS:
            engine = engines[variant.backend]
            started = time.perf_counter()
            found = search(engine, texts, variant)
            batches[variant].append(1e3 * (time.perf_counter() - started) / len(texts))
            stages = dict(found.timing or {})
            shares[variant].append(stages.get("analyse", 0.0) / max(sum(stages.values()), 1e-9))
            started = time.perf_counter()
            for text in texts:
                search(engine, [text], variant)
            alone[variant].append(1e3 * (time.perf_counter() - started) / len(texts))
    return [
        {
            "dataset": name,
            "n": len(texts),
            "k": K,
            "variant": variant.name,
            "backend": variant.backend,
            "execution": variant.execution,
            "threads": variant.threads,
            "rounds": rounds,
            "batch_ms": statistics.median(batches[variant]),
            "batch_ms_low": min(batches[variant]),
            "batch_ms_high": max(batches[variant]),
            "alone_ms": statistics.median(alone[variant]),
            "analyse": statistics.median(shares[variant]),
            "verified": equal[variant],
        }
        for variant in VARIANTS
    ]


def render(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text."""
    head = ["variant", "batch, ms a query", "least", "most", "alone, ms", "analysis, %", "bit for bit"]
    body = (
        [
            row["variant"],
            *(f"{row[column]:.4f}" for column in ("batch_ms", "batch_ms_low", "batch_ms_high", "alone_ms")),
            f"{100 * row['analyse']:.0f}",
            "yes" if row["verified"] else "NO",
        ]
        for row in rows
    )
    return table(head, body)


def main() -> int:
    """Measure, print and append the rows. Returns 1 if a variant's answers differ."""
    parser = argparse.ArgumentParser(prog="python -m bench.ablation", description=__doc__)
    parser.add_argument("--dataset", default="scifact", help="a BEIR set below the data folder")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rows = measure(options.dataset, options.rounds)
    print(render(rows))
    shared = {"machine": machine(), "commit": commit(), "code": code_of("ablation"), "date": now()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / "ablation.jsonl").open("a", encoding="utf-8") as handle:
        handle.writelines(json.dumps({"bench": "ablation", **row, **shared}) + "\n" for row in rows)
    return int(not all(row["verified"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
