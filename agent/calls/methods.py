"""RunMethods: the typed methods for runs that agents, routers and sessions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from ..types.options import RunOptions, document_like, document_options

if TYPE_CHECKING:
    from pydantic import JsonValue
    from typing_extensions import Unpack

    from ..loop.results import PausedRun, RunResult
    from ..loop.streams import AsyncRunStream, RunStream
    from ..types import AgentRequest
    from ..types.options import DepsT, JsonSchema, OutputT, OutputType, ToolRunOptions
    from .requests import HasRequest, RequestLike


class RunMethods:
    """Runs with tools. Subclasses implement them without overloads."""

    @overload
    def run(
        self, request: AgentRequest | HasRequest | PausedRun, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[Any]: ...  # Any: the request may have a schema

    @overload
    def run(
        self, request: RequestLike = (), *, schema: None = None, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[None]: ...

    @overload
    def run(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[OutputT]: ...

    @overload
    def run(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[JsonValue]: ...

    @document_options(RunOptions)
    def run(self, request: RequestLike | PausedRun = (), **options: Any) -> RunResult[Any]:
        """Run the agent loop: call the model, run the tools that it calls, and repeat until it answers.

        ```python
        from agent import tool
        from agent.testing import scripted_agent
        from agent.types import ToolCall

        @tool
        def add(a: int, b: int) -> int:
            return a + b

        agent = scripted_agent(ToolCall(id="call_1", name="add", arguments={"a": 2, "b": 3}), "It is 5.")
        result = agent.run("What is 2 + 3?", tools=[add])
        assert result.text == "It is 5." and result.turns == 2
        ```

        Args:
            request: As for `complete`, or a paused run.
            schema: Schema of the output, as for `complete`.
            tools: Tools of this run, in addition to the agent's.
            deps: Dependencies that tools receive as `ToolContext.deps`.

        Raises:
            ConfigurationError: The request is invalid, or an option is unknown. Nothing was sent.
            BudgetExceededError: A limit of the run was reached.
            AgentError: The run failed; see `agent.errors`. Its `result` has the work so far.
        """
        return self._run(request, options)

    @overload
    async def arun(
        self, request: AgentRequest | HasRequest | PausedRun, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[Any]: ...  # Any: the request may have a schema

    @overload
    async def arun(
        self, request: RequestLike = (), *, schema: None = None, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[None]: ...

    @overload
    async def arun(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[OutputT]: ...

    @overload
    async def arun(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunResult[JsonValue]: ...

    @document_like(run)
    async def arun(self, request: RequestLike | PausedRun = (), **options: Any) -> RunResult[Any]:
        """Async version of `run`."""
        return await self._arun(request, options)

    @overload
    def run_stream(
        self, request: AgentRequest | HasRequest | PausedRun, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunStream[Any]: ...  # Any: the request may have a schema

    @overload
    def run_stream(
        self, request: RequestLike = (), *, schema: None = None, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunStream[None]: ...

    @overload
    def run_stream(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunStream[OutputT]: ...

    @overload
    def run_stream(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> RunStream[JsonValue]: ...

    @document_options(RunOptions)
    def run_stream(self, request: RequestLike | PausedRun = (), **options: Any) -> RunStream[Any]:
        """Run the agent loop and return a stream of its events, which can also steer the run.

        ```python
        from agent.testing import scripted_agent

        with scripted_agent("Hello!").run_stream("Hi") as run:
            for event in run:
                print(event.type)
        assert run.result.text == "Hello!"
        ```

        Args:
            request: As for `run`.
            schema: As for `run`.
            tools: As for `run`.
            deps: As for `run`.

        Raises:
            ConfigurationError: The request is invalid, or an option is unknown. Nothing was sent.
            AgentError: Raised by `result`, not by the iteration, when the run fails.
        """
        return self._run_stream(request, options)

    @overload
    def arun_stream(
        self, request: AgentRequest | HasRequest | PausedRun, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> AsyncRunStream[Any]: ...  # Any: the request may have a schema

    @overload
    def arun_stream(
        self, request: RequestLike = (), *, schema: None = None, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> AsyncRunStream[None]: ...

    @overload
    def arun_stream(
        self, request: RequestLike = (), *, schema: OutputType[OutputT], **options: Unpack[ToolRunOptions[DepsT]]
    ) -> AsyncRunStream[OutputT]: ...

    @overload
    def arun_stream(
        self, request: RequestLike = (), *, schema: JsonSchema, **options: Unpack[ToolRunOptions[DepsT]]
    ) -> AsyncRunStream[JsonValue]: ...

    @document_like(run_stream)
    def arun_stream(self, request: RequestLike | PausedRun = (), **options: Any) -> AsyncRunStream[Any]:
        """Async version of `run_stream`. Iterate with `async for`; the call itself is not awaited."""
        return self._arun_stream(request, options)

    # For subclasses

    def _run(self, request: RequestLike | PausedRun, options: dict[str, Any]) -> RunResult[Any]:
        raise NotImplementedError

    async def _arun(self, request: RequestLike | PausedRun, options: dict[str, Any]) -> RunResult[Any]:
        raise NotImplementedError

    def _run_stream(self, request: RequestLike | PausedRun, options: dict[str, Any]) -> RunStream[Any]:
        raise NotImplementedError

    def _arun_stream(self, request: RequestLike | PausedRun, options: dict[str, Any]) -> AsyncRunStream[Any]:
        raise NotImplementedError
