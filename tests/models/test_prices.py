"""Money: every figure here was worked out by hand from the vendors' public prices, per million tokens."""

from __future__ import annotations

import decimal
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import genai_prices
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import Agent, Router, errors, models
from agent.calls.call import add_cost
from agent.engine.wire import Answer
from agent.loop import hooks
from agent.middleware import CostTracker
from agent.models import ModelFacts, Prices, register_model
from agent.models.prices import PROVIDERS, Cost, ServiceTier, load_prices, price, price_list_name, service_tier
from agent.routing.limits import Reservation, SpendLedger, SpendRefusal
from agent.testing import Script, scripted_agent
from agent.types import AgentRequest, AgentResponse, SpendLimit, Usage
from agent.wire_formats import WIRE_FORMATS, wire_format
from tests.calls.test_call import DONE, comparable, delta, sse
from tests.support.corpus import APIS, exchanges, needs_recordings
from tests.support.drivers import Driver
from tests.support.recording_checks import decode_recording

LISTED = f"genai-prices {genai_prices.__version__}"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
"""Some prices depend on the day, and some on the hour."""
MILLION = 1_000_000

STANDARD, BATCH, FLEX, PRIORITY = ServiceTier.STANDARD, ServiceTier.BATCH, ServiceTier.FLEX, ServiceTier.PRIORITY
CONTEXTS = {BATCH: {"processing": "batch"}, FLEX: {"service_tier": "flex"}, PRIORITY: {"service_tier": "priority"}}


@pytest.fixture(autouse=True)
def _nothing_stays_registered() -> Iterator[None]:
    yield
    models._registered.clear()
    models.facts.cache_clear()


@dataclass(frozen=True)
class Bill:
    """Token counts times the price per token, in millionths of a dollar."""

    name: str
    provider: str
    model: str
    usage: Usage
    millions: float
    tier: ServiceTier = STANDARD


# Short words for the table.
OA, AN, GE, PX = "openai", "anthropic", "gemini", "perplexity"
SONNET, OPUS, PRO, FLASH = "claude-sonnet-4-5", "claude-opus-4-7", "gemini-2.5-pro", "gemini-2.5-flash"
MEDIUM, OSS = "mistral-medium-latest", "openai/gpt-oss-120b"


def used(prompt: int, completion: int, read: int = 0, written: int = 0, thought: int = 0, **more: Any) -> Usage:
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=thought,
        **more,
    )


BILLS = [
    # OpenAI gpt-5: input 1.25, cached 0.125, output 10. Reasoning is output. Batch and flex half, priority double.
    Bill("gpt-5, plain", OA, "gpt-5", used(1_000, 200), 1_000 * 1.25 + 200 * 10),
    Bill("gpt-5, cached", "openai-chat", "gpt-5", used(1_000, 200, read=600), 400 * 1.25 + 600 * 0.125 + 200 * 10),
    Bill("gpt-5, reasoning", "openai-responses", "gpt-5", used(1_000, 200, thought=150), 1_000 * 1.25 + 200 * 10),
    Bill("gpt-5, batch", OA, "gpt-5", used(1_000, 200), 1_000 * 0.625 + 200 * 5, BATCH),
    Bill("gpt-5, flex", OA, "gpt-5", used(1_000, 200, read=600), 400 * 0.625 + 600 * 0.0625 + 200 * 5, FLEX),
    Bill("gpt-5, priority", OA, "gpt-5", used(1_000, 200), 1_000 * 2.5 + 200 * 20, PRIORITY),
    # A web search is 10 for a thousand.
    Bill(
        "gpt-5, searches", OA, "gpt-5", used(1_000, 200, details={"web_searches": 3}),
        1_000 * 1.25 + 200 * 10 + 3 * 10_000,
    ),
    # gpt-4o: 2.50, cached 1.25, output 10.
    Bill("gpt-4o, cached", OA, "gpt-4o", used(2_000, 100, read=1_000), 1_000 * 2.5 + 1_000 * 1.25 + 100 * 10),
    Bill("gpt-4o at Azure", "azure", "gpt-4o", used(2_000, 100), 2_000 * 2.5 + 100 * 10),
    # gpt-5.4: 2.50 and 15; a prompt beyond 272,000 tokens makes all of it 5 and 22.50.
    Bill("gpt-5.4, long", OA, "gpt-5.4", used(300_000, 100), 300_000 * 5 + 100 * 22.5),
    # Anthropic claude-sonnet-4-5: 3 and 15; read 0.30, written for 5 minutes 3.75, for an hour 6. Batch half.
    Bill("sonnet, plain", AN, SONNET, used(1_000, 200), 1_000 * 3 + 200 * 15),
    Bill("sonnet, read", AN, SONNET, used(1_000, 200, read=900), 100 * 3 + 900 * 0.3 + 200 * 15),
    Bill("sonnet, written", AN, SONNET, used(1_000, 200, written=900), 100 * 3 + 900 * 3.75 + 200 * 15),
    Bill(
        "sonnet, written for an hour", AN, "claude-sonnet-4-5-20250929",
        used(1_000, 200, written=900, details={"cache_write_1h_tokens": 900}),
        100 * 3 + 900 * 6 + 200 * 15,
    ),
    Bill(
        "sonnet, both", AN, "claude-sonnet-4-5",
        used(2_000, 200, read=500, written=900, details={"cache_write_1h_tokens": 300, "cache_write_5m_tokens": 600}),
        600 * 3 + 500 * 0.3 + 600 * 3.75 + 300 * 6 + 200 * 15,
    ),
    # Beyond 200,000 tokens: 6, 22.50, 0.60, 7.50 and 12.
    Bill(
        "sonnet, long", AN, "claude-sonnet-4-5",
        used(250_000, 100, read=100_000, written=50_000),
        100_000 * 6 + 100_000 * 0.6 + 50_000 * 7.5 + 100 * 22.5,
    ),
    Bill("sonnet, batch", AN, SONNET, used(1_000, 200), 1_000 * 1.5 + 200 * 7.5, BATCH),
    Bill(
        "sonnet, searches", AN, SONNET, used(1_000, 200, details={"web_searches": 2}),
        1_000 * 3 + 200 * 15 + 2 * 10_000,
    ),
    # claude-opus-4-7: 5 and 25; written 6.25 and 10; no step for long prompts.
    Bill("opus, long", AN, OPUS, used(500_000, 100, written=1_000), 499_000 * 5 + 1_000 * 6.25 + 100 * 25),
    # Gemini 2.5 Pro: 1.25 and 10, cached 0.125; beyond 200,000 tokens 2.50, 15 and 0.25. Batch half.
    Bill("gemini pro, plain", GE, PRO, used(1_000, 200, thought=120), 1_000 * 1.25 + 200 * 10),
    Bill("gemini pro, at the step", GE, PRO, used(200_000, 100), 200_000 * 1.25 + 100 * 10),
    Bill("gemini pro, long", "vertex", PRO, used(200_001, 100, read=1), 200_000 * 2.5 + 0.25 + 100 * 15),
    Bill("gemini pro, batch", GE, "models/gemini-2.5-pro", used(1_000, 200), 1_000 * 0.625 + 200 * 5, BATCH),
    # Gemini 2.5 Flash: 0.30 and 2.50, cached 0.03; audio 1.00.
    Bill(
        "gemini flash, audio", GE, FLASH, used(1_000, 100, details={"input_audio_tokens": 700}),
        300 * 0.3 + 700 * 1 + 100 * 2.5,
    ),
    # DeepSeek V4 Flash, outside the busy hours since September 2026: 0.15, hit 0.003, output 0.60.
    Bill(
        "deepseek, cached", "deepseek", "deepseek-v4-flash", used(1_000, 200, read=600),
        400 * 0.15 + 600 * 0.003 + 200 * 0.6,
    ),
    # xAI grok-4: 3, cached 0.75, output 15.
    Bill("grok, cached", "xai", "grok-4", used(1_000, 200, read=600), 400 * 3 + 600 * 0.75 + 200 * 15),
    # Mistral Medium since June 2026: 1.50, cached 0.15, output 7.50; batch half.
    Bill("mistral, plain", "mistral", MEDIUM, used(1_000, 200), 1_000 * 1.5 + 200 * 7.5),
    Bill("mistral, batch", "mistral", MEDIUM, used(1_000, 200), 1_000 * 0.75 + 200 * 3.75, BATCH),
    # Groq: llama-3.3-70b 0.59 and 0.79; gpt-oss-120b 0.15, cached 0.075, output 0.60.
    Bill("groq, llama", "groq", "llama-3.3-70b-versatile", used(1_000, 200), 1_000 * 0.59 + 200 * 0.79),
    Bill("groq, cached", "groq", OSS, used(1_000, 200, read=600), 400 * 0.15 + 600 * 0.075 + 200 * 0.6),
    # Perplexity deep research: 2 and 8, of which reasoning 3; sonar-pro 3 and 15, and 14 for a thousand requests.
    Bill(
        "perplexity, reasoning", PX, "sonar-deep-research", used(1_000, 500, thought=400),
        1_000 * 2 + 100 * 8 + 400 * 3,
    ),
    Bill("perplexity, per request", PX, "sonar-pro", used(1_000, 200), 1_000 * 3 + 200 * 15 + 14_000),
]  # fmt: skip


@pytest.mark.parametrize("bill", BILLS, ids=lambda bill: bill.name)
def test_a_bill_is_what_was_worked_out_by_hand(bill: Bill) -> None:
    cost = price(bill.usage, provider=bill.provider, models=(bill.model,), tier=bill.tier, when=NOON)
    assert cost is not None
    assert cost.dollars == pytest.approx(bill.millions / MILLION, rel=1e-12)
    assert cost.source == LISTED


@pytest.mark.parametrize("bill", BILLS, ids=lambda bill: bill.name)
def test_the_price_list_agrees_by_its_own_way(bill: Bill) -> None:
    counts = {
        "input_tokens": bill.usage.prompt_tokens,
        "output_tokens": bill.usage.completion_tokens,
        "cache_read_tokens": bill.usage.cache_read_tokens,
        "cache_write_tokens": bill.usage.cache_write_tokens,
        "output_reasoning_tokens": bill.usage.reasoning_tokens,
    }
    listed = genai_prices.calc_price(
        genai_prices.Usage(**counts, **bill.usage.details),
        bill.model.removeprefix("models/"),
        provider_id=price_list_name(bill.provider) or "",
        genai_request_timestamp=NOON,
        price_context=CONTEXTS.get(bill.tier),
    )
    assert float(listed.total_price) == pytest.approx(bill.millions / MILLION, rel=1e-12)


COUNTS = st.integers(0, 400_000)


@given(read=COUNTS, written=COUNTS, fresh=COUNTS, output=COUNTS, thought=st.floats(0, 1), bill=st.sampled_from(BILLS))
def test_the_short_way_of_pricing_is_the_price_lists_way(
    read: int, written: int, fresh: int, output: int, thought: float, bill: Bill
) -> None:
    reasoning = int(output * thought)
    usage = used(read + written + fresh, output, read, written, reasoning)
    listed = genai_prices.calc_price(
        genai_prices.Usage(
            input_tokens=usage.prompt_tokens,
            output_tokens=output,
            cache_read_tokens=read,
            cache_write_tokens=written,
            output_reasoning_tokens=reasoning,
        ),
        bill.model.removeprefix("models/"),
        provider_id=price_list_name(bill.provider) or "",
        genai_request_timestamp=NOON,
        price_context=CONTEXTS.get(bill.tier),
    )
    ours = price(usage, provider=bill.provider, models=(bill.model,), tier=bill.tier, when=NOON)
    assert ours is not None
    assert ours.dollars == pytest.approx(float(listed.total_price), rel=1e-12)


def test_prices_depend_on_the_day_and_the_hour() -> None:
    def deepseek(when: datetime) -> float:
        cost = price(used(MILLION, 0), provider="deepseek", models=("deepseek-v4-flash",), when=when)
        assert cost is not None
        return cost.dollars

    assert deepseek(datetime(2026, 8, 1, 12, tzinfo=UTC)) == pytest.approx(0.14)
    assert deepseek(NOON) == pytest.approx(0.15)
    assert deepseek(NOON.replace(hour=2)) == pytest.approx(0.30), "the busy hours"


# Sources of costs


def test_what_the_vendor_says_it_charged_wins() -> None:
    usage = used(1_000, 200, billed=0.5)
    register_model(ModelFacts(provider="openai", model="gpt-5", prices=Prices(input=1, output=1)))
    assert price(usage, provider="openai", models=("gpt-5",)) == Cost(0.5, "vendor")
    assert price(usage, provider="nobody", models=("nothing",)) == Cost(0.5, "vendor")


def test_prices_of_ones_own_win_over_the_list() -> None:
    register_model(ModelFacts(provider="openai", model="gpt-5", prices=Prices(input=100, output=200, cache_read=10)))
    usage = used(1_000, 10, read=400, written=100)
    # Writing to a cache has no price of its own here, and costs what input costs.
    expected = (500 * 100 + 400 * 10 + 100 * 100 + 10 * 200) / MILLION
    cost = price(usage, provider="openai-chat", models=("gpt-5",))
    assert cost is not None
    assert cost.dollars == pytest.approx(expected)
    assert cost.source == "user"


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "a-model-nobody-knows"),
        ("vllm", "gpt-5"),
        ("scripted", "gpt-5"),
        ("azure", "my-deployment"),
        ("openrouter", "openai/gpt-oss-20b:free"),
    ],
)
def test_a_cost_that_nobody_knows_is_none_and_never_nothing(provider: str, model: str) -> None:
    assert price(used(1_000, 200), provider=provider, models=(model, "")) is None


def test_no_usage_no_cost() -> None:
    assert price(None, provider="openai", models=("gpt-5",)) is None


@pytest.mark.parametrize(
    ("provider", "model", "tier"),
    [
        ("anthropic", "claude-sonnet-4-5", PRIORITY),
        ("openai", "gpt-4o", FLEX),
        ("azure", "gpt-5", BATCH),  # found in another vendor's list, whose discounts need not hold
        ("openai", "gpt-5", ServiceTier.OTHER),
        ("groq", "llama-3.3-70b-versatile", BATCH),
    ],
)
def test_a_tier_without_a_price_is_not_charged_as_the_standard_one(
    provider: str, model: str, tier: ServiceTier
) -> None:
    assert price(used(1_000, 200), provider=provider, models=(model,), tier=tier, when=NOON) is None
    assert price(used(1_000, 200), provider=provider, models=(model,), when=NOON) is not None


def test_a_discount_holds_from_its_first_day() -> None:
    early = datetime(2026, 10, 1, tzinfo=UTC)
    assert price(used(1_000, 200), provider="openai", models=("gpt-5",), tier=BATCH, when=early) is None


@pytest.mark.parametrize(
    ("raw", "tier"),
    [
        (None, STANDARD),
        ({}, STANDARD),
        ({"service_tier": "default"}, STANDARD),
        ({"service_tier": None}, STANDARD),
        ({"service_tier": "flex"}, FLEX),
        ({"service_tier": "priority"}, PRIORITY),
        ({"service_tier": "scale"}, ServiceTier.OTHER),
        ({"usage": {"service_tier": "batch"}}, BATCH),
        ({"usage": {"service_tier": "standard"}}, STANDARD),
        ({"type": "response.completed", "response": {"service_tier": "flex"}}, FLEX),
        ({"type": "message_start", "message": {"usage": {"service_tier": "priority"}}}, PRIORITY),
        ({"usageMetadata": {"trafficType": "ON_DEMAND"}}, STANDARD),
        ({"usageMetadata": {"trafficType": "ON_DEMAND_PRIORITY"}}, PRIORITY),
        ({"usageMetadata": {"trafficType": "ON_DEMAND_FLEX"}}, FLEX),
        ({"usageMetadata": {"trafficType": "PROVISIONED_THROUGHPUT"}}, ServiceTier.OTHER),
        # Charged on top of the tier: the price list does not know by how much.
        ({"usage": {"service_tier": "standard", "speed": "fast"}}, ServiceTier.OTHER),
        ({"usage": {"service_tier": "standard", "speed": "standard", "inference_geo": "global"}}, STANDARD),
        ({"usage": {"service_tier": "standard", "inference_geo": "not_available"}}, STANDARD),
        ({"type": "message_start", "message": {"usage": {"inference_geo": "us"}}}, ServiceTier.OTHER),
    ],
)
def test_the_tier_is_read_from_the_vendors_answer(raw: Any, tier: ServiceTier) -> None:
    assert service_tier(raw) is tier


def test_unknown_details_are_no_trouble() -> None:
    details = {"web_sources": 3, "quantum_tokens": 7}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cost = price(used(1_000, 200, details=details), provider="openai", models=("gpt-5",), when=NOON)
    assert cost is not None
    assert cost.dollars == pytest.approx((1_000 * 1.25 + 200 * 10) / MILLION)


def test_details_that_contradict_the_counts_do_not_stop_the_bill() -> None:
    """More audio than there was input: the rest is charged all the same."""
    details = {"input_audio_tokens": 5_000, "web_searches": 1}
    cost = price(used(1_000, 100, details=details), provider="gemini", models=("gemini-2.5-flash",), when=NOON)
    assert cost is not None
    assert cost.dollars == pytest.approx((1_000 * 0.3 + 100 * 2.5 + 35_000) / MILLION)


def test_cached_audio_that_is_not_told_apart_does_not_stop_the_bill() -> None:
    usage = used(1_000, 100, read=500, details={"input_audio_tokens": 700})
    cost = price(usage, provider="gemini", models=("gemini-2.5-flash",), when=NOON)
    assert cost is not None
    assert cost.dollars > 0


# On responses and attempts


ANSWER = AgentResponse(text="one two three", usage=used(1_000, 200, read=600, thought=150))
EXPECTED = (400 * 1.25 + 600 * 0.125 + 200 * 10) / MILLION


def test_complete_and_stream_cost_the_same(drive: Driver) -> None:
    whole = drive.complete(Script(ANSWER), agent="openai-chat:gpt-5").ok
    streamed = drive.stream(Script(ANSWER), agent="openai-chat:gpt-5").ok
    assert comparable(streamed) == comparable(whole)
    assert whole.cost_estimate == pytest.approx(EXPECTED)
    assert whole.cost_source == LISTED
    assert [attempt.cost for attempt in streamed.route] == [whole.cost_estimate]


def test_an_unknown_models_answer_has_no_cost(drive: Driver) -> None:
    response = drive.complete(Script(ANSWER), agent="openai-chat:mystery").ok
    assert (response.cost_estimate, response.cost_source) == (None, None)
    assert response.route[0].cost is None


def completion(usage: dict[str, Any], **more: Any) -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    body = {"id": "x", "object": "chat.completion", "model": "gpt-5", "choices": [choice], "usage": usage, **more}
    return Answer([json.dumps(body).encode()])


def test_the_tier_of_the_answer_decides_the_price(drive: Driver) -> None:
    usage = {"prompt_tokens": 1_000, "completion_tokens": 200}
    flex = drive.complete(lambda request: completion(usage, service_tier="flex"), agent="openai-chat:gpt-5").ok
    assert flex.cost_estimate == pytest.approx((1_000 * 0.625 + 200 * 5) / MILLION)
    chunks = [{**delta("hi", "stop"), "service_tier": "flex"}, {"choices": [], "usage": usage}]
    streamed = drive.stream(lambda request: Answer(sse(*chunks, DONE)), agent="openai-chat:gpt-5").ok
    assert streamed.cost_estimate == flex.cost_estimate
    other = drive.complete(lambda request: completion(usage, service_tier="scale"), agent="openai-chat:gpt-5").ok
    assert other.cost_estimate is None


def test_a_gateway_that_says_what_it_charged_is_believed(drive: Driver) -> None:
    usage = {"prompt_tokens": 1_000, "completion_tokens": 200, "cost": 0.0123}
    response = drive.complete(lambda request: completion(usage), agent="openai-chat:gpt-5").ok
    assert (response.cost_estimate, response.cost_source) == (0.0123, "vendor")


def test_the_model_that_answered_decides_and_not_the_name_it_was_asked_by() -> None:
    response = AgentResponse(model="gpt-4o-2024-08-06", usage=used(1_000, 0))
    bill = add_cost(response, AgentRequest(input="x", model="my-deployment"), "azure")
    assert bill.cost_estimate == pytest.approx(1_000 * 2.5 / MILLION)


def test_every_attempt_has_its_cost_also_one_that_broke_off(drive: Driver) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 1_000, "completion_tokens": 200}}
    pieces = sse(delta("Hel"), {"error": {"message": "boom"}}, usage)
    error = drive.stream(lambda request: Answer(pieces), agent="openai-chat:gpt-5").failed
    assert isinstance(error, errors.StreamInterrupted)
    assert error.partial is not None
    assert error.partial.cost_estimate == pytest.approx((1_000 * 1.25 + 200 * 10) / MILLION)
    assert [attempt.cost for attempt in error.attempts] == [error.partial.cost_estimate]


def test_an_attempt_that_was_refused_costs_nothing_that_is_known(drive: Driver) -> None:
    network = Script(errors.OverloadedError("busy"), ANSWER)
    response = drive.complete(network, agent="openai-chat:gpt-5", max_retries=1).ok
    assert [attempt.cost for attempt in response.route] == [None, pytest.approx(EXPECTED)]


def test_output_that_does_not_fit_its_schema_was_paid_for_and_says_so(drive: Driver) -> None:
    network = Script(*[AgentResponse(text="no JSON", usage=used(1_000, 200))] * 9)
    request = AgentRequest(input="x", output_schema={"type": "object"})
    error = drive.complete(network, request, agent="openai-chat:gpt-5").failed
    assert isinstance(error, errors.SchemaValidationError)
    assert error.response is not None
    # It may have been asked more than once.
    assert error.attempts
    assert [attempt.cost for attempt in error.attempts] == [pytest.approx(0.00325)] * len(error.attempts)
    assert error.response.cost_estimate == pytest.approx(0.00325 * len(error.attempts))


# The price list itself


def test_the_list_is_imported_when_it_is_needed_and_fetches_nothing() -> None:
    code = """
import sys
from agent import Agent
from agent.wire_formats import WIRE_FORMATS, wire_format
from agent.models.prices import price
from agent.types import Usage
assert "genai_prices" not in sys.modules
events = []
sys.addaudithook(lambda event, args: events.append(event) if event.startswith("socket.c") else None)
assert price(Usage(prompt_tokens=1000), provider="nobody", models=("m",)) is None
assert "genai_prices" not in sys.modules
assert price(Usage(prompt_tokens=1000), provider="openai", models=("gpt-5",)).dollars == 0.00125
assert "genai_prices.data" in sys.modules
assert not events, events
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_the_list_can_be_loaded_beforehand() -> None:
    assert load_prices() == LISTED


def test_the_names_of_the_price_list_are_real() -> None:
    from genai_prices.data_snapshot import get_snapshot

    listed = {provider.id for provider in get_snapshot().providers}
    declared = {format.price_list for name in WIRE_FORMATS if (format := wire_format(name)) is not None}
    assert {*PROVIDERS.values(), *declared} <= listed


@pytest.mark.timing
def test_pricing_an_answer_takes_microseconds() -> None:
    from time import perf_counter

    request = AgentRequest(input="x", model="gpt-5")
    response = AgentResponse(model="gpt-5", usage=used(1_000, 200))
    add_cost(response, request, "openai")
    started = perf_counter()
    for _ in range(1_000):
        add_cost(response, request, "openai")
    assert (perf_counter() - started) / 1_000 < 200e-6


def test_an_agent_says_the_same_as_the_hand(drive: Driver) -> None:
    """One figure end to end with prices of one's own."""
    register_model(ModelFacts(provider="openai-chat", model="house", prices=Prices(input=2, output=4)))
    response = drive.complete(Script(AgentResponse(text="x", usage=used(500, 250))), agent="openai-chat:house").ok
    assert response.cost_estimate == pytest.approx(0.002)
    assert response.cost_source == "user"


@needs_recordings
def test_list_prices_are_what_vendors_really_charged() -> None:
    """Recorded costs of vendors equal the price list applied to the same counts."""
    right, compared = 0, 0
    for api in APIS:
        for exchange in exchanges(api):
            if exchange.expected.get("kind") != "message" or exchange.provider not in ("openrouter", "xai", "avian"):
                continue
            answer = decode_recording(exchange)
            if answer.usage is None or answer.usage.billed is None or {*answer.usage.details} - {"input_text_tokens"}:
                continue
            usage = answer.usage.model_copy(update={"billed": None})
            cost = price(usage, provider=exchange.provider, models=(answer.model,), tier=service_tier(answer.raw))
            if cost is not None:
                compared += 1
                right += cost.dollars == pytest.approx(answer.usage.billed, rel=0.01)
    assert compared >= 50
    assert right / compared >= 0.9


def test_every_recorded_answer_can_be_priced_without_trouble() -> None:
    names = {"google": "gemini", "vertexai": "vertex", "openai-codex": "openai"}
    known = asked = 0
    for api in APIS:
        for exchange in exchanges(api):
            if exchange.expected.get("kind") == "message":
                answer = decode_recording(exchange)
                provider = names.get(exchange.provider, exchange.provider)
                cost = price(answer.usage, provider=provider, models=(answer.model, exchange.model))
                asked += 1
                known += cost is not None and cost.dollars > 0
    assert known > 0.7 * asked


def test_what_a_vendors_own_tools_read_is_billed_as_input(drive: Driver) -> None:
    """Gemini counts tool input separately; both the price list and registered prices add it to the prompt."""
    usage = {"promptTokenCount": 1_000, "candidatesTokenCount": 150, "thoughtsTokenCount": 50}
    usage |= {"toolUsePromptTokenCount": 5_000, "totalTokenCount": 6_200}
    candidate = {"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP", "index": 0}
    body = {"candidates": [candidate], "modelVersion": "gemini-2.5-pro", "usageMetadata": usage}

    def answer() -> AgentResponse:
        return drive.complete(lambda request: Answer([json.dumps(body).encode()]), agent="gemini:gemini-2.5-pro").ok

    assert answer().cost_estimate == pytest.approx((6_000 * 1.25 + 200 * 10) / MILLION)
    register_model(ModelFacts(provider="gemini", model="gemini-2.5-pro", prices=Prices(input=1, output=2)))
    assert answer().cost_estimate == pytest.approx((6_000 * 1 + 200 * 2) / MILLION)


def test_what_tools_read_is_billed_even_if_the_other_details_contradict_each_other() -> None:
    usage = used(1_000, 100, details={"input_tool_tokens": 500, "input_audio_tokens": 9_000, "web_searches": 1})
    cost = price(usage, provider="gemini", models=("gemini-2.5-flash",), when=NOON)
    assert cost is not None
    assert cost.dollars == pytest.approx((1_500 * 0.3 + 100 * 2.5 + 35_000) / MILLION)


def test_many_threads_may_need_the_list_first() -> None:
    code = """
import threading
from agent.wire_formats import WIRE_FORMATS, wire_format
from agent.models.prices import price
from agent.types import Usage
costs, ready = [], threading.Barrier(16)
def work():
    ready.wait()
    costs.append(price(Usage(prompt_tokens=1000), provider="openai", models=("gpt-5",)).dollars)
threads = [threading.Thread(target=work) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert costs == [0.00125] * 16, costs
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_bill_is_exact_whatever_the_program_has_set_for_its_own_arithmetic() -> None:
    usage = Usage(prompt_tokens=982, completion_tokens=0)
    exact = price(usage, provider="openai-chat", models=("gpt-4o",))
    with decimal.localcontext() as context:
        context.prec = 2
        rounded = price(usage, provider="openai-chat", models=("gpt-4o",))
    assert exact is not None
    assert exact.dollars == pytest.approx(982 * 2.5e-6)
    assert rounded == exact


# Limits


def _costs_a_tenth_of_a_cent(*, times: int = 12) -> Agent:
    register_model(ModelFacts(provider="scripted", model="m", prices=Prices(input=0.0, output=1000.0), max_output=1))
    return scripted_agent(*["yes"] * times, model="m", max_tokens=1)


def test_a_spend_limit_of_one_cent_pays_for_ten_answers_of_a_tenth_of_a_cent() -> None:
    router = Router([_costs_a_tenth_of_a_cent()], spend=SpendLimit(dollars=0.01))
    for _ in range(10):
        assert router.complete("hi").cost_estimate == 0.001
    assert router.get_spend() == 0.01
    with pytest.raises(errors.BudgetExceededError):
        router.complete("hi")


def test_a_cost_tracker_with_a_budget_of_one_cent_pays_for_ten_answers_of_a_tenth_of_a_cent() -> None:
    tracker = CostTracker(budget=0.01)
    agent = _costs_a_tenth_of_a_cent().with_config(middleware=[tracker])
    for _ in range(10):
        agent.complete("hi")
    assert tracker.get_spend() == 0.01
    with pytest.raises(errors.BudgetExceededError):
        agent.complete("hi")


def test_the_cost_of_a_run_is_added_up_exactly() -> None:
    response = AgentResponse(usage=Usage(prompt_tokens=1), cost_estimate=0.1)
    cost = hooks.RunCost(responses=[response] * 10)
    assert cost.dollars == 1.0


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=30))
def test_a_limit_that_is_the_sum_of_the_costs_is_used_up_exactly(nanodollars: list[int]) -> None:
    ledger = SpendLedger([SpendLimit(dollars=sum(nanodollars) / 1e9)])
    for cost in nanodollars:
        reserved = ledger.reserve(cost / 1e9, cost / 1e9, {}, 0.0)
        assert isinstance(reserved, Reservation)
        ledger.settle(reserved, cost / 1e9)
    assert isinstance(ledger.reserve(1e-9, 1e-9, {}, 0.0), SpendRefusal)
