"""Requests and configurations from arguments: shorthands, options, defaults and validation.

Invalid arguments raise ConfigurationError before anything is sent. Arguments are never modified.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from pydantic import PydanticUserError

from ..errors import ConfigurationError
from ..models import find_similar_models
from ..providers import list_providers
from ..schemas.validation import check_limits, find_schema_problem
from ..types import (
    AgentConfig,
    AgentRequest,
    FrozenDict,
    Message,
    RequestTool,
    Role,
    ToolSpec,
    tool_name,
)
from ..types._base import validate_with
from ..types.option_errors import AGENT_KEYS, check_options
from ..types.secrets import freeze_extra, mask_options


class HasRequest(Protocol):
    """A conversation in another form, such as a session or a graph."""

    def to_request(self) -> AgentRequest:
        """Return the conversation as a request."""
        ...


RequestLike: TypeAlias = AgentRequest | str | Message | HasRequest | Sequence[Message | Mapping[str, Any]]
"""A request, or text, a message, a conversation, or a session or graph that becomes one."""
Requests: TypeAlias = Iterable[RequestLike]
AnyRequests: TypeAlias = Iterable[RequestLike] | AsyncIterable[RequestLike]
"""The input of a batch. Async batches also take async iterables."""

REQUEST_OPTIONS = frozenset(AgentRequest.model_fields) | {"schema"}
"""Options that every call method takes."""

CALL_OPTIONS = frozenset(("api_key", "headers", "max_retries", "timeout"))
"""Options of a call that change its client instead of its request; see `split_call_options`."""


def mask_call_options(options: Mapping[str, Any]) -> None:
    """Make secrets in the options of a call secret in place, before anything can fail."""
    if isinstance(options, dict) and ("extra" in options or not options.keys() <= REQUEST_OPTIONS):
        mask_options(options, REQUEST_OPTIONS)


def split_call_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the settings that a call changes on its client, and the options of the request."""
    if options:
        mask_call_options(options)
    if CALL_OPTIONS.isdisjoint(options):
        return {}, options
    settings = {name: value for name, value in options.items() if name in CALL_OPTIONS and value is not None}
    return settings, {name: value for name, value in options.items() if name not in CALL_OPTIONS}


def read_config(config: AgentConfig | str, options: Mapping[str, Any]) -> AgentConfig:
    """Return a configuration, or one for the shorthand `provider:model`, with options applied."""
    check_options(options, AgentConfig.model_fields, "An agent", AGENT_KEYS)
    if isinstance(config, AgentConfig):
        return validate_with(lambda: config.with_overrides(**options)) if options else config
    if not isinstance(config, str):
        raise ConfigurationError(
            f"An agent needs an AgentConfig or text, not {type(config).__name__}.",
            field="config",
            fix='Write Agent("openai:gpt-4o") or Agent(AgentConfig(provider="openai", model="gpt-4o")).',
        )
    provider, colon, model = config.partition(":")
    if not colon or not provider.strip() or not model.strip():
        raise ConfigurationError(
            f"{config!r} does not name a provider and a model.",
            field="model",
            fix=_suggest_target(config),
        )
    provider, model = provider.strip(), model.strip()
    return validate_with(lambda: AgentConfig(provider=provider, model=model, **options))


def _suggest_target(text: str) -> str:
    """Return the fix for text without `provider:model`."""
    providers = list_providers()
    text = text.strip(" :")
    provider, _, model = text.partition("/")
    targets = [f"{provider}:{model}"] if model and provider in providers else find_similar_models(text)
    known = [f'"{target}"' for target in targets if target.partition(":")[0] in providers]
    return f"Did you mean {' or '.join(known)}?" if known else 'Write them with a colon between: "openai:gpt-5.6".'


def read_request(request: RequestLike, options: Mapping[str, Any]) -> AgentRequest:
    """Return the request with options applied. Raises ConfigurationError if either is invalid."""
    read = validate_with(lambda: _read_request(request))
    if not options:
        return read
    check_options(options, REQUEST_OPTIONS, "A request", CALL_OPTIONS)
    if "tools" in options:
        options = {**options, "tools": _read_tools(options["tools"])}
    if "schema" in options:
        if "output_schema" in options:
            raise ConfigurationError(
                "schema and output_schema are two names of one option.", field="schema", fix="Pass one of them."
            )
        options = {**options, "output_schema": options["schema"]}
        del options["schema"]
    # The fields of the request are valid already, and no field's validity depends on another's.
    changes = validate_with(lambda: AgentRequest.model_validate(dict(options)))
    return read.copy_with(**{name: getattr(changes, name) for name in changes.model_fields_set})


def _read_tools(tools: Any) -> Any:
    """Convert functions and callable objects to tools, and any collection to a tuple."""
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        return tools  # pydantic reports the error
    return tuple(tool if isinstance(tool, ToolSpec) or not _is_callable(tool) else _make_tool(tool) for tool in tools)


def _is_callable(value: Any) -> bool:
    """Whether it is a function or callable object without a description of itself as a tool."""
    return callable(value) and not inspect.isclass(value) and not hasattr(value, "spec")


def _make_tool(function: Any) -> Any:
    from ..tools.functions import as_tool  # lazy: only requests with functions as tools need it

    return as_tool(function)


def _read_request(request: Any) -> AgentRequest:
    match request:
        case AgentRequest():
            return request
        case str():
            return AgentRequest(input=request)
        case Message():
            return AgentRequest(messages=(request,))
        case list() | tuple():
            return AgentRequest(messages=request)
        case _ if hasattr(request, "to_request"):
            converted: AgentRequest = request.to_request()
            return converted
        case _:
            raise ConfigurationError(
                f"A request cannot be made from {type(request).__name__}.",
                field="request",
                fix="Pass text, a Message, a list of messages, a Session, a DAG or an AgentRequest.",
            )


def check_not_empty(request: AgentRequest) -> None:
    if not request.input and not request.messages:
        raise ConfigurationError("The request is empty.", field="input", fix="Pass input= or messages=.")


def prepare(request: AgentRequest, config: AgentConfig, tools: Sequence[RequestTool]) -> AgentRequest:
    """Return the request with the defaults of an agent, ready for a codec."""
    check_not_empty(request)
    changes: dict[str, Any] = {
        name: value
        for name in ("model", "temperature", "max_tokens", "top_p", "thinking", "cache", "deadline")
        if getattr(request, name) is None and (value := getattr(config, name)) not in (None, "")
    }
    if request.model is None and not config.model:
        raise ConfigurationError(
            "The request has no model.", field="model", fix='Use Agent("openai:gpt-4o"), or pass model=.'
        )
    model = request.model or config.model
    if not model.isascii():
        _check_model(model)
    if config.default_system is not None and request.system is None and not _has_system(request.messages):
        changes["system"] = config.default_system
    if config.extra:
        changes["extra"] = freeze_extra({**config.extra, **request.extra})
    if tools:
        offered = _merge_tools(tools, request.tools)
        changes["tools"] = validate_with(lambda: AgentRequest(tools=offered)).tools  # names may clash
    prepared = request.copy_with(**changes) if changes else request
    if prepared.tool_choice is not None:
        _check_tool_choice(prepared.tool_choice, prepared.tools)
    if prepared.output_schema is not None:
        _check_schema(prepared)
    return prepared


def _check_schema(request: AgentRequest) -> None:
    """Raise ConfigurationError if the schema is unusable."""
    try:
        _ = request.output_json_schema
    except PydanticUserError as error:
        raise ConfigurationError(
            f"There is no JSON schema for that type: {str(error).splitlines()[0]}",
            field="output_schema",
            fix="Pass a pydantic model, a type of JSON values, or a JSON schema.",
        ) from None
    if isinstance(request.output_schema, FrozenDict):
        check_limits(request.output_schema)  # first, because hashing is recursive
        problem = _find_schema_error(request.output_schema)
        if problem is not None:
            raise ConfigurationError(f"output_schema is not a valid JSON schema: {problem}.", field="output_schema")


@lru_cache(maxsize=64)
def _find_schema_error(schema: FrozenDict) -> str | None:
    problem = find_schema_problem(schema)
    return None if problem is None else f"{problem.path}: {problem.message[:300]}"


def _check_model(model: str) -> None:
    """Raise ConfigurationError if the name cannot be encoded."""
    try:
        model.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            "The model name contains a lone surrogate, half of a character.", field="model", fix="Correct the name."
        ) from None


def _check_tool_choice(choice: str, tools: Sequence[RequestTool]) -> None:
    if not tools:
        raise ConfigurationError(
            f"tool_choice is {choice!r}, but no tools are offered.",
            field="tool_choice",
            fix="Add tools or leave it out.",
        )
    names = [str(tool_name(tool)) for tool in tools]
    if choice not in ("auto", "none", "required", *names):
        raise ConfigurationError(
            f"tool_choice names the tool {choice!r}, which is not offered.",
            field="tool_choice",
            fix=f"Use auto, none, required, or one of {', '.join(names)}.",
        )


def _has_system(messages: Sequence[Message]) -> bool:
    return bool(messages) and messages[0].role is Role.SYSTEM


def _merge_tools(own: Sequence[Any], requested: Sequence[Any]) -> tuple[Any, ...]:
    """A request's tool replaces the agent's of the same name."""
    names = {tool.name for tool in requested if isinstance(tool, ToolSpec)}
    return (*(tool for tool in own if not isinstance(tool, ToolSpec) or tool.name not in names), *requested)
