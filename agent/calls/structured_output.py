"""Output that has to fit a schema: asked for in the best way the model has, read, checked, and asked for again.

There is a value that fits, or an error with what the model wrote. Never a silent None, and never a repaired half.
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
from ..engine.context import Call, Context
from ..engine.flow import Flow
from ..engine.wire import parse_json
from ..providers import Provider
from ..schemas.dialect import create_validator
from ..types import AgentRequest, AgentResponse, Message
from .output_modes import plan_output

if TYPE_CHECKING:
    from .output_modes import Plan


_FENCED = re.compile(r"```[a-zA-Z0-9]*[ \t]*\n(.*?)```", re.S)
_OPENING = re.compile(r"[{\[]")
_MOST_CANDIDATES = 20
_MOST_REASON = 2000


class Misfit(Exception):
    """Why a text holds no value that fits. Its message may be told to the model, unless it is `final`."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final
        """Whether asking again cannot mend it."""


def read_value(text: str, schema: Any, restore: Callable[[Any], Any]) -> Any:
    """The value in a text, as the schema wants it; Misfit if there is none."""
    try:
        value = _parse(text)
    except ValueError as error:
        return _among_other_words(text, schema, restore, str(error))
    return _check(restore(value), schema)


def _parse(text: str) -> Any:
    value = parse_json(text)
    json.loads(text, object_pairs_hook=_once)  # which of two values of one key is meant, nobody knows
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} appears twice")
    return found


def _among_other_words(text: str, schema: Any, restore: Callable[[Any], Any], problem: str) -> Any:
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
        raise Misfit(f"the answer holds {len(fitting)} values that fit, among other words")
    if len(misfits) == 1:
        raise misfits[0]
    raise Misfit(f"the answer is not JSON: {problem}")


def _candidates(text: str) -> list[Any]:
    """The JSON values in a text. None at all if one begins and does not end: that may be half an answer."""
    fences = _FENCED.findall(text)
    if len(fences) == 1:
        try:
            return [_parse(fences[0])]
        except ValueError:
            pass  # a fence inside the value, perhaps: text that is code has some
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
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(create_validator(schema).iter_errors(value))
    except RecursionError:
        raise Misfit("the answer is nested too deeply") from None
    except Unresolvable as unresolvable:
        raise Misfit(f"the schema refers to {unresolvable.ref!r}, which is not in it", final=True) from None
    if error is not None:
        raise Misfit(f"{error.json_path}: {error.message}"[:_MOST_REASON])
    return value


def _check_type(value: Any, schema: Any) -> Any:
    try:
        # As JSON, which knows fewer types than Python: dates, enums and tuples are read from their JSON form, also by
        # a model that is strict about everything else.
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
