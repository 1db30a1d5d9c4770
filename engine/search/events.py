"""Records by time and filter, without words: events in a range, and the age ranks of time windows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from ..index.masks import CompiledFilter
from ..index.snapshot import Place, Snapshot
from ..index.time_order import documents_between
from ..storage.state import MemoryState


def events(
    memory: MemoryState, namespace: str, kind: str | None, since: float, until: float, accepted: CompiledFilter
) -> list[tuple[str, float]]:
    """As `Engine.events`; `kind` is the type (None: any)."""
    code = None if kind is None else memory.values["type"].ids.get(kind)
    if kind is not None and code is None:
        return []
    snapshot = memory.snapshot(namespace).at(time.time())
    documents, times = documents_between(snapshot, code, accepted, since, until)
    return list(zip(snapshot.ids_of(documents).tolist(), times.tolist(), strict=True))


def window_ranks(snapshot: Snapshot, places: Sequence[Place], window: float, now: float | None) -> list[int]:
    """The age rank of each document's time window among those that hold a record, 0 the newest up to that of `now`.

    Documents without a time, or in a later window, are left out.
    """
    windows = [snapshot.windows(segment, window) for segment in range(len(snapshot.segments))]
    occupied = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *windows]))
    if now is not None:
        occupied = occupied[occupied <= math.floor(now / window)]
    ranks = []
    for place in places:
        times = snapshot.segments[place.segment].times
        time = math.nan if times is None else float(times[place.position])
        if not math.isnan(time) and len(occupied) and math.floor(time / window) <= occupied[-1]:
            ranks.append(len(occupied) - 1 - int(np.searchsorted(occupied, math.floor(time / window))))
    return ranks
