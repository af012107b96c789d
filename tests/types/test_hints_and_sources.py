"""Cache hints, citations, vendor blocks and billed counts: spellings, round trips, sums."""

from __future__ import annotations

from typing import Any

import pytest

from agent.types import (
    AgentRequest,
    Citation,
    CodeContent,
    ContentPart,
    DocumentContent,
    Message,
    TextContent,
    ToolResult,
    ToolSpec,
    Usage,
    VendorContent,
)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("short", "short"),
        ("long", "long"),
        ({"type": "ephemeral"}, "short"),
        ({"type": "ephemeral", "ttl": "5m"}, "short"),
        ({"type": "ephemeral", "ttl": "1h"}, "long"),
    ],
)
def test_a_cache_hint_is_read_in_both_spellings(given: Any, read: str) -> None:
    part = ContentPart.model_validate({"type": "text", "text": "hi", "cache_control": given})
    assert part == TextContent(text="hi", cache="short" if read == "short" else "long")
    assert ToolSpec.model_validate({"name": "look", "cache_control": given}).cache == read


def test_a_wrong_cache_hint_is_an_error() -> None:
    with pytest.raises(ValueError, match="short"):
        AgentRequest.model_validate({"input": "hi", "cache": "forever"})


def test_citations_are_part_of_the_text_and_of_its_dump_only_if_there_are_any() -> None:
    cited = TextContent(text="Paris.", citations=[Citation(url="https://example.com", start=0, end=5)])
    assert TextContent.from_dict(cited.to_dict()) == cited
    assert "citations" not in TextContent(text="Paris.").to_dict()


def test_a_vendors_block_survives_a_round_trip_to_the_letter() -> None:
    block = {"type": "web_search_tool_result", "content": [{"encrypted_index": "Ab+/=="}]}
    part = VendorContent(kind="web_search_tool_result", provider_data=block)
    message = Message("assistant", [part])
    assert Message.model_validate_json(message.model_dump_json()) == message
    assert message.parts[0].provider_data == block


def test_a_tools_result_may_hold_documents() -> None:
    document = DocumentContent(data=b"%PDF", media_type="application/pdf")
    result = ToolResult(tool_call_id="c1", content=[TextContent(text="see"), document])
    assert result.text == "see"
    assert ToolResult.from_dict(result.to_dict()) == result


def test_what_else_is_billed_adds_up() -> None:
    one = Usage(prompt_tokens=10, details={"web_searches": 1, "cache_write_1h_tokens": 5}, billed=0.25)
    other = Usage(prompt_tokens=1, details={"web_searches": 2})
    assert (one + other).details == {"web_searches": 3, "cache_write_1h_tokens": 5}
    assert (one + other).billed == 0.25
    assert (one + one).billed == 0.5
    assert (other + other).billed is None
    assert Usage.from_dict((one + other).to_dict()) == one + other


def test_codecs_counts_of_nothing_are_not_kept() -> None:
    usage = Usage.from_counts(1, 2, details={"web_searches": 0, "input_audio_tokens": None, "code_executions": 2})
    assert usage.details == {"code_executions": 2}
    assert Usage.from_counts(1, 2, billed=float("nan")).billed is None


def test_a_tools_settings_that_only_one_vendor_knows_are_kept_and_written_as_they_are() -> None:
    given = {"name": "look", "input_schema": {"type": "object"}, "defer_loading": True, "type": "custom"}
    tool = AgentRequest(input="hi", tools=[given]).tools[0]
    assert isinstance(tool, ToolSpec)
    assert tool.extra == {"defer_loading": True}
    assert tool.to_anthropic_schema()["defer_loading"] is True
    nested = AgentRequest(input="hi", tools=[{"type": "function", "function": {"name": "f"}, "beta": 1}]).tools[0]
    assert nested == ToolSpec(name="f", extra={"beta": 1})
    assert "extra" not in ToolSpec(name="f").to_dict()


def test_what_no_result_can_hold_is_refused_when_the_message_is_made() -> None:
    with pytest.raises(ValueError, match="cannot contain CodeContent, only text"):
        Message("tool", [CodeContent(code="x")], tool_call_id="c1")
