"""Explanation of a routing decision, without sending anything."""

from __future__ import annotations

from time import monotonic

from typing_extensions import override

from ..context import Context
from ..types import AgentRequest, Candidate, Value
from ..types.router import candidates_table
from .request_profile import NO_RANDOM, RequestProfile
from .state import RouterSettings, RoutingState, list_candidates


class Explanation(Value, frozen=True):
    """Targets of a router, ranked or excluded for one request. Prints as a table."""

    candidates: tuple[Candidate, ...]
    """Targets in the order in which they would be asked, then the excluded ones."""
    needs: tuple[str, ...] = ()
    """Capabilities that the request requires."""

    @property
    def order(self) -> list[str]:
        """Names of the targets that would be asked, best first."""
        return [one.target for one in self.candidates if one.place is not None]

    @property
    def left_out(self) -> dict[str, str]:
        """Names of the excluded targets, with the reason."""
        return {one.target: one.reason or "" for one in self.candidates if one.place is None}

    @override
    def __str__(self) -> str:
        needs = f"needs: {', '.join(self.needs)}\n\n" if self.needs else ""
        return needs + candidates_table(self.candidates)


def explain_routing(settings: RouterSettings, request: AgentRequest, *, streaming: bool) -> Explanation:
    """Rank the targets for a request."""
    now = monotonic()
    profile = RequestProfile(request, streaming, now, NO_RANDOM)
    ranked, excluded = RoutingState(settings, request, Context(), profile).order(now)
    return Explanation(candidates=list_candidates(ranked, excluded, now), needs=tuple(sorted(profile.needs)))
