"""What sets Claude's models apart in how they are spoken to, and which features ask for a beta header: all of it data.

What is known about models in general (how much they write, whether they take a temperature) is in `agent.models`.
The rows follow the vendor's migration guides; the first row that fits a model's id counts. Ids are searched, not
matched from the start, because clouds put words around them: `anthropic.claude-opus-4-6-v1`, `claude-opus-4@20250514`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ...types import ThinkingLevel

API = "anthropic"
VERSION = "2023-06-01"
"""The API's version. The later one takes no temperature from any model, and changes nothing that we need."""

MOST_MARKS = 4
"""Cache breakpoints that a request may hold."""
LEAST_BUDGET = 1024
"""The smallest budget for thinking, and what we leave for the answer beside it."""

_ALL_EFFORTS = ("low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class Family:
    """Models that are spoken to alike."""

    ids: str
    """A regular expression that is found in their ids."""
    thinking: Literal["none", "budget", "adaptive"]
    """Not at all; with a budget of tokens; or as the model sees fit, guided by an effort."""
    off: Literal["omit", "disabled", "between_tools", "never"] = "omit"
    """How thinking is turned off: by not asking for it, by one of two settings, or not at all."""
    efforts: tuple[str, ...] = ()
    hides_thinking: bool = False
    """Answers leave the text of thinking empty unless it is asked for."""
    forced_calls: bool = True
    """Can be made to call a tool."""
    prefill: bool = True
    """Goes on from an assistant's turn that stands last."""
    both_samplers: bool = True
    """Takes temperature and top_p at once."""


FAMILIES = (
    Family(
        r"(?:fable|mythos)-5[-.]\d(?!\d)", "adaptive", "never", _ALL_EFFORTS, True, forced_calls=False, prefill=False
    ),
    Family(r"mythos-preview", "adaptive", "never", ("low", "medium", "high", "max"), True, prefill=False),
    Family(r"(?:fable|mythos)-5", "adaptive", "never", _ALL_EFFORTS, True, prefill=False),
    Family(r"opus-5[-.]\d(?!\d)", "adaptive", "never", _ALL_EFFORTS, True, forced_calls=False, prefill=False),
    Family(r"sonnet-5[-.]\d(?!\d)", "adaptive", "between_tools", _ALL_EFFORTS, True, forced_calls=False, prefill=False),
    Family(r"(?:opus|sonnet|haiku)-5", "adaptive", "disabled", _ALL_EFFORTS, True, prefill=False),
    Family(r"opus-4[-.][78](?!\d)", "adaptive", "omit", _ALL_EFFORTS, True, prefill=False),
    Family(
        r"(?:opus|sonnet)-4[-.]6(?!\d)",
        "adaptive",
        efforts=("low", "medium", "high", "max"),
        prefill=False,
        both_samplers=False,
    ),
    Family(r"(?:opus|sonnet|haiku)-4[-.][1-5](?!\d)", "budget", both_samplers=False),
    Family(r"(?:opus|sonnet|haiku)-4|claude-4|claude-3[-.]7", "budget"),
    Family(r"claude-(?:instant|[123])", "none"),
    Family(r"claude", "adaptive", "never", _ALL_EFFORTS, True),  # newer than this table
)
OTHERS = Family("", "budget", "disabled")
"""Other vendors' models behind this API: they follow its older manner."""


@cache
def family_of(model: str) -> Family:
    name = model.lower()
    return next((family for family in FAMILIES if re.search(family.ids, name)), OTHERS)


BUDGETS = {
    ThinkingLevel.MINIMAL: 1_024,
    ThinkingLevel.LOW: 2_048,
    ThinkingLevel.MEDIUM: 8_192,
    ThinkingLevel.HIGH: 16_384,
    ThinkingLevel.XHIGH: 32_768,
}
EFFORTS = {
    ThinkingLevel.MINIMAL: ("low",),
    ThinkingLevel.LOW: ("low",),
    ThinkingLevel.MEDIUM: ("medium",),
    ThinkingLevel.HIGH: ("high",),
    ThinkingLevel.XHIGH: ("xhigh", "max"),
}
"""Efforts by level, the best first."""

BETA_OF_TOOL = {
    "computer_20241022": "computer-use-2024-10-22",
    "bash_20241022": "computer-use-2024-10-22",
    "text_editor_20241022": "computer-use-2024-10-22",
    "computer_20250124": "computer-use-2025-01-24",
    "computer_20251124": "computer-use-2025-11-24",
    "code_execution_20250522": "code-execution-2025-05-22",
    "advisor_": "advisor-tool-2026-03-01",
    "mcp_toolset": "mcp-client-2025-11-20",
}
"""Beta headers by how the type of a server-side tool begins."""

BETA_OF_BLOCK = {
    "advisor_tool_result": "advisor-tool-2026-03-01",
    "compaction": "compact-2026-01-12",
    "mcp_tool_use": "mcp-client-2025-04-04",
    "mcp_tool_result": "mcp-client-2025-04-04",
}
"""Beta headers by the kind of a block in the conversation."""

BETA_OF_KEY = {"context_management": "context-management-2025-06-27", "mcp_servers": "mcp-client-2025-04-04"}
"""Beta headers by a key of the body, which comes from `extra`."""


def with_betas(given: str, betas: Iterable[str]) -> str:
    """The value of the beta header: what the caller sends, and each feature that is not yet there under any date."""
    named = [beta.strip() for beta in given.split(",") if beta.strip()]
    features = {_feature(beta) for beta in named}
    for beta in betas:
        if _feature(beta) not in features:
            features.add(_feature(beta))
            named.append(beta)
    return ",".join(named)


def _feature(beta: str) -> str:
    return re.sub(r"-\d{4}-\d\d-\d\d$", "", beta)
