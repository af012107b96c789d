"""Output modes: a schema is enforced by the vendor, through a tool, or in the prompt.

A plan holds the request to send and translates the response. Arguments of the answer tool become text, in responses
and in events, so that the conversation can continue and no tool call is left without a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from .. import errors
from ..engine.flow import Emit, Flow, intercept
from ..models import facts
from ..providers import Provider
from ..schemas import CompiledSchema, compile_schema, find_unresolved_reference, is_object_schema, wrap_schema
from ..schemas.dialect import WRAPPER, unwrap_value
from ..types import AgentRequest, AgentResponse, Part, StreamEvent, TextContent, ToolCall, ToolSpec, tool_name
from ..types.messages import OutputMode

ANSWER_TOOL = "final_answer"
_TOOL_DESCRIPTION = "Answer by calling this tool, once, with the whole answer."
_PROMPT = "Answer with JSON that fits this schema, and with nothing else: no explanation, no code fence.\n\n{schema}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The request to send, and how to read the response."""

    mode: OutputMode
    request: AgentRequest
    """The request for the codec."""
    answer_tool: str | None = None
    compiled: CompiledSchema | None = None
    wrapped: bool = False
    """Whether the schema was wrapped in an object."""

    @property
    def form(self) -> str:
        """The form of the answer, for the message that asks the model for a correction."""
        return "in the same form" if self.answer_tool is None else f"by calling {self.answer_tool}"

    def restore(self, value: Any) -> Any:
        """Convert a value to the caller's schema."""
        if self.compiled is not None:
            value = self.compiled.restore(value)
        return unwrap_value(value) if self.wrapped else value

    def partial(self, value: Any) -> Any:
        """Convert a partial value; None if nothing has arrived.

        Nulls that `restore` removes may still be present.
        """
        wrapped = self.wrapped or (self.compiled is not None and self.compiled.wrapped)
        if not wrapped or not isinstance(value, Mapping) or not value.keys() <= {WRAPPER}:
            return value
        return value.get(WRAPPER)

    def read(self, response: AgentResponse) -> tuple[AgentResponse, str]:
        """Return the response in the form of native output, and the text with the value."""
        answers = [call for call in response.tool_calls if call.name == self.answer_tool]
        if not answers:
            return response, response.text or ""
        text = _text_of(answers[0])
        content: list[Part] = []
        for part in response.content:
            if part is answers[0]:
                content.append(TextContent(text=text))
            elif part not in answers:
                content.append(part)
        changes: dict[str, Any] = {"content": tuple(content)}
        if response.stop_reason == "tool_calls" and len(answers) == len(response.tool_calls):
            changes["stop_reason"] = "stop"
        if len(answers) > 1:
            changes["warnings"] = (
                *response.warnings,
                f"the model called the answer tool {len(answers)} times; the first call was used",
            )
        return response.model_copy(update=changes), text

    def translate(self, call: Flow[AgentResponse]) -> Flow[AgentResponse]:
        """Translate the events of a call to those of native output."""
        if self.answer_tool is None:
            return call
        return intercept(call, _Translation(self.answer_tool).on_emit)


def as_sent(provider: Provider, request: AgentRequest) -> AgentRequest:
    """Return the request for the codec: the same, or one that asks for the output schema."""
    return request if request.output_schema is None else plan_output(provider, request).request


def plan_output(provider: Provider, request: AgentRequest) -> Plan:
    """Plan with the requested output mode, or the best one that the model supports."""
    schema = request.output_json_schema or {}
    if isinstance(request.output_schema, Mapping):
        _check_references(schema)
    compiled = None if provider.schema_dialect is None else compile_schema(schema, provider.schema_dialect)
    mode = request.output_mode or _best_mode(provider, request, compiled)
    if mode == "native":
        _check_native(provider, request, compiled)
        return Plan("native", request, compiled=compiled)
    if mode == "tool":
        return _plan_tool(provider, request, schema)
    told = _PROMPT.format(schema=to_json(schema, indent=1).decode())
    system = f"{request.system}\n\n{told}" if request.system else told
    return Plan("prompted", _without_schema(request, system=system))


def _check_references(schema: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a reference that cannot be resolved, before anything is sent."""
    if (reference := find_unresolved_reference(schema)) is not None:
        raise errors.ConfigurationError(
            f"The reference {reference!r} cannot be resolved within the schema.",
            field="output_schema",
            fix="Put the definition into the schema, under $defs. References are not fetched.",
        )


def _without_schema(request: AgentRequest, **changes: Any) -> AgentRequest:
    return request.model_copy(update={"output_schema": None, "output_mode": None, **changes})


def _best_mode(provider: Provider, request: AgentRequest, compiled: CompiledSchema | None) -> OutputMode:
    known = facts(provider.name, request.model or "")
    capable = provider.capabilities
    if (
        capable.native_schema_output
        and known.native_schema is not False
        and (compiled is None or compiled.sendable)
        and (not request.tools or _takes_schema_with_tools(provider, request))
    ):
        return "native"
    return "tool" if capable.tools and known.tools is not False else "prompted"


def _takes_schema_with_tools(provider: Provider, request: AgentRequest) -> bool:
    """Return whether the model supports a schema together with tools, as most do."""
    says = getattr(provider, "schema_with_tools", None)
    return says is None or bool(says(request.model or ""))


def _check_native(provider: Provider, request: AgentRequest, compiled: CompiledSchema | None) -> None:
    why = None
    if not provider.capabilities.native_schema_output:
        why = "it does not support schemas"
    elif compiled is not None and not compiled.sendable:
        why = "; ".join(compiled.lost)
    if why is not None:
        raise errors.UnsupportedFeatureError(
            f"{provider.name} cannot enforce this schema: {why}.",
            field="output_mode",
            fix='Omit it to use the best supported mode, or pass "tool" or "prompted".',
            provider=provider.name,
            model=request.model,
        )


def _plan_tool(provider: Provider, request: AgentRequest, schema: dict[str, Any]) -> Plan:
    if not provider.capabilities.tools:
        raise errors.UnsupportedFeatureError(
            f"{provider.name} does not support tools, which output_mode='tool' requires.",
            field="output_mode",
            fix='Omit it to use the best supported mode, or pass "prompted".',
            provider=provider.name,
            model=request.model,
        )
    wraps = not is_object_schema(schema)
    parameters = wrap_schema(schema) if wraps else schema
    compiled = None if provider.schema_dialect is None else compile_schema(parameters, provider.schema_dialect)
    enforced = (
        provider.capabilities.native_schema_output
        and facts(provider.name, request.model or "").native_schema is not False
        and (compiled is None or compiled.strict)
    )
    name = _free_name(request)
    tool = ToolSpec(name=name, description=_TOOL_DESCRIPTION, parameters=parameters, strict=True if enforced else None)
    sent = _without_schema(request, tools=(*request.tools, tool), tool_choice=_choice(request, name))
    return Plan("tool", sent, answer_tool=name, compiled=compiled, wrapped=wraps)


def _choice(request: AgentRequest, answer: str) -> str:
    """Require the answer tool, or any tool if the request has others, which the model may need first."""
    if not request.tools or request.tool_choice == "none":
        return answer
    return "required" if request.tool_choice in (None, "auto") else request.tool_choice


def _free_name(request: AgentRequest) -> str:
    taken = {tool_name(tool) for tool in request.tools}
    name = ANSWER_TOOL
    while name in taken:
        name += "_"
    return name


def _text_of(call: ToolCall) -> str:
    return to_json(call.arguments).decode() if call.invalid_arguments is None else call.invalid_arguments


class _Translation:
    """Translates the events of a stream whose answer is a tool call."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._restart()

    def _restart(self) -> None:
        self._answer: ToolCall | None = None
        self._index: int | None = None
        self._latest_calls: dict[int | None, ToolCall] = {}
        """The latest call at each index; at None, the latest call of the stream."""
        self._others = False
        self._pieces: list[str] = []

    def on_emit(self, emit: Emit) -> Flow[None]:
        events = [native for event in emit.events if (native := self._translate(event)) is not None]
        if events:
            yield Emit(events)

    def _translate(self, event: StreamEvent) -> StreamEvent | None:
        match event.type:
            case "tool_call_start" if event.tool_call is not None:
                return self._start(event, event.tool_call)
            case "tool_call_delta":
                return self._delta(event)
            case "tool_call_end" if event.tool_call is not None:
                return self._end(event, event.tool_call)
            case "message_end":
                return self._message_end(event)
            case "restart":
                self._restart()
            case _:
                pass
        return event

    def _start(self, event: StreamEvent, call: ToolCall) -> StreamEvent | None:
        self._latest_calls[event.index] = self._latest_calls[None] = call
        if call.name != self._tool:
            self._others = True
            return event
        if self._answer is None:
            self._answer, self._index = call, event.index
        return None

    def _delta(self, event: StreamEvent) -> StreamEvent | None:
        delta = event.tool_call_delta or {}
        call = self._latest_calls.get(event.index)
        name = delta.get("name") or (None if call is None else call.name)
        if name != self._tool:
            return event
        if self._answer is None:  # the vendor sent no start event
            self._answer = call = ToolCall(id=delta.get("id") or "", name=self._tool)
            self._index = event.index
            self._latest_calls[event.index] = self._latest_calls[None] = call
        text = delta.get("arguments") or ""
        if call is not self._answer or not text:  # the first of several answers is used
            return None
        self._pieces.append(text)
        return StreamEvent.text_delta(text, index=event.index, raw=event.raw)

    def _end(self, event: StreamEvent, call: ToolCall) -> StreamEvent | None:
        if call.name != self._tool:
            self._others = True
            return event
        if self._answer is None:
            self._answer, self._index = call, event.index
        if event.index != self._index or (self._answer.id and call.id != self._answer.id):
            return None
        text, streamed = _text_of(call), "".join(self._pieces)
        if not streamed:
            return StreamEvent.text_delta(text, index=event.index, raw=event.raw)
        if streamed == text or event.index is None:
            return None
        # The same value with different spacing: report it as an unstreamed response would.
        return StreamEvent.content_part_event(TextContent(text=text), index=event.index, raw=event.raw)

    def _message_end(self, event: StreamEvent) -> StreamEvent:
        ended = event.response
        if ended is None or ended.stop_reason != "tool_calls" or self._answer is None or self._others:
            return event
        return StreamEvent.message_end(
            usage=event.usage, response=ended.model_copy(update={"stop_reason": "stop"}), raw=event.raw
        )
