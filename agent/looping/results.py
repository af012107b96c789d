"""The result of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..types import AgentResponse, Message
from ..types._base import Many
from .paused import PausedRun


class RunResult(AgentResponse, frozen=True):
    """The last answer of a run, with the usage, cost and route of all of it, and the messages it added."""

    __slots__ = ("_responses",)
    _carried: ClassVar[tuple[str, ...]] = ("_raw", "_dag", "_responses")

    run_id: str = ""
    turns: int = 0
    """How often the model was asked."""
    messages: Many[Message] = ()
    """What the run added to the conversation: what was asked, what the model said, what the tools returned."""
    paused: PausedRun | None = None
    """If it is there, the run is not over: calls wait for a person."""

    __hash__ = AgentResponse.__hash__

    @property
    def responses(self) -> Sequence[AgentResponse]:
        """Each answer of the model in this run, with its own usage and cost: outside equality, dumps and pickles."""
        kept: Sequence[AgentResponse] = getattr(self, "_responses", ())
        return kept
