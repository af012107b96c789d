"""What a tool is: a description for the model, and something that runs.

A `Tool` is a plain dataclass. Subclass it and write `run`, or let `@tool` make one from a function. Nothing here knows
the loop that calls tools, or a vendor.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from inspect import Parameter, iscoroutinefunction, signature
from time import monotonic
from typing import Any, Generic, Literal, TypeAlias, get_args

from typing_extensions import TypeVar, override

from ..engine.flow import Flow
from ..errors import ConfigurationError
from ..schemas.dialect import create_validator
from ..types import ContentPart, JsonObject, Message, ToolSpec, thaw
from ..types._base import validate_with
from ..types.config import Risk


class Signal:
    """As much of an event as tools need: `is_set`, `set`, and `await wait()`."""

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
        """Wait in a thread. False when the time is up."""
        return self._event.wait(timeout)

    async def wait(self) -> bool:
        import asyncio

        loop = asyncio.get_running_loop()
        heard: asyncio.Future[bool] = loop.create_future()

        def hear() -> None:
            if not heard.done():
                heard.set_result(True)

        def listener() -> None:
            loop.call_soon_threadsafe(hear)

        self._listeners.append(listener)
        try:
            if self._event.is_set():  # asked after listening, or it could be set in between
                return True
            return await heard
        finally:
            with suppress(ValueError):
                self._listeners.remove(listener)


Deps = TypeVar("Deps", covariant=True, default=Any)  # Any: `ToolContext` alone says nothing about them
"""Type of the dependencies that a context holds."""
DepsT = TypeVar("DepsT", contravariant=True, default=Any)  # Any: a tool that needs no dependencies takes all
"""Type of the dependencies that a tool needs."""
Isolation: TypeAlias = Literal["thread", "process"]


class ToolError(Exception):
    """Raise it in a tool to tell the model what is wrong, in these words."""


class ArgumentsError(ValueError):
    """Arguments that do not fit. The text names each field and says what is wrong with it."""


def _heard_by_nobody(partial: Any) -> None:
    pass


def _no_messages() -> Sequence[Message]:
    return ()


@dataclass(slots=True, eq=False)
class ToolContext(Generic[Deps]):
    """What a tool may know of the run that calls it. A parameter with this annotation is filled in, and never shown.

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
    """As the model wrote them, or as `before_tool_call` changed them."""
    recall: Callable[[], Sequence[Message]] = _no_messages
    report: Callable[[Any], None] = _heard_by_nobody
    """Show something before the result is there: text, or an `AgentToolResult` with details."""
    signal: Signal = field(default_factory=Signal)
    """Set when the run has given up on this call."""
    deadline: float = float("inf")
    """time.monotonic() by which this call must end."""
    account: Callable[[Any], None] = _heard_by_nobody
    """Told of answers that this call paid for, so that they are on the run's bill: sub-agents do."""
    nesting: Any = None
    """For tools that are runs themselves: a `Nesting`."""

    def seconds_left(self) -> float:
        return self.deadline - monotonic()

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation up to the turn that made this call, put together when it is asked for."""
        return self.recall()


@dataclass
class AgentToolResult:
    """A tool's answer in two halves: `content` for the model, `details` for a user interface alone."""

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
    """Seconds for one call; None: as long as the loop allows."""
    retries: int = 0
    """How often it is run again after it raised."""
    risk: Risk = "write"
    """`exec` is not run unless the loop is told that it may be."""
    idempotent: bool = False
    """Whether running it twice does no harm: an interrupted call of such a tool is run again when a run is resumed."""
    isolation: Isolation = "thread"
    """`process`: in a process of its own, which is killed when its time is up."""
    sequential: bool = False
    """Never beside another call of the same turn."""
    strict: bool | None = None
    """Whether the vendor shall force the arguments to fit; None leaves it to the vendor."""

    @property
    def spec(self) -> ToolSpec:
        """Its description, as requests carry it. Made once."""
        made: ToolSpec | None = self.__dict__.get("_spec")
        if made is None:
            check_settings(self)
            made = validate_with(
                lambda: ToolSpec(
                    name=self.name,
                    description=self.description,
                    parameters=self.parameters,
                    strict=self.strict,
                    function=self,
                    is_async=self.is_async,
                )
            )
            self.__dict__["_spec"] = made
        return made

    @property
    def is_async(self) -> bool:
        return iscoroutinefunction(self.run)

    @property
    def can_run(self) -> bool:
        """Whether there is anything to run. A mere description is answered by whoever offered it."""
        return type(self).run is not Tool.run

    def check(self, arguments: Mapping[str, Any]) -> Any:
        """What `run` gets: the arguments, checked. Raises ArgumentsError."""
        return check_against(self.spec, arguments)

    def run(self, arguments: Any, context: ToolContext[DepsT]) -> Any:
        """Do it. `arguments` are what `check` returned. May be async."""
        raise ConfigurationError(
            f"The tool {self.name!r} is a description only.", field="tools", fix="Give it a function, or write run()."
        )


Execute: TypeAlias = Callable[..., Awaitable[AgentToolResult] | AgentToolResult | Any]


@dataclass
class AgentTool(Tool):
    """A tool with a label for people, and a function that gets the call's id, the arguments, a signal, and a function
    to show partial results with: as many of these, in this order, as it has parameters for.
    """

    label: str = ""
    execute: Execute | None = None

    @property
    @override
    def is_async(self) -> bool:
        return iscoroutinefunction(self.execute) or iscoroutinefunction(type(self.execute).__call__)

    @property
    @override
    def can_run(self) -> bool:
        return self.execute is not None or type(self).run is not AgentTool.run

    @override
    def run(self, arguments: Any, context: ToolContext[Any]) -> Any:
        if self.execute is None:
            return super().run(arguments, context)
        given = (context.call_id, arguments, context.signal, context.report)
        return self.execute(*given[: _positional(self.execute, len(given))])


def _positional(function: Callable[..., Any], most: int) -> int:
    """How many positional arguments a function takes."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return most
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return most
    by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return min(most, sum(parameter.kind in by_place for parameter in parameters))


def check_settings(made: Tool) -> None:
    """What is wrong is said where the tool is written, not when a model calls it."""
    try:
        validate_with(lambda: ToolSpec(name=made.name, description=made.description))
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{made.name!r} cannot be the name of a tool." if error.field == "name" else error.message,
            field=error.field,
            fix='Give it one, of at most 128 letters, digits, "_", "-", "." and ":", with @tool(name="…").'
            if error.field == "name"
            else None,
        ) from None
    for setting, allowed in (("risk", get_args(Risk)), ("isolation", get_args(Isolation))):
        if getattr(made, setting) not in allowed:
            raise ConfigurationError(
                f"The tool {made.name!r} has no such {setting}: {getattr(made, setting)!r}.",
                field=setting,
                fix=f"Use one of {', '.join(allowed)}.",
            )
    if made.timeout is not None and not made.timeout > 0:
        raise ConfigurationError(f"The tool {made.name!r} has no time to run.", field="timeout", fix="Say more than 0.")
    if made.retries < 0:
        raise ConfigurationError(
            f"The tool {made.name!r} cannot be run less than once.", field="retries", fix="Say 0 or more."
        )


def check_against(spec: ToolSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, mutable, after a JSON schema has been asked about them."""
    given: dict[str, Any] = thaw(dict(arguments))
    if spec.parameters:
        problems = [
            f"{error.json_path.removeprefix('$.')}: {error.message[:300]}" if error.path else error.message[:300]
            for error in create_validator(spec.parameters).iter_errors(given)
        ]
        if problems:
            raise ArgumentsError("; ".join(problems[:10]))
    return given


@dataclass
class FlowTool(Tool):
    """A tool that is a flow."""

    def steps(self, arguments: Any, context: ToolContext[Any]) -> Flow[Any]:
        """Like `run`, as a flow."""
        raise NotImplementedError


@dataclass
class NestedTool(FlowTool):
    """A tool that is a run, such as a sub-agent. It can be resumed where it stopped, and `steps` may return Suspended.

    A run that calls it passes a `Nesting` in the context.
    """


@dataclass(frozen=True, slots=True)
class Suspended:
    """The outcome of a nested run that waits for a decision."""

    run: Any


@dataclass(frozen=True, slots=True)
class Nesting:
    """What a run passes to a nested one."""

    context: Any
    """The context of the flow: deadline and place."""
    journal: Any = None
    paused: Any = None
    """The nested run to resume; None to start it."""
    is_retried: Callable[[], bool] = bool
    """Whether this call has been paid for before, by a try that failed."""
