"""What the coordinator and its shards say to each other: one message a shard for a launch or a write, one answer."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...engine.arrays import Floats, Integers
from ...engine.errors import FanrankError
from ...engine.fuse.candidates import Candidates
from ...engine.hybrid.strategy import Strategy
from ...engine.locks import once
from ...engine.records.filters import Filter
from ...engine.records.hits import Hits
from ...engine.records.query import Query
from ...engine.records.record import Record
from ...engine.route.by_namespace import AnyAnswerer
from ...engine.search.options import SearchOptions
from .order import Numbered
from .placement import Placement
from .statistics import Counts


@dataclass(frozen=True)
class Scope:
    """Records that one query searches and that lie in several shards."""

    names: tuple[str, ...] | None
    """The namespaces, in the order in which their records follow each other; None: all at `under` or below it."""
    under: str | None = None
    now: float | None = None
    """The moment by which records expire, where any do and the query says one; None: that of the launch."""
    apart: Filter | None = None
    """The filter whose records alone count in the statistics; None: all records do."""

    @property
    def single(self) -> bool:
        """Whether it is one split namespace."""
        return self.names is not None and len(self.names) == 1


@dataclass(frozen=True, eq=False)
class ScopeCounts:
    """The statistics by which a shard scores its part of a scope."""

    scope: Scope
    key: str
    """Stands in the queries as their namespace."""
    counts: Counts
    since: int | None
    """The epoch since which they hold, by which the shard keeps what it derives from them. None: it keeps nothing."""


@dataclass(frozen=True, eq=False)
class Forward:
    """Queries whose records all lie in this shard, as an engine would be asked."""

    queries: tuple[Query, ...]
    k: int
    answerer: AnyAnswerer
    options: SearchOptions
    explained: str | None = None
    """The id of the record whose score in the first query is to be explained, in place of an answer."""


@dataclass(frozen=True, eq=False)
class Spread:
    """Queries whose records lie in several shards."""

    queries: tuple[Query, ...]
    """Their namespaces are keys of `scopes`."""
    k: int
    strategy: Strategy | None
    """None: BM25 alone."""
    scopes: tuple[ScopeCounts, ...]
    options: SearchOptions


@dataclass(frozen=True, eq=False)
class Collect:
    """Asks for the candidates of queries whose records all lie in this shard, with the ids of their records."""

    queries: tuple[Query, ...]
    strategy: Strategy
    options: SearchOptions


@dataclass(frozen=True, eq=False)
class Count:
    """Asks for the statistics of scopes, with the document frequencies of these terms."""

    scopes: tuple[tuple[Scope, tuple[str, ...]], ...]


Item = Forward | Spread | Collect | Count


@dataclass(frozen=True, eq=False)
class Ask:
    """All that one launch asks of one shard, answered from one state."""

    epoch: int
    clock: float
    """The moment by which records expire, where queries say none."""
    items: tuple[Item, ...]
    oldest: int = 0
    """The oldest epoch that any search reads. The shard keeps no state that only older ones need."""


@dataclass(frozen=True, eq=False)
class Ranked:
    """The hits of queries, best first; padding is -inf, -1 and None."""

    scores: Floats  # [B, w]
    orders: Integers  # [B, w] numbers of the records' last writes
    ids: npt.NDArray[np.object_]  # [B, w]
    namespaces: npt.NDArray[np.object_]  # [B, w]
    counts: npt.NDArray[np.int32]  # [B]

    @classmethod
    def empty(cls, queries: int, width: int) -> Ranked:
        """No hits yet."""
        shape = queries, width
        ids, names = (np.full(shape, None, dtype=object) for _ in range(2))
        orders = np.full(shape, -1, dtype=np.int64)
        return Ranked(np.full(shape, -np.inf), orders, ids, names, np.zeros(queries, dtype=np.int32))


ShardNote = tuple[str | None, bool]
"""Why a query has no hits in a shard by its words, and whether no record there has a time in its range."""


@dataclass(frozen=True, eq=False)
class Listed(Ranked):
    """The hits of a `Spread` by BM25 in one shard. Rows are the queries'; width is at most k."""

    notes: tuple[ShardNote, ...]
    backend: str
    timing: dict[str, float] | None


@dataclass(frozen=True, eq=False)
class ListedEvidence:
    """The candidates of a `Spread` by a strategy in one shard."""

    candidates: Candidates
    """Their documents are the numbers of the records' last writes."""
    ids: npt.NDArray[np.object_]  # [candidates]
    namespaces: npt.NDArray[np.object_]  # [candidates]
    source: tuple[int, ...]
    notes: tuple[ShardNote, ...]
    backend: str
    timing: dict[str, float] | None


Forwarded = dict[str, Any]
"""The hits of a `Forward`: what `Hits` would make later, made now, without the queries, which their sender has."""

_OWNERS = ("queries", "resolver", "explainer", "annotator", "missing_shards")
_FORWARDED = (
    *(each.name for each in fields(Hits) if each.name not in _OWNERS),
    "ids",
    "namespaces",
    "exchanges",
    "copies",
    "notes",
)


def forwarded(hits: Hits) -> Forwarded:
    """What travels of the hits."""
    return {name: getattr(hits, name) for name in _FORWARDED}


@dataclass(frozen=True, eq=False)
class Failure:
    """What an item failed by."""

    error: FanrankError


@dataclass(frozen=True, eq=False)
class Gone:
    """The shard has no state of the epoch that was asked for, or its records have changed since: ask at a newer one."""

    newest: int | None
    """The epoch of its newest state; None: it was started anew and has yet to be told."""


def own_version() -> str:
    """The version of fanrank in this process."""
    version: str = importlib.import_module(__name__.partition(".")[0]).__version__
    return version


Collected = tuple[Candidates, npt.NDArray[np.object_]]
"""Candidates, and the ids of their records."""

Answered = Forwarded | Listed | ListedEvidence | Collected | tuple[Counts, ...] | Failure | Any


@dataclass(frozen=True)
class Part:
    """What one shard does of a write: it drops namespaces, removes ids, by namespace, then adds records."""

    removed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    added: Sequence[Record] = ()
    orders: Sequence[int] | None = None
    """The number of each added record's write; None: they bring it, as their rows do."""
    drop: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    """Namespaces that are being copied to the shard. No search sees them before a later part says `show`."""
    show: tuple[str, ...] = ()

    @classmethod
    def of(cls, found: Sequence[Numbered], removed: Mapping[str, Sequence[str]] | None = None, **others: Any) -> Part:
        """A part that adds these records."""
        return cls(removed or {}, [record for _, record in found], [order for order, _ in found], **others)

    @once
    def names(self) -> set[str]:
        """The namespaces that it writes to."""
        return {*self.removed, *[record.namespace for record in self.added], *self.drop}

    @property
    def numbered(self) -> Iterator[Numbered]:
        """What it adds, with the numbers."""
        assert self.orders is not None
        return zip(self.orders, self.added, strict=True)

    @property
    def copies(self) -> dict[str, bool]:
        """The namespaces that begin to be copies (True), and that are none any more."""
        return {**dict.fromkeys((*self.drop, *self.show), False), **dict.fromkeys(self.hide, True)}

    def again(self) -> Part:
        """The part for a shard that may have done it already: what it adds is removed before."""
        removed = {namespace: list(ids) for namespace, ids in self.removed.items()}
        for record in self.added:
            removed.setdefault(record.namespace, []).append(record.id)
        return replace(self, removed={name: list(dict.fromkeys(ids)) for name, ids in removed.items()})


def divide(placement: Placement, whole: Part) -> dict[int, Part]:
    """The part of a batch that each shard does."""
    homes = {home for name in whole.names for home in placement.homes(name)}
    if len(homes) == 1:
        return {home: whole for home in homes if whole.added or any(whole.removed.values())}
    removed, find = placement.by_shard(whole.removed), placement.finder()
    added: dict[int, list[Numbered]] = {}
    for each in whole.numbered:
        added.setdefault(find(each[1].namespace, each[1].id), []).append(each)
    return {shard: Part.of(added.get(shard, ()), removed.get(shard)) for shard in sorted({*removed, *added})}


@dataclass(frozen=True, eq=False)
class Acknowledged:
    """What a write changed in a shard."""

    count: int
    changes: Mapping[str, Counts | None]
    """The change of the counts of each namespace that is split. None: it is not known, and they are to be read anew."""
    sizes: Mapping[str, int]
    """The live records of each namespace that was written."""
    expiring: bool
    """Whether any record of the shard has a time of expiry."""


@dataclass(frozen=True, eq=False)
class Description:
    """What a shard is, when it was opened."""

    config: Mapping[str, Any]
    """The configuration of its directory."""
    store: str | None
    """The number of its store."""
    next_order: int
    expiring: bool
    """As in `Acknowledged`."""
    version: str
    """Of fanrank."""
    opened: str | None
    generation: int = 0
    """That of the last decision that it has carried out."""
    prepared: int | None = None
    """That of the decision whose part it has prepared."""
