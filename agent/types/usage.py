"""Token usage and costs.

`Usage` stores inclusive counts: `prompt_tokens` contains cached tokens. Exclusive counts are properties. Vendors use
the same field names for different sums, so codecs convert them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails
from typing_extensions import override

from ._base import EMPTY_OBJECT, FrozenDict, JsonObject, Value, Vocabulary

_PROMPT = ("prompt_tokens",)
_UNCACHED = ("input_tokens", "input")
_OUTPUT = ("completion_tokens", "output_tokens", "output")
_CACHE_READ = ("cache_read_tokens", "cache_read_input_tokens", "cache_read", "cacheRead")
_CACHE_WRITE = ("cache_write_tokens", "cache_creation_input_tokens", "cache_write", "cacheWrite")
_OWN_NAMES = frozenset(
    (
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "cache_read_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "estimated",
        "details",
        "billed",
    )
)

_INPUT_DETAILS = {
    "cached_tokens": "cache_read_tokens",
    "cache_write_tokens": "cache_write_tokens",
    "audio_tokens": "input_audio_tokens",
    "image_tokens": "input_image_tokens",
}
_OUTPUT_DETAILS = {
    "reasoning_tokens": "reasoning_tokens",
    "audio_tokens": "output_audio_tokens",
    "image_tokens": "output_image_tokens",
}
_NESTED = {
    "prompt_tokens_details": _INPUT_DETAILS,
    "input_tokens_details": _INPUT_DETAILS,
    "completion_tokens_details": _OUTPUT_DETAILS,
    "output_tokens_details": _OUTPUT_DETAILS,
    "cache_creation": {
        "ephemeral_5m_input_tokens": "cache_write_5m_tokens",
        "ephemeral_1h_input_tokens": "cache_write_1h_tokens",
    },
    "server_tool_use": {"web_search_requests": "web_searches"},
}
"""Names of nested counts, by the object that holds them. Counts without a field become details."""
_EXCLUSIVE = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")

Count = Annotated[int, Field(ge=0)]


def _check_cache_count(value: int, info: ValidationInfo) -> int:
    """Check that cached tokens do not exceed the prompt; runs only if a cache count is given."""
    cached = value + (info.data.get("cache_read_tokens", 0) if info.field_name == "cache_write_tokens" else 0)
    prompt = info.data.get("prompt_tokens")
    if prompt is not None and cached > prompt:
        raise ValueError(f"cache counts ({cached}) exceed prompt_tokens ({prompt}), which includes them")
    return value


CacheCount = Annotated[int, Field(ge=0), AfterValidator(_check_cache_count)]


def _sum_tokens(data: dict[str, Any]) -> int:
    return int(data.get("prompt_tokens", 0) + data.get("completion_tokens", 0))


class Usage(Value, frozen=True):
    """Token usage. `prompt_tokens` = uncached tokens + cache reads + cache writes."""

    _positional = _EXCLUSIVE
    _spellings = (*_UNCACHED, *_OUTPUT, *_CACHE_READ, *_CACHE_WRITE)
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cache_read_tokens: CacheCount = 0
    cache_write_tokens: CacheCount = 0
    reasoning_tokens: Count = 0
    """Reasoning tokens, included in `completion_tokens`."""
    total_tokens: Count = Field(default_factory=_sum_tokens)
    details: JsonObject = EMPTY_OBJECT
    """Other billed counts by name: `cache_write_1h_tokens`, `input_audio_tokens`, `web_searches`."""
    billed: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Cost in US dollars, if the vendor reports it."""
    estimated: bool = False
    """Whether the counts are estimates, because the vendor reported none."""

    if TYPE_CHECKING:
        # Alternative spellings, accepted by the constructor and available as properties.
        input_tokens: int
        output_tokens: int
        cache_creation_input_tokens: int
        cache_read_input_tokens: int
        input: int
        output: int
        cache_read: int
        cache_write: int

        def __init__(
            self,
            input_tokens: int = ...,
            output_tokens: int = ...,
            cache_creation_input_tokens: int = ...,
            cache_read_input_tokens: int = ...,
            *,
            prompt_tokens: int = ...,
            completion_tokens: int = ...,
            cache_read_tokens: int = ...,
            cache_write_tokens: int = ...,
            reasoning_tokens: int = ...,
            total_tokens: int = ...,
            details: Mapping[str, Any] = ...,
            billed: float | None = ...,
            estimated: bool = ...,
            input: int = ...,
            output: int = ...,
            cache_read: int = ...,
            cache_write: int = ...,
        ) -> None: ...

    else:

        @model_validator(mode="before")
        @classmethod
        def _read(cls, data):
            if type(data) is not dict or (data.keys() <= _OWN_NAMES and None not in data.values()):
                return data
            return _translate(data)

        @property
        def input_tokens(self):
            """Uncached prompt tokens."""
            return self.prompt_tokens - self.cache_read_tokens - self.cache_write_tokens

        @property
        def output_tokens(self):
            return self.completion_tokens

        @property
        def cache_read_input_tokens(self):
            return self.cache_read_tokens

        @property
        def cache_creation_input_tokens(self):
            return self.cache_write_tokens

        input = input_tokens
        output = output_tokens
        cache_read = cache_read_input_tokens
        cache_write = cache_creation_input_tokens

    @classmethod
    def from_counts(
        cls,
        prompt: int | None,
        completion: int | None,
        *,
        cache_read: int | None = 0,
        cache_write: int | None = 0,
        reasoning: int | None = 0,
        total: int | None = None,
        details: Mapping[str, Any] | None = None,
        billed: Any = None,  # Any: counts as vendors write them
    ) -> Self:
        """Create usage from a vendor's counts, which may be missing or contradictory; never raises.

        `prompt` includes the cache counts, which are capped to it. Reasoning tokens are added to the completion if the
        numbers show that the vendor counts them separately.
        """
        prompt = max(prompt or 0, 0)
        completion = max(completion or 0, 0)
        reasoning = max(reasoning or 0, 0)
        total = max(total or 0, 0)
        if reasoning and (reasoning > completion or total == prompt + completion + reasoning):
            completion += reasoning
        more: dict[str, Any] = {}
        read = min(max(cache_read or 0, 0), prompt)
        if read or cache_write:
            more["cache_read_tokens"] = read
            more["cache_write_tokens"] = min(max(cache_write or 0, 0), prompt - read)
        if details:
            more["details"] = FrozenDict(
                [(name, count) for name, count in details.items() if count and _is_count(count)]
            )
        if billed is not None and _is_count(billed):
            more["billed"] = float(billed)
        return cls(
            prompt_tokens=prompt,
            completion_tokens=completion,
            reasoning_tokens=reasoning,
            total_tokens=max(total, prompt + completion),
            **more,
        )

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a validated copy; a total that was a sum is computed again."""
        if update and self.total_tokens == self.prompt_tokens + self.completion_tokens:
            update = {"total_tokens": None, **update}
        return super().model_copy(update=update, deep=deep)

    @override
    def to_dict(self, *, vocabulary: Vocabulary | None = None) -> dict[str, Any]:
        """Return exclusive counts. `from_dict` restores an equal value."""
        if vocabulary is not None:
            return super().to_dict(vocabulary=vocabulary)
        counts: dict[str, Any] = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.completion_tokens,
            "cache_creation_input_tokens": self.cache_write_tokens,
            "cache_read_input_tokens": self.cache_read_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "total_tokens": self.total_tokens,
        }
        if self.details:
            counts["details"] = dict(self.details)
        if self.billed is not None:
            counts["billed"] = self.billed
        if self.estimated:
            counts["estimated"] = True
        return counts

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return self.copy_with(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            details=_merge_counts(self.details, other.details),
            estimated=self.estimated or other.estimated,
            billed=_sum_billed(self, other),
        )


TokenUsage = Usage


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _sum_billed(one: Usage, other: Usage) -> float | None:
    return one.billed if other.billed is None else (one.billed or 0) + other.billed


def _merge_counts(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    if not other or not one:
        return one or other
    return FrozenDict([(name, one.get(name, 0) + other.get(name, 0)) for name in {**one, **other}])


def _translate(data: Mapping[str, Any]) -> dict[str, Any]:
    """Convert alternative spellings to the field names of `Usage`."""
    if not _NESTED.keys().isdisjoint(data):
        data = _flatten(data)
    read = _first(data, _CACHE_READ)
    written = _first(data, _CACHE_WRITE)
    uncached = _first(data, _UNCACHED)
    prompt = _first(data, _PROMPT)
    sum_of_inputs = (uncached or 0) + (read or 0) + (written or 0)
    if prompt is not None and uncached is not None and prompt != sum_of_inputs:
        raise ValueError(
            f"prompt_tokens ({prompt}) does not match input_tokens plus cache counts ({sum_of_inputs}); pass only one"
        )
    counts: dict[str, Any] = {
        "prompt_tokens": sum_of_inputs if prompt is None else prompt,
        "completion_tokens": _first(data, _OUTPUT),
        "cache_read_tokens": read,
        "cache_write_tokens": written,
        "reasoning_tokens": data.get("reasoning_tokens"),
        "total_tokens": data.get("total_tokens"),
        "estimated": data.get("estimated"),
        "details": data.get("details"),
        "billed": data.get("billed"),
    }
    return {name: value for name, value in counts.items() if value is not None}


def _flatten(data: Mapping[str, Any]) -> dict[str, Any]:
    """Move nested counts to the top. Beside `input_tokens_details`, `input_tokens` includes cached tokens."""
    flat = {name: value for name, value in data.items() if name not in _NESTED}
    if isinstance(data.get("input_tokens_details"), Mapping) and "prompt_tokens" not in flat:
        flat["prompt_tokens"] = flat.pop("input_tokens", None)
    details: dict[str, Any] = {}
    for group, names in _NESTED.items():
        nested = data.get(group)
        for key, count in nested.items() if isinstance(nested, Mapping) else ():
            name = names.get(str(key), str(key))
            if name in _OWN_NAMES:
                flat.setdefault(name, count)
            elif count:
                details[name] = count
    if details:
        flat["details"] = {**details, **(data.get("details") or {})}
    return flat


def _first(data: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = data.get(name)
        if value is not None:
            return _to_int(name, value)
    return None


def _to_int(name: str, value: Any) -> int:
    try:
        number = value if isinstance(value, int) else int(value)
        if number >= 0 and (isinstance(value, int | str) or number == value):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{name} must be a non-negative integer")


ComputeCost: TypeAlias = Callable[[], tuple[float | None, str | None]]
"""Computes a cost in US dollars and its source."""


class LazyCost:
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
            self._compute = None  # after setting the value, for other threads
        return self._value

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyCost) and self.get() == other.get()

    if not TYPE_CHECKING:
        __hash__ = None

    @override
    def __reduce__(self) -> Any:
        return LazyCost, self.get()


_UNKNOWN = LazyCost()


class Priced(Value, frozen=True):
    """Base class of values with a cost. `_cost_fields` names the amount and, optionally, the source."""

    __slots__ = ("_cost",)
    _cost_fields: ClassVar[tuple[str, ...]] = ("cost",)

    if TYPE_CHECKING:

        @property
        def _cost(self) -> LazyCost: ...

    else:

        def __init__(self, /, **data):
            __tracebackhide__ = True
            known = not data.keys().isdisjoint(self._cost_fields)
            costs = [data.pop(name, None) for name in self._cost_fields] if known else []
            self.__pydantic_validator__.validate_python(data, self_instance=self)
            self._set_cost(_UNKNOWN if costs.count(None) == len(costs) else LazyCost(*_check_cost(self, costs)))

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

    def _set_cost(self, cost: LazyCost) -> None:
        object.__setattr__(self, "_cost", cost)

    def with_cost(self, cost: LazyCost) -> Self:
        """Return a copy with this cost."""
        copy = super().copy_with()
        copy._set_cost(cost)
        return copy

    @override
    def copy_with(self, **values: Any) -> Self:
        costs = {name: values.pop(name) for name in self._cost_fields if name in values}
        copy = super().copy_with(**values)
        copy._set_cost(self._cost if not costs else self._merge_cost(costs))
        return copy

    @override
    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copy = super().model_copy(update=update, deep=deep)
        if update:
            costs = {name: update[name] for name in self._cost_fields if name in update}
            copy._set_cost(self._cost if not costs else self._merge_cost(costs))
        return copy

    def _merge_cost(self, changes: Mapping[str, Any]) -> LazyCost:
        return LazyCost(*({**dict(zip(self._cost_fields, self._cost.get(), strict=False)), **changes}.values()))


def _check_cost(value: Priced, costs: list[Any]) -> list[Any]:
    names = value._cost_fields
    errors: list[InitErrorDetails] = [
        {"type": kind, "loc": (name,), "input": cost}
        for name, kind, expected, cost in zip(names, _ERRORS, _TYPES, costs, strict=False)
        if cost is not None and (not isinstance(cost, expected) or isinstance(cost, bool))
    ]
    if errors:
        raise ValidationError.from_exception_data(type(value).__name__, errors)
    return costs


_TYPES: tuple[tuple[type, ...], ...] = ((int, float), (str,))
_ERRORS = ("float_type", "string_type")
