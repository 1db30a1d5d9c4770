"""The global order of writes, which decides between equal scores.

One engine orders equal scores by the last write. Over several shards that order must be global, so each write of a
record has a number. It goes beside the record from message to message, and stands in a number column of the shard's
engine that callers never see, and in the record's row. So it is durable with its record, and merges and moves keep it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from ...engine.errors import DamagedIndexError
from ...engine.index.column_names import check_free
from ...engine.index.columns import AUTO, ORDER
from ...engine.index.masks import CompiledFilter
from ...engine.index.snapshot import Snapshot
from ...engine.listing.matching import passing
from ...engine.listing.orders import Entry, blocks
from ...engine.records.record import Record

LIMIT = 1 << 53
"""The first integer that float64, in which columns of numbers are kept, cannot tell from its successor."""

Numbered = tuple[int, Record]
"""A record with the number of its write."""


def with_order(columns: Mapping[str, str] | str | None) -> dict[str, str]:
    """The columns of a shard's engine, for a caller's `columns`. Raises `ParameterError` where they name `ORDER`."""
    declared: dict[str, str] = {"*": "json"} if columns == AUTO else dict(columns or {})  # type: ignore[arg-type]
    check_free(declared)
    return {**declared, ORDER: "number"}


def without_order(columns: Mapping[str, str]) -> dict[str, str]:
    """The caller's columns, of those of a shard's engine."""
    return {name: kind for name, kind in columns.items() if name != ORDER}


def strip(record: Record) -> Record:
    """The record as its caller wrote it: a row has the number of its write among its `extra`."""
    if ORDER not in record.extra:
        return record
    stripped = object.__new__(type(record))  # as `Record.with_rows`: all fields are checked already
    extra = {name: value for name, value in record.extra.items() if name != ORDER}
    stripped.__dict__.update(record.__dict__, extra=extra)
    return stripped


def orders_of(snapshot: Snapshot, documents: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The numbers of the last writes of these documents, same shape; -1 for -1."""
    orders = np.full(documents.shape, -1, dtype=np.int64)
    present = documents >= 0
    orders[present] = snapshot.numbers_of(ORDER, documents[present]).astype(np.int64)
    return orders


def entries_written(
    namespace: str, snapshot: Snapshot, accepted: CompiledFilter, after: int | None = None, reverse: bool = False
) -> Iterator[Entry]:
    """The records of a namespace that pass, in the order of their writes, from behind the number `after`.

    A shard's documents stand in the order of these numbers, so each segment is entered by bisection.
    """
    places = range(len(snapshot.segments))
    for place in reversed(places) if reverse else places:
        segment = snapshot.segments[place]
        numbers = segment.columns.numbers[ORDER]
        start, stop = 0, segment.size
        if after is not None:
            bound = int(np.searchsorted(numbers, after, "left" if reverse else "right"))
            start, stop = (0, bound) if reverse else (bound, stop)
        if start == stop:
            continue
        mask = passing(snapshot, place, accepted)
        positions = np.arange(start, stop) if mask is None else start + np.flatnonzero(mask[start:stop])
        for block in blocks(positions[::-1] if reverse else positions):
            orders = numbers[block].astype(np.int64).tolist()
            ids = segment.ids.strings.take(block)
            for order, record_id, position in zip(orders, ids, block.tolist(), strict=True):
                yield Entry((0, order), namespace, record_id, place, position)


def next_order(snapshots: Iterable[Snapshot]) -> int:
    """One more than the largest number in these snapshots; 0 where they hold none.

    Raises `DamagedIndexError` for a record without a number, which an engine of its own has written to the directory.
    """
    largest = -1
    for snapshot in snapshots:
        for number, segment in enumerate(snapshot.segments):
            numbers = segment.columns.numbers.get(ORDER, np.full(segment.size, np.nan))
            if (alive := snapshot.alive(number)) is not None:
                numbers = np.where(alive | ~np.isnan(numbers), numbers, -1)
            if (unnumbered := np.flatnonzero(np.isnan(numbers))).size:
                raise DamagedIndexError(
                    f"record {segment.ids.strings[int(unnumbered[0])]!r} has no number of its write: another engine "
                    "wrote it to a shard's directory; open that directory with Engine.open(accept_loss=True), and "
                    "delete such records"
                )
            largest = max(largest, int(numbers.max(initial=-1)))
    return largest + 1
