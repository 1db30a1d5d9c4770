"""Segments and snapshots as the compiled search (`native/`) reads them. Each is made once, when it is first searched.

The compiled objects keep what is worked out for a list when a query first needs it:

- A *survey*: the contributions of the list's postings of the ranks `RANKS` (the largest, the 10th, ...), by reference
  statistics. The largest is an upper bound, by which pruning works (A017). That many documents reach the contribution
  of each other rank, so a query for at most that many hits can ignore smaller scores. Every write changes the
  statistics a little. Each contribution then differs from the reference by a factor between two numbers, which follow
  from the impact classes alone, so a survey lasts until they differ by 2 %.
- A *skip table*, which finds a document in the list without a search. The documents are divided into *blocks* of
  ``2**bits`` documents, with `BLOCK_POSTINGS` to twice as many postings each on average; an entry for each block says
  where its postings begin. They are also divided into *groups*, about `GROUPS` to half as many for each posting; one
  bit for each group says whether the list has any of its documents. Most look-ups find nothing, and end at that bit.
  Both together take two to three bytes a posting.
- A *dense row*: one contribution for each document, which is added at vector speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...native import compiled
from .bm25 import DOT
from .contributions import saturations
from .masks import CompiledFilter
from .segment import DENSE_POSTINGS, TIME_BLOCK, Segment
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ...native import _compiled

RANKS = 1, 10, 100, 1000
# On SGD at k 10 a query took .110 ms with blocks of 4 postings and 8 groups a posting, .098 ms with 4 and 16, and
# .087 ms with 8 and 16.
BLOCK_POSTINGS = 8
GROUPS = 16
# A shorter list has no skip table: it is searched.
LEAST_POSTINGS = 64
# A list with one in so many documents, or more, has a bit for each document, and counts of the bits before each word:
# 2 bits a document, so up to 16 bytes a posting. With one in 8, 32 and 128 a query of SGD took 151, 123 and 111 us, and
# the tables of 1,000 queries 3.9, 5.8 and 18.6 MB.
WORD_SHARE = 64
# Filters whose masks a snapshot keeps.
MASKS = 16
# Lists of all segments that are surveyed for a filter. A survey takes about 100 bytes.
SURVEYED = 16_384

_NAME = "native"
_LINKS = "native links"


def native_segment(segment: Segment) -> _compiled.Segment:
    """The segment as the compiled search reads it."""
    known: _compiled.Segment | None = segment.derived.get(_NAME)
    return segment.derived.setdefault(_NAME, _make_segment(segment)) if known is None else known


def _make_segment(segment: Segment) -> _compiled.Segment:
    assert compiled is not None
    # The shortest list that may have a dense row.
    least = segment.postings + 1
    if segment.size >= DENSE_POSTINGS:
        least = int(np.diff(segment.offsets)[segment.dense_row >= 0].min(initial=least))
    # The compiled search reads four ranks; no list reaches the last ones where there are fewer.
    ranks = (*RANKS, *(1 << 62 for _ in range(4 - len(RANKS))))
    made: _compiled.Segment = compiled.segment(
        segment.terms,
        segment.offsets,
        segment.documents,
        segment.impact_classes,
        segment.times,
        (*ranks, BLOCK_POSTINGS, GROUPS, LEAST_POSTINGS, WORD_SHARE, TIME_BLOCK, least, segment.size),
    )
    return made


def native_snapshot(snapshot: Snapshot) -> _compiled.Snapshot | None:
    """The snapshot as the compiled search reads it.

    None where that search does not serve: without the extension, and where contributions are signed or leave int32.
    """
    # Read once: before `derived` is kept, two threads may each be given a dictionary.
    derived = snapshot.derived
    if _NAME not in derived:
        derived.setdefault(_NAME, _make_snapshot(snapshot))
    known: _compiled.Snapshot | None = derived[_NAME]
    return known


def _make_snapshot(snapshot: Snapshot) -> _compiled.Snapshot | None:
    bm25 = snapshot.bm25
    if compiled is None or bm25.signed or snapshot.long:
        return None
    parts = []
    all_saturated = saturations(snapshot.segments, bm25, snapshot.statistics)
    for number, (segment, saturated) in enumerate(zip(snapshot.segments, all_saturated, strict=True)):
        tombstones = snapshot.tombstones.get(number)
        deleted: tuple[object, ...] = (None, None, None)
        if tombstones is not None:
            deleted = tombstones.alive, tombstones.terms, tombstones.frequencies
        parts.append((native_segment(segment), saturated, *deleted))
    made: _compiled.Snapshot = compiled.snapshot(
        tuple(parts),
        snapshot.counts,
        snapshot.size,
        bm25.method,
        bm25.k1,
        bm25.delta,
        bm25.query_tf == "unique",
        snapshot.largest_frequency if bm25.method == DOT else 0,
    )
    return made


def native_links(snapshot: Snapshot) -> _compiled.Links:
    """The links of the snapshot's documents to their neighbours, as the compiled search reads them."""
    from .neighbours import links_of

    assert compiled is not None
    known: _compiled.Links | None = snapshot.derived.get(_LINKS)
    if known is None:
        links = links_of(snapshot)
        parts = tuple(
            (first, part.previous, part.following) for first, part in zip(links.firsts, links.parts, strict=True)
        )
        made = compiled.links(parts, links.earlier, links.later, *links.backwards)
        known = snapshot.derived.setdefault(_LINKS, made)
    return known


def native_masks(snapshot: Snapshot, accepted: CompiledFilter) -> _compiled.Masks:
    """Which documents of the snapshot pass the filter. The masks of up to `MASKS` filters are kept."""
    assert compiled is not None
    kept: dict[int, tuple[CompiledFilter, _compiled.Masks]] = snapshot.derived.setdefault("masks", {})
    # By identity, as a filter computes its hash at each call; what is kept holds the filter, so no other gets its id.
    known = kept.get(id(accepted))
    if known is None:
        if len(kept) >= MASKS:
            kept.clear()
        masks = compiled.masks(tuple(segment.mask(accepted) for segment in snapshot.segments), SURVEYED)
        known = kept[id(accepted)] = accepted, masks
    return known[1]
