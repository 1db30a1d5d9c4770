"""Records by time and filter, without words: events in a range, and the age ranks of time windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..arrays import Floats, Integers
from ..index.masks import CompiledFilter
from ..index.snapshot import Place, Snapshot
from ..index.time_order import documents_between
from ..storage.state import MemoryState


def events(
    state: MemoryState,
    snapshots: Mapping[str, Snapshot],
    accepted: CompiledFilter,
    kind: str | None,
    since: float,
    until: float,
) -> list[tuple[str, float]]:
    """As `Engine.events`, of the one namespace whose snapshot it is; `kind` is the type (None: any)."""
    ((_, snapshot),) = snapshots.items()
    documents, times = events_in(state, snapshot, accepted, kind, since, until)
    return list(zip(snapshot.ids_of(documents).tolist(), times.tolist(), strict=True))


def events_in(
    state: MemoryState, snapshot: Snapshot, accepted: CompiledFilter, kind: str | None, since: float, until: float
) -> tuple[Integers, Floats]:
    """The documents of these events, and their times."""
    code = None if kind is None else state.values["type"].ids.get(kind)
    if kind is not None and code is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    return documents_between(snapshot, code, accepted, since, until)


def window_ranks(snapshot: Snapshot, places: Sequence[Place], window: float, now: float | None) -> list[int]:
    """The age rank of each document's time window among those that hold a record, 0 the newest up to that of `now`.

    Documents without a time, or in a later window, are left out.
    """
    return ranks_in(occupied_windows(snapshot, window), windows_of(snapshot, places, window), window, now)


def occupied_windows(snapshot: Snapshot, window: float) -> Integers:
    """The numbers of the time windows that hold a record, ascending."""
    windows = [snapshot.windows(segment, window) for segment in range(len(snapshot.segments))]
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *windows]))


def windows_of(snapshot: Snapshot, places: Sequence[Place], window: float) -> list[int]:
    """The number of each document's time window, without documents that have no time."""
    found = []
    for place in places:
        times = snapshot.segments[place.segment].times
        time = math.nan if times is None else float(times[place.position])
        if not math.isnan(time):
            found.append(math.floor(time / window))
    return found


def ranks_in(occupied: Integers, windows: Sequence[int], window: float, now: float | None) -> list[int]:
    """The age ranks of these windows among those that are occupied, 0 the newest up to that of `now`.

    Later ones are left out.
    """
    if now is not None:
        occupied = occupied[occupied <= math.floor(now / window)]
    if not len(occupied):
        return []
    newest = int(occupied[-1])
    return [len(occupied) - 1 - int(np.searchsorted(occupied, each)) for each in windows if each <= newest]
