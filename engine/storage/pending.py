"""`Pending`: the records on which a batch is prepared, before anyone sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import DamagedStoreError, StorageError
from ..index.kept import records_of
from ..index.masks import CompiledFilter, compile_filter
from ..index.snapshot import Snapshot
from ..locks import once
from ..records.copies import own_copy
from ..records.filters import Filter
from ..records.record import Record
from .record_store import Change, RecordStore
from .row_codec import RECORDS, EncodedRecord, decode
from .state import MemoryState

# Records that are read at a time.
PENDING_CHUNK = 1 << 10


@dataclass(frozen=True, eq=False)
class Pending:
    """What is published, and the batches that will be committed with this one and come before it.

    A batch that depends on records (`Storage.write` with `decide`) reads them here. The write lock is held meanwhile.
    """

    state: MemoryState
    working: Mapping[str, Snapshot]
    """The snapshots that the earlier batches lead to; of the other namespaces the published ones count."""
    batches: Sequence[Sequence[Change]]
    """The earlier batches, which the store does not hold yet."""
    store: RecordStore | None

    def snapshot(self, namespace: str) -> Snapshot:
        return self.working.get(namespace) or self.state.snapshot(namespace)

    @property
    def namespaces(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.state.snapshots, *self.working)))

    def compile(self, filter: Filter | None) -> CompiledFilter:
        """The filter in the codes of the snapshots. Raises `QueryError`."""
        return compile_filter(filter, self.state.schema, self.state.values)

    def read(self, namespace: str, ids: Sequence[str]) -> list[Record] | None:
        """The records with these ids, which must be live in `snapshot`; None where they cannot be read."""
        try:
            return list(self.records(namespace, ids, vectors=False))
        except StorageError:
            return None

    def records(self, namespace: str, ids: Sequence[str], *, vectors: bool = True) -> Iterator[Record]:
        """The records with these ids, which must be live in `snapshot`. They are read as they are consumed.

        With `vectors` false they may come without their embeddings.
        """
        for start in range(0, len(ids), PENDING_CHUNK):
            chunk = ids[start : start + PENDING_CHUNK]
            if self.store is None:
                found = records_of(self.snapshot(namespace), chunk)
                yield from (own_copy(found[record_id]) for record_id in chunk)
                continue
            later = self._later.get(namespace, {})
            stored = [record_id for record_id in chunk if record_id not in later]
            if vectors:
                read = dict(zip(stored, self.store.fetch(namespace, stored), strict=True))
            else:
                read = {name: record for name, (_, record) in self.store.texts(namespace, stored).items()}
            for record_id in chunk:
                encoded = later.get(record_id)
                record = read.get(record_id) if encoded is None else decode(namespace, encoded)
                if record is None:
                    raise DamagedStoreError(
                        f"{RECORDS}: the record with id {record_id!r} is not found, and the index holds it; restore "
                        "the file from a copy, as records cannot be rebuilt"
                    )
                yield record

    @once
    def _later(self) -> dict[str, dict[str, EncodedRecord]]:
        """What the earlier batches wrote last under each id."""
        later: dict[str, dict[str, EncodedRecord]] = {}
        for batch in self.batches:
            for change in batch:
                later.setdefault(change.namespace, {}).update((encoded.id, encoded) for encoded in change.added)
        return later


Decision = tuple[Mapping[str, Sequence[str]], Iterable[Record]]
"""What a batch removes, by namespace, and what it adds."""

Decide = Callable[[Pending], Decision]
"""Says what a batch is, from the records on which it is prepared. It must not write."""
