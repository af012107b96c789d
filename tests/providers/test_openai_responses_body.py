"""Request bodies of the Responses API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from inline_snapshot import snapshot

from agent import errors
from agent.engine.wire import Reply, WireRequest
from agent.providers.base import ApiAddress
from agent.providers.openai_responses import ResponsesCodec
from agent.providers.openai_responses.messages import (
    FAILED,
    LOST_REASONING,
    NAME_LEFT_OUT,
    REPEATED_TURN,
    TITLE_LEFT_OUT,
    UNENCRYPTED_REASONING,
)
from agent.providers.repair import FOREIGN_BLOCK_DROPPED, FOREIGN_THINKING_DROPPED, NO_RESULT
from agent.types import (
    AgentRequest,
    AudioContent,
    Citation,
    CodeContent,
    ContentPart,
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    RefusalContent,
    Role,
    Secret,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    VendorContent,
)
from tests.providers.test_openai_responses_oracle import judge

HOME = Origin(provider="openai", api="openai-responses", model="gpt-5")
ELSEWHERE = Origin(provider="anthropic", api="anthropic", model="claude-sonnet-4-5")
CODEC = ResponsesCodec(ApiAddress("https://api.openai.com/v1", Secret("sk-test")), name="openai")
WEATHER = ToolSpec(
    name="get_weather",
    description="Weather for a city",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}


def encode(request: AgentRequest) -> WireRequest:
    return CODEC.encode(request, stream=False)


def body_of(request: AgentRequest) -> dict[str, Any]:
    """The body, which must also satisfy the types of the official SDK and the rules of the API."""
    return judge(request if request.model else request.model_copy(update={"model": "gpt-5"}))


def items_of(*messages: Message) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = body_of(AgentRequest(messages=messages))["input"]
    return items


def warnings_of(*messages: Message, **settings: Any) -> tuple[str, ...]:
    return encode(AgentRequest(messages=messages, model="gpt-5", **settings)).warnings


def build_thinking(id: str = "rs_1", sealed: str = "SEALED", **more: Any) -> ThinkingContent:
    return ThinkingContent(
        thinking="hm",
        id=id,
        encrypted_content=sealed,
        summary=[{"type": "summary_text", "text": "hm"}],
        origin=HOME,
        **more,
    )


def call(id: str = "call_1", **more: Any) -> ToolCall:
    return ToolCall(
        id=id, name="get_weather", arguments={"city": "Paris"}, **{"item_id": f"fc_{id}", "origin": HOME, **more}
    )


def words(text: str = "Sunny.", id: str = "msg_1", **more: Any) -> TextContent:
    return TextContent(text=text, origin=HOME, provider_data={"id": id, **more})


RESULT = Message(Role.TOOL, [ToolResult(tool_call_id="call_1", content="20 C")])


def test_a_whole_request_is_written_out() -> None:
    request = AgentRequest(
        input="And now?",
        messages=[Message.user("Hi"), Message.assistant("Hello")],
        system="Be brief.",
        model="gpt-4.1",
        temperature=0.5,
        max_tokens=100,
        top_p=0.9,
        logprobs=3,
        tools=[WEATHER, {"type": "web_search"}],
        tool_choice="get_weather",
        parallel_tool_calls=False,
        metadata={"user": "u1"},
        session_id="s1",
        extra={"service_tier": "flex"},
    )
    assert body_of(request) == snapshot(
        {
            "model": "gpt-4.1",
            "instructions": "Be brief.",
            "tools": [
                {
                    "type": "function",
                    "name": "get_weather",
                    "description": "Weather for a city",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"type": "string"}},
                        "required": ["city"],
                    },
                    "strict": False,
                },
                {"type": "web_search"},
            ],
            "tool_choice": {"type": "function", "name": "get_weather"},
            "parallel_tool_calls": False,
            "max_output_tokens": 100,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_logprobs": 3,
            "prompt_cache_key": "s1",
            "metadata": {"user": "u1"},
            "include": ["message.output_text.logprobs"],
            "store": False,
            "service_tier": "flex",
            "input": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "And now?"},
            ],
        }
    )
    assert encode(request).warnings == ()


def test_an_empty_address_leaves_the_path_that_a_brought_client_completes() -> None:
    codec = ResponsesCodec(ApiAddress("", None), name="openai")
    assert codec.encode(AgentRequest(input="hi", model="m"), stream=False).url == "/responses"


def test_the_key_is_sent_as_a_bearer_token() -> None:
    assert dict(encode(AgentRequest(input="hi", model="m")).headers)[b"authorization"] == b"Bearer sk-test"


# Messages.


def test_a_leading_system_message_becomes_the_instructions_and_later_ones_stay_where_they_are() -> None:
    body = body_of(AgentRequest(messages=[Message.system("A"), Message.user("hi"), Message.system("B")]))
    assert body["instructions"] == "A"
    assert body["input"] == [{"role": "user", "content": "hi"}, {"role": "system", "content": "B"}]


def test_a_system_message_that_is_all_there_is_stays_in_the_conversation() -> None:
    assert items_of(Message.system("A")) == [{"role": "system", "content": "A"}]


def test_what_a_user_says_and_shows() -> None:
    assert items_of(
        Message.user(
            [
                TextContent(text="Look:"),
                TextContent(text=""),
                ImageContent(image_url="https://example.com/a.png", detail="low"),
                ImageContent(image_data=b"\x89PNG"),
                DocumentContent(data=b"%PDF", title="report"),
                DocumentContent(data=b"a,b", media_type="text/csv", title="t.csv"),
                DocumentContent(url="https://example.com/b.pdf", title="ignored by the API"),
                DocumentContent(text="plain"),
                CodeContent(code="x = 1", language="python"),
            ]
        )
    ) == snapshot(
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look:"},
                    {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
                    {"type": "input_image", "image_url": "data:image/png;base64,iVBORw==", "detail": "auto"},
                    {
                        "type": "input_file",
                        "filename": "report.pdf",
                        "file_data": "data:application/pdf;base64,JVBERg==",
                    },
                    {"type": "input_file", "filename": "t.csv", "file_data": "data:text/csv;base64,YSxi"},
                    {"type": "input_file", "file_url": "https://example.com/b.pdf"},
                    {"type": "input_text", "text": "plain"},
                    {"type": "input_text", "text": "```python\nx = 1\n```"},
                ],
            }
        ]
    )


@pytest.mark.parametrize(
    "message",
    [
        Message.user([AudioContent(data=b"x", media_type="audio/wav")]),
        Message(Role.USER, [ThinkingContent(thinking="x")]),
    ],
    ids=["sound", "thinking by the user"],
)
def test_what_the_api_has_no_place_for_raises_before_anything_is_sent(message: Message) -> None:
    with pytest.raises(errors.UnsupportedFeatureError, match="openai does not support a part of type"):
        encode(AgentRequest(messages=[message], model="gpt-5"))


def test_sound_in_a_result_raises_too() -> None:
    result = ToolResult(tool_call_id="call_1", content=[AudioContent(data=b"x")])
    with pytest.raises(errors.UnsupportedFeatureError, match="in a tool result"):
        encode(AgentRequest(messages=[Message.assistant([call()]), Message(Role.TOOL, [result])], model="gpt-5"))


def test_an_authors_name_is_left_out_with_a_warning() -> None:
    assert warnings_of(Message.user("hi", name="Ann")) == (NAME_LEFT_OUT,)
    assert warnings_of(Message(Role.ASSISTANT, "hi", name="Bob")) == (NAME_LEFT_OUT,)
    assert warnings_of(Message(Role.SYSTEM, "Be brief.", name="Cy"), Message.user("hi")) == (NAME_LEFT_OUT,)


# Assistant messages.


def test_a_turn_at_home_goes_back_item_by_item() -> None:
    turn = Message.assistant(
        [
            build_thinking(),
            words("It is ", phase="commentary"),
            words("sunny.", phase="commentary"),
            VendorContent(kind="web_search_call", provider_data=SEARCH, origin=HOME),
            build_thinking("rs_2", "MORE"),
            call(provider_data={"namespace": "crm"}),
        ]
    )
    assert items_of(Message.user("?"), turn, RESULT)[1:] == snapshot(
        [
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "hm"}],
                "encrypted_content": "SEALED",
            },
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "It is ", "annotations": []},
                    {"type": "output_text", "text": "sunny.", "annotations": []},
                ],
                "phase": "commentary",
            },
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "q"},
            },
            {
                "type": "reasoning",
                "id": "rs_2",
                "summary": [{"type": "summary_text", "text": "hm"}],
                "encrypted_content": "MORE",
            },
            {
                "namespace": "crm",
                "type": "function_call",
                "call_id": "call_1",
                "name": "get_weather",
                "arguments": '{"city":"Paris"}',
                "id": "fc_call_1",
            },
            {"type": "function_call_output", "call_id": "call_1", "output": "20 C"},
        ]
    )


def test_a_turn_made_elsewhere_is_told_in_plain_words() -> None:
    turn = Message.assistant(
        [
            ThinkingContent(thinking="secret", encrypted_content="X", origin=ELSEWHERE),
            TextContent(text="One. ", origin=ELSEWHERE, provider_data={"id": "msg_x"}),
            TextContent(text="Two."),
            RefusalContent(refusal=" No.", origin=ELSEWHERE),
            RefusalContent(refusal=""),
            CodeContent(code="x"),
            ToolCall(id="call_1", name="get_weather", item_id="fc_x", origin=ELSEWHERE, provider_data={"caller": {}}),
        ]
    )
    request = AgentRequest(messages=[Message.user("?"), turn, RESULT], model="gpt-5")
    assert body_of(request)["input"][1:3] == [
        {"role": "assistant", "content": "One. Two. No.```\nx\n```"},
        {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"},
    ]
    assert encode(request).warnings == (FOREIGN_THINKING_DROPPED,)


def test_the_same_model_under_another_name_is_elsewhere() -> None:
    request = AgentRequest(
        messages=[Message.user("?"), Message.assistant([build_thinking(), words()])], model="gpt-5-mini"
    )
    assert body_of(request)["input"][1:] == [{"role": "assistant", "content": "Sunny."}]


def test_refusals_and_sources_go_back_to_their_maker() -> None:
    annotation = {"type": "url_citation", "url": "https://a", "title": "A", "start_index": 0, "end_index": 3}
    cited = words().model_copy(update={"citations": [Citation(url="https://a", provider_data=annotation)]})
    refusal = RefusalContent(refusal="No.", origin=HOME, provider_data={"id": "msg_2", "status": "incomplete"})
    assert items_of(Message.user("?"), Message.assistant([cited, refusal]))[1:] == [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Sunny.", "annotations": [annotation]}],
        },
        {
            "type": "message",
            "id": "msg_2",
            "role": "assistant",
            "status": "incomplete",
            "content": [{"type": "refusal", "refusal": "No."}],
        },
    ]


@pytest.mark.parametrize(
    ("parts", "warning"),
    [
        ([build_thinking(), TextContent(text="edited")], LOST_REASONING),
        ([words(), build_thinking()], LOST_REASONING),
        ([build_thinking(sealed=""), words()], UNENCRYPTED_REASONING),
        ([build_thinking(), build_thinking("rs_2", ""), words()], UNENCRYPTED_REASONING),
    ],
    ids=["its answer was edited", "it led to nothing", "it has no sealed form", "one of several has no sealed form"],
)
def test_reasoning_that_the_vendor_would_refuse_is_left_out(parts: list[ContentPart], warning: str) -> None:
    messages = Message.user("?"), Message.assistant(parts), Message.user("go on")
    items = items_of(*messages)
    assert not any(item.get("type") == "reasoning" for item in items)
    assert warning in warnings_of(*messages)
    assert any(item.get("role") == "assistant" for item in items)


def test_an_item_whose_reasoning_is_gone_is_not_known_by_its_id() -> None:
    items = items_of(Message.user("?"), Message.assistant([build_thinking(sealed=""), words(), call()]), RESULT)
    assert all("id" not in item for item in items)


def test_open_reasoning_goes_back_as_it_came() -> None:
    content = [{"type": "reasoning_text", "text": "hm"}]
    turn = Message.assistant([build_thinking(sealed="", provider_data={"content": content}), words()])
    assert items_of(Message.user("?"), turn)[1] == {
        "content": content,
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
    }


def test_where_the_vendor_keeps_the_conversation_reasoning_is_known_by_its_id() -> None:
    turn = Message.assistant([build_thinking(sealed=""), words()])
    body = body_of(AgentRequest(messages=[Message.user("?"), turn], extra={"store": True}))
    assert body["input"][1]["id"] == "rs_1"
    assert body["store"] is True


def test_broken_arguments_go_back_as_the_model_wrote_them() -> None:
    turn = Message.assistant([ToolCall(id="call_1", name="get_weather", invalid_arguments='{"city": ')])
    assert items_of(Message.user("?"), turn, RESULT)[1]["arguments"] == '{"city": '


def test_a_custom_call_that_was_cut_off_goes_back_as_far_as_it_came() -> None:
    cut = ToolCall(id="call_1", name="run", invalid_arguments="print(", origin=HOME, provider_data={"type": "custom"})
    assert items_of(Message.user("?"), Message.assistant([cut]), RESULT)[1]["input"] == "print("


@pytest.mark.parametrize("id", ["msg_1", None])
def test_blocks_that_only_the_vendor_understands_stay_in_their_message(id: str | None) -> None:
    facts = {} if id is None else {"id": id}
    widget, said = {"type": "output_widget", "size": 3}, {"type": "output_text", "text": "Sunny.", "annotations": []}
    item = {"type": "message", "role": "assistant", "status": "completed", **facts}
    block = VendorContent(kind="output_widget", provider_data={**item, "content": [widget]}, origin=HOME)
    text = TextContent(text="Sunny.", origin=HOME, provider_data=facts or None)
    for parts, content in (((block, text), [widget, said]), ((text, block), [said, widget])):
        request = AgentRequest(messages=[Message.user("?"), Message.assistant(parts)], model="gpt-5")
        turn = json.loads(encode(request).body)["input"][1:]
        if id is not None:
            assert turn == [{**item, "content": content}]
        else:
            assert [message["content"] for message in turn] == [
                "Sunny." if part is said else [part] for part in content
            ]


def test_an_answer_to_a_block_of_the_vendors_is_an_item_of_its_own() -> None:
    approval = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    block = VendorContent(kind="mcp_approval_response", provider_data=approval, origin=HOME)
    said = {"role": "user", "content": "yes"}
    assert items_of(Message.user([TextContent(text="yes"), block])) == [said, approval]
    foreign = Message.user([TextContent(text="yes"), block.model_copy(update={"origin": ELSEWHERE})])
    assert items_of(foreign) == [said]
    assert warnings_of(foreign) == (FOREIGN_BLOCK_DROPPED,)
    result = Message(Role.TOOL, [ToolResult(tool_call_id="call_1", content="20 C"), *foreign.parts])
    stored = {"previous_response_id": "resp_1"}
    assert body_of(AgentRequest(messages=[result], extra=stored))["input"][1:] == [said]


# Results.


def test_results_are_text_or_blocks_and_errors_say_so() -> None:
    calls = Message.assistant([call("call_1"), call("call_2"), call("call_3"), call("call_4")])
    image = ImageContent(image_url="https://example.com/a.png")
    results = [
        ToolResult(tool_call_id="call_1", content="fine"),
        ToolResult(tool_call_id="call_2", content="no such city", is_error=True),
        ToolResult(
            tool_call_id="call_3", content=[TextContent(text=""), TextContent(text="see"), image], is_error=True
        ),
    ]
    outputs = [item["output"] for item in items_of(Message.user("?"), calls, Message(Role.TOOL, results))[5:]]
    block = {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"}
    assert outputs == [
        "fine",
        f"{FAILED}\nno such city",
        [{"type": "input_text", "text": FAILED}, {"type": "input_text", "text": "see"}, block],
        f"{FAILED}\n{NO_RESULT}",
    ]


def test_a_custom_tool_is_called_and_answered_with_text() -> None:
    custom = ToolCall(
        id="call_1",
        name="run",
        arguments={"input": "1+1"},
        item_id="ctc_1",
        origin=HOME,
        provider_data={"type": "custom"},
    )
    turn = Message.assistant([custom])
    assert items_of(Message.user("?"), turn, RESULT)[1:] == [
        {"type": "custom_tool_call", "call_id": "call_1", "name": "run", "input": "1+1", "id": "ctc_1"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "20 C"},
    ]
    elsewhere = body_of(AgentRequest(messages=[Message.user("?"), turn, RESULT], model="gpt-5-mini"))["input"]
    assert [item.get("type") for item in elsewhere[1:]] == ["function_call", "function_call_output"]
    assert elsewhere[1]["arguments"] == '{"input":"1+1"}'


def test_the_program_that_called_a_tool_is_told_of_the_result() -> None:
    caller = {"type": "program", "caller_id": "call_p"}
    output = items_of(Message.user("?"), Message.assistant([call(provider_data={"caller": caller})]), RESULT)[2]
    assert output["caller"] == caller


def test_ids_and_names_that_do_not_fit_are_replaced_the_same_way_everywhere() -> None:
    long = ToolCall(id="x" * 70, name="search.web")
    result = ToolResult(tool_call_id="x" * 70, content="ok")
    tool = ToolSpec(name="search.web")
    body = body_of(
        AgentRequest(
            messages=[Message.user("?"), Message.assistant([long]), Message(Role.TOOL, [result])],
            tools=[tool],
            tool_choice="search.web",
        )
    )
    _, called, answered = body["input"]
    assert called["call_id"] == answered["call_id"]
    assert called["name"] == body["tools"][0]["name"] == body["tool_choice"]["name"] != "search.web"


def test_results_for_calls_that_the_vendor_has_stored_need_no_call_beside_them() -> None:
    request = AgentRequest(messages=[RESULT, Message.user("go on")], extra={"previous_response_id": "resp_1"})
    body = body_of(request)
    assert body["input"] == [
        {"type": "function_call_output", "call_id": "call_1", "output": "20 C"},
        {"role": "user", "content": "go on"},
    ]
    assert "store" not in body


# Tools, schemas and settings.


def test_strict_is_always_said_and_strict_schemas_are_closed() -> None:
    def tool(strict: bool | None) -> dict[str, Any]:
        spec = WEATHER.model_copy(update={"strict": strict})
        found: dict[str, Any] = body_of(AgentRequest(input="?", tools=[spec]))["tools"][0]
        return found

    assert tool(None)["strict"] is False
    assert tool(False)["strict"] is False
    assert tool(True)["strict"] is True
    assert tool(True)["parameters"]["additionalProperties"] is False


def test_what_the_vendor_will_not_enforce_is_a_warning() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "multipleOf": 2, "not": {}}}}
    tool = ToolSpec(name="f", parameters=schema, strict=True)
    warnings = encode(AgentRequest(input="?", model="gpt-4o", tools=[tool], output_schema=schema)).warnings
    assert any(warning.startswith("tool f: ") for warning in warnings)
    assert any(warning.startswith("output_schema: ") for warning in warnings)


def test_a_tool_without_parameters_still_takes_an_object() -> None:
    tool = body_of(AgentRequest(input="?", tools=[ToolSpec(name="now")]))["tools"][0]
    assert tool == {
        "type": "function",
        "name": "now",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("get_weather", {"type": "function", "name": "get_weather"}),
        ("run", {"type": "custom", "name": "run"}),
        ("image_generation", {"type": "image_generation"}),
        ("mcp", {"type": "mcp", "server_label": "wiki"}),
        ("wiki", {"type": "mcp", "server_label": "wiki"}),
    ],
)
def test_the_choice_of_a_tool(choice: str, written: Any) -> None:
    server = {"type": "mcp", "server_label": "wiki", "server_url": "https://wiki.example"}
    tools: list[ToolSpec | dict[str, Any]] = [
        WEATHER,
        {"type": "custom", "name": "run"},
        {"type": "image_generation"},
        server,
    ]
    assert body_of(AgentRequest(input="?", tools=tools, tool_choice=choice))["tool_choice"] == written


def test_an_output_schema_is_enforced_by_the_vendor() -> None:
    schema = {"title": "A city", "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    form = body_of(AgentRequest(input="?", output_schema=schema))["text"]["format"]
    assert (form["type"], form["name"], form["strict"]) == ("json_schema", "A_city", True)
    assert form["schema"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("model", "level", "reasoning", "warned"),
    [
        ("gpt-5", "low", {"effort": "low", "summary": "auto"}, False),
        ("gpt-5", "minimal", {"effort": "minimal", "summary": "auto"}, False),
        ("gpt-5", "off", {"effort": "minimal", "summary": "auto"}, True),
        ("gpt-5", "xhigh", {"effort": "high", "summary": "auto"}, True),
        ("gpt-5-pro", "low", {"effort": "high", "summary": "auto"}, True),
        ("gpt-5.1", "off", {"effort": "none"}, False),
        ("gpt-5.1", "minimal", {"effort": "low", "summary": "auto"}, True),
        ("gpt-5.2", "xhigh", {"effort": "xhigh", "summary": "auto"}, False),
        ("o4-mini", "off", {"effort": "low", "summary": "auto"}, True),
        ("openai/gpt-5-nano", "minimal", {"effort": "minimal", "summary": "auto"}, False),
        ("openai.gpt-oss-20b", "high", {"effort": "high", "summary": "auto"}, False),
        ("gpt-4o", "high", None, True),
        ("gpt-4o", "off", None, False),
        ("gpt-9-future", "xhigh", {"effort": "xhigh", "summary": "auto"}, False),
        ("my-deployment", "off", {"effort": "none"}, False),
    ],
)
def test_thinking_is_asked_for_as_far_as_the_model_offers_it(
    model: str, level: Any, reasoning: dict[str, str] | None, warned: bool
) -> None:
    request = AgentRequest(input="?", model=model, thinking=level)
    assert body_of(request).get("reasoning") == reasoning
    assert bool(encode(request).warnings) is warned


def test_sealed_reasoning_is_asked_for_unless_the_model_does_not_reason() -> None:
    assert body_of(AgentRequest(input="?", model="gpt-5"))["include"] == ["reasoning.encrypted_content"]
    assert "include" not in body_of(AgentRequest(input="?", model="gpt-4o"))


def test_a_model_that_reasons_takes_no_sampling_unless_it_rests() -> None:
    def build_request(model: str, **settings: Any) -> tuple[set[str], int]:
        request = AgentRequest(input="?", model=model, temperature=0.5, top_p=0.5, logprobs=2, **settings)
        return {"temperature", "top_p", "top_logprobs"} & body_of(request).keys(), len(encode(request).warnings)

    everything = {"temperature", "top_p", "top_logprobs"}
    assert build_request("gpt-5") == (set(), 3)
    assert build_request("gpt-4o") == (everything, 0)
    assert build_request("my-deployment") == (everything, 0)
    assert build_request("gpt-5.1", thinking="off") == (everything, 0)
    assert build_request("gpt-5.1") == (everything, 0)
    assert build_request("gpt-5.1", thinking="high") == (set(), 3)


def test_settings_that_the_api_does_not_have_are_left_out_with_a_warning() -> None:
    assert encode(AgentRequest(input="?", model="gpt-4o", stop=["END"], seed=7)).warnings == snapshot(
        (
            "stop was left out: the Responses API does not support it",
            "seed was left out: the Responses API does not support it",
        )
    )


def test_a_limit_below_the_least_is_raised_to_it_with_a_warning() -> None:
    request = AgentRequest(input="?", model="gpt-4o", max_tokens=5)
    assert body_of(request)["max_output_tokens"] == 16
    assert len(encode(request).warnings) == 1


def test_a_long_cache_is_asked_for_in_the_words_of_the_model() -> None:
    def keys(model: str) -> dict[str, Any]:
        body = body_of(AgentRequest(input="?", model=model, cache="long"))
        return {key: value for key, value in body.items() if key.startswith("prompt_cache")}

    assert keys("gpt-5.1") == {"prompt_cache_retention": "24h"}
    assert keys("gpt-5.6-sol") == {"prompt_cache_options": {"ttl": "12h"}}
    assert keys("gpt-4o") == {}
    assert len(encode(AgentRequest(input="?", model="gpt-4o", cache="long")).warnings) == 1
    assert encode(AgentRequest(input="?", model="gpt-4o", cache="short")).warnings == ()


def test_parts_are_marked_for_the_cache_where_the_model_takes_marks() -> None:
    message = Message.user([TextContent(text="a", cache="short"), TextContent(text="b", cache="long")])
    marked = body_of(AgentRequest(messages=[message], model="gpt-5.6"))["input"][0]["content"]
    assert [block["prompt_cache_breakpoint"] for block in marked] == [
        {"mode": "explicit"},
        {"mode": "explicit", "ttl": "12h"},
    ]
    result = ToolResult(tool_call_id="call_1", content=[TextContent(text="a", cache="short")])
    answered = [Message.assistant([ToolCall(id="call_1", name="f")]), Message(Role.TOOL, [result])]
    output = body_of(AgentRequest(messages=[Message.user("?"), *answered], model="gpt-5.6"))["input"][2]["output"]
    assert output == [{"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}]
    for content in ("a", [TextContent(text="a")]):
        whole = ToolResult(tool_call_id="call_1", content=content, cache="short")
        answered[1] = Message(Role.TOOL, [whole])
        assert (
            body_of(AgentRequest(messages=[Message.user("?"), *answered], model="gpt-5.6"))["input"][2]["output"]
            == output
        )
    plain = body_of(AgentRequest(messages=[message], model="gpt-5"))["input"][0]["content"]
    assert all("prompt_cache_breakpoint" not in block for block in plain)


def test_a_long_session_id_is_shortened_to_a_cache_key_that_stays_the_same() -> None:
    first, again = (body_of(AgentRequest(input="?", session_id="s" * 80))["prompt_cache_key"] for _ in range(2))
    assert first == again
    assert len(first) == 64


def test_metadata_goes_along_as_far_as_it_fits() -> None:
    request = AgentRequest(input="?", model="gpt-4o", metadata={"a": "1", "b": 2, "c": "x" * 600})
    assert body_of(request)["metadata"] == {"a": "1"}
    assert len(encode(request).warnings) == 1
    many = AgentRequest(input="?", model="gpt-4o", metadata={f"k{n}": "v" for n in range(20)})
    assert len(body_of(many)["metadata"]) == 16


def test_extra_adds_to_what_the_request_says_and_wins_where_they_meet() -> None:
    body = body_of(
        AgentRequest(
            input="?",
            model="gpt-5",
            thinking="low",
            output_schema={"type": "object", "properties": {}},
            extra={
                "include": ["web_search_call.action.sources", "reasoning.encrypted_content"],
                "reasoning": {"summary": "detailed"},
                "text": {"verbosity": "low"},
                "truncation": "auto",
            },
        )
    )
    assert body["include"] == ["reasoning.encrypted_content", "web_search_call.action.sources"]
    assert body["reasoning"] == {"effort": "low", "summary": "detailed"}
    assert body["text"].keys() == {"format", "verbosity"}
    assert body["truncation"] == "auto"
    odd = json.loads(encode(AgentRequest(input="?", model="gpt-5", extra={"include": "all"})).body)
    assert odd["include"] == "all", "the vendor is the one to complain"


@pytest.mark.parametrize("key", ["input", "instructions", "model", "stream"])
def test_extra_may_not_replace_what_the_request_itself_says(key: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=key):
        encode(AgentRequest(input="?", model="m", extra={key: "x"}))


def test_extra_may_bring_tools_but_not_replace_the_requests_own() -> None:
    own: dict[str, Any] = {"tools": [{"type": "web_search"}]}
    assert body_of(AgentRequest(input="?", model="m", extra=own))["tools"] == own["tools"]
    with pytest.raises(errors.ConfigurationError, match="tools"):
        encode(AgentRequest(input="?", model="m", extra=own, tools=[ToolSpec(name="f")]))


def test_a_stored_prompt_needs_no_input() -> None:
    assert "input" not in body_of(AgentRequest(model="gpt-5", extra={"prompt": {"id": "pmpt_1"}}))


# Several requests, and counting.


def test_warnings_are_given_for_every_model_and_every_time() -> None:
    told, named = Message.user("hi"), Message.user("hi", name="Ann")
    for model in ("gpt-5", "gpt-5.6", "gpt-5"):
        for _ in range(2):
            wire = encode(AgentRequest(messages=[told, named], model=model))
            assert wire.warnings == (NAME_LEFT_OUT,)


def test_a_turn_that_occurs_twice_is_told_without_its_ids_the_second_time() -> None:
    turn = Message.assistant([build_thinking(), words(), call()])
    messages = [Message.user("?"), turn, RESULT, turn, RESULT]
    for _ in range(2):
        first, second = items_of(*messages)[1:5], items_of(*messages)[5:]
        assert [item.get("id") for item in first] == ["rs_1", "msg_1", "fc_call_1", None]
        assert [item.get("id") for item in second] == [None, None, None]
        assert REPEATED_TURN in warnings_of(*messages)


def test_a_users_message_that_occurs_twice_stays_the_users() -> None:
    approval = {"type": "mcp_approval_response", "id": "a_1", "approval_request_id": "mcpr_1", "approve": True}
    block = VendorContent(kind="mcp_approval_response", provider_data=approval, origin=HOME)
    message = Message.user([TextContent(text="yes"), block])
    said = {"role": "user", "content": "yes"}
    assert items_of(message, message) == [said, approval, said]
    assert warnings_of(message, message) == (REPEATED_TURN,)


def test_a_results_form_follows_its_call_whatever_was_written_before() -> None:
    result = Message(Role.TOOL, [ToolResult(tool_call_id="call_1", content="2")])
    custom = ToolCall(id="call_1", name="run", arguments={"input": "1"}, origin=HOME, provider_data={"type": "custom"})
    forms = [items_of(Message.user("?"), Message.assistant([made]), result)[2]["type"] for made in (custom, call())]
    assert forms == ["custom_tool_call_output", "function_call_output"]
    again = items_of(Message.user("?"), Message.assistant([custom]), result)[2]
    assert again["type"] == "custom_tool_call_output"


def test_tokens_are_counted_for_what_would_be_sent() -> None:
    request = AgentRequest(
        input="hi", model="gpt-5", system="S", tools=[WEATHER], max_tokens=100, metadata={"a": "b"}, thinking="low"
    )
    wire = CODEC.encode_count(request)
    assert wire.url == "https://api.openai.com/v1/responses/input_tokens"
    body = json.loads(wire.body)
    assert body.keys() == {"model", "instructions", "tools", "reasoning", "input"}
    reply = Reply(200, {}, b'{"object": "response.input_tokens", "input_tokens": 12}')
    assert CODEC.decode_count(reply, request) == 12


def test_a_count_that_is_none_is_an_error() -> None:
    request = AgentRequest(input="hi", model="gpt-5")
    with pytest.raises(errors.ProtocolError, match="token count is missing"):
        CODEC.decode_count(Reply(200, {}, b"{}"), request)
    with pytest.raises(errors.ModelNotFoundError):
        CODEC.decode_count(Reply(404, {}, b'{"error": {"message": "no such model"}}'), request)


def test_the_title_of_a_document_is_told_where_it_has_a_place() -> None:
    report = DocumentContent(text="words", title="Report")
    assert items_of(Message.user([report]))[0]["content"] == "Report:\nwords"
    linked = Message.user([DocumentContent(url="https://a.example/b.pdf", title="Report")])
    assert warnings_of(linked) == warnings_of(linked) == (TITLE_LEFT_OUT,), "each time"
