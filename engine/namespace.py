"""`Namespace`: a tenant's view of a memory, which sees one namespace and no other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from .errors import QueryError, RecordError
from .hybrid.evidence import Evidence
from .hybrid.strategy import AnyStrategy
from .memory import Memory
from .offered import NAMESPACE, OF_SEVERAL, Offered
from .records.explanation import Explanation, FusedExplanation
from .records.hits import Hits
from .records.jsonl import as_records, check_batch
from .records.query import DEFAULT_K, Query
from .records.record import Record
from .route.by_namespace import ByNamespace
from .route.policy import Policy
from .search.given import AnyBatch, AnyQuery, own_queries, queries_in
from .signatures import AwaitedKeywords, CandidateKeywords, LaunchKeywords, SearchKeywords, split_defaults
from .writing import AnyRecord

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

Verb = TypeVar("Verb", bound=Callable[..., Any])
ENGINE = "the engine"
"""What is asked of several namespaces."""


def _awaited_too(verb: Verb, ask: Callable[..., Any]) -> Verb:
    """`ask` as a verb of the handle, which is awaited where the verb of the memory is."""
    if not iscoroutinefunction(verb):
        return cast(Verb, wraps(verb)(ask))

    @wraps(verb)
    async def awaited(*given: Any, **keywords: Any) -> Any:
        return await ask(*given, **keywords)

    return cast(Verb, awaited)


def _in_namespace(verb: Verb) -> Verb:
    """The verb of a memory, in the handle's namespace."""

    def ask(self: Namespace, *given: Any, namespace: str | None = "", **keywords: Any) -> Any:
        return getattr(self._memory, verb.__name__)(*given, namespace=self.named(namespace), **keywords)

    return _awaited_too(verb, ask)


def _by_name(verb: Verb) -> Verb:
    """The verb of a memory that takes a namespace alone, also by position."""

    def ask(self: Namespace, namespace: str = "") -> Any:
        return getattr(self._memory, verb.__name__)(self.named(namespace))

    return _awaited_too(verb, ask)


def _of_records(verb: Verb) -> Verb:
    """The verb of a memory that writes records, for those of the handle's namespace."""

    def ask(self: Namespace, records: Iterable[AnyRecord], **keywords: Any) -> Any:
        return getattr(self._memory, verb.__name__)(self._own_records(records, verb.__name__), **keywords)

    return _awaited_too(verb, ask)


def _of_memory(name: str) -> Any:
    """An attribute of the memory."""
    return property(lambda self: getattr(self._memory, name))


def _offered(verb: Offered, name: str) -> Any:
    """What the handle has for a verb that is offered; why not, where it is of the whole memory."""
    return _in_namespace(getattr(Memory, name)) if verb.in_namespace else OF_SEVERAL


class Namespace(Memory, lacking=NAMESPACE, made=_offered):
    """One namespace of a memory, with its own records, segments, statistics and counts.

    Records and queries that name no namespace belong to this one; those that name another are refused. The methods are
    those of `Memory`, which says what they promise and raise. `Engine.namespace` makes it. That costs nothing, so a
    server can make one for each request.
    """

    def __init__(self, memory: Memory, name: str) -> None:
        if not isinstance(name, str):
            raise QueryError(f"a namespace's name must be a string, not {type(name).__name__}")
        self._memory = memory
        self.name = self.space = name

    def __repr__(self) -> str:
        return f"Namespace({self.name!r})"

    def __len__(self) -> int:
        """The number of live records."""
        return self.count()

    searcher, coalescer, columns, closed = map(_of_memory, ("searcher", "coalescer", "columns", "closed"))
    encoder, pin, term_encoder, backend = map(_of_memory, ("encoder", "pin", "term_encoder", "backend"))
    _epoch, _writes = map(_of_memory, ("_epoch", "_writes"))
    keeps_texts, opened, opening = map(_of_memory, ("keeps_texts", "opened", "opening"))

    add, aadd = _of_records(Memory.add), _of_records(Memory.aadd)
    update, aupdate = _of_records(Memory.update), _of_records(Memory.aupdate)
    upsert, aupsert = _of_records(Memory.upsert), _of_records(Memory.aupsert)
    patch, ids, export = _in_namespace(Memory.patch), _in_namespace(Memory.ids), _in_namespace(Memory.export)
    delete, adelete = _in_namespace(Memory.delete), _in_namespace(Memory.adelete)
    fetch, records, count = _in_namespace(Memory.fetch), _in_namespace(Memory.records), _in_namespace(Memory.count)
    recency, health = _by_name(Memory.recency), _by_name(Memory.health)
    drift = _by_name(Memory.drift)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """This namespace, if it holds live records."""
        return (self.name,) if len(self) else ()

    def namespace(self, name: str) -> Namespace:
        """This handle, by the name of its namespace. Raises `QueryError` for another."""
        self.named(name)
        return self

    def named(self, namespace: str | None) -> str:
        """The namespace that a verb means, which is this one. Raises `QueryError` for another."""
        if namespace not in ("", self.name):
            raise QueryError(f"the handle is on the namespace {self.name!r}; ask {ENGINE} for {namespace!r}")
        return self.name

    def drop(self, namespace: str = "") -> None:
        self._memory.drop(self.named(namespace))

    def search(self, queries: AnyBatch, k: int = DEFAULT_K, **keywords: Unpack[SearchKeywords]) -> Hits:
        """As `Memory.search`, with its keywords."""
        checked, rest = self._own_batch(queries, keywords)
        return self._memory.search(checked, k, **rest)

    async def asearch(self, queries: AnyBatch, k: int = DEFAULT_K, **keywords: Unpack[AwaitedKeywords]) -> Hits:
        """As `Memory.asearch`, with its keywords; launches are shared with other namespaces, answers are not."""
        checked, rest = self._own_batch(queries, keywords)
        return await self._memory.asearch(checked, k, **rest)

    def submit(self, queries: AnyBatch, k: int = DEFAULT_K, **keywords: Unpack[LaunchKeywords]) -> Future[Hits]:
        """As `Memory.submit`, with its keywords; launches are shared with other namespaces, answers are not."""
        checked, rest = self._own_batch(queries, keywords)
        return self._memory.submit(checked, k, **rest)

    def candidates(self, queries: AnyBatch, strategy: AnyStrategy, **keywords: Unpack[CandidateKeywords]) -> Evidence:
        """As `Memory.candidates`, with its keywords."""
        checked = own_queries(queries, self.name, {}, ENGINE, "candidates")
        return self._memory.candidates(checked, strategy, **keywords)

    def explain(
        self, query: AnyQuery, document: str, *, strategy: AnyStrategy | Policy | ByNamespace = "bm25"
    ) -> Explanation | FusedExplanation:
        (checked,) = own_queries([query], self.name, {}, ENGINE)
        return self._memory.explain(checked, document, strategy=strategy)

    def stats(self, *, namespace: str | None = None) -> dict[str, Any]:
        return self._memory.stats(namespace=self.named(namespace or ""))

    def _own_records(self, records: Iterable[AnyRecord], verb: str) -> Iterator[Record]:
        check_batch(records, verb)
        for record in as_records(records):
            if record.namespace not in ("", self.name):
                raise RecordError("the record names another namespace than the one it is given to", record_id=record.id)
            yield record if record.namespace == self.name else replace(record, namespace=self.name)

    def _own_batch(self, queries: AnyBatch, keywords: Mapping[str, Any]) -> tuple[Sequence[Query], Any]:
        """The queries, which no keyword leads to another namespace, and the keywords that are not theirs."""
        defaults, rest = split_defaults(keywords)
        if not defaults and isinstance(queries, (list, tuple)) and {*map(type, queries)} == {str}:
            return queries_in(self.name, queries), rest
        return own_queries(queries, self.name, defaults, ENGINE), rest
