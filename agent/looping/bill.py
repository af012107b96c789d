"""What a run has cost so far. Prices are looked up when somebody asks: most runs have no budget, and nobody does."""

from __future__ import annotations

from ..costs import to_dollars, to_units
from ..types import AgentResponse


class Bill:
    """The answers that were paid for, and their sum."""

    __slots__ = ("_known", "_source", "_units", "_unpriced", "opened")

    def __init__(self) -> None:
        self.opened = False
        """Whether anything was charged, or could have been."""
        self._units = 0
        self._known = True
        self._source: str | None = None
        self._unpriced: list[AgentResponse] = []

    @classmethod
    def brought_forward(cls, cost: float, *, known: bool) -> Bill:
        """Of a run that goes on from another one."""
        bill = cls()
        bill.opened = True
        bill._units, bill._known = to_units(cost), known
        return bill

    def add(self, response: AgentResponse) -> None:
        self.opened = True
        self._unpriced.append(response)

    @property
    def cost(self) -> float:
        """As far as it is known."""
        self._add_up()
        return to_dollars(self._units)

    @property
    def known(self) -> bool:
        """Whether every answer has a price."""
        self._add_up()
        return self._known

    def total(self) -> tuple[float | None, str | None]:
        """The cost and who says so; of a sum with an unknown part nothing is known but that it is larger."""
        return (self.cost if self.known and self.opened else None), self._source

    def _add_up(self) -> None:
        while self._unpriced:
            response = self._unpriced.pop(0)
            self._source = response.cost_source
            if response.cost_estimate is not None:
                self._units += to_units(response.cost_estimate)
            elif response.usage is not None:
                self._known = False


def bill_of(response: AgentResponse) -> AgentResponse:
    """What an answer cost, without its content."""
    facts = ("usage", "cost_estimate", "cost_source", "route", "warnings")
    return AgentResponse.model_validate({name: getattr(response, name) for name in facts})
