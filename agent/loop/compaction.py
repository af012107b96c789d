"""Compaction: summarize old turns when a conversation outgrows the context window.

A `transform_context` hook. It cuts only between turns, so that a tool call keeps its result. Summaries are cached and
extended when the conversation outgrows the window again.
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

_PROMPT = (
    "Summarize the conversation above for a reader who continues it without having seen it. Keep every fact, "
    "decision, name, number and open question that may matter later; leave out pleasantries. Answer with the "
    "summary only."
)
_SUMMARY = "Summary of the conversation so far:\n\n{summary}"
_MAX_RESULT_CHARACTERS = 2_000
_CONVERSATIONS = 16
"""Number of conversations whose summaries are kept: one object may serve several."""


class Compaction:
    """Summarize old turns when the conversation takes too much of the context window.

    ```python
    from agent import Agent
    from agent.loop import Compaction

    agent = Agent("scripted:echo")
    result = agent.run("Hello!", transform_context=Compaction(agent, window=100_000))
    ```

    Args:
        caller: The agent or router that writes the summaries. A small model suffices.
        window: Size of the context window in tokens. Defaults to that of the model.
        at: Share of the window at which old turns are summarized.
        keep: Share of the window that is kept for the latest turns.
    """

    def __init__(self, caller: Client, *, window: int | None = None, at: float = 0.8, keep: float = 0.3) -> None:
        known = window if window is not None else caller.capabilities.max_context_tokens
        if known is None:
            raise ConfigurationError("The context window of the model is unknown.", field="window", fix="Pass window=.")
        if not 0 < keep < at <= 1:
            raise ConfigurationError("keep must be less than at.", field="keep", fix="Use 0 < keep < at <= 1.")
        self._caller = caller
        self._limit = int(known * at)
        self._kept = int(known * keep)
        self._lock = threading.Lock()
        self._summaries: list[tuple[list[AgentMessage], Message]] = []
        self.count: int = 0
        """Number of summaries written."""

    def __call__(self, messages: Sequence[AgentMessage]) -> list[AgentMessage]:
        """Return the messages that fit. Raises the error of a failed summary."""
        compacted, replaced = self._apply_summaries(messages)
        if _tokens(compacted) <= self._limit:
            return compacted
        cut = self._cut(compacted)
        if cut == 0:
            return compacted  # one turn that is too long by itself: nothing here can help
        summary = self._summarize([message for message in compacted[:cut] if isinstance(message, Message)])
        with self._lock:
            self._summaries.insert(0, (list(messages[: cut + replaced]), summary))
            del self._summaries[_CONVERSATIONS:]
        return [summary, *compacted[cut:]]

    def _apply_summaries(self, messages: Sequence[AgentMessage]) -> tuple[list[AgentMessage], int]:
        """Replace summarized messages; return the result, and by how many messages it is shorter."""
        with self._lock:
            summaries = list(self._summaries)
        for summarized, summary in summaries:
            count = len(summarized)
            if messages[:count] == summarized:
                return [summary, *messages[count:]], count - 1
        return list(messages), 0

    def _cut(self, messages: Sequence[AgentMessage]) -> int:
        """Return where the old turns end: before a user message, or a response to tool results."""
        room = self._kept
        cut = 0
        for place in range(len(messages) - 1, 0, -1):
            room -= _tokens(messages[place : place + 1])
            if _is_turn_start(messages, place):
                if room < 0 and cut:
                    break
                cut = place
                if room < 0:
                    break
        return cut

    def _summarize(self, old: Sequence[Message]) -> Message:
        self.count += 1
        request = AgentRequest(messages=(*(_to_plain_text(message) for message in old), Message.user(_PROMPT)))
        response = self._caller.complete(request)
        summary = response.text
        if not summary:
            raise AgentError("The model returned an empty summary of the conversation.")
        return Message.user(_SUMMARY.format(summary=summary))


def _is_turn_start(messages: Sequence[AgentMessage], place: int) -> bool:
    """Whether a conversation may start here: not with a tool result, whose call would be missing."""
    message = messages[place]
    if not isinstance(message, Message):
        return False
    return message.role is Role.USER or (
        message.role is Role.ASSISTANT
        and isinstance(before := messages[place - 1], Message)
        and before.role is Role.TOOL
    )


def _to_plain_text(message: Message) -> Message:
    """Write calls and results as text, with long results cut."""
    if isinstance(message.content, str):
        return message
    lines: list[str] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            lines.append(f"[called {part.name} with {dict(part.arguments)}]")
        elif isinstance(part, ToolResult):
            lines.append(f"[{part.name or 'the tool'} returned: {part.text[:_MAX_RESULT_CHARACTERS]}]")
        elif part.text:
            lines.append(part.text)
        else:
            lines.append(f"[{part.type}]")
    role = Role.USER if message.role is Role.TOOL else message.role
    return Message(role, "\n".join(lines))


def _tokens(messages: Sequence[Any]) -> int:
    """Estimate the tokens of messages, each as if sent alone."""
    return sum(
        estimate_prompt(AgentRequest(messages=(message,))).tokens
        for message in messages
        if isinstance(message, Message)
    )
