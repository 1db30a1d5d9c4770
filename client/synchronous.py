"""`Client`: a server's memory with the verbs of `Engine`, for code that blocks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from ..engine.carry.files import AnyFile, format_of, written
from ..engine.carry.importing import Imported, read, reported
from ..engine.carry.json_lines import split_lines, write_lines
from ..engine.carry.progress import counted
from ..engine.carry.rows import Carried, model_of, to_json
from ..engine.carry.tables import write_table
from ..engine.encoders.embed import Given
from ..engine.encoders.patch import RecordFields
from ..engine.errors import FanrankError, UnreachableError
from ..engine.hybrid.strategy import AnyStrategy
from ..engine.listing.listing import Listing
from ..engine.memory import Memory
from ..engine.moments import Span
from ..engine.offered import CLIENT, REST, Offered
from ..engine.reading import checked_wanted
from ..engine.records.explanation import Explanation, FusedExplanation
from ..engine.records.filters import AnyFilter
from ..engine.records.hits import Hits
from ..engine.records.jsonl import as_records
from ..engine.records.query import DEFAULT_K
from ..engine.records.record import Record
from ..engine.route.by_namespace import ByNamespace
from ..engine.route.policy import Policy
from ..engine.search.given import AnyBatch, AnyQuery
from ..engine.signatures import KEEP, Twins, hinting
from ..engine.storage.row_codec import JSON
from ..engine.trust.runs import Writes
from ..engine.writing import Added, AnyRecord
from . import answers, calls
from .answers import Page
from .calls import Asked, Call, SentKeywords
from .listing import ServedListing
from .searcher import ServedSearcher
from .sending import LONGEST_LINE, NDJSON, RETRIES, TIMEOUT, Attempt, Target, load_httpx
from .steps import Steps, advance, several, steps

if TYPE_CHECKING:
    import httpx

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

R = TypeVar("R")


def _sent(verb: Offered, name: str) -> Any:
    """What a client has for a verb that is offered; None: what `Memory` has, which asks for the other."""
    if REST not in verb.doors or name != verb.name:
        return None

    @wraps(verb.function)
    def ask(self: Client, *given: Any, **keywords: Any) -> Steps[Any]:
        return answers.read_offered((yield calls.offered(verb, given, keywords, self.space)), verb)

    return steps(ask)


def write_parts(writes: Iterable[Call], twins: Twins = KEEP) -> Steps[int]:
    """The calls of a write, as `calls.write` gives them for these `twins`; it returns how many were written."""
    parts = yield from several(writes)
    count = sum([answers.read_number(part, "written") for part in parts])
    return count if twins == KEEP else Added.of(count, twins=[*chain.from_iterable(map(answers.read_twins, parts))])


def every_namespace() -> Steps[tuple[str, ...]]:
    """The namespaces that a key reaches, page after page."""
    found, after = answers.read_namespaces((yield calls.namespaces(None)))
    while after is not None:
        page, after = answers.read_namespaces((yield calls.namespaces(after)))
        found += page
    return tuple(found)


class Client(Memory, lacking=CLIENT, made=_sent):
    """The memory behind the server at `url`, with the verbs of `Engine`, its answers and its errors.

    `key` is sent with every request. `timeout` is the most seconds of one request, its repetitions included; `deadline`
    of a search asks for less, over all of its parts. The server hears of it and does not begin what nobody waits for.

    What changes nothing when it is sent twice (searches, reads, `upsert`) is sent again after a lost connection, and
    after 429 and 503: up to `retries` times, with growing pauses or those that the server asks for. `add`, `update`,
    `patch`, `delete`, `drop` are sent once: after `UnreachableError` and `DeadlineError` it is not known whether they
    were done.

    Hits equal those of the engine bit for bit, their document numbers included. ``hits.explain`` asks the server, which
    explains by the records of that moment. With ``payload=True`` alone, the records of the hits hold the payload alone.
    A batch is one request: all of its queries read one state. With ``batch=N`` it is sent in parts of N, which may read
    several states, and a write in parts is not all or nothing.

    Threads may share a client, which keeps their connections open. Close it, or use it in a ``with`` block.

    Raises `ParameterError`, and `MissingExtraError` without ``fanrank[client]``. Every verb raises as the engine's,
    and `ServerError`, `KeyRefusedError` for what the key does not reach, `UnreachableError` and `DeadlineError`.
    """

    @hinting()
    def __init__(self, url: str, key: str | None = None, *, timeout: float = TIMEOUT, retries: int = RETRIES) -> None:
        self._server = Target(url, key, timeout, retries)
        self._pool = load_httpx().Client(**self._server.options())
        self.space = None
        self._closed = False

    @property
    def searcher(self) -> ServedSearcher:  # type: ignore[override]
        """What the coalescer asks."""
        return ServedSearcher(self.search)

    @property
    def pin(self) -> dict[str, Any] | None:
        pin: dict[str, Any] | None = self.stats().get("pin")
        return pin

    @property
    def columns(self) -> dict[str, str]:
        columns: dict[str, str] = self._send(calls.columns())["columns"]
        return columns

    @property
    def closed(self) -> bool:
        return bool(self._pool.is_closed)

    @property
    def keeps_texts(self) -> bool:
        """Always true: a server's memory keeps the records."""
        return True

    @property
    def opening(self) -> bool:
        """Always false: while a server opens its memory, requests wait or say so."""
        return False

    def refresh(self) -> None:
        """Does nothing: a server sees all writes."""

    def __len__(self) -> int:
        """The number of live records that the client or the handle reaches."""
        return int(self.stats()["documents"])

    def __repr__(self) -> str:
        space = "" if self.space is None else f", namespace={self.space!r}"
        return f"{type(self).__name__}({self._server.url!r}{space})"

    def close(self) -> None:
        """Close the connections, also those of handles on namespaces."""
        if (coalescer := self.__dict__.get("_coalescer")) is not None:
            coalescer.close()
        self._end_writers()
        self._pool.close()

    def namespace(self, name: str) -> Client:
        """A handle on one namespace, over the same connections: its records and queries belong to this namespace."""
        handle = object.__new__(type(self))
        kept = {name: value for name, value in vars(self).items() if name != "_coalescer"}
        handle.__dict__.update(kept, space=calls.checked_name(name))
        return handle

    def _run(self, verb: Steps[R]) -> R:
        call, result = advance(verb)
        while call is not None:
            call, result = advance(verb, self._send(call))
        answer: R = result
        return answer

    def _explain_hit(self, asked: Asked, position: int, document: str) -> Explanation | FusedExplanation:
        number = answers.checked_position(position, asked.queries)
        call = calls.explain(asked.queries[number], document, asked.strategy)
        return answers.read_explanation(self._send(call), number)

    def _send(self, call: Call) -> dict[str, Any]:
        attempt = Attempt(self._server, call)
        httpx = load_httpx()
        while True:
            if self._pool.is_closed:
                raise UnreachableError("this client is closed")
            try:
                response, content = self._ask(attempt)
            except (httpx.RequestError, httpx.InvalidURL) as error:
                pause = attempt.pause_after(error)
                if pause is None:
                    raise attempt.error(error) from error
            else:
                pause = attempt.pause_after(response) if response.status_code >= 400 else None
                if pause is None:
                    return attempt.read(response, content)
            time.sleep(pause)

    def _ask(self, attempt: Attempt) -> tuple[httpx.Response, bytes]:
        """The response and its whole body. httpx limits the time of each read, and not of all of them."""
        parts = []
        with self._pool.stream(**attempt.arguments()) as response:
            for part in response.iter_bytes():
                attempt.seconds_left()
                parts.append(part)
        return response, b"".join(parts)

    @steps
    def search(
        self,
        queries: AnyBatch,
        k: int = DEFAULT_K,
        *,
        batch: int | None = None,
        deadline: float | None = None,
        **options: Unpack[SentKeywords],
    ) -> Steps[Hits]:
        """As `Engine.search`: `options` are strategy, texts, payload, timing, its `defaults` for queries, and `partial`
        of a server over shards."""
        asked = calls.search(queries, k, options, self.space, batch)
        # One limit for all parts, where the caller asked for one.
        limit = None if deadline is None else self._server.limit(deadline)
        parts = yield from several([replace(call, limit=limit) for call in asked.calls])
        return answers.read_hits(parts, asked, partial(self._explain_hit, asked))

    @steps
    def explain(
        self, query: AnyQuery, document: str, *, strategy: AnyStrategy | Policy | ByNamespace = "bm25"
    ) -> Steps[Explanation | FusedExplanation]:
        """As `Engine.explain`."""
        (asked,) = calls.asked_queries([query], self.space)
        return answers.read_explanation((yield calls.explain(asked, document, strategy)), 0)

    def add(
        self,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        progress: bool = False,
        threads: int | None = None,
        ttl: Span | None = None,
        receipts: bool = False,
        twins: Twins = KEEP,
        batch: int | None = None,
    ) -> int:
        """As `Memory.add`; `progress` and `threads` say nothing here."""
        if receipts:
            whole = [*as_records(records)]
            named = [replace(one, namespace=self._named(one.namespace)) for one in whole]
            return self._with_receipts(self.add(named, vectors=vectors, ttl=ttl, twins=twins, batch=batch), named)
        return self._run(write_parts(calls.write(records, "add", vectors, ttl, self.space, batch, twins), twins))

    @steps
    def update(
        self,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        ttl: Span | None = None,
        batch: int | None = None,
    ) -> Steps[int]:
        return (yield from write_parts(calls.write(records, "update", vectors, ttl, self.space, batch)))

    @steps
    def upsert(
        self,
        records: Iterable[AnyRecord],
        *,
        vectors: Given = None,
        ttl: Span | None = None,
        batch: int | None = None,
    ) -> Steps[int]:
        return (yield from write_parts(calls.write(records, "upsert", vectors, ttl, self.space, batch)))

    @steps
    def delete(self, ids: Iterable[str], *, namespace: str | None = "", missing_ok: bool = False) -> Steps[int]:
        """As `Engine.delete`."""
        return answers.read_number((yield calls.delete(ids, self._named(namespace), missing_ok)), "deleted")

    @steps
    def delete_where(self, filter: AnyFilter, *, namespace: str | None = "") -> Steps[int]:
        """As `Engine.delete_where`, in one namespace."""
        return answers.read_number((yield calls.delete_where(filter, self._named(namespace))), "deleted")

    @steps
    def patch(
        self,
        ids: str | Sequence[str],
        changes: Mapping[str, Any] | None = None,
        *,
        namespace: str | None = "",
        missing_ok: bool = False,
        **fields: Unpack[RecordFields],
    ) -> Steps[int]:
        """As `Engine.patch`."""
        call = calls.patch(ids, changes, fields, self._named(namespace), missing_ok)
        return answers.read_number((yield call), "patched")

    @steps
    def update_where(
        self,
        filter: AnyFilter,
        changes: Mapping[str, Any] | Callable[[Record], Record] | None = None,
        *,
        namespace: str | None = "",
        **fields: Unpack[RecordFields],
    ) -> Steps[int]:
        """As `Engine.update_where`, in one namespace. A function cannot be sent."""
        call = calls.update_where(filter, changes, fields, self._named(namespace))
        return answers.read_number((yield call), "patched")

    @steps
    def drop(self, namespace: str = "") -> Steps[None]:
        """As `Engine.drop`. On a handle it drops the namespace of the handle."""
        yield calls.drop(self._named(namespace))

    @steps
    def fetch(self, ids: Sequence[str], *, namespace: str | None = "") -> Steps[list[Record | None]]:
        """As `Engine.fetch`."""
        return answers.read_records((yield calls.fetch(ids, self._named(namespace))))

    @steps
    def get(self, id: str, *, namespace: str | None = "") -> Steps[Record | None]:
        """As `Engine.get`."""
        return answers.read_records((yield calls.fetch(calls.one_id(id), self._named(namespace))))[0]

    @steps
    def page(
        self,
        *,
        filter: AnyFilter | None = None,
        namespace: str | None = "",
        order: str = "written",
        reverse: bool = False,
        after: str | None = None,
        limit: int | None = None,
    ) -> Steps[Page]:
        """A page of at most `limit` records (None: 1,000) and where the next one begins, as `Engine.records`."""
        return answers.read_page((yield calls.page(self._named(namespace), filter, order, reverse, after, limit)))

    def records(
        self,
        *,
        filter: AnyFilter | None = None,
        namespace: str | None = "",
        order: str = "written",
        reverse: bool = False,
        after: str | None = None,
        limit: int | None = None,
        texts: bool = True,
    ) -> Listing:
        """As `Memory.records`, in one namespace; the records are whole, whatever `texts` says."""
        wanted = checked_wanted(filter, self._named(namespace), order, reverse, limit, texts)
        page = partial(self.page, filter=filter, namespace=self._named(namespace), order=order, reverse=reverse)
        return ServedListing(lambda start, count: page(after=start, limit=count), wanted, after, limit)

    @steps
    def count(self, filter: AnyFilter | None = None, *, namespace: str | None = "") -> Steps[int]:
        """As `Engine.count`, in one namespace."""
        return answers.read_number((yield calls.count(filter, self._named(namespace))), "count")

    def export(
        self,
        file: AnyFile,
        *,
        format: str | None = None,
        namespace: str | None = None,
        filter: AnyFilter | None = None,
        vectors: bool = True,
        progress: bool = False,
    ) -> int:
        """As `Memory.export`, record by record as the server sends them. Without a namespace it takes a key of all."""
        name = self.space if namespace is None else self._named(namespace)
        write = {"jsonl": write_lines, "parquet": write_table}[format_of(file, format)]
        call, model = calls.export(name, filter, vectors), model_of(self.pin)
        with self._streamed(call) as parts:
            sent = (answers.read_line(line) for line in split_lines(parts, LONGEST_LINE))
            records = counted(sent, "exporting", None, progress)
            first = next(records, None)  # a problem shall make no file
            held = () if first is None else chain((first,), records)
            with written(file) as handle:
                return write(handle, held, model)

    def import_records(
        self,
        file: AnyFile | Iterator[Carried],
        *,
        format: str | None = None,
        upsert: bool = False,
        progress: bool = False,
        resume: bool = True,
    ) -> Imported:
        """As `Memory.import_records`, in one request, whose records are read as they are sent."""
        given: Any = file
        records = given if isinstance(given, Iterator) and not hasattr(given, "read") else read(given, format)
        failures: list[FanrankError] = []

        def lines() -> Iterator[bytes]:
            try:
                for one in counted(records, "importing", None, progress):
                    yield JSON.encode(to_json(one.record, one.model)).encode() + b"\n"
            except FanrankError as error:
                failures.append(error)  # what stands before it is imported, as by an engine

        with self._streamed(calls.import_records(self.space, upsert, resume), content=lines()) as parts:
            done = answers.read_imported(json.loads(b"".join(parts)))
        for error in failures:
            error = reported(error, done, resume)
            error.imported = done
            raise error
        return done

    @contextmanager
    def _streamed(self, call: Call, content: Iterable[bytes] | None = None) -> Iterator[Iterator[bytes]]:
        """The parts of an answer of any length. Each must come in time, not all of them."""
        attempt, httpx = Attempt(self._server, call), load_httpx()
        arguments = attempt.arguments()
        if content is not None:
            waits = httpx.Timeout(self._server.timeout, read=None)
            arguments |= {"content": content, "timeout": waits, "headers": {"Content-Type": NDJSON}}
        try:
            with self._pool.stream(**arguments) as response:
                if response.status_code >= 400:
                    attempt.read(response, response.read())
                yield response.iter_bytes()
        except httpx.RequestError as error:
            raise attempt.error(error) from error

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces that hold live records and that the key reaches, as `Engine.namespaces`."""
        return self._run(every_namespace())

    @steps
    def stats(self, *, namespace: str | None = None) -> Steps[dict[str, Any]]:
        """As `Memory.stats`; of a handle those of its namespace."""
        return (yield calls.stats(self.space if namespace is None else namespace))

    def _epoch(self) -> None:
        """A server does not say it."""

    def _writes(self, namespace: str, ids: Sequence[str], epoch: Any) -> Writes:
        return Writes()

    def _named(self, namespace: str | None) -> str:
        return calls.named(namespace, self.space)
