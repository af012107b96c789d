"""Credentials of MCP connections: found in settings, and redacted from failures, results and logs."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from typing_extensions import override

from ..providers.codec import secrets_in
from ..types.secrets import (
    REDACTED,
    Secret,
    is_credential_header,
    longest_spelling,
    looks_like_credential,
    redact,
    redact_start,
)

_MIN_SECRET = 6
_MIN_QUERY_VALUE = 8
_LOOKS_SECRET = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z]).{16,}")
_SETTING = re.compile(r"([\w -]+)[=:]\s*(.+)", re.DOTALL)
"""An argument such as `--token=…` or `Authorization: Bearer …`."""
_INPUT = re.compile(r", input_value=.*, input_type=[\w.]+")
_PATH = re.compile(r"[.~]{0,2}[/\\]|[A-Za-z]:[/\\]")
"""The start of a path. Servers for files quote paths in their results."""
_SDK_LOGGERS = ("mcp", "client", "httpx2", "httpcore2", "asyncio", "anyio")


class Redactor:
    """Replaces the credentials of one connection in text."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(Secret(text) for text in dict.fromkeys(secrets) if len(text) >= _MIN_SECRET)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def __call__(self, text: str) -> str:
        return redact(text, self._reveal())

    def redact_start(self, text: str, length: int) -> str:
        return redact_start(text, self._reveal(), length)

    def redact_end(self, text: str) -> str:
        """Redact a text whose start was cut off, perhaps within a secret."""
        return self(text)[longest_spelling(self._reveal()) :]

    def _reveal(self) -> list[str]:
        return [secret.get_secret_value() for secret in self._secrets]

    def redact_json(self, value: Any) -> Any:  # Any: a JSON value
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {self(key): self.redact_json(item) for key, item in value.items()}
        return [self.redact_json(item) for item in value] if isinstance(value, list) else value


def drop_inputs(text: str) -> str:
    """Remove the quoted inputs from pydantic's messages, which may hold parts of a credential."""
    return _INPUT.sub("", text)


def find_header_secrets(headers: Mapping[str, str]) -> Iterator[str]:
    yield from secrets_in(headers)
    for value in headers.values():
        yield from (value, *value.split()[-1:])


def find_url_secrets(url: str) -> Iterator[str]:
    """Find the user, the password, the values of the query, and parts of the path that look like keys."""
    try:
        parts = urlsplit(url)
    except ValueError:  # an argument that only looks like a URL
        return
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    yield from (password, f"{user}:{password}") if password else (user,)
    yield from (value for _, value in parse_qsl(parts.query) if len(value) >= _MIN_QUERY_VALUE)
    yield from (unquote(part) for part in parts.path.split("/") if _LOOKS_SECRET.fullmatch(part))


def display_url(url: str) -> str:
    """Return the URL without credentials and query."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = "" if parts.port is None else f":{parts.port}"
    path = "/".join(REDACTED if _LOOKS_SECRET.fullmatch(part) else part for part in parts.path.split("/"))
    return f"{parts.scheme}://{host}{port}{path}"


def find_command_secrets(args: Sequence[str], env: Mapping[str, str]) -> Iterator[str]:
    """Find values of variables other than paths, and arguments whose name or form is that of a credential."""
    for name, value in env.items():
        if "://" in value:
            yield from find_url_secrets(value)
        if is_credential_header(name) or not ("://" in value or _PATH.match(value)):
            yield value
    name = ""
    for arg in args:
        setting = _SETTING.fullmatch(arg)
        if "://" in arg:
            yield from find_url_secrets(arg[arg.index("=") + 1 :] if arg.startswith("-") and "=" in arg else arg)
        elif setting is not None and is_credential_header(setting[1]):
            yield from (setting[2], *setting[2].split()[-1:])
        elif (name.startswith("-") and is_credential_header(name)) or looks_like_credential(arg):
            yield from (arg, *arg.split()[-1:])
        name = arg


_thread = threading.local()


def redact_logs(redactor: Redactor) -> None:
    """Redact log records of the SDK and its HTTP client on this thread, and drop their frames."""
    _thread.redactor = redactor
    filter_loggers()


def filter_loggers() -> None:
    """Add the filter to all loggers of the SDK that exist; some modules are imported late."""
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in _SDK_LOGGERS:
            logging.getLogger(name).addFilter(_FILTER)


class _LogFilter(logging.Filter):
    @override
    def filter(self, record: logging.LogRecord) -> bool:
        redactor: Redactor | None = getattr(_thread, "redactor", None)
        if redactor:
            text = record.getMessage()
            if record.exc_info and (error := record.exc_info[1]) is not None:
                text = f"{text} ({type(error).__name__}: {error})"
            record.msg, record.args, record.exc_info = redactor(drop_inputs(text)), (), None
        return True


_FILTER = _LogFilter()
