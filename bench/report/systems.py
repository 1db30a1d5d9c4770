"""fanrank beside its peers: the tables of one run, for the report and for the command that measured it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..harness.rows import Row
from ..harness.systems import BASELINE, SYSTEMS
from . import sources
from .format import NONE, details, geometric_mean, number, order_names, percent, sentence, table
from .rows import machine, note_stale, stamp

Place = tuple[str, int, int, str]  # case, k, threads, phase
PRUNING = "pisa-maxscore"
"""The peer that skips documents that cannot be among the k best. It is the second baseline of ratios."""
PHASES = {"kernel": "Kernel only", "end_to_end": "End to end"}


def place(row: Row) -> Place:
    return row.case, row.k, row.threads, row.phase


def rows_with_times(rows: Iterable[Row], phase: str | None = None) -> list[Row]:
    """The rows that hold a time (of a phase)."""
    return [row for row in rows if row.ms_per_query and phase in (None, row.phase)]


def systems_in(rows: Iterable[Row]) -> list[str]:
    """The systems of some rows, in their declared order."""
    return order_names((row.system for row in rows), SYSTEMS)


def ratios(rows: Iterable[Row], baseline: str = BASELINE) -> dict[str, dict[Place, float]]:
    """Every system's time over the baseline's, in each place where one run measured both (under 1: faster)."""
    rows = rows_with_times(rows)
    base = {(row.run, place(row)): row.ms_per_query for row in rows if row.system == baseline}
    found: dict[str, dict[Place, float]] = {}
    for row in rows:
        reference = base.get((row.run, place(row)))
        if reference and row.ms_per_query:
            found.setdefault(row.system, {})[place(row)] = row.ms_per_query / reference
    return found


def mean_ratio(rows: Iterable[Row], system: str, baseline: str) -> tuple[float, int] | None:
    """(geometric mean of a system's ratios to a baseline, number of ratios); None without a common place."""
    found = ratios(rows, baseline).get(system)
    return (geometric_mean(found.values()), len(found)) if found else None


def _means(rows: Sequence[Row], phase: str) -> str:
    cases = list(dict.fromkeys(row.case for row in rows))
    total = len({place(row) for row in rows})
    to_base, to_pruning = ratios(rows), ratios(rows, PRUNING)
    if not to_base and not to_pruning:
        return f"{PHASES.get(phase, phase)}: neither {BASELINE} nor {PRUNING} was measured, so there are no ratios."
    body = []
    for system in systems_in(rows):
        own, other = to_base.get(system, {}), to_pruning.get(system, {})
        by_case = [[value for at, value in own.items() if at[0] == case] for case in cases]
        cells = [number(geometric_mean(values)) if values else "" for values in by_case]
        both = [f"**{number(geometric_mean(found.values()))}**" if found else "" for found in (own, other)]
        body.append([system, *both, f"{max(len(own), len(other))} of {total}", *cells])
    head = ["system", f"to {BASELINE}", f"to {PRUNING}", "places", *cases]
    title = f"{PHASES.get(phase, phase)}: geometric means of the ratios of time (under 1 is faster)."
    return f"{title} Of single corpora: to {BASELINE}.\n\n{table(head, body)}"


def _times(rows: Sequence[Row], phase: str) -> str:
    systems = systems_in(rows)
    at = {(row.system, place(row)): row for row in rows}
    body = []
    for where in dict.fromkeys(map(place, rows)):
        base = at.get((BASELINE, where))
        right = [row for key, row in at.items() if key[1] == where and row.verified is not False]
        best = min((row.ms_per_query or 0.0 for row in rows_with_times(right)), default=None)
        cells = []
        for system in systems:
            row = at.get((system, where))
            if row is None or row.ms_per_query is None:
                cells.append("" if row is None else "error")
                continue
            text = number(row.ms_per_query)
            text = f"**{text}**" if row.ms_per_query == best else text
            share = f" ({row.ms_per_query / base.ms_per_query:.2f})" if base and base.ms_per_query else ""
            cells.append(f"{text}{share}{'' if row.verified in (True, None) else ' !'}")
        body.append([where[0], str(where[1]), str(where[2]), *cells])
    title = f"{PHASES.get(phase, phase)}: median milliseconds a query (ratio to {BASELINE}); the fastest in bold; "
    return f"{title}! = its answers did not verify.\n\n{table(['corpus', 'k', 'threads', *systems], body)}"


def _end_to_end(rows: Sequence[Row]) -> str:
    """The times from texts to ids beside those from pre-analysed terms, at the smallest k and one thread."""
    rows = rows_with_times(rows)
    if not any(row.phase == "end_to_end" for row in rows):
        return ""
    k, threads = min(row.k for row in rows), min(row.threads for row in rows)
    at = {(row.case, row.system, row.phase): row.ms_per_query for row in rows if (row.k, row.threads) == (k, threads)}
    cases = list(dict.fromkeys(row.case for row in rows))
    body = []
    for system in systems_in(rows):
        cells = []
        for case in cases:
            kernel, whole = at.get((case, system, "kernel")), at.get((case, system, "end_to_end"))
            cells.append(f"{number(kernel)} → {number(whole)}" if kernel and whole else "")
        if any(cells):
            body.append([system, *cells])
    title = f"Kernel only → text in, ids out, by each system's own tokenizer (k {k}, {threads} thread): ms a query."
    return f"{title}\n\n{table(['system', *cases], body)}"


def amdahl(one: float, many: float, threads: int) -> float:
    """The share of the work that threads do not divide, from times on 1 and on `threads` (SPEC A123).

    It is below 0 where the speed-up exceeded the number of threads.
    """
    return (many / one - 1 / threads) / (1 - 1 / threads)


def _throughput(rows: Sequence[Row]) -> str:
    """Queries a second by threads, and the share that the threads did not divide."""
    rows = rows_with_times(rows, "kernel")
    counts = sorted({row.threads for row in rows})
    if not rows:
        return ""
    k, most = min(row.k for row in rows), counts[-1]
    at = {(row.case, row.system, row.threads): row.ms_per_query for row in rows if row.k == k}
    body = []
    for case in dict.fromkeys(row.case for row in rows):
        for system in systems_in(rows):
            times = [at.get((case, system, count)) for count in counts]
            if not any(times):
                continue
            cells = [number(1e3 / ms) if ms else "" for ms in times]
            first, last = times[0], times[-1]
            if most > 1 and counts[0] == 1 and first and last:
                cells += [f"{first / last:.2f}", f"{amdahl(first, last, most):.2f}"]
            else:
                cells += ["", ""]
            body.append([case, system, *cells])
    head = ["corpus", "system", *(f"{count} thread{'s' * (count > 1)}" for count in counts), "speed-up", "serial share"]
    theirs = ", ".join(f"{name} {share:.2f}" for name, share in sources.AMDAHL.items())
    return (
        f"Queries a second (kernel, k {k}). The last column is Amdahl's serial share, from the times at one thread and "
        f"at {most} (1: a thread more gains nothing; over 1: it costs; under 0: it gains more than its share). "
        f"AgentIR's, with 8 threads (A123): {theirs}.\n\n{table(head, body)}"
    )


def _spread(rows: Sequence[Row]) -> str:
    body = []
    for row in rows_with_times(rows):
        rate = row.postings_per_query / row.ms_per_query * 1e3 if row.ms_per_query else 0.0
        spread = [number(row.ms_min, 4), number(row.ms_per_query, 4), number(row.ms_max, 4)]
        share = percent(row.ms_iqr / row.ms_per_query) if row.ms_iqr is not None and row.ms_per_query else ""
        cells = [*spread, share, str(row.reps), number(1e3 / (row.ms_per_query or 1)), number(rate / 1e6)]
        body.append([row.case, row.phase, str(row.k), str(row.threads), row.system, *cells])
    head = ["corpus", "phase", "k", "threads", "system", "ms, min", "median", "max", "iqr / median"]
    head += ["repetitions", "queries/s", "million postings/s"]
    return details("Every row: spread, queries a second, postings a second", table(head, body))


def _builds(rows: Sequence[Row]) -> str:
    """One line a peer and corpus, because the systems of a peer share a build."""
    seen: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.build_docs_per_s:
            peer = SYSTEMS[row.system].peer if row.system in SYSTEMS else row.system
            seen.setdefault((row.case, peer), []).append(row)
    body = [
        [
            case,
            peer,
            own[0].version or "",
            number(own[0].build_docs_per_s),
            f"{own[0].index_bytes:,}" if own[0].index_bytes is not None else "",
            number(own[0].bytes_per_posting),
            number(own[0].cold_ms_per_query),
        ]
        for (case, peer), own in seen.items()
    ]
    head = ["corpus", "system", "version", "documents/s", "index bytes", "bytes a posting", "first 50 queries, ms each"]
    return (
        "One thread, from token lists or lines in memory (PISA: in a file). The last column is the very first search "
        "after the build, where what is derived lazily is paid for; all other times find it derived.\n\n"
        + table(head, body)
    )


def _checks(rows: Sequence[Row]) -> str:
    body = []
    for system in systems_in(rows):
        own = [row for row in rows if row.system == system and row.overlap is not None]
        if own:
            least = [min(row.overlap or 0.0 for row in own), min(row.lucene_overlap or 0.0 for row in own)]
            worst = max(row.max_relative_error or 0.0 for row in own)
            good = f"{sum(bool(row.verified) for row in own)} of {len(own)}"
            note = next((row.note.split("; slow")[0] for row in own if not row.note.startswith("slow")), "")
            body.append([system, good, f"{least[0]:.4f}", f"{worst:.1e}", f"{least[1]:.4f}", note])
    head = ["system", "rows verified", "least overlap", "worst score error", "least overlap with Lucene's BM25", "note"]
    return "Every answer against float64, each system by its own formula.\n\n" + table(head, body)


def _errors(rows: Sequence[Row]) -> str:
    reasons = dict.fromkeys((row.case, row.system, row.error) for row in rows if row.error)
    lines = [f"- {case}, {system}: {error}" for case, system, error in reasons]
    return "Not measured:\n\n" + "\n".join(lines) if lines else ""


def provenance(rows: Sequence[Row]) -> str:
    """Run, commit, machine, ceilings and postings a query, in words."""
    cases = list(dict.fromkeys(row.case for row in rows))
    stamps = {case: stamp(row for row in rows if row.case == case) for case in cases}
    if len(set(stamps.values())) == 1:
        runs = stamps[cases[0]]
    else:
        runs = "; ".join(f"{case}: {text}" for case, text in stamps.items())
    ceilings = {row.run: row.ceiling for row in rows if row.ceiling}
    told = "; ".join(
        f"{own.get('copy_gb_per_s', 0):g} GB/s copied, {own.get('scatter_add_m_per_s', 0):g} million scattered "
        "additions/s"
        for own in ceilings.values()
    )
    touched = {row.case: f"{row.postings_per_query:,.0f}" for row in rows if row.postings_per_query}
    postings = ", ".join(f"{case} {text}" for case, text in touched.items())
    return (
        f"{sentence(runs)}. {machine(rows)}. Ceilings of one core, same run: {told or 'none'}. Postings a query: "
        f"{postings}."
    )


def markdown(rows: Sequence[Row]) -> str:
    """Every table of one run, for the command that measured it."""
    if not rows:
        return "No rows."
    parts = [provenance(rows)]
    for phase in dict.fromkeys(row.phase for row in rows):
        phase_rows = [row for row in rows if row.phase == phase]
        parts += [_means(phase_rows, phase), _times(phase_rows, phase)]
    parts += [_builds(rows), _checks(rows), _errors(rows)]
    return "\n\n".join(filter(None, parts)) + "\n"


def peers(rows: Sequence[Row]) -> list[str]:
    """The section on latency and throughput."""
    if not rows:
        return [f"{NONE}: `make bench`."]
    parts = [
        f"{provenance(rows)} Every repetition times all systems in turn; ratios are taken inside a run, and only "
        "ratios are to be compared.",
    ]
    phases = [phase for phase in PHASES if any(row.phase == phase for row in rows)]
    parts += [_means([row for row in rows if row.phase == phase], phase) for phase in phases]
    parts += ["![Milliseconds a query, kernel only](plots/latency.svg)", _end_to_end(rows)]
    parts.append(_throughput(rows))
    for phase in phases:
        title = f"{PHASES[phase]}: every corpus, k and number of threads"
        parts.append(details(title, _times([row for row in rows if row.phase == phase], phase)))
    parts += [_spread(rows), details("Verification", _checks(rows)), _errors(rows)]
    return [part for part in parts if part]


def builds(rows: Sequence[Row]) -> str:
    """The table of builds beside the peers."""
    if not any(row.build_docs_per_s for row in rows):
        return f"{NONE}: `make bench`."
    return "\n\n".join(filter(None, [_builds(rows), note_stale(rows)]))
