"""Tables and a picture from rows alone: ``python -m bench.plot bench/results/cpu.jsonl [--png file]``."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .rows import Row, latest, read
from .systems import BASELINE

Place = tuple[str, int, int, str]  # case, k, threads, phase


def _place(row: Row) -> Place:
    return row.case, row.k, row.threads, row.phase


def ratios(rows: Iterable[Row], baseline: str = BASELINE) -> dict[str, dict[Place, float]]:
    """For every system, its time over the baseline's in each place where both were measured (under 1: faster)."""
    rows = [row for row in rows if row.ms_per_query is not None]
    base = {_place(row): row.ms_per_query for row in rows if row.system == baseline}
    found: dict[str, dict[Place, float]] = {}
    for row in rows:
        reference = base.get(_place(row))
        if reference and row.ms_per_query is not None:
            found.setdefault(row.system, {})[_place(row)] = row.ms_per_query / reference
    return found


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cells) + " |" for cells in body]
    return "\n".join(lines)


def _times(rows: Sequence[Row], phase: str) -> str:
    systems = list(dict.fromkeys(row.system for row in rows))
    at = {(row.system, _place(row)): row for row in rows}
    body = []
    for place in dict.fromkeys(map(_place, rows)):
        cells = []
        base = at.get((BASELINE, place))
        for system in systems:
            row = at.get((system, place))
            if row is None or row.ms_per_query is None:
                cells.append("" if row is None else "error")
                continue
            mark = "" if row.verified in (True, None) else " !"
            share = f" ({row.ms_per_query / base.ms_per_query:.2f})" if base and base.ms_per_query else ""
            cells.append(f"{row.ms_per_query:.3g}{share}{mark}")
        body.append([place[0], str(place[1]), str(place[2]), *cells])
    title = f"**{phase}**: ms per query, median (ratio to {BASELINE}); ! = its answers did not verify"
    return f"{title}\n\n{_table(['corpus', 'k', 'threads', *systems], body)}"


def _means(rows: Sequence[Row], phase: str) -> str:
    cases = list(dict.fromkeys(row.case for row in rows))
    places = {_place(row) for row in rows}
    body = []
    for system, of_system in sorted(ratios(rows).items(), key=lambda item: geometric_mean(item[1].values())):
        by_case = [[value for place, value in of_system.items() if place[0] == case] for case in cases]
        cells = [f"{geometric_mean(values):.3f}" if values else "" for values in by_case]
        count = f"{len(of_system)} of {len(places)}"
        body.append([system, f"**{geometric_mean(of_system.values()):.3f}**", count, *cells])
    return f"**{phase}**: geometric mean of the ratios to {BASELINE}\n\n" + _table(
        ["system", "all rows", "rows", *cases], body
    )


def _builds(rows: Sequence[Row]) -> str:
    seen = {(row.case, row.version, row.system.split("-")[0]): row for row in rows if row.build_docs_per_s}
    body = [
        [
            row.case,
            name,
            version or "",
            f"{row.build_docs_per_s:,}",
            f"{row.index_bytes:,}",
            f"{row.bytes_per_posting}",
            f"{row.cold_ms_per_query}",
        ]
        for (_, version, name), row in seen.items()
    ]
    head = ["corpus", "system", "version", "documents/s", "index bytes", "bytes/posting", "first 50 queries, ms each"]
    return "**Build** (one thread, from token lists or lines)\n\n" + _table(head, body)


def _checks(rows: Sequence[Row]) -> str:
    body = []
    for system in dict.fromkeys(row.system for row in rows):
        of_system = [row for row in rows if row.system == system and row.overlap is not None]
        if of_system:
            shares = [min(row.overlap or 0.0 for row in of_system), min(row.lucene_overlap or 0.0 for row in of_system)]
            worst = max(row.max_relative_error or 0.0 for row in of_system)
            good = sum(bool(row.verified) for row in of_system)
            note = next((row.note.split("; slow")[0] for row in of_system if not row.note.startswith("slow")), "")
            counts = f"{good} of {len(of_system)}"
            body.append([system, counts, f"{shares[0]:.4f}", f"{worst:.1e}", f"{shares[1]:.4f}", note])
    head = ["system", "rows verified", "least overlap", "worst score error", "least overlap with Lucene's BM25", "note"]
    return "**Verification** against float64 (own formula)\n\n" + _table(head, body)


def _errors(rows: Sequence[Row]) -> str:
    reasons = dict.fromkeys((row.case, row.system, row.error) for row in rows if row.error)
    return "\n".join(f"- {case}, {system}: {error}" for case, system, error in reasons)


def _head(rows: Sequence[Row]) -> str:
    row = rows[0]
    machine = ", ".join(f"{key} {value}" for key, value in row.machine.items())
    ceiling = ", ".join(f"{key} {value}" for key, value in row.ceiling.items())
    touched = {row.case: f"{row.postings_per_query:,.0f} postings a query" for row in rows}
    cases = "; ".join(f"{case}: {text}" for case, text in touched.items())
    return f"Run {row.run}, commit {row.commit}. {machine}. Ceiling of one core: {ceiling}. {cases}."


def markdown(rows: Sequence[Row]) -> str:
    """Every table of one run."""
    if not rows:
        return "No rows."
    parts = [_head(rows)]
    for phase in ("kernel", "end_to_end"):
        of_phase = [row for row in rows if row.phase == phase]
        if of_phase:
            parts += [_means(of_phase, phase), _times(of_phase, phase)]
    parts += [_builds(rows), _checks(rows)]
    errors = _errors(rows)
    if errors:
        parts.append("**Not measured**\n\n" + errors)
    return "\n\n".join(parts) + "\n"


def picture(rows: Sequence[Row], path: Path) -> bool:
    """The kernel-only geometric means to a PNG; False where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = ratios(row for row in rows if row.phase == "kernel")
    means = sorted(((geometric_mean(values.values()), system) for system, values in found.items()), reverse=True)
    figure, axes = pyplot.subplots(figsize=(7, 0.4 * len(means) + 1))
    axes.plot([mean for mean, _ in means], [system for _, system in means], "o")
    axes.grid(axis="y", linewidth=0.4)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel(f"time per query over {BASELINE}'s, kernel-only (left: faster)")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.plot", description="Tables and a picture from rows.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--run", help="the run to show (default: the last in the file)")
    parser.add_argument("--png", type=Path, help="also draw the geometric means here (needs matplotlib)")
    options = parser.parse_args(arguments)
    rows = latest(read(options.file), options.run)
    print(markdown(rows), end="")
    if options.png and not picture(rows, options.png):
        print("matplotlib is not installed: no picture", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
