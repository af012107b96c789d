"""`agent check`: what would become of a request. Nothing is sent."""

from __future__ import annotations

from typing import Any

import typer

from . import attachments, error_messages, exit_codes, options, references, targets, terminal


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(
    words: options.Words = None,
    models: options.Models = None,
    base_url: options.BaseUrl = None,
    system: options.System = None,
    attach: options.Attachments = None,
    tool: options.Tools = None,
    schema: options.Schema = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    thinking: options.Thinking = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what would become of a request; nothing is sent.

    That is: what it would cost, whether it fits, and what would be lost. Several models are checked one by one. Ends
    with exit code 1 if one of them could not take the request.
    """
    request = targets.request(
        attachments.request(words, attach),
        system=system,
        tools=references.tools(tool) if tool else None,
        output_schema=None if schema is None else references.schema(schema),
        max_tokens=max_tokens,
        temperature=temperature,
        thinking=thinking,
    )
    reports: list[Any] = [
        targets.agent(name, base_url=base_url).check(request) for name in models or [targets.default_model()]
    ]
    if as_json:
        plain = [{"ok": report.ok, **report.model_dump(mode="json")} for report in reports]
        terminal.write(terminal.as_json(plain) + "\n")
    else:
        terminal.say(error_messages.without_library_advice("\n\n".join(str(report) for report in reports)))
    if not all(report.ok for report in reports):
        raise typer.Exit(exit_codes.FAILED)
