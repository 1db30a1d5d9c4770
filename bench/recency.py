"""What recency can give, and how much it depends on its constants: ``python -m bench.recency``.

Appends to ``bench/results/recency.jsonl`` a row a part and data set, LoCoMo and the subset of LongMemEval:

- ``age``: how recent the gold records are, by type of question (A067)
- ``grid``: R@10 of `agent_rrf` over alpha and tau, on the types that the source calls recent (A066)
- ``ranks``: R@5 of `rrf` over its k (A070)

Vectors come from ``--embeddings``, or are made anew.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fanrank.engine.encoders.encoder import Encoder
from fanrank.engine.engine import Engine
from fanrank.engine.errors import RecencyWarning
from fanrank.engine.evaluate import Dataset, Preset, find_preset, rank
from fanrank.engine.evaluate.encoders import DEFAULT_ENCODER, describe_encoder, open_encoder
from fanrank.engine.evaluate.presets import LOADERS
from fanrank.engine.evaluate.protocol import default_depth, engine_of, prepare_dataset
from fanrank.engine.evaluate.recency import gold_recency
from fanrank.engine.evaluate.tables import table
from fanrank.engine.fuse.agent_rrf import AgentRRF
from fanrank.engine.fuse.fusion import Fusion
from fanrank.engine.fuse.rrf import RRF
from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.metrics.bootstrap import paired_bootstrap

from .harness.code import code_of
from .harness.machine import commit, machine, now
from .harness.paths import RESULTS, data_folder

SETS = {
    "locomo": "locomo/locomo10.json",
    "longmemeval": "longmemeval_subset/longmemeval_s_3haystacks.json",
}
PRESET = "opsem"
ALPHAS = (0.001, 0.003, 0.005, 0.010, 0.030)
TAUS = (7.0, 14.0, 30.0, 60.0, 120.0)
KS = (10, 20, 30, 60, 100)
RECENT = ("temporal", "multi-hop", "temporal-reasoning", "multi-session", "knowledge-update")
"""Types whose questions the source calls recent, and LoCoMo's names of two of them."""


class Bench:
    """A data set under one protocol, in one engine with vectors of turns."""

    def __init__(self, kind: str, encoder: Encoder) -> None:
        self.preset: Preset = find_preset(PRESET, kind)
        self.dataset: Dataset = LOADERS[kind](data_folder() / SETS[kind], **self.preset.reading)
        self.engine: Engine = engine_of(self.dataset, self.preset, encoder=encoder)

    def values(self, fusion: Fusion, metric: str, *, recent: bool = False) -> Any:
        """The metric of BM25 and vectors under a fusion, [questions]; of recent types alone where asked."""
        strategy = replace(NAMED["rrf"], name="swept", fusion=fusion)
        dataset = prepare_dataset(self.dataset, strategy, "none")
        if recent:
            queries = [query for query in dataset.queries if dataset.categories[str(query.id)] in RECENT]
            relevant = {str(query.id): dataset.relevant[str(query.id)] for query in queries}
            dataset = replace(dataset, queries=queries, relevant=relevant)
        depth = default_depth(self.dataset)
        found = rank(self.engine, dataset, k=depth, complete=self.preset.complete, strategy=strategy)
        return found.values[metric]


def sweep_grid(bench: Bench) -> dict[str, Any]:
    """R@10 for each alpha and tau, without and with what the default has: the paired difference from plain ranks."""
    plain = bench.values(RRF(), "recall@10", recent=True)
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecencyWarning)  # alpha .030 is there to show the harm
        for alpha in ALPHAS:
            for tau in TAUS:
                fusion = AgentRRF(alpha=alpha, tau_days=tau, tau_days_by_type=None, recency_types=None)
                found = bench.values(fusion, "recall@10", recent=True)
                compared = paired_bootstrap(found, plain)
                rows.append(
                    {
                        "alpha": alpha,
                        "tau_days": tau,
                        "recall@10": float(found.mean()),
                        "difference": compared.difference,
                        "low": compared.low,
                        "high": compared.high,
                    }
                )
    return {"n": len(plain), "rrf": float(plain.mean()), "rows": rows}


def sweep_ranks(bench: Bench) -> dict[str, Any]:
    """R@5 of reciprocal ranks for each k."""
    found = {k: bench.values(RRF(k=k), "recall@5") for k in KS}
    rows = [{"k": k, "recall@5": float(values.mean())} for k, values in found.items()]
    return {"n": len(bench.dataset.queries), "rows": rows}


def measure(kind: str, encoder: Encoder) -> Iterator[dict[str, Any]]:
    """The rows of a data set."""
    bench = Bench(kind, encoder)
    for part, work in (
        ("age", lambda: {"n": len(bench.dataset.queries), "types": gold_recency(bench.dataset)}),
        ("grid", lambda: sweep_grid(bench)),
        ("ranks", lambda: sweep_ranks(bench)),
    ):
        yield {"part": part, "dataset": kind, "preset": PRESET, **work(), "encoder": describe_encoder(encoder)}


def render(row: Mapping[str, Any]) -> str:
    """A row as text."""
    title = f"{row['part']}, {row['dataset']}, n = {row['n']:,}"
    if row["part"] == "age":
        body = [
            [name, str(of["n"]), f"{of['median_rank']:.2f}", f"{of['median_age_days']:.1f}"]
            for name, of in row["types"].items()
        ]
        return f"{title}\n{table(['type', 'n', 'median recency rank', 'median age, days'], body)}"
    if row["part"] == "ranks":
        body = [[str(of["k"]), f"{of['recall@5']:.4f}"] for of in row["rows"]]
        return f"{title}\n{table(['k', 'R@5'], body)}"
    cells = {(of["alpha"], of["tau_days"]): f"{of['recall@10']:.4f}" for of in row["rows"]}
    body = [[f"{alpha:.3f}", *(cells[alpha, tau] for tau in TAUS)] for alpha in ALPHAS]
    return f"{title}, rrf {row['rrf']:.4f}\n{table(['alpha', *(f'tau {tau:g}' for tau in TAUS)], body)}"


def main() -> None:
    """Measure every data set, print and append the rows."""
    parser = argparse.ArgumentParser(prog="python -m bench.recency", description=__doc__)
    parser.add_argument("--encoder", default=DEFAULT_ENCODER)
    parser.add_argument("--embeddings", type=Path, help="a file that keeps vectors; without it they are made anew")
    options = parser.parse_args()
    if options.encoder == DEFAULT_ENCODER:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    shared = {"machine": machine(), "commit": commit(), "code": code_of("recency")}
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        encoder = open_encoder(options.encoder, options.embeddings or Path(folder) / "vectors.db")
        for kind in SETS:
            for row in measure(kind, encoder):
                print(render(row), end="\n\n", flush=True)
                with (RESULTS / "recency.jsonl").open("a", encoding="utf-8") as handle:
                    handle.write(json.dumps({"bench": "recency", **row, **shared, "date": now()}) + "\n")


if __name__ == "__main__":
    main()
