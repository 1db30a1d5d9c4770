"""Google's Agent Development Kit: `FanrankMemoryService`, in place of its ``InMemoryMemoryService``.

    runner = Runner(..., memory_service=FanrankMemoryService("memory"))

Each user of an app has a namespace. An event with text is a record: its id is the event's, and the session, the time
and the author are columns, so that other searches may filter by them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from ..engine.errors import MissingExtraError
from ..engine.hybrid.strategy import AnyStrategy
from ..engine.memory import Memory
from ..engine.records.filters import col
from ..engine.records.query import Query
from ..engine.records.record import Record
from ..engine.route.policy import Policy
from .shared import AnyEngine, open_engine

try:
    from google.adk.events.event import Event
    from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.sessions.session import Session
    from google.genai import types
except ImportError:
    raise MissingExtraError("google-adk", "google-adk") from None

FORGOTTEN = "forgotten"
"""The type of a record without text that stands for a deleted event: its session may be added again, the event not."""


class FanrankMemoryService(BaseMemoryService):  # type: ignore[misc]  # its types are not read where it is not installed
    """What users said in earlier sessions, ranked by all that `Engine.search` can.

    `engine` is any memory, a path, an address, or None for a memory that ends with the program. Users of an app lie in
    the namespaces ``root/app/user``. A search finds at most `k` events, the best first, by `strategy`. Searches of
    several users that are awaited at the same time are one launch. Raises `ParameterError`, and as `Engine.open`.
    """

    def __init__(
        self, engine: AnyEngine = None, *, root: str = "adk", k: int = 10, strategy: AnyStrategy | Policy = "bm25"
    ) -> None:
        self.engine = open_engine(engine)
        self.root, self.k, self.strategy = root, k, strategy

    def user(self, app_name: str, user_id: str) -> Memory:
        """The namespace of a user."""
        return self.engine.namespace("/".join([self.root, quote(app_name, safe=""), quote(user_id, safe="")]))

    async def add_session_to_memory(self, session: Session) -> None:
        """Keep the events of a session. One that was added before is replaced: events that it lacks now are deleted."""
        records = _records(session.events, session.id)

        def write() -> None:
            memory = self.user(session.app_name, session.user_id)
            kept = {record.id for record in records}
            stale = [id for id in memory.ids(col("session") == session.id) if id not in kept]
            memory.delete(stale, missing_ok=True)
            _write(memory, records, replaced=True)

        await asyncio.to_thread(write)

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Keep these events beside what is there. One that is there already stays as it is."""
        records = _records(events, session_id, custom_metadata)
        await asyncio.to_thread(_write, self.user(app_name, user_id), records, replaced=False)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Keep these entries; one with the id of another replaces it."""
        records = [
            _record(
                entry.id or str(uuid.uuid4()),
                entry.content,
                author=entry.author,
                time=entry.timestamp,
                metadata={**entry.custom_metadata, **(custom_metadata or {})},
            )
            for entry in memories
        ]
        await self.user(app_name, user_id).aupsert(records)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """The events of the user's sessions that fit the query best."""
        return (await self.search_memories(app_name=app_name, user_id=user_id, queries=[query]))[0]

    async def search_memories(
        self, *, app_name: str, user_id: str, queries: Sequence[str]
    ) -> list[SearchMemoryResponse]:
        """`search_memory` of several queries, in one launch."""
        asked = [Query(text, filter=col("type") != FORGOTTEN) for text in queries]
        memory = self.user(app_name, user_id)
        hits = await memory.asearch(asked, self.k, strategy=self.strategy, texts=True, payload=True)
        return [SearchMemoryResponse(memories=[_entry(hit.record) for hit in row]) for row in hits]

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete an event for good: it stays away when its session is added again."""
        memory = self.user(app_name, user_id)
        if memory_id and (await asyncio.to_thread(memory.fetch, [memory_id]))[0]:
            await memory.aupsert([Record(memory_id, "", type=FORGOTTEN)])


def _write(memory: Memory, records: Sequence[Record], *, replaced: bool) -> None:
    """Write those that are new, and with `replaced` those that changed; never one that was deleted."""
    there = memory.fetch([record.id for record in records])
    new = [one for one, old in zip(records, there, strict=True) if old is None or (replaced and _differs(one, old))]
    if new:
        memory.upsert(new)


def _differs(record: Record, old: Record) -> bool:
    return old.type != FORGOTTEN and (record.payload, record.session) != (old.payload, old.session)


def _records(
    events: Iterable[Event], session: str | None, metadata: Mapping[str, object] | None = None
) -> list[Record]:
    """The records of the events that say something, each once."""
    found = {
        event.id: _record(
            event.id, event.content, author=event.author, time=event.timestamp, session=session, metadata=metadata
        )
        for event in events
        if event.content and any(part.text for part in event.content.parts or ())
    }
    return [*found.values()]


def _record(
    id: str,
    content: types.Content,
    *,
    author: str | None,
    time: Any,
    session: str | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Record:
    text = " ".join(part.text for part in content.parts or () if part.text)
    payload = {"content": content.model_dump(mode="json", exclude_none=True), "author": author}
    if metadata:
        payload["custom_metadata"] = dict(metadata)
    return Record(id, text, role=content.role, session=session, agent=author, time=time, payload=payload)


def _entry(record: Record) -> MemoryEntry:
    """A record as the framework reads it; one that others wrote is its text."""
    payload = record.payload or {}
    content = payload.get("content") or {"parts": [{"text": record.text}], "role": record.role}
    time = None if record.time is None else datetime.fromtimestamp(record.time, timezone.utc).isoformat()
    return MemoryEntry(
        id=record.id,
        content=types.Content.model_validate(content),
        author=payload.get("author"),
        timestamp=time,
        custom_metadata=payload.get("custom_metadata") or {},
    )
