"""The tools that agents call: what their answers hold, how they are cut, and what their schemas say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mcp import Client
from support.mcp_client import ask, refused

import fanrank as fr
from fanrank.server.mcp import LIMITS, TEXT_BUDGET, Settings, make_mcp
from fanrank.server.mcp_answers import CUT, Found, cut_texts


@pytest.fixture
def engine() -> fr.Engine:
    engine = fr.Engine()
    engine.add(
        [
            {"id": "c", "text": "tea is a plant", "time": 30, "role": "tool"},
            {"id": "d/1 é", "text": "green tea", "time": 40, "role": "user"},
        ]
    )
    return engine


def local(engine: fr.Engine, **settings: Any) -> Client:
    """A client in the same process, as over the pipe of the process that began the server."""
    return Client(make_mcp(engine, Settings(**settings), local=True))


async def test_metadata_is_cut_to_the_budget_and_the_answer_says_so(engine: fr.Engine) -> None:
    def records(**metadata: Any) -> list[Found]:
        return [Found(id=str(n), text="x", metadata=dict(metadata)) for n in range(3)]

    small = records(role="tool")
    assert cut_texts(small, 100) is None
    mixed = records(role="tool", note="y" * 1_000)
    assert "3 long values of metadata are left out" in str(cut_texts(mixed, 100))
    assert [record.metadata for record in mixed] == [{"role": "tool"}] * 3
    many = records(**{f"key{n}": n for n in range(1_000)})
    assert "the metadata is left out" in str(cut_texts(many, 100))
    assert [record.metadata for record in many] == [None] * 3
    engine.add([{"id": "large", "text": "large one", "note": "y" * 100_000}])
    async with local(engine) as client:
        found = await ask(client, "search_memory", queries=["large one"] * 32)
        assert len(json.dumps(found)) < 2 * TEXT_BUDGET
        assert "metadata" in found["cut"]
        # Many short hits are bounded by their number.
        assert "1,000 hits" in await refused(client, "search_memory", queries=["tea"] * 32, k=100)


async def test_texts_are_cut_to_one_length_and_the_answer_says_so(engine: fr.Engine) -> None:
    records = [Found(id=str(n), text="x" * size) for n, size in enumerate((10, 500, 900))]
    word = cut_texts(records, 410)
    assert [len(record.text.removesuffix(CUT)) for record in records] == [10, 200, 200]
    assert word is not None
    assert word.startswith("2 texts end after 200 characters")
    assert cut_texts([Found(id="a", text="short")], 5) is None
    large = [Found(id="a", text="short", payload={"x": "y" * 100})]
    assert "1 payloads are left out" in str(cut_texts(large, 50))
    assert large[0].payload is None
    async with local(engine, text_budget=8) as client:
        found = await ask(client, "search_memory", queries=["tea"])
    assert "memory://" in found["cut"]
    assert sum(len(hit["text"].removesuffix(CUT)) for hit in found["answers"][0]["hits"]) <= 8


async def test_values_are_kept_as_they_were_given(engine: fr.Engine) -> None:
    given = {"number": 7, "large": 2**60 + 1, "yes": True, "half": 0.5, "word": "x"}
    async with local(engine) as client:
        answer = await ask(client, "remember", records=[{"text": "values", "metadata": given}])
    record = engine.get(answer["ids"][0])
    assert record is not None
    assert json.dumps(dict(record.extra), sort_keys=True) == json.dumps(given, sort_keys=True)


async def test_a_time_is_a_number_or_a_date_and_a_year_is_no_number(engine: fr.Engine) -> None:
    async with local(engine) as client:
        for since in (35, 35.0, "35", "1970-01-01T00:00:35Z"):
            found = await ask(client, "search_memory", queries=["tea"], since=since)
            assert [hit["id"] for hit in found["answers"][0]["hits"]] == ["d/1 é"]
        for until in ("2026", "202603", "20260301"):
            answer = await client.call_tool("search_memory", {"queries": ["tea"], "until": until})
            # Read as a date, or refused. As seconds it would lie in January 1970.
            assert answer.is_error or len(answer.structured_content["answers"][0]["hits"]) == 2  # type: ignore[index]


async def test_the_schemas_tell_the_limits_and_descriptions_are_plain(engine: fr.Engine) -> None:
    async with local(engine) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    properties = {name: tool.input_schema["properties"] for name, tool in tools.items()}
    assert properties["search_memory"]["queries"]["maxItems"] == LIMITS.queries
    assert properties["search_memory"]["k"]["maximum"] == properties["recent"]["n"]["maximum"] == LIMITS.k
    assert properties["remember"]["records"]["maxItems"] == LIMITS.records
    assert properties["forget"]["ids"]["maxItems"] == LIMITS.ids
    for tool in tools.values():
        assert "    " not in (tool.description or "")
