"""Faults in the device code."""

from __future__ import annotations

from .fault import Fault

CUDA = "tests/kernels/test_cuda_kernels.py"
REDUCE = "tests/kernels/test_segment_reduce.py"

FAULTS = (
    Fault(
        "select: ties of wide scores go to the younger document",
        "kernels/cuda/select.cu",
        "(sum == other.sum && descending > other.descending)",
        "(sum == other.sum && descending < other.descending)",
        f"{CUDA}::test_select_at_every_k",
    ),
    Fault(
        "select: the last keys of the warp's queue are dropped",
        "kernels/cuda/select.cu",
        "    if (queued > 0) {\n        best.merge(",
        "    if (queued > 1) {\n        best.merge(",
        f"{CUDA}::test_select_at_every_k",
    ),
    Fault(
        "select: a warp's threshold is its best key, not its worst",
        "kernels/cuda/select.cu",
        "best.items[ITEMS - 1].from_lane(WARP - 1)",
        "best.items[0].from_lane(0)",
        f"{CUDA}::test_select_at_every_k",
    ),
    Fault(
        "select: one of the warps' lists is not merged",
        "kernels/cuda/select.cu",
        "lists[(warp + 1) * best.SIZE - 1 - (i * WARP + lane)]",
        "lists[best.SIZE - 1 - (i * WARP + lane)]",
        f"{CUDA}::test_select_at_every_k",
    ),
    Fault(
        "select: a bitonic round sorts one slot too few",
        "kernels/cuda/select.cu",
        "threshold = slots[k - 1];",
        "threshold = slots[k > 1 ? k - 2 : 0];",
        f"{CUDA}::test_select_at_every_k",
    ),
    Fault(
        "select: the survivors of several rounds leave the slots",
        "kernels/cuda/select.cu",
        "best + survivors > a.slots - BITONIC_THREADS",
        "best + survivors > a.slots",
        f"{CUDA} -k test_select",
    ),
    Fault(
        "select: padding holds a score",
        "kernels/cuda/select.cu",
        "real ? key.score() : 0;",
        "key.score();",
        f"{CUDA}::test_select_at_every_k",
    ),
    Fault(
        "select: a query of the other width is answered, too",
        "kernels/cuda/select.cu",
        "    if ((a.query_wide[query] != 0) != Key::WIDE) {\n        return;\n    }\n    "
        "const i32 k = smaller(a.query_k[query], a.slots / 2);",
        "    const i32 k = smaller(a.query_k[query], a.slots / 2);",
        f"{CUDA} -k every_case",
    ),
    Fault(
        "derive: a posting takes the idf of the term before it",
        "kernels/cuda/derive.cu",
        "                    idf = a.idf[term];\n",
        "",
        f"{CUDA}::test_derive_takes_every_block_and_alignment",
    ),
    Fault(
        "derive: the average length of the first field serves all",
        "kernels/cuda/derive.cu",
        "a.average_lengths[field]);",
        "a.average_lengths[0]);",
        f"{CUDA}::test_derive_over_a_grid",
    ),
    Fault(
        "derive: a contribution of less than a quantum is lost",
        "kernels/cuda/derive.cu",
        "larger(quanta, i64(1))",
        "larger(quanta, i64(0))",
        f"{CUDA}::test_derive_over_a_grid",
    ),
    Fault(
        "derive: postings past the last whole vector are left out",
        "kernels/cuda/derive.cu",
        "                if (i < count) {\n                    quanta[first + i] = result.value[i];",
        "                if (i + 1 < count) {\n                    quanta[first + i] = result.value[i];",
        f"{CUDA}::test_derive_takes_every_block_and_alignment",
    ),
    Fault(
        "bounds of a whole warp: one lane's maximum is left out",
        "kernels/cuda/common.cuh",
        "value = larger(value, __shfl_xor_sync(ALL_LANES, value, distance));",
        "value = distance > 1 ? larger(value, __shfl_xor_sync(ALL_LANES, value, distance)) : value;",
        f"{CUDA} -k every_case",
    ),
)
