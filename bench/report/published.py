"""The report's section on the figures that the AgentIR paper prints, for whoever compares."""

from __future__ import annotations

from . import sources
from .format import table
from .rows import Recorded

COLUMNS = {
    "documents": [f"{count:,}" for count in sources.BEIR_DOCUMENTS],
    "nDCG@10, Pyserini / AgentIR (A111)": [sources.NDCG[name] for name in sources.BEIR],
    "8 threads (A111)": sources.CPU_8T_MS,
    "Pyserini, 8 threads (A111)": sources.PYSERINI_8T_MS,
    "PISA, 1 thread (A112)": sources.PISA_1T_MS,
    "scalar / SIMD / MaxScore / 8 threads (A113)": sources.ABLATION_MS,
    "1 / 4 / 8 threads (A114)": [sources.THREADS_MS.get(name, ()) for name in sources.BEIR],
    "GPU, a query (A054)": sources.GPU_MS_PER_QUERY,
    "GPU, batch: in / score / top k / out (A054)": sources.GPU_PHASES_MS,
}


def published(recorded: Recorded) -> list[str]:
    """The section: AgentIR's tables, and what belongs to them."""
    body = [[name, *(_cell(column[at]) for column in COLUMNS.values())] for at, name in enumerate(sources.BEIR)]
    listed = {
        "a hybrid query's parts, ms (A122)": sources.STAGES_MS,
        "how many times faster its 8 threads are (A112)": sources.GEOMETRIC_MEANS,
        "serial shares from 8 threads (A123)": sources.AMDAHL,
        "queries a second over those of one process, by processes (A124)": dict(sources.TENANTS),
        "dollars a query (A127)": sources.DOLLARS_PER_QUERY,
        "p99 that the other sources ask for, ms": sources.TARGETS_MS,
    }
    told = [
        f"- {what}: {', '.join(f'{name} {value:g}' for name, value in found.items())}" for what, found in listed.items()
    ]
    return [
        f"AgentIR's milliseconds, on {sources.CPU_MACHINE} and an {sources.GPU_MACHINE}, k 100. Of its data sets only "
        "SciFact is measured here, by texts, on other cores.",
        table(["data set", *COLUMNS], body),
        "\n".join(told),
    ]


def _cell(value: object) -> str:
    values = value if isinstance(value, tuple) else (value,)
    return " / ".join(each if isinstance(each, str) else f"{each:g}" for each in values)
