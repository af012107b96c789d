"""`agent graph`: a saved conversation as a page in the browser, as text, or in Mermaid's language."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from agent.graph import DAG

from . import targets, terminal
from .exit_codes import Problem


def register(app: typer.Typer) -> None:
    app.command("graph")(graph)


def graph(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A graph that DAG.save() or `agent chat` wrote.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="PAGE",
            help="Where to write the page; by default a temporary file.",
            show_default=False,
        ),
    ] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print Mermaid's language instead.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Print it as text instead.")] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Write the page, and open no browser.")] = False,
) -> None:
    """Show a conversation graph in the browser."""
    if mermaid and text:
        raise Problem("--mermaid and --text are both given.", fix="Pass one of them.")
    if (mermaid or text) and (out is not None or no_open):
        raise Problem("--out and --no-open are for pages.", fix="Leave out --mermaid and --text.")

    path = Path(file).expanduser()
    try:
        dag = DAG.load(path)
    except OSError as error:
        raise Problem(f"{file} cannot be read: {error.strerror or error}.", fix="Check the path.") from None
    if not len(dag):
        raise Problem(f"{file} holds no conversation.", fix="Write one with: agent sessions graph ID FILE.json")
    if mermaid or text:
        terminal.say(dag.mermaid() if mermaid else str(dag))
        return
    page = targets.temporary_page(path.stem) if out is None else out
    dag.save_html(page, title=path.stem)
    terminal.say(str(page))
    if not no_open:
        _open(page)


def _open(page: Path) -> None:
    if not webbrowser.open(page.resolve().as_uri()):
        terminal.note("There is no browser to open it with. Open the page yourself.")
