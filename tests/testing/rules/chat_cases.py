"""Requests that Chat Completions refuses, and their neighbours that it takes."""

from __future__ import annotations

from typing import Any

from tests.testing.rules.cases import CHAT, CLOSED, OBJECT, PATTERN, USER, Bad, valid


def _chat(*messages: Any, **settings: Any) -> dict[str, Any]:
    return {**valid(CHAT), **({"messages": list(messages)} if messages else {}), **settings}


def _calls(*ids: str, name: str = "f") -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _result(id: str, content: Any = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def function(schema: Any = OBJECT, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


def _form(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


_UNANSWERED = "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
_STRAY = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."

_CHAT_CASES = (
    ("no model", {"messages": [USER]}, "you must provide a model parameter"),
    ("no messages", {"model": "gpt-4o"}, "Missing required parameter: 'messages'.", "messages"),
    ("an empty conversation", {"model": "gpt-4o", "messages": []}, "Invalid 'messages': empty array.", "messages"),
    (
        "messages that are no list",
        {"model": "gpt-4o", "messages": "Hi"},
        "expected an array of objects, but got a string",
    ),
    ("an unknown key", _chat(foo=1), "Unrecognized request argument supplied: foo"),
    ("an unknown role", _chat({"role": "bot", "content": "x"}), "Invalid value: 'bot'.", "messages[0].role"),
    ("an orphaned call", _chat(USER, _calls("call_1"), USER), _UNANSWERED, "messages.[2].role"),
    ("an orphaned call at the end", _chat(USER, _calls("call_1", "call_2"), _result("call_1")), "messages: call_2"),
    ("an orphaned result", _chat(USER, _result("call_1")), _STRAY, "messages.[1].role"),
    ("a result before its call", _chat(USER, _result("call_1"), _calls("call_1")), _STRAY),
    ("a result behind a question", _chat(USER, _calls("call_1"), USER, _result("call_1")), "call_1"),
    (
        "two results of one call",
        _chat(USER, _calls("call_1"), _result("call_1"), _result("call_1")),
        "Duplicate value for 'tool_call_id' of 'call_1', in messages[2] and messages[3].",
    ),
    ("a call's id twice", _chat(USER, _calls("c", "c"), _result("c")), "Duplicate value for 'id' of 'c'"),
    ("an id that is too long", _chat(USER, _calls("x" * 41), _result("x" * 41)), "maximum length 40"),
    (
        "a result without an id",
        _chat(USER, _calls("c"), {"role": "tool", "content": "x"}),
        "Missing parameter 'tool_call_id'",
    ),
    (
        "no calls at all",
        _chat(USER, {"role": "assistant", "content": "x", "tool_calls": []}),
        "tool_calls': empty array.",
    ),
    ("a bad name of a call", _chat(USER, _calls("c", name="a b"), _result("c")), PATTERN),
    ("a bad name of a tool", _chat(tools=[function(name="search.web")]), PATTERN, "tools[0].function.name"),
    ("a long name of a tool", _chat(tools=[function(name="n" * 65)]), "maximum length 64"),
    (
        "a tool without a function",
        _chat(tools=[{"type": "function"}]),
        "Missing required parameter: 'tools[0].function'.",
    ),
    ("no tools", _chat(tools=[]), "Invalid 'tools': empty array."),
    ("empty text", _chat({"role": "user", "content": ""}), "Invalid 'messages[0].content': empty string."),
    ("no content", _chat({"role": "user"}), "Invalid value for 'content': expected a string, got null."),
    ("no blocks", _chat({"role": "user", "content": []}), "Invalid 'messages[0].content': empty array."),
    (
        "an empty block",
        _chat({"role": "user", "content": [{"type": "text", "text": ""}]}),
        "content[0].text': empty string",
    ),
    (
        "a tool that answers with sound",
        _chat(USER, _calls("c"), _result("c", [{"type": "input_audio"}])),
        "Invalid 'messages[2]'. Content blocks are expected to be either text or image_url type.",
    ),
    (
        "parameters that are no object",
        _chat(tools=[function({"type": "array", "items": {}})]),
        "got 'type: \"array\"'.",
    ),
    (
        "an array without items",
        _chat(tools=[function({"type": "object", "properties": {"a": {"type": "array"}}})]),
        "In context=('properties', 'a'), array schema missing items.",
    ),
    (
        "a strict tool with an open schema",
        _chat(tools=[function(strict=True)]),
        "Invalid schema for function 'f': In context=(), 'additionalProperties' is required to be supplied",
        "tools[0].function.parameters",
    ),
    (
        "a strict tool with an optional parameter",
        _chat(tools=[function({**CLOSED, "required": []}, strict=True)]),
        "an array including every key in properties. Missing 'city'.",
    ),
    (
        "a strict schema with a keyword too many",
        _chat(
            response_format=_form({**CLOSED, "properties": {"city": {"type": "string", "minLength": 1}}}, strict=True)
        ),
        "In context=('properties', 'city'), 'minLength' is not permitted.",
        "response_format",
    ),
    (
        "a strict schema that is no object",
        _chat(response_format=_form({"type": "string"}, strict=True)),
        "got 'type: \"string\"'",
    ),
    (
        "a schema without a name",
        _chat(response_format={"type": "json_schema", "json_schema": {"schema": CLOSED}}),
        ".name'.",
    ),
    (
        "JSON that is not asked for",
        _chat(response_format={"type": "json_object"}),
        "'messages' must contain the word 'json'",
    ),
    ("an unknown format", _chat(response_format={"type": "xml"}), "Invalid value: 'xml'."),
    (
        "a temperature that is too high",
        _chat(temperature=2.5),
        "Expected a value <= 2, but got 2.5 instead.",
        "temperature",
    ),
    ("a temperature that is too low", _chat(temperature=-1), "decimal below minimum value.", "temperature"),
    ("a temperature in words", _chat(temperature="hot"), "expected a decimal, but got a string instead."),
    ("a limit of nothing", _chat(max_tokens=0), "Invalid 'max_tokens': integer below minimum value."),
    ("two limits", _chat(max_tokens=5, max_completion_tokens=5), "at the same time is not supported."),
    ("an old limit for a new model", _chat(model="gpt-5", max_tokens=5), "Use 'max_completion_tokens' instead."),
    ("a temperature for a model that has none", _chat(model="gpt-5", temperature=0.5), "Only the default (1) value"),
    ("too many stops", _chat(stop=list("abcde")), "Expected an array with maximum length 4", "stop"),
    ("a choice without tools", _chat(tool_choice="auto"), "'tool_choice' is only allowed when 'tools' are specified."),
    (
        "a choice of an unknown tool",
        _chat(tools=[function()], tool_choice={"type": "function", "function": {"name": "g"}}),
        "no function named 'g' was specified in 'tools'.",
    ),
    (
        "a choice of another vendor",
        _chat(tools=[function()], tool_choice="any"),
        "Invalid value: 'any'.",
        "tool_choice",
    ),
    ("options of a stream without one", _chat(stream_options={}), "only allowed when 'stream' is enabled."),
    ("top_logprobs alone", _chat(top_logprobs=3), "only allowed when 'logprobs' is set to true."),
)

BAD = tuple(Bad(case[0], CHAT, *case[1:]) for case in _CHAT_CASES)

GOOD = (
    ("a plain question", CHAT, _chat()),
    (
        "a call and its result",
        CHAT,
        _chat(USER, _calls("c"), _result("c"), USER, tools=[function(CLOSED, strict=True)]),
    ),
    ("empty words beside calls", CHAT, _chat(USER, {**_calls("c"), "content": ""}, _result("c", ""), USER)),
)
"""Their neighbours, which are taken."""
