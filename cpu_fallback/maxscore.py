"""One segment scored for a group of queries, reading as few postings as will do: loops that numba compiles.

This is MaxScore (A017). A query's lists are ordered by their upper bounds, the largest first. The last ones, which
together cannot reach the score that a hit needs, are the non-essential lists: they are not read, but looked up for the
documents that the essential lists in front of them find. The score that a hit needs is the threshold. The best postings
of each list (`engine/index/upper_bounds.py`) give a first threshold before any posting is read, and it rises from tile
to tile.
"""

from __future__ import annotations

import numba
import numpy as np

from ..engine.index.bm25 import SCALE
from .loop_arguments import (
    BestHits,
    Bounds,
    Candidates,
    DenseRows,
    Filters,
    OrderedTerms,
    PostingLists,
    QueryGroup,
    ScanOptions,
    SkipTable,
)
from .quickselect import keep_best

# Scores whose largest is found at once; a block that cannot enter the k best is passed over. Blocks of 16, 32, 64 and
# 128 took .21, .14, .14 and .09 ms a query on SGD at k 10.
BLOCK = 128
# Groups of scores whose maxima give a tile's first threshold, as a multiple of k, and at least.
GROUPS_PER_K = 4
MIN_GROUPS = 256
# A list with this many times fewer postings than there are impact classes is sorted where it is surveyed, not counted
# by impact class.
SORT_SHARE = 8


@numba.njit(nogil=True, cache=True)
def enter(
    positions,  # [lists to enter] int64: positions in the segment's terms
    offsets,  # [terms + 1] int64: of the segment's lists
    documents,  # [postings] int32
    size,  # documents of the segment
    skip_table,  # `SkipTable` by position in the segment's terms; its `bits` are those wanted
):
    """Enter the lists at these positions into the segment's skip table."""
    for position in positions:
        start, bits = offsets[position], skip_table.bits[position]
        first_entry, group_bits = skip_table.starts[position], skip_table.group_bits[position]
        block = first_entry
        for p in range(start, offsets[position + 1]):
            entered = first_entry + (documents[p] >> np.int64(bits))
            while block <= entered:
                skip_table.entries[block] = p - start
                block += 1
            group = documents[p] >> np.int64(group_bits)
            skip_table.presence[skip_table.group_starts[position] + (group >> 3)] |= np.uint8(1 << (group & 7))
        # Blocks behind the last posting, and the end of the last block.
        for empty in range(block, first_entry + (size >> np.int64(bits)) + 2):
            skip_table.entries[empty] = offsets[position + 1] - start


@numba.njit(nogil=True, cache=True)
def survey(
    positions,  # [lists] int64: positions in the segment's terms, or -1: none
    offsets,  # [terms + 1] int64: of the segment's lists
    impact_classes,  # [postings] uint16 or uint32
    reference,  # [classes] float64: contribution of each impact class by the reference, but for the idf
    best_classes,  # [classes] int64: the impact classes, largest contribution first
    ranks,  # [ranks] int64: `UpperBounds.ranks`
    values,  # [terms, ranks] float32: `UpperBounds.values`; a list whose first is 0 is not filled yet
):
    """Fill `values` at these positions, where they are not filled yet."""
    counts = np.zeros(len(reference), dtype=np.int64)
    for position in positions:
        if position < 0 or values[position, 0] != 0.0:
            continue
        start, end = offsets[position], offsets[position + 1]
        if SORT_SHARE * (end - start) < len(reference):
            negated = np.empty(end - start, dtype=np.float64)
            for p in range(start, end):
                negated[p - start] = -reference[impact_classes[p]]
            negated.sort()
            # The first rank is written last: another thread that sees it reads the other ranks, too.
            for column in range(len(ranks) - 1, -1, -1):
                if ranks[column] <= len(negated):
                    values[position, column] = -negated[ranks[column] - 1]
            continue
        for p in range(start, end):
            counts[impact_classes[p]] += 1
        seen, column, largest = 0, 0, 0.0
        for impact_class in best_classes:
            seen += counts[impact_class]
            while column < len(ranks) and seen >= ranks[column]:
                if column == 0:
                    largest = reference[impact_class]
                else:
                    values[position, column] = reference[impact_class]
                column += 1
            if column == len(ranks) or seen == end - start:
                break
        values[position, 0] = largest
        counts[:] = 0


@numba.njit(cache=True)
def bounds(
    offsets,  # [queries + 1] int64: into slots
    slots,  # [query-term pairs] int64: term of each pair
    multiplicities,  # [query-term pairs] int64
    idf,  # [terms] float64
    positions,  # [terms] int64: position in the segment's terms, or -1
    values,  # [segment's terms, ranks] float32: `UpperBounds.values`
    least,  # float: no contribution is smaller than the surveyed one times this
    largest,  # float: none is larger than the surveyed one times this
    ranks,  # [queries] int64: the column of `values` that the query's k documents reach, or the number of columns: none
):
    """(upper bound of each term [terms], least score of each query's k best [queries]), in quanta.

    The arrays are passed one by one: the whole call takes 1.7 us, so building a structure for it would not pay.
    """
    upper_bounds = np.zeros(len(positions), dtype=np.int64)
    for term in range(len(positions)):
        if positions[term] >= 0:
            # One quantum more covers the rounding.
            upper_bounds[term] = np.int64(np.ceil(idf[term] * (values[positions[term], 0] * largest) * SCALE)) + 1
    reached = np.zeros(len(ranks), dtype=np.int64)
    for query in range(len(ranks)):
        if ranks[query] == values.shape[1]:
            continue
        for slot in range(offsets[query], offsets[query + 1]):
            term = slots[slot]
            if positions[term] >= 0:
                contribution = idf[term] * (values[positions[term], ranks[query]] * least) * SCALE
                # One quantum less covers the rounding.
                reached[query] = max(reached[query], (np.int64(contribution) - 1) * multiplicities[slot])
    return upper_bounds, reached


@numba.njit(nogil=True, cache=True)
def score_segment(queries, lists, bounds, skip_table, dense_rows, filters, options, best, counted):
    """Score one segment for a group of queries. `best` carries each row's hits from segment to segment.

    The arguments are the structures of `loop_arguments.py` as plain tuples. Without `options.prunes`, every posting is
    read. A tile with at least `scan_percent` postings to read per hundred documents is looked through document by
    document, in blocks; a tile with fewer, posting by posting. `counted` int64 [3 or more] takes the postings read, the
    entries of dense rows read, and the look-ups.
    """
    queries, lists, bounds = QueryGroup(*queries), PostingLists(*lists), Bounds(*bounds)
    skip_table, dense_rows, filters = SkipTable(*skip_table), DenseRows(*dense_rows), Filters(*filters)
    options, best = ScanOptions(*options), BestHits(*best)
    longest = 0
    for query in queries.queries:
        longest = max(longest, queries.offsets[query + 1] - queries.offsets[query])
    ordered = OrderedTerms(
        terms=np.empty(longest, dtype=np.int64),
        weights=np.empty(longest, dtype=np.int32),
        upper_bounds=np.empty(longest, dtype=np.int64),
        suffix_bounds=np.empty(longest + 1, dtype=np.int64),
        cursors=np.empty(longest, dtype=np.int64),
        begins=np.empty(longest, dtype=np.int64),
    )
    scores = np.zeros(options.tile, dtype=np.int32)
    maxima = np.empty(options.tile, dtype=np.int32)
    candidates = Candidates(np.empty(options.tile + 1, dtype=np.int32), np.empty(options.tile + 1, dtype=np.int32))
    size = filters.masks.shape[1]
    for row in range(len(queries.queries)):
        query, k, count = queries.queries[row], queries.k[row], best.counts[row]
        threshold = best.thresholds[row]
        if options.prunes:
            threshold = max(threshold, bounds.reached[query])
        mask = filters.mask_of_query[query]
        present = _order_terms(queries, query, lists, bounds, ordered)
        essential = present
        for low in range(0, size, options.tile):
            while options.prunes and essential > 0 and ordered.suffix_bounds[essential - 1] < threshold:
                essential -= 1
            if essential == 0:
                break
            high = min(low + options.tile, size)
            tile_scores = scores[: high - low]
            postings, has_row = _read_tile(tile_scores, lists, dense_rows, ordered, essential, low, high, counted)
            if postings == 0 and not has_row:
                continue
            counted[0] += postings
            if has_row or (essential > 1 and 100 * postings >= options.scan_percent * (high - low)):
                if count < k and mask < 0:
                    threshold = max(threshold, np.int64(_first_threshold(tile_scores, maxima, k)))
                needed = threshold - ordered.suffix_bounds[essential]
                taken = _take_from_scores(candidates, tile_scores, needed)
            else:
                needed = threshold - ordered.suffix_bounds[essential]
                taken = _take_from_lists(candidates, scores, lists, ordered, essential, low, needed)
            for place in range(essential, present):
                if taken == 0:
                    break
                counted[2] += taken
                # The score that a document needs after this list.
                needed = threshold - ordered.suffix_bounds[place + 1]
                taken = _look_up(
                    candidates, taken, needed, lists, skip_table, dense_rows, ordered.terms[place],
                    ordered.weights[place], low, high,
                )  # fmt: skip
            threshold, count = _keep_hits(
                best.keys[row], count, k, threshold, candidates, taken, low, options.first_document, filters.masks, mask
            )
        best.thresholds[row], best.counts[row] = threshold, count


@numba.njit(nogil=True, cache=True)
def _order_terms(queries, query, lists, bounds, ordered):
    """Fill `ordered` with the terms of the query that the segment holds; returns how many there are."""
    present = 0
    for slot in range(queries.offsets[query + 1] - 1, queries.offsets[query] - 1, -1):
        term = queries.slots[slot]
        if lists.starts[term] == lists.ends[term]:
            continue
        multiplicity = queries.multiplicities[slot]
        upper_bound, place = bounds.upper_bounds[term] * multiplicity, present
        while place > 0 and ordered.upper_bounds[place - 1] < upper_bound:
            ordered.upper_bounds[place] = ordered.upper_bounds[place - 1]
            ordered.terms[place] = ordered.terms[place - 1]
            ordered.weights[place] = ordered.weights[place - 1]
            place -= 1
        ordered.upper_bounds[place], ordered.terms[place], ordered.weights[place] = upper_bound, term, multiplicity
        present += 1
    ordered.suffix_bounds[present] = 0
    for place in range(present - 1, -1, -1):
        ordered.suffix_bounds[place] = ordered.suffix_bounds[place + 1] + ordered.upper_bounds[place]
        ordered.cursors[place] = lists.starts[ordered.terms[place]]
    return present


@numba.njit(nogil=True, cache=True)
def _read_tile(scores, lists, dense_rows, ordered, essential, low, high, counted):
    """Add the essential lists to the scores of the documents in [low, high).

    Returns how many postings the tile has of them, and whether one of them is a dense row. A single list is not added:
    `_take_from_list` reads its scores from the postings.
    """
    postings = 0
    has_row = False
    for place in range(essential):
        term = ordered.terms[place]
        row = dense_rows.row_of_term[term]
        if row >= 0:
            _add_row(scores, dense_rows.values[row, low:high], ordered.weights[place])
            counted[1] += high - low
            has_row = True
            continue
        start, stop = ordered.cursors[place], lists.ends[term]
        if stop > start and lists.documents[stop - 1] >= high:
            stop = _seek(lists.documents, start, stop, high)
        if essential > 1:
            add_list(scores, lists, term, start, stop, low, ordered.weights[place])
        ordered.begins[place], ordered.cursors[place] = start, stop
        postings += stop - start
    return postings, has_row


@numba.njit(nogil=True, cache=True)
def _take_from_lists(candidates, scores, lists, ordered, essential, low, needed):
    """Take the documents of the essential lists' postings in the tile whose score is `needed` or more; returns how
    many. Their scores become 0.
    """
    if essential == 1:
        return _take_from_list(
            candidates, lists, ordered.terms[0], ordered.begins[0], ordered.cursors[0], low, ordered.weights[0], needed
        )
    taken = 0
    for place in range(essential):
        documents = lists.documents[ordered.begins[place] : ordered.cursors[place]]
        taken = _take_from_documents(candidates, taken, scores, documents, low, needed)
    return taken


@numba.njit(nogil=True, cache=True)
def _look_up(candidates, taken, needed, lists, skip_table, dense_rows, term, weight, low, high):
    """Add the term's contributions to the candidates and drop those below `needed`. Returns how many are left."""
    row = dense_rows.row_of_term[term]
    if row >= 0:
        return _look_up_row(candidates, taken, needed, dense_rows.values[row, low:high], weight)
    if skip_table.bits[term] >= 0:
        return _look_up_entries(candidates, taken, needed, lists, skip_table, term, weight, low)
    return _look_up_list(candidates, taken, needed, lists, term, weight, low)


@numba.njit(nogil=True, cache=True)
def _keep_hits(keys, count, k, threshold, candidates, taken, low, first_document, masks, mask):
    """Add the tile's candidates that are hits to the keys; returns the threshold and how many keys there are."""
    before = count
    for candidate in range(taken):
        document = low + candidates.places[candidate]
        score = candidates.sums[candidate]
        if score < threshold or (mask >= 0 and not masks[mask, document]):
            continue
        keys[count] = (np.int64(score) << 32) + (np.int64(0xFFFFFFFF) - (first_document + document))
        count += 1
        if count == len(keys):
            # A candidate that comes later in this tile may be an older document, so it need only equal the k-th score.
            threshold = max(threshold, keep_best(keys, None, count, k) >> 32)
            count = k
    if count >= k and count > before:
        # Later tiles hold younger documents: they must beat the k-th score, not equal it.
        threshold = max(threshold, (keep_best(keys, None, count, k) >> 32) + 1)
        count = k
    return threshold, count


@numba.njit(nogil=True, cache=True)
def _take_from_scores(candidates, scores, needed):
    """Take all documents whose score is above 0 and at least `needed`; returns how many. The scores become 0."""
    needed = np.int32(max(needed, 1))
    count = np.uint64(0)
    for start in range(0, len(scores), BLOCK):
        stop = min(start + BLOCK, len(scores))
        if _largest(scores[start:stop]) >= needed:
            for d in range(np.uint64(start), np.uint64(stop)):
                candidates.places[count], candidates.sums[count] = d, scores[d]
                count += np.uint64(scores[d] >= needed)
    scores[:] = 0
    return np.int64(count)


@numba.njit(nogil=True, cache=True)
def _take_from_documents(candidates, taken, scores, documents, low, needed):
    """As `_take_from_scores`, of these documents alone; `taken` candidates are there already."""
    needed = np.int32(max(needed, 1))
    first = np.int32(low)
    count = np.uint64(taken)
    for p in range(len(documents)):
        place = documents[p] - first
        d = np.uint64(place)
        score = scores[d]
        scores[d] = 0
        candidates.places[count], candidates.sums[count] = place, score
        count += np.uint64(score >= needed)
    return np.int64(count)


@numba.njit(nogil=True, cache=True)
def _take_from_list(candidates, lists, term, start, stop, low, weight, needed):
    """As `_take_from_scores`, of the postings at [start, stop) of the only essential list: they are the scores."""
    documents, impact_classes, saturated = (
        lists.documents[start:stop],
        lists.impact_classes[start:stop],
        lists.saturated,
    )
    first, idf = np.int32(low), lists.idf[term]
    count = np.uint64(0)
    for p in range(len(documents)):
        score = _contribution(idf, saturated[np.uint64(impact_classes[p])]) * weight
        candidates.places[count], candidates.sums[count] = documents[p] - first, score
        count += np.uint64(score >= needed)
    return np.int64(count)


@numba.njit(nogil=True, cache=True)
def _look_up_row(candidates, taken, needed, values, weight):
    """`_look_up` in a dense row."""
    kept = np.uint64(0)
    for candidate in range(np.uint64(taken)):
        place = candidates.places[candidate]
        total = candidates.sums[candidate] + values[np.uint64(place)] * weight
        candidates.places[kept], candidates.sums[kept] = place, total
        kept += np.uint64(total >= needed)
    return np.int64(kept)


@numba.njit(nogil=True, cache=True)
def _look_up_list(candidates, taken, needed, lists, term, weight, low):
    """`_look_up` in a short list, by binary search."""
    start, end = lists.starts[term], lists.ends[term]
    documents, impact_classes, saturated = lists.documents[start:end], lists.impact_classes[start:end], lists.saturated
    first, idf = np.int32(low), lists.idf[term]
    kept = np.uint64(0)
    for candidate in range(np.uint64(taken)):
        place, total = candidates.places[candidate], candidates.sums[candidate]
        p = bisect(documents, 0, len(documents), first + place)
        if p < len(documents) and documents[p] == first + place:
            total += _contribution(idf, saturated[np.uint64(impact_classes[p])]) * weight
        candidates.places[kept], candidates.sums[kept] = place, total
        kept += np.uint64(total >= needed)
    return np.int64(kept)


@numba.njit(nogil=True, cache=True)
def _look_up_entries(candidates, taken, needed, lists, skip_table, term, weight, low):
    """`_look_up` in a list that the skip table has entries for."""
    start, end = lists.starts[term], lists.ends[term]
    documents, impact_classes, saturated = lists.documents[start:end], lists.impact_classes[start:end], lists.saturated
    first, idf = np.int32(low), lists.idf[term]
    entries = skip_table.entries[skip_table.starts[term] :]
    presence = skip_table.presence[skip_table.group_starts[term] :]
    bits, group_bits = np.int32(skip_table.bits[term]), np.int32(skip_table.group_bits[term])
    kept = np.uint64(0)
    for candidate in range(np.uint64(taken)):
        place, total = candidates.places[candidate], candidates.sums[candidate]
        document = np.int32(first + place)
        group = document >> group_bits
        if (presence[np.uint64(group >> 3)] >> np.uint8(group & 7)) & np.uint8(1):
            block = np.uint64(document >> bits)
            begin, stop = np.uint64(entries[block]), np.uint64(entries[block + np.uint64(1)])
            p = begin
            for q in range(begin, stop):
                p += np.uint64(documents[q] < document)
            if p < stop and documents[p] == document:
                total += _contribution(idf, saturated[np.uint64(impact_classes[p])]) * weight
        candidates.places[kept], candidates.sums[kept] = place, total
        kept += np.uint64(total >= needed)
    return np.int64(kept)


@numba.njit(nogil=True, cache=True)
def _add_row(scores, values, weight):
    for d in range(len(values)):
        scores[d] += values[d] * weight


@numba.njit(nogil=True, cache=True)
def _contribution(idf, saturated):
    """As `BM25.quanta`, for methods that are not signed."""
    return max(np.int32(np.rint(idf * saturated * SCALE)), np.int32(1))


@numba.njit(nogil=True, cache=True)
def add_list(scores, lists, term, start, stop, low, weight):
    """Add the term's postings at [start, stop) to the scores of their documents; `scores` begins at document `low`."""
    documents, impact_classes, saturated, idf = lists.documents, lists.impact_classes, lists.saturated, lists.idf[term]
    # Unsigned indices save the test for negative ones.
    for p in range(np.uint64(start), np.uint64(stop)):
        scores[np.uint64(documents[p] - low)] += _contribution(idf, saturated[np.uint64(impact_classes[p])]) * weight


@numba.njit(cache=True)
def fill(row, documents, impact_classes, saturated, idf):
    """Fill a dense row int32 [documents of the segment] from one list."""
    row[:] = 0
    for p in range(len(documents)):
        row[documents[p]] = _contribution(idf, saturated[impact_classes[p]])


@numba.njit(nogil=True, cache=True)
def _first_threshold(scores, maxima, k):
    """A score that at least k documents reach: the k-th largest maximum of strided groups; 0 if there are too few."""
    groups = min(max(GROUPS_PER_K * k, MIN_GROUPS), len(scores))
    if groups < k:
        return np.int32(0)
    maxima[:groups] = scores[:groups]
    for start in range(groups, len(scores), groups):
        _raise(maxima, scores[start : start + groups])
    return keep_best(maxima, None, groups, k)


@numba.njit(nogil=True, cache=True)
def _raise(maxima, scores):
    for i in range(len(scores)):
        maxima[i] = max(maxima[i], scores[i])


@numba.njit(nogil=True, cache=True)
def _largest(scores):
    largest = np.int32(0)
    for d in range(len(scores)):
        largest = max(largest, scores[d])
    return largest


@numba.njit(nogil=True, cache=True)
def _seek(documents, start, end, wanted):
    """The first place in [start, end) whose document is at least `wanted`, or end.

    A galloping search: the step doubles until it has passed the place, as the place mostly lies near the start.
    """
    step = 1
    low = start
    while low + step < end and documents[low + step] < wanted:
        low += step
        step *= 2
    return bisect(documents, low, min(low + step, end), wanted)


@numba.njit(nogil=True, cache=True)
def bisect(documents, low, high, wanted):
    """The first place in [low, high) whose document is at least `wanted`, or high."""
    while low < high:
        middle = (low + high) >> 1
        if documents[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low
