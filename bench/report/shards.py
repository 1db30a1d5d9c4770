"""The report's section on shards."""

from __future__ import annotations

from .format import NONE, number, sentence, table
from .rows import Fields, Recorded, machine, stamp

WHERE = {
    "tenant": "one namespace in one shard",
    "tenants": "each query's own namespace",
    "split": "one namespace split over all shards",
}


def shards(recorded: Recorded) -> list[str]:
    """The section: fan-outs and agents over shards beside one engine, one shard alone, and kills."""
    text: list[str] = []
    for scheduling in ("other", "rr"):
        measured = [
            row
            for row in recorded.of("shards")
            if row["phase"] != "move" and row.get("scheduling", "other") == scheduling
        ]
        newest = max((row["run"] for row in measured), default="")
        rows = [row for row in measured if row["run"] == newest]
        if rows:
            text += _run(rows, scheduling)
    if not text:
        text.append(f"{NONE}: `make shards`.")
    return [*text, *_moves(recorded), *_kills(recorded)]


def _run(rows: list[Fields], scheduling: str) -> list[str]:
    first = rows[0]
    cores = (
        "All run by real-time priority (`chrt -r 5`), so a thread that wakes does not wait for the slice of another."
        if scheduling == "rr"
        else "A thread that wakes may wait for the time slice of another."
    )
    text = [
        f"{sentence(stamp(rows))}; {machine(rows)}, Ray {first['machine']['ray']}. {first['records']:,} turns of SGD, "
        f"the {first['k']} best of each query; shards, their owner and Ray share the cores. "
        f"{cores} `alone` is the slowest shard by itself, `over` what the fan-out took beyond it, and `empty` a "
        "message of Ray to each shard that asks nothing. Times are the median and the 99th percentile, in milliseconds."
    ]
    wrong = sorted({row["case"] for row in rows if row["verified"] is False})
    if wrong:
        text.append(f"**Answers differed from the engine's: {', '.join(wrong)}.**")
    fan_outs = [row for row in rows if row["phase"] == "fan-out" and row["shards"]]
    head = [
        "records",
        "queries",
        "shards",
        "fan-out",
        "alone",
        "over",
        "empty",
        "messages",
        "bytes sent",
        "bytes received",
    ]
    text.append(table(head, [_fan_out(row) for row in fan_outs]))
    agents = [row for row in rows if row["phase"] == "agents"]
    if agents:
        text += [f"{agents[0]['agents']} agents at once (`asearch`):", table(_AGENTS, [_agent(row) for row in agents])]
    alone = [row for row in rows if row["phase"] == "service"]
    if alone:
        body = [[f"{row['records']:,}", f"{row['k']:,}", _times(row, "")] for row in alone]
        text += ["One shard alone, without Ray:", table(["records", "k", "fan-out"], body)]
    return text


_FAN_OUTS = [
    *("records", "queries", "shards", "fan-out", "alone", "over", "empty", "messages"),
    *("bytes sent", "bytes received"),
]
_AGENTS = ["records", "shards", "queries/s", "fan-out", "queries a launch", "messages a launch"]


def _fan_out(row: Fields) -> list[str]:
    return [
        WHERE[row["case"]],
        str(row["fan_out"]),
        str(row["shards"]),
        *(_times(row, name) for name in ("", "alone_", "over_", "empty_")),
        number(row["messages"]),
        number(row["sent_bytes"]),
        number(row["received_bytes"]),
    ]


def _agent(row: Fields) -> list[str]:
    return [
        WHERE[row["case"]],
        str(row["shards"] or "one engine"),
        number(row["queries_per_s"]),
        _times(row, ""),
        number(row["queries_per_launch"]),
        number(row["messages_per_launch"]),
    ]


def _times(row: Fields, name: str) -> str:
    return f"{number(row[f'{name}p50_us'] / 1e3)}, {number(row[f'{name}p99_us'] / 1e3)}"


def _moves(recorded: Recorded) -> list[str]:
    """How long writes wait while a namespace moves."""
    rows = [row for row in recorded.of("shards") if row["phase"] == "move"]
    newest = max((row["run"] for row in rows), default="")
    rows = [row for row in rows if row["run"] == newest]
    if not rows:
        return []
    body = [
        [
            row["case"],
            f"{row['records']:,}",
            number(row["seconds"]),
            _times(row, "alone_"),
            _times(row, ""),
            number(row["most_us"] / 1e3),
        ]
        for row in rows
    ]
    head = ["shards", "records", "move, s", "write before, ms", "write meanwhile, ms", "longest, ms"]
    return [
        f"Writes of single records to one namespace while another one goes from one shard to a second ({stamp(rows)}):",
        table(head, body),
    ]


def _kills(recorded: Recorded) -> list[str]:
    """What kills of shards and owners lost."""
    rows = recorded.of("shardkills")
    newest = {row["killed"]: row for row in sorted(rows, key=lambda row: row["date"])}
    if not newest:
        return []
    body = [
        [
            name,
            f"{row['rounds']:,}",
            f"{row['acknowledged_writes']:,}",
            f"{row['searches']:,}",
            f"{row['broken']:,}",
            f"{number(row['recovery_seconds_median'])}, {number(row['recovery_seconds_most'])}",
        ]
        for name, row in newest.items()
    ]
    head = ["killed", "times", "batches acknowledged", "answers checked", "broken promises", "back after, s (most)"]
    return [
        f"Killed with SIGKILL in the middle of writes and searches ({stamp(newest.values())}): a batch that was lost, "
        "half visible or doubled, and an answer that no state gives, break the promise.",
        table(head, body),
    ]
