"""Every error the package raises, and what a caller may do about it.

    AgentError
    ├── ConfigurationError        what was passed in cannot work: `field`, `fix`; nothing was sent
    │   └── UnsupportedFeatureError   this vendor or model cannot take that part of the request
    ├── AuthenticationError       no key, or a key the vendor refuses
    ├── ConnectionError           no connection, or a connection that broke
    ├── TimeoutError              a limit passed; `deadline` is true when it was the whole call's
    ├── PoolExhaustedError        this program has no connection to spare; no vendor is to blame
    ├── Aborted                   the caller ended the call
    ├── ProviderError             the vendor answered, and the answer is a failure
    │   ├── BadRequestError           the request is wrong; the same bytes will fail again
    │   │   └── ContextLengthError        too long for this model
    │   ├── ModelNotFoundError        no such model, or none for this key
    │   ├── RateLimitError            too fast: `retry_after`
    │   ├── QuotaExceededError        out of credit; waiting does not help
    │   ├── OverloadedError           the vendor is over its capacity
    │   ├── ContentFilterError        refused by the vendor's filter
    │   ├── ProtocolError             the answer is not what the API promises
    │   └── StreamInterrupted         a stream ended too early, after its first event: `partial`
    ├── SchemaValidationError     structured output that does not fit its schema: `text`
    ├── ToolExecutionError        a tool failed and the loop was told to stop
    ├── RoutingError              every target failed, or none could take the request: `errors`
    └── BudgetExceededError       a limit on tokens, cost or turns was reached

Others live where they are raised: `agent.loop.JournalError`, `agent.stores.StoreError` with its own family, and
`BatchInputError` and `BatchFileError` of `agent.batch`.

`retryable` says whether sending the same request again can help. It is decided once, where the error is made.
`ConnectionError` and `TimeoutError` shadow builtins: write `errors.TimeoutError`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

if TYPE_CHECKING:
    from .types import AgentResponse, Attempt

__all__ = [
    "Aborted",
    "AgentError",
    "AuthenticationError",
    "BadRequestError",
    "BudgetExceededError",
    "ConfigurationError",
    "ContentFilterError",
    "ContextLengthError",
    "ModelNotFoundError",
    "OverloadedError",
    "PoolExhaustedError",
    "ProtocolError",
    "ProviderError",
    "QuotaExceededError",
    "RateLimitError",
    "RoutingError",
    "SchemaValidationError",
    "StreamInterrupted",
    "ToolExecutionError",
    "UnsupportedFeatureError",
]


_LINE_BREAKS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str) -> str:
    """`text` on one line, so that a model name or a vendor's words cannot forge lines of a log.

    Line breaks become spaces; control characters, direction marks and lone surrogates are escaped.
    """
    if text.isprintable():
        return text
    return _UNPRINTABLE.sub(_escape, _LINE_BREAKS.sub(" ", text.strip()))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class AgentError(Exception):
    """The base of all errors here. Facts that do not apply are None."""

    _retryable_by_default: ClassVar[bool] = False

    def __init__(
        self,
        message: str = "",
        *,
        provider: str | None = None,
        model: str | None = None,
        status_code: int | None = None,
        request_id: str | None = None,
        code: str | None = None,
        retryable: bool | None = None,
        retry_after: float | None = None,
        body: str | None = None,
    ) -> None:
        message = one_line(message)
        super().__init__(message)
        self.message = message
        self.provider = provider
        self.model = model
        self.status_code = status_code
        self.request_id = request_id
        self.code = code
        """The vendor's own name for the failure, if it gave one."""
        self.retryable = self._retryable_by_default if retryable is None else retryable
        self.retry_after = retry_after
        """Seconds the vendor asked us to wait, if it did."""
        self.body = body
        """The start of the vendor's answer, without secrets."""
        self.committed = False
        """Whether events of this call had already reached the caller."""
        self.attempts: Sequence[Attempt] = ()
        """What was tried, in order."""
        self.result: Any = None
        """Of a run that failed: the `RunResult` it had come to, with all messages and what they cost."""

    @override
    def __str__(self) -> str:
        facts = [
            f"{name}={value}"
            for name, value in (
                ("provider", self.provider),
                ("model", self.model),
                ("status", self.status_code),
                ("code", self.code),
                ("request_id", self.request_id),
                ("retry_after", self.retry_after),
            )
            if value is not None
        ]
        return f"{self.message} [{one_line(', '.join(facts))}]" if facts else self.message

    @override
    def __reduce__(self) -> Any:
        # Exception's own __reduce__ calls __init__ with `args` alone, and would lose every keyword argument.
        return _rebuild, (type(self), self.args, {**self.__dict__})


def _rebuild(kind: type[AgentError], args: tuple[Any, ...], facts: dict[str, Any]) -> AgentError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class ConfigurationError(AgentError, ValueError):
    """Something passed in cannot work. `field` names it, `fix` says what to do; nothing was sent."""

    def __init__(self, message: str = "", *, field: str | None = None, fix: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.field = field
        self.fix = fix

    @override
    def __str__(self) -> str:
        return f"{super().__str__()} {one_line(self.fix)}" if self.fix else super().__str__()


class UnsupportedFeatureError(ConfigurationError):
    """This vendor or model cannot take that part of the request. Nothing was sent."""


class AuthenticationError(AgentError):
    """There is no key, or the vendor refuses the one it got."""


class ConnectionError(AgentError):
    """No connection could be made, or it broke before the answer was complete."""

    _retryable_by_default = True


class TimeoutError(AgentError):
    """A time limit passed. With `deadline`, it was the limit of the whole call, and nothing may follow."""

    _retryable_by_default = True

    def __init__(self, message: str = "", *, deadline: bool = False, **facts: Any) -> None:
        super().__init__(message, **{"retryable": not deadline, **facts})
        self.deadline = deadline


class PoolExhaustedError(AgentError):
    """This program is out of connections or file handles. Asking another vendor would not help."""


class Aborted(AgentError):
    """The caller ended the call with `abort()`."""


class ProviderError(AgentError):
    """The vendor answered with a failure."""


class BadRequestError(ProviderError):
    """The vendor says that the request is wrong."""


class ContextLengthError(BadRequestError):
    """The request is longer than the model can read."""


class ModelNotFoundError(ProviderError):
    """The vendor has no such model, or not for this key."""


class RateLimitError(ProviderError):
    """Too many requests or tokens for now; `retry_after` says how long to wait, where the vendor does."""

    _retryable_by_default = True


class QuotaExceededError(ProviderError):
    """The account is out of credit or over its plan. Waiting a moment does not help."""


class OverloadedError(ProviderError):
    """The vendor has no capacity just now."""

    _retryable_by_default = True


class ContentFilterError(ProviderError):
    """The vendor's filter refused the request or the answer."""


class ProtocolError(ProviderError):
    """The answer is not what the vendor's API promises: not JSON, too large, cut off, a redirect."""

    _retryable_by_default = True


class StreamInterrupted(ProviderError):
    """A stream broke after its first event had been handed out. `partial` holds what had arrived."""

    def __init__(
        self, message: str = "", *, partial: AgentResponse | None = None, deadline: bool = False, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.partial = partial
        self.deadline = deadline
        """Whether it was the limit of the whole call that broke it: then nothing may follow."""
        self.committed = True


class SchemaValidationError(AgentError):
    """Structured output that does not fit its schema. `text` is what the model wrote."""

    def __init__(
        self, message: str = "", *, text: str | None = None, response: AgentResponse | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.text = text
        self.response = response


class ToolExecutionError(AgentError):
    """A tool failed and the loop was told to stop on errors."""

    def __init__(
        self, message: str = "", *, tool_name: str | None = None, tool_call_id: str | None = None, **facts: Any
    ) -> None:
        super().__init__(message, **facts)
        self.tool_name = tool_name
        self.tool_call_id = tool_call_id


class RoutingError(AgentError):
    """No target could answer. `errors` holds each failure, in order. Printed, it shows who was considered and tried."""

    def __init__(self, message: str = "", *, errors: Sequence[AgentError] = (), **facts: Any) -> None:
        super().__init__(
            message or "; ".join(f"{type(error).__name__}: {error}" for error in errors) or "no target", **facts
        )
        self.errors = tuple(errors)

    @override
    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.attempts}" if self.attempts else super().__str__()


class BudgetExceededError(AgentError):
    """A limit on tokens, cost or turns was reached."""
