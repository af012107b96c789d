"""From what a caller passes to the request that is sent: shorthands, overrides, defaults, and what is wrong with them.

Nothing is sent until all of it is right, and nothing a caller passed is ever changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from pydantic import PydanticUserError

from ..errors import ConfigurationError
from ..types import AgentConfig, AgentRequest, FrozenDict, Message, Role, Session, ToolSpec, freeze
from ..types._base import validate_with


class HasRequest(Protocol):
    """A conversation of another form, such as a graph."""

    def to_request(self) -> AgentRequest: ...


RequestLike: TypeAlias = AgentRequest | str | Message | Session | HasRequest | Sequence[Message | Mapping[str, Any]]
"""A request, or anything that can only mean one: text, a message, a conversation, a graph."""


def read_config(config: AgentConfig | str, overrides: Mapping[str, Any]) -> AgentConfig:
    """A configuration, or its shorthand `provider:model`, with changes."""
    if isinstance(config, AgentConfig):
        return validate_with(lambda: config.with_overrides(**overrides)) if overrides else config
    if not isinstance(config, str):
        raise ConfigurationError(
            f"An agent is made from an AgentConfig or from text, not from {type(config).__name__}.",
            field="config",
            fix='Write Agent("openai:gpt-4o") or Agent(AgentConfig(provider="openai", model="gpt-4o")).',
        )
    provider, colon, model = config.partition(":")
    if not colon or not provider.strip() or not model.strip():
        raise ConfigurationError(
            f"{config!r} does not name a provider and a model.",
            field="model",
            fix='Write them with a colon between: "openai:gpt-4o".',
        )
    provider, model = provider.strip(), model.strip()
    return validate_with(lambda: AgentConfig(provider=provider, model=model, **overrides))


def read_request(request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest:
    """The request that the caller means, overrides applied."""
    given = validate_with(lambda: _as_request(request))
    if not overrides:
        return given
    if "tools" in overrides:
        overrides = {**overrides, "tools": _read_tools(overrides["tools"])}
    if "schema" in overrides:
        if "output_schema" in overrides:
            raise ConfigurationError(
                "schema and output_schema are two names of one thing.", field="schema", fix="Pass one of them."
            )
        overrides = {**overrides, "output_schema": overrides["schema"]}
        del overrides["schema"]
    # The rest is valid already, and no field's validity depends on another's.
    changes = validate_with(lambda: AgentRequest.model_validate(dict(overrides)))
    return given.copy_with(**{name: getattr(changes, name) for name in changes.model_fields_set})


def _read_tools(tools: Any) -> Any:
    """Functions are tools, too; and any collection of tools will do."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        return tools  # pydantic knows how to complain about it
    return tuple(
        tool if isinstance(tool, ToolSpec) or not inspect.isroutine(tool) else _made_a_tool(tool) for tool in tools
    )


def _made_a_tool(function: Any) -> Any:
    from ..tools.functions import tool  # lazy: only requests with functions as tools need it

    return tool(function)


def _as_request(request: Any) -> AgentRequest:
    match request:
        case AgentRequest():
            return request
        case str():
            return AgentRequest(input=request)
        case Message():
            return AgentRequest(messages=(request,))
        case Session():
            return AgentRequest(messages=request.messages, session_id=request.id)
        case list() | tuple():
            return AgentRequest(messages=request)
        case _ if hasattr(request, "to_request"):
            asked: AgentRequest = request.to_request()
            return asked
        case _:
            raise ConfigurationError(
                f"A request cannot be made from {type(request).__name__}.",
                field="request",
                fix="Pass text, a Message, a list of messages, a Session, a DAG or an AgentRequest.",
            )


def check_not_empty(request: AgentRequest) -> None:
    if request.is_empty:
        raise ConfigurationError("The request is empty.", field="input", fix="Pass input= or messages=.")


def prepare(request: AgentRequest, config: AgentConfig, tools: Sequence[ToolSpec | Mapping[str, Any]]) -> AgentRequest:
    """The request with this agent's defaults where it says nothing itself, ready for a codec."""
    check_not_empty(request)
    changes: dict[str, Any] = {
        name: value
        for name in ("model", "temperature", "max_tokens", "top_p", "thinking", "cache", "deadline")
        if getattr(request, name) is None and (value := getattr(config, name)) not in (None, "")
    }
    if request.model is None and not config.model:
        raise ConfigurationError(
            "No model is named.", field="model", fix='Name one: Agent("openai:gpt-4o"), or model= in the request.'
        )
    _check_model(request.model or config.model)
    if config.default_system is not None and request.system is None and not _has_system(request.messages):
        changes["system"] = config.default_system
    if config.extra:
        changes["extra"] = freeze({**config.extra, **request.extra})
    if tools:
        offered = _merged(tools, request.tools)
        changes["tools"] = validate_with(lambda: AgentRequest(tools=offered)).tools  # those of both may not go together
    prepared = request.copy_with(**changes) if changes else request
    if prepared.tool_choice is not None:
        _check_choice(prepared.tool_choice, prepared.tools)
    if prepared.output_schema is not None:
        _check_schema(prepared)
    return prepared


def _check_schema(request: AgentRequest) -> None:
    """A schema that cannot be used is found out before an answer is paid for."""
    try:
        _ = request.output_json_schema
    except PydanticUserError as error:
        raise ConfigurationError(
            f"There is no JSON schema for that type: {str(error).splitlines()[0]}",
            field="output_schema",
            fix="Pass a pydantic model, a type of JSON values, or a JSON schema.",
        ) from None
    if isinstance(request.output_schema, FrozenDict):
        problem = _problem_with(request.output_schema)
        if problem is not None:
            raise ConfigurationError(f"output_schema is not a valid JSON schema: {problem}.", field="output_schema")


@lru_cache(maxsize=64)
def _problem_with(schema: FrozenDict) -> str | None:
    import jsonschema

    try:
        jsonschema.validators.validator_for(schema).check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"{error.json_path}: {error.message[:300]}"
    return None


def _check_model(model: str) -> None:
    """Refuse a model name that neither a URL nor a body can hold."""
    try:
        model.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            "The model name contains a lone surrogate, half of a character.", field="model", fix="Correct the name."
        ) from None


def _check_choice(choice: str, tools: Sequence[ToolSpec | Mapping[str, Any]]) -> None:
    if not tools:
        raise ConfigurationError(
            f"tool_choice is {choice!r}, but no tools are offered.",
            field="tool_choice",
            fix="Add tools or leave it out.",
        )
    names = [tool.name if isinstance(tool, ToolSpec) else str(tool.get("name")) for tool in tools]
    if choice not in ("auto", "none", "required", *names):
        raise ConfigurationError(
            f"tool_choice names the tool {choice!r}, which is not offered.",
            field="tool_choice",
            fix=f"Use auto, none, required, or one of {', '.join(names)}.",
        )


def _has_system(messages: Sequence[Message]) -> bool:
    return bool(messages) and messages[0].role is Role.SYSTEM


def _merged(own: Sequence[Any], requested: Sequence[Any]) -> tuple[Any, ...]:
    """A request's tool replaces the agent's of the same name."""
    names = {tool.name for tool in requested if isinstance(tool, ToolSpec)}
    return (*(tool for tool in own if not isinstance(tool, ToolSpec) or tool.name not in names), *requested)
