"""Which documents stand next to a document in its session: links, made when they are first asked for.

A segment's own links take 8 bytes a document and are made once. They know all its documents, deleted ones too. Where
some are deleted, links that skip those are made for each state of its tombstones. A session that goes on in a later
segment is joined for each snapshot: that costs a binary search for each session of the later segment, whatever the
size of the earlier ones. So an append makes the links of its own documents and joins alone, and a merge those of the
merged documents. The links follow from the live documents and their order, so no history of writes shows in them.

Documents next to each other may make an exchange: a user's turn, and what answers it. It begins where a user speaks
after somebody else or first, and ends where the next one begins; two turns of a user in a row are one question. Every
other document stands alone: without a session, or before its user's first turn. That follows from the roles too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..arrays import Integers
from ..locks import once
from .columns import ABSENT
from .segment import Segment
from .snapshot import Snapshot
from .tombstones import Tombstones
from .union import Union

if TYPE_CHECKING:
    from .groups import Groups

NONE = -1
"""In place of a document that is not there."""

SESSION = "session"
NAME = "neighbours"
USER = "user"
"""The role of who asks."""

Positions = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class SegmentLinks:
    """The links within one segment, of its live documents. Those of deleted documents mean nothing."""

    previous: Positions  # [documents] position of the one before in the session, or -1
    following: Positions  # [documents] position of the one after, or -1
    sessions: npt.NDArray[np.int32]  # [sessions] codes, ascending
    first: Positions  # [sessions] position of the session's first document
    last: Positions  # [sessions] and of its last

    @property
    def arrays(self) -> tuple[npt.NDArray[np.int32], ...]:
        return self.previous, self.following, self.sessions, self.first, self.last


def segment_links(segment: Segment, tombstones: Tombstones | None) -> SegmentLinks:
    """The links of a segment's documents that are not deleted; kept by the segment, or by the tombstones."""
    derived, key = (segment.derived, None) if tombstones is None else (tombstones.derived, segment)
    known: SegmentLinks | None = derived.get((NAME, key))
    if known is None:
        made = _link(segment) if tombstones is None else _skip(segment, tombstones)
        known = derived.setdefault((NAME, key), made)
    return known


def _link(segment: Segment) -> SegmentLinks:
    codes = segment.columns.categories.get(SESSION)
    previous, following = (np.full(segment.size, NONE, dtype=np.int32) for _ in range(2))
    empty = np.zeros(0, dtype=np.int32)
    if codes is None:
        return SegmentLinks(previous, following, empty, empty, empty)
    documents = np.flatnonzero(codes != ABSENT).astype(np.int32)
    # Stable: the documents of a session stay in their order.
    documents = documents[np.argsort(codes[documents], kind="stable")]
    own = codes[documents]
    same = own[1:] == own[:-1]
    previous[documents[1:][same]] = documents[:-1][same]
    following[documents[:-1][same]] = documents[1:][same]
    starts = np.flatnonzero(np.concatenate([np.ones(min(len(own), 1), dtype=np.bool_), ~same]))
    ends = np.append(starts[1:], len(own))[: len(starts)] - 1
    return SegmentLinks(previous, following, own[starts], documents[starts], documents[ends])


def _skip(segment: Segment, tombstones: Tombstones) -> SegmentLinks:
    """The segment's links over its deleted documents, one after another until every link is to a live one."""
    whole, deleted = segment_links(segment, None), tombstones.deleted
    ways = []
    for links, ends in ((whole.previous, whole.last), (whole.following, whole.first)):
        made = links.copy()
        while len(gone := np.flatnonzero((made >= 0) & deleted[made])):
            made[gone] = links[made[gone]]
        ends = ends.copy()
        # A session's last live document is its last one, or the one before that, and so on; likewise its first.
        while len(gone := np.flatnonzero((ends >= 0) & deleted[ends])):
            ends[gone] = links[ends[gone]]
        ways.append((made, ends))
    (previous, last), (following, first) = ways
    left = first >= 0
    return SegmentLinks(previous, following, whole.sessions[left], first[left], last[left])


@dataclass(frozen=True, eq=False)
class Links:
    """The links of a snapshot's live documents: those within its segments, and the joins between them."""

    parts: tuple[SegmentLinks, ...]
    firsts: tuple[int, ...]
    earlier: Integers  # [joins] ascending: the last document of a session in a segment
    later: Integers  # [joins] its first one in the next segment that has any

    @once
    def backwards(self) -> tuple[Integers, Integers]:
        """The joins in the order of `later`: (later, earlier)."""
        order = np.argsort(self.later)
        return self.later[order], self.earlier[order]

    @once
    def previous(self) -> Positions:
        """[documents] number of the one before in the session, or -1."""
        return self._numbers([part.previous for part in self.parts], *self.backwards)

    @once
    def following(self) -> Positions:
        """[documents] number of the one after in the session, or -1."""
        return self._numbers([part.following for part in self.parts], self.earlier, self.later)

    def _numbers(self, parts: list[Positions], joined: Integers, to: Integers) -> Positions:
        shifted = [
            np.where(part >= 0, part + np.int32(first), part) for part, first in zip(parts, self.firsts, strict=True)
        ]
        numbers = np.concatenate([np.zeros(0, dtype=np.int32), *shifted])
        numbers[joined] = to
        return numbers

    def around(self, documents: Integers, window: int) -> Integers:
        """[documents, 2 window] the neighbours of each: one before, one after, two before, ...; -1 for none."""
        out = np.full((len(documents), 2 * window), NONE, dtype=np.int64)
        for side, links in enumerate((self.previous, self.following)):
            at = documents
            for distance in range(window if len(links) else 0):
                at = np.where(at >= 0, links[at], NONE).astype(np.int64)
                out[:, 2 * distance + side] = at
        return out


def links_of(snapshot: Snapshot) -> Links:
    """The links of a snapshot, made at the first call."""
    derived = snapshot.derived
    known: Links | None = derived.get(NAME)
    return derived.setdefault(NAME, _join(snapshot)) if known is None else known


def is_dialogue(snapshot: Snapshot) -> bool:
    """Whether more than half of the live records stand beside others in a session. Worked out once for a snapshot."""
    known: bool | None = snapshot.derived.get("dialogue")
    if known is None and all(SESSION not in segment.columns.categories for segment in snapshot.segments):
        known = snapshot.derived["dialogue"] = False
    if known is None:
        links = links_of(snapshot)
        beside = (links.previous >= 0) | (links.following >= 0)
        for number, first in enumerate(snapshot.firsts):
            alive = snapshot.alive(number)
            if alive is not None:
                beside[first : first + len(alive)] &= alive
        known = snapshot.derived["dialogue"] = 2 * int(beside.sum()) > snapshot.size
    return known


def _join(snapshot: Snapshot) -> Links:
    parts = tuple(
        segment_links(segment, snapshot.tombstones.get(number)) for number, segment in enumerate(snapshot.segments)
    )
    earlier, later = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    # A session of one namespace does not go on in another one.
    borders = (
        np.searchsorted(np.array(snapshot.firsts), np.array(snapshot.firsts_of)).tolist()
        if isinstance(snapshot, Union)
        else [0]
    )
    starts = sorted({*borders, len(parts)})
    for start, stop in zip([0, *starts], starts, strict=False):
        for number in range(start + 1, stop):
            sessions, first = parts[number].sessions, parts[number].first
            for before in range(number - 1, start - 1, -1):
                if not len(sessions):
                    break
                known = parts[before].sessions
                places = np.minimum(np.searchsorted(known, sessions), max(len(known) - 1, 0))
                found = known[places] == sessions if len(known) else np.zeros(len(sessions), dtype=np.bool_)
                earlier.append(parts[before].last[places[found]].astype(np.int64) + snapshot.firsts[before])
                later.append(first[found].astype(np.int64) + snapshot.firsts[number])
                sessions, first = sessions[~found], first[~found]
    joined, to = np.concatenate(earlier), np.concatenate(later)
    order = np.argsort(joined)
    return Links(parts, snapshot.firsts, joined[order], to[order])


def exchanges_of(snapshot: Snapshot, user: int) -> Groups:
    """The exchanges of a snapshot, made at the first call. `user` is the code of the role `USER`."""
    key = f"exchanges {user}"
    known: Groups | None = snapshot.derived.get(key)
    return snapshot.derived.setdefault(key, _divide(snapshot, user)) if known is None else known


def _divide(snapshot: Snapshot, user: int) -> Groups:
    from .groups import Groups  # a plain search loads it not

    everything = np.arange(snapshot.numbers)
    sessions, users = snapshot.codes_of(SESSION, everything), snapshot.codes_of("role", everything) == user
    for number, first in enumerate(snapshot.firsts):
        alive = snapshot.alive(number)
        if alive is not None:
            sessions[first : first + len(alive)][~alive] = ABSENT
    spaces = np.searchsorted(snapshot.firsts_of, everything, side="right") if isinstance(snapshot, Union) else sessions
    order = np.lexsort((sessions, spaces))
    order = order[sessions[order] != ABSENT]
    same = np.zeros(len(order), dtype=np.bool_)
    same[1:] = (sessions[order][1:] == sessions[order][:-1]) & (spaces[order][1:] == spaces[order][:-1])
    begins = users[order]
    begins[1:] &= ~(same[1:] & begins[:-1])
    begun = np.cumsum(begins)
    # What stands before a session's first question is of no exchange.
    before = np.maximum.accumulate(np.where(same, 0, begun - begins))
    order, begins = order[begun > before], begins[begun > before]
    of = np.full(snapshot.numbers, ABSENT, dtype=np.int64)
    of[order] = np.cumsum(begins) - 1
    return Groups(of, order, np.append(np.flatnonzero(begins), len(order)))
