"""Configuration of agents, retries and tool loops, and provider capabilities."""

import builtins
import math
import re
from collections.abc import Mapping
from random import random
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails
from typing_extensions import Unpack

from agent import errors

from ._base import EMPTY_OBJECT, Accepts, SequenceOf, Value
from .media import CacheHint
from .messages import MaxTokens, Seconds, Temperature, ThinkingField, TopP
from .secrets import REDACTED, ExtraField, Secret, SecretField, SecretHeaders, unmask_headers, validate_header

if TYPE_CHECKING:
    from .options import ConfigFields


_NOT_IN_A_KEY = re.compile(r"[\s\x00-\x20\x7f-\xa0]")
_UNSET: Any = None
_NO_HEADERS: Any = SecretHeaders()


def _check_headers(headers: dict[str, Any]) -> dict[str, Any]:
    for name, value in headers.items():
        validate_header(name, value)
    return headers


def _read_headers(headers: Any) -> Any:
    if not isinstance(headers, Mapping):
        return headers
    if not all(isinstance(name, str) for name in headers):
        raise ValueError("header names must be strings")
    return _check_headers(unmask_headers(headers))


def _check_key(key: Secret | None) -> Secret | None:
    if key is None:
        return None
    text = key.get_secret_value()
    if not text:
        raise ValueError("must not be empty; leave it out to use the environment variable")
    if _NOT_IN_A_KEY.search(text):
        raise ValueError("contains whitespace or control characters; copy the key again without them")
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError("contains characters outside Latin-1, which HTTP headers cannot hold") from None
    return key


def _check_base_url(url: str | None) -> str | None:
    """Validate a URL. Messages do not quote it, because it may contain a password."""
    if url is None:
        return None
    try:
        parsed = urlsplit(url)
        host, port = parsed.hostname, parsed.port
    except ValueError:
        raise ValueError("is not a valid URL") from None
    if re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ValueError("contains whitespace or control characters")
    if parsed.scheme not in ("http", "https") or not host:
        raise ValueError("must begin with http:// or https:// and name a host")
    if port == 0:
        raise ValueError("must not use port 0")
    if not _is_encodable(url):
        raise ValueError("contains a lone surrogate, which is not valid Unicode")
    if parsed.username is not None or parsed.password is not None:
        raise ValueError("must not contain a user or password; use api_key or headers")
    if "?" in url or "#" in url:
        raise ValueError("must not contain a query or fragment; vendor settings go into extra")
    return url


HeadersField = Accepts[Annotated[SecretHeaders, BeforeValidator(_read_headers)], Mapping[str, str | SecretStr]]
"""A field that accepts headers as text and returns `SecretHeaders`."""


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class AgentConfig(Value, frozen=True, extra="forbid", hide_input_in_errors=True):
    """Configuration of an agent: how to reach a model, and request defaults. Times are in seconds."""

    provider: str = Field(pattern=r"^\S+$")
    model: str = ""
    api_key: Annotated[SecretField, AfterValidator(_check_key)] = Field(default=_UNSET)
    base_url: Annotated[str | None, AfterValidator(_check_base_url)] = None
    timeout: Seconds = 600.0
    """Time limit of one attempt, from the request to the last byte."""
    connect_timeout: Seconds = 10.0
    first_byte_timeout: Seconds | None = None
    idle_timeout: Seconds | None = 300.0
    """Maximum pause between meaningful events of a stream."""
    deadline: Seconds | None = None
    """Time limit of the whole call, including retries, waits and fallbacks."""
    max_retries: int = Field(default=2, ge=0, le=10)
    temperature: Temperature | None = None
    max_tokens: MaxTokens | None = None
    top_p: TopP | None = None
    default_system: str | None = None
    thinking: ThinkingField = Field(default=_UNSET)
    cache: CacheHint | None = None
    foreign_thinking: Literal["drop", "text"] = "drop"
    """How to send reasoning of another model: dropped, or as text. Both add a warning."""
    headers: HeadersField = Field(default=_NO_HEADERS, repr=False)
    """Headers sent with every request. Values are secret: masked in dumps, absent from pickles."""
    extra: ExtraField = EMPTY_OBJECT
    """Fields merged into every request body. Credentials, by name or form, are masked in dumps, absent from pickles."""
    allow_insecure: bool = False
    """Whether the API key may be sent over plain HTTP to another machine."""

    if not TYPE_CHECKING:

        @model_validator(mode="wrap")
        @classmethod
        def _hide_inputs(cls, data, handler):
            """Remove inputs from validation errors: a misspelled field name may hold a key."""
            try:
                return handler(data)
            except ValidationError as error:
                failure = _mask_inputs(error)
            raise failure

        __init__ = errors.hide_arguments(Value.__init__)
        model_copy = errors.hide_arguments(Value.model_copy)
        model_validate = classmethod(errors.hide_arguments(Value.model_validate.__func__))
        model_validate_json = classmethod(errors.hide_arguments(Value.model_validate_json.__func__))
        from_dict = classmethod(errors.hide_arguments(Value.from_dict.__func__))

    @errors.hide_arguments
    def with_overrides(self, **changes: Unpack["ConfigFields"]) -> Self:
        """Return a copy with some settings replaced."""
        return self.model_copy(update=changes)


def _mask_inputs(error: ValidationError) -> ValidationError:
    lines = error.errors(include_url=False, include_input=False)
    for line in lines:
        if isinstance(cause := line.get("ctx", {}).get("error"), Exception):
            errors.forget_frames(cause)
    details: list[InitErrorDetails] = [
        {"type": line["type"], "loc": line["loc"], "input": REDACTED, "ctx": line.get("ctx", {})} for line in lines
    ]
    return ValidationError.from_exception_data(error.title, details, hide_input=True)


class ProviderCapabilities(Value, frozen=True):
    """Capabilities of a provider or of one of its models."""

    streaming: bool = False
    tools: bool = False
    structured_output: bool = False
    json_mode: bool = False
    vision: bool = False
    system_messages: bool = True
    batch: bool = False
    """Has a batch API that `submit_batch` supports."""
    native_schema_output: bool = False
    thinking: bool = False
    documents: bool = False
    audio: bool = False
    token_counting: bool = False
    """Has an endpoint for exact token counts."""
    max_context_tokens: int | None = Field(default=None, ge=0)
    max_output_tokens: int | None = Field(default=None, ge=0)


def _read_error_type(value: Any) -> Any:
    """Look names up in two known modules only, so that reading a config file never imports code."""
    if not isinstance(value, str):
        return value
    name = value.removeprefix("builtins.")
    kind = getattr(builtins, name, None)
    if name == value:
        kind = getattr(errors, name, kind)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind
    raise ValueError(f"{value!r} is not an exception of agent.errors or builtins; pass the class itself")


def _write_error_type(kind: type[Exception]) -> str:
    shadowed = kind.__module__ == "builtins" and hasattr(errors, kind.__name__)
    return f"builtins.{kind.__name__}" if shadowed else kind.__name__


ErrorType = Annotated[
    type[Exception],
    BeforeValidator(_read_error_type),
    PlainSerializer(_write_error_type, return_type=str, when_used="json"),
]


class RetryConfig(Value, frozen=True, extra="forbid"):
    """Retry policy: which errors to retry, how often, and the backoff. Attempts count from 1."""

    max_retries: int = Field(default=2, ge=0)
    initial_delay: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    """Upper bound of the first backoff, in seconds, after a transient failure such as a lost connection."""
    throttle_delay: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The same after a rate limit or overload; None derives it from `initial_delay` (one second by default)."""
    max_delay: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    exponential_base: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    jitter: bool = True
    retryable_errors: SequenceOf[ErrorType] = ()
    """Errors to retry in addition to those with `retryable` set."""
    budget: float | None = Field(default=0.2, ge=0, le=10)
    """Retry budget: retries per request, across all calls, to prevent retry storms. None disables it."""
    wait: Any = Field(default=None, exclude=True)
    """A tenacity wait strategy that replaces the delays above. Not serialized."""

    def should_retry(self, error: BaseException, attempt: int) -> bool:
        """Whether to retry after attempt number `attempt` failed with `error`."""
        if attempt > self.max_retries:
            return False
        if getattr(error, "committed", False) or getattr(error, "deadline", False):
            # The caller has received events, or the deadline of the call has passed.
            return False
        return bool(getattr(error, "retryable", False)) or isinstance(error, tuple(self.retryable_errors))

    def get_delay(self, attempt: int, error: BaseException | None = None, *, rand: float | None = None) -> float:
        """Return the backoff in seconds after attempt number `attempt`.

        The backoff grows exponentially up to `max_delay`, with full jitter. A `retry_after` hint is a lower bound:
        jitter is added to it.

        Args:
            attempt: Number of the failed attempt, from 1.
            error: Its error.
            rand: Replaces the random number (0 to 1), for reproducible runs.
        """
        backoff = self._backoff(attempt, error)
        hint = getattr(error, "retry_after", None)
        if hint is not None and math.isfinite(hint) and hint >= 0:
            return float(hint + _jitter(backoff, rand)) if self.jitter else float(hint)
        return _jitter(backoff, rand) if self.jitter and self.wait is None else backoff

    @property
    def first_throttle(self) -> float:
        """`throttle_delay`, or 20 times `initial_delay`, at most one second unless `initial_delay` is longer."""
        if self.throttle_delay is not None:
            return self.throttle_delay
        return min(20 * self.initial_delay, max(self.initial_delay, 1.0))

    def _backoff(self, attempt: int, error: BaseException | None) -> float:
        from tenacity import wait_exponential  # lazy: only failing programs need it

        first = self.first_throttle if isinstance(error, _THROTTLED) else self.initial_delay
        wait = self.wait or wait_exponential(multiplier=first, max=self.max_delay, exp_base=self.exponential_base)
        return max(0.0, float(wait(_retry_state(attempt, error))))


def _jitter(delay: float, rand: float | None) -> float:
    return delay * (random() if rand is None else rand)


_THROTTLED = (errors.RateLimitError, errors.OverloadedError)


def _retry_state(attempt: int, error: BaseException | None) -> Any:
    from tenacity import RetryCallState  # lazy: only failing programs need it

    state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]
    state.attempt_number = attempt
    if error is not None:
        state.set_exception((type(error), error, error.__traceback__))
    return state


Risk = Literal["read", "write", "network", "exec"]
"""Side effects of a tool: read or write local state, use the network, or execute code."""


class ToolLoopConfig(Value, frozen=True, extra="forbid"):
    """Limits of a run with tool calls."""

    max_iterations: int = Field(default=10, ge=1)
    """Maximum number of model calls."""
    max_tool_calls_per_iteration: int = Field(default=20, ge=1)
    """Calls beyond this limit get an error result and are not executed."""
    timeout_per_tool: Seconds = 30.0
    parallel_tool_execution: bool = True
    stop_on_error: bool = False
    max_identical_calls: int = Field(default=3, ge=1)
    """The run ends after the same call has returned the same result this many times."""
    max_repairs: int = Field(default=2, ge=0)
    """Maximum number of consecutive turns that consist only of invalid calls."""
    max_output_bytes: int = Field(default=256 * 1024, ge=1)
    """Maximum size of a tool result; the rest is truncated with a note to the model."""
    token_budget: int | None = Field(default=None, ge=1)
    """Maximum tokens of the run, including sub-agents."""
    cost_budget: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Maximum cost of the run in US dollars, including sub-agents."""
    time_budget: Seconds | None = None
    """Maximum duration of the run in seconds."""
    allowed_risks: frozenset[Risk] = frozenset(("read", "write", "network"))
    """Risks that tools may have without approval."""
