"""The rules of the Messages API for settings: which go together, and which each model takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent import errors
from agent.engine.wire import Reply
from agent.models import ModelFacts
from agent.providers.anthropic import AnthropicCodec
from agent.providers.anthropic import fields as wording
from agent.providers.anthropic.codec import merge_betas
from agent.providers.anthropic.conversation import SHORTENED, TOO_MANY_BREAKPOINTS
from agent.providers.anthropic.messages import NO_BREAKPOINT
from agent.providers.anthropic.models import features_of
from agent.providers.base import ApiAddress
from agent.types import AgentRequest, Message, Role, TextContent, ToolResult, ToolSpec, VendorContent
from tests.providers.anthropic_requests import (
    CALL,
    CODEC,
    HOME,
    RESULT,
    SONNET,
    THOUGHT,
    WEATHER,
    body_of,
    encode,
    warnings_of,
    wire_of,
)


def test_a_tool_without_parameters_still_takes_an_object() -> None:
    (tool,) = encode(tools=[ToolSpec(name="now")])["tools"]
    assert tool == {"name": "now", "input_schema": {"type": "object", "properties": {}}}
    (tool,) = encode(tools=[ToolSpec(name="now", parameters={"properties": {}})])["tools"]
    assert tool["input_schema"]["type"] == "object"


def test_strictness_is_passed_on() -> None:
    (tool,) = encode(tools=[WEATHER.model_copy(update={"strict": True})])["tools"]
    assert tool["strict"] is True
    (tool,) = encode(tools=[WEATHER.model_copy(update={"strict": False})])["tools"]
    assert tool["strict"] is False
    assert tool["input_schema"] == WEATHER.parameters


def test_tools_of_the_vendor_pass_untouched() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    assert encode(tools=[search])["tools"] == [search]


@pytest.mark.parametrize(
    ("choice", "parallel", "written"),
    [
        (None, None, None),
        (None, True, None),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("auto", None, {"type": "auto"}),
        ("none", False, {"type": "none"}),
        ("required", None, {"type": "any"}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("get_weather", None, {"type": "tool", "name": "get_weather"}),
    ],
)
def test_choices_are_written_in_the_vendors_words(choice: str | None, parallel: bool | None, written: Any) -> None:
    body = encode(tools=[WEATHER], tool_choice=choice, parallel_tool_calls=parallel)
    assert body.get("tool_choice") == written


def test_a_choice_without_tools_is_left_out() -> None:
    assert "tool_choice" not in encode(tool_choice="required")
    assert wording.CHOICE_WITHOUT_TOOLS in warnings_of(tool_choice="required")
    assert warnings_of(tool_choice="auto") == ()


def test_models_that_cannot_be_made_to_call_are_left_the_choice() -> None:
    fields: dict[str, Any] = {"model": "claude-opus-5-5", "tools": [WEATHER], "tool_choice": "required"}
    assert encode(**fields)["tool_choice"] == {"type": "auto"}
    assert wording.NO_FORCED_CALLS in warnings_of(**fields)


def test_features_in_beta_are_announced() -> None:
    def betas(**fields: Any) -> str | None:
        header = dict(wire_of(Message.user("Hi"), **fields).headers).get(b"anthropic-beta")
        return None if header is None else header.decode()

    assert betas(tools=[{"type": "web_search_20250305", "name": "web_search"}]) is None
    assert betas(tools=[{"type": "computer_20251124", "name": "computer"}]) == "computer-use-2025-11-24"
    assert betas(extra={"mcp_servers": []}) == "mcp-client-2025-04-04"
    toolset = {"type": "mcp_toolset", "mcp_server_name": "x"}
    assert betas(extra={"mcp_servers": []}, tools=[toolset]) == "mcp-client-2025-11-20"


def test_blocks_in_the_conversation_need_their_beta_too() -> None:
    summary = VendorContent(kind="compaction", provider_data={"type": "compaction", "content": "x"}, origin=HOME)
    wire = wire_of(Message.user("Hi"), Message.assistant([summary]), Message.user("Go on"))
    assert dict(wire.headers)[b"anthropic-beta"] == b"compact-2026-01-12"


def test_the_callers_own_betas_stay_and_count() -> None:
    codec = AnthropicCodec(ApiAddress("https://x.test", None), {"Anthropic-Beta": "mine-2025-01-01"})
    tools = [{"type": "computer_20250124", "name": "computer"}]
    headers = wire_of(Message.user("Hi"), codec=codec, tools=tools).headers
    assert [value for name, value in headers if name == b"anthropic-beta"] == [
        b"mine-2025-01-01,computer-use-2025-01-24"
    ]
    assert merge_betas("mcp-client-2026-09-15", ["mcp-client-2025-11-20"]) == "mcp-client-2026-09-15"


def test_max_tokens_is_always_sent() -> None:
    assert encode(max_tokens=7)["max_tokens"] == 7
    assert encode(model="unknown-model")["max_tokens"] == wording.UNKNOWN_MODEL_MAX_TOKENS
    assert 0 < encode()["max_tokens"] <= encode(stream=True)["max_tokens"] <= wording.DEFAULT_STREAM_MAX_TOKENS


def test_what_is_known_of_a_model_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ModelFacts(provider="anthropic", model=SONNET, max_output=20_000, sampling=False)
    monkeypatch.setattr(wording, "facts", lambda provider, model: known)
    assert encode()["max_tokens"] == 16_384
    assert encode(stream=True)["max_tokens"] == 20_000
    body = encode(temperature=0.5, top_p=0.9)
    assert "temperature" not in body
    assert "top_p" not in body
    assert warnings_of(temperature=0.5) == (wording.NO_SAMPLING,)


def test_temperatures_end_at_one() -> None:
    assert "temperature" not in encode(temperature=1.5)
    assert wording.TEMPERATURE_TOO_HIGH in warnings_of(temperature=1.5)


def test_newer_models_take_temperature_or_top_p() -> None:
    body = encode(temperature=0.5, top_p=0.9)
    assert (body["temperature"], body.get("top_p")) == (0.5, None)
    assert wording.ONE_SAMPLER in warnings_of(temperature=0.5, top_p=0.9)
    body = encode(model="claude-sonnet-4-0", temperature=0.5, top_p=0.9)
    assert (body["temperature"], body["top_p"]) == (0.5, 0.9)


def test_seeds_logprobs_and_blank_stops_are_left_out() -> None:
    body = encode(seed=1, logprobs=2, stop=["\n\n", "END"])
    assert body["stop_sequences"] == ["END"]
    assert not {"seed", "logprobs"} & set(body)
    assert set(warnings_of(seed=1, logprobs=2, stop=["\n\n"])) == {
        wording.NO_SEED,
        wording.NO_LOGPROBS,
        wording.BLANK_STOP,
    }


def test_what_json_cannot_hold_is_refused_before_anything_is_sent() -> None:
    for fields in ({"system": "half \ud83d"}, {"extra": {"x": object()}}):
        with pytest.raises(errors.ConfigurationError, match="JSON"):
            encode(**fields)
    with pytest.raises(errors.ConfigurationError, match="JSON"):
        body_of(Message.user("half \ud83d"))


def test_extra_goes_in_untouched_but_replaces_nothing_that_the_request_says() -> None:
    assert encode(extra={"top_k": 3, "container": "c"})["top_k"] == 3
    with pytest.raises(errors.ConfigurationError, match="messages"):
        encode(extra={"messages": []})
    own: dict[str, Any] = {"system": "Be brief.", "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
    assert encode(extra=own).items() >= own.items()
    for key, said in (("system", "Be kind."), ("tools", [WEATHER])):
        with pytest.raises(errors.ConfigurationError, match=key):
            encode(extra=own, **{key: said})


@pytest.mark.parametrize(
    ("model", "level", "thinking", "effort"),
    [
        (SONNET, "low", {"type": "enabled", "budget_tokens": 2048}, None),
        (SONNET, "off", None, None),
        ("claude-3-7-sonnet-20250219", "minimal", {"type": "enabled", "budget_tokens": 1024}, None),
        ("claude-opus-4@20250514", "medium", {"type": "enabled", "budget_tokens": 8192}, None),
        ("anthropic.claude-opus-4-6-v1", "minimal", {"type": "adaptive"}, "low"),
        ("claude-sonnet-4-6", "xhigh", {"type": "adaptive"}, "max"),
        ("claude-sonnet-4-6", "off", None, None),
        ("claude-opus-4-8", "xhigh", {"type": "adaptive", "display": "summarized"}, "xhigh"),
        ("claude-opus-4-7", "off", None, None),
        ("claude-sonnet-5", "medium", {"type": "adaptive", "display": "summarized"}, "medium"),
        ("claude-sonnet-5", "off", {"type": "disabled"}, None),
        ("claude-haiku-5-5", "off", {"type": "disabled"}, None),
        ("claude-sonnet-5-5", "off", {"type": "between_tools"}, None),
        ("claude-opus-5-5", "off", None, "low"),
        ("claude-fable-5", "off", None, "low"),
        ("claude-3-haiku-20240307", "high", None, None),
        ("glm-4.6", "low", {"type": "enabled", "budget_tokens": 2048}, None),
        ("glm-4.6", "off", {"type": "disabled"}, None),
    ],
)
def test_each_family_is_asked_in_its_manner(
    model: str, level: str, thinking: dict[str, Any] | None, effort: str | None
) -> None:
    body = encode(model=model, thinking=level)
    assert body.get("thinking") == thinking
    assert (body.get("output_config") or {}).get("effort") == effort


def test_unasked_nothing_is_said_about_it() -> None:
    assert not {"thinking", "output_config"} & set(encode(model="claude-opus-5"))


def test_models_that_do_not_think_or_always_do_are_named_in_a_warning() -> None:
    assert warnings_of(model="claude-3-haiku-20240307", thinking="low") == (wording.DOES_NOT_THINK,)
    assert warnings_of(model="claude-opus-5-5", thinking="off") == (wording.ALWAYS_THINKS,)


def test_a_budget_leaves_room_for_the_answer() -> None:
    body = encode(thinking="high", max_tokens=4096)
    assert body["thinking"]["budget_tokens"] == 3072
    assert "limited to 3072" in warnings_of(thinking="high", max_tokens=4096)[0]
    assert encode(thinking="minimal", max_tokens=2048)["thinking"]["budget_tokens"] == 1024
    assert "thinking" not in encode(thinking="high", max_tokens=2047)
    assert warnings_of(thinking="high", max_tokens=2047) == (wording.NO_ROOM_TO_THINK,)
    unlimited = encode(model="claude-sonnet-4-5-unheard-of", thinking="high")
    assert unlimited["max_tokens"] > unlimited["thinking"]["budget_tokens"]


def test_sampling_is_restricted_while_thinking() -> None:
    assert "temperature" not in encode(thinking="low", temperature=0.5)
    assert encode(thinking="low", temperature=1)["temperature"] == 1
    assert "top_p" not in encode(thinking="low", top_p=0.9)
    assert encode(thinking="low", top_p=0.97)["top_p"] == 0.97
    assert set(warnings_of(thinking="low", temperature=0.5, top_p=0.9)) == {
        wording.THINKING_AND_TEMPERATURE,
        wording.THINKING_AND_TOP_P,
    }
    own = encode(extra={"thinking": {"type": "enabled", "budget_tokens": 1024}}, temperature=0.5)
    assert "temperature" not in own


def test_a_budget_of_the_callers_own_leaves_room_for_the_answer() -> None:
    assert encode(extra={"thinking": {"type": "enabled", "budget_tokens": 40_000}})["max_tokens"] > 40_000


def test_a_forced_call_rules_it_out() -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "thinking": "low"}
    assert "thinking" not in encode(**fields)
    assert wording.THINKING_AND_FORCED_CALL in warnings_of(**fields)
    assert encode(**{**fields, "model": "claude-sonnet-5"})["thinking"] == {"type": "disabled"}
    unasked = {**fields, "model": "claude-sonnet-5", "thinking": None}
    assert encode(**unasked)["thinking"] == {"type": "disabled"}
    assert warnings_of(**unasked) == ()


def test_it_does_not_begin_in_the_middle_of_a_turn() -> None:
    begun_without = (Message.user("Hi"), Message.assistant([CALL]), RESULT)
    assert "thinking" not in body_of(*begun_without, thinking="low")
    assert wording.THINKING_MIDWAY in warnings_of(*begun_without, thinking="low")
    begun_with = (Message.user("Hi"), Message.assistant([THOUGHT, CALL]), RESULT)
    assert "thinking" in body_of(*begun_with, thinking="low")
    second = CALL.model_copy(update={"id": "toolu_2"})
    gone_on = (*begun_with, Message.assistant([second]), Message.tool("9 C", tool_call_id="toolu_2"))
    assert "thinking" in body_of(*gone_on, thinking="low")
    over = (*begun_without, Message.assistant("Cold."), Message.user("Why?"))
    assert "thinking" in body_of(*over, thinking="low")
    assert "thinking" not in body_of(Message.user("Hi"), Message.assistant("So"), thinking="low")


def test_newer_models_may_begin_anywhere() -> None:
    body = body_of(Message.user("Hi"), Message.assistant([CALL]), RESULT, thinking="low", model="claude-opus-4-6")
    assert body["thinking"] == {"type": "adaptive"}


def test_every_known_model_has_a_family() -> None:
    from anthropic.types import model_param

    named = model_param.ModelParam.__args__[0].__args__  # type: ignore[attr-defined]
    assert all(features_of(name).pattern not in ("", "claude") for name in named)


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def test_a_schema_is_the_answers_format() -> None:
    assert encode(output_schema=SCHEMA)["output_config"] == {"format": {"type": "json_schema", "schema": SCHEMA}}


def test_format_effort_and_the_callers_own_settings_share_one_key() -> None:
    body = encode(
        output_schema=SCHEMA,
        model="claude-opus-4-8",
        thinking="high",
        extra={"output_config": {"effort": "max", "task_budget": 1}},
    )
    assert body["output_config"] == {
        "format": {"type": "json_schema", "schema": SCHEMA},
        "effort": "max",
        "task_budget": 1,
    }


def test_other_ways_to_a_schema_are_not_ours() -> None:
    assert "output_config" not in encode(output_schema=SCHEMA, output_mode="prompted")


SHORT = {"type": "ephemeral"}
LONG = {"type": "ephemeral", "ttl": "1h"}


def marks_of(body: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Cache breakpoints, by the words or names of what they stand on."""
    system = body.get("system") or []
    blocks = [
        *(body.get("tools") or ()),
        *(system if isinstance(system, list) else ()),
        *(block for message in body["messages"] for block in message["content"]),
    ]
    return [
        (block.get("name") or block.get("text") or block["type"], block["cache_control"])
        for block in blocks
        if "cache_control" in block
    ]


def test_a_hint_on_the_request_marks_the_end_of_each_section() -> None:
    body = body_of(Message.user("a"), Message.user("b"), system="S", tools=[WEATHER], cache="short")
    assert marks_of(body) == [("get_weather", SHORT), ("S", SHORT), ("b", SHORT)]
    assert marks_of(encode(cache="long")) == [("Hi", LONG)]
    assert marks_of(encode()) == []


def test_parts_and_tools_are_marked_one_by_one() -> None:
    body = body_of(
        Message.system([TextContent(text="S", cache="long")]),
        Message.user([TextContent(text="a", cache="short"), TextContent(text="b")]),
        tools=[WEATHER.model_copy(update={"cache": "long"})],
    )
    assert marks_of(body) == [("get_weather", LONG), ("S", LONG), ("a", SHORT)]


def test_the_first_of_too_many_are_left_out() -> None:
    parts = [TextContent(text=letter, cache="short") for letter in "abcde"]
    assert [name for name, _ in marks_of(body_of(Message.user(parts)))] == ["b", "c", "d", "e"]
    assert TOO_MANY_BREAKPOINTS in warnings_of(Message.user(parts))


def test_the_callers_own_marks_count() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "cache_control": SHORT}
    parts = [TextContent(text=letter, cache="short") for letter in "abcd"]
    body = body_of(Message.user(parts), tools=[search], extra={"cache_control": SHORT})
    assert [name for name, _ in marks_of(body)] == ["web_search", "c", "d"]


def test_a_mark_of_the_callers_own_may_look_like_anything() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "cache_control": "ephemeral"}
    body = encode(tools=[search], cache="short", extra={"cache_control": [1]})
    assert (body["tools"], body["cache_control"]) == ([search], [1])


def test_what_is_kept_for_an_hour_is_kept_whole() -> None:
    hints = {"a": "short", "b": "long", "c": "short"}
    parts = [TextContent.model_validate({"text": letter, "cache": hint}) for letter, hint in hints.items()]
    assert marks_of(body_of(Message.user(parts))) == [("a", LONG), ("b", LONG), ("c", SHORT)]


def test_an_hour_cannot_follow_the_callers_own_minutes() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "cache_control": SHORT}
    fields: dict[str, Any] = {"tools": [search], "cache": "long"}
    assert marks_of(encode(**fields)) == [("web_search", SHORT), ("Hi", SHORT)]
    assert SHORTENED in warnings_of(**fields)


def test_marks_never_stand_on_reasoning_or_blank_text() -> None:
    marked = THOUGHT.model_copy(update={"cache": "short"})
    parts = [marked, TextContent(text="a"), TextContent(text=" ", cache="short")]
    conversation = (Message.user("Hi"), Message.assistant(parts), Message.user("?"))
    assert marks_of(body_of(*conversation)) == []
    assert NO_BREAKPOINT in warnings_of(*conversation)
    last = (Message.user("Hi"), Message.assistant([THOUGHT, CALL]), RESULT)
    assert marks_of(body_of(*last, cache="short")) == [("tool_result", SHORT)]


def test_a_mark_inside_a_result_moves_to_the_result() -> None:
    result = ToolResult(tool_call_id="toolu_1", content=[TextContent(text="x", cache="short")])
    body = body_of(Message.user("Hi"), Message.assistant([CALL]), Message(Role.TOOL, [result]))
    assert marks_of(body) == [("tool_result", SHORT)]
    assert "cache_control" not in body["messages"][2]["content"][0]["content"][0]


def test_a_part_that_occurs_twice_is_marked_once_for_each_place() -> None:
    greeting = Message.user([TextContent(text="a", cache="short")])
    assert marks_of(body_of(greeting, greeting)) == [("a", SHORT), ("a", SHORT)]
    body = body_of(*[greeting] * 5)
    assert ["cache_control" in block for block in body["messages"][0]["content"]] == [False, True, True, True, True]


def test_a_mark_of_the_request_skips_the_vendors_own_blocks() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    turn = Message.assistant([TextContent(text="a"), VendorContent(kind="x", provider_data=search, origin=HOME)])
    assert marks_of(body_of(Message.user("Hi"), turn, cache="long")) == [("a", LONG)]


def test_a_mark_does_not_stay_on_a_message_that_is_no_longer_last() -> None:
    first = Message.user("a")
    assert marks_of(body_of(first, cache="short")) == [("a", SHORT)]
    assert marks_of(body_of(first, Message.assistant("b"), Message.user("c"), cache="short")) == [("c", SHORT)]


def test_the_same_prompt_is_counted() -> None:
    wire = CODEC.encode_count(
        AgentRequest(
            input="Hi",
            model=SONNET,
            system="S",
            tools=[WEATHER],
            max_tokens=9000,
            temperature=0.1,
            stop=["x"],
            thinking="low",
            extra={"service_tier": "auto", "mcp_servers": []},
        )
    )
    assert set(json.loads(wire.body)) == {"model", "messages", "system", "tools", "thinking", "mcp_servers"}


def test_the_count_is_read_or_the_answer_is_broken() -> None:
    request = AgentRequest(input="Hi", model=SONNET)
    assert CODEC.decode_count(Reply(200, {}, b'{"input_tokens": 14}'), request) == 14
    for body in (b"{}", b"[]", b"?", b'{"input_tokens": "x"}'):
        with pytest.raises(errors.ProtocolError):
            CODEC.decode_count(Reply(200, {}, body), request)
