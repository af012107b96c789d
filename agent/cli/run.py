"""`agent run`, `agent check` and `agent explain`: send one request, or show what would happen to it."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

import typer
from pydantic_core import to_jsonable_python

from . import options, output, terminal
from .errors import CommandError, ExitCode, remove_library_advice
from .options import (
    AttachOption,
    BaseUrlOption,
    DeadlineOption,
    JsonOption,
    MaxTokensOption,
    ModelOption,
    PromptArgument,
    SchemaOption,
    SeedOption,
    StrategyOption,
    SystemOption,
    TemperatureOption,
    ThinkingOption,
    TimeoutOption,
    ToolOption,
)


def register(app: typer.Typer) -> None:
    app.command("run")(run_prompt)
    app.command("check")(check_request)
    app.command("explain")(explain_route)


def run_prompt(
    prompt: PromptArgument = None,
    models: ModelOption = None,
    strategy: StrategyOption = None,
    base_url: BaseUrlOption = None,
    system: SystemOption = None,
    attach: AttachOption = None,
    tool: ToolOption = None,
    allow_exec: Annotated[bool, typer.Option("--allow-exec", help="Allow tools that execute code.")] = False,
    schema: SchemaOption = None,
    session: Annotated[
        str | None, options.option("--session", metavar="ID", help="Continue this session, or start it.")
    ] = None,
    as_json: JsonOption = False,
    no_stream: Annotated[bool, typer.Option("--no-stream", help="Print the answer when it is complete.")] = False,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    thinking: ThinkingOption = None,
    seed: SeedOption = None,
    timeout: TimeoutOption = None,
    deadline: DeadlineOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print model, tokens, latency and cost.")] = False,
) -> None:
    """Send a prompt to a model and stream the answer.

    The answer goes to standard output; warnings, tool calls and errors go to standard error.
    """
    if allow_exec and not tool:
        raise CommandError("--allow-exec applies to tools, and none is given.", fix="Add a tool with --tool.")
    client: Any = options.create_client(models or (), strategy, base_url=base_url, timeout=timeout)
    request = options.create_request(
        prompt,
        attach,
        tool=tool,
        schema=schema,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        thinking=thinking,
        seed=seed,
        deadline=deadline,
    )
    quiet = as_json or no_stream or schema is not None
    with ExitStack() as stack:
        if session is not None:
            client = client.session(session, store=stack.enter_context(options.open_session_store()))
        if request.tools:
            limits = options.tool_limits(allow_exec=allow_exec)
            response = output.print_run(partial(client.run_stream, request, loop=limits), quiet=quiet)
        elif quiet:
            response = client.complete(request)
        else:
            response = output.print_stream(partial(client.stream, request))
    if as_json:
        terminal.write_json(response.model_dump(mode="json", exclude_none=True))
    elif schema is not None:
        terminal.write_json(to_jsonable_python(response.output))
    elif no_stream:
        output.print_text(response.text or "")
    raise typer.Exit(output.print_remarks(response, verbose=verbose))


def check_request(
    prompt: PromptArgument = None,
    models: ModelOption = None,
    base_url: BaseUrlOption = None,
    system: SystemOption = None,
    attach: AttachOption = None,
    tool: ToolOption = None,
    schema: SchemaOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    thinking: ThinkingOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the pre-flight check of a request, without sending it.

    Prints the cost estimate, whether the request fits the context window, and the settings that would be dropped. Each
    model is checked separately. Exits with 1 if a model cannot take the request.
    """
    request = options.create_request(
        prompt,
        attach,
        tool=tool,
        schema=schema,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        thinking=thinking,
    )
    reports: list[Any] = [
        options.create_agent(name, base_url=base_url).check(request) for name in models or [options.default_model()]
    ]
    if as_json:
        terminal.write_json([{"ok": report.ok, **report.model_dump(mode="json")} for report in reports])
    else:
        terminal.write_line(remove_library_advice("\n\n".join(str(report) for report in reports)))
    if not all(report.ok for report in reports):
        raise typer.Exit(ExitCode.FAILED)


def explain_route(
    prompt: PromptArgument = None,
    models: ModelOption = None,
    strategy: StrategyOption = None,
    system: SystemOption = None,
    attach: AttachOption = None,
    tool: ToolOption = None,
    schema: SchemaOption = None,
    max_tokens: MaxTokensOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how a route would order its models for a request, without sending it.

    Exits with 1 if no model can take the request.
    """
    agents = [options.create_agent(name) for name in models or [options.default_model()]]
    request = options.create_request(prompt, attach, tool=tool, schema=schema, system=system, max_tokens=max_tokens)
    explanation = options.create_router(agents, strategy).explain(request)
    if as_json:
        terminal.write_json(explanation.model_dump(mode="json"))
    else:
        terminal.write_line(remove_library_advice(str(explanation)))
    if not explanation.order:
        raise typer.Exit(ExitCode.FAILED)
