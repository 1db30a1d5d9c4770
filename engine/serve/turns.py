"""Turns of tenants: whose calls a lane launches next, how much one launch takes, and how a large call is cut.

A tenant is whoever a server answers for. The work of a call is estimated from its queries. A clock says whose turn it
is, for launches here, and for threads and writes in a server. Calls without a tenant keep their order.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..hybrid.strategy import Strategy
from ..records.query import Query
from ..route.parts import Part, divide, join
from ..search.batch import SETTINGS
from ..search.texts import bring_records_of

if TYPE_CHECKING:
    from ..records.hits import Hits
    from ..route.by_namespace import AnyAnswerer
    from ..search.options import SearchOptions
    from ..searcher import Searcher

QUERY = 64
"""The work of a query beside its characters, and of each of its terms, entities and weights."""
LARGE = 1 << 15
"""Work from which on a call of a tenant is launched by itself, and cut: some 10 ms of plain BM25."""
TARGET = 0.01
"""Seconds that a launch for tenants is to take."""
FEW = 8
"""Fewer queries are launched together, whatever is known of them."""
HELD = 0.02
"""Seconds for which a launch may hold the others. A call that is to take longer is cut, whatever its work."""
AT_ONCE = 0.001
"""Seconds that a launch of small calls may take in the thread of their event loop, which spares two changes of
threads: 40 to 100 us."""
FADING = 0.9
"""By how much the slowest launch is forgotten with each further one."""
TIMES = 2
"""How many times as long as one query alone it may take, where that is more."""
REMEMBERED = 1_024
"""Tenants that a clock remembers before it forgets those who owe nothing."""
PACES = 32
"""Ways to answer whose pace is remembered."""
TRIES = 3
"""Times that a call is begun anew as a record of a hit has changed meanwhile. Then it is launched whole."""


class Waiting(Protocol):
    """A call that waits."""

    tenant: str | None
    left: int
    """The work that is left of it."""


class Options(Protocol):
    """What the calls of one launch have in common."""

    def equals(self, other: Any) -> bool:
        """Whether both give the same answers in the same way."""
        ...


Waits = TypeVar("Waits", bound=Waiting)


def work_of(queries: Sequence[Query]) -> int:
    """The work of a batch, as far as its queries tell."""
    work = QUERY * len(queries)
    for query in queries:
        work += len(query.text or "")
        for several in (query.terms, query.weights, query.entities):
            work += QUERY * len(several) if several else 0
    return work


class Pace:
    """How much work a launch of one way to answer may have. It begins with one query, as nothing is known.

    Where encoding or a GPU takes as long for many queries as for one, launches of few would only be more of them.
    """

    def __init__(self) -> None:
        self.room = 1
        """The work of the next launch. One call, or one query of a call that is cut, always fits."""
        self._alone = math.inf
        """Seconds of one query, or of the shortest launch."""
        self._slowest = math.inf
        """Seconds for each work, of the slowest of the last launches."""

    def seconds(self, work: int) -> float:
        """How long a launch of so much work may take. Nothing is known before the first one."""
        return self._slowest * work

    def learn(self, work: int, queries: int, seconds: float) -> None:
        """Note how long a launch took."""
        known = queries == 1 and self._alone < math.inf
        self._alone = (self._alone + seconds) / 2 if known else min(self._alone, seconds)
        slowest = 0.0 if self._slowest == math.inf else FADING * self._slowest
        self._slowest = max(seconds / max(work, 1), slowest)
        target = max(TARGET, TIMES * self._alone)
        self.room = max(1, int(work * target / seconds)) if seconds > target else max(self.room, 2 * work)


class Clock:
    """Whose turn it is: of those who wait, his for whom the least was begun. One who comes anew begins where the others
    are, so nobody saves up turns, and nobody pays for what he took while he was alone."""

    def __init__(self) -> None:
        self._now = 0
        """Where the last one began whose turn it was."""
        self._begun: dict[str, int] = {}

    def start(self, who: str) -> int:
        """Where the next work of this one begins. The least is next."""
        return max(self._begun.get(who, 0), self._now)

    def charge(self, who: str, work: int) -> None:
        """Count what is begun for one."""
        start = self._now = self.start(who)
        self._begun[who] = start + work
        if len(self._begun) > REMEMBERED:
            # Who owes nothing is as one who comes anew.
            self._begun = {name: begun for name, begun in self._begun.items() if begun > start}


class Paces:
    """The paces of the last ways to answer. The coalescer's lock guards them."""

    def __init__(self) -> None:
        self._known: list[tuple[Options, Pace]] = []

    def of(self, options: Options) -> Pace:
        """The pace of launches with these options."""
        for place, (known, pace) in enumerate(self._known):
            if known is options or known.equals(options):
                if place:
                    self._known.insert(0, self._known.pop(place))
                return pace
        self._known.insert(0, (options, Pace()))
        del self._known[PACES:]
        return self._known[0][1]


class Turns:
    """The turns of one lane. The coalescer's lock guards them."""

    def __init__(self) -> None:
        self.used = False
        """Whether a tenant was ever here."""
        self.clock = Clock()

    def order(self, queue: deque[Waits]) -> None:
        """Put the calls that wait in the order of their tenants' turns. Those of one tenant stay in theirs."""
        present = {call.tenant for call in queue}
        if len(present) < 2:
            return
        begun = {name: self.clock.start(name or "") for name in present}
        starts = []
        for call in queue:
            starts.append(begun[call.tenant])
            begun[call.tenant] += call.left
        ordered = sorted(zip(starts, queue, strict=True), key=lambda pair: pair[0])
        queue.clear()
        queue.extend(call for _, call in ordered)


_read = attrgetter("text", "now", *SETTINGS)


class Cut:
    """A call that is launched in pieces, which read one state of the memory, at one moment."""

    def __init__(
        self, queries: tuple[Query, ...], k: int, answerer: AnyAnswerer, options: SearchOptions, pace: Pace
    ) -> None:
        self.queries, self.k, self.answerer, self.options, self.pace = queries, k, answerer, options, pace
        self.seconds = 0.0
        self.tries = 0
        self._begin()

    def _begin(self) -> None:
        self.pieces: list[Part] = []
        self.answers: list[Hits] = []
        self.parts: list[Part] = []

    def step(self, searcher: Searcher, threads: int, timing: bool) -> tuple[Hits, int] | None:
        """Launch the next piece: its hits and its work. None where the call must be launched whole after all.

        Raises as the search of the piece, whose error may name another row.
        """
        options = replace(self.options, threads=threads, timing=timing)
        if not self.pieces:
            if searcher.index.filler is not None and searcher.index.scans():
                return None
            self.parts = divide(self.queries, self.answerer)
            firsts = self._firsts()
            for divided in self.parts:
                # Equal queries are answered once, so they are of one piece.
                divided.rows.sort(key=firsts.__getitem__)
            self.state, self.clock = searcher.index.ready().state, time.time()
            self.timed = self.state.expiring or any(
                (query.half_life, query.windows, query.latest) != (None, None, None) for query in self.queries
            )
        part = self.parts[0]
        size = work = 0
        while size < len(part.rows):
            more = work_of([self.queries[part.rows[size]]])
            again = size and self._words(part.rows[size]) == self._words(part.rows[size - 1])
            if size and not again and work + more > self.pace.room:
                break
            size, work = size + 1, work + (0 if again else more)
        piece = Part(part.answerer, part.rows[:size])
        del part.rows[:size]
        if not part.rows:
            del self.parts[0]
        began = time.perf_counter()
        asked = [self.queries[row] for row in piece.rows]
        # Without a clock plain BM25 has a shorter way.
        plain = isinstance(piece.answerer, Strategy) and piece.answerer.plain
        clock = None if plain and not self.timed else self.clock
        hits = searcher.answer(asked, self.k, self.answerer, options, self.state, clock)
        if options.texts or options.payload:
            found = bring_records_of(searcher.index.memory, self.state, hits, options)
            if found is None:
                self.tries += 1
                if self.tries >= TRIES:
                    return None
                self._begin()
                return hits, work
            hits = found
        spent = time.perf_counter() - began
        self.seconds += spent
        self.pace.learn(work, size, spent)
        self.pieces.append(piece)
        self.answers.append(hits)
        return hits, work

    def _words(self, row: int) -> tuple[object, ...]:
        query = self.queries[row]
        return _read(query), query.terms and tuple(query.terms)

    def _firsts(self) -> list[int]:
        """For each row the first one with the same words and settings."""
        first: dict[tuple[object, ...], int] = {}
        return [first.setdefault(self._words(row), row) for row in range(len(self.queries))]

    @property
    def done(self) -> bool:
        return bool(self.pieces) and not self.parts

    def answer(self) -> Hits:
        """The hits of the whole call."""
        return join(self.queries, self.pieces, self.answers)
