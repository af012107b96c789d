"""Writing a request as the JSON that the Responses API takes: its settings, around the items of the conversation.

Nothing is stored at the vendor unless the caller asks for it: the conversation travels whole, with the model's
reasoning in sealed form. What the API cannot take raises before anything is sent; a mere setting that the API or the
model refuses is left out with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ...models import facts
from ...schemas import compile_schema
from ...types import AgentRequest, Message, Origin, Role, ThinkingLevel, ToolResult, ToolSpec
from ...types.tools import plain_schema
from ..repair import repair
from ..writing import (
    NO_PARAMETERS,
    Written,
    check_extra,
    fitting_id,
    fitting_name,
    object_json,
    schema_name,
    text_json,
    tools_json,
    with_commas,
)
from .items import LONGEST_NAME, ItemWriter
from .traits import API, DIALECT, EFFORTS, Effort, Family, Traits, family_of

SEALED_REASONING = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"

_OWN_KEYS = ("input", "instructions", "model", "stream")
_COUNTED = (
    "model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text", "truncation",
    "previous_response_id", "conversation", "personality",
)  # fmt: skip
"""Keys that the endpoint for counting tokens takes, besides the input."""
_CACHE_KEY = re.compile(r".{1,64}", re.S)
_EFFORT_OF: dict[ThinkingLevel, Effort] = {
    ThinkingLevel.OFF: "none",
    ThinkingLevel.MINIMAL: "minimal",
    ThinkingLevel.LOW: "low",
    ThinkingLevel.MEDIUM: "medium",
    ThinkingLevel.HIGH: "high",
    ThinkingLevel.XHIGH: "xhigh",
}


class BodyWriter:
    """Writes one request's body; collects what is left out on the way."""

    def __init__(
        self, request: AgentRequest, home: Origin, traits: Traits, foreign_thinking: Literal["drop", "text"]
    ) -> None:
        check_extra(request, _OWN_KEYS)
        self._request = request
        self._home = home
        self._traits = traits
        self._foreign_thinking = foreign_thinking
        self._family: Family = family_of(home.model, traits.families)
        self._facts = facts(traits.known_as, home.model)
        self._warnings: dict[str, None] = {}
        extra = request.extra
        self._continues = bool(extra) and any(extra.get(key) for key in ("previous_response_id", "conversation"))
        """Goes on from what the vendor has stored."""
        self._stored = bool(extra["store"]) if "store" in extra else self._continues or bool(extra.get("background"))

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self._warnings)

    def body(self, *, stream: bool) -> bytes:
        instructions, items = self._conversation()
        settings = self._settings(instructions)
        if stream:
            settings["stream"] = True
        return _joined(settings, items)

    def count_body(self) -> bytes:
        """The body for counting the tokens of what `body` would send."""
        instructions, items = self._conversation()
        settings = self._settings(instructions)
        return _joined({key: settings[key] for key in _COUNTED if key in settings}, items)

    def _warn(self, warning: str) -> None:
        self._warnings[warning] = None

    # The conversation.

    def _conversation(self) -> tuple[str | None, list[bytes]]:
        """The instructions, and everything else that has been said."""
        messages: Sequence[Message] = self._request.to_messages()
        instructions = None
        if len(messages) > 1 and (told := _instructions(messages[0])):
            instructions, messages = told, messages[1:]
        answers: list[Message] = []
        if self._continues:
            answers, messages = _leading_results(messages)
        writer = ItemWriter(self._home, stored=self._stored, breakpoints=self._family.breakpoints)
        repaired, warnings = repair(messages, self._home, self._foreign_thinking)
        items = writer.messages((*answers, *repaired))
        self._warnings.update(dict.fromkeys((*warnings, *writer.warnings)))
        return instructions, items

    # The settings.

    def _settings(self, instructions: str | None) -> dict[str, Any]:
        request = self._request
        body: dict[str, Any] = {"model": request.model}
        if instructions is not None:
            body["instructions"] = instructions
        if request.tools:
            body["tools"] = tools_json(request.tools, API, _tool, self._warn)
        if request.tool_choice is not None:
            body["tool_choice"] = self._tool_choice(request.tool_choice)
        if request.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = request.parallel_tool_calls
        if request.max_tokens is not None:
            body["max_output_tokens"] = self._max_output(request.max_tokens)
        effort = None if request.thinking is None else self._effort(request.thinking)
        if effort is not None:
            body["reasoning"] = {"effort": effort} if effort == "none" else {"effort": effort, "summary": "auto"}
        if (schema := request.output_json_schema) is not None:
            body["text"] = {"format": self._format(schema)}
        include = [SEALED_REASONING] if self._reasons and self._traits.seals_reasoning else []
        self._sampling(body, include, effort)
        self._caching(body)
        if request.metadata and self._traits.metadata:
            self._metadata(body)
        for name in ("stop", "seed"):
            if getattr(request, name) is not None:
                self._warn(f"{name} was left out: the Responses API has no such setting")
        if include:
            body["include"] = include
        if not self._stored:
            body["store"] = False
        return _merged(body, request.extra)

    @property
    def _reasons(self) -> bool:
        return bool(self._family.efforts) and self._facts.thinking is not False

    def _tool_choice(self, choice: str) -> Any:
        if choice in ("auto", "none", "required"):
            return choice
        for tool in self._request.tools:
            if isinstance(tool, ToolSpec):
                continue
            if tool.get("name") == choice:
                return {"type": tool.get("type"), "name": choice}
            if tool.get("type") == "mcp" and choice in ("mcp", tool.get("server_label")):
                return {"type": "mcp", "server_label": tool.get("server_label")}
            if tool.get("type") == choice:
                return {"type": choice}
        return {"type": "function", "name": fitting_name(choice, LONGEST_NAME)}

    def _max_output(self, limit: int) -> int:
        least = self._traits.least_output
        if limit < least:
            self._warn(f"max_tokens {limit} is less than the API accepts: {least} was sent")
        return max(limit, least)

    def _effort(self, level: ThinkingLevel) -> Effort | None:
        wanted = _EFFORT_OF[level]
        if not self._reasons:
            if wanted != "none":
                self._warn(f"thinking was left out: {self._home.model} does not reason")
            return None
        offered = self._family.efforts
        if wanted in offered:
            return wanted
        # As little more as possible, for whoever asks for thinking must not get none; or the most there is.
        above = [effort for effort in offered if EFFORTS.index(effort) > EFFORTS.index(wanted)]
        chosen = above[0] if above else offered[-1]
        self._warn(f"thinking {level.value!r} is not offered by {self._home.model}: {chosen!r} was asked for")
        return chosen

    def _format(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        compiled = compile_schema(schema, DIALECT)
        for lost in compiled.lost:
            self._warn(f"output_schema: {lost}")
        named = {"type": "json_schema", "name": schema_name(schema), "schema": compiled.schema}
        return {**named, "strict": compiled.strict}

    def _sampling(self, body: dict[str, Any], include: list[str], effort: Effort | None) -> None:
        """Temperature, top_p and logprobs: models that reason refuse all three."""
        request = self._request
        rests = effort == "none" or (effort is None and self._family.rests)
        refused = (self._facts.sampling is False or self._family.rests) and not rests
        for key in ("temperature", "top_p", "logprobs"):
            value = getattr(request, key)
            if value is None:
                continue
            if refused:
                self._warn(f"{key} was left out: {self._home.model} does not take it")
            elif key == "logprobs":
                include.append(LOGPROBS)
                if value:
                    body["top_logprobs"] = value
            else:
                body[key] = value

    def _caching(self, body: dict[str, Any]) -> None:
        """Prompts are cached without being asked to; a key keeps a session together, a hint makes it last."""
        request = self._request
        if not self._traits.cache_settings:
            return
        if request.session_id:
            body["prompt_cache_key"] = fitting_id(request.session_id, _CACHE_KEY, 64)
        if request.cache == "long":
            match self._family.long_cache:
                case "retention":
                    body["prompt_cache_retention"] = "24h"
                case "ttl":
                    body["prompt_cache_options"] = {"ttl": "12h"}
                case None:
                    self._warn(f"cache 'long' was left out: {self._home.model} keeps prompts for its usual time")

    def _metadata(self, body: dict[str, Any]) -> None:
        fitting = {
            key: value
            for key, value in self._request.metadata.items()
            if len(key) <= 64 and isinstance(value, str) and len(value) <= 512
        }
        sent = dict(list(fitting.items())[:16])
        if sent:
            body["metadata"] = sent
        if len(sent) < len(self._request.metadata):
            self._warn("part of metadata was left out: the API takes 16 texts of 512 letters")


def _tool(tool: ToolSpec, warnings: list[str]) -> dict[str, Any] | Written:
    """`strict` is always said: the API takes its absence for yes."""
    if (schema := plain_schema(tool)) is not None:
        name = text_json(fitting_name(tool.name, LONGEST_NAME))
        description = b',"description":' + text_json(tool.description) if tool.description else b""
        return Written(b'{"type":"function","name":%b%b,"parameters":%b,"strict":false}' % (name, description, schema))
    parameters: Mapping[str, Any] = tool.parameters or NO_PARAMETERS
    strict = False
    if tool.strict:
        compiled = compile_schema(parameters, DIALECT)
        parameters, strict = compiled.schema, compiled.strict
        warnings.extend(f"tool {tool.name}: {lost}" for lost in compiled.lost)
    written: dict[str, Any] = {"type": "function", "name": fitting_name(tool.name, LONGEST_NAME)}
    if tool.description:
        written["description"] = tool.description
    return {**written, "parameters": parameters, "strict": strict, **tool.extra}


def _joined(settings: dict[str, Any], items: list[bytes]) -> bytes:
    if not items:
        return object_json(settings)  # a stored prompt or conversation may be all there is to say
    return b"".join([object_json(settings)[:-1], b',"input":[', *with_commas(items), b"]}"])


def _merged(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`extra` wins; but what adds to a list of wishes, or to a group of settings, does not undo the rest of it."""
    if not extra:
        return body
    merged = {**body, **extra}
    if isinstance(extra.get("include"), list) and "include" in body:
        merged["include"] = list(dict.fromkeys((*body["include"], *extra["include"])))
    for group in ("text", "reasoning", "prompt_cache_options"):
        if isinstance(extra.get(group), dict) and group in body:
            merged[group] = {**body[group], **extra[group]}
    return merged


def _instructions(message: Message) -> str:
    """The text of a system message that is nothing but text; instructions have no author."""
    plain = message.role is Role.SYSTEM and message.name is None and isinstance(message.content, str)
    return message.text if plain else ""


def _leading_results(messages: Sequence[Message]) -> tuple[list[Message], Sequence[Message]]:
    """Results at the start, whose calls are in what the vendor has stored; and the rest."""
    count = 0
    for message in messages:
        if not any(isinstance(part, ToolResult) for part in message.parts):
            break
        count += 1
    return list(messages[:count]), messages[count:]
