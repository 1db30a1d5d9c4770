"""What each part of a search on a CPU is worth: ``python -m bench.ablation``.

SciFact's questions by BM25 with and without compiled loops, pruning and a second thread, as the source takes its search
apart (A113). The variants take turns, each round times all of them, and the answers of all are compared to the bit with
the first. Two more rows are the analysis of the texts alone, compiled and in Python; every variant of the search
analyses by the compiled one. Appends the rows to ``bench/results/ablation.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fanrank.engine.engine import Engine
from fanrank.engine.evaluate import load_beir
from fanrank.engine.evaluate.tables import table
from fanrank.engine.text.analyzers import DEFAULT_ANALYZER, get_analyzer
from fanrank.engine.text.vocabulary import TermIndexer, Vocabulary

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
    """The hits of a batch by a variant."""
    return engine.search(texts, K, execution=variant.execution, threads=variant.threads)


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
    analyses = analyse_alone([record.text for record in dataset.records], texts)
    analysed: dict[str, list[float]] = {variant: [] for variant in analyses}
    equal: dict[Variant, bool] = {}
    for variant in VARIANTS:
        found = search(engines[variant.backend], texts, variant)
        equal[variant] = bool(np.array_equal(found.scores, first.scores) and np.array_equal(found.ids, first.ids))
    for _ in range(rounds):
        for variant in VARIANTS:
            engine = engines[variant.backend]
            started = time.perf_counter()
            search(engine, texts, variant)
            batches[variant].append(1e3 * (time.perf_counter() - started) / len(texts))
            started = time.perf_counter()
            for text in texts:
                search(engine, [text], variant)
            alone[variant].append(1e3 * (time.perf_counter() - started) / len(texts))
        for name_of, analyse in analyses.items():
            started = time.perf_counter()
            analyse()
            analysed[name_of].append(1e3 * (time.perf_counter() - started) / len(texts))
    shared = {"dataset": name, "n": len(texts), "rounds": rounds}
    return [
        {
            **shared,
            "k": K,
            "variant": variant.name,
            "backend": variant.backend,
            "execution": variant.execution,
            "threads": variant.threads,
            **_spread(batches[variant]),
            "alone_ms": statistics.median(alone[variant]),
            "verified": equal[variant],
        }
        for variant in VARIANTS
    ] + [{**shared, "variant": variant, "threads": 1, **_spread(spent)} for variant, spent in analysed.items()]


def analyse_alone(documents: Sequence[str], texts: Sequence[str]) -> dict[str, Callable[[], Any]]:
    """By name, what turns the texts into terms and nothing more."""
    indexer = TermIndexer(get_analyzer(DEFAULT_ANALYZER), Vocabulary())
    indexer.encode_documents(documents)
    return {
        "analysis alone, compiled": lambda: indexer.encode_queries(texts),
        "analysis alone, in Python": lambda: [indexer.encode_terms(indexer.analyzer(text)) for text in texts],
    }


def _spread(spent: Sequence[float]) -> dict[str, float]:
    return {"batch_ms": statistics.median(spent), "batch_ms_low": min(spent), "batch_ms_high": max(spent)}


def render(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text."""
    head = ["variant", "batch, ms a query", "least", "most", "alone, ms", "bit for bit"]
    body = (
        [
            row["variant"],
            *(f"{row[column]:.4f}" for column in ("batch_ms", "batch_ms_low", "batch_ms_high")),
            f"{row['alone_ms']:.4f}" if "alone_ms" in row else "",
            {True: "yes", False: "NO", None: ""}[row.get("verified")],
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
    return int(any(row.get("verified") is False for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
