"""The requests, sizes and counters of a `Storage` (storage.py), and how its batches are cut into chunks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import NamedTuple, TypeAlias, TypedDict, TypeVar

from ..errors import UnknownIdError
from ..records.record import Record
from .pending import Decide
from .renumber import Left
from .row_codec import EncodedRecord

T = TypeVar("T")

# Records, and characters of their texts, that are analysed at a time while an index is built (A126). This bounds the
# memory beside the index: 50,000 records of SGD alone took as much memory as its whole index.
BUILD_CHUNK = 1 << 14


BUILD_CHARACTERS = 1 << 23


# Records that are read before their characters are counted.
READ = 1 << 10


class Batch(TypedDict, total=False):
    """What one write removes, by namespace, and then adds."""

    removed: Mapping[str, Sequence[str]]
    added: Iterable[Record]
    missing_ok: bool


Outcome: TypeAlias = int | BaseException
"""How many records a write changed, or why it failed."""


@dataclass(eq=False)
class Write:
    """One batch: ids to remove, by namespace, then records to add."""

    removed: Mapping[str, Sequence[str]]
    added: Iterable[Sequence[Record]]
    """A list of one chunk or none, which can be read again; of a bulk, what is read once."""
    missing_ok: bool = False
    """Whether ids to remove that no live record has are skipped; else they are an error."""
    threads: int = 1
    """Threads that analyse a batch of more than one chunk."""
    bulk: bool = False
    """Whether there is more than one chunk."""
    decide: Decide | None = None
    """Says what is removed and added once the batches before this one are prepared."""
    expired: bool = False
    """Whether all records that have expired are removed."""
    notes: Mapping[str, str | None] = field(default_factory=dict)
    """What the store keeps with the batch, as `RecordStore.write`."""
    orders: Sequence[int] | None = None
    """The number of each added record's write, where it does not bring it: as in `Columns.of`."""
    rows: Sequence[EncodedRecord] | None = None
    """The added records as rows, where they are encoded already."""
    count: int = 0
    """The number of records added; of records removed if none was added."""
    left: Left = field(default_factory=Left)
    """What the batch merged and took out of the index."""
    done: bool = False
    error: BaseException | None = None

    @property
    def alone(self) -> bool:
        """Whether the batch must be prepared by itself."""
        return self.bulk or self.expired or self.decide is not None or bool(self.notes) or self.orders is not None

    @property
    def records(self) -> int:
        """The records that it adds, unless it is a bulk."""
        return sum(map(len, self.added))


class Sizes(NamedTuple):
    """The sizes of a memory's vocabularies at one moment."""

    terms: int
    weight_terms: int
    entity_terms: int
    values: Mapping[str, int]


@dataclass
class Counters:
    """Counts of what a memory has done, and the last failure in the background."""

    merges: int = 0
    merged_documents: int = 0
    compacted_documents: int = 0
    """Deleted documents that merges left out."""
    renumberings: int = 0
    checkpoints: int = 0
    commits: int = 0
    batches: int = 0
    """Batches written; more than `commits` if several were committed together."""
    error: str | None = None
    """The last failure in the background; None once background work succeeds again."""


def let_others_run() -> None:
    """Release the interpreter's lock for a moment. Otherwise a search that waits for it would wait up to 5 ms."""
    time.sleep(0)


def chunks_of(records: Iterator[Record], most: int | None = None) -> Iterator[list[Record]]:
    """The records in lists of up to `BUILD_CHUNK` records and about `BUILD_CHARACTERS` characters.

    At most `most` lists; None: all.
    """
    for _ in repeat(None) if most is None else range(most):
        chunk: list[Record] = []
        characters = 0
        while len(chunk) < BUILD_CHUNK and characters < BUILD_CHARACTERS:
            read = list(islice(records, min(READ, BUILD_CHUNK - len(chunk))))
            if not read:
                break
            chunk += read
            characters += characters_of(read)
        if not chunk:
            return
        yield chunk


def characters_of(records: Sequence[Record]) -> int:
    """The characters of the records' texts and fields."""
    texts = sum([len(record.text) for record in records])
    return texts + sum([len(text) for record in records if record.fields for text in record.fields.values()])


def joint(requests: Sequence[Write]) -> deque[list[Write]]:
    """The requests in groups, in their order. The requests of a group touch different records, so they are prepared
    as one batch: as 200 batches they would make as many segments."""
    groups: deque[list[Write]] = deque()
    touched: set[tuple[str, str]] = set()
    count = characters = 0
    for request in requests:
        if request.alone:
            groups.append([request])
            count = BUILD_CHUNK
            continue
        records = list(records_of([request]))
        ids = {(record.namespace, record.id) for record in records}
        ids.update((namespace, name) for namespace, some in request.removed.items() for name in some)
        size = characters_of(records)
        count, characters = count + len(records), characters + size
        if not groups or count >= BUILD_CHUNK or characters >= BUILD_CHARACTERS or not touched.isdisjoint(ids):
            groups.append([])
            touched, count, characters = set(), len(records), size
        groups[-1].append(request)
        touched |= ids
    return groups


def records_of(requests: Iterable[Write]) -> Iterator[Record]:
    """The records that the requests add, in order."""
    return chain.from_iterable(chunk for request in requests for chunk in request.added)


def removed_by(requests: Iterable[Write]) -> dict[str, list[str]]:
    """The ids that the requests remove, by namespace."""
    removed: dict[str, list[str]] = {}
    for request in requests:
        for namespace, ids in request.removed.items():
            removed.setdefault(namespace, []).extend(ids)
    return removed


def count_removed(request: Write, live: Mapping[str, Mapping[str, object]]) -> int:
    """How many live records the request removes. Raises `UnknownIdError`, unless ids may be missing."""
    count = 0
    for namespace, ids in request.removed.items():
        missing = next((name for name in ids if name not in live[namespace]), None)
        if missing is not None and not request.missing_ok:
            where = f" in namespace {namespace!r}" if namespace else ""
            raise UnknownIdError(f"no live record with id {missing!r}{where}; nothing was changed")
        count += len(live[namespace].keys() & ids)
    return count


def group_by_namespace(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each namespace, in their order."""
    return group_along(records, records)


def group_along(records: Sequence[Record], values: Sequence[T]) -> dict[str, list[T]]:
    """What stands beside each of the records, by their namespaces, in their order."""
    namespaces = dict.fromkeys(map(_namespace, records))
    if len(namespaces) == 1:
        return {next(iter(namespaces)): list(values)}
    groups: dict[str, list[T]] = {namespace: [] for namespace in namespaces}
    for record, value in zip(records, values, strict=True):
        groups[record.namespace].append(value)
    return groups


_namespace = attrgetter("namespace")
