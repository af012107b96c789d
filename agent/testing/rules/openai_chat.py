"""What Chat Completions refuses.

Many vendors speak this format, each a little differently. The rules are those of the format's maker, and where it is
more patient than others who speak it (it takes empty text), the others' rule stands: a request that keeps to all of
this is taken everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from typing_extensions import override

from ...models import facts
from ...providers.openai_chat.dialect import OPENAI_REFUSALS
from . import openai
from .base import Known, Rules, Violation, a_text, an_object, is_among, objects_in

KEYS = frozenset(
    (
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "modalities",
        "model",
        "moderation",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
        "web_search_options",
    )
)
_ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_DECIMALS: Mapping[str, openai.Range] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
_INTEGERS: Mapping[str, openai.Range] = {
    "n": (1, 128),
    "top_logprobs": (0, 20),
    "max_tokens": (1, None),
    "max_completion_tokens": (1, None),
}
_MOST_STOPS = 4
_REASONING_MODELS = re.compile(r"(?:o\d|gpt-5)(?!.*chat)")
_INSTEAD_OF_CONTENT = ("tool_calls", "function_call", "refusal", "audio")


@dataclass(frozen=True, slots=True)
class ChatRules(Rules):
    """The format's rules.

    Args:
        longest_call_id: Other vendors take longer ids than the format's maker.
    """

    name: ClassVar[str] = "openai-chat"
    longest_call_id: int = 40

    @override
    def broken(
        self, body: Mapping[str, Any], known: Known, *, model: str = "", counting: bool = False
    ) -> Iterator[Violation]:
        if not a_text(body.get("model")) and not model:
            yield Violation("you must provide a model parameter")
        for key in body:
            if key not in KEYS and key not in known.keys:
                yield Violation(f"Unrecognized request argument supplied: {key}")
        yield from self._messages(body.get("messages"))
        yield from _settings(body)
        yield from _tools(body)
        yield from _response_format(body)

    @override
    def complaint(self, violation: Violation) -> dict[str, Any]:
        return openai.complaint(violation)

    @override
    def unreadable(self) -> Violation:
        return openai.unreadable()

    def _messages(self, messages: Any) -> Iterator[Violation]:
        if messages is None:
            yield openai.missing("messages")
        elif not isinstance(messages, list):
            yield openai.wrong_type("messages", "an array of objects", messages)
        elif not messages:
            yield openai.empty_array("messages")
        else:
            calls = _Calls(self.longest_call_id)
            for n, message in enumerate(messages):
                if not isinstance(message, dict):
                    yield openai.wrong_type(f"messages[{n}]", "an object", message)
                    continue
                if message.get("role") not in _ROLES:
                    yield openai.wrong_value(f"messages[{n}].role", message.get("role"), _ROLES)
                yield from calls.take(n, message)
                yield from _content(n, message)
            yield from calls.left_open(len(messages))


@dataclass(slots=True)
class _Calls:
    """Which calls wait for their results, on the way through a conversation."""

    longest_id: int
    waiting: dict[str, int] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)
    """Results since the last call, and where they stand."""
    seen: set[str] = field(default_factory=set)

    def take(self, n: int, message: Mapping[str, Any]) -> Iterator[Violation]:
        if message.get("role") == "tool":
            yield from self._result(n, message)
            return
        yield from self.left_open(n)
        self.answered = {}
        calls = message.get("tool_calls")
        if calls is None:
            return
        if message.get("role") != "assistant":
            said = f"'tool_calls' is not allowed in messages with role '{message.get('role')}'."
            yield Violation(f"Invalid parameter: {said}", f"messages.[{n}].tool_calls")
        if calls == []:
            yield openai.empty_array(f"messages[{n}].tool_calls")
        for position, call in objects_in(calls):
            yield from self._call(call, n, f"messages[{n}].tool_calls[{position}]")

    def _call(self, call: Mapping[str, Any], n: int, at: str) -> Iterator[Violation]:
        id = call.get("id")
        kind = "custom" if call.get("type") == "custom" else "function"
        function = an_object(call.get(kind))
        if id is None:
            yield openai.missing(f"{at}.id")
        elif not isinstance(id, str):
            yield openai.wrong_type(f"{at}.id", "a string", id)
        else:
            yield from openai.too_long(f"{at}.id", id, self.longest_id)
            if id in self.seen:
                yield Violation(f"Invalid parameter: Duplicate value for 'id' of '{id}' in 'tool_calls'.", f"{at}.id")
            self.seen.add(id)
            self.waiting[id] = n
        yield from openai.broken_name(f"{at}.{kind}.name", function.get("name"))
        text = "input" if kind == "custom" else "arguments"
        if function.get(text) is None:
            yield openai.missing(f"{at}.{kind}.{text}")
        elif not isinstance(function[text], str):
            yield openai.wrong_type(f"{at}.{kind}.{text}", "a string", function[text])

    def _result(self, n: int, message: Mapping[str, Any]) -> Iterator[Violation]:
        id = message.get("tool_call_id")
        if not isinstance(id, str):
            said = "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'."
            yield Violation(said, f"messages.[{n}].tool_call_id")
        elif id in self.answered:
            said = f"Duplicate value for 'tool_call_id' of '{id}', in messages[{self.answered[id]}] and messages[{n}]."
            yield Violation(f"Invalid parameter: {said}", f"messages.[{n}].tool_call_id")
        elif id not in self.waiting:
            said = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
            yield Violation(f"Invalid parameter: {said}", f"messages.[{n}].role")
        else:
            del self.waiting[id]
            self.answered[id] = n

    def left_open(self, n: int) -> Iterator[Violation]:
        if not self.waiting:
            return
        said = (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            "'tool_call_id'. The following tool_call_ids did not have response messages: "
        )
        yield Violation(said + ", ".join(self.waiting), f"messages.[{n}].role")
        self.waiting = {}


def _content(n: int, message: Mapping[str, Any]) -> Iterator[Violation]:
    content, role = message.get("content"), message.get("role")
    at = f"messages[{n}].content"
    says_more = any(message.get(key) for key in _INSTEAD_OF_CONTENT)
    if content is None:
        if not says_more:
            said = "Invalid value for 'content': expected a string, got null."
            yield Violation(said, f"messages.[{n}].content")
        return
    if not isinstance(content, str | list):
        yield openai.wrong_type(at, "one of a string or array of objects", content)
        return
    if role == "tool":
        # A tool may have nothing to say; but what it says is text, or a picture at most.
        if any(block.get("type") not in ("text", "image_url") for _, block in objects_in(content)):
            said = "Content blocks are expected to be either text or image_url type."
            yield Violation(f"Invalid 'messages[{n}]'. {said}", f"messages[{n}]", "invalid_value")
        return
    if content == "" and not says_more:
        yield openai.empty_string(at)
    if content == [] and not says_more:
        yield openai.empty_array(at)
    for position, block in objects_in(content):
        if "type" not in block:
            yield openai.missing(f"{at}[{position}].type")
        if block.get("type") == "text" and block.get("text") == "":
            yield openai.empty_string(f"{at}[{position}].text")


def _settings(body: Mapping[str, Any]) -> Iterator[Violation]:
    model = a_text(body.get("model"))
    yield from openai.out_of_range(body, _DECIMALS, _INTEGERS)
    if body.get("max_tokens") is not None:
        if body.get("max_completion_tokens") is not None:
            said = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
            yield Violation(said, "max_tokens", "invalid_parameter_combination")
        if _REASONING_MODELS.match(model):
            said = "Unsupported parameter: 'max_tokens' is not supported with this model."
            yield Violation(f"{said} Use 'max_completion_tokens' instead.", "max_tokens", "unsupported_parameter")
    for models, settings in OPENAI_REFUSALS:
        for key in sorted(settings):
            if body.get(key) not in (None, []) and re.match(models, model):
                said = f"Unsupported parameter: '{key}' is not supported with this model."
                yield Violation(said, key, "unsupported_parameter")
    thinks = body.get("reasoning_effort") != "none"
    for key in ("temperature", "top_p"):
        if body.get(key) not in (None, 1) and thinks and facts("openai", model).sampling is False:
            said = f"Unsupported value: '{key}' does not support {body[key]} with this model."
            yield Violation(f"{said} Only the default (1) value is supported.", key, "unsupported_value")
    if isinstance(body.get("stop"), list):
        yield from openai.too_long("stop", body["stop"], _MOST_STOPS)
    if body.get("stream_options") is not None and not body.get("stream"):
        said = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        yield Violation(said, "stream_options")
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        said = "Invalid value for 'top_logprobs': 'top_logprobs' is only allowed when 'logprobs' is set to true."
        yield Violation(said, "top_logprobs")


def _tools(body: Mapping[str, Any]) -> Iterator[Violation]:
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools == []:
        yield openai.empty_array("tools")
    names: set[str] = set()
    for n, tool in objects_in(tools):
        kind = tool.get("type")
        if kind is None:
            yield openai.missing(f"tools[{n}].type")
        elif kind == "function":
            function = tool.get("function")
            if isinstance(function, dict):
                yield from openai.broken_function(function, f"tools[{n}].function")
            else:
                yield openai.missing(f"tools[{n}].function")
        if isinstance(kind, str):
            names.add(a_text(an_object(tool.get(kind)).get("name")))
    for key in ("tool_choice", "parallel_tool_calls"):
        if not tools and body.get(key) is not None and not body.get("functions"):
            yield Violation(f"Invalid value for '{key}': '{key}' is only allowed when 'tools' are specified.", key)
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            yield openai.wrong_value("tool_choice", choice, ("none", "auto", "required"))
    elif isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        wanted = an_object(choice.get(choice["type"])).get("name")
        if wanted is None:
            yield openai.missing(f"tool_choice.{choice['type']}.name")
        elif not is_among(wanted, names):
            said = f"Invalid value for 'tool_choice': no {choice['type']} named '{wanted}' was specified in 'tools'."
            yield Violation(said, f"tool_choice.{choice['type']}.name")


def _response_format(body: Mapping[str, Any]) -> Iterator[Violation]:
    form = an_object(body.get("response_format"))
    match form.get("type"):
        case "json_schema":
            schema = form.get("json_schema")
            if isinstance(schema, dict):
                yield from openai.broken_format(schema, "response_format", "response_format.json_schema")
            else:
                yield openai.missing("response_format.json_schema")
        case "json_object":
            if not openai.says_json(body.get("messages")):
                said = "'messages' must contain the word 'json' in some form"
                yield Violation(f"{said}, to use 'response_format' of type 'json_object'.", "messages")
        case "text" | None:
            pass
        case other:
            yield openai.wrong_value("response_format.type", other, ("json_object", "json_schema", "text"))
