"""The report's sections on quality, several kinds of evidence, and dense search."""

from collections.abc import Mapping
from typing import Any

from .format import Fields, number, score, sentence, table, tabulate
from .rows import Recorded, choose_newest, machine, no_row, note_stale, stamp


def quality_rows(recorded: Recorded) -> dict[tuple[Any, ...], Fields]:
    """The newest row of each (data set, preset, analyzer)."""
    return choose_newest([row for row in recorded.of("quality") if "part" not in row], "dataset", "preset", "analyzer")


def quality(recorded: Recorded) -> list[str]:
    """The section on quality."""
    rows = quality_rows(recorded)
    if not rows:
        return [no_row("quality")]
    names = ("hit@1", "hit@5", "hit@10", "mrr", "ndcg@10", "recall@100")
    body = [
        [*map(str, key), f"{row['n']:,}", *(score(row["metrics"].get(name)) for name in names)]
        for key, row in rows.items()
    ]
    return [
        f"{sentence(stamp(rows.values()))}. `agentir` and `opsem` are the protocols of two papers, whose figures they "
        "meet to the digit (R40, R41); `default` is what `Engine` does unasked.",
        table(["data set", "preset", "analyzer", "questions", *names], body),
    ]


def languages(recorded: Recorded) -> list[str]:
    """The section on languages."""
    rows = choose_newest(recorded.of("languages"), "language")
    if not rows:
        return [no_row("languages")]
    systems = list(next(iter(rows.values()))["systems"])
    body = [
        [name, *(" / ".join(f"{own:.2f}" for own in row["systems"].get(system, {}).values()) for system in systems)]
        for (name,), row in rows.items()
    ]
    return [f"{sentence(stamp(rows.values()))}.", table(["Hit@1 / Hit@5 of 20", *systems], body)]


def studies(recorded: Recorded) -> dict[str, Fields]:
    """The newest study of strategies of every data set."""
    rows = [row for row in recorded.of("hybrid") if row["part"] == "study"]
    return {dataset: row for (dataset,), row in choose_newest(rows, "dataset").items()}


def study_score(row: Fields, system: str) -> float | None:
    """A system's figure in a study: Hit@1 on conversations, the study's metric elsewhere."""
    found = row["systems"].get(system)
    metric = row.get("metric", "hit@1")
    return found.get(metric) if isinstance(found, Mapping) else found


def batches(recorded: Recorded) -> dict[tuple[Any, ...], Fields]:
    """The newest row that compares one call with a call a query, for each (data set, strategy)."""
    return choose_newest([row for row in recorded.of("hybrid") if row["part"] == "batch"], "dataset", "strategy")


def hybrid(recorded: Recorded) -> list[str]:
    """The section on several kinds of evidence."""
    found = studies(recorded)
    if not found:
        return [no_row("hybrid")]
    parts = [
        f"{sentence(stamp(found.values()))}; {machine(found.values())}; vectors of "
        f"{', '.join(dict.fromkeys(row['encoder']['name'] for row in found.values()))}. Intervals and more: "
        "[docs/hybrid.md](../docs/hybrid.md)."
    ]
    for dataset, row in found.items():
        metric = row.get("metric", "hit@1")
        scores = {system: study_score(row, system) for system in row["systems"]}
        body = [[score(value) for value in scores.values()]]
        parts.append(f"{dataset}, {row['n']:,} questions, {metric}:\n\n{table(list(scores), body)}")
    columns = {"data set": "dataset", "strategy": "strategy", "queries": "queries", "one call, ms": "one_call_ms"}
    columns |= {"a call a query, ms": "calls_ms", "ratio": "ratio"}
    parts.append("One call for a batch against a call a query:\n\n" + tabulate(batches(recorded).values(), columns))
    return parts


def dense(recorded: Recorded) -> list[str]:
    """The section on dense search: one line a (documents, k, system), one column a batch size."""
    rows = choose_newest(recorded.of("dense"), "documents", "k", "system", "batch")
    if not rows:
        return [no_row("dense")]
    sizes = sorted({batch for _, _, _, batch in rows})
    lines = dict.fromkeys((documents, k, system) for documents, k, system, _ in rows)
    body = []
    for documents, k, system in sorted(lines, key=lambda line: line[:2]):
        own = {batch: rows[documents, k, system, batch] for batch in sizes if (documents, k, system, batch) in rows}
        recall = min(row["recall"] for row in own.values())
        verified = {row["verified"] for row in own.values()} - {None}
        checked = "yes" if verified == {True} else "NO" if verified else ""
        cells = [number(own[batch]["ms_per_query"]) if batch in own else "" for batch in sizes]
        body.append([f"{documents:,}", str(k), system, *cells, f"{recall:.4f}", checked])
    head = ["vectors", "k", "system", *(f"batch {size}" for size in sizes), "least recall", "bit for bit"]
    return [
        f"{sentence(stamp(rows.values()))}; {machine(rows.values())}, one thread. Milliseconds a query; -looped: one "
        "query a call. [docs/hybrid.md](../docs/hybrid.md).",
        table(head, body),
    ]


REACHED = {
    "SciFact nDCG@10": ("ndcg@10", "scifact", "default", "agent"),
    "SciFact Recall@100": ("recall@100", "scifact", "default", "agent"),
    "LoCoMo Hit@1, `--preset agentir`": ("hit@1", "locomo", "agentir", "minimal"),
    "LoCoMo Hit@1, `--preset opsem`": ("hit@1", "locomo", "opsem", "opsem"),
    "LoCoMo Hit@1": ("hit@1", "locomo", "default", "agent"),
}
"""What docs/figures.md says of words: metric, data set, preset and analyzer."""
WITH_VECTORS = {
    **{"LoCoMo Hit@1, fused": ("locomo", "fused"), "LoCoMo Hit@1, fused, stronger words": ("locomo", "fused-stronger")},
    **{"SciFact nDCG@10, reciprocal ranks": ("scifact", "rrf"), "Cranfield nDCG@10": ("cranfield", "bm25")},
    "Cranfield nDCG@10, reciprocal ranks": ("cranfield", "rrf"),
}
"""What it says of studies: data set and system."""


def block(recorded: Recorded) -> str:
    """The block of docs/figures.md."""
    rows, found, calls = quality_rows(recorded), studies(recorded), batches(recorded)
    body = [
        [what, f"{rows[key]['n']:,}" if key in rows else "", score(rows[key]["metrics"][metric]) if key in rows else ""]
        for what, (metric, *own) in REACHED.items()
        for key in [tuple(own)]
    ]
    for what, (dataset, system) in WITH_VECTORS.items():
        row = found.get(dataset)
        body.append([what, f"{row['n']:,}" if row else "", score(study_score(row, system)) if row else ""])
    if not all(cells[2] for cells in body) or not calls:
        return no_row("quality")
    ratios = [row["ratio"] for row in calls.values()]
    most = max(row["queries"] for row in calls.values())
    encoder = found["locomo"]["encoder"]["name"]
    told = (
        f"A batch of {most} lookups in one call costs {number(min(ratios), 2)} to {number(max(ratios), 2)} of {most} "
        f"calls ([hybrid.md](hybrid.md)). Vectors are of {encoder}."
    )
    note = note_stale([*rows.values(), *found.values(), *calls.values()])
    return "\n\n".join(filter(None, [table(["", "questions", "found"], body), told, note]))
