"""The report's section on memories with typed records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .format import NONE, sentence, table
from .rows import Fields, Recorded, choose_newest, stamp

COMPARED = ("fused", "bm25", "recall-source")


def typed(recorded: Recorded) -> list[str]:
    """Hit@1 and Hit@5 of each system, the differences of `recall`, and both by category."""
    rows = {str(name): row for (name,), row in choose_newest(recorded.of("typed"), "dataset").items()}
    if not rows:
        return [f"{NONE}: `python -m bench.typed`."]
    systems = list(next(iter(rows.values()))["systems"])
    body = [
        [name, f"{row['n']:,}", *(_pair(row["systems"][system]) for system in systems)] for name, row in rows.items()
    ]
    differences = [
        [name, other, *(_difference(row, other, "all", metric) for metric in ("hit@1", "hit@5", "ndcg@10"))]
        for name, row in rows.items()
        for other in COMPARED
    ]
    kinds = [
        [
            name,
            label,
            f"{own['n']:,}",
            *(_pair(own["systems"][system]) for system in systems),
            _difference(row, "fused", label, "hit@5"),
        ]
        for name, row in rows.items()
        for label, own in row["categories"].items()
    ]
    return [
        f"{sentence(stamp(rows.values()))}. Memories of `bench/harness/typed.py`: LoCoMo's turns without types, with "
        "types by rule and at random; tool dialogues of SGD; LoCoMo's sessions as events. Hit@1 / Hit@5.",
        table(["data set", "questions", *systems], body),
        "`recall` less the others, in points, with 95 % intervals of a paired bootstrap over questions:\n\n"
        + table(["data set", "other", "hit@1", "hit@5", "ndcg@10"], differences),
        "By category, and by whether the types that a question hints at are those of an answer:\n\n"
        + table(["data set", "category", "questions", *systems, "recall - fused, hit@5"], kinds),
    ]


def _pair(scores: Mapping[str, float]) -> str:
    return f"{scores['hit@1']:.4f} / {scores['hit@5']:.4f}"


def _difference(row: Fields, other: str, category: str, metric: str) -> str:
    wanted: dict[str, Any] = {"second": other, "category": category, "metric": metric}
    for own in row["differences"]:
        if all(own[key] == value for key, value in wanted.items()):
            return f"{100 * own['difference']:+.2f} [{100 * own['low']:+.2f}, {100 * own['high']:+.2f}]"
    return ""
