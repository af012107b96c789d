"""A conversation that goes on: an agent, its tools, what was said so far, and whoever watches.

It keeps the messages between runs, tells subscribers what happens, and can be spoken to while it works. One run at a
time; everything else that is said meanwhile is steering, or waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal

from ..caller import Caller
from ..errors import ConfigurationError
from ..looping.events import AgentEvent
from ..looping.plan import Hooks
from ..looping.results import RunResult
from ..looping.shapes import AgentMessage, MessageLike, read_message
from ..looping.streams import AsyncRunStream, RunStream
from ..tools.base import Tool
from ..tools.functions import as_tool
from ..tools.signal import Signal
from ..types import ThinkingLevel, ToolLoopConfig
from .config import AgentState, Model
from .functions import check_continuable

QueueMode = Literal["all", "one_at_a_time"]


class AgentLoop:
    """An agent, or a router, in conversation.

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
        caller: Who is asked.
        system_prompt: What the model is told before anything else.
        tools: What it may call, besides the agent's own.
        messages: The conversation so far. Messages with roles of their own may stand among them.
        thinking_level: How hard the model shall think.
        steering_mode: Whether all that was said meanwhile is heard at once, or one message in each turn.
        follow_up_mode: The same for follow-ups.
        loop: Limits of each run.
        hooks: Who has a say.
        deps: For the tools' context.
    """

    def __init__(
        self,
        caller: Caller,
        *,
        system_prompt: str = "",
        tools: Iterable[Any] = (),
        messages: Sequence[MessageLike] = (),
        thinking_level: ThinkingLevel = ThinkingLevel.OFF,
        steering_mode: QueueMode = "one_at_a_time",
        follow_up_mode: QueueMode = "one_at_a_time",
        loop: ToolLoopConfig | None = None,
        hooks: Hooks | None = None,
        deps: Any = None,
    ) -> None:
        self.caller = caller
        self.system_prompt = system_prompt
        self.tools: list[Tool] = [as_tool(tool) for tool in tools]
        self.messages: list[AgentMessage] = [read_message(message) for message in messages]
        self.thinking_level = thinking_level
        self.steering_mode = steering_mode
        self.follow_up_mode = follow_up_mode
        self.loop = loop
        self.hooks = hooks
        self.deps = deps
        self._listeners: list[Callable[[AgentEvent], Any]] = []
        self._steering: list[AgentMessage] = []
        self._follow_ups: list[AgentMessage] = []
        self._running: RunStream | AsyncRunStream | None = None
        self._error: str | None = None
        self._lock = threading.Lock()
        self._idle = Signal()
        """Of the latest run: set when it is over."""
        self._idle.set()

    # What it says of itself

    @property
    def state(self) -> AgentState:
        """Everything about it, as it is now."""
        running = self._running
        provider, model = self.caller.named()
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

    def subscribe(self, listener: Callable[[AgentEvent], Any]) -> Callable[[], None]:
        """Be told of every event, in the thread or task that runs. Returns a function that ends it."""
        self._listeners.append(listener)

        def unsubscribe() -> None:
            with suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    # Runs

    def prompt(self, *messages: MessageLike) -> RunResult:
        """Say something, and run until there is nothing more to do. Raises what goes wrong."""
        return self._run([read_message(message) for message in messages])

    async def aprompt(self, *messages: MessageLike) -> RunResult:
        """As `prompt`, with await."""
        return await self._arun([read_message(message) for message in messages])

    def continue_(self) -> RunResult:
        """Go on from the conversation as it stands: after a failure, or with what is waiting to be said."""
        return self._run(self._waiting())

    async def acontinue_(self) -> RunResult:
        """As `continue_`, with await."""
        return await self._arun(self._waiting())

    def _waiting(self) -> list[AgentMessage]:
        """What was queued while nothing ran; without that, the conversation itself must ask something."""
        said = self._take_steering() or self._take_follow_ups()
        if not said:
            check_continuable([m for m in self.messages if getattr(m, "stop_reason", None) not in ("error", "aborted")])
        return said

    def _run(self, prompts: Sequence[AgentMessage]) -> RunResult:
        with self._lock:
            self._check_idle()
            stream = self._running = self.caller.run_stream("", **self._options(prompts))
            self._idle = Signal()
        try:
            for event in stream:
                self._tell(event)
            return stream.result
        finally:
            self._rest(stream)

    async def _arun(self, prompts: Sequence[AgentMessage]) -> RunResult:
        import inspect

        with self._lock:
            self._check_idle()
            stream = self._running = self.caller.arun_stream("", **self._options(prompts))
            self._idle = Signal()
        try:
            async for event in stream:
                for listener in list(self._listeners):
                    if inspect.isawaitable(heard := listener(event)):
                        await heard
            return stream.result
        finally:
            self._rest(stream)
            await stream.aclose()

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

    def _tell(self, event: AgentEvent) -> None:
        for listener in list(self._listeners):
            listener(event)

    def _rest(self, stream: RunStream | AsyncRunStream) -> None:
        """Keep what was said, however the run ended."""
        self.messages = [*self.messages, *stream.messages]
        self._error = None if stream.error is None else str(stream.error)
        self._running = None
        self._idle.set()

    def _check_idle(self) -> None:
        if self._running is not None:
            raise ConfigurationError(
                "The loop is running.", field="prompt", fix="Use steer() or follow_up(), or wait_for_idle() first."
            )

    # While it runs

    def steer(self, message: MessageLike) -> None:
        """Say something now. It is heard after the tool that runs; calls not yet begun are skipped."""
        self._steering.append(read_message(message))

    def follow_up(self, message: MessageLike) -> None:
        """Say something when the run would otherwise end."""
        self._follow_ups.append(read_message(message))

    def clear_queues(self) -> None:
        """Forget what is waiting to be said."""
        self._steering.clear()
        self._follow_ups.clear()

    def abort(self) -> None:
        """End the run, if there is one."""
        running = self._running
        if running is not None:
            running.abort()

    def wait_for_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing runs. False when the time is up."""
        return self._idle.block(timeout)

    async def await_for_idle(self) -> None:
        """As `wait_for_idle`, with await."""
        await self._idle.wait()

    def reset(self) -> None:
        """Forget the conversation, and what is waiting to be said."""
        self._check_idle()
        self.messages = []
        self._error = None
        self.clear_queues()

    def _take_steering(self) -> list[AgentMessage]:
        return _taken(self._steering, self.steering_mode)

    def _take_follow_ups(self) -> list[AgentMessage]:
        return _taken(self._follow_ups, self.follow_up_mode)


def _taken(queue: list[AgentMessage], mode: QueueMode) -> list[AgentMessage]:
    count = 1 if mode == "one_at_a_time" else len(queue)
    taken, queue[:count] = queue[:count], []
    return taken
