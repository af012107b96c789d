"""Tools by name, in order: what a program has, of which each agent gets some.

A registry is a sequence of tools, so it stands wherever tools are asked for. It runs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from typing_extensions import Unpack, override

from ..errors import ConfigurationError
from ..types import ToolSpec
from ..types.config import Risk
from .base import Tool, ToolContext
from .functions import FunctionTool, ToolDecorator, ToolSettings, as_tool
from .functions import tool as decorated

P = ParamSpec("P")
Q = ParamSpec("Q")
D = TypeVar("D")
R = TypeVar("R")
T = TypeVar("T")
AnyTool = TypeVar("AnyTool", bound=Tool)


class ToolRegistry(Sequence[Any]):  # of tools; but names are asked for with `in`, which a checker would doubt
    """Tools by name.

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

    It may be read while another thread changes it: who reads sees it as it was when they began.
    """

    def __init__(self, *tools: Any) -> None:
        self._tools: dict[str, Tool] = {}  # replaced by another one, and never changed
        self._changing = threading.Lock()
        for tool in tools:
            self.register(tool)

    # Changing

    @overload
    def register(self, tool: AnyTool, /, *, replace: bool = False) -> AnyTool: ...

    @overload
    def register(self, tool: Callable[P, R], /, *, replace: bool = False) -> FunctionTool[P, R, object]: ...

    @overload
    def register(self, tool: Any, /, *, replace: bool = False) -> Tool: ...

    def register(self, tool: Any, /, *, replace: bool = False) -> Tool:
        """Add a tool, a function, or a description of a tool.

        Args:
            replace: Whether it may take the place of another one of its name.

        Raises:
            ConfigurationError: The name is taken.
        """
        made = as_tool(tool)
        name = made.spec.name
        with self._changing:
            if name in self._tools and not replace:
                raise ConfigurationError(
                    f"There is a tool {name!r} already.", field="name", fix="Rename one, or pass replace=True."
                )
            self._tools = {**self._tools, name: made}
        return made

    @overload
    def tool(
        self, function: Callable[Concatenate[ToolContext[D], Q], R], /, **settings: Unpack[ToolSettings]
    ) -> FunctionTool[Concatenate[ToolContext[D], Q], R, D]: ...

    @overload
    def tool(self, function: Callable[P, R], /, **settings: Unpack[ToolSettings]) -> FunctionTool[P, R, object]: ...

    @overload
    def tool(self, /, **settings: Unpack[ToolSettings]) -> ToolDecorator: ...

    def tool(self, function: Any = None, /, **settings: Any) -> Any:
        """A decorator: as `@tool`, and the tool is added."""
        if function is None:
            return lambda function: self.tool(function, **settings)
        return self.register(decorated(function, **settings))

    def remove(self, name: str) -> Tool:
        """Take a tool out. Agents that were given it keep it."""
        with self._changing:
            removed = self[name]
            self._tools = {kept: tool for kept, tool in self._tools.items() if kept != name}
        return removed

    # Choosing

    def subset(self, *names: str) -> ToolRegistry:
        """Another registry with these tools, in this order."""
        return ToolRegistry(*(self[name] for name in names))

    def by_risk(self, *risks: Risk) -> ToolRegistry:
        """Another registry with the tools that can do these things, and no others."""
        return ToolRegistry(*(tool for tool in self if tool.risk in risks))

    # Reading

    @property
    def names(self) -> list[str]:
        return list(self._tools)

    def specs(self) -> list[ToolSpec]:
        """What the tools are called, do and take, as requests carry it."""
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
        found = self._tools.get(name)
        if found is None:
            raise ConfigurationError(
                f"There is no tool {name!r}.", field="tools", fix=f"There are: {', '.join(self._tools) or 'none'}."
            )
        return found

    @override
    def __contains__(self, tool: object) -> bool:
        """Whether there is a tool of that name, or that tool."""
        return tool in self._tools if isinstance(tool, str) else tool in self._tools.values()

    @override
    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    @override
    def __len__(self) -> int:
        return len(self._tools)

    @override
    def __repr__(self) -> str:
        return f"ToolRegistry({', '.join(self._tools)})"

    @override
    def __reduce__(self) -> Any:
        return ToolRegistry, tuple(self)
