"""`Tool`, the base class of tools, and the types that their calls use.

Subclass `Tool` and write `run`, or decorate a function with `@tool`. This module knows no loop and no vendor.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from inspect import Parameter, isawaitable, iscoroutinefunction, signature
from time import monotonic
from typing import Any, Generic, Literal, Protocol, TypeAlias, get_args

from typing_extensions import TypeVar, override

from ..engine.flow import Flow
from ..errors import ConfigurationError
from ..schemas.validation import TooExpensive, find_problems
from ..types import ContentPart, JsonObject, Message, ToolSpec, thaw
from ..types._base import validate_with
from ..types.config import Risk


class Signal:
    """A cancellation event for threads and event loops: `is_set`, `set`, `block()` and `await wait()`."""

    __slots__ = ("_event", "_listeners")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._listeners: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()
        while self._listeners:
            with suppress(IndexError, RuntimeError):  # another thread took it, or its loop has ended
                self._listeners.pop()()

    def block(self, timeout: float | None = None) -> bool:
        """Wait in a thread. Return False on timeout."""
        return self._event.wait(timeout)

    async def wait(self) -> bool:
        import asyncio  # lazy: sync programs need no event loop

        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()

        def resolve() -> None:
            if not future.done():
                future.set_result(True)

        def listener() -> None:
            loop.call_soon_threadsafe(resolve)

        self._listeners.append(listener)
        try:
            if self._event.is_set():  # checked after the listener is added, to miss no change
                return True
            return await future
        finally:
            with suppress(ValueError):
                self._listeners.remove(listener)


Deps = TypeVar("Deps", covariant=True, default=Any)  # Any: `ToolContext` alone says nothing about them
"""Type of the dependencies that a context holds."""
DepsT = TypeVar("DepsT", contravariant=True, default=Any)  # Any: a tool that needs no dependencies takes all
"""Type of the dependencies that a tool needs."""
Isolation: TypeAlias = Literal["thread", "process"]


class ToolError(Exception):
    """Raise it in a tool to give the model this message as the tool result."""


class ArgumentsError(ValueError):
    """Arguments that do not match the schema. The message names each field and its problem."""


def _ignore(partial: Any) -> None:
    pass


@dataclass(slots=True, eq=False)
class ToolContext(Generic[Deps]):
    """Context of a tool call. A parameter with this annotation is filled in, and not in the schema.

    ```python
    from agent import ToolContext, tool

    @tool
    def fetch(url: str, context: ToolContext) -> str:
        context.report("connecting…")
        return f"asked by {context.call_id}"
    ```
    """

    deps: Deps = None  # type: ignore[assignment]  # what `run(deps=…)` was given
    call_id: str = ""
    tool_name: str = ""
    risk: Risk = "write"
    run_id: str = ""
    turn: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments as the model wrote them, or as `before_tool_call` changed them."""
    recall: Callable[[], Sequence[Message]] = tuple
    report: Callable[[Any], None] = _ignore
    """Report a partial result: text, or an `AgentToolResult` with details."""
    signal: Signal = field(default_factory=Signal)
    """Set when the call is cancelled."""
    deadline: float = float("inf")
    """The deadline of this call, as time.monotonic()."""
    account: Callable[[Any], None] = _ignore
    """Adds a response to the cost of the run. Sub-agents use it."""
    nesting: Any = None
    """A `Nesting`, for tools that are runs themselves."""

    def seconds_left(self) -> float:
        return self.deadline - monotonic()

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation before the turn that made this call, built on access."""
        return self.recall()


@dataclass
class AgentToolResult:
    """A tool result: `content` for the model, `details` for user interfaces only."""

    content: str | Sequence[ContentPart | Mapping[str, Any]] = field(default_factory=list)
    details: Any = field(default_factory=dict)
    is_error: bool = False


@dataclass
class Tool(Generic[DepsT]):
    """A tool that a model may call.

    ```python
    from dataclasses import dataclass
    from agent import Tool

    @dataclass
    class Dice(Tool):
        name: str = "dice"
        description: str = "Rolls a die."

        def run(self, arguments, context):
            return 4
    ```
    """

    name: str = ""
    description: str = ""
    parameters: JsonObject = field(default_factory=dict)
    """JSON schema of the arguments."""
    _: KW_ONLY
    timeout: float | None = None
    """Seconds per call. None uses the loop's limit."""
    retries: int = 0
    """How often it is retried after an exception."""
    risk: Risk = "write"
    """`exec` needs approval by default."""
    idempotent: bool = False
    """Whether it may run twice: an interrupted call is executed again when its run is resumed."""
    isolation: Isolation = "thread"
    """`process` runs it in a separate process, which is killed at the timeout."""
    sequential: bool = False
    """Never run it concurrently with another call of the same turn."""
    strict: bool | None = None
    """Whether the vendor enforces the schema. None uses the vendor's default."""

    @property
    def spec(self) -> ToolSpec:
        """The description that requests carry, created once."""
        spec: ToolSpec | None = self.__dict__.get("_spec")
        if spec is None:
            validate_settings(self)
            spec = validate_with(
                lambda: ToolSpec(
                    name=self.name,
                    description=self.description,
                    parameters=self.parameters or getattr(self, "input_schema", {}),
                    strict=self.strict,
                    function=self,
                    is_async=self.is_async,
                )
            )
            self.__dict__["_spec"] = spec
        return spec

    @property
    def is_async(self) -> bool:
        return iscoroutinefunction(self.run if type(self).run is not Tool.run else type(self).__call__)

    @property
    def can_run(self) -> bool:
        """Whether it has an implementation. The application answers calls of a tool without one."""
        return type(self).run is not Tool.run or self._has_call

    @property
    def _has_call(self) -> bool:
        """Whether the class implements `__call__(input)` instead of `run`."""
        return type(self).__call__ is not Tool.__call__

    @property
    def truncation(self) -> Any:  # Any: a `TruncationConfig`, which belongs to a package above this one
        """Output limits: the `_truncation_config` of the class."""
        return getattr(type(self), "_truncation_config", None)

    def check(self, arguments: Mapping[str, Any]) -> Any:  # Any: a subclass chooses the type
        """Validate the arguments and return them as `run` expects them. Raise ArgumentsError."""
        return validate_arguments(self.spec, arguments)

    def run(self, arguments: Any, context: ToolContext[DepsT]) -> Any:  # Any: a subclass chooses both types
        """Execute the tool with the return value of `check`. May be async.

        A subclass may implement `__call__(input)` instead, which gets the arguments only.
        """
        if self._has_call:
            return self(arguments)
        raise ConfigurationError(
            f"The tool {self.name!r} has no implementation.",
            field="tools",
            fix="Give it a function, or override run().",
        )

    async def __call__(self, input: Mapping[str, Any]) -> AgentToolResult:
        """Execute the tool outside a run, such as for `await tool(call.input)`. Raises its exceptions."""
        import asyncio  # lazy: sync programs need no event loop

        from .results import to_agent_result  # lazy: import cycle

        context: ToolContext[Any] = ToolContext(tool_name=self.name, risk=self.risk, arguments=input)
        arguments = self.check(input)
        value = self.run(arguments, context) if self.is_async else await asyncio.to_thread(self.run, arguments, context)
        return to_agent_result(await value if isawaitable(value) else value, self)


Execute: TypeAlias = Callable[..., Awaitable[AgentToolResult] | AgentToolResult | Any]


@dataclass
class AgentTool(Tool):
    """A tool with a label for user interfaces and an `execute` function.

    The function gets the call id, the arguments, the abort signal and a function for partial results, as far as it has
    parameters for them.
    """

    label: str = ""
    execute: Execute | None = None

    @property
    @override
    def is_async(self) -> bool:
        if self.execute is None:
            return super().is_async
        return iscoroutinefunction(self.execute) or iscoroutinefunction(type(self.execute).__call__)

    @property
    @override
    def can_run(self) -> bool:
        return self.execute is not None or type(self).run is not AgentTool.run or self._has_call

    @override
    def run(self, arguments: Any, context: ToolContext[Any]) -> Any:  # Any: see `Tool.run`
        if self.execute is None:
            return super().run(arguments, context)
        args = (context.call_id, arguments, context.signal, context.report)
        return self.execute(*args[: count_positional(self.execute, len(args))])


def count_positional(function: Callable[..., Any], limit: int) -> int:
    """Return how many positional arguments a function takes, at most a limit."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return limit
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return limit
    by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return min(limit, sum(parameter.kind in by_place for parameter in parameters))


def validate_settings(tool: Tool) -> None:
    """Raise ConfigurationError for invalid settings where the tool is defined, not when it is called."""
    try:
        validate_with(lambda: ToolSpec(name=tool.name, description=tool.description))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{tool.name!r} is not a valid tool name." if error.field == "name" else error.message,
            field=error.field,
            fix='Use at most 128 letters, digits, "_", "-", "." and ":", as in @tool(name="…").'
            if error.field == "name"
            else None,
        ) from None
    for setting, allowed in (("risk", get_args(Risk)), ("isolation", get_args(Isolation))):
        if getattr(tool, setting) not in allowed:
            raise ConfigurationError(
                f"The tool {tool.name!r} has an unknown {setting}: {getattr(tool, setting)!r}.",
                field=setting,
                fix=f"Use one of {', '.join(allowed)}.",
            )
    if tool.timeout is not None and not tool.timeout > 0:
        raise ConfigurationError(
            f"The tool {tool.name!r} has an invalid timeout.", field="timeout", fix="Use more than 0."
        )
    if tool.retries < 0:
        raise ConfigurationError(f"The tool {tool.name!r} has negative retries.", field="retries", fix="Use 0 or more.")


def validate_arguments(spec: ToolSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mutable copy of the arguments after validation against the JSON schema."""
    copy: dict[str, Any] = thaw(dict(arguments))
    if spec.parameters:
        try:
            verdict = find_problems(spec.parameters, copy)
        except TooExpensive as error:
            raise ArgumentsError(str(error)) from None
        unusable = verdict.unusable or (verdict.unresolved and f"{verdict.unresolved!r} cannot be resolved")
        if unusable:
            raise ConfigurationError(
                f"The schema of the tool {spec.name!r} cannot be evaluated: {unusable}.",
                field="parameters",
                fix="Correct the schema. References are not fetched.",
            )
        if verdict.problems:
            described = (
                message[:300] if path == "$" else f"{path.removeprefix('$.')}: {message[:300]}"
                for path, message in verdict.problems
            )
            raise ArgumentsError("; ".join(described))
    return copy


@dataclass
class FlowTool(Tool):
    """A tool whose implementation is a flow."""

    def steps(self, arguments: Any, context: ToolContext[Any]) -> Flow[Any]:
        """Execute the tool as a flow."""
        raise NotImplementedError


@dataclass
class NestedTool(FlowTool):
    """A tool that is itself a run, such as a sub-agent.

    It can be resumed: `steps` may return `Suspended`, and the calling run passes a `Nesting` in the context.
    """


@dataclass(frozen=True, slots=True)
class Suspended:
    """Result of a nested run that waits for a decision."""

    run: Any


@dataclass(frozen=True, slots=True)
class Nesting:
    """Context that a run passes to a nested run."""

    context: Any
    """The flow's context: deadline and position in the run."""
    journal: Any = None
    paused: Any = None
    """The paused nested run to resume. None starts a new one."""
    is_retried: Callable[[], bool] = bool
    """Whether an earlier attempt of this call was charged."""


# Truncation of long texts to the limits of a `TruncationConfig`


class OutputLimits(Protocol):
    """The fields of a `TruncationConfig`."""

    max_chars: int
    max_lines: int
    enabled: bool


def count_lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n") and bool(text))


def split_long_text(text: str, limits: OutputLimits) -> tuple[str, str] | None:
    """Return the start and the end of a text, without the middle; None if it is within the limits."""
    if not limits.enabled or (len(text) <= limits.max_chars and count_lines(text) <= limits.max_lines):
        return None
    most_chars, most_lines = max(limits.max_chars, 0), max(limits.max_lines, 0)
    lines = text.removesuffix("\n").split("\n")
    if len(lines) > most_lines:
        ending = len(lines) - most_lines // 2
        head, tail = "\n".join(lines[: most_lines - most_lines // 2]), "\n".join(lines[ending:])
    else:
        head, tail = text, text
    room = most_chars // 2
    return head[: most_chars - room], tail[-room:] if room else ""


def omit_middle(text: str, limits: OutputLimits, store: Callable[[str], str] | None = None) -> str:
    """Replace the middle of a text beyond the limits by a note; `store` keeps the text and returns where."""
    parts = split_long_text(text, limits)
    if parts is None:
        return text
    head, tail = parts
    missing = max(len(text) - len(head) - len(tail), 0)
    missing_lines = max(count_lines(text) - count_lines(head) - count_lines(tail), 0)
    lost = f"{missing:,} of {len(text):,} characters ({missing_lines:,} lines)"
    where = "" if store is None else f" {store(text)}"
    return "\n".join(part for part in (head.rstrip("\n"), f"[… {lost} are omitted.{where}]", tail) if part)
