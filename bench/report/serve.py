"""The report's section on the server."""

from .format import number, sentence, tabulate
from .rows import Fields, Recorded, choose_rows, machine, no_row, stamp


def serve(recorded: Recorded) -> list[str]:
    """The section: the plain engine, the ways into the server, and the servers of others."""
    rows = choose_rows(recorded.of("serve"), lambda row: (row["way"], row["clients"]))
    if not rows:
        return [no_row("serve")]
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
    for over in ("words", "vectors"):
        own = sorted([row for row in rows if row["over"] == over], key=lambda row: row["clients"])
        if own:
            text += [f"By {over}:", tabulate(own, COLUMNS)]
    return text


def _way(row: Fields) -> str:
    note = f" ({row['note']})" if row["note"] else ""
    return f"**{row['way']}**{note}" if row["ours"] else f"{row['way']} {row['version'] or ''}{note}"


def _beside(row: Fields, name: str, form: str) -> str:
    """A figure beside the plain engine's. That one is asked by words, so it says nothing of vectors."""
    return format(row[name], form) if row["over"] == "words" and row["share"] is not None else ""


COLUMNS = {
    "clients": "clients",
    "way": _way,
    "queries/s": "queries_per_s",
    "least to most": lambda row: f"{number(row['queries_per_s_low'])} to {number(row['queries_per_s_high'])}",
    "p50, ms": "p50_ms",
    "p99, ms": "p99_ms",
    "share": lambda row: _beside(row, "share", ".2f"),
    "overhead, ms": lambda row: _beside(row, "overhead_ms", "+.3g"),
}
