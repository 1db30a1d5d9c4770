"""Which documents may be hits, as masks."""

from __future__ import annotations

import math

import numpy as np

from ..arrays import Flags
from ..index.masks import EVERYTHING, CompiledFilter
from ..index.snapshot import Snapshot
from .plan import document_range
from .requests import QuerySettings


def mask_of(snapshot: Snapshot, number: int, accepted: CompiledFilter, since: float, until: float) -> Flags:
    """[documents] which documents of a segment are live, pass the filter and have ``since <= time <= until``."""
    segment = snapshot.segments[number]
    masks = [mask for mask in (snapshot.alive(number),) if mask is not None]
    if accepted is not EVERYTHING:
        masks.append(segment.mask(accepted))
    if since > -math.inf or until < math.inf:
        low, high, inside = document_range(segment, since, until)
        within = np.zeros(segment.size, dtype=np.bool_)
        within[low:high] = True if inside is None else inside[low:high]
        masks.append(within)
    return np.logical_and.reduce(masks) if masks else np.ones(segment.size, dtype=np.bool_)


def flags_of(snapshot: Snapshot, setting: QuerySettings) -> Flags | None:
    """By document number, whether the document may be a hit of a query with these settings; None: every one may."""
    if setting.filter is EVERYTHING and not setting.ranged and not snapshot.tombstones:
        return None
    masks = [
        mask_of(snapshot, number, setting.filter, setting.since, setting.until)
        for number in range(len(snapshot.segments))
    ]
    return np.concatenate([np.zeros(0, dtype=np.bool_), *masks])
