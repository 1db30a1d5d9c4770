"""Which records a newer one hides that agrees with them in one or two columns (`latest`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import Flags, Floats, Integers, ranges
from ..index.columns import ABSENT, Columns
from ..index.groups import Chosen
from ..index.masks import EVERYTHING, CompiledFilter, first_codes, unknown_column
from ..index.segment import Segment
from ..index.snapshot import Snapshot
from ..plan.passing import flags_of
from ..plan.requests import QuerySettings
from ..storage.state import MemoryState

# Choices of other columns, filters, time ranges and clocks that a snapshot keeps.
KEPT = 8


def newest_of_each(
    memory: MemoryState, snapshot: Snapshot, settings: QuerySettings, names: str | Sequence[str], now: Any
) -> CompiledFilter:
    """The settings' filter without the records that a newer one hides. Of those that agree in the columns and pass
    filter and time range, only the newest that is not after `now` is not hidden, of equal times the one with the
    highest number; a record without a time is the oldest. One that lacks a column is compared with no other.

    Raises `UnknownColumnError`.
    """
    columns = tuple(names)
    check_latest(memory, columns)
    if not snapshot.segments:
        return settings.filter
    known: dict[object, CompiledFilter] = snapshot.derived.setdefault("latest", {})
    moment = _holds(snapshot, float(now))[0]
    key = columns, settings.filter, settings.since, settings.until, moment
    found = known.get(key)
    if found is None:
        if len(known) >= KEPT:
            known.clear()
        whole = settings.filter is EVERYTHING and not settings.ranged and moment == _holds(snapshot, np.inf)[0]
        found = _carry(memory, snapshot, columns) if whole else None
        found = known[key] = _choose(memory, snapshot, settings, columns, moment) if found is None else found
    return found


def newest_alone(memory: MemoryState, snapshot: Snapshot, columns: tuple[str, ...], now: float) -> QuerySettings:
    """The settings of queries that `newest_of_each` alone narrows. Raises `UnknownColumnError`."""
    known: dict[object, tuple[object, float, float, QuerySettings]] = snapshot.derived.setdefault("latest alone", {})
    kept = known.get(columns)
    if kept is None or kept[0] is not memory.schema or not kept[1] <= now < kept[2]:
        settings = QuerySettings(newest_of_each(memory, snapshot, _EVERYTHING, columns, now))
        kept = known[columns] = memory.schema, *_holds(snapshot, now), settings
    return kept[3]


_EVERYTHING = QuerySettings()


def check_latest(memory: MemoryState, columns: tuple[str, ...]) -> None:
    """Raise `UnknownColumnError` for what is no column."""
    if unknown := memory.schema.undeclared(columns):
        raise unknown_column(f"no column {unknown[0]!r} to find the latest by", unknown[0], memory.schema)


def _choose(
    memory: MemoryState, snapshot: Snapshot, settings: QuerySettings, columns: tuple[str, ...], moment: float
) -> CompiledFilter:
    numbers = _numbers_of(memory, snapshot, columns)
    flags = flags_of(snapshot, settings)
    hidden = numbers != ABSENT if flags is None else flags & (numbers != ABSENT)
    documents = np.flatnonzero(hidden)
    times = _read(snapshot, lambda each: each.times, np.nan)[documents]
    if moment < np.inf:
        known = ~(times > moment)
        documents, times = documents[known], times[known]
    # Without a time before all others. Most memories are written in the order of time.
    times = np.where(np.isnan(times), -np.inf, times)
    if (times[1:] < times[:-1]).any():
        documents = documents[np.argsort(times, kind="stable")]
    # The last one of each number stays.
    last = np.full(int(numbers.max(initial=ABSENT)) + 1, -1, dtype=np.int64)
    last[numbers[documents]] = documents
    hidden[last[last >= 0]] = False
    if not hidden.any():
        return settings.filter
    masks = {}
    for segment, (start, stop) in zip(snapshot.segments, pairwise([*snapshot.firsts, snapshot.numbers]), strict=True):
        # Without the time range: filtered statistics count the records outside it.
        masks[id(segment.columns)] = segment.mask(settings.filter) & ~hidden[start:stop]
    return Chosen(masks)


def _holds(snapshot: Snapshot, now: float) -> tuple[float, float]:
    """(the last time of a document that is not after `now`, the first time after it): in between a choice holds.

    They are infinite where there is no such document.
    """
    _, latest = snapshot.spans
    last = float(latest.max(initial=-np.inf))
    if last <= now:
        return last, np.inf
    times: Floats | None = snapshot.derived.get("times")
    if times is None:
        times = _read(snapshot, lambda each: each.times, np.nan)
        times = snapshot.derived["times"] = np.sort(times[~np.isnan(times)])
    place = int(np.searchsorted(times, now, "right"))
    return float(times[place - 1]) if place else -np.inf, float(times[place])


@dataclass(frozen=True, eq=False)
class _Keys:
    """What the documents of a segment hold in some columns."""

    numbers: Integers  # [documents] `ABSENT` where a document lacks one; the same in all segments of a numbering
    ordered: Integers  # the numbers that are not `ABSENT`, ascending
    documents: Integers  # the document of each, of equal ones the latest last
    times: Floats | None  # [documents]

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return self.numbers, self.ordered, self.documents


class _Part(NamedTuple):
    """A segment's keys, its live documents (None: all) and those that no newer document hides."""

    keys: _Keys
    alive: Flags | None
    shown: Flags


def _carry(memory: MemoryState, snapshot: Snapshot, columns: tuple[str, ...]) -> CompiledFilter | None:
    """The choice among all live documents, from that of the snapshot that was asked before: documents that were written
    or deleted since change the choice of their own keys alone. None for columns without a number of 64 bits.
    """
    parts = []
    for number, segment in enumerate(snapshot.segments):
        keys = _keys_of(memory, segment, columns)
        if keys is None:
            return None
        parts.append((keys, snapshot.alive(number)))
    before: tuple[_Part, ...] = snapshot.carried.get(("latest", memory.numbering, columns), ())
    now = _update(before, parts)
    if len(snapshot.carried) >= KEPT:
        snapshot.carried.clear()
    snapshot.carried["latest", memory.numbering, columns] = now
    shown = [part.shown for part in now]
    if all(flags.all() for flags in shown):
        return EVERYTHING
    return Chosen({id(each.columns): flags for each, flags in zip(snapshot.segments, shown, strict=True)})


def _update(before: Sequence[_Part], parts: Sequence[tuple[_Keys, Flags | None]]) -> tuple[_Part, ...]:
    known = {id(part.keys): part for part in before}
    touched, shown = [np.zeros(0, dtype=np.int64)], []
    for keys, alive in parts:
        part = known.pop(id(keys), None)
        if part is None:
            touched.append(keys.ordered)
        elif part.alive is not alive:
            differ = np.flatnonzero(_flags(part.alive, keys) != _flags(alive, keys))
            touched.append(keys.numbers[differ])
        shown.append(np.ones(len(keys.numbers), dtype=np.bool_) if part is None else part.shown)
    touched += [part.keys.ordered for part in known.values()]
    numbers = np.unique(np.concatenate(touched))
    numbers = numbers[numbers != ABSENT]
    # Where the newest document of each number is, and its time.
    segment, document = np.full(len(numbers), -1), np.zeros(len(numbers), dtype=np.int64)
    newest = np.full(len(numbers), -np.inf)
    changed = []
    for number, (keys, alive) in enumerate(parts):
        starts = np.searchsorted(keys.ordered, numbers, "left")
        counts = np.searchsorted(keys.ordered, numbers, "right") - starts
        if not counts.any():
            continue
        changed.append(number)
        documents, of = keys.documents[ranges(starts, counts)], np.repeat(np.arange(len(numbers)), counts)
        flags = shown[number] = shown[number].copy()
        flags[documents] = True
        if alive is not None:
            living = alive[documents]
            documents, of = documents[living], of[living]
        flags[documents] = False
        last = np.flatnonzero(np.append(of[1:] != of[:-1], True)[: len(of)])
        documents, of = documents[last], of[last]
        times = np.full(len(of), -np.inf) if keys.times is None else keys.times[documents]
        times = np.where(np.isnan(times), -np.inf, times)
        # Of equal times the document of the later segment is the newest.
        wins = times >= newest[of]
        of = of[wins]
        segment[of], document[of], newest[of] = number, documents[wins], times[wins]
    for number in changed:
        shown[number][document[segment == number]] = True
    return tuple(_Part(keys, alive, flags) for (keys, alive), flags in zip(parts, shown, strict=True))


def _flags(alive: Flags | None, keys: _Keys) -> Flags:
    return np.ones(len(keys.numbers), dtype=np.bool_) if alive is None else alive


def _keys_of(memory: MemoryState, segment: Segment, columns: tuple[str, ...]) -> _Keys | None:
    name = f"latest {columns}"
    known: _Keys | None = segment.derived.get(name)
    if known is None:
        each = [_bits_of(memory, segment, column) for column in columns]
        numbers = each[0]
        if len(each) > 1:
            if any(column not in memory.schema.categories for column in columns):
                return None
            absent = (each[0] == ABSENT) | (each[1] == ABSENT)
            numbers = np.where(absent, ABSENT, each[0] << 32 | each[1])
        documents = np.flatnonzero(numbers != ABSENT)
        held = numbers[documents]
        if segment.times is None or segment.in_order:
            order = np.argsort(held, kind="stable")
        else:
            times = segment.times[documents]
            order = np.lexsort((np.where(np.isnan(times), -np.inf, times), held))
        known = segment.derived[name] = _Keys(numbers, held[order], documents[order], segment.times)
    return known


def _bits_of(memory: MemoryState, segment: Segment, name: str) -> Integers:
    """As `_number`, for one segment: equal values have one number in all segments."""
    if name in memory.schema.categories:
        codes = segment.columns.categories.get(name)
        if codes is None:
            return np.full(segment.size, ABSENT, dtype=np.int64)
        if name not in memory.schema.json:
            return codes.astype(np.int64)
        return np.append(first_codes(memory.values[name]), ABSENT)[codes]
    values = segment.columns.numbers.get(name)
    if values is None:
        return np.full(segment.size, ABSENT, dtype=np.int64)
    # Without the sign of 0. No number has the bits of `ABSENT`.
    return np.where(np.isnan(values), ABSENT, (values + 0.0).view(np.int64))


def _numbers_of(memory: MemoryState, snapshot: Snapshot, columns: tuple[str, ...]) -> Integers:
    """By document, a number for what it holds in these columns; `ABSENT` where it lacks one."""
    each = [_number(memory, snapshot, name) for name in columns]
    if len(each) == 1:
        return each[0]
    first, second = each
    both = first * (int(second.max(initial=0)) + 1) + second
    numbers = np.unique(both, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return np.where((first == ABSENT) | (second == ABSENT), ABSENT, numbers)


def _number(memory: MemoryState, snapshot: Snapshot, name: str) -> Integers:
    if name in memory.schema.categories:
        codes = _read(snapshot, lambda each: each.categories.get(name), ABSENT, np.int32).astype(np.int64)
        if name not in memory.schema.json:
            return codes
        return np.append(first_codes(memory.values[name]), ABSENT)[codes]
    values = _read(snapshot, lambda each: each.numbers.get(name), np.nan)
    numbers = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return np.where(np.isnan(values), ABSENT, numbers)


def _read(
    snapshot: Snapshot, column: Callable[[Columns], npt.NDArray[Any] | None], absent: float, dtype: Any = np.float64
) -> npt.NDArray[Any]:
    """What the columns of all segments hold [documents], `absent` where a segment has no such column."""
    parts = [np.zeros(0, dtype=dtype)]
    for segment in snapshot.segments:
        found = column(segment.columns)
        parts.append(np.full(segment.size, absent, dtype=dtype) if found is None else found)
    return np.concatenate(parts)
