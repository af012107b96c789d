"""`agent explain`: who would be asked, in what order, and why. Nobody is."""

from __future__ import annotations

import typer

from . import attachments, error_messages, exit_codes, options, references, targets, terminal


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)


def explain(
    words: options.Words = None,
    models: options.Models = None,
    strategy: options.Strategy = None,
    system: options.System = None,
    attach: options.Attachments = None,
    tool: options.Tools = None,
    schema: options.Schema = None,
    max_tokens: options.MaxTokens = None,
    as_json: options.AsJson = False,
) -> None:
    """Show how a route would take a request; nobody is asked.

    Ends with exit code 1 if no model could take it.
    """
    names = models or [targets.default_model()]
    router = targets.router([targets.agent(name) for name in names], strategy)
    request = targets.request(
        attachments.request(words, attach),
        system=system,
        tools=references.tools(tool) if tool else None,
        output_schema=None if schema is None else references.schema(schema),
        max_tokens=max_tokens,
    )
    explanation = router.explain(request)
    if as_json:
        terminal.write(terminal.as_json(explanation.model_dump(mode="json")) + "\n")
    else:
        terminal.say(error_messages.without_library_advice(str(explanation)))
    if not explanation.order:
        raise typer.Exit(exit_codes.FAILED)
