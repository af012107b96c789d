"""From what a caller passes to a run: the request, the options, the tools, and where it begins.

It knows agents and routers only by the few things it asks of them, so that both run the same loop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

from ..context import Call, Context
from ..errors import ConfigurationError
from ..flow import Flow
from ..requests import RequestLike, read_request
from ..tools.base import Tool
from ..tools.functions import as_tool
from ..tools.signal import Signal
from ..types import AgentRequest, AgentResponse, Message, ToolLoopConfig, ToolSpec
from .paused import PausedRun
from .plan import Hooks, Plan
from .record import Record
from .resumption import resume_record
from .shapes import AgentMessage, for_the_model

_HOOKS = frozenset(field.name for field in fields(Hooks))
RUN_OPTIONS = _HOOKS | {"loop", "deps", "run_id", "history", "prompts"}
"""What `run` takes besides the fields of a request."""


class Runner(Protocol):
    """What a run asks of an agent or a router."""

    hooks: Hooks | None

    @property
    def loop(self) -> ToolLoopConfig: ...

    def _prepare(self, request: RequestLike, overrides: Mapping[str, Any]) -> AgentRequest: ...

    def _call(self, *, streaming: bool) -> Call: ...

    def own_tools(self, response: AgentResponse | None) -> Sequence[Any]: ...


class Run:
    """A run that can be started once, by whichever driver."""

    __slots__ = ("deadline", "plan", "record")

    def __init__(self, plan: Plan, record: Record, deadline: float | None) -> None:
        self.plan = plan
        self.record = record
        self.deadline = deadline
        """Seconds for the whole of it."""


def begun(
    runner: Runner,
    request: RequestLike | PausedRun,
    options: Mapping[str, Any],
    *,
    streaming: bool,
    is_retried: bool = False,
) -> Run:
    """Make a run ready. What is wrong with the request is raised here, before anything is sent.

    The options `history` and `prompts` stand for the request's messages and input where these hold more than a request
    can: messages with roles of their own.
    """
    run_options = {name: value for name, value in options.items() if name in RUN_OPTIONS}
    overrides = {name: value for name, value in options.items() if name not in RUN_OPTIONS}
    history, prompts = run_options.get("history"), run_options.get("prompts")
    config = _config(run_options.get("loop"), runner.loop)
    hooks = _hooks(runner.hooks or Hooks(), run_options)
    if isinstance(request, PausedRun):
        record = resume_record(request)
        asked = read_request(request.request, {**overrides, "messages": request.messages})
        said: Sequence[AgentMessage] = ()
    else:
        asked = read_request(request, overrides)
        before = list(asked.messages) if history is None else list(history)
        said = prompts if prompts is not None else () if not asked.input else (Message.user(asked.input),)
        record = Record(run_options.get("run_id") or f"run_{os.urandom(8).hex()}", before, len(before))
        if history is not None or prompts is not None:
            asked = asked.model_copy(update={"input": None, "messages": for_the_model([*before, *said])})
    prepared = runner._prepare(asked, {})
    plan = Plan(
        ask=_asking(runner._call(streaming=streaming), prepared),
        tools=_toolbox(runner, prepared),
        request=asked.changed(input=None, messages=()),
        config=config,
        hooks=hooks,
        deps=run_options.get("deps"),
        signal=Signal(),
        prompts=said,
        is_retried=is_retried,
    )
    limits = [limit for limit in (prepared.deadline, config.time_budget) if limit is not None]
    return Run(plan, record, min(limits, default=None))


def _config(given: Any, own: ToolLoopConfig) -> ToolLoopConfig:
    if given is None:
        return own
    if isinstance(given, ToolLoopConfig):
        return given
    if isinstance(given, Mapping):
        return own.model_copy(update=dict(given))
    raise ConfigurationError(
        f"loop is a {type(given).__name__}.", field="loop", fix="Pass a ToolLoopConfig, or a dict of its fields."
    )


def _hooks(own: Hooks, options: Mapping[str, Any]) -> Hooks:
    given = {name: value for name, value in options.items() if name in _HOOKS and value is not None}
    return replace(own, **given) if given else own


def _asking(call: Call, prepared: AgentRequest) -> Any:
    forced = prepared.tool_choice not in (None, "auto", "none")

    def ask(messages: Sequence[Message], turn: int, context: Context) -> Flow[AgentResponse]:
        changes: dict[str, Any] = {"input": None, "messages": tuple(messages)}
        if forced and turn > 1:
            changes["tool_choice"] = None  # a tool that must be called in every turn would be called for ever
        return call(prepared.changed(**changes), context)

    return ask


def _toolbox(runner: Runner, prepared: AgentRequest) -> Any:
    """The tools that can be called, by name. A request's own go first, unless they are mere descriptions."""
    requested = _by_name(prepared.tools)

    def tools(response: AgentResponse | None) -> Mapping[str, Tool]:
        own = _by_name(runner.own_tools(response))
        if not own:
            return requested
        return {**own, **{name: tool for name, tool in requested.items() if tool.can_run or name not in own}}

    return tools


def _by_name(tools: Sequence[Any]) -> dict[str, Tool]:
    return {tool.name: as_tool(tool) for tool in tools if isinstance(tool, ToolSpec | Tool)}
