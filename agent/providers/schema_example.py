"""The plainest value that fits a JSON schema: what the scripted provider answers when nobody told it what to say."""

from __future__ import annotations

from typing import Any

_MAX_DEPTH = 8


def example_of(schema: Any) -> Any:
    return _example(schema, schema, 0)


def _example(schema: Any, root: Any, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    if "$ref" in schema:
        return _example(_resolve(schema["$ref"], root), root, depth + 1)
    for fixed in ("const", "default"):
        if fixed in schema:
            return schema[fixed]
    if schema.get("enum"):
        return schema["enum"][0]
    for several in ("anyOf", "oneOf", "allOf"):
        if schema.get(several):
            return _example(schema[several][0], root, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    match kind:
        case "object":
            return _object(schema, root, depth)
        case "array":
            items = max(schema.get("minItems", 1), 1) if depth < _MAX_DEPTH else schema.get("minItems", 0)
            return [_example(schema.get("items", {}), root, depth + 1) for _ in range(items)]
        case "string":
            return _string(schema)
        case "integer":
            return int(_number(schema))
        case "number":
            return _number(schema)
        case "boolean":
            return True
        case _:
            return _object(schema, root, depth) if "properties" in schema else None


def _resolve(reference: str, root: Any) -> Any:
    found = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, dict) else {}
    return found


def _object(schema: dict[str, Any], root: Any, depth: int) -> dict[str, Any]:
    properties: dict[str, Any] = schema.get("properties") or {}
    wanted = schema.get("required") or ()
    return {
        name: _example(value, root, depth + 1)
        for name, value in properties.items()
        if name in wanted or depth < _MAX_DEPTH // 2
    }


_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00",
    "email": "someone@example.com",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def _string(schema: dict[str, Any]) -> str:
    text = _FORMATS.get(schema.get("format", ""), "example")
    text = text.ljust(schema.get("minLength", 0), ".")
    return text[: schema.get("maxLength", len(text))]


def _number(schema: dict[str, Any]) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    value = max(1, low) if high is None or high >= 1 else low if "minimum" in schema else high
    return float(value)
