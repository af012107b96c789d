"""Exceptions raised by the package.

    AgentError
    ├── ConfigurationError        invalid argument or setting: `field`, `fix`; nothing was sent
    │   └── UnsupportedFeatureError   the vendor or model does not support part of the request
    ├── AuthenticationError       missing or rejected API key
    ├── ConnectionError           connection failed or was lost
    ├── TimeoutError              time limit exceeded; `deadline` is true for the deadline of the whole call
    ├── PoolExhaustedError        no free connection or file handle in this process
    ├── Aborted                   the caller aborted the call
    ├── ProviderError             the vendor returned an error
    │   ├── BadRequestError           invalid request; a retry fails the same way
    │   │   └── ContextLengthError        longer than the model's context window
    │   ├── ModelNotFoundError        unknown model, or no access with this key
    │   ├── RateLimitError            rate limit exceeded: `retry_after`
    │   ├── QuotaExceededError        out of credit; waiting does not help
    │   ├── OverloadedError           the vendor is over capacity
    │   ├── ContentFilterError        blocked by the vendor's content filter
    │   ├── ProtocolError             the response violates the vendor's API
    │   ├── StreamInterrupted         the stream broke after its first event: `partial`
    │   └── ResponsePendingError      a background response is not complete: `response`
    ├── SchemaValidationError     structured output does not match its schema: `text`
    ├── ToolExecutionError        a tool failed and `stop_on_error` is set
    ├── RoutingError              every target failed or was unsuitable: `errors`
    └── BudgetExceededError       a token, cost or turn limit was reached

Others are defined where they are raised: `agent.loop.JournalError`, `agent.stores.StoreError` and its subclasses, and
`BatchInputError` and `BatchFileError` in `agent.batch`.

`retryable` tells whether a retry of the same request can succeed. `ConnectionError` and `TimeoutError` shadow builtins,
so write `errors.TimeoutError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar

from typing_extensions import Unpack, override

from ._missing_names import reject_names

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
    "ResponsePendingError",
    "RoutingError",
    "SchemaValidationError",
    "StreamInterrupted",
    "ToolExecutionError",
    "UnsupportedFeatureError",
]

if not TYPE_CHECKING:
    __getattr__ = reject_names(__name__, (*__all__, "ConnectionError", "TimeoutError"))


_LINE_BREAKS = r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*"
_UNPRINTABLE = r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"


def escape_line(text: str) -> str:
    """Return `text` on one line, so that model names and vendor messages cannot forge log lines.

    Line breaks become spaces; control characters, direction marks and lone surrogates are escaped.
    """
    if text.isprintable():
        return text
    return re.sub(_UNPRINTABLE, _escape, re.sub(_LINE_BREAKS, " ", text.strip()))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


AnyError = TypeVar("AnyError", bound=BaseException)
Function = TypeVar("Function", bound=Callable[..., Any])


def forget_frames(error: AnyError) -> AnyError:
    """Drop the frames of an error and its causes, whose local variables may hold secrets."""
    forgotten: BaseException | None = error
    while forgotten is not None:
        forgotten.__traceback__ = forgotten.__context__ = None
        forgotten = forgotten.__cause__
    return error


def redact_failure(error: AnyError, redact: Callable[[str], str]) -> AnyError:
    """Redact the texts of an error and its causes, and drop their frames.

    Other exceptions that show a secret are dropped from the causes.
    """
    each: BaseException | None = forget_frames(error)
    while each is not None:
        if each is error or isinstance(each, AgentError):
            each.args = tuple(redact(text) if isinstance(text, str) else text for text in each.args)
        if isinstance(each, AgentError):
            for name in ("message", "code", "request_id", "body"):
                if (text := getattr(each, name)) is not None:
                    setattr(each, name, redact(text))
        if (partial := getattr(each, "partial", None)) is not None and partial.request_id is not None:
            setattr(each, "partial", partial.copy_with(request_id=redact(partial.request_id)))  # noqa: B010
        cause = each.__cause__
        if cause is not None and not isinstance(cause, AgentError) and redact(str(cause)) != str(cause):
            cause = each.__cause__ = None
        each = cause
    return error


def hide_arguments(function: Function) -> Function:
    """Decorator: errors keep neither the arguments, which may hold secrets, nor the frames below."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            failure = forget_frames(error)
        try:
            del args, kwargs
            raise failure
        finally:
            del failure  # otherwise the error and this frame form a reference cycle

    return call  # type: ignore[return-value]  # the signature is that of the function


def printable(describe: Callable[[Any], str]) -> Callable[[Any], str]:
    """Decorator for `__repr__` and `__str__`, which must not raise for objects whose constructor failed."""

    @wraps(describe)
    def describe_any(self: object) -> str:
        try:
            return describe(self)
        except Exception:
            return object.__repr__(self)

    return describe_any


class ErrorFacts(TypedDict, total=False):
    """Keyword arguments of all errors; see `AgentError`."""

    provider: str | None
    model: str | None
    status_code: int | None
    request_id: str | None
    code: str | None
    retryable: bool | None
    retry_after: float | None
    body: str | None
    fix: str | None


class AgentError(Exception):
    """Base class of all errors of the package. Attributes that do not apply are None."""

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
        fix: str | None = None,
    ) -> None:
        message = escape_line(message)
        super().__init__(message)
        self.message = message
        self.provider = provider
        self.model = model
        self.status_code = status_code
        self.request_id = request_id
        self.code = code
        """The vendor's error code, if any."""
        self.retryable: bool = self._retryable_by_default if retryable is None else retryable
        self.retry_after = retry_after
        """Seconds to wait before a retry, if the vendor sent a hint."""
        self.body = body
        """The start of the error response, with secrets redacted."""
        self.fix = fix
        """How to fix the problem, if that is known."""
        self.committed = False
        """Whether the caller already received events of this call."""
        self.attempts: Sequence[Attempt] = ()
        """All attempts, in order."""
        self.result: Any = None
        """The `RunResult` of a failed run, with its messages and cost so far."""

    @override
    @printable
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
        described = f"{self.message} [{escape_line(', '.join(facts))}]" if facts else self.message
        return f"{described} {escape_line(self.fix)}" if self.fix else described

    @override
    def __reduce__(self) -> Any:
        # Exception.__reduce__ would call __init__ with `args` only and lose the keyword arguments.
        return _rebuild, (type(self), self.args, {**self.__dict__})


def _rebuild(kind: type[AgentError], args: tuple[Any, ...], facts: dict[str, Any]) -> AgentError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class ConfigurationError(AgentError, ValueError):
    """An argument or setting is invalid. `field` names it, `fix` tells how to fix it; nothing was sent."""

    def __init__(self, message: str = "", *, field: str | None = None, **facts: Unpack[ErrorFacts]) -> None:
        super().__init__(message, **facts)
        self.field = field


class UnsupportedFeatureError(ConfigurationError):
    """The vendor or model does not support part of the request. Nothing was sent."""


class AuthenticationError(AgentError):
    """The API key is missing or was rejected."""


class ConnectionError(AgentError):
    """The connection failed, or was lost before the response was complete."""

    _retryable_by_default = True


class TimeoutError(AgentError):
    """A time limit was exceeded. `deadline` marks the deadline of the whole call, which is never retried."""

    _retryable_by_default = True

    def __init__(self, message: str = "", *, deadline: bool = False, **facts: Unpack[ErrorFacts]) -> None:
        facts.setdefault("retryable", not deadline)
        super().__init__(message, **facts)
        self.deadline = deadline


class PoolExhaustedError(AgentError):
    """This process is out of connections or file handles. A fallback to another vendor would not help."""


class Aborted(AgentError):
    """The caller aborted the call with `abort()`."""


class ProviderError(AgentError):
    """The vendor returned an error."""


class BadRequestError(ProviderError):
    """The vendor rejected the request as invalid."""


class ContextLengthError(BadRequestError):
    """The request exceeds the model's context window."""


class ModelNotFoundError(ProviderError):
    """The vendor does not serve this model, or not for this key."""


class RateLimitError(ProviderError):
    """The rate limit is exceeded; `retry_after` is the vendor's hint in seconds, if any."""

    _retryable_by_default = True


class QuotaExceededError(ProviderError):
    """The account is out of credit or over its plan. Waiting does not help."""


class OverloadedError(ProviderError):
    """The vendor is over capacity."""

    _retryable_by_default = True


class ContentFilterError(ProviderError):
    """The vendor's content filter blocked the request or the response."""


class ProtocolError(ProviderError):
    """The response violates the vendor's API: not JSON, too large, truncated, or a redirect."""

    _retryable_by_default = True


class StreamInterrupted(ProviderError):
    """A stream broke after its first event. `partial` is the response received so far."""

    def __init__(
        self,
        message: str = "",
        *,
        partial: AgentResponse | None = None,
        deadline: bool = False,
        **facts: Unpack[ErrorFacts],
    ) -> None:
        super().__init__(message, **facts)
        self.partial = partial
        self.deadline = deadline
        """Whether the deadline of the whole call interrupted the stream."""
        self.committed = True


class ResponsePendingError(ProviderError):
    """A background response was not waited for until its end. Retrieve it by the id of `response`."""

    def __init__(
        self,
        message: str = "",
        *,
        response: AgentResponse | None = None,
        deadline: bool = False,
        **facts: Unpack[ErrorFacts],
    ) -> None:
        super().__init__(message, **facts)
        self.response = response
        """The latest state of the response: `id` and `status`."""
        self.deadline = deadline
        """Whether the deadline of the call passed."""
        self.committed = True


class SchemaValidationError(AgentError):
    """Structured output does not match its schema. `text` is the model's output."""

    def __init__(
        self,
        message: str = "",
        *,
        text: str | None = None,
        response: AgentResponse | None = None,
        **facts: Unpack[ErrorFacts],
    ) -> None:
        super().__init__(message, **facts)
        self.text = text
        self.response = response


class ToolExecutionError(AgentError):
    """A tool failed and `stop_on_error` is set."""

    def __init__(
        self,
        message: str = "",
        *,
        tool_name: str | None = None,
        tool_call_id: str | None = None,
        **facts: Unpack[ErrorFacts],
    ) -> None:
        super().__init__(message, **facts)
        self.tool_name = tool_name
        self.tool_call_id = tool_call_id


class RoutingError(AgentError):
    """No target succeeded. `errors` lists each failure; `str()` also shows candidates and attempts."""

    def __init__(self, message: str = "", *, errors: Sequence[AgentError] = (), **facts: Unpack[ErrorFacts]) -> None:
        super().__init__(
            message or "; ".join(f"{type(error).__name__}: {error}" for error in errors) or "no target", **facts
        )
        self.errors: tuple[AgentError, ...] = tuple(errors)

    @override
    @printable
    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.attempts}" if self.attempts else super().__str__()


class BudgetExceededError(AgentError):
    """A token, cost or turn limit was reached."""
