"""What hints are worth on memories with typed records, as rows: ``python -m bench.typed``.

Appends to ``bench/results/typed.jsonl`` a row for each data set of `bench/harness/typed.py` and for LoCoMo's sessions:
the metrics of BM25, plain fusions, ``recall``, ``recall`` without hints and ``recall-source``, and paired bootstrap
differences of ``recall`` to the others, over all questions and by category. Categories are the data set's own, and
``hint agrees``, ``hint misleads`` and ``no hint``: whether the types that `recall` reads in a question are those of an
answer.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fanrank.engine.engine import Engine
from fanrank.engine.evaluate.dataset import Dataset
from fanrank.engine.evaluate.encoders import DEFAULT_ENCODER, describe_encoder, open_encoder
from fanrank.engine.evaluate.locomo import load_locomo
from fanrank.engine.evaluate.protocol import Evaluation, prepare_dataset, rank
from fanrank.engine.evaluate.tables import table
from fanrank.engine.hybrid.strategy import NAMED, Strategy
from fanrank.engine.metrics.bootstrap import paired_bootstrap
from fanrank.engine.recall.optimizer import Optimizer

from .harness.code import code_of
from .harness.machine import commit, machine, now
from .harness.paths import RESULTS, data_folder
from .harness.typed import SETS
from .hybrid import versions

K = 100
METRICS = ("hit@1", "hit@5", "ndcg@10", "mrr")
COMPARED = METRICS[:3]
RECALL = "recall"
REFERENCES = ("bm25", "fused")
"""The systems with which `recall` is compared by category too."""
SYSTEMS: dict[str, Strategy] = {
    **{name: NAMED[name] for name in ("bm25", "rrf", "fused", RECALL)},
    "recall, no hints": replace(NAMED[RECALL], optimizer=Optimizer(hints=False)),
    "recall-source": NAMED["recall-source"],
}
LEAST = 10
"""Categories of fewer questions get no difference of their own."""


def sessions(data: Path) -> Dataset:
    """LoCoMo with a record for each session, of type Event."""
    return replace(load_locomo(data / "locomo" / "locomo10.json", events=True), name="locomo-sessions")


DATASETS: dict[str, Callable[[Path], Dataset]] = {**SETS, "locomo-sessions": sessions}


def measure(dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """The row of a data set, whose records the engine holds."""
    found: dict[str, Evaluation] = {}
    for name, strategy in SYSTEMS.items():
        found[name] = rank(engine, prepare_dataset(dataset, strategy, "none"), k=K, complete=False, strategy=strategy)
    places = _places(dataset, found[RECALL])
    return {
        "dataset": dataset.name,
        "n": len(dataset.queries),
        "records": len(dataset.records),
        "backend": engine.backend.name,
        "encoder": describe_encoder(engine.encoder),
        "systems": {name: _means(own, slice(None)) for name, own in found.items()},
        "categories": {
            label: {"n": len(chosen), "systems": {name: _means(own, chosen) for name, own in found.items()}}
            for label, chosen in places.items()
        },
        "differences": [
            {"second": other, "category": label, "metric": metric, **_compare(found, other, metric, chosen)}
            for label, chosen in {"all": list(range(len(dataset.queries))), **places}.items()
            if label == "all" or len(chosen) >= LEAST
            for other in (SYSTEMS if label == "all" else REFERENCES)
            if other != RECALL
            for metric in COMPARED
        ],
    }


def _places(dataset: Dataset, evaluation: Evaluation) -> dict[str, list[int]]:
    """The questions of each category, by their places."""
    kinds = {(record.namespace, record.id): record.type for record in dataset.records}
    assert evaluation.decisions is not None
    places: dict[str, list[int]] = {}
    for place, (query, decision) in enumerate(zip(dataset.queries, evaluation.decisions, strict=True)):
        name = str(query.id)
        agrees = any(kinds[query.namespace, record] in decision.hints for record in dataset.relevant[name])
        hint = ("hint agrees" if agrees else "hint misleads") if decision.hints else "no hint"
        for label in (dataset.categories[name].split(",")[0], hint):
            places.setdefault(label, []).append(place)
    return dict(sorted(places.items()))


def _means(evaluation: Evaluation, chosen: Any) -> dict[str, float]:
    return {metric: float(np.mean(evaluation.values[metric][chosen])) for metric in METRICS}


def _compare(found: Mapping[str, Evaluation], other: str, metric: str, chosen: list[int]) -> dict[str, float]:
    """`recall` less another system: difference, bounds of the 95 % interval, p."""
    first, second = (found[name].values[metric][chosen] for name in (RECALL, other))
    whole = asdict(paired_bootstrap(first, second))
    return {key: whole[key] for key in ("difference", "low", "high", "p")}


def render(row: Mapping[str, Any]) -> str:
    """A row as text."""
    head = ["hit@1", "hit@5", "ndcg@10"]
    lines = [[name, *(f"{own[metric]:.4f}" for metric in head)] for name, own in row["systems"].items()]
    parts = [f"{row['dataset']}, n = {row['n']:,}", table(["", *head], lines)]
    lost = [
        f"recall - {own['second']}, {own['category']}, {own['metric']}: "
        f"{100 * own['difference']:+.2f} [{100 * own['low']:+.2f}, {100 * own['high']:+.2f}]"
        for own in row["differences"]
        if own["high"] < 0.0 or (own["category"] == "all" and own["metric"] == "hit@5")
    ]
    return "\n".join([*parts, *lost])


def main() -> None:
    """Measure the chosen data sets."""
    parser = argparse.ArgumentParser(prog="python -m bench.typed", description=__doc__)
    parser.add_argument("--sets", default=",".join(DATASETS), help=f"some of {', '.join(DATASETS)}")
    parser.add_argument("--encoder", default=DEFAULT_ENCODER)
    parser.add_argument("--embeddings", type=Path, help="a file that keeps vectors; without it they are made anew")
    options = parser.parse_args()
    if options.encoder == DEFAULT_ENCODER:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    shared = {"machine": machine(), "versions": versions(), "commit": commit(), "code": code_of("typed")}
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        encoder = open_encoder(options.encoder, options.embeddings or Path(folder) / "vectors.db")
        for name in options.sets.split(","):
            dataset = DATASETS[name](data_folder())
            engine = Engine(encoder=encoder)
            engine.add(dataset.records)
            row = {"bench": "typed", **measure(dataset, engine), **shared, "date": now()}
            print(render(row), end="\n\n", flush=True)
            with (RESULTS / "typed.jsonl").open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
