"""Keys and addresses, checked before anything is sent. No message here ever holds a key."""

from __future__ import annotations

import ipaddress
import os
from typing import NamedTuple
from urllib.parse import urlsplit

from .. import errors
from ..types import AgentConfig, Secret
from ..validation import validated


class Address(NamedTuple):
    """Where requests go and with what key."""

    base_url: str
    key: Secret | None


NOWHERE = Address("", None)
"""Of a codec whose requests a client completes, with an address and a key of its own."""


def resolve(
    config: AgentConfig,
    *,
    default_base_url: str | None,
    key_variables: tuple[str, ...],
    base_url_variables: tuple[str, ...] = (),
    key_required: bool = True,
) -> Address:
    """The configuration's key and address, else the environment's, else the vendor's usual address."""
    if config.base_url is None and (found := _first_set(base_url_variables)) is not None:
        config = validated(lambda: config.with_overrides(base_url=found))
    base_url = config.base_url or default_base_url
    if base_url is None:
        raise errors.ConfigurationError(
            f"The provider {config.provider!r} has no address of its own.",
            field="base_url",
            fix="Pass base_url=, such as http://localhost:8000/v1.",
        )
    base_url = base_url.rstrip("/")
    key = config.api_key if config.api_key is not None else _key_from(config, key_variables)
    local = is_loopback(base_url)
    if key is None and key_required and not local:
        names = " or ".join(key_variables) or "no variable"
        raise errors.AuthenticationError(
            f"There is no key for {config.provider!r}: set the environment variable {names}, or pass api_key=.",
            provider=config.provider,
        )
    if key is not None and urlsplit(base_url).scheme != "https" and not local and not config.allow_insecure:
        raise errors.ConfigurationError(
            "The key would travel unencrypted: base_url is plain http and not on this machine.",
            field="base_url",
            fix="Use https, or pass allow_insecure=True if the network is yours.",
        )
    return Address(base_url, key)


def _key_from(config: AgentConfig, variables: tuple[str, ...]) -> Secret | None:
    text = _first_set(variables)
    # Validated as if it had been passed in: a key with a line break must not reach a header.
    return None if text is None else validated(lambda: config.with_overrides(api_key=text.strip())).api_key


def _first_set(variables: tuple[str, ...]) -> str | None:
    return next((value for name in variables if (value := os.environ.get(name, "").strip())), None)


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
