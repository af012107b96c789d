"""What a call costs, worked out from what it consumed.

The vendor's own word comes first, then prices the user registered, then the price list of genai-prices, which is part
of the installation: nothing is ever fetched. A model without a price costs None, never 0. The list is imported when the
first answer has to be priced, since that takes a tenth of a second or two; `load_prices` does it earlier.

Tiers of service are an enumeration here, because the price list takes any text and charges the standard price for what
it does not know. Of a tier that it has no price for, the cost is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Context, Decimal, localcontext
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
    "bedrock": "aws",
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
"""Our names of providers → those of the price list. Wire formats declare theirs; others have no list prices."""


def price_list_name(provider: str) -> str | None:
    """The name of a provider in the price list; None if it has no list prices, like local models and gateways."""
    declared = wire_format(provider)
    return PROVIDERS.get(provider) if declared is None else declared.price_list


class ServiceTier(StrEnum):
    """How urgently a request was served, which decides its price."""

    STANDARD = "standard"
    BATCH = "batch"
    FLEX = "flex"
    PRIORITY = "priority"
    OTHER = "other"
    """Something that we know no price of."""


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
"""Vendors' words for tiers, in small letters."""

_TIER_KEYS = ("service_tier", "serviceTier", "trafficType")
_SURCHARGED = (("speed", ("standard",)), ("inference_geo", ("global", "not_available")))
"""What is charged on top of a tier, unless it is one of these. The price list knows neither."""

_VARIANT = {
    ServiceTier.BATCH: {"processing": "batch"},
    ServiceTier.FLEX: {"service_tier": "flex"},
    ServiceTier.PRIORITY: {"service_tier": "priority"},
}
"""What the price list calls them."""

_MILLION = 1_000_000
_ZERO = Decimal(0)
_EXACT = Context(prec=28)


_UNITS = 10**12


def to_units(dollars: float) -> int:
    """Dollars as an integer number of picodollars, so that sums and limits are exact."""
    return round(dollars * _UNITS)


def to_dollars(units: int) -> float:
    """Picodollars as dollars."""
    return units / _UNITS


class Cost(NamedTuple):
    """US dollars, and who says so: `vendor`, `user`, or the price list and its version."""

    dollars: float
    source: str


def price(
    usage: Usage | None,
    *,
    provider: str,
    models: tuple[str, ...],
    tier: ServiceTier = ServiceTier.STANDARD,
    when: datetime | None = None,
) -> Cost | None:
    """What `usage` costs; None if nobody knows.

    Args:
        provider: Our name of the provider.
        models: Names to look the model up by, the most exact one first.
        tier: How the request was served.
        when: Prices change with the day, and at some vendors with the hour; by default it is now.
    """
    if usage is None:
        return None
    if usage.billed is not None:
        return Cost(usage.billed, "vendor")
    for model in models:
        if model and (own := facts(provider, model).prices) is not None:
            return Cost(_at_own_prices(usage, own), "user")
    listed = price_list_name(provider)
    if listed is None:
        return None
    for model in models:
        if model and (found := _find(listed, model)) is not None:
            with localcontext(_EXACT):  # whatever the program has set, a bill is not rounded to three digits
                dollars = _at_list_prices(usage, *found, tier, when or datetime.now(UTC))
            return None if dollars is None else Cost(dollars, _version())
    return None


def service_tier(raw: Any) -> ServiceTier:
    """The tier that a vendor's answer says it was served in; the standard one if it says nothing.

    The word stands in the answer or in its usage; streams wrap both once more.
    """
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
        if key in place and isinstance(word := place[key], str) and word:
            return _TIERS.get(word.lower(), ServiceTier.OTHER)
    return None


def load_prices() -> str:
    """Import the price list now instead of at the first answer; returns its name and version."""
    _snapshot()
    return _version()


def _beside_the_prompt(usage: Usage) -> int:
    """What a vendor's own tools read is input, though it is not in the caller's prompt."""
    return int(usage.details.get("input_tool_tokens", 0)) if usage.details else 0


def _at_own_prices(usage: Usage, prices: Prices) -> float:
    read = prices.input if prices.cache_read is None else prices.cache_read
    write = prices.input if prices.cache_write is None else prices.cache_write
    dollars = (
        (usage.input_tokens + _beside_the_prompt(usage)) * prices.input
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
def _countable() -> frozenset[str]:
    """The words of the price list. Others in `Usage.details` have no price and are left alone."""
    from genai_prices.data_units import unit_data

    return frozenset(unit_data)


@lru_cache(maxsize=4096)
def _find(listed: str, model: str) -> tuple[Provider, ModelInfo] | None:
    for name in dict.fromkeys((model, model.rpartition("models/")[2])):
        try:
            found: tuple[Provider, ModelInfo] = _snapshot().find_provider_model(name, None, listed, None)
        except LookupError:
            continue
        return found
    return None


def _at_list_prices(
    usage: Usage, provider: Provider, model: ModelInfo, tier: ServiceTier, when: datetime
) -> float | None:
    context: dict[str, str] | None = None
    if tier is not ServiceTier.STANDARD:
        context = _VARIANT.get(tier)
        if context is None or not _has_variant(provider, model, context, when):
            return None
    prices = model.get_prices(when, context)
    if prices.__dict__.get("input_mtok") is None and prices.__dict__.get("output_mtok") is None:
        return None  # it is sold by something else than tokens
    if not usage.details:
        return _plain(usage, prices)
    return _detailed(usage, prices)


def _has_variant(provider: Provider, model: ModelInfo, context: dict[str, str], when: datetime) -> bool:
    """Variants hold for the vendor's own models, from their first day on. Elsewhere the list ignores the tier."""
    if not any(model is own for own in provider.models):
        return False
    return any(
        variant.when == context and (variant.constraint is None or variant.constraint.active(when))
        for variant in model.price_variants or ()
    )


def _plain(usage: Usage, prices: ModelPrice) -> float:
    """The common case by hand: the list's own way takes twenty times as long. A test holds the two together."""
    prompt = usage.prompt_tokens
    known = prices.__dict__
    base = _unit(known.get("input_mtok"), prompt)
    read = _unit(known["cache_read_mtok"], prompt) if known.get("cache_read_mtok") is not None else base
    write = _unit(known["cache_write_mtok"], prompt) if known.get("cache_write_mtok") is not None else base
    output = _unit(known.get("output_mtok"), prompt)
    total = (
        base * (prompt - usage.cache_read_tokens - usage.cache_write_tokens)
        + read * usage.cache_read_tokens
        + write * usage.cache_write_tokens
        + output * usage.completion_tokens
    )
    if usage.reasoning_tokens and known.get("output_reasoning_mtok") is not None:
        total += (_unit(known["output_reasoning_mtok"], prompt) - output) * usage.reasoning_tokens
    per_request = known.get("requests_kcount")
    if per_request is not None:
        total += _unit(per_request, prompt) * 1000
    return float(total / _MILLION)


def _unit(price: Any, prompt: int) -> Decimal:
    """A price of the list, which may depend on how long the prompt is."""
    if price is None:
        return _ZERO
    if isinstance(price, Decimal):
        return price
    unit: Decimal = price.base
    for tier in price.tiers:
        if prompt > tier.start:
            unit = tier.price
    return unit


def _detailed(usage: Usage, prices: ModelPrice) -> float:
    """With searches, audio and the like: by the list's own way, which knows what is part of what."""
    from genai_prices import Usage as Counts

    counts: dict[str, Any] = {
        "input_tokens": usage.prompt_tokens + _beside_the_prompt(usage),
        "output_tokens": usage.completion_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
    }
    if usage.reasoning_tokens:
        counts["output_reasoning_tokens"] = usage.reasoning_tokens
    extra = {name: count for name, count in usage.details.items() if name in _countable() and name not in counts}
    # Parts of parts first: if what a vendor counted contradicts itself, everything else is still charged.
    kept = {name: count for name, count in extra.items() if not name.endswith("_tokens")}
    for details in (extra, {"cache_write_1h_tokens": extra.get("cache_write_1h_tokens"), **kept}, kept):
        try:
            return float(prices.calc_price(Counts(**counts, **details))["total_price"])
        except ValueError:
            continue
    whole = usage.prompt_tokens + _beside_the_prompt(usage)
    return _plain(usage.model_copy(update={"prompt_tokens": whole}), prices)
