"""A whole answer told as a stream, for one that is known before anybody was asked.

The fold of the events is the answer, as of every stream. What a fold does not tell from nothing is lost: facts that
are an empty text, and warnings that repeat themselves.
"""

from __future__ import annotations

from pydantic_core import to_json

from ..types import (
    AgentResponse,
    Part,
    RefusalContent,
    StreamEvent,
    TextContent,
    ThinkingContent,
    ToolCall,
)
from ..types.cost import Cost

_OPENING = ("provider", "model", "id", "request_id")
_NOT_FACTS = frozenset((*_OPENING, "content", "usage"))


def replayed(response: AgentResponse) -> list[StreamEvent]:
    """Events that add up to the response: `fold(replayed(response)) == response`."""
    opening = AgentResponse(**{name: getattr(response, name) for name in _OPENING})
    events: list[StreamEvent] = [StreamEvent.message_start(response=opening)]
    for index, part in enumerate(response.content):
        events += _events_of(part, index)
    rest = {
        name: getattr(response, name)
        for name in AgentResponse.model_fields
        if name not in _NOT_FACTS and name in response.model_fields_set
    }
    ending = AgentResponse(**rest, raw=response.raw).with_cost(Cost(response.cost_estimate, response.cost_source))
    events.append(StreamEvent.message_end(usage=response.usage, response=ending))
    return events


def _events_of(part: Part, index: int) -> list[StreamEvent]:
    spoken: StreamEvent
    plain: Part
    match part:
        case ToolCall():
            return _call(part, index)
        case TextContent(text) if text:
            spoken, plain = StreamEvent.text_delta(text, index=index), TextContent(text=text)
        case ThinkingContent(text) if text:
            spoken, plain = StreamEvent.thinking_delta(text, index=index), ThinkingContent(thinking=text)
        case RefusalContent(text) if text:
            spoken, plain = StreamEvent.refusal_delta(text, index=index), RefusalContent(refusal=text)
        case _:
            return [StreamEvent.content_part_event(part, index=index)]
    # What a part holds besides its words, such as sources and signatures, comes with the finished part.
    return [spoken] if part == plain else [spoken, StreamEvent.content_part_event(part, index=index)]


def _call(call: ToolCall, index: int) -> list[StreamEvent]:
    text = to_json(call.arguments).decode() if call.invalid_arguments is None else call.invalid_arguments
    return [
        StreamEvent.tool_call_start(ToolCall(id=call.id, name=call.name), index=index),
        StreamEvent.tool_call_delta_event(text, id=call.id, index=index),
        StreamEvent.tool_call_end(call, index=index),
    ]
