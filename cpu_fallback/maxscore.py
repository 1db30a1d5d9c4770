"""One segment scored for a group of queries, reading as few postings as will do: loops that numba compiles.

A query's terms are taken in the order of what they can add, the largest first. Those at the end that together cannot
reach the score that a hit needs find no document by themselves: their lists are not read, but looked up for the
documents that the other lists find (MaxScore, A017: the first `read` lists are the essential ones, `most` holds upper
bounds and `rest` their suffix sums). What a hit needs is known before the first posting is read, from the best postings
of each list (`engine/index/upper_bounds.py`), and rises from tile to tile.
"""

from __future__ import annotations

import numba
import numpy as np

from ..engine.index.bm25 import SCALE

# Scores whose largest is found at once; a block that cannot enter the k best is passed over. Blocks of 16, 32, 64 and
# 128 took .21, .14, .14 and .09 ms a query on SGD at k 10.
BLOCK = 128
# Groups of scores whose maxima give the first floor, as a multiple of k, and at least.
GROUPS_PER_K = 4
MIN_GROUPS = 256
# A list with this many times fewer postings than there are kinds is sorted where it is surveyed, not counted by kind.
SORT_SHARE = 8


@numba.njit(nogil=True, cache=True)
def enter(positions, offsets, documents, size, bits, starts, entries, group_bits, group_starts, presence):
    """Enter the lists at these positions in the segment's terms into its `Skips`."""
    for position in positions:
        start, own = offsets[position], bits[position]
        block = starts[position]
        for p in range(start, offsets[position + 1]):
            entered = starts[position] + (documents[p] >> np.int64(own))
            while block <= entered:
                entries[block] = p - start
                block += 1
            group = documents[p] >> np.int64(group_bits[position])
            presence[group_starts[position] + (group >> 3)] |= np.uint8(1 << (group & 7))
        for rest in range(block, starts[position] + (size >> np.int64(own)) + 2):
            entries[rest] = offsets[position + 1] - start


@numba.njit(nogil=True, cache=True)
def survey(positions, offsets, kinds, reference, best_kinds, ranks, values):
    """Fill `Peaks.values` at these positions in the segment's terms (-1: none), where they are not filled yet."""
    counts = np.zeros(len(reference), dtype=np.int64)
    for position in positions:
        if position < 0 or values[position, 0] != 0.0:
            continue
        start, end = offsets[position], offsets[position + 1]
        if SORT_SHARE * (end - start) < len(reference):
            own = np.empty(end - start, dtype=np.float64)
            for p in range(start, end):
                own[p - start] = -reference[kinds[p]]
            own.sort()
            # The first rank last, as it tells that the others are there.
            for column in range(len(ranks) - 1, -1, -1):
                if ranks[column] <= len(own):
                    values[position, column] = -own[ranks[column] - 1]
            continue
        for p in range(start, end):
            counts[kinds[p]] += 1
        seen, column, largest = 0, 0, 0.0
        for kind in best_kinds:
            seen += counts[kind]
            while column < len(ranks) and seen >= ranks[column]:
                if column == 0:
                    largest = reference[kind]
                else:
                    values[position, column] = reference[kind]
                column += 1
            if column == len(ranks) or seen == end - start:
                break
        values[position, 0] = largest
        counts[:] = 0


@numba.njit(cache=True)
def bounds(positions, idf, values, least, largest, offsets, slots, multiplicities, ranks):
    """What each distinct term can add at most [terms], and what the k best of each query reach at least [queries].

    `ranks` [queries] is which of `Peaks.ranks` k documents are sure to reach, or how many there are: none.
    """
    ceilings = np.zeros(len(positions), dtype=np.int64)
    for term in range(len(positions)):
        if positions[term] >= 0:
            # One quantum more covers the rounding.
            ceilings[term] = np.int64(np.ceil(idf[term] * (values[positions[term], 0] * largest) * SCALE)) + 1
    reached = np.zeros(len(ranks), dtype=np.int64)
    for query in range(len(ranks)):
        if ranks[query] == values.shape[1]:
            continue
        for slot in range(offsets[query], offsets[query + 1]):
            position = positions[slots[slot]]
            if position >= 0:
                peak = idf[slots[slot]] * (values[position, ranks[query]] * least) * SCALE
                reached[query] = max(reached[query], (np.int64(peak) - 1) * multiplicities[slot])
    return ceilings, reached


@numba.njit(nogil=True, cache=True)
def score_segment(
    group, offsets, slots, multiplicities, filters, k, starts, ends, documents, kinds, saturated, idf,
    ceilings, reached, bits, blocks, entries, group_bits, groups, presence, dense_rows, dense, masks, first, tile,
    scan_percent, prunes, keys, found, floors, counted,
):  # fmt: skip
    """Score one segment for a group of queries; `keys`, `found`, `floors` carry each one's best between segments.

    Without `prunes`, every posting is read. A tile with at least `scan_percent` postings to read per hundred documents
    is looked through document by document, in blocks, one with fewer posting by posting. `counted` takes the
    postings and the entries of dense rows that were read, and the look-ups.
    """
    size = masks.shape[1]
    scores = np.zeros(tile, dtype=np.int32)
    maxima = np.empty(tile, dtype=np.int32)
    longest = 0
    for query in group:
        longest = max(longest, offsets[query + 1] - offsets[query])
    # Of the terms of one query that the segment holds, in the order in which they are read:
    terms = np.empty(longest, dtype=np.int64)
    weights = np.empty(longest, dtype=np.int32)
    most = np.empty(longest, dtype=np.int64)  # what each can add
    rest = np.empty(longest + 1, dtype=np.int64)  # what those from each on can add
    cursors = np.empty(longest, dtype=np.int64)  # the first posting not behind
    begins = np.empty(longest, dtype=np.int64)  # the first posting of the tile
    # Documents of the tile that may be hits, and their scores so far; one more, as each is written before it counts.
    places = np.empty(tile + 1, dtype=np.int32)
    sums = np.empty(tile + 1, dtype=np.int32)
    for row in range(len(group)):
        query, wanted, count = group[row], k[row], found[row]
        floor = max(floors[row], reached[query]) if prunes else floors[row]
        mask = filters[query]
        held = 0
        for slot in range(offsets[query + 1] - 1, offsets[query] - 1, -1):
            term = slots[slot]
            if starts[term] == ends[term]:
                continue
            bound, place = ceilings[term] * multiplicities[slot], held
            while place > 0 and most[place - 1] < bound:
                most[place], terms[place], weights[place] = most[place - 1], terms[place - 1], weights[place - 1]
                place -= 1
            most[place], terms[place], weights[place] = bound, term, multiplicities[slot]
            held += 1
        rest[held] = 0
        for place in range(held - 1, -1, -1):
            rest[place] = rest[place + 1] + most[place]
            cursors[place] = starts[terms[place]]
        read = held
        for low in range(0, size, tile):
            while prunes and read > 0 and rest[read - 1] < floor:
                read -= 1
            if read == 0:
                break
            high = min(low + tile, size)
            scans = False
            postings = 0
            for place in range(read):
                term = terms[place]
                if dense_rows[term] >= 0:
                    _add_row(scores, dense[dense_rows[term], low:high], weights[place])
                    scans = True
                    counted[1] += high - low
                    continue
                start, stop = cursors[place], ends[term]
                if stop > start and documents[stop - 1] >= high:
                    stop = _seek(documents, start, stop, high)
                if read > 1:
                    add_list(scores, documents, kinds, saturated, start, stop, low, idf[term], weights[place])
                begins[place], cursors[place] = start, stop
                postings += stop - start
            if postings == 0 and not scans:
                continue
            counted[0] += postings
            before = count
            scans = scans or (read > 1 and 100 * postings >= scan_percent * (high - low))
            if scans:
                if count < wanted and mask < 0:
                    floor = max(floor, np.int64(_first_floor(scores[: high - low], maxima, wanted)))
                candidates = _of_scores(scores[: high - low], floor - rest[read], places, sums)
            else:
                candidates = 0
                if read == 1:
                    term = terms[0]
                    candidates = _of_single(
                        documents[begins[0] : cursors[0]], kinds[begins[0] : cursors[0]], saturated, np.int32(low),
                        idf[term], weights[0], floor - rest[1], places, sums,
                    )  # fmt: skip
                for place in range(read if read > 1 else 0):
                    own = documents[begins[place] : cursors[place]]
                    candidates = _of_list(scores, own, np.int32(low), floor - rest[read], places, sums, candidates)
            for place in range(read, held):
                if candidates == 0:
                    break
                term = terms[place]
                counted[2] += candidates
                needed = floor - rest[place + 1]
                if dense_rows[term] >= 0:
                    own = dense[dense_rows[term], low:high]
                    candidates = _look_up_row(places, sums, candidates, needed, own, weights[place])
                elif bits[term] >= 0:
                    start, end = starts[term], ends[term]
                    candidates = _look_up_entries(
                        places, sums, candidates, needed, documents[start:end], kinds[start:end], saturated,
                        entries[blocks[term] :], np.int32(bits[term]), presence[groups[term] :],
                        np.int32(group_bits[term]), np.int32(low), idf[term], weights[place],
                    )  # fmt: skip
                else:
                    start, end = starts[term], ends[term]
                    candidates = _look_up_list(
                        places, sums, candidates, needed, documents[start:end], kinds[start:end], saturated,
                        np.int32(low), idf[term], weights[place],
                    )  # fmt: skip
            for candidate in range(candidates):
                document = low + places[candidate]
                if sums[candidate] < floor or (mask >= 0 and not masks[mask, document]):
                    continue
                keys[row, count] = (np.int64(sums[candidate]) << 32) + (np.int64(0xFFFFFFFF) - (first + document))
                count += 1
                if count == keys.shape[1]:
                    # An older document may come later, so it need only equal the k-th score.
                    floor = max(floor, keep_largest(keys[row], count, wanted) >> 32)
                    count = wanted
            if count >= wanted and count > before:
                # Younger documents must beat the k-th score, not equal it.
                floor = max(floor, (keep_largest(keys[row], count, wanted) >> 32) + 1)
                count = wanted
        floors[row], found[row] = floor, count


@numba.njit(nogil=True, cache=True)
def _of_scores(scores, floor, places, sums):
    """Take the places of all scores above 0 that reach the floor, and the scores, which become 0; returns how many."""
    floor = np.int32(max(floor, 1))
    count = np.uint64(0)
    for start in range(0, len(scores), BLOCK):
        stop = min(start + BLOCK, len(scores))
        if _largest(scores[start:stop]) >= floor:
            for d in range(np.uint64(start), np.uint64(stop)):
                places[count], sums[count] = d, scores[d]
                count += np.uint64(scores[d] >= floor)
    scores[:] = 0
    return np.int64(count)


@numba.njit(nogil=True, cache=True)
def _of_list(scores, documents, low, floor, places, sums, taken):
    """As `_of_scores`, of the documents of one list; what is taken is added to what is there."""
    floor = np.int32(max(floor, 1))
    count = np.uint64(taken)
    for p in range(len(documents)):
        place = documents[p] - low
        d = np.uint64(place)
        score = scores[d]
        scores[d] = 0
        places[count], sums[count] = place, score
        count += np.uint64(score >= floor)
    return np.int64(count)


@numba.njit(nogil=True, cache=True)
def _of_single(documents, kinds, saturated, low, idf, weight, floor, places, sums):
    """As `_of_list`, of the one list that is read: the scores are its contributions."""
    count = np.uint64(0)
    for p in range(len(documents)):
        score = _contribution(idf, saturated[np.uint64(kinds[p])]) * weight
        places[count], sums[count] = documents[p] - low, score
        count += np.uint64(score >= floor)
    return np.int64(count)


@numba.njit(nogil=True, cache=True)
def _look_up_row(places, sums, count, floor, values, weight):
    """Add what a dense row holds for the documents; those below the floor are dropped. Returns how many are left."""
    kept = np.uint64(0)
    for candidate in range(np.uint64(count)):
        place = places[candidate]
        total = sums[candidate] + values[np.uint64(place)] * weight
        places[kept], sums[kept] = place, total
        kept += np.uint64(total >= floor)
    return np.int64(kept)


@numba.njit(nogil=True, cache=True)
def _look_up_list(places, sums, count, floor, documents, kinds, saturated, low, idf, weight):
    """As `_look_up_row`, of a short list."""
    kept = np.uint64(0)
    for candidate in range(np.uint64(count)):
        place, total = places[candidate], sums[candidate]
        p = bisect(documents, 0, len(documents), low + place)
        if p < len(documents) and documents[p] == low + place:
            total += _contribution(idf, saturated[np.uint64(kinds[p])]) * weight
        places[kept], sums[kept] = place, total
        kept += np.uint64(total >= floor)
    return np.int64(kept)


@numba.njit(nogil=True, cache=True)
def _look_up_entries(
    places, sums, count, floor, documents, kinds, saturated, entries, bits, presence, group_bits, low, idf, weight
):  # fmt: skip
    """As `_look_up_row`, of a whole list and where to skip in it."""
    kept = np.uint64(0)
    for candidate in range(np.uint64(count)):
        place, total = places[candidate], sums[candidate]
        document = np.int32(low + place)
        group = document >> group_bits
        if (presence[np.uint64(group >> 3)] >> np.uint8(group & 7)) & np.uint8(1):
            block = np.uint64(document >> bits)
            start, stop = np.uint64(entries[block]), np.uint64(entries[block + np.uint64(1)])
            p = start
            for q in range(start, stop):
                p += np.uint64(documents[q] < document)
            if p < stop and documents[p] == document:
                total += _contribution(idf, saturated[np.uint64(kinds[p])]) * weight
        places[kept], sums[kept] = place, total
        kept += np.uint64(total >= floor)
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
def add_list(scores, documents, kinds, saturated, start, stop, low, idf, weight):
    """Add the postings at [start, stop) to the scores of their documents, which stand from `low` on."""
    # Unsigned places spare the test for negative indices.
    for p in range(np.uint64(start), np.uint64(stop)):
        scores[np.uint64(documents[p] - low)] += _contribution(idf, saturated[np.uint64(kinds[p])]) * weight


@numba.njit(cache=True)
def fill(row, documents, kinds, saturated, idf):
    row[:] = 0
    for p in range(len(documents)):
        row[documents[p]] = _contribution(idf, saturated[kinds[p]])


@numba.njit(nogil=True, cache=True)
def _first_floor(scores, maxima, k):
    """A score that at least k documents reach: the k-th largest maximum of strided groups; 0 if there are too few."""
    groups = min(max(GROUPS_PER_K * k, MIN_GROUPS), len(scores))
    if groups < k:
        return np.int32(0)
    maxima[:groups] = scores[:groups]
    for start in range(groups, len(scores), groups):
        _raise(maxima, scores[start : start + groups])
    return keep_largest(maxima, groups, k)


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
    """The first place in [start, end) whose document is at least `wanted`, or end. Gallops, as places lie near."""
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


@numba.njit(nogil=True, cache=True)
def keep_largest(keys, count, k):
    """Move the k largest of ``keys[:count]`` to the front; returns the smallest of them. 0 < k <= count."""
    low, high = 0, count - 1
    while low < high:
        middle = keys[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while keys[i] > middle:
                i += 1
            while keys[j] < middle:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return keys[k - 1]
