"""Reads records from a file into an engine, batch after durable batch.

An import needs no notes of its own to go on after it was killed: a record that the engine holds already, with the same
content, is passed over. So the second run writes what the first one did not, in the same order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

from ..encoders.pins import Models
from ..errors import DuplicateIdError, FanrankError, ModelMismatchError, RecordError
from ..index.snapshot import Snapshot
from ..records.jsonl import check_fields
from ..records.record import Record
from ..storage.failpoints import reach
from ..storage.pending import Decision, Pending
from ..storage.row_codec import encode
from ..storage.storage import Storage
from .files import AnyFile, format_of
from .json_lines import read_lines
from .rows import Carried, model_of
from .tables import read_table

# Records, and characters of their texts, that one batch writes.
BATCH_RECORDS = 1 << 13
BATCH_CHARACTERS = 1 << 22

Key = tuple[str, str]
"""Namespace and id of a record."""


@dataclass(frozen=True)
class Imported:
    """What an import did: how many records were `added`, how many `replaced` others with their ids, how many the engine
    `held` already as they are, and how many were passed over because they have `expired`.
    """

    added: int = 0
    replaced: int = 0
    held: int = 0
    expired: int = 0

    @property
    def read(self) -> int:
        """The number of records of the file."""
        return self.added + self.replaced + self.held + self.expired

    def __add__(self, other: Imported) -> Imported:
        return Imported(
            self.added + other.added,
            self.replaced + other.replaced,
            self.held + other.held,
            self.expired + other.expired,
        )


@dataclass(frozen=True)
class _Plan:
    """What a batch does."""

    wanted: list[Record]
    """The records to write."""
    replaced: dict[str, list[str]]
    """The ids that they replace, by namespace."""
    counts: Imported
    refused: int | None
    """The place of the first record that is refused; those before it are written."""


@dataclass(frozen=True)
class Held:
    """What an engine holds of a namespace, under the ids of a batch."""

    records: Mapping[str, Record | None]
    """By id, expired ones too; None where records are not compared."""
    expired: Collection[str]
    """The ids of those that have expired."""


class Reader(Protocol):
    """Reads the records that a batch meets, while no other writer comes between."""

    def find(self, ids: Mapping[str, Sequence[str]], clock: float, compare: bool) -> Mapping[str, Held]:
        """What is held under these ids, by namespace. `compare` says whether the records are needed."""
        ...


class Target(Protocol):
    """Where an import writes to."""

    @property
    def fields(self) -> Mapping[str, float]:
        """The text fields that are searched."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether it has the records, to compare them with."""
        ...

    def write(self, namespaces: Collection[str], decide: Callable[[Reader], Decision]) -> object:
        """Write one batch of these namespaces, which `decide` makes of what is held."""
        ...


class MemoryTarget:
    """The memory of an engine, to import into."""

    def __init__(self, memory: Storage) -> None:
        self.memory = memory
        # What was read of each namespace for an earlier plan of the same batch, and the snapshot that it was read of.
        self._seen: dict[str, tuple[Snapshot, dict[str, Record | None]]] = {}
        self._seen_for: Mapping[str, Sequence[str]] = {}

    @property
    def fields(self) -> Mapping[str, float]:
        return self.memory.bm25.fields

    @property
    def keeps(self) -> bool:
        return self.memory.store is not None or self.memory.keeps

    def write(self, namespaces: Collection[str], decide: Callable[[Reader], Decision]) -> None:
        self.memory.write(decide=lambda pending: decide(_PendingReader(self, pending)))

    def held(
        self, pending: Pending, ids: Mapping[str, Sequence[str]], name: str, compare: bool
    ) -> dict[str, Record | None]:
        if ids is not self._seen_for:
            self._seen, self._seen_for = {}, ids
        snapshot = pending.snapshot(name)
        # A snapshot is replaced by each write to its namespace.
        if name in self._seen and self._seen[name][0] is snapshot:
            return self._seen[name][1]
        there = list(snapshot.find_all(ids[name]))
        found: Iterable[Record | None] = pending.records(name, there) if compare else repeat(None, len(there))
        held = dict(zip(there, found, strict=True))
        self._seen[name] = snapshot, held
        return held


@dataclass(frozen=True)
class _PendingReader:
    target: MemoryTarget
    pending: Pending

    def find(self, ids: Mapping[str, Sequence[str]], clock: float, compare: bool) -> Mapping[str, Held]:
        return {
            name: Held(
                self.target.held(self.pending, ids, name, compare), self.pending.snapshot(name).expired(clock, some)
            )
            for name, some in ids.items()
        }


class _UnencodedError(Exception):
    """A plan wants records that are not encoded yet."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records


def read(file: AnyFile, format: str | None) -> Iterator[Carried]:
    """The records of a file. Raises as `read_lines` and `read_table`, and `ParameterError` for the format at once."""
    return {"jsonl": read_lines, "parquet": read_table}[format_of(file, format)](file)


def check_model(carried: Carried, model: str | None) -> Record:
    """The record, whose vector is no other model's than the engine's `model`. Raises `ModelMismatchError`."""
    if carried.record.embedding is not None and None not in (carried.model, model) and carried.model != model:
        raise ModelMismatchError(
            f"{carried.where}: its vector was made by {carried.model!r}, and this engine's are by {model!r}; export "
            "without vectors (vectors=False), or import into an engine with that encoder"
        )
    return carried.record


class Import:
    """One import into an engine. `done` counts what is durable."""

    def __init__(self, target: Target, models: Models, *, upsert: bool, resume: bool) -> None:
        self.target, self.models = target, models
        self.upsert = upsert
        # An engine that keeps no texts cannot tell what its records said.
        self.resume = resume and target.keeps
        self.model = model_of(models.pin)
        self.done = Imported()

    def run(self, records: Iterator[Carried]) -> Imported:
        """Write all records. Raises as `Engine.import_records`; all before the record at fault are durable then."""
        try:
            return self._run(records)
        except FanrankError as error:
            error.imported = self.done
            raise

    def _run(self, records: Iterator[Carried]) -> Imported:
        batch: dict[Key, Carried] = {}
        characters = 0
        while True:
            try:
                carried = next(records, None)
                if carried is not None:
                    self._check(carried)
            except FanrankError as error:
                self._write(list(batch.values()))
                raise self._reported(error) from None
            if carried is None:
                break
            key = carried.record.namespace, carried.record.id
            if key in batch or len(batch) >= BATCH_RECORDS or characters >= BATCH_CHARACTERS:
                self._write(list(batch.values()))
                batch, characters = {}, 0
            batch[key] = carried
            characters += len(carried.record.text)
        self._write(list(batch.values()))
        return self.done

    def _check(self, carried: Carried) -> None:
        try:
            check_fields(carried.record, self.target.fields)
        except RecordError as error:
            raise error.at(carried.where) from None
        check_model(carried, self.model)

    def _write(self, batch: list[Carried]) -> None:
        """Write a batch. Where a record of it is refused, those before it are written."""
        if not batch:
            return
        try:
            plan = self._apply(batch)
        except RecordError as error:
            places = _places(batch, error)
            if not places:
                raise self._reported(error) from None
            if len(places) > 1:
                # The error names an id, which several namespaces have. Apart, each is told from the others.
                self._write(batch[: places[1]])
                self._write(batch[places[1] :])
                return
            self._write(batch[: places[0]])
            raise self._reported(error.at(batch[places[0]].where)) from None
        self.done += plan.counts
        reach("import.batch")
        if plan.refused is not None:
            carried = batch[plan.refused]
            raise self._reported(
                DuplicateIdError(
                    f"a record with this id is there, {'and says something else' if self.resume else 'as it is'}; "
                    "give upsert=True to replace it",
                    where=carried.where,
                    record_id=carried.record.id,
                )
            )

    def _apply(self, batch: Sequence[Carried]) -> _Plan:
        """Decide what the batch does, and do it, in one write that no other writer comes between.

        No model is called while other writers wait: where the plan wants a record that is not encoded yet, nothing is
        written, the record is encoded, and the plan is made anew.
        """
        encoded: dict[Key, Record] = {}
        plans: list[_Plan] = []
        ids: dict[str, list[str]] = {}
        for carried in batch:
            ids.setdefault(carried.record.namespace, []).append(carried.record.id)

        def decide(reader: Reader) -> Decision:
            clock = time.time()
            plan = self._plan(batch, reader.find(ids, clock, self.resume), clock)
            if missing := [record for record in plan.wanted if _key(record) not in encoded]:
                raise _UnencodedError(missing)
            plans.append(plan)
            return plan.replaced, [encoded[_key(record)] for record in plan.wanted]

        def write() -> list[Record]:
            try:
                self.target.write(ids, decide)
            except _UnencodedError as error:
                return error.records
            return []

        while missing := write():
            encoded.update((_key(record), record) for record in self.models.encode(missing, None))
        return plans[-1]

    def _plan(self, batch: Sequence[Carried], found: Mapping[str, Held], clock: float) -> _Plan:
        """What the batch does to the records that are held."""
        wanted: list[Record] = []
        replaced: dict[str, list[str]] = {}
        same = expired = count = 0
        for place, (_, record, _) in enumerate(batch):
            held = found[record.namespace]
            live = record.id in held.records and record.id not in held.expired
            before = held.records.get(record.id)
            if before is not None and _same(record, before):
                same += 1
                continue
            # The id of a record that has expired is free again.
            if live and not self.upsert:
                return _Plan(wanted, replaced, Imported(len(wanted) - count, count, same, expired), place)
            if live:
                replaced.setdefault(record.namespace, []).append(record.id)
                count += 1
            elif record.expired(clock):
                expired += 1
                continue
            wanted.append(record)
        return _Plan(wanted, replaced, Imported(len(wanted) - count, count, same, expired), None)

    def _reported(self, error: FanrankError) -> FanrankError:
        return reported(error, self.done, self.resume)


def reported(error: FanrankError, done: Imported, resume: bool) -> FanrankError:
    """The error, which also says what was imported before it."""
    if not isinstance(error, RecordError):
        return error
    again = "; repair it and run the import again, and it goes on there" if resume else ""
    message = f"{error.message} ({done.read:,} records before it are imported{again})"
    return type(error)(message, where=error.where, record_id=error.record_id)


def _key(record: Record) -> Key:
    return record.namespace, record.id


def _places(batch: Sequence[Carried], error: RecordError) -> list[int]:
    """The places of the records that the error may mean: those with the id that it names."""
    return [place for place, carried in enumerate(batch) if carried.record.id == error.record_id]


def _same(record: Record, held: Record) -> bool:
    """Whether the engine holds this record already. What the file leaves to an encoder is not compared."""
    if record.embedding is not None and (
        held.embedding is None
        or record.embedding.shape != held.embedding.shape
        or record.embedding.tobytes() != held.embedding.tobytes()
    ):
        return False
    rows, held_rows = encode(record).data, encode(held).data
    if rows == held_rows:
        return True
    weights = record.weights is not None
    return _content(rows, weights) == _content(held_rows, weights)


def _content(row: str, weights: bool) -> str:
    """All that a stored row says but the number of its vectors, with its keys in one order."""
    data = json.loads(row)
    data.pop("rows", None)
    if not weights:
        data.pop("weights", None)
    return json.dumps(data, sort_keys=True)
