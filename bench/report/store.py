"""The report's sections on builds, writes, crashes and the GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import sources
from .format import NONE, details, number, percent, sentence, table
from .rows import Fields, Recorded, choose_newest, choose_rows, machine, stamp

Figures = Mapping[str, Any]


def parts_of_writes(recorded: Recorded) -> dict[str, Fields]:
    """The newest row of every part of the bench of writes."""
    return {part: row for (part,), row in choose_newest(recorded.of("writes"), "part").items()}


def _append(figures: Figures, row: Fields) -> list[tuple[str, str]]:
    writers = [name for name in figures if name.startswith("writers_")]
    lines = [("one sync of the disk, median", f"{number(figures['sync_p50_ms'])} ms")]
    for name in writers:
        own = figures[name]
        told = f"{number(own['records_per_s'])} records/s (p99 of an `add` {number(own['add_p99_ms'])} ms)"
        lines.append((f"writers: {name.removeprefix('writers_')}", told))
    return lines


def _searching(figures: Figures, row: Fields) -> list[tuple[str, str]]:
    own = figures["flat_out"]
    return [
        ("one writer while nobody searches", f"{number(figures['alone']['records_per_s'])} records/s"),
        (
            f"one writer beside a thread that searches {row['settings']['base']:,} records without pause",
            f"{number(own['records_per_s'])} records/s, {number(own['fan_outs_per_s'])} fan-outs of 20 a second",
        ),
    ]


def _tail(figures: Figures, row: Fields) -> list[tuple[str, str]]:
    quiet, writing = figures["quiet"], figures["writing"]
    what = f"p99 of a fan-out of 20 over {row['settings']['base']:,} records, {row['settings']['tail_pace']:g} a second"
    return [
        (f"{what}: no writer", f"{number(quiet['fanout_p99_ms'])} ms"),
        (
            f"the same beside a writer of {number(figures['records_per_s'])} records/s",
            f"{number(writing['fanout_p99_ms'])} ms",
        ),
    ]


def _memory(figures: Figures, row: Fields) -> list[tuple[str, str]]:
    return [
        (f"peak memory, {figures['records']:,} records", f"{figures['peak_bytes_per_record']} bytes a record"),
        ("disk", f"{figures['disk_bytes_per_record']} bytes a record"),
    ]


def _cold(figures: Figures, row: Fields) -> list[tuple[str, str]]:
    lines = []
    for name, what in (("cached", "in the system's cache"), ("uncached", "on disk")):
        if name in figures:
            own = figures[name]
            seconds = (own["to_first_answer_ms"] - own["import_ms"]) / 1e3
            lines.append(
                (
                    f"open {row['settings']['cold_records']:,} records in a fresh process and answer: files {what}",
                    f"{number(seconds)} s (import, apart: {number(own['import_ms'] / 1e3)} s)",
                )
            )
    return lines


def _tenants(figures: Figures, row: Fields) -> list[tuple[str, str]]:
    settings = row["settings"]
    equal = ", equal to asking each alone" if figures["equal"] else ", NOT equal to asking each alone"
    return [
        (
            f"{settings['tenants']:,} tenants of {settings['tenant_records']:,} records in one process",
            f"{number(figures['after_build_gib'])} GiB",
        ),
        (f"one batch over {figures['batch_tenants']:,} of them{equal}", f"{number(figures['batch_p50_ms'])} ms"),
    ]


_WRITES: dict[str, Callable[[Figures, Fields], list[tuple[str, str]]]] = {
    "append": _append,
    "searching": _searching,
    "tail": _tail,
    "cold": _cold,
    "tenants": _tenants,
    "memory": _memory,
}


def write_lines(recorded: Recorded, parts: Sequence[str] = tuple(_WRITES)) -> list[tuple[str, str]]:
    """(label, figure) of these parts of the bench of writes, for the parts that have rows."""
    found = parts_of_writes(recorded)
    return [line for part in parts if part in found for line in _WRITES[part](found[part]["figures"], found[part])]


def writes(recorded: Recorded) -> list[str]:
    """The section on writes."""
    rows = list(parts_of_writes(recorded).values())
    if not rows:
        return [f"{NONE}: `make writes`."]
    return [
        f"{sentence(stamp(rows))}; {machine(rows)}. Batches of {rows[0]['settings']['batch']} synthetic records, each "
        "synced before `add` returns. [docs/memory.md](../docs/memory.md) says what a write promises.",
        table(["", "measured"], write_lines(recorded)),
    ]


def last_crash(recorded: Recorded) -> Fields | None:
    """The row of the newest crash test, which kills, damages and checks."""
    return max(recorded.of("crash"), key=lambda row: row["date"], default=None)


def crash_sentence(row: Fields) -> str:
    """What was done to the store and what was lost, in words."""
    steps = sum(1 for name in row["kills"] if not name.startswith("by the clock"))
    lost = f"{row['lost']} of {row['acknowledged']:,} acknowledged batches lost, {row['phantom']} that nobody wrote"
    return (
        f"{row['rounds']} rounds, {row['lives']:,} processes, killed at each of {steps} steps and at random, index "
        f"files cut, flipped, zeroed and removed, logs cut, disks full: {lost}, {len(row['broken'])} broken promises."
    )


def crash(recorded: Recorded) -> list[str]:
    """The section on crashes."""
    row = last_crash(recorded)
    if row is None:
        return [f"{NONE}: `make crash`."]
    body = [(f"killed: {name}", f"{count:,}") for name, count in row["kills"].items()]
    body += [(name, f"{count:,}") for name, count in row["faults"].items()]
    return [
        f"{sentence(stamp([row]))}. {crash_sentence(row)}",
        details("What was done, and how often", table(["", "times"], body)),
    ]


def building(recorded: Recorded) -> list[str]:
    """The section on builds of large corpora: every field of the rows, and AgentIR's figures."""
    rows = recorded.of("building")
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
    if not rows:
        return [f"{NONE} of builds at size: `python -m bench.building`.", own, theirs]
    run = [row for own_rows in _by_case(rows) for row in choose_rows(own_rows, _place)]
    return [f"{sentence(stamp(run))}; {machine(run)}.", render_fields(run), own, theirs]


def _by_case(rows: Sequence[Fields]) -> list[list[Fields]]:
    """The rows of each case. Builds are timed in turn only within a case."""
    cases = dict.fromkeys(row.get("case") for row in rows)
    return [[row for row in rows if row.get("case") == case] for case in cases]


def _place(row: Fields) -> str:
    return repr(sorted((key, str(row.get(key))) for key in _NAMES if key in row))


_NAMES = ("case", "corpus", "system", "part", "records", "documents", "threads", "chunk", "batch")
_COMMON = {"bench", "run", "machine", "commit", "date", "ceiling", "error", "note"}


def render_fields(rows: Sequence[Fields]) -> str:
    """A table of every plain field of some rows."""
    keys = [
        key
        for key in dict.fromkeys(key for row in rows for key in row)
        if key not in _COMMON and any(isinstance(row.get(key), str | int | float) for row in rows)
    ]
    body = [[_plain(key, row.get(key)) for key in keys] for row in rows]
    return table([key.replace("_", " ") for key in keys], body)


def _plain(key: str, value: Any) -> str:
    if value is None or isinstance(value, dict | list):
        return ""
    if isinstance(value, bool | str):
        return str(value)
    return percent(value) if key.endswith("share") else f"{value:,}" if isinstance(value, int) else number(value)


def gpu(recorded: Recorded) -> list[str]:
    """The section on the newest complete run of the GPU bench, and on what it counts without a GPU."""
    parts = []
    rows = [row for row in recorded.of("gpu") if row.get("device") not in ("", "cpu", None)]
    if rows:
        run = choose_rows(rows, lambda row: (row["corpus"], row["system"], row["batch"], row["k"]))
        parts.append(f"{sentence(stamp(run))}; {machine(run)}, {run[0]['device']}.\n\n{render_fields(run)}")
    else:
        parts.append(f"{NONE} of a GPU; [PENDING_GPU.md](PENDING_GPU.md) says what is expected.")
    return parts
