"""Lazily computed costs.

Loading the price list takes longer than a call, and most programs never ask for a cost. `Priced` is the only place
where a value computes part of itself on first access.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from pydantic import BaseModel, PrivateAttr, model_validator
from typing_extensions import override

from ._base import Value

ComputeCost: TypeAlias = Callable[[], tuple[float | None, str | None]]
"""Returns a cost in US dollars and its source."""


class Cost:
    """A cost in US dollars and its source, computed on first access."""

    __slots__ = ("_compute", "_value")

    def __init__(self, amount: float | None = None, source: str | None = None) -> None:
        self._compute: ComputeCost | None = None
        self._value = amount, source

    @classmethod
    def lazy(cls, compute: ComputeCost) -> Self:
        cost = cls()
        cost._compute = compute
        return cost

    def get(self) -> tuple[float | None, str | None]:
        """Return the amount and its source."""
        compute = self._compute
        if compute is not None:
            self._value = compute()
            self._compute = None  # after the value is set: another thread may be reading
        return self._value

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cost) and self.get() == other.get()

    __hash__ = None  # type: ignore[assignment]

    @override
    def __reduce__(self) -> Any:
        return Cost, self.get()


class Priced(Value, frozen=True):
    """Base of values with a cost. `_cost_fields` names the amount and, optionally, the source."""

    _cost_fields: ClassVar[tuple[str, ...]] = ("cost",)
    _cost: Cost = PrivateAttr(default_factory=Cost)
    if not TYPE_CHECKING:

        @model_validator(mode="wrap")
        @classmethod
        def _read_cost(cls, data, handler):
            if type(data) is not dict or data.keys().isdisjoint(cls._cost_fields):
                return handler(data)
            rest = {name: value for name, value in data.items() if name not in cls._cost_fields}
            priced = handler(rest)
            priced._set_cost(Cost(*(_read_cost_field(name, data.get(name)) for name in cls._cost_fields)))
            return priced

    def with_cost(self, cost: Cost) -> Self:
        """Return a copy with this cost."""
        copy = BaseModel.__copy__(self)
        self._copy_slots(copy, {})
        copy._set_cost(cost)
        return copy

    def _set_cost(self, cost: Cost) -> None:
        setattr(self, "_cost", cost)  # noqa: B010  # a private attribute may be set although the model is frozen

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copy = super().model_copy(update=update, deep=deep)
        if not update:
            return copy
        if update.keys().isdisjoint(self._cost_fields):
            copy._set_cost(self._cost)
        else:
            costs = dict(zip(self._cost_fields, self._cost.get(), strict=False))
            changed = {name: update.get(name, value) for name, value in costs.items()}
            copy._set_cost(Cost(*changed.values()))
        return copy


def _read_cost_field(name: str, value: Any) -> Any:
    expected: tuple[type, ...] = (str,) if name.endswith("source") else (int, float)
    if value is not None and (not isinstance(value, expected) or isinstance(value, bool)):
        raise ValueError(f"{name} must be {'text' if str in expected else 'a number'} or None")
    return value
