"""The report's section on named strategies."""

from __future__ import annotations

from fanrank.engine.hybrid.strategy import NAMED
from fanrank.engine.route.policy import POLICIES

from .format import NONE, percent, sentence, table
from .rows import Fields, Recorded, choose_newest, machine, note_stale, stamp

METRICS = {"hit@1": "Hit@1", "hit@5": "Hit@5", "ndcg@10": "nDCG@10"}


def strategy_rows(recorded: Recorded) -> dict[str, Fields]:
    """The newest row of each set that compares the named strategies, with those that still have their name."""
    rows = [row for row in recorded.of("quality") if row.get("part") == "strategies"]
    newest = {dataset: row for (dataset,), row in choose_newest(rows, "dataset").items()}
    return {
        dataset: {
            **row,
            "systems": {name: values for name, values in row["systems"].items() if name in NAMED or name in POLICIES},
        }
        for dataset, row in newest.items()
    }


def interval(test: Fields) -> tuple[float, float, float]:
    """The difference and the wider of its intervals, over questions and over conversations."""
    low = min(test["low"], test.get("cluster_low", test["low"]))
    high = max(test["high"], test.get("cluster_high", test["high"]))
    return test["difference"], low, high


def strategies(recorded: Recorded) -> list[str]:
    """The section on named strategies: a table a set, the best nDCG first."""
    rows = strategy_rows(recorded)
    if not rows:
        return [f"{NONE}: `make quality`."]
    parts = [
        f"{sentence(stamp(rows.values()))}; {machine(rows.values())}. Differences are points to `bm25` on all "
        "questions, with the wider of two paired bootstraps at 95 %, over questions and over conversations. Half: on "
        "the half of the conversations that tuned nothing."
    ]
    for dataset, row in rows.items():
        body = []
        for name, values in sorted(row["systems"].items(), key=lambda item: -item[1]["ndcg@10"]):
            told = []
            for metric in METRICS:
                test = values["to"].get("bm25", {}).get("all", {}).get(metric)
                told.append("" if test is None else "{:+.1f} [{:+.1f}, {:+.1f}]".format(*scaled(interval(test))))
            skip = percent(values["skip"], 0) if "skip" in values else ""
            means = [f"{values[metric]:.4f}" for metric in METRICS]
            body.append([name, *means, *told, f"{values['report']['hit@5']:.4f}", skip])
        head = [
            "strategy",
            *METRICS.values(),
            *(f"{name} to bm25" for name in METRICS.values()),
            "Hit@5, half",
            "skips",
        ]
        profile = row["profile"]
        left = f" Left out: {', '.join(row['left_out'])}." if row["left_out"] else ""
        parts.append(
            f"**{dataset}**: {row['n']:,} questions, {row['documents']:,} records, profile `{profile['name']}`, "
            f"analyzer `{row['analyzer']}`.{left}\n\n{table(head, body)}"
        )
    return parts


def scaled(values: tuple[float, ...]) -> list[float]:
    """In points."""
    return [100.0 * value for value in values]


def block(recorded: Recorded) -> str:
    """The table of docs/figures.md: BM25, ``fused``, ``auto`` and the named strategies of the papers, by set."""
    rows = strategy_rows(recorded)
    if not rows:
        return "No row yet: `make quality`.\n"
    shown = ("bm25", "fused", "auto", "recall", "rrf", "cascade")
    body = []
    for dataset, row in rows.items():
        systems = row["systems"]
        for name in shown:
            if name in systems:
                values = systems[name]
                means = [f"{values[metric]:.4f}" for metric in METRICS]
                skip = percent(values["skip"], 0) if "skip" in values else ""
                body.append([f"{dataset}, {row['n']:,}", name, *means, skip])
    lines = [
        f"`make quality` ({stamp(rows.values())}; {machine(rows.values())}; vectors of "
        f"{', '.join(dict.fromkeys(row['encoder']['name'] for row in rows.values()))}):",
        table(["set, questions", "strategy", *METRICS.values(), "skips"], body),
        note_stale(list(rows.values())) or "",
    ]
    return "\n\n".join(filter(None, lines)) + "\n"
