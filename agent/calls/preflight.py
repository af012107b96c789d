"""Pre-flight check: report how a request would fare, without I/O and without raising errors.

The report covers validation, fields that the codec refuses or drops, conflicts with the facts about the model, the
context window, the expected cost, and whether there is a key. Token counts of the vendor are here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime
from typing import Literal, TypeVar, cast

from typing_extensions import override

from .. import errors
from ..engine.context import Call, Context
from ..engine.flow import Flow, Send
from ..errors import printable
from ..models import ModelFacts, facts
from ..models.prices import price
from ..models.token_estimates import TokenCount, estimate_prompt
from ..providers import Provider, load_provider
from ..providers.base import CountsTokens
from ..types import (
    AgentConfig,
    AgentRequest,
    AgentResponse,
    AudioContent,
    DocumentContent,
    ImageContent,
    Part,
    ThinkingLevel,
    ToolResult,
    Usage,
    Value,
)
from .call import Endpoint, hide_secrets, reveal_secrets, sign_request
from .output_modes import as_sent

T = TypeVar("T")
Fit = Literal["fits", "may not fit", "does not fit", "unknown"]

_SOON = 90
"""Warn about a model this many days before its retirement."""
_NO_KEY = "-"
"""Replaces a missing key, so that the remaining checks can run. It is never sent."""


class Problem(Value, frozen=True):
    """A reason why the request would fail."""

    message: str
    field: str | None = None
    fix: str | None = None
    kind: str = "ConfigurationError"
    """The error that the call would raise."""

    @override
    @printable
    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"{where}{self.message}{f' {self.fix}' if self.fix else ''}"


class Report(Value, frozen=True):
    """The result of a pre-flight check. It prints as a table."""

    target: str
    problems: tuple[Problem, ...] = ()
    """Reasons why the call would fail."""
    warnings: tuple[str, ...] = ()
    """Dropped fields and possible problems."""
    key: bool | None = None
    """Whether there is a key or none is needed; None if unknown."""
    tokens: TokenCount | None = None
    max_tokens: int | None = None
    """The requested maximum length of the response, or that of the model."""
    context_window: int | None = None
    fits: Fit = "unknown"
    prompt_cost: float | None = None
    """US dollars for the prompt without caching."""
    full_cost: float | None = None
    """US dollars with a response of maximum length."""
    cost_source: str | None = None

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    @override
    @printable
    def __str__(self) -> str:
        return "\n".join(_table(self))


def check(
    config: AgentConfig,
    codec: Callable[[], Provider],
    prepare: Callable[[], AgentRequest],
    *,
    today: date | None = None,
) -> Report:
    """Report on one request.

    Args:
        config: The configuration of the agent.
        codec: Creates the provider. Its errors are reported as problems.
        prepare: Creates the request to send. Its errors are reported as problems.
        today: The day for which retirements are checked. Default: today.
    """
    findings = _Findings()
    target = f"{config.provider}:{config.model}"
    provider, key = findings.provider(codec, config)
    request = findings.take(prepare)
    if request is None:
        return Report(target=target, problems=tuple(findings.problems), key=key)
    model = request.model or config.model
    target = f"{config.provider}:{model}"
    known = facts(config.provider, model)
    sent = request
    if provider is not None and (planned := findings.take(lambda: as_sent(provider, request))) is not None:
        sent = planned
        wire = findings.take(lambda: provider.encode(sent, stream=False))
        findings.warn(() if wire is None else wire.warnings)
    findings.warn(_mismatches(request, known))
    findings.warn(_retirement(known, today or datetime.now(UTC).date()))
    tokens = findings.take(lambda: estimate_prompt(sent))
    longest = request.max_tokens or known.max_output
    fits: Fit = "unknown" if tokens is None else _fit(tokens, request.max_tokens, known, findings)
    costs = (None, None, None) if tokens is None else _costs(tokens.tokens, longest, config.provider, model)
    return Report(
        target=target,
        problems=tuple(findings.problems),
        warnings=tuple(dict.fromkeys(findings.warnings)),
        key=key,
        tokens=tokens,
        max_tokens=longest,
        context_window=known.context_window,
        fits=fits,
        prompt_cost=costs[0],
        full_cost=costs[1],
        cost_source=costs[2],
    )


class _Findings:
    """Collects problems and warnings."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def warn(self, warnings: Iterable[str]) -> None:
        self.warnings.extend(warnings)

    def take(self, make: Callable[[], T]) -> T | None:
        """Return the result of `make`; None if it raised an `AgentError`, which becomes a problem."""
        try:
            return make()
        except errors.AgentError as error:
            self.add(error)
            return None

    def add(self, error: errors.AgentError) -> None:
        field = "api_key" if isinstance(error, errors.AuthenticationError) else getattr(error, "field", None)
        self.problems.append(Problem(message=error.message, field=field, fix=error.fix, kind=type(error).__name__))

    def provider(self, codec: Callable[[], Provider], config: AgentConfig) -> tuple[Provider | None, bool | None]:
        """Return the codec and whether it has a key. Without one, a placeholder allows the remaining checks."""
        try:
            return codec(), True
        except errors.AuthenticationError as error:
            self.add(error)
        except errors.AgentError as error:
            self.add(error)
            return None, None
        try:
            return load_provider(config.provider)(config.with_overrides(api_key=_NO_KEY)), False
        except errors.AgentError:
            return None, False  # other problems are reported once there is a key


def _mismatches(request: AgentRequest, known: ModelFacts) -> Iterator[str]:
    """Warn about conflicts with the facts about the model, which can be out of date."""
    if request.tools and known.tools is False:
        yield f"{known.model} is not known to call tools"
    if request.output_schema is not None and known.native_schema is False:
        yield f"{known.model} is not known to enforce output schemas; another output mode is used"
    if request.thinking not in (None, ThinkingLevel.OFF) and known.thinking is False:
        yield f"{known.model} is not known to support thinking"
    kinds = {type(part) for message in request.to_messages() for part in _walk_parts(message.parts)}
    for kind, can, what in (
        (ImageContent, known.vision, "images"),
        (DocumentContent, known.documents, "documents"),
        (AudioContent, known.audio, "audio"),
    ):
        if kind in kinds and can is False:
            yield f"{known.model} is not known to accept {what}"
    sampled = request.temperature is not None or request.top_p is not None
    if sampled and known.sampling is False:
        yield f"{known.model} does not support temperature and top_p"
    elif sampled and known.sampling_with_thinking is False and request.thinking not in (None, ThinkingLevel.OFF):
        yield f"{known.model} does not support temperature and top_p while thinking"
    if request.max_tokens is not None and known.max_output is not None and request.max_tokens > known.max_output:
        yield f"max_tokens is {request.max_tokens}, but the maximum of {known.model} is {known.max_output}"


def _retirement(known: ModelFacts, today: date) -> Iterator[str]:
    if known.retires is not None and known.retires < today:
        yield f"{known.model} was scheduled for retirement on {known.retires.isoformat()}"
    elif known.retires is not None and (known.retires - today).days <= _SOON:
        yield f"{known.model} may be retired on {known.retires.isoformat()}"


def _walk_parts(parts: Iterable[Part]) -> Iterator[Part]:
    for part in parts:
        yield part
        if isinstance(part, ToolResult) and not isinstance(part.content, str):
            yield from part.content


def _fit(tokens: TokenCount, answer: int | None, known: ModelFacts, findings: _Findings) -> Fit:
    """Return whether prompt and response fit the context window, given the margin of the token count."""
    window = known.context_window
    if window is None or known.longest_prompt is None:
        return "unknown"
    room = min(known.longest_prompt, window - min(answer or 0, known.max_output or window))
    if tokens.low > room:
        findings.problems.append(
            Problem(
                message=f"The prompt has about {tokens.tokens} tokens, but only {max(0, room)} fit.",
                field="messages",
                fix="Shorten the conversation, reduce max_tokens, or use a model with a larger window.",
                kind="ContextLengthError",
            )
        )
        return "does not fit"
    if tokens.high > room:
        findings.warn((f"the prompt may not fit: it has about {tokens.tokens} tokens, the limit is {room}",))
        return "may not fit"
    return "fits"


def _costs(prompt: int, answer: int | None, provider: str, model: str) -> tuple[float | None, float | None, str | None]:
    alone = price(Usage(prompt_tokens=prompt), provider=provider, models=(model,))
    if alone is None:
        return None, None, None
    if answer is None:
        return alone.dollars, None, alone.source
    full = price(Usage(prompt_tokens=prompt, completion_tokens=answer), provider=provider, models=(model,))
    return alone.dollars, None if full is None else full.dollars, alone.source


_KEY = {True: "found", False: "missing", None: "unknown"}


def _table(report: Report) -> Iterator[str]:
    rows = [("target", report.target), ("result", "ok" if report.ok else "would fail"), ("key", _KEY[report.key])]
    if report.tokens is not None:
        count = report.tokens
        margin = "" if count.exact else f" ({count.low:,} to {count.high:,})"
        window = "" if report.context_window is None else f" of {report.context_window:,}"
        rows.append(("prompt", f"{count.tokens:,}{margin} tokens{window}: {report.fits}"))
    if report.max_tokens is not None:
        rows.append(("answer", f"{report.max_tokens:,} tokens at most"))
    if report.prompt_cost is not None:
        most = "" if report.full_cost is None else f", {_dollars(report.full_cost)} with the longest answer"
        rows.append(("cost", f"{_dollars(report.prompt_cost)} for the prompt{most} ({report.cost_source})"))
    rows += [("problem", str(problem)) for problem in report.problems]
    rows += [("warning", warning) for warning in report.warnings]
    wide = max(len(name) for name, _ in rows)
    return (f"{name.ljust(wide)}  {value}" for name, value in rows)


def _dollars(amount: float) -> str:
    return f"${amount:.2f}" if amount >= 1 else f"${amount:.6f}".rstrip("0").rstrip(".")


def get_token_counter(provider: Provider) -> CountsTokens | None:
    """Return the provider if its vendor has an endpoint that counts tokens, else None."""
    if provider.capabilities.token_counting and hasattr(provider, "encode_count"):
        return cast(CountsTokens, provider)
    return None


def count_tokens(endpoint: Endpoint) -> Call:
    """Send the request to the vendor's token counter. The usage of the response holds the count."""
    provider, limits = endpoint.provider, endpoint.limits
    counter = get_token_counter(provider)

    def call(request: AgentRequest, context: Context) -> Flow[AgentResponse]:
        if counter is None:
            raise errors.UnsupportedFeatureError(
                f"{provider.name} has no endpoint that counts tokens.",
                field="exact",
                fix="Omit exact, or pass exact=False for an estimate.",
                provider=provider.name,
                model=request.model,
            )

        try:
            wire = yield from sign_request(provider, counter.encode_count(reveal_secrets(as_sent(provider, request))))
            reply = yield from Send(wire, limits, endpoint.via)
            if reply.status != 200:
                raise provider.decode_error(reply, request)
            tokens = counter.decode_count(reply, request)
        except errors.AgentError as error:
            raise hide_secrets(error, provider, request)  # noqa: B904  # it is the same error
        return AgentResponse(
            provider=provider.name, model=request.model or "", usage=Usage(prompt_tokens=tokens), stop_reason="stop"
        )

    return call


def read_token_count(response: AgentResponse) -> TokenCount:
    """Return the token count in a response of `count_tokens`."""
    assert response.usage is not None
    return TokenCount(tokens=response.usage.prompt_tokens, exact=True, margin=0.0, method=response.provider)
