"""`agent local`: the model in this process. What it does is in `agent.local.installer`, which needs no extra."""

from __future__ import annotations

from typing import Annotated

import typer

from agent.local import installer


def register(app: typer.Typer) -> None:
    """Add the command with its subcommands."""
    local = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="The model that runs in this process.")
    local.command("install")(install)
    local.command("status")(status)
    local.command("path")(path)
    app.add_typer(local, name="local")


def install(
    again: Annotated[bool, typer.Option("--again", help="Fetch them even if they are there.")] = False,
) -> None:
    """Fetch the engine and the weights of SmolLM2, and check them."""
    _run("install", *(["--again"] if again else []))


def status(as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False) -> None:
    """Say what is installed, and what is wrong. Ends with 3 if the model cannot be asked."""
    _run("status", *(["--json"] if as_json else []))


def path() -> None:
    """Print where the weights are."""
    _run("path")


def _run(*arguments: str) -> None:
    raise typer.Exit(installer.run(list(arguments)))
