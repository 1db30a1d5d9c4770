"""`Reading`: the verbs of `Engine` that read records without ranking them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import QueryError, StorageError
from .index.masks import compile_filter
from .moments import Moment
from .opening import OpenIndex
from .records.filters import ColumnComparison, Filter, all_of
from .records.query import Query
from .records.record import Record
from .search import events as timeline
from .search.batch import combine_filters
from .searcher import Searcher


class Reading:
    """A part of `Engine`, which says what an engine is."""

    index: OpenIndex
    searcher: Searcher

    # Sources: C008.
    def fetch(self, ids: Sequence[str], *, namespace: str = "") -> list[Record | None]:
        """The live records with these ids, in the order of the ids; None for an id that is not there.

        The records are whole, embeddings included. Raises `RecordError` for anything but a batch of ids, and
        `StorageError` for an engine that keeps no texts: one made with ``keep_texts=False``, or loaded from a saved
        index. Raises `DamagedStoreError` for a record that was altered, or that is gone although nobody deleted it; an
        engine opened with ``read_only`` cannot tell the latter.
        """
        return self.searcher.fetch(ids, namespace)

    # Sources: C041.
    def verify(self) -> dict[str, int]:
        """Compare the index with the stored records, id by id. Writes wait meanwhile.

        Returns counts: ``records`` in the store, those of them that are ``missing`` in the index, and ``extra``
        documents of the index without a record. If one of the last two is not 0, open the directory anew. Raises
        `StorageError` for an engine in memory.
        """
        memory = self.index.ready()
        if memory.store is None:
            raise StorageError("an engine in memory keeps no records to compare with; use Engine.open(path)")
        return memory.verify()

    # Sources: B034, B035.
    def events(
        self,
        since: Moment,
        until: Moment,
        *,
        type: str | None = "Event",
        filter: Filter | Mapping[str, Any] | None = None,
        namespace: str = "",
    ) -> list[tuple[str, float]]:
        """All live records of a type (None: of any) with ``since <= time <= until``, as (id, time) pairs.

        Nothing is ranked. The newest come first; among equal times the last written comes first. `since`, `until` and
        `filter` are as in `Query`. Raises `QueryError`.
        """
        query = Query(since=since, until=until, filter=filter, namespace=namespace)
        of_type = None if type is None else ColumnComparison("type", "==", type)
        if query.since is None or query.until is None:
            raise QueryError("events takes the first and the last moment, 'since' and 'until'")
        memory = self.index.ready().state
        accepted = compile_filter(all_of(of_type, combine_filters(query)), memory.schema, memory.values)
        return timeline.events(memory, namespace, query.since, query.until, accepted)
