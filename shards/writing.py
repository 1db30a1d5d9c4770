"""`ShardedWriting`: how the verbs of `ShardedEngine` that change its records reach the shards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ..engine.carry.importing import Held
from ..engine.monitor.monitor import checked_namespace
from ..engine.records.filters import Filter
from ..engine.records.record import Record
from ..engine.storage.pending import Decision
from .reading import ShardedReading
from .search.launches import Launch
from .shard.records import find_held


class ShardedWriting(ShardedReading):
    """A part of `ShardedEngine`, which says what it is."""

    def drop(self, namespace: str) -> None:
        """As `Engine.drop`."""
        self.coordinator.drop(checked_namespace(namespace))
        self.template.drop(namespace)

    def _write(
        self,
        *,
        removed: Mapping[str, Sequence[str]] | None = None,
        added: Iterable[Record] = (),
        missing_ok: bool = False,
        threads: int | None = None,
    ) -> int:
        """Write a batch to all its shards or to none. Each analyses its part with one thread."""
        schema = self.template.index.memory.schema
        return self.coordinator.write(schema, removed=removed, added=list(added), missing_ok=missing_ok)

    def _write_decided(self, namespaces: Collection[str] | None, decide: Callable[[HeldReader], Decision]) -> int:
        held, reader = namespaces, HeldReader(self)
        removed: Mapping[str, Sequence[str]] = {}
        added: list[Record] | None = None
        while True:
            with self.coordinator.holding(held):
                if added is None or reader.is_outdated():
                    removed, records = decide(reader)
                    added = list(records)
                touched = {record.namespace for record in added}
                if self.coordinator.holds(touched):
                    # What expired since it was read is not there to be removed.
                    return self._write(removed=removed, added=added, missing_ok=True)
            # Further shards are held from the first one on, and others may write meanwhile.
            held = touched.union(held or ())


class HeldReader:
    """Reads records of shards that its thread holds, as `Reader` of `engine/writing.py` and of `carry/importing.py`."""

    def __init__(self, engine: ShardedReading) -> None:
        self._engine = engine
        self._asked: Mapping[str, Sequence[str]] = {}
        self._found: dict[tuple[str, str], Record] = {}

    def is_outdated(self) -> bool:
        """Whether the records that were read last are others by now."""
        return self._engine.find(self._asked) != self._found

    def live(self, ids: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        self._asked, self._found = ids, self._engine.find(ids)
        live: dict[str, list[str]] = {name: [] for name in ids}
        for name, record_id in self._found:
            live[name].append(record_id)
        return live

    def passing(self, filter: Filter, namespace: str | None) -> dict[str, list[str]]:
        return self._engine.ids_where(filter, namespace)

    def records(self, ids: Mapping[str, Sequence[str]]) -> Iterator[Record]:
        keys = [(name, record_id) for name, some in ids.items() for record_id in some]
        found = self._found if self._found.keys() >= {*keys} else self._engine.find(ids)
        return (found[key] for key in keys if key in found)

    def find(self, ids: Mapping[str, Sequence[str]], clock: float, compare: bool) -> dict[str, Held]:
        def ask(launch: Launch) -> dict[str, Held]:
            wanted = launch.view.placement.by_shard((name, own) for name, some in ids.items() for own in some)
            held = {name: Held({}, set()) for name in ids}
            asked = {shard: (find_held, own, clock, compare) for shard, own in wanted.items()}
            for answer in launch.read(asked).values():
                for name, own in answer.items():
                    held[name] = Held({**held[name].records, **own.records}, {*held[name].expired, *own.expired})
            return held

        return self._engine.searcher.retry(ask)
