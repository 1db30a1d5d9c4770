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


def _table(rows: Sequence[Fields]) -> str:
    of_method = curves(rows)
    at = {(row["records"], row["method"]): row for row in rows if row.get("p50_us")}
    body = []
    for records in sorted({size for size, _ in at}):
        cells = []
        for method in of_method:
            row = at.get((records, method))
            if row is None:
                cells.append("")
                continue
            cells.append(f"{number(row['p50_us'])} ({', '.join([number(row['p99_us']), *_left_out(row)])})")
        body.append([f"{records:,}", *cells])
    body.append(["largest over smallest", *(number(growth_of(rows, method)) for method in of_method)])
    return table(["records", *of_method], body)


def _left_out(row: Fields) -> list[str]:
    """The share of the postings that was scored, where not all, and that of the questions whose record was found."""
    searched, hits = row.get("searched_share"), row.get("hit_rate")
    shown = [] if searched is None or searched == 1 else [percent(searched, 2)]
    return shown if hits is None else [*shown, f"finds {percent(hits)}"]


def pays_from(rows: Sequence[Fields]) -> str:
    """From which size on searching the newest windows is faster than every search of all records, in words."""
    at = {(row["records"], row["method"]): row["p50_us"] for row in rows if row.get("p50_us")}
    sizes = sorted({records for records, method in at if method == "temporal"})
    slower = [
        records
        for records in sizes
        if at[records, "temporal"] >= min(us for (own, method), us in at.items() if own == records and method in EXACT)
    ]
    later = [records for records in sizes if not slower or records > slower[-1]]
    if not sizes:
        return ""
    return (
        f"Windows are faster than all of {', '.join(EXACT)} {f'from {later[0]:,} records on' if later else 'nowhere'}."
    )


def _published() -> str:
    body = [
        [f"{records:,}", *(number(float(column[at])) for column in GROWTH_US.values()), searched]
        for at, records in enumerate(GROWTH_RECORDS)
        for searched in [percent(sources.GROWTH_SEARCHED[at])]
    ]
    body.append(["largest over smallest", *(number(each) for each in sources.GROWTH_FACTORS.values()), ""])
    return table(["records", *GROWTH_US, "searched (temporal)"], body)


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
            f"questions whose record was among the hits). {pays_from(rows)}\n\n{_table(rows)}"
        )
        if name == "steady":
            parts.append("![Microseconds a query as steady corpora grow](plots/growth-steady.svg)")
    parts.append(
        f"AgentIR's Table 2 (A037, A038), microseconds a query; {sources.CPU_MACHINE}, 8 threads on the parallel "
        f"paths.\n\n{_published()}\n\n"
        "Comparable: the sizes, the kind of records (synthetic agent memory, four windows of a week) and so the growth "
        "from the smallest to the largest. Not comparable: the times themselves (other cores, eight threads against "
        "one), and the questions, which here are as old as an exponential age in weeks, there in "
        " the newest fifth for four in five. Its windows shrink against the corpus with growth as ours do; "
        "how many records a window holds it does not say."
    )
    return parts


def session(recorded: Recorded) -> list[str]:
    """The section on a session that writes and searches."""
    rows = choose_rows(recorded.of("session"), lambda row: row["method"])
    if not rows:
        return [no_row("session")]
    first = rows[0]
    body = []
    by_method = {row["method"]: row for row in rows}
    for row in [by_method[method] for method in order_names(by_method, METHODS)]:
        figures = [row["cumulative_s"], row["step_p99_ms"], row["over_limit"], row["query_p99_us"]]
        body.append([row["method"], *_session_cells(figures), *_theirs(row["method"])])
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


def _theirs(method: str) -> list[str]:
    counterpart = COUNTERPARTS.get(method)
    return _session_cells(sources.SESSION[counterpart]) if counterpart else [""] * 4


def block(recorded: Recorded) -> str:
    """The block of docs/figures.md."""
    rows = corpora(recorded).get("steady", [])
    if not rows:
        return no_row("growth")
    of_method = curves(rows)
    wanted = [method for method in (*EXACT, "temporal", "decay", "decay-exhaustive") if method in of_method]
    at = {(row["records"], row["method"]): row for own in of_method.values() for row in own}
    body = [
        [f"{records:,}", *(_growth_cell(at.get((records, method))) for method in wanted)]
        for records in sorted({records for records, _ in at})
    ]
    checked = [row["verified"] for row in rows if row.get("verified") is not None]
    same = f"Answers that must be the same bits were, in {sum(checked)} of {len(checked)} comparisons."
    grown = growth_of(rows, "temporal")
    theirs = GROWTH_US["temporal"]
    last = f"\n{same} {pays_from(rows)}\n"
    if grown:
        sizes = [row["records"] for row in of_method["temporal"]]
        last = (
            f"\n{same} From {min(sizes):,} to {max(sizes):,} records temporal search grows by {number(grown)}; the "
            f"AgentIR paper reports {sources.GROWTH_FACTORS['temporal']:g}, from {theirs[0]} to {theirs[-1]} us on 8 "
            f"cores. {pays_from(rows)}\n"
        )
    return (
        f"Microseconds a query, median, one thread, with the share of the postings that was scored, where not all, and "
        f"the share of questions whose record was among the hits ({stamp(rows)}; "
        f"{machine(rows)}):\n\n{table(['records', *wanted], body)}\n{last}"
    )


def _growth_cell(row: Fields | None) -> str:
    if row is None:
        return ""
    left_out = _left_out(row)
    return number(row["p50_us"]) + (f" ({', '.join(left_out)})" if left_out else "")
