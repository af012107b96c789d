"""The facts themselves, as values. Nothing here knows where they come from."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pydantic import Field

from ..types import ProviderCapabilities, Value

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


def narrowed(capabilities: ProviderCapabilities, model: ModelFacts) -> ProviderCapabilities:
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
