"""Google ADK's memory service: what its own in-memory service finds is found, ranked, by each user alone."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("google.adk.memory")

from google.adk.events.event import Event
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

from fanrank.integrations.google_adk import FanrankMemoryService

SAID = ["Ana drinks green tea", "Bo drinks coffee", "the billing job failed", "tea at five in Lisbon", ""]


def event(number: int, text: str) -> Event:
    parts = [types.Part(text=text)] if text else [types.Part(function_call=types.FunctionCall(name="f"))]
    content = types.Content(role="user", parts=parts)
    return Event(id=f"e{number}", author="ana", timestamp=1e9 + number, content=content)


def session(events: list[Event], id: str = "s1") -> Session:
    return Session(id=id, app_name="app", user_id="ana", events=events)


async def found(service: Any, query: str, **who: str) -> list[str]:
    answer = await service.search_memory(**{"app_name": "app", "user_id": "ana", "query": query, **who})
    return [memory.id for memory in answer.memories]


async def test_it_finds_what_the_in_memory_service_finds_and_tenants_stay_apart() -> None:
    events, own, theirs = [event(*pair) for pair in enumerate(SAID)], FanrankMemoryService(), InMemoryMemoryService()
    for service in (own, theirs):
        await service.add_session_to_memory(session(events[:2]))
        await service.add_session_to_memory(session(events[:1] + events[2:]))  # e1 was taken back
        extra = [events[0], event(9, "tea for Bo")]
        await service.add_events_to_memory(app_name="app", user_id="ana", events=extra, session_id="s1")
        await service.delete_memory(app_name="app", user_id="ana", memory_id="e3")
        await service.add_session_to_memory(session([*events[:1], *events[2:], extra[1]]))
    for query in ("tea", "coffee", "billing job", "Lisbon", "", "zebra"):
        assert {*await found(own, query)} == {*await found(theirs, query)}, query
    assert await found(own, "tea") == ["e9", "e0"]  # the shorter one first
    for other in ({"user_id": "bo"}, {"app_name": "app/ana", "user_id": ""}, {"app_name": "app/ana"}):
        assert await found(own, "tea", **other) == []
    (memory,) = (await own.search_memory(app_name="app", user_id="ana", query="green")).memories
    assert (memory.content, memory.author, memory.timestamp) == (events[0].content, "ana", "2001-09-09T01:46:40+00:00")


async def test_entries_are_kept_and_a_batch_and_callers_share_a_launch() -> None:
    own, who = FanrankMemoryService(k=1), {"app_name": "app", "user_id": "ana"}
    entry = MemoryEntry(id="m", content=types.Content(parts=[types.Part(text="old tea")]), custom_metadata={"a": 1})
    await own.add_memory(**who, memories=[entry], custom_metadata={"b": 2})
    own.user("app", "ana").add([{"id": "plain", "text": "written by others"}])
    before = own.engine.coalescer.stats()["launches"]
    answers = await own.search_memories(**who, queries=["tea", "others"])
    assert [[memory.id for memory in answer.memories] for answer in answers] == [["m"], ["plain"]]
    assert answers[0].memories[0].custom_metadata == {"a": 1, "b": 2}
    assert answers[1].memories[0].content.parts[0].text == "written by others"
    await asyncio.gather(*(found(own, "tea") for _ in range(20)))
    assert own.engine.coalescer.stats()["launches"] - before < 10
