"""Whatever way a model has to keep to a schema, the caller sees the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from agent import Agent, errors
from agent.calls import output_modes
from agent.calls.output_modes import plan_output
from agent.engine.flow import Emit, Flow
from agent.models import ModelFacts
from agent.testing import Answer, LoopbackServer, Piece, Script, ScriptedTransport, VendorScript
from agent.types import (
    AgentRequest,
    AgentResponse,
    Message,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolSpec,
    fold,
)

MODES = ("native", "tool", "prompted")
LOOK = ToolSpec(
    name="look", description="Looks", parameters={"type": "object", "properties": {"at": {"type": "string"}}}
)


class City(BaseModel):
    name: str
    people: int = 0


def agent_for(*lines: Any, native: bool = True, tools: bool = True, **options: Any) -> tuple[Agent, Script]:
    """An agent whose provider can do as much as said."""
    script = Script(*lines)
    agent = Agent("scripted:script", transport=ScriptedTransport(script), **options)
    provider: Any = agent.provider
    provider.capabilities = provider.capabilities.model_copy(update={"native_schema_output": native, "tools": tools})
    return agent, script


def answer(**values: Any) -> ToolCall:
    return ToolCall(id="call_1", name="final_answer", arguments=values)


# Which way


@pytest.mark.parametrize(
    ("native", "tools", "mode"),
    [(True, True, "native"), (True, False, "native"), (False, True, "tool"), (False, False, "prompted")],
)
def test_the_best_way_the_provider_has_is_taken(native: bool, tools: bool, mode: str) -> None:
    agent, _ = agent_for(native=native, tools=tools)
    assert plan_output(agent.provider, AgentRequest(input="?", output_schema=City, model="m")).mode == mode


@pytest.mark.parametrize("mode", MODES)
def test_the_request_may_insist(mode: Any) -> None:
    agent, _ = agent_for()
    assert plan_output(agent.provider, AgentRequest(input="?", output_schema=City, output_mode=mode)).mode == mode


def test_what_is_known_of_the_model_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, _ = agent_for()
    request = AgentRequest(input="?", output_schema=City, model="old")
    known: dict[str, Any] = {"native_schema": False}
    monkeypatch.setattr(
        output_modes, "facts", lambda provider, model: ModelFacts(provider=provider, model=model, **known)
    )
    plan = plan_output(agent.provider, request)
    assert plan.mode == "tool"
    assert plan.request.tools[-1].strict is None  # type: ignore[union-attr]
    known["tools"] = False
    assert plan_output(agent.provider, request).mode == "prompted"


def test_a_provider_may_say_that_a_model_takes_no_schema_beside_tools() -> None:
    agent, _ = agent_for()
    provider: Any = agent.provider
    provider.schema_with_tools = lambda model: model != "old"
    request = AgentRequest(input="?", output_schema=City, tools=(LOOK,))
    assert plan_output(provider, request.model_copy(update={"model": "old"})).mode == "tool"
    assert plan_output(provider, request.model_copy(update={"model": "new"})).mode == "native"
    assert plan_output(provider, AgentRequest(input="?", output_schema=City, model="old")).mode == "native"


def test_a_schema_that_the_vendor_does_not_take_goes_through_a_tool() -> None:
    agent, _ = agent_for()
    provider: Any = agent.provider
    provider.schema_dialect = "anthropic"
    request = AgentRequest(input="?", output_schema=dict[str, int])
    plan = plan_output(provider, request)
    assert plan.mode == "tool"
    assert plan.request.tools[-1].strict is None  # type: ignore[union-attr]
    with pytest.raises(errors.UnsupportedFeatureError, match="arbitrary property names") as caught:
        plan_output(provider, request.model_copy(update={"output_mode": "native"}))
    assert caught.value.field == "output_mode"


def test_a_way_that_the_provider_does_not_have_is_refused_before_anything_is_sent() -> None:
    agent, script = agent_for(native=False, tools=False)
    for mode in ("native", "tool"):
        with pytest.raises(errors.UnsupportedFeatureError, match=r"does not support (schemas|tools)") as caught:
            agent.json("?", schema=City, output_mode=mode)
        assert caught.value.field == "output_mode"
    assert not script.requests


# Through a tool


def test_the_answer_tool_is_forced_and_its_call_becomes_text() -> None:
    agent, script = agent_for(answer(name="Ulm", people=1), native=False)
    response = agent.json("?", schema=City)
    assert response.output == City(name="Ulm", people=1)
    assert response.content == (TextContent(text='{"name":"Ulm","people":1}'),)
    assert response.stop_reason == "stop"
    assert response.raw_stop_reason == "tool_calls"
    sent = script.requests[0]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "final_answer"}}
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["final_answer"]
    assert "response_format" not in sent


def test_the_conversation_goes_on_without_an_orphan() -> None:
    agent, script = agent_for(answer(name="Ulm"), "More", native=False)
    first = agent.json("Which?", schema=City)
    agent.complete([Message.user("Which?"), first.message, Message.user("Tell me more")])
    assert [message["role"] for message in script.requests[1]["messages"]] == ["user", "assistant", "user"]
    assert "tool_calls" not in script.requests[1]["messages"][1]


def test_what_is_no_object_is_wrapped_for_the_tool() -> None:
    agent, script = agent_for(answer(value=[1, 2]), native=False)
    assert agent.json("?", schema=list[int]).output == [1, 2]
    assert script.requests[0]["tools"][0]["function"]["parameters"]["required"] == ["value"]


def test_other_tools_may_be_used_first() -> None:
    call = ToolCall(id="call_9", name="look", arguments={"at": "map"})
    agent, script = agent_for(call, answer(name="Ulm"), native=False, tools=True)
    response = agent.complete("?", schema=City, tools=[LOOK])
    assert [part.name for part in response.tool_calls] == ["look"]
    assert response.output is None
    assert response.stop_reason == "tool_calls"
    assert script.requests[0]["tool_choice"] == "required"
    assert len(script.requests[0]["tools"]) == 2


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, "required"),
        ("auto", "required"),
        ("required", "required"),
        ("none", {"type": "function", "function": {"name": "final_answer"}}),
        ("look", {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_the_callers_choice_of_tools_is_kept_as_far_as_it_can_be(choice: str | None, sent: Any) -> None:
    agent, script = agent_for(answer(name="Ulm"), native=False)
    agent.complete("?", schema=City, tools=[LOOK], tool_choice=choice)
    assert script.requests[0]["tool_choice"] == sent


def test_an_answer_beside_another_call_waits_for_its_result() -> None:
    both = AgentResponse(content=(answer(name="Ulm"), ToolCall(id="call_2", name="look", arguments={})))
    agent, _ = agent_for(both, native=False)
    response = agent.complete("?", schema=City, tools=[LOOK])
    assert [call.name for call in response.tool_calls] == ["look"]
    assert response.text == '{"name":"Ulm"}'
    assert response.output is None
    assert response.stop_reason == "tool_calls"


def test_a_tool_of_the_callers_may_have_that_name() -> None:
    own = ToolSpec(name="final_answer")
    agent, script = agent_for(ToolCall(id="1", name="final_answer_", arguments={"name": "Ulm"}), native=False)
    assert agent.complete("?", schema=City, tools=[own]).output == City(name="Ulm")
    assert [tool["function"]["name"] for tool in script.requests[0]["tools"]] == ["final_answer", "final_answer_"]


def test_the_first_of_two_answers_counts() -> None:
    twice = AgentResponse(content=(answer(name="Ulm"), ToolCall(id="2", name="final_answer", arguments={"name": "B"})))
    agent, _ = agent_for(twice, twice, native=False)
    response = agent.json("?", schema=City)
    assert response.output == City(name="Ulm")
    assert response.warnings == ("the model called the answer tool 2 times; the first call was used",)
    assert agent.stream("?", schema=City).collect().output == City(name="Ulm")


def test_words_instead_of_the_call_or_around_it_are_read_too() -> None:
    around = AgentResponse(content=(TextContent(text="Well: {"), answer(name="Ulm")))
    agent, _ = agent_for('{"name": "Ulm"}', around, native=False)
    assert agent.json("?", schema=City).output == City(name="Ulm")
    response = agent.json("?", schema=City)
    assert response.output == City(name="Ulm")
    assert response.text == 'Well: {{"name":"Ulm"}'


def test_a_wrong_answer_through_a_tool_is_asked_for_again() -> None:
    agent, script = agent_for(answer(people="many"), answer(name="Ulm"), native=False)
    assert agent.json("?", schema=City).output == City(name="Ulm")
    assert script.requests[1]["messages"][1] == {"role": "assistant", "content": '{"people":"many"}'}
    assert "name: Field required" in script.requests[1]["messages"][2]["content"]
    assert script.requests[1]["tool_choice"] == script.requests[0]["tool_choice"]


# By asking


def test_the_schema_is_in_the_prompt() -> None:
    agent, script = agent_for('```json\n{"name": "Ulm"}\n```', native=False, tools=False, default_system="Be brief.")
    assert agent.json("?", schema=City).output == City(name="Ulm")
    sent = script.requests[0]
    assert "tools" not in sent
    assert "response_format" not in sent
    assert sent["messages"][0]["role"] == "system"
    assert sent["messages"][0]["content"].startswith("Be brief.\n\nAnswer with JSON")
    assert json.loads(sent["messages"][0]["content"].split("\n\n", 2)[2]) == City.model_json_schema()


# All ways alike


def write_answer(mode: str, **values: Any) -> Any:
    return answer(**values) if mode == "tool" else json.dumps(values, separators=(",", ":"))


@pytest.mark.parametrize("mode", MODES)
def test_all_ways_look_the_same(mode: Any) -> None:
    agent, _ = agent_for(write_answer(mode, name="Ulm", people=7))
    response = agent.json("?", schema=City, output_mode=mode)
    assert response.output == City(name="Ulm", people=7)
    assert response.text == '{"name":"Ulm","people":7}'
    assert response.stop_reason == "stop"
    assert not response.has_tool_calls


@pytest.mark.parametrize("mode", MODES)
def test_streams_look_the_same_and_equal_what_is_not_streamed(mode: Any) -> None:
    thought = ThinkingContent(thinking="Let me see")
    line = write_answer(mode, name="Ulm am Rhein", people=7)
    reply = AgentResponse(content=(thought, TextContent(text=line) if isinstance(line, str) else line))
    agent, _ = agent_for(reply, reply)
    whole = agent.complete("?", schema=City, output_mode=mode)
    stream = agent.stream("?", schema=City, output_mode=mode)
    events = list(stream)
    assert "".join(event.text or "" for event in events if event.type == "text_delta") == whole.text
    assert not any(event.type.startswith("tool_call") for event in events)
    assert sum(event.type == "text_delta" for event in events) > 1
    assert stream.text == whole.text
    assert stream.response.output == whole.output == City(name="Ulm am Rhein", people=7)
    assert stream.response.content == whole.content
    assert stream.response.stop_reason == fold(events).stop_reason == "stop"
    assert fold(events).content == whole.content
    assert stream.response.usage == whole.usage


def test_an_answer_in_other_spacing_streams_as_it_comes_and_ends_as_it_is() -> None:
    plan = plan_output(agent_for()[0].provider, AgentRequest(input="?", output_schema=City, output_mode="tool"))
    assert plan.answer_tool == "final_answer"

    def vendor() -> Any:
        call = answer(name="Ulm")
        yield Emit([StreamEvent.tool_call_start(ToolCall(id="call_1", name="final_answer"), index=4)])
        yield Emit([StreamEvent.tool_call_delta_event('{"name": ', index=4)])
        yield Emit([StreamEvent.tool_call_delta_event('"Ulm" }', index=4)])
        yield Emit([StreamEvent.tool_call_end(call, index=4)])
        return AgentResponse(content=(call,))

    emitted: list[Any] = [event for effect in plan.translate(vendor()) for event in effect.events]  # type: ignore[union-attr]
    assert [event.type for event in emitted] == ["text_delta", "text_delta", "content_part"]
    assert "".join(event.text or "" for event in emitted) == '{"name": "Ulm" }'
    assert fold(emitted).text == '{"name":"Ulm"}'


def test_other_calls_stream_as_calls_in_tool_mode() -> None:
    call = ToolCall(id="call_9", name="look", arguments={"at": "the whole map"})
    agent, _ = agent_for(call, native=False)
    stream = agent.stream("?", schema=City, tools=[LOOK])
    kinds = [event.type for event in stream]
    assert "tool_call_end" in kinds
    assert "text_delta" not in kinds
    assert stream.response.tool_calls == [call.model_copy(update={"origin": stream.response.tool_calls[0].origin})]
    assert stream.response.output is None
    assert stream.response.stop_reason == "tool_calls"


def test_a_stream_that_breaks_keeps_what_had_come_as_text() -> None:
    whole = Script(answer(name="Ulm an der Donau", people=7))

    def network(request: Any) -> Answer:
        reply = whole(request)
        pieces = list(reply.iter_pieces())[:-3]
        return Answer([*pieces, Piece(errors.ConnectionError("gone"))], headers=reply.headers)

    agent = Agent("scripted:script", transport=ScriptedTransport(network), max_retries=0)
    stream = agent.stream("?", schema=City, output_mode="tool")
    with pytest.raises(errors.StreamInterrupted) as caught:
        list(stream)
    assert stream.text.startswith('{"name":"Ulm')
    assert caught.value.partial is not None
    assert not caught.value.partial.has_tool_calls


@pytest.mark.parametrize(
    "target",
    ["openai-chat:gpt-5", "openai-responses:gpt-5", "anthropic:claude-sonnet-4-5", "gemini:gemini-2.5-pro"],
)
def test_of_several_answers_in_a_stream_the_first_counts(target: str) -> None:
    both = [answer(name="Ulm", people=1), ToolCall(id="call_2", name="final_answer", arguments={"name": "Bonn"})]
    with LoopbackServer(VendorScript(both, both)) as server:
        agent = Agent(target, api_key="k", base_url=f"{server.url}/v1")
        whole = agent.json("?", schema=City, output_mode="tool")
        stream = agent.stream_json("?", schema=City, output_mode="tool")
        partials = list(stream)
    assert partials[-1] == {"name": "Ulm", "people": 1}
    assert stream.output == whole.output == City(name="Ulm", people=1)
    assert stream.text == stream.response.text == whole.text
    assert stream.response.tool_calls == []
    assert any("2 times" in warning for warning in stream.response.warnings)


def test_of_several_answers_without_an_index_the_first_counts_too() -> None:
    agent, _ = agent_for(native=False)
    plan = plan_output(agent.provider, AgentRequest(input="?", output_schema=City))

    def vendor() -> Flow[AgentResponse]:
        for number, name in enumerate(("Ulm", "Bonn")):
            call = ToolCall(id=f"call_{number}", name="final_answer", arguments={"name": name})
            yield Emit([StreamEvent.tool_call_start(ToolCall(id=call.id, name=call.name))])
            yield Emit([StreamEvent.tool_call_delta_event(f'{{"name":"{name}"}}')])
            yield Emit([StreamEvent.tool_call_end(call)])
        return AgentResponse()

    emitted: list[Any] = [event for effect in plan.translate(vendor()) for event in effect.events]  # type: ignore[union-attr]
    assert "".join(event.text or "" for event in emitted) == '{"name":"Ulm"}'


def test_who_did_not_call_the_answer_tool_is_told_to() -> None:
    agent, script = agent_for("Ulm, I think.", answer(name="Ulm"), native=False)
    assert agent.json("?", schema=City).output == City(name="Ulm")
    assert "by calling final_answer" in script.requests[1]["messages"][-1]["content"]
