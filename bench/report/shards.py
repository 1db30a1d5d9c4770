"""The report's section on shards."""

from collections.abc import Callable

from .format import Fields, number, sentence, tabulate
from .rows import Recorded, machine, no_row, stamp

WHERE = {
    "tenant": "one namespace in one shard",
    "tenants": "each query's own namespace",
    "split": "one namespace split over all shards",
}


def shards(recorded: Recorded) -> list[str]:
    """The section: fan-outs and agents over shards beside one engine, one shard alone, moves and kills."""
    text: list[str] = []
    rows = recorded.of("shards")
    if measured := _newest([row for row in rows if row["phase"] != "move"]):
        text += _run(measured)
    moves = _newest([row for row in rows if row["phase"] == "move"])
    if moves:
        what = "Writes of single records to one namespace while another one goes from one shard to a second"
        text += [f"{what} ({stamp(moves)}):", tabulate(moves, MOVES)]
    return [*(text or [no_row("shards")]), *kills(recorded)]


def _newest(rows: list[Fields]) -> list[Fields]:
    newest = max((row["run"] for row in rows), default="")
    return [row for row in rows if row["run"] == newest]


def _run(rows: list[Fields]) -> list[str]:
    first = rows[0]
    text = [
        f"{sentence(stamp(rows))}; {machine(rows)}, Ray {first['machine']['ray']}. {first['records']:,} turns of SGD, "
        f"the {first['k']} best of each query; shards, their owner and Ray share the cores. "
        "`alone` is the slowest shard by itself, `over` what the fan-out took beyond it, and "
        "`empty` a message of Ray to each shard that asks nothing. Times are the median and the 99th percentile, in "
        "milliseconds."
    ]
    wrong = sorted({row["case"] for row in rows if row["verified"] is False})
    if wrong:
        text.append(f"**Answers differed from the engine's: {', '.join(wrong)}.**")
    text.append(tabulate([row for row in rows if row["phase"] == "fan-out" and row["shards"]], FAN_OUTS))
    agents = [row for row in rows if row["phase"] == "agents"]
    if agents:
        text += [f"{agents[0]['agents']} agents at once (`asearch`):", tabulate(agents, AGENTS)]
    alone = [row for row in rows if row["phase"] == "service"]
    if alone:
        text += ["One shard alone, without Ray:", tabulate(alone, ALONE)]
    return text


def _times(name: str = "") -> Callable[[Fields], str]:
    return lambda row: f"{number(row[f'{name}p50_us'] / 1e3)}, {number(row[f'{name}p99_us'] / 1e3)}"


def _where(row: Fields) -> str:
    return WHERE[row["case"]]


FAN_OUTS = {
    **{"records": _where, "queries": "fan_out", "shards": "shards", "fan-out": _times(), "alone": _times("alone_")},
    **{"over": _times("over_"), "empty": _times("empty_"), "messages": "messages"},
    **{"bytes sent": "sent_bytes", "bytes received": "received_bytes"},
}
AGENTS = {
    **{"records": _where, "shards": lambda row: str(row["shards"] or "one engine"), "queries/s": "queries_per_s"},
    **{"fan-out": _times(), "queries a launch": "queries_per_launch", "messages a launch": "messages_per_launch"},
}
ALONE = {"records": "records", "k": "k", "fan-out": _times()}
MOVES = {
    **{"shards": "case", "records": "records", "move, s": "seconds", "write before, ms": _times("alone_")},
    **{"write meanwhile, ms": _times(), "longest, ms": lambda row: number(row["most_us"] / 1e3)},
}
KILLS = {
    **{"killed": "killed", "times": "rounds", "batches acknowledged": "acknowledged_writes"},
    **{"answers checked": "searches", "broken promises": "broken"},
    "back after, s (most)": lambda row: ", ".join(number(row[f"recovery_seconds_{one}"]) for one in ("median", "most")),
}


def kills(recorded: Recorded) -> list[str]:
    """What kills of shards and owners lost."""
    rows = sorted(recorded.of("shardkills"), key=lambda row: row["date"])
    newest = {row["killed"]: row for row in rows}.values()
    if not newest:
        return []
    return [
        f"Killed with SIGKILL in the middle of writes and searches ({stamp(newest)}): a batch that was lost, "
        "half visible or doubled, and an answer that no state gives, break the promise.",
        tabulate(newest, KILLS),
    ]
