"""Request bodies for the engine: Chat Completions with engine-specific settings, always streamed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .. import errors

_FORM = {
    # Small models tend to emit blank lines between JSON values until they reach the token limit.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # Ignore unsupported keywords instead of the whole schema; the output is validated anyway.
    "lenient": True,
    "coerce_one_of": True,
}
_LARGEST = 2**53 - 1
"""Default bound of numbers, because small models may not end them; the limit of safe JSON integers."""
_FINEST = 1e-6
"""Default precision of numbers."""
_LEFT_ALONE = frozenset(("enum", "const", "default", "examples", "allOf", "not", "if", "then", "else"))
"""Keywords whose values are not transformed: they hold no schemas, or schemas valid only together."""
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
"""Keywords whose values map names to schemas."""
_OPEN = frozenset(("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"))
"""Keywords that define further properties of an object."""
_MOST_TOKENS = 2**31 - 1
_SEEDS = 2**32 - 1
"""Number of seeds; the engine uses the next number for a random seed."""
_MIROSTATS = (None, 0, 1, 2)


def encode_request(body: Mapping[str, Any], settings: Mapping[str, Any]) -> bytes:
    """Encode a request."""
    request: dict[str, Any] = {
        **settings,
        **body,
        "messages": [_repair_calls(message) for message in body["messages"]],
    }
    request.update(stream=True, stream_options={"include_usage": True}, return_progress=True)
    if "cache_prompt" not in request:
        # A cached prompt was computed in other batches and rounded differently, so results would not be reproducible.
        request["cache_prompt"] = request.get("seed") is None and request.get("temperature") != 0
    if isinstance(seed := request.get("seed"), int):
        request["seed"] = seed % _SEEDS
    if isinstance(limit := request.get("max_tokens"), int):
        request["max_tokens"] = min(limit, _MOST_TOKENS)
    if request.get("mirostat") not in _MIROSTATS:  # the engine would crash
        raise errors.ConfigurationError("Invalid mirostat.", field="extra", fix="Use 0, 1 or 2.")
    form = request.get("response_format")
    if form == {"type": "json_object"}:  # the engine would allow any value
        form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    named = form.get("json_schema") if isinstance(form, dict) else None
    if isinstance(named, dict) and isinstance(schema := named.get("schema"), dict):
        schema = {"x-guidance": _FORM, **_bound_schema(schema)}
        request["response_format"] = {"type": "json_schema", "json_schema": {**named, "schema": schema}}
    return json.dumps(request).encode()


def _repair_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Replace invalid call arguments with JSON, because the engine rejects the request otherwise."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_repair_arguments(call) for call in message["tool_calls"]]}


def _repair_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not function:
        return call
    try:
        json.loads(function["arguments"])
    except ValueError:
        return {**call, "function": {**function, "arguments": json.dumps({"unreadable": function["arguments"]})}}
    return call


def _bound_schema(schema: Any) -> Any:
    """Bound every number, and close objects that do not declare further properties."""
    if isinstance(schema, list):
        return [_bound_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    ended: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, dict):
            ended[name] = {key: _bound_schema(item) for key, item in value.items()}
        else:
            ended[name] = value if name in _LEFT_ALONE else _bound_schema(value)
    kinds = ended.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if ("integer" in kinds or "number" in kinds) and not ended.keys() & {"enum", "const"}:
        _bound_number(ended, whole="number" not in kinds)
    if "object" in kinds and "properties" in ended and not ended.keys() & _OPEN:
        ended["additionalProperties"] = False
    return ended


def _bound_number(schema: dict[str, Any], *, whole: bool) -> None:
    """Add default bounds if they leave a valid range."""
    lower = schema.get("minimum", schema.get("exclusiveMinimum"))
    upper = schema.get("maximum", schema.get("exclusiveMaximum"))
    if upper is None and (lower is None or lower < _LARGEST):
        schema["maximum"] = _LARGEST
    if lower is None and (upper is None or upper > -_LARGEST):
        schema["minimum"] = -_LARGEST
    fine = any(bound is not None and round(bound, 6) != bound for bound in (lower, upper))
    if not whole and not fine and "multipleOf" not in schema:
        schema["multipleOf"] = _FINEST


def encode_count_request(body: Mapping[str, Any]) -> bytes:
    """Encode a token count request: it is stopped after the count, before the prompt is read."""
    request: dict[str, Any] = {**body, "messages": [_repair_calls(message) for message in body["messages"]]}
    request.update(stream=True, return_progress=True, cache_prompt=False, max_tokens=1)
    request.pop("response_format", None)
    return json.dumps(request).encode()
