"""Exit codes, error messages and remarks of the command line.

The exit codes are part of the interface: the guide to the command line lists them. Error messages of the library are
rewritten for the shell: options instead of keyword arguments, and only advice that a user of the command can follow.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from agent.errors import AgentError, AuthenticationError, ConfigurationError, ConnectionError, RoutingError

from . import terminal

if TYPE_CHECKING:
    from agent.types import AgentResponse


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    """The model or the vendor failed, or a check found a problem."""
    USAGE = 2
    """Invalid options or input. Nothing was sent."""
    SETUP = 3
    """A key, an extra or the local engine is missing."""
    PARTIAL = 4
    """Some requests of a batch failed; they are in the failures file."""
    INTERRUPTED = 130
    """Ctrl-C."""
    BROKEN_PIPE = 141
    """The reader of the output closed it, as `head` does."""


class CommandError(Exception):
    """Ends a command with a message, a fix and an exit code."""

    def __init__(self, message: str, *, fix: str | None = None, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.code = code


class ErrorReport(NamedTuple):
    """The printed form of an error."""

    message: str
    fix: str | None = None
    details: tuple[tuple[str, str], ...] = ()
    """Pairs of a target and its failure."""


LIST_PROVIDERS = "List the providers with: agent doctor"
_LIBRARY_ADVICE = (
    (", or pass api_key=", ""),
    (", or pass allow_insecure=True if the network is yours", ""),
    (", or pass a Strategy or a function", ""),
    ("; use api_key or headers", ""),
    ("; vendor settings go into extra", ""),
    ("pass base_url=", "pass --base-url"),
    ("Pass base_url=", "Pass --base-url"),
    ("as base_url=", "as --base-url"),
    ("Value error, ", ""),
)
"""Advice for programs, and its replacement at the command line."""

_INVALID = re.compile(r"^Invalid Agent\w+: ")
_NO_KEY = re.compile(r"There is no key for ")
_NO_TARGET = re.compile(r"^No target answered \([^)]*\)")
_ENVIRONMENT_SETTINGS = {"base_url": "The address", "api_key": "The key"}
"""Settings that can come from the environment, so that no option name is quoted."""


def remove_library_advice(message: str) -> str:
    """Remove advice that applies only to Python programs."""
    for advice, replacement in _LIBRARY_ADVICE:
        message = message.replace(advice, replacement)
    return message


def report_error(error: BaseException) -> ExitCode:
    """Write an error to standard error, without a traceback, and return its exit code."""
    if isinstance(error, AgentError):
        report = describe_error(error)
    else:
        report = ErrorReport(str(error) or type(error).__name__, getattr(error, "fix", None))
    terminal.write_error(report.message)
    limit = terminal.terminal_width() if sys.stderr.isatty() else None
    for line in terminal.format_pairs(report.details, limit, "  "):
        terminal.write_note(line, "plain")
    terminal.write_fix(report.fix)
    return _exit_code(error)


def report_os_error(error: OSError) -> ExitCode:
    """Report an unusable file or output stream, and return the exit code."""
    if isinstance(error, BrokenPipeError):
        terminal.discard_buffer(sys.stdout)
        return ExitCode.BROKEN_PIPE
    subject = error.filename
    try:
        sys.stdout.flush()
    except OSError:
        subject = "The output cannot be written"
        terminal.discard_buffer(sys.stdout)
    terminal.write_error(": ".join(str(part) for part in (subject, error.strerror or error) if part))
    return ExitCode.FAILED


def describe_error(error: AgentError) -> ErrorReport:
    """Rewrite an error of the library for the command line."""
    if isinstance(error, RoutingError):
        return _describe_routing_error(error)
    message = remove_library_advice(error.message) or type(error).__name__
    if isinstance(error, ConfigurationError):
        return _describe_configuration_error(message, error)
    fix = remove_library_advice(error.fix or "").rstrip(".")
    if _NO_KEY.match(message):
        return ErrorReport(message, f"{fix}; agent doctor lists all keys.")
    if isinstance(error, ConnectionError):
        fix = " ".join(filter(None, (fix and f"{fix}.", "Test the connections with: agent doctor --reach")))
    return ErrorReport(message + _request_facts(error), fix or None)


def _exit_code(error: BaseException) -> ExitCode:
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, AuthenticationError):
        return ExitCode.SETUP
    if isinstance(error, ConfigurationError):
        # Only errors about a missing extra or engine advise to install something.
        return ExitCode.SETUP if "install" in (error.fix or "") else ExitCode.USAGE
    if isinstance(error, RoutingError) and not error.errors:
        reasons = [reason for _, reason in _find_skipped_targets(error)]
        return ExitCode.SETUP if reasons and all(_NO_KEY.match(reason) for reason in reasons) else ExitCode.FAILED
    return ExitCode.FAILED


def _describe_configuration_error(message: str, error: ConfigurationError) -> ErrorReport:
    field, fix = error.field or "", error.fix
    if _INVALID.match(message):
        subject = _ENVIRONMENT_SETTINGS.get(field)
        subject = f"--{field.replace('_', '-')}:" if subject is None else subject
        message = _INVALID.sub("", message).replace(f"{field}: ", f"{subject} ", 1)
    elif field == "provider" and fix is not None and fix.startswith("Use one of"):
        fix = LIST_PROVIDERS
    return ErrorReport(message, None if fix is None else remove_library_advice(fix))


def _describe_routing_error(error: RoutingError) -> ErrorReport:
    """Name each target of the route once, with its failure."""
    start = _NO_TARGET.match(error.message)
    if start is None:
        return ErrorReport(remove_library_advice(error.message) + _request_facts(error))
    failures = [
        (attempt.target, (attempt.message or attempt.error).removeprefix(f"{attempt.provider}: "))
        for attempt in error.attempts
        if attempt.error
    ]
    details = dict.fromkeys([*failures, *_find_skipped_targets(error)])
    return ErrorReport(f"{start[0].replace('No target', 'No model')}.", None, tuple(details))


def _find_skipped_targets(error: RoutingError) -> Iterator[tuple[str, str]]:
    """Targets that the router filtered out, with the reasons."""
    for candidate in getattr(error.attempts, "candidates", ()):
        if candidate.place is None:
            yield candidate.target, remove_library_advice(candidate.reason or "")


def _request_facts(error: AgentError) -> str:
    """Facts for the vendor's support; empty for an error that did not come from a vendor."""
    if error.status_code is None and error.request_id is None:
        return ""
    code = None if error.code == str(error.status_code) else error.code
    facts = {"status": error.status_code, "code": code, "request": error.request_id, "retry after": error.retry_after}
    model = ":".join(name for name in (error.provider, error.model) if name)
    parts = [model, *(f"{name} {value}" for name, value in facts.items() if value is not None)]
    return f" ({', '.join(part for part in parts if part)})"


def print_remarks(response: AgentResponse, *, verbose: bool = False) -> ExitCode:
    """Print warnings, refusals and, if `verbose`, the summary and the route; return the exit code."""
    for warning in response.warnings:
        terminal.write_note(f"warning: {terminal.sanitize_line(warning)}", "yellow")
    code = ExitCode.OK
    if response.stop_reason == "length":
        terminal.write_note("warning: The answer was cut off at the token limit; see --max-tokens.", "yellow")
    if response.refusal is not None:
        terminal.write_error(f"The model refused: {response.refusal}")
        code = ExitCode.FAILED
    elif response.stop_reason == "content_filter":
        terminal.write_error("The vendor's content filter stopped the answer.")
        code = ExitCode.FAILED
    if verbose:
        terminal.write_note(_summarize(response))
        if len(response.route) > 1 or response.route.candidates:
            terminal.write_note(remove_library_advice(str(response.route)))
    return code


def _summarize(response: AgentResponse) -> str:
    """Model, tokens, latency and cost, in one line."""
    usage = response.usage
    facts = [f"{response.provider}:{response.model}"]
    if usage is not None:
        facts.append(f"{usage.prompt_tokens or 0:,} + {usage.completion_tokens or 0:,} tokens")
    if response.latency_ms is not None:
        facts.append(f"{response.latency_ms / 1000:.1f} s")
    facts.append(terminal.format_dollars(response.cost_estimate) or "cost unknown")
    return " · ".join(facts)
