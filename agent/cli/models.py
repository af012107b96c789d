"""`agent models`: list known models, their capabilities and prices."""

from __future__ import annotations

from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from agent.models import facts, list_models
from agent.models.prices import price
from agent.providers import list_providers, suggest_provider
from agent.types import Usage

from . import options, terminal
from .errors import LIST_PROVIDERS, CommandError, ExitCode

if TYPE_CHECKING:
    from agent.models import ModelFacts

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


def register(app: typer.Typer) -> None:
    app.command("models")(models)


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
