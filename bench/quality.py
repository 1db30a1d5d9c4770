"""Retrieval quality of every analyzer and protocol, as rows: ``python -m bench.quality``.

Appends to ``bench/results/quality.jsonl`` one object an evaluation: what ``fanrank eval --json`` prints, with machine,
commit and date. Prints a table of the rows that it added.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from fanrank.engine.errors import FanrankError
from fanrank.engine.evaluate import evaluate
from fanrank.engine.text.analyzers import ANALYZERS

from .harness.code import code_of
from .harness.machine import commit, machine, now
from .harness.paths import RESULTS, data_folder

BEIR = ("scifact", "cranfield")
PROTOCOLS = ("agentir", "opsem", "default")
SHOWN = ("ndcg@10", "recall@100", "hit@1", "mrr")


def runs() -> list[tuple[str, str, dict[str, Any]]]:
    """(kind, path below the data folder, options) of every evaluation."""
    plain = [name for name in ANALYZERS if name != "opsem"]
    return [
        *(("beir", name, {"analyzer": analyzer}) for name in BEIR for analyzer in plain),
        *(("locomo", "locomo/locomo10.json", {"preset": preset}) for preset in PROTOCOLS),
        *(("locomo", "locomo/locomo10.json", {"analyzer": analyzer}) for analyzer in plain),
    ]


def main() -> None:
    """Run every evaluation whose data is present."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the rows instead of a table")
    as_json = parser.parse_args().json
    shared = {"machine": machine(), "commit": commit(), "code": code_of("quality")}
    rows = []
    for kind, path, options in runs():
        try:
            result = evaluate(kind, data_folder() / path, latency=None, **options)
        except FanrankError as error:
            result = {"dataset": path, **options, "error": str(error)}
        rows.append({"bench": "quality", **result, **shared, "date": now()})
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / "quality.jsonl").open("a", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in rows)
    if as_json:
        print(json.dumps(rows))
        return
    print("| dataset | preset | analyzer | n | " + " | ".join(SHOWN) + " |")
    print("|---|---|---|---|" + "---|" * len(SHOWN))
    for row in rows:
        metrics = row.get("metrics", {})
        values = [f"{metrics[name]:.4f}" if name in metrics else row.get("error", "") for name in SHOWN]
        names = [str(row.get(name)) for name in ("dataset", "preset", "analyzer", "n")]
        print(f"| {' | '.join(names + values)} |")


if __name__ == "__main__":
    main()
