"""Encoding of requests to Gemini: settings, turns, signatures, functions and their responses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent import errors
from agent.engine.wire import Reply
from agent.providers.base import ApiAddress
from agent.providers.gemini import VERTEX, GeminiCodec
from agent.providers.gemini.fields import generate_id
from agent.providers.gemini.models import SKIP_SIGNATURE
from agent.types import (
    AgentRequest,
    AudioContent,
    CodeContent,
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    Part,
    RefusalContent,
    Role,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResult,
    ToolSpec,
    VendorContent,
)

CODEC = GeminiCodec(ApiAddress("http://127.0.0.1", None))
ON_VERTEX = GeminiCodec(ApiAddress("http://127.0.0.1", None), name="vertex", platform=VERTEX)
OLD, NEW = "gemini-2.5-flash", "gemini-3-flash-preview"
WEATHER = ToolSpec(
    name="get_weather",
    description="The weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
SEARCH = ToolSpec(name="search")


def home(model: str, provider: str = "gemini") -> Origin:
    return Origin(provider=provider, api="gemini", model=model)


def encode(codec: GeminiCodec = CODEC, model: str = OLD, **fields: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    if "messages" not in fields:
        fields.setdefault("input", "hi")
    wire = codec.encode(AgentRequest(model=model, **fields), stream=False)
    body: dict[str, Any] = json.loads(wire.body)
    return body, wire.warnings


def body_of(model: str = OLD, **fields: Any) -> dict[str, Any]:
    body, warnings = encode(model=model, **fields)
    assert warnings == ()
    return body


def contents_of(*messages: Message, model: str = OLD) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = body_of(model, messages=messages)["contents"]
    return contents


def parts_said(*parts: Part, model: str = OLD) -> list[dict[str, Any]]:
    """How parts of an assistant's turn are written."""
    found: list[dict[str, Any]] = contents_of(Message.user("hi"), Message.assistant(parts), model=model)[1]["parts"]
    return found


def encode_results(*calls: ToolCall, model: str = OLD, results: list[ToolResult] | None = None) -> list[dict[str, Any]]:
    made = [ToolResult(tool_call_id=call.id, content="done") for call in calls] if results is None else results
    return contents_of(Message.user("hi"), Message.assistant(calls), Message(Role.TOOL, made), model=model)


# Turns


def test_text_alone_is_one_turn_and_nothing_else() -> None:
    assert body_of() == {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


def test_system_and_leading_system_messages_are_the_instruction() -> None:
    body = body_of(system="Be brief.", messages=[Message.system("Be kind."), Message.user("hi")])
    assert body["systemInstruction"] == {"parts": [{"text": "Be brief."}, {"text": "Be kind."}]}
    assert body["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}]


def test_a_later_system_message_is_told_as_the_users_with_a_warning() -> None:
    body, warnings = encode(messages=[Message.user("hi"), Message.assistant("yes?"), Message.system("Be brief.")])
    assert body["contents"][-1] == {"role": "user", "parts": [{"text": "Be brief."}]}
    assert warnings == ("a system message within the conversation was sent as a user message",)


def test_neighbours_of_one_role_are_one_turn() -> None:
    contents = contents_of(Message.user("a"), Message.user("b"), Message.assistant("c"), Message.assistant("d"))
    assert contents == [
        {"role": "user", "parts": [{"text": "a"}, {"text": "b"}]},
        {"role": "model", "parts": [{"text": "c"}, {"text": "d"}]},
    ]


def test_a_conversation_that_begins_with_the_assistant_gets_a_users_turn_before() -> None:
    body, warnings = encode(messages=[Message.assistant("Hello!"), Message.user("hi")])
    assert [content["role"] for content in body["contents"]] == ["user", "model", "user"]
    assert warnings == ("the conversation starts with an assistant message; a user message was inserted before it",)


def test_instructions_alone_are_nothing_to_answer() -> None:
    with pytest.raises(errors.ConfigurationError, match="conversation is empty") as caught:
        encode(messages=[Message.system("Be brief.")])
    assert caught.value.field == "messages"


def test_code_and_plain_documents_can_be_instructions() -> None:
    parts: list[Part] = [CodeContent(code="x"), DocumentContent(text="d", title="t")]
    body = body_of(messages=[Message.system(parts), Message.user("hi")])
    assert body["systemInstruction"]["parts"] == [{"text": "```\nx\n```"}, {"text": "t:\nd"}]


def test_pictures_in_instructions_are_refused() -> None:
    picture = ImageContent(image_data=b"x")
    with pytest.raises(errors.UnsupportedFeatureError, match="in a system message"):
        encode(messages=[Message.system([picture]), Message.user("hi")])


@pytest.mark.parametrize(
    ("part", "written"),
    [
        (
            ImageContent(image_data=b"png", media_type="image/webp"),
            {"inlineData": {"mimeType": "image/webp", "data": "cG5n"}},
        ),
        (ImageContent(image_data=b"png"), {"inlineData": {"mimeType": "image/png", "data": "cG5n"}}),
        (
            ImageContent(image_url="https://example.com/a.PNG?size=1"),
            {"fileData": {"fileUri": "https://example.com/a.PNG?size=1", "mimeType": "image/png"}},
        ),
        (
            ImageContent(image_url="https://example.com/picture"),
            {"fileData": {"fileUri": "https://example.com/picture", "mimeType": "image/jpeg"}},
        ),
        (
            ImageContent(image_url="https://generativelanguage.googleapis.com/v1beta/files/abc"),
            {"fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/abc"}},
        ),
        (
            DocumentContent(url="gs://bucket/report.pdf"),
            {"fileData": {"fileUri": "gs://bucket/report.pdf", "mimeType": "application/pdf"}},
        ),
        (DocumentContent(data=b"pdf"), {"inlineData": {"mimeType": "application/pdf", "data": "cGRm"}}),
        (
            DocumentContent(data=b"a,b", media_type="text/csv"),
            {"inlineData": {"mimeType": "text/csv", "data": "YSxi"}},
        ),
        (DocumentContent(text="plain"), {"text": "plain"}),
        (DocumentContent(text="plain", title="Notes"), {"text": "Notes:\nplain"}),
        (
            AudioContent(data=b"mp3", media_type="audio/mpeg"),
            {"inlineData": {"mimeType": "audio/mpeg", "data": "bXAz"}},
        ),
        (CodeContent(code="x = 1", language="python"), {"text": "```python\nx = 1\n```"}),
    ],
    ids=lambda value: getattr(value, "type", ""),
)
def test_each_kind_of_content_has_its_form(part: Part, written: dict[str, Any]) -> None:
    assert contents_of(Message.user([part]))[0]["parts"] == [written]


def test_how_closely_to_look_is_left_to_the_model_with_a_warning() -> None:
    picture = ImageContent(image_data=b"png", detail="low")
    _, warnings = encode(messages=[Message.user([picture])])
    assert warnings == ("the detail of an image was dropped: gemini does not support it",)
    assert encode(messages=[Message.user([picture])])[1] == warnings, "a warning comes each time"


def test_what_json_cannot_hold_is_refused_before_anything_is_sent() -> None:
    for fields in ({"input": "half \ud83d"}, {"extra": {"x": object()}}, {"input": "hi", "system": "\ud83d"}):
        with pytest.raises(errors.ConfigurationError, match="JSON"):
            encode(**fields)


def test_a_block_in_the_vendors_own_form_can_be_a_users() -> None:
    clip = {"fileData": {"fileUri": "https://youtu.be/x"}, "videoMetadata": {"startOffset": "3s"}}
    block = VendorContent(kind="fileData", provider_data=clip, origin=home(OLD))
    assert contents_of(Message.user([block]))[0]["parts"] == [clip]


def test_a_call_in_a_users_message_is_refused() -> None:
    with pytest.raises(errors.UnsupportedFeatureError, match="in a user's message"):
        encode(messages=[Message(Role.USER, [ToolCall(id="1", name="f")])])


def test_empty_text_is_never_sent() -> None:
    empty = (TextContent(text=""), DocumentContent(text=""), RefusalContent(refusal=""))
    assert contents_of(
        Message.user([*empty[:2], TextContent(text="hi")]), Message.assistant([*empty, TextContent(text="yes")])
    ) == [{"role": "user", "parts": [{"text": "hi"}]}, {"role": "model", "parts": [{"text": "yes"}]}]


def test_what_is_no_address_is_for_the_vendor_to_refuse() -> None:
    (turn,) = contents_of(Message.user([ImageContent(image_url="http://[x")]))
    assert turn["parts"][0]["fileData"]["fileUri"] == "http://[x"


def test_a_refusal_is_told_as_text() -> None:
    assert parts_said(RefusalContent(refusal="No.")) == [{"text": "No."}]


# Signatures


def test_each_signature_goes_back_on_the_part_it_came_with() -> None:
    origin = home(NEW)
    parts = parts_said(
        ThinkingContent(thinking="hm", signature="s1", origin=origin),
        TextContent(text="a", signature="s2", origin=origin),
        TextContent(text="b"),
        TextContent(text="", signature="s3", origin=origin),
        VendorContent(
            kind="executableCode",
            provider_data={"executableCode": {"code": "1", "language": "PYTHON"}, "thoughtSignature": "s4"},
            origin=origin,
        ),
        ImageContent(image_data=b"png", provider_data={"thoughtSignature": "s5"}, origin=origin),
        model=NEW,
    )
    assert [part.get("thoughtSignature") for part in parts] == ["s1", "s2", None, "s3", "s4", "s5"]
    assert parts[0] == {"text": "hm", "thought": True, "thoughtSignature": "s1"}
    assert parts[3] == {"text": "", "thoughtSignature": "s3"}


@pytest.mark.parametrize("origin", [home(OLD), home(NEW, "vertex"), None], ids=["model", "provider", "unknown"])
def test_signatures_from_elsewhere_stay_away_and_calls_carry_the_stand_in(origin: Origin | None) -> None:
    calls = [ToolCall(id=str(n), name="f", signature=f"s{n}", origin=origin) for n in range(2)]
    said: list[Part] = [TextContent(text="a", signature="s", origin=origin), *calls]
    results = [ToolResult(tool_call_id=str(n), content="") for n in range(2)]
    contents = contents_of(Message.user("hi"), Message.assistant(said), Message(Role.TOOL, results), model=NEW)
    signatures = [part.get("thoughtSignature") for part in contents[1]["parts"]]
    assert signatures == [None, SKIP_SIGNATURE, None], "only the first call of a step needs one"


def test_a_call_with_its_own_signature_needs_no_stand_in() -> None:
    contents = encode_results(ToolCall(id="1", name="f", signature="own", origin=home(NEW)), model=NEW)
    assert contents[1]["parts"][0]["thoughtSignature"] == "own"


def test_before_gemini_3_unsigned_calls_are_sent_unsigned() -> None:
    assert "thoughtSignature" not in encode_results(ToolCall(id="1", name="f"))[1]["parts"][0]


def test_a_thought_that_is_empty_is_not_sent() -> None:
    assert parts_said(ThinkingContent(thinking="", origin=home(OLD)), TextContent(text="a")) == [{"text": "a"}]


def test_blocks_of_the_vendor_go_back_as_they_came() -> None:
    block = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2", "id": "x"}}
    part = VendorContent(kind="codeExecutionResult", provider_data=block, origin=home(OLD))
    assert parts_said(TextContent(text="a"), part)[1] == block


def test_what_a_candidate_said_about_itself_is_no_part() -> None:
    part = VendorContent(kind="metadata", provider_data={"groundingMetadata": {}}, origin=home(OLD))
    assert parts_said(TextContent(text="a"), part) == [{"text": "a"}]


def test_reasoning_made_elsewhere_can_be_told_as_text() -> None:
    codec = GeminiCodec(ApiAddress("http://127.0.0.1", None), foreign_thinking="text")
    said = Message.assistant([ThinkingContent(thinking="hm", signature="s"), TextContent(text="a")])
    body, warnings = encode(codec, messages=[Message.user("hi"), said])
    assert body["contents"][1]["parts"][0]["text"] == "<thinking>\nhm\n</thinking>\n"
    assert len(warnings) == 1


# Calls and results


def test_calls_and_responses_carry_ids_and_names() -> None:
    call = ToolCall(id="toolu_01", name="get_weather", arguments={"city": "Paris"})
    contents = encode_results(call)
    assert contents[1]["parts"] == [
        {"functionCall": {"id": "toolu_01", "name": "get_weather", "args": {"city": "Paris"}}}
    ]
    assert contents[2] == {
        "role": "user",
        "parts": [{"functionResponse": {"id": "toolu_01", "name": "get_weather", "response": {"result": "done"}}}],
    }


def test_ids_that_were_made_up_here_are_not_sent_back() -> None:
    calls = [ToolCall(id=generate_id("answer", n, "f", {}), name="f") for n in range(2)]
    contents = encode_results(*calls)
    assert all("id" not in part["functionCall"] for part in contents[1]["parts"])
    assert all("id" not in part["functionResponse"] for part in contents[2]["parts"])


def test_vertex_gets_back_only_the_ids_that_it_gave() -> None:
    """Its API has long refused the field, and takes it from models that fill it themselves."""
    own = ToolCall(id="of_vertex", name="f", origin=home(NEW, "vertex"))
    result, calls = Message.tool("done", tool_call_id="of_vertex"), (own, own.model_copy(update={"origin": None}))
    for call, ids in zip(calls, (["of_vertex"] * 2, [None] * 2), strict=True):
        messages = [Message.user("hi"), Message.assistant([call]), result]
        turns = encode(ON_VERTEX, NEW, messages=messages)[0]["contents"]
        named = [turns[1]["parts"][0]["functionCall"], turns[2]["parts"][0]["functionResponse"]]
        assert [part.get("id") for part in named] == ids


def test_an_id_that_vertex_gave_goes_back_to_it() -> None:
    said = {"role": "model", "parts": [{"functionCall": {"id": "of_vertex", "name": "f", "args": {}}}]}
    data = json.dumps({"candidates": [{"content": said, "finishReason": "STOP"}]}).encode()
    request = AgentRequest(model=NEW, input="hi")
    answer = ON_VERTEX.decode(Reply(200, {}, data), request)
    result = Message.tool("done", tool_call_id="of_vertex")
    contents = json.loads(ON_VERTEX.encode(request.with_messages(answer.message, result), stream=False).body)[
        "contents"
    ]
    assert contents[1]["parts"][0]["functionCall"]["id"] == "of_vertex"
    assert contents[2]["parts"][0]["functionResponse"]["id"] == "of_vertex"


def test_responses_stand_in_the_order_of_the_calls() -> None:
    calls = [ToolCall(id=name, name=name) for name in ("a", "b", "c")]
    results = [ToolResult(tool_call_id=name, content=name) for name in ("c", "a", "b")]
    responses = encode_results(*calls, results=results)[2]["parts"]
    assert [part["functionResponse"]["name"] for part in responses] == ["a", "b", "c"]
    assert [part["functionResponse"]["response"] for part in responses] == [{"result": name} for name in "abc"]


def test_results_in_several_messages_are_one_turn_before_what_the_user_says() -> None:
    calls = [ToolCall(id="1", name="f"), ToolCall(id="2", name="f")]
    contents = contents_of(
        Message.user("hi"),
        Message.assistant(calls),
        Message.tool("one", tool_call_id="1"),
        Message.tool("two", tool_call_id="2"),
        Message.user("and now?"),
    )
    kinds = [next(iter(part)) for part in contents[2]["parts"]]
    assert kinds == ["functionResponse", "functionResponse", "text"]


def test_a_failed_tool_responds_with_an_error() -> None:
    call = ToolCall(id="1", name="f")
    result = ToolResult(tool_call_id="1", content="it broke", is_error=True)
    part = encode_results(call, results=[result])[2]["parts"][0]
    assert part["functionResponse"]["response"] == {"error": "it broke"}


def test_arguments_that_were_no_json_are_shown_to_the_model() -> None:
    call = ToolCall(id="1", name="f", invalid_arguments='{"a": ')
    assert encode_results(call)[1]["parts"][0]["functionCall"]["args"] == {"invalid_arguments": '{"a": '}


def test_pictures_in_results_stand_inside_them_from_gemini_3_on() -> None:
    content = [TextContent(text="here"), ImageContent(image_data=b"png"), DocumentContent(text="note")]
    result = ToolResult(tool_call_id="1", content=content)
    parts = encode_results(ToolCall(id="1", name="f"), model=NEW, results=[result])[2]["parts"]
    assert parts == [
        {
            "functionResponse": {
                "id": "1",
                "name": "f",
                "response": {"result": "herenote"},
                "parts": [{"inlineData": {"mimeType": "image/png", "data": "cG5n"}}],
            }
        }
    ]


def test_pictures_in_results_follow_all_responses_before_gemini_3() -> None:
    calls = [ToolCall(id="1", name="f"), ToolCall(id="2", name="g")]
    results = [
        ToolResult(tool_call_id="1", content=[ImageContent(image_data=b"png")]),
        ToolResult(tool_call_id="2", content="done"),
    ]
    parts = encode_results(*calls, results=results)[2]["parts"]
    assert [next(iter(part)) for part in parts] == ["functionResponse", "functionResponse", "text", "inlineData"]
    assert parts[2] == {"text": "Returned by f:"}


def test_sound_follows_a_result_because_it_cannot_stand_inside() -> None:
    result = ToolResult(tool_call_id="1", content=[AudioContent(data=b"wav")])
    parts = encode_results(ToolCall(id="1", name="f"), model=NEW, results=[result])[2]["parts"]
    assert "parts" not in parts[0]["functionResponse"]
    assert parts[-1] == {"inlineData": {"mimeType": "audio/wav", "data": "d2F2"}}


def test_names_that_do_not_fit_are_replaced_alike_everywhere() -> None:
    tool = ToolSpec(name="2fa." + "n" * 80)
    call = ToolCall(id="1", name=tool.name)
    messages = [Message.user("hi"), Message.assistant([call]), Message(Role.TOOL, [ToolResult(tool_call_id="1")])]
    body = body_of(messages=messages, tools=[tool], tool_choice=tool.name)
    (name,) = body["toolConfig"]["functionCallingConfig"]["allowedFunctionNames"]
    assert name.startswith("_2fa.n")
    assert len(name) == 64
    assert body["tools"][0]["functionDeclarations"][0]["name"] == name
    assert body["contents"][1]["parts"][0]["functionCall"]["name"] == name
    assert body["contents"][2]["parts"][0]["functionResponse"]["name"] == name


# Tools


def test_functions_are_declared_with_their_schema() -> None:
    body = body_of(tools=[WEATHER, SEARCH])
    (tool,) = body["tools"]
    weather, search = tool["functionDeclarations"]
    assert (weather["name"], weather["description"]) == ("get_weather", "The weather")
    assert weather["parametersJsonSchema"]["properties"] == {"city": {"type": "string"}}
    assert search == {"name": "search"}
    assert "toolConfig" not in body


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("search", {"mode": "ANY", "allowedFunctionNames": ["search"]}),
    ],
)
def test_choices_have_their_modes(choice: str, written: dict[str, Any]) -> None:
    assert body_of(tools=[WEATHER, SEARCH], tool_choice=choice)["toolConfig"] == {"functionCallingConfig": written}


def test_strict_functions_are_validated() -> None:
    strict = WEATHER.model_copy(update={"strict": True})
    assert body_of(tools=[strict])["toolConfig"]["functionCallingConfig"] == {"mode": "VALIDATED"}
    body, warnings = encode(model="gemini-2.0-flash", tools=[strict])
    assert "toolConfig" not in body
    assert warnings == ("strict was dropped: the model cannot enforce the schemas of tools",)


def test_what_a_strict_schema_loses_is_a_warning() -> None:
    lossy = ToolSpec(name="f", parameters={"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}})
    assert encode(tools=[lossy])[1] == ()
    assert "pattern" in encode(tools=[lossy.model_copy(update={"strict": True})])[1][0]


def test_one_call_at_a_time_cannot_be_asked_for() -> None:
    _, warnings = encode(tools=[SEARCH], parallel_tool_calls=False)
    assert "parallel_tool_calls=False was dropped" in warnings[0]
    assert encode(tools=[SEARCH], parallel_tool_calls=True)[1] == ()


def test_tools_of_the_vendor_pass_through_untouched() -> None:
    assert body_of(tools=[{"google_search": {}}, {"codeExecution": {}}])["tools"] == [
        {"google_search": {}},
        {"codeExecution": {}},
    ]


def test_a_choice_does_not_reach_the_tools_of_the_vendor() -> None:
    _, warnings = encode(tools=[{"google_search": {}}], tool_choice="none")
    assert warnings == ("tool_choice has no effect on server-side tools",)


def test_tools_of_both_kinds_are_shown_where_that_is_demanded() -> None:
    tools: list[Any] = [{"google_search": {}}, SEARCH]
    assert body_of(NEW, tools=tools)["toolConfig"] == {"includeServerSideToolInvocations": True}
    assert "toolConfig" not in body_of(OLD, tools=tools)
    assert "toolConfig" not in encode(ON_VERTEX, NEW, tools=tools)[0]


# Settings


def test_settings_have_their_names() -> None:
    config = body_of(temperature=0.5, top_p=0.9, max_tokens=10, stop=["END"], seed=7, logprobs=3)["generationConfig"]
    assert config == {
        "temperature": 0.5,
        "topP": 0.9,
        "maxOutputTokens": 10,
        "stopSequences": ["END"],
        "seed": 7,
        "responseLogprobs": True,
        "logprobs": 3,
    }
    assert body_of(logprobs=0)["generationConfig"] == {"responseLogprobs": True}


def test_what_the_vendor_would_refuse_is_left_out_with_a_warning() -> None:
    body, warnings = encode(seed=2**40, stop=list("abcdefg"))
    assert body["generationConfig"] == {"stopSequences": list("abcde")}
    assert warnings == ("seed was dropped: it must fit into 32 bits", "only the first 5 of 7 stop sequences were sent")


def test_sampling_is_left_out_for_models_that_do_not_take_it() -> None:
    body, warnings = encode(model="gemini-3.8-flash", temperature=0.5, top_p=0.9)
    assert "generationConfig" not in body
    assert warnings == ("temperature and topP were dropped: the model does not support them",)


@pytest.mark.parametrize(
    ("model", "level", "written", "warned"),
    [
        ("gemini-2.5-flash", "off", {"thinkingBudget": 0}, False),
        ("gemini-2.5-flash", "low", {"thinkingBudget": 2048, "includeThoughts": True}, False),
        ("gemini-2.5-flash", "xhigh", {"thinkingBudget": 24576, "includeThoughts": True}, False),
        ("gemini-2.5-flash-lite", "off", {"thinkingBudget": 0}, False),
        ("gemini-2.5-flash-lite", "minimal", {"thinkingBudget": 512, "includeThoughts": True}, False),
        ("gemini-2.5-pro", "off", {"thinkingBudget": 128}, True),
        ("models/gemini-2.5-pro", "xhigh", {"thinkingBudget": 32768, "includeThoughts": True}, False),
        ("gemini-2.0-flash", "off", None, False),
        ("gemini-2.0-flash", "high", None, True),
        ("gemini-3-pro-preview", "off", {"thinkingLevel": "LOW"}, True),
        ("gemini-3-pro-preview", "low", {"thinkingLevel": "LOW", "includeThoughts": True}, False),
        ("gemini-3-pro-preview", "medium", {"thinkingLevel": "HIGH", "includeThoughts": True}, True),
        ("gemini-3.1-pro-preview", "medium", {"thinkingLevel": "MEDIUM", "includeThoughts": True}, False),
        ("gemini-3-flash-preview", "off", {"thinkingLevel": "MINIMAL"}, True),
        ("gemini-3-flash-preview", "minimal", {"thinkingLevel": "MINIMAL", "includeThoughts": True}, False),
        ("gemini-3-flash-preview", "xhigh", {"thinkingLevel": "HIGH", "includeThoughts": True}, True),
        ("gemini-3.8-flash", "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}, True),
        ("gemini-flash-latest", "high", {"thinkingLevel": "HIGH", "includeThoughts": True}, False),
        ("gemini-9-nova", "high", {"thinkingLevel": "HIGH", "includeThoughts": True}, False),
    ],
)
def test_thinking_is_asked_for_as_each_family_takes_it(
    model: str, level: str, written: dict[str, Any] | None, warned: bool
) -> None:
    body, warnings = encode(model=model, thinking=level)
    assert (body.get("generationConfig") or {}).get("thinkingConfig") == written
    assert bool(warnings) is warned


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_an_output_schema_is_enforced_by_the_vendor() -> None:
    config = body_of(output_schema=SCHEMA)["generationConfig"]
    assert config["responseMimeType"] == "application/json"
    assert config["responseJsonSchema"]["properties"] == {"n": {"type": "integer"}}


@pytest.mark.parametrize("mode", ["tool", "prompted"])
def test_a_schema_that_is_enforced_otherwise_is_not_sent(mode: str) -> None:
    assert "generationConfig" not in body_of(output_schema=WEATHER.parameters, output_mode=mode)


def test_a_schema_beside_tools_is_refused_before_gemini_3() -> None:
    with pytest.raises(errors.UnsupportedFeatureError, match="supports none together with tools") as caught:
        encode(output_schema=SCHEMA, tools=[SEARCH])
    assert caught.value.field == "output_schema"
    assert "responseJsonSchema" in body_of(NEW, output_schema=SCHEMA, tools=[SEARCH])["generationConfig"]
    assert not CODEC.schema_with_tools(OLD)
    assert CODEC.schema_with_tools(NEW)


def test_a_schema_that_cannot_be_enforced_is_refused() -> None:
    huge = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(5_000)}}
    with pytest.raises(errors.UnsupportedFeatureError, match="cannot enforce this schema"):
        encode(output_schema=huge)


def test_metadata_becomes_labels_on_vertex_where_it_fits() -> None:
    metadata = {"team": "search-1", "User": "x", "count": 3, "note": "Hello there"}
    assert encode(ON_VERTEX, metadata=metadata)[0]["labels"] == {"team": "search-1"}
    assert "labels" not in encode(metadata=metadata)[0]


def test_extra_reaches_the_body_and_adds_to_what_is_there() -> None:
    body = body_of(
        temperature=0.5,
        tools=[SEARCH],
        tool_choice="auto",
        extra={
            "cachedContent": "cachedContents/abc",
            "safetySettings": [],
            "generationConfig": {"topK": 4, "responseModalities": ["TEXT"]},
            "toolConfig": {"retrievalConfig": {"languageCode": "en"}},
        },
    )
    assert body["cachedContent"] == "cachedContents/abc"
    assert body["safetySettings"] == []
    assert body["generationConfig"] == {"temperature": 0.5, "topK": 4, "responseModalities": ["TEXT"]}
    assert body["toolConfig"] == {
        "functionCallingConfig": {"mode": "AUTO"},
        "retrievalConfig": {"languageCode": "en"},
    }


@pytest.mark.parametrize("key", ["contents", "model"])
def test_extra_may_not_replace_the_conversation(key: str) -> None:
    with pytest.raises(errors.ConfigurationError, match=f"extra may not contain '{key}'"):
        encode(extra={key: []})


def test_extra_may_not_replace_instructions_and_tools_that_the_request_has() -> None:
    own: dict[str, Any] = {"systemInstruction": {"parts": [{"text": "Be brief."}]}, "tools": [{"googleSearch": {}}]}
    assert body_of(extra=own).items() >= own.items()
    with pytest.raises(errors.ConfigurationError, match="systemInstruction"):
        encode(extra=own, system="Be kind.")
    with pytest.raises(errors.ConfigurationError, match="tools"):
        encode(extra=own, tools=[SEARCH])


# Requests after one another


def test_a_conversation_is_encoded_the_same_for_one_model_after_another() -> None:
    call = ToolCall(id="1", name="f")
    messages = [Message.user("hi"), Message.assistant([call]), Message.tool("done", tool_call_id="1")]
    first = body_of(messages=messages)
    assert body_of(messages=messages) == first
    assert body_of(NEW, messages=messages)["contents"][1]["parts"][0]["thoughtSignature"] == SKIP_SIGNATURE
    assert body_of(messages=messages) == first


def test_a_result_is_named_after_the_call_of_its_conversation() -> None:
    result = Message.tool("done", tool_call_id="1")
    for name in ("f", "g"):
        contents = contents_of(Message.user("hi"), Message.assistant([ToolCall(id="1", name=name)]), result)
        assert contents[2]["parts"][0]["functionResponse"]["name"] == name
