"""What a write reads before it is decided, while no other write is under way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from ..listing.matching import ids_in, searched
from ..records.filters import Filter
from ..records.record import Record
from ..search.twins import having
from ..signatures import Twins
from ..storage.pending import Pending


class Reader(Protocol):
    """Reads the records that a batch depends on, by namespace, while no other writer comes between."""

    def live(self, ids: Mapping[str, Sequence[str]]) -> Mapping[str, list[str]]:
        """Which of these ids live records have, in their order."""
        ...

    def passing(self, filter: Filter, namespace: str | None) -> Mapping[str, list[str]]:
        """The ids of the live records that pass, in the order of their last write."""
        ...

    def having(self, texts: Mapping[str, Sequence[str]]) -> Mapping[str, list[list[str]]]:
        """The ids of the live records that have each of these texts, in the order of their last write."""
        ...

    def records(self, ids: Mapping[str, Sequence[str]]) -> Iterator[Record]:
        """The live records with these ids. They are read as they are consumed."""
        ...


@dataclass(frozen=True)
class PendingReader:
    """A `Reader` of one memory."""

    pending: Pending

    def live(self, ids: Mapping[str, Sequence[str]]) -> Mapping[str, list[str]]:
        found = {name: searched(self.pending.snapshot(name)).find_all(some) for name, some in ids.items()}
        return {name: [one for one in some if one in found[name]] for name, some in ids.items()}

    def passing(self, filter: Filter, namespace: str | None) -> Mapping[str, list[str]]:
        names = self.pending.namespaces if namespace is None else (namespace,)
        accepted = self.pending.compile(filter)
        found = {name: list(ids_in(searched(self.pending.snapshot(name)), accepted)) for name in names}
        return {name: ids for name, ids in found.items() if ids}

    def having(self, texts: Mapping[str, Sequence[str]]) -> Mapping[str, list[list[str]]]:
        def read(namespace: str, ids: Sequence[str]) -> list[Record]:
            return [*self.pending.records(namespace, ids, vectors=False)]

        found: dict[str, list[list[str]]] = {}
        for name, some in texts.items():
            snapshot = searched(self.pending.snapshot(name))
            own: list[list[str]] = [[] for _ in some]
            if snapshot.segments:
                places, documents = having(snapshot, name, read, some)
                for place, record_id in zip(places.tolist(), snapshot.ids_of(documents).tolist(), strict=True):
                    own[place].append(record_id)
            found[name] = own
        return found

    def records(self, ids: Mapping[str, Sequence[str]]) -> Iterator[Record]:
        return chain.from_iterable(self.pending.records(name, some) for name, some in ids.items())


def decide_twins(
    records: Sequence[Record], there: Mapping[str, Sequence[Sequence[str]]], twins: Twins
) -> tuple[dict[str, list[str]], list[Record], list[tuple[str, ...]]]:
    """What is removed, by namespace, and written, and for each record the ids of its twins when it came.

    `there` has, by namespace, for each of its records the ids of the live ones with its text, the oldest first. A
    record of the batch that was written is a twin of those after it.
    """
    known: dict[tuple[str, str], list[str]] = {}
    earlier: dict[tuple[str, str], list[int]] = {}
    removed: dict[str, list[str]] = {}
    written: dict[int, Record] = {}
    named: list[tuple[str, ...]] = []
    following = {name: iter(ids) for name, ids in there.items()}
    for place, record in enumerate(records):
        key, found = (record.namespace, record.text), next(following[record.namespace])
        ids, places = known.setdefault(key, [*found]), earlier.setdefault(key, [])
        named.append(tuple(ids))
        if ids and twins == "skip":
            continue
        if ids and twins == "replace":
            for other in places:
                del written[other]
            if not places:
                removed.setdefault(record.namespace, []).extend(ids)
            ids.clear()
            places.clear()
        written[place] = record
        ids.append(record.id)
        places.append(place)
    return removed, [*written.values()], named
