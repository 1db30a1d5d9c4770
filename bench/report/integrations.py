"""The report's section on the adapters for other frameworks."""

from __future__ import annotations

from .format import NONE, number, sentence, table
from .rows import Fields, Recorded, choose_newest, choose_rows, machine, stamp

TITLES = {"words": "By words", "vectors": "By vectors"}


def integrations(recorded: Recorded) -> list[str]:
    """The section: one call of a fan-out, and many agents, through each adapter and each peer."""
    rows = choose_rows(recorded.of("integrations"), lambda row: (row["part"], row["system"]))
    if not rows:
        return [f"{NONE}: `make integrations`."]
    newest = list(choose_newest(rows, "part", "system").values())
    first = newest[0]
    wrong = sorted({row["system"] for row in newest if row["verified"] is False})
    text = [
        f"{sentence(stamp(newest))}; {machine(newest)}. {first['records']:,} records of SGD, the {first['k']} best "
        "with texts and payload, every system in this process and one after another. An adapter's answers were first "
        "compared with the plain engine's, bit for bit, and each of its calls then takes turns with one of the engine "
        "below it: the overhead is the median of the ratios, less 1, with its quartiles, and beside it that of the "
        "processor's time. The last ratio is the throughput over that of the framework's own store. Peers split texts "
        "into words in their own ways, and find other records. Vectors are drawn, and looked up where a framework "
        "embeds.",
    ]
    if wrong:
        text.append(f"**Answers differed from the plain engine's: {', '.join(wrong)}.**")
    for work, title in TITLES.items():
        own = [row for row in newest if row["work"] == work]
        fan_outs = [row for row in own if row["part"] == "fan-out"]
        if fan_outs:
            text += [f"{title}, {fan_outs[0]['queries']} questions in one call:", _fan_outs(fan_outs)]
        agents = [row for row in own if row["part"] == "agents"]
        if agents:
            text += [f"{title}, many agents who each ask {agents[0]['queries']} questions at a time:", _agents(agents)]
    return text


def _named(row: Fields) -> str:
    note = f" ({row['note']})" if row["note"] else ""
    if not row["ours"]:
        return f"{row['system']} {row['version'] or ''}{note}"
    return f"**{row['system']}**{note}" if row["system"] == "engine" else f"fanrank for {row['system']}{note}"


def _times(rows: list[Fields], row: Fields) -> str:
    """How many times the throughput of its framework's own store an adapter has."""
    peers = [each["queries_per_s"] for each in rows if each["compared_with"] == row["system"]]
    return number(row["queries_per_s"] / peers[0]) if peers and row["ours"] else ""


def _fan_outs(rows: list[Fields]) -> str:
    body = []
    for row in rows:
        overhead = busy = ""
        if row.get("overhead") is not None:
            low, middle, high = (100 * row[name] for name in ("overhead_low", "overhead", "overhead_high"))
            overhead = f"{middle:+.1f} % [{low:+.1f}, {high:+.1f}]"
            busy = f"{100 * row['cpu_overhead']:+.1f} %"
        cells = [_named(row), *(number(row[name]) for name in ("queries_per_s", "p50_ms", "p99_ms"))]
        body.append([*cells, overhead, busy, _times(rows, row), f"{row['calls']:,}"])
    head = ["through", "queries/s", "p50, ms", "p99, ms", "over the engine", "processor", "times its own", "calls"]
    return table(head, body)


def _agents(rows: list[Fields]) -> str:
    body = [
        [
            _named(row),
            f"{row['agents']:,}",
            row["way"],
            *(number(row[name]) for name in ("queries_per_s", "p50_ms", "p99_ms")),
            _times(rows, row),
        ]
        for row in rows
    ]
    head = ["through", "agents", "awaited by", "queries/s", "p50, ms", "p99, ms", "times its own"]
    return table(head, body)
