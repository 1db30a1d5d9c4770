"""The engine as tools of the Model Context Protocol: search, remember, forget, recent, explain.

A tool takes the same way as a request of `server/app.py`: who asks, what may be asked for, one launch of `asearch` or
an awaited write. What goes wrong becomes a tool's error with one sentence that says what to change.
"""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp.server.mcpserver.resources import ResourceSecurity
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field, ValidationError
from starlette.requests import Request

from ..engine.advice import in_fields
from ..engine.carry.rows import to_json
from ..engine.errors import DuplicateIdError
from ..engine.memory import Memory
from ..engine.offered import TOOL, Offered, offered_at
from ..engine.records.declared import Declared
from ..engine.records.hits import Hits
from ..engine.records.record import Record
from ..engine.signatures import ABOUT_TWINS, KEEP, Twins
from .access import ANYONE, Principal, check_read, check_write, principal_of
from .cancelling import Cancellation, caller_of, in_thread
from .changes import within_quota
from .limits import Limits
from .mcp_answers import (
    Answer,
    Answers,
    Done,
    Explained,
    Forgotten,
    NewRecord,
    Recent,
    Remembered,
    cut_texts,
    found_in,
    is_small,
    make_record,
    make_result,
    without_repeats,
)
from .mcp_fields import OFFERED, with_fields
from .problems import Problem, as_problem
from .quotas import Growths
from .record_limits import check_record
from .search import read_query, read_search
from .seen import note_problem
from .spans import CREATE, DELETE, UPDATE, UPSERT
from .verbs import answer_of, read_arguments
from .watched import search_engine, write_engine

NAME = "fanrank"
LIMITS = Limits(queries=32, k=100, hits=1_000, records=1_000, ids=1_000, body_bytes=4 << 20, in_flight=64)
"""What one call may ask for. An answer is read by a model, so the bounds lie below those of HTTP."""
TEXT_BUDGET = 20_000
"""Characters of records in one answer, about 5,000 tokens of English."""
SHOWN_MISTAKES = 5

T = TypeVar("T")
Asked, Pair = Context[Any, Any], tuple[Record, NewRecord]
_SPACE = "The namespace of the records. Left out: the server's own, or the one that the key reaches."
Namespace = Annotated[str, Field(description=_SPACE)]
K = Annotated[int, Field(ge=1, description="Hits of each query.")]
FilterJson = Annotated[
    dict[str, Any] | None,
    Field(description='Values that records must have, such as {"role": "tool"} or {"time": {">=": 1700000000}}.'),
]
StrategyName = Annotated[str | None, Field(description="How to search: bm25 (the default), auto, or another by name.")]


@dataclass(frozen=True)
class Settings:
    """What a server of tools offers."""

    namespace: str | None = None
    """The one namespace that all tools use; None: the tools take it as an argument."""
    read_only: bool = False
    """Leave out the tools that write."""
    refresh: bool = False
    """Catch up with the writer before each answer; for an engine that was opened with ``read_only``."""
    text_budget: int = TEXT_BUDGET
    """Characters of records in one answer."""
    limits: Limits = LIMITS


def make_mcp(engine: Memory, settings: Settings | None = None, *, local: bool = False) -> MCPServer[Any]:
    """The server over an engine. `local`: who asks may do everything, as over the pipe of the process that began it.

    Otherwise each HTTP request says who asks (`principal_of`), and what comes without one is refused.
    """
    settings = settings or Settings()
    tools = Tools(engine, settings, ANYONE if local else None)
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    writes = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
    kinds: list[tuple[Callable[..., Any], str, ToolAnnotations]] = [
        (tools.search_memory, "Search the memory", reads),
        (tools.recent, "Newest records", reads),
        (tools.explain, "Explain a score", reads),
    ]
    if not settings.read_only:
        kinds += [(tools.remember, "Remember", writes), (tools.forget, "Forget", writes)]
    made = [_make_tool(function, title, annotations, settings) for function, title, annotations in kinds]
    for verb in offered_at(TOOL):
        if not (verb.writes and settings.read_only):
            title, annotations = verb.name.replace("_", " ").capitalize(), writes if verb.writes else reads
            made.append(_make_tool(tools.use(verb), title, annotations, settings, verb.parameters))
    server = _Server(
        NAME,
        instructions=_instructions(settings),
        tools=made,
        log_level="WARNING",
        # Ids are no paths: any character may stand in one.
        resource_security=ResourceSecurity(
            reject_path_traversal=False, reject_absolute_paths=False, reject_null_bytes=False
        ),
        # Nothing changes that a client could listen to, and an open stream would hold up the end of the server.
        subscriptions=False,
    )
    server.resource(
        "memory://{namespace}/{id}",
        name="record",
        title="A record",
        description="One record, whole, as JSON. Percent-encode both; the default namespace is empty: memory:///ID.",
        mime_type="application/json",
    )(tools.read_record)
    return server


def _instructions(settings: Settings) -> str:
    lines = ["A memory of records. Ask several questions in one call of search_memory; they are answered together."]
    if not settings.read_only:
        lines.append("Write what later conversations need with remember; delete with forget.")
    if settings.namespace is not None:
        lines.append("There is one namespace; leave it out.")
    return " ".join(lines)


def _make_tool(
    function: Callable[..., Any],
    title: str,
    annotations: ToolAnnotations,
    settings: Settings,
    fields: Mapping[str, Declared] = OFFERED,
) -> Tool:
    about = inspect.getdoc(function)
    tool = Tool.from_function(
        with_fields(function, fields), title=title, description=about, annotations=annotations, structured_output=True
    )
    # An argument that is not known is refused: a misspelt filter that is ignored would answer another question.
    model = tool.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    tool.parameters = model.model_json_schema(by_alias=True)
    for name, bound, most in _bounds(settings.limits):
        if name in tool.parameters["properties"]:
            tool.parameters["properties"][name][bound] = most
    if settings.namespace is not None:
        tool.parameters["properties"].pop("namespace", None)
    return tool


def _bounds(limits: Limits) -> tuple[tuple[str, str, int], ...]:
    """Arguments, and what JSON Schema calls the bound of each, so that a model need not learn it by a mistake."""
    return (
        ("queries", "maxItems", limits.queries),
        ("k", "maximum", limits.k),
        ("n", "maximum", limits.k),
        ("records", "maxItems", limits.records),
        ("ids", "maxItems", limits.ids),
    )


class _Server(MCPServer[Any]):
    """Says what went wrong in a sentence that a model can act on."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None) -> Any:
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            cause = error.__cause__
            if not isinstance(cause, Exception):
                known = ", ".join(tool.name for tool in await self.list_tools())
                raise ToolError(f"there is no tool {name[:80]!r}; there are: {known}") from None
            raise ToolError(describe(cause)) from None

    async def read_resource(self, uri: Any, context: Context[Any, Any] | None = None) -> Any:
        try:
            return await super().read_resource(uri, context)
        except ResourceNotFoundError:
            raise
        except ResourceError as error:
            cause = error.__cause__
            raise ResourceError(describe(cause if isinstance(cause, Exception) else error)) from None


def describe(error: Exception) -> str:
    """What went wrong, and where. The text of an unknown error stays in the log."""
    if isinstance(error, ValidationError):
        # The first few, without the values: they may be as long as the whole call.
        mistakes = [
            f"{_place(mistake['loc'])}: {mistake['msg']}"
            for mistake in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        more = f"; and {len(mistakes) - SHOWN_MISTAKES} more" if len(mistakes) > SHOWN_MISTAKES else ""
        return f"{'; '.join(mistakes[:SHOWN_MISTAKES])}{more}"
    problem = as_problem(error)
    note_problem(problem.code)
    detail = in_fields(problem.detail)
    return f"{problem.field}: {detail}" if problem.field else detail


def _place(parts: Sequence[int | str]) -> str:
    """Where a mistake is, as in the problems of HTTP: ``records[3].text``."""
    return re.sub(r"\.?\[", "[", ".".join(f"[{part}]" if isinstance(part, int) else part for part in parts))


class Tools:
    """The tools. Each reads its arguments, checks who asks, and never works on the event loop for long."""

    def __init__(self, engine: Memory, settings: Settings, caller: Principal | None) -> None:
        self.engine, self.settings, self.caller = engine, settings, caller

    async def search_memory(
        self,
        context: Asked,
        queries: Annotated[list[str], Field(description="Questions or words; all are answered in one call.")],
        k: K = 10,
        namespace: Namespace = "",
        filter: FilterJson = None,
        strategy: StrategyName = None,
        payload: Annotated[bool, Field(description="Also give the payloads.")] = False,
        **fields: Any,
    ) -> Annotated[CallToolResult, Answers]:
        """Find records by what they say. Ask all your questions in one call: that costs little more than one.

        since and until limit the time of the records. Scores compare hits of one query alone.
        """
        principal, namespace = self._enter(context, namespace)
        if k > self.settings.limits.k:
            raise Problem(422, "TooManyHits", f"k may be {self.settings.limits.k:,}, not {k:,}", field="k")
        body: dict[str, Any] = {"queries": queries, "k": k, "namespace": namespace, "texts": True, "payload": payload}
        body |= {"filter": filter, "strategy": strategy}
        # What is set for all queries makes each anew, so a default is left out.
        given = {name: value for name, value in fields.items() if value != OFFERED[name].default}
        body |= {name: _number(value) if OFFERED[name].kind == "moment" else value for name, value in given.items()}
        wanted = read_search(body, principal, self.settings.limits)
        await self._refresh(context)
        hits = await search_engine(
            self.engine,
            wanted.queries,
            wanted.k,
            texts=True,
            payload=payload,
            deadline=self.settings.limits.seconds,
            wait=False,
            tenant=self._tenant(context),
            **wanted.options,
        )
        answer = partial(self._answer, namespace, hits)
        return answer() if is_small(hits) else await self._in_thread(context, answer)

    def _answer(self, namespace: str, hits: Hits) -> CallToolResult:
        rows = found_in(hits)
        cut = cut_texts([record for row in rows for record in row], self.settings.text_budget)
        answers = [
            Answer(query=query.text, hits=row, note=note)
            for query, row, note in zip(hits.queries, rows, hits.notes, strict=True)
        ]
        return make_result(Answers(namespace=namespace, answers=answers, cut=cut))

    async def recent(
        self,
        context: Asked,
        n: Annotated[int, Field(ge=1, description="How many.")] = 10,
        namespace: Namespace = "",
        filter: FilterJson = None,
        payload: Annotated[bool, Field(description="Also give the payloads.")] = False,
    ) -> Annotated[CallToolResult, Recent]:
        """The newest records by their time, newest first; those without a time come last."""
        principal, namespace = self._enter(context, namespace)
        limits = self.settings.limits
        if n > limits.k:
            raise Problem(422, "TooManyHits", f"n may be {limits.k:,}, not {n:,}", field="n")
        query = {"newest": True} if filter is None else {"newest": True, "filter": filter}
        asked = read_query(query, "filter", {"namespace": namespace}, principal, limits)
        await self._refresh(context)
        about: dict[str, Any] = {"deadline": limits.seconds, "wait": False, "tenant": self._tenant(context)}
        hits = await search_engine(self.engine, [asked], n, texts=True, payload=payload, **about)

        def make() -> CallToolResult:
            (records,) = found_in(hits, scores=False)
            return make_result(
                Recent(namespace=namespace, records=records, cut=cut_texts(records, self.settings.text_budget))
            )

        return await self._in_thread(context, make)

    async def explain(
        self,
        context: Asked,
        query: Annotated[str, Field(description="The query, as it was searched.")],
        id: Annotated[str, Field(description="The record's id.")],
        namespace: Namespace = "",
        strategy: StrategyName = None,
    ) -> Annotated[CallToolResult, Explained]:
        """Why a record scores as it does for a query: what each word or channel adds."""
        principal, namespace = self._enter(context, namespace)
        asked = read_query(query, "query", {"namespace": namespace}, principal, self.settings.limits)
        options: dict[str, Any] = {} if strategy is None else {"strategy": strategy}
        options |= {"deadline": self.settings.limits.seconds, "wait": False, "tenant": self._tenant(context)}
        await self._refresh(context)
        hits = await search_engine(self.engine, [asked], 1, **options)

        def make() -> CallToolResult:
            parts = hits.explain(0, id)
            values = parts.to_dict()
            return make_result(Explained(namespace=namespace, summary=str(parts), explanation=values))

        return await self._in_thread(context, make)

    async def remember(
        self,
        context: Asked,
        records: Annotated[list[NewRecord], Field(description="What to remember.")],
        namespace: Namespace = "",
        replace: Annotated[bool, Field(description="Replace records that have the same id.")] = False,
        twins: Annotated[Twins, Field(description=ABOUT_TWINS)] = KEEP,
    ) -> Annotated[CallToolResult, Remembered]:
        """Write records, all or none; they are on disk and found by searches once this answers.

        The same text without an id is kept once. A record with an id that is there is refused unless replace is true.
        """
        _, namespace = self._enter(context, namespace, write=True)
        most = self.settings.limits.records
        if len(records) > most:
            detail = f"a call may write {most:,} records; write the rest with another"
            raise Problem(422, "TooManyRecords", detail, field="records")
        now = time.time()
        made = [make_record(record, place, namespace, now) for place, record in enumerate(records)]
        for place, record in enumerate(made):
            check_record(record, f"records.{place}", self.settings.limits, payload=True)
        once = without_repeats(made, records)
        if replace:
            fresh = [record for record, _ in once]
            async with within_quota(self._request(context), fresh):
                work = self.engine.aupsert(fresh)
                written = await write_engine(UPSERT, (namespace,), work, records=len(fresh), written=fresh)
        else:
            written = await self._add_new(context, once, namespace, twins)
        about = {"ids": [record.id for record in made], "twins": getattr(written, "twins", None)}
        return make_result(Remembered(namespace=namespace, written=written, **about))

    async def _add_new(self, context: Asked, records: list[Pair], namespace: str, twins: Twins) -> int:
        """Add those that are not there. Of ids that the caller gave, one that is there is an error."""
        tried = None
        while True:
            ids = [record.id for record, _ in records]
            there = await self._in_thread(context, partial(self.engine.fetch, ids, namespace=namespace))
            for (record, given), old in zip(records, there, strict=True):
                if old is not None and given.id is not None:
                    detail = f"there is a record {record.id[:200]!r} already; give another id, or pass replace: true"
                    raise Problem(409, "DuplicateIdError", detail, field="records")
            records = [pair for pair, old in zip(records, there, strict=True) if old is None]
            try:
                fresh = [record for record, _ in records]
                async with within_quota(self._request(context), fresh):
                    work = self.engine.aadd(fresh, twins=twins)
                    return await write_engine(CREATE, (namespace,), work, records=len(fresh), written=fresh)
            except DuplicateIdError:
                # Another call wrote the same text in between: look again. Otherwise two have one id.
                if tried == len(records):
                    raise
                tried = len(records)

    async def forget(
        self,
        context: Asked,
        ids: Annotated[list[str], Field(description="Ids of the records, as search_memory gives them.")],
        namespace: Namespace = "",
    ) -> Annotated[CallToolResult, Forgotten]:
        """Delete records for good. Ids that no record has are counted and do no harm."""
        _, namespace = self._enter(context, namespace, write=True)
        names = [*dict.fromkeys(ids)]
        most = self.settings.limits.ids
        if len(names) > most:
            raise Problem(422, "TooManyIds", f"a call may delete {most:,} records", field="ids")
        work = self.engine.adelete(names, namespace=namespace, missing_ok=True)
        deleted = await write_engine(DELETE, (namespace,), work, records=len(names), ids=names)
        return make_result(Forgotten(namespace=namespace, deleted=deleted, unknown=len(names) - deleted))

    def use(self, verb: Offered) -> Callable[..., Any]:
        """The tool of a verb that is offered by its declaration."""

        async def use(context: Asked, namespace: Namespace = "", **fields: Any) -> Annotated[CallToolResult, Done]:
            principal, namespace = self._enter(context, namespace, write=verb.writes)
            values = {
                name: _number(value) if verb.parameters[name].kind == "moment" else value
                for name, value in fields.items()
            }
            given = read_arguments(verb, {**values, "namespace": namespace}, principal, self.settings.limits)
            await self._refresh(context)
            work = self._in_thread(context, partial(answer_of, verb, self.engine, given))
            if verb.writes:
                operation = DELETE if verb.name.startswith("delete") else UPDATE

                def patched() -> Growths:
                    """What the change of all that pass a filter adds at most."""
                    size = len(json.dumps(given.get("changes") or ""))
                    return {namespace: (0, size * self.engine.count(given.get("filter"), namespace=namespace))}

                changes = patched if "changes" in given else None
                async with within_quota(self._request(context), (), changes):
                    answer = await write_engine(operation, (namespace,), work, arguments=values)
                return make_result(Done(namespace=namespace, answer=answer))
            return make_result(Done(namespace=namespace, answer=await work))

        use.__name__, use.__doc__ = verb.name, verb.about
        return use

    async def read_record(self, context: Asked, namespace: str, id: str) -> str:
        """One record, whole, as JSON."""
        _, namespace = self._enter(context, namespace)
        await self._refresh(context)
        (record,) = await self._in_thread(context, partial(self.engine.fetch, [id], namespace=namespace))
        if record is None:
            raise ResourceNotFoundError(f"no record {id[:200]!r} in this namespace")
        return json.dumps(to_json(record, vectors=False), ensure_ascii=False)

    def _enter(self, context: Asked, namespace: str, write: bool = False) -> tuple[Principal, str]:
        """Who asks, and in which namespace. Raises `Problem` where that is not allowed."""
        request = context.request_context.request
        if self.caller is not None:
            principal = self.caller
        elif isinstance(request, Request):
            principal = principal_of(request)
        else:
            raise Problem(401, "KeyRequired", "this server answers callers with a key alone")
        fixed = self.settings.namespace
        if fixed is not None:
            if namespace not in ("", fixed):
                detail = "this server has one namespace; leave the argument out"
                raise Problem(403, "NamespaceForbidden", detail, field="namespace")
            namespace = fixed
        elif namespace == "" and (only := principal.only) is not None:
            namespace = only
        if not principal.allows(namespace):
            # The caller's own rights, and no word on what there is.
            reached = ", ".join(principal.patterns or ())
            raise Problem(403, "NamespaceForbidden", f"this key reaches {reached} alone", field="namespace")
        (check_write if write else check_read)(principal, namespace, "namespace")
        return principal, namespace

    async def _refresh(self, context: Asked) -> None:
        """Let a reader of a directory that another process writes see what it wrote."""
        if self.settings.refresh:
            await self._in_thread(context, self.engine.refresh)

    async def _in_thread(self, context: Asked, work: Callable[[], T]) -> T:
        """What `work` returns, in a thread: over HTTP once it is the caller's turn."""
        request = self._request(context)
        if request is not None:
            return await in_thread(request, work, cancellation=Cancellation.of(request), watched=False)
        return await anyio.to_thread.run_sync(work)

    def _tenant(self, context: Asked) -> str | None:
        """By whose turns searches are launched."""
        request = self._request(context)
        return None if request is None else caller_of(request)

    def _request(self, context: Asked) -> Request | None:
        """The request of a caller who has turns and quotas; None over a pipe."""
        request = context.request_context.request
        return request if self.caller is None and isinstance(request, Request) else None


def _number(moment: str | float | None) -> str | float | None:
    """Seconds where the text is a number; JSON arguments of some clients are all text.

    Four, six and eight digits may be meant as a year, a month or a day, and are no number of seconds.
    """
    if isinstance(moment, str) and moment.isdecimal() and len(moment) in (4, 6, 8):
        return moment
    try:
        return None if moment is None else float(moment)
    except ValueError:
        return moment
