"""Costs of calls, computed from usage.

Sources in order: the vendor's own figure, registered prices, and the installed price list of genai-prices. Nothing is
fetched. A model without a price costs None, never 0. The price list is imported for the first cost, which takes 100 to
200 ms; `load_prices` imports it earlier. A service tier without a price costs None, too: the list itself would apply
the standard price.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Context, localcontext
from enum import StrEnum
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..types import Usage
from ..wire_formats import wire_format
from . import Prices, facts

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider

PROVIDERS: dict[str, str] = {
    "openai": "openai",
    "azure": "azure",
    "gemini-chat": "google",
    "vertex": "google",
    "deepseek": "deepseek",
    "groq": "groq",
    "mistral": "mistral",
    "xai": "x-ai",
    "together": "together",
    "fireworks": "fireworks",
    "cerebras": "cerebras",
    "perplexity": "perplexity",
    "openrouter": "openrouter",
    "moonshot": "moonshotai",
    "zai": "zai",
    "cohere": "cohere",
    "minimax": "minimax",
    "novita": "novita",
    "cloudflare": "cloudflare",
    "databricks": "databricks",
    "ovhcloud": "ovhcloud",
    "avian": "avian",
    "baseten": "baseten",
}
"""Provider → name in the price list. Wire formats declare theirs; others have no list prices."""


def price_list_name(provider: str) -> str | None:
    """Return a provider's name in the price list; None without list prices, as for local models."""
    declared = wire_format(provider)
    return PROVIDERS.get(provider) if declared is None else declared.price_list


class ServiceTier(StrEnum):
    """Service tier of a request, which affects its price."""

    STANDARD = "standard"
    BATCH = "batch"
    FLEX = "flex"
    PRIORITY = "priority"
    OTHER = "other"
    """A tier without a known price."""


_TIERS = {
    "": ServiceTier.STANDARD,
    "auto": ServiceTier.STANDARD,
    "default": ServiceTier.STANDARD,
    "standard": ServiceTier.STANDARD,
    "on_demand": ServiceTier.STANDARD,
    "traffic_type_unspecified": ServiceTier.STANDARD,
    "batch": ServiceTier.BATCH,
    "flex": ServiceTier.FLEX,
    "on_demand_flex": ServiceTier.FLEX,
    "priority": ServiceTier.PRIORITY,
    "fast": ServiceTier.PRIORITY,
    "on_demand_priority": ServiceTier.PRIORITY,
}
"""Vendors' names of tiers, in lower case."""

_TIER_KEYS = ("service_tier", "serviceTier", "trafficType")
_SURCHARGED = (("speed", ("standard",)), ("inference_geo", ("global", "not_available")))
"""Fields with a surcharge unless they have one of these values; the price list has neither."""

_VARIANT = {
    ServiceTier.BATCH: {"processing": "batch"},
    ServiceTier.FLEX: {"service_tier": "flex"},
    ServiceTier.PRIORITY: {"service_tier": "priority"},
}
"""Names of tiers in the price list."""

_MILLION = 1_000_000
_EXACT = Context(prec=28)


_UNITS = 10**12


def to_units(dollars: float) -> int:
    """Convert dollars to an integer number of picodollars, for exact sums and limits."""
    return round(dollars * _UNITS)


def to_dollars(units: int) -> float:
    """Convert picodollars to dollars."""
    return units / _UNITS


class Cost(NamedTuple):
    """A cost in US dollars and its source: `vendor`, `user`, or the price list and its version."""

    dollars: float
    source: str


def price(
    usage: Usage | None,
    *,
    provider: str,
    models: tuple[str, ...],
    tier: ServiceTier = ServiceTier.STANDARD,
    when: datetime | None = None,
    batch_discount: float | None = None,
) -> Cost | None:
    """Return the cost of `usage`; None without a known price.

    Args:
        usage: The token counts.
        provider: The provider's name.
        models: Model names to look up, the most specific first.
        tier: Service tier of the request.
        when: Time of the call, for prices that change; None is now.
        batch_discount: Factor on the standard price of a batch, for models without a listed batch price.
    """
    factor = 1.0 if tier is not ServiceTier.BATCH or batch_discount is None else batch_discount
    if usage is None:
        return None
    if usage.billed is not None:
        return Cost(usage.billed, "vendor")
    for model in models:
        if model and (own := facts(provider, model).prices) is not None:
            return Cost(_compute_registered(usage, own) * factor, "user")
    listed = price_list_name(provider)
    if listed is None:
        return None
    for model in models:
        if model and (entry := _find(listed, model)) is not None:
            with localcontext(_EXACT):  # independent of the program's decimal precision
                when = when or datetime.now(UTC)
                dollars = _compute_list_price(usage, *entry, tier, when)
                if dollars is not None:
                    return Cost(dollars, _version())
                if tier is not ServiceTier.BATCH or batch_discount is None:
                    return None
                dollars = _compute_list_price(usage, *entry, ServiceTier.STANDARD, when)
            return None if dollars is None else Cost(dollars * factor, f"{_version()}, {factor:g} for batches")
    return None


def service_tier(raw: Any) -> ServiceTier:
    """Return the service tier stated in a vendor's response or stream event; standard by default."""
    if not isinstance(raw, dict):
        return ServiceTier.STANDARD
    for answer in (raw, raw.get("response"), raw.get("message")):
        if isinstance(answer, dict):
            for place in (answer, answer.get("usage"), answer.get("usageMetadata")):
                if isinstance(place, dict) and (tier := _tier_in(place)) is not None:
                    return tier
    return ServiceTier.STANDARD


def _tier_in(place: Mapping[str, Any]) -> ServiceTier | None:
    for key, usual in _SURCHARGED:
        if key in place and isinstance(word := place[key], str) and word.lower() not in usual:
            return ServiceTier.OTHER
    for key in _TIER_KEYS:
        value = place.get(key)
        word = value.get("type") if isinstance(value, dict) else value
        if isinstance(word, str) and word:
            return _TIERS.get(word.lower(), ServiceTier.OTHER)
    return None


def load_prices() -> str:
    """Import the price list now; return its name and version."""
    _snapshot()
    return _version()


def _tool_input_tokens(usage: Usage) -> int:
    """Return input tokens of vendor-side tools, which are not part of the prompt."""
    return int(usage.details.get("input_tool_tokens", 0)) if usage.details else 0


def _compute_registered(usage: Usage, prices: Prices) -> float:
    read = prices.input if prices.cache_read is None else prices.cache_read
    write = prices.input if prices.cache_write is None else prices.cache_write
    dollars = (
        (usage.input_tokens + _tool_input_tokens(usage)) * prices.input
        + usage.cache_read_tokens * read
        + usage.cache_write_tokens * write
        + usage.completion_tokens * prices.output
    )
    return dollars / _MILLION


@cache
def _snapshot() -> Any:
    from genai_prices.data_snapshot import get_snapshot

    return get_snapshot()


@cache
def _version() -> str:
    import genai_prices

    return f"genai-prices {genai_prices.__version__}"


@cache
def _list_units() -> frozenset[str]:
    """Return the units of the price list. Other counts in `Usage.details` have no price."""
    from genai_prices.data_units import unit_data

    return frozenset(unit_data)


@lru_cache(maxsize=4096)
def _find(listed: str, model: str) -> tuple[Provider, ModelInfo] | None:
    for name in dict.fromkeys((model, model.rpartition("models/")[2])):
        try:
            entry: tuple[Provider, ModelInfo] = _snapshot().find_provider_model(name, None, listed, None)
        except LookupError:
            continue
        return entry
    return None


def _compute_list_price(
    usage: Usage, provider: Provider, model: ModelInfo, tier: ServiceTier, when: datetime
) -> float | None:
    context: dict[str, str] | None = None
    if tier is not ServiceTier.STANDARD:
        context = _VARIANT.get(tier)
        if context is None or not _has_tier_price(provider, model, context, when):
            return None
    prices = model.get_prices(when, context)
    if prices.__dict__.get("input_mtok") is None and prices.__dict__.get("output_mtok") is None:
        return None  # not priced by token
    return _calculate(usage, prices)


def _has_tier_price(provider: Provider, model: ModelInfo, context: dict[str, str], when: datetime) -> bool:
    """Whether the list has prices for this tier and time; otherwise it would ignore the tier."""
    if not any(model is own for own in provider.models):
        return False
    return any(
        variant.when == context and (variant.constraint is None or variant.constraint.active(when))
        for variant in model.price_variants or ()
    )


def _calculate(usage: Usage, prices: ModelPrice) -> float:
    """Compute costs by the rules of the price list.

    If the vendor's counts contradict each other, the finest details are dropped first and the rest is charged.
    """
    from genai_prices import Usage as Counts

    main: dict[str, Any] = {
        "input_tokens": usage.prompt_tokens + _tool_input_tokens(usage),
        "output_tokens": usage.completion_tokens,
    }
    cached = {"cache_read_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
    reasoning = {"output_reasoning_tokens": usage.reasoning_tokens} if usage.reasoning_tokens else {}
    details = {name: count for name, count in (usage.details or {}).items() if name in _list_units()}
    requests = {name: count for name, count in details.items() if not name.endswith("_tokens")}
    hourly = {"cache_write_1h_tokens": details.get("cache_write_1h_tokens")}
    for counts in (
        {**details, **requests, **main, **cached, **reasoning},
        {**hourly, **requests, **main, **cached, **reasoning},
        {**requests, **main, **cached, **reasoning},
        {**requests, **main, **cached},
    ):
        try:
            return float(prices.calc_price(Counts(**counts))["total_price"])
        except ValueError:
            continue
    return float(prices.calc_price(Counts(**requests, **main))["total_price"])
