"""How vendors and models differ in speaking the Responses API, as data."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from ...types import ProviderCapabilities

API = "openai-responses"
DIALECT = "openai"
"""What `agent.schemas` calls the subset of JSON schema that this API takes."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
EFFORTS: tuple[Effort, ...] = ("none", "minimal", "low", "medium", "high", "xhigh")
"""From the least to the most."""


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Models that take the same settings. One is itself and no other: comparing them by value would cost each call."""

    pattern: str
    """A regular expression for the start of the model's name, without the vendor's prefix."""
    efforts: tuple[Effort, ...] = EFFORTS
    """The efforts it can be asked for; none at all for models that do not reason."""
    rests: bool = False
    """Does not reason unless told to. While a model does not reason, it takes sampling settings."""
    long_cache: Literal["retention", "ttl"] | None = None
    """The setting that makes it keep prompts for hours."""
    breakpoints: bool = False
    """The caller can mark what is worth keeping in the cache."""


_ALWAYS: tuple[Effort, ...] = ("low", "medium", "high")
_UP_TO_XHIGH: tuple[Effort, ...] = ("low", "medium", "high", "xhigh")
_FROM_NONE: tuple[Effort, ...] = ("none", "low", "medium", "high", "xhigh")

FAMILIES: tuple[Family, ...] = (
    Family(r"gpt-5-chat", ()),
    Family(r"gpt-5\.\d+-chat", ("medium",), long_cache="retention"),
    Family(r"gpt-5-pro", ("high",)),
    Family(r"gpt-5-codex", _ALWAYS, long_cache="retention"),
    Family(r"gpt-5-(?:mini|nano)", ("minimal", "low", "medium", "high")),
    Family(r"gpt-5(?![.\d])", ("minimal", "low", "medium", "high"), long_cache="retention"),
    Family(r"gpt-5\.1-codex-max", _UP_TO_XHIGH, long_cache="retention"),
    Family(r"gpt-5\.1-codex", _ALWAYS, long_cache="retention"),
    Family(r"gpt-5\.1", ("none", "low", "medium", "high"), rests=True, long_cache="retention"),
    Family(r"gpt-5\.[2-5]-pro", ("medium", "high", "xhigh"), long_cache="retention"),
    Family(r"gpt-5\.[2-5]-codex", _UP_TO_XHIGH, long_cache="retention"),
    Family(r"gpt-5\.[2-4]", _FROM_NONE, rests=True, long_cache="retention"),
    Family(r"gpt-5\.5", _FROM_NONE, long_cache="retention"),
    Family(r"gpt-(?:5\.[6-9]|[6-9])", _FROM_NONE, long_cache="ttl", breakpoints=True),
    Family(r"(?:ft:)?(?:gpt-[34]|chatgpt-4)", ()),
    Family(r"o[1-9]", _ALWAYS),
    Family(r"gpt-oss|codex-mini", _ALWAYS),
    Family(r"grok-3-mini", ("low", "high")),
)
"""What is known about models; the first that fits counts."""

UNKNOWN = Family("")


@lru_cache(512)
def family_of(model: str, families: tuple[Family, ...] = FAMILIES) -> Family:
    """The family of a model, whether named plainly or in a gateway's way (`openai/gpt-5`, `openai.gpt-oss-20b`)."""
    name = model.lower().rpartition("/")[2].removeprefix("openai.")
    return next((family for family in families if re.match(family.pattern, name)), UNKNOWN)


@dataclass(frozen=True, slots=True)
class Traits:
    """How one vendor speaks the Responses API. The defaults are OpenAI's own ways."""

    known_as: str = "openai"
    """The provider under which `agent.models` knows these models."""
    families: tuple[Family, ...] = FAMILIES
    key_header: str = "authorization"
    """The header that carries the key; `authorization` says `Bearer` before it."""
    api_version: str | None = None
    """Sent as the query's `api-version`."""
    seals_reasoning: bool = True
    """Hands out its reasoning in sealed form, so that nothing needs to be stored at the vendor."""
    cache_settings: bool = True
    """Takes a cache key and settings for how long prompts are kept."""
    metadata: bool = True
    least_output: int = 16
    """The smallest limit for output that it accepts."""
    counts_tokens: bool = True
    capabilities: ProviderCapabilities = field(
        default_factory=lambda: ProviderCapabilities.trusted(
            streaming=True,
            tools=True,
            structured_output=True,
            json_mode=True,
            vision=True,
            system_messages=True,
            native_schema_output=True,
            thinking=True,
            documents=True,
            token_counting=True,
        )
    )


OPENAI = Traits()
