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


def block(recorded: Recorded) -> str:
    """The block of docs/figures.md."""
    rows = quality_rows(recorded)

    def reached(metric: str, *key: str) -> str:
        row = rows.get(key)
        return f"{row['metrics'][metric]:.4f}" if row else "no row"

    def asked(*key: str) -> str:
        row = rows.get(key)
        return f"{row['n']:,} questions" if row else "no row"

    agentir, opsem = ("locomo", "agentir", "minimal"), ("locomo", "opsem", "opsem")
    told = (
        f"`quality.jsonl`: SciFact nDCG@10 {reached('ndcg@10', 'scifact', 'default', 'agent')} and Recall@100 "
        f"{reached('recall@100', 'scifact', 'default', 'agent')} with the default analyzer; LoCoMo Hit@1 "
        f"{reached('hit@1', *agentir)} under `--preset agentir` ({asked(*agentir)}), {reached('hit@1', *opsem)} under "
        f"`--preset opsem` ({asked(*opsem)}), {reached('hit@1', 'locomo', 'default', 'agent')} with the defaults."
    )
    found = studies(recorded)
    if "locomo" in found:
        encoder = found["locomo"]["encoder"]["name"]
        told += (
            f"\nWith vectors of {encoder} (`hybrid.jsonl`): LoCoMo Hit@1 {_study(found, 'locomo', 'fused')} fused, "
            f"{_study(found, 'locomo', 'fused-stronger')} fused with the stronger words"
        )
        for dataset in ("scifact", "cranfield"):
            if dataset in found:
                lexical, ranks = (_study(found, dataset, system) for system in ("bm25", "rrf"))
                told += f"; {dataset} nDCG@10 {ranks} by reciprocal ranks, from {lexical} by words"
        told += "."
    ratios = [row["ratio"] for row in batches(recorded).values()]
    if ratios:
        most = max(row["queries"] for row in batches(recorded).values())
        told += (
            f"\nA batch of {most} lookups in one call costs {number(min(ratios), 2)} to {number(max(ratios), 2)} of "
            f"{most} calls ([hybrid.md](hybrid.md))."
        )
    note = note_stale([*rows.values(), *found.values(), *batches(recorded).values()])
    return "\n".join(filter(None, [told, note]))


def _study(found: dict[str, Fields], dataset: str, system: str) -> str:
    value = study_score(found[dataset], system)
    return "no row" if value is None else f"{value:.4f}"
