"""What belongs to one run and travels beside the request: made per run, passed by hand, never global.

The one exception is the deadline of the run whose user code is executing: a tool that calls another agent must not
outlive the call it serves, and only a context variable reaches through user code.
"""

from __future__ import annotations

import contextvars
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from .attempts import AttemptLog
from .flow import Flow
from .types import AgentRequest, AgentResponse, Attempt, Candidate

ambient_deadline: contextvars.ContextVar[float] = contextvars.ContextVar("agent_deadline", default=math.inf)
"""time.monotonic() by which the run around this code must end. Set only while user code runs."""


class Inbox:
    """Messages for a run, put in by any thread and taken out by the flow."""

    __slots__ = ("_messages",)

    def __init__(self) -> None:
        self._messages: deque[Any] = deque()

    def put(self, message: Any) -> None:
        self._messages.append(message)

    def take(self) -> list[Any]:
        taken: list[Any] = []
        while self._messages:
            taken.append(self._messages.popleft())
        return taken


class Tries:
    """How many attempts a call has made and may make, whoever makes them: a router, or one inside it."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made = 0


class RunPlace(NamedTuple):
    """A place in a run: its id, and which of its turns."""

    id: str
    turn: int


@dataclass(slots=True)
class Context:
    """One run: its absolute deadline on the driver's clock, what was tried so far, its inbox and its spans."""

    deadline: float = math.inf
    started: float = 0.0
    log: AttemptLog = field(default_factory=AttemptLog)
    tries: Tries = field(default_factory=Tries)
    waited: float | None = None
    """Seconds waited before the attempt that comes next."""
    reason: str | None = None
    """Why the attempt that comes next is made where it is made."""
    first_event: float | None = None
    """When the stream of the attempt that is being made, or was made last, brought its first events."""
    ended: float = 0.0
    """When the last attempt ended."""
    headers: Mapping[str, str] | None = None
    """Of the last reply."""
    asking: Callable[[Any], None] | None = None
    """Told which agent is asked, whenever one is, where several could be."""
    candidates: Callable[[], Sequence[Candidate]] | None = None
    """Who was considered, for whoever asks."""
    inbox: Inbox = field(default_factory=Inbox)
    spans: list[Any] = field(default_factory=list)
    run: RunPlace | None = None
    """Which run of a tool loop this call is a part of."""
    user_context: contextvars.Context | None = None
    """The contextvars in which user code of this run executes; None for a copy of the caller's."""

    def beside(self) -> Context:
        """For an attempt that is made beside others: the same run, but its own notes about one attempt."""
        return replace(self, waited=None, reason=None, first_event=None, headers=None, log=self.log.branch())

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Attempts whose outcome is known."""
        return self.log.finished


Call: TypeAlias = Callable[[AgentRequest, Context], Flow[AgentResponse]]
"""What middleware, routing, retry and the tool loop wrap, each a function from Call to Call."""
