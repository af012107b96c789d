"""Errors of the library in the words of somebody at a shell: what is wrong, and what to type or to set."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from typing import NamedTuple

from agent import errors
from agent.errors import AgentError, RoutingError
from agent.providers import list_providers

from . import exit_codes, terminal
from .tables import hanging

_FOR_PROGRAMS = (
    (", or pass api_key=", ""),
    (", or pass allow_insecure=True if the network is yours", ""),
    (", or pass a Strategy or a function", ""),
    ("; use api_key or headers", ""),
    ("; vendor settings go into extra", ""),
    ("pass base_url=", "pass --base-url"),
    ("Pass base_url=", "Pass --base-url"),
    ("Value error, ", ""),
)
"""What only a program could do, and what to say instead."""

_NOT_MADE = re.compile(r"^Invalid Agent\w+: ")
_NO_KEY = re.compile(r"(There is no key for [^:]+): set the environment variable (.+?)\.?$")
_NOBODY = re.compile(r"^No target answered \([^)]*\)")
_SETTINGS = {"base_url": "The address", "api_key": "The key"}
"""Settings that come from the environment as well as from options."""


class Told(NamedTuple):
    """What is printed about an error."""

    message: str
    fix: str | None = None
    details: tuple[tuple[str, str], ...] = ()
    """Who failed, and why."""


def without_library_advice(message: str) -> str:
    """A message without what only a program could do."""
    for advice, instead in _FOR_PROGRAMS:
        message = message.replace(advice, instead)
    return message


def tell_failure(error: BaseException) -> None:
    """An error of ours on standard error: in a line or two, without a traceback."""
    if isinstance(error, AgentError):
        said = of(error)
    else:
        said = Told(str(error) or type(error).__name__, getattr(error, "fix", None))
    terminal.complain(said.message)
    for line in hanging(said.details, terminal.width() if sys.stderr.isatty() else None, "  "):
        terminal.note(line, "plain")
    terminal.advise(said.fix)


def unwritten(error: OSError) -> int:
    """Says that a file or the output could not be used, if anybody can be told; the exit code."""
    if isinstance(error, BrokenPipeError):
        terminal.abandon(sys.stdout)
        return exit_codes.CUT_OFF
    what = error.filename
    try:
        sys.stdout.flush()
    except OSError:
        what = "The output cannot be written"
        terminal.abandon(sys.stdout)
    terminal.complain(": ".join(str(part) for part in (what, error.strerror or error) if part))
    return exit_codes.FAILED


def of(error: AgentError) -> Told:
    """What to say about an error of the library."""
    if isinstance(error, errors.RoutingError):
        return _nobody(error)
    message = without_library_advice(error.message) or type(error).__name__
    if found := _NO_KEY.match(message):
        return Told(f"{found[1]}.", f"Set the environment variable {found[2]}; agent doctor shows what is set up.")
    if isinstance(error, errors.ConfigurationError):
        return _wrong(message, error)
    fix = "See what can be reached: agent doctor --reach" if isinstance(error, errors.ConnectionError) else None
    return Told(message + _facts(error), fix)


def exit_code(error: BaseException) -> int:
    """The exit code for an error of ours."""
    if isinstance(error, exit_codes.Problem):
        return error.code
    if isinstance(error, errors.AuthenticationError):
        return exit_codes.SETUP
    if isinstance(error, errors.ConfigurationError):
        # Advice to install something is given by those who miss it, an extra or the engine, and by nobody else.
        return exit_codes.SETUP if "install" in (error.fix or "") else exit_codes.USAGE
    if isinstance(error, errors.RoutingError) and not error.errors:
        reasons = [reason for _, reason in _left_out(error)]
        return exit_codes.SETUP if reasons and all(_NO_KEY.match(reason) for reason in reasons) else exit_codes.FAILED
    return exit_codes.FAILED


def _wrong(message: str, error: AgentError) -> Told:
    """Something that was passed in: named as the option that it is."""
    field, fix = getattr(error, "field", None) or "", getattr(error, "fix", None)
    if _NOT_MADE.match(message):
        message = _NOT_MADE.sub("", message)
        if field in _SETTINGS:
            message = message.replace(f"{field}: ", f"{_SETTINGS[field]} ", 1)
        else:
            message = message.replace(f"{field}: ", f"--{field.replace('_', '-')}: ", 1)
    elif field == "provider" and fix is not None and fix.startswith("Use one of"):
        return Told(message, known_provider_fix(message.rpartition(" named ")[2].strip("'\".")))
    return Told(message, None if fix is None else without_library_advice(fix))


def known_provider_fix(name: str) -> str:
    """Which provider may have been meant."""
    near = get_close_matches(name, list_providers(), n=3)
    return f"Did you mean {' or '.join(near)}?" if near else "List the providers with: agent doctor"


def _nobody(error: RoutingError) -> Told:
    """No model of a route answered: each is named once with what it failed with."""
    start = _NOBODY.match(error.message)
    if start is None:
        return Told(without_library_advice(error.message) + _facts(error))
    failures = [
        (one.target, (one.message or one.error).removeprefix(f"{one.provider}: "))
        for one in error.attempts
        if one.error
    ]
    details = dict.fromkeys([*failures, *_left_out(error)])
    return Told(f"{start[0].replace('No target', 'No model')}.", None, tuple(details))


def _left_out(error: RoutingError) -> Iterator[tuple[str, str]]:
    """Models that were not asked, and why."""
    for one in getattr(error.attempts, "candidates", ()):
        if one.place is None:
            yield one.target, without_library_advice(one.reason or "")


def _facts(error: AgentError) -> str:
    """What a vendor's support would ask for. An error that no vendor sent has nothing of that."""
    if error.status_code is None and error.request_id is None:
        return ""
    code = None if error.code == str(error.status_code) else error.code
    facts = {"status": error.status_code, "code": code, "request": error.request_id, "retry after": error.retry_after}
    asked = ":".join(name for name in (error.provider, error.model) if name)
    told = [asked, *(f"{name} {value}" for name, value in facts.items() if value is not None)]
    return f" ({', '.join(part for part in told if part)})"
