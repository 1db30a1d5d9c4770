"""What each named strategy gained or lost against BM25 where it was measured (`prices.json`).

`make report` writes the file from the rows of `bench/results/quality.jsonl`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("prices.json")
METRIC = "hit@5"
"""The metric of the one-line summary."""


@cache
def prices() -> dict[str, dict[str, dict[str, list[float]]]]:
    """``{strategy: {set: {metric: [difference to BM25, low, high]}}}``, in shares of questions.

    The interval is the wider of two bootstraps at 95 %, over questions and over conversations.
    """
    found: dict[str, dict[str, dict[str, list[float]]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def describe_price(name: str) -> str:
    """A strategy's differences in Hit@5 to BM25 in points, set by set; empty where it was not measured.

    The word "beware" stands before them where a set lost by more than chance, in any metric.
    """
    sets = prices().get(name, {})
    if not sets:
        return ""
    parts = []
    for dataset, metrics in sets.items():
        difference, low, high = (100.0 * value for value in metrics[METRIC])
        parts.append(f"{dataset} {difference:+.1f} [{low:+.1f}, {high:+.1f}]")
    beware = "beware: " if loses(name) else ""
    return f"{beware}Hit@5 to bm25 in points: {', '.join(parts)}"


def loses(name: str) -> bool:
    """Whether the strategy is below BM25 by more than chance in a metric on a set."""
    return any(high < 0.0 for metrics in prices().get(name, {}).values() for _, _, high in metrics.values())


def price_of(name: str) -> dict[str, Any]:
    """As plain JSON values: ``to_bm25`` by set and metric, and ``beware``."""
    return {"to_bm25": prices().get(name, {}), "beware": loses(name)}
