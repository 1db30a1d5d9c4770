"""Finds the time that a query names, also as an occasion of a memory: "since I joined", "the last time we met"."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import Floats, Integers
from ..errors import ParameterError, QueryError
from ..index.masks import EVERYTHING, CompiledFilter
from ..index.snapshot import Snapshot
from ..index.union import namespaces_of
from ..recall.hints import EVENT
from ..records.query import Query, zone_of
from ..records.record import RecordsOf
from ..search.batch import PreparedQuery
from ..search.lexical import analyse
from ..storage.state import MemoryState
from ..text.time_expressions.occasions import Occasion
from ..text.time_expressions.parse import When, parse_when

# Texts of one query that are read at most. Where more events hold the words, the query names no time.
MOST_TEXTS = 1000
# Texts that are read together, the latest first.
TEXTS = 50


def time_named(query: Query, row: int, **how: Any) -> When | None:
    """The time that a query names, None without a `now`; `how` is as for `parse_when`.

    Raises `QueryError`, which names the query's `row`, for a `now` outside the calendar.
    """
    if query.now is None:
        return None
    zone = zone_of(query.timezone)
    try:
        return parse_when(query.text, float(query.now), last_session_end=query.last_session_end, timezone=zone, **how)
    except ParameterError as error:
        raise QueryError(f"query {row}: {error}") from None


def date_occasion(
    memory: MemoryState, asked: PreparedQuery, records: RecordsOf | None, occasion: Occasion
) -> float | None:
    """When an occasion took place: the time of the event whose text says so (`Occasion.said_in`), up to now.

    Events are the live records of type ``Event`` that the query may find, whatever its `since` and `until` are. Of the
    last time, the latest counts. Else all such events must have one time. None where none says so, where it is not sure
    which is meant, where more than `MOST_TEXTS` would have to be read, and where the engine keeps no texts.
    """
    query, snapshot = asked.query, asked.snapshot
    kind = memory.values["type"].ids.get(EVENT)
    if records is None or kind is None or query.now is None or not snapshot.segments:
        return None
    terms = np.array(sorted({term for form in occasion.forms for term in analyse(memory, Query(form))}), dtype=np.int32)
    documents, times = _events_with(snapshot, terms, kind, asked.accepted, float(query.now))
    found: set[float] = set()
    for start in range(0, len(documents), TEXTS):
        if start >= MOST_TEXTS:
            return None
        part = documents[start : start + TEXTS]
        moments: list[float] = times[start : start + TEXTS].tolist()
        for text, time in zip(_texts_of(snapshot, query.namespace, part, moments, records), moments, strict=True):
            if text is not None and time not in found and occasion.said_in(text):
                if occasion.last:
                    return time
                found.add(time)
        if len(found) > 1:
            return None
    return found.pop() if found else None


def _events_with(
    snapshot: Snapshot, terms: npt.NDArray[np.int32], kind: int, accepted: CompiledFilter, until: float
) -> tuple[Integers, Floats]:
    """(documents, times) of the live events up to a moment that hold one of these terms and pass, the latest first."""
    numbers, moments = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for number, (first, segment) in enumerate(zip(snapshot.firsts, snapshot.segments, strict=True)):
        codes, times, alive = segment.columns.categories.get("type"), segment.times, snapshot.alive(number)
        lists = segment.locate(terms)
        lists = lists[lists >= 0]
        if codes is None or times is None or not len(lists):
            continue
        offsets = segment.offsets
        positions = np.unique(
            np.concatenate([segment.documents[offsets[each] : offsets[each + 1]] for each in lists.tolist()])
        ).astype(np.int64)
        kept = (codes[positions] == kind) & (times[positions] <= until)
        if alive is not None:
            kept &= alive[positions]
        positions = positions[kept]
        if accepted is not EVERYTHING:
            positions = positions[accepted.mask(segment.columns.take(positions))]
        numbers.append(first + positions)
        moments.append(times[positions])
    documents, dates = np.concatenate(numbers), np.concatenate(moments)
    latest = np.argsort(-dates, kind="stable")
    return documents[latest], dates[latest]


def _texts_of(
    snapshot: Snapshot, namespace: str, documents: Integers, times: list[float], records: RecordsOf
) -> list[str | None]:
    """The text of each document; None for a record that was written anew since the snapshot, with another time."""
    ids, spaces = snapshot.ids_of(documents), namespaces_of(snapshot, namespace, documents)
    texts: list[str | None] = [None] * len(documents)
    for space in dict.fromkeys(spaces.tolist()):
        at = np.flatnonzero(spaces == space).tolist()
        for place, record in zip(at, records(space, ids[at].tolist()), strict=True):
            if record is not None and record.time == times[place]:
                texts[place] = record.text
    return texts
