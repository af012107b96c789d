"""Function tools: the `@tool` decorator, and `as_tool`, which converts anything that describes a tool.

A decorated function can still be called, and a method can still be bound.
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

from ..errors import ConfigurationError, printable
from ..types import AgentRequest, ToolSpec
from ..types._base import validate_with
from ..types.config import Risk
from ..types.option_errors import check_options
from .base import DepsT, Isolation, Tool, ToolContext, validate_settings
from .signatures import BoundCall, Signature, read_signature

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
D = TypeVar("D")


class ToolSettings(TypedDict, total=False):
    """Settings of a function tool; see `Tool`."""

    name: str
    """Defaults to the name of the function."""
    description: str
    """Defaults to the description in the docstring."""
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
    """Convert a function to a tool. Name, description and schema come from the function.

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

    A parameter annotated with `ToolContext` is filled in at each call, and is not part of the schema.
    """
    check_options(settings, ToolSettings.__annotations__, "A tool")
    if function is None:
        return lambda function: tool(function, **settings)
    if isinstance(function, Tool):
        return replace(function, **settings) if settings else function
    return FunctionTool(function=function, **settings)


@dataclass(repr=False)
class FunctionTool(Tool[DepsT], Generic[P, R, DepsT]):
    """A function as a tool. It can be called like the function."""

    function: Callable[P, R] = field(kw_only=True)
    _signature: Signature = field(init=False, compare=False)
    _unbound: bool = field(init=False, compare=False)
    """Whether it is a method without an instance."""

    def __post_init__(self) -> None:
        function = _unwrap_function(self.function)
        self.function = function
        self._unbound = isinstance(function, classmethod) or _is_method(function)
        written = function.__func__ if isinstance(function, classmethod) else function
        self._signature = read_signature(written, method=self._unbound)
        self.name: str = self.name or self._signature.name
        self.description: str = self.description or self._signature.description
        self.parameters: dict[str, Any] = self.parameters or self._signature.parameters
        validate_settings(self)
        update_wrapper(self, function, updated=())

    @override
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]  # like the function
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
                f"{self.name!r} is an unbound method.",
                field="tools",
                fix=f"Use it on an instance: instance.{self.name}.",
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
    def run(self, arguments: BoundCall, context: ToolContext[DepsT]) -> Any:  # Any: a value or an awaitable
        _ = self.spec  # a method without its instance cannot be called
        return arguments.call(self.function, context)

    def reference(self) -> str | None:
        """Return the import path `module:name`, or None if it cannot be imported."""
        path = _import_path(self.function)
        found = None if path is None else _resolve_path(path)
        same = isinstance(found, FunctionTool) and not found._unbound and found.function == self.function
        return path if same else None

    @override
    def __reduce__(self) -> Any:
        path, function = _import_path(self.function), self.function
        found = None if path is None else _resolve_path(path)
        if found is self:
            return _import_tool, (path,)
        if found == function or (isinstance(found, FunctionTool) and found.function == function):
            settings = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
            return _rebuild_tool, (path, {name: value for name, value in settings.items() if name != "function"})
        instance, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if instance is not None and getattr(instance, name, None) == self:
            return getattr, (instance, name)
        raise TypeError(
            f"The tool {self.name!r} cannot be pickled because it cannot be imported: "
            "define it with @tool at the top level of a module."
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self  # like functions, so that tools without an import path can be part of copied objects

    @override
    def __hash__(self) -> int:
        return hash(self.name)

    @override
    @printable
    def __repr__(self) -> str:
        return f"FunctionTool({self.name!r})"


@dataclass
class DescribedTool(Tool):
    """A tool from a ToolSpec, validated against its JSON schema."""

    original: ToolSpec = field(kw_only=True)
    takes_input: bool = field(default=False, kw_only=True)
    """Whether the function takes the arguments as one mapping, as objects that describe themselves do."""

    def __post_init__(self) -> None:
        original = self.original
        self.name: str = self.name or original.name
        self.description: str = self.description or original.description
        self.parameters: dict[str, Any] = self.parameters or original.parameters
        self.strict: bool | None = original.strict if self.strict is None else self.strict

    @property
    @override
    def spec(self) -> ToolSpec:
        spec: ToolSpec | None = self.__dict__.get("_spec")
        if spec is None:  # a copy of the original, which may have fields that Tool has not
            own = {name: getattr(self, name) for name in ("name", "description", "parameters", "strict", "is_async")}
            spec = validate_with(lambda: self.original.model_copy(update={**own, "function": self}))
            self.__dict__["_spec"] = spec
        return spec

    @property
    @override
    def is_async(self) -> bool:
        return self.original.is_async or _is_async(self.original.function)

    @property
    @override
    def can_run(self) -> bool:
        return self.original.function is not None

    @override
    def run(self, arguments: Mapping[str, Any], context: ToolContext[Any]) -> Any:
        if self.original.function is None:
            return super().run(arguments, context)
        return self.original.function(arguments) if self.takes_input else self.original.function(**arguments)

    @property
    @override
    def truncation(self) -> Any:
        return getattr(type(self.original.function), "_truncation_config", None)


def as_tool(value: Any) -> Tool:  # Any: tools of every kind
    """Return a tool for a tool, a function, or a description of a tool.

    Raises:
        ConfigurationError: The value is none of these.
    """
    if isinstance(value, MethodType) and isinstance(
        value.__func__, FunctionTool
    ):  # a bound class method, as of Python 3.13
        value = value.__func__.__get__(value.__self__)
    if isinstance(value, Tool):
        return value
    if isinstance(value, ToolSpec):
        if isinstance(value.function, Tool):
            return value.function
        if value.function is None or callable(value.function):
            return DescribedTool(original=value, takes_input=_describes_itself(value.function))
    elif isinstance(value, Mapping):
        offered = validate_with(lambda: AgentRequest(tools=[value])).tools[0]
        if isinstance(offered, ToolSpec):
            return DescribedTool(original=offered)
        raise ConfigurationError(
            f"A tool of type {value.get('type')!r} is executed by the vendor.",
            field="tools",
            fix="Pass it in the request's tools instead.",
        )
    elif isinstance(getattr(value, "spec", None), ToolSpec):
        return as_tool(value.spec)
    elif callable(value):
        return _read_object(value) if _describes_itself(value) else tool(value)
    raise ConfigurationError(
        f"{type(value).__name__} is not a tool.",
        field="tools",
        fix="Pass a function, a Tool, a ToolSpec, or a dict that describes one.",
    )


def _describes_itself(value: Any) -> bool:
    """Whether it is a callable object with a name and a schema, which is called with its input."""
    schema = getattr(value, "input_schema", None) or getattr(value, "parameters", None)
    return isinstance(schema, Mapping) and isinstance(getattr(value, "name", None), str) and not isclass(value)


def _read_object(value: Any) -> Tool:
    schema = getattr(value, "input_schema", None) or value.parameters
    description = getattr(value, "description", "")
    spec = validate_with(lambda: ToolSpec(name=value.name, description=description, parameters=schema, function=value))
    return DescribedTool(original=spec, takes_input=True)


def _unwrap_function(value: Any) -> Any:
    if isclass(value):
        raise ConfigurationError(
            f"{value.__name__} is a class, not a function.",
            field="function",
            fix=f"Create an instance: {value.__name__}()."
            if issubclass(value, Tool)
            else "Write a function that uses it.",
        )
    if not callable(value) and not isinstance(value, classmethod):
        raise ConfigurationError(f"{type(value).__name__} is not a function.", field="function", fix="Pass a function.")
    return value.__func__ if isinstance(value, staticmethod) else value


def _is_method(function: Any) -> bool:
    """Whether it is defined in a class and takes self or cls."""
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


# Import paths


def _import_path(function: Any) -> str | None:
    """Return `module:name` as the function states it, or None."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return None if module is None or name is None or "<" in name else f"{module}:{name}"


def _resolve_path(path: str) -> Any:
    """Return the object at an import path in this process, or None."""
    module, _, names = path.partition(":")
    found: Any = sys.modules.get(module)
    for name in names.split("."):
        found = getattr(found, name, None)
    return found


def _import_tool(path: str) -> Any:
    import_module(path.partition(":")[0])
    return _resolve_path(path)


def _rebuild_tool(path: str, settings: Mapping[str, Any]) -> Any:
    found = _import_tool(path)
    return FunctionTool(function=found.function if isinstance(found, FunctionTool) else found, **settings)
