"""Long conversations made to fit: old turns are told in a summary, the latest stay as they are.

A ready `transform_context`. It cuts only between turns, so that no call is parted from its result, and asks for a
summary only when the conversation has outgrown its room again: what was summed up once stays summed up.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ..client import Client
from ..errors import AgentError, ConfigurationError
from ..models.token_estimates import estimate_prompt
from ..types import AgentRequest, Message, Role, ToolCall, ToolResult
from .events import AgentMessage

_ASK = (
    "Sum up the conversation above for somebody who has to go on with it and has not seen it. Keep every fact, "
    "decision, name, number and open question that may matter later; leave out pleasantries. Answer with the "
    "summary only."
)
_TOLD = "Summary of the conversation so far:\n\n{summary}"
_MOST_OF_A_RESULT = 2_000
_CONVERSATIONS = 16
"""How many conversations' summaries are kept: one object may serve several."""


class Compaction:
    """Sums up old turns when the conversation takes too much of the window.

    ```python
    from agent import Agent
    from agent.loop import Compaction

    agent = Agent("scripted:echo")
    result = agent.run("Hello!", transform_context=Compaction(agent, window=100_000))
    ```

    Args:
        caller: Writes the summaries; a small model will do.
        window: Tokens that fit; by default what is known of the caller's model.
        at: The share of the window from which on old turns are summed up.
        keep: The share of the window that the latest turns may take, untouched.
    """

    def __init__(self, caller: Client, *, window: int | None = None, at: float = 0.8, keep: float = 0.3) -> None:
        known = window if window is not None else caller.capabilities.max_context_tokens
        if known is None:
            raise ConfigurationError(
                "How much fits into the model's window is not known.", field="window", fix="Pass window=."
            )
        if not 0 < keep < at <= 1:
            raise ConfigurationError("keep must be less than at.", field="keep", fix="Use 0 < keep < at <= 1.")
        self._caller = caller
        self._limit = int(known * at)
        self._kept = int(known * keep)
        self._lock = threading.Lock()
        self._summaries: list[tuple[list[AgentMessage], Message]] = []
        self.count = 0
        """How many summaries were asked for."""

    def __call__(self, messages: Sequence[AgentMessage]) -> list[AgentMessage]:
        """The conversation as it fits. Raises what the summary fails with."""
        known, stands_for = self._with_summary(messages)
        if _tokens(known) <= self._limit:
            return known
        cut = self._cut(known)
        if cut == 0:
            return known  # one turn that is too long by itself: nothing here can help
        told = self._summed_up([message for message in known[:cut] if isinstance(message, Message)])
        with self._lock:
            self._summaries.insert(0, (list(messages[: cut + stands_for]), told))
            del self._summaries[_CONVERSATIONS:]
        return [told, *known[cut:]]

    def _with_summary(self, messages: Sequence[AgentMessage]) -> tuple[list[AgentMessage], int]:
        """What was summed up before, in its place; and how many more messages than one that stands for."""
        with self._lock:
            summaries = list(self._summaries)
        for summed_up, told in summaries:
            count = len(summed_up)
            if messages[:count] == summed_up:
                return [told, *messages[count:]], count - 1
        return list(messages), 0

    def _cut(self, messages: Sequence[AgentMessage]) -> int:
        """Where the old turns end: before a turn of the user's, or of a model that called nothing before."""
        room = self._kept
        cut = 0
        for place in range(len(messages) - 1, 0, -1):
            room -= _tokens(messages[place : place + 1])
            if _may_begin(messages, place):
                if room < 0 and cut:
                    break
                cut = place
                if room < 0:
                    break
        return cut

    def _summed_up(self, old: Sequence[Message]) -> Message:
        self.count += 1
        told = AgentRequest(messages=(*(_in_short(message) for message in old), Message.user(_ASK)))
        response = self._caller.complete(told)
        summary = response.text
        if not summary:
            raise AgentError("The summary of the conversation came out empty.")
        return Message.user(_TOLD.format(summary=summary))


def _may_begin(messages: Sequence[AgentMessage], place: int) -> bool:
    """Whether a conversation may begin here: not with a result, whose call would be missing."""
    message = messages[place]
    if not isinstance(message, Message):
        return False
    return message.role is Role.USER or (
        message.role is Role.ASSISTANT
        and isinstance(before := messages[place - 1], Message)
        and before.role is Role.TOOL
    )


def _in_short(message: Message) -> Message:
    """As the summary's author needs it: calls and results told in words, long results cut."""
    if isinstance(message.content, str):
        return message
    said: list[str] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            said.append(f"[called {part.name} with {dict(part.arguments)}]")
        elif isinstance(part, ToolResult):
            said.append(f"[{part.name or 'the tool'} returned: {part.text[:_MOST_OF_A_RESULT]}]")
        elif part.text:
            said.append(part.text)
        else:
            said.append(f"[{part.type}]")
    role = Role.USER if message.role is Role.TOOL else message.role
    return Message(role, "\n".join(said))


def _tokens(messages: Sequence[Any]) -> int:
    """Estimate the tokens of messages, each as if it were sent alone."""
    return sum(
        estimate_prompt(AgentRequest(messages=(message,))).tokens
        for message in messages
        if isinstance(message, Message)
    )
