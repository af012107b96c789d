"""How a run's events are written down in tests: one short line each."""

from __future__ import annotations

from typing import Any

from agent.types import Message


def story(events: list[Any]) -> list[str]:
    """Summarize events. Updates of one message count once, however the vendor chunks its stream."""
    lines: list[str] = []
    for event in events:
        line = _line(event)
        if not (event.type == "message_update" and lines and lines[-1] == line):
            lines.append(line)
    return lines


def _line(event: Any) -> str:
    match event.type:
        case "message_start" | "message_end":
            return f"{event.type} {_describe_sender(event.message)}"
        case "message_update":
            return f"message_update {event.assistant_message_event.type}"
        case "turn_end":
            return f"turn_end {len(event.tool_results)} results"
        case "agent_end":
            return f"agent_end {len(event.messages)} messages"
        case "tool_execution_start":
            return f"tool_execution_start {event.tool_call_id} {event.tool_name}"
        case "tool_execution_update":
            return f"tool_execution_update {event.tool_call_id} {_text(event.partial_result.content)}"
        case "tool_execution_end":
            return f"tool_execution_end {event.tool_call_id} {'error ' * event.is_error}{_text(event.result.content)}"
        case _:
            return str(event.type)


def _describe_sender(message: Any) -> str:
    if not isinstance(message, Message):
        return f"{message['role']}"
    reason = f" [{message.stop_reason}]" if message.stop_reason in ("error", "aborted") else ""
    return f"{message.role.value}{reason}"


def _text(content: Any) -> str:
    return "".join(part["text"] if isinstance(part, dict) else part.text or "" for part in content)


def check_history(messages: list[Any]) -> None:
    """Every call has exactly one result, behind it, in the order of the calls."""
    open_calls: list[str] = []
    for message in messages:
        if message.role == "tool":
            for part in message.parts:
                assert open_calls, f"a result without a call: {part}"
                assert part.tool_call_id == open_calls.pop(0), "results are in the order of their calls"
        else:
            assert not open_calls, f"calls without results: {open_calls}"
            open_calls = [call.id for call in message.tool_calls or ()]
    assert not open_calls, f"calls without results: {open_calls}"
