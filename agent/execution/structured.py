"""Output that has to fit a schema: parsed, checked, and an error if it does not fit. Never a silent None."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .. import errors
from ..context import Call, Context
from ..flow import Flow
from ..types import AgentRequest, AgentResponse
from ..wire import parse_json

_FENCED = re.compile(r"^\s*```(?:json)?\s*\n(.*?)\n?```\s*$", re.S)


def structured(call: Call) -> Call:
    """Fill `response.output` where the request asks for a schema."""

    def checked(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        response = yield from call(request, context)
        if request.output_schema is None or response.has_tool_calls:
            return response
        return response.model_copy(update={"output": read_output(response, request)})

    return checked


def read_output(response: AgentResponse, request: AgentRequest) -> Any:
    """The typed value in a response; SchemaValidationError with what the model wrote if there is none."""
    text = response.text or ""
    if response.stop_reason == "refusal":
        raise _invalid("the model refused to answer", response)
    if response.stop_reason == "length":
        raise _invalid("the answer was cut off at max_tokens, and half an object is no object", response)
    if not text:
        raise _invalid(f"the answer is empty (stop_reason {response.stop_reason})", response)
    value = _parse(text, response)
    schema = request.output_schema
    return _check_json(value, schema, response) if isinstance(schema, Mapping) else _check_type(value, schema, response)


def _parse(text: str, response: AgentResponse) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        fenced = _FENCED.match(text)  # the one habit worth forgiving: the whole answer in a code fence
        if fenced is not None:
            try:
                return parse_json(fenced[1])
            except ValueError:
                pass
        raise _invalid(f"the answer is not JSON: {error}", response) from error


def _check_json(value: Any, schema: Mapping[str, Any], response: AgentResponse) -> Any:
    import jsonschema

    try:
        jsonschema.validate(value, schema)
    except jsonschema.ValidationError as error:
        raise _invalid(f"{error.json_path}: {error.message[:500]}", response) from error
    return value


def _check_type(value: Any, schema: Any, response: AgentResponse) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        # JSON knows fewer types than Python: dates, enums and tuples are read from their JSON form.
        return TypeAdapter(schema).validate_python(value, strict=False)
    except ValidationError as error:
        raise _invalid(str(error), response) from error


def _invalid(reason: str, response: AgentResponse) -> errors.SchemaValidationError:
    return errors.SchemaValidationError(
        f"The output does not fit its schema: {reason}",
        text=response.text,
        response=response,
        provider=response.provider or None,
        model=response.model or None,
        request_id=response.request_id,
    )
