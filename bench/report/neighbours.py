"""The report's section on what records borrow from their neighbours."""

from __future__ import annotations

from .format import NONE, number, sentence, table
from .rows import Fields, Recorded, choose_newest, machine, stamp

METRICS = {"hit@1": "Hit@1", "hit@5": "Hit@5", "recall@20": "Recall@20", "mrr": "MRR"}


def neighbours(recorded: Recorded) -> list[str]:
    """The section: the cost of a query, and what LoCoMo's turns gain."""
    rows = recorded.of("neighbours")
    if not rows:
        return [f"{NONE}: `python -m bench.neighbours`."]
    cost = [row for row in rows if row.get("part") == "cost"]
    quality = [row for row in rows if row.get("part") == "quality"]
    dialogue = [row for row in rows if row.get("part") == "dialogue"]
    return [
        *(_cost(list(choose_newest(cost, "memory", "batch", "way").values())) if cost else ()),
        *(_quality(list(choose_newest(quality, "kind", "borrows").values())) if quality else ()),
        *(_dialogue(list(choose_newest(dialogue, "strategy", "without").values())) if dialogue else ()),
    ]


def _cost(rows: list[Fields]) -> list[str]:
    plain = {(row["memory"], row["batch"]): row for row in rows if row["way"] == "plain"}
    body = []
    for row in rows:
        base = plain.get((row["memory"], row["batch"]), row)
        body.append(
            [
                *(row["memory"], f"{row['records']:,}", str(row["batch"]), row["way"]),
                *(number(row[name]) for name in ("milliseconds", "least_ms", "cpu_ms")),
                "" if base is row else f"{row['cpu_ms'] / base['cpu_ms']:.1f}",
            ]
        )
    head = [
        "memory",
        "records",
        "queries a call",
        "way",
        "ms a query",
        "least",
        "processor, ms",
        "times the plain one",
    ]
    rounds = " or ".join(map(str, sorted({row["rounds"] for row in rows})))
    right = "" if all(row["verified"] for row in rows) else " **Answers differed between backends.**"
    return [
        f"{sentence(stamp(rows))}; {machine(rows)}. BM25 in compiled loops, the {rows[0]['k']} best, "
        f"{rows[0]['n']} texts, to ids; medians of {rounds} rounds in which all ways take turns. "
        "A plain query prunes, and one that borrows reads all postings; it goes the general way, as do queries with "
        f"options. The last column is of the processor's time.{right}",
        table(head, body),
    ]


def _gain(row: Fields) -> str:
    return f"{100 * row['difference']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"


def _quality(rows: list[Fields]) -> list[str]:
    body = [
        [
            *(row["kind"], row["loan"] or "nothing"),
            *(f"{row['metrics'][name]:.3f}" for name in METRICS),
            _gain(row) if row["borrows"] else "",
        ]
        for row in rows
    ]
    return [
        f"{sentence(stamp(rows))}. LoCoMo, turns as records: the loan of the best Hit@5 on {rows[0]['chosen_on']:,} "
        f"questions of every second conversation, on {rows[0]['n']:,} of the others. Words and vectors of `fused` "
        "borrow alike. Differences in Hit@5 in points, with 95 % intervals over conversations.",
        table(["search", "borrows", *METRICS.values(), "Hit@5 gains"], body),
    ]


def _dialogue(rows: list[Fields]) -> list[str]:
    base = rows[0].get("to", "auto")
    body = [
        [
            *(row["strategy"], row["without"] or "nothing"),
            *(f"{row['metrics'][name]:.3f}" for name in METRICS),
            *(f"{half['hit@5']:.3f} / {half['recall@20']:.3f} / {half['mrr']:.3f}" for half in row["halves"]),
            _gain(row),
        ]
        for row in rows
    ]
    return [
        f"{sentence(stamp(rows))}. LoCoMo, turns as records, {rows[0]['n']:,} questions of {rows[0]['conversations']} "
        "conversations. Weights are fitted to every second conversation and reported on the others, then the other "
        "way around; a strategy without channels is fitted anew. Of each half Hit@5, Recall@20 and MRR. Differences "
        f"in Hit@5 to `{base}` in points, with the wider of two 95 % intervals, over questions and over conversations.",
        table(["strategy", "without", *METRICS.values(), "first half", "second half", f"Hit@5 to {base}"], body),
    ]
