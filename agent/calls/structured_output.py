"""Structured output: read and validate the value in a response, and ask the model to correct it.

The result is a valid value or an error with the text of the model: never a silent None, never a repaired fragment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from .. import errors
from ..engine.context import Call, Context, run_validation
from ..engine.flow import Flow, Now
from ..engine.wire import SLACK, deadline_error, parse_finite_json
from ..providers import Provider
from ..schemas.validation import TooExpensive, defer_if_inline, find_problems
from ..types import AgentRequest, AgentResponse, Message
from .output_modes import plan_output

if TYPE_CHECKING:
    from .output_modes import Plan


_FENCED = r"(?s)```[a-zA-Z0-9]*[ \t]*\n(.*?)```"
_OPENING = re.compile(r"[{\[]")
_MOST_CANDIDATES = 20
_LONG_TEXT = 20_000
"""Longer texts are not parsed on an event loop."""
_MOST_REASON = 2000


class Misfit(Exception):
    """A text holds no valid value. The message goes to the model as feedback, unless `final`."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final
        """Whether another request cannot fix it."""


def read_value(text: str, schema: Any, restore: Callable[[Any], Any]) -> Any:
    """Return the valid value in a text. Raises Misfit if there is none."""
    if len(text) > _LONG_TEXT:
        defer_if_inline()
    try:
        value = _parse(text)
    except ValueError as error:
        return _find_in_text(text, schema, restore, str(error))
    return _check(restore(value), schema)


def _parse(text: str) -> Any:
    value = parse_finite_json(text)
    json.loads(text, object_pairs_hook=_reject_duplicates)  # a duplicate key is ambiguous
    return value


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} appears twice")
    return found


def _find_in_text(text: str, schema: Any, restore: Callable[[Any], Any], problem: str) -> Any:
    fitting: list[Any] = []
    misfits: list[Misfit] = []
    for candidate in _candidates(text):
        try:
            fitting.append(_check(restore(candidate), schema))
        except Misfit as misfit:
            misfits.append(misfit)
    if len(fitting) == 1:
        return fitting[0]
    if len(fitting) > 1:
        raise Misfit(f"the answer contains {len(fitting)} valid values, which is ambiguous")
    if len(misfits) == 1:
        raise misfits[0]
    raise Misfit(f"the answer is not JSON: {problem}")


def _candidates(text: str) -> list[Any]:
    """Return the JSON values in a text: none if one of them is incomplete, since it may be the answer."""
    fences = re.findall(_FENCED, text)
    if len(fences) == 1:
        try:
            return [_parse(fences[0])]
        except ValueError:
            pass  # the fence may be part of a value that contains code
    found: list[Any] = []
    decoder = json.JSONDecoder()
    position = 0
    while (opening := _OPENING.search(text, position)) is not None:
        if len(found) == _MOST_CANDIDATES:
            return []
        try:
            _, position = decoder.raw_decode(text, opening.start())
            found.append(_parse(text[opening.start() : position]))
        except (ValueError, RecursionError):
            return []
    return found


def _check(value: Any, schema: Any) -> Any:
    return _check_json(value, schema) if isinstance(schema, Mapping) else _check_type(value, schema)


def _check_json(value: Any, schema: Mapping[str, Any]) -> Any:
    verdict = find_problems(schema, value)
    if verdict.unresolved is not None:
        raise Misfit(f"the schema refers to {verdict.unresolved!r}, which it does not define", final=True)
    if verdict.unusable is not None:
        raise Misfit(f"the schema cannot be evaluated: {verdict.unusable}", final=True)
    if verdict.best is not None:
        raise Misfit(f"{verdict.best.path}: {verdict.best.message}"[:_MOST_REASON])
    return value


def _check_type(value: Any, schema: Any) -> Any:
    try:
        # As JSON: dates, enums and tuples are read from their JSON form even by strict models.
        return _adapter_for(schema).validate_json(to_json(value))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        described = (f"{'.'.join(map(str, problem['loc'])) or '$'}: {problem['msg']}" for problem in problems)
        raise Misfit("; ".join(described)[:_MOST_REASON]) from error


def _adapter_for(schema: Any) -> TypeAdapter[Any]:
    if isinstance(schema, TypeAdapter):
        return schema
    try:
        return _adapter(schema)
    except TypeError:  # not hashable
        return TypeAdapter(schema)


@lru_cache(maxsize=128)
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


MAX_REASKS = 2
"""How often the model may correct an invalid answer before SchemaValidationError is raised."""

_REASK = "That answer does not fit: {reason}\n\nAnswer again, in full and {form}, with this corrected."
_FINAL = {
    "refusal": "the model refused to answer",
    "content_filter": "the vendor's filter stopped the answer",
    "length": "the answer was cut off at max_tokens, and half an object is no object",
    "pause": "the vendor paused before the answer was complete",
    "error": "the vendor broke off the answer",
}
"""Stop reasons that another request does not change."""


def parse_output(call: Call, provider: Provider, *, streaming: bool = False) -> Call:
    """Set `response.output` if the request has an output schema.

    After an invalid answer, the model gets a correction request, up to MAX_REASKS times. The response, or that of the
    error, has the usage and cost of all requests. An invalid answer of a stream raises at once, since its events were
    handed out. A response that calls the caller's tools has no output.
    """

    def call_and_parse(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        if request.output_schema is None:
            return (yield from call(request, context))

        plan = yield from run_validation(plan_output, provider, request)
        if streaming:
            return (yield from _parse_stream(call, plan, request, context))
        asked = plan.request
        earlier: AgentResponse | None = None
        reasks = 0
        while True:
            response, text = plan.read((yield from call(asked, context)))
            total = response if earlier is None else _add_usage(earlier, response)
            if response.has_tool_calls or response.status is not None:
                return total
            try:
                output = yield from _validate(response, text, plan, request, context)
                return total.model_copy(update={"output": output})
            except Misfit as misfit:
                if reasks == MAX_REASKS or misfit.final:
                    raise _invalid(misfit, total, text) from misfit.__cause__
                correction = Message.user(_REASK.format(reason=misfit, form=plan.form))
            reasks += 1
            asked = asked.with_messages(*([response.message] if response.content else ()), correction)
            earlier = total

    return call_and_parse


def _parse_stream(call: Call, plan: Plan, request: AgentRequest, context: Context) -> Flow[AgentResponse]:
    try:
        response, text = plan.read((yield from plan.translate(call(plan.request, context))))
    except errors.StreamInterrupted as error:
        if error.partial is not None:
            error.partial, _ = plan.read(error.partial)
        raise
    if response.has_tool_calls:
        return response
    try:
        output = yield from _validate(response, text, plan, request, context)
        return response.model_copy(update={"output": output})
    except Misfit as misfit:
        invalid = _invalid(misfit, response, text)
        invalid.committed = True
        raise invalid from misfit.__cause__


def read_output(response: AgentResponse, plan: Plan, request: AgentRequest) -> AgentResponse:
    """Return a response with its `output`, without asking the model to correct an invalid answer."""
    response, text = plan.read(response)
    if response.has_tool_calls:
        return response
    try:
        return response.model_copy(update={"output": _value(response, text, plan, request)})
    except Misfit as misfit:
        raise _invalid(misfit, response, text) from misfit.__cause__
    except TooExpensive as error:
        raise _invalid(Misfit(str(error)), response, text) from None


def _validate(response: AgentResponse, text: str, plan: Plan, request: AgentRequest, context: Context) -> Flow[Any]:
    try:
        return (yield from run_validation(_value, response, text, plan, request))
    except TooExpensive as error:
        if (yield from Now()) >= context.deadline - SLACK:
            raise deadline_error("validating the response") from None
        raise Misfit(str(error), final=True) from None


def _value(response: AgentResponse, text: str, plan: Plan, request: AgentRequest) -> Any:
    if response.stop_reason is not None and (final := _FINAL.get(response.stop_reason)) is not None:
        raise Misfit(final, final=True)
    if not text.strip():
        raise Misfit(f"the answer is empty (stop_reason {response.stop_reason})")
    return read_value(text, request.output_schema, plan.restore)


def _add_usage(earlier: AgentResponse, latest: AgentResponse) -> AgentResponse:
    """Return the latest response with the usage and cost of both."""
    usage = latest.usage if earlier.usage is None else earlier.usage + latest.usage if latest.usage else earlier.usage
    costs = (earlier.cost_estimate, latest.cost_estimate)
    # A sum with an unknown part is unknown.
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
