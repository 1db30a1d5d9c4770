"""Graphs of LangGraph keep their memory in a `FanrankStore`: nodes, tools, concurrent runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import pytest
from typing_extensions import TypedDict

pytest.importorskip("langgraph.graph", reason="langgraph is not installed")

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedStore, ToolNode, tools_condition
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


def test_an_agent_with_tools_uses_the_memory() -> None:

    @tool
    def save(text: str, store: Annotated[Any, InjectedStore()]) -> str:
        """Save a memory."""
        store.put(("memories",), str(len(store.search(("memories",)))), {"text": text})
        return "saved"

    @tool
    def look_up(question: str, store: Annotated[Any, InjectedStore()]) -> str:
        """Look a memory up."""
        return "; ".join(item.value["text"] for item in store.search(("memories",), query=question))

    def call(name: str, number: int, **arguments: str) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"c{number}"}])

    said = [
        call("save", 1, text="The job fails with error 4711"),
        call("save", 2, text="Ana prefers tea"),
        call("look_up", 3, question="which error has the job?"),
        AIMessage("4711"),
    ]
    llm = GenericFakeChatModel(messages=iter(said))
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": [llm.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([save, look_up]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    store = FanrankStore()
    state = builder.compile(store=store).invoke({"messages": [("user", "What is the error?")]})
    tools = [message.content for message in state["messages"] if isinstance(message, ToolMessage)]
    assert tools == ["saved", "saved", "The job fails with error 4711"]
    assert state["messages"][-1].content == "4711"
