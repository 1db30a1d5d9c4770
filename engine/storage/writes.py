"""What waits to be written, and what was written: states, sizes and counters of a memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from operator import attrgetter
from typing import NamedTuple

from ..index.snapshot import Snapshot
from ..records.record import Record

# Records, and characters of their texts, analysed at a time while an index is built (A126): bounds what is held beside
# the index. Of 50,000 records those of SGD alone took as much memory as its whole index.
BUILD_CHUNK = 1 << 14


BUILD_CHARACTERS = 1 << 23


# Records read before their characters are counted.
READ = 1 << 10


@dataclass(eq=False)
class Write:
    """One batch: ids to remove, by namespace, then records to add."""

    removed: Mapping[str, Sequence[str]]
    added: Iterator[Sequence[Record]]
    missing_ok: bool = False
    """Whether ids to remove that nobody has are passed over."""
    threads: int = 1
    """What a batch of more than one chunk may use."""
    bulk: bool = False
    """Whether there is more than one chunk."""
    count: int = 0
    """Records added, or removed where none was added."""
    done: bool = False
    error: BaseException | None = None


class MemoryState(NamedTuple):
    """What searches and checkpoints see."""

    snapshots: Mapping[str, Snapshot]
    sequence: int
    version: int
    """Counts publications."""


class Sizes(NamedTuple):
    """Of the vocabularies."""

    terms: int
    weight_terms: int
    entity_terms: int
    values: Mapping[str, int]


@dataclass
class Counters:
    """What happened behind the writes."""

    merges: int = 0
    merged_documents: int = 0
    compacted_documents: int = 0
    """Dead documents that merges left out."""
    checkpoints: int = 0
    commits: int = 0
    batches: int = 0
    """Writes; more than `commits` where several were committed together."""
    error: str | None = None
    """The last failure in the background, None once it succeeds again."""


def let_others_run() -> None:
    """Let go of the interpreter's lock: a search that waits for it would else wait for up to 5 ms."""
    time.sleep(0)


def chunks_of(records: Iterator[Record], most: int | None = None) -> Iterator[list[Record]]:
    """The records in lists of up to `BUILD_CHUNK`, and about `BUILD_CHARACTERS`; the first `most` of them."""
    for _ in repeat(None) if most is None else range(most):
        chunk: list[Record] = []
        characters = 0
        while len(chunk) < BUILD_CHUNK and characters < BUILD_CHARACTERS:
            read = list(islice(records, min(READ, BUILD_CHUNK - len(chunk))))
            if not read:
                break
            chunk += read
            characters += sum([len(record.text) for record in read])
            characters += sum(len(text) for record in read if record.fields for text in record.fields.values())
        if not chunk:
            return
        yield chunk


def group_by_namespace(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each namespace, in their order."""
    namespaces = dict.fromkeys(map(_namespace, records))
    if len(namespaces) == 1:
        return {next(iter(namespaces)): list(records)}
    groups: dict[str, list[Record]] = {namespace: [] for namespace in namespaces}
    for record in records:
        groups[record.namespace].append(record)
    return groups


_namespace = attrgetter("namespace")
