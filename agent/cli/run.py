"""`agent run`: one question, one answer."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

import typer

from . import attachments, options, output, references, targets, terminal
from .exit_codes import Problem


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    words: options.Words = None,
    models: options.Models = None,
    strategy: options.Strategy = None,
    base_url: options.BaseUrl = None,
    system: options.System = None,
    attach: options.Attachments = None,
    tool: options.Tools = None,
    allow_exec: Annotated[bool, typer.Option("--allow-exec", help="Let tools run that execute code.")] = False,
    schema: options.Schema = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session", metavar="ID", help="Go on with a conversation, or begin one that is kept.", show_default=False
        ),
    ] = None,
    as_json: options.AsJson = False,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print the answer when all of it is there.")] = False,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    thinking: options.Thinking = None,
    seed: options.Seed = None,
    timeout: options.Timeout = None,
    deadline: options.Deadline = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say who answered, how long it took and what it cost.")
    ] = False,
) -> None:
    """Ask a model, and print its answer while it arrives.

    The answer goes to standard output, everything else to standard error.
    """
    if allow_exec and not tool:
        raise Problem("--allow-exec is for tools.", fix="Name one with --tool.")
    caller: Any = targets.caller(models or (), strategy, base_url=base_url, timeout=timeout)
    request = targets.request(
        attachments.request(words, attach),
        system=system,
        tools=references.tools(tool) if tool else None,
        output_schema=None if schema is None else references.schema(schema),
        max_tokens=max_tokens,
        temperature=temperature,
        thinking=thinking,
        seed=seed,
        deadline=deadline,
    )
    silent = as_json or schema is not None
    with ExitStack() as opened:
        if session is not None:
            caller = caller.session(session, store=opened.enter_context(targets.session_store()))
        if request.tools:
            begin = partial(caller.run_stream, request, loop=targets.loop(allow_exec=allow_exec))
            response = output.run_stream(begin, quiet=silent or no_stream)
        elif silent or no_stream:
            response = caller.complete(request)
        else:
            response = output.stream(partial(caller.stream, request))
    if as_json:
        terminal.write(terminal.as_json(response.model_dump(mode="json", exclude_none=True)) + "\n")
    elif schema is not None:
        terminal.write(terminal.as_json(output.value_of(response)) + "\n")
    elif no_stream:
        output.show(response)
    raise typer.Exit(output.remarks(response, verbose=verbose))
