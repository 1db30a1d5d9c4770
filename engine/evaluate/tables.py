"""Renders a study as tables of aligned text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..metrics.bootstrap import format_p

_TIMES = ("mean_ms", "p50_ms", "p95_ms", "p99_ms")
_SHOWN = ("hit@1", "hit@5", "hit@10", "recall@1", "recall@3", "recall@5", "recall@100", "mrr", "ndcg@5", "ndcg@10")


def render(study: Mapping[str, Any]) -> str:
    """The tables of a comparison of systems, with blank lines between them.

    Differences are in points, hundredths of the metric, with their 95 % interval, and p as it is and by Holm.
    """
    systems = study["systems"]
    shown = study.get("metrics") or [name for name in _SHOWN if all(name in values for values in systems.values())]
    clusters = f", {study['clusters']} clusters" if "clusters" in study else ""
    parts = [
        f"{study['dataset']}: {study['n']:,} questions{clusters}"
        + (f", {describe(study)}" if "analyzer" in study else ""),
        table(["", *shown], ([name, *(_share(values[m]) for m in shown)] for name, values in systems.items())),
    ]
    if study["differences"]:
        head = [f"difference of {study.get('metric', 'hit@1')}", "points", "low", "high", "p", "p (Holm)"]
        differences = (
            [
                f"{row['first']} - {row['second']}",
                *(f"{100 * row[end]:+.2f}" for end in ("difference", "low", "high")),
                *(format_p(row[p]) for p in ("p", "p_holm")),
            ]
            for row in study["differences"]
        )
        parts.append(table(head, differences))
    if study.get("latency"):
        timed = study["latency"]
        head = ["ms a query, warm", *(name.removesuffix("_ms") for name in _TIMES), "in a batch", "n"]
        rows = (
            [name, *(f"{times[each]:.2f}" for each in (*_TIMES, "batch_ms_per_query")), str(times["n"])]
            for name, times in timed.items()
        )
        parts.append(table(head, rows))
    return "\n\n".join(parts)


def describe(result: Mapping[str, Any]) -> str:
    """How a result's records were analysed, scored and encoded, for its header."""
    scoring = result["parameters"]
    model = result["encoder"]
    return (
        f"preset {result['preset']}, analyzer {result['analyzer']}, method {scoring['method']}, k1 {scoring['k1']:g}, "
        f"b {scoring['b']:g}"
        + ("" if model is None else f", encoder {model['name']}{' (the default)' if 'default' in model else ''}")
        + ("" if result["backend"] is None else f", backend {result['backend']}")
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows as lines of text. The first column is aligned left, the others right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def _share(value: float) -> str:
    return f"{value:.4f}"
