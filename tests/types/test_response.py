"""Usage, responses, routes, sessions and node data."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from agent.types import (
    AgentResponse,
    Attempt,
    Message,
    RefusalContent,
    Role,
    RouteResult,
    RoutingStrategy,
    SessionStats,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolExecution,
    Usage,
    compute_session_stats,
    read_node_data,
)

# --- usage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "counts",
    [
        {"prompt_tokens": -1},
        {"input_tokens": -1, "cache_read": 5},
        {"prompt_tokens": 5, "cache_read_tokens": 6},
        {"prompt_tokens": 5, "cache_read_tokens": 3, "cache_write_tokens": 3},
        {"prompt_tokens": 5, "input_tokens": 6},
        {"input_tokens": 1.5},
        {"input_tokens": "many"},
        {"reasoning_tokens": -1},
        {"total_tokens": -1},
    ],
)
def test_counts_that_cannot_be_are_refused(counts: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Usage(**counts)


def test_a_total_is_the_sum_unless_given() -> None:
    assert Usage(prompt_tokens=2, completion_tokens=3).total_tokens == 5
    assert Usage(prompt_tokens=2, completion_tokens=3, total_tokens=9).total_tokens == 9
    strings: Any = {"prompt_tokens": "2", "completion_tokens": "3"}
    assert Usage(**strings).total_tokens == 5


def test_a_total_that_was_a_sum_stays_one_in_copies() -> None:
    assert Usage(prompt_tokens=2).model_copy(update={"completion_tokens": 3}).total_tokens == 5
    assert Usage(prompt_tokens=2, total_tokens=9).model_copy(update={"completion_tokens": 3}).total_tokens == 9


def test_contradictory_vendor_counts_are_cut_to_size() -> None:
    usage = Usage.from_counts(10, 5, cache_read=8, cache_write=8)
    assert (usage.cache_read_tokens, usage.cache_write_tokens, usage.input_tokens) == (8, 2, 0)
    assert Usage.from_counts(None, -1) == Usage()
    assert Usage.from_counts(1, 2, total=7).total_tokens == 7


def test_reasoning_counted_beside_the_completion_is_added_to_it() -> None:
    assert Usage.from_counts(10, 5, reasoning=50).completion_tokens == 55
    assert Usage.from_counts(10, 50, reasoning=5, total=65).completion_tokens == 55
    assert Usage.from_counts(10, 50, reasoning=5, total=60).completion_tokens == 50


def test_an_estimate_is_marked_and_contagious() -> None:
    estimate = Usage(prompt_tokens=1, estimated=True)
    assert "estimated" not in Usage().to_dict()
    assert estimate.to_dict()["estimated"] is True
    assert Usage.from_dict(estimate.to_dict()) == estimate
    assert (estimate + Usage()).estimated


def test_usage_adds_only_to_usage() -> None:
    number: Any = 5
    with pytest.raises(TypeError):
        Usage() + number
    assert sum([Usage(prompt_tokens=1), Usage(prompt_tokens=2)], Usage()) == Usage(prompt_tokens=3)


# --- responses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("stop", "stop"),
        ("end_turn", "stop"),
        ("STOP", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("MAX_TOKENS", "length"),
        ("tool_use", "tool_calls"),
        ("SAFETY", "content_filter"),
        ("pause_turn", "pause"),
        ("refusal", "refusal"),
        (None, None),
    ],
)
def test_reasons_to_stop_have_one_name(given: Any, read: str | None) -> None:
    response = AgentResponse(stop_reason=given)
    assert response.stop_reason == read
    assert response.raw_stop_reason == (None if given == read else given)


def test_an_unknown_reason_is_kept_as_the_vendors_word() -> None:
    unknown: Any = "moon_phase"
    response = AgentResponse(stop_reason=unknown)
    assert (response.stop_reason, response.raw_stop_reason) == ("other", "moon_phase")
    assert AgentResponse(stop_reason=unknown, raw_stop_reason="given").raw_stop_reason == "given"


def test_text_and_calls_are_read_from_content() -> None:
    call = ToolCall(id="1", name="f")
    parts = [ThinkingContent(thinking="hm"), TextContent(text="a"), call, TextContent(text="b")]
    response = AgentResponse(content=parts)
    assert (response.text, response.get_text()) == ("ab", "ab")
    assert response.tool_calls == response.get_tool_use() == [call]
    assert response.thinking == "hm"
    assert response.has_tool_calls
    assert response.has_tool_use()


def test_no_text_is_none_and_empty_text_is_text() -> None:
    assert AgentResponse().text is None
    assert AgentResponse().get_text() == ""
    assert AgentResponse(text="").text == ""
    assert not AgentResponse().has_tool_calls


def test_a_refusal_is_no_text() -> None:
    response = AgentResponse(content=[RefusalContent(refusal="no")])
    assert (response.text, response.refusal) == (None, "no")
    assert AgentResponse().refusal is None


def test_given_text_and_calls_become_content() -> None:
    call = ToolCall(id="1", name="f", arguments={"x": 1})
    untagged: Any = {"id": "1", "name": "f", "arguments": {"x": 1}}
    assert AgentResponse(text="a", tool_calls=[call]).content == (TextContent(text="a"), call)
    assert AgentResponse(tool_calls=[untagged]).content == (call,)
    assert AgentResponse(text="ignored", content=[TextContent(text="a")]).text == "a"


def test_an_answer_becomes_a_message() -> None:
    usage = Usage(prompt_tokens=1)
    response = AgentResponse(content=[TextContent(text="a")], usage=usage)
    assert response.message == Message(Role.ASSISTANT, [TextContent(text="a")], usage=usage)
    assert response.role is Role.ASSISTANT


def test_raw_is_outside_everything_but_copies() -> None:
    raw = {"chunk": object()}
    response = AgentResponse(text="a", raw=raw)
    assert response.raw is raw
    assert response == AgentResponse(text="a")
    assert hash(response) == hash(AgentResponse(text="a"))
    assert "chunk" not in repr(response)
    assert "raw" not in response.model_dump()
    assert pickle.loads(pickle.dumps(response)).raw is None
    assert response.model_copy(update={"model": "m"}).raw is raw
    assert response.model_copy(update={"raw": 5}).raw == 5


def test_copies_change_content_not_its_views() -> None:
    response = AgentResponse(text="a")
    assert response.model_copy(update={"content": [TextContent(text="b")]}).text == "b"
    with pytest.raises(ValueError, match="update content"):
        response.model_copy(update={"text": "b"})


def test_calls_that_are_no_list_are_refused() -> None:
    calls: Any = 5
    with pytest.raises(ValidationError, match="tool_calls"):
        AgentResponse(tool_calls=calls)


def test_output_may_be_anything_and_never_breaks_the_hash() -> None:
    class City(BaseModel):
        name: str

    city = City(name="Bern")
    response = AgentResponse(output=city)
    assert response.output is city
    assert hash(response) == hash(AgentResponse(output=City(name="Bern")))
    assert response == AgentResponse(output=City(name="Bern"))
    assert response.to_dict()["output"] == {"name": "Bern"}
    frozen = AgentResponse(output={"a": [1]})
    with pytest.raises(TypeError, match="read-only"):
        frozen.output["a"].append(2)
    assert isinstance(hash(AgentResponse(output={1, 2})), int)


# --- routes, sessions, nodes ------------------------------------------------------------------------------------------


def test_a_route_is_part_of_a_response() -> None:
    failed = Attempt(target="a", provider="p", model="m", error="RateLimitError", status_code=429, waited=0.5)
    response = AgentResponse(text="x", route=[failed, Attempt(target="b", latency_ms=12.5, cost=0.01)])
    assert AgentResponse.model_validate_json(response.model_dump_json()) == response
    assert response.route[0].error == "RateLimitError"


def test_strategies_are_texts() -> None:
    assert RoutingStrategy("least_busy") is RoutingStrategy.LEAST_BUSY
    assert f"{RoutingStrategy.STICKY}" == "sticky"


def test_an_agent_in_a_route_result_is_never_dumped() -> None:
    result = RouteResult(agent=object(), reason="r")
    assert RouteResult.from_dict(result.to_dict()) == RouteResult(reason="r")


def test_statistics_of_nothing_are_zero() -> None:
    assert compute_session_stats([]) == SessionStats()
    assert SessionStats().usage == Usage()


def test_an_execution_takes_text_for_its_result() -> None:
    execution = ToolExecution(tool_name="f", tool_use_id="1", result="done")
    assert execution.result == (TextContent(text="done"),)
    assert ToolExecution(tool_name="f", tool_use_id="1", result=TextContent(text="done")) == execution


def test_a_stop_reason_takes_usage() -> None:
    assert StopReason(reason="stop", usage=Usage(input_tokens=1)).usage["input_tokens"] == 1


def test_node_data_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of system_prompt"):
        read_node_data({"type": "bogus"})
