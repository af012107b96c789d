"""`ToolRegistry`: an ordered collection of tools by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from typing_extensions import Unpack, override

from ..errors import ConfigurationError, printable
from ..types import ToolSpec
from ..types.config import Risk
from .base import Tool, ToolContext
from .functions import FunctionTool, ToolDecorator, ToolSettings, as_tool
from .functions import tool as make_tool

if TYPE_CHECKING:
    from ..types.options import AnyTool as ToolLike

P = ParamSpec("P")
Q = ParamSpec("Q")
D = TypeVar("D")
R = TypeVar("R")
T = TypeVar("T")
AnyTool = TypeVar("AnyTool", bound=Tool)


class ToolRegistry(Sequence[Any]):  # not Sequence[Tool]: `in` also takes names
    """Tools by name, usable wherever a sequence of tools is accepted.

    ```python
    from agent import ToolRegistry

    registry = ToolRegistry()

    @registry.tool(risk="read")
    def add(a: int, b: int) -> int:
        '''Add two numbers.'''
        return a + b

    assert registry["add"] is add
    assert registry.by_risk("read").names == ["add"]
    ```

    It is thread-safe: a reader sees the tools as they were when it started.
    """

    def __init__(self, *tools: ToolLike) -> None:
        self._tools: dict[str, Tool] = {}  # replaced on changes, never mutated
        self._lock = threading.Lock()
        for tool in tools:
            self.register(tool)

    # Changes

    @overload
    def register(  # type: ignore[overload-overlap]  # tools can be called, too; the first signature wins
        self, tool: AnyTool, /, *, replace: bool = False
    ) -> AnyTool: ...

    @overload
    def register(self, tool: Callable[P, R], /, *, replace: bool = False) -> FunctionTool[P, R, object]: ...

    @overload
    def register(self, tool: Any, /, *, replace: bool = False) -> Tool: ...  # Any: tools of every kind

    def register(self, tool: Any, /, *, replace: bool = False) -> Tool:
        """Add a tool, a function, or a description of a tool.

        Args:
            replace: Whether to replace a tool of the same name.

        Raises:
            ConfigurationError: The name is taken.
        """
        new = as_tool(tool)
        name = new.spec.name
        with self._lock:
            if name in self._tools and not replace:
                raise ConfigurationError(
                    f"The registry already has a tool {name!r}.", field="name", fix="Rename one, or pass replace=True."
                )
            self._tools = {**self._tools, name: new}
        return new

    @overload
    def tool(
        self, function: Callable[Concatenate[ToolContext[D], Q], R], /, **settings: Unpack[ToolSettings]
    ) -> FunctionTool[Concatenate[ToolContext[D], Q], R, D]: ...

    @overload
    def tool(self, function: Callable[P, R], /, **settings: Unpack[ToolSettings]) -> FunctionTool[P, R, object]: ...

    @overload
    def tool(self, /, **settings: Unpack[ToolSettings]) -> ToolDecorator: ...

    def tool(self, function: Any = None, /, **settings: Any) -> Any:
        """Decorator like `@tool` that also registers the tool."""
        if function is None:
            return lambda function: self.tool(function, **settings)
        return self.register(make_tool(function, **settings))

    def remove(self, name: str) -> Tool:
        """Remove and return a tool. Agents that already use it keep it."""
        with self._lock:
            removed = self[name]
            self._tools = {key: tool for key, tool in self._tools.items() if key != name}
        return removed

    # Selection

    def subset(self, *names: str) -> ToolRegistry:
        """Return a registry with these tools, in this order."""
        return ToolRegistry(*(self[name] for name in names))

    def by_risk(self, *risks: Risk) -> ToolRegistry:
        """Return a registry with the tools of these risks."""
        return ToolRegistry(*(tool for tool in self if tool.risk in risks))

    # Access

    @property
    def names(self) -> list[str]:
        return list(self._tools)

    def specs(self) -> list[ToolSpec]:
        """Return the descriptions of the tools, as requests carry them."""
        return [tool.spec for tool in self]

    @overload
    def get(self, name: str) -> Tool | None: ...

    @overload
    def get(self, name: str, default: T) -> Tool | T: ...

    def get(self, name: str, default: Any = None) -> Any:
        return self._tools.get(name, default)

    @overload
    def __getitem__(self, name: str | int) -> Tool: ...

    @overload
    def __getitem__(self, name: slice) -> Sequence[Tool]: ...

    @override
    def __getitem__(self, name: str | int | slice) -> Tool | Sequence[Tool]:
        if not isinstance(name, str):
            return list(self._tools.values())[name]
        tool = self._tools.get(name)
        if tool is None:
            raise ConfigurationError(
                f"Unknown tool: {name!r}.", field="tools", fix=f"Registered tools: {', '.join(self._tools) or 'none'}."
            )
        return tool

    @override
    def __contains__(self, tool: object) -> bool:
        """Whether the registry has this tool, or a tool of this name."""
        return tool in self._tools if isinstance(tool, str) else tool in self._tools.values()

    @override
    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    @override
    def __len__(self) -> int:
        return len(self._tools)

    @override
    @printable
    def __repr__(self) -> str:
        return f"ToolRegistry({', '.join(self._tools)})"

    @override
    def __reduce__(self) -> Any:
        return ToolRegistry, tuple(self)
