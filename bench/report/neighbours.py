"""The report's section on what records borrow from their neighbours."""

from .format import Fields, sentence, tabulate
from .rows import Recorded, choose_newest, machine, no_row, stamp

METRICS = {"hit@1": "Hit@1", "hit@5": "Hit@5", "recall@20": "Recall@20", "mrr": "MRR"}


def neighbours(recorded: Recorded) -> list[str]:
    """The section: the cost of a query, and what LoCoMo's turns gain."""
    rows = recorded.of("neighbours")
    if not rows:
        return [no_row("neighbours")]
    keys: dict[str, tuple[str, ...]] = dict.fromkeys(("cost", "auto"), ("memory", "batch", "way"))
    keys["quality"] = ("kind", "borrows")
    parts = []
    for part, tell in (("cost", _cost), ("auto", _auto), ("quality", _quality)):
        own = list(choose_newest([row for row in rows if row.get("part") == part], *keys[part]).values())
        parts += tell(own) if own else []
    return parts


def _cost(rows: list[Fields]) -> list[str]:
    said = (
        "A plain query prunes, and one that borrows reads all postings; it goes the general way, as do queries with "
        "options."
    )
    return _costs(rows, "BM25 in compiled loops", "plain", said)


def _auto(rows: list[Fields]) -> list[str]:
    return _costs(rows, "`auto` without vectors, in compiled loops", "bm25", "Of dialogues it takes `dialogue-words`.")


def _costs(rows: list[Fields], what: str, base: str, said: str) -> list[str]:
    plain = {(row["memory"], row["batch"]): row["cpu_ms"] for row in rows if row["way"] == base}

    def times(row: Fields) -> str:
        least = plain.get((row["memory"], row["batch"]))
        return "" if least is None or row["way"] == base else f"{row['cpu_ms'] / least:.1f}"

    columns = {
        **{"memory": "memory", "records": "records", "queries a call": "batch", "way": "way"},
        **{"ms a query": "milliseconds", "least": "least_ms", "processor, ms": "cpu_ms", f"times `{base}`": times},
    }
    rounds = " or ".join(map(str, sorted({row["rounds"] for row in rows})))
    right = "" if all(row["verified"] for row in rows) else " **Answers differed between backends.**"
    return [
        f"{sentence(stamp(rows))}; {machine(rows)}. {what}, the {rows[0]['k']} best, "
        f"{rows[0]['n']} texts, to ids; medians of {rounds} rounds in which all ways take turns. {said} The last "
        f"column is of the processor's time.{right}",
        tabulate(rows, columns),
    ]


def _gain(row: Fields) -> str:
    return f"{100 * row['difference']:+.1f} [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"


SCORES = {name: (lambda row, metric=metric: f"{row['metrics'][metric]:.3f}") for metric, name in METRICS.items()}


def _quality(rows: list[Fields]) -> list[str]:
    columns = {
        **{"search": "kind", "borrows": lambda row: row["loan"] or "nothing", **SCORES},
        "Hit@5 gains": lambda row: _gain(row) if row["borrows"] else "",
    }
    return [
        f"{sentence(stamp(rows))}. LoCoMo, turns as records: the loan of the best Hit@5 on {rows[0]['chosen_on']:,} "
        f"questions of every second conversation, on {rows[0]['n']:,} of the others. Words and vectors of `fused` "
        "borrow alike. Differences in Hit@5 in points, with 95 % intervals over conversations.",
        tabulate(rows, columns),
    ]
