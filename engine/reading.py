"""`Reading`: the verbs of `Engine` that read records without ranking them.

`Proving`: those by which a memory shows what is found in it, what is gone, and what has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from .carry.export import Source
from .errors import ParameterError, QueryError, RecordError, StorageError, UnknownIdError, choices
from .listing import matching
from .listing.listing import Listing, MemoryPages, Pages, Wanted, secret_of
from .listing.matching import compiled, read_matching, searched
from .listing.orders import ORDERS
from .moments import Moment
from .monitor.monitor import checked_namespace, checked_scope
from .offered import COMMAND, REST, TOOL, offered
from .opening import OpenIndex
from .records.checks import About
from .records.filters import Filter, parse_filter
from .records.jsonl import checked_ids
from .records.query import DEFAULT_K, Query, check_k
from .records.record import Record
from .search import events as timeline
from .search.batch import combine_filters
from .searcher import Searcher

if TYPE_CHECKING:
    from .trust.audit import Audit
    from .trust.runs import Recording, Writes

T = TypeVar("T")
AnyFilterField = Annotated[Filter | Mapping[str, Any] | None, "filter", About("Only records that pass.")]


RAREST = 8
"""Words that an audit asks for first."""
KField = Annotated[int, About("Hits of each question.", least=1)]


class Reading:
    """A part of `Engine`, which says what an engine is."""

    index: OpenIndex
    searcher: Searcher

    # Sources: C008.
    def fetch(self, ids: Sequence[str], *, namespace: str = "") -> list[Record | None]:
        """The live records with these ids, in the order of the ids; None for an id that is not there.

        The records are whole, embeddings included; one that has expired is not there. Raises `RecordError` for anything
        but a batch of ids, and `StorageError` for an engine that keeps no texts: one made with ``keep_texts=False``, or
        loaded from a saved index. Raises `DamagedStoreError` for a record that was altered, or that is gone although
        nobody deleted it; an engine opened with ``read_only`` cannot tell the latter.
        """
        return self.searcher.fetch(ids, namespace)

    def get(self, id: str, *, namespace: str = "") -> Record | None:
        """The live record with this id, whole, or None. Raises as `fetch`, and `RecordError` for anything but an id."""
        if not isinstance(id, str):
            raise RecordError(f"an id must be a string, not {id!r}")
        return self.fetch([id], namespace=namespace)[0]

    def records(
        self,
        *,
        filter: Filter | Mapping[str, Any] | None = None,
        namespace: str | None = "",
        order: str = "written",
        reverse: bool = False,
        after: str | None = None,
        limit: int | None = None,
        texts: bool = True,
    ) -> Listing:
        """List the live records that pass a filter (as in `Query`), of one namespace or (None) of all.

        `order` is ``written`` (the order of their last write), ``time`` or ``id``. Equal times are in the order of
        their ids, and equal ids in that of their namespaces. `reverse` turns the order around; records without a time
        come last all the same.

        Returns an iterator, which reads page by page and takes little memory. For pages of your own say a `limit`, and
        pass the `Listing.cursor` of one page as `after` of the next. The cursor names a place in the order, not a
        number of records. So pages neither repeat nor skip a record that lives through all of them and keeps its place,
        whatever is written in between. An update or a patch gives a record a new place in the order ``written``.

        With `texts` the records are whole, as by `fetch`. Otherwise they are made from the index alone, in about
        half the time: id, namespace, the built-in columns, and the declared ones in ``extra``; texts are empty.

        A directory that was opened with ``read_only`` catches up with its writer where a page needs it, as `refresh`
        does. Raises `QueryError`, `ParameterError` for an `after` that is no cursor of such listings, and
        `StorageError` for an engine that keeps no texts.
        """
        wanted = checked_wanted(filter, namespace, order, reverse, limit, texts)

        def begin() -> Listing:
            return Listing(self._pages(wanted), wanted, self._secret(), after, limit)

        return self.searcher.declaring(begin, [wanted.filter])

    def _pages(self, wanted: Wanted) -> Pages:
        return MemoryPages(self.index, wanted)

    def _secret(self) -> str:
        """What the cursors of listings are sealed with."""
        return secret_of(self.index.ready())

    def _each(
        self, read: Callable[..., T], filter: Filter | None, namespace: str | None, *arguments: Any
    ) -> Sequence[T]:
        """What a function of a module gives for the records that pass, as `read_matching`. Over shards it is one answer
        of each.
        """
        asked = filter, namespace, *arguments
        return [self.searcher.declaring(lambda: read_matching(read, self.index.ready().state, *asked), [filter])]

    def count(self, filter: Filter | Mapping[str, Any] | None = None, *, namespace: str | None = "") -> int:
        """How many live records pass a filter, in one namespace or (None) in all. Raises `QueryError`."""
        return sum(self._each(matching.count, parse_filter(filter), checked_scope(namespace)))

    def ids(self, filter: Filter | Mapping[str, Any] | None = None, *, namespace: str = "") -> Iterator[str]:
        """The ids of a namespace's live records that pass a filter, in the order of their last write.

        They are those of the moment of the call. Raises `QueryError`.
        """
        parsed = parse_filter(filter)

        def read() -> Iterator[str]:
            state = self.index.ready().state
            return matching.ids_in(searched(state.snapshot(checked_namespace(namespace))), compiled(state, parsed))

        return self.searcher.declaring(read, [parsed])

    @offered(REST, TOOL, COMMAND)
    def distinct(
        self,
        column: Annotated[str, About("The column.", examples=("role",))],
        filter: AnyFilterField = None,
        *,
        namespace: str | None = "",
    ) -> dict[str | float | None, int]:
        """The values of a metadata column among the live records that pass a filter, each with its number of records.

        The most frequent value comes first, and equally frequent ones ascend. Records without a value count under None,
        which comes last among its equals. With `namespace` None the records of all namespaces count. In a column of
        kind ``json`` equal values count as one (1 and 1.0), numbers come before strings, and lists and objects are
        named by their JSON. Raises `QueryError`.
        """
        counts: Counter[str | float | None] = Counter()
        for part in self._each(matching.distinct, parse_filter(filter), checked_scope(namespace), column):
            counts.update(part)
        return matching.in_order(counts)

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
    @offered(REST, COMMAND)
    def events(
        self,
        since: Annotated[Moment, "moment", About("The first moment.", examples=("2026-11-23T00:00:00Z",))],
        until: Annotated[Moment, "moment", About("The last moment.", examples=("2026-11-24T00:00:00Z",))],
        *,
        type: Annotated[str | None, About("The type of the records.")] = "Event",
        filter: AnyFilterField = None,
        namespace: str = "",
    ) -> list[tuple[str, float]]:
        """All live records of a type with ``since <= time <= until``, each by its id and time.

        With `type` None they are of any. Nothing is ranked. The newest come first; among equal times the last written
        comes first. `since`, `until` and `filter` are as in `Query`. Raises `QueryError`.
        """
        query = Query(since=since, until=until, filter=filter, namespace=namespace)
        if type is not None and not isinstance(type, str):
            raise QueryError(f"events takes a 'type' that is a string or None, not {type!r}")
        if query.since is None or query.until is None:
            raise QueryError("events takes the first and the last moment, 'since' and 'until'")
        return self._events(combine_filters(query), namespace, type, float(query.since), float(query.until))

    def _events(
        self, filter: Filter | None, namespace: str, type: str | None, since: float, until: float
    ) -> list[tuple[str, float]]:
        (found,) = self._each(timeline.events, filter, namespace, type, since, until)
        return found


class Proving:
    """A part of `Engine`: whether records are found, whether they are forgotten, and whether answers are the same."""

    index: OpenIndex
    searcher: Searcher

    if TYPE_CHECKING:
        search: Any

        def fetch(self, ids: Sequence[str], *, namespace: str = ...) -> list[Record | None]: ...

        def ids(self, filter: Any = ..., *, namespace: str = ...) -> Any: ...

        def count(self, filter: Any = ..., *, namespace: str | None = ...) -> int: ...

        def delete(self, ids: Iterable[str], *, namespace: str = ..., missing_ok: bool = ...) -> int: ...

        def vacuum(self) -> int: ...

        @property
        def namespaces(self) -> tuple[str, ...]: ...

        def _source(self, namespace: str | None, vectors: bool) -> Source: ...

        def _secret(self) -> str: ...

    @offered(REST, TOOL, COMMAND)
    def audit(
        self,
        *,
        k: KField = DEFAULT_K,
        filter: AnyFilterField = None,
        namespace: str | None = None,
        progress: bool = False,
    ) -> dict[str, Any]:
        """Ask for every live record by its own rarest words, its own vector and its id, and report which is not found.

        By words it is asked again with all of its words where the rarest ones do not bring it among its `k` best. With
        `filter` each question has this filter, as those of an agent that always sets it. Without a `namespace` all
        records are asked for. Reads are of the store, so a record that the index has lost is found out.

        The report counts ``records``, ``namespaces``, those that have ``expired``, what was ``asked`` and ``found`` by
        words, vector and id, and the ``reasons`` of those that are missing: ``nothing`` (the analyzer leaves nothing of
        the text), ``twin`` (k others say the same), ``shared`` (k others hold all words that were asked, or are as near
        to the vector), ``filtered``. Any other is ``unexplained``, and ``passed`` says that there is none. ``missing``
        names up to 100 of them with their reason and the first that stand before them, unexplained ones first.

        `progress` shows a bar if standard error is a terminal. Raises `QueryError`, and `StorageError` for an engine
        that keeps no texts.
        """
        from .trust.audit import audit  # which a search does not need

        name, parsed = checked_scope(namespace), parse_filter(filter)
        source = self._source(name, True)
        return self.searcher.declaring(lambda: audit(self._audit(k, RAREST, parsed), source, name, progress), [parsed])

    @offered(REST, COMMAND, writes=True, whole=True)
    def forget(
        self,
        query: Annotated[str | None, About("Forget the best hits of this query.", examples=("kryptonite",))] = None,
        *,
        filter: Annotated[Filter | Mapping[str, Any] | None, "filter", About("Forget the records that pass.")] = None,
        ids: Annotated[Sequence[str] | None, About("Forget the records with these ids.")] = None,
        k: KField = DEFAULT_K,
        min_score: Annotated[float | None, About("Leave out hits of the query that score less.")] = None,
        preview: Annotated[bool, About("Show what would be forgotten, and change nothing.")] = False,
        namespace: str = "",
    ) -> dict[str, Any]:
        """Delete records of a namespace so that no file of the memory holds what they said, and certify it.

        They are the `k` best hits of a `query`, those among them that pass `filter`; without a query, all that pass, or
        those with these `ids`. With `preview` nothing is changed: the answer counts them, and names up to 100 by id,
        score and text.

        Otherwise they are deleted, everything is written anew as by `vacuum`, vectors of their texts leave the cache of
        a `CachedEncoder`, and the certificate is made. All files are searched for pieces of 8 bytes and more of what
        the records said: texts, ids and words, vectors, rows as they were packed. ``left`` names the files where some
        stand that no live record says, ``strings`` the terms and values of columns that only they had, and ``passed``
        says that there are none. ``copies`` are the backups, exports and copies that this memory made, each with
        whether it still ``holds`` what was forgotten (None: unknown). ``unreached`` says what was not searched.

        A record that is written anew meanwhile goes, too. Raises `UnknownIdError`, `QueryError`, and as `vacuum`.
        """
        from .trust.forget import NAMED, forget

        name, parsed = checked_namespace(namespace), parse_filter(filter)
        scores: dict[str, float] = {}
        if (ids is not None) == (query is not None or parsed is not None):
            raise QueryError("say what to forget: a query, which may have a filter, or a filter, or ids")
        if query is not None:
            asked = Query(query, k=check_k(k), filter=parsed, min_score=min_score, namespace=name)
            scores = {hit.id: hit.score for hit in self.search([asked])[0]}
        chosen = [*scores] if query is not None else [*self.ids(parsed, namespace=name)] if ids is None else ids
        batch = [*dict.fromkeys(checked_ids(chosen, "forget"))]
        records = self.fetch(batch, namespace=name)
        if ids is not None:
            check_live(batch, records, "; nothing was forgotten")
        found = [record for record in records if record is not None]
        if preview:
            shown = [{"id": one.id, "score": scores.get(one.id), "text": one.text} for one in found[:NAMED]]
            return {"preview": True, "count": len(found), "records": shown}
        memory = self.index.ready()
        return forget(
            self, found, self._folders(), memory.analyzer, [*memory.bm25.fields], self.searcher.models.encoder
        )

    def _folders(self) -> list[Path]:
        """The directories that hold the memory's files, its own first; none for one in memory."""
        store = self.index.memory.store
        return [] if store is None else [store.path.parent]

    def record(self, path: str | os.PathLike[str]) -> Recording:
        """Record what this object is asked to a file of JSON lines, while the ``with`` block lasts, for `replay`.

        A line holds a query with all of its fields, k and strategy, the moment of the memory, and the hits with their
        scores, whole. `search`, `asearch` and `submit` are recorded, streams are not. Lines are added to a file that is
        there. The file holds the texts of the queries. Raises `StorageError`.
        """
        from .trust.runs import Recording  # which a search does not need

        return Recording(self, path)

    @offered(COMMAND)
    def replay(
        self,
        run: Annotated[str | os.PathLike[str], "path", About("A run that was recorded.")],
        *,
        progress: bool = False,
    ) -> dict[str, Any]:
        """Ask the queries of a recorded run again, and report whether the answers have the same bits.

        The memory may be the one that was asked, or a copy. ``passed`` says that no answer differs. ``differences``
        names up to 100 with the query, the first rank that differs, the hits that it had and has, and what ``change``
        made it: ``removed`` or ``written`` (the record of the hit, with the number of that write where it is still
        known), ``statistics`` (another record of the namespace: the first that was written since), ``unknown`` (a
        client, or records that have other numbers), or ``unexplained``: nothing was written. Records expire, and some
        strategies read the clock; give such queries a ``now``. Answers of a reranker are counted as ``skipped``.

        Raises `ParameterError` for a file that is no run, and as `search`.
        """
        from .carry.progress import counted
        from .trust.runs import read_run, replay

        return replay(self, counted(read_run(run), "replaying", None, progress))

    def _epoch(self) -> Any:
        """The moment of the memory, by which `_writes` tells what came later. It names the store by a hash."""
        memory = self.index.ready()
        if memory.store is None:
            return [None, memory.counters.batches]
        return [store_name(self._secret()), memory.sequence]

    def _writes(self, namespace: str, ids: Sequence[str], epoch: Any) -> Writes:
        """What was written to a namespace since an epoch, and to these of its records."""
        from .trust.runs import Writes

        memory = self.index.ready()
        if memory.store is None and epoch is not None and epoch == self._epoch():
            return Writes({})
        if memory.store is None or epoch is None or epoch[0] != self._epoch()[0]:
            return Writes()
        return Writes(*memory.store.writes_since(namespace, ids, epoch[1]))

    @offered(REST)
    def receipts(
        self,
        ids: Annotated[Sequence[str], About("The ids of the records.", examples=("m1",))],
        *,
        k: KField = DEFAULT_K,
        namespace: str = "",
    ) -> list[dict[str, Any]]:
        """The rank at which each of these records finds itself now, as `audit` asks for it.

        Each answer has the ``id``, the ``namespace``, ``ranks`` by words, by vector where there is one, and by id (from
        1; None: not among the `k` best), and ``why`` for each that is None. Raises `UnknownIdError`, and as `fetch`.
        """
        batch, name = checked_ids(ids, "receipts"), checked_namespace(namespace)
        records = self.fetch(batch, namespace=name)
        check_live(batch, records)
        found = [record for record in records if record is not None]
        return [one.to_dict() for one in self._audit(k, None, None).ask(found)]

    def _audit(self, k: int, words: int | None, filter: Filter | None) -> Audit:
        from .trust.audit import Audit

        check_k(k)
        if not k:
            raise QueryError("k must be 1 or more, as a record that is found is a hit")
        memory = self.index.ready()
        return Audit(self, memory.analyzer, memory.bm25.fields, k, words, filter)


def check_live(ids: Sequence[str], records: Sequence[Record | None], also: str = "") -> None:
    """Raise `UnknownIdError` where the record of one of these ids is not there; the message ends with `also`."""
    if None in records:
        raise UnknownIdError(f"no live record with id {ids[records.index(None)]!r}{also}")


def store_name(secret: str) -> str:
    """What names a store in a file that others may read."""
    return hashlib.blake2b(secret.encode(), digest_size=8).hexdigest()


def checked_wanted(
    filter: Filter | Mapping[str, Any] | None,
    namespace: str | None,
    order: str,
    reverse: bool,
    limit: int | None,
    texts: bool,
) -> Wanted:
    """What a listing is of. Raises as `Engine.records`."""
    if order not in ORDERS:
        raise ParameterError(f"unknown order {order!r}{choices(order, ORDERS)}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise ParameterError(f"limit must be 0 or more, or None, not {limit!r}")
    return Wanted(parse_filter(filter), checked_scope(namespace), order, bool(reverse), bool(texts))
