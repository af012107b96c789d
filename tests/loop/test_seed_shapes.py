"""The vocabulary of stream functions: this package has every declaration of its document.

The document itself lies beside the recordings. Its blocks are run as they are, with this package's names for their
imports, and what they declare is compared with what we have. The table below says the same without the document.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import re
import typing
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, get_type_hints

import pytest
from typing_extensions import override

import agent.loop
from agent import tool
from agent.loop import (
    AgentContext,
    AgentLoopConfig,
    AgentState,
    AgentTool,
    AgentToolResult,
    AssistantMessage,
    Context,
    EventStream,
    Model,
    SimpleStreamOptions,
    ThinkingLevel,
    Tool,
    ToolResultMessage,
    UserMessage,
)
from agent.testing import scripted_agent
from agent.types import Message, TextContent, ToolCall
from tests.support.corpus import CORPUS

SEEDS = CORPUS.parent / "seeds"

FIELDS: dict[str, dict[str, Any]] = {
    "Tool": {"name": "", "description": "", "parameters": {}},
    "AgentTool": {"name": "", "description": "", "parameters": {}, "label": "", "execute": None},
    "AgentToolResult": {"content": [], "details": {}},
    "Context": {"system_prompt": "", "messages": [], "tools": None},
    "AgentContext": {"system_prompt": "", "messages": [], "tools": None},
    "Model": {"provider": "", "id": "", "api": "", "thinking_level": ThinkingLevel.OFF},
    "AgentStartEvent": {"type": "agent_start"},
    "AgentEndEvent": {"type": "agent_end", "messages": []},
    "TurnStartEvent": {"type": "turn_start"},
    "TurnEndEvent": {"type": "turn_end", "message": None, "tool_results": []},
    "MessageStartEvent": {"type": "message_start", "message": None},
    "MessageUpdateEvent": {"type": "message_update", "message": None, "assistant_message_event": None},
    "MessageEndEvent": {"type": "message_end", "message": None},
    "ToolExecutionStartEvent": {"type": "tool_execution_start", "tool_call_id": "", "tool_name": "", "args": None},
    "ToolExecutionUpdateEvent": {
        "type": "tool_execution_update",
        "tool_call_id": "",
        "tool_name": "",
        "args": None,
        "partial_result": None,
    },
    "ToolExecutionEndEvent": {
        "type": "tool_execution_end",
        "tool_call_id": "",
        "tool_name": "",
        "result": None,
        "is_error": False,
    },
}
DICTIONARIES = {
    "UserMessage": {"role", "content", "timestamp"},
    "AssistantMessage": {
        "role", "content", "stop_reason", "timestamp", "api", "provider", "model", "usage", "error_message",
    },
    "ToolResultMessage": {"role", "tool_call_id", "tool_name", "content", "details", "is_error", "timestamp"},
    "SimpleStreamOptions": {"api_key", "temperature", "max_tokens", "signal"},
    "AgentState": {
        "system_prompt", "model", "thinking_level", "tools", "messages", "is_streaming", "stream_message",
        "pending_tool_calls", "error",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FIELDS)
def test_a_declared_value_has_its_fields_in_order_and_their_defaults(name: str) -> None:
    kind: Any = getattr(agent.loop, name)
    declared: dict[str, Any] = FIELDS[name]
    positional = [field.name for field in dataclasses.fields(kind) if not field.kw_only]
    assert positional[: len(declared)] == list(declared)
    made = kind()
    assert {field: getattr(made, field) for field in declared} == declared
    assert kind(*declared.values()) == made  # by position, too


@pytest.mark.parametrize("name", DICTIONARIES)
def test_a_declared_dictionary_has_its_keys(name: str) -> None:
    assert set(getattr(agent.loop, name).__annotations__) == DICTIONARIES[name]


def test_the_configuration_of_the_loop_has_its_fields() -> None:
    names = [field.name for field in dataclasses.fields(AgentLoopConfig) if not field.kw_only]
    assert names == [
        "model",
        "convert_to_llm",
        "transform_context",
        "get_api_key",
        "get_steering_messages",
        "get_follow_up_messages",
        "api_key",
        "temperature",
        "max_tokens",
    ]
    made = AgentLoopConfig(Model(), lambda messages: messages)
    assert [getattr(made, name) for name in names[2:]] == [None] * 7


def test_the_dictionaries_are_messages_wherever_messages_are() -> None:
    user: UserMessage = {"role": "user", "content": [TextContent(text="Hi")], "timestamp": 1_700_000_000_000}
    said: AssistantMessage = {
        "role": "assistant",
        "content": [TextContent(text="Looking."), None, ToolCall(id="c1", name="look", arguments={})],
        "stop_reason": "tool_calls",
        "provider": "openai",
        "api": "openai-chat",
        "model": "gpt-4o",
        "usage": {"input_tokens": 3, "output_tokens": 2},
        "error_message": None,
    }
    result: ToolResultMessage = {
        "role": "tool_result",
        "tool_call_id": "c1",
        "tool_name": "look",
        "content": [TextContent(text="a river")],
        "details": {"seen": 1},
        "is_error": False,
    }
    read = [Message.from_dict(message) for message in (user, said, result)]
    assert [message.role.value for message in read] == ["user", "assistant", "tool"]
    assert (read[1].stop_reason, read[1].provider, read[1].api, read[1].model) == (
        "tool_calls",
        "openai",
        "openai-chat",
        "gpt-4o",
    )
    assert read[1].usage is not None
    assert read[2].parts[0].details == {"seen": 1}  # type: ignore[union-attr]
    assert scripted_agent("Fine.").run([user, said, result, {"role": "user", "content": "And?"}]).text == "Fine."


def test_a_tool_of_ones_own_class_is_a_dataclass_too() -> None:
    @dataclasses.dataclass
    class Dice(Tool):
        name: str = "dice"
        sides: int = 6

        @override
        def run(self, arguments: Any, context: Any) -> int:
            return self.sides

    agent = scripted_agent(ToolCall(id="c1", name="dice", arguments={}), "Six.", tools=[Dice()])
    assert agent.run("Roll.").messages[2].text == "6"


def test_values_of_the_vocabulary_go_together() -> None:
    @tool
    def look() -> str:
        return "a river"

    state: AgentState = {"system_prompt": "", "model": Model("scripted", "m"), "thinking_level": ThinkingLevel.HIGH}
    options: SimpleStreamOptions = {"api_key": None, "temperature": 0.1}
    context = AgentContext("Be brief.", [Message.user("Hi"), {"role": "note"}], [look])
    assert Context(context.system_prompt, [Message.user("Hi")], context.tools).tools == [look]
    assert (state["thinking_level"], options["temperature"]) == ("high", 0.1)


# The document itself


def blocks() -> list[str]:
    found = sorted(SEEDS.glob("002_*")) if SEEDS.exists() else []
    return re.findall(r"```python\n(.*?)```", found[0].read_text("utf-8"), re.S) if found else []


def test_every_block_of_the_document_runs_and_declares_what_we_have() -> None:
    snippets = blocks()
    if not snippets:
        pytest.skip("the document that describes the loop does not lie beside the recordings")
    assert len(snippets) >= 25
    compared = 0
    for snippet in snippets:
        names: dict[str, Any] = {name: getattr(agent.loop, name) for name in agent.loop.__all__}
        names |= {name: getattr(typing, name) for name in typing.__all__}
        names |= {"dataclass": dataclasses.dataclass, "field": dataclasses.field, "Enum": enum.Enum, "asyncio": asyncio}
        names |= {"Callable": Callable, "Awaitable": Awaitable, "AsyncIterator": AsyncIterator, "__name__": __name__}
        before = dict(names)
        body = re.sub(r"^(    def \w+\((?:[^()]|\n)*?\)(?: -> [^:\n]+)?)$", r"\1: ...", snippet, flags=re.M)
        body = re.sub(r"^(    async def \w+\((?:[^()]|\n)*?\)(?: -> [^:\n]+)?)$", r"\1: ...", body, flags=re.M)
        exec(compile("from __future__ import annotations\n" + body, "seed 002", "exec"), names)
        for name, declared in names.items():
            if isinstance(declared, type) and declared is not before.get(name):
                compared += _compare(name, declared)
    assert compared >= 22


def _compare(name: str, declared: type) -> int:
    ours = getattr(agent.loop, name)
    if dataclasses.is_dataclass(declared):
        assert dataclasses.is_dataclass(ours), name
        theirs = [field.name for field in dataclasses.fields(declared) if not field.kw_only]
        assert [field.name for field in dataclasses.fields(ours) if not field.kw_only][: len(theirs)] == theirs, name
    elif issubclass(declared, enum.Enum):
        assert [member.value for member in ours] == [member.value for member in declared]
    elif isinstance(ours, type) and issubclass(ours, dict):
        assert set(ours.__annotations__) == set(declared.__annotations__), name
    elif name == "EventStream":
        assert {"push", "end", "result"} <= set(vars(EventStream))
    elif typing.is_typeddict(declared):
        given = set(declared.__annotations__) - {"type", "partial_json"}
        readable = set(ours.model_fields) | {
            choice for field in ours.model_fields.values() for choice in getattr(field.validation_alias, "choices", ())
        }
        assert given - readable <= {"url"}, name  # an image's address is read by a validator of its own
    return 1


def test_hints_of_the_events_resolve() -> None:
    for name in (name for name in agent.loop.__all__ if name.endswith("Event") and name != "AgentEvent"):
        kind = getattr(agent.loop, name)
        if dataclasses.is_dataclass(kind):
            assert "type" in get_type_hints(kind)
    assert AgentTool().can_run is False
    assert AgentToolResult(content="text").content == "text"
