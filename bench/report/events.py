"""The report's section on the temporal retriever."""

from __future__ import annotations

from .format import NONE, number, sentence, table
from .rows import Fields, Recorded, choose_newest, machine, stamp

ORDERS = {"ordered": "in order of time", "late": "shuffled"}


def events_by_cell(recorded: Recorded) -> list[Fields]:
    """The newest row of every memory and batch."""
    return list(choose_newest(recorded.of("events"), "records", "arrival", "batch").values())


def events(recorded: Recorded) -> list[str]:
    """The section on events in the time that a query names."""
    rows = events_by_cell(recorded)
    if not rows:
        return [f"{NONE}: `python -m bench.events`."]
    body = [
        [
            *(f"{row['records']:,}", ORDERS[row["arrival"]], str(row["segments"]), str(row["batch"])),
            *(
                number(row[name])
                for name in ("lookup_us", "lookup_min_us", "search_us", "search_p99_us", "cpu_us", "scan_us")
            ),
            number(row["first_ms"]),
        ]
        for row in rows
    ]
    head = [
        "records",
        "arrival",
        "segments",
        "queries a call",
        "lookup, us",
        "least, us",
        "search, us",
        "p99, us",
        "CPU, us",
    ]
    return [
        f"{sentence(stamp(rows))}; {machine(rows)}. Half of the records are events. A lookup lists the newest 100 "
        "events of the time that a query names; a search goes from texts to ids, and reads the time in the text. "
        "Microseconds a query, medians. Every answer was compared with a plain scan.",
        table([*head, "a scan, us", "first lookup, ms"], body),
        "The first lookup sorts the times of each segment, which keeps the order. A scan is one mask over the times of "
        "all events, as a retriever without an index would take for each query.",
    ]
