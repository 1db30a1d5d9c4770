"""Faults in what drives the kernels: plans, buffers, fan-outs, selection by torch."""

from __future__ import annotations

from .fault import Fault

DEVICES = "tests/devices"
MANY = f"{DEVICES}/test_many_tiles.py"
TENSORS = f"{DEVICES}/test_tensors.py"
EPOCHS = f"{DEVICES}/test_epochs.py"
FANOUTS = f"{DEVICES}/test_fanouts.py"
DENSE = "tests/vectors/test_dense.py"
REDUCE = "tests/kernels/test_segment_reduce.py"

FAULTS = (
    Fault(
        "cuts at borders beyond the first 32 are never made",
        "kernels/cuda/verbs.py",
        "        groups = -(-(work.max_tiles + 1) // WARP)\n",
        "        groups = 1\n",
        f"{MANY}::test_around_32_and_64_tiles -k cuda-host",
    ),
    Fault(
        "the last cut is missing at 32 and 64 tiles",
        "kernels/cuda/verbs.py",
        "        groups = -(-(work.max_tiles + 1) // WARP)\n",
        "        groups = -(-work.max_tiles // WARP)\n",
        f"{MANY}::test_around_32_and_64_tiles -k cuda-host",
    ),
    Fault(
        "more hits than the kernels select are refused",
        "kernels/sort.py",
        "    offsets, emitted = work.candidate_offset",
        "    raise RuntimeError\n    offsets, emitted = work.candidate_offset",
        f"{MANY}::test_more_hits_than_the_kernels_select",
    ),
    Fault(
        "ties of many wide scores go to the younger document",
        "kernels/sort.py",
        "order = torch.sort(documents, dim=1, descending=True).indices",
        "order = torch.sort(documents, dim=1, descending=False).indices",
        f"{MANY}::test_more_decayed_hits_than_the_kernels_select",
    ),
    Fault(
        "the order of ties rests on how torch happens to sort",
        "kernels/sort.py",
        "keys, order = torch.sort(keys, dim=1, descending=True, stable=True)",
        "keys, order = torch.sort(keys, dim=1, descending=True)",
        f"{MANY}::test_ties_do_not_rest_on_how_torch_sorts",
    ),
    Fault(
        "a fan-out of another epoch is taken",
        "kernels/fanout.py",
        "            key = (id(snapshot), queries, terms, width, turn)\n",
        "            key = (0, queries, terms, width, turn)\n",
        f"{EPOCHS}::test_an_older_epoch_is_answered_again",
    ),
    Fault(
        "fan-outs of epochs that are gone are kept",
        "kernels/fanout.py",
        "            del self._kept[gone]\n",
        "            pass\n",
        f"{EPOCHS}::test_a_new_epoch_at_the_address_of_an_old_one",
    ),
    Fault(
        "an answer lies in buffers that the next one overwrites",
        "kernels/batch.py",
        "answer = scores[hits].copy(), documents[hits].copy(), counts",
        "answer = scores[hits], documents[hits], counts",
        f"{FANOUTS}::test_another_fan_out_while_one_is_read",
    ),
    Fault(
        "a frame for another k is taken",
        "kernels/tensors.py",
        "        frame = kept.pop(shape, None)\n",
        "        frame = next((kept.pop(s) for s in list(kept) if s[:3] == shape[:3]), None)\n",
        f"{TENSORS}::test_one_shape_with_other_numbers_of_hits",
    ),
    Fault(
        "the parts of a decayed launch all begin with the last block",
        "kernels/cuda/verbs.py",
        "arguments.block_base = work.blocks - 1 - first if decays else first",
        "arguments.block_base = work.blocks - 1 if decays else first",
        f"{MANY}::test_launches_of_few_blocks",
    ),
    Fault(
        "weighted sums between 2^31 and 2^32 are added in int32",
        "kernels/tensors.py",
        "        query_wide = (bound >= INT32_MAX).to(torch.uint8)\n",
        "        query_wide = (bound >= 2 * INT32_MAX).to(torch.uint8)\n",
        f"{TENSORS}::test_weighted_sums_on_both_sides_of_a_border -k cuda-host",
    ),
    Fault(
        "the buffers of a fan-out that is not read yet are taken again",
        "kernels/fanout.py",
        "            if kept is None or not kept[1].busy:\n",
        "            if True:\n",
        f"{FANOUTS}::test_fan_outs_within_fan_outs",
    ),
    Fault(
        "many hits: empty places hold the document of a candidate",
        "kernels/sort.py",
        "answer.documents[rows] = torch.where(kept, _LOW - documents[:, :width], -1)[rows]",
        "answer.documents[rows] = (_LOW - documents[:, :width])[rows]",
        f"{MANY}::test_more_hits_than_the_kernels_select",
    ),
    Fault(
        "many hits: rows of the other width are written over",
        "kernels/sort.py",
        "    rows = work.query_wide.bool() == wide\n",
        "    rows = work.query_wide.bool() == work.query_wide.bool()\n",
        f"{MANY}::test_more_hits_than_the_kernels_select",
    ),
    Fault(
        "many hits: a query's own k is not its own",
        "kernels/sort.py",
        "    counts = torch.minimum(emitted, work.query_k.to(torch.int64))\n",
        "    counts = torch.minimum(emitted, work.query_k.max().to(torch.int64))\n",
        f"{MANY}::test_more_hits_than_the_kernels_select",
    ),
    Fault(
        "dense: torch decides which of equal documents are hits",
        "kernels/dense.py",
        "(ties & (ties.cumsum(dim=1) <= width - above.sum(dim=1, keepdim=True)))",
        "(ties & (ties.flip(1).cumsum(dim=1).flip(1) <= width - above.sum(dim=1, keepdim=True)))",
        f"{DENSE}::test_borders_of_blocks",
    ),
    Fault(
        "dense: documents that do not pass are hits",
        "kernels/dense.py",
        "            if not wanted[block].all():\n",
        "            if wanted[block].all():\n",
        f"{DENSE}::test_best_and_scores",
    ),
    Fault(
        "dense: the limit of bytes is not looked at",
        "kernels/dense.py",
        "        if bounds and need > min(bounds):\n",
        "        if bounds and need > max(bounds) * 1000:\n",
        f"{DENSE}::test_a_device_has_a_limit",
    ),
    Fault(
        "dense: products of codes have fewer rows than cuBLAS takes",
        "kernels/dense.py",
        "(0, short, 0, max(0, CODE_QUERIES - query_count))",
        "(0, short, 0, max(0, CODE_QUERIES - query_count) // 2)",
        f"{DENSE}::test_int8_products_as_on_a_gpu",
    ),
    Fault(
        "torch: rows past a segment's end count in its sum",
        "kernels/segment_reduce.py",
        "cosines[:, row].masked_fill(column >= length, -torch.inf)",
        "cosines[:, row]",
        f"{REDUCE}::test_reduction",
    ),
    Fault(
        "torch: segments of a power of two rows are left out",
        "kernels/segment_reduce.py",
        "(counts > width // 2) & (counts <= width)",
        "(counts > width // 2) & (counts < width)",
        f"{REDUCE}::test_reduction",
    ),
)
