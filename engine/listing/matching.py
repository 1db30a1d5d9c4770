"""Which records a listing, a count or a change by filter meets."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..index.columns import ABSENT
from ..index.masks import EVERYTHING, CompiledFilter, compile_filter, unknown_column
from ..index.snapshot import Snapshot
from ..records.filters import Filter
from ..records.values import hashable
from ..storage.state import MemoryState

T = TypeVar("T")

Value = str | float | None
"""A value of a metadata column; None for records without one."""


def searched(snapshot: Snapshot) -> Snapshot:
    """The records that count at this moment: those that have not expired.

    Every verb that reads or changes records without ranking asks here.
    """
    return snapshot.at(time.time())


def snapshots_of(state: MemoryState, namespace: str | None) -> dict[str, Snapshot]:
    """The snapshots that a verb reads: that of one namespace, or (None) those of all."""
    names = tuple(state.snapshots) if namespace is None else (namespace,)
    return {name: searched(state.snapshot(name)) for name in names}


def compiled(state: MemoryState, filter: Filter | None) -> CompiledFilter:
    """The filter in the codes of this state. Raises `QueryError`."""
    return compile_filter(filter, state.schema, state.values)


def passing(snapshot: Snapshot, number: int, accepted: CompiledFilter) -> npt.NDArray[np.bool_] | None:
    """[documents] which documents of a segment are live and pass; None means all of them."""
    alive = snapshot.alive(number)
    if accepted is EVERYTHING:
        return alive
    mask = snapshot.segments[number].mask(accepted)
    return mask if alive is None else mask & alive


def read_matching(
    read: Callable[..., T], state: MemoryState, filter: Filter | None, namespace: str | None, *arguments: Any
) -> T:
    """What a function gives for a state, its snapshots of one namespace or (None) of all, the filter, and arguments."""
    return read(state, snapshots_of(state, namespace), compiled(state, filter), *arguments)


def count(state: MemoryState, snapshots: Mapping[str, Snapshot], accepted: CompiledFilter) -> int:
    """How many records pass."""
    total = 0
    for snapshot in snapshots.values():
        if accepted is EVERYTHING:
            total += snapshot.size
            continue
        for number, segment in enumerate(snapshot.segments):
            mask = passing(snapshot, number, accepted)
            total += segment.size if mask is None else int(np.count_nonzero(mask))
    return total


def ids_in(snapshot: Snapshot, accepted: CompiledFilter) -> Iterator[str]:
    """The ids of the records that pass, in the order of their last write."""
    for number, segment in enumerate(snapshot.segments):
        mask = passing(snapshot, number, accepted)
        if mask is None:
            yield from segment.ids.strings.tolist()
        else:
            yield from segment.ids.strings.take(np.flatnonzero(mask))


def distinct(
    state: MemoryState, snapshots: Mapping[str, Snapshot], accepted: CompiledFilter, column: str
) -> Counter[Value]:
    """How many of the records that pass have each value of a column.

    Raises `UnknownColumnError`.
    """
    schema = state.schema
    if schema.undeclared([column]):
        raise unknown_column(f"no column {column!r} to count by", column, schema)
    counts: Counter[Value] = Counter()
    for snapshot in snapshots.values():
        for number, segment in enumerate(snapshot.segments):
            mask = passing(snapshot, number, accepted)
            size = segment.size if mask is None else int(np.count_nonzero(mask))
            if column in schema.numbers:
                numbers = segment.columns.numbers.get(column)
                counts.update(_numbers(numbers, mask) if numbers is not None else {None: size})
            else:
                codes = segment.columns.categories.get(column)
                strings = state.values[column].strings
                counts.update(_categories(codes, mask, strings) if codes is not None else {None: size})
    return _joined(counts) if column in schema.json else counts


def in_order(counts: Mapping[Value, int]) -> dict[Value, int]:
    """The values with their numbers of records: the most frequent first, equally frequent ones ascending."""
    # None is least frequent among equals. Numbers and strings stand in one column only where it holds JSON.
    ordered = sorted(
        counts.items(),
        key=lambda entry: (
            -entry[1],
            entry[0] is None,
            isinstance(entry[0], str),
            0 if entry[0] is None else entry[0],
        ),
    )
    return {value: number for value, number in ordered if number}


def _joined(counts: Counter[Value]) -> Counter[Value]:
    """The counts of canonical JSON texts as those of values. Lists and objects, which are no keys, are named by their
    text; of equal values the one whose text sorts first gives the name.
    """
    named: dict[object, Value] = {}
    joined: Counter[Value] = Counter()
    for text, number in sorted(counts.items(), key=lambda entry: str(entry[0])):
        value = json.loads(text) if isinstance(text, str) else text
        joined[named.setdefault(hashable(value), text if isinstance(value, (list, dict)) else value)] += number
    return joined


def _numbers(numbers: npt.NDArray[np.float64], mask: npt.NDArray[np.bool_] | None) -> dict[Value, int]:
    numbers = numbers if mask is None else numbers[mask]
    absent = np.isnan(numbers)
    values, counts = np.unique(numbers[~absent], return_counts=True)
    return {None: int(absent.sum()), **dict(zip(values.tolist(), counts.tolist(), strict=True))}


def _categories(
    codes: npt.NDArray[np.int32], mask: npt.NDArray[np.bool_] | None, strings: Sequence[str]
) -> dict[Value, int]:
    counts = np.bincount((codes if mask is None else codes[mask]) - ABSENT)
    present = np.flatnonzero(counts)
    return {(strings[code - 1] if code else None): int(counts[code]) for code in present.tolist()}
