"""A batch whose queries differ in their text alone, such as a planner's fan-out. All else is decided once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
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
from .given import AnyBatch, AnyQuery, SharedTexts, as_query
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
        given: Sequence[AnyQuery],
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
    if type(k) is not int or k < 0:
        return None
    alike = type(queries) is SharedTexts
    given: Any = queries
    if type(queries) is list or type(queries) is tuple:
        # A copy: the caller may change the list while the batch is answered.
        given = tuple(queries)
    elif not alike:
        return None
    kinds = _EITHER if alike else {*map(type, given)}
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
        first: Query | None
        if alike:
            first = given.query
            values = _read(first)
        else:
            shared = [_OF_TEXT if type(query) is str else _read(query) for query in given]
            if shared.count(shared[0]) != len(shared):
                return None
            first = next((query for query in given if type(query) is not str), None)
            values = shared[0]
        terms, by, namespace, own_k, filter, scope, counted, since, until, newest, half_life, latest, *beyond = values
        # Several namespaces go the general way, which names the one of each hit.
        if terms is not None or beyond != _WITHIN or (by is not None and not collapse):
            return None
        timed = memory.expiring or newest is not None or half_life is not None or latest is not None
        if timed and not alike and len({None if type(query) is str else query.now for query in given}) > 1:
            return None
        narrowed = (filter, scope, since, until, newest, half_life).count(None) < 6
        if narrowed or memory.expiring or (latest is not None and counted != "namespace"):
            assert first is not None
            k, corpus, settings = decide(memory, first, k, windows, time.time())
        else:
            k = k if own_k is None else int(own_k)
            if latest is not None:
                from .latest import newest_alone  # which a plain search does not need

                assert first is not None
                corpus = memory.snapshot(namespace), EVERYTHING
                settings = newest_alone(memory, corpus[0], latest, time.time() if first.now is None else first.now)
        # Where the memory has no vectors, the general way refuses one.
        texts = (
            given.texts
            if alike
            else tuple([q if type(q) is str else q.text if q.vector is None else None for q in given])
        )
        if None in texts:
            return None
    if corpus is None:
        corpus = memory.snapshot(namespace), EVERYTHING
        if memory.expiring:
            corpus = corpus[0].at(time.time()), EVERYTHING
    if not corpus[0].segments or len(given) * k > MAX_HITS:
        return None
    return Alike(memory.vocabularies, given, texts, k, corpus, settings, namespace, termed, by)
