"""`ShardedWriting`: the verbs of `ShardedEngine` that change its records."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..engine.encoders.patch import Patch, RecordFields
from ..engine.errors import ParameterError, UnknownIdError
from ..engine.index.columns import ANY
from ..engine.monitor.monitor import checked_namespace, checked_scope
from ..engine.records.filters import PAYLOAD, Filter
from ..engine.records.jsonl import as_records, check_batch, checked_ids
from ..engine.records.record import Record
from ..engine.writing import AnyRecord, changed_by, checked_filter
from .listing.matching import ids_passing
from .reading import ShardedReading

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack


class ShardedWriting(ShardedReading):
    """A part of `ShardedEngine`, which says what it is."""

    def patch(
        self,
        ids: str | Sequence[str],
        changes: Mapping[str, Any] | None = None,
        *,
        namespace: str = "",
        missing_ok: bool = False,
        **fields: Unpack[RecordFields],
    ) -> int:
        """As `Engine.patch`."""
        batch = list(dict.fromkeys([ids] if isinstance(ids, str) else checked_ids(ids, "patch")))
        name, patch = checked_namespace(namespace), self._patch_of(changes, fields)
        with self.coordinator.holding([name]):
            found = dict(zip(batch, self.fetch(batch, namespace=name), strict=True))
            missing = next((record_id for record_id in batch if found[record_id] is None), None)
            if missing is not None and not missing_ok:
                where = f" in namespace {name!r}" if name else ""
                raise UnknownIdError(f"no live record with id {missing!r}{where}; nothing was changed")
            records = [patch.apply(record) for record in found.values() if record is not None]
            removed = {name: [record.id for record in records]}
            return self._write(removed=removed, added=records, missing_ok=True)

    def update_where(
        self,
        filter: Filter | Mapping[str, Any],
        changes: Mapping[str, Any] | Callable[[Record], Record] | None = None,
        *,
        namespace: str | None = "",
        **fields: Unpack[RecordFields],
    ) -> int:
        """As `Engine.update_where`."""
        parsed, name = checked_filter(filter, "update_where"), checked_scope(namespace)
        if callable(changes) and fields:
            raise ParameterError(f"give {min(fields)!r} by the function of changes, or changes as a mapping")
        function = changes if callable(changes) else None
        patch = None if callable(changes) else self._patch_of(changes, fields)
        with self.coordinator.holding(None if name is None else [name]):
            removed = self._ids_where(parsed, name)
            found = self._records_of(removed)
            given = [found[space, record_id] for space, ids in removed.items() for record_id in ids]
            if function is not None:
                changed = [changed_by(function, record) for record in given]
            else:
                assert patch is not None
                changed = [patch.apply(record) for record in given]
            return self._write(removed=removed, added=changed, missing_ok=True)

    def delete_where(self, filter: Filter | Mapping[str, Any], *, namespace: str | None = "") -> int:
        """As `Engine.delete_where`."""
        parsed, name = checked_filter(filter, "delete_where"), checked_scope(namespace)
        with self.coordinator.holding(None if name is None else [name]):
            return self._write(removed=self._ids_where(parsed, name), missing_ok=True)

    def rewrite(
        self,
        ids: Mapping[str, Iterable[str]],
        change: Callable[[Mapping[tuple[str, str], Record]], Iterable[AnyRecord]],
    ) -> int:
        """As `Engine.rewrite`."""
        if not isinstance(ids, Mapping) or not callable(change):
            raise ParameterError(
                "rewrite takes ids by namespace, {namespace: [id, ...]}, and a function of the records"
            )
        names = {
            checked_namespace(name): list(dict.fromkeys(checked_ids(some, "rewrite"))) for name, some in ids.items()
        }
        held, before, written = {*names}, None, list[Record]()
        while True:
            with self.coordinator.holding(held):
                found = self._records_of(names)
                if found != before:
                    changed = change(found)
                    check_batch(changed, "the function of rewrite")
                    records = as_records(changed, self.template.bm25.fields)
                    written = list(self.searcher.models.encode(records, None))
                touched = held.union(record.namespace for record in written)
                if self.coordinator.holds(touched):
                    removed: dict[str, list[str]] = {}
                    for name, record_id in found:
                        removed.setdefault(name, []).append(record_id)
                    return self._write(removed=removed, added=written, missing_ok=True)
            # Further shards are held from the first one on. What was read is read again, as others may write meanwhile.
            held, before = touched, found

    def _ids_where(self, filter: Filter, namespace: str | None) -> dict[str, list[str]]:
        """The ids of the live records that pass, by namespace, in the order of their writes."""
        pairs: dict[str, list[tuple[int, str]]] = {}
        for answer in self.read_all(ids_passing, filter, namespace).values():
            for name, own in answer.items():
                pairs.setdefault(name, []).extend(own)
        return {name: [record_id for _, record_id in sorted(own)] for name, own in pairs.items()}

    def drop(self, namespace: str) -> None:
        """As `Engine.drop`."""
        self._check_open()
        self.coordinator.drop(checked_namespace(namespace))
        self.template.drop(namespace)
        self._drifts.drop(namespace)

    def _write(
        self,
        *,
        removed: Mapping[str, Sequence[str]] | None = None,
        added: Iterable[Record] = (),
        missing_ok: bool = False,
        threads: int | None = None,
    ) -> int:
        """Write a batch to all its shards or to none. Each analyses its part with one thread."""
        self._check_open()
        schema = self.template.index.memory.schema
        return self.coordinator.write(schema, removed=removed, added=list(added), missing_ok=missing_ok)

    def _patch_of(self, changes: Mapping[str, Any] | None, fields: RecordFields) -> Patch:
        schema = self.template.index.memory.schema
        # A key of the payload is changed with the payload.
        columns = [column for column in schema.declared() if column != ANY and not column.startswith(PAYLOAD)]
        return Patch.of(changes, fields, columns, self.template.bm25.fields, self.searcher.models)
