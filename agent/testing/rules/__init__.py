"""Request validation: rules of the four wire formats, and errors with status 400.

The messages are those of recorded errors.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

from ...providers import find_server_dialect
from ...wire_formats import wire_format
from .anthropic import AnthropicRules
from .base import IssuedValue, Rules, VendorState, Violation
from .gemini import GeminiRules
from .openai_chat import ChatRules
from .openai_responses import ResponsesRules

__all__ = [
    "AnthropicRules",
    "ChatRules",
    "GeminiRules",
    "IssuedValue",
    "RequestValidator",
    "ResponsesRules",
    "Rules",
    "VendorState",
    "Violation",
    "find_violations",
]

_MODEL_IN_PATH = re.compile(r"/models/([^/]+):\w+$|/deployments/([^/]+)/")


@cache
def _load_rules(api: str) -> Rules | None:
    declared = wire_format(api)
    if declared is None or declared.rules is None:
        return None
    module, _, name = declared.rules.partition(":")
    rules: Rules = getattr(import_module(module), name)()
    return rules


def _rules_for(url: str) -> tuple[Rules, bool] | None:
    """Return the rules of the API at a URL, and whether it is the endpoint that counts tokens."""
    server = find_server_dialect(url)
    rules = None if server is None else _load_rules(server.api)
    return None if server is None or rules is None else (rules, server.match_endpoint(url) == "count")


def _model_in(url: str) -> str:
    match = _MODEL_IN_PATH.search(urlsplit(url).path)
    return unquote(match[1] or match[2]) if match else ""


def find_violations(
    url: str, body: Mapping[str, Any], *, signatures: Container[str] = (), extra_keys: Container[str] = ()
) -> Iterator[Violation]:
    """Yield the violations of a request body.

    Args:
        url: URL or path of the request, such as `/v1/messages`. It determines the API.
        body: The request body, as parsed JSON.
        signatures: Signatures, encrypted reasoning and ids of stored items that count as the vendor's.
        extra_keys: Keys that are valid in addition to those of the wire format, such as a compatible vendor's.

    Raises:
        ValueError: The URL belongs to none of the four APIs.
    """
    found = _rules_for(url)
    if found is None:
        raise ValueError(f"no wire format has the path {url}")
    rules, count_tokens = found
    return rules.check(body, VendorState(signatures, extra_keys), model=_model_in(url), count_tokens=count_tokens)


class RequestValidator:
    """Validates requests, and keeps the state of each vendor, so that its signatures stay valid."""

    def __init__(self, signatures: Container[str] = (), extra_keys: Container[str] = ()) -> None:
        self._states: defaultdict[str, VendorState] = defaultdict(lambda: VendorState(signatures, extra_keys))

    def validate(self, url: str, body: bytes) -> tuple[Violation, dict[str, Any]] | None:
        """Return the first violation and the vendor's error body, or None for a valid request."""
        found = _rules_for(url)
        if found is None:
            return None
        rules, count_tokens = found
        try:
            parsed = json.loads(body)
        except ValueError:
            parsed = None
        violation: Violation | None = rules.invalid_json()
        if isinstance(parsed, dict):
            state = self._states[rules.name]
            violation = next(rules.check(parsed, state, model=_model_in(url), count_tokens=count_tokens), None)
        return None if violation is None else (violation, rules.encode_error(violation))

    def record_response(self, url: str, pieces: Iterable[bytes]) -> None:
        """Record the opaque values of a response or stream."""
        if (found := _rules_for(url)) is not None:
            rules, _ = found
            self._states[rules.name].record(rules.find_issued(_parse_response(b"".join(pieces))))


def _parse_response(data: bytes) -> Iterator[Any]:
    """Yield the JSON values of a response or of server-sent events."""
    lines = [line.removeprefix(b"data:") for line in data.splitlines() if line.startswith(b"data:")]
    for text in lines or [data]:
        try:
            yield json.loads(text)
        except ValueError:
            continue  # the end of a stream, or malformed by intention
