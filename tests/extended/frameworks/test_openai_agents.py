"""The OpenAI Agents SDK calls the tool functions of a memory."""

import asyncio
import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.tool_cases import filled, tools_of

import fanrank as fr
from fanrank.engine.errors import ParameterError

pytest.importorskip("agents", reason="openai-agents is not installed")

import agents
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.strict_schema import ensure_strict_json_schema
from agents.usage import Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


def run_agent(tools: Any, calls: Sequence[tuple[str, str]], context: Any = None) -> list[str]:
    """The outputs of the tools, for a model that calls them all in its first turn and ends in its second."""
    asked: list[Any] = [
        ResponseFunctionToolCall(arguments=arguments, call_id=f"c{number}", name=name, type="function_call")
        for number, (name, arguments) in enumerate(calls)
    ]
    text = ResponseOutputText(annotations=[], text="done", type="output_text")
    told = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
    turns = iter([asked, [told]])

    class StubModel(Model):
        async def get_response(self, *arguments: Any, **keywords: Any) -> Any:
            return ModelResponse(output=next(turns), usage=Usage(), response_id=None)

        def stream_response(self, *arguments: Any, **keywords: Any) -> Any:
            raise NotImplementedError

    agent = agents.Agent(name="planner", model=StubModel(), tools=tools)
    quiet = agents.RunConfig(tracing_disabled=True)
    result = asyncio.run(agents.Runner.run(agent, "what does Ana drink?", context=context, run_config=quiet))
    assert result.final_output == "done"
    return [item.output for item in result.new_items if item.type == "tool_call_output_item"]


def test_an_agent_of_the_sdk_calls_the_tools() -> None:
    _, tools = filled()
    arguments = json.dumps({"queries": ["tea", "billing error"], "k": 2, "since": None, "until": None, "filters": None})
    good, bad = run_agent(tools.as_openai_agents(), [("recall", arguments), ("recall", "{")])
    assert (good, bad) == (tools.call("recall", arguments), tools.call("recall", "{"))
    assert len(json.loads(good)["answers"]) == 2
    assert "error" in json.loads(bad)


def test_the_sdk_takes_the_schemas_as_strict_ones_unchanged() -> None:
    for tool in (tools := tools_of()).as_openai_agents():
        assert tool.strict_json_schema
        assert tool.params_json_schema == tools.schema(tool.name)
        assert ensure_strict_json_schema(copy.deepcopy(tool.params_json_schema)) == tool.params_json_schema


def test_the_context_of_a_run_says_whose_memory_it_is() -> None:
    engine = fr.Engine()
    shared = tools_of(engine).as_openai_agents(namespace=lambda run: f"users/{run.context}")
    run_agent(shared, [("remember", '{"records": [{"text": "I prefer tea"}]}')], "ana")
    assert engine.namespaces == ("users/ana",)
    found = {user: run_agent(shared, [("recall", '{"queries": ["tea"]}')], user)[0] for user in ("ana", "bo")}
    assert [each["text"] for each in json.loads(found["ana"])["memories"]] == ["I prefer tea"]
    assert json.loads(found["bo"])["memories"] == []
    with pytest.raises(ParameterError, match="stay in it"):
        tools_of(engine.namespace("users/ana")).as_openai_agents(namespace=str)
