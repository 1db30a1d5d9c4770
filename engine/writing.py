"""`Writing`: the verbs of `Engine` that change its records."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from .callers import CHOSEN
from .encoders.embed import Given
from .encoders.models import positive
from .encoders.patch import Patch, RecordFields
from .errors import ParameterError, RecordError, StorageError, UnknownIdError
from .index.bm25 import BM25
from .index.columns import ANY
from .moments import Span
from .monitor.monitor import Monitor, checked_namespace, checked_scope
from .offered import COMMAND, TOOL, offered
from .opening import OpenIndex, shows_progress
from .records.checks import About
from .records.filters import PAYLOAD, Filter, parse_filter
from .records.jsonl import as_records, check_batch, checked_ids, expiring
from .records.record import Record
from .searcher import Searcher
from .signatures import KEEP, Twins, TwinsField, check_twins
from .storage.pending import Decision
from .storage.writes import Batch, Outcome

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

if TYPE_CHECKING:
    from .serve.deciding import Reader
    from .serve.writers import Draft, Writers

T = TypeVar("T")

# Records whose receipts are asked for together. A server takes 10,000 ids.
ASKED_FOR = 4_096
AnyRecord = Record | Mapping[str, Any]

SMALL = 1_024
"""Records, or ids, of an awaited write that is written together with others."""


class Added(int):
    """How many records were added, and what else the call was asked for."""

    receipts: list[dict[str, Any]]
    """For each record, in their order, what `Memory.receipts` says of it."""
    twins: list[tuple[str, ...]]
    """For each record, in their order, the ids of the records that had its text when it came, the oldest first."""

    @classmethod
    def of(cls, count: int, **more: Any) -> Added:
        """`count` with `more`, beside what it has already."""
        added = cls(count)
        added.__dict__.update(getattr(count, "__dict__", {}), **more)
        return added


class Writing:
    """A part of `Engine`, which says what an engine is."""

    index: OpenIndex
    searcher: Searcher
    bm25: BM25
    monitor: Monitor
    _closed: bool

    if TYPE_CHECKING:

        def receipts(self, ids: Sequence[str], *, namespace: str = ...) -> list[dict[str, Any]]: ...

    @property
    def _joins(self) -> bool:
        """Whether small awaited writes are written together, by one thread."""
        return False

    def add(
        self,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        progress: bool = False,
        threads: int | None = None,
        ttl: Span | None = None,
        receipts: bool = False,
        twins: TwinsField = KEEP,
    ) -> int:
        """Add records, or mappings that `Record.from_dict` reads.

        Returns how many were added, once they are durable and searches find them.

        Of a batch of more than 16,384 records, or of some eight million characters, the remainder is read and encoded
        while other writers wait. Such a batch may be analysed by up to `threads` threads (None: as many as the process
        has cores). The number of threads changes nothing in the index.

        `vectors` are the embeddings of records that do not carry their own: rows [records, dimension] in the records'
        order, or a mapping from ids. A record without either is encoded: its passages, or its text where it has no
        passages. Where the encoder cannot encode (`OwnVectors`), the record has no vector.

        With `ttl` (seconds, a `timedelta`, or text such as ``"7d"``), records that say no `expires` themselves expire
        that long after the call.

        `progress` shows a bar if standard error is a terminal.

        With `receipts` the answer is an `Added`, whose ``receipts`` say at which rank each record finds itself now
        (`receipts` of the memory, after the write); one that expired or was deleted meanwhile is ``gone``.

        `twins` says what becomes of a record whose text its namespace holds already, or an earlier record of the batch
        has. "keep" writes it and asks nothing. With the others the answer is an `Added` whose ``twins`` name, for each
        record, the records with its text when it came: "tell" writes it, "skip" leaves it out, "replace" deletes the
        others. All is decided while no other write is under way. Texts are compared by hashes of 64 bits.

        All or nothing: on any error the engine is as before. Raises `RecordError` for a bad record or vector, and for a
        field in `Record.fields` that the engine does not search (``Engine(fields=...)``), `DuplicateIdError` for an id
        that its namespace already holds, `UnknownIdError` for an id in `vectors` that is not in the batch,
        `EncoderError`, and `StorageError` where the records cannot be made durable.
        """
        check_batch(records, "add")
        check_twins(twins)
        if receipts:
            self.receipts([])  # raises where there are none, before anything is written
            whole = [*as_records(records, self.bm25.fields)]
            count = self.add(whole, vectors=vectors, progress=progress, threads=threads, ttl=ttl, twins=twins)
            return self._with_receipts(count, whole)
        shown = records
        if shows_progress(progress):
            from tqdm import tqdm  # as in opening.py

            shown = tqdm(records, "indexing", unit=" records")
        if threads is not None:
            positive("threads", threads)
        encoded = self.searcher.models.encode(expiring(as_records(shown, self.bm25.fields), ttl), vectors)
        return self._write(added=encoded, threads=threads) if twins == KEEP else self._add_beside([*encoded], twins)

    def _add_beside(self, records: Sequence[Record], twins: Twins) -> Added:
        """Add those of the records that `twins` lets in beside what is there."""
        from .serve.deciding import decide_twins

        self.index.ready().check_texts()
        texts: dict[str, list[str]] = {}
        for record in records:
            texts.setdefault(record.namespace, []).append(record.text)
        named: list[tuple[str, ...]] = []

        def decide(reader: Reader) -> Decision:
            nonlocal named
            removed, written, named = decide_twins(records, reader.having(texts), twins)
            return removed, written

        count = self._write_decided([*texts], decide)
        return Added.of(count, twins=named)

    def _with_receipts(self, count: int, records: Sequence[Record]) -> Added:
        """The number of records that were added, and what each finds."""
        ids: dict[str, list[str]] = {}
        for record in records:
            ids.setdefault(record.namespace, []).append(record.id)
        parts = [(name, own[i : i + ASKED_FOR]) for name, own in ids.items() for i in range(0, len(own), ASKED_FOR)]
        found = {(one["namespace"], one["id"]): one for name, own in parts for one in self._receipts_of(own, name)}
        return Added.of(count, receipts=[found[record.namespace, record.id] for record in records])

    def _receipts_of(self, ids: Sequence[str], namespace: str) -> list[dict[str, Any]]:
        """As `receipts`, also of records that are gone: what was written is no error any more."""
        try:
            return self.receipts(ids, namespace=namespace)
        except UnknownIdError:
            if len(ids) == 1:
                return [{"id": ids[0], "namespace": namespace, "ranks": {"id": None}, "why": {"id": "gone"}}]
            half = len(ids) // 2
            return self._receipts_of(ids[:half], namespace) + self._receipts_of(ids[half:], namespace)

    def update(self, records: Iterable[AnyRecord], *, vectors: Given = None, ttl: Span | None = None) -> int:
        """Replace the live records with these ids; returns how many, as `add`. The new records become the youngest.

        Nothing of the old record stays. Its vectors are encoded again, or given in `vectors`. `ttl` is as in `add`. All
        or nothing. Raises as `add`, and `UnknownIdError` for an id that its namespace does not hold.
        """
        return self._write(**self._updating(records, "update", vectors, ttl))

    def upsert(self, records: Iterable[AnyRecord], *, vectors: Given = None, ttl: Span | None = None) -> int:
        """Add records, and replace those that are live, as `update` does. Returns how many they are."""
        return self._write(**self._updating(records, "upsert", vectors, ttl))

    def patch(
        self,
        ids: str | Sequence[str],
        changes: Mapping[str, Any] | None = None,
        *,
        namespace: str = "",
        missing_ok: bool = False,
        **fields: Unpack[RecordFields],
    ) -> int:
        """Change some fields of live records, by one id or several; returns how many, once they are durable.

        The fields are keywords, or the mapping `changes`, which also takes declared columns:
        ``engine.patch("m1", {"project": "atlas"}, importance=0.9)``. A field that is given replaces the old value whole
        (``extra`` and ``payload`` too); a column is set alone, and None takes its value away. All other fields stay.

        Vectors stay where text and passages do. A new text is encoded as by `add`, and learned weights of the old text
        go; new weights are encoded or given. A patched record is a new arrival, as by `update`. In between no other
        write can change the record. All or nothing.

        Raises `UnknownIdError` for an id that is not live, unless ``missing_ok``; `ParameterError` for a name that is
        no field, `RecordError` for a value that no record may have, `EncoderError`, and `StorageError` for an engine
        that keeps no texts.
        """
        batch = list(dict.fromkeys([ids] if isinstance(ids, str) else checked_ids(ids, "patch")))
        name, patch = checked_namespace(namespace), self._patch(changes, fields)

        def decide(reader: Reader) -> Decision:
            live = reader.live({name: batch})
            there = {*live[name]}
            missing = next((record_id for record_id in batch if record_id not in there), None)
            if missing is not None and not missing_ok:
                where = f" in namespace {name!r}" if name else ""
                raise UnknownIdError(f"no live record with id {missing!r}{where}; nothing was changed")
            return live, map(patch.apply, reader.records(live))

        return self._write_decided([name], decide)

    @offered(TOOL, COMMAND, writes=True)
    def update_where(
        self,
        filter: Annotated[Filter | Mapping[str, Any], "filter", About("The records to change.")],
        changes: Annotated[
            Mapping[str, Any] | Callable[[Record], Record] | None,
            "object",
            About("The fields with their new values; null takes a value away."),
        ] = None,
        *,
        namespace: str | None = "",
        **fields: Unpack[RecordFields],
    ) -> int:
        """Change some fields of all records that pass a filter, for good.

        Returns how many, once they are durable. `changes` and `fields` are as in `patch`, `filter` as in `Query`. With
        `namespace` None the records of all namespaces are changed. The filter is read when no other write is under way,
        so it misses no record and meets none that has changed. The records become the youngest, in their former order.
        All or nothing. Raises `QueryError`, and as `patch`.

        `changes` may also be a function from a record to the record that takes its place, for what depends on the old
        values. It is called while other writes wait. It keeps the id, the namespace, the text and the passages, or the
        call raises `RecordError`; vectors stay.
        """
        if callable(changes):
            if fields:
                raise ParameterError(f"give {min(fields)!r} by the function of changes, or changes as a mapping")
            self.index.ready().check_texts()
            change: Callable[[Record], Record] = partial(changed_by, changes)
        else:
            change = self._patch(changes, fields).apply
        return self._write_passing("update_where", filter, namespace, change)

    def rewrite(
        self,
        ids: Mapping[str, Iterable[str]],
        change: Callable[[Mapping[tuple[str, str], Record]], Iterable[AnyRecord]],
    ) -> int:
        """Read live records of several namespaces, and write what `change` makes of them, as one durable batch.

        `ids` are ids by namespace. `change` gets those of the records that are live, whole, by (namespace, id), and
        returns the records to write. A live one that it does not return is deleted, and all it returns become the
        youngest, in their order. It is called when no other write is under way, maybe by another thread. So nothing
        changes in between; it must be fast, and must not write.

        Returns how many records were written; if none were, how many were deleted. A record that is returned with its
        embedding keeps it to the bit; one without is encoded, while other writers wait. All or nothing: raises what
        `change` raises, as `add`, and `StorageError` for an engine that keeps no texts.
        """
        if not isinstance(ids, Mapping) or not callable(change):
            raise ParameterError(
                "rewrite takes ids by namespace, {namespace: [id, ...]}, and a function of the records"
            )
        names = {
            checked_namespace(name): list(dict.fromkeys(checked_ids(some, "rewrite"))) for name, some in ids.items()
        }
        self.index.ready().check_texts()

        def decide(reader: Reader) -> Decision:
            live = reader.live(names)
            changed = change({(one.namespace, one.id): one for one in reader.records(live)})
            check_batch(changed, "the function of rewrite")
            written = list(self.searcher.models.encode(as_records(changed, self.bm25.fields), None))
            return {name: some for name, some in live.items() if some}, written

        return self._write_decided([*names], decide)

    def delete(self, ids: Iterable[str], *, namespace: str = "", missing_ok: bool = False) -> int:
        """Delete live records by id; returns how many, once the deletion is durable.

        All or nothing. Raises `UnknownIdError` for an id that the namespace does not hold, unless ``missing_ok``.
        """
        return self._write(**self._deleting(ids, namespace, missing_ok))

    @offered(TOOL, writes=True)
    def delete_where(
        self,
        filter: Annotated[Filter | Mapping[str, Any], "filter", About("The records to delete.")],
        *,
        namespace: str | None = "",
    ) -> int:
        """Delete all records that pass a filter, for good.

        Returns how many, once the deletion is durable. `filter` is as in `Query`. With `namespace` None the records of
        all namespaces are deleted. The filter is read when no other write is under way. All or nothing. Raises
        `QueryError`, and `ParameterError` for a filter that says nothing: `drop` deletes a whole namespace.
        """
        return self._write_passing("delete_where", filter, namespace, None)

    def drop(self, namespace: str) -> None:
        """Delete a namespace with all its records and the counts of its searches."""
        self.index.ready().drop(checked_namespace(namespace))

    async def aadd(
        self,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        threads: int | None = None,
        ttl: Span | None = None,
        twins: Twins = KEEP,
    ) -> int:
        """As `add`, awaited. A thread of the engine's own writes; `records` are read there.

        A call that is cancelled before its thread began writes nothing. One that had begun goes on: its batch is
        written whole, or fails whole, though nobody waits for it. `get` or `fetch` then tell which.
        """
        if twins != KEEP:
            work = partial(self.add, records, vectors=vectors, threads=threads, ttl=ttl, twins=twins)
            return await self._write_awaited(work)
        return await self._write_joined(
            partial(self.add, records, vectors=vectors, threads=threads, ttl=ttl),
            partial(self._adding, records, vectors, ttl),
            records,
        )

    async def aupdate(self, records: Iterable[AnyRecord], *, vectors: Given = None, ttl: Span | None = None) -> int:
        """As `update`, awaited; cancelled as `aadd`."""
        return await self._write_joined(
            partial(self.update, records, vectors=vectors, ttl=ttl),
            partial(self._updating, records, "update", vectors, ttl),
            records,
        )

    async def aupsert(self, records: Iterable[AnyRecord], *, vectors: Given = None, ttl: Span | None = None) -> int:
        """As `upsert`, awaited; cancelled as `aadd`."""
        return await self._write_joined(
            partial(self.upsert, records, vectors=vectors, ttl=ttl),
            partial(self._updating, records, "upsert", vectors, ttl),
            records,
        )

    async def adelete(self, ids: Iterable[str], *, namespace: str = "", missing_ok: bool = False) -> int:
        """As `delete`, awaited; cancelled as `aadd`."""
        return await self._write_joined(
            partial(self.delete, ids, namespace=namespace, missing_ok=missing_ok),
            partial(self._deleting, ids, namespace, missing_ok),
            ids,
        )

    async def arewrite(
        self,
        ids: Mapping[str, Iterable[str]],
        change: Callable[[Mapping[tuple[str, str], Record]], Iterable[AnyRecord]],
    ) -> int:
        """As `rewrite`, awaited; cancelled as `aadd`."""
        return await self._write_awaited(partial(self.rewrite, ids, change))

    def _write(
        self,
        *,
        removed: Mapping[str, Sequence[str]] | None = None,
        added: Iterable[Record] = (),
        missing_ok: bool = False,
        threads: int | None = None,
    ) -> int:
        """As `Storage.write`. Over shards it is another one."""
        return self.index.ready().write(removed=removed, added=added, missing_ok=missing_ok, threads=threads)

    def _write_decided(self, namespaces: Collection[str] | None, decide: Callable[[Reader], Decision]) -> int:
        """Write what `decide` makes of records of these namespaces (None: of any), as `Storage.write`."""
        from .serve.deciding import PendingReader  # a plain write needs none of it

        return self.index.ready().write(decide=lambda pending: decide(PendingReader(pending)))

    def _write_passing(
        self, verb: str, filter: Any, namespace: str | None, change: Callable[[Record], Record] | None
    ) -> int:
        """Write what `change` makes of the records that pass a filter; None: delete them."""
        parsed, name = checked_filter(filter, verb), checked_scope(namespace)
        passing: Mapping[str, Sequence[str]] = {}

        def decide(reader: Reader) -> Decision:
            nonlocal passing
            passing = reader.passing(parsed, name)
            return passing, () if change is None else map(change, reader.records(passing))

        names = None if name is None else [name]
        count = self.searcher.declaring(lambda: self._write_decided(names, decide), [parsed])
        CHOSEN.get()(chain.from_iterable(passing.values()))
        return count

    def _adding(self, records: Iterable[AnyRecord], vectors: Given, ttl: Span | None) -> Batch:
        """What `add` writes."""
        check_batch(records, "add")
        return {"added": self.searcher.models.encode(expiring(as_records(records, self.bm25.fields), ttl), vectors)}

    def _updating(self, records: Iterable[AnyRecord], verb: str, vectors: Given, ttl: Span | None) -> Batch:
        """What `update` and `upsert` write."""
        check_batch(records, verb)
        batch = list(self.searcher.models.encode(expiring(as_records(records, self.bm25.fields), ttl), vectors))
        removed: dict[str, list[str]] = {}
        for record in batch:
            removed.setdefault(record.namespace, []).append(record.id)
        return {"removed": removed, "added": batch, "missing_ok": verb == "upsert"}

    def _deleting(self, ids: Iterable[str], namespace: str, missing_ok: bool) -> Batch:
        """What `delete` writes."""
        batch = checked_ids(ids, "delete")
        return {"removed": {checked_namespace(namespace): batch}, "missing_ok": missing_ok}

    def _write_together(self, batches: Sequence[Batch]) -> Sequence[Outcome]:
        """Write several small batches, each all or nothing, in one group commit."""
        return self.index.ready().write_all(batches)

    def _awaited(self) -> Writers:
        """The threads of awaited writes of this process: a forked child has none of its parent's."""
        if self._closed:
            raise StorageError("the engine is closed")
        known: dict[int, Writers] = self.__dict__.setdefault("_writers", {})
        writers = known.get(os.getpid())
        if writers is None:
            from .serve.writers import Writers  # a plain search needs none of its modules

            # `setdefault` keeps the first, where two threads make one at the same time. Without work it has no threads.
            writers = known.setdefault(os.getpid(), Writers(self._write_together))
        return writers

    async def _write_awaited(self, write: Callable[[], T]) -> T:
        return await self._awaited().alone(write)

    async def _write_joined(self, write: Callable[[], int], draft: Draft, given: object) -> int:
        """Write `draft` together with others, where a small list was given; else carry out `write` in a thread."""
        if isinstance(given, (list, tuple)) and len(given) <= SMALL and self._joins:
            return await self._awaited().join(draft)
        return await self._write_awaited(write)

    def _end_writers(self) -> None:
        """Let the threads of awaited writes end. A write that has yet to begin finds the engine closed."""
        if (writers := self.__dict__.get("_writers", {}).get(os.getpid())) is not None:
            writers.close()

    def _patch(self, changes: Mapping[str, Any] | None, fields: RecordFields) -> Patch:
        memory = self.index.ready()
        memory.check_texts()
        # A key of the payload is changed with the payload.
        columns = [name for name in memory.schema.declared() if name != ANY and not name.startswith(PAYLOAD)]
        return Patch.of(changes, fields, columns, self.bm25.fields, self.searcher.models)


def checked_filter(filter: Filter | Mapping[str, Any], verb: str) -> Filter:
    parsed = parse_filter(filter)
    if parsed is None:
        raise ParameterError(f"{verb} needs a filter that says something; to delete a whole namespace use drop")
    return parsed


def changed_by(function: Callable[[Record], Record], record: Record) -> Record:
    """What the function of a caller makes of a record, checked."""
    changed = function(record)
    if not isinstance(changed, Record):
        raise RecordError(f"changes must return a Record, not {type(changed).__name__}", record_id=record.id)
    for name in ("id", "namespace", "text", "passages"):
        if getattr(changed, name) != getattr(record, name):
            raise RecordError(f"changes must leave {name!r} as it is", record_id=record.id)
    return changed if record.embedding is None else changed.with_rows(record.embedding)
