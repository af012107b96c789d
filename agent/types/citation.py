"""Where a statement comes from: one shape for what vendors call citations, annotations and grounding."""

from __future__ import annotations

from ._base import JsonObject, Value


class Citation(Value, frozen=True):
    """A source of a piece of text. What a vendor does not say is None."""

    url: str | None = None
    title: str | None = None
    quote: str | None = None
    """The words of the source."""
    start: int | None = None
    end: int | None = None
    """Which characters of the text rest on it."""
    provider_data: JsonObject | None = None
    """The vendor's own form, kept verbatim."""
