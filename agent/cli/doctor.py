"""`agent doctor` and `agent local`: inspect the setup without printing keys; install a model."""

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
from agent.local import installer
from agent.providers import list_providers, load_provider
from agent.types import AgentConfig, AgentRequest

from . import options, terminal
from .errors import CommandError, remove_library_advice

if TYPE_CHECKING:
    from agent.engine.wire import WireRequest

_DISTRIBUTION = "agent-llm-router"
_DEVELOPMENT_EXTRAS = ("dev", "all")
_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+)(?:\[(?P<inner>[\w-]+)\])?[^;]*; extra == ['"](?P<extra>[\w-]+)['"]$""")
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")

KeyStatus = Literal["found", "missing", "not needed", "not set up"]


@dataclass(frozen=True)
class ProviderStatus:
    """The configuration of one provider."""

    provider: str
    key: KeyStatus
    address: str = ""
    advice: str = ""
    reached: bool | None = None

    @property
    def is_configured(self) -> bool:
        return self.key in ("found", "not needed")


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)
    local = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Manage the model that runs in this process.")
    local.command("install")(install_local)
    local.command("status")(show_local_status)
    local.command("path")(show_local_path)
    app.add_typer(local, name="local")


def install_local(
    again: Annotated[bool, typer.Option("--again", help="Download again, even if the files exist.")] = False,
) -> None:
    """Download and verify the engine and the weights of SmolLM2."""
    _run_installer("install", *(["--again"] if again else []))


def show_local_status(as_json: options.JsonOption = False) -> None:
    """Show whether the model is installed. Exits with 3 if it is not usable."""
    _run_installer("status", *(["--json"] if as_json else []))


def show_local_path() -> None:
    """Print the path of the weights."""
    _run_installer("path")


def _run_installer(*arguments: str) -> None:
    raise typer.Exit(installer.run(list(arguments)))


def doctor(
    reach: Annotated[
        bool, typer.Option("--reach", help="Connect to the address of each configured provider. Nothing is sent.")
    ] = False,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Time limit for --reach.")] = 3.0,
    as_json: options.JsonOption = False,
) -> None:
    """Show versions, configured providers and installed extras.

    Keys are detected and never printed.
    """
    providers = inspect_providers()
    if reach:
        providers = _test_connections(providers, timeout)
    if as_json:
        terminal.write_json(_to_dict(providers))
        return
    status = installer.status()
    embedded = "ready" if status.ready else f"not ready. {status.problem} {status.fix or ''}"
    terminal.write_line("Installation", "bold")
    _print_pairs(
        [
            ("agent", __version__),
            ("python", f"{platform.python_version()} ({sys.platform})"),
            ("default model", _default_model()),
            ("embedded model", embedded),
            ("sessions", str(options.data_folder())),
        ]
    )
    terminal.write_line("\nConfigured providers", "bold")
    configured = _format_providers([item for item in providers if item.is_configured], reach)
    terminal.write_output("\n".join(f"  {line}" for line in configured) + "\n")
    terminal.write_line("\nProviders without a key", "bold")
    _print_pairs([(item.provider, item.advice) for item in providers if not item.is_configured])
    terminal.write_line("\nExtras", "bold")
    _print_pairs([(name, _describe_extra(name, packages)) for name, packages in list_extras().items()])


def inspect_providers() -> list[ProviderStatus]:
    return [_inspect_provider(name) for name in list_providers() if name not in ("scripted", "local")]


def _inspect_provider(name: str) -> ProviderStatus:
    try:
        codec = load_provider(name)(AgentConfig(provider=name, model="m"))
        wire = codec.encode(AgentRequest(input="?", model="m"), stream=False)
    except AuthenticationError as error:
        return ProviderStatus(name, "missing", advice=_advise(error.fix or error.message))
    except AgentError as error:
        return ProviderStatus(name, "not set up", advice=_advise(str(error)))
    except Exception as error:  # an error in a plugin must not hide the other providers
        return ProviderStatus(name, "not set up", advice=f"{type(error).__name__}: {error}")
    return ProviderStatus(name, "found" if _has_key(wire) else "not needed", _host(wire.url))


def _advise(message: str) -> str:
    """Name the variables to set; if the message names none, return the message."""
    variables = list(dict.fromkeys(_VARIABLE.findall(message)))
    return f"set {' or '.join(variables)}" if variables else remove_library_advice(message)


def _has_key(wire: WireRequest) -> bool:
    names = [name.lower() for name, _ in wire.headers]
    return any(name == b"authorization" or name.endswith(b"-key") for name in names)


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""


def _test_connections(providers: Sequence[ProviderStatus], timeout: float) -> list[ProviderStatus]:
    def test(item: ProviderStatus) -> ProviderStatus:
        if not item.is_configured or not item.address:
            return item
        return replace(item, reached=_can_connect(item.address, timeout))

    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(test, providers))


def _can_connect(address: str, timeout: float) -> bool:
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=timeout):
            return True
    except OSError:
        return False


def _format_providers(providers: Sequence[ProviderStatus], reach: bool) -> list[str]:
    columns: dict[str, list[str]] = {
        "provider": [item.provider for item in providers],
        "key": [item.key for item in providers],
        "address": [item.address for item in providers],
    }
    if reach:
        labels = {True: "reached", False: "not reached", None: ""}
        columns["connection"] = [labels[item.reached] for item in providers]
    return terminal.format_table(columns)


def list_extras() -> dict[str, dict[str, str | None]]:
    """Map each extra to its packages and their installed versions; None for a missing package."""
    extras: dict[str, dict[str, str | None]] = {}
    for extra, name, inner in _iter_requirements(_DISTRIBUTION):
        if extra in _DEVELOPMENT_EXTRAS:
            continue
        packages = extras.setdefault(extra, {})
        packages[name] = _find_version(name)
        if packages[name] is not None and inner:  # the package itself is required with an extra
            packages |= {more: _find_version(more) for outer, more, _ in _iter_requirements(name) if outer == inner}
    return extras


def _iter_requirements(distribution: str) -> Iterator[tuple[str, str, str | None]]:
    """Yield the extra, the package, and the extra of that package."""
    for requirement in metadata.requires(distribution) or ():
        if match := _REQUIREMENT.match(requirement):
            yield match["extra"], match["name"], match["inner"]


def _find_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _describe_extra(extra: str, packages: Mapping[str, str | None]) -> str:
    installed = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    missing = ", ".join(name for name, version in packages.items() if not version)
    advice = f'missing {missing}: pip install "{_DISTRIBUTION}[{extra}]"' if missing else ""
    return "; ".join(part for part in (installed, advice) if part)


def _print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    for line in terminal.format_pairs(pairs, terminal.output_width(), "  "):
        terminal.write_line(line)


def _default_model() -> str:
    try:
        return options.check_model_name(options.default_model())
    except CommandError as error:
        # An invalid AGENT_MODEL is not printed: it may be a key in the wrong variable.
        return f"{'AGENT_MODEL is not a model name' if os.environ.get('AGENT_MODEL') else 'none'}. {error.fix}"


def _to_dict(providers: Sequence[ProviderStatus]) -> dict[str, object]:
    return {
        "agent": __version__,
        "python": platform.python_version(),
        "platform": sys.platform,
        "default_model": _default_model(),
        "embedded_model": options.is_embedded_installed(),
        "sessions": str(options.data_folder()),
        "providers": [
            {"provider": item.provider, "key": item.key, "address": item.address, "reached": item.reached}
            for item in providers
        ],
        "extras": list_extras(),
    }
