"""The channels of a strategy: each is one kind of evidence (`engine/hybrid/strategy.py` puts them together)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import ParameterError, choices, refuse_unknown
from ..feedback.rm3 import RM3
from ..fuse.fusion import checked_table
from ..recall.conversation import PageRank
from ..recall.entity_graph import TYPE_PRIOR
from ..records.neighbours import Neighbours
from ..text.time_expressions.parse import MAX_RECENT_DAYS, RECENT_DAYS
from ..vectors.index_options import Approximate
from ..vectors.interaction import Interaction
from ..vectors.verbs import MODES, Mode

BM25 = "bm25"
DENSE = "dense"
LEARNED = "sparse"
GRAPH = "graph"
TEMPORAL = "temporal"
CONVERSATION = "conversation"
HINTS = "hints"


@dataclass(frozen=True)
class Lexical:
    """BM25 over the record's text fields.

    `neighbours` says what a record borrows from those before and after it in its session, for queries that do not say
    so themselves; None: nothing. With `rm3` the words of the first hits join the query, and it is searched again. That
    needs records' texts, and goes without neighbours.
    """

    name: str = BM25
    neighbours: Neighbours | None = None
    rm3: RM3 | None = None

    def __post_init__(self) -> None:
        _check_neighbours(self)
        if self.rm3 is not None and not isinstance(self.rm3, RM3):
            raise ParameterError(f"a lexical channel's rm3 must be an RM3, not {self.rm3!r}")
        if self.rm3 is not None and self.neighbours is not None:
            raise ParameterError("a lexical channel has rm3 or neighbours, not both")


@dataclass(frozen=True)
class Learned:
    """The product of learned term weights (`Record.weights`, `Query.weights`), as SPLADE gives them."""

    name: str = LEARNED


@dataclass(frozen=True)
class Dense:
    """Similarity of vectors. `mode`: ``exact``, ``int8`` (both exact in their own arithmetic) or ``hnsw``.

    `approximate` holds the options of mode ``hnsw``; None: the defaults. The mode is named after the graph on the CPU.
    A backend on a GPU searches CAGRA's graph or all rows (`Approximate`). `neighbours` is as in `Lexical`, and not
    for mode ``hnsw``.
    """

    interaction: Interaction = field(default_factory=Interaction)
    mode: Mode = "exact"
    name: str = DENSE
    approximate: Approximate | None = None
    neighbours: Neighbours | None = None

    def __post_init__(self) -> None:
        _check_neighbours(self)
        if self.neighbours is not None and self.mode == "hnsw":
            raise ParameterError("a dense channel of mode 'hnsw' lists what its graph finds; neighbours need 'exact'")
        if not isinstance(self.interaction, Interaction):
            raise ParameterError(f"a dense channel's interaction must be an Interaction, not {self.interaction!r}")
        if self.mode not in MODES:
            raise ParameterError(f"unknown dense mode {self.mode!r}{choices(self.mode, MODES)}")
        if self.approximate is not None and not isinstance(self.approximate, Approximate):
            raise ParameterError(f"a dense channel's approximate must be an Approximate, not {self.approximate!r}")
        if self.approximate is not None and self.mode != "hnsw":
            raise ParameterError(f"a dense channel of mode {self.mode!r} takes no approximate; use mode 'hnsw'")


def _check_neighbours(channel: Lexical | Dense) -> None:
    if channel.neighbours is not None and not isinstance(channel.neighbours, Neighbours):
        raise ParameterError(f"a channel's neighbours must be a Neighbours, not {channel.neighbours!r}")


# Sources: B020 to B026.
@dataclass(frozen=True)
class Graph:
    """Records that mention an entity of the query, or one up to `hops` relations away.

    A query that asks for a chain of relations ("who works with Ana who also knows Bob") may go one further.
    `type_prior` says how far relations of a category are relied on, in [0, 1], where not as `TYPE_PRIOR`.
    """

    hops: int = 2
    type_prior: Mapping[str, float] | None = field(default=None, hash=False)
    name: str = GRAPH

    def __post_init__(self) -> None:
        if isinstance(self.hops, bool) or not isinstance(self.hops, int) or not 0 <= self.hops <= 3:
            raise ParameterError(f"a graph channel's hops must lie in [0, 3], not {self.hops!r}")
        given = checked_table("a graph channel's type_prior", self.type_prior)
        wrong = [name for name, prior in given.items() if name not in TYPE_PRIOR or prior > 1.0]
        if wrong:
            raise ParameterError(
                f"a graph channel's type_prior gives numbers in [0, 1] to {', '.join(TYPE_PRIOR)}, not "
                f"{given[wrong[0]]!r} to {wrong[0]!r}"
            )
        object.__setattr__(self, "type_prior", given or None)


# Sources: B030 to B036.
@dataclass(frozen=True)
class Temporal:
    """Records of the type ``Event`` in the time that the query names, whatever type the query hints at.

    The window ranks nothing: all events in it share the first rank. It lists the newest of them, and of equal
    fused scores the newest event comes first, then what was added first. With `newest_first` the later have the better
    rank, so that age counts in the fusion too.
    `recent_days` is what "recently" reaches back. It needs the query's own `now`.
    """

    newest_first: bool = False
    recent_days: float = RECENT_DAYS
    name: str = TEMPORAL

    def __post_init__(self) -> None:
        days = self.recent_days
        if isinstance(days, bool) or not isinstance(days, (int, float)) or not 0.0 < days <= MAX_RECENT_DAYS:
            raise ParameterError(f"a temporal channel's recent_days must lie in (0, {MAX_RECENT_DAYS:g}], not {days!r}")


# Sources: C030, C031, C032.
@dataclass(frozen=True)
class Conversation:
    """PageRank over the newest turns, from those that hold a word of the query. Experimental."""

    ranking: PageRank = field(default_factory=PageRank)
    name: str = CONVERSATION

    def __post_init__(self) -> None:
        if not isinstance(self.ranking, PageRank):
            raise ParameterError(f"a conversation channel's ranking must be a PageRank, not {self.ranking!r}")


# Sources: B040, B041.
@dataclass(frozen=True)
class Hinted:
    """Candidates of the types that the query hints at, all at the first rank.

    It finds nothing of its own: it raises what another channel of the strategy found. A strategy needs an optimizer or
    `Query.hints` for it to say anything.
    """

    name: str = HINTS


CONTEXT = Neighbours(4, (0.6, 0.5, 0.3, 0.2))
"""What the words of a record's surroundings count beside its own (`ContextWords`)."""
NEAR = Neighbours(2, (0.5, 0.3))
"""What the vectors of a record's surroundings count beside its own (`ContextVectors`)."""


@dataclass(frozen=True)
class ContextWords:
    """BM25 of a record and its surroundings: each word of the query counts once, where it counts most.

    ``sum over words t of max(score_t(d), weight_o * score_t(d - o), weight_o * score_t(d + o), for o = 1..window)``,
    where ``score_t`` is what t adds to BM25. `Lexical(neighbours=...)` adds finished scores instead, so that a common
    word that is said again and again counts again and again. The channel lists nothing: it scores what other channels
    of the strategy listed. `neighbours` are its own, whatever the query's are. A half-life fades the score by the age
    of the record itself.
    """

    neighbours: Neighbours = CONTEXT
    name: str = "context_words"

    def __post_init__(self) -> None:
        _check_surroundings(self)


@dataclass(frozen=True)
class ContextVectors:
    """Cosine of the query's vector and ``v(d) + sum over o of weight_o * (v(d - o) + v(d + o))``.

    The sum is brought to length 1, so that a record at the end of a session loses nothing. A record of several passages
    has the mean of their vectors; one without a vector has no score, and a neighbour without one adds nothing. The
    channel lists nothing, as `ContextWords`.
    """

    neighbours: Neighbours = NEAR
    name: str = "context_vectors"

    def __post_init__(self) -> None:
        _check_surroundings(self)


CUES = ("asks", "answers", "length", "speaker", "assistant_length", "told")


@dataclass(frozen=True)
class Cue:
    """What a turn of a dialogue shows, whichever words it shares with the query: a number in [0, 1].

    - ``asks``: 1 where the text ends with a question mark. What answers a question is rarely a question itself.
    - ``answers``: 1 where the record before it in its session asks.
    - ``length``: n / (n + 16) for a record of n terms. Short turns ("That's great!") hold little.
    - ``speaker``: 1 where the text begins with a name and a colon, and the query holds a word of the name.
    - ``assistant_length``: ``length`` where an assistant says it, else 0. A person's long turn holds much; an
      assistant's turns are nearly all long, so a weight of their own makes up for it.

    - ``told``: 1 where an assistant says it and the query asks what it told: it says "you" otherwise than to ask for
      something ("what did you suggest", not "can you suggest"), or it asks for a summary. Of English queries alone.

    An assistant says what has the role ``assistant``. A record without a role counts as said by one if its side of the
    talk writes at length and the other side does not: its side is the record and those 2 and 4 places before and after
    it in its session, the other side those 1 and 3 places away (`WORDY` and `TIMES` in context.py).

    A record without a neighbour in its session is no turn: its cues are 0, so documents rank as without. The channel
    lists nothing, as `ContextWords`. ``asks``, ``answers`` and ``speaker`` read the texts of candidates, each at most
    once.
    """

    cue: str
    name: str = ""

    def __post_init__(self) -> None:
        if self.cue not in CUES:
            raise ParameterError(f"unknown cue {self.cue!r}{choices(self.cue, CUES)}")
        object.__setattr__(self, "name", self.name or self.cue)


def _check_surroundings(channel: ContextWords | ContextVectors) -> None:
    if not isinstance(channel.neighbours, Neighbours):
        raise ParameterError(f"a channel's neighbours must be a Neighbours, not {channel.neighbours!r}")


SCORING = (Hinted, ContextWords, ContextVectors, Cue)
"""Channels that list nothing, and score what the others listed."""

AnyChannel = Lexical | Dense | Learned | Graph | Temporal | Conversation | Hinted | ContextWords | ContextVectors | Cue

_KINDS: dict[str, type[AnyChannel]] = {
    "lexical": Lexical,
    "dense": Dense,
    "learned": Learned,
    "graph": Graph,
    "temporal": Temporal,
    "conversation": Conversation,
    "hinted": Hinted,
    "context_words": ContextWords,
    "context_vectors": ContextVectors,
    "cue": Cue,
}
_NESTED: dict[str, type[Any]] = {
    "interaction": Interaction,
    "approximate": Approximate,
    "ranking": PageRank,
    "rm3": RM3,
    "neighbours": Neighbours,
}
_BORROWING = (Lexical, Dense, ContextWords, ContextVectors)
CHANNELS = tuple(_KINDS.values())
"""The kinds of channel."""


def show_channel(channel: AnyChannel) -> str:
    """A channel in a few words: its name, and how it searches where there is a choice."""
    if isinstance(channel, (ContextWords, ContextVectors)):
        return f"{channel.name} ({channel.neighbours})"
    if not isinstance(channel, (Dense, Lexical)):
        return channel.name
    parts = [str(channel.neighbours or "")]
    if isinstance(channel, Dense):
        mode = "" if channel.mode == "exact" else channel.mode
        parts = [str(channel.interaction), mode, str(channel.approximate or ""), *parts]
    elif channel.rm3 is not None:
        parts = [str(channel.rm3)]
    elif channel.neighbours is None:
        return channel.name
    return f"{channel.name} ({', '.join(part for part in parts if part)})"


def channel_to_dict(channel: AnyChannel) -> dict[str, Any]:
    """Plain JSON values, which `channel_of` takes."""
    kind = next(kind for kind, channel_type in _KINDS.items() if isinstance(channel, channel_type))
    given = {"kind": kind, **asdict(channel)}
    if isinstance(channel, _BORROWING) and channel.neighbours is not None:
        given["neighbours"] = channel.neighbours.to_dict()
    return given


def channel_of(value: Any) -> AnyChannel:
    """The channel that a mapping (`channel_to_dict`) or a channel stands for. Raises `ParameterError`."""
    if isinstance(value, CHANNELS):
        return value
    if not isinstance(value, Mapping):
        raise ParameterError(f"a channel is a mapping with a kind of {', '.join(_KINDS)}, not {value!r}")
    refuse_unknown([value.get("kind")], list(_KINDS), "there is no kind of channel")
    fields = {
        key: _made(_NESTED[key], key, field) if key in _NESTED and isinstance(field, Mapping) else field
        for key, field in value.items()
        if key != "kind"
    }
    channel: AnyChannel = _made(_KINDS[value["kind"]], f"channel {value!r}", fields)
    return channel


def _made(kind: type[Any], what: str, fields: Mapping[str, Any]) -> Any:
    refuse_unknown(fields, kind.__dataclass_fields__, f"{what} has no")
    try:
        return kind(**fields)
    except TypeError as error:
        raise ParameterError(f"{what}: {error}") from None
