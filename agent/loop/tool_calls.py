"""The tool calls of one turn: which are made, beside each other or one by one, and what the model is told of each.

Every call gets exactly one result, whatever happens: one that is refused, skipped, late or impossible is answered with
an error that says so. Results become messages in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, assert_never

from .. import errors
from ..engine.context import Context
from ..engine.flow import Branch, Cancel, Emit, Emitted, Failed, Finished, Flow, Now, Paused, Spawn, Wait
from ..engine.wire import SLACK, deadline_error
from ..errors import BudgetExceededError, ConfigurationError, ToolExecutionError
from ..tools.base import AgentToolResult, NestedTool, Nesting, Signal, Suspended, Tool, ToolContext
from ..tools.execution import Running, tried
from ..tools.results import error_text, rendered
from ..types import Message
from .events import AgentEvent, ToolExecutionUpdateEvent, to_model_messages
from .hooks import Allow, Ask, Change, Deny, RunPlan, by_risk, heard, messages_from, read_decision
from .journal import JournalError, Outcome
from .recovery import begin, begun_before, finish, note_waiting, recall
from .results import WaitingCall
from .run_state import INTERRUPTED, RunState, Slot

SKIPPED = "Skipped: the user said something meanwhile."
STOPPED = "The call was not made: another tool failed."


def run_calls(plan: RunPlan, record: RunState, around: Context) -> Flow[None]:
    """Deal with every call of the turn. Calls that wait for a person are left without a result."""
    tools = plan.tools(record.latest)
    waiting = [slot for slot in record.slots if slot.result is None]
    one_by_one = not plan.config.parallel_tool_execution or any(_is_sequential(slot, tools) for slot in waiting)
    held_up = False
    try:
        for group in [[slot] for slot in waiting] if one_by_one else [waiting]:
            for slot in group:
                yield from _decide(plan, record, slot, tools)
            ready = [slot for slot in group if slot.result is not None or not (slot.is_undecided or held_up)]
            yield from _taken_up(plan, record, ready, around)
            held_up = held_up or (one_by_one and any(slot.is_undecided for slot in group))
    finally:
        for slot in record.slots:
            if slot.running is not None and slot.result is None:
                slot.running.give_up()
    if all(slot.result is not None for slot in record.slots):
        _look_back(plan, record)


def _is_sequential(slot: Slot, tools: Mapping[str, Tool]) -> bool:
    tool = tools.get(slot.named)
    return tool is not None and tool.sequential


# Whether a call is made


def _decide(plan: RunPlan, record: RunState, slot: Slot, tools: Mapping[str, Tool]) -> Flow[None]:
    """Make a call ready, or answer it, or leave it to a person. A call that waits is left to its verdict alone."""
    recall(record, slot)
    if slot.result is not None:
        return
    verdict = slot.verdict
    if verdict is not None and verdict.answered:
        slot.result = rendered(verdict.answer, slot.call.id, slot.call.name, plan.config.max_output_bytes)
        slot.outcome = "completed"
        return
    if slot.waiting is not None and slot.waiting.run is not None:
        if slot.waiting.run.has_verdicts:
            _resume_nested(plan, record, slot, tools.get(slot.named), slot.call.arguments)
        return
    if (begun := begun_before(record, slot)) is not None:
        if begun.is_nested:
            _resume_nested(plan, record, slot, tools.get(slot.named), begun.arguments)
        else:
            _resume(plan, record, slot, tools.get(slot.named), begun.arguments)
        return
    if slot.is_undecided:
        return
    if (reason := _reason_against(plan, record, slot)) is not None:
        slot.fail(*reason)
        return
    if verdict is not None and not verdict.approved:
        slot.fail(verdict.reason or "The call was denied.", "rejected")
        return
    tool = _found(slot, tools)
    if tool is None:
        return
    slot.tool = tool
    given = slot.call.arguments if verdict is None or verdict.arguments is None else verdict.arguments
    if not _checked(slot, tool, given):
        return
    slot.context = _context(plan, record, slot, tool, given)
    if verdict is None:
        yield from _permitted(plan, record, slot, tool)
    if _is_open(slot) and not tool.can_run:
        slot.wait(WaitingCall(id=slot.call.id, reason="This call is answered by the caller.", kind="external"))
    if slot.is_undecided:
        yield from note_waiting(plan, record, slot)


def _resume_nested(
    plan: RunPlan, record: RunState, slot: Slot, tool: Tool | None, arguments: Mapping[str, Any]
) -> None:
    """Go on with the run of a sub-agent: it knows itself which of its calls were made, and which wait."""
    if not isinstance(tool, NestedTool):
        raise ConfigurationError(
            f"The call {slot.call.id!r} is the run of a sub-agent, and {slot.named!r} is none.",
            field="tools",
            fix="Pass the tools that the run was started with.",
        )
    slot.tool, slot.arguments = tool, dict(arguments)
    slot.context = _context(plan, record, slot, tool, arguments)


def _resume(plan: RunPlan, record: RunState, slot: Slot, tool: Tool | None, arguments: Mapping[str, Any]) -> None:
    """A call that had begun was allowed, and may have acted. It is made again only if that does no harm."""
    if tool is not None and tool.idempotent and _checked(slot, tool, arguments):
        slot.tool, slot.context = tool, _context(plan, record, slot, tool, arguments)
    else:
        slot.fail(INTERRUPTED, "interrupted")
        slot.misfit = False


def _reason_against(plan: RunPlan, record: RunState, slot: Slot) -> tuple[str, Outcome] | None:
    """Why a call is not made, whatever it is."""
    most = plan.config.max_tool_calls_per_iteration
    if record.slots.index(slot) >= most:
        return f"The call was not made: at most {most} calls are made in one turn. Make it again.", "rejected"
    if record.steered:
        return SKIPPED, "skipped"
    if plan.config.stop_on_error and any(slot.outcome == "failed" for slot in record.slots):
        return STOPPED, "skipped"
    return None


def _is_open(slot: Slot) -> bool:
    return slot.result is None and not slot.is_undecided


def _found(slot: Slot, tools: Mapping[str, Tool]) -> Tool | None:
    tool = tools.get(slot.named)
    if tool is None:
        names = ", ".join(tools) or "none"
        known = f"There is no tool {slot.named[:80]!r}." if slot.named else "The call names no tool."
        _misfit(slot, f"{known} The tools are: {names}.")
    elif slot.cut_off:
        _misfit(slot, "The answer was cut off here, so the call may not be complete. Make it again.")
        return None
    elif slot.call.invalid_arguments is not None:
        _misfit(slot, "The arguments are not a JSON object. Make the call again with valid JSON.")
        return None
    return tool


def _misfit(slot: Slot, message: str) -> None:
    slot.fail(message, "rejected")
    slot.misfit = True


def _checked(slot: Slot, tool: Tool, given: Mapping[str, Any]) -> bool:
    try:
        slot.arguments = tool.check(given)
    except Exception as error:  # a validator of the user's may raise anything
        _misfit(slot, error_text(error))
        return False
    return True


def _context(plan: RunPlan, record: RunState, slot: Slot, tool: Tool, given: Mapping[str, Any]) -> ToolContext[Any]:
    return ToolContext(
        deps=plan.deps,
        call_id=slot.call.id,
        tool_name=slot.call.name,
        risk=tool.risk,
        run_id=record.run_id,
        turn=record.turn,
        arguments=given,
        recall=partial(_remembered, record, len(record.history)),
        signal=Signal(),
        account=partial(record.charge, slot),
    )


def _remembered(record: RunState, length: int) -> Sequence[Message]:
    return to_model_messages(record.history[:length])


def _permitted(plan: RunPlan, record: RunState, slot: Slot, tool: Tool) -> Flow[None]:
    before = plan.hooks.before_tool_call
    said = None
    if before is not None:
        said = read_decision((yield from heard("before_tool_call", before, slot.call, slot.context)))
    decision = said if said is not None else by_risk(tool, plan.config)
    match decision:
        case Allow():
            pass
        case Deny(reason):
            slot.fail(reason, "rejected")
        case Ask(reason):
            slot.wait(WaitingCall(id=slot.call.id, reason=reason))
        case Change(arguments):
            if _checked(slot, tool, arguments):
                slot.context = _context(plan, record, slot, tool, dict(arguments))
        case _:
            assert_never(decision)


# Making calls


def _taken_up(plan: RunPlan, record: RunState, slots: Sequence[Slot], around: Context) -> Flow[None]:
    """Make the calls that are ready, all at once, and tell of all of them."""
    for slot in slots:
        if slot.result is None:
            yield from _check_deadline(around)
            yield from begin(plan, record, slot)
        else:
            yield from finish(plan, record, slot)
    events: list[AgentEvent] = []
    for slot in slots:
        events.append(slot.start())
        if slot.result is not None:
            events.append(slot.end())
    yield Emit([*events, *record.ready_results()])
    running: dict[Branch, Slot] = {}
    for slot in slots:
        if slot.result is None:
            running[(yield from _spawned(plan, slot, around))] = slot
    while running:
        yield from _next_news(plan, record, running, around)


def _check_deadline(around: Context) -> Flow[None]:
    """Hooks and journals take time, and nothing shall begin when it is up."""
    if (yield from Now()) >= around.deadline - SLACK:
        raise deadline_error("calling tools")


def _spawned(plan: RunPlan, slot: Slot, around: Context) -> Flow[Branch]:
    tool, context = slot.tool, slot.context
    assert tool is not None
    assert context is not None
    yield from _check_deadline(around)
    if isinstance(tool, NestedTool):
        context.nesting = Nesting(around, plan.hooks.journal, slot.waiting and slot.waiting.run, slot.is_billed)
    timeout = tool.timeout if tool.timeout is not None else plan.config.timeout_per_tool
    slot.running = Running(context.signal)
    slot.until = (yield from Now()) + timeout
    until = min(slot.until, around.deadline)
    steps = tried(slot.running, tool, slot.arguments, context, timeout, plan.config.max_output_bytes, until)
    return (yield from Spawn(steps))


def _next_news(plan: RunPlan, record: RunState, running: dict[Branch, Slot], around: Context) -> Flow[None]:
    now = yield from Now()
    until = min((slot.until for slot in running.values() if _is_busy(slot)), default=None)
    if until is not None and until <= now:  # asked first: a tool that reports without end always has news
        yield from _expire(plan, record, running)
        return
    news = yield from Wait(list(running), None if until is None else until - now)
    match news:
        case None:
            yield from _expire(plan, record, running)
        case Emitted(branch, reports):
            slot = running[branch]
            yield Emit([_update(slot, report) for report in reports])
        case Finished(branch, Suspended(run=paused)):
            yield Emit([running.pop(branch).suspend(paused)])
            record.steered += record.steering.take()
        case Finished(branch, result):
            slot = running.pop(branch)
            slot.result, slot.outcome = result, "failed" if result.is_error else "completed"
            yield from _ended(plan, record, slot)
        case Failed(branch, error):
            slot = running.pop(branch)
            assert isinstance(error, Exception)  # nothing else gets this far
            if isinstance(error, JournalError) or (slot.waiting and isinstance(error, ConfigurationError)):
                raise error  # of a sub-agent's run: its calls are not settled, and must not be given up
            if isinstance(error, errors.TimeoutError) and error.deadline:
                yield from _check_deadline(around)  # the run's time is up, which is no failure of the tool
            slot.fail(error_text(error), "failed")
            yield from _ended(plan, record, slot)
        case Paused():
            raise AssertionError("tools are not spawned to pause")
        case _:
            assert_never(news)


def _is_busy(slot: Slot) -> bool:
    """Whether its tool has not come to an end. One that has is not late, however long its news waits to be heard."""
    return slot.running is not None and not slot.running.over


def _expire(plan: RunPlan, record: RunState, running: dict[Branch, Slot]) -> Flow[None]:
    now = yield from Now()
    late = [branch for branch, slot in running.items() if slot.until <= now and _is_busy(slot)]
    for branch in late:
        waiting = running[branch]
        assert waiting.running is not None
        waiting.running.give_up()
    yield from Cancel(late)
    for branch in late:
        slot = running.pop(branch)
        assert slot.tool is not None
        limit = slot.tool.timeout if slot.tool.timeout is not None else plan.config.timeout_per_tool
        slot.fail(f"The tool took longer than {limit:g} seconds and was given up; it may have had an effect.", "failed")
        yield from _ended(plan, record, slot)


def _ended(plan: RunPlan, record: RunState, slot: Slot) -> Flow[None]:
    after = plan.hooks.after_tool_call
    if after is not None:
        yield from _reviewed(plan, slot)
    yield from finish(plan, record, slot)
    yield Emit([slot.end(), *record.ready_results()])
    record.steered += record.steering.take()
    record.steered += yield from messages_from("get_steering_messages", plan.hooks.get_steering_messages)


def _reviewed(plan: RunPlan, slot: Slot) -> Flow[None]:
    assert plan.hooks.after_tool_call is not None
    assert slot.result is not None
    given = yield from heard("after_tool_call", plan.hooks.after_tool_call, slot.call, slot.result, slot.context)
    if given is None or given is slot.result:
        return
    changed = rendered(given, slot.call.id, slot.call.name, plan.config.max_output_bytes)
    slot.result, slot.outcome = changed, "failed" if changed.is_error else "completed"


def _update(slot: Slot, report: Any) -> ToolExecutionUpdateEvent:
    if isinstance(report, AgentToolResult):
        partial = report
    elif isinstance(report, str):
        partial = AgentToolResult(content=[{"type": "text", "text": report}])
    else:
        partial = AgentToolResult(content=[], details=report)
    return ToolExecutionUpdateEvent(
        tool_call_id=slot.call.id, tool_name=slot.call.name, args=slot.call.arguments, partial_result=partial
    )


# What the turn tells about the run


def _look_back(plan: RunPlan, record: RunState) -> None:
    """End runs that do not get anywhere."""
    slots = record.slots
    failure = next((slot for slot in slots if slot.outcome == "failed"), None)
    if plan.config.stop_on_error and failure is not None:
        raise _stop(f"The tool {failure.call.name!r} failed: {_text(failure)}", failure)
    record.count_calls()
    if record.repairs > plan.config.max_repairs:
        raise _stop(f"The model made no valid call in {record.repairs} turns: {_text(slots[-1])}", slots[-1])
    for slot in slots:
        _, times = record.repeats.get(slot.key, ("", 0))
        if slot.outcome in ("completed", "failed") and times >= plan.config.max_identical_calls:
            raise BudgetExceededError(
                f"The model called {slot.call.name!r} {times} times with the same arguments, and got the same result."
            )


def _text(slot: Slot) -> str:
    assert slot.result is not None
    return slot.result.text


def _stop(message: str, slot: Slot) -> ToolExecutionError:
    return ToolExecutionError(message, tool_name=slot.call.name, tool_call_id=slot.call.id)
