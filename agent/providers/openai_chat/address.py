"""Where a vendor's Chat Completions are, from a configuration and the environment."""

from __future__ import annotations

import os
import re
from urllib.parse import quote, urlsplit

from ... import errors
from ...types import AgentConfig
from ...validation import validated
from ..credentials import Address, resolve
from .dialect import OPENAI, Dialect

_PATHS_AT_OPENAI = (
    (re.compile(r"(?:[a-z0-9-]+\.)?api\.openai\.com", re.I), "/v1"),
    (re.compile(r".*\.azure\.com", re.I), "/openai/v1"),
)
"""Hosts where OpenAI's models are at home, and where their APIs are there."""
_VARIABLE = re.compile(r"\{([A-Z_]+)\}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\S*")


def path_at_openai(base_url: str) -> str | None:
    """Where OpenAI's APIs are below an address that names only the host; None if the host is somebody else's."""
    host = urlsplit(base_url).hostname or ""
    return next((path for pattern, path in _PATHS_AT_OPENAI if pattern.fullmatch(host)), None)


def settled(config: AgentConfig) -> AgentConfig:
    """The configuration with the address told for OpenAI, if one is. Its host alone will do: portals show no more."""
    base_url = config.base_url or _told(OPENAI.base_url_variables)
    if base_url is None:
        return config
    config = _at(config, base_url)
    path = None if urlsplit(base_url).path.strip("/") else path_at_openai(base_url)
    return config if path is None else config.with_overrides(base_url=base_url.rstrip("/") + path)


def find_address(config: AgentConfig, dialect: Dialect) -> tuple[Address, str]:
    """Key and base address, and the URL of the endpoint, in which {model} may stand for the model's name."""
    base_url = config.base_url or _told(dialect.base_url_variables) or _filled(dialect, config.provider)
    if base_url is not None:
        config = _at(config, base_url.rstrip("/"))
    address = resolve(
        config,
        default_base_url=None,
        key_variables=dialect.key_variables,
        key_required=dialect.key_required,
    )
    return address, _endpoint(address.base_url, dialect)


def _told(variables: tuple[str, ...]) -> str | None:
    return next((value for name in variables if (value := os.environ.get(name, "").strip())), None)


def _at(config: AgentConfig, base_url: str) -> AgentConfig:
    """What the environment says is checked as if it had been passed in."""
    return validated(lambda: config.with_overrides(base_url=base_url))


def _filled(dialect: Dialect, provider: str) -> str | None:
    """The vendor's usual address, with the customer's part of it."""
    if dialect.base_url is None:
        return None
    missing = [name for name in _VARIABLE.findall(dialect.base_url) if not os.environ.get(name, "").strip()]
    if missing:
        example = _VARIABLE.sub("…", dialect.base_url) + dialect.resource_path
        raise errors.ConfigurationError(
            f"The address of {provider!r} is different for every customer, and is not known.",
            field="base_url",
            fix=f"Set the environment variable {missing[0]}, or pass base_url=, such as {example}",
        )

    def value(found: re.Match[str]) -> str:
        text = os.environ[found[1]].strip().rstrip("/")
        return text if found.start() == 0 else re.sub(r"^https?://", "", text)

    return _VARIABLE.sub(value, dialect.base_url)


def _endpoint(base_url: str, dialect: Dialect) -> str:
    if not urlsplit(base_url).path:
        version = os.environ.get(dialect.version_variable, "").strip() if dialect.version_variable else ""
        if _DATE.fullmatch(version):
            return base_url + dialect.dated_path.replace("{version}", quote(version, safe=""))
        base_url += dialect.resource_path
    return f"{base_url}/chat/completions"


def endpoint_of(template: str, model: str) -> str:
    return template.replace("{model}", quote(model, safe="")) if "{model}" in template else template
