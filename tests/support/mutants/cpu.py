"""Faults in the numpy backend."""

from __future__ import annotations

from .fault import Fault

ONE_ANSWER = "tests/test_one_answer.py"
SELECT = "tests/cpu_fallback/test_select.py"
PRUNE = "tests/cpu_fallback/test_prune.py"
NEWEST = "tests/cpu_fallback/test_newest.py"
DENSE = "tests/vectors/test_dense.py"
REDUCE = "tests/kernels/test_segment_reduce.py"
NEIGHBOURS = "tests/search/test_neighbours.py"
CONTEXT = "tests/hybrid/test_context.py"

FAULTS = (
    Fault(
        "words around are added, not the largest taken",
        "engine/hybrid/context.py",
        "np.iinfo(np.int64).min).max(axis=1)",
        "0).sum(axis=1)",
        f"{CONTEXT}::test_words_around_count_once_where_they_count_most",
    ),
    Fault(
        "documents of filtered statistics keep their numbers",
        "engine/hybrid/context.py",
        "at = own if numbers is None else np.searchsorted(numbers, own)",
        "at = own if numbers is None else np.minimum(own, len(numbers) - 1)",
        f"{CONTEXT}::test_words_around_count_once_where_they_count_most",
    ),
    Fault(
        "vectors around are not brought to length 1",
        "engine/hybrid/context.py",
        "cosines = total / np.sqrt(np.where(squared > 0.0, squared, 1.0))",
        "cosines = total",
        f"{CONTEXT}::test_vectors_around_are_summed_and_brought_to_length_one",
    ),
    Fault(
        "the record after a question counts as its asker",
        "engine/hybrid/context.py",
        "else near[:, 0]",
        "else near[:, 1]",
        f"{CONTEXT}::test_cues_are_what_the_texts_show",
    ),
    Fault(
        "a record without a session is a turn",
        "engine/hybrid/context.py",
        "turns = near.max(axis=1) >= 0",
        "turns = near.max(axis=1) >= -1",
        f"{CONTEXT}::test_cues_are_what_the_texts_show",
    ),
    Fault(
        "what lends must have nearly the k-th own sum",
        "cpu_fallback/neighbours.py",
        "// whole_weight(setting.lent))]",
        "// (STEPS + 1))]",
        f"{NEIGHBOURS}::test_borrowed_scores_equal_the_oracle",
    ),
    Fault(
        "a document that does not pass lends nothing",
        "cpu_fallback/neighbours.py",
        "np.where(near >= 0, own[near], 0)",
        "np.where((near >= 0) & (passing is None or passing[near]), own[near], 0)",
        f"{NEIGHBOURS}::test_borrowed_scores_equal_the_oracle",
    ),
    Fault(
        "links end at a deleted document",
        "engine/index/neighbours.py",
        "made[gone] = links[made[gone]]",
        "made[gone] = NONE",
        f"{NEIGHBOURS}::test_a_deleted_record_stands_between_nobody",
    ),
    Fault(
        "a session ends with its segment",
        "engine/index/neighbours.py",
        "range(number - 1, start - 1, -1)",
        "range(0)",
        f"{NEIGHBOURS}::test_an_explanation_shows_what_each_neighbour_lends",
    ),
    Fault(
        "sessions of two namespaces are one",
        "engine/index/neighbours.py",
        "starts = sorted({*borders, len(parts)})",
        "starts = sorted({0, len(parts)})",
        f"{NEIGHBOURS}::test_sessions_are_of_one_namespace_and_records_without_one_borrow_nothing",
    ),
    Fault(
        "columns beyond the last whole group are not compared",
        "cpu_fallback/select.py",
        "    if whole < width:\n",
        "    if whole < 0:\n",
        f"{SELECT}::test_few_scores_at_both_ends",
    ),
    Fault(
        "ties of narrow scores go to the younger document",
        "cpu_fallback/select.py",
        "    return (score << 32) + (_LOW - document)\n",
        "    return (score << 32) + document\n",
        SELECT,
    ),
    Fault(
        "ties of wide scores go to the younger document",
        "cpu_fallback/select.py",
        "np.lexsort((document, ~score, row))",
        "np.lexsort((-document, ~score, row))",
        f"{NEWEST}::test_a_flood_of_ties {ONE_ANSWER}::test_scores_beyond_int32_take_the_wide_path",
    ),
    Fault(
        "the threshold of a row is the maximum of one group too few",
        "cpu_fallback/select.py",
        "    place = values.shape[1] - k\n    kth",
        "    place = min(values.shape[1] - k + 1, values.shape[1] - 1)\n    kth",
        f"{SELECT}::test_every_layout",
    ),
    Fault(
        "a later segment may beat the k-th score by no less than two quanta",
        "cpu_fallback/search.py",
        "unpack(merged[full, -1])[0] + 1)",
        "unpack(merged[full, -1])[0] + 2)",
        f"{NEWEST}::test_later_segments_must_beat_the_last_hit_by_a_quantum",
    ),
    Fault(
        "the documents of a range begin where those of its block do",
        "cpu_fallback/search.py",
        "                if not work.whole:\n                    column += work.base[chunk][row]\n",
        "",
        f"{NEWEST} -k every_kind",
    ),
    Fault(
        "scores between two segments are compared in int32 where they leave it",
        "cpu_fallback/search.py",
        "np.dtype(np.int64 if wide else np.int32)",
        "np.dtype(np.int32)",
        f"{ONE_ANSWER}::test_scores_beyond_int32_take_the_wide_path",
    ),
    Fault(
        "a filter is not applied",
        "cpu_fallback/score.py",
        "                np.multiply(scores, accepted, out=scores)\n",
        "                pass\n",
        f"{ONE_ANSWER}::test_filters_apply_before_selection",
    ),
    Fault(
        "a repeated term counts once in a dense row",
        "cpu_fallback/score.py",
        "        if multiplicity > 1:\n",
        "        if multiplicity > 1 and multiplicity > 1 << 40:\n",
        f"{ONE_ANSWER}::test_every_road_equals_the_oracle",
    ),
    Fault(
        "a posting list is added only in its first block",
        "cpu_fallback/score.py",
        "        start, scattered = end, scattered + total\n",
        "        start, scattered = len(numbers), scattered + total\n",
        f"{ONE_ANSWER}::test_every_road_equals_the_oracle",
    ),
    Fault(
        "tiles that equal the threshold are skipped",
        "cpu_fallback/prune.py",
        "        part, lists, np.flatnonzero(bounds >= threshold), tiles, threshold, passing, searched\n",
        "        part, lists, np.flatnonzero(bounds > threshold), tiles, threshold, passing, searched\n",
        f"{PRUNE}::test_older_documents_win_ties_whatever_tile_is_scored_first",
    ),
    Fault(
        "every tile is scored whatever its bound",
        "cpu_fallback/prune.py",
        "    bounds[promising] = 0\n",
        "    bounds += 1 << 40\n    bounds[promising] = 0\n",
        f"{PRUNE}::test_hopeless_tiles_are_skipped",
    ),
    Fault(
        "the tile bound of a repeated term is that of one",
        "cpu_fallback/prune.py",
        "np.multiply(tile_bounds.maxima, multiplicity, dtype=np.int64)",
        "np.multiply(tile_bounds.maxima, 1, dtype=np.int64)",
        f"{PRUNE}::test_a_repeated_term_bounds_its_tile_as_often",
    ),
    Fault(
        "of equal decayed scores too few of the first documents stay",
        "cpu_fallback/newest.py",
        "(np.cumsum(equal) <= k - np.count_nonzero(above))",
        "(np.cumsum(equal) < k - np.count_nonzero(above))",
        f"{NEWEST}::test_a_flood_of_ties",
    ),
    Fault(
        "a decayed search leaves out a block that equals the k-th key",
        "cpu_fallback/newest.py",
        "latest[blocks - 1]) < least",
        "latest[blocks - 1]) <= least",
        f"{NEWEST}::test_a_bound_that_is_reached_ends_nothing {NEWEST}::test_bounds_of_ages_hold_at_every_edge",
    ),
    Fault(
        "a posting of the cut list before the range is read",
        "cpu_fallback/segment_work.py",
        "((firsts, low, low > 0), (lasts, high, high < size))",
        "((firsts, low, low > 1 << 40), (lasts, high, high < size))",
        NEWEST,
    ),
    Fault(
        "the float32 score of a dense hit is taken as it is",
        "cpu_fallback/dense.py",
        "    error = 0.0 if exact else _error(queries, vectors, mode, reduction)\n",
        "    error = 0.0\n",
        f"{DENSE}::test_float32_alone_would_lose_hits",
    ),
    Fault(
        "ties of dense scores go to the younger document",
        "cpu_fallback/dense.py",
        "np.lexsort((document, -score, query))",
        "np.lexsort((-document, -score, query))",
        f"{DENSE}::test_many_documents",
    ),
    Fault(
        "the mean of the largest cosines divides by the rows asked for, not by those that are there",
        "cpu_fallback/segment_reduce.py",
        "        means[:, members] = total / summed\n",
        "        means[:, members] = total / largest\n",
        f"{REDUCE}::test_reduction",
    ),
)
