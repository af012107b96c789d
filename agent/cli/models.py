"""`agent models`: what is known about models, and what they cost."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from agent.models import facts, list_models
from agent.models.prices import price
from agent.providers import list_providers
from agent.types import Usage

from . import error_messages, options, tables, terminal
from .exit_codes import FAILED, Problem

if TYPE_CHECKING:
    from agent.models import ModelFacts

_CAN = {"tools": "tools", "vision": "vision", "schema": "native_schema", "thinking": "thinking",
        "documents": "documents", "audio": "audio"}  # fmt: skip
"""What options call abilities → what facts call them."""


class Known(NamedTuple):
    """A model as it is listed. Prices are dollars per million tokens."""

    facts: ModelFacts
    input: float | None
    output: float | None

    @property
    def name(self) -> str:
        return f"{self.facts.provider}:{self.facts.model}"


def register(app: typer.Typer) -> None:
    app.command("models")(models)


def models(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="Part of a name, or a pattern such as '*:gpt-5*'.", show_default=False),
    ] = None,
    provider: Annotated[
        str | None, typer.Option("--provider", "-p", metavar="NAME", help="Of one provider.", show_default=False)
    ] = None,
    tools: Annotated[bool, typer.Option("--tools", help="That call tools.")] = False,
    vision: Annotated[bool, typer.Option("--vision", help="That see images.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Whose vendor enforces output schemas.")] = False,
    thinking: Annotated[bool, typer.Option("--thinking", help="That think.")] = False,
    documents: Annotated[bool, typer.Option("--documents", help="That read PDFs.")] = False,
    audio: Annotated[bool, typer.Option("--audio", help="That hear.")] = False,
    context: Annotated[
        int | None, typer.Option("--context", metavar="TOKENS", help="With at least this window.", show_default=False)
    ] = None,
    max_price: Annotated[
        float | None,
        typer.Option(
            "--max-price",
            metavar="DOLLARS",
            help="That cost at most this for a million tokens of output; only those with a known price.",
            show_default=False,
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List models with their windows, abilities and prices.

    What is not known is left empty. Prices are US dollars for a million tokens.
    """
    wanted = [name for name, on in {"tools": tools, "vision": vision, "schema": schema, "thinking": thinking,
                                    "documents": documents, "audio": audio}.items() if on]  # fmt: skip
    found = [
        one
        for one in _known(provider, pattern)
        if all(getattr(one.facts, _CAN[name]) for name in wanted)
        and (context is None or (one.facts.context_window or 0) >= context)
        and (max_price is None or (one.output is not None and one.output <= max_price))
    ]
    if as_json:
        terminal.write(terminal.as_json([_plain(one) for one in found]) + "\n")
    elif found:
        terminal.write("\n".join(_table(found)) + "\n")
    if not found:
        terminal.note("No model that is known here is like that. Others can be asked all the same.")
        raise typer.Exit(FAILED)


def _known(provider: str | None, pattern: str | None) -> list[Known]:
    providers = list_providers()
    if provider is not None and provider not in providers:
        raise Problem(f"There is no provider named {provider!r}.", fix=error_messages.known_provider_fix(provider))
    if provider is None:
        names = [name for name in list_models() if name.partition(":")[0] in providers]
    else:
        names = [f"{provider}:{model}" for model in list_models(provider)]
    return [_priced(facts(*name.split(":", 1))) for name in names if _fits(name, pattern)]


def _fits(name: str, pattern: str | None) -> bool:
    if pattern is None:
        return True
    sought = pattern.lower()
    return fnmatchcase(name.lower(), sought) if any(mark in sought for mark in "*?[") else sought in name.lower()


def _priced(facts: ModelFacts) -> Known:
    def dollars(usage: Usage) -> float | None:
        cost = price(usage, provider=facts.provider, models=(facts.model,))
        return None if cost is None else round(cost.dollars * 1000, 6)

    return Known(facts, dollars(Usage(prompt_tokens=1000)), dollars(Usage(completion_tokens=1000)))


def _plain(one: Known) -> dict[str, Any]:
    prices = None if one.input is None else {"input": one.input, "output": one.output}
    return {**one.facts.model_dump(mode="json", exclude_none=True), "prices": prices}


def _table(found: list[Known]) -> list[str]:
    """As many columns as the terminal has room for."""
    columns: dict[str, list[str]] = {
        "model": [one.name for one in found],
        "context": [_tokens(one.facts.context_window) for one in found],
        "in $/M": [_dollars(one.input) for one in found],
        "out $/M": [_dollars(one.output) for one in found],
        "can": [" ".join(name for name, fact in _CAN.items() if getattr(one.facts, fact)) for one in found],
        "answer": [_tokens(one.facts.max_output) for one in found],
        "retires": ["" if one.facts.retires is None else one.facts.retires.isoformat() for one in found],
    }
    return tables.table(columns, tables.room(), right={"context", "in $/M", "out $/M", "answer"})


def _tokens(count: int | None) -> str:
    if count is None:
        return ""
    if count >= 1_000_000:
        return f"{count / 1_000_000:.3g}M"
    return f"{count / 1000:.4g}k" if count >= 1000 else str(count)


def _dollars(amount: float | None) -> str:
    if not amount:
        return "" if amount is None else "0"
    return f"{amount:.2f}" if amount >= 0.1 else f"{amount:.4f}".rstrip("0")
