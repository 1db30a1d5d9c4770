"""The records of an engine as snapshots, and how writes change them.

::

    write ─ encode ─ queue ─┐ the thread that has waited longest applies all waiting batches (group commit)
                            └ prepare on the snapshots ─ commit to the store ─ publish ─ merge, checkpoint (background)

A search uses the current snapshots and never waits for a writer. A batch is first prepared in full on top of the
snapshots, then committed to the store if there is one, then published in one assignment. So a reader never sees half a
batch, and never sees a batch that is not durable.

Long because writes, merges and checkpoints change one state under the same locks, and are read together.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import ParameterError, QueryError, RecordError, StorageError, UnknownColumnError
from ..index.arrivals import Arrivals
from ..index.bm25 import BM25
from ..index.build import build_segment
from ..index.bulk import Bulk, check_new
from ..index.column_names import keys_of, may_hold, noting_keys
from ..index.columns import Schema
from ..index.document_terms import OwnWords
from ..index.merge import Merge
from ..index.segment import Segment
from ..index.snapshot import MAX_SEGMENT_DOCUMENTS, WEEK, Place, Snapshot
from ..locks import FairLock, Take, WriteQueue
from ..records.record import Record
from ..text.analyzers import Analyzer
from ..text.vocabulary import TermIndexer, Vocabulary
from .failpoints import reach
from .index_arrays import SavedIndex
from .index_files import IndexDirectory
from .other_columns import with_columns
from .pending import Decide, Pending
from .record_store import Change, ChangeRun, Notes, RecordStore
from .record_stream import stream_records
from .renumber import Left, Renumbering, UnusedEntries
from .row_codec import EncodedRecord, check_objects, encode_all
from .sqlite import StoreMoment
from .state import MemoryState, new_numbering
from .writes import (
    Batch,
    Counters,
    Outcome,
    Sizes,
    Write,
    chunks_of,
    count_removed,
    group_along,
    group_by_namespace,
    joint,
    let_others_run,
    records_of,
    removed_by,
)

logger = logging.getLogger("fanrank")

# A write itself merges segments up to this many documents, which takes a millisecond or two. Larger merges wait for the
# background thread.
INLINE_DOCUMENTS = 1 << 12
# With more segments than this in a namespace, the background thread has fallen behind and the writer merges them all.
MAX_SEGMENTS = 512
# After this many changes the index files are brought up to date. Opening the store replays the changes that the files
# lack, so it replays for about a second at most.
CHECKPOINT_CHANGES = 100_000
# Seconds after a failure in the background before the next attempt.
PAUSE = 5.0


_UNSEEN = (
    "the batch is stored, and was interrupted before searches see it; do not try again: the next write shows it, or "
    "open the directory again"
)


class Learned(Protocol):
    """What the engine learned beside the records, by namespace."""

    def keep(self, store: RecordStore) -> None:
        """Keep in the store what was learned since the last call that succeeded."""

    def drop(self, namespace: str) -> None:
        """Forget what was learned of a namespace."""

    def restore(self, store: RecordStore) -> None:
        """Go on from what the store keeps."""


@dataclass(eq=False)
class Storage:
    """The records of all namespaces as snapshots. `store` and `directory` are None for an engine without files."""

    bm25: BM25
    analyzer: Analyzer
    schema: Schema
    window: float = WEEK
    store: RecordStore | None = None
    directory: IndexDirectory | None = None
    counters: Counters = field(default_factory=Counters)
    learned: Learned | None = None
    """Is kept in the store at each checkpoint, and goes with its namespace."""
    keep_texts: bool = True
    """Whether a memory without a store keeps its records beside the segments."""
    textless: str = "the engine was made with keep_texts=False; leave it out, or use Engine.open(path)"
    """Why there are no texts, where there are none."""

    def __post_init__(self) -> None:
        self.checkpointed = 0
        self.secret = secrets.token_hex(8)
        """What cursors of listings are sealed with, where there is no store."""
        self.state = MemoryState.empty(self.bm25, self.analyzer, self.schema, self.window)
        """What searches read. Each publication replaces it."""
        self._saved_version = 0
        self._written = 0  # the number of the next document's write, where there is no store
        self._unused = UnusedEntries()
        self._renumbering = threading.Lock()
        self._dropped = False
        self._queue = WriteQueue[Sequence[Write]]()
        self._writing = FairLock()
        self._saving = threading.Lock()
        self._keeping = threading.Lock()
        self._reading: int | None = None  # the thread that reads a caller's iterable under the lock
        self._starting = threading.Lock()
        self._worker: threading.Thread | None = None
        self._dirty: set[str] = set()
        self._not_before = 0.0
        self._closed = False
        self.declares = True
        """Whether filters declare columns."""
        self._keys: set[str] | None = None
        """Those of the records' `extra` and payloads, of deleted ones too; None until a query asks for them."""
        self._along: tuple[MemoryState, MemoryState] | None = None
        """A state, and the same with the columns of which `keys` has read the values along."""

    @property
    def keeps(self) -> bool:
        """Whether the segments hold the records. Where there is a store, it holds them."""
        return self.keep_texts and self.store is None

    def check_texts(self) -> None:
        """Raise `StorageError` where there are no texts to read."""
        if self.store is None and not self.keep_texts:
            raise StorageError(f"there are no texts: {self.textless}")

    def _check_process(self) -> None:
        """As `RecordStore.check_process`; before a lock is taken that another thread may have held at the fork."""
        if self.store is not None:
            self.store.check_process()

    @property
    def indexer(self) -> TermIndexer:
        return self.state.indexer

    @property
    def values(self) -> Mapping[str, Vocabulary]:
        return self.state.values

    @property
    def weight_terms(self) -> Vocabulary:
        return self.state.weight_terms

    @property
    def entity_terms(self) -> Vocabulary:
        return self.state.entity_terms

    @property
    def snapshots(self) -> Mapping[str, Snapshot]:
        return self.state.snapshots

    @snapshots.setter
    def snapshots(self, snapshots: Mapping[str, Snapshot]) -> None:
        self._become(snapshots)

    @property
    def sequence(self) -> int:
        return self.state.sequence

    def _become(
        self, snapshots: Mapping[str, Snapshot], sequence: int | None = None, written: Iterable[str] | None = None
    ) -> None:
        """Publish these snapshots. One assignment does it, so an interrupt cannot leave half of them."""
        self._along = None
        self.state = self.state.following(snapshots, sequence, written)

    def restore(self, saved: SavedIndex) -> None:
        """Take over an index from files."""
        snapshots = {name: self._numbered(snapshot) for name, snapshot in saved.namespaces.items()}
        self.state = replace(
            self.state.following(snapshots, saved.sequence),
            indexer=TermIndexer(self.analyzer, Vocabulary(saved.terms)),
            values={name: Vocabulary(saved.categories.get(name, ())) for name in self.schema.categories},
            weight_terms=Vocabulary(saved.weight_terms),
            entity_terms=Vocabulary(saved.entity_terms),
            numbering=saved.numbering,
        )
        self._unused = UnusedEntries(self.state)
        self.checkpointed, self._saved_version = saved.sequence, self.state.version
        self.keep_texts = False
        self.textless = "a saved index holds none; keep the records in a directory, with Engine.open(path)"

    def _numbered(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with numbers for its documents, where no store has them."""
        first = self._number(snapshot.segments)
        if first is None:
            return snapshot
        return replace(snapshot, arrivals=Arrivals().extended([segment.size for segment in snapshot.segments], first))

    def snapshot(self, namespace: str) -> Snapshot:
        return self.state.snapshot(namespace)

    def write(
        self,
        *,
        removed: Mapping[str, Sequence[str]] | None = None,
        added: Iterable[Record] = (),
        missing_ok: bool = False,
        threads: int | None = None,
        decide: Decide | None = None,
        expired: bool = False,
        notes: Notes | None = None,
        orders: Sequence[int] | None = None,
        rows: Sequence[EncodedRecord] | None = None,
    ) -> int:
        """Apply one batch, all or nothing. Returns once the batch is durable and searches see it.

        With `expired` the records of all namespaces that have expired by now are removed as well. The store keeps
        `notes` with the batch. `orders` and `rows` are as in `Write`.

        A batch of more than one chunk is analysed by `threads` threads. None means all cores that the process may run
        on. With `decide` the batch is what it returns. It is called when no other write is under way, by the thread
        that holds the write lock, and sees all batches before this one.
        """
        threads = cores() if threads is None else threads
        self._check_process()
        if self._reading == threading.get_ident():
            raise StorageError("the records come from an iterable that itself writes; collect them first")
        source = iter(added)
        first = list(chunks_of(source, 1))
        second = list(islice(source, 1))
        if not second:
            # A record that `decide` chose may expire before the batch is prepared.
            missing_ok = missing_ok or decide is not None
            request = Write(removed or {}, first, missing_ok, threads, decide=decide, expired=expired)
            request.notes, request.orders, request.rows = notes or {}, orders, rows
            self._queue.carry_out([request], self._apply_queue)
        else:
            # The batch is too large for another thread to prepare it: its records are read as they are analysed.
            # The lists become iterators, because an exhausted iterator holds no records and a list does.
            chunks = chain(iter(first), chunks_of(chain(iter(second), source)))
            del first, second
            request = Write(removed or {}, chunks, missing_ok, threads, bulk=True, notes=notes or {})
            request.orders, request.rows = orders, rows
            with self._writing:
                self._reading = threading.get_ident()
                try:
                    self._apply([request])
                finally:
                    self._reading = None
        if request.error is not None:
            raise request.error
        # Counts alone: a log must show no tenant what another one stores.
        logger.debug("batch written: %d records, change %d", request.count, self.sequence)
        self.wake()
        return request.count

    def write_all(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply small batches, each all or nothing, in one group commit. Returns the count of each, or its error."""
        self._check_process()
        requests: list[Write] = []
        for batch in batches:
            records = list(batch.get("added", ()))
            removed, missing_ok = batch.get("removed", {}), batch.get("missing_ok", False)
            requests.append(Write(removed, [records] if records else [], missing_ok))
        self._queue.carry_out(requests, self._apply_queue)
        logger.debug("batches written: %d, change %d", len(requests), self.sequence)
        self.wake()
        return [request.count if request.error is None else request.error for request in requests]

    def _apply_queue(self, take: Take[Sequence[Write]]) -> None:
        """Apply all waiting batches. After an interrupt, each batch that was not applied fails."""
        taken: list[Write] = []
        try:
            with self._writing:
                taken = list(chain.from_iterable(take(len)))
                self._apply(taken)
        finally:
            for request in taken:
                if not request.done:
                    request.error = StorageError("the batch was interrupted, and nothing of it was written")
                    request.done = True

    def _apply(self, requests: Sequence[Write]) -> None:
        """Prepare the requests, commit all that could be prepared, publish them.

        A request that cannot be prepared fails alone. A failure of the store fails all requests.
        """
        if self._closed:
            for request in requests:
                request.error, request.done = StorageError("the engine is closed"), True
            return
        self._catch_up()
        start = self._sizes()
        working: dict[str, Snapshot] = {}
        batches: list[list[Change]] = []
        prepared: list[Write] = []
        groups = joint(requests)
        while groups:
            group, before = groups.popleft(), self._sizes() if prepared else start
            try:
                pending = Pending(self.state, working, batches, self.store)
                for request in group:
                    if request.decide is not None:
                        self._decide(request, request.decide, pending)
                states, changes = self._prepare(group, pending)
            except Exception as error:
                self._forget(before)
                if half := len(group) // 2:
                    groups.extendleft((group[half:], group[:half]))
                else:
                    group[0].error, group[0].done = error, True
                continue
            except BaseException:  # an interrupt of this thread, which may be preparing another thread's request
                self._forget(start)
                raise
            working |= states
            batches.append(changes)
            prepared += group
        sequence, interrupt = self.sequence, None
        try:
            notes = {name: text for request in prepared for name, text in request.notes.items()}
            if self.store is not None and (any(batches) or notes):
                sequence = self.store.write(batches, notes)
        except BaseException as error:
            # An interrupt may come just after the commit. What is durable must be published.
            if self.store is None or self.store.sequence == self.sequence:
                self._forget(start)
                for request in prepared:
                    request.error, request.done = error, True
                if not isinstance(error, Exception):
                    raise
                return
            sequence, interrupt = self.store.sequence, error
        try:
            self._become({**self.snapshots, **working}, sequence, working)
        except BaseException:
            for request in prepared:
                request.error, request.done = StorageError(_UNSEEN), True
            raise
        for request in prepared:
            self._count_left(request.left)
        self._dirty |= working.keys()
        self.counters.batches += len(prepared)
        self.counters.commits += bool(prepared)
        reach("write.published")
        for request in prepared:
            request.done = True
        if interrupt is not None:
            raise interrupt

    def _catch_up(self) -> None:
        """Apply changes that the store holds and the snapshots lack: an interrupt came between commit and publish."""
        if self.store is not None and not self.store.read_only and self.store.sequence != self.sequence:
            self._replay(self.store.changes_after(self.sequence), self.store.sequence)

    def _decide(self, request: Write, decide: Decide, pending: Pending) -> None:
        """Make the request what its callback says."""
        request.removed, records = decide(pending)
        source = iter(records)
        first = list(chunks_of(source, 1))
        second = list(islice(source, 1))
        request.bulk = bool(second)
        request.added = chain(iter(first), chunks_of(chain(iter(second), source))) if second else first

    def _prepare(self, requests: Sequence[Write], pending: Pending) -> tuple[dict[str, Snapshot], list[Change]]:
        """The snapshots after the requests, and these as changes for the store (empty where there is no store).

        Several requests must touch different records, as `joint` sees to.
        """
        request, *others = requests
        working, left = pending.working, Left()
        states: dict[str, Snapshot] = {}
        removed: dict[str, list[str]] = {}
        added: dict[str, list[EncodedRecord]] = {}
        new: dict[str, list[Segment]] = {}
        clock = time.time()
        found: dict[str, Mapping[str, Place]] = {}
        for namespace, ids in removed_by(requests).items():
            before = working.get(namespace) or self.snapshot(namespace)
            live = before.find_all(ids)
            found[namespace] = before.at(clock).find_all(ids) if before.expiring else live
            if live:
                removed[namespace] = list(live)
                states[namespace] = before.without(live.values(), self._own_words(namespace, pending))
        counts = [count_removed(each, found) for each in requests]
        if request.expired:
            for namespace in dict.fromkeys([*self.state.expired(clock), *working]):
                before = working.get(namespace) or self.snapshot(namespace)
                counts[0] += self._remove_expired(namespace, before, before.expired(clock), states, removed, pending)
        analysed = 0
        builds: dict[str, Bulk] = {}
        for chunk in filter(None, [list(records_of(requests))]) if others else request.added:
            self._note_keys(chunk)
            own = slice(analysed, analysed + len(chunk))
            orders = group_along(chunk, request.orders[own]) if request.orders is not None else {}
            rows = group_along(chunk, request.rows[own]) if request.rows is not None else {}
            for namespace, group in group_by_namespace(chunk).items():
                before = states.get(namespace) or working.get(namespace) or self.snapshot(namespace)
                if before.expiring and namespace not in builds:
                    # An id whose record has expired is free again. A bulk looks its ids up in one snapshot.
                    given = None if request.bulk else [record.id for record in group]
                    self._remove_expired(namespace, before, before.expired(clock, given), states, removed, pending)
                    before = states.get(namespace, before)
                let_others_run()
                if request.bulk:
                    if namespace not in builds:
                        builds[namespace] = self._start_bulk(namespace, before, request.threads)
                    builds[namespace].add(group, orders.get(namespace))
                else:
                    hashes = check_new(namespace, group, before)
                    new[namespace] = [self.build(group, hashes, orders.get(namespace))]
                if self.store is not None:
                    encoded = rows.get(namespace) or encode_all(group, orders.get(namespace))
                    added.setdefault(namespace, []).extend(encoded)
                else:
                    for record in group:
                        if record.payload is not None:
                            check_objects(record, "payload")
                let_others_run()
            analysed += len(chunk)
            del chunk, group
        for namespace, build in builds.items():
            new[namespace] = build.finish()
        for namespace in new:
            states.setdefault(namespace, working.get(namespace) or self.snapshot(namespace))
        for namespace, before in states.items():
            # In this order the store numbers what is written.
            if segments := new.get(namespace):
                states[namespace] = before.extended(segments, first=self._number(segments))
        for namespace, after in states.items():
            merge_all = request.bulk or len(after.segments) > MAX_SEGMENTS
            limit = MAX_SEGMENT_DOCUMENTS if merge_all else INLINE_DOCUMENTS
            states[namespace] = after.compacted(limit, self.window, left.merge)
        request.left = left
        for each, count in zip(requests, counts, strict=True):
            each.count = (analysed if each.bulk else each.records) or count
        if self.store is None:
            return states, []
        return states, [Change(name, removed.get(name, ()), added.get(name, ())) for name in states]

    def _remove_expired(
        self,
        namespace: str,
        before: Snapshot,
        expired: Mapping[str, Place],
        states: dict[str, Snapshot],
        removed: dict[str, list[str]],
        pending: Pending,
    ) -> int:
        """Remove these records of a namespace with the batch that is prepared. Returns how many they are."""
        if expired:
            removed.setdefault(namespace, []).extend(expired)
            states[namespace] = before.without(expired.values(), self._own_words(namespace, pending))
        return len(expired)

    def _own_words(self, namespace: str, pending: Pending) -> OwnWords | None:
        """What reads the records that a batch deletes; None where there are no texts."""
        if self.store is None and not self.keep_texts:
            return None
        nested = {"learned": self.weight_terms, "entities": self.entity_terms}
        return OwnWords(partial(pending.read, namespace), list(self.bm25.fields), self.indexer, nested)

    def _number(self, segments: Sequence[Segment]) -> int | None:
        """The number of the first document's write; None where the store numbers them."""
        if self.store is not None:
            return None
        first = self._written
        self._written += sum(segment.size for segment in segments)
        return first

    def build(
        self,
        records: Sequence[Record],
        hashes: npt.NDArray[np.uint64] | None = None,
        orders: Sequence[int] | None = None,
    ) -> Segment:
        return build_segment(
            records,
            self.indexer,
            list(self.bm25.fields),
            self.schema,
            self.values,
            hashes,
            self.weight_terms,
            self.entity_terms,
            keep=self.keeps,
            orders=orders,
        )

    def _start_bulk(self, namespace: str, before: Snapshot, threads: int) -> Bulk:
        return Bulk(
            namespace,
            before,
            list(self.bm25.fields),
            self.indexer,
            self.schema,
            self.values,
            self.weight_terms,
            self.entity_terms,
            MAX_SEGMENT_DOCUMENTS,
            self.window,
            threads,
            self.keeps,
        )

    def _sizes(self) -> Sizes:
        state = self.state
        return Sizes(
            len(state.indexer.vocabulary.strings),
            len(state.weight_terms.strings),
            len(state.entity_terms.strings),
            {name: len(column.strings) for name, column in state.values.items()},
        )

    def _forget(self, sizes: Sizes) -> None:
        """Undo what a failed batch added to the vocabularies."""
        if len(self.indexer.vocabulary) > sizes.terms:
            self.indexer.forget(sizes.terms)
        self.weight_terms.truncate(sizes.weight_terms)
        self.entity_terms.truncate(sizes.entity_terms)
        for name, column in self.values.items():
            column.truncate(sizes.values[name])

    def drop(self, *namespaces: str) -> None:
        """Remove namespaces with all their records, and what was learned of them."""
        if not namespaces:
            return
        self._check_process()
        # A checkpoint in between would keep again what was learned.
        with self._keeping, self._writing:
            if self._closed:
                raise StorageError("the engine is closed")
            self._catch_up()
            if held := [name for name in namespaces if name in self.snapshots]:
                self._drop(held)
            for namespace in namespaces:
                if self.store is not None and namespace not in held:
                    self.store.forget_learned(namespace)
                if self.learned is not None:
                    self.learned.drop(namespace)
        self.wake()

    def _drop(self, namespaces: Sequence[str]) -> None:
        sequence = None if self.store is None else self.store.drop(*namespaces)
        left = Left()
        kept = dict(self.snapshots)
        for namespace in namespaces:
            left.drop(kept.pop(namespace))
        self._become(kept, sequence, namespaces)
        self._count_left(left)
        self._dropped = True

    def replay(self, runs: Iterable[ChangeRun], last: int) -> None:
        """Apply changes that the store holds and the index lacks. Removals of ids that are not live are skipped.

        `last` is the store's last change, and is used if there are no runs. A run carries a `last` of its own, because
        a writer in another process may have made more changes by the moment that the runs show.
        """
        with self._writing:
            self._replay(runs, last)

    def _replay(self, runs: Iterable[ChangeRun], last: int) -> None:
        snapshots, left = dict(self.snapshots), Left()
        for run in runs:
            self._dirty.add(run.namespace)
            empty = Snapshot((), self.bm25)
            if run.dropped and run.namespace in snapshots:
                left.drop(snapshots[run.namespace])
                self._dropped = True
            snapshot = empty if run.dropped else snapshots.get(run.namespace, empty)
            snapshot = snapshot.without(snapshot.find_all(run.removed).values())
            if run.added:
                self._note_keys(run.added)
                snapshot = snapshot.extended([self.build(run.added)])
            snapshots[run.namespace] = snapshot.compacted(INLINE_DOCUMENTS, self.window, left.merge)
            if run.dropped and not run.added:
                del snapshots[run.namespace]
            last = run.last
        if last > self.sequence:
            self._become(snapshots, last)
            self._count_left(left)

    def _count_left(self, left: Left) -> None:
        """Count what a publication merged and took out of the index."""
        self.counters.merges += left.merges
        self.counters.merged_documents += left.merged_documents
        self.counters.compacted_documents += left.compacted_documents
        self._unused.leave(left)

    def wake(self) -> None:
        """Start the background thread if there is work for it and it is not running."""
        if self._closed or time.monotonic() < self._not_before:
            return
        if not self._work_due():
            return
        with self._starting:
            if self._worker is None:
                worker = threading.Thread(target=self._work, name="fanrank-merge", daemon=True)
                try:
                    worker.start()
                except RuntimeError as error:  # no thread can be started; the write itself is done
                    self._fail(error)
                else:
                    self._worker = worker

    def _fail(self, error: Exception) -> None:
        """Note a failure in the background, and pause."""
        self.counters.error = f"{type(error).__name__}: {error}"
        self._not_before = time.monotonic() + PAUSE
        logger.warning("background work failed: %s", type(error).__name__)

    def _mergeable(self) -> bool:
        for namespace in list(self._dirty):
            # Discarded before the check, so that a mark that a write sets meanwhile stays.
            self._dirty.discard(namespace)
            if next(self.snapshot(namespace).merges(MAX_SEGMENT_DOCUMENTS, self.window), None) is not None:
                self._dirty.add(namespace)
                return True
        return False

    def _work_due(self) -> bool:
        unused = self._unused.worth_counting(self.state)
        return self._mergeable() or unused or self._checkpoint_due() or self._sweep_due()

    def _checkpoint_due(self) -> bool:
        return self.directory is not None and self.sequence - self.checkpointed >= CHECKPOINT_CHANGES

    def _sweep_due(self) -> bool:
        """Whether a record has expired and is still there."""
        if self.store is not None and self.store.read_only:
            return False
        return self.state.next_expiry <= time.time()

    def sweep(self) -> int:
        """Delete the records that have expired. Returns how many."""
        return self.write(expired=True) if self._sweep_due() else 0

    def _work(self) -> None:
        while True:
            try:
                if self._sweep_due() and not self._closed:
                    self.sweep()
                while self._merge_one() and not self._closed:
                    pass
                if self._unused.worth_counting(self.state) and not self._closed:
                    self.renumber()
                if self._checkpoint_due() and not self._closed:
                    self.checkpoint()
            except Exception as error:
                self._fail(error)
                with self._starting:
                    self._worker = None
                return
            with self._starting:
                if self._closed or not self._work_due():
                    self._worker = None
                    return

    def _merge_one(self) -> bool:
        """Do one merge that is due, if any, and publish it."""
        for namespace in list(self._dirty):
            self._dirty.discard(namespace)
            merge = next(self.snapshot(namespace).merges(MAX_SEGMENT_DOCUMENTS, self.window), None)
            if merge is None:
                continue
            self._dirty.add(namespace)
            self._run_merge(namespace, merge)
            return True
        return False

    def _run_merge(self, namespace: str, merge: Merge) -> None:
        reach("merge.begin")
        merged = merge.run()
        if merged is not None:
            merged.prepare()
        reach("merge.built")
        with self._writing:
            self._publish(namespace, merge, merged)
        reach("merge.published")

    def _publish(self, namespace: str, merge: Merge, merged: Segment | None) -> None:
        current = self.snapshots.get(namespace)
        following = current and current.replaced(merge, merged)
        if not following:
            return  # a write has merged these segments meanwhile, or the namespace is gone
        left = Left()
        left.merge(merge, merged)
        self._become({**self.snapshots, namespace: following}, written=(namespace,))
        self._count_left(left)
        self.counters.error = None
        logger.debug(
            "%d segments merged: %d records, %d deleted ones left out",
            len(merge.segments),
            left.merged_documents,
            left.compacted_documents,
        )

    @contextmanager
    def paused(self) -> Iterator[MemoryState]:
        """Hold writes off. Meanwhile the store holds the records of the state, and no others."""
        self._check_process()
        if self._reading == threading.get_ident():  # this thread holds the lock, and reads a batch
            yield self.state
            return
        with self._writing:
            self._catch_up()
            yield self.state

    def renumber(self, *, all_unused: bool = False) -> bool:
        """Take the unused entries out of the vocabularies that are due, or with `all_unused` out of all of them.

        Returns whether there were any. Writers wait only while what they wrote meanwhile is added.
        """
        with self._renumbering:
            self._unused.begin()
            state = self.state
            live = self._unused.count(state, all_unused=all_unused)
            if not live:
                return False
            reach("renumber.begin")
            prepared = Renumbering.of(state, live)
            with self._writing:
                following = prepared.finish(self.state)
                if following is None:
                    return False
                self.state = following
            self._unused.renumbered(live)
            self.counters.renumberings += 1
            self.counters.error = None
            reach("renumber.published")
            return True

    def saved(self) -> SavedIndex:
        """The whole index, as of one moment between two writes."""
        self._check_process()
        with self._writing:
            self._catch_up()
            return SavedIndex(
                analyzer=self.analyzer.stored,
                parameters=self.bm25.to_dict(),
                columns=self.schema.declared(),
                terms=list(self.indexer.vocabulary.strings),
                categories={name: list(values.strings) for name, values in self.values.items()},
                namespaces=self.snapshots,
                sequence=self.sequence,
                weight_terms=list(self.weight_terms.strings),
                entity_terms=list(self.entity_terms.strings),
                numbering=self.state.numbering,
            )

    def change_columns(self, change: Callable[[Schema], Schema], *, here: bool = False) -> None:
        """Declare other columns: in the store first, then in the index, then in its files. Answers do not change.

        `change` makes the new schema of the present one. It is called while no other change is under way, so two
        changes at the same time both count. Where it returns what it was given, nothing is done.

        Writes wait meanwhile, and searches go on. A crash before the store knows leaves the old columns. After it, the
        next open finds index files of other columns and builds the index again. Raises `RecordError` for a value of the
        wrong type, and `StorageError`; nothing is changed then. Index files that cannot be written are left to the next
        checkpoint. `here` changes this index alone, and nothing of a store that another writes.
        """
        # A renumbering that began before knows nothing of the new columns.
        with self._renumbering, self._saving, self._writing:
            if self._closed:
                raise StorageError("the engine is closed")
            schema = change(self.schema)
            if schema == self.schema:
                return
            self.check_texts()
            self._catch_up()
            along, self._along = self._along, None
            if along is None or along[0] is not self.state or along[1].schema != schema:
                changed = with_columns(self.state, schema, stream_records(self.store, self.state, vectors=False))
            else:
                changed = along[1]
            reach("columns.made")
            if self.store is None or here:
                if self.store is not None and self.store.sequence != self.sequence:
                    raise StorageError(f"{self.store.path.parent}: another wrote since it was opened; open it anew")
                self.schema, self.state = schema, replace(changed, version=changed.version + 1)
                return
            try:
                self.store.change_columns(schema.declared())
                reach("columns.committed")
            finally:
                # An interrupt may come just after the commit. What is durable must be published.
                if (self.store.config or {}).get("columns") == schema.declared():
                    self.schema = schema
                    self.state = replace(changed, version=changed.version + 1, numbering=new_numbering())
                    self._unused = UnusedEntries(self.state)
            reach("columns.published")
            # The columns are changed, whatever becomes of the index files. Opening builds an index where they are old.
            try:
                if self.directory is not None:
                    # Its strings are of the old columns.
                    self.directory.clear()
            except StorageError as error:
                self._fail(error)
        try:
            self.checkpoint()
        except StorageError as error:
            self._fail(error)

    def declare(self, error: UnknownColumnError, names: Iterable[str], keys: Collection[str] | None = None) -> None:
        """Declare the columns that a query names. Those that are there by now stay.

        Where the schema says `auto`, any name becomes one, else one that a record has as a key; `keys` are those of all
        records, where they are not only this memory's. `error` is what the query failed by. It is raised where no
        record has such a key, where `declares` is false, and where no records are kept. Raises `QueryError` where a
        column cannot be declared, as its values cannot be read or the directory cannot be written.
        """
        names = (*error.columns, *names)
        if not self.declares:
            raise error
        if self.store is None and not self.keep_texts:
            if not self.schema.auto:
                raise error
            raise QueryError(
                f"column {error.columns[0]!r} is not declared, and this engine cannot declare it: {self.textless}"
            )
        if not self.schema.auto:
            self.check_held(error, names, self.keys(names) if keys is None else keys)
        try:
            here = self.store is not None and self.store.read_only
            self.change_columns(lambda schema: schema.declaring(schema.undeclared(names)), here=here)
        except (ParameterError, RecordError) as failure:
            raise QueryError(f"column {error.columns[0]!r} cannot be declared: {failure}") from failure

    def keys(self, names: Iterable[str] = ()) -> Collection[str]:
        """The keys of the records' `extra` and payloads. The first call reads all records, while writes wait.

        It reads the values of the columns `names` along, for `declare`.
        """
        with self._writing:
            if self._keys is None:
                self.check_texts()
                self._catch_up()
                keys: set[str] = set()
                records = noting_keys(stream_records(self.store, self.state, vectors=False), keys)
                try:
                    schema = self.schema.declaring(self.schema.undeclared(names))
                    self._along = self.state, with_columns(self.state, schema, records)
                except (ParameterError, RecordError):
                    pass  # they cannot be declared, which `declare` says
                keys |= keys_of(records)
                self._keys = keys
            return self._keys.copy()

    def _note_keys(self, records: Iterable[Record]) -> None:
        if self._keys is not None:
            self._keys |= keys_of(records)

    def check_held(self, error: UnknownColumnError, names: Iterable[str], keys: Collection[str]) -> None:
        """Raise `error`, in other words, where one of these names is neither a column nor one of the records' keys."""
        for name in self.schema.undeclared(names):
            if not may_hold(keys, name):
                problem = error.problem if name in error.columns else f"no column {name!r} to filter on"
                known = dict.fromkeys((*error.known, *sorted(keys)))
                advice = "No record has such a key in its extra or payload"
                raise UnknownColumnError(problem, (name,), known, advice) from None

    def keep_learned(self) -> None:
        """Keep in the store what was learned."""
        if self.learned is not None and self.store is not None and not self._closed and not self.store.read_only:
            with self._keeping:
                self.learned.keep(self.store)

    def checkpoint(self) -> None:
        """Bring the index files up to the last write, so that opening the store has nothing to replay."""
        if self.directory is None or self.store is None:
            return
        with self._saving:
            version = self.state.version
            self.keep_learned()
            if self._closed or version == self._saved_version:
                return
            saved = self.saved()
            reach("checkpoint.begin")
            self.store.check_place()
            self.directory.save(saved)
            self.checkpointed, self._saved_version = saved.sequence, version
            self.store.prune(saved.sequence)
            reach("checkpoint.pruned")
            self.counters.checkpoints += 1
            self.counters.error = None
            records = sum(snapshot.size for snapshot in saved.namespaces.values())
            logger.info("checkpoint: %d records, up to change %d", records, saved.sequence)

    def flush(self) -> None:
        """Delete what has expired, do all due merges and checkpoint. Raises `StorageError` where the files fail.

        After a drop all unused entries leave the vocabularies, however few they are.
        """
        self.join()
        self.sweep()
        while self._merge_one():
            pass
        dropped, self._dropped = self._dropped, False
        if dropped or self._unused.worth_counting(self.state):
            self.renumber(all_unused=dropped)
        self.checkpoint()

    def vacuum(self) -> int:
        """As `Engine.vacuum`."""
        self.join()
        before = self._bytes()
        self.sweep()
        for namespace in self.state.names:
            while merge := self.snapshot(namespace).rewrite():
                self._run_merge(namespace, merge)
        self.renumber(all_unused=True)
        self.flush()
        if self.store is not None:
            self.store.vacuum()
        return before - self._bytes()

    def _bytes(self) -> int:
        """Bytes of the directory's files."""
        if self.store is None:
            return 0
        return sum(file.stat().st_size for file in self.store.path.parent.rglob("*") if file.is_file())

    def check_gone(self, namespace: str, ids: Sequence[str]) -> None:
        """Raise `DamagedStoreError` if one of these ids is live. The store did not find them."""
        if self.store is None or self.store.read_only or not self.snapshot(namespace).find_all(ids):
            return
        # A write may be between its commit and its publication. Under the lock no write is under way, and store and
        # snapshots must hold the same ids.
        with self._writing:
            self.store.check_found(namespace, list(self.snapshot(namespace).find_all(ids)))

    @contextmanager
    def pinned(self) -> Iterator[tuple[MemoryState, StoreMoment]]:
        """The published state, and the store as it was at that very moment. Writers wait only until it is opened."""
        assert self.store is not None
        self.store.check_process()
        with ExitStack() as held:
            with self._writing:
                self._catch_up()
                moment, state = held.enter_context(self.store.moment()), self.state
            yield state, moment

    def join(self) -> None:
        """Wait for the background thread to finish its work."""
        worker = self._worker
        if worker is not None and worker is not threading.current_thread():
            worker.join()

    def close(self) -> None:
        """Checkpoint, close the store, refuse further writes. A second call does nothing."""
        if self._closed:
            return
        self.join()
        try:
            self.checkpoint()
        finally:
            # No checkpoint may run after the store's lock is released.
            with self._saving, self._writing:
                self._closed = True
            if self.store is not None:
                self.store.close()

    def verify(self) -> dict[str, int]:
        """As `Engine.verify`. Writes wait until it is done."""
        assert self.store is not None
        self.store.check_process()
        with self._writing:
            self._catch_up()
            records = missing = 0
            for namespace, ids in self.store.ids():
                records += len(ids)
                missing += len(ids) - len(self.snapshot(namespace).find_all(ids))
            indexed = sum(snapshot.size for snapshot in self.snapshots.values())
        return {"records": records, "missing": missing, "extra": indexed - (records - missing)}

    def stats(self) -> dict[str, Any]:
        """Counts of writes, commits, merges and checkpoints, and the state of the background thread."""
        counts: dict[str, Any] = {
            "writes": self.counters.batches,
            "commits": self.counters.commits,
            "merges": self.counters.merges,
            "merged_documents": self.counters.merged_documents,
            "compacted_documents": self.counters.compacted_documents,
            "renumberings": self.counters.renumberings,
            "merging": self._worker is not None,
            "background_error": self.counters.error,
        }
        if self.store is not None:
            counts |= {
                "sequence": self.sequence,
                "checkpointed": self.checkpointed,
                "checkpoints": self.counters.checkpoints,
                "store_bytes": self.store.bytes,
            }
        return counts


def cores() -> int:
    """Cores that the process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
