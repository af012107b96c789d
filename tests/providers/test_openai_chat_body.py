"""What the codec sends: every body is one that the vendor's own SDK would accept."""

from __future__ import annotations

import base64
import json
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
from agent.providers.openai_chat.body import encode_body
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
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
)

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
        thinking="low",
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
            "reasoning_effort": "low",
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
    assert messages_of(mixed) == [
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "content": "and tomorrow?"},
    ]


def test_an_assistant_that_only_calls_has_null_content() -> None:
    (message,) = messages_of(Message.assistant([ToolCall(id="c1", name="f")]))
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
    (message,) = messages_of(Message.assistant([ToolCall(id="c", name="f", invalid_arguments='{"a": ')]))
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
    assert warnings == ("reasoning made elsewhere was left out of the conversation",)


@pytest.mark.parametrize(
    "message",
    [
        Message.user([ThinkingContent(thinking="hm")]),
        Message.user([ToolCall(id="c", name="f")]),
        Message.user([DocumentContent(url="https://example.com/paper.pdf")]),
        Message.user([AudioContent(data=b"x", media_type="audio/ogg")]),
        Message.assistant([ImageContent(image_data=PIXEL)]),
        Message.tool([ImageContent(image_data=PIXEL)], tool_call_id="c"),
    ],
    ids=["thinking", "call", "document-url", "ogg", "assistant-image", "image-result"],
)
def test_what_the_api_cannot_take_raises_before_anything_is_sent(message: Message) -> None:
    with pytest.raises(errors.UnsupportedFeatureError, match="does not take a part of type") as caught:
        messages_of(message)
    assert caught.value.field == "messages"


def test_a_schema_is_sent_with_a_name_and_strictly_where_it_is_closed() -> None:
    class Open(BaseModel):
        city: str
        country: str = "JP"

    class Closed(BaseModel, extra="forbid"):
        city: str

    opened = body_of(AgentRequest(input="x", schema=Open))["response_format"]["json_schema"]
    assert opened["name"] == "Open"
    assert "strict" not in opened
    closed = body_of(AgentRequest(input="x", schema=Closed))["response_format"]["json_schema"]
    assert closed["strict"] is True


@pytest.mark.parametrize("key", ["messages", "model", "stream"])
def test_extra_may_not_replace_what_the_request_says(key: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=key):
        body_of(AgentRequest(input="x", extra={key: 1}))


def test_a_strict_tool_says_so() -> None:
    (tool,) = body_of(AgentRequest(input="x", tools=[WEATHER.model_copy(update={"strict": True})]))["tools"]
    assert tool["function"]["strict"] is True


def test_a_tool_of_the_vendors_own_is_passed_through() -> None:
    custom = {"type": "custom", "custom": {"name": "math", "format": {"type": "text"}}}
    assert body_of(AgentRequest(input="x", tools=[custom]))["tools"] == [custom]


def test_a_message_is_encoded_once_and_the_bytes_are_kept_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    history = [Message.user("a"), Message.assistant("b")]
    first = body_of(AgentRequest(messages=history))
    from agent.providers.openai_chat import body as module

    def never(self: object, message: Message) -> list[dict[str, Any]]:
        assert message.text == "c", "an old message was encoded again"
        return [{"role": "user", "content": "c"}]

    monkeypatch.setattr(module._Writer, "_write", never)
    again = body_of(AgentRequest(messages=[*history, Message.user("c")]))
    assert again["messages"][:2] == first["messages"]


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
