"""Lazily computed costs.

Loading the price list takes longer than a call, and most programs never ask for a cost. `Priced` is the only place
where a value computes part of itself on first access.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from pydantic import ValidationError
from pydantic_core import InitErrorDetails
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


_UNKNOWN = Cost()


class Priced(Value, frozen=True):
    """Base of values with a cost. `_cost_fields` names the amount and, optionally, the source."""

    __slots__ = ("_cost",)
    _cost_fields: ClassVar[tuple[str, ...]] = ("cost",)

    if TYPE_CHECKING:

        @property
        def _cost(self) -> Cost: ...

    else:

        def __init__(self, /, **data):
            __tracebackhide__ = True
            given = [data.pop(name, None) for name in self._cost_fields]
            self.__pydantic_validator__.validate_python(data, self_instance=self)
            self._set_cost(_UNKNOWN if given.count(None) == len(given) else Cost(*_check_cost(self, given)))

        def __eq__(self, other):
            equal = super().__eq__(other)
            return self._cost == other._cost if equal is True else equal

        def __hash__(self):
            return super().__hash__()

        def __getstate__(self):
            return {**super().__getstate__(), "cost": self._cost}

        def __setstate__(self, state):
            self._set_cost(state.pop("cost"))
            super().__setstate__(state)

    def _set_cost(self, cost: Cost) -> None:
        object.__setattr__(self, "_cost", cost)

    def with_cost(self, cost: Cost) -> Self:
        """Return a copy with this cost."""
        copy = super().changed()
        copy._set_cost(cost)
        return copy

    @override
    def changed(self, **values: Any) -> Self:
        costs = {name: values.pop(name) for name in self._cost_fields if name in values}
        copy = super().changed(**values)
        copy._set_cost(self._cost if not costs else self._changed_cost(costs))
        return copy

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copy = super().model_copy(update=update, deep=deep)
        if update:
            costs = {name: update[name] for name in self._cost_fields if name in update}
            copy._set_cost(self._cost if not costs else self._changed_cost(costs))
        return copy

    def _changed_cost(self, changes: Mapping[str, Any]) -> Cost:
        return Cost(*({**dict(zip(self._cost_fields, self._cost.get(), strict=False)), **changes}.values()))


def _check_cost(value: Priced, given: list[Any]) -> list[Any]:
    names = value._cost_fields
    errors: list[InitErrorDetails] = [
        {"type": kind, "loc": (name,), "input": got}
        for name, kind, expected, got in zip(names, _ERRORS, _TYPES, given, strict=False)
        if got is not None and (not isinstance(got, expected) or isinstance(got, bool))
    ]
    if errors:
        raise ValidationError.from_exception_data(type(value).__name__, errors)
    return given


_TYPES: tuple[tuple[type, ...], ...] = ((int, float), (str,))
_ERRORS = ("float_type", "string_type")
