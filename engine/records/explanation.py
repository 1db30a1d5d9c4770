"""Explanations of scores: term by term for BM25, channel by channel for a strategy of several channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class TermContribution:
    """What one query term adds to the score of one document."""

    term: str
    multiplicity: int  # how often the term counts in the query
    document_frequency: int
    idf: float
    frequencies: dict[str, int]  # field -> raw count in the document
    quanta: int  # multiplicity times the posting's contribution
    score: float  # quanta / 2**18


@dataclass(frozen=True)
class NeighbourShare:
    """What one document lends to the score of another one of its session."""

    id: str
    distance: int  # below 0: it stands so many places before the document that borrows
    weight: float
    quanta: int  # its own, without what it borrows itself
    score: float  # weight * quanta / 2**18


@dataclass(frozen=True)
class Explanation:
    """The score of one document for one query.

    Without decay, the scores of `terms` and of `neighbours` add up to `score` exactly. With decay,
    `engine/index/decay.py` computes `score` from that sum; it is about `decay` times the sum.
    """

    query: int
    id: str
    document: int
    matched: bool  # whether the document holds a query term
    passed: bool  # whether it passes the query's filter and time range; if not, it cannot be a hit
    score: float
    decay: float  # the factor for the document's age; 1 without decay
    quanta: int  # of the document's own terms
    length: dict[str, int]  # field -> number of tokens that the analyzer kept
    terms: tuple[TermContribution, ...]
    neighbours: tuple[NeighbourShare, ...] = ()  # the nearest first; empty where nothing is borrowed

    def at(self, query: int) -> Explanation:
        """The same explanation, for the query at this position."""
        return replace(self, query=query)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        faded = f" x {self.decay!r}" if self.decay != 1.0 else ""
        borrowed = " and what neighbours lend" if self.neighbours else ""
        lines = [f"{self.id}: {self.score!r} = {self.quanta} quanta{borrowed}{faded} / 2**18"]
        lines += [
            f"  {term.score!r:>22}  {term.term} x{term.multiplicity}  tf {term.frequencies}  "
            f"df {term.document_frequency}  idf {term.idf:.6f}"
            for term in self.terms
        ]
        lines += [
            f"  {share.score!r:>22}  lent by {share.id}, at {share.distance:+d}: "
            f"{share.weight:g} of {share.quanta} quanta"
            for share in self.neighbours
        ]
        if not self.matched:
            lines.append("  holds no term of the query")
        if not self.passed:
            lines.append("  does not pass the query's filter or time range")
        return "\n".join(lines)


@dataclass(frozen=True)
class ChannelShare:
    """The rank and score that one channel gives a record, and what they add to the fused score."""

    channel: str
    rank: int | None  # from 1; None: not in the channel's list
    score: float | None  # None: the channel does not score the record
    share: float


@dataclass(frozen=True)
class FusedExplanation:
    """The score of one document for one query under a strategy of several channels.

    The shares, added one after another in the order of `channels`, give exactly the score. Add them with
    `functools.reduce` and `operator.add`: Python's `sum` compensates rounding errors from 3.12 on. What the fusion
    itself adds, for recency for example, appears as a channel without rank and score.
    """

    query: int
    id: str
    document: int
    strategy: str
    score: float | None  # None: no channel listed the document, so it is no candidate
    channels: tuple[ChannelShare, ...]
    lexical: Explanation | None  # the BM25 score, term by term, if BM25 is a channel

    def at(self, query: int) -> FusedExplanation:
        """The same explanation, for the query at this position."""
        return replace(self, query=query, lexical=None if self.lexical is None else self.lexical.at(query))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        score = "no candidate" if self.score is None else repr(self.score)
        lines = [f"{self.id}: {score} by {self.strategy}"]
        for share in self.channels:
            rank = "-" if share.rank is None else str(share.rank)
            channel_score = "-" if share.score is None else repr(share.score)
            lines.append(f"  {share.share!r:>24}  {share.channel:12} rank {rank:>5}  score {channel_score}")
        if self.lexical is not None:
            lines += ["  " + line for line in str(self.lexical).splitlines()]
        return "\n".join(lines)


def explanation_of(values: Mapping[str, Any]) -> Explanation | FusedExplanation:
    """The explanation that a ``to_dict`` gave, also after JSON."""
    read = dict(values)
    if "channels" in read:
        read["channels"] = tuple([ChannelShare(**share) for share in read["channels"]])
        read["lexical"] = None if read["lexical"] is None else _lexical_of(read["lexical"])
        return FusedExplanation(**read)
    return _lexical_of(read)


def _lexical_of(values: Mapping[str, Any]) -> Explanation:
    terms = tuple([TermContribution(**term) for term in values["terms"]])
    neighbours = tuple([NeighbourShare(**share) for share in values["neighbours"]])
    return Explanation(**{**values, "terms": terms, "neighbours": neighbours})
