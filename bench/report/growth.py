"""The report's sections on a growing memory and on the session, beside AgentIR's own figures."""

from collections.abc import Hashable, Sequence

from fanrank.engine.evaluate.headlines import GROWTH_RECORDS, GROWTH_US

from . import sources
from .format import Fields, number, order_names, percent, sentence, table
from .rows import Recorded, choose_in_each, choose_rows, machine, no_row, stamp

METHODS = ("sequential", "vectorised", "maxscore", "temporal", "temporal-auto", "decay", "decay-exhaustive")
"""The methods of a complete run, in the order of the columns."""
EXACT = ("sequential", "vectorised", "maxscore")
"""Those that answer from all records."""
COUNTERPARTS = {"sequential": "sequential", "vectorised": "SIMD", "maxscore": "MaxScore", "temporal": "temporal"}
"""Methods that do what a column of AgentIR's Tables 2 and 3 does."""
GROWN = "largest over smallest"


def _place(row: Fields) -> Hashable | None:
    return (row["records"], row["method"]) if row["method"] in METHODS and row.get("p50_us") else None


def corpora(recorded: Recorded) -> dict[str, list[Fields]]:
    """The rows of the newest complete run of every family of corpora, by size."""
    found: dict[str, list[Fields]] = {}
    for row in sorted(choose_in_each(recorded.of("growth"), "corpus", _place), key=lambda row: row["records"]):
        found.setdefault(row["corpus"], []).append(row)
    return found


def curves(rows: Sequence[Fields]) -> dict[str, list[Fields]]:
    """Rows by method, in the order of `METHODS`, each by size."""
    return {
        method: [row for row in rows if row["method"] == method and row.get("p50_us")]
        for method in order_names((row["method"] for row in rows), METHODS)
    }


def growth_of(rows: Sequence[Fields], method: str) -> float | None:
    """The median at a method's largest size over that at its smallest; None without two sizes."""
    curve = curves(rows).get(method, [])
    return curve[-1]["p50_us"] / curve[0]["p50_us"] if len(curve) > 1 else None


def _table(rows: Sequence[Fields], methods: Sequence[str], late: bool) -> str:
    at = {(row["records"], row["method"]): row for row in rows if row.get("p50_us")}
    body = [
        [f"{records:,}", *(_cell(at.get((records, method)), late) for method in methods)]
        for records in sorted({size for size, _ in at})
    ]
    grown = [[GROWN, *(number(growth_of(rows, method)) for method in methods)]] if late else []
    return table(["records", *methods], body + grown)


def _cell(row: Fields | None, late: bool) -> str:
    """The median, with the 99th percentile, the share of the postings that was scored, where not all, and that of the
    questions whose record was found."""
    if row is None:
        return ""
    searched, hits = row.get("searched_share"), row.get("hit_rate")
    more = [number(row["p99_us"])] if late else []
    more += [] if searched is None or searched == 1 else [percent(searched, 2)]
    more += [] if hits is None else [f"finds {percent(hits)}"]
    return number(row["p50_us"]) + (f" ({', '.join(more)})" if more else "")


def pays_from(rows: Sequence[Fields]) -> str:
    """From which size on searching the newest windows is faster than every search of all records, in words."""
    at = {(row["records"], row["method"]): row["p50_us"] for row in rows if row.get("p50_us")}
    sizes = sorted({records for records, method in at if method == "temporal"})
    fastest = {size: min(us for (own, method), us in at.items() if own == size and method in EXACT) for size in sizes}
    slower = [size for size in sizes if at[size, "temporal"] >= fastest[size]]
    later = [size for size in sizes if not slower or size > slower[-1]]
    where = f"from {later[0]:,} records on" if later else "nowhere"
    return f"Windows are faster than all of {', '.join(EXACT)} {where}." if sizes else ""


def growth(recorded: Recorded) -> list[str]:
    """The section on growth."""
    families = corpora(recorded)
    if not families:
        return [no_row("growth")]
    parts = []
    for name, rows in families.items():
        first = rows[0]
        parts.append(
            f"**{name}**: {stamp(rows)}; {machine(rows)}, {first['threads']} thread, k {first['k']}. Microseconds a "
            "query, median (p99, the share of the lists' postings that was scored, where not all, and the share of "
            f"questions whose record was among the hits). {pays_from(rows)}\n\n{_table(rows, list(curves(rows)), True)}"
        )
        if name == "steady":
            parts.append("![Microseconds a query as steady corpora grow](plots/growth-steady.svg)")
    printed = [
        [f"{records:,}", *(number(float(column[at])) for column in GROWTH_US.values()), percent(searched)]
        for at, (records, searched) in enumerate(zip(GROWTH_RECORDS, sources.GROWTH_SEARCHED, strict=True))
    ]
    printed.append([GROWN, *(number(each) for each in sources.GROWTH_FACTORS.values()), ""])
    return [
        *parts,
        f"AgentIR's Table 2 (A037, A038), microseconds a query; {sources.CPU_MACHINE}, 8 threads on the parallel "
        f"paths.\n\n{table(['records', *GROWTH_US, 'searched (temporal)'], printed)}\n\n"
        "Comparable: the sizes, the kind of records (synthetic agent memory, four windows of a week) and so the growth "
        "from the smallest to the largest. Not comparable: the times themselves (other cores, eight threads against "
        "one), and the questions, which here are as old as an exponential age in weeks, there in "
        "the newest fifth for four in five. Its windows shrink against the corpus with growth as ours do; "
        "how many records a window holds it does not say.",
    ]


def session(recorded: Recorded) -> list[str]:
    """The section on a session that writes and searches."""
    rows = choose_rows(recorded.of("session"), lambda row: row["method"])
    if not rows:
        return [no_row("session")]
    first, by_method = rows[0], {row["method"]: row for row in rows}
    body = []
    for method in order_names(by_method, METHODS):
        figures = [by_method[method][name] for name in ("cumulative_s", "step_p99_ms", "over_limit", "query_p99_us")]
        theirs = sources.SESSION.get(COUNTERPARTS.get(method, ""))
        body.append([method, *_session_cells(figures), *(_session_cells(theirs) if theirs else [""] * 4)])
    writing = [row["write_s"] for row in rows]
    head = ["method", "s in sum", "p99 ms a step", "steps over 200 ms", "p99 us a query"]
    head += [f"source: {name}" for name in ("s in sum", "p99 ms a step", "over 200 ms", "p99 us a query")]
    return [
        f"{sentence(stamp(rows))}; {machine(rows)}, {first['threads']} thread. {first['turns']} turns from "
        f"{first['first_records']:,} to {first['records']:,} records, {first['retrievals']:,} lookups; the first "
        f"answer after a turn's writes pays for what they made necessary. Writing took {number(min(writing))} to "
        f"{number(max(writing))} s, apart.\n\n{table(head, body)}\n\n"
        "AgentIR's Table 3 (A040) is made up of its Table 2 and log-normal noise, without writes between: it is a "
        "bound on what its index would do, not a run. Ours writes and asks in turn."
    ]


def _session_cells(figures: Sequence[float]) -> list[str]:
    return [number(figures[0]), number(figures[1]), percent(figures[2]), number(figures[3])]


def block(recorded: Recorded) -> str:
    """The block of docs/figures.md."""
    rows = corpora(recorded).get("steady", [])
    if not rows:
        return no_row("growth")
    wanted = [method for method in curves(rows) if method != "temporal-auto"]
    checked = [row["verified"] for row in rows if row.get("verified") is not None]
    told = f"Answers that must be the same bits were, in {sum(checked)} of {len(checked)} comparisons."
    if grown := growth_of(rows, "temporal"):
        sizes, theirs = [row["records"] for row in curves(rows)["temporal"]], GROWTH_US["temporal"]
        told += (
            f" From {min(sizes):,} to {max(sizes):,} records temporal search grows by {number(grown)}; the "
            f"AgentIR paper reports {sources.GROWTH_FACTORS['temporal']:g}, from {theirs[0]} to {theirs[-1]} us on 8 "
            "cores."
        )
    return (
        f"Microseconds a query, median, one thread, with the share of the postings that was scored, where not all, and "
        f"the share of questions whose record was among the hits ({stamp(rows)}; "
        f"{machine(rows)}):\n\n{_table(rows, wanted, False)}\n\n{told} {pays_from(rows)}\n"
    )
