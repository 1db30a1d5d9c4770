"""Reads records from a file into an engine, batch after durable batch.

An import needs no notes of its own to go on after it was killed: a record that the engine holds already, with the same
content, is passed over. So the second run writes what the first one did not, in the same order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..encoders.pins import Models
from ..errors import DuplicateIdError, FanrankError, ModelMismatchError, RecordError
from ..records.record import Record
from ..storage.failpoints import reach
from ..storage.memory import Memory
from ..storage.row_codec import encode
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
    """What an import did: how many records were `added`, how many `replaced` others with their ids, and how many the
    engine `held` already as they are.
    """

    added: int = 0
    replaced: int = 0
    held: int = 0

    @property
    def read(self) -> int:
        """The number of records of the file."""
        return self.added + self.replaced + self.held

    def __add__(self, other: Imported) -> Imported:
        return Imported(self.added + other.added, self.replaced + other.replaced, self.held + other.held)


def read(file: AnyFile, format: str | None) -> Iterator[Carried]:
    """The records of a file. Raises as `read_lines` and `read_table`, and `ParameterError` for the format at once."""
    return {"jsonl": read_lines, "parquet": read_table}[format_of(file, format)](file)


class Import:
    """One import into an engine. `done` counts what is durable."""

    def __init__(self, memory: Memory, models: Models, *, upsert: bool, resume: bool) -> None:
        self.memory, self.models = memory, models
        self.upsert = upsert
        # An engine that keeps no texts cannot tell what its records said.
        self.resume = resume and (memory.store is not None or memory.keeps)
        self.model = model_of(models.pin)
        self.done = Imported()

    def run(self, records: Iterator[Carried]) -> Imported:
        """Write all records. Raises as `Engine.import_records`; all before the record at fault are durable then."""
        batch: dict[Key, Carried] = {}
        characters = 0
        while True:
            try:
                carried = next(records, None)
                if carried is not None:
                    self._check_model(carried)
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

    def _check_model(self, carried: Carried) -> None:
        model = carried.model
        if carried.record.embedding is not None and None not in (model, self.model) and model != self.model:
            raise ModelMismatchError(
                f"{carried.where}: its vector was made by {model!r}, and this engine's are by {self.model!r}; export "
                "without vectors (vectors=False), or import into an engine with that encoder"
            )

    def _write(self, batch: list[Carried]) -> None:
        """Write a batch. Where a record of it is refused, those before it are written."""
        if not batch:
            return
        try:
            wanted, replaced, refused = self._decide(batch)
            encoded = list(self.models.encode([carried.record for carried in wanted], None))
            self.memory.write(removed=replaced, added=encoded, missing_ok=True)
        except RecordError as error:
            place = _place(batch, error)
            if place is None:
                raise self._reported(error) from None
            self._write(batch[:place])
            raise self._reported(error.at(batch[place].where)) from None
        count = sum(map(len, replaced.values()))
        held = (len(batch) if refused is None else refused) - len(wanted)
        self.done += Imported(len(wanted) - count, count, held)
        reach("import.batch")
        if refused is not None:
            carried = batch[refused]
            instead = "give upsert=True to replace it"
            raise self._reported(
                DuplicateIdError(
                    f"a record with this id is there, {'and says something else' if self.resume else 'as it is'}; "
                    f"{instead}",
                    where=carried.where,
                    record_id=carried.record.id,
                )
            )

    def _decide(self, batch: Sequence[Carried]) -> tuple[list[Carried], dict[str, list[str]], int | None]:
        """(the records to write, the ids that they replace by namespace, the place of the first refused record)."""
        held, expired = self._held(batch)
        wanted: list[Carried] = []
        replaced: dict[str, list[str]] = {}
        for place, carried in enumerate(batch):
            record = carried.record
            key = record.namespace, record.id
            if key in held:
                before = held[key]
                if before is not None and _same(record, before):
                    continue
                # The id of a record that has expired is free again.
                if key not in expired:
                    if not self.upsert:
                        return wanted, replaced, place
                    replaced.setdefault(record.namespace, []).append(record.id)
            wanted.append(carried)
        return wanted, replaced, None

    def _held(self, batch: Sequence[Carried]) -> tuple[dict[Key, Record | None], set[Key]]:
        """(the records with the ids of the batch, those of them that have expired); None where nothing is compared."""
        ids: dict[str, list[str]] = {}
        for carried in batch:
            ids.setdefault(carried.record.namespace, []).append(carried.record.id)
        held: dict[Key, Record | None] = {}
        expired: set[Key] = set()
        for namespace, names in ids.items():
            snapshot = self.memory.snapshot(namespace)
            there = list(snapshot.find_all(names))
            found: Sequence[Record | None] = self._read(there, namespace) if self.resume else [None] * len(there)
            for name, record in zip(there, found, strict=True):
                if record is not None or not self.resume:  # another thread may have deleted it meanwhile
                    held[namespace, name] = record
            expired |= {(namespace, name) for name in snapshot.expired(time.time(), names)}
        return held, expired

    def _read(self, ids: Sequence[str], namespace: str) -> list[Record | None]:
        if self.memory.store is None:
            return self.memory.state.records_of(namespace, ids)
        return self.memory.store.fetch(namespace, ids)

    def _reported(self, error: FanrankError) -> FanrankError:
        """The error, which also says what was imported before it."""
        if not isinstance(error, RecordError):
            return error
        again = "; repair it and run the import again, and it goes on there" if self.resume else ""
        message = f"{error.message} ({self.done.read:,} records before it are imported{again})"
        return type(error)(message, where=error.where, record_id=error.record_id)


def _place(batch: Sequence[Carried], error: RecordError) -> int | None:
    """The place of the record that the error names."""
    places: Mapping[str, int] = {carried.record.id: place for place, carried in reversed([*enumerate(batch)])}
    return None if error.record_id is None else places.get(error.record_id)


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
