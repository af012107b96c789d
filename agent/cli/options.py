"""Options that several commands share: which models, how they are asked, and what the shell completes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeAlias

import typer

from agent.models import list_models
from agent.providers import list_providers

STRATEGIES = ("fallback", "round_robin", "fastest", "cheapest", "capability", "least_busy", "sticky")
THINKING = ("off", "minimal", "low", "medium", "high", "xhigh")


def complete_model(incomplete: str) -> Iterator[str]:
    """Providers, and behind a colon the models that are known of one."""
    provider, colon, _ = incomplete.partition(":")
    if not colon:
        begun = [name for name in list_providers() if name.startswith(incomplete)]
        if len(begun) != 1 or not list_models(begun[0]):
            yield from (f"{name}:" for name in begun)
            return
        provider = begun[0]  # a provider alone would be ended by a space, as if it were a model
    yield from (name for model in list_models(provider) if (name := f"{provider}:{model}").startswith(incomplete))


def complete_strategy(incomplete: str) -> Iterator[str]:
    yield from (name for name in STRATEGIES if name.startswith(incomplete))


def complete_thinking(incomplete: str) -> Iterator[str]:
    yield from (name for name in THINKING if name.startswith(incomplete))


Models: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PROVIDER:MODEL",
        help="The model to ask. Several are a route: the next is asked when one fails. "
        "By default AGENT_MODEL, or the embedded model if it is installed.",
        autocompletion=complete_model,
        show_default=False,
    ),
]
Strategy: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help=f"How a route orders its models: {', '.join(STRATEGIES)}.",
        autocompletion=complete_strategy,
        show_default=False,
    ),
]
BaseUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--base-url", metavar="URL", help="Where the model is served, if not at its usual place.", show_default=False
    ),
]
System: TypeAlias = Annotated[
    str | None, typer.Option("--system", "-s", metavar="TEXT", help="What the model is told first.", show_default=False)
]
Attachments: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--attach",
        "-a",
        metavar="FILE",
        help="A text, image, PDF or sound to send along; - is standard input, and images and PDFs may be addresses. "
        "May be repeated.",
        show_default=False,
    ),
]
Tools: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--tool",
        metavar="MODULE:FUNCTION",
        help="A Python function the model may call, also as file.py:function. May be repeated.",
        show_default=False,
    ),
]
Schema: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="SCHEMA",
        help="Answer with JSON that fits: a file, inline JSON, or module:Model.",
        show_default=False,
    ),
]
MaxTokens: TypeAlias = Annotated[
    int | None, typer.Option("--max-tokens", metavar="N", help="The longest answer.", show_default=False)
]
Temperature: TypeAlias = Annotated[
    float | None, typer.Option("--temperature", metavar="0..2", help="How random the answer is.", show_default=False)
]
Thinking: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--thinking",
        metavar="LEVEL",
        help=f"How hard to think: {', '.join(THINKING)}.",
        autocompletion=complete_thinking,
        show_default=False,
    ),
]
Seed: TypeAlias = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", help="The same answer again, where models can do that.", show_default=False),
]
Timeout: TypeAlias = Annotated[
    float | None, typer.Option("--timeout", metavar="SECONDS", help="Of one attempt.", show_default=False)
]
Deadline: TypeAlias = Annotated[
    float | None,
    typer.Option("--deadline", metavar="SECONDS", help="Of the whole call, retries included.", show_default=False),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Words: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROMPT", help="What to ask. Text piped in is added to it; - is only that.", show_default=False
    ),
]
