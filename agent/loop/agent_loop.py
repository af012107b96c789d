"""`AgentLoop`: runs of an agent that share one conversation, with listeners and message queues.

Each prompt is one run of the agent. A session keeps whole turns in a store; a loop keeps all messages in memory,
including those of failed runs and those with custom roles.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from ..client import Client
from ..errors import ConfigurationError
from ..tools.base import Tool
from ..tools.functions import as_tool
from ..types import Message, ThinkingLevel, ToolLoopConfig
from ..types.option_errors import check_keywords
from .events import AgentEvent, AgentMessage, MessageLike, coerce_message
from .functions import AgentState, Model, check_continuable
from .hooks import Hooks
from .results import RunResult
from .streams import AsyncRunStream, RunStream, StartedRun

if TYPE_CHECKING:
    from ..types.options import DepsT, ToolLike

QueueMode = Literal["all", "one_at_a_time"]


class AgentLoop:
    """A conversation with an agent or a router. One run at a time.

    ```python
    from agent.loop import AgentLoop
    from agent.testing import scripted_agent

    loop = AgentLoop(scripted_agent("Hello!", "Paris."), system_prompt="Be brief.")
    loop.subscribe(lambda event: print(event.type))
    loop.prompt("Hi")
    loop.follow_up("And what is the capital of France?")
    print(loop.continue_().text)
    ```

    Args:
        caller: The agent or router.
        system_prompt: Instructions for the model.
        tools: Tools besides the agent's own.
        messages: The conversation so far. Messages with custom roles are allowed.
        thinking_level: The model's reasoning effort.
        steering_mode: Whether each turn takes all queued steering messages or one.
        follow_up_mode: The same for follow-up messages.
        loop: Limits of each run.
        hooks: Hooks called during runs.
        deps: Dependencies for the tools' context.
    """

    @check_keywords("A loop")
    def __init__(
        self,
        caller: Client,
        *,
        system_prompt: str = "",
        tools: Iterable[ToolLike[DepsT]] = (),
        messages: Sequence[MessageLike] = (),
        thinking_level: ThinkingLevel = ThinkingLevel.OFF,
        steering_mode: QueueMode = "one_at_a_time",
        follow_up_mode: QueueMode = "one_at_a_time",
        loop: ToolLoopConfig | None = None,
        hooks: Hooks | None = None,
        deps: DepsT | None = None,
    ) -> None:
        self.caller = caller
        self.system_prompt = system_prompt
        self.tools: list[Tool] = [as_tool(tool) for tool in tools]
        self.messages: list[AgentMessage] = [coerce_message(message) for message in messages]
        self.thinking_level = thinking_level
        self.steering_mode = steering_mode
        self.follow_up_mode = follow_up_mode
        self.loop = loop
        self.hooks = hooks
        self.deps: Any = deps
        self._listeners: list[Callable[[AgentEvent], Any]] = []
        self._steering: list[AgentMessage] = []
        self._follow_ups: list[AgentMessage] = []
        self._running: RunStream | AsyncRunStream | None = None
        self._error: str | None = None
        self._lock = threading.Lock()

    @property
    def state(self) -> AgentState:
        """The current state as a dict."""
        running = self._running
        provider, model = self.caller.provider_and_model()
        return AgentState(
            system_prompt=self.system_prompt,
            model=Model(provider=provider, id=model, thinking_level=self.thinking_level),
            thinking_level=self.thinking_level,
            tools=list(self.tools),
            messages=self.messages if running is None else [*self.messages, *running.messages],
            is_streaming=running is not None,
            stream_message=None if running is None else running.stream_message,
            pending_tool_calls=set() if running is None else running.pending_tool_calls,
            error=self._error,
        )

    def subscribe(self, listener: Callable[[AgentEvent], Any]) -> Callable[[], None]:  # Any: plain or async
        """Call `listener` with every event, in the thread or task of the run. Return an unsubscribe function.

        The listener may be async if the loop is awaited.
        """
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    # Runs

    def prompt(self, *messages: MessageLike) -> RunResult[None]:
        """Add messages and run until the model has responded. Raises the run's failure."""
        return self._run([coerce_message(message) for message in messages])

    async def aprompt(self, *messages: MessageLike) -> RunResult[None]:
        """Async version of `prompt`."""
        return await self._arun([coerce_message(message) for message in messages])

    def continue_(self) -> RunResult[None]:
        """Run with the queued messages, or else from the current conversation, such as after a failure."""
        self._check_idle()
        return self._run(self._take_queued())

    async def acontinue_(self) -> RunResult[None]:
        """Async version of `continue_`."""
        self._check_idle()
        return await self._arun(self._take_queued())

    def _take_queued(self) -> list[AgentMessage]:
        """Return the queued messages. Without any, the conversation must end with a message to answer."""
        queued = self._take_steering() or self._take_follow_ups()
        if not queued:
            failed = ("error", "aborted")
            check_continuable(
                [one for one in self.messages if not (isinstance(one, Message) and one.stop_reason in failed)]
            )
        return queued

    def _run(self, prompts: Sequence[AgentMessage]) -> RunResult:
        def start() -> StartedRun:
            return self.caller.run_stream("", **self._options(prompts)).start()

        with RunStream(start, scope=self._turn) as stream:
            for event in stream:
                for listener in list(self._listeners):
                    listener(event)
            return stream.result

    async def _arun(self, prompts: Sequence[AgentMessage]) -> RunResult:
        def start() -> StartedRun:
            return self.caller.arun_stream("", **self._options(prompts)).start()

        async with AsyncRunStream(start, scope=self._aturn) as stream:
            async for event in stream:
                for listener in list(self._listeners):
                    if inspect.isawaitable(awaitable := listener(event)):
                        await awaitable
            return stream.result

    @contextmanager
    def _turn(self, stream: Any) -> Iterator[None]:
        """Mark the loop as running, and keep the run's messages however it ends."""
        with self._lock:
            self._check_idle()
            self._running = stream
        try:
            yield
        finally:
            self.messages = [*self.messages, *stream.messages]
            self._error = None if stream.error is None else str(stream.error)
            self._running = None

    @asynccontextmanager
    async def _aturn(self, stream: Any) -> AsyncIterator[None]:
        with self._turn(stream):
            yield

    def _options(self, prompts: Sequence[AgentMessage]) -> dict[str, Any]:
        hooks = self.hooks or Hooks()
        return {
            "history": list(self.messages),
            "prompts": prompts,
            "loop": self.loop,
            "deps": self.deps,
            "before_tool_call": hooks.before_tool_call,
            "after_tool_call": hooks.after_tool_call,
            "transform_context": hooks.transform_context,
            "convert_to_llm": hooks.convert_to_llm,
            "journal": hooks.journal,
            "get_steering_messages": self._take_steering,
            "get_follow_up_messages": self._take_follow_ups,
            **({"system": self.system_prompt} if self.system_prompt else {}),
            **({"tools": self.tools} if self.tools else {}),
            **({"thinking": self.thinking_level} if self.thinking_level is not ThinkingLevel.OFF else {}),
        }

    def _check_idle(self) -> None:
        if self._running is not None:
            raise ConfigurationError(
                "The loop is already running.",
                field="prompt",
                fix="Use steer() or follow_up(), or call wait_for_idle() first.",
            )

    # Steering and queues

    def steer(self, message: MessageLike) -> None:
        """Queue a message for the current turn. It follows the current tool call; later calls are skipped."""
        self._steering.append(coerce_message(message))

    def follow_up(self, message: MessageLike) -> None:
        """Queue a message for when the run would otherwise end."""
        self._follow_ups.append(coerce_message(message))

    def clear_queues(self) -> None:
        """Drop all queued messages."""
        self._steering.clear()
        self._follow_ups.clear()

    def abort(self) -> None:
        """Abort the current run, if there is one."""
        running = self._running
        if running is not None:
            running.abort()

    def wait_for_idle(self, timeout: float | None = None) -> bool:
        """Wait until no run is in progress. Return False on timeout."""
        running = self._running
        return running is None or running.idle.block(timeout)

    async def await_for_idle(self) -> None:
        """Async version of `wait_for_idle`."""
        running = self._running
        if running is not None:
            await running.idle.wait()

    def reset(self) -> None:
        """Drop the conversation and all queued messages."""
        self._check_idle()
        self.messages = []
        self._error = None
        self.clear_queues()

    def _take_steering(self) -> list[AgentMessage]:
        return _take(self._steering, self.steering_mode)

    def _take_follow_ups(self) -> list[AgentMessage]:
        return _take(self._follow_ups, self.follow_up_mode)


def _take(queue: list[AgentMessage], mode: QueueMode) -> list[AgentMessage]:
    count = 1 if mode == "one_at_a_time" else len(queue)
    taken, queue[:count] = queue[:count], []
    return taken
