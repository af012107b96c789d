"""Who would be asked: the decision of a router, shown and not made."""

from __future__ import annotations

from time import monotonic

from typing_extensions import override

from ..context import Context
from ..types import AgentRequest, Candidate, Value
from ..types.router import candidates_table
from .questions import NO_CHANCE, Question
from .trip import Routes, Trip, considered


class Explanation(Value, frozen=True):
    """The targets as a router sees them for one request. Printed, it is a table."""

    candidates: tuple[Candidate, ...]
    """In the order they would be asked, those that are left out last."""
    needs: tuple[str, ...] = ()
    """Capabilities without which the request cannot be answered."""

    @property
    def order(self) -> list[str]:
        """Names of those that would be asked, best first."""
        return [one.target for one in self.candidates if one.place is not None]

    @property
    def left_out(self) -> dict[str, str]:
        """Names of those that would not, and why."""
        return {one.target: one.reason or "" for one in self.candidates if one.place is None}

    @override
    def __str__(self) -> str:
        needs = f"needs: {', '.join(self.needs)}\n\n" if self.needs else ""
        return needs + candidates_table(self.candidates)


def explained(routes: Routes, request: AgentRequest, *, streaming: bool) -> Explanation:
    now = monotonic()
    question = Question(request, streaming, now, NO_CHANCE)
    ranked, others = Trip(routes, request, Context(), question).order(now)
    return Explanation(candidates=considered(ranked, others, now), needs=tuple(sorted(question.needs)))
