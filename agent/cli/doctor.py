"""`agent doctor`, `agent models` and `agent local`: the setup, known models, and the embedded model."""

from __future__ import annotations

import platform
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import typer

from agent import __version__
from agent.errors import AgentError, AuthenticationError
from agent.local import installer
from agent.models import facts, list_models
from agent.models.prices import price
from agent.providers import list_providers, load_provider, suggest_provider
from agent.types import AgentConfig, AgentRequest, Usage

from . import options, terminal
from .errors import LIST_PROVIDERS, CommandError, ExitCode, remove_library_advice

if TYPE_CHECKING:
    from agent.models import ModelFacts

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
    app.command("models")(models)
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
    facts = {
        "agent": __version__,
        "python": platform.python_version(),
        "platform": sys.platform,
        "default_model": _default_model(),
        "sessions": str(options.data_folder()),
    }
    extras = list_extras()
    if as_json:
        fields = ("provider", "key", "address", "reached")
        rows = [{name: getattr(item, name) for name in fields} for item in providers]
        embedded = options.is_embedded_installed()
        terminal.write_json({**facts, "embedded_model": embedded, "providers": rows, "extras": extras})
        return
    status = installer.status()
    terminal.write_line("Installation", "bold")
    _print_pairs(
        [
            ("agent", facts["agent"]),
            ("python", f"{facts['python']} ({facts['platform']})"),
            ("default model", facts["default_model"]),
            ("embedded model", "ready" if status.ready else f"not ready. {status.problem} {status.fix or ''}"),
            ("sessions", facts["sessions"]),
        ]
    )
    terminal.write_line("\nConfigured providers", "bold")
    configured = _format_providers([item for item in providers if item.is_configured], reach)
    terminal.write_output("\n".join(f"  {line}" for line in configured) + "\n")
    terminal.write_line("\nProviders without a key", "bold")
    _print_pairs([(item.provider, item.advice) for item in providers if not item.is_configured])
    terminal.write_line("\nExtras", "bold")
    _print_pairs([(name, _describe_extra(name, packages)) for name, packages in extras.items()])


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
    headers = [header.lower() for header, _ in wire.headers]
    has_key = any(header == b"authorization" or header.endswith(b"-key") for header in headers)
    parts = urlsplit(wire.url)
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""
    return ProviderStatus(name, "found" if has_key else "not needed", address)


def _advise(message: str) -> str:
    """Name the variables to set; if the message names none, return the message."""
    variables = list(dict.fromkeys(_VARIABLE.findall(message)))
    return f"set {' or '.join(variables)}" if variables else remove_library_advice(message)


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
        name = options.default_model()
    except CommandError as error:
        return f"none. {error.fix}"
    provider, _, model = name.partition(":")
    # An invalid AGENT_MODEL is not printed: it may be a key in the wrong variable.
    return name if provider and model else "AGENT_MODEL is not a model name. Write provider:model; see: agent models"


# Models

_CAPABILITIES = {"tools": "tools", "vision": "vision", "schema": "native_schema", "thinking": "thinking",
                 "documents": "documents", "audio": "audio"}  # fmt: skip
"""Option names, and the fields of `ModelFacts`."""


class ListedModel(NamedTuple):
    """A model with its prices in dollars per million tokens."""

    facts: ModelFacts
    input: float | None
    output: float | None

    @property
    def name(self) -> str:
        return f"{self.facts.provider}:{self.facts.model}"

    def to_dict(self) -> dict[str, Any]:
        prices = None if self.input is None else {"input": self.input, "output": self.output}
        return {**self.facts.model_dump(mode="json", exclude_none=True), "prices": prices}


def models(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="Part of a name, or a pattern such as '*:gpt-5*'.", show_default=False),
    ] = None,
    provider: Annotated[
        str | None, options.option("--provider", "-p", metavar="NAME", help="Only this provider.")
    ] = None,
    tools: Annotated[bool, typer.Option("--tools", help="Only models with tool calls.")] = False,
    vision: Annotated[bool, typer.Option("--vision", help="Only models with image input.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Only models with native output schemas.")] = False,
    thinking: Annotated[bool, typer.Option("--thinking", help="Only models that think.")] = False,
    documents: Annotated[bool, typer.Option("--documents", help="Only models with PDF input.")] = False,
    audio: Annotated[bool, typer.Option("--audio", help="Only models with audio input.")] = False,
    context: Annotated[
        int | None, options.option("--context", metavar="TOKENS", help="The smallest context window.")
    ] = None,
    max_price: Annotated[
        float | None,
        options.option(
            "--max-price",
            metavar="DOLLARS",
            help="The highest price for a million output tokens; excludes models with unknown prices.",
        ),
    ] = None,
    retired: Annotated[bool, typer.Option("--retired", help="Include retired models.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """List models with context windows, capabilities and prices.

    Unknown values are empty. Prices are US dollars per million tokens.
    Columns that do not fit the terminal are left out; --json prints all.
    """
    today = datetime.now(UTC).date()
    required = [name for name, on in {"tools": tools, "vision": vision, "schema": schema, "thinking": thinking,
                                      "documents": documents, "audio": audio}.items() if on]  # fmt: skip
    selected = [
        model
        for model in _select_models(provider, pattern)
        if (retired or model.facts.retires is None or model.facts.retires > today)
        and all(getattr(model.facts, _CAPABILITIES[name]) for name in required)
        and (context is None or (model.facts.context_window or 0) >= context)
        and (max_price is None or (model.output is not None and model.output <= max_price))
    ]
    if as_json:
        terminal.write_json([model.to_dict() for model in selected])
    elif selected:
        terminal.write_output("\n".join(_format_models(selected)) + "\n")
    if not selected:
        terminal.write_note(
            "No known model matches; --retired includes retired ones. Models that are not listed can be used as well."
        )
        raise typer.Exit(ExitCode.FAILED)


def _select_models(provider: str | None, pattern: str | None) -> list[ListedModel]:
    providers = list_providers()
    if provider is not None and provider not in providers:
        raise CommandError(
            f"There is no provider named {provider!r}.", fix=suggest_provider(provider) or LIST_PROVIDERS
        )
    if provider is None:
        names = [name for name in list_models() if name.partition(":")[0] in providers]
    else:
        names = [f"{provider}:{model}" for model in list_models(provider)]
    return [_with_prices(facts(*name.split(":", 1))) for name in names if _matches(name, pattern)]


def _matches(name: str, pattern: str | None) -> bool:
    if pattern is None:
        return True
    name, pattern = name.lower(), pattern.lower()
    return fnmatchcase(name, pattern) if any(mark in pattern for mark in "*?[") else pattern in name


def _with_prices(facts: ModelFacts) -> ListedModel:
    def million_tokens(usage: Usage) -> float | None:
        cost = price(usage, provider=facts.provider, models=(facts.model,))
        return None if cost is None else round(cost.dollars * 1000, 6)

    return ListedModel(facts, million_tokens(Usage(prompt_tokens=1000)), million_tokens(Usage(completion_tokens=1000)))


def _format_models(models: list[ListedModel]) -> list[str]:
    columns: dict[str, list[str]] = {
        "model": [model.name for model in models],
        "context": [_format_tokens(model.facts.context_window) for model in models],
        "in $/M": [_format_price(model.input) for model in models],
        "out $/M": [_format_price(model.output) for model in models],
        "capabilities": [
            " ".join(name for name, field in _CAPABILITIES.items() if getattr(model.facts, field)) for model in models
        ],
        "max output": [_format_tokens(model.facts.max_output) for model in models],
        "retires": ["" if model.facts.retires is None else model.facts.retires.isoformat() for model in models],
    }
    right = {"context", "in $/M", "out $/M", "max output"}
    return terminal.format_table(columns, terminal.terminal_width(), right=right)


def _format_tokens(count: int | None) -> str:
    if count is None:
        return ""
    if count >= 1_000_000:
        return f"{count / 1_000_000:.3g}M"
    return f"{count / 1000:.4g}k" if count >= 1000 else str(count)


def _format_price(amount: float | None) -> str:
    if not amount:
        return "" if amount is None else "0"
    return f"{amount:.2f}" if amount >= 0.1 else f"{amount:.4f}".rstrip("0")
