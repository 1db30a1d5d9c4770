"""The optimizer decides which record types to search and which channels to skip for a query (SPEC B040, B060, B061)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

from ..errors import ParameterError, refuse_unknown
from ..records.entities import words_of
from ..text.keywords import TRIGGER_WORDS
from ..text.time_expressions.parse import When
from .hints import EVENT, hints_by_grammar, hints_by_words, without_event_triggers

Triggers = Literal["grammar", "words"]

LEXICAL, DENSE, GRAPH, TEMPORAL = CHANNELS = ("bm25", "dense", "graph", "temporal")

WIDEN_BELOW = 5
"""A search that filters by type and finds fewer hits than this runs again over all types (B043)."""

NO_TIME = "the query names no time"
NO_EVENTS = "the namespace holds no Event"
NO_MENTION = "the query mentions no entity"
NO_ENTITIES = "the namespace holds no entity"
NO_VECTORS = "the namespace holds no vectors"
NO_KNOWN_TERM = "no record holds a word of the query"
ONLY_TIME = "the query names a time and nothing else"


@dataclass(frozen=True)
class Parsed:
    """A parsed query, as the optimizer reads it.

    - `words`: the query's `content_words`
    - `known`: how many of its analysed terms any live record holds
    - `when`: the time that it names
    - `mentions`: the entities that it names, in its own words, or by their ids where the query gives ids
    """

    text: str
    words: tuple[str, ...] = ()
    known: int = 0
    when: When | None = None
    mentions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stats:
    """Counts over a namespace's live records.

    They are the number of records, whether any has a vector, the number by type, and the number of distinct entities.
    """

    records: int
    vectors: bool = False
    types: Mapping[str, int] = field(default_factory=dict)
    entities: int = 0


@dataclass(frozen=True)
class Route:
    """The record types that the query hints at, and the skipped channels, each with its reason."""

    hints: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)


# Sources: B061, B043, B034, B060, X20.
@dataclass(frozen=True)
class Optimizer:
    """Decides type hints and skipped channels by fixed rules. Call it with a `Parsed` and a `Stats`.

    `hints=False` and `skips=False` turn the two parts off. Raises `ParameterError` for values of another kind.

    Hints are found by `triggers`: ``grammar`` (`hints_by_grammar`), or ``words``, the source's literal reading
    (`hints_by_words`). They remove nothing: a `Hinted` channel raises the records of these types.

    Beware of `filters`: words and vectors then search the hinted types alone. With fewer than `widen_below` hits they
    search all types again; with 0 they never do. A dense channel lists whatever there is, so an answer of another type
    is lost as soon as `widen_below` records are of the hinted type. With types by rule and triggers by words that cost
    15 points of Hit@5 against `fused` on LoCoMo's turns, and 24 on tool dialogues (docs/deciding.md).

    The rules apply in this order. The first reason for a channel is the one that is reported.

    1. temporal is skipped if the query names no time, not even by "recent" or "latest", or if there is no Event.
    2. graph is skipped if the query mentions no entity, or if the namespace has no entity.
    3. dense is skipped if the namespace has no vectors.
    4. bm25 is skipped if no record holds a term of the query.
    5. bm25 and dense are skipped if the query names a time and nothing else ("what happened yesterday?") and temporal
       is not skipped. "Recent" and "latest" name no time here.
    6. If all channels are skipped, the first of them in the order bm25, dense, graph, temporal is used after all.
    """

    hints: bool = True
    skips: bool = True
    widen_below: int = WIDEN_BELOW
    triggers: Triggers = "grammar"
    filters: bool = False

    def __post_init__(self) -> None:
        if self.triggers not in get_args(Triggers):
            raise ParameterError(
                f"an optimizer's 'triggers' must be one of {', '.join(get_args(Triggers))}, not {self.triggers!r}"
            )
        for name in ("hints", "skips", "filters"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(f"an optimizer's {name!r} must be true or false, not {getattr(self, name)!r}")
        if isinstance(self.widen_below, bool) or not isinstance(self.widen_below, int) or self.widen_below < 0:
            raise ParameterError(
                f"an optimizer's 'widen_below' must be an integer, 0 or more, not {self.widen_below!r}"
            )

    def __call__(self, parsed: Parsed, stats: Stats, channels: Sequence[str] = CHANNELS) -> Route:
        """The route over `channels`, the names of the strategy's channels.

        A channel without rules is never skipped. At least one channel always remains.
        """
        hints = self._choose_hints(parsed, stats) if self.hints else ()
        return Route(hints, self._choose_skips(parsed, stats, channels) if self.skips else {})

    def _choose_hints(self, parsed: Parsed, stats: Stats) -> tuple[str, ...]:
        """The type hints. A type that no record has is left out: its search would find nothing and run again."""
        find = hints_by_grammar if self.triggers == "grammar" else hints_by_words
        types = find(parsed.text, parsed.mentions)
        return tuple(kind for kind in types if stats.types.get(kind, 0) > 0)

    @staticmethod
    def _choose_skips(parsed: Parsed, stats: Stats, channels: Sequence[str]) -> dict[str, str]:
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
        """The fields as JSON values, which `of` takes."""
        return asdict(self)

    @classmethod
    def of(cls, value: object) -> Optimizer:
        """An optimizer from a mapping of its fields; an optimizer is returned as it is. Raises `ParameterError`."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ParameterError(f"an optimizer must be an Optimizer or its fields, not {value!r}")
        refuse_unknown(value, [item.name for item in fields(cls)], "an optimizer has no")
        return cls(**value)


# Sources: T010, C009, B041.
def content_words(text: str, when: When | None = None) -> tuple[str, ...]:
    """The distinct words that say what the text is about, case folded, in order.

    Left out are the time expression, stop words, words that ask for any memory, and words that ask for any event. So
    "what happened last week?" has no content words. Unlike `keywords`, this takes words of any length and any number
    of them, because a single short word shows that a query is about more than a time.
    """
    if when is not None:
        text = re.sub(rf"(?<!\w){re.escape(when.expression)}(?!\w)", " ", text, count=1)
    words = without_event_triggers(words_of(text))
    return tuple(dict.fromkeys(word for word in words if word not in TRIGGER_WORDS))
