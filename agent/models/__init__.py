"""Model facts: context windows, capabilities and retirement dates.

The table is part of the package and not always complete or current; None means unknown and never blocks a request.
`register_model` adds models and overrides facts. A model is found by any of the names it has at its maker, clouds and
aggregators: `claude-sonnet-4-5`, `us.anthropic.claude-sonnet-4-5-20250929-v1:0`, `claude-sonnet-4-5@20250929` and
`anthropic/claude-sonnet-4.5` are the same model.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from datetime import date
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from .._missing_names import reject_names
from ..types import ProviderCapabilities, Value
from ..types.option_errors import find_similar
from ..wire_formats import wire_format

__all__ = ["ModelFacts", "Prices", "facts", "list_models", "register_model"]

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, __all__)

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Prices(Value, frozen=True):
    """US dollars per million tokens. Cache prices that are None equal the input price."""

    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None


class ModelFacts(Value, frozen=True):
    """Facts about one model. None means unknown."""

    provider: str
    model: str
    context_window: int | None = Field(default=None, ge=1)
    """Context window in tokens, prompt and completion together."""
    max_input: int | None = Field(default=None, ge=1)
    """Maximum prompt tokens, if less than the context window."""
    max_output: int | None = Field(default=None, ge=1)
    tools: bool | None = None
    vision: bool | None = None
    documents: bool | None = None
    audio: bool | None = None
    native_schema: bool | None = None
    """Whether the vendor enforces output schemas natively."""
    thinking: bool | None = None
    sampling: bool | None = None
    """Whether the model accepts temperature and top_p."""
    sampling_with_thinking: bool | None = None
    """The same with thinking enabled; set only if it differs from `sampling`."""
    makes: str | None = None
    """Output modality besides text, such as `image` or `audio`."""
    retires: date | None = None
    """Retirement date announced by the vendor."""
    prices: Prices | None = None
    """Registered prices, which override the price list."""

    @property
    def known(self) -> bool:
        """Whether any fact is known."""
        return bool(self.model_fields_set - {"provider", "model"})

    @property
    def longest_prompt(self) -> int | None:
        return self.max_input or self.context_window


_CAPABILITIES = {
    "tools": "tools",
    "vision": "vision",
    "documents": "documents",
    "audio": "audio",
    "thinking": "thinking",
    "native_schema": "native_schema_output",
}
"""Names of facts → names of capabilities."""


def restrict_capabilities(capabilities: ProviderCapabilities, model: ModelFacts) -> ProviderCapabilities:
    """Restrict a provider's capabilities to those of one of its models. Unknown facts change nothing."""
    changes: dict[str, object] = {
        theirs: False
        for ours, theirs in _CAPABILITIES.items()
        if getattr(model, ours) is False and getattr(capabilities, theirs)
    }
    # Reasoning models think even if the wire format cannot express it.
    if model.thinking:
        changes["thinking"] = True
    for ours, theirs in (("context_window", "max_context_tokens"), ("max_output", "max_output_tokens")):
        fact, limit = getattr(model, ours), getattr(capabilities, theirs)
        if fact is not None:
            changes[theirs] = fact if limit is None else min(fact, limit)
    return capabilities.model_copy(update=changes)


TABLES: dict[str, tuple[str, ...]] = {
    "openai": ("openai",),
    "azure": ("openai",),
    "gemini-chat": ("gemini",),
    "vertex": ("gemini", "anthropic"),
    "moonshotai": ("moonshot",),
    "kimi": ("moonshot",),
    "z.ai": ("zai",),
    "z-ai": ("zai",),
    "zhipu": ("zai",),
    "dashscope": ("alibaba",),
    "qwen": ("alibaba",),
    "x-ai": ("xai",),
    "grok": ("xai",),
}
"""Provider → tables. Wire formats declare theirs; other providers use the table of their own name, if any."""


def fact_tables(provider: str) -> tuple[str, ...]:
    """Return the tables of a provider."""
    declared = wire_format(provider)
    return (declared.facts if declared is not None else TABLES.get(provider)) or (provider,)


MAKERS: dict[str, str] = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "gemini",
    "gemini": "gemini",
    "vertex_ai": "gemini",
    "deepseek": "deepseek",
    "deepseek-ai": "deepseek",
    "mistral": "mistral",
    "mistralai": "mistral",
    "x-ai": "xai",
    "xai": "xai",
    "moonshotai": "moonshot",
    "moonshot": "moonshot",
    "z-ai": "zai",
    "zai": "zai",
    "zai-org": "zai",
    "qwen": "alibaba",
    "alibaba": "alibaba",
    "cohere": "cohere",
    "minimax": "minimax",
    "perplexity": "perplexity",
    "amazon": "nova",
}
"""Maker prefix in model names of aggregators and clouds → table."""

RESELLERS = frozenset(
    (
        "azure",
        "bedrock",
        "databricks",
        "github-models",
        "litellm",
        "openrouter",
        "perplexity",
        "snowflake",
        "vercel",
        "vertex",
    )
)
"""Providers that serve models of several makers, with the maker in the name."""

_PREFIX = r"^(arn:[^/]*/|publishers/[^/]+/models/|accounts/[^/]+/models/|models/|tunedmodels/|~)"
_REGION = r"^(us-gov|us|eu|apac|au|jp|ca|sa|me|in|global)\.(?=\w+\.)"
_FINE_TUNED = r"^ft:([^:]+):.*$"
_SUFFIXES = (
    r":(free|nitro|floor|online|extended|beta|exacto|thinking)$",
    r"-v\d+(:\d+)?(:\d+k)?$",
    r"@[\w.-]+$",
    r"-latest$",
    r"-20\d\d-?[01]\d-?[0-3]\d$",
    r"-00\d$",
)
_SPELLINGS = (("gpt-35-", "gpt-3.5-"), (".", "-"))

_registered: dict[tuple[str, str], ModelFacts] = {}
_lookup_lock = threading.Lock()
"""Held while tables are read, so that concurrent lookups read them once."""


@lru_cache(maxsize=4096)
def facts(provider: str, model: str) -> ModelFacts:
    """Return the facts about a model; all None for an unknown model.

    Versions and aliases are found under the model family, and models of aggregators under their maker.
    """
    with _lookup_lock:
        row = _find_row(provider, model)
    own = _find_registered(provider, model)
    registered = {} if own is None else {name: getattr(own, name) for name in own.model_fields_set}
    return ModelFacts(**{**row, **registered, "provider": provider, "model": model})


def list_models(provider: str | None = None) -> list[str]:
    """Return the names of all models of a provider, or of all providers as `table:model`."""
    if provider is not None:
        tables = fact_tables(provider)
        names = {name for table in tables for name in _table(table)}
        return sorted(names | {model for owner, model in _registered if owner in (provider, *tables)})
    everywhere = {f"{table}:{name}" for table in _tables() for name in _table(table)}
    return sorted(everywhere | {f"{owner}:{model}" for owner, model in _registered})


def find_similar_models(model: str, provider: str | None = None) -> list[str]:
    """Return known models that a misspelled or incomplete name may mean, at most three.

    With a provider, its models; otherwise `table:model`, in tables that have that name or similar ones.
    """
    names = list_models(provider)
    by_model: dict[str, list[str]] = {}
    for name in names:
        by_model.setdefault((name if provider is not None else name.partition(":")[2]).lower(), []).append(name)
    exact = next((by_model[spelling] for spelling in _spellings(model) if spelling in by_model), None)
    if exact is not None:
        return exact[:3]
    return [name for similar in find_similar(model, by_model, 3) for name in by_model[similar]][:3]


def register_model(model: ModelFacts) -> None:
    """Register a model, or override facts about a known one."""
    _registered[model.provider, model.model.strip().lower()] = model
    facts.cache_clear()


def _find_registered(provider: str, model: str) -> ModelFacts | None:
    for owner in (provider, *fact_tables(provider)):
        for name in _spellings(model):
            if (own := _registered.get((owner, name))) is not None:
                return own
    return None


def _find_row(provider: str, model: str) -> dict[str, Any]:
    names = list(_spellings(model))
    tables = fact_tables(provider)
    for table in tables:
        rows = _index(table)
        for name in names:
            if name in rows:
                return rows[name]
    row = _find_by_maker(names, None if provider in RESELLERS else tables)
    return _find_unique(names) if row is None and provider in RESELLERS else row or {}


def _find_by_maker(names: list[str], tables: tuple[str, ...] | None) -> dict[str, Any] | None:
    """Find a model by a maker prefix, optionally only in the given tables."""
    for name in names:
        maker, mark, rest = name.partition("/")
        if not mark:
            maker, mark, rest = name.partition(".")
        table = MAKERS.get(maker) if mark else None
        if table is not None and (tables is None or table in tables):
            rows = _index(table)
            if (row := next((rows[other] for other in _spellings(rest) if other in rows), None)) is not None:
                return row
    return None


def _find_unique(names: list[str]) -> dict[str, Any]:
    """Find a name without a maker prefix, if exactly one table has it."""
    for name in names:
        matches = [rows[name] for table in dict.fromkeys(MAKERS.values()) if name in (rows := _index(table))]
        if len(matches) == 1:
            return matches[0]
    return {}


def _spellings(model: str) -> Iterator[str]:
    """Iterate over a model's name and its variants without prefixes, versions and suffixes."""
    full_name = model.strip().lower()
    name = re.sub(_REGION, "", re.sub(_PREFIX, "", full_name))
    seen: dict[str, None] = {full_name: None, name: None}  # registered models can have any name
    if (tuned := re.match(_FINE_TUNED, name)) is not None:
        seen[f"ft:{tuned[1]}"] = None
        seen[tuned[1]] = None
    for suffix in _SUFFIXES:
        for known in list(seen):
            seen[re.sub(suffix, "", known)] = None
    for ours, theirs in _SPELLINGS:
        for known in list(seen):
            seen[known.replace(ours, theirs)] = None
    return iter(seen)


@cache
def _tables() -> dict[str, dict[str, dict[str, Any]]]:
    """Read the model table."""
    # The loader also reads from zip archives; importing `importlib.resources` takes 20 ms.
    loader: Any = __spec__.loader
    data = json.loads(loader.get_data(os.path.join(os.path.dirname(__file__), "models.json")))
    tables: dict[str, dict[str, dict[str, Any]]] = data["models"]
    return tables


def _table(name: str) -> dict[str, dict[str, Any]]:
    return _tables().get(name, {})


@cache
def _index(table: str) -> dict[str, dict[str, Any]]:
    """Return a table's rows as fields of ModelFacts, by lower-case name."""
    return {name.lower(): _fields(row) for name, row in _table(table).items()}


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in row.items() if name not in ("yes", "no")}
    for word, answer in (("yes", True), ("no", False)):
        fields.update(dict.fromkeys(str(row.get(word, "")).split(), answer))
    return fields
