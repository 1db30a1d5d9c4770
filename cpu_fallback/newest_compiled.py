"""One segment scored from its newest document to its oldest for a group of queries: loops that numba compiles.

The same answer as `newest.py`. A query's search of the segment ends at a tile where nothing older can reach its k-th
best.
"""

from __future__ import annotations

import numba
import numpy as np

from ..engine.index.decay import PART_BITS
from .loop_arguments import Decay, Filters, NewestHits, NewestOptions, PostingLists, QueryGroup, TimeRanges
from .maxscore import add_list, bisect
from .quickselect import keep_best


@numba.njit(nogil=True, cache=True)
def score_newest(queries, lists, filters, times, bounds, decay, options, best):
    """Score one segment for a group of queries; returns the postings read.

    The arguments are the structures of `loop_arguments.py` as plain tuples, but for `bounds` int64 [queries]: no
    document has a larger sum of contributions. `best` carries each row's hits from segment to segment.
    """
    queries, lists, filters, times = QueryGroup(*queries), PostingLists(*lists), Filters(*filters), TimeRanges(*times)
    decay, options, best = Decay(*decay), NewestOptions(*options), NewestHits(*best)
    scores = np.zeros(options.tile, dtype=np.int32)
    # [query-term pairs] end of each list's postings that are not read yet
    stops = np.empty(len(queries.slots), dtype=np.int64)
    postings = 0
    for row in range(len(queries.queries)):
        query, k, count = queries.queries[row], queries.k[row], best.counts[row]
        threshold = best.thresholds[row]
        now, rate = decay.nows[query], decay.rates[query]
        oldest, high = times.lows[query], times.highs[query]
        _start_lists(queries, query, lists, stops, high, filters.masks.shape[1])
        while high > oldest:
            low = max(oldest, (high - 1) // options.tile * options.tile)
            latest = times.latest_before[(high - 1) // times.time_block]
            highest = _key(bounds[query], latest, now, rate, decay.factors, decay.powers)
            if count >= k and not options.exhaustive and highest < threshold:
                break
            postings += _read_tile(scores, queries, query, lists, stops, low)
            threshold, count = _keep_hits(
                best.keys[row], best.documents[row], count, k, threshold, scores, low, high, query, filters, times,
                decay, options.first_document,
            )  # fmt: skip
            high = low
        best.thresholds[row], best.counts[row] = threshold, count
    return postings


@numba.njit(nogil=True, cache=True)
def _start_lists(queries, query, lists, stops, high, size):
    """Set the end of each of the query's lists to its first posting at or after the document `high`."""
    for slot in range(queries.offsets[query], queries.offsets[query + 1]):
        term = queries.slots[slot]
        stops[slot] = lists.ends[term]
        if high < size:
            stops[slot] = _seek_back(lists.documents, lists.starts[term], lists.ends[term], high)


@numba.njit(nogil=True, cache=True)
def _read_tile(scores, queries, query, lists, stops, low):
    """Add the query's lists to the scores, from their ends down to the document `low`; returns the postings read."""
    postings = 0
    for slot in range(queries.offsets[query], queries.offsets[query + 1]):
        term = queries.slots[slot]
        if stops[slot] > lists.starts[term] and lists.documents[stops[slot] - 1] >= low:
            start = _seek_back(lists.documents, lists.starts[term], stops[slot], low)
            add_list(scores, lists, term, start, stops[slot], low, np.int32(queries.multiplicities[slot]))
            postings += stops[slot] - start
            stops[slot] = start
    return postings


@numba.njit(nogil=True, cache=True)
def _keep_hits(
    keys, documents, count, k, threshold, scores, low, high, query, filters, times, decay, first_document
):  # fmt: skip
    """Add the hits in [low, high) to the keys; returns the threshold and how many keys there are. Scores become 0."""
    mask, now, rate = filters.mask_of_query[query], decay.nows[query], decay.rates[query]
    for d in range(high - low):
        if scores[d] == 0:
            continue
        if mask < 0 or filters.masks[mask, low + d]:
            time = times.times[low + d] if times.timed else np.inf
            key = _key(np.int64(scores[d]), time, now, rate, decay.factors, decay.powers)
            if key >= threshold:
                keys[count], documents[count] = key, first_document + low + d
                count += 1
                if count == len(keys):
                    threshold = max(threshold, keep_best(keys, documents, count, k))
                    count = k
        scores[d] = 0
    if count >= k:
        # Older documents win ties, so they need only equal the k-th key.
        threshold = max(threshold, keep_best(keys, documents, count, k))
        count = k
    return threshold, count


@numba.njit(nogil=True, cache=True)
def _key(total, time, now, rate, factors, powers):
    """A sum of contributions, or the bits of what `decay.decayed` makes of it.

    Called for every document: it takes two arrays, not all of `Decay`, as numba counts references to each that it gets.
    """
    if rate == 0.0:
        return total
    age = (now - time) * rate
    ticks = np.int64(0)
    # False for a record without a time: the comparison with NaN, or an age of minus infinity.
    if age > 0.0:
        ticks = np.int64(min(age, np.float64((len(powers) - 1) << PART_BITS)))
    value = (np.float64(total) * factors[ticks & ((1 << PART_BITS) - 1)]) * powers[ticks >> PART_BITS]
    return np.float64(value).view(np.int64)


@numba.njit(nogil=True, cache=True)
def _seek_back(documents, start, end, wanted):
    """The first place in [start, end) whose document is at least `wanted`, or end.

    A galloping search from the end: the step doubles until it has passed the place, as the place mostly lies near it.
    """
    step = 1
    high = end
    while high - step >= start and documents[high - step] >= wanted:
        high -= step
        step *= 2
    return bisect(documents, max(high - step, start), high, wanted)
