"""The price of a query and the capacity of a machine, computed from measured parts (SPEC A085, A091, A127)."""

from __future__ import annotations

from collections.abc import Sequence

from fanrank.engine.route.cost import amortised, capacity

from ..harness.rows import Row
from . import sources
from .format import NONE, money, number, percent, table
from .quality import cascades
from .rows import Fields, Recorded, note_stale
from .systems import rows_with_times, systems_in

CORES = 8
"""AgentIR's cores, for which its capacities are given."""


def dollars(milliseconds: float) -> float:
    """The price of a query that occupies the whole machine for this long."""
    return milliseconds / 1e3 / 3600 * sources.DOLLARS_PER_HOUR


def _prices(rows: Sequence[Row]) -> str:
    rows = [row for row in rows_with_times(rows) if row.threads == 1]
    phase = "end_to_end" if any(row.phase == "end_to_end" for row in rows) else "kernel"
    least = min((row.k for row in rows), default=0)
    rows = [row for row in rows if row.phase == phase and row.k == least]
    if not rows:
        return f"{NONE}: `make bench`."
    cases = list(dict.fromkeys(row.case for row in rows))
    at = {(row.system, row.case): row.ms_per_query or 0.0 for row in rows}
    body = []
    for system in systems_in(rows):
        times = [at.get((system, case)) for case in cases]
        worst = max(ms for ms in times if ms)
        month = f"{dollars(worst) * sources.QUERIES_PER_MONTH:,.2f}"
        body.append([system, *(money(dollars(ms)) if ms else "" for ms in times), month])
    for name, price in sources.DOLLARS_PER_QUERY.items():
        body.append([f"*{name}*", money(price), *[""] * (len(cases) - 1), f"{sources.DOLLARS_PER_MONTH[name]:,.2f}"])
    head = ["system", *(f"{case}, $ a query" for case in cases), "$ a month, dearest corpus"]
    what = "text in, ids out" if phase == "end_to_end" else "kernel only"
    return (
        f"Dollars a query as AgentIR counts them (A127): seconds / 3600 × {sources.DOLLARS_PER_HOUR:g} $, the whole "
        f"machine charged for one query at a time; a month is {sources.QUERIES_PER_MONTH:,.0f} queries. Measured: the "
        f"time ({what}, k {least}, one thread). Assumed: AgentIR's price an hour, though its machine has "
        f"{CORES} cores and the rows name another; a machine that is never idle; nothing for memory, disk or network. "
        "AgentIR's own line is of LongMemEval, and the price list's of any query; ratios between rows of one column "
        "are the only comparison that needs no assumption.\n\n" + table(head, body)
    )


def encoding_ms(row: Fields) -> float:
    """The milliseconds of encoding one query: a cascade's escalated part with encoding, less with vectors given."""
    times = row["batch_ms"]
    return float(times["encoded"]["escalated"] - times["vectors given"]["escalated"]) / int(row["escalations"])


def _ends(sweep: Fields) -> tuple[Fields, Fields]:
    """The points of a sweep that skip the most and the least."""
    return max(sweep["rows"], key=lambda each: each["skip"]), min(sweep["rows"], key=lambda each: each["skip"])


def _compare_amortised(sweep: Fields) -> str:
    """Measured points of a sweep beside points computed from its two ends, all skipped and none skipped."""
    rows = sweep["rows"]
    skipped, escalated = _ends(sweep)
    body = []
    for each in rows:
        composed = amortised(each["skip"], skipped["ms"], escalated["ms"])
        body.append(
            [f"{each['tau']:g}", percent(each["skip"]), number(each["ms"]), number(composed),
             f"{each['ms'] / composed:.2f}", f"{each['hit@5']:.4f}"]
        )  # fmt: skip
    head = ["tau", "skipped", "measured, ms", "from the two ends, ms", "ratio", "Hit@5"]
    return (
        f"A cascade's mean time (A085): share skipped × BM25's time + the rest × the escalated time, here from the "
        f"measured ends of the sweep, {number(skipped['ms'], 2)} and {number(escalated['ms'])} ms (LoCoMo, preset "
        f"{sweep['preset']}, escalated to {sweep['escalated']}), beside every point as it was run. AgentIR composes "
        f"all of its points from .4 and 53.2 ms.\n\n{table(head, body)}"
    )


def _capacity(parts: Fields, sweep: Fields) -> str:
    """Queries a second with the encoder as the limit, ours and AgentIR's."""
    wall_ms = encoding_ms(parts)
    own_cores = int(parts.get("machine", {}).get("cores") or 1)
    each_ms = wall_ms * own_cores
    body = [
        [
            f"here, tau {point['tau']:g}",
            percent(point["skip"]),
            number(each_ms),
            *_served(point["skip"], each_ms, own_cores),
        ]
        for point in sweep["rows"]
        if point["skip"] < 1
    ]
    stated = sources.STAGES_MS["encoder"]
    for skip, tenants in sources.CAPACITY:
        body.append(["*AgentIR*", percent(skip), number(stated), "", f"{tenants:,}"])
    head = ["", "skipped", "encoding, core ms", f"{own_cores} cores", f"{CORES} cores"]
    return (
        "Queries a second that a machine can encode for (A091): cores / (share escalated × time of an encoding). "
        f"Measured: {number(wall_ms)} ms an encoding (the escalated part of a batch of {parts['queries']:,}, less the "
        "same with vectors given) and the shares skipped. Assumed: torch keeps all cores of the machine for that time, "
        "as it may, and twice the cores encode twice as many; BM25 is left out, as there. Where nothing is escalated "
        "the encoder bounds nothing.\n\n" + table(head, body)
    )


def _served(skip: float, each_ms: float, own_cores: int) -> list[str]:
    return [number(capacity(cores, skip, each_ms)) for cores in (own_cores, CORES)]


def cost(recorded: Recorded) -> list[str]:
    """The section on cost."""
    found = cascades(recorded)
    parts = [_prices(recorded.cpu)]
    sweeps = {key[1:]: row for key, row in found.items() if key[0] == "sweep"}
    measured = {key[1:]: row for key, row in found.items() if key[0] == "parts" and row.get("escalations")}

    def usual(key: tuple[object, ...]) -> tuple[bool, ...]:
        return key[1] == "turns", key[2] == "fused", key[0] == "default"

    whole = [key for key in sweeps if [end["skip"] for end in _ends(sweeps[key])] == [1, 0]]
    if whole:
        parts.append(_compare_amortised(sweeps[max(whole, key=usual)]))
    both = [key for key in sweeps if key in measured]
    if both:
        key = max(both, key=usual)
        parts.append(_capacity(measured[key], sweeps[key]))
    if not whole and not both:
        parts.append(f"{NONE} of cascades: `make cascade`.")
    parts.append(note_stale([*recorded.cpu, *found.values()]))
    return [part for part in parts if part]
