"""Faults in what drives the kernels: plans, buffers, fan-outs, memory, selection by torch."""

from __future__ import annotations

from .fault import Fault

DEVICES = "tests/devices"
ANSWERS = f"{DEVICES}/test_devices.py"
MANY = f"{DEVICES}/test_many_tiles.py"
MEMORY = f"{DEVICES}/test_memory.py"
TENSORS = f"{DEVICES}/test_tensors.py"
EPOCHS = f"{DEVICES}/test_epochs.py"
FANOUTS = f"{DEVICES}/test_fanouts.py"
LATE = "tests/kernels/test_late_device.py"
DENSE = "tests/vectors/test_dense.py"
REDUCE = "tests/kernels/test_segment_reduce.py"

FAULTS = (
    Fault(
        "more hits than the kernels select are refused",
        "kernels/sort.py",
        "    offsets, emitted = work.candidate_offset",
        "    raise RuntimeError\n    offsets, emitted = work.candidate_offset",
        f"{MANY}::test_more_hits_than_the_kernels_select",
    ),
    Fault(
        "more hits than the kernels select are not sorted whole",
        "kernels/launch.py",
        "        if work.width > MAX_SELECTED:\n",
        "        if work.width > 2 * MAX_SELECTED:\n",
        f"{MANY}::test_more_hits_than_the_kernels_select",
    ),
    Fault(
        "many hits: ties of wide scores go to the younger document",
        "kernels/sort.py",
        "order = torch.sort(documents, dim=1, descending=True).indices",
        "order = torch.sort(documents, dim=1, descending=False).indices",
        f"{MANY}::test_more_decayed_hits_than_the_kernels_select",
    ),
    Fault(
        "many hits: the order of ties rests on how torch happens to sort",
        "kernels/sort.py",
        "scores, order = torch.sort(keys, dim=1, descending=True, stable=True)",
        "scores, order = torch.sort(keys, dim=1, descending=True)",
        f"{MANY}::test_ties_do_not_rest_on_how_torch_sorts",
    ),
    Fault(
        "many hits: empty places hold the document of a candidate",
        "kernels/sort.py",
        "numbers = torch.where(kept, _LOW - documents[:, :width], -1)",
        "numbers = _LOW - documents[:, :width]",
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
        "a fan-out keeps the rows of segments that are gone",
        "kernels/fanout.py",
        "        rows[len(table.rows) :] = 0\n",
        "        pass\n",
        f"{EPOCHS}::test_an_older_epoch_is_answered_again",
    ),
    Fault(
        "a fan-out reads the table of an older epoch",
        "kernels/fanout.py",
        "        rows[: len(table.rows)] = table.rows\n",
        "        if self._uses == 1:\n            rows[: len(table.rows)] = table.rows\n",
        f"{EPOCHS}::test_an_older_epoch_is_answered_again",
    ),
    Fault(
        "a fan-out keeps terms of the one before",
        "kernels/fanout.py",
        "        rest[len(terms) : shape.terms] = -1\n",
        "        pass\n",
        f"{FANOUTS}::test_padded_shapes_by_every_size",
    ),
    Fault(
        "the buffers of a fan-out that is not read yet are taken again",
        "kernels/fanout.py",
        "            if fanout is None or not fanout.busy:\n",
        "            if True:\n",
        f"{FANOUTS}::test_fan_outs_within_fan_outs",
    ),
    Fault(
        "what is kept for an epoch outlives it",
        "kernels/device.py",
        "keeper._let_go(keeper._kept.pop(number)[1])",
        "keeper._let_go(keeper._kept[number][1])",
        f"{EPOCHS}::test_a_new_epoch_at_the_address_of_an_old_one",
    ),
    Fault(
        "a segment keeps the contributions of another epoch",
        "kernels/device.py",
        "            if not resident.is_of(snapshot)\n",
        "            if not resident.is_of(snapshot) and resident._epoch is None\n",
        f"{EPOCHS}::test_grown_while_searched",
    ),
    Fault(
        "an answer lies in buffers that the next one overwrites",
        "kernels/download.py",
        "answer = scores[hits].copy(), documents[hits].copy(), counts",
        "answer = scores[hits], documents[hits], counts",
        f"{FANOUTS}::test_another_fan_out_while_one_is_read",
    ),
    Fault(
        "a frame for another k is taken",
        "kernels/tensors.py",
        "        frame = self._frames.get(key)\n",
        "        frame = next((own for (_, s), own in self._frames.items() if replace(s, k=shape.k) == shape), None)\n",
        f"{TENSORS}::test_one_shape_with_other_numbers_of_hits",
    ),
    Fault(
        "weights are no reason for wide sums",
        "kernels/tensors.py",
        "(weights is not None or snapshot.highest_bound * len(terms) >= INT32_MAX)",
        "(snapshot.highest_bound * len(terms) >= INT32_MAX)",
        f"{TENSORS}::test_weighted_sums_on_both_sides_of_a_border -k cuda-host",
    ),
    Fault(
        "weights beyond the limit are taken",
        "kernels/tensors.py",
        "weights.clamp(1, MAX_WEIGHT)",
        "weights.clamp(1, 2 * MAX_WEIGHT)",
        f"{TENSORS}::test_weights_beyond_int32_sums_and_beyond_their_limits",
    ),
    Fault(
        "filters begin a word too early",
        "kernels/batch.py",
        "                self.mask_words += len(bits)\n",
        "                self.mask_words += len(bits) - 1\n",
        f"{ANSWERS}::test_filters_and_namespaces_in_one_batch",
    ),
    Fault(
        "queries of a chunk that do not fit it are lost",
        "kernels/batch.py",
        "                    start = end\n",
        "                    start = len(queries)\n",
        f"{ANSWERS}::test_sizes_around_every_border -k 151-cuda-host",
    ),
    Fault(
        "wide queries are answered among narrow ones",
        "kernels/batch.py",
        "queries = queries[plan.large[queries] == wide] if not long else queries",
        "queries = queries[np.full(len(queries), not wide)] if not long else queries",
        f"{ANSWERS}::test_scores_beyond_int32 -k cuda-host",
    ),
    Fault(
        "a launch over a merged segment's memory is not waited for",
        "kernels/lifetime.py",
        "        for event in self._pending():\n            self._runtime.wait_for(event)\n",
        "        pass\n",
        f"{LATE}::test_every_road_beside_writes",
    ),
    Fault(
        "what a launch may still read is let go",
        "kernels/lifetime.py",
        "if not all(event.done() for event in kept[0])",
        "if not any(True for event in kept[0])",
        f"{LATE}::test_every_road_beside_writes",
    ),
    Fault(
        "launches do not wait for what was written",
        "kernels/lifetime.py",
        "            self._runtime.wait_for(self._ready)\n",
        "            pass\n",
        f"{LATE}::test_every_road_beside_writes",
    ),
    Fault(
        "bytes of the fan-outs are not counted",
        "kernels/fanout.py",
        "sum(each.bytes for each in list(self._kept.values()))",
        "sum(0 for each in list(self._kept.values()))",
        f"{LATE}::test_all_that_is_held_is_counted",
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
