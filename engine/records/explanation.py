"""What an explanation says."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class TermContribution:
    """One query term in one document."""

    term: str
    multiplicity: int  # how often the query holds the term, as far as it counts
    document_frequency: int
    idf: float
    frequencies: dict[str, int]  # field -> raw count in the document
    quanta: int  # multiplicity times the posting's contribution
    score: float  # quanta / 2**18


@dataclass(frozen=True)
class Explanation:
    """The score of one document for one query.

    ``sum(term.score for term in terms) == score``, exactly, where the query does not decay; else `score` is that sum as
    `engine/index/decay.py` lets it fade, about `decay` times it.
    """

    query: int
    id: str
    document: int
    matched: bool  # whether it holds a query term
    passed: bool  # whether it passes the query's filter and time range; if not it is no hit, whatever its score
    score: float
    decay: float  # the factor of its age; 1 where the query does not decay
    quanta: int
    length: dict[str, int]  # field -> kept tokens of the document
    terms: tuple[TermContribution, ...]

    def at(self, query: int) -> Explanation:
        """The same, of the query at this position."""
        return replace(self, query=query)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        faded = f" x {self.decay!r}" if self.decay != 1.0 else ""
        lines = [f"{self.id}: {self.score!r} = {self.quanta} quanta{faded} / 2**18"]
        lines += [
            f"  {term.score!r:>22}  {term.term} x{term.multiplicity}  tf {term.frequencies}  "
            f"df {term.document_frequency}  idf {term.idf:.6f}"
            for term in self.terms
        ]
        if not self.matched:
            lines.append("  holds no term of the query")
        if not self.passed:
            lines.append("  does not pass the query's filter or time range")
        return "\n".join(lines)


@dataclass(frozen=True)
class ChannelShare:
    """What one channel says of a record, and what that adds to the fused score."""

    channel: str
    rank: int | None  # from 1; None: not in the channel's list
    score: float | None  # None: the channel does not score the record
    share: float


@dataclass(frozen=True)
class FusedExplanation:
    """The score of one document for one query under a strategy of several channels.

    The shares, added one after another in that order, are the score, exactly (`functools.reduce` with `operator.add`;
    Python's `sum` compensates from 3.12 on). What a fusion adds of its own, as for recency, is a channel without rank
    and score.
    """

    query: int
    id: str
    document: int
    strategy: str
    score: float | None  # None: no candidate, which no channel listed
    channels: tuple[ChannelShare, ...]
    lexical: Explanation | None  # the BM25 score, term by term, where that is a channel

    def at(self, query: int) -> FusedExplanation:
        """The same, of the query at this position."""
        return replace(self, query=query, lexical=None if self.lexical is None else self.lexical.at(query))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        score = "no candidate" if self.score is None else repr(self.score)
        lines = [f"{self.id}: {score} by {self.strategy}"]
        for share in self.channels:
            rank = "-" if share.rank is None else str(share.rank)
            own = "-" if share.score is None else repr(share.score)
            lines.append(f"  {share.share!r:>24}  {share.channel:12} rank {rank:>5}  score {own}")
        if self.lexical is not None:
            lines += ["  " + line for line in str(self.lexical).splitlines()]
        return "\n".join(lines)
