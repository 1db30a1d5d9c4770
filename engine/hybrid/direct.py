"""A batch answered by a strategy for dialogues over words alone, in one compiled call, from its texts to its hits.

``dialogue-words``, and ``auto`` where it chooses that. What this file does not serve goes the general way
(`search.py`), which gives the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...native import compiled
from ..arrays import offsets_of
from ..backends.choose import Backend
from ..fuse.linear import Linear
from ..index.columns import ABSENT
from ..index.masks import EVERYTHING
from ..index.native import native_links
from ..index.neighbours import is_dialogue
from ..index.snapshot import Snapshot
from ..recall.hints import EVENT
from ..records.decision import Decision
from ..records.explanation import Explanation, FusedExplanation
from ..records.hits import Explain, Hits
from ..records.query import Query
from ..search.alike import Alike, read_alike
from ..search.batch import PreparedQuery, make_batch
from ..search.explain import position_of
from ..search.given import AnyBatch, as_query
from ..search.options import SearchOptions
from ..storage.state import MemoryState
from . import context
from .said import Said, asks_what_was_told, read_texts, said_of, words_of
from .search import explain_deep
from .sources import NO_VECTORS, Sources, has_live_vector
from .strategy import ContextWords, Cue, Lexical, Strategy

if TYPE_CHECKING:
    from ...native import _compiled

_KINDS = "words", "asks", "answers", "length", "speaker", "assistant_length", "told"
"""In the order of `Evidence` in native/dialogue.hpp."""
_beyond_words = attrgetter("model", "type", "now", "entities", "hints", "last_session_end", "timezone", "vector")
_PLAIN = Query()
_NOTHING = _beyond_words(_PLAIN)


@lru_cache(maxsize=16)
def _read_strategy(strategy: Strategy) -> tuple[Any, ...] | None:
    """(lent, around, shares) of a strategy that one compiled call serves; else None."""
    lexical, *others = strategy.channels
    if (
        not isinstance(lexical, Lexical)
        or lexical.neighbours is None
        or not lexical.neighbours.steps
        or not isinstance(strategy.fusion, Linear)
        or strategy.depth is None
        or strategy.optimizer is not None
    ):
        return None
    shares, around = [], np.zeros(0, dtype=np.int64)
    for channel in others:
        if isinstance(channel, ContextWords) and not len(around) and channel.neighbours.steps:
            around, kind = np.array(channel.neighbours.steps, dtype=np.int64), "words"
        elif isinstance(channel, Cue):
            kind = channel.cue
        else:
            return None
        if channel.name in strategy.fusion.weights:
            weight, relative = strategy.fusion.weights[channel.name], channel.name in strategy.fusion.relative
            shares.append((_KINDS.index(kind), float(weight), relative))
    if lexical.name in strategy.fusion.weights:
        return None
    return np.array(lexical.neighbours.steps, dtype=np.int64), around, tuple(shares)


def answer(
    memory: MemoryState,
    queries: AnyBatch,
    k: int,
    windows: Callable[[str], int],
    backend: Backend,
    options: SearchOptions,
    strategy: Strategy,
    sources_of: Callable[[MemoryState, Sequence[Query]], Sources],
    *,
    chosen: bool,
) -> Hits | None:
    """The hits of a batch by a strategy; None where it is not served here, and the caller goes the general way.

    `windows` is as in `prepare`. `chosen`: a policy chooses this strategy for queries that search a dialogue and cannot
    be compared by vectors; decisions say so.
    """
    search = backend.dialogues
    if search is None or options.reranker is not None or options.timing:
        return None
    started = time.perf_counter() if chosen else 0.0
    alike = read_alike(memory, queries, k, windows)
    if alike is None or alike.termed or alike.corpus[1] is not EVERYTHING or alike.settings.rate:
        return None
    if any(type(query) is not str and _beyond_words(query) != _NOTHING for query in alike.given):
        return None
    snapshot = alike.snapshot
    # Where there are events, a query may name a time and nothing else.
    if chosen and (not is_dialogue(snapshot) or EVENT in memory.values["type"].ids or has_live_vector(snapshot)):
        return None
    assistant = memory.values["role"].ids.get(context.ASSISTANT, ABSENT - 1)
    prepared = _prepare(snapshot, strategy, assistant)
    if prepared is None:
        return None
    first: Any = alike.given[0]
    sources = sources_of(memory, (_PLAIN if type(first) is str else first,))
    if sources.records is None:
        return None
    indexer = memory.indexer
    analysed: Any = indexer.encode_queries(alike.texts) if indexer.native is None else indexer.native
    ask_what_was_told = bytes([asks_what_was_told(text) for text in alike.texts])
    found: Any = []
    unread: set[int] = set()
    while isinstance(found, list):
        found = search(
            snapshot,
            alike.settings,
            analysed,
            alike.texts,
            alike.k,
            (prepared.compiled, ask_what_was_told, _speakers_of(prepared.said, alike.texts)),
            threads=options.threads,
            execution=options.execution,
        )
        if isinstance(found, list):
            # One that is still unread after it was read is gone.
            if unread.issuperset(found):
                return None
            unread.update(found)
            read_texts(snapshot, alike.namespace, sources.records, np.array(found, dtype=np.int64))
    if found is None:
        return None
    origin = _Origin(alike, backend, sources, strategy, options)
    hits = Hits.of(
        found.scores, found.documents, found.counts, origin, backend.name, snapshot.record_ids, source=found.source
    )
    if chosen:
        each = (time.perf_counter() - started) * 1e3 / len(alike.given)
        decision = Decision.skipping(strategy.name, each, NO_VECTORS)
        vars(hits)["decisions"] = (decision,) * len(alike.given)
    return hits


class _Prepared(NamedTuple):
    """A strategy over a snapshot as the compiled search reads it."""

    key: tuple[Strategy, int, float, int, int]
    compiled: _compiled.Dialogue
    said: tuple[Said, ...]
    """What was read of the texts of each segment, where it asks for speakers."""


def _prepare(snapshot: Snapshot, strategy: Strategy, assistant: int) -> _Prepared | None:
    """The strategy over a snapshot, kept by it; None where one compiled call does not serve it. `assistant` is the code
    of the role.
    """
    # By identity, as a strategy computes its hash at each call.
    name = f"dialogue {id(strategy)}"
    known: _Prepared | None = snapshot.derived.get(name)
    limits = context.HALF_LENGTH, context.WORDY, context.TIMES
    if known is None or known.key[0] is not strategy or known.key[1:] != (assistant, *limits):
        read = _read_strategy(strategy)
        if read is None:
            return None
        assert compiled is not None
        lent, around, shares = read
        columns = tuple(said_of(segment) for segment in snapshot.segments)
        parts = tuple(
            (own.values, segment.lengths, segment.columns.categories.get("role"))
            for own, segment in zip(columns, snapshot.segments, strict=True)
        )
        links, depth = native_links(snapshot), strategy.depth or 0
        made = compiled.dialogue(links, lent, around, depth, shares, parts, assistant, limits)
        asked = any(kind == _KINDS.index("speaker") for kind, *_ in shares)
        known = snapshot.derived[name] = _Prepared((strategy, assistant, *limits), made, columns if asked else ())
    return known


def _speakers_of(columns: Sequence[Said], texts: Sequence[str]) -> tuple[_compiled.Speakers | None, ...] | None:
    """The speakers of each segment that each text names; None where no segment knows any."""
    for said in columns:
        if said.words:
            break
    else:
        return None
    words = [words_of(text) for text in texts]
    parts: list[_compiled.Speakers | None] = []
    for said in columns:
        named = [said.named(own) for own in words]
        numbers = np.array([number for own in named for number in own], dtype=np.int32)
        parts.append((offsets_of([len(own) for own in named]), numbers))
    return tuple(parts)


class _Origin:
    """What an answer was made from."""

    def __init__(
        self, alike: Alike, backend: Backend, sources: Sources, strategy: Strategy, options: SearchOptions
    ) -> None:
        self._alike, self._backend, self._sources = alike, backend, sources
        self._strategy, self._options = strategy, options

    @property
    def namespace(self) -> str:
        return self._alike.namespace

    def queries(self) -> tuple[Query, ...]:
        return self._alike.queries()

    def annotate(self, position: int, query: Query) -> str | None:
        return self._alike.annotate(position, query)

    def explainer(self) -> Explain:
        def explain(position: int, record_id: str) -> Explanation | FusedExplanation:
            alike = self._alike
            position = position_of(range(len(alike.given)), position)
            asked = PreparedQuery(as_query(alike.given[position], position), alike.k, alike.corpus, alike.settings)
            batch = make_batch(alike.memory, [asked], alike.k, [0])
            made = explain_deep(batch, self._backend, self._sources, self._strategy, self._options, 0, record_id)
            return made.at(position)

        return explain
