"""Everything in a body besides its messages: tools, sampling, thinking, output.

A setting that the vendor or the model refuses is left out, and a warning says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ... import errors
from ...models import facts
from ...schemas import compile_schema
from ...types import AgentRequest, ThinkingLevel, ToolSpec
from ...types.tools import plain_schema
from ..writing import NO_PARAMETERS, Written, fitting_id, fitting_name, schema_name, text_json, tools_json
from .dialect import API, LONGEST_NAME, Dialect, Setting, ToolChoice

SCHEMA_DIALECT = "openai"
_SESSION = re.compile(r"[!-~]{1,64}")
_METADATA_PAIRS = 16


def write_settings(request: AgentRequest, dialect: Dialect, *, stream: bool, warn: list[str]) -> dict[str, Any]:
    """The body without its messages. What is left out is added to `warn`."""
    model = request.model or ""
    body: dict[str, Any] = {"model": request.model}
    if request.tools:
        _write_tools(request, dialect, body, warn)
    elif request.tool_choice not in (None, "auto", "none"):
        warn.append(f"tool_choice={request.tool_choice!r} was left out: no tool is offered")
    if request.max_tokens is not None:
        body[dialect.limit_key(model)] = request.max_tokens
    if request.temperature is not None or request.top_p is not None:
        _write_sampling(request, dialect, body, warn)
    if request.seed is not None and _takes(dialect, "seed", model, warn):
        body[dialect.seed_key] = request.seed
    if request.stop and _takes(dialect, "stop", model, warn):
        if len(request.stop) > dialect.most_stops:
            warn.append(f"{dialect.name} takes {dialect.most_stops} stop sequences; the others were left out")
        body["stop"] = request.stop[: dialect.most_stops]
    if request.logprobs is not None and _takes(dialect, "logprobs", model, warn):
        body["logprobs"] = True
        if request.logprobs:
            body["top_logprobs"] = request.logprobs
    if request.thinking is not None:
        _write_thinking(request.thinking, dialect, model, body, warn)
    if request.output_schema is not None and request.output_mode in (None, "native"):
        _write_schema(request, dialect, body, warn)
    if dialect.metadata and request.metadata and request.extra.get("store") is True:
        _write_metadata(request, body, warn)
    if dialect.session_key is not None and request.session_id:
        body[dialect.session_key] = fitting_id(request.session_id, _SESSION, 64)
    if stream:
        body["stream"] = True
        if dialect.stream_usage:
            body["stream_options"] = {"include_usage": True}
    return body


def _takes(dialect: Dialect, setting: Setting, model: str, warn: list[str]) -> bool:
    if dialect.refused and dialect.refuses(setting, model):
        warn.append(f"{setting} was left out: {model or 'the model'} at {dialect.name} does not take it")
        return False
    return True


def _write_sampling(request: AgentRequest, dialect: Dialect, body: dict[str, Any], warn: list[str]) -> None:
    model = request.model or ""
    known = facts(dialect.name, model)
    thinks = request.thinking not in (None, ThinkingLevel.OFF)
    fixed = known.sampling is False or (thinks and known.sampling_with_thinking is False)
    for setting, value in (("temperature", request.temperature), ("top_p", request.top_p)):
        if value is None:
            continue
        if fixed:
            warn.append(f"{setting} was left out: {model} chooses for itself")
        elif _takes(dialect, setting, model, warn):  # type: ignore[arg-type]  # both are settings
            body[setting] = value


def _write_tools(request: AgentRequest, dialect: Dialect, body: dict[str, Any], warn: list[str]) -> None:
    if not dialect.capabilities.tools:
        raise errors.UnsupportedFeatureError(
            f"{dialect.name} does not call tools.",
            field="tools",
            fix="Leave them out, or use a provider that takes them.",
            provider=dialect.name,
            model=request.model or None,
        )
    choice = request.tool_choice
    if choice == "none" and "none" not in dialect.tool_choices:
        return  # what is not offered is not called
    key = f"{API}/{dialect.name}/{dialect.strict:d}"
    body["tools"] = tools_json(request.tools, key, lambda tool, lost: _tool(tool, dialect, lost), warn.append)
    if choice is not None:
        kind: ToolChoice = choice if choice in ("auto", "none", "required") else "named"  # type: ignore[assignment]
        if kind in dialect.tool_choices:
            body["tool_choice"] = _tool_choice(choice, request, dialect)
        else:
            warn.append(f"tool_choice={choice!r} was left out: {dialect.name} does not take it")
    if request.parallel_tool_calls is not None and _takes(dialect, "parallel_tool_calls", request.model or "", warn):
        body["parallel_tool_calls"] = request.parallel_tool_calls


def _tool_choice(choice: str, request: AgentRequest, dialect: Dialect) -> Any:
    if choice == "required":
        return dialect.required_word
    if choice in ("auto", "none"):
        return choice
    for tool in request.tools:
        if not isinstance(tool, ToolSpec) and isinstance(own := tool.get("custom"), dict) and own.get("name") == choice:
            return {"type": "custom", "custom": {"name": choice}}
    return {"type": "function", "function": {"name": fitting_name(choice, LONGEST_NAME)}}


def parameters_of(tool: ToolSpec) -> Mapping[str, Any]:
    """A tool's schema as it is compiled; answers must be restored by the same. No parameters still are an object."""
    return tool.parameters or NO_PARAMETERS


def _tool(tool: ToolSpec, dialect: Dialect, warn: list[str]) -> dict[str, Any] | Written:
    if (schema := plain_schema(tool)) is not None:
        name, description = text_json(fitting_name(tool.name, LONGEST_NAME)), text_json(tool.description)
        return Written(
            b'{"type":"function","function":{"name":%b,"description":%b,"parameters":%b}}' % (name, description, schema)
        )
    parameters: Mapping[str, Any] = parameters_of(tool)
    function: dict[str, Any] = {
        "name": fitting_name(tool.name, LONGEST_NAME), "description": tool.description, "parameters": parameters,
    }  # fmt: skip
    if tool.strict and dialect.strict:
        compiled = compile_schema(parameters, SCHEMA_DIALECT)
        warn.extend(f"tool {tool.name}: {lost}" for lost in compiled.lost)
        if compiled.strict:
            function["strict"] = True
            function["parameters"] = compiled.schema
    elif tool.strict:
        warn.append(f"tool {tool.name}: {dialect.name} cannot be made to keep to a tool's schema")
    elif tool.strict is not None and dialect.strict:
        function["strict"] = False
    return {"type": "function", "function": function, **tool.extra}


def _write_schema(request: AgentRequest, dialect: Dialect, body: dict[str, Any], warn: list[str]) -> None:
    schema: Mapping[str, Any] = request.output_json_schema or {}
    if dialect.capabilities.native_schema_output:
        compiled = compile_schema(schema, SCHEMA_DIALECT)
        warn.extend(f"output_schema: {lost}" for lost in compiled.lost)
        enforced = compiled.strict and dialect.strict
        named: dict[str, Any] = {"name": schema_name(schema), "schema": compiled.schema}
        if enforced:
            named["strict"] = True
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    elif dialect.capabilities.json_mode:
        warn.append(
            f"output_schema: {dialect.name} promises JSON, but not the schema; say in the prompt what it must hold"
        )
        body["response_format"] = {"type": "json_object"}
    else:
        warn.append(f"output_schema was left out: {dialect.name} does not take one; say in the prompt what is wanted")


def _write_thinking(level: ThinkingLevel, dialect: Dialect, model: str, body: dict[str, Any], warn: list[str]) -> None:
    thinking = dialect.thinking_of(model)
    left_out = f"thinking={level.value!r} was left out: {model or 'the model'} at {dialect.name}"
    if facts(dialect.name, model).thinking is False or not thinking.levels:
        if level is not ThinkingLevel.OFF:
            warn.append(f"{left_out} has no such setting")
        return
    nearest = thinking.nearest(level)
    if nearest is None:
        warn.append(f"{left_out} cannot be stopped from it")
        return
    if nearest is not level:
        warn.append(f"thinking={level.value!r} was sent as {nearest.value!r}, which comes closest at {dialect.name}")
    body.update(thinking.levels[nearest])
    if nearest is ThinkingLevel.OFF:
        return
    for setting in sorted(thinking.refuses & body.keys()):
        del body[setting]
        warn.append(f"{setting} was left out: {model} does not take it while it thinks")
    if "logprobs" not in body:
        body.pop("top_logprobs", None)


def _write_metadata(request: AgentRequest, body: dict[str, Any], warn: list[str]) -> None:
    metadata = request.metadata
    if len(metadata) <= _METADATA_PAIRS and all(isinstance(value, str) for value in metadata.values()):
        body["metadata"] = metadata
    else:
        warn.append(f"metadata was left out: the vendor takes {_METADATA_PAIRS} pairs of texts at most")
