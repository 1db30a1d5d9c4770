"""Functions that `Shard.read` and `Shard.call` are given: what a shard reads of its records at an epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...engine.carry.importing import Held
from ...engine.errors import DamagedStoreError
from ...engine.index.columns import ORDER
from ...engine.listing.listing import OutdatedRecordError, whole_records
from ...engine.listing.matching import searched
from ...engine.records.query import Query
from ...engine.records.record import Record
from ...engine.search.texts import stored_texts
from ...engine.search.twins import having
from ...engine.storage.row_codec import RECORDS
from ...engine.storage.state import MemoryState
from ..protocol.order import strip
from .shard import OutdatedError, Shard

Ids = Mapping[str, Sequence[str]]
"""Ids by namespace."""
Records = dict[tuple[str, str], Record]
"""Records, as their callers wrote them, by (namespace, id)."""


def read_records(shard: Shard, state: MemoryState, ids: Ids) -> Records:
    """The records with these ids, which are live in a state, whole.

    Raises `OutdatedError`, and `DamagedStoreError` for one that is gone although nobody wrote.
    """
    try:
        return _read(shard, state, ids)
    except OutdatedRecordError:
        with shard.engine.index.memory.paused() as now:
            if now.sequence != state.sequence:
                raise OutdatedError from None
            try:
                return _read(shard, state, ids)
            except OutdatedRecordError as error:
                raise DamagedStoreError(
                    f"{RECORDS}: {error}; restore the file from a copy, as records cannot be rebuilt"
                ) from None


def _read(shard: Shard, state: MemoryState, ids: Ids) -> Records:
    found = whole_records(shard.engine.index.memory, state, ids)
    return {key: strip(record) for key, record in found.items()}


def find_records(shard: Shard, state: MemoryState, ids: Ids) -> Records:
    """The records with these ids that are live and have not expired, whole. Raises as `read_records`."""
    clock = time.time()
    try:
        found = _read(shard, state, ids)
    except OutdatedRecordError:
        # Some were never there, or were written since.
        live = {name: [*state.snapshot(name).find_all(own)] for name, own in ids.items()}
        found = read_records(shard, state, live)
    return {key: record for key, record in found.items() if not record.expired(clock)}


def find_held(shard: Shard, state: MemoryState, ids: Ids, clock: float, compare: bool) -> dict[str, Held]:
    """What the shard holds under these ids, by namespace. `compare` says whether the records are needed."""
    held: dict[str, Held] = {}
    for name, some in ids.items():
        snapshot = state.snapshot(name)
        there = [*snapshot.find_all(some)]
        records: dict[str, Record | None] = dict.fromkeys(there)
        if compare:
            records |= {own: record for (_, own), record in read_records(shard, state, {name: there}).items()}
        held[name] = Held(records, {*snapshot.expired(clock, some)})
    return held


def find_having(
    shard: Shard, state: MemoryState, texts: Mapping[str, Sequence[str]]
) -> dict[str, list[tuple[int, int, str]]]:
    """(place, order, id) of the live records that have the text at each place, by namespace."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for name, some in texts.items():
        snapshot = searched(state.snapshot(name))
        if snapshot.segments:
            records = shard.engine.searcher.sources(state, [Query(namespace=name)]).records
            places, documents = having(snapshot, name, records, some)
            orders = snapshot.numbers_of(ORDER, documents).astype(np.int64)
            ids = snapshot.ids_of(documents)
            found[name] = [*zip(places.tolist(), orders.tolist(), ids.tolist(), strict=True)]
    return found


def read_texts(shard: Shard, state: MemoryState, ids: Ids) -> Records:
    """The records with these ids as they are scored in a state, without embeddings. Raises `OutdatedError`."""
    memory = shard.engine.index.memory
    memory.check_texts()
    if memory.store is None:
        kept = [record for name, some in ids.items() for record in state.records_of(name, some, vectors=False)]
        return {(record.namespace, record.id): strip(record) for record in kept if record is not None}
    stored = stored_texts(memory.store, state, ids)
    if stored is None:
        raise OutdatedError
    return {key: strip(record) for key, record in stored.items()}


def read_sizes(shard: Shard, state: MemoryState, expired: bool) -> dict[str, int]:
    """The live records of each namespace, with `expired` also those that have expired."""
    snapshots = state.snapshots if expired else state.present(time.time())
    return {name: held.size for name, held in snapshots.items() if held.size}


def of_engine(shard: Shard, verb: str) -> Any:
    """What a verb of the shard's engine returns."""
    return getattr(shard.engine, verb)()
