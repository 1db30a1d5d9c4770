"""Faults in the Triton kernels, which run in Triton's interpreter."""

from __future__ import annotations

from .fault import Fault

ANSWERS = "tests/devices/test_devices.py"
MANY = "tests/devices/test_many_tiles.py"
TENSORS = "tests/devices/test_tensors.py"
KERNELS = "tests/kernels/test_triton_kernels.py"

FAULTS = (
    Fault(
        "triton: a tile whose bound equals the threshold is skipped",
        "kernels/triton/score.py",
        "(bound >= threshold), number, TURNS)",
        "(bound > threshold), number, TURNS)",
        f"{MANY}::test_an_earlier_tile_that_only_equals_the_last_hit -k triton-interpreter",
    ),
    Fault(
        "triton: a repeated term counts once",
        "kernels/triton/score.py",
        ".to(weight.dtype) * weight[:, None]",
        ".to(weight.dtype)",
        f"{ANSWERS}::test_contributions_beyond_int32_and_large_frequencies -k triton-interpreter",
    ),
    Fault(
        "triton: sums of a tile are left for the next",
        "kernels/triton/emit.py",
        "    tl.store(sums + local, tl.zeros((TILE,), sums.dtype.element_ty))\n",
        "    pass\n",
        f"{ANSWERS}::test_fields -k triton-interpreter",
    ),
    Fault(
        "triton: a range's end is not looked at",
        "kernels/triton/emit.py",
        "eligible & (document >= low) & (document < high)",
        "eligible & (document >= low)",
        f"{ANSWERS}::test_time_filters_and_deletes_give_the_same_bits -k triton-interpreter",
    ),
    Fault(
        "triton: of tied documents the last are emitted",
        "kernels/triton/emit.py",
        "((score == level) & (tied_rank <= kept))",
        "((score == level) & (tied_rank > tl.sum(tied) - kept))",
        f"{MANY}::test_an_earlier_tile_that_only_equals_the_last_hit -k triton-interpreter",
    ),
    Fault(
        "triton: sums between 2^31 and 2^32 are added in int32",
        "kernels/triton/plan.py",
        "float64_of(numbers, 0) >= _WIDE_FROM",
        "float64_of(numbers, 0) >= 2 * _WIDE_FROM",
        f"{TENSORS}::test_weighted_sums_on_both_sides_of_a_border -k triton-interpreter",
    ),
    Fault(
        "triton: the last of the terms is not looked up",
        "kernels/triton/plan.py",
        "tl.load(row + TERM_COUNT).to(tl.int32), wanted, WAYS)",
        "tl.load(row + TERM_COUNT).to(tl.int32) - 1, wanted, WAYS)",
        f"{TENSORS}::test_tensors_in_tensors_out -k triton-interpreter",
    ),
    Fault(
        "triton: queries of the other width are scored, too",
        "kernels/triton/order.py",
        "if ((tl.load(query_wide + query) != 0) == WIDE) & (tl.load(query_k + query) > 0):",
        "if tl.load(query_k + query) > 0:",
        f"{KERNELS}::test_family",
    ),
    Fault(
        "triton: a decayed bound does not decay",
        "kernels/triton/order.py",
        "                        bound = decayed(bound, time,",
        "                        decayed(bound, time,",
        f"{ANSWERS}::test_time_filters_and_deletes_give_the_same_bits -k triton-interpreter",
    ),
    Fault(
        "triton: select: ties go to the younger document",
        "kernels/triton/select.py",
        "(other_low[None, :] > low_half[:, None])",
        "(other_low[None, :] < low_half[:, None])",
        f"{KERNELS}::test_select",
    ),
    Fault(
        "triton: the mean of the largest cosines divides by what was asked for",
        "kernels/triton/segment_reduce.py",
        "tl.maximum(tl.minimum(length, largest.to(tl.int64)), 1)",
        "tl.maximum(largest.to(tl.int64), 1)",
        "tests/kernels/test_segment_reduce.py::test_reduction",
    ),
)
