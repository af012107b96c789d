"""Requests as the engine wants them: a Chat Completions body, and what only this engine knows.

It is always asked to stream, since a stream is the only answer of its that can be stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .. import errors

_FORM = {
    # Small models like to fill the room between two values with blank lines, until their limit is reached.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # What the engine cannot enforce it passes over, instead of enforcing nothing at all; whoever asked checks it.
    "lenient": True,
    "coerce_one_of": True,
}
_LARGEST = 2**53 - 1
"""They do not know where a number ends, either. This is what JSON can be trusted with everywhere."""
_FINEST = 1e-6
"""The same for what stands after the point."""
_LEFT_ALONE = frozenset(("enum", "const", "default", "examples", "allOf", "not", "if", "then", "else"))
"""What holds no schemas, whatever it looks like; or some that hold only together."""
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
"""What holds schemas under names, which may be any, also those of other keywords."""
_OPEN = frozenset(("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"))
"""What says more about the properties of an object."""
_MOST_TOKENS = 2**31 - 1
_SEEDS = 2**32 - 1
"""How many seeds the engine tells apart. It takes the next number for a wish to be surprised."""
_MIROSTATS = (None, 0, 1, 2)


def encode_request(body: Mapping[str, Any], settings: Mapping[str, Any]) -> bytes:
    """The body for an answer."""
    asked: dict[str, Any] = {
        **settings,
        **body,
        "messages": [_with_whole_calls(message) for message in body["messages"]],
    }
    asked.update(stream=True, stream_options={"include_usage": True}, return_progress=True)
    if "cache_prompt" not in asked:
        # What is taken from the cache was computed in other portions, and rounded otherwise. Whoever passes a seed, or
        # a temperature of 0, wants the same text again.
        asked["cache_prompt"] = asked.get("seed") is None and asked.get("temperature") != 0
    if isinstance(seed := asked.get("seed"), int):
        asked["seed"] = seed % _SEEDS
    if isinstance(limit := asked.get("max_tokens"), int):
        asked["max_tokens"] = min(limit, _MOST_TOKENS)
    if asked.get("mirostat") not in _MIROSTATS:  # the engine would end the process
        raise errors.ConfigurationError("There is no such mirostat.", field="extra", fix="Use 0, 1 or 2.")
    form = asked.get("response_format")
    if form == {"type": "json_object"}:  # the engine would take any value for one
        form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    named = form.get("json_schema") if isinstance(form, dict) else None
    if isinstance(named, dict) and isinstance(schema := named.get("schema"), dict):
        schema = {"x-guidance": _FORM, **_with_ends(schema)}
        asked["response_format"] = {"type": "json_schema", "json_schema": {**named, "schema": schema}}
    return json.dumps(asked).encode()


def _with_whole_calls(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls all have arguments in JSON: the engine refuses what a model has left unfinished."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_whole(call) for call in message["tool_calls"]]}


def _whole(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not function:
        return call
    try:
        json.loads(function["arguments"])
    except ValueError:
        return {**call, "function": {**function, "arguments": json.dumps({"unreadable": function["arguments"]})}}
    return call


def _with_ends(schema: Any) -> Any:
    """The schema with an end to every number, and to every object that does not say it is open."""
    if isinstance(schema, list):
        return [_with_ends(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    ended: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, dict):
            ended[name] = {key: _with_ends(item) for key, item in value.items()}
        else:
            ended[name] = value if name in _LEFT_ALONE else _with_ends(value)
    kinds = ended.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if ("integer" in kinds or "number" in kinds) and not ended.keys() & {"enum", "const"}:
        _end_number(ended, whole="number" not in kinds)
    if "object" in kinds and "properties" in ended and not ended.keys() & _OPEN:
        ended["additionalProperties"] = False
    return ended


def _end_number(schema: dict[str, Any], *, whole: bool) -> None:
    """Bounds where there are none, as long as something is left between them."""
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
    """The body for a count: the engine tells it before it begins to read, and is stopped then."""
    asked: dict[str, Any] = {**body, "messages": [_with_whole_calls(message) for message in body["messages"]]}
    asked.update(stream=True, return_progress=True, cache_prompt=False, max_tokens=1)
    asked.pop("response_format", None)
    return json.dumps(asked).encode()
