"""Brings the records of hits as they were scored.

An engine in memory keeps the records in the segments that were searched. A directory keeps them in its store, which a
writer may change between the search and the read. Each row there has the sequence of its write, and a state the last
sequence that it holds. A row that is not newer than the state is what was scored. Where a hit's row is newer or gone,
the batch is searched again. After `TRIES` times the state is taken together with a transaction that reads the store as
it was at that moment, so the next search is the last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import StorageError
from ..index.kept import records_at
from ..records.copies import apart, own_copy
from ..records.hits import Hits
from ..records.record import Record
from ..storage.record_store import RecordStore
from ..storage.sqlite import StoreMoment, damaged
from ..storage.state import MemoryState
from ..storage.storage import Storage
from .batch import IdResolver
from .options import SearchOptions

TRIES = 3
"""Searches before writers are held off for a moment."""
READER_TRIES = 20
"""Searches of an engine that only reads. It cannot hold off a writer of another process."""

Records = npt.NDArray[np.object_]
Key = tuple[str, str]


def search_with_records(
    memory: Callable[[], Storage],
    refresh: Callable[[], None],
    search: Callable[[MemoryState], Hits],
    options: SearchOptions,
    first: MemoryState | None = None,
) -> Hits:
    """The hits of `search` with the records that were scored.

    The first search is of the state `first` (None: the current one). `memory` gives the engine's memory. `refresh`
    brings an engine that only reads to the writer's last change. Raises `StorageError` where there are no texts, and
    `DamagedStoreError` for a hit whose record is lost.
    """
    current = memory()
    current.check_texts()
    store = current.store
    if store is None:
        state = first or current.state
        hits = search(state)
        return _with(hits, _kept(state, hits), options)
    if store.read_only:
        return _search_as_reader(memory, refresh, search, options, store, first)
    for _ in range(TRIES):
        state, first = first or current.state, None
        hits = search(state)
        records = _stored(store, state, hits)
        if records is not None:
            return _with(hits, records, options)
    with current.pinned() as (state, moment):
        hits = search(state)
        records = _stored(store, state, hits, moment)
    if records is None:
        raise _lost(store)
    return _with(hits, records, options)


def bring_records_of(memory: Storage, state: MemoryState, hits: Hits, options: SearchOptions) -> Hits | None:
    """The hits of a search of `state` with the records that were scored; None where the store has newer ones by now.

    Raises `StorageError` where there are no texts.
    """
    memory.check_texts()
    records = _kept(state, hits) if memory.store is None else _stored(memory.store, state, hits)
    return None if records is None else _with(hits, records, options)


def _search_as_reader(
    memory: Callable[[], Storage],
    refresh: Callable[[], None],
    search: Callable[[MemoryState], Hits],
    options: SearchOptions,
    store: RecordStore,
    first: MemoryState | None,
) -> Hits:
    for _ in range(READER_TRIES):
        state, first = first or memory().state, None
        before = store.sequence
        hits = search(state)
        records = _stored(store, state, hits)
        if records is not None:
            return _with(hits, records, options)
        if before == state.sequence == store.sequence:
            raise _lost(store)
        refresh()
    raise StorageError(
        f"{store.path}: the writer changed the records of the hits during {READER_TRIES} searches; search again, or "
        "without texts"
    )


def _lost(store: RecordStore) -> StorageError:
    return damaged(store.path, "the record of a hit is not found, and the index holds it")


def _with(hits: Hits, records: Records, options: SearchOptions) -> Hits:
    return hits.with_records(records, texts=options.texts, payload=options.payload)


def _kept(state: MemoryState, hits: Hits) -> Records:
    """The records of the hits, from the state that was searched."""
    if hits.namespace is not None:
        # The documents of one namespace have one numbering.
        numbers, places = np.unique(hits.documents[hits.documents >= 0], return_inverse=True)
        own = [own_copy(one, vectors=False) for one in records_at(state.snapshot(hits.namespace), numbers)]
        return _arrange(hits, [own[place] for place in places.tolist()])
    if isinstance(hits.resolver, IdResolver):
        shared = hits.resolver.records(hits.documents)
        copies = {id(one): own_copy(one, vectors=False) for one in shared}
        return _arrange(hits, [copies[id(one)] for one in shared])
    keys = _keys_of(hits)
    records: dict[Key, Record | None] = {}
    for namespace, ids in _ids_of(keys).items():
        found = state.records_of(namespace, ids, vectors=False)
        records |= zip(((namespace, record_id) for record_id in ids), found, strict=True)
    return _arrange(hits, [records[key] for key in keys])


def _stored(store: RecordStore, state: MemoryState, hits: Hits, moment: StoreMoment | None = None) -> Records | None:
    """The records of the hits, from the store; None where the store has another record than the state, or none."""
    keys = _keys_of(hits)
    records = stored_texts(store, state, _ids_of(keys), moment)
    return None if records is None else _arrange(hits, [records[key] for key in keys])


def stored_texts(
    store: RecordStore, state: MemoryState, ids: Mapping[str, Sequence[str]], moment: StoreMoment | None = None
) -> dict[Key, Record] | None:
    """The records with these distinct ids of a state, without embeddings, by (namespace, id); `ids` by namespace.

    None where the store has another record than the state, or none.
    """
    records: dict[Key, Record] = {}
    for namespace, some in ids.items():
        found = store.texts(namespace, some, moment)
        if len(found) < len(some) or any(sequence > state.sequence for sequence, _ in found.values()):
            return None
        records |= {(namespace, record_id): record for record_id, (_, record) in found.items()}
    return records


def _keys_of(hits: Hits) -> list[Key]:
    """The namespace and the id of each hit, row after row."""
    present = hits.documents >= 0
    return list(zip(hits.namespaces[present].tolist(), hits.ids[present].tolist(), strict=True))


def _ids_of(keys: list[Key]) -> dict[str, list[str]]:
    """The distinct ids of each namespace."""
    ids: dict[str, list[str]] = {}
    for namespace, record_id in dict.fromkeys(keys):
        ids.setdefault(namespace, []).append(record_id)
    return ids


def _arrange(hits: Hits, records: Sequence[Record | None]) -> Records:
    """The records in the places of their hits [B, k]."""
    arranged = np.full(hits.documents.shape, None, dtype=object)
    arranged[hits.documents >= 0] = apart(records)
    return arranged
