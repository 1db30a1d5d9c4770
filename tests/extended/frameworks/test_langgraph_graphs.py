"""Graphs of LangGraph keep their memory in a `FanrankStore`: nodes, tools, concurrent runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import TypedDict

pytest.importorskip("langgraph.graph", reason="langgraph is not installed")

from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore, SearchItem

from fanrank.integrations.langgraph import FanrankStore


def test_agents_of_a_graph_share_a_memory(tmp_path: Path) -> None:

    class State(TypedDict, total=False):
        user: str
        questions: list[str]
        answers: dict[str, list[str]]

    def model(question: str, memories: list[SearchItem]) -> list[str]:
        """A model that answers with what it is given."""
        return [item.value["text"] for item in memories]

    def remember(state: State, *, store: BaseStore) -> State:
        for number, text in enumerate(["Ana prefers tea", "Ana lives in Lisbon"]):
            store.put(("memories", state["user"]), str(number), {"text": text})
        return {}

    async def recall(state: State, *, store: BaseStore) -> State:
        found = await asyncio.gather(
            *(store.asearch(("memories", state["user"]), query=question, limit=1) for question in state["questions"])
        )
        return {"answers": {q: model(q, items) for q, items in zip(state["questions"], found, strict=True)}}

    builder = StateGraph(State)
    builder.add_node("remember", remember)
    builder.add_node("recall", recall)
    builder.add_edge(START, "remember")
    builder.add_edge("remember", "recall")
    builder.add_edge("recall", END)

    async def run(store: BaseStore) -> Any:
        graph = builder.compile(store=store)
        asked = ["where does Ana live in", "what does Ana prefer: tea?"]
        states = await asyncio.gather(*(graph.ainvoke({"user": f"u{n}", "questions": asked}) for n in range(8)))
        return [state["answers"] for state in states]

    with FanrankStore(tmp_path / "m", index={"fields": ["text"]}) as store:  # type: ignore[typeddict-item]
        answers = asyncio.run(run(store))
        assert [[*one.values()] for one in answers] == [[["Ana lives in Lisbon"], ["Ana prefers tea"]]] * 8
        assert len(store.list_namespaces()) == 8
