"""Output that has to fit a schema: asked for in the best way the model has, read, checked, and asked for again.

There is a value that fits, or an error with what the model wrote. Never a silent None, and never a repaired half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import errors
from ..context import Call, Context
from ..flow import Flow
from ..providers import Provider
from ..types import AgentRequest, AgentResponse, Message
from .output_modes import plan_output
from .output_values import Misfit, read_value

if TYPE_CHECKING:
    from .output_modes import Plan

MAX_REASKS = 2
"""How often a model is told what is wrong with its answer before that is the caller's problem."""

_REASK = "That answer does not fit: {reason}\n\nAnswer again, in full and {form}, with this corrected."
_FINAL = {
    "refusal": "the model refused to answer",
    "content_filter": "the vendor's filter stopped the answer",
    "length": "the answer was cut off at max_tokens, and half an object is no object",
    "pause": "the vendor paused before the answer was complete",
    "error": "the vendor broke off the answer",
}
"""Ends of an answer that asking again does not mend."""


def structured(call: Call, provider: Provider, *, streaming: bool = False) -> Call:
    """Fill `response.output` where the request asks for a schema.

    An answer that does not fit is followed by a message that says so, up to MAX_REASKS times; the usage and cost of all
    of them are on the response, or on that of the error. The answer of a stream has been handed out when it turns out
    not to fit, so there it is an error at once. An answer that calls tools of the caller's is theirs to continue.
    """

    def checked(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        if request.output_schema is None:
            return (yield from call(request, context))

        plan = plan_output(provider, request)
        if streaming:
            return (yield from _streamed(call, plan, request, context))
        asked = plan.request
        earlier: AgentResponse | None = None
        reasks = 0
        while True:
            response, text = plan.read((yield from call(asked, context)))
            total = response if earlier is None else _summed(earlier, response)
            if response.has_tool_calls:
                return total
            try:
                return total.model_copy(update={"output": _value(response, text, plan, request)})
            except Misfit as misfit:
                if reasks == MAX_REASKS or misfit.final:
                    raise _invalid(misfit, total, text) from misfit.__cause__
                told = Message.user(_REASK.format(reason=misfit, form=plan.form))
            reasks += 1
            asked = asked.with_messages(*([response.message] if response.content else ()), told)
            earlier = total

    return checked


def _streamed(call: Call, plan: Plan, request: AgentRequest, context: Context) -> Flow[AgentResponse]:
    try:
        response, text = plan.read((yield from plan.translated(call(plan.request, context))))
    except errors.StreamInterrupted as error:
        if error.partial is not None:
            error.partial, _ = plan.read(error.partial)
        raise
    if response.has_tool_calls:
        return response
    try:
        return response.model_copy(update={"output": _value(response, text, plan, request)})
    except Misfit as misfit:
        invalid = _invalid(misfit, response, text)
        invalid.committed = True
        raise invalid from misfit.__cause__


def _value(response: AgentResponse, text: str, plan: Plan, request: AgentRequest) -> Any:
    if response.stop_reason is not None and (final := _FINAL.get(response.stop_reason)) is not None:
        raise Misfit(final, final=True)
    if not text.strip():
        raise Misfit(f"the answer is empty (stop_reason {response.stop_reason})")
    return read_value(text, request.output_schema, plan.restored)


def _summed(earlier: AgentResponse, latest: AgentResponse) -> AgentResponse:
    """The latest response, with what all of them cost."""
    usage = latest.usage if earlier.usage is None else earlier.usage + latest.usage if latest.usage else earlier.usage
    costs = (earlier.cost_estimate, latest.cost_estimate)
    # Of a sum with an unknown part nothing is known but that it is larger.
    cost = None if costs[0] is None or costs[1] is None else costs[0] + costs[1]
    return latest.model_copy(
        update={
            "usage": usage,
            "cost_estimate": cost,
            "cost_source": None if cost is None else latest.cost_source,
            "warnings": tuple(dict.fromkeys((*earlier.warnings, *latest.warnings))),
        }
    )


def _invalid(misfit: Misfit, response: AgentResponse, text: str) -> errors.SchemaValidationError:
    return errors.SchemaValidationError(
        f"The output does not fit its schema: {misfit}",
        text=text if text else response.text,
        response=response,
        provider=response.provider or None,
        model=response.model or None,
        request_id=response.request_id,
    )
