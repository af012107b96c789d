"""Judging requests as they arrive: which API's rules apply, and what that API has issued so far."""

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
from .base import Known, Rules, Violation

_MODEL_IN_PATH = re.compile(r"/models/([^/]+):\w+$|/deployments/([^/]+)/")


@cache
def rules_of(api: str) -> Rules | None:
    """The rules that a wire format declares, if it does."""
    declared = wire_format(api)
    if declared is None or declared.rules is None:
        return None
    module, _, name = declared.rules.partition(":")
    rules: Rules = getattr(import_module(module), name)()
    return rules


def rules_at(url: str) -> tuple[Rules, bool] | None:
    """The rules of the API that a request was sent to, by its path, and whether it asks to count tokens."""
    server = find_server_dialect(url)
    rules = None if server is None else rules_of(server.api)
    return None if server is None or rules is None else (rules, server.match_endpoint(url) == "count")


def model_at(url: str) -> str:
    """The model that a path names."""
    found = _MODEL_IN_PATH.search(urlsplit(url).path)
    return unquote(found[1] or found[2]) if found else ""


def broken_rules(
    url: str, body: Mapping[str, Any], *, signatures: Container[str] = (), keys: Container[str] = ()
) -> Iterator[Violation]:
    """Every rule that a request breaks at the API whose path the URL ends with.

    Args:
        url: Where the request goes; the path is enough: `/v1/messages`.
        body: What is sent, as parsed JSON.
        signatures: Signatures, sealed reasoning and ids of stored items that count as the vendor's own.
        keys: Keys beyond the wire format that are fine, such as those of a compatible vendor.

    Raises:
        ValueError: None of the four APIs is there.
    """
    found = rules_at(url)
    if found is None:
        raise ValueError(f"none of the APIs is at {url}")
    rules, counting = found
    return rules.broken(body, Known(signatures, keys), model=model_at(url), counting=counting)


class Judge:
    """Judges requests, and remembers what each API has issued, so that its own signatures are known again."""

    def __init__(self, signatures: Container[str] = (), keys: Container[str] = ()) -> None:
        self._known: defaultdict[str, Known] = defaultdict(lambda: Known(signatures, keys))

    def verdict(self, url: str, body: bytes) -> tuple[Violation, dict[str, Any]] | None:
        """The first rule that a request breaks, and what the vendor answers; None if it may pass."""
        found = rules_at(url)
        if found is None:
            return None
        rules, counting = found
        try:
            read = json.loads(body)
        except ValueError:
            read = None
        if isinstance(read, dict):
            broken = rules.broken(read, self._known[rules.name], model=model_at(url), counting=counting)
            violation = next(broken, None)
        else:
            violation = rules.unreadable()
        return None if violation is None else (violation, rules.complaint(violation))

    def heard(self, url: str, pieces: Iterable[bytes]) -> None:
        """Remember what an answer issued, be it whole or a stream of events."""
        if (found := rules_at(url)) is not None:
            rules, _ = found
            self._known[rules.name].learn(rules.issued(_json_in(b"".join(pieces))))


def _json_in(data: bytes) -> Iterator[Any]:
    lines = [line.removeprefix(b"data:") for line in data.splitlines() if line.startswith(b"data:")]
    for text in lines or [data]:
        try:
            yield json.loads(text)
        except ValueError:
            continue  # the end of a stream, or bytes that a test breaks on purpose
