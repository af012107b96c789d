"""What belongs to one run and travels beside the request: made per run, passed by hand, never global.

The one exception is the deadline of the run whose user code is executing: a tool that calls another agent must not
outlive the call it serves, and only a context variable reaches through user code.
"""

from __future__ import annotations

import contextvars
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .flow import Flow
from .types import AgentRequest, AgentResponse, Attempt, Message

ambient_deadline: contextvars.ContextVar[float] = contextvars.ContextVar("agent_deadline", default=math.inf)
"""time.monotonic() by which the run around this code must end. Set only while user code runs."""


class Inbox:
    """Messages that steer a run, put in by any thread and taken out by the flow."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def put(self, message: Message) -> None:
        self._messages.append(message)

    def take(self) -> list[Message]:
        taken: list[Message] = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken


@dataclass(slots=True)
class Context:
    """One run: its absolute deadline on the driver's clock, what was tried so far, its inbox and its spans."""

    deadline: float = math.inf
    started: float = 0.0
    attempts: list[Attempt] = field(default_factory=list)
    waited: float | None = None
    """Seconds waited before the attempt that comes next."""
    inbox: Inbox = field(default_factory=Inbox)
    spans: list[Any] = field(default_factory=list)
    user_context: contextvars.Context | None = None
    """The contextvars in which user code of this run executes; None for a copy of the caller's."""


Call: TypeAlias = Callable[[AgentRequest, Context], Flow[AgentResponse]]
"""What middleware, routing, retry and the tool loop wrap, each a function from Call to Call."""
