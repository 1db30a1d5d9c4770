"""Which types of record to search, and which channels to leave out, for one query (SPEC B040, B060, B061)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..errors import ParameterError
from ..records.entities import words_of
from ..text.keywords import TRIGGER_WORDS
from ..text.time_expressions.parse import When
from .hints import EVENT, type_hints, without_event_triggers

LEXICAL, DENSE, GRAPH, TEMPORAL = CHANNELS = ("bm25", "dense", "graph", "temporal")

WIDEN_BELOW = 5
"""Hits of a search by type below which it runs again over all types (B043)."""

NO_TIME = "the query names no time"
NO_EVENTS = "the namespace holds no Event"
NO_MENTION = "the query mentions no entity"
NO_ENTITIES = "the namespace holds no entity"
NO_VECTORS = "the namespace holds no vectors"
NO_KNOWN_TERM = "no record holds a word of the query"
ONLY_TIME = "the query names a time and nothing else"


@dataclass(frozen=True)
class Parsed:
    """What a query was found to say, before the optimizer decides.

    `words`: its `content_words`; `known`: how many of its analysed terms any live record holds; `when`: the time that
    it names; `mentions`: the entities that it names, in its own words or, where the query gives them, by their ids.
    """

    text: str
    words: tuple[str, ...] = ()
    known: int = 0
    when: When | None = None
    mentions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stats:
    """What the namespace holds, over live records: how many, whether any has a vector, how many of each type, and how
    many distinct entities they name."""

    records: int
    vectors: bool = False
    types: Mapping[str, int] = field(default_factory=dict)
    entities: int = 0


@dataclass(frozen=True)
class Route:
    """The record types to search first, and the channels to leave out, each with its reason."""

    hints: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)


# Sources: B061, B043, B034, B060, X20.
@dataclass(frozen=True)
class Optimizer:
    """Decides hints and skips by rules, without learning. Call it with a `Parsed` and a `Stats`.

    `hints` and `skips` turn its two halves off; `widen_below` is for the search that applies the hints (0: it
    never widens). Raises `ParameterError` for values of another kind.

    Rules, in order; the first reason for a channel is the one reported:

    1. No time named, not even by "recent" or "latest": temporal is left out. So it is where there is no Event.
    2. No mention, or no entity in the namespace: graph.
    3. No vectors: dense.
    4. No term of the query in any record: bm25.
    5. A time and nothing else ("what happened yesterday?") while temporal is in: bm25 and dense. "Recent" and
       "latest" name no time, so they do not count here.
    6. Where that leaves nothing, the first of the given ones comes back, in the order bm25, dense, graph, temporal.
    """

    hints: bool = True
    skips: bool = True
    widen_below: int = WIDEN_BELOW

    def __post_init__(self) -> None:
        for name in ("hints", "skips"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(f"an optimizer's {name!r} must be true or false, not {getattr(self, name)!r}")
        if isinstance(self.widen_below, bool) or not isinstance(self.widen_below, int) or self.widen_below < 0:
            raise ParameterError(
                f"an optimizer's 'widen_below' must be an integer, 0 or more, not {self.widen_below!r}"
            )

    def __call__(self, parsed: Parsed, stats: Stats, channels: Sequence[str] = CHANNELS) -> Route:
        """The route over `channels`, the names of those that there are; one without rules is never left out. At least
        one of them always remains."""
        hints = self._hinted(parsed, stats) if self.hints else ()
        return Route(hints, self._skipped(parsed, stats, channels) if self.skips else {})

    @staticmethod
    def _hinted(parsed: Parsed, stats: Stats) -> tuple[str, ...]:
        """A type that no record has would only cost a search that must be widened."""
        asked = type_hints(parsed.text, parsed.mentions)
        return tuple(kind for kind in asked if stats.types.get(kind, 0) > 0)

    @staticmethod
    def _skipped(parsed: Parsed, stats: Stats, channels: Sequence[str]) -> dict[str, str]:
        reasons: dict[str, str] = {}
        if parsed.when is None:
            reasons[TEMPORAL] = NO_TIME
        elif not stats.types.get(EVENT, 0):
            reasons[TEMPORAL] = NO_EVENTS
        if not parsed.mentions:
            reasons[GRAPH] = NO_MENTION
        elif not stats.entities:
            reasons[GRAPH] = NO_ENTITIES
        if not stats.vectors:
            reasons[DENSE] = NO_VECTORS
        if not parsed.known:
            reasons[LEXICAL] = NO_KNOWN_TERM
        only_time = parsed.when is not None and not parsed.when.speculative and not parsed.words and not parsed.mentions
        if only_time and TEMPORAL in channels and TEMPORAL not in reasons:
            reasons.setdefault(LEXICAL, ONLY_TIME)
            reasons.setdefault(DENSE, ONLY_TIME)
        skipped = {name: reasons[name] for name in CHANNELS if name in channels and name in reasons}
        if channels and all(name in skipped for name in channels):
            del skipped[next(iter(skipped))]
        return skipped

    def to_dict(self) -> dict[str, Any]:
        """Its fields as JSON values; `of` takes them."""
        return asdict(self)

    @classmethod
    def of(cls, value: object) -> Optimizer:
        """The optimizer, or the one that a mapping of its fields stands for. Raises `ParameterError`."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ParameterError(f"an optimizer must be an Optimizer or its fields, not {value!r}")
        known = [one.name for one in fields(cls)]
        if unknown := sorted(map(str, set(value) - set(known))):
            raise ParameterError(f"an optimizer has no {unknown[0]!r}; there are: {', '.join(known)}")
        return cls(**value)


# Sources: T010, C009, B041.
def content_words(text: str, when: When | None = None) -> tuple[str, ...]:
    """The distinct words that say what the text is about, case folded, in order.

    Left out are the time expression, stop words, words that ask for a memory whatever it is about, and
    what asks for an event whatever it is: "what happened last week?" has none. Unlike `keywords` it takes words
    of any length and number: one short word makes a query one about more than a time.
    """
    if when is not None:
        text = re.sub(rf"(?<!\w){re.escape(when.expression)}(?!\w)", " ", text, count=1)
    words = without_event_triggers(words_of(text))
    return tuple(dict.fromkeys(word for word in words if word not in TRIGGER_WORDS))
