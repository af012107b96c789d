"""`agent doctor`: what there is on this machine to ask models with. No key, and no part of one, is ever shown."""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import typer

from agent import __version__
from agent.errors import AgentError, AuthenticationError
from agent.local import status
from agent.providers import list_providers, load_provider
from agent.types import AgentConfig, AgentRequest

from . import error_messages, options, tables, targets, terminal
from .exit_codes import Problem

if TYPE_CHECKING:
    from agent.engine.wire import WireRequest

_DISTRIBUTION = "agent-llm-router"
_NOT_FOR_USERS = ("dev", "all")
_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+)(?:\[(?P<inner>[\w-]+)\])?[^;]*; extra == ['"](?P<extra>[\w-]+)['"]$""")
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")

Key = Literal["found", "missing", "not needed", "not set up"]


@dataclass(frozen=True)
class Access:
    """How things stand with one provider."""

    provider: str
    key: Key
    address: str = ""
    advice: str = ""
    reached: bool | None = None


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    reach: Annotated[
        bool, typer.Option("--reach", help="Connect to the address of each provider with a key. Nothing is sent.")
    ] = False,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="For --reach.")] = 3.0,
    as_json: options.AsJson = False,
) -> None:
    """Say what is installed and which keys there are.

    Keys are looked for and never shown.
    """
    accesses = providers()
    if reach:
        accesses = _reached(accesses, timeout)
    if as_json:
        terminal.write(terminal.as_json(_plain(accesses)) + "\n")
        return

    terminal.say("This program", "bold")
    lines = [("agent", __version__), ("python", f"{platform.python_version()} ({sys.platform})")]
    lines += [("default model", _default()), ("embedded model", _embedded()), ("sessions", str(targets.home()))]
    _pairs(lines)
    terminal.say("\nProviders with a key, or without the need of one", "bold")
    ready = [one for one in accesses if one.key in ("found", "not needed")]
    terminal.write("\n".join(f"  {line}" for line in _provider_rows(ready, reach)) + "\n")
    terminal.say("\nProviders without a key", "bold")
    _pairs([(one.provider, one.advice) for one in accesses if one.key not in ("found", "not needed")])
    terminal.say("\nExtras", "bold")
    _pairs([(name, _extra_row(name, packages)) for name, packages in extras().items()])


def providers() -> list[Access]:
    """Every provider, and whether there is a key for it."""
    return [_access(name) for name in list_providers() if name not in ("scripted", "local")]


def extras() -> dict[str, dict[str, str | None]]:
    """Each extra, and the packages that it brings with the versions that are installed; None for one that is not."""
    found: dict[str, dict[str, str | None]] = {}
    for extra, name, inner in _required(_DISTRIBUTION):
        if extra in _NOT_FOR_USERS:
            continue
        packages = found.setdefault(extra, {})
        packages[name] = _version(name)
        if packages[name] is not None and inner:  # the package is there, but is its own extra?
            packages |= {more: _version(more) for outer, more, _ in _required(name) if outer == inner}
    return found


def _required(distribution: str) -> Iterator[tuple[str, str, str | None]]:
    """Of a distribution that is installed: extra, package, and the extra of that package."""
    for requirement in metadata.requires(distribution) or ():
        if named := _REQUIREMENT.match(requirement):
            yield named["extra"], named["name"], named["inner"]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _extra_row(extra: str, packages: Mapping[str, str | None]) -> str:
    there = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    missing = ", ".join(name for name, version in packages.items() if not version)
    advice = f'missing {missing}: pip install "{_DISTRIBUTION}[{extra}]"' if missing else ""
    return "; ".join(part for part in (there, advice) if part)


def _access(name: str) -> Access:
    try:
        codec = load_provider(name)(AgentConfig(provider=name, model="m"))
        wire = codec.encode(AgentRequest(input="?", model="m"), stream=False)
    except AuthenticationError as error:
        return Access(name, "missing", advice=_advice(error.message))
    except AgentError as error:
        return Access(name, "not set up", advice=_advice(str(error)))
    except Exception as error:  # a plugin may raise anything, and the others are still worth listing
        return Access(name, "not set up", advice=f"{type(error).__name__}: {error}")
    return Access(name, "found" if _has_key(wire) else "not needed", _host(wire.url))


def _advice(message: str) -> str:
    """Which variables to set; if the message names none, the message."""
    variables = list(dict.fromkeys(_VARIABLE.findall(message)))
    return f"set {' or '.join(variables)}" if variables else error_messages.without_library_advice(message)


def _has_key(wire: WireRequest) -> bool:
    """Whether a key would travel: only that it does is looked at."""
    names = [name.lower() for name, _ in wire.headers]
    return any(name == b"authorization" or name.endswith(b"-key") for name in names)


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""


def _reached(accesses: Sequence[Access], timeout: float) -> list[Access]:
    """The same, and whether a connection can be made, for those that could be asked."""

    def tried(one: Access) -> Access:
        if one.key not in ("found", "not needed") or not one.address:
            return one
        return replace(one, reached=_connects(one.address, timeout))

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(tried, accesses))


def _connects(address: str, timeout: float) -> bool:
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=timeout):
            return True
    except OSError:
        return False


def _provider_rows(accesses: Sequence[Access], reach: bool) -> list[str]:
    marks = {True: "reached", False: "not reached", None: ""}
    columns: dict[str, list[str]] = {
        "provider": [one.provider for one in accesses],
        "key": [one.key for one in accesses],
        "address": [one.address for one in accesses],
    }
    if reach:
        columns["connection"] = [marks[one.reached] for one in accesses]
    return tables.table(columns)


def _pairs(lines: Sequence[tuple[str, str]]) -> None:
    for line in tables.hanging(lines, tables.room(), "  "):
        terminal.say(line)


def _default() -> str:
    try:
        return targets.whole(targets.default_model())
    except Problem as problem:
        # Whatever stands in the variable instead of a model's name is not shown: it may be a key.
        return f"{'AGENT_MODEL names none' if os.environ.get('AGENT_MODEL') else 'none'}. {problem.fix}"


def _embedded() -> str:
    found = status()
    return "ready" if found.ready else f"not ready. {found.problem} {found.fix or ''}"


def _plain(accesses: Sequence[Access]) -> dict[str, object]:
    return {
        "agent": __version__,
        "python": platform.python_version(),
        "platform": sys.platform,
        "default_model": _default(),
        "embedded_model": targets.embedded_is_installed(),
        "sessions": str(targets.home()),
        "providers": [
            {"provider": one.provider, "key": one.key, "address": one.address, "reached": one.reached}
            for one in accesses
        ],
        "extras": extras(),
    }
