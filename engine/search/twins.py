"""Which records agree in a column or in their texts, for queries that keep one hit of those that do (`collapse`).

Texts are compared by hashes of 64 bits. The first such search of a memory reads all texts that it searches; segments
keep the hashes, and what merges make of them has them too, so later searches read what was written since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Integers
from ..index.columns import ABSENT, hashes_of
from ..index.groups import Groups, first_of_each
from ..index.masks import CompiledFilter, first_codes
from ..index.snapshot import Snapshot
from ..index.text_hashes import TextHashes
from ..index.union import Union
from ..locks import once
from ..plan.passing import flags_of
from ..plan.requests import QuerySettings
from ..records.query import TEXT
from ..records.record import RecordsOf
from ..storage.state import MemoryState

# Groups and choices of other filters and time ranges that a snapshot keeps.
KEPT = 8
# Records whose texts are read at a time.
PIECE = 1 << 14


@dataclass(frozen=True)
class Twins:
    """The records that a query may find, in groups that agree in `column`."""

    memory: MemoryState = field(compare=False)
    column: str
    accepted: CompiledFilter
    since: float
    until: float

    def others(self, snapshot: Snapshot, documents: Integers) -> npt.NDArray[np.object_]:
        """The ids of the other records in each document's group, in the order of arrival; None for -1."""
        return self.groups(snapshot).named(snapshot, documents, others=True)

    def groups(self, snapshot: Snapshot) -> Groups:
        """They are made at the first call; those of texts of the hashes that the search has read."""
        known: dict[Twins, Groups] = snapshot.derived.setdefault("twins", {})
        groups = known.get(self)
        if groups is None:
            numbers = numbers_at(self.memory, snapshot, self.column, np.arange(snapshot.numbers))
            flags = flags_of(snapshot, QuerySettings(self.accepted, self.since, self.until))
            groups = Groups.by(numbers, numbers != ABSENT if flags is None else flags & (numbers != ABSENT))
            if len(known) >= KEPT:
                known.clear()
            known[self] = groups
        return groups


@dataclass(frozen=True, eq=False)
class TwinIds:
    """The record ids of one snapshot's document numbers, and those of their `twins`: an `IdResolver` of all queries."""

    snapshot: Snapshot
    twins: Twins

    def __call__(self, documents: Integers) -> npt.NDArray[np.object_]:
        return self.snapshot.record_ids(documents)

    def copies(self, documents: Integers) -> npt.NDArray[np.object_]:
        return self._groups.named(self.snapshot, documents, others=True)

    def slice(self, start: int, stop: int) -> TwinIds:
        return self

    @once
    def _groups(self) -> Groups:
        return self.twins.groups(self.snapshot)


def twins_of(memory: MemoryState, asked: Iterable[Any]) -> tuple[Twins | None, ...]:
    """For each prepared query the records that its hits may stand for; None where it does not collapse."""
    return tuple(
        [
            column and Twins(memory, column, each.accepted, each.settings.since, each.settings.until)
            for each in asked
            for column in (each.query.collapse,)
        ]
    )


def first_texts(
    memory: MemoryState,
    snapshot: Snapshot,
    settings: QuerySettings,
    namespace: str,
    sources: Callable[[], RecordsOf | None],
) -> tuple[QuerySettings, TwinIds] | None:
    """The settings by which the first record of each text alone passes, of those that pass before, and what names them
    all.

    Where scores follow from texts, and equal scores stand in the order of arrival, it is the best hit of them. The last
    two arguments are as for `read_hashes`; None where `sources` gives none.
    """
    known: dict[QuerySettings, tuple[QuerySettings, TwinIds]] = snapshot.derived.setdefault("first texts", {})
    found = known.get(settings)
    if found is None:
        records = sources()
        if records is None:
            return None
        flags = flags_of(snapshot, settings)
        flags = np.ones(snapshot.numbers, dtype=np.bool_) if flags is None else flags
        parts = [flags[start:stop] for start, stop in pairwise([*snapshot.firsts, snapshot.numbers])]
        chosen = first_of_each(snapshot, read_hashes(snapshot, namespace, records), parts)
        twins = Twins(memory, TEXT, settings.filter, settings.since, settings.until)
        if len(known) >= KEPT:
            known.clear()
        found = known[settings] = replace(settings, filter=chosen), TwinIds(snapshot, twins)
    return found


def numbers_at(memory: MemoryState, snapshot: Snapshot, column: str, documents: Integers) -> Integers:
    """A number for the value of each of these documents, `ABSENT` where it has none."""
    if column == TEXT:
        return _number_texts(snapshot, documents)
    if column in memory.schema.categories:
        codes = snapshot.codes_of(column, documents).astype(np.int64)
        return (
            codes if column not in memory.schema.json else np.append(first_codes(memory.values[column]), ABSENT)[codes]
        )
    values = snapshot.numbers_of(column, documents)
    numbers = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return np.where(np.isnan(values), ABSENT, numbers)


def _number_texts(snapshot: Snapshot, documents: Integers) -> Integers:
    values, known = np.zeros(len(documents), dtype=np.uint64), np.zeros(len(documents), dtype=np.bool_)
    for first, segment in zip(snapshot.firsts, snapshot.segments, strict=True):
        inside = (documents >= first) & (documents < first + segment.size)
        held = segment.text_hashes
        if held is not None:
            places = documents[inside] - first
            values[inside], known[inside] = held.values[places], held.known[places]
    numbers = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return np.where(known, numbers, ABSENT)


def having(
    snapshot: Snapshot, namespace: str, records: RecordsOf | None, texts: Sequence[str]
) -> tuple[Integers, Integers]:
    """(places, documents): the live documents with the text at each place of `texts`, by place, then by arrival."""
    wanted = hashes_of(texts)
    found = [(np.zeros(0, dtype=np.int64),) * 2]
    for number, held in enumerate(read_hashes(snapshot, namespace, records)):
        places, documents = held.find(wanted)
        alive = snapshot.alive(number)
        if alive is not None:
            places, documents = places[alive[documents]], documents[alive[documents]]
        found.append((places, documents + snapshot.firsts[number]))
    places, documents = map(np.concatenate, zip(*found, strict=True))
    order = np.argsort(places, kind="stable")
    return places[order], documents[order]


def read_hashes(snapshot: Snapshot, namespace: str, records: RecordsOf | None) -> list[TextHashes]:
    """The hashes of all live texts, by segment.

    `namespace` is that of the query, and `records` fetches what the segments do not hold themselves.
    """
    read: list[TextHashes] = []
    for number, segment in enumerate(snapshot.segments):
        held, alive = segment.text_hashes, snapshot.alive(number)
        missing = np.ones(segment.size, dtype=np.bool_) if held is None else ~held.known
        if alive is not None:
            missing &= alive
        if held is None or missing.any():
            held = _read(snapshot, number, namespace, records, missing)
            segment.keep_text_hashes(held)
        read.append(held)
    return read


def _read(snapshot: Snapshot, number: int, namespace: str, records: RecordsOf | None, missing: Flags) -> TextHashes:
    segment = snapshot.segments[number]
    if segment.records is not None:
        return TextHashes(hashes_of([record.text for record in segment.records]), np.ones(segment.size, dtype=np.bool_))
    assert records is not None
    if isinstance(snapshot, Union):
        namespace = str(snapshot.namespaces_of(np.array([snapshot.firsts[number]]))[0])
    held = segment.text_hashes or TextHashes.none(segment.size)
    values, known = held.values.copy(), held.known.copy()
    places = np.flatnonzero(missing)
    for start in range(0, len(places), PIECE):
        piece = places[start : start + PIECE]
        found = records(namespace, segment.ids.strings.take(piece))
        # A record that was deleted after the search began has no text any more, and stands alone.
        there = piece[np.array([record is not None for record in found], dtype=np.bool_)]
        values[there] = hashes_of([record.text for record in found if record is not None])
        known[there] = True
    return TextHashes(values, known)
