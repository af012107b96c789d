"""Settings: of an agent, of retries, of the tool loop; and what a provider can do.

Data with checks, no behaviour beyond arithmetic on its own numbers. Nothing here reads the environment, knows a
vendor, or sleeps.
"""

from __future__ import annotations

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

from agent import errors

from ._base import NOTHING, JsonObject, Many, Reads, Value
from .messages import MaxTokens, Seconds, Temperature, ThinkingField, TopP
from .parts import CacheHint
from .secrets import REDACTED, Secret, SecretField, SecretHeaders, check_header, unmask_headers

_NOT_IN_A_KEY = re.compile(r"[\s\x00-\x20\x7f-\xa0]")
_UNSET: Any = None
_NO_HEADERS: Any = SecretHeaders()


def _check_headers(headers: dict[str, Any]) -> dict[str, Any]:
    """Values are never quoted: they may be secret."""
    for name, value in headers.items():
        check_header(name, value)
    return headers


def _read_headers(headers: Any) -> Any:
    if not isinstance(headers, Mapping):
        return headers
    if not all(isinstance(name, str) for name in headers):
        raise ValueError("the name of a header is not text")
    return _check_headers(unmask_headers(headers))


def _check_key(key: Secret | None) -> Secret | None:
    if key is None:
        return None
    text = key.get_secret_value()
    if not text:
        raise ValueError("is empty; leave it out to use the environment's")
    if _NOT_IN_A_KEY.search(text):
        raise ValueError("contains whitespace or control characters; copy the key again without them")
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError("contains characters that an HTTP header cannot hold; copy the key again") from None
    return key


def _check_base_url(url: str | None) -> str | None:
    """The address may hold a password, so no message quotes it."""
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
        raise ValueError("must not name port 0, which nothing can listen on")
    if not _is_encodable(url):
        raise ValueError("contains a lone surrogate, half of a character")
    if parsed.username is not None or parsed.password is not None:
        raise ValueError("must not contain a user or password; use api_key or headers")
    if "?" in url or "#" in url:
        raise ValueError("must not contain a query or fragment; vendor settings go into extra")
    return url


HeadersField = Reads[Annotated[SecretHeaders, BeforeValidator(_read_headers)], Mapping[str, str | SecretStr]]
"""A field that takes headers as text and gives `SecretHeaders`."""


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class AgentConfig(Value, frozen=True, extra="forbid", hide_input_in_errors=True):
    """How to reach a model, and how to speak to it unless a request says otherwise. Times are seconds."""

    provider: str = Field(pattern=r"^\S+$")
    model: str = ""
    api_key: Annotated[SecretField, AfterValidator(_check_key)] = Field(default=_UNSET)
    base_url: Annotated[str | None, AfterValidator(_check_base_url)] = None
    timeout: Seconds = 600.0
    """Of one attempt: from sending to the last byte."""
    connect_timeout: Seconds = 10.0
    first_byte_timeout: Seconds | None = None
    idle_timeout: Seconds | None = 300.0
    """The longest silence between meaningful events of a stream."""
    deadline: Seconds | None = None
    """Of a whole call: retries, waits and fallbacks included."""
    max_retries: int = Field(default=2, ge=0, le=10)
    temperature: Temperature | None = None
    max_tokens: MaxTokens | None = None
    top_p: TopP | None = None
    default_system: str | None = None
    thinking: ThinkingField = Field(default=_UNSET)
    cache: CacheHint | None = None
    foreign_thinking: Literal["drop", "text"] = "drop"
    """What becomes of reasoning that another model wrote: left out, or told as text. Either way with a warning."""
    headers: HeadersField = Field(default=_NO_HEADERS, repr=False)
    """Sent with every request. Values are secret, as `api_key` is: masked in dumps, absent from pickles."""
    extra: JsonObject = NOTHING
    """Merged into every request body as is. Shown in dumps; put credentials into `api_key` or `headers`."""
    allow_insecure: bool = False
    """Whether a key may travel over plain HTTP to another machine."""

    if not TYPE_CHECKING:

        @model_validator(mode="wrap")
        @classmethod
        def _hide_inputs(cls, data, handler):
            """Errors keep the values they complain about, and one of those may be a key under a misspelt name."""
            try:
                return handler(data)
            except ValidationError as error:
                raise _without_inputs(error) from None

    def with_overrides(self, **changes: Any) -> Self:
        """Return a copy with some settings replaced."""
        return self.model_copy(update=changes)


def _without_inputs(error: ValidationError) -> ValidationError:
    details: list[InitErrorDetails] = [
        {"type": line["type"], "loc": line["loc"], "input": REDACTED, "ctx": line.get("ctx", {})}
        for line in error.errors(include_url=False, include_input=False)
    ]
    return ValidationError.from_exception_data(error.title, details, hide_input=True)


class ProviderCapabilities(Value, frozen=True):
    """What a provider, or one of its models, can do."""

    streaming: bool = False
    tools: bool = False
    structured_output: bool = False
    json_mode: bool = False
    vision: bool = False
    system_messages: bool = True
    batch: bool = False
    native_schema_output: bool = False
    thinking: bool = False
    documents: bool = False
    audio: bool = False
    token_counting: bool = False
    """Has an endpoint that counts tokens exactly."""
    max_context_tokens: int | None = Field(default=None, ge=0)
    max_output_tokens: int | None = Field(default=None, ge=0)


def _read_error_type(value: Any) -> Any:
    """Names are looked up in two known modules only: reading a config file must never import code."""
    if not isinstance(value, str):
        return value
    name = value.removeprefix("builtins.")
    found = getattr(builtins, name, None)
    if name == value:
        found = getattr(errors, name, found)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    raise ValueError(f"{value!r} is no error of agent.errors or builtins; pass the class itself")


def _write_error_type(kind: type[Exception]) -> str:
    shadowed = kind.__module__ == "builtins" and hasattr(errors, kind.__name__)
    return f"builtins.{kind.__name__}" if shadowed else kind.__name__


ErrorType = Annotated[
    type[Exception],
    BeforeValidator(_read_error_type),
    PlainSerializer(_write_error_type, return_type=str, when_used="json"),
]


class RetryConfig(Value, frozen=True, extra="forbid"):
    """When to try again, and how long to wait before. Attempts count from 1."""

    max_retries: int = Field(default=2, ge=0)
    initial_delay: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    """The longest first wait after a failure that passes by itself, such as a lost connection."""
    throttle_delay: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The same after a vendor said that it is asked too much; None: a second, for the usual `initial_delay`."""
    max_delay: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    exponential_base: float = Field(default=2.0, ge=1, allow_inf_nan=False)
    jitter: bool = True
    retryable_errors: Many[ErrorType] = ()
    """Errors to retry besides those that say of themselves that it may help."""
    budget: float | None = Field(default=0.2, ge=0, le=10)
    """Retries for each request, of all calls together: in an outage, nobody asks five times. None: no limit."""
    wait: Any = Field(default=None, exclude=True)
    """A wait strategy of tenacity, in place of the delays above. It is not written to JSON."""

    def should_retry(self, error: BaseException, attempt: int) -> bool:
        """Whether to try again after the `attempt`-th try failed with `error`."""
        if _stops_after(self.max_retries, attempt):
            return False
        if getattr(error, "committed", False) or getattr(error, "deadline", False):
            # The caller has seen part of the answer, or there is no time left: trying again cannot be right.
            return False
        return bool(getattr(error, "retryable", False)) or isinstance(error, tuple(self.retryable_errors))

    def get_delay(self, attempt: int, error: BaseException | None = None, *, rand: float | None = None) -> float:
        """Seconds to wait after the `attempt`-th try. `rand` (0 to 1) replaces chance, so that a run can be replayed.

        The wait grows with each attempt up to `max_delay`; jitter takes a random share of it, so that clients who
        failed together do not return together. A wait the vendor asked for is never undercut: jitter comes on top.
        """
        backoff = self._backoff(attempt, error)
        hint = getattr(error, "retry_after", None)
        if hint is not None and math.isfinite(hint) and hint >= 0:
            return float(hint + self._share(backoff, rand)) if self.jitter else float(hint)
        return self._share(backoff, rand) if self.jitter and self.wait is None else backoff

    @property
    def first_throttle(self) -> float:
        """`throttle_delay`, or what goes with `initial_delay`: a second or more, but for those in a hurry less."""
        if self.throttle_delay is not None:
            return self.throttle_delay
        return min(20 * self.initial_delay, max(self.initial_delay, 1.0))

    def _backoff(self, attempt: int, error: BaseException | None) -> float:
        from tenacity import wait_exponential  # only programs in which something fails pay for it

        first = self.first_throttle if isinstance(error, _THROTTLED) else self.initial_delay
        wait = self.wait or wait_exponential(multiplier=first, max=self.max_delay, exp_base=self.exponential_base)
        return max(0.0, float(wait(_retry_state(attempt, error))))

    @staticmethod
    def _share(delay: float, rand: float | None) -> float:
        if rand is None:
            rand = random()
        return delay * rand


_THROTTLED = (errors.RateLimitError, errors.OverloadedError)


def _stops_after(retries: int, attempt: int) -> bool:
    from tenacity import stop_after_attempt

    return stop_after_attempt(retries + 1)(_retry_state(attempt, None))


def _retry_state(attempt: int, error: BaseException | None) -> Any:
    """What tenacity's strategies ask."""
    from tenacity import RetryCallState

    state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]
    state.attempt_number = attempt
    if error is not None:
        state.set_exception((type(error), error, error.__traceback__))
    return state


Risk = Literal["read", "write", "network", "exec"]
"""What a tool can do to the world: look, change things here, reach out, or run code."""


class ToolLoopConfig(Value, frozen=True, extra="forbid"):
    """Limits of a run in which the model calls tools."""

    max_iterations: int = Field(default=10, ge=1)
    """Model calls of one run."""
    max_tool_calls_per_iteration: int = Field(default=20, ge=1)
    """Calls beyond it are answered, not run."""
    timeout_per_tool: Seconds = 30.0
    parallel_tool_execution: bool = True
    stop_on_error: bool = False
    max_identical_calls: int = Field(default=3, ge=1)
    """A run ends when the same call has brought the same result so often."""
    max_repairs: int = Field(default=2, ge=0)
    """How many turns in a row may consist of nothing but calls that cannot be made."""
    max_output_bytes: int = Field(default=256 * 1024, ge=1)
    """Of one tool's result; the rest is cut off, and the model is told."""
    token_budget: int | None = Field(default=None, ge=1)
    """Tokens of the whole run, sub-agents included."""
    cost_budget: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Dollars of the whole run, sub-agents included."""
    time_budget: Seconds | None = None
    """Seconds of the whole run."""
    allowed_risks: frozenset[Risk] = frozenset(("read", "write", "network"))
    """What tools may do without being allowed one by one."""
