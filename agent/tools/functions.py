"""Functions as tools: `@tool` makes one, and `as_tool` makes one of anything that describes a tool.

A decorated function is still a function: it is called as before, and a method is still taken from its instance. When
and how the calls of a model are run is decided elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial, update_wrapper
from importlib import import_module
from inspect import isclass, iscoroutinefunction, isfunction, unwrap
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypedDict, TypeVar, overload

from typing_extensions import Unpack, override

from ..errors import ConfigurationError
from ..types import AgentRequest, ToolSpec
from ..types._base import validate_with
from ..types.config import Risk
from .base import DepsT, Isolation, Tool, ToolContext, check_settings
from .signatures import BoundCall, Signature, read_signature

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
D = TypeVar("D")


class ToolSettings(TypedDict, total=False):
    """What may be said about a function that is a tool. `Tool` has what each of them means."""

    name: str
    """By default the function's own."""
    description: str
    """By default what its docstring says."""
    timeout: float | None
    retries: int
    risk: Risk
    idempotent: bool
    isolation: Isolation
    sequential: bool
    strict: bool | None


class ToolDecorator(Protocol):
    """What `@tool(...)` with settings returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[ToolContext[D], Q], R], /
    ) -> FunctionTool[Concatenate[ToolContext[D], Q], R, D]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> FunctionTool[P, R, object]: ...


@overload
def tool(function: partial[R], /, **settings: Unpack[ToolSettings]) -> FunctionTool[..., R, object]: ...


@overload
def tool(
    function: Callable[Concatenate[ToolContext[D], Q], R], /, **settings: Unpack[ToolSettings]
) -> FunctionTool[Concatenate[ToolContext[D], Q], R, D]: ...


@overload
def tool(function: Callable[P, R], /, **settings: Unpack[ToolSettings]) -> FunctionTool[P, R, object]: ...


@overload
def tool(**settings: Unpack[ToolSettings]) -> ToolDecorator: ...


def tool(function: Any = None, /, **settings: Any) -> Any:
    """Make a function a tool. What the model is told is what the function says: its name, docstring and annotations.

    ```python
    from agent import tool

    @tool(risk="read")
    def population(city: str, year: int = 2024) -> int:
        '''How many people live in a city.

        Args:
            city: Its name in English.
            year: Of the census.
        '''
        return 3_700_000

    assert population("Berlin") == 3_700_000
    print(population.parameters["required"])
    #> ['city']
    ```

    A parameter annotated with `ToolContext` is filled in by whoever runs the tool, and is not told to the model.
    """
    if function is None:
        return lambda function: tool(function, **settings)
    if isinstance(function, Tool):
        return replace(function, **settings) if settings else function
    return FunctionTool(function=function, **settings)


@dataclass(repr=False)
class FunctionTool(Tool[DepsT], Generic[P, R, DepsT]):
    """A function, and what a model is told about it. It can be called as the function can."""

    function: Callable[P, R] = field(kw_only=True)
    _signature: Signature = field(init=False, compare=False)
    _unbound: bool = field(init=False, compare=False)
    """Whether it is a method that has no instance yet."""

    def __post_init__(self) -> None:
        function = _function_in(self.function)
        self.function = function
        self._unbound = isinstance(function, classmethod) or _is_method(function)
        written = function.__func__ if isinstance(function, classmethod) else function
        self._signature = read_signature(written, method=self._unbound)
        self.name = self.name or self._signature.name
        self.description = self.description or self._signature.description
        self.parameters = self.parameters or self._signature.parameters
        check_settings(self)
        update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type[Any], /) -> Self: ...

    @overload
    def __get__(
        self: FunctionTool[Concatenate[Any, Q], R, DepsT], instance: object, owner: type[Any] | None = None, /
    ) -> FunctionTool[Q, R, DepsT]: ...

    def __get__(self, instance: Any, owner: Any = None, /) -> Any:
        function: Any = self.function
        if not self._unbound or (instance is None and not isinstance(function, classmethod)):
            return self
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__, function=function.__get__(instance, owner), _unbound=False)
        bound.__dict__.pop("_spec", None)
        bound.__dict__["__wrapped__"] = bound.function
        return bound

    @property
    @override
    def spec(self) -> ToolSpec:
        if self._unbound:
            raise ConfigurationError(
                f"{self.name!r} is a method, and nobody says of what.",
                field="tools",
                fix=f"Take it from an instance: thing.{self.name}.",
            )
        return super().spec

    @property
    @override
    def is_async(self) -> bool:
        return _is_async(self.function)

    @override
    def check(self, arguments: Mapping[str, Any]) -> BoundCall:
        return self._signature.bind(arguments)

    @override
    def run(self, arguments: BoundCall, context: ToolContext[DepsT]) -> Any:
        _ = self.spec  # a method without its instance cannot be called
        return arguments.call(self.function, context)

    def reference(self) -> str | None:
        """Where another process finds it, as `module:name`; None if it is not to be found by name."""
        place = _place_of(self.function)
        found = None if place is None else _at(place)
        same = isinstance(found, FunctionTool) and not found._unbound and found.function == self.function
        return place if same else None

    @override
    def __reduce__(self) -> Any:
        place, function = _place_of(self.function), self.function
        found = None if place is None else _at(place)
        if found is self:
            return _imported, (place,)
        if found == function or (isinstance(found, FunctionTool) and found.function == function):
            settings = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
            return _made_again, (place, {name: value for name, value in settings.items() if name != "function"})
        instance, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if instance is not None and getattr(instance, name, None) == self:
            return getattr, (instance, name)
        raise TypeError(
            f"The tool {self.name!r} cannot be pickled, since it cannot be imported by name: "
            "define it with @tool at the top level of a module."
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self  # as functions are, and so that those without a name can be part of what is copied

    @override
    def __hash__(self) -> int:
        return hash(self.name)

    @override
    def __repr__(self) -> str:
        return f"FunctionTool({self.name!r})"


@dataclass
class DescribedTool(Tool):
    """A tool of which only a description was given, perhaps with a function. Its schema decides what fits."""

    given: ToolSpec = field(kw_only=True)

    def __post_init__(self) -> None:
        given = self.given
        self.name, self.description = self.name or given.name, self.description or given.description
        self.parameters = self.parameters or given.parameters
        self.strict = given.strict if self.strict is None else self.strict

    @property
    @override
    def spec(self) -> ToolSpec:
        made: ToolSpec | None = self.__dict__.get("_spec")
        if made is None:  # not made anew: what was given may say more than our fields do
            own = {name: getattr(self, name) for name in ("name", "description", "parameters", "strict", "is_async")}
            made = validate_with(lambda: self.given.model_copy(update={**own, "function": self}))
            self.__dict__["_spec"] = made
        return made

    @property
    @override
    def is_async(self) -> bool:
        return self.given.is_async or _is_async(self.given.function)

    @property
    @override
    def can_run(self) -> bool:
        return self.given.function is not None

    @override
    def run(self, arguments: Mapping[str, Any], context: ToolContext[Any]) -> Any:
        if self.given.function is None:
            return super().run(arguments, context)
        return self.given.function(**arguments)


def as_tool(value: Any) -> Tool:
    """The tool that is meant: a tool as it is, a function decorated, a description with the function that it names.

    Raises:
        ConfigurationError: It is none of these.
    """
    if isinstance(value, MethodType) and isinstance(value.__func__, FunctionTool):  # a class method, as of Python 3.13
        value = value.__func__.__get__(value.__self__)
    if isinstance(value, Tool):
        return value
    if isinstance(value, ToolSpec):
        if isinstance(value.function, Tool):
            return value.function
        if value.function is None or callable(value.function):
            return DescribedTool(given=value)
    elif isinstance(value, Mapping):
        read = validate_with(lambda: AgentRequest(tools=[value])).tools[0]
        if isinstance(read, ToolSpec):
            return DescribedTool(given=read)
        raise ConfigurationError(
            f"A tool of type {value.get('type')!r} runs at the vendor, not here.",
            field="tools",
            fix="Offer it in the request, as it is.",
        )
    elif isinstance(getattr(value, "spec", None), ToolSpec):
        return as_tool(value.spec)
    elif callable(value):
        return tool(value)
    raise ConfigurationError(
        f"A tool cannot be made of {type(value).__name__}.",
        field="tools",
        fix="Pass a function, a Tool, a ToolSpec, or a dict that describes one.",
    )


def _function_in(given: Any) -> Any:
    if isclass(given):
        raise ConfigurationError(
            f"{given.__name__} is a class, not a function.",
            field="function",
            fix=f"Make one: {given.__name__}()." if issubclass(given, Tool) else "Write a function that uses it.",
        )
    if not callable(given) and not isinstance(given, classmethod):
        raise ConfigurationError(
            f"A tool cannot be made of {type(given).__name__}.", field="function", fix="Pass a function."
        )
    return given.__func__ if isinstance(given, staticmethod) else given


def _is_method(function: Any) -> bool:
    """Whether it was written in a class, for instances of it."""
    if not isfunction(function):
        return False
    around, code = function.__qualname__.rpartition(".")[0], unwrap(function).__code__
    first = code.co_varnames[0] if code.co_argcount else ""
    return bool(around) and not around.endswith("<locals>") and first in ("self", "cls")


def _is_async(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, Tool):
        return function.is_async
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(type(function), "__call__", None))  # noqa: B004


# Finding tools by name


def _place_of(function: Any) -> str | None:
    """Where a function says that it is."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return None if module is None or name is None or "<" in name else f"{module}:{name}"


def _at(place: str) -> Any:
    """What is there now, in this process; None if there is nothing."""
    module, _, names = place.partition(":")
    found: Any = sys.modules.get(module)
    for name in names.split("."):
        found = getattr(found, name, None)
    return found


def _imported(place: str) -> Any:
    import_module(place.partition(":")[0])
    return _at(place)


def _made_again(place: str, settings: Mapping[str, Any]) -> Any:
    found = _imported(place)
    return FunctionTool(function=found.function if isinstance(found, FunctionTool) else found, **settings)
