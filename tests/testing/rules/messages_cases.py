"""Requests that the Messages API refuses, and their neighbours that it takes."""

from __future__ import annotations

from typing import Any

from tests.testing.rules.cases import MESSAGES, OBJECT, USER, Bad, valid


def _messages(*messages: Any, **settings: Any) -> dict[str, Any]:
    return {**valid(MESSAGES), **({"messages": list(messages)} if messages else {}), **settings}


def _blocks(*blocks: Any, role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def _text(text: str = "x", **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def _use(id: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "f", "input": {}, **more}


def _answer(id: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": "done", **more}


def _results(*blocks: Any) -> dict[str, Any]:
    return _blocks(*(blocks or (_answer(),)), role="user")


def _think(signature: str | None = "declared", **more: Any) -> dict[str, Any]:
    signed = {} if signature is None else {"signature": signature}
    return {"type": "thinking", "thinking": "Hm.", **signed, **more}


def _custom(schema: Any = OBJECT, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": schema, **more}


def _mark(**more: Any) -> dict[str, Any]:
    return _text(cache_control={"type": "ephemeral", **more})


_THINKING = {"type": "enabled", "budget_tokens": 2048}
_FORM = {"type": "json_schema", "schema": OBJECT}

_MESSAGES_CASES = (
    ("no model", {"max_tokens": 9, "messages": [USER]}, "model: Field required"),
    ("no limit", {"model": "claude-sonnet-4-5", "messages": [USER]}, "max_tokens: Field required"),
    ("no messages", {"model": "claude-sonnet-4-5", "max_tokens": 9}, "messages: Field required"),
    ("an empty conversation", {**valid(MESSAGES), "messages": []}, "messages: at least one message is required"),
    ("an unknown key", _messages(n=2), "n: Extra inputs are not permitted"),
    ("an assistant who begins", _messages(_blocks(_text()), USER), 'first message must use the "user" role'),
    ("a system's message", _messages({"role": "system", "content": "x"}, USER), 'Unexpected role "system".'),
    (
        "an unknown role",
        _messages({"role": "tool", "content": "x"}),
        "messages.0.role: Input should be 'user' or 'assistant'",
    ),
    (
        "an orphaned call",
        _messages(USER, _blocks(_use()), USER),
        "messages.1: `tool_use` ids were found without `tool_result`",
    ),
    ("an orphaned call at the end", _messages(USER, _blocks(_use())), "immediately after: toolu_1."),
    (
        "an orphaned result",
        _messages(USER, _blocks(_text()), _results()),
        "messages.2.content.0: unexpected `tool_use_id`",
    ),
    (
        "a result behind words",
        _messages(USER, _blocks(_use()), _results(_text(), _answer())),
        "without `tool_result` blocks",
    ),
    (
        "a call's id twice",
        _messages(USER, _blocks(_use(), _use()), _results()),
        "messages.1.content.1: `tool_use` ids must be unique",
    ),
    (
        "two results of one call",
        _messages(USER, _blocks(_use()), _results(_answer(), _answer())),
        "must have a single result.",
    ),
    (
        "a call's id in another form",
        _messages(USER, _blocks(_use("functions.f:0")), _results(_answer("functions.f:0"))),
        "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    ),
    (
        "a bad name of a call",
        _messages(USER, _blocks(_use(name="a.b")), _results()),
        "tool_use.name: String should match",
    ),
    (
        "arguments as text",
        _messages(USER, _blocks(_use(input="{}")), _results()),
        "input: Input should be a valid dictionary",
    ),
    (
        "a bad name of a tool",
        _messages(tools=[_custom(name="a b")]),
        "tools.0.custom.name: String should match pattern",
    ),
    ("two tools of one name", _messages(tools=[_custom(), _custom()]), "tools: Tool names must be unique."),
    ("a tool without a schema", _messages(tools=[{"name": "f"}]), "tools.0.custom.input_schema: Field required"),
    ("a schema without a type", _messages(tools=[_custom({})]), "tools.0.custom.input_schema.type: Field required"),
    ("a schema of alternatives", _messages(tools=[_custom({"type": "object", "anyOf": []})]), "at the top level"),
    (
        "a call by the user",
        _messages(_blocks(_use(), role="user")),
        "`tool_use` blocks can only be in `assistant` messages",
    ),
    ("empty text", _messages(_blocks(_text(""), role="user")), "messages: text content blocks must be non-empty"),
    ("blank text", _messages(_blocks(_text(" \n"), role="user")), "must contain non-whitespace text"),
    (
        "an empty message",
        _messages({"role": "user", "content": []}),
        "messages.0: all messages must have non-empty content",
    ),
    ("an empty instruction", _messages(system=[_text("")]), "system: text content blocks must be non-empty"),
    (
        "white space to go on from",
        _messages(USER, {"role": "assistant", "content": "So "}),
        "cannot end with trailing whitespace",
    ),
    (
        "words to go on from, for a model that does not",
        _messages(USER, _blocks(_text()), model="claude-opus-4-6"),
        "prefill",
    ),
    (
        "a thought without a signature",
        _messages(USER, _blocks(_think(None), _text()), USER),
        "thinking.signature: Field required",
    ),
    (
        "a thought made elsewhere",
        _messages(USER, _blocks(_think("x"), _text()), USER),
        "Invalid `signature` in `thinking` block",
    ),
    ("a thought with an empty signature", _messages(USER, _blocks(_think(""), _text()), USER), "Invalid `signature`"),
    (
        "sealed thought made elsewhere",
        _messages(USER, _blocks({"type": "redacted_thinking", "data": "x"}, _text()), USER),
        "Invalid `data` in `redacted_thinking` block",
    ),
    (
        "a thought that comes last",
        _messages(USER, _blocks(_text(), _think()), USER),
        "The final block in an assistant message",
    ),
    (
        "calls without a thought",
        _messages(USER, _blocks(_use()), _results(), thinking=_THINKING),
        "Expected `thinking` or `redacted_thinking`, but found `tool_use`.",
    ),
    ("thinking and words to go on from", _messages(USER, _blocks(_text()), thinking=_THINKING), "but found `text`."),
    (
        "a budget above the limit",
        _messages(max_tokens=2048, thinking=_THINKING),
        "must be greater than `thinking.budget_tokens`",
    ),
    (
        "a budget that is too small",
        _messages(thinking={"type": "enabled", "budget_tokens": 100}),
        "greater than or equal to 1024",
    ),
    (
        "thinking and a temperature",
        _messages(thinking=_THINKING, temperature=0.5),
        "may only be set to 1 when thinking",
    ),
    ("thinking and top_k", _messages(thinking=_THINKING, top_k=5), "`top_k` must be unset when thinking"),
    (
        "thinking and a forced call",
        _messages(thinking=_THINKING, tools=[_custom()], tool_choice={"type": "any"}),
        "Thinking may not be enabled when tool_choice forces tool use.",
    ),
    ("a temperature that is too high", _messages(temperature=1.5), "temperature: range: 0..1"),
    ("two samplers", _messages(temperature=0.5, top_p=0.5), "cannot both be specified for this model."),
    ("a limit of nothing", _messages(max_tokens=0), "max_tokens: must be greater than or equal to 1"),
    ("a limit beyond the model's", _messages(max_tokens=10**7), "which is the maximum allowed number of output tokens"),
    (
        "a blank stop",
        _messages(stop_sequences=["\n"]),
        "stop_sequences: each stop sequence must contain non-whitespace",
    ),
    ("a choice without tools", _messages(tool_choice={"type": "auto"}), "may only be specified while providing tools"),
    (
        "a choice of an unknown tool",
        _messages(tools=[_custom()], tool_choice={"type": "tool", "name": "g"}),
        "Tool 'g' not found in provided tools",
    ),
    ("a choice in another vendor's words", _messages(tools=[_custom()], tool_choice="auto"), "tool_choice: Input tag"),
    (
        "five marks",
        _messages(_blocks(*[_mark()] * 5, role="user")),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    (
        "a long mark after a short one",
        _messages(_blocks(_mark(), _mark(ttl="1h"), role="user")),
        "a ttl='1h' cache_control block must not",
    ),
    (
        "a failed call that shows a picture",
        _messages(USER, _blocks(_use()), _results(_answer(is_error=True, content=[{"type": "image"}]))),
        "all content must be type `text` if `is_error` is true",
    ),
    (
        "an open schema of an answer",
        _messages(output_config={"format": _FORM}),
        "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false",
    ),
    (
        "a keyword that is not enforced",
        _messages(output_config={"format": {**_FORM, "schema": {"type": "integer", "minimum": 1}}}),
        "For 'integer' type, properties minimum are not supported",
    ),
    ("a strict tool with an open schema", _messages(tools=[_custom(strict=True)]), "tools.0.custom: For 'object' type"),
    (
        "an effort that the model does not know",
        _messages(model="claude-opus-4-6", output_config={"effort": "xhigh"}),
        "This model does not support effort level 'xhigh'. Supported levels: high, low, max, medium.",
    ),
)

BAD = tuple(Bad(case[0], MESSAGES, *case[1:]) for case in _MESSAGES_CASES)

GOOD = (
    ("a plain question", MESSAGES, _messages()),
    ("two messages of one role", MESSAGES, _messages(USER, _blocks(_use()), _results(), _results(_text()))),
    ("words to go on from", MESSAGES, _messages(USER, _blocks(_text()))),
    (
        "a thought before its call",
        MESSAGES,
        _messages(USER, _blocks(_think(), _use()), _results(), thinking=_THINKING),
    ),
    (
        "an old call without a thought",
        MESSAGES,
        _messages(USER, _blocks(_use()), _results(), _blocks(_text()), USER, thinking=_THINKING),
    ),
    ("four marks", MESSAGES, _messages(_blocks(*[_mark()] * 4, role="user"))),
)
"""Their neighbours, which are taken."""
