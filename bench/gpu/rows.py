"""The rows of the GPU benchmarks: one system on one batch; with ``error``, a system that could not be measured there.

`device` is the GPU's name, or "cpu" where kernels ran on the CPU (or the system is a CPU system). `ms` is the median
time of one batch over `reps` repetitions, `ms_iqr` the distance of its quartiles. `batch` queries are one call; a slow
system answered only the first `queries` of them, and its rate counts those. `phases_ms` are differences of medians:
what is stopped after describe, order and score, and the whole, were timed separately.

`postings_per_query` counts the postings of a query's lists, and `postings_per_s` is that over the time. The postings of
skipped tiles count as done. `counted` is the least that a batch must move and add, by analysis and not from hardware
counters. `share` holds, for each ceiling, the fraction of the measured time that the counted work takes at that ceiling
("shared": all traffic of shared memory together). `binding` names the largest share. Skipped tiles are counted, so a
share may exceed 1.

`part` is the part of an ablation, and `options` are those of its system that differ from the usual ones.

Exact systems: `identical` is the share of queries whose scores, documents and counts are those of the numpy system,
`repeatable` whether a second run gave the same. Float systems: `top1` and `overlap` (of the k best) are their agreement
with numpy.
"""

from collections.abc import Mapping
from typing import Any

# A count -> the ceiling that it is compared with.
CEILINGS = {
    "device_bytes": "copy_bytes",
    "l2_bytes": "l2_bytes",
    "shared_bytes": "shared_bytes",
    "shared_int32": "shared_int32",
    "l2_int32": "l2_int32",
    "l2_float": "l2_float",
}
SHARED = ("shared_bytes", "shared_int32")


Row = dict[str, Any]


def is_wrong(row: Mapping[str, Any]) -> bool:
    """Whether an exact system gave another answer than numpy, or two answers."""
    return row.get("repeatable") is False or (row.get("identical") is not None and row["identical"] < 1.0)


def shares(counted: Mapping[str, int], ceiling: Mapping[str, float], seconds: float) -> tuple[dict[str, float], str]:
    """(share of the time that each ceiling explains, name of the largest)."""
    found = {
        name: amount / ceiling[CEILINGS[name]] / seconds
        for name, amount in counted.items()
        if ceiling.get(CEILINGS[name])
    }
    if all(name in found for name in SHARED):
        found["shared"] = sum(found[name] for name in SHARED)
    rounded = {name: float(f"{share:.3g}") for name, share in found.items()}
    return rounded, max(found, key=lambda name: found[name]) if found else ""
