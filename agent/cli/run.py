"""`agent run` and `batch` send requests; `agent check` and `explain` preview one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer
from pydantic_core import to_jsonable_python

from agent import Agent
from agent.batch import BatchFileError, BatchInterrupted, run_file, run_file_job
from agent.batch.files import default_failures_path
from agent.batch.values import format_duration

from . import options, terminal
from .errors import CommandError, ExitCode, print_remarks, remove_library_advice
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

if TYPE_CHECKING:
    from agent.batch import BatchJob, BatchProgress, FileReport


def register(app: typer.Typer) -> None:
    app.command("run")(run_prompt)
    app.command("check")(check_request)
    app.command("explain")(explain_route)
    app.command("batch")(batch)


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
            response = terminal.print_run(partial(client.run_stream, request, loop=limits), quiet=quiet)
        elif quiet:
            response = client.complete(request)
        else:
            response = terminal.print_stream(partial(client.stream, request))
    if as_json:
        terminal.write_json(response.model_dump(mode="json", exclude_none=True))
    elif schema is not None:
        terminal.write_json(to_jsonable_python(response.output))
    elif no_stream:
        terminal.print_text(response.text or "")
    raise typer.Exit(print_remarks(response, verbose=verbose))


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


# Batches

_PROGRESS_INTERVAL = 10.0
"""Seconds between progress lines if standard error is not a terminal."""
_RESUME = "Run the same command again to resume."


def batch(
    source: Annotated[str, typer.Argument(metavar="IN.jsonl", help="One request per line; - is standard input.")],
    target: Annotated[str, typer.Argument(metavar="OUT.jsonl", help="Responses; - is standard output.")],
    models: ModelOption = None,
    strategy: StrategyOption = None,
    base_url: BaseUrlOption = None,
    vendor: Annotated[bool, typer.Option("--vendor", help="Use the vendor's batch API: slow and cheap.")] = False,
    interval: Annotated[
        float | None, options.option("--interval", metavar="SECONDS", min=1, help="Status requests of --vendor.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", metavar="N", min=1, help="Concurrent requests.")
    ] = 32,
    failures: Annotated[
        str | None, options.option("--failures", metavar="FILE", help="Failed requests; by default OUT.failed.jsonl.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Retry the failures of earlier runs.")] = False,
    max_failures: Annotated[
        int | None, options.option("--max-failures", metavar="N", min=1, help="Stop after this many failures.")
    ] = None,
    max_cost: Annotated[
        float | None, options.option("--max-cost", metavar="DOLLARS", help="Stop at this cost.")
    ] = None,
    max_seconds: Annotated[
        float | None, options.option("--max-seconds", metavar="SECONDS", help="Stop after this time.")
    ] = None,
    system: SystemOption = None,
    schema: SchemaOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    thinking: ThinkingOption = None,
    timeout: TimeoutOption = None,
    retries: Annotated[
        int | None, options.option("--retries", metavar="N", min=0, help="Retries of a failed request.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.")] = False,
) -> None:
    """Run a file of requests, and write the responses to another file.

    A line is a quoted prompt, {"prompt": "…"}, or an object with the fields of a request. A "custom_id" is copied to
    the response. After any interruption, even a crash, run the command again: only lines without an outcome are sent.
    Options are defaults for lines that do not set them.

    With --vendor, one job is submitted to the vendor's batch API, and its responses are written when they are there,
    within a day. The command can be interrupted in between.
    """
    if target == "/dev/stdout":
        target = "-"  # it can be anything, and no failures file can stand beside it
    client = options.create_client(
        models or (),
        strategy,
        base_url=base_url,
        default_system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        thinking=thinking,
        timeout=timeout,
        max_retries=retries,
    )
    if vendor:
        if not isinstance(client, Agent):
            raise CommandError("--vendor takes one model.", fix="Pass one -m, and no --strategy.")
        if target == "-" or max_failures is not None or max_cost is not None:
            raise CommandError(
                "--vendor cannot be used with standard output, --max-failures or --max-cost.",
                fix="Name a file, and remove these options.",
            )
    limits = {"max_failures": max_failures, "max_cost": max_cost, "max_seconds": max_seconds}
    settings: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    if schema is not None:
        settings["schema"] = options.load_schema(schema)
    if not quiet:
        is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        if not vendor:
            settings |= {"progress": True} if is_terminal else {"on_progress": _log_progress()}
        else:
            settings["on_status"] = _log_status()
    if source == "-" and sys.stdin is None:
        raise CommandError("Standard input is closed.", fix="Name a file.")
    given = sys.stdin.buffer if source == "-" else source
    try:
        if vendor:
            assert isinstance(client, Agent)
            settings |= {} if interval is None else {"interval": interval}
            report = run_file_job(client, given, target, failures=failures, retry_failed=retry_failed, **settings)
        else:
            _raise_file_limit(concurrency)
            report = run_file(
                client,
                given,
                _open_stdout() if target == "-" else target,
                failures=failures,
                retry_failed=retry_failed,
                concurrency=concurrency,
                **settings,
            )
    except BatchInterrupted as interruption:
        terminal.write_note(f"interrupted: {interruption.result}. {_RESUME if target != '-' else ''}".rstrip())
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BatchFileError as error:
        raise CommandError(error.message, fix=error.fix, code=ExitCode.FAILED) from None
    failures = failures or (None if target == "-" else str(default_failures_path(Path(target))))
    raise typer.Exit(_print_report(report, quiet=quiet, failures=failures))


def _print_report(report: FileReport, *, quiet: bool, failures: str | None) -> ExitCode:
    if not quiet:
        if report.repaired:
            terminal.write_note("An incomplete line of an earlier run was removed; its request was sent again.")
        progress = report.progress
        unpriced = f" and {progress.unpriced} without a price" if progress.unpriced else ""
        summary = (
            f"{progress.done} now, in {format_duration(progress.elapsed)}, for ${progress.known_cost:.4f}{unpriced}"
        )
        terminal.write_note(f"{report}; {summary}")
    if report.stopped is not None:
        terminal.write_error(f"stopped by {report.stopped}", _RESUME if failures is not None else None)
        return ExitCode.FAILED
    if not report.failed:
        return ExitCode.OK
    if not quiet and failures is not None:
        terminal.write_note(f"The failures are in {failures}; to retry them, add --retry-failed.")
    return ExitCode.PARTIAL


def _log_progress() -> Callable[[BatchProgress], None]:
    """Write a progress line at intervals, for logs."""
    last = monotonic()

    def write(progress: BatchProgress) -> None:
        nonlocal last
        if monotonic() - last >= _PROGRESS_INTERVAL:
            last = monotonic()
            terminal.write_note(str(progress))

    return write


def _log_status() -> Callable[[BatchJob[Any]], None]:
    """Write a line when the status of a job changes."""
    latest = ""

    def write(job: BatchJob[Any]) -> None:
        nonlocal latest
        if str(job) != latest:
            latest = str(job)
            counts = job.counts
            terminal.write_note(f"{job.id}: {job.status}, {counts.succeeded + counts.failed} of {counts.total} done")

    return write


def _raise_file_limit(concurrency: int) -> None:
    """Raise the limit of open files: connections count, and many systems allow only 256 or 1,024."""
    if sys.platform == "win32":
        return
    import resource  # lazy: not on Windows

    needed = 2 * concurrency + 256  # connections that are being closed still count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        with suppress(ValueError, OSError):  # then requests beyond the limit fail, and can be retried
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _open_stdout() -> BinaryIO:
    return cast(BinaryIO, _EscapedOutput()) if sys.stdout.isatty() else sys.stdout.buffer


class _EscapedOutput:
    """Writes JSON lines to a terminal with escaped control characters."""

    def write(self, line: bytes) -> int:
        sys.stdout.write(json.dumps(json.loads(line)).replace("\x7f", "\\u007f") + "\n")
        return len(line)

    def flush(self) -> None:
        sys.stdout.flush()
