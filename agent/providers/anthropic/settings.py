"""Everything in a request's body beside the conversation: limits, sampling, thinking, tools, the answer's form.

Settings depend on each other here: thinking rules out temperatures and forced calls, and needs room in `max_tokens`.
What a model refuses is left out with a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ... import errors
from ...models import facts
from ...schemas import compile_schema
from ...types import AgentRequest, ThinkingLevel, ToolSpec
from ...types.tools import plain_schema
from ..writing import NO_PARAMETERS, Written, text_json, tool_json, tools_json
from .blocks import cache_control, sent_name
from .family import API, BUDGETS, EFFORTS, LEAST_BUDGET, Family
from .turns import Marks, Turns, begins_with_thinking

UNASKED_LIMIT = 16_384
"""`max_tokens`, which the API demands, where the caller gives none: what can be waited for in one piece."""
UNASKED_STREAM_LIMIT = 32_768
UNKNOWN_LIMIT = 4_096
"""The same for a model of which nothing is known; every model writes this much."""
SCHEMA_DIALECT = "anthropic"

DOES_NOT_THINK = "the model has no reasoning; thinking was left out"
ALWAYS_THINKS = "the model cannot be kept from thinking; it was asked for little of it"
THINKING_AND_FORCED_CALL = "anthropic does not combine thinking with a forced tool call; thinking was left out"
THINKING_MIDWAY = "thinking cannot begin in the middle of a turn; it was left out until the turn has ended"
NO_ROOM_TO_THINK = f"thinking needs max_tokens of {2 * LEAST_BUDGET} or more; it was left out"
NO_FORCED_CALLS = "the model cannot be made to call a tool; tool_choice was left out"
CHOICE_WITHOUT_TOOLS = "there are no tools to choose from; tool_choice was left out"
NO_SAMPLING = "the model takes no temperature and no top_p; they were left out"
THINKING_AND_TEMPERATURE = "anthropic takes no temperature while thinking; it was left out"
THINKING_AND_TOP_P = "anthropic takes no top_p below 0.95 while thinking; it was left out"
TEMPERATURE_TOO_HIGH = "anthropic takes temperatures up to 1; the temperature was left out"
ONE_SAMPLER = "the model takes temperature or top_p, not both; top_p was left out"
NO_SEED = "anthropic has no seed; it was left out"
NO_LOGPROBS = "anthropic has no logprobs; they were left out"
BLANK_STOP = "anthropic takes no stop sequence of white space alone; it was left out"
NOT_STRICT = "the schema of the tool {!r} does not fit the strict mode; it is not enforced"


def parameters_of(tool: ToolSpec) -> Mapping[str, Any]:
    """The schema of a tool's arguments. No parameters still are an object."""
    return tool.parameters or NO_PARAMETERS


@dataclass(frozen=True, slots=True)
class Thinking:
    """What is said about thinking, and what it means for the rest."""

    config: Mapping[str, Any] | None = None
    effort: str | None = None
    budget: int = 0

    @property
    def on(self) -> bool:
        return self.config is not None and self.config.get("type") in ("enabled", "adaptive")


class Settings:
    """Settings of one request; collects warnings."""

    def __init__(self, request: AgentRequest, turns: Turns, family: Family, warnings: dict[str, None]) -> None:
        self._request = request
        self._turns = turns
        self._family = family
        self._facts = facts(API, request.model or "")
        self._warnings = warnings

    def write(self, marks: Marks, *, stream: bool) -> dict[str, Any]:
        """The keys of the body, without model and conversation."""
        request = self._request
        thinking = self._thinking()
        body: dict[str, Any] = {"max_tokens": self._max_tokens(thinking, stream=stream)}
        body.update(self._of_prompt(marks, thinking))
        body.update(self._sampling(thinking))
        if request.stop and (stops := self._stops()):
            body["stop_sequences"] = stops
        if isinstance(user := request.metadata.get("user_id"), str):
            body["metadata"] = {"user_id": user}
        if request.seed is not None:
            self._warn(NO_SEED)
        if request.logprobs is not None:
            self._warn(NO_LOGPROBS)
        if stream:
            body["stream"] = True
        return body

    def for_counting(self, marks: Marks) -> dict[str, Any]:
        """What of the settings is part of the prompt."""
        return self._of_prompt(marks, self._thinking())

    def _of_prompt(self, marks: Marks, thinking: Thinking) -> dict[str, Any]:
        request = self._request
        body: dict[str, Any] = {}
        if request.tools:
            body["tools"] = self._tools(marks.tools)
        if (choice := self._tool_choice()) is not None:
            body["tool_choice"] = choice
        if thinking.config is not None:
            body["thinking"] = thinking.config
        output: dict[str, Any] = {} if thinking.effort is None else {"effort": thinking.effort}
        if (schema := self._output_format()) is not None:
            output["format"] = schema
        if output:
            body["output_config"] = output
        return body

    def _warn(self, warning: str) -> None:
        self._warnings[warning] = None

    @property
    def _forces_a_call(self) -> bool:
        choice = self._request.tool_choice
        return bool(self._request.tools) and choice not in (None, "auto", "none") and self._family.forced_calls

    def _thinking(self) -> Thinking:
        request, family = self._request, self._family
        if isinstance(given := request.extra.get("thinking"), Mapping):
            # The caller's own words; what follows from them for other settings still does.
            budget = given.get("budget_tokens")
            return Thinking(given, budget=budget if isinstance(budget, int) else 0)
        level = request.thinking
        if level is None:
            # Models that think unasked must be told not to where a call is forced.
            return self._off() if self._forces_a_call and family.off == "disabled" else Thinking()
        if level is ThinkingLevel.OFF:
            if family.off == "never":
                self._warn(ALWAYS_THINKS)
                return Thinking(effort=family.efforts[0])
            return self._off()
        if family.thinking == "none":
            self._warn(DOES_NOT_THINK)
            return Thinking()
        if self._forces_a_call:
            self._warn(THINKING_AND_FORCED_CALL)
            return self._off()
        if family.thinking == "adaptive":
            config = {"type": "adaptive", "display": "summarized"} if family.hides_thinking else {"type": "adaptive"}
            effort = next((effort for effort in EFFORTS[level] if effort in family.efforts), None)
            return Thinking(config, effort)
        if not begins_with_thinking(self._turns):
            self._warn(THINKING_MIDWAY)
            return self._off()
        return self._budget(level)

    def _off(self) -> Thinking:
        off = self._family.off
        return Thinking({"type": off}) if off in ("disabled", "between_tools") else Thinking()

    def _budget(self, level: ThinkingLevel) -> Thinking:
        budget, limit = BUDGETS[level], self._request.max_tokens
        if limit is None and self._facts.max_output is not None:
            limit = self._facts.max_output
        if limit is not None:
            if limit < 2 * LEAST_BUDGET:
                self._warn(NO_ROOM_TO_THINK)
                return self._off()
            if budget > limit - LEAST_BUDGET:
                budget = limit - LEAST_BUDGET
                self._warn(f"thinking was limited to {budget} tokens, to leave room for the answer in max_tokens")
        return Thinking({"type": "enabled", "budget_tokens": budget}, budget=budget)

    def _max_tokens(self, thinking: Thinking, *, stream: bool) -> int:
        if self._request.max_tokens is not None:
            return self._request.max_tokens
        most = self._facts.max_output
        if most is None:
            return UNKNOWN_LIMIT + thinking.budget
        return min(most, (UNASKED_STREAM_LIMIT if stream else UNASKED_LIMIT) + thinking.budget)

    def _sampling(self, thinking: Thinking) -> dict[str, float]:
        temperature, top_p = self._request.temperature, self._request.top_p
        if temperature is None and top_p is None:
            return {}
        if self._facts.sampling is False:
            self._warn(NO_SAMPLING)
            return {}
        if temperature is not None and temperature > 1:
            self._warn(TEMPERATURE_TOO_HIGH)
            temperature = None
        if thinking.on and temperature not in (None, 1):
            self._warn(THINKING_AND_TEMPERATURE)
            temperature = None
        if thinking.on and top_p is not None and top_p < 0.95:
            self._warn(THINKING_AND_TOP_P)
            top_p = None
        if temperature is not None and top_p is not None and not self._family.both_samplers:
            self._warn(ONE_SAMPLER)
            top_p = None
        given = {"temperature": temperature, "top_p": top_p}
        return {key: value for key, value in given.items() if value is not None}

    def _stops(self) -> list[str]:
        stops = [stop for stop in self._request.stop or () if stop.strip()]
        if len(stops) < len(self._request.stop or ()):
            self._warn(BLANK_STOP)
        return stops

    def _tools(self, marks: Mapping[int, str]) -> Written:
        tools = self._request.tools
        if not marks:
            return tools_json(tools, API, _tool, self._warn)
        written: list[bytes] = []
        for number, tool in enumerate(tools):
            mark = marks.get(number)
            key = API if mark is None else f"{API}/{mark}"
            written.append(tool_json(tool, key, partial(_tool, mark=mark), self._warn))
        return Written(b"[" + b",".join(written) + b"]")

    def _tool_choice(self) -> dict[str, Any] | None:
        request = self._request
        choice = request.tool_choice
        one_at_a_time = request.parallel_tool_calls is False
        if not request.tools:
            if choice not in (None, "auto", "none"):
                self._warn(CHOICE_WITHOUT_TOOLS)
            return None
        if choice not in (None, "auto", "none") and not self._family.forced_calls:
            self._warn(NO_FORCED_CALLS)
            choice = "auto"
        if choice == "none":
            return {"type": "none"}
        written: dict[str, Any]
        if choice is None or choice == "auto":
            if choice is None and not one_at_a_time:
                return None
            written = {"type": "auto"}
        elif choice == "required":
            written = {"type": "any"}
        else:
            written = {"type": "tool", "name": sent_name(choice)}
        if one_at_a_time:
            written["disable_parallel_tool_use"] = True
        return written

    def _output_format(self) -> dict[str, Any] | None:
        request = self._request
        schema = request.output_json_schema if request.output_mode in (None, "native") else None
        if schema is None:
            return None
        compiled = compile_schema(schema, SCHEMA_DIALECT)
        if not compiled.strict:
            raise errors.UnsupportedFeatureError(
                f"{API} cannot enforce this schema: {'; '.join(compiled.lost) or 'it does not fit'}.",
                field="output_schema",
                fix='Simplify it, or pass output_mode="tool" or "prompted".',
                provider=API,
                model=request.model,
            )
        for lost in compiled.lost:
            self._warn(f"output_schema: {lost}")
        return {"type": "json_schema", "schema": compiled.schema}


def _tool(tool: ToolSpec, warnings: list[str], mark: str | None = None) -> dict[str, Any] | Written:
    if mark is None and (text := plain_schema(tool)) is not None and "type" in tool.parameters:
        description = b',"description":' + text_json(tool.description) if tool.description else b""
        return Written(b'{"name":%b%b,"input_schema":%b}' % (text_json(sent_name(tool.name)), description, text))
    written: dict[str, Any] = {"name": sent_name(tool.name)}
    if tool.description:
        written["description"] = tool.description
    schema = parameters_of(tool)
    if tool.strict:
        compiled = compile_schema(schema, SCHEMA_DIALECT)
        warnings.extend(f"tool {tool.name}: {lost}" for lost in compiled.lost)
        if compiled.strict:
            schema = compiled.schema
            written["strict"] = True
        else:
            warnings.append(NOT_STRICT.format(tool.name))
    elif tool.strict is not None:
        written["strict"] = False
    written["input_schema"] = schema if "type" in schema else {"type": "object", **schema}
    if mark is not None:
        written["cache_control"] = cache_control(mark)
    return {**written, **tool.extra}
