"""A batch whose queries differ in their text alone, such as a planner's fan-out. All else is decided once."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain
from operator import attrgetter
from typing import Any

from ..index.masks import EVERYTHING
from ..plan.requests import QuerySettings
from ..records.explanation import Explanation
from ..records.query import FIELDS, Query
from ..storage.state import MemoryState
from .batch import MAX_HITS, SETTINGS, Corpus, PreparedQuery, decide, make_batch
from .explain import explainer_of, position_of
from .given import AnyBatch, AnyQuery, as_query
from .lexical import plan_batch
from .notes import note_of

_TEXTS, _EITHER, _LISTS = {str}, {str, Query}, {list, tuple}
_PLAIN = QuerySettings()

UNREAD = ("id", "model", "weights", "type", "entities", "hints", "last_session_end", "timezone")
"""The fields that say nothing to BM25."""
BEYOND = tuple(
    name for name in FIELDS if name not in {*SETTINGS, *UNREAD, "text", "terms", "now", "vector", "collapse"}
)
"""The fields by which a query asks for more than this way serves."""

_read = attrgetter("terms", "collapse", *SETTINGS, *BEYOND)
_OF_TEXT = _read(Query())
"""What `_read` gives for a plain text."""
_WITHIN = [*_OF_TEXT[12:]]
"""What stands there behind ``latest``, the last setting that this way serves."""


class Alike:
    """The texts of a batch, the one snapshot that they search, and what was decided for all of them."""

    __slots__ = ("collapse", "corpus", "given", "k", "memory", "namespace", "settings", "snapshot", "termed", "texts")

    def __init__(
        self,
        memory: MemoryState,
        given: tuple[AnyQuery, ...],
        texts: tuple[Any, ...],
        k: int,
        corpus: Corpus,
        settings: QuerySettings,
        namespace: str,
        termed: bool = False,
        collapse: str | None = None,
    ) -> None:
        self.memory = memory
        self.snapshot = corpus[0]
        self.given = given
        """The queries as the caller gave them."""
        self.texts = texts
        """If `termed`, the terms of each query in place of its text."""
        self.termed = termed
        self.k = k
        self.corpus = corpus
        """As in `PreparedQuery`, and so are the `settings`."""
        self.settings = settings
        self.namespace = namespace
        self.collapse = collapse

    def queries(self) -> tuple[Query, ...]:
        return tuple([as_query(query, position) for position, query in enumerate(self.given)])

    def annotate(self, position: int, query: Query) -> str | None:
        return note_of(self.memory.indexer, self.snapshot, query)

    def explainer(self) -> AlikeExplainer:
        return AlikeExplainer(self, 0, len(self.given))


class AlikeExplainer:
    """Explains scores of the queries at [start, stop). A query is planned again for each explanation."""

    def __init__(self, alike: Alike, start: int, stop: int) -> None:
        self._alike, self._start, self._stop = alike, start, stop

    def __call__(self, position: int, record_id: str) -> Explanation:
        alike = self._alike
        position = position_of(range(self._start, self._stop), position)
        query = as_query(alike.given[self._start + position], position)
        asked = PreparedQuery(query, alike.k, alike.corpus, alike.settings)
        batch = make_batch(alike.memory, [asked], alike.k, [0])
        return explainer_of(batch, plan_batch(batch))(0, record_id).at(position)

    def slice(self, start: int, stop: int) -> AlikeExplainer:
        first = self._start
        return AlikeExplainer(self._alike, first + start, first + stop)


def read_alike(
    memory: MemoryState, queries: AnyBatch, k: int, windows: Callable[[str], int], *, collapse: bool = False
) -> Alike | None:
    """The batch, if it is one of texts or `Query` objects that share all settings, or one of lists of terms, and
    searches records that are there.

    None for any other batch, and for arguments that `prepare` refuses. Raises `QueryError` for settings that `decide`
    refuses. `windows` is as in `prepare`. The number of Python calls does not grow with the batch, unless each query
    has a filter or scope object of its own, which are compared. Without `collapse`, None for queries that collapse.
    """
    if type(queries) is str:
        queries = (queries,)
    if (type(queries) is not list and type(queries) is not tuple) or type(k) is not int or k < 0:
        return None
    # A copy: the caller may change the list while the batch is answered.
    given: tuple[Any, ...] = tuple(queries)
    kinds = {*map(type, given)}
    settings, texts, namespace = _PLAIN, given, ""
    corpus: Corpus | None = None
    by: str | None = None
    termed = bool(kinds) and kinds <= _LISTS
    if termed:
        given = texts = tuple(map(tuple, given))
        if not {*map(type, chain.from_iterable(given))} <= _TEXTS:
            return None
    elif kinds != _TEXTS:
        if not kinds or not kinds <= _EITHER:
            return None
        shared = [_OF_TEXT if type(query) is str else _read(query) for query in given]
        if shared.count(shared[0]) != len(shared):
            return None
        terms, by, namespace, own_k, filter, scope, _, since, until, newest, half_life, latest, *beyond = shared[0]
        # Several namespaces go the general way, which names the one of each hit.
        if terms is not None or beyond != _WITHIN or (by is not None and not collapse):
            return None
        timed = memory.expiring or newest is not None or half_life is not None or latest is not None
        if timed and len({None if type(query) is str else query.now for query in given}) > 1:
            return None
        if timed or filter is not None or scope is not None or since is not None or until is not None:
            first = next(query for query in given if type(query) is not str)
            k, corpus, settings = decide(memory, first, k, windows, time.time())
        elif own_k is not None:
            k = int(own_k)
        # Where the memory has no vectors, the general way refuses one.
        texts = tuple([q if type(q) is str else q.text if q.vector is None else None for q in given])
        if None in texts:
            return None
    if corpus is None:
        corpus = memory.snapshot(namespace), EVERYTHING
        if memory.expiring:
            corpus = corpus[0].at(time.time()), EVERYTHING
    if not corpus[0].segments or len(given) * k > MAX_HITS:
        return None
    return Alike(memory.vocabularies, given, texts, k, corpus, settings, namespace, termed, by)
