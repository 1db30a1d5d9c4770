"""Runs of an agent: its queries and what they found, recorded to a file of JSON lines, and asked again later.

Scores are integers inside and written whole, so a run that is replayed over the same records has the same bits, on any
machine. Where it has not, the first hit that differs is looked up among the writes since.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import wraps
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, Protocol

from ..errors import ParameterError, StorageError
from ..records.hits import Hits
from ..records.query import Query
from ..records.query_json import parse_query, query_to_json
from ..records.record import Record

# Differences that a report names; it counts the others.
SHOWN_DIFFERENCES = 100
# Queries of a run that are asked together.
ASKED_AGAIN = 1_024


@dataclass(frozen=True)
class Writes:
    """What was written since a moment, by the numbers of the writes; None: that is not known."""

    written: Mapping[str, int] | None = None
    """The last write of each record that was asked for and is live."""
    removed: Mapping[str, int] = field(default_factory=dict)
    """The removal of each that was asked for, as far as the store still knows."""
    first: tuple[int, str, str] | None = None
    """The first of all: its number, the record, and whether it was ``written`` or ``removed``; "" and ``dropped`` where
    the namespace was."""


class Replayed(Protocol):
    """What is asked of the memory."""

    def search(self, queries: Sequence[Query], k: int, *, strategy: Any = ...) -> Hits: ...

    def fetch(self, ids: Sequence[str], *, namespace: str = ...) -> list[Record | None]: ...

    def _epoch(self) -> Any: ...

    def _writes(self, namespace: str, ids: Sequence[str], epoch: Any) -> Writes: ...


class Recording:
    """Writes what a memory is asked, and what it answers, while the block lasts. Threads may ask at once.

    Within the block the memory's own `search`, `asearch` and `submit` are replaced by such that write down what they
    return. A search that fails leaves no line.
    """

    def __init__(self, memory: Any, path: str | os.PathLike[str]) -> None:
        self._memory, self._path, self._lock = memory, Path(path), threading.Lock()
        self._submitted = set[threading.Event]()
        self.queries = 0
        """How many were written."""

    def __enter__(self) -> Recording:
        if "search" in vars(self._memory):
            raise ParameterError("this memory is being recorded already")
        try:
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written: {error.strerror}") from error
        memory = self._memory
        search, asearch, submit = memory.search, memory.asearch, memory.submit

        @wraps(search)
        def recorded(queries: Any, k: int = 10, **keywords: Any) -> Hits:
            epoch = memory._epoch()
            return self._note(epoch, k, keywords, search(queries, k, **keywords))

        @wraps(asearch)
        async def arecorded(queries: Any, k: int = 10, **keywords: Any) -> Hits:
            epoch = memory._epoch()
            return self._note(epoch, k, keywords, await asearch(queries, k, **keywords))

        @wraps(submit)
        def submitted(queries: Any, k: int = 10, **keywords: Any) -> Future[Hits]:
            epoch, future, over = memory._epoch(), submit(queries, k, **keywords), threading.Event()
            self._submitted.add(over)

            def note(done: Future[Hits]) -> None:
                try:
                    if not (done.cancelled() or done.exception()):
                        self._note(epoch, k, keywords, done.result())
                finally:
                    self._submitted.discard(over)
                    over.set()

            future.add_done_callback(note)
            return future  # type: ignore[no-any-return]

        vars(memory).update(search=recorded, asearch=arecorded, submit=submitted)
        return self

    def __exit__(self, *_: object) -> None:
        for name in ("search", "asearch", "submit"):
            vars(self._memory).pop(name)
        # Who waits for an answer has it before it is written down.
        for over in [*self._submitted]:
            over.wait()
        with self._lock:
            self._file.close()

    def _note(self, epoch: Any, k: int, keywords: Mapping[str, Any], hits: Hits) -> Hits:
        strategy = keywords.get("strategy", "bm25")
        if isinstance(strategy, Mapping):
            strategy = {name: one if isinstance(one, str) else one.to_dict() for name, one in strategy.items()}
        about = {"k": k, "strategy": strategy if isinstance(strategy, (str, dict)) else strategy.to_dict()}
        about |= {"reranked": True} if keywords.get("reranker") is not None else {}
        lines = [
            json.dumps({"query": query_to_json(query), **about, "epoch": epoch, "at": time.time(), "hits": row})
            for query, row in zip(hits.queries, rows_of(hits), strict=True)
        ]
        with self._lock:
            if not self._file.closed:
                self._file.writelines(line + "\n" for line in lines)
                self.queries += len(lines)
        return hits


def rows_of(hits: Hits) -> list[list[list[Any]]]:
    """Of each query its hits as [id, namespace, score]."""
    return [[[hit["id"], hit["namespace"], hit["score"]] for hit in row] for row in hits.to_dicts()]


def read_run(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The lines of a run. Raises `ParameterError` for what is none."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                made = _parsed(line)
                if made is None:
                    raise ParameterError(f"{path}:{number}: no line of a recorded run (memory.record makes them)")
                yield made
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"{path}: cannot be read: {error}") from None


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        made = json.loads(line)
    except ValueError:
        return None
    if not isinstance(made, dict) or not {"query", "k", "strategy", "hits"} <= {*made}:
        return None
    hits, epoch = made["hits"], made.get("epoch")
    whole = isinstance(hits, list) and all(isinstance(hit, list) and len(hit) == 3 for hit in hits)
    return made if whole and (epoch is None or (isinstance(epoch, list) and len(epoch) == 2)) else None


def replay(memory: Replayed, run: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The report on a run that is asked again, as `Memory.replay`."""
    counts, changes = Counter[str](), Counter[str]()
    differences: list[dict[str, Any]] = []
    number = 0
    for (k, strategy, reranked), lines in groupby(run, lambda one: (one["k"], one["strategy"], one.get("reranked"))):
        asked = [*lines]
        for start in range(0, len(asked), ASKED_AGAIN):
            part = asked[start : start + ASKED_AGAIN]
            if reranked:  # no file says which model reranked them
                counts["skipped"] += len(part)
            else:
                hits = memory.search([parse_query(line["query"]) for line in part], k, strategy=strategy)
                for place, (line, now) in enumerate(zip(part, rows_of(hits), strict=True), number):
                    counts["same" if line["hits"] == now else "different"] += 1
                    if line["hits"] != now:
                        found = difference(memory, line, now)
                        changes[found["change"]] += 1
                        differences.append({"query": place, "text": line["query"].get("text", ""), **found})
            number += len(part)
    return {
        "queries": number,
        **{name: counts[name] for name in ("same", "different", "skipped")},
        "passed": not counts["different"],
        "changes": dict(changes.most_common()),
        "differences": differences[:SHOWN_DIFFERENCES],
    }


def difference(memory: Replayed, line: Mapping[str, Any], now: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """The first hit that differs, and the write that made it.

    ``removed``: the record of the hit is gone; ``written``: it, or the one that has its place, was written since;
    ``statistics``: another record was, and scores count all; ``unexplained``: nothing was.
    """
    was = line["hits"]
    rank, (old, new) = next((rank, pair) for rank, pair in enumerate(zip_longest(was, now), 1) if pair[0] != pair[1])
    found = {"rank": rank, "was": old, "is": new}
    places = [hit for hit in (old, new) if hit is not None]
    for record_id, namespace, _ in places:
        (record,) = memory.fetch([record_id], namespace=namespace)
        writes = memory._writes(namespace, [record_id], line.get("epoch"))
        if record is None:
            return {**found, "change": "removed", "id": record_id, "write": writes.removed.get(record_id)}
        if writes.written and record_id in writes.written:
            return {**found, "change": "written", "id": record_id, "write": writes.written[record_id]}
    namespace = places[0][1]
    writes = memory._writes(namespace, (), line.get("epoch"))
    if writes.written is None:
        return {**found, "change": "unknown", "id": None, "write": None}
    if writes.first is None:
        return {**found, "change": "unexplained", "id": None, "write": None}
    write, record_id, kind = writes.first
    return {**found, "change": "statistics", "id": record_id, "write": write, "kind": kind}
