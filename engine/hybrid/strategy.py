"""`Strategy`: which evidence a query is answered by, and how one list of hits is made of it.

A `Strategy` is a small value: printable, comparable, and the same after `to_dict`, JSON and `of`. `STRATEGIES` names
the ones that the papers describe. Execution (`Engine.search`'s ``execution``, threads, backend) never changes an
answer; a strategy does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..errors import ParameterError
from ..feedback.pool import Feedback
from ..feedback.registry import feedback_of, feedback_to_dict
from ..feedback.rm3 import RM3
from ..fuse import RRF, AgentRRF, Boosted, Decay, Fusion, MinMax, ScoreRRF, ZScore, fusion_of, fusion_to_dict
from ..fuse.fusion import check_channels, checked_table
from ..locks import once
from ..recall.conversation import PageRank
from ..recall.entity_graph import TYPE_PRIOR
from ..recall.optimizer import Optimizer
from ..records.neighbours import Neighbours
from ..text.time_expressions.parse import MAX_RECENT_DAYS, RECENT_DAYS
from ..vectors.index_options import Approximate
from ..vectors.interaction import Interaction
from ..vectors.verbs import MODES, Mode

DEPTH = 100
"""Candidates a channel (B050)."""
POOL = 1000
"""Candidates of strategies with feedback: the pool that the new query scores again (E012)."""

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
            raise ParameterError(f"unknown dense mode {self.mode!r}; there are: {', '.join(MODES)}")
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


AnyChannel = Lexical | Dense | Learned | Graph | Temporal | Conversation | Hinted

_KINDS: dict[str, type[AnyChannel]] = {
    "lexical": Lexical,
    "dense": Dense,
    "learned": Learned,
    "graph": Graph,
    "temporal": Temporal,
    "conversation": Conversation,
    "hinted": Hinted,
}
_NESTED: dict[str, type[Any]] = {
    "interaction": Interaction,
    "approximate": Approximate,
    "ranking": PageRank,
    "rm3": RM3,
    "neighbours": Neighbours,
}


# Sources: E012.
@dataclass(frozen=True)
class Strategy:
    """The channels of evidence, and how their lists become one.

    `fusion` makes one score of several channels. Without it there is one channel, whose scores are the answer's.
    `feedback` moves the query vector by the first candidates, and scores the candidates' vectors again. With
    `search_again` the moved vector is searched for instead, so records outside the first pool can be found: the answer
    is that of the strategy without feedback for the moved vector. `depth` is how
    many candidates each channel lists, at least k; None: all that pass the query's filter. With `complete` a channel
    also ranks, behind its hits, the records that pass the filter and for which it has no score. Published protocols do
    so; it is for small namespaces. `optimizer` decides for each query which types of record to search and which
    channels to leave out. Without it every channel runs. Raises `ParameterError`.
    """

    name: str
    channels: tuple[AnyChannel, ...] = (Lexical(),)
    fusion: Fusion | None = None
    feedback: Feedback | None = None
    depth: int | None = DEPTH
    complete: bool = False
    optimizer: Optimizer | None = None
    search_again: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ParameterError(f"a strategy's name must be a non-empty string, not {self.name!r}")
        if isinstance(self.channels, (list, tuple)):
            object.__setattr__(self, "channels", tuple(self.channels))
        else:
            raise ParameterError(f"strategy {self.name!r}: channels must be a list, not {self.channels!r}")
        if not self.channels or not all(isinstance(channel, _CHANNELS) for channel in self.channels):
            known = ", ".join(kind.__name__ for kind in _CHANNELS)
            raise ParameterError(f"strategy {self.name!r} needs channels; there are: {known}")
        if all(isinstance(channel, Hinted) for channel in self.channels):
            raise ParameterError(f"strategy {self.name!r}: a Hinted channel finds nothing; give it other channels")
        names = [channel.name for channel in self.channels]
        if not all(isinstance(name, str) and name for name in names):
            raise ParameterError(f"strategy {self.name!r}: a channel's name must be a non-empty string")
        if self.fusion is not None and not (hasattr(self.fusion, "reads") and callable(self.fusion)):
            raise ParameterError(f"strategy {self.name!r}: fusion must be one of fanrank's, or fusion_of(name)")
        if self.feedback is not None and not isinstance(self.feedback, Feedback):
            raise ParameterError(f"strategy {self.name!r}: feedback must be a Feedback, or feedback_of(name)")
        if len(set(names)) < len(names):
            raise ParameterError(f"strategy {self.name!r}: two channels have one name; give them different names")
        if self.fusion is None and len(names) > 1:
            raise ParameterError(f"strategy {self.name!r} has {len(names)} channels and no fusion")
        if self.fusion is not None:
            check_channels(self.fusion, names)
        if self.feedback is not None and not self.dense:
            raise ParameterError(f"strategy {self.name!r}: feedback moves a query vector, and no channel is dense")
        if not isinstance(self.search_again, bool):
            raise ParameterError(f"strategy {self.name!r}: search_again must be true or false")
        if self.search_again and self.feedback is None:
            raise ParameterError(f"strategy {self.name!r}: search_again needs feedback, which moves the query vector")
        if self.depth is not None and (
            isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 1
        ):
            raise ParameterError(f"strategy {self.name!r}: depth must be 1 or more, or None, not {self.depth!r}")
        if self.complete and self.depth is not None:
            raise ParameterError(f"strategy {self.name!r}: complete lists need depth None")
        if len({channel.recent_days for channel in self.channels if isinstance(channel, Temporal)}) > 1:
            raise ParameterError(
                f"strategy {self.name!r}: a query names one time; give its temporal channels one recent_days"
            )
        if self.optimizer is not None and not isinstance(self.optimizer, Optimizer):
            raise ParameterError(f"strategy {self.name!r}: optimizer must be an Optimizer, not {self.optimizer!r}")

    # These are worked out once: each search of a fan-out asks for them.
    @once
    def plain(self) -> bool:
        """Whether BM25 alone answers."""
        return self.channels == (Lexical(),) and self.fusion is None and not self.complete and self.optimizer is None

    @once
    def single(self) -> bool:
        """Whether one channel's list is the ranking, so that a longer list begins with the shorter one."""
        (first, *others) = self.channels
        return (
            not others
            and (isinstance(first, (Lexical, Learned, Temporal)) or (isinstance(first, Dense) and first.mode != "hnsw"))
            and (self.fusion is None or self.fades)
            and self.feedback is None
            and self.optimizer is None
        )

    @once
    def by_time(self) -> bool:
        """Whether the latest events in the time that a query names are the ranking."""
        return self.single and isinstance(self.channels[0], Temporal)

    # Sources: C001.
    @once
    def fades(self) -> bool:
        """Whether it is BM25 alone times a decay in time. Its list is then the best by that product."""
        (first, *others) = self.channels
        alone = not others and isinstance(first, Lexical) and first.rm3 is None and first.neighbours is None
        return alone and isinstance(self.fusion, Decay) and not self.complete and self.optimizer is None

    @once
    def recalls(self) -> bool:
        """Whether it reads more in a query than words and a vector: entities, times, types of record."""
        beyond = any(isinstance(channel, (Graph, Temporal, Conversation, Hinted)) for channel in self.channels)
        return beyond or self.optimizer is not None

    @property
    def dense(self) -> tuple[Dense, ...]:
        """Its channels of vectors."""
        return tuple(channel for channel in self.channels if isinstance(channel, Dense))

    @property
    def learned(self) -> tuple[Learned, ...]:
        """Its channels of learned term weights."""
        return tuple(channel for channel in self.channels if isinstance(channel, Learned))

    @once
    def aged(self) -> bool:
        """Whether answers depend on the query's time (beyond a half-life), entities, hints, session, zone or scope."""
        return self.recalls or isinstance(self.fusion, (AgentRRF, Decay))

    def needs_now(self, type: str | None) -> bool:
        """Whether its fusion reads ages for queries of this type (None: of no type). Such queries must have a `now`."""
        return isinstance(self.fusion, Decay) or (isinstance(self.fusion, AgentRRF) and self.fusion.leans(type))

    @classmethod
    def of(cls, value: AnyStrategy) -> Strategy:
        """The strategy that a name, a mapping (`to_dict`) or a strategy stands for. Raises `ParameterError`."""
        if isinstance(value, Strategy):
            return value
        if isinstance(value, str):
            if value not in STRATEGIES:
                raise ParameterError(f"unknown strategy {value!r}; there are: {', '.join(STRATEGIES)}")
            return STRATEGIES[value]
        if not isinstance(value, Mapping):
            raise ParameterError(f"a strategy is a name, a mapping or a Strategy, not {type(value).__name__}")
        known = set(cls.__dataclass_fields__)
        unknown = sorted(set(value) - known)
        if unknown or "name" not in value:
            what = f"no {unknown[0]!r}" if unknown else "a 'name'"
            raise ParameterError(f"a strategy has {what}; it has: {', '.join(sorted(known))}")
        given = dict(value)
        if isinstance(given.get("channels"), (list, tuple)):
            given["channels"] = tuple(_channel_of(channel) for channel in given["channels"])
        if given.get("fusion") is not None:
            given["fusion"] = fusion_of(given["fusion"])
        if given.get("feedback") is not None:
            given["feedback"] = feedback_of(given["feedback"])
        if given.get("optimizer") is not None:
            given["optimizer"] = Optimizer.of(given["optimizer"])
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, which `of` takes."""
        return {
            "name": self.name,
            "channels": [_channel_to_dict(channel) for channel in self.channels],
            "fusion": None if self.fusion is None else fusion_to_dict(self.fusion),
            "feedback": None if self.feedback is None else feedback_to_dict(self.feedback),
            "depth": self.depth,
            "complete": self.complete,
            "optimizer": None if self.optimizer is None else self.optimizer.to_dict(),
            "search_again": self.search_again,
        }

    def __str__(self) -> str:
        parts = [" + ".join(_shown(channel) for channel in self.channels)]
        if self.fusion is not None:
            parts.append(f"fused by {self.fusion}")
        if self.feedback is not None:
            parts.append(f"after {self.feedback}{', searched again' if self.search_again else ''}")
        if self.optimizer is not None:
            parts.append("channels and types chosen by the query")
        return f"{self.name}: {', '.join(parts)}"

    def deep(self, *, complete: bool = False) -> Strategy:
        """The same over all records that pass (`depth` None)."""
        return replace(self, depth=None, complete=complete)


def _shown(channel: AnyChannel) -> str:
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


def _channel_to_dict(channel: AnyChannel) -> dict[str, Any]:
    kind = next(kind for kind, channel_type in _KINDS.items() if isinstance(channel, channel_type))
    given = {"kind": kind, **asdict(channel)}
    if isinstance(channel, (Lexical, Dense)) and channel.neighbours is not None:
        given["neighbours"] = channel.neighbours.to_dict()
    return given


def _channel_of(value: Any) -> AnyChannel:
    if isinstance(value, _CHANNELS):
        return value
    if not isinstance(value, Mapping) or value.get("kind") not in list(_KINDS):
        raise ParameterError(f"a channel is a mapping with a kind of {', '.join(_KINDS)}, not {value!r}")
    fields = {
        key: _made(_NESTED[key], key, field) if key in _NESTED and isinstance(field, Mapping) else field
        for key, field in value.items()
        if key != "kind"
    }
    channel: AnyChannel = _made(_KINDS[value["kind"]], f"channel {value!r}", fields)
    return channel


def _made(kind: type[Any], what: str, fields: Mapping[str, Any]) -> Any:
    try:
        return kind(**fields)
    except TypeError as error:
        raise ParameterError(f"{what}: {error}") from None


_CHANNELS = tuple(_KINDS.values())
_LATE = Dense()


def _dense(name: str, **how: Any) -> Strategy:
    return Strategy(name, (Dense(**how),))


def _hybrid(name: str, fusion: Fusion, **how: Any) -> Strategy:
    return Strategy(name, (Lexical(), _LATE), fusion, **how)


# Sources: E011.
def _moved(name: str, feedback: str) -> tuple[Strategy, Strategy]:
    """The dense form of a feedback, and the one fused with BM25."""
    method = feedback_of(feedback)
    return (
        Strategy(name, (_LATE,), None, method, POOL),
        _hybrid(f"{name}-fused", MinMax(), feedback=method, depth=POOL),
    )


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("bm25"),
        _dense("dense"),
        _dense("dense-early", interaction=Interaction("early")),
        _dense("dense-late", interaction=Interaction("late")),
        _dense("dense-top3", interaction=Interaction("top", rows=3)),
        _dense("dense-lse10", interaction=Interaction("lse", beta=10.0)),
        _dense("dense-lme10", interaction=Interaction("lme", beta=10.0)),
        _dense("dense-int8", mode="int8"),
        _dense("dense-hnsw", mode="hnsw"),
        Strategy("rm3", (Lexical(rm3=RM3()),)),
        Strategy("sparse", (Learned(),)),
        _hybrid("rrf", RRF()),
        _hybrid("score_rrf", ScoreRRF()),
        _hybrid("agent_rrf", AgentRRF()),
        _hybrid("fused", ZScore()),
        _hybrid("minmax", MinMax()),
        Strategy("decay", (Lexical(),), Decay()),
        *_moved("softcentroid", "softcentroid"),
        # A second search needs no deep pool: only the first hits move the query.
        replace(_moved("softcentroid", "softcentroid")[0], name="softcentroid-second", depth=DEPTH, search_again=True),
        replace(
            _moved("softcentroid", "softcentroid")[1],
            name="softcentroid-fused-second",
            depth=DEPTH,
            search_again=True,
        ),
        *_moved("softcentroid-iterated", "softcentroid-2"),
        *_moved("rocchio", "rocchio"),
        *_moved("rocchio-floor", "rocchio-floor"),
        *_moved("first-sentence", "first-sentence"),
        *_moved("tail-gap", "tail-gap"),
        *_moved("adaptive-softcentroid", "adaptive-softcentroid"),
        *_moved("factoid-route", "factoid-route"),
        *_moved("hard-top1", "hard-top1"),
        Strategy("graph", (Graph(),)),
        Strategy("temporal", (Temporal(),)),
        Strategy("conversation", (Conversation(),)),
        Strategy("recall", (Lexical(), _LATE, Graph(), Temporal(), Hinted()), Boosted(), optimizer=Optimizer()),
        Strategy(
            "recall-source",
            (Lexical(), _LATE, Graph(), Temporal()),
            ScoreRRF(),
            optimizer=Optimizer(triggers="words", filters=True),
        ),
    )
}
"""The named strategies (`fanrank eval --list-strategies`)."""

PLAIN = STRATEGIES[BM25]

AnyStrategy = str | Strategy | Mapping[str, Any]
