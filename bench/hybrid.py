"""Lexical, dense and fused evidence side by side, as rows: ``python -m bench.hybrid``.

One ``study`` row a dataset holds what `bench.study.study` returns. One ``batch`` row a dataset and strategy holds
milliseconds of 20 queries in one call and in 20 calls, query vectors given, and the stages of the one call.
"""

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fanrank.engine.errors import FanrankError
from fanrank.engine.evaluate import find_preset
from fanrank.engine.evaluate.encoders import describe_encoder
from fanrank.engine.evaluate.presets import LOADERS
from fanrank.engine.evaluate.protocol import engine_of

from .harness.command import Command, among
from .harness.paths import data_folder
from .harness.vectors import add_encoder, encoder_of, versions
from .study import study

DATASETS = {
    "locomo": ("locomo", "locomo/locomo10.json", "opsem"),
    "cranfield": ("beir", "cranfield", "default"),
    "scifact": ("beir", "scifact", "default"),
}
"""(kind, path below the data folder, preset)."""
STRATEGIES = ("bm25", "dense", "rrf", "fused", "minmax", "softcentroid", "softcentroid-fused")
BATCH = 20
K = 10
BATCHES = 5
REPETITIONS = 5


def batches(kind: str, path: Path, preset: str, model: Any) -> Iterator[dict[str, Any]]:
    """The ``batch`` rows of a dataset: medians over batches and repetitions, one call and many calls taking turns."""
    chosen = find_preset(preset, kind)
    dataset = LOADERS[kind](path, **chosen.reading)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every dataset whose data is present."""
    command = Command("hybrid", "Lexical, dense and fused evidence side by side.")
    command.add("--datasets", type=among(DATASETS), default=tuple(DATASETS))
    command.add("--no-batches", action="store_true", help="studies alone")
    add_encoder(command)
    options = command.parse(arguments)
    command.common |= {"versions": versions()}
    for name in options.datasets:
        kind, below, preset = DATASETS[name]
        path, started = data_folder() / below, time.perf_counter()
        try:
            model = encoder_of(options)
            found = study(kind, path, preset=preset, encoder=model)
            row = {"part": "study", "dataset": name, **found, "seconds": time.perf_counter() - started}
            command.keep([row])
            if not options.no_batches:
                command.keep({"dataset": name, **row} for row in batches(kind, path, preset, model))
        except FanrankError as error:
            command.keep([{"part": "study", "dataset": name, "error": str(error)}])
    return command.end()


if __name__ == "__main__":
    sys.exit(main())
