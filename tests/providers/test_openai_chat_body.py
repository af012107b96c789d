"""Request bodies of Chat Completions."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, get_type_hints

import pytest
from inline_snapshot import snapshot
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from pydantic import BaseModel, TypeAdapter

from agent import errors
from agent.providers.openai_chat import OPENAI, ChatCodec, Dialect
from agent.providers.openai_chat.codec import encode_body
from agent.providers.openai_chat.dialect import CacheMarks
from agent.types import (
    AgentRequest,
    AudioContent,
    CodeContent,
    ContentPart,
    DiffContent,
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    RefusalContent,
    Role,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from tests.providers.chat_helpers import decode_both_ways, encode

WEATHER = ToolSpec(
    name="get_weather",
    description="Weather for a city",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
PIXEL = b"\x89PNG\r\n"


def body_of(request: AgentRequest, dialect: Dialect = OPENAI, *, stream: bool = False) -> dict[str, Any]:
    """The body, which must also satisfy the types of the official SDK."""
    data, _ = encode_body(request.model_copy(update={"model": request.model or "m"}), dialect, stream=stream)
    body: dict[str, Any] = json.loads(data)
    params = CompletionCreateParamsStreaming if stream else CompletionCreateParamsNonStreaming
    assert set(body) <= set(get_type_hints(params)), "a key the SDK does not know"
    accepted: Any = TypeAdapter(params).validate_python(body)
    for lazily_checked in ("messages", "tools"):
        list(accepted.get(lazily_checked) or ())
    return body


def messages_of(*messages: Message) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = body_of(AgentRequest(messages=messages))["messages"]
    return written


def test_a_whole_request_is_written_out() -> None:
    request = AgentRequest(
        input="And now?",
        messages=[Message.user("Hi"), Message.assistant("Hello")],
        system="Be brief.",
        model="gpt-4o",
        temperature=0.5,
        max_tokens=100,
        top_p=0.9,
        stop=["END"],
        seed=7,
        logprobs=3,
        tools=[WEATHER],
        tool_choice="get_weather",
        parallel_tool_calls=False,
        session_id="s1",
        extra={"service_tier": "flex"},
    )
    assert body_of(request) == snapshot(
        {
            "model": "gpt-4o",
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "get_weather",
                        "description": "Weather for a city",
                        "parameters": {
                            "type": "object",
                            "properties": {"city": {"type": "string"}},
                            "required": ["city"],
                        },
                    },
                }
            ],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            "parallel_tool_calls": False,
            "max_completion_tokens": 100,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 7,
            "stop": ["END"],
            "logprobs": True,
            "top_logprobs": 3,
            "prompt_cache_key": "s1",
            "service_tier": "flex",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "And now?"},
            ],
        }
    )


def test_a_stream_asks_for_its_usage() -> None:
    body = body_of(AgentRequest(input="hi"), stream=True)
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


def test_what_a_dialect_calls_differently_is_called_so() -> None:
    dialect = Dialect(name="other", max_tokens_key="max_tokens", stream_usage=False)
    body = body_of(AgentRequest(input="hi", max_tokens=5), dialect, stream=True)
    assert body["max_tokens"] == 5
    assert "stream_options" not in body


def test_every_part_a_user_may_send_has_its_block() -> None:
    parts = [
        TextContent(text="look"),
        ImageContent(image_url="https://example.com/a.png", detail="low"),
        ImageContent(image_data=PIXEL, media_type="image/jpeg"),
        AudioContent(data=b"RIFF", media_type="audio/wav"),
        DocumentContent(data=b"%PDF", title="paper.pdf"),
        DocumentContent(text="plain words"),
        CodeContent(code="print(1)", language="python"),
        DiffContent(old_code="a", new_code="b"),
    ]
    (message,) = messages_of(Message.user(parts))
    assert message["content"] == snapshot(
        [
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,iVBORw0K"}},
            {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
            {
                "type": "file",
                "file": {"filename": "paper.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
            },
            {"type": "text", "text": "plain words"},
            {"type": "text", "text": "```python\nprint(1)\n```"},
            {"type": "text", "text": "```diff\n-a\n+b\n```"},
        ]
    )
    assert base64.b64decode("iVBORw0K") == PIXEL


def test_calls_and_results_find_each_other() -> None:
    call = ToolCall(id="c1", name="get_weather", arguments={"city": "Tōkyō"})
    assert messages_of(
        Message.assistant([TextContent(text="Let me see."), call]),
        Message.tool("sunny", tool_call_id="c1", name="get_weather"),
    ) == snapshot(
        [
            {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city":"Tōkyō"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ]
    )


def test_results_inside_a_users_message_become_messages_of_their_own() -> None:
    mixed = Message.user([ToolResult(tool_call_id="c1", content="sunny"), TextContent(text="and tomorrow?")])
    assert messages_of(Message.assistant([ToolCall(id="c1", name="f")]), mixed)[1:] == [
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "content": "and tomorrow?"},
    ]


def test_an_assistant_that_only_calls_has_null_content() -> None:
    message, _ = messages_of(Message.assistant([ToolCall(id="c1", name="f")]))
    assert message["content"] is None


def test_an_empty_message_is_not_sent() -> None:
    assert messages_of(Message.user(""), Message.assistant(""), Message.user("hi")) == [
        {"role": "user", "content": "hi"}
    ]


def test_a_refusal_goes_back_as_one() -> None:
    assert messages_of(Message.assistant([RefusalContent(refusal="No.")])) == [
        {"role": "assistant", "content": None, "refusal": "No."}
    ]


def test_broken_arguments_go_back_as_the_model_wrote_them() -> None:
    message, _ = messages_of(Message.assistant([ToolCall(id="c", name="f", invalid_arguments='{"a": ')]))
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a": '


def test_opaque_reasoning_goes_back_to_its_maker_and_nowhere_else() -> None:
    details = [{"type": "reasoning.encrypted", "data": "sealed"}]
    origin = Origin(provider="openai-chat", api="openai-chat", model="m")
    thinking = ThinkingContent(thinking="hm", provider_data={"reasoning_details": details}, origin=origin)
    request = AgentRequest(messages=[Message.assistant([thinking, TextContent(text="4")])], model="m")
    home, _ = encode_body(request, OPENAI, stream=False)
    assert json.loads(home)["messages"][0]["reasoning_details"] == details
    abroad, warnings = encode_body(request, Dialect(name="other"), stream=False)
    assert b"sealed" not in abroad
    assert warnings == ("reasoning of another model was left out",)


@pytest.mark.parametrize(
    "message",
    [
        Message.user([ThinkingContent(thinking="hm")]),
        Message.user([ToolCall(id="c", name="f")]),
        Message.user([DocumentContent(url="https://example.com/paper.pdf")]),
        Message.user([AudioContent(data=b"x", media_type="audio/ogg")]),
        Message.system([ImageContent(image_data=PIXEL)]),
        Message.system([DocumentContent(data=b"%PDF")]),
    ],
    ids=["thinking", "call", "document-url", "ogg", "system-image", "system-document"],
)
def test_what_the_api_cannot_take_raises_before_anything_is_sent(message: Message) -> None:
    with pytest.raises(errors.UnsupportedFeatureError, match="does not support a part of type") as caught:
        messages_of(message)
    assert caught.value.field == "messages"


def test_a_schema_is_sent_with_a_name_and_strictly() -> None:
    class City(BaseModel):
        city: str
        country: str = "JP"

    form = body_of(AgentRequest(input="x", schema=City))["response_format"]["json_schema"]
    assert form["name"] == "City"
    assert form["strict"] is True
    assert form["schema"]["required"] == ["city", "country"]
    assert form["schema"]["additionalProperties"] is False


def test_a_schema_that_cannot_be_enforced_is_sent_all_the_same_with_a_warning() -> None:
    schema = {"type": "object", "title": "Any", "additionalProperties": {"type": "integer"}}
    body, warnings = encode(AgentRequest(input="x", schema=schema))
    form = body["response_format"]["json_schema"]
    assert "strict" not in form
    assert form["schema"] == schema
    assert any(warning.startswith("output_schema: ") for warning in warnings)


def test_a_schema_that_is_asked_for_by_other_means_is_not_sent() -> None:
    for mode in ("tool", "prompted"):
        assert "response_format" not in body_of(AgentRequest(input="x", schema={"type": "object"}, output_mode=mode))


@pytest.mark.parametrize("key", ["messages", "model", "stream"])
def test_extra_may_not_replace_what_the_request_says(key: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=key):
        body_of(AgentRequest(input="x", extra={key: 1}))


def test_extra_may_bring_tools_but_not_replace_the_requests_own() -> None:
    own = {"tools": [{"type": "custom", "custom": {"name": "shout"}}]}
    assert body_of(AgentRequest(input="x", extra=own))["tools"] == own["tools"]
    with pytest.raises(errors.ConfigurationError, match="tools"):
        body_of(AgentRequest(input="x", extra=own, tools=[ToolSpec(name="f")]))


def test_a_strict_tool_has_a_closed_schema_and_its_arguments_come_back_in_the_original_form() -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    tool = ToolSpec(name="forecast", parameters={**parameters, "required": ["city"]}, strict=True)
    request = AgentRequest(input="x", tools=[tool], model="m")
    (written,) = body_of(request)["tools"]
    assert written["function"]["strict"] is True
    assert written["function"]["parameters"]["required"] == ["city", "days"]
    call = {"id": "c", "function": {"name": "forecast", "arguments": '{"city": "Rome", "days": null}'}}
    for response in decode_both_ways({"tool_calls": [call]}, request):
        assert response.tool_calls[0].arguments == {"city": "Rome"}


def test_a_name_that_does_not_fit_is_changed_at_the_wire_only() -> None:
    long = "search.web:" + "x" * 80
    request = AgentRequest(
        model="m",
        tools=[ToolSpec(name=long), ToolSpec(name="ok")],
        tool_choice=long,
        messages=[Message.user("hi"), Message.assistant([ToolCall(id="é" * 30, name=long)])],
    )
    body = body_of(request)
    sent = body["tools"][0]["function"]["name"]
    assert re.fullmatch(r"[a-zA-Z0-9_-]{64}", sent)
    assert body["tool_choice"]["function"]["name"] == sent
    call = body["messages"][1]["tool_calls"][0]
    assert call["function"]["name"] == sent
    assert re.fullmatch(r"[0-9a-f]{24}", call["id"])
    assert body["messages"][2]["tool_call_id"] == call["id"]
    answer = {"tool_calls": [{"id": "c", "function": {"name": sent, "arguments": "{}"}}]}
    for response in decode_both_ways(answer, request):
        assert response.tool_calls[0].name == long


def test_images_of_results_follow_all_results_of_a_turn_in_a_users_message() -> None:
    image = ImageContent(image_url="https://example.com/a.png")
    calls = [ToolCall(id="c1", name="look"), ToolCall(id="c2", name="read"), ToolCall(id="c3", name="fail")]
    results = [
        Message(Role.TOOL, [ToolResult(tool_call_id="c1", name="look", content=[TextContent(text="seen"), image])]),
        Message(Role.TOOL, [ToolResult(tool_call_id="c2", content=[DocumentContent(data=b"%PDF", title="a.pdf")])]),
        Message(Role.TOOL, [ToolResult(tool_call_id="c3", content="no", is_error=True)]),
    ]
    written = messages_of(Message.assistant(calls), *results, Message.assistant("done"))
    assert written[1:] == snapshot(
        [
            {"role": "tool", "tool_call_id": "c1", "content": "seen"},
            {
                "role": "tool",
                "tool_call_id": "c2",
                "content": "The result is attached to the next message.",
            },
            {"role": "tool", "tool_call_id": "c3", "content": "Error: no"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Attached to the result of look (c1):"},
                    {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                    {"type": "text", "text": "Attached to the result of the call (c2):"},
                    {
                        "type": "file",
                        "file": {
                            "filename": "a.pdf",
                            "file_data": "data:application/pdf;base64,JVBERg==",
                        },
                    },
                ],
            },
            {"role": "assistant", "content": "done"},
        ]
    )


def test_a_tool_of_the_vendors_own_is_passed_through() -> None:
    custom = {"type": "custom", "custom": {"name": "math", "format": {"type": "text"}}}
    assert body_of(AgentRequest(input="x", tools=[custom]))["tools"] == [custom]


def test_encoding_does_not_change_what_a_message_equals_or_how_it_pickles() -> None:
    import pickle

    message, twin = Message.user("a"), Message.user("a")
    body_of(AgentRequest(messages=[message]))
    assert message == twin
    assert hash(message) == hash(twin)
    assert pickle.dumps(message) == pickle.dumps(twin)


def test_the_key_travels_in_a_header_and_own_headers_join_it() -> None:
    from agent import AgentConfig

    config = AgentConfig(provider="openai-chat", model="m", api_key="sk-1", headers={"X-Team": "blue"})
    wire = ChatCodec.from_config(config, OPENAI).encode(AgentRequest(input="x", model="m"), stream=False)
    headers = dict(wire.headers)
    assert headers[b"authorization"] == b"Bearer sk-1"
    assert headers[b"x-team"] == b"blue"
    assert wire.url == "https://api.openai.com/v1/chat/completions"
    assert "sk-1" not in repr(wire)


def test_text_parts_alone_are_accepted_as_content_parts() -> None:
    (message,) = messages_of(Message.user([ContentPart.text_part("a"), ContentPart.text_part("b")]))
    assert message["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_developers_speak_to_the_models_that_know_them() -> None:
    for model, role in (("gpt-5", "developer"), ("o3", "developer"), ("gpt-4o", "system"), ("llama", "system")):
        assert body_of(AgentRequest(input="x", system="s", model=model))["messages"][0]["role"] == role


@pytest.mark.parametrize(
    ("model", "level", "effort", "warned"),
    [
        ("gpt-5", "minimal", "minimal", False),
        ("gpt-5", "off", None, True),
        ("gpt-5", "xhigh", "high", True),
        ("gpt-5.1", "off", "none", False),
        ("gpt-5.1", "minimal", "low", True),
        ("gpt-5.2", "xhigh", "xhigh", False),
        ("gpt-5-pro", "low", "high", True),
        ("o4-mini", "medium", "medium", False),
        ("o4-mini", "off", None, True),
        ("gpt-4o", "off", None, False),
        ("gpt-4o", "high", None, True),
    ],
)
def test_thinking_is_told_in_the_words_that_a_model_knows(
    model: str, level: str, effort: str | None, warned: bool
) -> None:
    body, warnings = encode(AgentRequest(input="x", model=model, thinking=ThinkingLevel(level)))
    assert body.get("reasoning_effort") == effort
    assert any(f"thinking={level!r}" in warning for warning in warnings) is warned


def test_what_a_model_refuses_is_left_out_with_a_warning() -> None:
    request = AgentRequest(input="x", model="gpt-5", stop="END", logprobs=2, temperature=0.5, top_p=0.5)
    body, warnings = encode(request)
    assert body.keys() == {"model", "messages"}
    assert [warning.split(" ")[0] for warning in warnings] == ["temperature", "top_p", "stop", "logprobs"]
    body, warnings = encode(request.model_copy(update={"model": "gpt-4o"}))
    assert {"stop", "logprobs", "temperature", "top_p"} <= body.keys()
    assert not warnings


def test_what_a_model_refuses_while_it_thinks_is_left_out_then() -> None:
    request = AgentRequest(input="x", model="gpt-5.1", logprobs=2, temperature=0.5, thinking="low")
    body, warnings = encode(request)
    assert body.keys() == {"model", "messages", "reasoning_effort"}
    assert {warning.split(" ")[0] for warning in warnings} == {"logprobs", "temperature"}
    body, warnings = encode(request.model_copy(update={"thinking": ThinkingLevel.OFF}))
    assert {"logprobs", "top_logprobs", "temperature"} <= body.keys()
    assert not warnings


def test_no_more_stop_sequences_are_sent_than_are_taken() -> None:
    body, warnings = encode(AgentRequest(input="x", stop=list("abcdef")))
    assert body["stop"] == ["a", "b", "c", "d"]
    assert warnings == ("openai-chat supports 4 stop sequences; the others were left out",)


def test_metadata_goes_along_with_what_is_stored() -> None:
    stored = AgentRequest(input="x", metadata={"run": "7"}, extra={"store": True})
    assert body_of(stored)["metadata"] == {"run": "7"}
    assert "metadata" not in body_of(AgentRequest(input="x", metadata={"run": "7"}))
    body, warnings = encode(stored.model_copy(update={"metadata": {"run": 7}}))
    assert "metadata" not in body
    assert "metadata was left out" in warnings[0]


def test_a_sessions_name_finds_its_prompt_cache() -> None:
    assert body_of(AgentRequest(input="x", session_id="s-1"))["prompt_cache_key"] == "s-1"
    assert len(body_of(AgentRequest(input="x", session_id="s" * 100))["prompt_cache_key"]) == 64


def test_parts_are_marked_for_the_cache_where_a_model_takes_marks() -> None:
    parts = [TextContent(text="long", cache="long"), TextContent(text="short", cache="short")]
    request = AgentRequest(messages=[Message.user(parts)], model="gpt-5.6", cache="short")
    assert body_of(request)["messages"][0]["content"] == [
        {"type": "text", "text": "long", "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}},
        {"type": "text", "text": "short", "prompt_cache_breakpoint": {"mode": "explicit"}},
    ]
    older = body_of(request.model_copy(update={"model": "gpt-4o"}))
    assert "prompt_cache_breakpoint" not in json.dumps(older)


def test_reasoning_of_another_model_may_be_told_as_text() -> None:
    thought = ThinkingContent(thinking="hm", origin=Origin(provider="openai-chat", api="openai-chat", model="other"))
    request = AgentRequest(messages=[Message.assistant([thought, TextContent(text="4")])], model="m")
    told, warnings = encode_body(request, OPENAI, stream=False, foreign_thinking="text")
    assert json.loads(told)["messages"][0]["content"] == "<thinking>\nhm\n</thinking>\n4"
    assert warnings == ("reasoning of another model was sent as text",)


def test_who_is_only_compatible_is_asked_for_what_most_understand() -> None:
    from agent import AgentConfig
    from agent.providers.openai_chat import provider

    request = AgentRequest(input="x", system="s", model="gpt-5", max_tokens=5, session_id="s", thinking="low")
    made = provider("openai-chat")
    at_home = made(AgentConfig(provider="openai-chat", api_key="sk-1"))
    abroad = made(AgentConfig(provider="openai-chat", base_url="http://127.0.0.1:1/v1"))
    body = json.loads(at_home.encode(request, stream=False).body)
    assert (body["max_completion_tokens"], body["prompt_cache_key"]) == (5, "s")
    other = request.model_copy(update={"model": "qwen3"})
    assert json.loads(abroad.encode(other, stream=False).body)["max_tokens"] == 5, "known everywhere"
    body = json.loads(abroad.encode(request, stream=False).body)
    assert body == {
        "model": "gpt-5",
        "max_completion_tokens": 5,
        "reasoning_effort": "low",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}],
    }


def test_a_choice_names_a_tool_in_the_form_it_was_offered() -> None:
    custom = {"type": "custom", "custom": {"name": "run", "format": {"type": "text"}}}
    body = body_of(AgentRequest(input="x", tools=[custom], tool_choice="run"))
    assert (body["tools"], body["tool_choice"]) == ([custom], {"type": "custom", "custom": {"name": "run"}})


def test_a_choice_among_no_tools_is_left_out() -> None:
    body, warnings = encode(AgentRequest(input="x", tool_choice="required"))
    assert "tool_choice" not in body, "the API refuses it"
    assert warnings == ("tool_choice='required' was left out: the request has no tools",)
    assert encode(AgentRequest(input="x", tool_choice="auto"))[1] == ()


def test_the_title_of_a_text_is_told_with_it() -> None:
    body = body_of(AgentRequest(messages=[Message.user([DocumentContent(text="words", title="Report")])]))
    assert body["messages"][0]["content"] == "Report:\nwords"


def test_a_mark_inside_a_result_is_a_mark_on_the_result() -> None:
    call = ToolCall(id="c1", name="f")
    inside = [TextContent(text="a", cache="short"), TextContent(text="b")]
    result = Message(Role.TOOL, [ToolResult(tool_call_id="c1", content=inside)])
    marks = Dialect(name="x", cache_marks=CacheMarks(short={"keep": 1}, long={"keep": 2}))
    body = body_of(AgentRequest(messages=[Message.user("x"), Message.assistant([call]), result]), marks)
    assert body["messages"][2]["content"] == [{"type": "text", "text": "ab", "keep": 1}]


def test_messages_written_for_one_address_are_not_sent_to_another() -> None:
    from agent import AgentConfig
    from agent.providers.openai_chat import provider

    call = ToolCall(id="an id/with a slash", name="f")
    messages = [Message.system("s"), Message.user("x"), Message.assistant([RefusalContent(refusal="no"), call])]
    request = AgentRequest(model="gpt-5", messages=messages)
    made = provider("openai-chat")
    at_home = made(AgentConfig(provider="openai-chat", api_key="sk-1"))
    abroad = made(AgentConfig(provider="openai-chat", base_url="http://127.0.0.1:1/v1"))
    wanted = json.loads(abroad.encode(request.model_copy(), stream=False).body)
    fresh = AgentRequest.from_dict(request.to_dict())
    at_home.encode(fresh, stream=False)
    assert json.loads(abroad.encode(fresh, stream=False).body) == wanted
