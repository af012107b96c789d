"""`agent batch`: a file of requests in, a file of answers out, to be interrupted at will.

The work is that of `agent.batch`; here are its options, what is said meanwhile, and the exit code.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, cast

import typer

from agent.batch import BatchFileError, BatchInterrupted, run_file
from agent.batch.files import failures_beside
from agent.batch.values import clock

from . import exit_codes, options, references, targets, terminal

if TYPE_CHECKING:
    from agent.batch import BatchProgress, FileReport

_EVERY = 10.0
"""Seconds between two lines about the progress, where there is no terminal."""
_GO_ON = "Run the same command again, and it goes on where it stopped."


def register(app: typer.Typer) -> None:
    app.command("batch")(batch)


def batch(
    source: Annotated[str, typer.Argument(metavar="IN.jsonl", help="One request per line; - is standard input.")],
    target: Annotated[str, typer.Argument(metavar="OUT.jsonl", help="Where answers go; - is standard output.")],
    models: options.Models = None,
    strategy: options.Strategy = None,
    base_url: options.BaseUrl = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", metavar="N", min=1, help="Requests under way at a time.")
    ] = 32,
    failures: Annotated[
        str | None,
        typer.Option(
            "--failures", metavar="FILE", help="Where failures go; by default OUT.failed.jsonl.", show_default=False
        ),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Ask again what failed in earlier runs.")
    ] = False,
    max_failures: Annotated[
        int | None,
        typer.Option(
            "--max-failures", metavar="N", min=1, help="Stop when so many lines have failed.", show_default=False
        ),
    ] = None,
    max_cost: Annotated[
        float | None,
        typer.Option("--max-cost", metavar="DOLLARS", help="Stop when this much is spent.", show_default=False),
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", metavar="SECONDS", help="Stop after this time.", show_default=False),
    ] = None,
    system: options.System = None,
    schema: options.Schema = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    thinking: options.Thinking = None,
    timeout: options.Timeout = None,
    retries: Annotated[
        int | None,
        typer.Option(
            "--retries", metavar="N", min=0, help="How often a failed request is repeated.", show_default=False
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing unless something is wrong.")] = False,
) -> None:
    """Ask every line of a file, and write the answers to another.

    A line is text in quotes, {"prompt": "…"}, or an object with the fields of a request; with "custom_id", its answer
    has the same. Whatever ends the command, even a crash: run again, it asks only the lines that have no outcome yet.
    Settings given here are for lines that say nothing about them.
    """
    if target == "/dev/stdout":
        target = "-"  # under this name too, it may be anything; and what failed has no place beside it
    caller = targets.caller(
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
    limits = {"max_failures": max_failures, "max_cost": max_cost, "max_seconds": max_seconds}
    more: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    if schema is not None:
        more["schema"] = references.schema(schema)
    if not quiet:
        more |= {"progress": True} if _on_a_terminal() else {"on_progress": _now_and_then()}
    _allow_connections(concurrency)
    try:
        report = run_file(
            caller,
            _stdin() if source == "-" else source,
            _stdout() if target == "-" else target,
            failures=failures,
            retry_failed=retry_failed,
            concurrency=concurrency,
            **more,
        )
    except BatchInterrupted as stop:
        terminal.note(f"interrupted: {stop.result}. {_GO_ON if target != '-' else ''}".rstrip())
        raise typer.Exit(exit_codes.INTERRUPTED) from None
    except BatchFileError as error:
        raise exit_codes.Problem(error.message, fix=error.fix, code=exit_codes.FAILED) from None
    raise typer.Exit(_said(report, quiet=quiet, failures=_failures(target, failures)))


def _said(report: FileReport, *, quiet: bool, failures: str | None) -> int:
    """Says what came of it; the exit code."""
    if not quiet:
        if report.repaired:
            terminal.note("An earlier run had left half a line behind, which was cut off and asked again.")
        now = report.progress
        unpriced = f" and {now.unpriced} without a price" if now.unpriced else ""
        terminal.note(f"{report}; {now.done} now, in {clock(now.elapsed)}, for ${now.cost:.4f}{unpriced}")
    if report.stopped is not None:
        terminal.complain(f"stopped by {report.stopped}", _GO_ON if failures is not None else None)
        return exit_codes.FAILED
    if not report.failed:
        return exit_codes.OK
    if not quiet and failures is not None:
        terminal.note(f"The failures are in {failures}; to ask these again, add --retry-failed.")
    return exit_codes.PARTLY


def _failures(target: str, failures: str | None) -> str | None:
    return failures or (None if target == "-" else str(failures_beside(Path(target))))


def _on_a_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _now_and_then() -> Callable[[BatchProgress], None]:
    """For a log: a line every few seconds."""
    last = monotonic()

    def tell(progress: BatchProgress) -> None:
        nonlocal last
        if monotonic() - last >= _EVERY:
            last = monotonic()
            terminal.note(str(progress))

    return tell


def _allow_connections(count: int) -> None:
    """A connection counts as an open file, of which many systems allow 256 or 1,024 unless they are asked for more."""
    if sys.platform == "win32":
        return
    import resource

    wanted = 2 * count + 256  # those that are being closed still count
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        with suppress(ValueError, OSError):  # refused; then those that find no place fail, and can be asked again
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _stdin() -> BinaryIO:
    if sys.stdin is None:
        raise exit_codes.Problem("Standard input is closed.", fix="Name a file.")
    return sys.stdin.buffer


def _stdout() -> BinaryIO:
    return cast(BinaryIO, _Escaped()) if sys.stdout.isatty() else sys.stdout.buffer


class _Escaped:
    """A terminal: JSON may hold characters that command one, so they are written as escapes."""

    def write(self, line: bytes) -> int:
        sys.stdout.write(json.dumps(json.loads(line)).replace("\x7f", "\\u007f") + "\n")
        return len(line)

    def flush(self) -> None:
        sys.stdout.flush()
