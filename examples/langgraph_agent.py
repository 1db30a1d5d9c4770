"""A LangGraph agent whose nodes read and write one memory.

The graph's planner sends three questions to a node each. `asearch` makes one launch of what they ask at once.

what broke -> deploy of billing failed: disk full on db-2
who owns billing -> Ana owns billing
what fixed a full disk -> old logs were deleted on db-2, so its disk has room
3 look-ups, launches: 1
remembered: ['note-3']
"""

import asyncio
import operator
from typing import Annotated, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

import fanrank as fr

MEMORY = fr.Engine.from_records(
    [
        fr.Record("note-0", "deploy of billing failed: disk full on db-2"),
        fr.Record("note-1", "Ana owns billing"),
        fr.Record("note-2", "old logs were deleted on db-2, so its disk has room"),
    ]
)
QUESTIONS = ["what broke: failed deploy", "who owns billing: Ana", "what fixed a full disk: logs deleted"]


class State(TypedDict):
    answers: Annotated[list[tuple[str, str]], operator.add]


def plan(state: State) -> list[Send]:
    return [Send("look_up", question) for question in QUESTIONS]


async def look_up(question: str) -> State:
    hits = await MEMORY.asearch(question, k=1, texts=True)
    return {"answers": [(question.partition(":")[0], hits[0][0].text)]}


def remember(state: State) -> State:
    MEMORY.add([fr.Record(f"note-{len(MEMORY)}", "told " + " and ".join(text for _, text in state["answers"]))])
    return {"answers": []}


async def main() -> None:
    graph = StateGraph(State)
    graph.add_node("look_up", look_up)
    graph.add_node("remember", remember)
    graph.add_conditional_edges(START, plan, ["look_up"])
    graph.add_edge("look_up", "remember")
    graph.add_edge("remember", END)
    for question, answer in (await graph.compile().ainvoke({"answers": []}))["answers"]:
        print(question, "->", answer)
    counts = MEMORY.coalescer.stats()
    print(f"{counts['queries']} look-ups, launches: {counts['launches']}")
    print("remembered:", [record.id for record in MEMORY.records(order="written", reverse=True, limit=1)])


if __name__ == "__main__":
    asyncio.run(main())
