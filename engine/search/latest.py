"""Which records a newer one hides that agrees with them in one or two columns (`latest`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Integers
from ..index.columns import ABSENT, Columns
from ..index.groups import Chosen
from ..index.masks import CompiledFilter, first_codes, unknown_column
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
    moment = _last_moment(snapshot, float(now))
    key = columns, settings.filter, settings.since, settings.until, moment
    found = known.get(key)
    if found is None:
        if len(known) >= KEPT:
            known.clear()
        found = known[key] = _choose(memory, snapshot, settings, columns, moment)
    return found


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


def _last_moment(snapshot: Snapshot, now: float) -> float:
    """The last time of a document that is not after `now`; inf where none is after it.

    So a choice holds until the next time of a document.
    """
    _, latest = snapshot.spans
    if (latest <= now).all():
        return np.inf
    times: Floats | None = snapshot.derived.get("times")
    if times is None:
        times = _read(snapshot, lambda each: each.times, np.nan)
        times = snapshot.derived["times"] = np.sort(times[~np.isnan(times)])
    place = int(np.searchsorted(times, now, "right"))
    return float(times[place - 1]) if place else -np.inf


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
