"""Hypothesis strategies for requests: valid and broken conversations, with parts of any origin."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from agent.types import (
    AgentRequest,
    AudioContent,
    CodeContent,
    DiffContent,
    DocumentContent,
    ImageContent,
    Message,
    Origin,
    Part,
    RefusalContent,
    Role,
    TextContent,
    ThinkingContent,
    ThinkingLevel,
    ToolCall,
    ToolResult,
    ToolSpec,
    VendorContent,
)

ORIGINS = (
    Origin(provider="openai", api="openai-responses", model="gpt-5"),
    Origin(provider="openai-chat", api="openai-chat", model="gpt-5"),
    Origin(provider="anthropic", api="anthropic", model="claude-sonnet-4-5"),
    Origin(provider="gemini", api="gemini", model="gemini-2.5-pro"),
)
"""Origins of assistant messages, and target models of the codecs under test."""

texts = st.text(st.characters(codec="utf-8"), max_size=12)
said = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
words = st.text("abcdefghij_", min_size=1, max_size=6)
opaque = st.text("ABCxyz0123456789+/=", min_size=4, max_size=16)
scalars = st.none() | st.booleans() | st.integers(-(2**31), 2**31) | texts
json_values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2), max_leaves=4
)
arguments = st.dictionaries(words, json_values, max_size=3)
ids = st.sampled_from(
    (
        "call_1", "call_2", "toolu_01A", "a b/c", "é", "x" * 70, "chatcmpl-tool-0123456789abcdef0123456789abcdef01",
        "123456789", "functions.get_weather:0",
    )
)  # fmt: skip
tool_names = st.sampled_from(("get_weather", "search.web", "lookup", "ns:run", "n" * 80))
schemas = st.sampled_from(
    (
        {},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 1, "default": 3},
                "unit": {"enum": ["C", "F"]},
                "at": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
                "tags": {"type": "array", "items": {"$ref": "#/$defs/Tag"}},
            },
            "$defs": {"Tag": {"type": "object", "properties": {"k": {"const": "v"}}, "additionalProperties": False}},
        },
    )
)

text_parts = st.builds(TextContent, text=texts, cache=st.sampled_from((None, None, None, "short", "long")))
some_bytes = st.binary(min_size=1, max_size=8)
titles = st.none() | words
images = st.builds(
    ImageContent, image_url=st.just("https://example.com/a.png"), detail=st.sampled_from((None, "low"))
) | st.builds(ImageContent, image_data=some_bytes, media_type=st.sampled_from(("image/png", None)))
documents = st.builds(DocumentContent, text=said, title=titles) | st.builds(
    DocumentContent, data=some_bytes, media_type=st.just("application/pdf"), title=titles
)
sounds = st.builds(AudioContent, data=st.binary(min_size=1, max_size=8), media_type=st.just("audio/wav"))
codes = st.builds(CodeContent, code=said) | st.builds(DiffContent, old_code=texts, new_code=texts)
user_parts: st.SearchStrategy[Any] = st.one_of(text_parts, text_parts, images, documents, codes)


# Strategies are made once: making them while drawing costs more than drawing.
makers = st.sampled_from((None, *ORIGINS))
mostly_unknown_makers = st.sampled_from((None, None, *ORIGINS))
maybe_opaque = st.just("") | opaque
maybe_signature = st.none() | opaque
mostly_valid = st.sampled_from((None, None, None, None, '{"a": '))
sides = st.booleans()


@st.composite
def build_thinking(draw: st.DrawFn) -> ThinkingContent:
    """Reasoning as each of the four APIs leaves it, or of unknown origin."""
    origin = draw(makers)
    data: dict[str, Any] = {}
    match origin.api if origin is not None else None:
        case "anthropic":
            redacted, seal = draw(sides), draw(opaque)
            data = {
                "redacted": redacted,
                "signature": "" if redacted else seal,
                "encrypted_content": seal if redacted else "",
                "provider_data": {"type": "redacted_thinking", "data": seal} if redacted else None,
            }
        case "openai-responses":
            data = {"id": f"rs_{draw(words)}", "encrypted_content": draw(maybe_opaque)}
        case "gemini":
            data = {"signature": draw(maybe_opaque)}
        case _:
            pass
    return ThinkingContent(thinking=draw(texts), origin=origin, **data)


@st.composite
def calls(draw: st.DrawFn) -> ToolCall:
    origin = draw(mostly_unknown_makers)
    gemini = origin is not None and origin.api == "gemini"
    return ToolCall(
        id=draw(ids),
        name=draw(tool_names),
        arguments=draw(arguments),
        origin=origin,
        signature=draw(maybe_signature) if gemini else None,
        invalid_arguments=draw(mostly_valid),
    )


results = st.builds(
    ToolResult,
    tool_call_id=ids,
    name=st.none() | tool_names,
    content=texts | st.lists(st.one_of(text_parts, images, documents), max_size=2),
    is_error=st.booleans(),
)
vendor_blocks = st.builds(
    VendorContent,
    kind=st.just("some_block"),
    provider_data=st.just({"type": "some_block"}),
    origin=st.sampled_from((None, Origin(provider="elsewhere", api="other", model="m"))),
)
assistant_parts: st.SearchStrategy[Any] = st.one_of(
    text_parts,
    text_parts,
    build_thinking(),
    calls(),
    calls(),
    st.builds(RefusalContent, refusal=said),
    codes,
    vendor_blocks,
)
assistant_turns = st.builds(Message, st.just(Role.ASSISTANT), texts | st.lists(assistant_parts, max_size=4))
user_turns = st.builds(Message, st.just(Role.USER), texts | st.lists(user_parts, max_size=3))
tool_turns = st.builds(Message, st.just(Role.TOOL), st.lists(results, min_size=1, max_size=3))
system_turns = st.builds(Message, st.just(Role.SYSTEM), texts)


@st.composite
def build_turns(draw: st.DrawFn) -> list[Message]:
    """An assistant's turn and the results of its calls, in order."""
    turn = draw(assistant_turns)
    made = turn.tool_calls or []
    answers: list[Part] = [draw(results).model_copy(update={"tool_call_id": call.id}) for call in made]
    return [turn, *([Message(Role.TOOL, answers)] if answers else [])]


conversations: st.SearchStrategy[list[Message]] = st.lists(
    st.one_of(
        user_turns.map(lambda turn: [turn]),
        build_turns(),
        build_turns(),
        tool_turns.map(lambda turn: [turn]),
        assistant_turns.map(lambda turn: [turn]),
        system_turns.map(lambda turn: [turn]),
    ),
    max_size=5,
).map(lambda turns: [message for turn in turns for message in turn])

specs = st.builds(
    ToolSpec,
    name=tool_names,
    description=texts,
    parameters=schemas,
    strict=st.sampled_from((None, None, True, False)),
    cache=st.sampled_from((None, None, "short")),
)


offered_tools = st.lists(specs, max_size=3, unique_by=lambda tool: tool.name)
choices = st.sampled_from((None, None, "auto", "none", "required", "the first"))
maybe_sides = st.none() | st.booleans()
_fields: dict[str, st.SearchStrategy[Any]] = {
    "input": said,
    "system": st.none() | said,
    "output_schema": st.none() | schemas.filter(lambda schema: bool(schema.get("properties"))),
    "temperature": st.none() | st.floats(0, 1),
    "max_tokens": st.none() | st.integers(1, 4096),
    "top_p": st.none() | st.floats(0.1, 1),
    "stop": st.none() | st.lists(st.sampled_from(("END", "\n\n")), min_size=1, max_size=2, unique=True),
    "thinking": st.none() | st.sampled_from(ThinkingLevel),
    "seed": st.none() | st.integers(0, 2**31 - 1),
    "logprobs": st.sampled_from((None, None, 0, 5)),
    "cache": st.sampled_from((None, "short", "long")),
    "metadata": st.just({}) | st.dictionaries(words, words, max_size=2),
    "session_id": st.none() | words,
}
request_settings = st.fixed_dictionaries(_fields)


@st.composite
def agent_requests(draw: st.DrawFn, model: str) -> AgentRequest:
    """Anything a caller may ask of that model, apart from what no vendor takes."""
    offered = draw(offered_tools)
    choice = draw(choices) if offered else None
    return AgentRequest(
        model=model,
        messages=draw(conversations),
        tools=offered,
        tool_choice=offered[0].name if choice == "the first" else choice,
        parallel_tool_calls=draw(maybe_sides) if offered else None,
        **draw(request_settings),
    )
