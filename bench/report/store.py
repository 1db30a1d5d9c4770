"""The report's sections on builds, writes, crashes and the GPU."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from . import sources
from .format import Fields, number, plain, sentence, table, tabulate
from .rows import Recorded, choose_in_each, choose_newest, choose_rows, machine, no_row, stamp

Figures = Mapping[str, Any]
Lines = Iterator[tuple[str, str]]


def _append(figures: Figures, settings: Figures) -> Lines:
    yield "one sync of the disk, median", f"{number(figures['sync_p50_ms'])} ms"
    for name, own in figures.items():
        if name.startswith("writers_"):
            late = f"(p99 of an `add` {number(own['add_p99_ms'])} ms)"
            yield f"writers: {name.removeprefix('writers_')}", f"{number(own['records_per_s'])} records/s {late}"


def _searching(figures: Figures, settings: Figures) -> Lines:
    own, beside = figures["flat_out"], f"one writer beside a thread that searches {settings['base']:,} records"
    yield "one writer while nobody searches", f"{number(figures['alone']['records_per_s'])} records/s"
    asked = f"{number(own['fan_outs_per_s'])} fan-outs of 20 a second"
    yield f"{beside} without pause", f"{number(own['records_per_s'])} records/s, {asked}"


def _tail(figures: Figures, settings: Figures) -> Lines:
    what = f"p99 of a fan-out of 20 over {settings['base']:,} records, {settings['tail_pace']:g} a second"
    yield f"{what}: no writer", f"{number(figures['quiet']['fanout_p99_ms'])} ms"
    during = f"{number(figures['writing']['fanout_p99_ms'])} ms"
    yield f"the same beside a writer of {number(figures['records_per_s'])} records/s", during


def _memory(figures: Figures, settings: Figures) -> Lines:
    yield f"peak memory, {figures['records']:,} records", f"{figures['peak_bytes_per_record']} bytes a record"
    yield "disk", f"{figures['disk_bytes_per_record']} bytes a record"


def _cold(figures: Figures, settings: Figures) -> Lines:
    for name, what in (("cached", "in the system's cache"), ("uncached", "on disk")):
        if name in figures:
            own = figures[name]
            seconds = number((own["to_first_answer_ms"] - own["import_ms"]) / 1e3)
            opened = f"open {settings['cold_records']:,} records in a fresh process and answer: files {what}"
            yield opened, f"{seconds} s (import, apart: {number(own['import_ms'] / 1e3)} s)"


def _tenants(figures: Figures, settings: Figures) -> Lines:
    many = f"{settings['tenants']:,} tenants of {settings['tenant_records']:,} records in one process"
    yield many, f"{number(figures['after_build_gib'])} GiB"
    equal = "equal" if figures["equal"] else "NOT equal"
    batch = f"one batch over {figures['batch_tenants']:,} of them, {equal} to asking each alone"
    yield batch, f"{number(figures['batch_p50_ms'])} ms"


_WRITES: dict[str, Callable[[Figures, Figures], Lines]] = {
    **{"append": _append, "searching": _searching, "tail": _tail, "cold": _cold, "tenants": _tenants},
    "memory": _memory,
}


def writes(recorded: Recorded) -> list[str]:
    """The section on writes, and the block of docs/figures.md: the newest row of every part."""
    found = {part: row for (part,), row in choose_newest(recorded.of("writes"), "part").items()}
    parts = [(found[part], lines) for part, lines in _WRITES.items() if part in found]
    if not parts:
        return [no_row("writes")]
    rows = [row for row, _ in parts]
    body = [line for row, lines in parts for line in lines(row["figures"], row["settings"])]
    return [f"{sentence(stamp(rows))}; {machine(rows)}.", table(["", "measured"], body)]


def crash(recorded: Recorded) -> list[str]:
    """The section on the newest crash test, and the block of docs/figures.md."""
    row = max(recorded.of("crash"), key=lambda row: row["date"], default=None)
    if row is None:
        return [no_row("crash")]
    steps = sum(1 for name in row["kills"] if not name.startswith("by the clock"))
    lost = f"{row['lost']} of {row['acknowledged']:,} acknowledged batches lost, {row['phantom']} that nobody wrote"
    return [
        f"`make crash` ({stamp([row])}): {row['rounds']} rounds, {row['lives']:,} processes, killed at each of {steps} "
        f"steps and at random, index files cut, flipped, zeroed and removed, logs cut, disks full: {lost}, "
        f"{len(row['broken'])} broken promises."
    ]


def building(recorded: Recorded) -> list[str]:
    """The section on builds of large corpora: every field of the rows, and AgentIR's figures."""
    theirs = (
        f"AgentIR: {sources.BUILD_RECORDS_PER_S:,} records/s from 4,052 to 5 million (A041), and "
        f"{sources.STREAMED_DOCUMENTS_PER_S:,} documents/s of MS MARCO in chunks of 50,000, with a peak of "
        f"{sources.STREAMED_PEAK_GB[1]:g} GB where building at once ran out of {sources.STREAMED_PEAK_GB[0]:g} GB "
        f"(A126), both on {sources.CPU_MACHINE}. Comparable: the order of magnitude and how memory grows. Not: the "
        "machine, and the documents of MS MARCO."
    )
    growth = [row for row in recorded.of("growth") if row.get("build_records_per_s")]
    own = ""
    if growth:
        last = max(growth, key=lambda row: (row["date"], row["records"]))
        own = (
            f"`Engine.add` in `make growth` ({stamp([last])}): {number(last['build_records_per_s'])} records/s, text "
            f"to index, on the way to {last['records']:,}; the process's peak was {number(last['peak_rss_gib'])} GiB."
        )
    rows = recorded.of("building")
    if not rows:
        return [no_row("building"), own, theirs]
    run = [
        row
        for stored in (False, True)
        for row in choose_in_each(
            [row for row in rows if (row.get("input") == "records") is stored],
            "case",
            lambda row: (row["system"], row["threads"]),
        )
    ]
    return [f"{sentence(stamp(run))}; {machine(run)}.", render_fields(run), own, theirs]


_COMMON = {"bench", "run", "machine", "commit", "date", "ceiling", "error", "note"}


def render_fields(rows: Sequence[Fields]) -> str:
    """A table of every plain field of some rows."""
    keys = dict.fromkeys(key for row in rows for key in row if key not in _COMMON)
    shown = [key for key in keys if any(isinstance(row.get(key), str | int | float) for row in rows)]
    return tabulate(rows, {key.replace("_", " "): _cell(key) for key in shown})


def _cell(key: str) -> Callable[[Fields], str]:
    return lambda row: str(row[key]) if isinstance(row.get(key), bool) else plain(row.get(key))


def gpu(recorded: Recorded) -> list[str]:
    """The section on the newest complete run of the GPU bench, and on what is counted without a GPU."""
    parts = ["No row yet of a GPU; [PENDING_GPU.md](PENDING_GPU.md) says what is expected."]
    rows = [row for row in recorded.of("gpu") if row.get("device") not in ("", "cpu", None)]
    if rows:
        run = choose_rows(rows, lambda row: (row["corpus"], row["system"], row["batch"], row["k"]))
        parts = [f"{sentence(stamp(run))}; {machine(run)}, {run[0]['device']}.\n\n{render_fields(run)}"]
    counted = choose_newest(recorded.of("gpu_counted"), "part", "segments", "queries", "step").values()
    if counted:
        launches = [row for row in counted if row["part"] != "compile"]
        compiled = [row for row in counted if row["part"] == "compile"]
        parts += [
            f"What the drivers ask of a device, counted without one ({stamp(counted)}):",
            tabulate(launches, LAUNCHES),
            *(f"- {row['step']}, ms of CPU to compile: {_spent(row)}" for row in compiled),
        ]
    return parts


def _spent(row: Fields) -> str:
    return ", ".join(f"{name} {ms}" for name, ms in row["counts"].items())


def _count(name: str) -> Callable[[Fields], str]:
    return lambda row: f"{row['counts'].get(name, 0):,}"


COUNTS = (
    *("host launches", "captures", "kernels", "copies", "bytes up", "bytes down", "host waits", "stream waits"),
    *("events", "allocations", "pinned allocations"),
)
LAUNCHES = {
    **{"part": "part", "segments": "segments", "queries": "queries", "step": "step"},
    **{"nodes": lambda row: str(len(row["nodes"])), **{name: _count(name) for name in COUNTS}},
}
