"""Errors for unknown options: they name the right option, or the method that has it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from ..errors import ConfigurationError
from .config import ToolLoopConfig
from .options import (
    AgentOptions,
    BatchOptions,
    ConfigChanges,
    ConfigOptions,
    PreflightOptions,
    RouteOptions,
    RunOptions,
    SessionOptions,
)

F = TypeVar("F", bound=Callable[..., Any])  # Any: functions of every signature

_SYNONYMS = (
    ("system", "default_system", "system_prompt", "system_instruction", "instructions"),
    ("thinking", "reasoning_effort", "reasoning", "thinking_level", "effort"),
    ("schema", "response_format", "response_model", "response_schema", "output_type", "result_type", "text_format",
     "json_schema"),
    ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict"),
    ("stop", "stop_sequences", "stop_words"),
    ("input", "prompt", "user_prompt", "query", "question"),
    ("messages", "message_history"),
    ("logprobs", "top_logprobs"),
    ("tools", "functions"),
    ("tool_choice", "function_call", "tool_config"),
    ("extra", "extra_body", "model_kwargs", "provider_options"),
    ("headers", "extra_headers", "default_headers"),
    ("metadata", "user_id"),
    ("model", "model_name"),
    ("base_url", "api_base"),
    ("max_retries", "retries", "num_retries", "retry"),
    ("timeout", "request_timeout"),
    ("strategy", "routing_strategy"),
    ("max_iterations", "max_turns", "max_steps"),
)  # fmt: skip
"""Names of one option. The first are ours; the others are those of vendors and of other libraries."""

_CALL_KEYS = frozenset(PreflightOptions.__annotations__) - {"route"}
_CONFIG_KEYS = frozenset(ConfigOptions.__annotations__)
AGENT_KEYS = frozenset((*AgentOptions.__annotations__, *ConfigChanges.__annotations__, "transport", "client"))
"""Keyword arguments of `Agent`."""

_PLACES = (
    (
        (_CALL_KEYS & _CONFIG_KEYS) | {"tools"},
        "Set it on the agent: Agent(..., {0}=...), or pass it to a call: complete(..., {0}=...).",
    ),
    (_CALL_KEYS, "Pass it to a call: complete(..., {0}=...)."),
    (frozenset(ConfigChanges.__annotations__), "Set it on the agent: Agent(..., {0}=...), or with_config({0}=...)."),
    (AGENT_KEYS, "Set it on the agent: Agent(..., {0}=...)."),
    (
        frozenset((*RunOptions.__annotations__, "deps")) - {"route"},
        "Pass it to run() or run_stream(), which execute tools: run(..., {0}=...).",
    ),
    (frozenset(BatchOptions.__annotations__) - {"route"}, "Pass it to batch() or batch_stream()."),
    (frozenset(SessionOptions.__annotations__), "Pass it to session()."),
    (
        frozenset(RouteOptions.__annotations__),
        'Set it on the router: Router(..., {0}=...), or for one request: route={{"{0}": ...}}.',
    ),
    (frozenset(("stream",)), "Call stream() or astream() instead."),
    (frozenset(("route",)), "Only routers have it: Router(...).complete(..., route=...)."),
    (frozenset(ToolLoopConfig.model_fields), 'It is a limit of runs: run(..., loop={{"{0}": ...}}).'),
)
"""Options, and where they belong."""


def check_options(
    given: Mapping[str, Any],  # Any: values are validated elsewhere
    known: Collection[str],
    owner: str,
    also: Collection[str] = (),
) -> None:
    """Raise ConfigurationError for the first unknown option. The fix names the right option or place.

    Args:
        given: The options.
        known: Names of the valid ones.
        owner: The subject of the message, such as `A request`.
        also: Further names to suggest, which the caller has removed from the options.
    """
    for name in given:
        if name not in known:
            raise ConfigurationError(
                f"{owner} has no option {name!r}.", field=name, fix=_suggest(name, {*known, *also})
            )


def find_similar(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """Return the names that are most similar to a misspelled one, best first."""
    from difflib import get_close_matches  # lazy: only misspelled names need it

    spelled = {one.lower(): one for one in known}
    return [spelled[match] for match in get_close_matches(name.lower(), spelled, n=count)]


def _suggest(name: str, known: Collection[str]) -> str:
    names = next((group for group in _SYNONYMS if name in group), (name,))
    for synonym in names:
        if synonym in known:
            return f"Use {synonym}=."
    for options, place in _PLACES:
        if (found := next((synonym for synonym in names if synonym in options), None)) is not None:
            renamed = "" if found == name else f"Its name is {found}. "
            return renamed + place.format(found)
    if similar := find_similar(name, known):
        return f"Did you mean {similar[0]}?"
    for options, place in _PLACES:
        if similar := find_similar(name, options):
            return f"Did you mean {similar[0]}? {place.format(similar[0])}"
    return f"Use one of {', '.join(sorted(known))}."


def check_keywords(owner: str) -> Callable[[F], F]:
    """Check the keyword arguments of a function, or of a class, with `check_options`."""

    def decorate(target: F) -> F:
        if isinstance(target, type):
            target.__init__ = decorate(target.__init__)  # type: ignore[misc]  # generated by dataclass
            return target
        known = frozenset(inspect.signature(target).parameters) - {"self"}

        @wraps(target)
        def call(*args: Any, **options: Any) -> Any:
            if not known.issuperset(options):
                names = dict.fromkeys(options)
                options.clear()  # values may be secret, and would stay in this frame
                check_options(names, known, owner)
            return target(*args, **options)

        return cast(F, call)

    return decorate


def check_choice(field: str, value: str, choices: Sequence[str]) -> None:
    """Raise a ConfigurationError with a suggestion unless the value is one of the choices."""
    if value not in choices:
        guess = "".join(f"Did you mean {similar}? " for similar in find_similar(str(value), choices))
        raise ConfigurationError(f"{field} is {value!r}.", field=field, fix=f"{guess}Use one of {', '.join(choices)}.")
