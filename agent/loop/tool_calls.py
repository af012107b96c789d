"""The tool calls of one turn: validation, approval, execution and results.

Every call gets exactly one result. A rejected, skipped, late or invalid call gets an error as its result. Results
become messages in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, assert_never

from .. import errors
from ..engine.context import Context, run_validation
from ..engine.flow import Branch, Cancel, Emit, Emitted, Failed, Finished, Flow, Now, Paused, Spawn, Wait
from ..engine.wire import SLACK, deadline_error
from ..errors import BudgetExceededError, ConfigurationError, ToolExecutionError
from ..tools.base import AgentToolResult, NestedTool, Nesting, Signal, Suspended, Tool, ToolContext
from ..tools.execution import RunningCall, run_with_retries
from ..tools.results import error_text, render_result
from ..types import Message
from .events import AgentEvent, ToolExecutionUpdateEvent, to_model_messages
from .hooks import Allow, Ask, Change, Deny, RunPlan, call_hook, decide_by_risk, parse_decision, poll_messages
from .journal import JournalError, Outcome
from .recovery import find_started_call, restore, write_ended, write_started, write_waiting
from .results import WaitingCall
from .run_state import INTERRUPTED, RunState, Slot

SKIPPED = "Skipped: the user sent a message."
STOPPED = "The call was not executed: another tool failed."


def run_calls(plan: RunPlan, state: RunState, context: Context) -> Flow[None]:
    """Handle every call of the turn. Calls that wait for a decision are left without a result."""
    tools = plan.tools(state.latest)
    waiting = [slot for slot in state.slots if slot.result is None]
    called = [tools.get(slot.raw_name) for slot in waiting]
    sequential = not plan.config.parallel_tool_execution or any(tool and tool.sequential for tool in called)
    is_blocked = False
    try:
        for group in [[slot] for slot in waiting] if sequential else [waiting]:
            for slot in group:
                yield from _prepare_call(plan, state, slot, tools)
            ready = [slot for slot in group if slot.result is not None or not (slot.is_undecided or is_blocked)]
            yield from _execute_calls(plan, state, ready, context)
            is_blocked = is_blocked or (sequential and any(slot.is_undecided for slot in group))
    finally:
        for slot in state.slots:
            if slot.running is not None and slot.result is None:
                slot.running.cancel()
    if all(slot.result is not None for slot in state.slots):
        _check_progress(plan, state)


# Validation and approval


def _prepare_call(plan: RunPlan, state: RunState, slot: Slot, tools: Mapping[str, Tool]) -> Flow[None]:
    """Validate and approve a call, answer it without execution, or leave it waiting for a verdict."""
    restore(state, slot)
    if slot.result is not None:
        return
    verdict = slot.verdict
    if verdict is not None and verdict.answered:
        slot.result = render_result(verdict.answer, slot.call.id, slot.call.name, plan.config.max_output_bytes)
        slot.outcome = "completed"
        return
    if slot.waiting is not None and slot.waiting.run is not None:
        if slot.waiting.run.has_verdicts:
            _resume_nested(plan, state, slot, tools.get(slot.raw_name), slot.call.arguments)
        return
    if (started := find_started_call(state, slot)) is not None:
        if started.is_nested:
            _resume_nested(plan, state, slot, tools.get(slot.raw_name), started.arguments)
        else:
            yield from _resume(plan, state, slot, tools.get(slot.raw_name), started.arguments)
        return
    if slot.is_undecided:
        return
    if (refusal := _find_skip_reason(plan, state, slot)) is not None:
        slot.fail(*refusal)
        return
    if verdict is not None and not verdict.approved:
        slot.fail(verdict.reason or "The call was denied.", "rejected")
        return
    tool = _find_tool(slot, tools)
    if tool is None:
        return
    slot.tool = tool
    arguments = slot.call.arguments if verdict is None or verdict.arguments is None else verdict.arguments
    if not (yield from _validate_arguments(plan, slot, tool, arguments)):
        return
    slot.context = _create_context(plan, state, slot, tool, arguments)
    if verdict is None:
        yield from _request_approval(plan, state, slot, tool)
    if _is_open(slot) and not tool.can_run:
        slot.wait_for_decision(
            WaitingCall(id=slot.call.id, reason="The application provides the result of this call.", kind="external")
        )
    if slot.is_undecided:
        yield from write_waiting(plan, state, slot)


def _resume_nested(plan: RunPlan, state: RunState, slot: Slot, tool: Tool | None, arguments: Mapping[str, Any]) -> None:
    """Continue the run of a sub-agent, which knows its own executed and waiting calls."""
    if not isinstance(tool, NestedTool):
        raise ConfigurationError(
            f"The call {slot.call.id!r} is the run of a sub-agent, but {slot.raw_name!r} is no sub-agent now.",
            field="tools",
            fix="Pass the tools that the run was started with.",
        )
    slot.tool, slot.arguments = tool, dict(arguments)
    slot.context = _create_context(plan, state, slot, tool, arguments)


def _resume(plan: RunPlan, state: RunState, slot: Slot, tool: Tool | None, arguments: Mapping[str, Any]) -> Flow[None]:
    """Execute an interrupted call again if its tool is idempotent; otherwise report the interruption."""
    if tool is not None and tool.idempotent and (yield from _validate_arguments(plan, slot, tool, arguments)):
        slot.tool, slot.context = tool, _create_context(plan, state, slot, tool, arguments)
    else:
        slot.fail(INTERRUPTED, "interrupted")
        slot.is_invalid = False


def _find_skip_reason(plan: RunPlan, state: RunState, slot: Slot) -> tuple[str, Outcome] | None:
    """Return why the call is not executed, whatever it is, with its outcome."""
    limit = plan.config.max_tool_calls_per_iteration
    if state.slots.index(slot) >= limit:
        return f"The call was not executed: at most {limit} calls are executed per turn. Repeat it.", "rejected"
    if state.steered:
        return SKIPPED, "skipped"
    if plan.config.stop_on_error and any(slot.outcome == "failed" for slot in state.slots):
        return STOPPED, "skipped"
    return None


def _is_open(slot: Slot) -> bool:
    return slot.result is None and not slot.is_undecided


def _find_tool(slot: Slot, tools: Mapping[str, Tool]) -> Tool | None:
    tool = tools.get(slot.raw_name)
    if tool is None:
        names = ", ".join(tools) or "none"
        problem = f"There is no tool {slot.raw_name[:80]!r}." if slot.raw_name else "The call names no tool."
        _reject_call(slot, f"{problem} Available tools: {names}.")
    elif slot.truncated:
        _reject_call(slot, "The response was cut off, so the call may be incomplete. Repeat it.")
        return None
    elif slot.call.invalid_arguments is not None:
        _reject_call(slot, "The arguments are not a JSON object. Repeat the call with valid JSON.")
        return None
    return tool


def _reject_call(slot: Slot, message: str) -> None:
    slot.fail(message, "rejected")
    slot.is_invalid = True


def _validate_arguments(plan: RunPlan, slot: Slot, tool: Tool, arguments: Mapping[str, Any]) -> Flow[bool]:
    try:
        slot.arguments = yield from run_validation(tool.check, arguments, seconds=_timeout(plan, tool))
    except Exception as error:  # a custom validator may raise anything
        _reject_call(slot, error_text(error))
        return False
    return True


def _timeout(plan: RunPlan, tool: Tool) -> float:
    return tool.timeout if tool.timeout is not None else plan.config.timeout_per_tool


def _create_context(
    plan: RunPlan, state: RunState, slot: Slot, tool: Tool, arguments: Mapping[str, Any]
) -> ToolContext[Any]:
    return ToolContext(
        deps=plan.deps,
        call_id=slot.call.id,
        tool_name=slot.call.name,
        risk=tool.risk,
        run_id=state.run_id,
        turn=state.turn,
        arguments=arguments,
        recall=partial(_history_before, state, len(state.history)),
        signal=Signal(),
        account=partial(state.charge, slot),
    )


def _history_before(state: RunState, length: int) -> Sequence[Message]:
    return to_model_messages(state.history[:length])


def _request_approval(plan: RunPlan, state: RunState, slot: Slot, tool: Tool) -> Flow[None]:
    before = plan.hooks.before_tool_call
    decision = None
    if before is not None:
        decision = parse_decision((yield from call_hook("before_tool_call", before, slot.call, slot.context)))
    match decision if decision is not None else decide_by_risk(tool, plan.config):
        case Allow():
            pass
        case Deny(reason):
            slot.fail(reason, "rejected")
        case Ask(reason):
            slot.wait_for_decision(WaitingCall(id=slot.call.id, reason=reason))
        case Change(arguments):
            if (yield from _validate_arguments(plan, slot, tool, arguments)):
                slot.context = _create_context(plan, state, slot, tool, dict(arguments))
        case _:
            assert_never(decision)


# Execution


def _execute_calls(plan: RunPlan, state: RunState, slots: Sequence[Slot], context: Context) -> Flow[None]:
    """Execute the ready calls concurrently, and emit their events."""
    for slot in slots:
        if slot.result is None:
            yield from _check_deadline(context)
            yield from write_started(plan, state, slot)
        else:
            yield from write_ended(plan, state, slot)
    events: list[AgentEvent] = []
    for slot in slots:
        events.append(slot.start())
        if slot.result is not None:
            events.append(slot.end())
    yield Emit([*events, *state.take_ready_results()])
    running: dict[Branch, Slot] = {}
    for slot in slots:
        if slot.result is None:
            running[(yield from _spawn_call(plan, slot, context))] = slot
    while running:
        yield from _handle_next_event(plan, state, running, context)


def _check_deadline(context: Context) -> Flow[None]:
    """Raise if the run's deadline has passed while hooks or journals ran."""
    if (yield from Now()) >= context.deadline - SLACK:
        raise deadline_error("calling tools")


def _spawn_call(plan: RunPlan, slot: Slot, context: Context) -> Flow[Branch]:
    tool, tool_context = slot.tool, slot.context
    assert tool is not None
    assert tool_context is not None
    yield from _check_deadline(context)
    if isinstance(tool, NestedTool):
        tool_context.nesting = Nesting(context, plan.hooks.journal, slot.waiting and slot.waiting.run, slot.is_billed)
    timeout = _timeout(plan, tool)
    slot.running = RunningCall(tool_context.signal)
    slot.expires_at = (yield from Now()) + timeout
    until = min(slot.expires_at, context.deadline)
    steps = run_with_retries(
        slot.running, tool, slot.arguments, tool_context, timeout, plan.config.max_output_bytes, until
    )
    return (yield from Spawn(steps))


def _handle_next_event(plan: RunPlan, state: RunState, running: dict[Branch, Slot], context: Context) -> Flow[None]:
    now = yield from Now()
    until = min((slot.expires_at for slot in running.values() if _is_busy(slot)), default=None)
    if until is not None and until <= now:  # first, since a tool that reports forever always has events
        yield from _time_out_calls(plan, state, running)
        return
    news = yield from Wait(list(running), None if until is None else until - now)
    match news:
        case None:
            yield from _time_out_calls(plan, state, running)
        case Emitted(branch, reports):
            slot = running[branch]
            yield Emit([_create_update(slot, report) for report in reports])
        case Finished(branch, Suspended(run=paused)):
            yield Emit([running.pop(branch).pause_nested(paused)])
            state.steered += state.steering.take()
        case Finished(branch, result):
            slot = running.pop(branch)
            slot.result, slot.outcome = result, "failed" if result.is_error else "completed"
            yield from _finish_call(plan, state, slot)
        case Failed(branch, error):
            slot = running.pop(branch)
            assert isinstance(error, Exception)  # nothing else gets this far
            if isinstance(error, JournalError) or (slot.waiting and isinstance(error, ConfigurationError)):
                raise error  # from a sub-agent's run, whose calls must stay resumable
            if isinstance(error, errors.TimeoutError) and error.deadline:
                yield from _check_deadline(context)  # the run's deadline passed; the tool did not fail
            slot.fail(error_text(error), "failed")
            yield from _finish_call(plan, state, slot)
        case Paused():
            raise AssertionError("tools are not spawned to pause")
        case _:
            assert_never(news)


def _is_busy(slot: Slot) -> bool:
    """Whether the tool has not returned. One that has is not late, however long its event is queued."""
    return slot.running is not None and not slot.running.finished


def _time_out_calls(plan: RunPlan, state: RunState, running: dict[Branch, Slot]) -> Flow[None]:
    """Enforce the tool timeout: cancel late calls, and report each as failed."""
    now = yield from Now()
    late = [branch for branch, slot in running.items() if slot.expires_at <= now and _is_busy(slot)]
    for branch in late:
        slot = running[branch]
        assert slot.running is not None
        slot.running.cancel()
    yield from Cancel(late)
    for branch in late:
        slot = running.pop(branch)
        assert slot.tool is not None
        limit = slot.tool.timeout if slot.tool.timeout is not None else plan.config.timeout_per_tool
        slot.fail(f"The tool timed out after {limit:g} seconds; it may have taken effect.", "failed")
        yield from _finish_call(plan, state, slot)


def _finish_call(plan: RunPlan, state: RunState, slot: Slot) -> Flow[None]:
    after = plan.hooks.after_tool_call
    if after is not None:
        yield from _call_after_hook(plan, slot)
    yield from write_ended(plan, state, slot)
    yield Emit([slot.end(), *state.take_ready_results()])
    state.steered += state.steering.take()
    state.steered += yield from poll_messages("get_steering_messages", plan.hooks.get_steering_messages)


def _call_after_hook(plan: RunPlan, slot: Slot) -> Flow[None]:
    assert plan.hooks.after_tool_call is not None
    assert slot.result is not None
    value = yield from call_hook("after_tool_call", plan.hooks.after_tool_call, slot.call, slot.result, slot.context)
    if value is None or value is slot.result:
        return
    changed = render_result(value, slot.call.id, slot.call.name, plan.config.max_output_bytes)
    slot.result, slot.outcome = changed, "failed" if changed.is_error else "completed"


def _create_update(slot: Slot, report: Any) -> ToolExecutionUpdateEvent:
    if isinstance(report, AgentToolResult):
        partial = report
    elif isinstance(report, str):
        partial = AgentToolResult(content=[{"type": "text", "text": report}])
    else:
        partial = AgentToolResult(content=[], details=report)
    return ToolExecutionUpdateEvent(
        tool_call_id=slot.call.id, tool_name=slot.call.name, args=slot.call.arguments, partial_result=partial
    )


# Progress checks


def _check_progress(plan: RunPlan, state: RunState) -> None:
    """End a run that repeats itself or makes no valid calls."""
    slots = state.slots
    failure = next((slot for slot in slots if slot.outcome == "failed"), None)
    if plan.config.stop_on_error and failure is not None:
        raise _stop(f"The tool {failure.call.name!r} failed: {_text(failure)}", failure)
    state.track_progress()
    if state.repairs > plan.config.max_repairs:
        raise _stop(f"The model made no valid tool call in {state.repairs} turns: {_text(slots[-1])}", slots[-1])
    for slot in slots:
        _, times = state.repeats.get(slot.key, ("", 0))
        if slot.outcome in ("completed", "failed") and times >= plan.config.max_identical_calls:
            raise BudgetExceededError(
                f"The model called {slot.call.name!r} {times} times with the same arguments and got the same result."
            )


def _text(slot: Slot) -> str:
    assert slot.result is not None
    return slot.result.text


def _stop(message: str, slot: Slot) -> ToolExecutionError:
    return ToolExecutionError(message, tool_name=slot.call.name, tool_call_id=slot.call.id)
