"""Finding a model under the many names it goes by.

The same model is `claude-sonnet-4-5` at its maker, `us.anthropic.claude-sonnet-4-5-20250929-v1:0` at one cloud,
`claude-sonnet-4-5@20250929` at another and `anthropic/claude-sonnet-4.5` at an aggregator. All of that is data here;
which table answers for a provider, too.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from datetime import date
from functools import cache, lru_cache
from typing import Annotated, Any

from pydantic import Field

from ..types import ProviderCapabilities, Value
from ..wire_formats import wire_format

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Prices(Value, frozen=True):
    """US dollars per million tokens. A cache price that is None is the price of plain input."""

    input: Dollars
    output: Dollars
    cache_read: Dollars | None = None
    cache_write: Dollars | None = None


class ModelFacts(Value, frozen=True):
    """Facts about one model. None: not known."""

    provider: str
    model: str
    context_window: int | None = Field(default=None, ge=1)
    """Tokens of prompt and answer together."""
    max_input: int | None = Field(default=None, ge=1)
    """The longest prompt, where it is less than the window."""
    max_output: int | None = Field(default=None, ge=1)
    tools: bool | None = None
    vision: bool | None = None
    documents: bool | None = None
    audio: bool | None = None
    native_schema: bool | None = None
    """Whether the vendor enforces output schemas."""
    thinking: bool | None = None
    sampling: bool | None = None
    """Whether it takes temperature and top_p."""
    sampling_with_thinking: bool | None = None
    """Whether it takes them while it thinks; only said where `sampling` alone would mislead."""
    makes: str | None = None
    """What it can answer with besides text, such as `image` or `audio`."""
    retires: date | None = None
    """The day after which the vendor does not promise to serve it."""
    prices: Prices | None = None
    """Yours, if you register them; they win over the price list."""

    @property
    def known(self) -> bool:
        """Whether anything is known at all."""
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
"""What facts call them → what capabilities call them."""


def restrict_capabilities(capabilities: ProviderCapabilities, model: ModelFacts) -> ProviderCapabilities:
    """A provider's capabilities as far as one of its models has them. What is not known of the model stays."""
    changes: dict[str, object] = {
        theirs: False
        for ours, theirs in _CAPABILITIES.items()
        if getattr(model, ours) is False and getattr(capabilities, theirs)
    }
    # A reasoning model thinks, whatever the format it is spoken to in can say about it.
    if model.thinking:
        changes["thinking"] = True
    for ours, theirs in (("context_window", "max_context_tokens"), ("max_output", "max_output_tokens")):
        known, given = getattr(model, ours), getattr(capabilities, theirs)
        if known is not None:
            changes[theirs] = known if given is None else min(known, given)
    return capabilities.model_copy(update=changes)


TABLES: dict[str, tuple[str, ...]] = {
    "openai": ("openai",),
    "azure": ("openai",),
    "gemini-chat": ("gemini",),
    "vertex": ("gemini", "anthropic"),
    "bedrock": ("anthropic", "nova"),
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
"""Provider → tables that answer for it. Wire formats declare theirs; others have one of their own name, or none."""


def fact_tables(provider: str) -> tuple[str, ...]:
    """The tables that answer for a provider."""
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
"""How a maker is named in front of a model, by aggregators and clouds → its table."""

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
"""Providers that serve other makers' models, and name the maker."""

_PREFIX = re.compile(r"^(publishers/[^/]+/models/|accounts/[^/]+/models/|models/|tunedmodels/|~)")
_REGION = re.compile(r"^(us-gov|us|eu|apac|au|jp|ca|sa|me|global)\.(?=\w+\.)")
_FINE_TUNED = re.compile(r"^ft:([^:]+):.*$")
_SUFFIXES = (
    re.compile(r":(free|nitro|floor|online|extended|beta|exacto|thinking)$"),
    re.compile(r"-v\d+(:\d+)?(:\d+k)?$"),
    re.compile(r"@[\w.-]+$"),
    re.compile(r"-latest$"),
    re.compile(r"-20\d\d-?[01]\d-?[0-3]\d$"),
    re.compile(r"-00\d$"),
)
_SPELLINGS = (("gpt-35-", "gpt-3.5-"), (".", "-"))

_registered: dict[tuple[str, str], ModelFacts] = {}
_looking_up = threading.Lock()
"""Held while tables are read: of many threads that ask at once, the first reads for all of them."""


def facts(provider: str, model: str) -> ModelFacts:
    """What is known about a model; everything None for an unknown one.

    Versions and aliases are found under their family's name, and models behind an aggregator under their maker's.
    """
    return _facts(provider, model)


def list_models(provider: str | None = None) -> list[str]:
    """The names of all models in the tables: of one provider, or of all of them as `table:model`."""
    if provider is not None:
        tables = fact_tables(provider)
        names = {name for table in tables for name in _table(table)}
        return sorted(names | {model for owner, model in _registered if owner in (provider, *tables)})
    everywhere = {f"{table}:{name}" for table in _tables() for name in _table(table)}
    return sorted(everywhere | {f"{owner}:{model}" for owner, model in _registered})


def register_model(model: ModelFacts) -> None:
    """Add a model, or facts about a known one: what is given here wins over the table, the rest stays."""
    _registered[model.provider, model.model.strip().lower()] = model
    _facts.cache_clear()


@lru_cache(maxsize=4096)
def _facts(provider: str, model: str) -> ModelFacts:
    with _looking_up:
        found = _in_tables(provider, model)
    own = _own(provider, model)
    if own is not None:
        given = {name: getattr(own, name) for name in own.model_fields_set}
        found = {**found, **given}
    named = {**found, "provider": provider, "model": model}
    if own is not None or "prices" in found:
        return ModelFacts(**named)
    if "retires" in found:
        named["retires"] = date.fromisoformat(found["retires"])
    return ModelFacts(**named)


def _own(provider: str, model: str) -> ModelFacts | None:
    for owner in (provider, *fact_tables(provider)):
        for name in _spellings(model):
            if (own := _registered.get((owner, name))) is not None:
                return own
    return None


def _in_tables(provider: str, model: str) -> dict[str, Any]:
    names = list(_spellings(model))
    tables = fact_tables(provider)
    for table in tables:
        rows = _index(table)
        for name in names:
            if name in rows:
                return rows[name]
    row = _at_its_maker(names, None if provider in RESELLERS else tables)
    return _in_one_table(names) if row is None and provider in RESELLERS else row or {}


def _at_its_maker(names: list[str], tables: tuple[str, ...] | None) -> dict[str, Any] | None:
    """The row of a model whose name begins with its maker's; among these tables only, if any are given."""
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


def _in_one_table(names: list[str]) -> dict[str, Any]:
    """A name without a maker's is believed if only one table knows it."""
    for name in names:
        found = [rows[name] for table in dict.fromkeys(MAKERS.values()) if name in (rows := _index(table))]
        if len(found) == 1:
            return found[0]
    return {}


def _spellings(model: str) -> Iterator[str]:
    """A model's name, and then with one thing after the other taken off that vendors add to names."""
    whole = model.strip().lower()
    name = _REGION.sub("", _PREFIX.sub("", whole))
    seen: dict[str, None] = {whole: None, name: None}  # whole: users may register a model by the name they call it by
    if (tuned := _FINE_TUNED.match(name)) is not None:
        seen[f"ft:{tuned[1]}"] = None
        seen[tuned[1]] = None
    for suffix in _SUFFIXES:
        for known in list(seen):
            seen[suffix.sub("", known)] = None
    for ours, theirs in _SPELLINGS:
        for known in list(seen):
            seen[known.replace(ours, theirs)] = None
    return iter(seen)


@cache
def _tables() -> dict[str, dict[str, dict[str, Any]]]:
    """The file, read when somebody first asks."""
    # Through the loader, which can read from an archive, too. `importlib.resources` would take 20 ms to import.
    loader: Any = __spec__.loader
    data = json.loads(loader.get_data(os.path.join(os.path.dirname(__file__), "models.json")))
    tables: dict[str, dict[str, dict[str, Any]]] = data["models"]
    return tables


def _table(name: str) -> dict[str, dict[str, Any]]:
    return _tables().get(name, {})


@cache
def _index(table: str) -> dict[str, dict[str, Any]]:
    """A table's rows as the fields of ModelFacts, by name in small letters."""
    return {name.lower(): _fields(row) for name, row in _table(table).items()}


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in row.items() if name not in ("yes", "no")}
    for word, answer in (("yes", True), ("no", False)):
        fields.update(dict.fromkeys(str(row.get(word, "")).split(), answer))
    return fields
