"""Requests that the Responses API refuses, and their neighbours that it takes."""

from __future__ import annotations

from typing import Any

from tests.testing.rules.cases import CLOSED, OBJECT, PATTERN, RESPONSES, USER, Bad, valid
from tests.testing.rules.chat_cases import function


def _responses(*items: Any, **settings: Any) -> dict[str, Any]:
    return {**valid(RESPONSES), **({"input": list(items)} if items else {}), **settings}


def _call(id: str = "call_1", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}", **more}


def _output(id: str = "call_1", kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": id, "output": "done"}


def _tool(schema: Any = OBJECT, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": schema, **more}


def _reason(sealed: str | None = "seal", id: str | None = "rs_1") -> dict[str, Any]:
    kept = {"id": id, "encrypted_content": sealed}
    return {"type": "reasoning", "summary": [], **{key: value for key, value in kept.items() if value is not None}}


_SAID = {"type": "message", "role": "assistant", "id": "msg_1", "content": [{"type": "output_text", "text": "Hello"}]}

_COMPUTER = {"type": "computer_call", "id": "cu_1", "call_id": "call_1", "actions": [], "pending_safety_checks": []}
_SCREENSHOT = {
    "type": "computer_call_output",
    "call_id": "call_1",
    "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"},
}

_RESPONSES_CASES = (
    ("no model", {"input": "Hi"}, "Missing required parameter: 'model'.", "model"),
    ("no input", {"model": "gpt-4o"}, 'One of "input" or "previous_response_id"', "input"),
    ("an unknown key", _responses(stop=["x"]), "Unknown parameter: 'stop'.", "stop"),
    ("an orphaned call", _responses(USER, _call(), USER), "No tool output found for function call call_1.", "input"),
    (
        "an orphaned output",
        _responses(USER, _output()),
        "No tool call found for function call output with call_id call_1.",
    ),
    ("an output before its call", _responses(USER, _output(), _call()), "No tool call found for function call output"),
    (
        "an output of another kind",
        _responses(USER, _call(), _output(kind="custom_tool_call_output")),
        "No tool call found for custom tool call output with call_id call_1.",
    ),
    ("a call's id twice", _responses(USER, _call(), _call(), _output()), "Duplicate function call for call_id call_1."),
    ("two outputs of one call", _responses(USER, _call(), _output(), _output()), "Duplicate function call output"),
    (
        "an orphaned computer call",
        _responses(USER, _COMPUTER),
        "No tool output found for computer call call_1.",
        "input",
    ),
    (
        "a computer call without a screenshot",
        _responses(USER, _COMPUTER, {**_SCREENSHOT, "output": {"type": "computer_screenshot"}}),
        "Missing required parameter: 'input[2].output.image_url'.",
    ),
    ("an item's id twice", _responses(USER, _SAID, USER, _SAID, USER), "Duplicate item found with id msg_1."),
    ("an id of another kind", _responses(USER, {**_call(), "id": "call_1"}, _output()), "begins with 'fc'."),
    ("a call's id that is too long", _responses(USER, _call("x" * 65), _output("x" * 65)), "maximum length 64"),
    (
        "a call without an id",
        _responses(USER, {**_call(), "call_id": None}),
        "Missing required parameter: 'input[1].call_id'.",
    ),
    ("a bad name of a call", _responses(USER, _call(name="a.b"), _output()), PATTERN, "input[1].name"),
    (
        "a tool as Chat has it",
        _responses(tools=[function()]),
        "Missing required parameter: 'tools[0].name'.",
        "tools[0].name",
    ),
    ("a bad name of a tool", _responses(tools=[_tool(name="a b")]), PATTERN),
    ("an empty message", _responses({"role": "user", "content": ""}), "Invalid 'input[0].content': empty string."),
    ("no blocks", _responses({"role": "user", "content": []}), "Invalid 'input[0].content': empty array."),
    ("an empty block", _responses({"role": "user", "content": [{"type": "input_text", "text": ""}]}), "empty string"),
    ("an unknown role", _responses({"role": "tool", "content": "x"}), "Invalid value: 'tool'.", "input[0].role"),
    (
        "an assistant with a user's words",
        _responses(USER, {"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}, USER),
        "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
        "input[1].content[0]",
    ),
    (
        "blocks as Chat has them",
        _responses({"role": "user", "content": [{"type": "text", "text": "x"}]}),
        "Invalid value: 'text'.",
    ),
    (
        "reasoning made elsewhere",
        _responses(USER, _reason(), _SAID, USER),
        "The encrypted content seal could not be verified.",
    ),
    (
        "stored reasoning that is not there",
        _responses(USER, _reason(None), _SAID, USER),
        "Item with id 'rs_1' not found.",
    ),
    (
        "reasoning at the end",
        _responses(USER, _reason("declared")),
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        "input",
    ),
    (
        "reasoning before a question",
        _responses(USER, _reason("declared"), USER),
        "without its required following item.",
    ),
    (
        "reasoning before other words",
        _responses(USER, _reason("declared"), {"role": "assistant", "content": "edited"}, USER),
        "without its required following item.",
    ),
    (
        "an unknown answer to go on from",
        _responses(previous_response_id="resp_0"),
        "Previous response with id 'resp_0' not found.",
    ),
    ("a limit that is too low", _responses(max_output_tokens=1), "Expected a value >= 16, but got 1 instead."),
    (
        "a temperature that is too high",
        _responses(temperature=3),
        "Invalid 'temperature': decimal above maximum value.",
    ),
    (
        "a temperature for a model that has none",
        _responses(model="gpt-5", temperature=0.5),
        "is not supported with this model.",
    ),
    ("a choice without tools", _responses(tool_choice="required"), "must be specified with 'tools' parameter."),
    (
        "a choice of an unknown tool",
        _responses(tools=[_tool()], tool_choice={"type": "function", "name": "g"}),
        "Tool choice 'g' not found in 'tools' parameter.",
    ),
    (
        "a strict tool with an open schema",
        _responses(tools=[_tool(strict=True)]),
        "'additionalProperties' is required to be supplied and to be false.",
        "tools[0].parameters",
    ),
    (
        "a strict schema with a keyword too many",
        _responses(
            text={"format": {"type": "json_schema", "name": "a", "strict": True, "schema": {**CLOSED, "oneOf": []}}}
        ),
        "'oneOf' is not permitted.",
    ),
    (
        "a reference that leads nowhere",
        _responses(
            text={
                "format": {
                    "type": "json_schema",
                    "name": "a",
                    "strict": True,
                    "schema": {**CLOSED, "properties": {"city": {"$ref": "#/$defs/City"}}},
                }
            }
        ),
        "reference to component '#/$defs/City' which was not found in the schema.",
    ),
    (
        "JSON that is not asked for",
        _responses(text={"format": {"type": "json_object"}}),
        "must contain the word 'json'",
    ),
)

BAD = tuple(Bad(case[0], RESPONSES, *case[1:]) for case in _RESPONSES_CASES)

GOOD = (
    ("a plain question", RESPONSES, _responses()),
    ("reasoning that is known", RESPONSES, _responses(USER, _reason("declared"), _SAID, USER)),
    ("a computer call and its screenshot", RESPONSES, _responses(USER, _COMPUTER, _SCREENSHOT)),
    ("a call and its output", RESPONSES, _responses(USER, _call(), _output(), tools=[_tool(CLOSED, strict=True)])),
)
"""Their neighbours, which are taken."""
