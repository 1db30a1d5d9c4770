"""The report's section on named strategies."""

from fanrank.engine.route.policy import MENU

from .format import Fields, percent, score, sentence, tabulate
from .rows import Recorded, choose_newest, machine, no_row, note_stale, stamp

SHOWN = ("bm25", "fused", "auto", "recall", "rrf", "cascade")
"""What docs/figures.md shows of each set."""
METRICS = {"hit@1": "Hit@1", "hit@5": "Hit@5", "ndcg@10": "nDCG@10"}


def strategy_rows(recorded: Recorded) -> dict[str, Fields]:
    """The newest row of each set that compares strategies, with those of the menu and of `SHOWN`."""
    rows = [row for row in recorded.of("quality") if row.get("part") == "strategies"]
    newest = {dataset: row for (dataset,), row in choose_newest(rows, "dataset").items()}
    return {
        dataset: {
            **row,
            "systems": {name: values for name, values in row["systems"].items() if name in MENU or name in SHOWN},
        }
        for dataset, row in newest.items()
    }


def _gain(values: Fields, metric: str) -> str:
    """The difference to BM25 and the wider of its intervals, over questions and over conversations, in points."""
    test = values["to"].get("bm25", {}).get("all", {}).get(metric)
    if test is None:
        return ""
    low, high = min(test["low"], test.get("cluster_low", 1.0)), max(test["high"], test.get("cluster_high", -1.0))
    return f"{100 * test['difference']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _skip(values: Fields) -> str:
    return percent(values["skip"], 0) if "skip" in values else ""


SCORES = {name: (lambda values, metric=metric: score(values[metric])) for metric, name in METRICS.items()}
COLUMNS = {
    **{"strategy": "name", **SCORES},
    **{f"{name} to bm25": (lambda row, metric=metric: _gain(row, metric)) for metric, name in METRICS.items()},
    **{"Hit@5, half": lambda values: score(values["report"]["hit@5"]), "skips": _skip},
}


def strategies(recorded: Recorded) -> list[str]:
    """The section on named strategies: a table a set, the best nDCG first."""
    rows = strategy_rows(recorded)
    if not rows:
        return [no_row("quality")]
    parts = [
        f"{sentence(stamp(rows.values()))}; {machine(rows.values())}. Differences are points to `bm25` on all "
        "questions, with the wider of two paired bootstraps at 95 %, over questions and over conversations. Half: on "
        "the half of the conversations that tuned nothing."
    ]
    for dataset, row in rows.items():
        ordered = sorted(row["systems"].items(), key=lambda item: -item[1]["ndcg@10"])
        left = f" Left out: {', '.join(row['left_out'])}." if row["left_out"] else ""
        parts.append(
            f"**{dataset}**: {row['n']:,} questions, {row['documents']:,} records, profile `{row['profile']['name']}`, "
            f"analyzer `{row['analyzer']}`.{left}\n\n"
            + tabulate([{"name": name, **values} for name, values in ordered], COLUMNS)
        )
    return parts


def block(recorded: Recorded) -> str:
    """The table of docs/figures.md: BM25, ``fused``, ``auto`` and the named strategies of the papers, by set."""
    rows = strategy_rows(recorded)
    if not rows:
        return no_row("quality")
    shown = [
        {"set": f"{dataset}, {row['n']:,}", "name": name, **row["systems"][name]}
        for dataset, row in rows.items()
        for name in SHOWN
        if name in row["systems"]
    ]
    lines = [
        f"`make quality` ({stamp(rows.values())}; {machine(rows.values())}; vectors of "
        f"{', '.join(dict.fromkeys(row['encoder']['name'] for row in rows.values()))}):",
        tabulate(shown, {"set, questions": "set", "strategy": "name", **SCORES, "skips": _skip}),
        note_stale(list(rows.values())),
    ]
    return "\n\n".join(filter(None, lines))
