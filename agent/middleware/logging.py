"""One line for each call and each failure, to the standard library's logging.

A line says who was asked, how long it took, what it used and how it ended. It holds no word of the prompt or of the
answer unless that is asked for, and then on one line, shortened, without control characters, and without whatever looks
like a key.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from typing_extensions import override

from ..engine.context import RunPlace
from ..engine.flow import Flow, Now
from ..errors import AgentError
from ..types import AgentResponse
from .base import CallInfo, Middleware
from .patterns import keys

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")
"""What could break a line, colour a terminal, or turn the direction of a text."""
_MOST = 500


class Logging(Middleware):
    """Logs calls.

    Args:
        logger: A logger, or the name of one.
        level: Of calls that were answered.
        error_level: Of those that failed.
        prompts: Whether the last words of the request and the first ones of the answer are logged, too.
    """

    def __init__(
        self,
        logger: logging.Logger | str = "agent",
        *,
        level: int = logging.INFO,
        error_level: int = logging.WARNING,
        prompts: bool = False,
    ) -> None:
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._level, self._error_level, self._prompts = level, error_level, prompts

    @override
    def after(self, response: AgentResponse, call: CallInfo) -> Flow[None]:
        if not self._logger.isEnabledFor(self._level):
            return
        facts = self._facts(call, (yield from Now()))
        usage = response.usage
        if usage is not None:
            facts["tokens"] = f"{usage.prompt_tokens}+{usage.completion_tokens}"
        if response.cost_estimate is not None:
            facts["cost"] = f"${response.cost_estimate:.6f}"
        facts |= {"stop": response.stop_reason, "request_id": response.request_id}
        if self._prompts:
            facts |= {
                "asked": repr(_shortened(_asked(call), last=True)),
                "answer": repr(_shortened(response.text or "")),
            }
        self._write(call, self._level, "answered", facts)

    @override
    def on_error(self, error: Exception, call: CallInfo) -> Flow[None]:
        if not self._logger.isEnabledFor(self._error_level):
            return
        facts = self._facts(call, (yield from Now()))
        facts["error"] = type(error).__name__
        if isinstance(error, AgentError):
            facts |= {"status": error.status_code, "code": error.code, "request_id": error.request_id}
            # Of other errors the words may be anybody's, and quote anything.
            facts["message"] = repr(_shortened(error.message))
        if self._prompts:
            facts["asked"] = repr(_shortened(_asked(call), last=True))
        self._write(call, self._error_level, "failed", facts)

    def _facts(self, call: CallInfo, now: float) -> dict[str, Any]:
        facts: dict[str, Any] = {"seconds": f"{now - call.started:.3f}", "attempts": len(call.attempts)}
        if call.run is not None:
            facts["run"] = f"{call.run.id}/{call.run.turn}" if isinstance(call.run, RunPlace) else call.run
        return facts

    def _write(self, call: CallInfo, level: int, outcome: str, facts: dict[str, Any]) -> None:
        kind = "stream" if call.streaming else "call"
        told = " ".join(f"{name}={value}" for name, value in facts.items() if value is not None)
        self._logger.log(level, "%s", _plain(f"{call.target} {kind} {outcome} {told}"))


def _asked(call: CallInfo) -> str:
    """The last words of the request, as the caller asked it."""
    request = call.request
    if request.input is not None:
        return request.input
    return request.messages[-1].text if request.messages else ""


def _shortened(text: str, *, last: bool = False) -> str:
    hidden = _without_keys(text)
    if len(hidden) <= _MOST:
        return hidden
    return f"…{hidden[-_MOST:]}" if last else f"{hidden[:_MOST]}…"


def _without_keys(text: str) -> str:
    for start, end in reversed(list(keys(text))):
        text = f"{text[:start]}***{text[end:]}"
    return text


def _plain(text: str) -> str:
    """The text on one line, in characters that every log can hold, and without keys."""
    return _CONTROL.sub(" ", _without_keys(text)).encode("utf-8", "replace").decode()
