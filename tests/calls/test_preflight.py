"""The pre-flight check: errors and warnings about a request before it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from inline_snapshot import snapshot

from agent import Agent, ToolSpec, models
from agent.calls.preflight import Problem, Report, check
from agent.models import ModelFacts, register_model
from agent.testing import scripted_agent
from agent.types import AgentRequest, DocumentContent, ImageContent, Message, TextContent, ToolCall

KEY = "sk-very-secret-0123456789"


@pytest.fixture(autouse=True)
def _nothing_stays_registered() -> Iterator[None]:
    yield
    models._registered.clear()
    models.facts.cache_clear()


def gpt_4o() -> Agent:
    return Agent("openai-chat:gpt-4o", api_key=KEY)


def test_a_request_that_is_in_order_is_ok_and_has_a_size_and_a_cost() -> None:
    report = gpt_4o().check("The quick brown fox jumps over the lazy dog. " * 100, max_tokens=1_000)
    assert report.ok
    assert report.problems == ()
    assert report.warnings == ()
    assert report.key is True
    assert report.fits == "fits"
    assert (report.context_window, report.max_tokens) == (128_000, 1_000)
    assert report.tokens is not None
    assert report.tokens.tokens == pytest.approx(1_000, rel=0.15)
    assert report.prompt_cost == pytest.approx(report.tokens.tokens * 2.5 / 1_000_000)
    assert report.full_cost == pytest.approx((report.tokens.tokens * 2.5 + 1_000 * 10) / 1_000_000)
    assert report.cost_source is not None
    assert report.cost_source.startswith("genai-prices")


def test_without_a_limit_the_longest_answer_there_can_be_is_counted() -> None:
    report = gpt_4o().check("Hello")
    assert report.max_tokens == 16_384
    assert report.full_cost is not None
    assert report.full_cost > 16_384 * 10 / 1_000_000


def test_nothing_is_raised_for_a_request_that_is_wrong() -> None:
    assert gpt_4o().check("").problems[0].field == "input"
    report = gpt_4o().check("x", temperature=99)
    assert not report.ok
    assert report.problems[0].kind == "ConfigurationError"
    assert "temperature" in str(report.problems[0])
    assert not gpt_4o().check("x", tool_choice="required").ok
    assert not gpt_4o().check(object()).ok  # type: ignore[arg-type]


def test_what_the_codec_refuses_is_a_problem_with_its_field() -> None:
    message = Message.system([ImageContent(image_url="https://example.com/x.png")])
    report = gpt_4o().check([Message.user("x"), message, Message.user("y")])
    assert not report.ok
    assert [(problem.kind, problem.field) for problem in report.problems] == [("UnsupportedFeatureError", "messages")]
    assert report.tokens is not None, "the rest is worked out all the same"


def test_what_the_codec_would_leave_out_or_mend_is_a_warning() -> None:
    call = Message.assistant([ToolCall(id="c", name="f", arguments={})])
    report = gpt_4o().check([Message.user("x"), call, Message.user("go on")])
    assert report.ok
    assert any("had no result" in warning for warning in report.warnings)


def test_a_missing_key_is_said_and_the_rest_is_still_checked() -> None:
    report = Agent("openai-chat:gpt-4o").check("Hello", max_tokens=10)
    assert report.key is False
    assert [(problem.kind, problem.field) for problem in report.problems] == [("AuthenticationError", "api_key")]
    assert "OPENAI_API_KEY" in str(report)
    assert report.fits == "fits"
    message = Message.system([ImageContent(image_url="https://example.com/x.png")])
    assert len(Agent("openai-chat:gpt-4o").check([message, Message.user("y")]).problems) == 2


def test_a_key_is_never_shown() -> None:
    report = gpt_4o().check("Hello")
    assert KEY not in str(report) + repr(report) + str(report.to_dict())


def test_an_agent_that_needs_no_key_is_not_told_to_have_one() -> None:
    assert scripted_agent().check("Hello").ok


# Size


def long_text(tokens: int) -> str:
    return "fox " * tokens


@pytest.mark.parametrize(
    ("tokens", "fits", "ok"),
    [(60_000, "fits", True), (125_000, "may not fit", True), (250_000, "does not fit", False)],
)
def test_whether_it_fits_is_said_as_sure_as_the_count_is(tokens: int, fits: str, ok: bool) -> None:
    report = gpt_4o().check(long_text(tokens), max_tokens=100)
    assert (report.fits, report.ok) == (fits, ok)
    if not ok:
        assert report.problems[0].kind == "ContextLengthError"
        assert "window" in str(report.problems[0])


def test_the_answer_needs_room_too() -> None:
    text = long_text(50_000)
    register_model(ModelFacts(provider="openai-chat", model="small", context_window=70_000, max_output=60_000))
    agent = Agent("openai-chat:small", api_key=KEY)
    assert agent.check(text, max_tokens=100).fits == "fits"
    assert agent.check(text, max_tokens=50_000).fits == "does not fit"


def test_a_limit_of_the_prompt_alone_counts() -> None:
    register_model(ModelFacts(provider="openai-chat", model="small", context_window=90_000, max_input=10_000))
    assert Agent("openai-chat:small", api_key=KEY).check(long_text(50_000)).fits == "does not fit"


def test_of_an_unknown_model_nothing_is_claimed() -> None:
    report = Agent("openai-chat:mystery", api_key=KEY).check("Hello")
    assert report.ok
    assert (report.fits, report.prompt_cost, report.full_cost, report.context_window) == ("unknown", None, None, None)


# Warnings from the model table


def test_what_a_model_is_not_known_to_do_is_a_warning() -> None:
    register_model(
        ModelFacts(
            provider="openai-chat",
            model="plain",
            tools=False,
            vision=False,
            documents=False,
            native_schema=False,
            thinking=False,
            sampling=False,
            max_output=100,
        )
    )
    request = AgentRequest(
        messages=[
            Message.user(
                [
                    TextContent(text="What is this?"),
                    ImageContent(image_url="https://example.com/x.png"),
                    DocumentContent(data=b"%PDF", media_type="application/pdf"),
                ]
            )
        ],
        tools=[ToolSpec(name="f", description="d")],
        output_schema={"type": "object"},
        thinking="high",
        temperature=0.5,
        max_tokens=500,
    )
    said = "\n".join(Agent("openai-chat:plain", api_key=KEY).check(request).warnings)
    for word in ("tools", "images", "documents", "schemas", "think", "temperature", "the maximum of plain is 100"):
        assert word in said


def test_temperature_while_thinking_is_told_apart_from_temperature() -> None:
    agent = Agent("openai-chat:gpt-5.1", api_key=KEY)
    assert not any("temperature" in warning for warning in agent.check("x", temperature=0.5).warnings)
    warnings = agent.check("x", temperature=0.5, thinking="high").warnings
    assert any("temperature" in warning for warning in warnings)


def test_a_model_about_to_retire_is_mentioned() -> None:
    register_model(ModelFacts(provider="openai-chat", model="old", retires=date(2020, 1, 1)))
    register_model(ModelFacts(provider="openai-chat", model="young", retires=date(2999, 1, 1)))
    assert Agent("openai-chat:old", api_key=KEY).check("x").warnings == (
        "old was scheduled for retirement on 2020-01-01",
    )
    assert Agent("openai-chat:young", api_key=KEY).check("x").warnings == ()


@pytest.mark.parametrize(
    ("today", "warnings"),
    [
        (date(2026, 3, 1), ()),
        (date(2026, 3, 2), ("m may be retired on 2026-05-31",)),
        (date(2026, 5, 31), ("m may be retired on 2026-05-31",)),
        (date(2026, 6, 1), ("m was scheduled for retirement on 2026-05-31",)),
    ],
)
def test_a_retirement_is_mentioned_in_time(today: date, warnings: tuple[str, ...]) -> None:
    register_model(ModelFacts(provider="openai-chat", model="m", retires=date(2026, 5, 31)))
    agent = Agent("openai-chat:m", api_key=KEY)
    request = AgentRequest(input="x", model="m")
    assert check(agent.config, lambda: agent.provider, lambda: request, today=today).warnings == warnings


# Schemas


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("anthropic:claude-sonnet-4-6", {"schema": dict[str, int]}),
        ("anthropic:claude-sonnet-4-6", {"schema": dict[str, int], "output_mode": "prompted"}),
        ("gemini:gemini-2.5-pro", {"schema": list[int], "tools": [ToolSpec(name="f", description="d")]}),
    ],
)
def test_a_schema_that_would_go_another_way_is_checked_that_way(target: str, options: dict[str, Any]) -> None:
    report = Agent(target, api_key=KEY).check("Hello", **options)
    assert report.problems == ()
    assert report.tokens is not None


def test_a_way_to_a_schema_that_there_is_not_is_a_problem() -> None:
    agent = Agent("anthropic:claude-sonnet-4-6", api_key=KEY)
    report = agent.check("Hello", schema=dict[str, int], output_mode="native")
    assert [(problem.kind, problem.field) for problem in report.problems] == [
        ("UnsupportedFeatureError", "output_mode")
    ]
    assert report.tokens is not None


def test_a_document_of_text_has_to_fit_as_text_has_to() -> None:
    for part in (
        DocumentContent(text=long_text(250_000)),
        DocumentContent(data=long_text(250_000).encode(), media_type="text/plain"),
        DocumentContent(data=long_text(250_000).encode(), media_type="application/json; charset=utf-8"),
    ):
        assert gpt_4o().check([Message.user([part])]).fits == "does not fit"


# Form


def test_a_report_prints_as_a_table() -> None:
    report = Report(
        target="openai-chat:gpt-4o",
        problems=(Problem(message="The request is empty.", field="input", fix="Pass input= or messages=."),),
        warnings=("seed was left out",),
        key=True,
        max_tokens=1000,
        prompt_cost=0.0025,
        full_cost=1.25,
        cost_source="genai-prices 1",
    )
    assert str(report) == snapshot(
        """\
target   openai-chat:gpt-4o
result   would fail
key      found
answer   1,000 tokens at most
cost     $0.0025 for the prompt, $1.25 with the longest answer (genai-prices 1)
problem  input: The request is empty. Pass input= or messages=.
warning  seed was left out\
"""
    )


def test_the_size_is_in_the_table() -> None:
    printed = str(gpt_4o().check("Hello", max_tokens=5))
    assert "of 128,000: fits" in printed
    assert "result  ok" in printed


def test_a_report_is_data() -> None:
    report = gpt_4o().check("Hello", max_tokens=5)
    assert Report.from_dict(report.to_dict()) == report


def test_nothing_is_sent() -> None:
    agent = Agent("openai-chat:gpt-4o", api_key=KEY, base_url="http://127.0.0.1:1/v1")
    assert agent.check("Hello").ok


@pytest.mark.parametrize(
    "name",
    [
        "anthropic:claude-sonnet-4-5",
        "gemini:gemini-2.5-flash",
        "openai-responses:gpt-5",
        "mistral:mistral-large-latest",
    ],
)
def test_every_vendor_can_be_checked(name: str) -> None:
    report = Agent(name, api_key=KEY).check("Hello", max_tokens=100)
    assert report.ok
    assert report.fits == "fits"
    assert report.prompt_cost is not None
    assert not Agent(name).check("Hello").ok, "there is no key"


def test_a_setting_that_a_reasoning_model_refuses_is_warned_about() -> None:
    report = Agent("openai-responses:gpt-5", api_key=KEY).check("Hello", temperature=0.5)
    assert report.ok
    assert any("temperature" in warning for warning in report.warnings)


def test_the_range_of_an_estimate_is_plausible() -> None:
    report = Agent("openai:gpt-5", api_key="k").check("hello world")
    assert report.tokens is not None
    assert 1 <= report.tokens.low <= report.tokens.tokens <= report.tokens.high < 50
    assert f"{report.tokens.tokens} ({report.tokens.low} to {report.tokens.high}) tokens of 400,000" in str(report)
