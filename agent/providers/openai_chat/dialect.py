"""How vendors differ in speaking Chat Completions, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...types import ProviderCapabilities

API = "openai-chat"

OPAQUE_KEYS = ("reasoning_details", "extra_content", "thought_signature")
"""Parts of a message that mean something only to the vendor that made them, and must be sent back as they came."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one vendor speaks Chat Completions."""

    name: str = API
    base_url: str | None = None
    key_variables: tuple[str, ...] = ()
    base_url_variables: tuple[str, ...] = ()
    key_required: bool = True
    max_tokens_key: str = "max_tokens"
    done_sentinel: bool = True
    """Streams end with [DONE]. Without it, a finish reason, usage and the end of the bytes must do."""
    stream_usage: bool = True
    """Takes `stream_options` to report usage at the end of a stream."""
    replayed: frozenset[str] = frozenset(OPAQUE_KEYS)
    """Opaque keys that are sent back to the vendor."""
    capabilities: ProviderCapabilities = field(
        default_factory=lambda: ProviderCapabilities(
            streaming=True,
            tools=True,
            structured_output=True,
            json_mode=True,
            vision=True,
            system_messages=True,
            native_schema_output=True,
        )
    )


OPENAI = Dialect(
    base_url="https://api.openai.com/v1",
    key_variables=("OPENAI_API_KEY",),
    base_url_variables=("OPENAI_BASE_URL",),
    max_tokens_key="max_completion_tokens",
)
