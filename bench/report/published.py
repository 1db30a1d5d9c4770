"""The report's section on published figures: each beside a row, with what is comparable and what is not."""

from __future__ import annotations

from collections.abc import Sequence

from ..harness.rows import Row
from . import sources
from .events import events_by_cell
from .format import number, table
from .growth import corpora, curves, growth_of
from .roofline import gpu_rows
from .rows import Fields, Recorded, note_stale
from .systems import PRUNING, mean_ratio, rows_with_times

OWN = "fanrank-native"


def _describe_latency(rows: Sequence[Fields], target: sources.Target) -> str:
    """The p99 of a method at the given size of the memory, or at the largest size measured."""
    own = curves(rows).get(target.method, [])
    row = next((row for row in own if row["records"] >= target.records), own[-1] if own else None)
    return f"{number(row['p99_us'] / 1e3)} ms at {row['records']:,} (p99, {target.method})" if row else "no row"


def _describe_lookup(rows: Sequence[Fields], target: sources.Target) -> str:
    """The p99 of one query by the temporal retriever, from its text to ids."""
    single = [row for row in rows if row["batch"] == 1 and row["arrival"] == "ordered"]
    fitting = [row for row in single if row["records"] >= target.records]
    row = fitting[0] if fitting else max(single, key=lambda row: row["records"], default=None)
    return (
        f"{number(row['search_p99_us'] / 1e3)} ms at {row['records']:,} (p99, temporal retriever)" if row else "no row"
    )


def _scifact(rows: Sequence[Row], threads: int, system: str = OWN) -> str:
    """Milliseconds at k = 100, kernel only."""
    for row in rows_with_times(rows, "kernel"):
        if (row.case, row.system, row.k, row.threads) == ("scifact", system, 100, threads):
            return f"{number(row.ms_per_query)} ms"
    return "no row"


def _ratio(rows: Sequence[Row], baseline: str) -> str:
    found = mean_ratio(rows_with_times(rows, "kernel"), OWN, baseline)
    return f"{number(1 / found[0])} times faster than {baseline}, {found[1]} cells" if found else "no row"


def published(recorded: Recorded) -> list[str]:
    """The section on published figures: the pairs, then AgentIR's tables."""
    rows = recorded.cpu
    scifact = sources.BEIR.index("SciFact")
    scalar, simd = sources.ABLATION_MS[scifact][:2]
    of_scifact = "same corpus; other machine, other tokens (theirs stemmed), C++"
    steady = corpora(recorded).get("steady", [])
    lookups = events_by_cell(recorded)
    grown = growth_of(steady, "temporal")
    peak = max((row["records"] for row in steady), default=0)
    on_gpu = ", ".join(f"{name} {ms:g}" for name, ms in zip(sources.BEIR, sources.GPU_MS_PER_QUERY, strict=True))
    by_threads = ", ".join(f"{ms:g}" for ms in sources.THREADS_MS["SciFact"])
    over_pyserini, over_pisa = sources.GEOMETRIC_MEANS.values()
    body = [
        [
            "A111",
            f"SciFact, 8 threads: {sources.CPU_8T_MS[scifact]:g} ms",
            f"{_scifact(rows, 2)} (2 threads)",
            of_scifact,
        ],
        [
            "A113",
            f"SciFact, 1 thread: {scalar:g} ms scalar, {simd:g} ms SIMD",
            _scifact(rows, 1),
            of_scifact,
        ],
        [
            "A114",
            f"SciFact, 1, 4, 8 threads: {by_threads} ms",
            f"{_scifact(rows, 1)}, {_scifact(rows, 2)} (1, 2 threads)",
            "what threads gain on a small corpus; the times as above",
        ],
        [
            "A112",
            f"PISA BlockMax-WAND, 1 thread, SciFact: {sources.PISA_1T_MS[scifact]:g} ms",
            f"{_scifact(rows, 1, PRUNING)} ({PRUNING}, 1 thread)",
            "the library; another algorithm, and through Python here",
        ],
        [
            "A112",
            f"{over_pisa:g} times faster than PISA",
            _ratio(rows, PRUNING),
            "no: theirs has 8 threads against PISA's one, ours the same threads for both",
        ],
        [
            "A112",
            f"{over_pyserini:g} times faster than Lucene through Pyserini",
            _ratio(rows, "pyserini"),
            "no: the Python wrapper costs more than Lucene; `--peers all` measures it",
        ],
        [
            "A038",
            f"temporal grows {sources.GROWTH_FACTORS['temporal']:g} times to 5 million records",
            f"{number(grown)} times to {peak:,}" if grown else "no row",
            "yes: same sizes and kind of corpus",
        ],
        [
            "A054",
            f"GPU, ms a query: {on_gpu}",
            _gpu(recorded),
            "the shape of a corpus at most: fiqa- and nq-shaped have those counts",
        ],
        *(
            [
                target.id,
                f"{target.what}: {target.milliseconds:g} ms asked for",
                _describe_lookup(lookups, target) if target.method == "events" else _describe_latency(steady, target),
                "a target, of no machine",
            ]
            for target in sources.TARGETS
        ),
    ]
    beir = [
        [
            *(name, f"{documents:,}", f"{sources.CPU_8T_MS[at]:g}", f"{sources.PYSERINI_8T_MS[at]:g}"),
            *(f"{sources.PISA_1T_MS[at]:g}", _join_values(sources.ABLATION_MS[at])),
            *(f"{sources.GPU_MS_PER_QUERY[at]:g}", _join_values(sources.GPU_PHASES_MS[at])),
        ]
        for at, (name, documents) in enumerate(zip(sources.BEIR, sources.BEIR_DOCUMENTS, strict=True))
    ]
    head = ["data set", "documents", "8 threads (A111)", "Pyserini, 8 threads (A111)", "PISA, 1 thread (A112)"]
    head += ["scalar / SIMD / MaxScore / 8 threads (A113)", "GPU, a query (A054)"]
    head += ["GPU, batch: in / score / top k / out (A054)"]
    parts = ", ".join(f"{name} {ms:g}" for name, ms in sources.STAGES_MS.items())
    return [
        table(["", "published", "here", "comparable?"], body),
        note_stale([*rows, *steady, *lookups, *gpu_rows(recorded)]),
        f"AgentIR's milliseconds, on {sources.CPU_MACHINE} and an {sources.GPU_MACHINE}, k 100; of its data "
        f"sets only SciFact is measured here. A hybrid query's parts (A122): {parts} ms.\n\n{table(head, beir)}",
    ]


def _join_values(values: Sequence[float]) -> str:
    return " / ".join(f"{value:g}" for value in values)


def _gpu(recorded: Recorded) -> str:
    rows = [
        row for row in gpu_rows(recorded) if row["k"] == 100 and row.get("ms") and row["system"].startswith("fanrank")
    ]
    best: dict[str, float] = {}
    for row in rows:
        each = row["ms"] / (row["queries"] or row["batch"])
        best[row["corpus"]] = min(best.get(row["corpus"], each), each)
    return ", ".join(f"{corpus} {number(ms)}" for corpus, ms in best.items()) or "no row"
