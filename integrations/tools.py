"""A memory as tools for a language model: `remember`, `recall` and `forget`, with JSON schemas and a dispatcher.

`memory_tools` makes them. The plain form needs no package: `MemoryTools.definitions` gives what an API of tools takes,
and `MemoryTools.call` answers what the model sends back. `MemoryTools.as_openai_agents` gives the same tools to the
OpenAI Agents SDK (``pip install 'fanrank[openai-agents]'``).

The host decides whose memory it is: the tools are bound to one namespace, and no argument of theirs names another.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ..engine.errors import (
    DuplicateIdError,
    MissingExtraError,
    ParameterError,
    QueryError,
    RecordError,
    UnknownIdError,
    choices,
)
from ..engine.hybrid.strategy import AnyStrategy
from ..engine.memory import Memory
from ..engine.moments import to_seconds, zone_named
from ..engine.records.filters import And, ColumnComparison, Filter, col
from ..engine.records.hits import Hits
from ..engine.records.query import Query
from ..engine.records.record import CATEGORIES, Record
from ..engine.route.by_namespace import ByNamespace
from ..engine.route.policy import Policy
from ..engine.text.time_expressions.parse import parse_when
from .shared import AnyEngine, open_engine, with_text
from .tool_answers import Answer, least_tokens, write, write_answers
from .tool_arguments import (
    COMPARISONS,
    Schema,
    ToolInputError,
    forget_schema,
    read_arguments,
    recall_schema,
    remember_schema,
)

if TYPE_CHECKING:
    from agents import FunctionTool, RunContextWrapper

NAMES = ("remember", "recall", "forget")

_DESCRIPTIONS = {
    "remember": "Keep memories for later conversations, or replace ones that have changed.",
    "recall": "Search the memories of earlier conversations. Put all searches of a step into one call.",
    "forget": "Delete memories for good.",
}

_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
"""Letters and digits of new ids, without those that are mistaken for others."""
_ID_LENGTH = 8
"""30 ** 8 ids: among a million memories, one of a million new ids meets a taken one and is drawn again."""
_DRAWS = 8


@dataclass(frozen=True)
class ToolLimits:
    """What one call of a tool may ask for. Raises `ParameterError` for a number below 1."""

    queries: int = 20
    """Searches of one `recall`."""
    query: int = 500
    """Characters of a search."""
    k: int = 20
    """Memories for each search."""
    records: int = 50
    """Memories of one `remember`, and ids of one `forget`."""
    text: int = 4000
    """Characters of a memory."""
    tokens: int = 2000
    """Length of the answer of `recall`, with 4 bytes of UTF-8 counted as a token."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ParameterError(f"the limit {name!r} must be an integer of 1 or more, not {value!r}")
        least = least_tokens(self.queries)
        if self.tokens < least:
            raise ParameterError(
                f"the limit 'tokens' must be {least} or more for {self.queries} queries a call, not {self.tokens}; "
                "raise it, or lower 'queries'"
            )


def memory_tools(
    engine: AnyEngine,
    *,
    namespace: str | None = None,
    tools: Sequence[str] = NAMES,
    strategy: AnyStrategy | Policy | ByNamespace = "bm25",
    labels: Mapping[str, str] | Sequence[str] = ("type",),
    stamp: Mapping[str, str] | None = None,
    k: int = 5,
    limits: ToolLimits | None = None,
    timezone: str = "UTC",
    clock: Callable[[], float] = time.time,
) -> MemoryTools:
    """The tools of one memory, for one user.

    `engine` is any memory, a path, an address, or None for a memory that ends with the program.
    `namespace` names the user's namespace in an engine. The tools read and write there and nowhere else.

    `tools` are those that the model gets; ``("recall",)`` makes the memory read-only for it. `strategy` ranks, as in
    `Engine.search`. `labels` are the columns that the model may set and filter by, with a description of each if it is
    a mapping. Built-in columns and declared ones serve; the values of declared ones are kept in `Record.payload`.
    `stamp` are built-in columns that every remembered record gets, as ``{"session": "s7"}``; the model neither sees nor
    sets them.

    `k` is how many memories a search finds unless the model says more. Times are read and shown in `timezone`, an
    IANA name. `clock` gives the time of new memories, and what "yesterday" is counted from, in seconds since 1970.

    Raises `ParameterError`, and `QueryError` for a label that the engine has no column for.
    """
    memory = open_engine(engine)
    if memory.space is not None:
        if namespace is not None:
            raise ParameterError("the tools were given a namespace already; leave namespace= out, or pass the engine")
        own = memory
    else:
        own = memory.namespace(namespace or "")
    chosen = tuple(dict.fromkeys(tools))
    for name in chosen:
        if name not in NAMES:
            raise ParameterError(f"unknown tool {name!r}{choices(name, NAMES)}")
    described = dict(labels) if isinstance(labels, Mapping) else dict.fromkeys(labels, "")
    for label in described:
        if label not in CATEGORIES and label in Record.__dataclass_fields__:
            raise ParameterError(f"{label!r} is a field of every record and no label; labels are columns")
        own.count(col(label) == None)  # noqa: E711  a column that the engine lacks is an error here, not for the model
    for name in stamp or {}:
        if name not in CATEGORIES or name in described:
            raise ParameterError(
                f"the stamp {name!r} must be one of {', '.join(CATEGORIES)}, and no label that the model sets"
            )
    bounds = limits or ToolLimits()
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= bounds.k:
        raise ParameterError(f"k must be an integer from 1 to {bounds.k}, the limit 'k', not {k!r}")
    try:
        zone = zone_named(timezone)
    except ValueError as error:
        raise ParameterError(f"unknown time zone {timezone!r}: {error}") from None
    engine_of = memory if memory.space is None else None
    return MemoryTools(own, engine_of, chosen, strategy, described, dict(stamp or {}), k, bounds, zone, clock)


@dataclass(frozen=True)
class MemoryTools:
    """The tools of one namespace of a memory; `memory_tools` makes them.

    Any thread may call them at any time. `call` answers a model whatever it sends: what cannot be done is
    ``{"error": ...}``, with a message that says what to send instead, and then nothing was written. What the model
    cannot mend is raised: a disk that fails, a closed engine, an encoder that is not there.
    """

    memory: Memory
    """The namespace that the tools are bound to."""
    engine: Memory | None = field(repr=False)
    """The engine of the namespace, if the tools were made with an engine."""
    tools: tuple[str, ...]
    strategy: AnyStrategy | Policy | ByNamespace
    labels: Mapping[str, str]
    stamp: Mapping[str, str]
    k: int
    limits: ToolLimits
    zone: dt.tzinfo
    clock: Callable[[], float] = field(repr=False)

    def within(self, namespace: str) -> MemoryTools:
        """The same tools for another namespace of the engine, as for another user. It costs nothing.

        Raises `ParameterError` for tools that were made with a namespace instead of an engine.
        """
        if self.engine is None:
            raise ParameterError("the tools were made with a namespace and stay in it; make them with the engine")
        return replace(self, memory=self.engine.namespace(namespace))

    def schema(self, name: str) -> Schema:
        """The JSON schema of a tool's arguments. Raises `ParameterError` for a tool that is not there."""
        limits = self.limits
        if name not in self.tools:
            raise ParameterError(f"no tool {name!r}{choices(name, self.tools)}")
        if name == "recall":
            return recall_schema(self.labels, queries=limits.queries, query=limits.query, k=self.k, most=limits.k)
        if name == "remember":
            return remember_schema(self.labels, records=limits.records, text=limits.text)
        return forget_schema(ids=limits.records)

    def definitions(self, form: Literal["responses", "chat", "anthropic"] = "responses") -> list[dict[str, Any]]:
        """The tools as an API takes them: OpenAI's Responses or Chat Completions (both strict), or Anthropic's.

        Raises `ParameterError` for another form.
        """
        if form not in ("responses", "chat", "anthropic"):
            raise ParameterError(f"unknown form {form!r}; there are: responses, chat, anthropic")
        found: list[dict[str, Any]] = []
        for name in self.tools:
            named = {"name": name, "description": _DESCRIPTIONS[name]}
            if form == "anthropic":
                found.append({**named, "input_schema": self.schema(name)})
                continue
            function = {**named, "parameters": self.schema(name), "strict": True}
            found.append(
                {"type": "function", **function} if form == "responses" else {"type": "function", "function": function}
            )
        return found

    def call(self, name: str, arguments: str | bytes | Mapping[str, Any]) -> str:
        """Do what a model asks, and answer it in JSON. `arguments` is the JSON that the model sent, or its object."""
        try:
            values = self._read(name, arguments)
            if name == "recall":
                queries = self._queries(values)
                hits = self.memory.search(queries, self._k(values), strategy=self.strategy, texts=True, payload=True)
                return self._answer(values["queries"], hits)
            if name == "forget":
                return self._forget(values["ids"])
            return self._remember(values)
        except (ToolInputError, QueryError, RecordError) as error:
            return _refusal(name, error)

    async def acall(self, name: str, arguments: str | bytes | Mapping[str, Any]) -> str:
        """As `call`, awaited. Searches of callers who ask at the same time, of any user, are one launch."""
        if name != "recall":
            # Writes of callers who wait at the same time share one sync of the disk.
            return await asyncio.to_thread(self.call, name, arguments)
        try:
            values = self._read(name, arguments)
            queries = self._queries(values)
            hits = await self.memory.asearch(queries, self._k(values), strategy=self.strategy, texts=True, payload=True)
            return self._answer(values["queries"], hits)
        except (ToolInputError, QueryError, RecordError) as error:
            return _refusal(name, error)

    def recall(self, queries: str | Sequence[str], **arguments: Any) -> str:
        """`call` of ``recall`` from Python; `arguments` are the others of its schema."""
        return self.call("recall", {"queries": [queries] if isinstance(queries, str) else [*queries], **arguments})

    def remember(self, records: str | Sequence[Mapping[str, Any]]) -> str:
        """`call` of ``remember`` from Python."""
        return self.call("remember", {"records": records if isinstance(records, str) else [*records]})

    def forget(self, ids: Sequence[str]) -> str:
        """`call` of ``forget`` from Python."""
        return self.call("forget", {"ids": [*ids]})

    def as_openai_agents(self, namespace: Callable[[RunContextWrapper[Any]], str] | None = None) -> list[FunctionTool]:
        """The tools for ``Agent(tools=...)`` of the OpenAI Agents SDK, awaited through `acall`.

        With `namespace`, one agent serves many users: it is called with the context of the run, which the host gave to
        ``Runner.run(context=...)``, and says whose memory the call is for. Raises `MissingExtraError` without the SDK,
        and `ParameterError` for a `namespace` on tools that were made with a namespace.
        """
        try:
            from agents import FunctionTool
        except ImportError:
            raise MissingExtraError("openai-agents", "openai-agents") from None
        if namespace is not None and self.engine is None:
            self.within("")

        def invoker(name: str) -> Callable[[RunContextWrapper[Any], str], Any]:
            async def invoke(context: RunContextWrapper[Any], arguments: str) -> str:
                own = self if namespace is None else self.within(namespace(context))
                return await own.acall(name, arguments)

            return invoke

        return [
            FunctionTool(
                name=name,
                description=_DESCRIPTIONS[name],
                params_json_schema=self.schema(name),
                on_invoke_tool=invoker(name),
                strict_json_schema=True,
            )
            for name in self.tools
        ]

    def _read(self, name: str, arguments: str | bytes | Mapping[str, Any]) -> dict[str, Any]:
        if name not in self.tools:
            raise ToolInputError(f"there is no such tool; there are: {', '.join(self.tools)}")
        values = read_arguments(arguments, self.schema(name))
        for key, most in (("queries", self.limits.queries), ("ids", self.limits.records)):
            if key in values and not 1 <= len(values[key]) <= most:
                raise ToolInputError(f"{key} must hold 1 to {most} strings, not {len(values[key]):,}")
        return values

    def _k(self, values: Mapping[str, Any]) -> int:
        k = self.k if values["k"] is None else int(values["k"])
        if not 1 <= k <= self.limits.k:
            raise ToolInputError(f"k must lie between 1 and {self.limits.k}, not {values['k']}")
        return k

    def _queries(self, values: Mapping[str, Any]) -> list[str | Query]:
        for number, text in enumerate(values["queries"]):
            if not text.strip():
                raise ToolInputError(f"queries[{number}] is empty; say what to look for")
            if len(text) > self.limits.query:
                raise ToolInputError(
                    f"queries[{number}] has {len(text):,} characters, at most {self.limits.query} are searched; "
                    "split it into several short ones"
                )
        now = self.clock()
        since, until = self._time("since", values["since"], now), self._time("until", values["until"], now)
        if since is not None and until is not None and since[0] > until[1]:
            raise ToolInputError("'since' lies after 'until', so no memory can be found; exchange them")
        filter = self._filter(values.get("filters"))
        if self.strategy == "bm25" and filter is None and since is None and until is None:
            return list(values["queries"])  # texts alone are answered in half the time
        first, last = None if since is None else since[0], None if until is None else until[1]
        return [Query(text, filter=filter, since=first, until=last, now=now) for text in values["queries"]]

    def _filter(self, conditions: Sequence[Mapping[str, Any]] | None) -> Filter | None:
        if not conditions:
            return None
        for number, condition in enumerate(conditions):
            several = isinstance(condition["value"], list)
            if several != (condition["op"] in ("in", "nin")):
                wanted = "takes one value" if several else "takes a list of values"
                raise ToolInputError(f"filters[{number}]: {condition['op']!r} {wanted}")
        return And(tuple(ColumnComparison(each["key"], COMPARISONS[each["op"]], each["value"]) for each in conditions))

    def _time(self, name: str, text: str | None, now: float) -> tuple[float, float] | None:
        """The first and the last moment that a time names, None for none. Raises `ToolInputError`."""
        if text is None:
            return None
        said = text.strip()
        try:
            first = to_seconds(said, self.zone)
        except ValueError:
            when = parse_when(said, now, timezone=self.zone)
            if when is None:
                raise ToolInputError(
                    f"{name}: {said[:80]!r} is no time; give a date such as 2026-03-01, a time such as "
                    "2026-03-01T09:30:00Z, or words such as 'yesterday' or 'last week'"
                ) from None
            return when.start, when.end
        if "T" in said.upper() or " " in said:
            return first, first
        day = dt.datetime.fromtimestamp(first, self.zone).date()
        try:
            after = to_seconds(day + dt.timedelta(days=1), self.zone)
        except OverflowError:  # the last day of the calendar
            return first, first + 86400.0
        return first, after - 1e-3

    def _answer(self, queries: Sequence[str], hits: Hits) -> str:
        assert hits.records is not None
        # Without a `Hit` for each memory, of which nothing else is read.
        answers = [
            Answer(query, records[:count].tolist(), None if count else note or "nothing was found")
            for query, records, count, note in zip(queries, hits.records, hits.counts, hits.notes, strict=True)
        ]
        return write_answers(answers, [*self.labels], self.limits.tokens, self.zone)

    def _forget(self, given: Sequence[str]) -> str:
        ids = [*dict.fromkeys(given)]
        found = dict(zip(ids, self.memory.fetch(ids), strict=True))
        there = [id for id in ids if found[id] is not None]
        self.memory.delete(there, missing_ok=True)
        answer: dict[str, Any] = {"forgotten": there}
        if len(there) < len(ids):
            answer["unknown"] = [id for id in ids if found[id] is None]
            answer["note"] = "no memory has the unknown ids; repeat ids exactly as recall gives them"
        return write(answer)

    def _remember(self, values: Mapping[str, Any]) -> str:
        given = values["records"]
        rows: list[dict[str, Any]] = [{"text": given}] if isinstance(given, str) else given
        if not 1 <= len(rows) <= self.limits.records:
            raise ToolInputError(f"records must hold 1 to {self.limits.records} memories, not {len(rows):,}")
        now = self.clock()
        named = [row["id"] for row in rows if row.get("id") is not None]
        twice = next((id for id in named if named.count(id) > 1), None)
        if twice is not None:
            raise ToolInputError(f"two records replace the memory {twice!r}; send one")
        replaced = dict(zip(named, self.memory.fetch(named), strict=True)) if named else {}
        unknown = [id for id, record in replaced.items() if record is None]
        if unknown:
            raise ToolInputError(
                f"no memory has the id {unknown[0]!r}; repeat an id exactly as recall gives it, or send null for a new "
                "memory"
            )
        checked = [self._record(row, number, replaced.get(row.get("id")), now) for number, row in enumerate(rows)]
        for _ in range(_DRAWS):
            records = [record if isinstance(record, Record) else record(_new_id()) for record in checked]
            try:
                if not named:
                    self.memory.add(records)
                elif len(named) == len(records):
                    self.memory.update(records)
                else:
                    # One write for both kinds. A drawn id that is taken would replace a memory, so it is drawn again.
                    new = [record.id for record in records if record.id not in replaced]
                    if len({*new}) < len(new) or any(self.memory.fetch(new)):
                        continue
                    self.memory.upsert(records)
            except DuplicateIdError:
                continue
            except UnknownIdError:
                raise ToolInputError("a memory that was to be replaced has just been forgotten; recall again") from None
            answer: dict[str, Any] = {"remembered": [record.id for record in records if record.id not in replaced]}
            return write({**answer, "replaced": named} if named else answer)
        raise ToolInputError("no free id was found; call remember again")

    def _record(
        self, row: Mapping[str, Any], number: int, old: Record | None, now: float
    ) -> Record | Callable[[str], Record]:
        """The record that replaces `old`, or a function from a new id to the new record. Raises as `call` answers."""
        text = row["text"]
        if not text.strip():
            raise ToolInputError(f"records[{number}].text is empty; say what to remember")
        if len(text) > self.limits.text:
            raise ToolInputError(
                f"records[{number}].text has {len(text):,} characters, at most {self.limits.text:,} are kept; split it "
                "into several memories"
            )
        when = self._time(f"records[{number}].time", row.get("time"), now)
        columns: dict[str, Any] = {
            name: row[name] for name in self.labels if name in CATEGORIES and row.get(name) is not None
        }
        declared = {name: row[name] for name in self.labels if name not in CATEGORIES and row.get(name) is not None}
        moment = now if when is None else when[0]
        if old is None:
            payload = declared or None
            columns = {**self.stamp, **columns}
            return lambda id: Record(id, text, time=moment, payload=payload, **columns)
        # All that the model did not name stays.
        extra = {name: value for name, value in old.extra.items() if name not in declared}
        payload = {**(old.payload or {}), **declared} if declared else dict(old.payload or {}) or None
        return with_text(old, text, moment, extra=extra, payload=payload, **columns)


def _new_id() -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(_ID_LENGTH))


def _refusal(name: str, error: Exception) -> str:
    kept = "" if name == "recall" else "; nothing was changed"
    return write({"error": f"{name}: {error}{kept}"})
