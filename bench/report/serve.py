"""The report's section on the server."""

from __future__ import annotations

from .format import NONE, number, sentence, table
from .rows import Fields, Recorded, choose_rows, machine, stamp

TITLES = {"words": "By words", "vectors": "By vectors"}


def serve(recorded: Recorded) -> list[str]:
    """The section: the plain engine, the ways into the server, and the servers of others."""
    rows = choose_rows(recorded.of("serve"), lambda row: (row["way"], row["clients"]))
    if not rows:
        return [f"{NONE}: `make serve ARGS=--record`."]
    first = rows[0]
    wrong = sorted({row["way"] for row in rows if row["verified"] is False})
    text = [
        f"{sentence(stamp(rows))}; {machine(rows)}. {first['records']:,} turns of SGD in memory, fan-outs of "
        f"{first['fan_out']}, the {first['k']} best of each. `plain` is the engine in the process of its callers "
        "(`asearch`); all others are asked over HTTP on the same machine, whose cores the load shares. Cells are taken "
        f"in turns, {first['reps']} times {first['seconds']:g} s; queries a second are the median, with the least and "
        "the most. Share and overhead are those over `plain` in the same turn. Servers of others find in their own "
        "ways, and other records.",
    ]
    if wrong:
        text.append(f"**Answers differed from the plain engine's: {', '.join(wrong)}.**")
    for over, title in TITLES.items():
        own = sorted([row for row in rows if row["over"] == over], key=lambda row: row["clients"])
        if own:
            text += [f"{title}:", _table(own)]
    return text


def _table(rows: list[Fields]) -> str:
    body = []
    for row in rows:
        # The plain engine is asked by words, so it says nothing of vectors.
        beside = row["over"] == "words" and row["share"] is not None
        spread = f"{number(row['queries_per_s_low'])} to {number(row['queries_per_s_high'])}"
        body.append(
            [
                f"{row['clients']:,}",
                _named(row),
                number(row["queries_per_s"]),
                spread,
                number(row["p50_ms"]),
                number(row["p99_ms"]),
                f"{row['share']:.2f}" if beside else "",
                f"{row['overhead_ms']:+.3g}" if beside else "",
            ]
        )
    head = ["clients", "way", "queries/s", "least to most", "p50, ms", "p99, ms", "share", "overhead, ms"]
    return table(head, body)


def _named(row: Fields) -> str:
    note = f" ({row['note']})" if row["note"] else ""
    return f"**{row['way']}**{note}" if row["ours"] else f"{row['way']} {row['version'] or ''}{note}"
