"""Encoding of conversations for the Messages API: content, warnings and errors."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from inline_snapshot import snapshot

from agent import errors
from agent.engine.wire import Reply
from agent.providers import load_provider
from agent.providers.anthropic import AnthropicCodec
from agent.providers.anthropic.conversation import (
    LAST_THINKING,
    LATE_SYSTEM,
    NAME_LEFT_OUT,
    NO_SIGNATURE,
    PLACEHOLDER,
    PLACEHOLDER_SENT,
)
from agent.providers.anthropic.messages import DETAIL_LEFT_OUT, ERROR_WITH_MEDIA
from agent.providers.base import ApiAddress
from agent.providers.repair import FOREIGN_BLOCK_DROPPED, FOREIGN_THINKING_AS_TEXT, FOREIGN_THINKING_DROPPED
from agent.types import (
    AgentConfig,
    AgentRequest,
    AudioContent,
    Citation,
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
    ToolCall,
    ToolResult,
    VendorContent,
)
from tests.providers.anthropic_requests import (
    CALL,
    CODEC,
    ELSEWHERE,
    HOME,
    PIXEL,
    RESULT,
    SONNET,
    THOUGHT,
    WEATHER,
    block_of,
    body_of,
    encode_assistant,
    text,
    turns,
    warnings_of,
    wire_of,
)


def test_a_whole_request_is_written_out() -> None:
    assert body_of(
        Message.user("Hi"),
        Message.assistant("Hello"),
        input="And now?",
        system="Be brief.",
        temperature=0.5,
        max_tokens=100,
        stop=["END"],
        tools=[WEATHER],
        tool_choice="auto",
        parallel_tool_calls=False,
        metadata={"user_id": "u1", "mine": "not sent"},
        extra={"service_tier": "auto"},
        stream=True,
    ) == snapshot(
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 100,
            "tools": [
                {
                    "name": "get_weather",
                    "description": "Weather for a city",
                    "input_schema": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}},
                        "required": ["city"],
                    },
                }
            ],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "temperature": 0.5,
            "stop_sequences": ["END"],
            "metadata": {"user_id": "u1"},
            "stream": True,
            "system": "Be brief.",
            "service_tier": "auto",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
                {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
            ],
        }
    )


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("", "/v1/messages"),
        ("https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/", "https://api.anthropic.com/v1/messages"),
        ("https://proxy.test/claude/v1", "https://proxy.test/claude/v1/messages"),
        ("https://proxy.test/v1/", "https://proxy.test/v1/messages"),
    ],
)
def test_the_address_is_understood_with_and_without_the_version(base_url: str, url: str) -> None:
    codec = AnthropicCodec(ApiAddress(base_url, None))
    assert wire_of(Message.user("Hi"), codec=codec).url == url
    assert codec.encode_count(AgentRequest(input="Hi", model=SONNET)).url == f"{url}/count_tokens"


def test_the_key_and_the_version_are_headers() -> None:
    headers = dict(wire_of(Message.user("Hi")).headers)
    assert headers[b"x-api-key"] == b"sk-ant-test"
    assert headers[b"anthropic-version"] == b"2023-06-01"
    assert b"anthropic-beta" not in headers


def test_key_and_address_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-env")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://here.test/v1")
    codec: Any = load_provider("anthropic")(AgentConfig(provider="anthropic", model=SONNET, foreign_thinking="text"))
    wire = wire_of(Message.user("Hi"), codec=codec)
    assert wire.url == "https://here.test/v1/messages"
    assert dict(wire.headers)[b"x-api-key"] == b"sk-env"
    assert codec.name == codec.api == "anthropic"
    assert "sk-env" not in repr(codec)


def test_without_a_key_nothing_is_made_unless_a_header_stands_for_it() -> None:
    with pytest.raises(errors.AuthenticationError, match="ANTHROPIC_API_KEY"):
        AnthropicCodec.from_config(AgentConfig(provider="anthropic"))
    AnthropicCodec.from_config(AgentConfig(provider="anthropic", headers={"Authorization": "Bearer x"}))


def test_beside_credentials_of_the_callers_own_the_key_of_the_environment_stays_at_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-env")
    config = AgentConfig(provider="anthropic", headers={"Authorization": "Bearer x"})
    headers = dict(wire_of(Message.user("Hi"), codec=AnthropicCodec.from_config(config)).headers)
    assert headers[b"authorization"] == b"Bearer x"
    assert b"x-api-key" not in headers


def test_leading_system_messages_are_instructions_and_later_ones_are_told_by_the_user() -> None:
    messages = (Message.system("Two."), Message.user("Hi"), Message.system("Three."))
    body = body_of(*messages, system="One.")
    assert body["system"] == [text("One."), text("Two.")]
    assert body["messages"] == [{"role": "user", "content": [text("Hi"), text("Three.")]}]
    assert LATE_SYSTEM in warnings_of(*messages)


def test_messages_of_one_side_are_one_turn() -> None:
    assert turns(
        Message.user("a"), Message.user("b"), Message.assistant("c"), Message.assistant("d"), Message.user("e")
    ) == [
        ("user", [text("a"), text("b")]),
        ("assistant", [text("c"), text("d")]),
        ("user", [text("e")]),
    ]


def test_results_come_before_words_in_one_turn_of_the_user() -> None:
    other = CALL.model_copy(update={"id": "toolu_2"})
    written = turns(
        Message.user("Hi"),
        Message.assistant([CALL, other]),
        RESULT,
        Message.tool("9 C", tool_call_id="toolu_2"),
        Message.user("And?"),
        tools=[WEATHER],
    )
    assert [block["type"] for block in written[2][1]] == ["tool_result", "tool_result", "text"]
    assert len(written) == 3


@pytest.mark.parametrize("blank", ["", "  ", "\n\n"])
def test_blank_text_is_never_sent(blank: str) -> None:
    assert turns(
        Message.user([TextContent(text="a"), TextContent(text=blank)]),
        Message.assistant(blank),
        Message.user([TextContent(text=blank)]),
        Message.user("b"),
    ) == [("user", [text("a"), text("b")])]


def test_an_empty_conversation_is_refused_before_it_is_sent() -> None:
    with pytest.raises(errors.ConfigurationError, match="empty"):
        body_of(system="Be brief.")


def test_a_blank_last_word_of_the_user_does_not_turn_the_answer_into_a_prefill() -> None:
    messages = (Message.user("Hi"), Message.assistant("Hello"), Message.user("  "))
    assert turns(*messages)[-1] == ("user", [text(PLACEHOLDER)])
    assert PLACEHOLDER_SENT in warnings_of(*messages)


def test_a_conversation_that_the_assistant_begins_gets_a_users_turn_before_it() -> None:
    messages = (Message.assistant("Welcome!"), Message.user("Hi"))
    assert turns(*messages)[0] == ("user", [text(PLACEHOLDER)])
    assert PLACEHOLDER_SENT in warnings_of(*messages)


def test_white_space_at_the_end_of_a_prefill_is_trimmed() -> None:
    assert turns(Message.user("Hi"), Message.assistant("Hello \n"))[-1] == ("assistant", [text("Hello")])
    assert turns(Message.user("Hi"), Message.assistant("Hello \n"), Message.user("?"))[1][1] == [text("Hello \n")]


def test_models_that_take_no_prefill_refuse_one_but_go_on_from_their_own_pause() -> None:
    with pytest.raises(errors.UnsupportedFeatureError, match="does not support a prefill"):
        body_of(Message.user("Hi"), Message.assistant("Hello"), model="claude-opus-4-6")
    home = Origin(provider="anthropic", api="anthropic", model="claude-opus-4-6")
    paused = VendorContent(kind="server_tool_use", provider_data={"type": "server_tool_use"}, origin=home)
    written = turns(Message.user("Hi"), Message.assistant([paused]), model="claude-opus-4-6")
    assert written[-1] == ("assistant", [{"type": "server_tool_use"}])


def test_reasoning_that_nothing_follows_is_left_out() -> None:
    messages = (Message.user("Hi"), Message.assistant([TextContent(text="So."), THOUGHT]), Message.user("?"))
    assert turns(*messages)[1] == ("assistant", [text("So.")])
    assert LAST_THINKING in warnings_of(*messages)
    alone = (Message.user("Hi"), Message.assistant([THOUGHT, TextContent(text=" ")]), Message.user("?"))
    assert turns(*alone) == [("user", [text("Hi"), text("?")])]


def test_names_of_participants_have_no_place() -> None:
    assert NAME_LEFT_OUT in warnings_of(Message.user("Hi", name="Ann"))


def test_images_by_address_and_by_value() -> None:
    assert block_of(ImageContent(image_url="https://x.test/a.png")) == {
        "type": "image",
        "source": {"type": "url", "url": "https://x.test/a.png"},
    }
    data = base64.b64encode(PIXEL).decode()
    assert block_of(ImageContent(image_data=PIXEL)) == {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    }


@pytest.mark.parametrize(
    ("data", "label", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "image/png", "image/jpeg"),
        (b"RIFF\x00\x00\x00\x00WEBP", None, "image/webp"),
        (b"GIF89a", None, "image/gif"),
        (b"??", "image/jpg", "image/jpeg"),
    ],
)
def test_an_images_label_is_what_its_bytes_say(data: bytes, label: str | None, kind: str) -> None:
    assert block_of(ImageContent(image_data=data, media_type=label))["source"]["media_type"] == kind


def test_an_image_in_another_format_is_refused() -> None:
    with pytest.raises(errors.UnsupportedFeatureError, match="image/tiff"):
        block_of(ImageContent(image_data=b"II*", media_type="image/tiff"))


def test_detail_is_no_setting_here() -> None:
    message = Message.user([ImageContent(image_url="https://x.test/a.png", detail="low")])
    assert DETAIL_LEFT_OUT in warnings_of(message)


def test_documents() -> None:
    pdf = base64.b64encode(b"%PDF").decode()
    assert block_of(DocumentContent(data=b"%PDF", title="T")) == {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": pdf},
        "title": "T",
    }
    assert block_of(DocumentContent(url="https://x.test/a.pdf"))["source"]["type"] == "url"
    plain = {"type": "text", "media_type": "text/plain", "data": "words"}
    assert block_of(DocumentContent(text="words"))["source"] == plain
    assert block_of(DocumentContent(data=b"words", media_type="text/markdown"))["source"] == plain


def test_citations_of_a_document_are_asked_for_in_its_provider_data() -> None:
    asked = DocumentContent(text="words", provider_data={"citations": {"enabled": True}, "other": 1})
    assert block_of(asked)["citations"] == {"enabled": True}
    assert "other" not in block_of(asked)
    assert "citations" not in block_of(asked.model_copy(update={"origin": ELSEWHERE}))
    assert "citations" not in block_of(DocumentContent(text="words"))


@pytest.mark.parametrize(
    "part",
    [
        AudioContent(data=b"x", media_type="audio/wav"),
        DocumentContent(data=b"x", media_type="application/msword"),
        DocumentContent(data=b"\xff\xfe", media_type="text/plain"),
        DocumentContent(url="https://x.test/a.txt", media_type="text/plain"),
        THOUGHT,
        CALL,
    ],
)
def test_what_a_user_cannot_send_is_refused(part: ContentPart) -> None:
    with pytest.raises(errors.UnsupportedFeatureError):
        block_of(part)


def test_what_an_assistant_cannot_have_shown_is_shown_by_the_user() -> None:
    drawn = Message.assistant([TextContent(text="Look"), ImageContent(image_data=PIXEL)])
    first, answer, shown = body_of(Message.user("Draw"), drawn)["messages"]
    assert [first["role"], answer["role"], shown["role"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in shown["content"]] == ["text", "image"]


def test_a_picture_in_a_system_message_is_refused() -> None:
    with pytest.raises(errors.UnsupportedFeatureError, match="system"):
        body_of(Message.system([ImageContent(image_data=PIXEL)]), Message.user("Hi"))


def test_code_diffs_and_refusals_are_text() -> None:
    assert [block["text"] for block in encode_assistant(
        CodeContent(code="x = 1", language="python"),
        DiffContent(old_code="a", new_code="b"),
        RefusalContent(refusal="I will not."),
    )] == ["```python\nx = 1\n```", "```diff\n-a\n+b\n```", "I will not."]  # fmt: skip


def test_a_users_block_in_the_vendors_form_goes_as_it_is_and_a_foreign_one_does_not() -> None:
    upload = {"type": "container_upload", "file_id": "file_1"}
    assert block_of(VendorContent(kind="container_upload", provider_data=upload, origin=HOME)) == upload
    foreign = Message.user([VendorContent(kind="x", provider_data={"type": "x"}, origin=ELSEWHERE)])
    assert turns(foreign, Message.user("Hi")) == [("user", [text("Hi")])]
    assert FOREIGN_BLOCK_DROPPED in warnings_of(foreign, Message.user("Hi"))


def test_reasoning_goes_home_unchanged() -> None:
    sealed = ThinkingContent(thinking="", redacted=True, encrypted_content="data", origin=HOME)
    assert encode_assistant(THOUGHT, sealed, TextContent(text="So.")) == [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "redacted_thinking", "data": "data"},
        text("So."),
    ]


def test_reasoning_from_elsewhere_is_left_out_or_told() -> None:
    foreign = ThinkingContent(thinking="Hm.", origin=ELSEWHERE)
    conversation = (Message.user("Hi"), Message.assistant([foreign, TextContent(text="So.")]), Message.user("?"))
    assert turns(*conversation)[1][1] == [text("So.")]
    assert FOREIGN_THINKING_DROPPED in warnings_of(*conversation)
    teller = AnthropicCodec(ApiAddress("https://x.test", None), foreign_thinking="text")
    told = wire_of(*conversation, codec=teller)
    assert FOREIGN_THINKING_AS_TEXT in told.warnings
    assert "Hm." in json.loads(told.body)["messages"][1]["content"][0]["text"]


def test_reasoning_without_its_signature_is_left_out() -> None:
    bare = ThinkingContent(thinking="Hm.", origin=HOME)
    assert encode_assistant(bare, TextContent(text="So.")) == [text("So.")]
    conversation = (Message.user("Hi"), Message.assistant([bare, TextContent(text="So.")]), Message.user("?"))
    assert NO_SIGNATURE in warnings_of(*conversation)


def test_citations_are_replayed_at_home() -> None:
    source = {"type": "char_location", "cited_text": "x", "document_index": 0}
    cited = TextContent(text="So.", citations=[Citation(quote="x", provider_data=source)], origin=HOME)
    assert encode_assistant(cited) == [{**text("So."), "citations": [source]}]
    assert encode_assistant(cited.model_copy(update={"origin": ELSEWHERE})) == [text("So.")]


def test_blocks_of_the_vendor_go_back_verbatim() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
    assert encode_assistant(VendorContent(kind="server_tool_use", provider_data=search, origin=HOME)) == [search]


def test_arguments_that_are_no_json_are_shown_to_the_model() -> None:
    broken = CALL.model_copy(update={"invalid_arguments": '{"city": ', "arguments": {}})
    written = turns(Message.user("Hi"), Message.assistant([broken]), RESULT)
    assert written[1][1][0]["input"] == {"_invalid_json": '{"city": '}


def test_who_called_a_tool_is_remembered_at_home() -> None:
    caller = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}
    call = CALL.model_copy(update={"provider_data": {"caller": caller}, "origin": HOME})
    assert turns(Message.user("Hi"), Message.assistant([call]), RESULT)[1][1][0]["caller"] == caller
    foreign = call.model_copy(update={"origin": ELSEWHERE})
    assert "caller" not in turns(Message.user("Hi"), Message.assistant([foreign]), RESULT)[1][1][0]


def test_ids_and_names_are_made_to_fit_and_stay_together() -> None:
    call = ToolCall(id="functions.run:0", name="ns:run.it", arguments={})
    written = turns(Message.user("Hi"), Message.assistant([call]), Message.tool("done", tool_call_id="functions.run:0"))
    (use,), (result,) = written[1][1], written[2][1]
    assert use["id"] == result["tool_use_id"] == snapshot("toolu_9674517371b8871137")
    assert use["name"] == snapshot("ns_run_it_1e23e3")


def result_of(**fields: Any) -> dict[str, Any]:
    message = Message(Role.TOOL, [ToolResult(tool_call_id="toolu_1", **fields)])
    block: dict[str, Any] = turns(Message.user("Hi"), Message.assistant([CALL]), message)[2][1][0]
    return block


def test_a_result_is_text_or_parts() -> None:
    assert result_of(content="7 C") == {"type": "tool_result", "tool_use_id": "toolu_1", "content": "7 C"}
    parts = [TextContent(text="see"), TextContent(text=" "), ImageContent(image_url="https://x.test/a.png")]
    assert [block["type"] for block in result_of(content=parts)["content"]] == ["text", "image"]


@pytest.mark.parametrize("blank", ["", " ", [], [TextContent(text="")]])
def test_a_blank_result_has_no_content_but_an_error_always_has_words(blank: Any) -> None:
    assert "content" not in result_of(content=blank)
    failed = result_of(content=blank, is_error=True)
    assert failed["is_error"] is True
    assert failed["content"]


def test_a_result_given_as_the_parts_of_a_message_is_never_lost() -> None:
    message = Message.tool([TextContent(text=" ", cache="short")], tool_call_id="toolu_1")
    written = turns(Message.user("Hi"), Message.assistant([CALL]), message)
    marked = {"type": "tool_result", "tool_use_id": "toolu_1", "cache_control": {"type": "ephemeral"}}
    assert written[2] == ("user", [marked])


def test_an_error_that_holds_more_than_text_says_so_in_words() -> None:
    failed = result_of(content=[ImageContent(image_url="https://x.test/a.png")], is_error=True)
    assert "is_error" not in failed
    assert failed["content"][0] == text("The tool failed:")
    message = Message(
        Role.TOOL, [ToolResult(tool_call_id="toolu_1", content=[ImageContent(image_data=PIXEL)], is_error=True)]
    )
    assert ERROR_WITH_MEDIA in warnings_of(Message.user("Hi"), Message.assistant([CALL]), message)


def test_audio_in_a_result_is_refused() -> None:
    with pytest.raises(errors.UnsupportedFeatureError, match="audio"):
        result_of(content=[AudioContent(data=b"x")])


def test_blank_text_with_a_signature_is_kept_and_sent_back() -> None:
    block = {"type": "text", "text": "", "signature": "sig"}
    body = {"type": "message", "content": [block], "stop_reason": "end_turn", "model": SONNET}
    response = CODEC.decode(Reply(200, {}, json.dumps(body).encode()), AgentRequest(input="Hi", model=SONNET))
    (part,) = response.content
    assert isinstance(part, TextContent)
    assert (part.text, part.signature) == ("", "sig")
    words = TextContent(text="Yes.")
    assert encode_assistant(part, words) == [block, text("Yes.")]
    assert encode_assistant(part, words, model="claude-opus-5") == [text("Yes.")]


def test_results_repeat_the_toolset_of_their_call() -> None:
    call = CALL.model_copy(update={"provider_data": {"toolset_name": "computer"}, "origin": HOME})
    for result in (RESULT, Message.tool("7 C", tool_call_id="toolu_1")):
        (_, (block,)) = turns(Message.user("Hi"), Message.assistant([call]), result)[-1]
        assert block == {"type": "tool_result", "tool_use_id": "toolu_1", "content": "7 C", "toolset_name": "computer"}
