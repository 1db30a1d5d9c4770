"""`Strategy`: which evidence a query is answered by, and how one list of hits is made of it.

A `Strategy` is a small value: printable, comparable, and the same after `to_dict`, JSON and `of`. Execution
(`Engine.search`'s ``execution``, threads, backend) never changes an answer; a strategy does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ParameterError, choices, refuse_unknown
from ..feedback.pool import Feedback
from ..feedback.registry import PROGRAMS, feedback_of, feedback_to_dict
from ..feedback.rm3 import RM3
from ..fuse import RRF, AgentRRF, Boosted, Decay, Fusion, Linear, MinMax, ScoreRRF, ZScore, fusion_of, fusion_to_dict
from ..fuse.agent_rrf import TAU_DAYS_BY_TYPE
from ..fuse.fusion import check_channels
from ..locks import once
from ..recall.optimizer import Optimizer
from ..records.checks import naming
from ..records.neighbours import Neighbours
from ..vectors.interaction import Interaction
from .channels import BM25 as BM25
from .channels import CHANNELS, CUES, channel_of, channel_to_dict, show_channel
from .channels import SCORING as SCORING
from .channels import AnyChannel as AnyChannel
from .channels import ContextVectors as ContextVectors
from .channels import ContextWords as ContextWords
from .channels import Conversation as Conversation
from .channels import Cue as Cue
from .channels import Dense as Dense
from .channels import Graph as Graph
from .channels import Hinted as Hinted
from .channels import Learned as Learned
from .channels import Lexical as Lexical
from .channels import Temporal as Temporal

DEPTH = 100
"""Candidates a channel (B050)."""
POOL = 1000
"""Candidates of strategies with feedback: the pool that the new query scores again (E012)."""


# Sources: E012.
@naming
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
        if not self.channels or not all(isinstance(channel, CHANNELS) for channel in self.channels):
            known = ", ".join(kind.__name__ for kind in CHANNELS)
            raise ParameterError(f"strategy {self.name!r} needs channels; there are: {known}")
        if all(isinstance(channel, SCORING) for channel in self.channels):
            kind = type(self.channels[0]).__name__
            raise ParameterError(f"strategy {self.name!r}: a {kind} channel finds nothing; give it other channels")
        if self.around and not self.dense:
            raise ParameterError(
                f"strategy {self.name!r}: ContextVectors needs a Dense channel, which finds what it scores"
            )
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
    def around(self) -> tuple[ContextVectors, ...]:
        """Its channels of the vectors around a record."""
        return tuple(channel for channel in self.channels if isinstance(channel, ContextVectors))

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
            if value not in NAMED:
                raise ParameterError(f"unknown strategy {value!r}{choices(value, STRATEGIES, NAMED)}")
            return NAMED[value]
        if not isinstance(value, Mapping):
            raise ParameterError(f"a strategy is a name, a mapping or a Strategy, not {type(value).__name__}")
        refuse_unknown(value, cls.__dataclass_fields__, "a strategy has no")
        if "name" not in value:
            raise ParameterError(f"a strategy needs a 'name'; its fields are: {', '.join(cls.__dataclass_fields__)}")
        given = dict(value)
        if isinstance(given.get("channels"), (list, tuple)):
            given["channels"] = tuple(channel_of(channel) for channel in given["channels"])
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
            "channels": [channel_to_dict(channel) for channel in self.channels],
            "fusion": None if self.fusion is None else fusion_to_dict(self.fusion),
            "feedback": None if self.feedback is None else feedback_to_dict(self.feedback),
            "depth": self.depth,
            "complete": self.complete,
            "optimizer": None if self.optimizer is None else self.optimizer.to_dict(),
            "search_again": self.search_again,
        }

    def __str__(self) -> str:
        parts = [" + ".join(show_channel(channel) for channel in self.channels)]
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


_CUES = tuple(Cue(cue) for cue in CUES)
_WORDS = Lexical(neighbours=Neighbours(2, 0.35))
# Fitted to half of LoCoMo's conversations and half of 20 chats with an assistant, whose fewer questions count twice,
# and rounded. What they gave on the other halves, and on tool dialogues that fitted nothing, in Hit@1 / Hit@5: 48 / 78,
# 47 / 72 and 70 / 95 with vectors, 45 / 75, 38 / 62 and 64 / 93 by words alone. docs/decisions.md has the other fit.
_DIALOGUE = Strategy(
    "dialogue",
    (_WORDS, _LATE, ContextWords(), ContextVectors(), *_CUES),
    Linear(
        {
            "context_words": 5.4,
            "context_vectors": 9.2,
            "asks": -0.64,
            "answers": 0.46,
            "length": 3.9,
            "speaker": 0.73,
            "assistant_length": -5.8,
            "told": 4.3,
        },
        relative=("context_words",),
    ),
)
_DIALOGUE_WORDS = Strategy(
    "dialogue-words",
    (_WORDS, ContextWords(), *_CUES),
    Linear(
        {
            "context_words": 7.3,
            "asks": -0.59,
            "answers": 0.6,
            "length": 2.5,
            "speaker": 0.98,
            "assistant_length": -5.9,
            "told": 4.9,
        },
        relative=("context_words",),
    ),
)
# Fitted to the turns of the same half of the chats. Who speaks says nothing of an exchange, which holds both.
_EXCHANGES = Strategy(
    "dialogue-exchanges",
    (_WORDS, _LATE, ContextWords(), ContextVectors()),
    Linear({"context_words": 2.6, "context_vectors": 10.2}, relative=("context_words",)),
)

NAMED: dict[str, Strategy] = {
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
        _hybrid("agent_rrf-per-type", AgentRRF(tau_days_by_type=TAU_DAYS_BY_TYPE)),
        _hybrid("fused", ZScore()),
        # The alphas that the Lexical-Dense Fusion paper fitted for its two encoders.
        _hybrid("fused-e5-large", ZScore(0.4)),
        _hybrid("fused-bge-base", ZScore(0.6)),
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
        *(_moved(name, name)[0] for name in (*PROGRAMS, "softcentroid-k5", "softcentroid-k10")),
        Strategy("graph", (Graph(),)),
        Strategy("temporal", (Temporal(),)),
        Strategy("conversation", (Conversation(),)),
        Strategy("recall", (Lexical(), _LATE, Graph(), Temporal(), Hinted()), Boosted(), optimizer=Optimizer()),
        _DIALOGUE,
        _DIALOGUE_WORDS,
        _EXCHANGES,
        Strategy(
            "recall-source",
            (Lexical(), _LATE, Graph(), Temporal()),
            ScoreRRF(),
            optimizer=Optimizer(triggers="words", filters=True),
        ),
    )
}
"""Every strategy that has a name."""

STRATEGIES: dict[str, Strategy] = {
    name: NAMED[name]
    for name in (
        *("bm25", "dense", "dense-int8", "dense-hnsw", "sparse", "rrf", "fused"),
        *("recall", "dialogue", "dialogue-words", "dialogue-exchanges"),
    )
}
"""The strategies that somebody should pick, `fanrank search --list-strategies` with ``auto``. The other names reproduce
what a source describes."""

PLAIN = NAMED[BM25]

AnyStrategy = str | Strategy | Mapping[str, Any]
