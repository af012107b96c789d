"""Options of the call methods, for type checkers and editors.

Each TypedDict lists the keyword arguments of one kind of method. `agent.calls.requests` refuses all others at run time,
and the tables in the reference documentation are generated from the docstrings here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from os import PathLike
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypedDict

from pydantic import TypeAdapter
from typing_extensions import TypeVar

from .media import CacheHint
from .messages import Message, Modality, OutputMode, ThinkingLevel, ThinkingName, Verbosity
from .routing import BreakerConfig, HedgeConfig, OnPartial, RoutingStrategy, SpendLimit, StrategyName
from .tools import HasSpec, RequestTool

if TYPE_CHECKING:
    from pydantic import SecretStr

    from ..batch.values import BatchProgress
    from ..calls.credentials import GetKey
    from ..graph import DAG
    from ..loop.hooks import AfterToolCall, BeforeToolCall, Hooks
    from ..loop.journal import Journal
    from ..middleware import Middleware
    from ..routing.router_state import RouterState
    from ..routing.strategies import Strategy, StrategyFunction
    from ..tools.base import Isolation, Tool
    from .config import RetryConfig, Risk, ToolLoopConfig

F = TypeVar("F", bound=Callable[..., Any])  # Any: methods of every signature
OutputT = TypeVar("OutputT", default=None)
"""Type of `output`: that of the schema; None without one."""
DepsT = TypeVar("DepsT", default=Any)  # Any: without `deps`, tools with any dependencies are accepted
"""Type of the dependencies that `run(deps=...)` passes to tools."""

OutputType: TypeAlias = type[OutputT] | TypeAdapter[OutputT]
"""A schema that determines the type of `output`: a pydantic model, a type such as `list[City]`, or a TypeAdapter."""

JsonSchema: TypeAlias = Mapping[str, Any]  # Any: a JSON schema may hold vendors' extensions
"""A JSON schema. The output is a JSON value."""


class PlainFunction(Protocol):
    """A function or method that is no tool yet."""

    @property
    def __code__(self) -> CodeType: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...  # Any: functions of every signature become tools


class ToolObject(Protocol):
    """An object that describes itself as a tool, and is called with its input."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def input_schema(self) -> Mapping[str, Any]: ...  # Any: a JSON schema

    def __call__(self, input: Any, /) -> Any: ...  # Any: values and awaitables of every type


ToolLike: TypeAlias = "Tool[DepsT] | PlainFunction | ToolObject | RequestTool"
"""A tool, a function, a callable object, or a description of a tool."""
AnyTool: TypeAlias = "ToolLike | HasSpec"
"""A tool with any dependencies, or an object with a ToolSpec in `spec`."""


class RequestOptions(TypedDict, total=False):
    """Options of one request."""

    input: str | None
    """The user's message, after `messages`."""
    messages: Sequence[Message | Mapping[str, Any]]  # Any: messages as vendors write them
    """The conversation so far."""
    system: str | None
    """System prompt. Replaces `default_system` of the agent."""
    model: str | None
    """Model of this request. Replaces the agent's; selects a target of a router."""
    tool_choice: str | None
    """`auto`, `none`, `required`, or the name of the tool to call."""
    parallel_tool_calls: bool | None
    """Whether the model may call several tools in one turn."""
    temperature: float | None
    """Sampling temperature, 0 to 2."""
    max_tokens: int | None
    """Maximum number of output tokens."""
    top_p: float | None
    """Nucleus sampling: share of the probability mass, above 0 and at most 1."""
    stop: str | Sequence[str] | None
    """Text, or several texts, at which the model stops."""
    thinking: ThinkingLevel | ThinkingName | None
    """Reasoning effort: `off`, `minimal`, `low`, `medium`, `high` or `xhigh`."""
    thinking_budget: int | None
    """Maximum number of reasoning tokens, for models that take a number instead of a level."""
    verbosity: Verbosity | None
    """Length and detail of the response: `low`, `medium` or `high`."""
    top_k: int | None
    """Sample from the k most likely tokens."""
    frequency_penalty: float | None
    """Penalty for tokens by how often they occurred, -2 to 2."""
    presence_penalty: float | None
    """Penalty for tokens that occurred at all, -2 to 2."""
    logit_bias: Mapping[str, float]
    """Bias per token id, -100 to 100."""
    n: int | None
    """Number of alternative responses. The others are in `response.choices`."""
    modalities: Sequence[Modality]
    """Kinds of output: `text`, `image`, `audio`."""
    service_tier: str | None
    """Processing tier in the vendor's spelling, such as `flex` or `priority`."""
    user: str | None
    """Stable id of the end user, for the vendor's abuse detection. Do not send names or addresses."""
    store: bool | None
    """Whether the vendor stores the response."""
    previous_response_id: str | None
    """Id of a stored response that this request continues."""
    conversation: str | None
    """Id of a conversation that the vendor stores."""
    background: bool | None
    """Whether the vendor processes the request in the background. `complete` waits for the response."""
    cached_content: str | None
    """Name of a prompt cache that was created at the vendor."""
    safety_settings: Sequence[Mapping[str, Any]]  # Any: in the vendor's format
    """Thresholds of content filters, in the vendor's format."""
    betas: Sequence[str]
    """Beta features to enable, by the vendor's names."""
    seed: int | None
    """Seed for reproducible sampling, where the vendor has it."""
    logprobs: int | bool | None
    """Number of alternatives to report per token; True reports the chosen tokens only."""
    cache: CacheHint | None
    """Prompt cache for the conversation so far, at vendors that need a marker."""
    output_mode: OutputMode | None
    """How a schema is enforced: `native`, `tool` or `prompted`. By default the best that the model has."""
    deadline: float | Literal["24h"] | None
    """Seconds for the whole call, including retries and fallbacks. `24h` lets a batch use a vendor's batch API."""
    metadata: Mapping[str, Any]  # Any: your own JSON data
    """Your own data, such as `user_id`, for spend limits and logs. Sent where the vendor has such a field."""
    session_id: str | None
    """Id of the conversation, for strategies that keep it at one target."""
    extra: Mapping[str, Any]  # Any: whatever a vendor's API takes
    """Fields that are merged into the request body unchanged."""
    timeout: float | None
    """Seconds for one attempt of this call. By default `timeout` of the agent."""
    max_retries: int | None
    """Retries of this call. By default those of the agent, or of the router, whose retries are fallbacks."""
    headers: Mapping[str, str | SecretStr] | None
    """Headers of this call, in addition to the agent's. Values are secret."""
    api_key: SecretStr | str | Mapping[str, SecretStr | str] | None
    """API key of this call. A dict of keys by provider, for a router with several."""
    route: RouteOptions
    """Router settings for this request. Routers only."""


class CompleteOptions(RequestOptions, total=False):
    """Options of `complete`, `stream`, `json` and `stream_json`."""

    tools: Sequence[AnyTool]
    """Tools that are offered to the model, in addition to the agent's."""


class PreflightOptions(CompleteOptions, total=False):
    """Options of `check`, `count_tokens` and `explain`."""

    schema: OutputType[Any] | JsonSchema | None  # Any: there is no output
    """Schema of the output."""


class RunOptions(RequestOptions, total=False):
    """Options of `run` and `run_stream`."""

    loop: ToolLoopConfig | Mapping[str, Any] | None  # Any: fields of ToolLoopConfig
    """Limits of the run, or a dict with those that change."""
    run_id: str
    """Id of the run. A journal resumes the run that has this id."""
    journal: Journal | None
    """Records the run, so that it can be resumed after a crash."""
    before_tool_call: BeforeToolCall | None
    """Hook before a tool call: allows, denies, changes or asks for approval."""
    after_tool_call: AfterToolCall | None
    """Hook after a tool call: may replace the result."""
    transform_context: Callable[..., Any] | None  # Any: takes the signal, too, if it has a second parameter
    """Hook before a model call: returns the part of the conversation that is sent, such as a `Compaction`."""
    convert_to_llm: Callable[..., Any] | None  # Any: may return messages or dicts, plain or async
    """Hook that converts messages with custom roles. By default they are not sent."""
    get_steering_messages: Callable[[], Any] | None  # Any: may return messages or dicts, plain or async
    """Hook after each tool and turn: returns messages for the current run."""
    get_follow_up_messages: Callable[[], Any] | None  # Any: may return messages or dicts, plain or async
    """Hook at the end of a run: returns messages that continue it."""


class BatchOptions(CompleteOptions, total=False):
    """Options of `batch` and `batch_stream`. Those of requests apply to each request."""

    concurrency: int
    """Maximum number of requests in flight; 32 by default."""
    on_progress: Callable[[BatchProgress], object] | None
    """Called after each request, in the caller's thread."""
    progress: bool
    """Whether to draw a progress bar on the terminal."""
    total: int | None
    """Number of requests, if the input has no length."""
    max_failures: int | None
    """Stop after so many failed requests."""
    max_cost: float | None
    """Stop after so many US dollars."""
    max_seconds: float | None
    """Stop after so many seconds."""


class BatchJobOptions(CompleteOptions, total=False):
    """Options of `submit_batch`. Those of requests apply to each request."""

    folder: str | PathLike[str] | None
    """Folder for the files of jobs. By default `batches` in AGENT_HOME, or in `~/.agent`."""


class SessionOptions(TypedDict, total=False):
    """Options of a session."""

    system: str | None
    """System prompt of the conversation."""
    tools: Sequence[AnyTool]
    """Tools that are offered in every turn, in addition to the agent's."""
    title: str
    """Title, for people."""
    keep_partial: bool
    """Whether an interrupted stream keeps the partial answer, marked as such; by default it keeps nothing."""
    dag: DAG | None
    """Conversation graph that the session starts from."""


class ConfigOptions(TypedDict, total=False):
    """Fields of AgentConfig, besides provider and model."""

    api_key: SecretStr | str | None
    """API key. By default the environment variable of the provider."""
    base_url: str | None
    """Base URL of the API."""
    timeout: float
    """Seconds for one attempt, from sending to the last byte; 600 by default."""
    connect_timeout: float
    """Seconds for opening a connection; 10 by default."""
    first_byte_timeout: float | None
    """Seconds until the first byte of the response."""
    idle_timeout: float | None
    """Seconds of silence between events of a stream; 300 by default."""
    deadline: float | None
    """Seconds for a whole call, including retries, waits and fallbacks."""
    max_retries: int
    """Retries after the first attempt; 2 by default."""
    temperature: float | None
    """Default sampling temperature."""
    max_tokens: int | None
    """Default maximum number of output tokens."""
    top_p: float | None
    """Default for nucleus sampling."""
    default_system: str | None
    """System prompt of requests that have none."""
    thinking: ThinkingLevel | ThinkingName | None
    """Default reasoning effort."""
    cache: CacheHint | None
    """Default prompt cache."""
    foreign_thinking: Literal["drop", "text"]
    """Reasoning of other models in a conversation: `drop` it, or send it as `text`."""
    headers: Mapping[str, str | SecretStr]
    """Headers of every request. Values are secret."""
    extra: Mapping[str, Any]  # Any: whatever a vendor's API takes
    """Fields that are merged into every request body unchanged."""
    allow_insecure: bool
    """Whether the API key may be sent over plain HTTP to another machine."""


class ConfigFields(ConfigOptions, total=False):
    """Fields of AgentConfig."""

    provider: str
    """Name of the provider."""
    model: str
    """Name of the model."""


class ConfigChanges(ConfigFields, total=False):
    """Options of `Agent.with_config`."""

    middleware: Sequence[Middleware]
    """Middleware around every call; the first is outermost."""
    http_client: Any  # Any: a client of httpx2 or httpx, neither of which is imported
    """Client that sends the requests."""


class AgentOptions(ConfigOptions, total=False):
    """Options of `Agent`, besides its transport."""

    tools: Sequence[AnyTool]
    """Tools that are offered to the model with every request."""
    retry: RetryConfig | None
    """Number and timing of retries. By default `max_retries` retries."""
    loop: ToolLoopConfig | None
    """Limits of runs in which the model calls tools."""
    hooks: Hooks | None
    """Hooks called during runs, such as approval before a tool call."""
    middleware: Sequence[Middleware]
    """Middleware around every call; the first is outermost."""
    get_api_key: GetKey | None
    """Function that returns the API key before each attempt."""


class RouteOptions(TypedDict, total=False):
    """Settings of a router."""

    strategy: StrategyName | RoutingStrategy | Strategy | StrategyFunction
    """Order of the targets: the name of a strategy, a `Strategy`, or a function of the request and the targets."""
    retry: RetryConfig | None
    """Number and timing of attempts; four attempts in all by default."""
    on_partial: OnPartial
    """When a stream breaks: `raise` an error, `restart` at another target, or `continue` the text at another target."""
    on_content_filter: Literal["raise", "fallback"]
    """When a content filter refuses a request: `raise` an error, or `fallback` to another target."""
    race: bool | int
    """Send the request to all targets, or to so many, and use the first response."""
    hedge: HedgeConfig | bool | None
    """Send the request to a second target when the first is slow."""
    breaker: BreakerConfig | Literal[False] | None
    """Settings of the circuit breakers; False for none."""
    spend: Sequence[SpendLimit] | SpendLimit
    """Spend limits."""
    shadow: Sequence[tuple[Any, ...]]  # Any: pairs or triples of agent, share and function
    """Shadow traffic: pairs of an agent and its share of the requests, or triples with a function for the outcome."""
    max_wait: float
    """Maximum number of seconds to wait for a target if none is available; 60 by default."""
    deadline: float | None
    """Seconds for a whole call, unless the request has its own."""
    name: str
    """Name of the router inside another router."""
    only: Sequence[str] | None
    """Names of the targets, or of their models, that may be used."""
    state: str | RouterState | None
    """Limits and health shared with routers of this name in other processes: a `redis://` URL, or a store."""
    middleware: Sequence[Middleware]
    """Middleware around every call; the first is outermost."""
    loop: ToolLoopConfig | None
    """Limits of runs in which the model calls tools."""
    hooks: Hooks | None
    """Hooks called during runs, such as approval before a tool call."""


class RouterChanges(RouteOptions, ConfigOptions, total=False):
    """Options of `Router.with_config`: settings of the router, and of all its agents."""


class ToolRunOptions(RunOptions, Generic[DepsT], total=False):
    """Options of `run` for tools with dependencies of one type."""

    tools: Sequence[ToolLike[DepsT]]
    """Tools of the run, in addition to the agent's."""
    deps: DepsT
    """Dependencies that tools receive as `ToolContext.deps`."""


class AllRunOptions(RunOptions, total=False):
    """Options of `run`, with those that its overloads declare."""

    schema: OutputType[Any] | JsonSchema | None  # Any: values of every type
    """Schema of the output."""
    tools: Sequence[AnyTool]
    """Tools of the run, in addition to the agent's."""
    deps: Any  # Any: dependencies of any type
    """Dependencies that tools receive as `ToolContext.deps`. By default a sub-agent has those of the calling run."""


class SubAgentOptions(AllRunOptions, total=False):
    """Options of `as_tool`: those of the run, and settings of the tool."""

    parameters: Mapping[str, Any]  # Any: a JSON schema may hold vendors' extensions
    """JSON schema of the arguments. By default a `task` in text."""
    timeout: float | None
    """Seconds for one call; 600 by default."""
    retries: int
    """Retries after the tool raised an error."""
    risk: Risk
    """The effects of the tool: `read`, `write`, `network` or `exec`."""
    idempotent: bool
    """Whether an interrupted call may be repeated when a run is resumed."""
    isolation: Isolation
    """Where the tool runs. Sub-agents refuse `process`."""
    sequential: bool
    """Whether the tool never runs beside another call of the same turn."""
    strict: bool | None
    """Whether the vendor enforces the schema of the arguments."""


@cache
def option_docs() -> dict[str, dict[str, str]]:
    """Docstrings of all options, by TypedDict and key. They exist in the source only."""
    docs: dict[str, dict[str, str]] = {}
    for block in Path(__file__).read_text(encoding="utf-8").split("\n\n\n"):
        if head := re.match(r"class (\w+)\(([\w, ]+), total=False\):\n", block):
            own = re.findall(r'^    (\w+): .+\n    """([^"]+)"""', block, re.M)
            bases = [docs.get(base, {}) for base in head[2].split(", ")]
            docs[head[1]] = {key: doc for base in bases for key, doc in base.items()} | dict(own)
    return docs


def document_options(options: type[Mapping[str, object]]) -> Callable[[F], F]:
    """Append the options of a TypedDict to the docstring of a method, for `help`."""

    def decorate(method: F) -> F:
        with suppress(OSError):  # there is no source
            types = {name: annotation.__forward_arg__ for name, annotation in options.__annotations__.items()}
            docs = option_docs()[options.__name__].items()
            lines = [f"    {name} ({types[name]}): {' '.join(doc.split())}" for name, doc in docs]
            method.__doc__ = "\n".join([inspect.cleandoc(method.__doc__ or ""), "", "Options:", *lines])
        return method

    return decorate


def document_like(method: Callable[..., Any]) -> Callable[[F], F]:  # Any: methods of every signature
    """Append arguments, errors and options of another method to the docstring of a method, for `help`."""

    def decorate(other: F) -> F:
        _, args, rest = (method.__doc__ or "").partition("\nArgs:")
        other.__doc__ = f"{other.__doc__}\n{args}{rest}"
        return other

    return decorate
