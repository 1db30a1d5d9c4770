"""The conversation graph, and personalised PageRank over it: it finds the turns that are near to a query.

This is experimental and no default uses it (SPEC C032; docs/decisions.md reports the results on LoCoMo).

Turns are nodes. A *temporal* edge leads from a turn to the next turn of its session and has weight 1. A *topic* edge
joins two turns that share at least `overlap` keywords; its weight is the number of shared keywords over the larger of
the two numbers of keywords (C030). Turns that hold a keyword of the query are its seeds. From them rank flows along
the edges (C031)::

    rank_0 = seed                                                               seed: 1 or 0
    rank   = damping * sum over edges into the turn of rank(from) * share  +  (1 - damping) * seed

By default (X21) a topic edge leads both ways. An edge's share is its weight over the sum of the weights of all edges
out of its source, so a turn passes on no more rank than it has. ``compat=True`` is the literal form of the source:

- a topic edge leads from the earlier turn to the later one;
- a temporal edge joins two turns only if no other session's turn is between them;
- a share is the weight over the *number* of edges out of the source.

The sources disagree about topic edges within a session. Here they exist, as in the sources' code. If a temporal and a
topic edge join the same turns, both count.

Keywords are the distinct index terms of more than 3 characters, except trigger words, both as written and as the
analyzer changes them (C009). With `roles` only turns of these roles have keywords; the source takes those of the
user's messages alone (C030), which is ``roles=("user",)`` where user and assistant are records of their own. The newest
`window` turns take part, in order of time, then of arrival. A turn without a time is older than every turn with one. A
turn without a session has no temporal edge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Floats, Integers, offsets_of, ranges
from ..errors import ParameterError
from ..index.columns import ABSENT
from ..index.segment import Segment
from ..index.snapshot import Snapshot
from ..locks import once
from ..text.analyzers import Analyzer
from ..text.keywords import TRIGGER_WORDS

DAMPING = 0.85
ITERATIONS = 20
"""The largest number that C031 gives. After 10 a rank may still be off by .85 ** 10 = .2 of the seeded rank."""
WINDOW = 1000
"""Turns in a graph. The number of topic edges grows with its square (C032)."""
MAX_WINDOW = 1 << 14
OVERLAP = 2
MIN_LENGTH = 4
"""Characters of the shortest keyword (C009)."""

# Pairs of turns whose shared keywords are counted at a time.
PAIRS = 1 << 20
# Queries ranked at a time. 500 queries over 98,755 edges take .92 s; with blocks of 32 they take 1.11 s, of 256 1.15 s.
BLOCK = 128
# Edges into one turn are added in groups of at most this many, then the groups are added. So numpy is called once for
# each of these, and not for each edge into the best connected turn (446 edges in 1,000 turns of LoCoMo). A query alone
# takes 9 ms instead of 81.
GROUP = 64


@dataclass(frozen=True)
class PageRank:
    """Parameters of a conversation graph and its ranking; see the module's docstring. Raises `ParameterError`."""

    damping: float = DAMPING
    iterations: int = ITERATIONS
    window: int = WINDOW
    overlap: int = OVERLAP
    compat: bool = False
    roles: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.roles is not None:
            if isinstance(self.roles, str) or not isinstance(self.roles, (list, tuple)):
                raise ParameterError(f"roles must be a list of roles or None, not {self.roles!r}")
            if not all(isinstance(role, str) and role for role in self.roles):
                raise ParameterError(f"roles must be names, none of them empty, not {self.roles!r}")
            object.__setattr__(self, "roles", tuple(sorted(set(self.roles))))
        damping = self.damping
        if (
            isinstance(damping, bool)
            or not isinstance(damping, (int, float, np.integer, np.floating))
            or not 0.0 <= damping <= 1.0
        ):
            raise ParameterError(f"damping, the share of rank that flows, must lie in [0, 1], not {damping!r}")
        for name, most in (("iterations", None), ("window", MAX_WINDOW), ("overlap", None)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ParameterError(f"{name} must be an integer of 1 or more, not {value!r}")
            if most is not None and value > most:
                raise ParameterError(f"{name} must be at most {most:,}, as pairs of turns are compared; not {value!r}")
        if not isinstance(self.compat, bool):
            raise ParameterError(f"compat must be True or False, not {self.compat!r}")


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of consecutive rows, ordered by the number of rows, the largest first.

    Step j adds the j-th row of every sum that has one, all at once.
    """

    size: int
    slots: tuple[tuple[Integers, Floats | None], ...]
    """By step: (the row numbers [sums], the factor of each row [sums, 1] or None)."""

    @classmethod
    def of(cls, lengths: Integers, factors: Floats | None) -> Sums:
        """Sum i adds `lengths[i]` rows; the rows of one sum follow those of the sum before. `factors` [rows]."""
        starts = offsets_of(lengths)[np.argsort(-lengths, kind="stable")]
        counts = len(lengths) - np.cumsum(np.bincount(lengths, minlength=1))[:-1]
        rows = [starts[:count] + number for number, count in enumerate(counts.tolist())]
        return cls(
            len(lengths), tuple((numbers, None if factors is None else factors[numbers, None]) for numbers in rows)
        )

    def read_from(self, places: Integers) -> Sums:
        """The same sums with row i read from `places[i]`."""
        return Sums(self.size, tuple((places[rows], factors) for rows, factors in self.slots))

    def add(self, rows: Floats, sums: Floats, spare: Floats) -> None:
        """Fill `sums` [sums, columns] from `rows`; `spare` has at least that shape and is overwritten.

        A column's bits do not depend on the number of columns.
        """
        sums[:] = 0.0
        for numbers, factors in self.slots:
            taken = spare[: len(numbers)]
            # Mode "raise" makes one more copy; with "clip" there is none. Every row number is in range.
            np.take(rows, numbers, axis=0, out=taken, mode="clip")
            if factors is not None:
                taken *= factors
            sums[: len(numbers)] += taken


@dataclass(frozen=True, eq=False)
class ConversationGraph:
    """The graph of `n` turns and the edges between them. Turns are numbered by document, ascending."""

    parameters: PageRank
    documents: Integers  # [n] ascending
    keywords: Integers  # [keywords] term ids ascending
    offsets: Integers  # [keywords + 1] the turns that hold keyword i are holders[offsets[i]:offsets[i + 1]]
    holders: Integers  # [postings] ascending for each keyword
    sources: Integers  # [edges]
    targets: Integers  # [edges] ascending; sources of one target ascending, a topic edge before a temporal one
    shares: Floats  # [edges] the share of its source's rank that an edge carries

    def __len__(self) -> int:
        return len(self.documents)

    @once
    def flow(self) -> tuple[Integers, Sums, Sums]:
        """How `rank` adds the rank along the edges: (order of the turns, sums of edges, sums of groups).

        `rank` keeps the turns in this order. The first sums add edges into groups of at most `GROUP` edges into one
        turn; the second sums add the groups of each turn.
        """
        degrees = np.bincount(self.targets, minlength=len(self))
        groups = -(-degrees // GROUP)
        first = offsets_of(groups)
        number = np.arange(len(self.targets)) - offsets_of(degrees)[self.targets]  # of an edge among its target's
        sizes = np.bincount(first[self.targets] + number // GROUP, minlength=int(first[-1]))
        turns, order = Sums.of(groups, None), np.argsort(-groups, kind="stable")
        pieces, places = Sums.of(sizes, self.shares), np.argsort(-sizes, kind="stable")
        return order, pieces.read_from(np.argsort(order)[self.sources]), turns.read_from(np.argsort(places))


def conversation_graph(
    offsets: npt.ArrayLike,
    terms: npt.ArrayLike,
    sessions: npt.ArrayLike,
    times: npt.ArrayLike,
    parameters: PageRank | None = None,
    *,
    documents: npt.ArrayLike | None = None,
) -> ConversationGraph:
    """Build the graph of the newest `parameters.window` of these turns. `parameters` defaults to `PageRank()`.

    Turns are given in order of arrival. Turn i has the keywords ``terms[offsets[i]:offsets[i + 1]]`` (ids of at least
    0; repeats count once), the code of a session or `ABSENT` in `sessions`, a time in seconds or NaN in `times`, and
    the document number ``documents[i]``, ascending (None: i). The edges depend on which turns share a keyword, not on
    the ids of the keywords.
    """
    settings = parameters or PageRank()
    bounds, words = np.asarray(offsets, dtype=np.int64), np.asarray(terms, dtype=np.int64)
    codes, seconds = np.asarray(sessions, dtype=np.int64), np.asarray(times, dtype=np.float64)
    numbers = np.arange(len(codes)) if documents is None else np.asarray(documents, dtype=np.int64)
    age = _by_age(seconds)
    newest = np.sort(age[-settings.window :])
    lengths = bounds[newest + 1] - bounds[newest]
    keys = np.unique(words[ranges(bounds[newest], lengths)] << 32 | np.repeat(np.arange(len(newest)), lengths))
    keywords, holders = keys >> 32, keys & 0xFFFFFFFF
    firsts = np.flatnonzero(np.diff(keywords, prepend=-1))
    inverted = np.append(firsts, len(keys))
    turn = np.empty(len(codes), dtype=np.int64)  # place in time
    turn[age] = np.arange(len(age))
    sources, targets, weights = _edges(settings, inverted, holders, codes[newest], turn[newest])
    order = np.lexsort((sources, targets))
    sources, targets, weights = sources[order], targets[order], weights[order]
    out = np.bincount(sources, None if settings.compat else weights, minlength=len(newest))
    return ConversationGraph(
        settings, numbers[newest], keywords[firsts], inverted, holders, sources, targets, weights / out[sources]
    )


def _edges(
    settings: PageRank, offsets: Integers, holders: Integers, sessions: Integers, turn: Integers
) -> tuple[Integers, Integers, Floats]:
    """(sources, targets, weights) of all edges; `turn` [n] orders the turns by time."""
    older, newer, shared = _count_shared(offsets, holders, len(turn), settings.overlap)
    sizes = np.bincount(holders, minlength=len(turn))
    weights = shared / np.maximum(sizes[older], sizes[newer])
    swapped = turn[older] > turn[newer]
    older, newer = np.where(swapped, newer, older), np.where(swapped, older, newer)
    if not settings.compat:
        older, newer, weights = np.append(older, newer), np.append(newer, older), np.append(weights, weights)
    # One session after another; with compat, the turns of all sessions in order of time.
    line = np.argsort(turn) if settings.compat else np.lexsort((turn, sessions))
    before, after = line[:-1], line[1:]
    joined = (sessions[before] == sessions[after]) & (sessions[before] != ABSENT)
    before, after = before[joined], after[joined]
    return np.append(older, before), np.append(newer, after), np.append(weights, np.ones(len(before)))


def _count_shared(offsets: Integers, holders: Integers, n: int, overlap: int) -> tuple[Integers, Integers, Integers]:
    """The pairs a < b of turns that share at least `overlap` keywords: (a, b, number of shared keywords)."""
    # by_turn lists the postings turn by turn; each turn has a range of it. In a keyword's list, the postings behind
    # that of turn a belong to turns above a.
    by_turn = np.argsort(holders, kind="stable")
    starts = offsets_of(np.bincount(holders, minlength=n))
    ends = np.repeat(offsets[1:], np.diff(offsets))
    blocks: list[tuple[Integers, Integers, Integers]] = []
    for block in _blocks(n):
        postings = by_turn[starts[block.start] : starts[block.stop]]
        lengths = ends[postings] - postings - 1
        left = np.repeat(holders[postings] - block.start, lengths)
        counts = np.bincount(left * n + holders[ranges(postings + 1, lengths)], minlength=1)
        pairs = np.flatnonzero(counts >= overlap)
        blocks.append((pairs // n + block.start, pairs % n, counts[pairs]))
    empty = np.zeros(0, dtype=np.int64)
    first, second, shared = (
        np.concatenate([empty, *parts]) for parts in (zip(*blocks, strict=True) if blocks else [()] * 3)
    )
    return first, second, shared


def _blocks(n: int) -> Iterator[slice]:
    step = max(PAIRS // max(n, 1), 1)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def graph_of(
    snapshot: Snapshot,
    terms: Sequence[str],
    analyzer: Analyzer,
    passing: Sequence[Flags],
    parameters: PageRank | None = None,
    roles: Mapping[str, int] | None = None,
) -> ConversationGraph:
    """The graph of the documents that pass a filter.

    `terms` holds the vocabulary's strings by id, `roles` the code of each role. `passing` holds flags [size] for each
    segment; they must be false for deleted documents. All postings of the segments that hold one of the newest `window`
    documents are read, which takes about 2 ns each.
    """
    settings = parameters or PageRank()
    numbers, times, sessions = _newest(snapshot, passing, settings.window)
    keys = [np.zeros(0, dtype=np.int64)]
    for first, segment in zip(snapshot.firsts, snapshot.segments, strict=True):
        start, stop = np.searchsorted(numbers, [first, first + segment.size]).tolist()
        if start == stop:
            continue
        row = np.full(segment.size, -1, dtype=np.int32)
        row[numbers[start:stop] - first] = np.arange(start, stop)
        rows = row[segment.documents]
        where = np.flatnonzero((rows >= 0) & _speaking(segment, settings.roles, roles or {})[segment.documents])
        lists = np.searchsorted(segment.offsets, where, side="right") - 1
        keys.append(rows[where].astype(np.int64) << 32 | segment.terms[lists])
    keyed = np.sort(np.concatenate(keys))
    distinct, index = np.unique(keyed & 0xFFFFFFFF, return_inverse=True)
    triggers = _trigger_terms(analyzer)
    is_keyword = [len(terms[term]) >= MIN_LENGTH and terms[term] not in triggers for term in distinct.tolist()]
    keyed = keyed[np.array(is_keyword, dtype=np.bool_)[index]]
    offsets = np.searchsorted(keyed, np.arange(len(numbers) + 1) << 32)
    return conversation_graph(offsets, keyed & 0xFFFFFFFF, sessions, times, settings, documents=numbers)


def _speaking(segment: Segment, roles: tuple[str, ...] | None, codes: Mapping[str, int]) -> Flags:
    """[size] which documents have keywords."""
    if roles is None:
        return np.ones(segment.size, dtype=np.bool_)
    own = segment.columns.categories.get("role")
    wanted = [codes[role] for role in roles if role in codes]
    return np.zeros(segment.size, dtype=np.bool_) if own is None else np.isin(own, wanted)


def _newest(snapshot: Snapshot, passing: Sequence[Flags], window: int) -> tuple[Integers, Floats, Integers]:
    """(document numbers ascending, times, session codes) of the newest `window` documents that pass."""
    numbers, sessions = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    times = [np.zeros(0)]
    for first, segment, flags in zip(snapshot.firsts, snapshot.segments, passing, strict=True):
        positions = np.flatnonzero(flags)
        codes = segment.columns.categories.get("session")
        numbers.append(first + positions)
        times.append(np.full(len(positions), np.nan) if segment.times is None else segment.times[positions])
        sessions.append(np.full(len(positions), ABSENT) if codes is None else codes[positions].astype(np.int64))
    seconds = np.concatenate(times)
    newest = np.sort(_by_age(seconds)[-window:])
    return np.concatenate(numbers)[newest], seconds[newest], np.concatenate(sessions)[newest]


def _by_age(times: Floats) -> Integers:
    """The turns' numbers in order of time, then of number. Turns without a time come first."""
    return np.argsort(np.where(np.isnan(times), -np.inf, times), kind="stable")


@lru_cache(maxsize=8)
def _trigger_terms(analyzer: Analyzer) -> frozenset[str]:
    return TRIGGER_WORDS.union(term for word in TRIGGER_WORDS for term in analyzer(word))


def seeds_of(graph: ConversationGraph, queries: Sequence[npt.ArrayLike]) -> Flags:
    """Which turns hold a keyword of each query, bool [B, n]. A query is the ids of its terms.

    Ids that no turn has are ignored, and so is -1.
    """
    seeds = np.zeros((len(queries), len(graph)), dtype=np.bool_)
    term_ids = [np.asarray(query, dtype=np.int64).reshape(-1) for query in queries]
    terms = np.concatenate([np.zeros(0, dtype=np.int64), *term_ids])
    rows = np.repeat(np.arange(len(term_ids)), [len(query) for query in term_ids])
    if len(graph.keywords):
        positions = np.minimum(np.searchsorted(graph.keywords, terms), len(graph.keywords) - 1)
        known = graph.keywords[positions] == terms
        starts, ends = graph.offsets[positions[known]], graph.offsets[positions[known] + 1]
        seeds[np.repeat(rows[known], ends - starts), graph.holders[ranges(starts, ends - starts)]] = True
    return seeds


def rank(graph: ConversationGraph, seeds: Flags) -> Floats:
    """The rank of each turn for each query, float64 [B, n], from `seeds` bool [B, n]; 0 without a path from a seed.

    The rank that a turn receives is added in the same order in every batch: sources ascending, in groups of `GROUP`
    edges. So a query's ranks have the same bits alone and in any batch. Raises `ParameterError` for seeds of another
    shape.
    """
    n, parameters = len(graph), graph.parameters
    flags = np.asarray(seeds, dtype=np.bool_)
    if flags.ndim != 2 or flags.shape[1] != n:
        raise ParameterError(f"seeds must be flags [queries, {n}], one for each turn, not {list(flags.shape)}")
    ranks = np.zeros(flags.shape)
    active = np.flatnonzero(flags.any(axis=1))
    order, pieces, turns = graph.flow
    back = np.argsort(order)
    for start in range(0, len(active), BLOCK):
        rows = active[start : start + BLOCK]
        # The array is [turns, queries], so that the rank along an edge is one contiguous row.
        current = np.ascontiguousarray(flags[rows][:, order].T, dtype=np.float64)
        seeded = (1.0 - parameters.damping) * current
        received = np.empty_like(current)
        grouped, spare = np.empty((2, pieces.size, len(rows)))
        for _ in range(parameters.iterations):
            pieces.add(current, grouped, spare)
            turns.add(grouped, received, spare)
            received *= parameters.damping
            received += seeded
            current, received = received, current
        ranks[rows] = current[back].T
    return ranks
