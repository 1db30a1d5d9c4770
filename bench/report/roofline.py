"""The report's sections on ceilings and phases: how close a search comes to the machine's limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..harness.rows import Row
from .format import NONE, details, number, order_names, percent, sentence, table
from .rows import Fields, Recorded, choose_rows, note_stale, stamp
from .systems import rows_with_times

PHASES = ("prepare", "analyse", "plan", "derive", "score and select", "serve", "convert", "other")
"""The phases of a search, in their order."""


@dataclass(frozen=True)
class Point:
    """One measurement against its ceilings.

    `postings_per_s` counts every posting of the queries' lists, read or skipped. `shares` holds, for each ceiling, the
    fraction of the measured time that the work takes at that ceiling. A share over 1 says that work was skipped.
    `binding` names the largest.
    """

    case: str
    system: str
    where: str
    postings_per_s: float
    shares: Mapping[str, float]

    @property
    def binding(self) -> str:
        return max(self.shares, key=lambda name: self.shares[name], default="")


def cpu_point(row: Row) -> Point | None:
    """A row beside the peers against the ceilings of the same run, one core's times the threads; None without a time.

    `additions`: one scattered addition a posting. `copy`: the bytes that the system's own index keeps for a posting,
    each read once.
    """
    if not row.ms_per_query or not row.postings_per_query:
        return None
    rate = row.postings_per_query / row.ms_per_query * 1e3
    shares = {}
    if row.ceiling.get("scatter_add_m_per_s"):
        shares["additions"] = rate / (row.ceiling["scatter_add_m_per_s"] * 1e6 * row.threads)
    if row.ceiling.get("copy_gb_per_s") and row.bytes_per_posting:
        shares["copy"] = rate * row.bytes_per_posting / (row.ceiling["copy_gb_per_s"] * 1e9 * row.threads)
    return Point(row.case, row.system, f"k {row.k}, {_threads(row.threads)}", rate, shares)


def gpu_point(row: Fields) -> Point | None:
    """A row of the GPU benchmark, whose shares are counted where it is measured; None without a time."""
    rate = row.get("postings_per_s")
    if not rate:
        return None
    return Point(row["corpus"], row["system"], f"batch {row['batch']}, k {row['k']}", rate, row.get("share", {}))


def profile_point(rows: Sequence[Fields]) -> Point | None:
    """The phases of one profiled search together, against the ceilings of its run; None without a time."""
    first = rows[0]
    seconds = sum(row["us_per_query"] for row in rows) / 1e6
    if not seconds or not first.get("postings_per_query"):
        return None
    rate = first["postings_per_query"] / seconds
    ceiling, threads = first.get("ceiling", {}), first.get("threads", 1)
    shares = {}
    if ceiling.get("scatter_add_m_per_s"):
        shares["additions"] = rate / (ceiling["scatter_add_m_per_s"] * 1e6 * threads)
    if ceiling.get("copy_gb_per_s") and first.get("bytes_per_query"):
        shares["copy"] = first["bytes_per_query"] / seconds / (ceiling["copy_gb_per_s"] * 1e9 * threads)
    where = f"batch {first['batch']}, k {first['k']}, {_threads(threads)}"
    return Point(first["case"], first["system"], where, rate, shares)


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def table_of(points: Iterable[Point]) -> str:
    """A table of points, one column a ceiling."""
    points = list(points)
    ceilings = list(dict.fromkeys(name for point in points for name in point.shares))
    body = [
        [
            point.case,
            point.system,
            point.where,
            number(point.postings_per_s / 1e6),
            *(percent(point.shares.get(name), 0) for name in ceilings),
            point.binding,
        ]
        for point in points
    ]
    return table(["corpus", "system", "cell", "million postings/s", *ceilings, "nearest ceiling"], body)


def gpu_rows(recorded: Recorded) -> list[Fields]:
    """The newest complete run of the GPU bench on a GPU. Runs on a CPU are left out."""
    rows = [row for row in recorded.of("gpu") if row.get("device") not in ("", "cpu", None)]
    return choose_rows(rows, lambda row: (row["corpus"], row["system"], row["batch"], row["k"]))


def roofline(recorded: Recorded) -> list[str]:
    """The section on ceilings."""
    points = [point for row in rows_with_times(recorded.cpu, "kernel") if (point := cpu_point(row))]
    parts = []
    if points:
        least = min(row.k for row in rows_with_times(recorded.cpu, "kernel"))
        short = [point for point in points if point.where == f"k {least}, 1 thread"]
        parts += [
            "Postings of the queries' lists a second, over what one core of the same run does at best: scattered "
            "additions (numpy's `scores[documents] += value`, one a posting), and bytes copied (read and written; held "
            "against the bytes of the system's own index for each posting, read once). Over 100 % means that postings "
            "were skipped or their additions done better than by numpy's.",
            table_of(short),
            details("All cells", table_of(points)),
            note_stale(recorded.cpu),
        ]
    else:
        parts.append(f"{NONE} beside the peers: `make bench`.")
    rows = gpu_rows(recorded)
    found = [point for row in rows if (point := gpu_point(row))]
    if found:
        parts.append(f"GPU, {rows[0]['device']}: {stamp(rows)}.\n\n{table_of(found)}")
    else:
        parts.append(f"GPU: {NONE.lower()}; [PENDING_GPU.md](PENDING_GPU.md) says what is expected.")
    return [part for part in parts if part]


def profiles(recorded: Recorded) -> dict[tuple[str, str, int, int, int], list[Fields]]:
    """The phases of the newest profile of every (case, system, batch, k, threads), in their order."""
    rows = recorded.of("profile")
    runs: dict[tuple[str, str, int, int, int], str] = {}
    for row in rows:
        runs[_cell(row)] = max(runs.get(_cell(row), ""), row["run"])
    found: dict[tuple[str, str, int, int, int], list[Fields]] = {}
    for row in rows:
        if row["run"] == runs[_cell(row)]:
            found.setdefault(_cell(row), []).append(row)
    return found


def _cell(row: Fields) -> tuple[str, str, int, int, int]:
    return row["case"], row["system"], row["batch"], row["k"], row["threads"]


def breakdown(recorded: Recorded) -> list[str]:
    """The section on phases."""
    found = profiles(recorded)
    if not found:
        return [f"{NONE}: `python -m bench.profile`."]
    rows = [row for own in found.values() for row in own]
    phases = order_names((row["phase"] for row in rows), PHASES)
    body = []
    for (case, system, batch, k, threads), own in found.items():
        by_phase = {row["phase"]: row["us_per_query"] for row in own}
        whole = sum(by_phase.values())
        cells = [
            f"{number(by_phase[phase])} ({percent(by_phase[phase] / whole, 0)})" if by_phase.get(phase) else ""
            for phase in phases
        ]
        body.append([case, system, str(batch), str(k), str(threads), *cells, f"**{number(whole)}**"])
    points = [point for own in found.values() if (point := profile_point(own))]
    return [
        f"{sentence(stamp(rows))}. Microseconds a query (share of the whole).",
        table(["corpus", "system", "batch", "k", "threads", *phases, "sum"], body),
        "The whole call against the ceilings: postings of the queries' lists, and bytes of posting data that were read "
        "(counted).",
        table_of(points),
    ]
